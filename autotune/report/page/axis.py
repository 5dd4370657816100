"""A scale of a drawing: where a value stands, and which values are named on it."""

from __future__ import annotations

import math

from autotune.domain.units import HOUR_S, MINUTE_S
from autotune.frozen import dataclass

FROM_LOGARITHMIC = 8.0  # largest over smallest value
TICKS = 5
ROOM = 0.06  # of the span, kept free on both sides


@dataclass(frozen=True, slots=True)
class Axis:
    """From low to high, linear or logarithmic."""

    low: float
    high: float
    logarithmic: bool

    def place(self, value: float) -> float:
        """Where the value stands, from 0 (low) to 1 (high); values outside are held at the ends."""
        if self.logarithmic:
            if value <= 0:
                return 0.0
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(max(share, 0.0), 1.0)

    def ticks(self) -> list[float]:
        """Round values on the axis, about five."""
        if self.logarithmic:
            return self._decades()
        raw = (self.high - self.low) / TICKS
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw)
        first = math.ceil(self.low / step)
        return [i * step for i in range(first, math.floor(self.high / step) + 1)]

    def _decades(self) -> list[float]:
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        shown: list[float] = []
        for leads in ((1, 2, 5), (1, 3), (1,)):
            found = [m * 10.0**p for p in powers for m in leads]
            shown = [value for value in found if self.low <= value <= self.high]
            if len(shown) <= TICKS + 1:
                break
        return shown[:: max(math.ceil(len(shown) / (TICKS + 1)), 1)]


def time_unit(longest_s: float) -> tuple[float, str]:
    """[s] The unit in which times up to this one are named, and its name."""
    if longest_s >= 2 * HOUR_S:
        return HOUR_S, "h"
    return (MINUTE_S, "min") if longest_s >= 2 * MINUTE_S else (1.0, "s")


def axis_for(values: list[float]) -> Axis:
    """An axis on which all these values (at least one) stand, with some room around them."""
    low, high = min(values), max(values)
    if low > 0 and high / low >= FROM_LOGARITHMIC:
        room = (high / low) ** ROOM
        return Axis(low / room, high * room, logarithmic=True)
    room = ROOM * (high - low) or 0.5 * abs(high) or 1.0
    return Axis(max(low - room, 0.0) if low >= 0 else low - room, high + room, logarithmic=False)
