"""A run held against its prediction: line by line, what explains the gap, what it means now."""

from __future__ import annotations

import math
from dataclasses import field
from typing import TYPE_CHECKING, Literal

from autotune.domain.answer.contract import Answer
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.domain.outcome import Spread

CLOSE = 0.1  # within a tenth is as predicted
EXPLAINED = 1.33  # measured within a third of the prediction under a belief: it explains the gap
Unit = Literal["s", "tokens/s", "bytes"]


@dataclass(frozen=True, slots=True)
class Line(Answer):
    """One quantity, predicted and as it was. actual None: the log does not say it; note: why."""

    what: str
    predicted: float
    actual: float | None
    ratio: float | None = field(init=False)  # actual over predicted; None where either is missing
    unit: Unit
    note: str = ""

    def __post_init__(self) -> None:
        """The ratio follows."""
        ratio = None
        if self.actual is not None and self.predicted > 0:
            ratio = self.actual / self.predicted
        object.__setattr__(self, "ratio", ratio)


@dataclass(frozen=True, slots=True)
class Explained(Answer):
    """What would have to be true for the measured time, and what the cost model then predicts."""

    name: str
    text: str
    predicted_s: float
    measured_s: float
    explains: bool = field(init=False)  # within a third of what was measured

    @property
    def ratio(self) -> float:
        """Measured over predicted under it: 1 where it explains everything."""
        return self.measured_s / self.predicted_s if self.predicted_s > 0 else math.inf

    def __post_init__(self) -> None:
        """Whether it explains follows."""
        object.__setattr__(self, "explains", 1 / EXPLAINED <= self.ratio <= EXPLAINED)


@dataclass(frozen=True, slots=True)
class Remaining(Answer):
    """What is left of the run at the speed it has shown. cost_usd None: no price is known."""

    steps: int
    duration_s: float
    cost_usd: float | None


@dataclass(frozen=True, slots=True)
class NextRuns:
    """Each further run of the job, under what this one taught."""

    count: int
    offer: Offer
    duration_s: Spread
    cost_usd: Spread
    basis: Literal["measured", "calibrated", "modelled"]


@dataclass(frozen=True, slots=True)
class Learned(Answer):
    """A component's factor before and after this run. factor 1: the plain model."""

    component: str
    before: float
    after: float
    log_sd: float | None


@dataclass(frozen=True, slots=True)
class Started(Answer):
    """[s] a start took without reading weights; what was taken for one before, and is from now."""

    seconds: float
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class RunKind:
    """What the log is of, beside the job itself.

    smoke_steps: of a run that was told to stop after another number of steps than the job's; None:
    the job itself. ended: how it ended before its last step, where the log says it. spoiled: why
    its times speak of a busy machine; empty: they do not.
    """

    smoke_steps: int | None
    ended: str
    waiting: float | None  # share of its threads' time that they waited for a processor
    spoiled: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What `autotune verify` answers. steps: of the job; steps_done: of the log's run."""

    job: Job
    run_dir: str | None
    log: str
    steps_done: int
    steps: int
    timed_by: str
    kind: RunKind
    step_s: Spread  # of another such run, by what this one shows
    offer: Offer  # the machine that the log was made on
    planned: Offer
    config: Config
    lines: tuple[Line, ...]
    explanations: tuple[Explained, ...]
    remaining: Remaining
    next_runs: NextRuns
    learned: tuple[Learned, ...]
    written: tuple[str, ...]
    warnings: tuple[str, ...]
    start: Started | None = None  # kept for later answers on this machine

    @property
    def finished(self) -> bool:
        """Whether the log reaches the last step of the job, or of its smoke run."""
        return self.steps_done >= (self.kind.smoke_steps or self.steps)
