"""Jobs, offers and single prices for the tests of the time components."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import builders
import pytest

from autotune.catalog.models.models import find_model
from autotune.catalog.software import load_software
from autotune.cost.columns import tabulate
from autotune.domain.candidates import Candidates
from autotune.domain.job import Method

if TYPE_CHECKING:
    from autotune.cost.columns import Component
    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.job import Job

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

    equal_rows = staticmethod(builders.equal_rows)
    offer = staticmethod(builders.sold)
    config = staticmethod(builders.config)

    @staticmethod
    def job(model: str, method: Method, length: int = 512, **fields: Any) -> Job:
        batch, rows = fields.get("global_batch_size", 8), fields.get("rows", 10_000)
        values: dict[str, Any] = {
            "method": method, "lengths": builders.equal_rows(length), "pretokenized": False,
            "steps": math.ceil(rows / batch), "software": load_software()["default"], "offers": (),
        }  # fmt: skip
        return builders.job(model=find_model(model), max_length=length, **{**values, **fields})

    @staticmethod
    def price(component: Component, job: Job, offer: Offer, config: Config) -> dict[str, float]:
        """Every output of the component for one candidate."""
        table = tabulate(component, job, Candidates.of([(offer, config)]))
        return {name: float(table.gather(name)[0]) for name in table.outputs}


@pytest.fixture(scope="session")
def lab() -> type[Lab]:
    return Lab
