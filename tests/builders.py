"""What tests are about, built in one place: models, machines, jobs, configurations, price columns.

Every field can be set; what a test does not set is small, round and without a catalogue. `made_up`
in a source says so. Where a test is about a real model or device, it passes the catalogue's own.
"""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app.dataset.count import count_dataset
from autotune.catalog.devices import default_host, find_device
from autotune.catalog.models.models import find_model
from autotune.catalog.software import find_software
from autotune.cost.columns import Columns
from autotune.cost.parameters import resolve_targets
from autotune.domain.config import Config
from autotune.domain.device import Device, Host, Offer
from autotune.domain.job import BYTES, Job, Lengths, Limits, Method
from autotune.domain.model import Linear, Model
from autotune.domain.observation import Observation
from autotune.domain.software import Software

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from autotune.domain.answer.dataset import Histogram
    from autotune.domain.observation import MemoryKind
    from autotune.evidence.cases import MeasuredCase

GIB = 2.0**30
MADE_UP = "a test"
BLAS_A100 = 2 * 8.125 * 2**20  # bytes of cuBLAS's two workspaces there
PATIENT_S = 900.0  # for one trace: a machine may be too busy to import torch within a minute
BRIEF = {"windows": 1, "calm_s": 0.0}  # for Effort: a probe that waits for no other program
RATES = {  # vendor, compute capability, fp32, tf32, fp16 and bf16 FLOP/s, GiB
    "t4": ("nvidia", 7.5, 8.1e12, 0.0, 65e12, 0.0, 15.0),
    "v100": ("nvidia", 7.0, 14e12, 0.0, 112e12, 0.0, 16.0),
    "a100": ("nvidia", 8.0, 19.5e12, 156e12, 312e12, 312e12, 80.0),
    "h100": ("nvidia", 9.0, 67e12, 494e12, 989e12, 989e12, 80.0),
    "mi300x": ("amd", 0.0, 163e12, 653e12, 1307e12, 1307e12, 192.0),
    "cpu": ("cpu", 0.0, 1e11, 0.0, 0.0, 1e11, 16.0),
}


def needs(*packages: str) -> None:
    """Skip a module where a package is missing, and import none: only its tests or processes do."""
    missing = ", ".join(package for package in packages if find_spec(package) is None)
    if missing:
        pytest.skip(f"needs {missing}", allow_module_level=True)


def device(name: str, **fields: Any) -> Device:
    """A device of RATES, without a catalogue."""
    vendor, capability, fp32, tf32, fp16, bf16, gib = RATES[name]
    values: dict[str, Any] = {
        "name": name, "vendor": vendor, "aliases": (), "architecture": "any",
        "compute_capability": capability, "form_factor": "any",
        "memory_driver_bytes": gib * GIB, "memory_torch_bytes": gib * GIB,
        "memory_bandwidth_bytes_per_s": 2e12, "fp32_flop_per_s": fp32, "tf32_flop_per_s": tf32,
        "fp16_flop_per_s": fp16, "bf16_flop_per_s": bf16, "int8_op_per_s": 0.0,
        "fp8_flop_per_s": 0.0, "matmul_ceiling_fraction": 0.7, "matmul_ceiling_measured": False,
        "link_bytes_per_s": 3e10, "has_nvlink": False, "pcie_bytes_per_s": 3e10, "sm_count": 100,
        "tdp_w": 400.0, "release_year": 2022, "source": MADE_UP,
    }  # fmt: skip
    return Device(**{**values, **fields})


def host(**fields: Any) -> Host:
    """16 cores and room for everything."""
    values: dict[str, Any] = {
        "cores": 16, "ram_bytes": 128 * GIB, "shm_bytes": 16 * GIB, "disk_bytes": 500e9,
        "checkpoint_write_bytes_per_s": 1e9, "storage_read_bytes_per_s": 1e9,
        "download_bytes_per_s": 1e8,
    }  # fmt: skip
    return Host(**{**values, **fields})


def offer(name: str, count: int = 1, price: float = 2.0, **host_fields: Any) -> Offer:
    """A machine with devices of RATES."""
    return Offer(device(name), count, price, host(**host_fields), MADE_UP)


def sold(what: str | Device, count: int = 1, price: float = 2.0, **host_fields: Any) -> Offer:
    """A machine with devices of the catalogue and the host that is usual for them."""
    found = find_device(what) if isinstance(what, str) else what
    around = replace(default_host(count, found), **host_fields)
    return Offer(found, count, price, around, MADE_UP)


def model(**fields: Any) -> Model:
    """Four layers of a llama."""
    values: dict[str, Any] = {
        "name": "small", "family": "llama", "architecture": "LlamaForCausalLM", "num_layers": 4,
        "hidden_size": 512, "num_attention_heads": 8, "num_kv_heads": 8, "head_dim": 64,
        "intermediate_size": 1376, "vocab_size": 32000, "max_position_embeddings": 4096,
        "tied_head": False, "source": MADE_UP,
        "linears": (
            *(Linear(f"{name}_proj", 512, 512) for name in "qkvo"),
            Linear("gate_proj", 512, 1376, part="mlp"), Linear("up_proj", 512, 1376, part="mlp"),
            Linear("down_proj", 1376, 512, part="mlp"),
        ),
    }  # fmt: skip
    return Model(**{**values, **fields})


def less_deep(own: Model, folder: Path, layers: int, **fields: Any) -> Model:
    """The first layers of a text model, of every kind that it has; `fields` are of its config."""
    shape = json.loads(own.hf_config) | {"num_hidden_layers": layers} | fields
    if "layer_types" in shape:
        shape["layer_types"] = shape["layer_types"][:layers]
    (folder / "config.json").write_text(json.dumps(shape))
    found = replace(find_model(str(folder)), beside_params=0)
    assert len(found.kinds) == len(own.kinds)
    assert found.num_layers == layers
    return found


def software(**fields: Any) -> Software:
    """Versions of late 2026, with every optional package."""
    values: dict[str, Any] = {
        "name": "test", "as_of": "2026-11-01", "torch": (2, 13, 0), "transformers": (5, 23, 0),
        "trl": (1, 16, 0), "peft": (0, 21, 2), "accelerate": (1, 15, 0), "flash_attn": (2, 8, 0),
        "bitsandbytes": (0, 49, 0),
    }  # fmt: skip
    return Software(**{**values, **fields})


def equal_rows(tokens: int) -> Lengths:
    """Every row of the same length."""
    return Lengths((float(tokens), float(tokens)), float(tokens), tokens, known=True)


def lora(own: Model, base: Any = "16bit", targets: str = "all-linear", **fields: Any) -> Method:
    """Rank 16 on the model's own linears."""
    method = Method("lora", base, 16, 16.0, 0.0, resolve_targets(own, targets))
    return replace(method, **fields)


def job(*offers: Offer, **fields: Any) -> Job:
    """A LoRA run of the small model on one A100; `fields` are those of Job."""
    values: dict[str, Any] = {
        "name": "test", "model": model(),
        "method": Method("lora", "16bit", 16, 16.0, 0.0, ("q_proj", "v_proj")),
        "rows": 10_000, "max_length": 512,
        "lengths": Lengths((50.0, 200.0, 512.0), 240.0, 512, known=True), "padding": "longest",
        "pretokenized": True, "storage": "local", "epochs": 1.0, "steps": 1250,
        "global_batch_size": 8, "evaluation": None, "limits": Limits(0.08, 1800.0),
        "software": software(), "offers": offers or (offer("a100"),),
    }  # fmt: skip
    return Job(**{**values, **fields})


def priced_job(own: Model, method: Method, length: int, **fields: Any) -> Job:
    """A job of equal rows and no offer, for one component's price; the loss upcasts its logits."""
    values: dict[str, Any] = {
        "model": own, "method": method, "max_length": length, "lengths": equal_rows(length),
        "rows": 100, "steps": 25, "limits": Limits(0.0, 1800.0), "offers": (),
        "software": replace(find_software(None), loss="upcast"),
    }  # fmt: skip
    return job(**{**values, **fields})


def config(micro: int = 4, accumulation: int = 1, **knobs: Any) -> Config:
    """One configuration; what is not named has its default."""
    values: dict[str, Any] = {
        "micro_batch_size": micro, "gradient_accumulation_steps": accumulation,
        "checkpoint_every_steps": 100, "precision": "bf16",
    }  # fmt: skip
    return Config(**{**values, **knobs})


def memory_row(**knobs: Any) -> dict[str, Any]:
    """A candidate as the memory component reads it; `offer__count` is the column offer.count."""
    row: dict[str, Any] = {
        "offer.device": find_device("a100-sxm4-80gb"), "offer.count": 1, "offer.network": None,
        "sharding": "none",
        "micro_batch_size": 4, "precision": "bf16", "activation_checkpointing": "none",
        "attention": "sdpa", "optimizer": "adamw_torch_fused", "adapter_dtype": "fp32",
        "packing": "off", "length_grouping": "off", "compile": "off", "compile_scope": "model",
        "kernels": "none", "offload": "none",
    }  # fmt: skip
    return row | {name.replace("__", "."): value for name, value in knobs.items()}


def memory_columns(**knobs: Any) -> Columns:
    """That one candidate as a table of one row."""
    return Columns({name: [value] for name, value in memory_row(**knobs).items()}, 1)


def observed(
    case: MeasuredCase,
    *,
    step_s: float | None = None,
    peaks: Mapping[MemoryKind, float] | None = None,
    oom: bool = False,
    **fields: Any,
) -> MeasuredCase:
    """The case with other Observations; what is None stays as it is. oom: it is all there is."""
    step = [] if case.step is None else [case.step]
    memory = [o for o in case.observations if o.quantity == "memory_bytes"]
    if step_s is not None:
        step = [Observation("step", "step_time_s", step_s, MADE_UP)]
    if peaks is not None:
        memory = [
            Observation(kind, "memory_bytes", size, MADE_UP, kind) for kind, size in peaks.items()
        ]
    own = [Observation("oom", "oom", 1.0, MADE_UP)] if oom else [*step, *memory]
    return replace(case, observations=tuple(own), **fields)


def count_rows(
    path: Path, tokenizer: str | None = BYTES, base_dir: Path | None = None,
    column: str | None = None,
) -> Histogram:  # fmt: skip
    """Rows of a data set by their length in tokens, a byte a token unless one is named."""
    return count_dataset(path, tokenizer, base_dir, column=column).histogram
