"""A worker that measures by a formula, and a search that goes on to its last trial."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.job.load import load_job
from autotune.cost.model import CostModel
from autotune.search.measured.measurer import Scored, StopSearch
from autotune.search.measured.shared import SharedSearch
from autotune.search.posterior.stopping import ProbeBudget
from autotune.space.enumerate import enumerate_candidates
from autotune.space.file import load_space

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optuna.study import Study

    from autotune.cost.bill import Bill
    from autotune.search.measured.measurer import Measurer


ROOT = Path(__file__).parents[2]
JOB = ROOT / "jobs" / "h100_38h.yaml"
MEASURE_S = 0.5  # that a fake measurement takes: several looks long


def bill_of(path: Path = JOB) -> Bill:
    """The candidates of a job."""
    job = load_job(path)
    return CostModel(job).price(enumerate_candidates(job, load_space(None)).candidates)


def truth(bill: Bill, index: int) -> float:
    """What a fake measurement finds: the model's figure, off by what the candidate settles."""
    chance = random.Random(bill.candidates.config(index).key)  # noqa: S311 - not a secret
    return float(bill.cost_usd[index]) * math.exp(chance.gauss(0.0, 0.05))


def scored(bill: Bill, index: int, seconds: float = 0.0) -> Scored:
    """A fake measurement."""
    time.sleep(seconds)
    fits = bool(bill.feasible[index])
    ratio = truth(bill, index) / float(bill.cost_usd[index])
    compute = float(bill.estimate(index).step_time_s) * ratio
    return Scored(
        truth(bill, index), {"memory": -0.1 if fits else 0.1, "disk": 0.0}, fits=fits,
        reason="fits" if fits else "memory",
        measured={"compute": compute, "memory": float(bill.estimate(index).memory_bytes.total)},
    )  # fmt: skip


@dataclass
class Fake:
    """Measures by `scored`, for nothing and each candidate once."""

    bill: Bill
    seconds: float = 0.0
    measured: list[int] = field(default_factory=list)
    allowed: dict[str, float] = field(default_factory=dict)

    def measure(self, index: int) -> Scored:
        """By the formula."""
        self.measured.append(index)
        return scored(self.bill, index, self.seconds)

    def again(self, index: int, told: Sequence[str]) -> Scored:
        """Never: what the formula says it would say again."""
        msg = f"{index} was measured {len(told) + 1} times"
        raise StopSearch(msg)

    def stop_reason(self) -> str:
        """None."""
        return ""

    def budget(self, index: int) -> ProbeBudget:
        """Free."""
        del index
        return ProbeBudget(0.0, free=True)

    def count_pending(self, candidates: Sequence[int]) -> None:
        """They cost nothing."""

    def made(self) -> list[dict[str, Any]]:
        """No probes."""
        return []

    def adopt(self, made: Sequence[dict[str, Any]]) -> None:
        """Nobody keeps a probe."""


class EveryTrial(SharedSearch):
    """A search that makes as many trials as are asked for, however little they promise."""

    def _stop(self, study: Study, measurer: Measurer) -> None:
        del study, measurer


def search_of(bill: Bill, sampler: str) -> SharedSearch:
    """The same search in every process."""
    return EveryTrial(bill, "cost", sampler, 0, None)
