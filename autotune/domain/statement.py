"""What a plan says of its run, in base units: to be checked, never to be used as a fact."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Literal

from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.domain.config import KnobValue

SpeedName = Literal["step_time_s", "tokens_per_s", "rows_per_s", "steps_per_hour", "duration_s"]


@dataclass(frozen=True, slots=True)
class Span:
    """A stated figure with its two ends, which are equal where one was stated."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """Geometric mean of the ends."""
        return float((self.low * self.high) ** 0.5)

    def scaled(self, factor: float) -> Span:
        """Both ends times a factor above zero."""
        return Span(self.low * factor, self.high * factor)

    def under(self, whole: float) -> Span:
        """What divides `whole` into the span: the ends change places."""
        return Span(whole / self.high, whole / self.low)


@dataclass(frozen=True, slots=True)
class About:
    """The circumstances of a statement. None: as in the job."""

    gpu: str | None = None
    count: int = 1
    kind: str | None = None  # lora or qlora
    rank: int | None = None
    rows: int | None = None
    max_length: int | None = None
    knobs: dict[str, KnobValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StatedDuration:
    """One of several runs that a plan adds up, in seconds."""

    name: str
    about: About
    duration_s: Span


@dataclass(frozen=True, slots=True)
class Statement:
    """Figures that a plan states together.

    speeds: of one run, the first stated one first. figures: `steps`, `checkpoints`,
    `checkpoint_save_s`, `checkpoint_time_s`, `trainable_parameters`, `backward_passes`,
    `warmup_steps`, `warmup_rows`, `flop_per_s`, `total_s` (of all runs) and `saved_s`, where they
    are stated.
    """

    where: str
    about: About
    speeds: dict[SpeedName, Span] = field(default_factory=dict)
    figures: dict[str, Span] = field(default_factory=dict)
    runs: tuple[StatedDuration, ...] = ()
    savings_s: dict[str, Span] = field(default_factory=dict)
    memory_bytes: dict[str, float] = field(default_factory=dict)
    learning_rate: tuple[float, float, int] | None = None  # before, after, global batch before
