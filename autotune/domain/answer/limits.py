"""How likely a limit is kept: a deadline, a budget, a session, against a bill with its interval.

A duration is log-normal to each side of its middle: p10, p50 and p90 determine it. A limit is kept
where the probability of staying within it is at least what the user asks for. Where nobody stated
how long the rows are, `ShortRows` is the other end of the bill.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

from autotune.domain.answer.contract import Answer
from autotune.domain.job import BUDGET, DEADLINE, SESSION
from autotune.domain.outcome import Spread  # noqa: TC001 - read when a kept answer is checked
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.domain.job import Limits

_NORMAL = NormalDist()
_FARTHEST, _HALVINGS = 8.0, 48  # standard deviations from the middle; of a bisection
_Z90 = _NORMAL.inv_cdf(0.9)  # as `standard` has it, so that both cancel at a confidence of 0.9


@dataclass(frozen=True, slots=True)
class LimitOdds(Answer):
    """How likely one limit of the job is kept.

    value: the limit, in seconds or USD. held: what is kept with the asked probability, in the same
    unit: above `value` where the limit is not kept.
    """

    limit: str
    value: float
    probability: float
    kept: bool
    held: float

    @property
    def excess(self) -> float:
        """By how much, relatively, what is held lies beyond the limit; at most 0 within it."""
        over = self.held - self.value
        return over / self.value if self.value > 0 else over


@dataclass(frozen=True, slots=True)
class Miss(Answer):
    """A limit that is not kept with the asked probability.

    by: how far what is kept with that probability lies beyond it, in seconds or USD.
    """

    limit: str
    by: float


def probability_within(figure: Spread, limit: float) -> float:
    """The probability that a figure is at most `limit`.

    Formula: Phi(log(limit / p50) / sd) with sd = log(p90 / p50) / z90 above the middle and
    log(p50 / p10) / z90 below it; 0 or 1 where there is no spread.
    Source: derived: a log-normal with these quantiles.
    """
    if limit <= 0 or figure.p50 <= 0:
        return 1.0 if figure.p50 <= limit else 0.0
    above = limit >= figure.p50
    end = figure.p90 / figure.p50 if above else figure.p50 / max(figure.p10, 1e-300)
    sd = math.log(max(end, 1.0)) / _Z90
    if sd <= 0:
        return 1.0 if above else 0.0
    return _NORMAL.cdf(math.log(limit / figure.p50) / sd)


def held_with(figure: Spread, confidence: float) -> float:
    """What a figure stays within with that probability, above one half.

    Formula: p50 (p90 / p50)^(z / z90) with z the standard normal quantile of the confidence.
    Source: derived: the quantile of `probability_within`.
    """
    return _quantile(figure, standard(confidence))


def _quantile(figure: Spread, z: float) -> float:
    """The quantile of a figure at a standard normal one, by the side of its middle."""
    if figure.p50 <= 0:
        return figure.p50
    end = figure.p90 / figure.p50 if z > 0 else figure.p50 / max(figure.p10, 1e-300)
    return figure.p50 * math.exp(math.log(max(end, 1.0)) * z / _Z90)


def sum_within(figures: Sequence[tuple[Spread, float]], limit: float) -> float | None:
    """The probability that figures, so many of each, are together at most `limit`.

    They err together, as one model's do: all are at the same quantile at a time. None where none
    has a range. Formula: the z at which the sum of their quantiles is the limit, by bisection.
    Source: derived: the sum of comonotonic variables has the sum of their quantiles.
    """
    if all(figure.p10 >= figure.p90 for figure, _ in figures):
        return None
    low, high = -_FARTHEST, _FARTHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        within = math.fsum(times * _quantile(own, middle) for own, times in figures) <= limit
        low, high = (middle, high) if within else (low, middle)
    return _NORMAL.cdf(low)


def standard(confidence: float) -> float:
    """The standard normal quantile of a probability."""
    return _NORMAL.inv_cdf(confidence)


def odds(limits: Limits, duration_s: Spread, cost_usd: Spread) -> tuple[LimitOdds, ...]:
    """How likely each stated limit is kept by a run with this duration and cost."""
    figures = {DEADLINE: duration_s, SESSION: duration_s, BUDGET: cost_usd}
    found = []
    for name, value in limits.stated:
        chance = probability_within(figures[name], value)
        held = held_with(figures[name], limits.confidence)
        found.append(LimitOdds(name, value, chance, chance >= limits.confidence, held))
    return tuple(found)


def misses(found: tuple[LimitOdds, ...]) -> tuple[Miss, ...]:
    """Those limits that are not kept, and by how much."""
    return tuple(Miss(each.limit, each.held - each.value) for each in found if not each.kept)


def worst_excess(found: tuple[LimitOdds, ...]) -> float:
    """By how much, relatively, the worst of the limits is missed; at most 0 where all are kept."""
    return max((each.excess for each in found), default=0.0)


@dataclass(frozen=True, slots=True)
class ShortRows(Answer):
    """What a priced row takes if the rows are as short as those of a published data set.

    The row itself counts every row at `max_length`. like: the data set; p50_tokens: under which
    half of its rows are; source: who published that. settled: a measured time of today's run sets
    the scale at both ends, so that only what the lengths do to the configurations is left open.
    """

    duration_s: Spread
    cost_usd: Spread
    like: str
    p50_tokens: float
    source: str
    settled: bool
