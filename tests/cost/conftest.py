"""Jobs, offers and single prices for the tests of the time components."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from autotune.catalog.devices import default_host, find_device
from autotune.catalog.models.models import find_model
from autotune.catalog.software import load_software
from autotune.cost.columns import tabulate
from autotune.domain.candidates import Candidates
from autotune.domain.config import Config
from autotune.domain.device import Offer
from autotune.domain.job import Job, Lengths, Limits, Method

if TYPE_CHECKING:
    from autotune.cost.columns import Component
    from autotune.domain.device import Device

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL_LINEAR = (*ATTENTION, "gate_proj", "up_proj", "down_proj")


class Lab:
    """Builders with the fewest words."""

    attention = ATTENTION
    all_linear = ALL_LINEAR

    @staticmethod
    def full(base: Any = "16bit") -> Method:
        return Method("full", base)

    @staticmethod
    def lora(rank: int = 16, targets: tuple[str, ...] = ALL_LINEAR, base: Any = "16bit") -> Method:
        return Method("lora", base, rank, 2.0 * rank, 0.0, targets)

    @staticmethod
    def equal_rows(length: int) -> Lengths:
        return Lengths((float(length), float(length)), float(length), length, known=True)

    @classmethod
    def job(cls, model: str, method: Method, length: int = 512, **fields: Any) -> Job:
        batch, rows = fields.get("global_batch_size", 8), fields.get("rows", 10_000)
        job = Job(
            name="test",
            model=find_model(model),
            method=method,
            rows=rows,
            max_length=length,
            lengths=cls.equal_rows(length),
            padding="longest",
            pretokenized=False,
            storage="local",
            epochs=1.0,
            steps=math.ceil(rows / batch),
            global_batch_size=batch,
            evaluation=None,
            limits=Limits(vram_headroom=0.08, max_lost_work_s=1800.0),
            software=load_software()["default"],
            offers=(),
        )
        return replace(job, **fields)

    @staticmethod
    def offer(device: str | Device, count: int = 1, price: float = 2.0, **host: Any) -> Offer:
        found = find_device(device) if isinstance(device, str) else device
        around = replace(default_host(count, found), **host)
        return Offer(found, count, price, around, price_source="test")

    @staticmethod
    def config(micro: int = 4, accumulation: int = 1, **knobs: Any) -> Config:
        return Config(
            **{
                "micro_batch_size": micro,
                "gradient_accumulation_steps": accumulation,
                "checkpoint_every_steps": 100,
                "precision": "bf16",
                **knobs,
            }
        )

    @staticmethod
    def price(component: Component, job: Job, offer: Offer, config: Config) -> dict[str, float]:
        """Every output of the component for one candidate."""
        table = tabulate(component, job, Candidates.of([(offer, config)]))
        return {name: float(table.gather(name)[0]) for name in table.outputs}


@pytest.fixture(scope="session")
def lab() -> type[Lab]:
    return Lab
