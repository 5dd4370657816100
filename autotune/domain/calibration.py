"""What evidence taught about the cost model: a factor per component, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Calibration:
    """Multiplies predicted seconds (or bytes) of a component; replaces its relative spread.

    Keys are component names of the cost model: compute, collectives, data, checkpoint, evaluation,
    startup, memory. Absent: factor 1 and the model's own spread.
    """

    factors: dict[str, float] = field(default_factory=dict)
    log_sds: dict[str, float] = field(default_factory=dict)
    provenance: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is scaled; evidence that explains nothing only widens intervals."""
        return not self.factors
