"""What a trace answers, and the checks that an answer must pass before anybody believes it.

And a recorded run replayed through the simulated caching allocator, at one capacity or several.
"""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from autotune.catalog.files import read_regular
from autotune.frozen import dataclass
from autotune.trace.allocator import MIB, CachingAllocator, OutOfMemory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autotune.trace.allocator import Block

    Event = tuple[int, int, int, str, str]  # key, +size or -size, step, phase, op

SUMS_WITHIN = 1e-6  # relative: parts are added in floating point
FIELDS = ("peak_bytes", "parts", "phases", "phase", "op", "depths", "seconds")


@dataclass(frozen=True, slots=True)
class Allocator:
    """[bytes] what the caching allocator does with the run.

    roomy: on a device without end; limited: on this one; expandable: on this one with expandable
    segments. needed: the smallest capacity with which the run ends well.
    """

    capacity: int
    roomy: Simulated
    limited: Simulated
    expandable: Simulated
    needed: int
    expandable_needed: int
    events: int


@dataclass(frozen=True, slots=True)
class Traced:
    """[bytes] the peak of allocated memory, what it held, and the op and phase where it was."""

    peak_bytes: float
    parts: dict[str, float]
    phases: dict[str, float]
    phase: str
    op: str
    depths: tuple[int, ...]
    seconds: float
    versions: dict[str, str]
    cached: bool = False
    allocator: Allocator | None = None


@dataclass(frozen=True, slots=True)
class TraceFailed:
    """Why there is no trace: kind is crash | timeout | garbage | unsupported | missing."""

    kind: str
    message: str


def read_traced(answer: dict[str, Any], versions: dict[str, str]) -> Traced | TraceFailed:
    """The trace in an answer, or what is wrong with it."""
    try:
        stated = {name: answer[name] for name in FIELDS}
        allocator = answer.get("allocator")
        found = Traced(
            **{**stated, "depths": tuple(int(depth) for depth in stated["depths"])},
            versions=versions,
            allocator=_allocator(allocator) if allocator is not None else None,
        )
        wrong = _wrong(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        wrong = f"{type(error).__name__} at {error}"[:120]
    else:
        if not wrong:
            return found
    return TraceFailed("garbage", f"its answer makes no sense: {wrong}")


def _allocator(fields: dict[str, Any]) -> Allocator:
    runs = {name: _simulated(fields[name]) for name in ("roomy", "limited", "expandable")}
    found = Allocator(**{**fields, **runs})
    numbers = (found.capacity, found.needed, found.expandable_needed, found.events)
    if min(numbers) < 0:
        raise ValueError(numbers)
    return found


def _simulated(fields: dict[str, Any]) -> Simulated:
    failed = fields["out_of_memory"]
    found = Simulated(
        **{
            **fields,
            "at": Moment(**fields["at"]),
            "out_of_memory": Moment(**failed) if failed is not None else None,
        }
    )
    if not 0 <= found.allocated <= found.reserved:
        raise ValueError(fields)
    return found


def _wrong(found: Traced) -> str:
    numbers = [found.peak_bytes, found.seconds, *found.parts.values(), *found.phases.values()]
    if not all(math.isfinite(number) and number >= 0.0 for number in numbers):
        return "a number is negative or not finite"
    if found.peak_bytes <= 0.0:
        return "a step without memory"
    if abs(sum(found.parts.values()) - found.peak_bytes) > SUMS_WITHIN * found.peak_bytes:
        return "the parts do not add up to the peak"
    if found.phases.get(found.phase) != found.peak_bytes:
        return "the peak is not that of its phase"
    return ""


def recorded(found: Traced) -> str:
    """A trace as it is kept between runs."""
    return json.dumps(asdict(found))


def read_recorded(path: Path) -> Traced | None:
    """The trace that `recorded` wrote; None when there is none that makes sense."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        fields = json.loads(read_regular(path))
        found = read_traced(fields, fields["versions"])
        if isinstance(found, Traced):
            return replace(found, cached=True)
    return None


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
