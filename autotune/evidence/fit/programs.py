"""How far training programs that no fit has seen are from the model: programs left out whole.

A program is what runs the loop: transformers' Trainer with all that drives it is one, and each
trainer with a loop of its own another. Every one is predicted by a fit without any of its rows;
what is left, the mean over its sources, their releases and rows, is its effect. Of a new program
that effect is drawn as theirs were. Nothing shifts the middle of an interval: it is the two sides
that differ, because programs do on top of what is modelled rather than less of it.

Earlier releases count here, which the fit takes the newest of: another release is other code, and
one loop of the record was twice as fast a year later.

Formula: side = (t s sqrt(1 + 1 / n) +- mean) / z90, t of Student with as many degrees of freedom as
programs and the prior's weight leave. Source: the predictive distribution of a normal variable of
unknown mean and variance; Gelman et al., "Bayesian Data Analysis" (2013), section 3.2.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from autotune.domain.outcome import Z90
from autotune.evidence.cases import program_of, student_90
from autotune.evidence.fit.time import fit, measured_steps
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from autotune.cost.columns import FloatArray
    from autotune.evidence.cases import MeasuredCase, Unit
    from autotune.evidence.fit.time import Fit, MeasuredSteps

PRIOR_SD, PRIOR_WORTH = 0.20, 2.0  # as sources differ (`time.SOURCE_SD`); programs that it weighs


@dataclass(frozen=True, slots=True, eq=False)
class ProgramErrors:
    """Steps predicted without their program. slower: [n] log of measured over predicted."""

    cases: tuple[MeasuredCase, ...]
    slower: FloatArray

    def without(self, unit: Hashable, of: Callable[[MeasuredCase], Hashable]) -> ProgramErrors:
        """The errors of what is of another unit."""
        places = [i for i, case in enumerate(self.cases) if of(case) != unit]
        return ProgramErrors(tuple(self.cases[i] for i in places), self.slower[places])

    def effects(self) -> dict[Unit, float]:
        """By program, the log of measured over predicted: a mean of sources, of their releases."""
        found: dict[Unit, dict[str, dict[str, list[float]]]] = {}
        for case, own in zip(self.cases, self.slower.tolist(), strict=True):
            releases = found.setdefault(program_of(case), {}).setdefault(case.group[0], {})
            releases.setdefault(case.job.software.as_of, []).append(own)
        return {
            program: _mean([_mean([_mean(v) for v in of.values()]) for of in sources.values()])
            for program, sources in sorted(found.items())
        }

    def sides(self) -> tuple[float, float]:
        """Log sd of a step by another program, on the side of faster and of slower."""
        return sides_of(np.asarray(list(self.effects().values())))


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


def programs_left_out(
    steps: MeasuredSteps, cases: Sequence[MeasuredCase], whole: Fit
) -> ProgramErrors:
    """Every case as predicted by a fit without its program.

    steps: what is fitted; cases: with a step time each, of all releases; whole: the fit of all.
    """
    programs = [program_of(case) for case in steps.cases]
    found: list[MeasuredCase] = []
    slower: list[FloatArray] = []
    for program in dict.fromkeys(programs):
        kept = np.asarray([own != program for own in programs])
        rows = [case for case in cases if program_of(case) == program]
        if not rows or not kept.any():
            continue
        own = measured_steps(rows)
        model = fit(steps.take(kept), whole)
        found += own.cases
        slower.append(np.log(own.seconds / model.predict(own)))
    return ProgramErrors(tuple(found), np.concatenate(slower) if slower else np.zeros(0))
