"""Whether the calibrated sampler is ahead of the best rival, level with it or behind it.

Both are run on the same machines, so that what differs is a difference of pairs: its standard error
is that of machines drawn again with replacement, each with the regret of both. Level is what lies
within one standard error. A regret counts as `MOST` at most, one without a pick too. The best rival
is chosen by the same machines, in its favour.

Source: paired bootstrap: Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), 6.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.cost.columns import FloatArray

OURS = "calibrated"
AFTER, PERCENTS = (6, 10, 20), (50, 90)
DRAWS = 2000
MOST = 1.5
Word = Literal["ahead", "level", "behind"]


@dataclass(frozen=True, slots=True)
class Level:
    """One figure beside the best rival's. difference: ours minus the rival's, as a share of cost.

    after: probes. percent: of the machines, 50 or 90. error: standard error of the difference.
    """

    after: int
    percent: int
    rival: str
    difference: float
    error: float
    word: Word


def levels(curves: Mapping[str, Sequence[Sequence[float]]]) -> list[Level]:
    """By number of probes and percentile; none where the calibrated sampler or a rival is missing.

    curves: by method, the regret after each probe of every machine, in one order of machines.
    """
    rivals = [method for method in curves if method != OURS]
    if OURS not in curves or not rivals:
        return []
    return [_level(curves, rivals, n, percent) for n in AFTER for percent in PERCENTS]


def _level(
    curves: Mapping[str, Sequence[Sequence[float]]], rivals: Sequence[str], after: int, percent: int
) -> Level:
    def at(method: str) -> FloatArray:
        found = [curve[min(after, len(curve)) - 1] for curve in curves[method]]
        return np.minimum(np.asarray(found, np.float64), MOST)

    rival = min(rivals, key=lambda method: float(np.percentile(at(method), percent)))
    ours, theirs = at(OURS), at(rival)
    drawn = np.random.default_rng(0).integers(0, len(ours), (DRAWS, len(ours)))
    apart = np.percentile(ours[drawn], percent, axis=1) - np.percentile(
        theirs[drawn], percent, axis=1
    )
    difference = float(np.percentile(ours, percent) - np.percentile(theirs, percent))
    error = float(np.std(apart))
    word: Word = "level"
    if abs(difference) > error:
        word = "ahead" if difference < 0.0 else "behind"
    return Level(after, percent, rival, round(difference, 5), round(error, 5), word)


def line(own: Level) -> str:
    """One figure for people."""
    which = "median" if own.percent == PERCENTS[0] else "p90"
    word = {"ahead": "ahead of", "level": "level with", "behind": "behind"}[own.word]
    return (
        f"after {own.after}, {which}: {word} {own.rival}, {100 * own.difference:+.1f} points, "
        f"standard error {100 * own.error:.1f}"
    )


def cell(own: Level) -> str:
    """For a table: the word, the rival, the difference and its standard error in points."""
    return f"{own.word} ({own.rival} {100 * own.difference:+.1f} ± {100 * own.error:.1f})"
