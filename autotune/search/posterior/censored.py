"""What a run that did not fit teaches: an out-of-memory says "more than there is".

Of the same signature whatever is larger cannot fit either (`dominated`), and of all others the
residual of memory learns a lower bound.
Expectation propagation replaces each bound by the normal observation that moves the posterior as
the bound does. A bound that was expected teaches next to nothing, a surprising one a lot, and two
surprises more than the sum of both.

Source: Minka, "Expectation Propagation for Approximate Bayesian Inference" (2001); Rasmussen and
Williams (2006), section 3.6 and algorithm 3.5, with the probit of a bound in place of a class.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from autotune.search.posterior.amplitudes import Evidence, jointly
from autotune.search.posterior.kernel import Observed, codes_of
from autotune.search.posterior.residuals import Residual
from autotune.search.priced import MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autotune.cost.columns import BoolArray, FloatArray
    from autotune.search.posterior.measurements import History
    from autotune.search.priced import Part, Priced

SWEEPS = 8
SETTLED = 1e-4  # change of a mean, in standard deviations, that ends the sweeps
LEAST_PRECISION = 1e-4  # of an observation that is worth keeping; log ratios are of the order of 1
FAR_BELOW = -30.0  # from where the tail's series is exact to 1e-10
PASSES = 2  # of what bounds are worth under the amplitudes, and the amplitudes under that


def hazard(z: float) -> float:
    """Normal density over distribution function, phi(z)/Phi(z), without underflow.

    Source of the series: Abramowitz and Stegun (1964), 26.2.12, inverted.
    """
    if z < FAR_BELOW:
        w = 1.0 / (z * z)
        return -z * (1.0 + w * (1.0 - w * (2.0 - 10.0 * w)))
    density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return density / (0.5 * math.erfc(-z / math.sqrt(2.0)))


def equivalent_observations(
    mean: FloatArray, covariance: FloatArray, bounds: FloatArray, noise: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Values and sds [bounds] of the normal observations that stand for lower bounds.

    mean, covariance: of the unknowns before the bounds. noise: sd of what was compared with them.
    The sd is infinite where a bound teaches nothing.
    """
    centre, spread = mean.astype(np.float64), covariance.astype(np.float64)
    precision, shift = np.zeros(len(bounds)), np.zeros(len(bounds))
    for _ in range(SWEEPS):
        moved = 0.0
        for i in range(len(bounds)):
            own, at, column = float(spread[i, i]), float(centre[i]), spread[:, i].copy()
            left = 1.0 / max(1.0 / own - precision[i], 1e-9)  # variance without this bound
            middle = left * (at / own - shift[i])
            total = left + noise[i] ** 2
            z = (middle - bounds[i]) / math.sqrt(total)
            slope = hazard(z)
            bend = slope * (z + slope) / total
            remains = 1.0 - bend * left
            more = bend / remains - precision[i]
            push = (middle * bend + slope / math.sqrt(total)) / remains - shift[i]
            step = (push - more * at) / (1.0 + more * own)
            centre += step * column
            spread -= more / (1.0 + more * own) * np.outer(column, column)
            precision[i] += more
            shift[i] += push
            moved = max(moved, abs(step) * math.sqrt(own))
        if moved < SETTLED:
            break
    worth = precision > LEAST_PRECISION
    safe = np.where(worth, precision, 1.0)
    return np.where(worth, shift / safe, mean), np.where(worth, 1.0 / np.sqrt(safe), np.inf)


def residuals_of(
    parts: Mapping[str, Part], observed: Mapping[str, Sequence[Observed]]
) -> dict[str, Residual]:
    """The posterior of every part, with lower bounds as the observations they are worth."""
    exact = {name: [o for o in observed.get(name, ()) if not o.least] for name in parts}
    bounds = {
        name: found for name in parts if (found := [o for o in observed.get(name, ()) if o.least])
    }
    known = dict(exact)
    evidence = {name: Evidence(part, exact[name]) for name, part in parts.items()}
    amplitudes = jointly(evidence)
    for _ in range(PASSES if bounds else 0):
        for name, found in bounds.items():
            before = Residual(parts[name], exact[name], amplitudes[name])
            known[name] = [*exact[name], *_worth(before, found)]
            evidence[name] = Evidence(parts[name], known[name])
        amplitudes = jointly(evidence)
    return {name: Residual(part, known[name], amplitudes[name]) for name, part in parts.items()}


def _worth(residual: Residual, bounds: Sequence[Observed]) -> list[Observed]:
    mean, covariance = residual.at(codes_of(residual.part, bounds))
    values, sds = equivalent_observations(
        mean,
        covariance,
        np.asarray([o.log_ratio for o in bounds]),
        np.asarray([o.noise for o in bounds]),
    )
    return [
        Observed(o.codes, float(value), float(sd))
        for o, value, sd in zip(bounds, values, sds, strict=True)
        if math.isfinite(sd)
    ]


def dominated(priced: Priced, history: History) -> tuple[BoolArray, BoolArray]:
    """[memory signatures] that cannot fit after an out-of-memory, and those known to fit.

    The same signature but for the dimensions along which memory grows: at larger or equal levels
    after an out-of-memory, at smaller or equal ones after a fit.
    """
    part = next((p for p in priced.parts if p.name == MEMORY), None)
    if part is None:
        return np.zeros(0, np.bool_), np.zeros(0, np.bool_)
    growing = [k for k, d in enumerate(part.reads) if d.name in set(priced.grows)]
    excluded = _beyond(part, growing, history.oom, larger=True)
    known = _beyond(part, growing, history.fitting(priced), larger=False)
    return excluded, known & ~excluded


def _beyond(part: Part, growing: list[int], at: Iterable[int], *, larger: bool) -> BoolArray:
    fixed = [k for k in range(len(part.reads)) if k not in growing]
    found = np.zeros(len(part.predicted), np.bool_)
    for row in {int(part.row_of[index]) for index in at}:
        own = part.codes[row]
        same = (part.codes[:, fixed] == own[fixed]).all(axis=1)
        moved = part.codes[:, growing]
        side = moved >= own[growing] if larger else moved <= own[growing]
        found |= same & side.all(axis=1)
    return found
