"""What may be tried: the values of every knob, as a search-space file lists them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.domain.config import KnobValue

AUTO: tuple[KnobValue, ...] = ()  # worked out: every split, a closed form, what the device wants


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Values of every knob. `AUTO` (no values) means that they follow from job and offer.

    extra: levels of the user's own knobs, the present one first. The cost model prices them alike.
    """

    name: str
    values: dict[str, tuple[KnobValue, ...]]
    extra: dict[str, tuple[KnobValue, ...]] = field(default_factory=dict)
