"""A recorded run replayed through the simulated caching allocator, at one capacity or several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.trace.allocator import MIB, CachingAllocator, OutOfMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.trace.allocator import Block

    Event = tuple[int, int, int, str, str]  # key, +size or -size, step, phase, op

NEED_WITHIN = 32 * MIB  # [bytes] how exactly the smallest sufficient capacity is found
MOST_REPLAYS = 8


@dataclass(frozen=True, slots=True)
class Moment:
    """When something happened in the run. [bytes] the allocation that made it happen."""

    step: int
    phase: str
    op: str
    size: int


@dataclass(frozen=True, slots=True)
class Simulated:
    """[bytes] what the allocator held at most and used at most, and when it held the most.

    out_of_memory: the allocation that failed. retries: how often a full device made the allocator
    give its cache back.
    """

    reserved: int
    allocated: int
    at: Moment
    retries: int
    out_of_memory: Moment | None = None


def simulate(
    events: Sequence[Event], *, capacity: int | None = None, expandable: bool = False
) -> Simulated:
    """The run under one capacity; it ends at the first allocation that fails."""
    allocator = CachingAllocator(capacity=capacity, expandable=expandable)
    counts = allocator.counts
    blocks: dict[int, Block] = {}
    held, moment, failed = 0, Moment(0, "", "", 0), None
    for key, size, step, phase, op in events:
        if size < 0:
            allocator.free(blocks.pop(key))
            continue
        if size == 0:
            continue
        try:
            blocks[key] = allocator.malloc(size)
        except OutOfMemory:
            failed = Moment(step, phase, op, size)
            break
        if counts.reserved > held:
            held, moment = counts.reserved, Moment(step, phase, op, size)
    return Simulated(counts.peak_reserved, counts.peak_allocated, moment, counts.retries, failed)


def least_capacity(events: Sequence[Event], *, expandable: bool = False) -> int:
    """[bytes] the smallest capacity at which the run ends well, within `NEED_WITHIN`.

    By bisection between what is in use at most and what is held at most when there is room.
    """
    free = simulate(events, expandable=expandable)
    low, high = free.allocated, free.reserved
    if simulate(events, capacity=low, expandable=expandable).out_of_memory is None:
        return low
    for _ in range(MOST_REPLAYS):
        if high - low <= NEED_WITHIN:
            break
        middle = (low + high) // 2
        if simulate(events, capacity=middle, expandable=expandable).out_of_memory is None:
            high = middle
        else:
            low = middle
    return high
