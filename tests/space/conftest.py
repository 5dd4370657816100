"""Small jobs, models and machines whose every field a test can set."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.domain.device import Device, Host, Offer
from autotune.domain.job import Job, Lengths, Limits, Method
from autotune.domain.model import Linear, Model
from autotune.domain.software import Software

GIB = 2.0**30
RATES = {
    "t4": ("nvidia", 7.5, 8.1e12, 0.0, 65e12, 0.0, 15.0),
    "v100": ("nvidia", 7.0, 14e12, 0.0, 112e12, 0.0, 16.0),
    "a100": ("nvidia", 8.0, 19.5e12, 156e12, 312e12, 312e12, 80.0),
    "h100": ("nvidia", 9.0, 67e12, 494e12, 989e12, 989e12, 80.0),
    "mi300x": ("amd", 0.0, 163e12, 653e12, 1307e12, 1307e12, 192.0),
    "cpu": ("cpu", 0.0, 1e11, 0.0, 0.0, 1e11, 16.0),
}


def device(name: str, **fields: Any) -> Device:
    vendor, capability, fp32, tf32, fp16, bf16, gib = RATES[name]
    values: dict[str, Any] = {
        "name": name, "vendor": vendor, "aliases": (), "architecture": "any",
        "compute_capability": capability, "form_factor": "any",
        "memory_driver_bytes": gib * GIB, "memory_torch_bytes": gib * GIB,
        "memory_bandwidth_bytes_per_s": 2e12, "fp32_flop_per_s": fp32, "tf32_flop_per_s": tf32,
        "fp16_flop_per_s": fp16, "bf16_flop_per_s": bf16, "int8_op_per_s": 0.0,
        "fp8_flop_per_s": 0.0, "matmul_ceiling_fraction": 0.7, "matmul_ceiling_measured": False,
        "link_bytes_per_s": 3e10, "has_nvlink": False, "pcie_bytes_per_s": 3e10, "sm_count": 100,
        "tdp_w": 400.0, "release_year": 2022, "source": "a test",
    }  # fmt: skip
    return Device(**{**values, **fields})


def host(**fields: Any) -> Host:
    values: dict[str, Any] = {
        "cores": 16, "ram_bytes": 128 * GIB, "shm_bytes": 16 * GIB, "disk_bytes": 500e9,
        "checkpoint_write_bytes_per_s": 1e9, "storage_read_bytes_per_s": 1e9,
        "download_bytes_per_s": 1e8,
    }  # fmt: skip
    return Host(**{**values, **fields})


def offer(name: str, count: int = 1, price: float = 2.0, **host_fields: Any) -> Offer:
    return Offer(device(name), count, price, host(**host_fields), "a test")


def model(**fields: Any) -> Model:
    values: dict[str, Any] = {
        "name": "small", "family": "llama", "architecture": "LlamaForCausalLM", "num_layers": 4,
        "hidden_size": 512, "num_attention_heads": 8, "num_kv_heads": 8, "head_dim": 64,
        "intermediate_size": 1376, "vocab_size": 32000, "max_position_embeddings": 4096,
        "tied_head": False, "source": "a test",
        "linears": (
            *(Linear(f"{name}_proj", 512, 512) for name in "qkvo"),
            Linear("gate_proj", 512, 1376, part="mlp"), Linear("up_proj", 512, 1376, part="mlp"),
            Linear("down_proj", 1376, 512, part="mlp"),
        ),
    }  # fmt: skip
    return Model(**{**values, **fields})


def software(**fields: Any) -> Software:
    values: dict[str, Any] = {
        "name": "test", "as_of": "2026-11-01", "torch": (2, 13, 0), "transformers": (5, 23, 0),
        "trl": (1, 16, 0), "peft": (0, 21, 2), "accelerate": (1, 15, 0), "flash_attn": (2, 8, 0),
        "bitsandbytes": (0, 49, 0),
    }  # fmt: skip
    return Software(**{**values, **fields})


def job(*offers: Offer, **fields: Any) -> Job:
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


class Build:
    """The builders above, for tests to take as one fixture."""

    device = staticmethod(device)
    host = staticmethod(host)
    offer = staticmethod(offer)
    model = staticmethod(model)
    software = staticmethod(software)
    job = staticmethod(job)


@pytest.fixture(scope="session")
def build() -> type[Build]:
    return Build
