"""How far steps scatter, by what they are and by where they come from, from sources left out.

In two steps, each on sources left out of the fit. Within a source: the log of a squared deviation
from the source's own mean is regressed on the log of its predicted variance. Between sources: the
spread of their means, and how much of what the fit says that it is unsure of they show, are the
most likely ones under their priors; the former is as much wider as Student's quantile of so many
sources is than the normal one. Runs on one GPU have two sides of their own, as the next source's
mean is predicted by those of the others (`programs.sides_of`): one GPU has no neighbours to wait
for, and shows what its host and its trainer take. Rows on devices and of programs that the fit has
seen count. Other programs and devices have their own (`programs`). The interval that judges a
source is sized on the other sources alone, and no factor makes it hold a share of them: how many it
holds is what `validate` finds out.

Source: Harvey, "Estimating Regression Models with Multiplicative Heteroscedasticity" (1976): the
log of a chi-squared variable has mean -1.27 and standard deviation 2.22; Gelman & Hill, "Data
Analysis Using Regression" (2007), chapter 12, for variance between groups.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.constants import Spreads
from autotune.cost.spread.gradient import parameter_variance
from autotune.cost.spread.uncertainty import (
    OTHER_KERNELS,
    device_variances,
    issuing_share,
    programs_of,
    slow_source_variance,
)
from autotune.domain.outcome import Z90
from autotune.evidence.cases import SMALLEST, equal_weights, left_out_key, source_of, student_90
from autotune.evidence.fit.least_squares import minimise
from autotune.evidence.fit.programs import DEVICE_PRIOR_SD, sides_of
from autotune.evidence.fit.time import Features, Fit, MeasuredSteps, fit
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from autotune.cost.columns import BoolArray, FloatArray
    from autotune.evidence.cases import LeftOutGroup, MeasuredCase
    from autotune.evidence.fit.programs import NewErrors

# Hand estimates, half a logarithm wide.
PRIOR = Spreads(
    residual=0.06, issuing=0.15, quantised=0.04, mixture=0.06, ragged=0.10, sharded=0.04,
    source=0.12, alone_fast=0.12, alone_slow=0.12, known=1.0, program_fast=0.20, program_slow=0.20,
    device=DEVICE_PRIOR_SD,
)  # fmt: skip
PRIOR_SD = 0.5
LOG_CHI2_MEAN, LOG_CHI2_SD = -1.27, 2.22
LEAST_ROWS = 3  # of a source whose own mean says something of the scatter around it
BETWEEN = ("source", "alone_fast", "alone_slow", "known", "program_fast", "program_slow", "device")
GRID = np.linspace(-2.5, 1.5, 41)  # logarithms of a spread between sources over its prior


@dataclass(frozen=True, slots=True, eq=False)
class LeftOut:
    """Every step predicted by a fit that has not seen its unit. Arrays: [n].

    groups: of source, model and device, which weigh the same; units: what was left out together.
    """

    steps: MeasuredSteps
    groups: tuple[LeftOutGroup, ...]
    units: tuple[Hashable, ...]
    predicted_s: FloatArray
    features: FloatArray  # [n, spreads] what each of them is multiplied by
    programs: FloatArray  # sources of the row's program that the fit has steps of
    devices: FloatArray  # the same of its device

    @property
    def log_ratio(self) -> FloatArray:
        """[n] log of predicted over measured."""
        ratio: FloatArray = np.log(self.predicted_s / self.steps.seconds)
        return ratio

    @property
    def weights(self) -> FloatArray:
        """[n] weights that give every group the same share; they sum to 1."""
        own = equal_weights(self.groups)
        shares: FloatArray = own / own.sum()
        return shares

    def take(self, where: np.ndarray) -> LeftOut:
        """The steps under a mask."""
        chosen = np.flatnonzero(where)
        return LeftOut(
            self.steps.take(where),
            tuple(self.groups[i] for i in chosen),
            tuple(self.units[i] for i in chosen),
            self.predicted_s[where],
            self.features[where],
            self.programs[where],
            self.devices[where],
        )

    def log_sd(self, spreads: Spreads) -> FloatArray:
        """[n] standard deviation of the log of each prediction, on the side of faster runs."""
        sizes = np.asarray([getattr(spreads, item.name) for item in fields(Spreads)])
        scatter = ((self.features * sizes) ** 2).sum(axis=1)
        of_program, _ = self._of_programs(spreads)
        of_device, _ = self.of_devices(spreads)
        total: FloatArray = np.sqrt(of_device + scatter + of_program + self.steps.unsaid.faster)
        return total

    def slow_log_sd(self, spreads: Spreads) -> FloatArray:
        """[n] the same on the side of slower runs."""
        _, programs = self._of_programs(spreads)
        _, boards = self.of_devices(spreads)
        slow = boards + slow_source_variance(self.counts, programs, spreads)
        own = self.steps.unsaid
        total: FloatArray = np.sqrt(self.log_sd(spreads) ** 2 + slow + own.slower - own.faster)
        return total

    @property
    def counts(self) -> FloatArray:
        """[n] GPUs of each run."""
        return np.asarray([float(case.offer.count) for case in self.steps.cases])

    def of_devices(self, spreads: Spreads) -> tuple[FloatArray, FloatArray]:
        """[n] each: variance of the row's device, and on the side of slower runs besides."""
        found = [
            device_variances(case.offer.device, int(n), spreads, case.offer.count)
            for case, n in zip(self.steps.cases, self.devices, strict=True)
        ]
        both, slow = np.asarray(found).reshape(-1, 2).T
        return both, slow

    def _of_programs(self, spreads: Spreads) -> tuple[FloatArray, FloatArray]:
        return programs_of(self.counts, self.programs, spreads)


def leave_out(
    steps: MeasuredSteps, unit: Callable[[MeasuredCase], Hashable], whole: Fit | None = None
) -> LeftOut:
    """Fit once without each unit and predict it. whole: the fit of all steps, to begin at."""
    units = tuple(unit(case) for case in steps.cases)
    predicted, programs, devices = (np.empty(len(steps)) for _ in range(3))
    features = np.empty((len(steps), len(fields(Spreads))))
    for name in dict.fromkeys(units):
        out = np.asarray([own == name for own in units])
        own = predicted_by(fit(steps.take(~out), whole), steps.take(out), unit)
        predicted[out], features[out] = own.predicted_s, own.features
        programs[out], devices[out] = own.programs, own.devices
    groups = tuple(left_out_key(case) for case in steps.cases)
    return LeftOut(steps, groups, units, predicted, features, programs, devices)


def predicted_by(
    model: Fit, rows: MeasuredSteps, unit: Callable[[MeasuredCase], Hashable]
) -> LeftOut:
    """Steps of which nothing is in a fit, as it predicts them."""
    return LeftOut(
        rows,
        tuple(left_out_key(case) for case in rows.cases),
        tuple(unit(case) for case in rows.cases),
        model.predict(rows),
        _features_of(model, rows),
        np.asarray([float(model.programs.get(c.job.software.stack, 0)) for c in rows.cases]),
        np.asarray([float(model.devices.get(c.offer.device.name, 0)) for c in rows.cases]),
    )


KNOWN = "known"  # the spread that multiplies what the fit is unsure of
NO_SPREADS = Spreads(**{item.name: float(item.name == KNOWN) for item in fields(Spreads)})


def _features_of(model: Fit, rows: MeasuredSteps) -> FloatArray:
    """What the spreads are multiplied by. Devices and programs are counted beside the sources."""
    known = model.fitted(NO_SPREADS)
    kernels = [known.offset("kernels", case.job.software.kernels) for case in rows.cases]
    of_kernels = np.asarray([own.log_sd if own else OTHER_KERNELS for own in kernels])
    own = {item.name: getattr(rows.features, item.name) for item in fields(Features)}
    own["issuing"] = issuing_share(rows.terms, known)
    own[KNOWN] = np.hypot(np.sqrt(parameter_variance(rows.terms, known)), of_kernels)
    nothing = np.zeros(len(rows))
    return np.stack([own.get(item.name, nothing) for item in fields(Spreads)], axis=1)


def fit_spreads(
    left_out: LeftOut, new: NewErrors | None = None, known: BoolArray | None = None
) -> Spreads:
    """Spreads of a step by a source that nobody fitted, sized on sources left out.

    new: programs and devices left out whole, for one that is new; None: the prior. known: [n]
    whether another source has a step on the row's device; else by the rows themselves. Where
    sources differ, those on devices and of programs that others have too are asked.
    """
    mask = device_known(left_out) if known is None else known
    choices = (mask & (left_out.programs > 0), mask, np.ones_like(mask))
    judged = left_out.take(next(chosen for chosen in choices if chosen.any()))
    found = _between(judged, _within(left_out))
    sources = len({case.group[0] for case in judged.steps.cases})
    found = replace(found, source=found.source * student_90(sources - 1.0) / Z90)
    alone_fast, alone_slow = sides_of(_means(judged.take(judged.counts <= 1)), PRIOR.source)
    found = replace(found, alone_fast=alone_fast, alone_slow=alone_slow)
    if new is None:
        return found
    fast, slow = new.programs.sides()
    return replace(found, program_fast=fast, program_slow=slow, device=new.device_sd())


def _between(left_out: LeftOut, within: Spreads) -> Spreads:
    """With the most likely spread of sources' means, and share of what the fit is unsure of.

    Formula: a source's mean residual is normal with variance source^2 + known^2 K + V / g, where K
    is the mean variance of constants and offsets, V that of rows and g the number of groups.
    """
    own = replace(within, **dict.fromkeys(BETWEEN, 0.0))
    of_rows = left_out.log_sd(own) ** 2 - left_out.of_devices(own)[0]
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


def _means(left_out: LeftOut) -> FloatArray:
    """[sources] mean log of measured over predicted, groups weighing the same."""
    sources = np.asarray([case.group[0] for case in left_out.steps.cases])
    slower, weights = -left_out.log_ratio, left_out.weights
    return np.asarray([
        np.average(slower[sources == name], weights=weights[sources == name])
        for name in dict.fromkeys(sources.tolist())
    ])  # fmt: skip


def device_known(left_out: LeftOut) -> BoolArray:
    """[n] whether a unit other than the row's own has a step on its device."""
    units: dict[str, set[object]] = {}
    devices = [case.offer.device.name for case in left_out.steps.cases]
    for device, unit in zip(devices, left_out.units, strict=True):
        units.setdefault(device, set()).add(unit)
    return np.asarray([len(units[device]) > 1 for device in devices], np.bool_)


def nested_spreads(
    sources: LeftOut,
    judged: LeftOut,
    new: NewErrors,
    unit_of: Callable[[MeasuredCase], Hashable] = source_of,
) -> dict[object, Spreads]:
    """By unit of `judged`: spreads sized on the left-out sources without that unit's rows.

    Where the unit is no source, its rows are those of the same runs. unit_of: what `judged` left
    out, whose runs and earlier releases size no program or device either.
    """
    place = {case.id: i for i, case in enumerate(sources.steps.cases)}
    found: dict[object, Spreads] = {}
    known = device_known(sources)
    for unit in dict.fromkeys(judged.units):
        kept = np.ones(len(sources.groups), np.bool_)
        for case, own in zip(judged.steps.cases, judged.units, strict=True):
            if own == unit:
                kept[place[case.id]] = False
        if not kept.any():
            found[unit] = PRIOR
            continue
        others = new.without(unit, unit_of)
        found[unit] = fit_spreads(sources.take(kept), others, known[kept])
    return found


def nested_sd(
    sources: LeftOut,
    judged: LeftOut,
    new: NewErrors,
    unit_of: Callable[[MeasuredCase], Hashable] = source_of,
) -> FloatArray:
    """[n, 2] log sd of every step of `judged` under its unit's nested spreads: faster, slower."""
    spreads = nested_spreads(sources, judged, new, unit_of)
    total = np.empty((len(judged.groups), 2))
    units = np.asarray([list(spreads).index(unit) for unit in judged.units])
    for i, own in enumerate(spreads.values()):
        rows = judged.take(units == i)
        total[units == i] = np.stack([rows.log_sd(own), rows.slow_log_sd(own)], axis=1)
    return total


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
