"""What a trace answers, and the checks that an answer must pass before anybody believes it."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from autotune.trace.simulation import Moment, Simulated

if TYPE_CHECKING:
    from pathlib import Path

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
        fields = json.loads(path.read_text(encoding="utf-8"))
        found = read_traced(fields, fields["versions"])
        if isinstance(found, Traced):
            return replace(found, cached=True)
    return None
