"""One measured fact about one candidate: a public table's row, a probe, a past run, a log line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Quantity = Literal[
    "step_time_s", "duration_s", "memory_bytes", "tokens_per_s", "oom", "checkpoint_save_s"
]
MemoryKind = Literal["allocated", "reserved", "nvidia-smi", "unknown"]
# Log sd of a measured time between two runs of one configuration on one machine: clocks,
# temperature, placement.
BETWEEN_RUNS_SD = 0.03


@dataclass(frozen=True, slots=True)
class Observation:
    """A value with what it speaks of and where it comes from.

    `knobs` holds only what is known of the configuration; `facts` holds whatever else the source
    states (model, gpu, sequence length, ...), by the column names of the source's table.
    """

    id: str
    quantity: Quantity
    value: float  # seconds, bytes, tokens per second; 1.0 for an out-of-memory
    provenance: str
    kind: MemoryKind | None = None
    knobs: dict[str, object] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    today: bool = False  # whether this is how the user runs the job now
