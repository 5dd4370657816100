"""The same job answered again: what changed, why, and what stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from autotune.domain.answer.contract import Answer
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.answer.recommendation import Recommendation
    from autotune.domain.answer.waterfall import Waterfall

ChangeKind = Literal["job", "machine", "price", "software", "knob", "bill", "memory", "verdict"]


@dataclass(frozen=True, slots=True)
class Difference(Answer):
    """One thing that is not as it was. from_, to: text, or a number in base units."""

    what: str
    kind: ChangeKind
    from_: str | float | None
    to: str | float | None
    why: str


@dataclass(frozen=True, slots=True)
class Unchanged(Answer):
    """One thing that is as it was."""

    what: str
    kind: ChangeKind
    value: str | float


@dataclass(frozen=True, slots=True)
class CarriedObservation(Answer):
    """A measurement and what it still says. status: valid, carried over, left out."""

    id: str
    quantity: str
    value: float
    status: Literal["valid", "carried over", "left out"]
    why: str


@dataclass(frozen=True, slots=True)
class Recomputed:
    """Before and after of one job (or variant of it).

    before: the recorded row as its JSON has it; None where nothing fitted. changed: whether another
    machine or configuration is recommended.
    """

    variant: str
    before: Mapping[str, Any] | None
    after: Recommendation
    changes: tuple[Difference, ...]
    unchanged: tuple[Unchanged, ...]
    changed: bool
    waterfall: Waterfall | None
    observations: tuple[CarriedObservation, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recomputation:
    """A run recomputed; several parts where variants were asked for."""

    source: str
    parts: tuple[Recomputed, ...]
    wall_seconds: float

    @property
    def changed(self) -> bool:
        """Whether the recommendation of any part changed."""
        return any(part.changed for part in self.parts)
