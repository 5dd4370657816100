"""Jobs, offers and configurations for the exporter's tests, built without any loader."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML

from autotune.domain.config import Config
from autotune.domain.device import Device, Host, Offer
from autotune.domain.job import Evaluation, Job, Lengths, Limits, Method
from autotune.domain.model import Linear, Model
from autotune.domain.software import Software
from autotune.trainers.syntax.python_source import parse_script

if TYPE_CHECKING:
    from autotune.trainers.format import Export

FILE_OF = {  # where each format holds its settings
    "hf": "training_args.json", "trl": "sft_config.json", "axolotl": "axolotl.yml",
    "llamafactory": "llamafactory.yaml", "litgpt": "litgpt.yaml", "unsloth": "unsloth_train.py",
}  # fmt: skip
HOST = Host(
    cores=16,
    ram_bytes=128e9,
    shm_bytes=16e9,
    disk_bytes=100e9,
    checkpoint_write_bytes_per_s=1e9,
    storage_read_bytes_per_s=1e9,
    download_bytes_per_s=1e8,
)
SOFTWARE = Software(
    name="test",
    as_of="2026-11-01",
    torch=(2, 13, 0),
    transformers=(5, 23, 0),
    trl=(1, 16, 0),
    peft=(0, 21, 2),
    accelerate=(1, 15, 0),
    flash_attn=None,
    bitsandbytes=None,
)
MODEL = Model(
    name="tiny-llama",
    family="llama",
    architecture="LlamaForCausalLM",
    num_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=64,
    vocab_size=128,
    max_position_embeddings=128,
    tied_head=False,
    source="made up for the tests",
    linears=(
        Linear("q_proj", 32, 32),
        Linear("v_proj", 32, 16),
        Linear("down_proj", 64, 32, part="mlp"),
    ),
)
LORA = Method("lora", "16bit", 8, 16.0, 0.05, ("q_proj", "v_proj", "down_proj"))
FULL = Method("full", "16bit")


def device(*, cpu: bool = False) -> Device:
    return Device(
        name="cpu" if cpu else "h100-sxm",
        vendor="cpu" if cpu else "nvidia",
        aliases=(),
        architecture="cpu" if cpu else "hopper",
        compute_capability=0.0 if cpu else 9.0,
        form_factor="",
        memory_driver_bytes=80e9,
        memory_torch_bytes=79e9,
        memory_bandwidth_bytes_per_s=3e12,
        fp32_flop_per_s=67e12,
        tf32_flop_per_s=0.0 if cpu else 495e12,
        fp16_flop_per_s=0.0 if cpu else 989e12,
        bf16_flop_per_s=989e12,
        int8_op_per_s=0.0,
        fp8_flop_per_s=0.0,
        matmul_ceiling_fraction=0.7,
        matmul_ceiling_measured=False,
        link_bytes_per_s=450e9,
        has_nvlink=True,
        pcie_bytes_per_s=50e9,
        sm_count=132,
        tdp_w=700.0,
        release_year=2022,
        source="made up for the tests",
    )


def offer(count: int = 1, *, cpu: bool = False, spot: bool = False) -> Offer:
    return Offer(device(cpu=cpu), count, 2.5 * count, HOST, "test", "2026-11-01", spot=spot)


def job(method: Method = LORA, **changes: object) -> Job:
    values: dict[str, object] = {
        "name": "test job",
        "model": MODEL,
        "method": method,
        "rows": 64,
        "max_length": 48,
        "lengths": Lengths((48.0, 48.0), 48.0, 48, known=False),
        "padding": "longest",
        "pretokenized": False,
        "storage": "local",
        "epochs": 3.0,
        "steps": 24,
        "global_batch_size": 8,
        "evaluation": None,
        "limits": Limits(0.08, 1800.0),
        "software": SOFTWARE,
        "offers": (offer(),),
        "dataset_path": "data.jsonl",
    }
    return Job(**{**values, **changes})  # type: ignore[arg-type]


def config(**changes: object) -> Config:
    values: dict[str, object] = {
        "micro_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "checkpoint_every_steps": 10,
        "precision": "bf16",
    }
    return Config(**{**values, **changes})  # type: ignore[arg-type]


def evaluation(every_steps: int = 5) -> Evaluation:
    return Evaluation(rows=6, every_steps=every_steps, batch_size=2)


def with_base(method: Method, base: str) -> Method:
    return replace(method, base=base)  # type: ignore[arg-type]


def values_of(target: str, made: Export) -> dict[str, Any]:
    """The settings of an export, as its trainer's file holds them."""
    name = target.partition("@")[0]
    text = made.files[FILE_OF[name]]
    if name == "unsloth":
        return parse_script(text, FILE_OF[name]).values
    found: dict[str, Any] = YAML(typ="safe", pure=True).load(text)
    return found
