"""The next probe, looked for two probes ahead: which candidates are played through, and on what.

Played through are those that promise most by themselves, and those that would measure again what
the incumbent, or the measured candidate next to it, was measured to be: where noise decides between
two, telling them apart is worth more than a third.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from autotune.search.posterior.acquisition import LEAST_GAIN, Posterior, Proposal
from autotune.search.posterior.improvement import (
    FIRST,
    SECOND,
    WORLDS,
    Belief,
    Table,
    expected_improvement,
    reward,
)
from autotune.search.priced import MEMORY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.cost.columns import BoolArray, FloatArray
    from autotune.search.posterior.measurements import History

    Indices = NDArray[np.intp]

LOOKED_AT = 1.3  # times the sd, for a candidate that may be chosen after the next probe
RIVALS = 6  # measured candidates that may be the pick after the next probe
AGAIN = 2  # of which the first so many may be measured again
BROKEN = 2  # probes that broke before any ran, after which the next is unlike all of them


def next_probe(posterior: Posterior) -> Proposal | None:
    """The next probe; None when nothing is left that could fit."""
    at = posterior.shortlist
    if not len(at):
        return None
    chance, fits = posterior.chance(at), posterior.fits_probability
    if posterior.incumbent is None:
        if only_broke(posterior.history):
            at = unlike_what_broke(posterior)
            chance = posterior.chance(at)
        index = int(at[np.argmin(posterior.log_cost[at] - np.log(chance))])
        return Proposal(index, math.inf, math.inf, float(fits[index]), "first")
    mean, _, learned = posterior.comparison(at, posterior.incumbent)
    gains = expected_improvement(mean, learned) * chance
    most = float(np.max(gains))
    index, why = int(at[np.argmax(gains)]), "improve"
    if most < LEAST_GAIN:
        near = posterior.plainer()
        near = posterior.neighbour() if near is None else near
        index, why = (near, "confirm") if near is not None else (index, why)
    else:
        index = first_of_two(posterior, at, mean, learned)
    return Proposal(index, _gain(posterior, index), most, float(fits[index]), why)


def only_broke(history: History) -> bool:
    """Whether nothing ran so far, and more than one probe broke."""
    return len(history.broken) >= BROKEN and not history.probes


def unlike_what_broke(posterior: Posterior) -> Indices:
    """Candidates that differ in as much as can be of what all probes that broke had in common.

    Any of that may be why they broke. What the model calls cheapest is mostly of one kind, so that
    a few more of it would break alike, and the search would end without having tried another.
    """
    broken = np.asarray(posterior.history.broken, np.intp)
    columns = {
        dimension.name: part.codes[part.row_of, k]
        for part in posterior.parts.values()
        for k, dimension in enumerate(part.reads)
    }
    differs = np.zeros(len(posterior.priced), np.int64)
    for column in columns.values():
        if (column[broken] == column[broken[0]]).all():
            differs += column != column[broken[0]]
    for most in np.unique(differs)[::-1]:
        at = np.flatnonzero(differs == most)
        at = at[posterior.allows(at)]
        if len(at):
            return at
    return posterior.shortlist


def _gain(posterior: Posterior, index: int) -> float:
    mean, _, learned = posterior.comparison(np.asarray([index]), posterior.incumbent or 0)
    return float((expected_improvement(mean, learned) * posterior.chance(np.asarray([index])))[0])


def first_of_two(posterior: Posterior, at: Indices, mean: FloatArray, learned: FloatArray) -> int:
    """The most promising candidates, each played through with the probe after it.

    mean, learned: of the difference to the incumbent, and by how much a probe moves it.
    """
    incumbent = posterior.incumbent or 0
    chance, cost = posterior.chance(at), posterior.log_cost
    bold = expected_improvement(mean, LOOKED_AT * learned) * chance
    order = np.argsort(-bold, kind="stable")[:SECOND]
    rivals = sorted((i for i in posterior.fitting if i != incumbent), key=cost.of)
    rivals = rivals[:RIVALS]
    again = _alike(posterior, at, [incumbent, *rivals][:AGAIN])
    order = np.concatenate([order, np.setdiff1d(again, order)])
    gains = expected_improvement(mean[order], learned[order]) * chance[order]
    firsts = np.argsort(-gains, kind="stable")[:FIRST]
    firsts = np.union1d(firsts, np.flatnonzero(np.isin(order, again)))
    among = np.concatenate([at[order], rivals, [incumbent]]).astype(np.intp)
    known = cost[among[len(order) :]] - cost.of(incumbent)
    variance = np.concatenate([learned[order] ** 2, np.zeros(len(known))])
    table = _table(posterior, among, np.concatenate([mean[order], known]), variance, len(rivals))
    rewards = [reward(table, int(first)) for first in firsts]
    return int(among[firsts[int(np.argmax(rewards))]])


def _alike(posterior: Posterior, at: Indices, measured: list[int]) -> Indices:
    """Places in `at` that share the chief part's signature with a measured one, the cheapest."""
    row_of, found = posterior.chief.row_of, []
    for index in measured:
        same = np.flatnonzero(row_of[at] == row_of[index])
        if len(same):
            found.append(int(same[np.argmin(posterior.log_cost[at[same]])]))
    return np.asarray(found, np.intp)


def beliefs(posterior: Posterior, at: Indices) -> dict[str, Belief]:
    """What is believed of every part that matters at some candidates, memory included."""
    weights = posterior.weights(at)
    if MEMORY in posterior.parts:
        weights[MEMORY] = np.ones(len(at))
    return {name: _belief(posterior, name, at, weight) for name, weight in weights.items()}


def over_limit(posterior: Posterior, at: Indices) -> FloatArray:
    """Log of the memory that the model predicts over what there is; 0 without a limit."""
    part = posterior.parts.get(MEMORY)
    if part is None:
        return np.zeros(len(at))
    needed = np.maximum(part.predicted[part.row_of[at]], 1e-300)
    found: FloatArray = np.log(needed / posterior.priced.limit[at])
    return found


def fits_in(posterior: Posterior, at: Indices, drawn: FloatArray) -> BoolArray:
    """[at, worlds] what fits if memory has these log factors; what is settled fits in all or none.

    drawn: [at, worlds].
    """
    chance = posterior.fits_probability[at]
    settled = (chance <= 0.0) | (chance >= 1.0)
    over = over_limit(posterior, at)[:, None] + drawn
    return np.where(settled[:, None], chance[:, None] > 0.0, over <= 0.0)


def _belief(posterior: Posterior, name: str, at: Indices, weight: FloatArray) -> Belief:
    residual, part = posterior.residuals[name], posterior.parts[name]
    rows, row_of = np.unique(part.row_of[at], return_inverse=True)
    mean = residual.mean[rows][row_of]
    return Belief(mean, residual.joint(rows), row_of, weight, residual.noise)


def _table(
    posterior: Posterior, at: Indices, mean: FloatArray, variance: FloatArray, rivals: int
) -> Table:
    believed = beliefs(posterior, at)
    memory = believed.pop(MEMORY, None)
    timed = list(believed.values())
    seed = np.random.default_rng(len(posterior.history.tried))
    drawn = {number: belief.draw(seed, WORLDS) for number, belief in enumerate(timed)}
    factors = {name: np.exp(drawn[number]).ravel() for number, name in enumerate(believed)}
    worlds = posterior.aim(factors, np.repeat(at, WORLDS)).reshape(len(at), WORLDS)
    fits, keeps = posterior.fits_probability[at], posterior.keeps_probability[at]
    known = np.where((fits <= 0.0) | (fits >= 1.0), fits, np.nan)
    known[-1 - rivals :] = keeps[-1] = 1.0
    over = over_limit(posterior, at)
    fitting = np.ones(worlds.shape, np.bool_)
    if memory is not None:
        drawn[-1] = memory.draw(seed, WORLDS)
        fitting = over[:, None] + drawn[-1] <= 0.0
    fitting = np.where(np.isnan(known)[:, None], fitting, known[:, None] > 0)
    return Table(
        mean, variance, timed, memory, over, known, keeps, drawn, worlds - worlds[-1], fitting,
        rivals,
    )  # fmt: skip
