"""How far programs and devices that no fit has seen are from the model: each left out whole.

A program is what runs the loop: transformers' Trainer with all that drives it is one, and each
trainer with a loop of its own another. Every one is predicted by a fit without any of its rows;
what is left, the mean over its sources, their releases and rows, is its effect. Of a new program
that effect is drawn as theirs were. Nothing shifts the middle of an interval: it is the two sides
that differ, because programs do on top of what is modelled rather than less of it. Devices are left
out the same way, with one spread for both sides.

Earlier releases count here, which the fit takes the newest of: another release is other code, and
one loop of the record was twice as fast a year later. Of devices they do not.

Formula: side = (t s sqrt(1 + 1 / n) +- mean) / z90, t of Student with as many degrees of freedom as
programs and the prior's weight leave. Source: the predictive distribution of a normal variable of
unknown mean and variance; Gelman et al., "Bayesian Data Analysis" (2013), section 3.2.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from autotune.domain.outcome import Z90
from autotune.evidence.cases import device_of, program_of, student_90
from autotune.evidence.fit.time import fit
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from autotune.cost.columns import FloatArray
    from autotune.evidence.cases import MeasuredCase, Unit
    from autotune.evidence.fit.time import Fit, MeasuredSteps

PRIOR_SD, PRIOR_WORTH = 0.20, 2.0  # as sources differ (`time.SOURCE_SD`); programs that it weighs
DEVICE_PRIOR_SD = math.log(1.5) / Z90  # a hand estimate: a factor 1.5 each way


@dataclass(frozen=True, slots=True, eq=False)
class WholeErrors:
    """Steps predicted without their program or device. slower: [n] log of measured over predicted.

    whole: what was left out of each.
    """

    cases: tuple[MeasuredCase, ...]
    slower: FloatArray
    whole: Callable[[MeasuredCase], Unit] = program_of

    def without(self, unit: Hashable, of: Callable[[MeasuredCase], Hashable]) -> WholeErrors:
        """The errors of what is of another unit."""
        places = [i for i, case in enumerate(self.cases) if of(case) != unit]
        return WholeErrors(tuple(self.cases[i] for i in places), self.slower[places], self.whole)

    def effects(self) -> dict[Unit, float]:
        """By program, the log of measured over predicted: a mean of sources, of their releases."""
        found: dict[Unit, dict[str, dict[str, list[float]]]] = {}
        for case, own in zip(self.cases, self.slower.tolist(), strict=True):
            releases = found.setdefault(self.whole(case), {}).setdefault(case.group[0], {})
            releases.setdefault(case.job.software.as_of, []).append(own)
        return {
            program: _mean([_mean([_mean(v) for v in of.values()]) for of in sources.values()])
            for program, sources in sorted(found.items())
        }

    def sides(self, prior_sd: float = PRIOR_SD) -> tuple[float, float]:
        """Log sd of a step by another program, on the side of faster and of slower."""
        return sides_of(np.asarray(list(self.effects().values())), prior_sd)


@dataclass(frozen=True, slots=True, eq=False)
class NewErrors:
    """Steps predicted without their program, and without their device."""

    programs: WholeErrors
    devices: WholeErrors

    def without(self, unit: Hashable, of: Callable[[MeasuredCase], Hashable]) -> NewErrors:
        """The errors of what is of another unit."""
        return NewErrors(self.programs.without(unit, of), self.devices.without(unit, of))

    def device_sd(self) -> float:
        """Log sd of a step on another device, of its source too: the middle of the two sides."""
        fast, slow = self.devices.sides(DEVICE_PRIOR_SD)
        return (fast + slow) / 2.0


def sides_of(effects: FloatArray, prior_sd: float = PRIOR_SD) -> tuple[float, float]:
    """Log sd of the next effect, on the side of faster and of slower. effects: [n] of slower."""
    n = len(effects)
    mean = float(effects.mean()) if n else 0.0
    squares = PRIOR_WORTH * prior_sd**2 + float(((effects - mean) ** 2).sum())
    freedom = PRIOR_WORTH + max(n - 1, 0)
    reach = student_90(freedom) * math.sqrt(squares / freedom * (1.0 + 1.0 / max(n, 1)))
    return max(reach - mean, 0.0) / Z90, max(reach + mean, 0.0) / Z90


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def new_errors(steps: MeasuredSteps, cases: Sequence[MeasuredCase], whole: Fit) -> NewErrors:
    """Programs and devices left out whole.

    steps: what is fitted; cases: with a step time each, of all releases; whole: the fit of all.
    """
    return NewErrors(
        left_out_whole(steps, steps.of(cases), whole, program_of),
        left_out_whole(steps, steps, whole, device_of),
    )


def left_out_whole(
    steps: MeasuredSteps,
    rows: MeasuredSteps,
    whole: Fit,
    unit: Callable[[MeasuredCase], Unit],
) -> WholeErrors:
    """Every row as predicted by a fit without its program, or device: its unit."""
    units = [unit(case) for case in steps.cases]
    found: list[MeasuredCase] = []
    slower: list[FloatArray] = []
    for name in dict.fromkeys(units):
        kept = np.asarray([own != name for own in units])
        own = rows.take(np.asarray([unit(case) == name for case in rows.cases], np.bool_))
        if not len(own) or not kept.any():
            continue
        model = fit(steps.take(kept), whole)
        found += own.cases
        slower.append(np.log(own.seconds / model.predict(own)))
    return WholeErrors(tuple(found), np.concatenate(slower) if slower else np.zeros(0), unit)
