"""A recommendation made by hand: numbers are chosen, not computed, so that tests can name them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from builders import device, host, job, lora, model, software

from autotune.domain.answer.recommendation import (
    Nearest,
    Recommendation,
    Rejected,
    Relaxation,
    SearchRecord,
)
from autotune.domain.config import Config
from autotune.domain.device import Offer
from autotune.domain.job import Assumption, Lengths, Limits
from autotune.domain.outcome import Estimated, MemoryParts, Spread, TimeParts
from autotune.domain.units import GIB, HOUR_S

H100 = device("h100", memory_driver_bytes=79.6 * GIB, memory_torch_bytes=79.1 * GIB)
DEVICE = replace(H100, name="h100-sxm", has_nvlink=True)
HOST = host(disk_bytes=100e9, checkpoint_write_bytes_per_s=25e6)
OFFER = Offer(DEVICE, 1, 2.5, HOST, "job file", "2026-11-01")
OTHER = Offer(replace(DEVICE, name="a100-sxm4-40gb"), 4, 4.8, HOST, "job file", None, spot=True)
MODEL = model(
    name="meta-llama/Llama-3.1-8B", num_layers=32, hidden_size=4096, num_attention_heads=32,
    head_dim=128, intermediate_size=14336, vocab_size=128256, max_position_embeddings=131072,
)  # fmt: skip
SOFTWARE = software(torch=(2, 9, 0), flash_attn=None, bitsandbytes=None)
JOB = job(
    OFFER, OTHER, name="h100-38h", model=MODEL,
    method=lora(MODEL, rank=64, alpha=128.0, dropout=0.05),
    rows=600_000, max_length=1024, lengths=Lengths((60.0, 220.0, 1024.0), 280.0, 1024, known=True),
    pretokenized=False, storage="network", epochs=3.0, steps=225_000,
    limits=Limits(vram_headroom=0.08, max_lost_work_s=1800.0, deadline_s=24 * HOUR_S),
    software=SOFTWARE,
    assumed=(
        Assumption("data.lengths", "p50 220, p95 700", "the document states none"),
        Assumption("hardware.host.cores", "16", "usual for one H100"),
    ),
)  # fmt: skip
PICK = Config(8, 1, 3400, "bf16", num_dataloader_workers=2, compile="default")
TODAY = Config(4, 2, 1000, "bf16", num_dataloader_workers=4)


def estimated(config: Config = PICK, offer: Offer = OFFER, factor: float = 1.0) -> Estimated:
    parts = TimeParts(40.0, 300.0, 90.0, 36_000.0, 0.0, 1800.0, 5280.0, 80.0, 0.0)
    parts = TimeParts(**{name: factor * value for name, value in parts.as_dict().items()})
    hours = parts.total / HOUR_S
    rate = offer.usd_per_hour
    memory = MemoryParts(
        14.96 * GIB, 0.63 * GIB, 0.63 * GIB, 1.26 * GIB, 18.37 * GIB, 11.74 * GIB, 0.5 * GIB,
        0.55 * GIB, 1.1 * GIB,
    )  # fmt: skip
    return Estimated(
        offer=offer, config=config, basis="modelled", steps=225_000,
        duration_s=Spread(0.8 * parts.total, parts.total, 1.25 * parts.total),
        cost_usd=Spread(0.8 * hours * rate, hours * rate, 1.25 * hours * rate),
        step_time_s=0.16 * factor, tokens_per_s=14_000 / factor, mfu=0.41 / factor,
        bound_by="compute", time_s=parts, memory_bytes=memory, usable_bytes=72.75 * GIB,
        fits_probability=0.994, verdict="fits", checkpoints=67, checkpoint_bytes=2.0e9,
    )  # fmt: skip


def recommendation() -> Recommendation:
    slower = replace(PICK, micro_batch_size=4, gradient_accumulation_steps=2)
    return Recommendation(
        job=JOB, best=estimated(), today=estimated(TODAY, factor=2.5),
        alternatives=(estimated(slower, factor=1.05), estimated(PICK, OTHER, factor=0.9)),
        pareto=(estimated(), estimated(PICK, OTHER, factor=0.9)), tie=False,
        rejected=Rejected(
            321, {"out of memory": 300, "flash_attention_2 is not installed": 21},
            (miss(TODAY, 80.5 * GIB, count=2),),
        ),
        search=SearchRecord(
            "model", "calibrated", "formula", 1536, 1215, 0, 0, 0.0, 0.83, "the space is exhausted"
        ),
        reasons={
            "micro_batch_size": "4 would take 36.3 min longer",
            "compile": "off would take 1.4 h longer",
            "precision": "tf32 would need 3.1 GiB more than is usable",
            **dict.fromkeys(
                ("prefetch_factor", "pin_memory", "sharding"), "the only value that is valid here"
            ),
        },
        warnings=("the checkpoint disk writes 25 MB/s: each save takes 80 s",),
        run_dir="runs/20261121-020000-h100-38h",
    )  # fmt: skip


def miss(config: Config, required_bytes: float, count: int = 1) -> Nearest:
    return Nearest(
        config=config.as_record(), device=DEVICE.name, device_count=count,
        required_bytes=required_bytes, available_bytes=72.75 * GIB, short_of="memory",
        reason="memory",
    )  # fmt: skip


def infeasible() -> Recommendation:
    change, shorter = (
        Relaxation(
            change=words, required_bytes=size * GIB, available_bytes=72.75 * GIB, quality=quality
        )
        for words, size, quality in (
            ("activation_checkpointing full", 60, False),
            ("max_length 512 instead of 1024", 70, True),
        )
    )
    misses = tuple(miss(PICK, (73 + over) * GIB) for over in (0, 1, 2))
    return replace(
        recommendation(), best=None, today=None, alternatives=(), pareto=(), reasons={},
        rejected=Rejected(1536, {"out of memory": 1536}, misses, (change, shorter)),
    )  # fmt: skip


@dataclass(frozen=True)
class Samples:
    """What the tests of reports print."""

    full: Recommendation
    infeasible: Recommendation
    late: Recommendation


def made() -> Samples:
    tight = replace(JOB.limits, deadline_s=10 * HOUR_S, budget_usd=29.0)
    late = replace(recommendation(), job=replace(JOB, limits=tight))
    return Samples(recommendation(), infeasible(), late)
