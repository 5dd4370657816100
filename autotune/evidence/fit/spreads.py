"""How far steps scatter, by what they are and by where they come from, from sources left out.

In three steps, each on sources left out of the fit. Within a source: the log of a squared deviation
from the source's own mean is regressed on the log of its predicted variance. Between sources: the
spread of their means, and how much of what the fit says that it is unsure of they show, are the
most likely ones under their priors. At last one factor on all of it, so that the 80 % interval
holds four of five rows, every group of source, model and device weighing the same. It counts rows
on devices that the fit has seen: of the others a spread is assumed that no factor touches
(`cost.spread.uncertainty`). The interval that judges a source is sized on the other sources alone.

Source: Harvey, "Estimating Regression Models with Multiplicative Heteroscedasticity" (1976): the
log of a chi-squared variable has mean -1.27 and standard deviation 2.22; Gelman & Hill, "Data
Analysis Using Regression" (2007), chapter 12, for variance between groups; Lei et al.,
"Distribution-Free Predictive Inference for Regression" (2018), section 5.2, for the factor: the
quantile of residuals over what they were predicted to be.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.constants import Spreads
from autotune.domain.outcome import Z90
from autotune.evidence.cases import SMALLEST, WANTED
from autotune.evidence.fit.least_squares import minimise

if TYPE_CHECKING:
    from autotune.cost.columns import BoolArray, FloatArray
    from autotune.evidence.fit.time import LeftOut

# Hand estimates, half a logarithm wide.
PRIOR = Spreads(
    residual=0.06, issuing=0.15, quantised=0.04, mixture=0.06, ragged=0.10, sharded=0.04,
    source=0.12, known=1.0,
)  # fmt: skip
PRIOR_SD = 0.5
LOG_CHI2_MEAN, LOG_CHI2_SD = -1.27, 2.22
STEPS = 40  # halvings of the bracket
LARGEST = 5.0  # no factor is above
LEAST_ROWS = 3  # of a source whose own mean says something of the scatter around it
BETWEEN = ("source", "known")
GRID = np.linspace(-2.5, 1.5, 41)  # logarithms of a spread between sources over its prior


def fit_spreads(left_out: LeftOut, known: BoolArray | None = None) -> Spreads:
    """Spreads under which the 80 % interval holds `WANTED` of the weight of left-out sources.

    known: [n] whether another source has a step on the row's device; else by the rows themselves.
    """
    mask = device_known(left_out) if known is None else known
    judged = left_out.take(mask) if mask.any() else left_out
    shaped = _between(judged, _within(left_out))
    weights = judged.weights
    low, high = 0.0, LARGEST
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        if coverage(judged, _times(shaped, middle), weights) < WANTED:
            low = middle
        else:
            high = middle
    return _times(shaped, high)


def _times(spreads: Spreads, factor: float) -> Spreads:
    own = {item.name: factor * getattr(spreads, item.name) for item in fields(Spreads)}
    return Spreads(**own)


def _between(left_out: LeftOut, within: Spreads) -> Spreads:
    """With the most likely spread of sources' means, and share of what the fit is unsure of.

    Formula: a source's mean residual is normal with variance source^2 + known^2 K + V / g, where K
    is the mean variance of constants and offsets, V that of rows and g the number of groups.
    """
    own = replace(within, source=0.0, known=0.0)
    of_rows = left_out.log_sd(own) ** 2 - left_out.assumed_variance
    of_fit = left_out.features[:, [item.name for item in fields(Spreads)].index("known")] ** 2
    means = []
    sources = np.asarray([case.group[0] for case in left_out.steps.cases])
    for source in dict.fromkeys(sources.tolist()):
        rows = sources == source
        share = left_out.weights[rows] / left_out.weights[rows].sum()
        groups = len({g for g, yes in zip(left_out.groups, rows, strict=True) if yes})
        found = (left_out.log_ratio, of_fit, of_rows / groups)
        means.append([float(share @ values[rows]) for values in found])
    mean, fitted, rest = np.asarray(means).T
    best, most = within, -np.inf
    for a in GRID:
        for b in GRID:
            source, known = PRIOR.source * np.exp(a), PRIOR.known * np.exp(b)
            variance = source**2 + known**2 * fitted + rest
            likely = -np.sum(np.log(variance) + mean**2 / variance) - (a**2 + b**2) / PRIOR_SD**2
            if likely > most:
                best, most = replace(within, source=float(source), known=float(known)), likely
    return best


def device_known(left_out: LeftOut) -> BoolArray:
    """[n] whether a unit other than the row's own has a step on its device."""
    units: dict[str, set[object]] = {}
    devices = [case.offer.device.name for case in left_out.steps.cases]
    for device, unit in zip(devices, left_out.units, strict=True):
        units.setdefault(device, set()).add(unit)
    return np.asarray([len(units[device]) > 1 for device in devices], np.bool_)


def nested_spreads(sources: LeftOut, judged: LeftOut) -> dict[object, Spreads]:
    """By unit of `judged`: spreads sized on the left-out sources without that unit's rows.

    Where the unit is no source, its rows are those of the same runs.
    """
    place = {case.id: i for i, case in enumerate(sources.steps.cases)}
    found: dict[object, Spreads] = {}
    known = device_known(sources)
    for unit in dict.fromkeys(judged.units):
        kept = np.ones(len(sources.groups), np.bool_)
        for case, own in zip(judged.steps.cases, judged.units, strict=True):
            if own == unit:
                kept[place[case.id]] = False
        found[unit] = fit_spreads(sources.take(kept), known[kept]) if kept.any() else PRIOR
    return found


def nested_sd(sources: LeftOut, judged: LeftOut) -> FloatArray:
    """[n] log standard deviation of every step of `judged` under its unit's nested spreads."""
    spreads = nested_spreads(sources, judged)
    total = np.empty(len(judged.groups))
    units = np.asarray([list(spreads).index(unit) for unit in judged.units])
    for i, own in enumerate(spreads.values()):
        total[units == i] = judged.take(units == i).log_sd(own)
    return total


def coverage(left_out: LeftOut, spreads: Spreads, weights: FloatArray | None = None) -> float:
    """Share of measured steps inside the 80 % interval; rows count the same unless weighted."""
    inside = np.abs(left_out.log_ratio) <= Z90 * left_out.log_sd(spreads)
    return float(np.average(inside, weights=weights))


def _within(left_out: LeftOut) -> Spreads:
    """Spreads of rows around the mean of their source; those between sources stay the prior."""
    names = [item.name for item in fields(Spreads) if item.name not in BETWEEN]
    mean = np.log([getattr(PRIOR, name) for name in names])
    apart, use = _deviations(left_out)
    squared = np.log(np.maximum(np.abs(apart), SMALLEST) ** 2) - LOG_CHI2_MEAN
    weights = np.sqrt(left_out.weights * len(set(left_out.groups))) * use
    features = left_out.features[:, [item.name not in BETWEEN for item in fields(Spreads)]]

    def residuals(x: FloatArray) -> FloatArray:
        variance = ((features * np.exp(x)) ** 2).sum(axis=1)
        own: FloatArray = weights * (squared - np.log(variance)) / LOG_CHI2_SD
        return own

    found = minimise(residuals, mean, np.full(len(names), PRIOR_SD)).x
    sizes = {name: float(np.exp(v)) for name, v in zip(names, found, strict=True)}
    return replace(PRIOR, **sizes)


def _deviations(left_out: LeftOut) -> tuple[FloatArray, FloatArray]:
    """([n], [n]) residuals from the mean of their source, widened; 1 where it has rows enough."""
    sources = [case.group[0] for case in left_out.steps.cases]
    counts = Counter(sources)
    ratio, apart = left_out.log_ratio, np.zeros(len(sources))
    for source, n in counts.items():
        own = np.asarray([name == source for name in sources])
        middle = np.average(ratio[own], weights=left_out.weights[own])
        apart[own] = (ratio[own] - middle) * np.sqrt(n / max(n - 1, 1))
    return apart, np.asarray([float(counts[source] >= LEAST_ROWS) for source in sources])
