"""Why one configuration does not fit: how much is missing, what holds it, which batch decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.outcome import MemoryParts

Phase = Literal["forward", "backward", "optimizer", "evaluation", "save"]


@dataclass(frozen=True, slots=True)
class LongestBatch:
    """The batch at which memory peaks. origin: where the length of its rows comes from."""

    rows: int
    tokens_per_row: int
    origin: str

    @property
    def tokens(self) -> int:
        """[tokens] of one device's batch, padding included."""
        return self.rows * self.tokens_per_row


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A configuration against what there is. Bytes: of a device, or of the host's disk or RAM."""

    offer: Offer
    config: Config
    resource: Literal["memory", "disk", "ram"]
    required_bytes: float
    available_bytes: float
    fits_probability: float
    memory_bytes: MemoryParts
    phase: Phase
    instant: str  # of a step, in words
    longest_batch: LongestBatch

    @property
    def over_bytes(self) -> float:
        """[bytes] missing; at most 0 where it only comes too close."""
        return self.required_bytes - self.available_bytes

    def largest(self, most: int = 4) -> tuple[tuple[str, float], ...]:
        """The parts that hold most of the memory, the largest first."""
        parts = sorted(self.memory_bytes.as_dict().items(), key=lambda item: -item[1])
        return tuple((name, size) for name, size in parts[:most] if size > 0)
