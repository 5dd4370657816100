"""Jobs, offers and configurations for the exporter's tests, built without any loader."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import builders as build
from ruamel.yaml import YAML

from autotune.domain.device import Device, Offer
from autotune.domain.job import Evaluation, Job, Lengths, Method
from autotune.domain.model import Linear, Model
from autotune.trainers.registry import TRAINERS
from autotune.trainers.syntax.python_source import parse_script

if TYPE_CHECKING:
    from autotune.domain.config import Config
    from autotune.trainers.contract import Export

HOST = build.host(ram_bytes=128e9, shm_bytes=16e9, disk_bytes=100e9)
SOFTWARE = build.software(flash_attn=None, bitsandbytes=None)
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
    if cpu:
        return build.device("cpu")
    return replace(build.device("h100"), name="h100-sxm", architecture="hopper", form_factor="")


def offer(count: int = 1, *, cpu: bool = False, spot: bool = False) -> Offer:
    return Offer(device(cpu=cpu), count, 2.5 * count, HOST, "test", "2026-11-01", spot=spot)


def job(method: Method = LORA, **changes: object) -> Job:
    values: dict[str, Any] = {
        "name": "test job", "model": MODEL, "method": method, "rows": 64, "max_length": 48,
        "lengths": Lengths((48.0, 48.0), 48.0, 48, known=False), "pretokenized": False,
        "epochs": 3.0, "steps": 24, "software": SOFTWARE, "offers": (offer(),),
        "dataset_path": "data.jsonl",
    }  # fmt: skip
    return build.job(**{**values, **changes})


def config(**changes: object) -> Config:
    return build.config(4, 2, **{"checkpoint_every_steps": 10, **changes})


def evaluation(every_steps: int = 5) -> Evaluation:
    return Evaluation(rows=6, every_steps=every_steps, batch_size=2)


def with_base(method: Method, base: str) -> Method:
    return replace(method, base=base)  # type: ignore[arg-type]


def values_of(target: str, made: Export) -> dict[str, Any]:
    """The settings of an export, as its trainer's file holds them."""
    name = TRAINERS[target.partition("@")[0]].file
    if name.endswith(".py"):
        return parse_script(made.files[name], name).values
    found: dict[str, Any] = YAML(typ="safe", pure=True).load(made.files[name])
    return found
