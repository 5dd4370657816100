"""Quantities with units: read from text, shown to people. Base units everywhere inside.

Seconds, bytes, bytes per second, US dollars and dollars per hour. A bare number is refused where a
unit is needed, because "24" has cost people a day.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, TypeGuard

from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
TERA = 1e12  # of FLOP/s and operations
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86400.0
YEAR_S = 365.25 * DAY_S
YEAR_DAYS, MONTH_DAYS = 365, 365.25 / 12
HOURS_PER_DAY = 24.0

_BYTES = {
    "b": 1, "kb": KB, "mb": MB, "gb": GB, "tb": TB,
    "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB,
}  # fmt: skip
_SECONDS = {
    "ms": 1e-3, "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "m": MINUTE_S, "min": MINUTE_S, "minute": MINUTE_S, "minutes": MINUTE_S,
    "h": HOUR_S, "hour": HOUR_S, "hours": HOUR_S, "d": DAY_S, "day": DAY_S, "days": DAY_S,
    "y": YEAR_S, "year": YEAR_S, "years": YEAR_S,
}  # fmt: skip
_NUMBER = r"([+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
_TERM = re.compile(rf"\s*{_NUMBER}\s*([A-Za-z]+)\s*")
_SCALES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9}
_FIGURE = re.compile(r"\s*([0-9][0-9_,]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+)\s*([kKMB]?)\s*")
# What stands between the ends of a range: with spaces, or a hyphen that is no exponent's.
_BETWEEN = (
    re.compile(r"\s+(?:-|\u2013|to)\s+"),
    re.compile(r"(?<=[0-9A-Za-z])(?<![0-9][eE])\s*[-\u2013]\s*(?=[0-9.])"),
)
_LAST_UNIT = re.compile(r"[A-Za-z][A-Za-z/ ]*$")
HIGHEST = 1e18  # of a figure that anybody states


def _finite(text: str, what: str) -> float:
    value = float(text.replace(",", "").replace("_", ""))
    if not math.isfinite(value):
        msg = f"{what} {text!r} is not a finite number"
        raise InputError(msg)
    return value


def _such_as(text: str, unit: str, otherwise: str) -> str:
    """An example for a hint: the number that was written, with the unit that it lacks."""
    bare = text.strip()
    return f'such as "{bare}{unit}"' if re.fullmatch(_NUMBER, bare) else f'such as "{otherwise}"'


def parse_seconds(text: str) -> float:
    """[s] A duration such as "24h", "30 min" or "1h 30min"."""
    rest, total, seen = text, 0.0, False
    while rest.strip():
        match = _TERM.match(rest)
        if not match or match[2].casefold() not in _SECONDS:
            msg, example = f"{text!r} is not a duration", _such_as(text, "h", "24h")
            raise InputError(msg, f'write a number with s, min, h or d, {example} or "1h 30min"')
        total += _finite(match[1], "duration") * _SECONDS[match[2].casefold()]
        rest, seen = rest[match.end() :], True
    if not seen or total < 0:
        msg = f"{text!r} is not a duration of at least zero"
        raise InputError(msg, 'write a number with s, min, h or d, such as "24h"')
    return total


def parse_bytes(text: str) -> float:
    """[bytes] A size such as "128 GiB" (2^30) or "100 GB" (10^9)."""
    match = _TERM.fullmatch(text)
    if not match or match[2].casefold() not in _BYTES:
        msg = f"{text!r} is not a size"
        raise InputError(msg, 'write a number with a unit, such as "128 GiB" or "100 GB"')
    value = _finite(match[1], "size") * _BYTES[match[2].casefold()]
    if value < 0:
        msg = f"size {text!r} must not be negative"
        raise InputError(msg)
    return value


def parse_bytes_per_s(text: str) -> float:
    """[bytes/s] A rate such as "25 MB/s"."""
    head, slash, per = text.rpartition("/")
    if not slash or per.strip().casefold() not in {"s", "sec", "second"}:
        msg = f"{text!r} is not a rate"
        raise InputError(msg, 'write a size per second, such as "25 MB/s"')
    return parse_bytes(head)


def parse_usd(text: str) -> float:
    """[USD] An amount such as "60 USD" or "$60"."""
    match = re.fullmatch(rf"\s*\$\s*{_NUMBER}\s*|\s*{_NUMBER}\s*USD\s*", text, re.IGNORECASE)
    if not match:
        msg = f"{text!r} is not an amount of money"
        example = _such_as(text, " USD", "60 USD")
        raise InputError(msg, f"write dollars, {example}; other currencies are not converted")
    value = _finite(match[1] or match[2], "amount")
    if value < 0:
        msg = f"amount {text!r} must not be negative"
        raise InputError(msg)
    return value


def parse_usd_per_hour(text: str) -> tuple[float, bool]:
    """[USD/h] A price and whether it is per GPU: "2.50 USD/h" (whole offer) or "1.99 USD/gpu-h"."""
    head, slash, per = text.rpartition("/")
    unit = per.strip().casefold()
    if not slash or unit not in {"h", "hr", "hour", "gpu-h", "gpu-hour", "gpu/h"}:
        msg = f"{text!r} is not a price"
        whole = _such_as(text, " USD/h", "2.50 USD/h").removeprefix("such as ")
        hint = f'write {whole} for the whole offer, "1.99 USD/gpu-h" per GPU, or free'
        raise InputError(msg, hint)
    return parse_usd(head), unit.startswith("gpu")


def parse_figure(text: str) -> float:
    """A count or a rate: "28000", "28K", "1.8M", "2.5e6"."""
    match = _FIGURE.fullmatch(text)
    if match is None:
        msg = f"{text!r} is not a figure"
        raise InputError(msg, "write a number such as 28000, 28K or 1.8M")
    return _finite(match[1], "figure") * _SCALES[match[2]]


def split_range(text: str) -> tuple[str, str] | None:
    """The ends of "40-50 min", "1 h to 90 min" or "200-250"; None where the text is no range.

    A unit at the end is of both.
    """
    for between in _BETWEEN:
        parts = between.split(text.strip())
        if len(parts) == 2:  # noqa: PLR2004 - two ends
            low, high = parts
            unit = _LAST_UNIT.search(high)
            return (f"{low}{unit[0]}" if unit and not _LAST_UNIT.search(low) else low), high
    return None


def parse_span(text: str, parse: Callable[[str], float]) -> tuple[float, float]:
    """Both ends of a range, or one figure twice, each read by `parse`.

    Raises InputError unless they are above zero, sensible and in order.
    """
    low, high = split_range(text) or (text, text)
    ends = parse(low), parse(high)
    if not 0.0 < ends[0] <= ends[1] <= HIGHEST:
        msg = f"{text!r} must be above zero, sensible, and its lower end first"
        raise InputError(msg)
    return ends


def format_bytes(value: float) -> str:
    """Bytes for people, in binary units: 1.5 GiB."""
    sign, size = ("-" if value < 0 else ""), abs(value)
    for unit, scale in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= scale:
            return f"{sign}{size / scale:.1f} {unit}"
    return f"{sign}{size:.0f} B"


def format_seconds(value: float) -> str:
    """Seconds for people: 850 ms, 12.3 s, 7.5 min, 3.2 h, 4.1 d."""
    sign, span = ("-" if value < 0 else ""), abs(value)
    if span == 0:
        return "0 s"
    if span < 1:
        return f"{sign}{span * 1000:.3g} ms"
    if span < 2 * MINUTE_S:
        return f"{sign}{span:.1f} s"
    if span < 2 * HOUR_S:
        return f"{sign}{span / MINUTE_S:.1f} min"
    if span < 4 * DAY_S:
        return f"{sign}{span / HOUR_S:.1f} h"
    return f"{sign}{span / DAY_S:.1f} d"


def format_usd(value: float) -> str:
    """Dollars for people: $0.042, $1.23, $1,234."""
    if value == 0:
        return "$0"
    if abs(value) < 0.1:  # noqa: PLR2004 - cents need a third digit only below ten of them
        return f"${value:.3f}"
    return f"${value:,.2f}" if abs(value) < 1000 else f"${value:,.0f}"  # noqa: PLR2004 - display


def format_count(value: float) -> str:
    """A count for people, with thousands separators."""
    return f"{value:,.0f}"


def format_range(low: float, high: float, show: Callable[[float], str]) -> str:
    """Both ends for people, "10.1 h to 15.2 h"; one where they read the same."""
    least, most = show(low), show(high)
    return least if least == most else f"{least} to {most}"


def format_age(days: int) -> str:
    """The age of a price for people: 61 days; more than a year in months, 17 months."""
    return f"{days} days" if days <= YEAR_DAYS else f"{days / MONTH_DAYS:.0f} months"


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value read from somewhere is a number, which a truth value is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)
