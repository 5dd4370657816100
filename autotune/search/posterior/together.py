"""The first probes of several workers: what the next one adds to what is pending.

Until something that fits was measured, the model's order would hand eight workers what is nearly
the same. So worlds are drawn from the joint posterior of the candidates and of what is pending: in
each the best of what is pending and fits is known, and a candidate is worth what it saves beyond
that, where it fits itself. The first worker tries the model's best, the others what helps where
that is slow or does not fit. Where two broke and none ran, only what is unlike them is asked for.

Source: multi-point expected improvement by draws, one point after another: Ginsbourger et al.,
"Kriging is well-suited to parallelize optimization" (2010), section 3; Snoek et al., "Practical
Bayesian Optimization of Machine Learning Algorithms" (2012), section 3.2.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from autotune.search.posterior.acquisition import Proposal
from autotune.search.posterior.improvement import SECOND, expected_improvement
from autotune.search.posterior.lookahead import (
    LOOKED_AT,
    beliefs,
    fits_in,
    only_broke,
    unlike_what_broke,
)
from autotune.search.priced import MEMORY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.cost.columns import BoolArray, FloatArray
    from autotune.search.posterior.acquisition import Posterior

    Indices = NDArray[np.intp]

WORLDS = 256
NOTHING = math.log(2.0)  # above what is pending: where none of that fits
LEAST_CHANCE = 1e-6


def next_of_several(posterior: Posterior) -> Proposal | None:
    """The candidate that adds most to what is pending; None when nothing is left that could fit."""
    pending = list(dict.fromkeys(posterior.history.pending))
    if not len(posterior.shortlist) or not pending:
        return None
    open_ = posterior.shortlist
    if only_broke(posterior.history):
        open_ = unlike_what_broke(posterior)
    unsettled = posterior.unsettled()
    candidates = _promising(unsettled, pending, open_)
    values, fits = _worlds(unsettled, np.append(candidates, np.asarray(pending, np.intp)))
    own = len(candidates)
    best = np.where(fits[own:], values[own:], np.inf).min(axis=0)
    best = np.where(np.isfinite(best), best, values[own:].max(axis=0) + NOTHING)
    gain = np.where(fits[:own], np.maximum(best - values[:own], 0.0), 0.0).mean(axis=1)
    index = int(candidates[np.argmax(gain * unsettled.keeps_probability[candidates])])
    return Proposal(index, math.inf, math.inf, float(unsettled.fits_probability[index]), "first")


def _promising(posterior: Posterior, pending: list[int], at: Indices) -> Indices:
    """Those of `at` that may be better than the best that is pending, and the model's best."""
    waiting = np.asarray(pending, np.intp)
    best = int(waiting[np.argmin(_worth(posterior, waiting))])
    mean, _, learned = posterior.comparison(at, best)
    bold = expected_improvement(mean, LOOKED_AT * learned) * posterior.chance(at)
    most = np.argsort(-bold, kind="stable")[:SECOND]
    model = np.argsort(_worth(posterior, at), kind="stable")[: SECOND // 4]
    return at[np.union1d(most, model)]


def _worth(posterior: Posterior, at: Indices) -> FloatArray:
    """[at] expected log cost over the chance that nothing is in the way."""
    return posterior.log_cost[at] - np.log(np.maximum(posterior.chance(at), LEAST_CHANCE))


def _worlds(posterior: Posterior, among: Indices) -> tuple[FloatArray, BoolArray]:
    """[c, worlds] what is minimised, and whether it fits."""
    believed = beliefs(posterior, among)
    memory = believed.pop(MEMORY, None)
    normal = np.random.default_rng(len(posterior.history.tried))
    factors = {n: np.exp(belief.draw(normal, WORLDS)).ravel() for n, belief in believed.items()}
    values = posterior.aim(factors, np.repeat(among, WORLDS)).reshape(len(among), WORLDS)
    fits = np.ones(values.shape, np.bool_)
    if memory is not None:
        fits = fits_in(posterior, among, memory.draw(normal, WORLDS))
    return values, fits
