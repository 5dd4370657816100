"""How much better than the pick anything may be: one statement over all candidates together.

A bound for each candidate by itself, however often it holds, says little of the best of thousands.
So worlds are drawn from the joint posterior: in each, the best candidate that fits is compared with
the pick. Nine worlds in ten have none that is better by more than the bound. The pick is the
luckiest of several readings, and while nothing was measured twice nobody knows how lucky a reading
can be: the worlds are of every noise of the step that may be, each as often as it is probable. The
posterior takes its other amplitudes for known, and a linear response of the bill; that makes worlds
too alike, most of all on machines that are not of its kind. The further the measurements are from
what the model says of itself, the more are the deviations widened (`disbelief`); by how much was
fitted on machines of no prior (`bench.search.families`).

Source: derived; maximum of a Gaussian process by draws: Hennig and Schuler, "Entropy search"
(2012), section 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.frozen import dataclass
from autotune.search.posterior.amplitudes import Evidence, disbelief
from autotune.search.posterior.improvement import expected_improvement
from autotune.search.posterior.lookahead import beliefs, fits_in
from autotune.search.priced import MEMORY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.cost.columns import BoolArray, FloatArray
    from autotune.search.posterior.acquisition import Posterior

    Indices = NDArray[np.intp]

PROBABILITY = 0.9
WORLDS = 256
AMONG = 400  # candidates: those that may be best
ALIKE = 4  # of them with one signature of the part that has most
LOOKED_AT = 2.0  # sds to the better side, by which candidates are chosen
LIKELY = 0.05  # probability of fitting and of keeping the limits, from which one may be best
KEPT = 0.5  # probability of keeping the job's limits


@dataclass(frozen=True, slots=True)
class Worlds:
    """Draws of the log of the objective over the pick's.

    mean: [c]. off: [c, worlds] deviations. fits: [c, worlds].
    """

    mean: FloatArray
    off: FloatArray
    fits: BoolArray

    def best(self, widened: float = 1.0) -> FloatArray:
        """[worlds] log of the pick's objective over that of the best that fits, at least 0.

        widened: times the deviations.
        """
        if not len(self.mean):
            return np.zeros(WORLDS)
        gain = np.where(self.fits, -(self.mean[:, None] + widened * self.off), 0.0)
        found: FloatArray = np.maximum(gain.max(axis=0), 0.0)
        return found


def bound_of(posterior: Posterior, probability: float = PROBABILITY) -> float:
    """Share of the pick's objective that the best saves at most, whatever the noise may be.

    Without a pick all of it: nothing is known.
    """
    pick, part = posterior.pick(), posterior.chief
    if pick is None:
        return 1.0
    exact = [o for o in posterior.known[part.name] if not o.least]
    widened = disbelief(part, exact)
    best, chance = [], []
    for share, amplitudes in Evidence(part, exact).by_noise():
        gains = worlds_of(posterior.under(part.name, amplitudes), pick).best(widened)
        best.append(gains)
        chance.append(np.full(len(gains), share / len(gains)))
    every = np.concatenate(best)
    order = np.argsort(every, kind="stable")
    reached = np.cumsum(np.concatenate(chance)[order])
    at = min(int(np.searchsorted(reached, probability)), len(every) - 1)
    return float(1.0 - np.exp(-every[order[at]]))


def worlds_of(posterior: Posterior, pick: int | None) -> Worlds:
    """What the best candidates may be worth beside the pick."""
    at = posterior.shortlist
    if pick is None or not len(at):
        return Worlds(np.zeros(0), np.zeros((0, WORLDS)), np.zeros((0, WORLDS), np.bool_))
    measured = np.asarray([i for i in posterior.fitting if i != pick], np.intp)
    at = np.append(_promising(posterior, at, pick), measured)
    mean, _ = posterior.difference(at, pick)
    everyone = np.append(at, pick)
    draw = np.random.default_rng(len(posterior.history.tried))
    off = np.zeros((len(everyone), WORLDS))
    fits = np.ones((len(at), WORLDS), np.bool_)
    for name, belief in beliefs(posterior, everyone).items():
        drawn = belief.draw(draw, WORLDS)
        if name == MEMORY:
            fits = fits_in(posterior, at, drawn[:-1])
        else:
            off += belief.weight[:, None] * (drawn - belief.mean[:, None])
    fits &= (posterior.keeps_probability[at] >= KEPT)[:, None]
    return Worlds(mean, off[:-1] - off[-1], fits)


def _promising(posterior: Posterior, at: Indices, pick: int) -> Indices:
    """Candidates that may be best by most, and those of the largest expected saving.

    Where memory is in doubt all of the former may fail together: what fits after all is among the
    latter.
    """
    mean, sd = posterior.difference(at, pick)
    chance = posterior.chance(at)
    bold = np.where(chance >= LIKELY, mean - LOOKED_AT * sd, np.inf)
    gain = np.where(chance >= LIKELY, -expected_improvement(mean, sd) * chance, np.inf)
    found = [_varied(posterior, at, bold, AMONG), _varied(posterior, at, gain, AMONG // 2)]
    return np.unique(np.concatenate(found))


def _varied(posterior: Posterior, at: Indices, worth: FloatArray, most: int) -> Indices:
    """Those of least worth, few of them alike in the part that varies most."""
    order = np.argsort(worth, kind="stable")[: AMONG * 8]
    order = order[np.isfinite(worth[order])]
    rows = posterior.chief.row_of[at[order]]
    by_row = np.argsort(rows, kind="stable")
    first = np.searchsorted(rows[by_row], rows[by_row], side="left")
    place = np.empty(len(rows), np.intp)
    place[by_row] = np.arange(len(rows)) - first
    return at[order[place < ALIKE][:most]]
