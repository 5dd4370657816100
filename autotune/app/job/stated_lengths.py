"""Lengths that are stated beside a data set: they must be what the data set's rows have."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.domain.errors import InputError
from autotune.domain.outcome import Z90

if TYPE_CHECKING:
    from autotune.domain.job import Lengths
    from autotune.domain.typed.job import DataSection

CLOSE = 0.1  # relative: rounding, and another way to put a row together


def check_lengths(section: DataSection, found: Lengths) -> None:
    """Raise InputError where stated lengths contradict those of the data set's rows.

    found: [tokens] as counted, estimated or published, cut to max_length. What was estimated may be
    off by its own spread.
    """
    stated = section.lengths
    if stated is None or section.dataset is None:
        return
    room = CLOSE + math.expm1(Z90 * found.log_sd)
    pairs = (
        ("p50", stated.p50, _at(found, 0.5)),
        ("p95", stated.p95, _at(found, 0.95)),
        ("mean", stated.mean, found.mean),
        ("max", None if stated.max is None else float(stated.max), float(found.maximum)),
    )
    for name, said, own in pairs:
        exact = name == "max" and found.basis == "counted"  # a longer row would be there
        over = said is not None and own > said * (1.0 + (0.0 if exact else room))
        under = said is not None and name != "max" and said > own * (1.0 + room)
        if said is None or not (over or under):
            continue
        how = {"counted": "has", "published": "is published with"}.get(found.basis, "seems to have")
        msg = (
            f"data.lengths.{name} is {said:g}, but {Path(section.dataset).name} {how} "
            f"{name} {own:.0f} tokens"
        )
        hint = "state one of dataset and lengths: without data.lengths the rows' own are taken"
        if name == "max":
            hint += f"; or state data.max_length {said:.0f}, and longer rows are cut"
        raise InputError(msg, hint)


def _at(found: Lengths, probability: float) -> float:
    place = probability * (len(found.quantiles) - 1)
    low = math.floor(place)
    high = min(low + 1, len(found.quantiles) - 1)
    return found.quantiles[low] + (place - low) * (found.quantiles[high] - found.quantiles[low])
