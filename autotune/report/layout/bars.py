"""Parts of a whole as bars whose printed numbers add up exactly."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune.domain.units import GIB, HOUR_S, KIB, MIB, MINUTE_S
from autotune.report.layout.blocks import Bar, Bars

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Units for one column of numbers: from this size on, this unit with this many decimals.
_Unit = tuple[float, float, str, int]
_TIME_UNITS = (
    (2 * HOUR_S, HOUR_S, "h", 2),
    (10 * MINUTE_S, MINUTE_S, "min", 1),
    (0.0, 1.0, "s", 1),
)
_BYTE_UNITS = ((GIB, GIB, "GiB", 2), (MIB, MIB, "MiB", 1), (0.0, KIB, "KiB", 1))

TIME_LABELS = {
    "load": "load the model",
    "prepare": "prepare the data",
    "compile": "compile",
    "train": "training steps",
    "data_wait": "wait for data",
    "evaluation": "evaluation",
    "checkpoint": "checkpoints",
    "final_save": "final save",
    "lost_work": "work lost",
}
MEMORY_LABELS = {
    "weights": "weights",
    "adapters": "adapters",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "activations": "activations",
    "logits": "logits and loss",
    "workspace": "workspace",
    "context": "driver context",
    "fragmentation": "fragmentation",
}


def rounded_parts(parts: Sequence[float], total: float, decimals: int) -> list[float]:
    """Parts rounded so that they add up to the rounded total (largest remainders get the rest)."""
    scale = 10**decimals
    floors = [math.floor(part * scale) for part in parts]
    missing = round(round(total, decimals) * scale) - sum(floors)
    by_remainder = sorted(
        range(len(parts)), key=lambda i: parts[i] * scale - floors[i], reverse=True
    )
    for i in by_remainder[: max(missing, 0)]:
        floors[i] += 1
    return [value / scale for value in floors]


def time_bars(time_s: Mapping[str, float], beside: float = 0.0) -> Bars:
    """The parts of the duration; parts of zero seconds are left out.

    beside: a larger duration whose unit is taken, so that both can be compared.
    """
    total = sum(time_s.values())
    parts = {TIME_LABELS.get(name, name): value for name, value in time_s.items() if value > 0}
    unit = _unit(max(total, beside), _TIME_UNITS)
    return Bars((*_cascade(parts, total, total, unit), _whole("total", total, total, unit)))


def memory_bars(memory_bytes: Mapping[str, float], beside: float = 0.0) -> Bars:
    """The parts of the peak against what is usable; what is left (or over) ends the column.

    beside: as `time_bars` has it.
    """
    total, usable = memory_bytes["total"], memory_bytes["usable"]
    scale = max(total, usable)
    unit = _unit(max(total, beside), _BYTE_UNITS)
    parts = {
        MEMORY_LABELS.get(name, name): value
        for name, value in memory_bytes.items()
        if value > 0 and name not in {"total", "usable"}
    }
    bars = _cascade(parts, total, scale, unit)
    bars.append(_whole("total", total, scale, unit))
    low, rest = min(total, usable), abs(usable - total)
    _, size, name, decimals = unit
    # Taken from the rounded numbers, so that total and free add up to usable as printed.
    left = abs(round(usable / size, decimals) - round(total / size, decimals))
    over = total > usable
    bars.append(
        Bar(
            "too much" if over else "free",
            f"{left:,.{decimals}f} {name}",
            _percent(rest, usable),
            low / scale,
            rest / scale,
            "over" if over else "free",
        )
    )
    return Bars(tuple(bars))


def _cascade(
    parts: Mapping[str, float],
    total: float,
    scale: float,
    unit_of: _Unit,
) -> list[Bar]:
    _, unit, unit_name, decimals = unit_of
    shown = rounded_parts([value / unit for value in parts.values()], total / unit, decimals)
    bars, start = [], 0.0
    for (name, value), number in zip(parts.items(), shown, strict=True):
        text = f"{number:,.{decimals}f} {unit_name}"
        bars.append(Bar(name, text, _percent(value, scale), start / scale, value / scale))
        start += value
    return bars


def _whole(name: str, total: float, scale: float, unit_of: _Unit) -> Bar:
    _, unit, unit_name, decimals = unit_of
    text = f"{total / unit:,.{decimals}f} {unit_name}"
    length = total / scale if scale else 0.0
    return Bar(name, text, _percent(total, scale), 0.0, length, "total")


def _unit(value: float, units: Sequence[_Unit]) -> _Unit:
    return next(unit for unit in units if value >= unit[0])


def _percent(value: float, total: float) -> str:
    if total <= 0:
        return ""
    share = 100 * value / total
    return "<1%" if 0 < share < 0.5 else f"{share:.0f}%"  # noqa: PLR2004 - half of one percent
