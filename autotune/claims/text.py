"""Reading a stated speed: "1.0 s/step", "0.8-1.2 s/step", "38 h", "12.8 h at 1200 tokens/s"."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from autotune.domain.errors import InputError
from autotune.domain.units import parse_seconds, split_range

Quantity = Literal["step", "tokens", "rows", "duration"]
HINT = 'write "1.0 s/step", "5000 tokens/s", "20 rows/s" or a duration such as "38 h"'
MOST_CHARACTERS = 200
_JOINED = re.compile(r"\s+(?:at|@)\s+")
_RATE = re.compile(
    r"\s*([0-9][0-9_,.]*(?:[eE][+-]?\d+)?)\s*(k|M)?\s*([A-Za-z]+)\s*/\s*([A-Za-z]+)\s*"
)
_SCALE = {None: 1.0, "k": 1e3, "M": 1e6}
_UNITS: dict[str, Quantity] = {
    "tokens": "tokens", "token": "tokens", "tok": "tokens", "toks": "tokens", "rows": "rows",
    "row": "rows", "samples": "rows", "sample": "rows", "examples": "rows", "steps": "step",
    "step": "step", "it": "step", "its": "step",
}  # fmt: skip
_PER = {"s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "hour": 3600.0}


@dataclass(frozen=True, slots=True)
class Stated:
    """One figure of a claim. A rate of steps is kept as the seconds of one."""

    quantity: Quantity
    value: float  # seconds of a step or of the run; tokens or rows per second


def parse_claim(text: str) -> tuple[Stated, ...]:
    """The figures of a claim, one or two joined by "at"; of a range its slower end.

    Raises InputError for anything else.
    """
    parts = _JOINED.split(text.strip())
    most = 2
    if not text.strip() or len(text) > MOST_CHARACTERS or len(parts) > most:
        msg = f"{text[:MOST_CHARACTERS]!r} is not a claim that can be checked"
        raise InputError(msg, HINT)
    return tuple(_figure(part, text) for part in parts)


def is_range(text: str) -> bool:
    """Whether a readable claim states a range."""
    return any(split_range(part) for part in _JOINED.split(text.strip()))


def _figure(part: str, text: str) -> Stated:
    """One figure; of a range the slower end, which is the easier one to reach."""
    ends = split_range(part)
    if ends is not None:
        low, high = (_figure(end, text) for end in ends)
        slower = max if low.quantity in {"step", "duration"} else min
        if low.quantity == high.quantity:
            return slower(low, high, key=lambda each: each.value)
    found = None if ends is not None else _per_step(part) or _rate(part) or _duration(part)
    if found is None or not math.isfinite(found.value) or found.value <= 0:
        msg = f"{text!r} is not a claim that can be checked"
        raise InputError(msg, HINT)
    return found


def _duration(part: str) -> Stated | None:
    try:
        return Stated("duration", parse_seconds(part))
    except InputError:
        return None


def _per_step(part: str) -> Stated | None:
    """Seconds of a step: "1.0 s/step", "500 ms/it"."""
    head, slash, per = part.rpartition("/")
    if not slash or per.strip().casefold() not in {"step", "it", "iteration"}:
        return None
    try:
        return Stated("step", parse_seconds(head))
    except InputError:
        return None


def _rate(part: str) -> Stated | None:
    match = _RATE.fullmatch(part)
    if match is None:
        return None
    unit, per = _UNITS.get(match[3].casefold()), _PER.get(match[4].casefold())
    if unit is None or per is None:
        return None
    try:
        number = float(match[1].replace(",", "").replace("_", "")) * _SCALE[match[2]] / per
    except ValueError:
        return None
    if unit == "step":
        return Stated("step", 1.0 / number) if number > 0 else None
    return Stated(unit, number)
