"""What tracing the training code of a candidate found about its memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AtOp:
    """An allocation of so many bytes, and when it happened. step 0: before the first."""

    step: int
    phase: str
    op: str
    size_bytes: float


@dataclass(frozen=True, slots=True)
class AllocatorRun:
    """[bytes] torch's caching allocator over the first steps of the run, simulated.

    reserved: held at most on a device without end, `largest` being what made it so; in_use: handed
    out at most, parts of blocks that were too small to split included. needed: the smallest
    capacity on which the run ends well. out_of_memory: the allocation that fails within
    `capacity_bytes`; flushes: how often the cache had to be given back until then.
    """

    capacity_bytes: float
    reserved_bytes: float
    in_use_bytes: float
    needed_bytes: float
    largest: AtOp
    flushes: int
    out_of_memory: AtOp | None
    expandable_needed_bytes: float
    expandable_out_of_memory: AtOp | None


@dataclass(frozen=True, slots=True)
class MemoryTrace:
    """[bytes] allocated at most, by the op and in the phase that is named, and in every phase.

    formula_bytes: what the formula says of the same. layers: the depths that were traced.
    """

    allocated_bytes: float
    formula_bytes: float
    phase: str
    op: str
    phases: dict[str, float]
    layers: tuple[int, ...]
    versions: dict[str, str]
    same_software: bool
    allocator: AllocatorRun | None = None
