"""The covariance of a component's log(measured / predicted) between two signatures.

Over the columns that a summand (`Term`) of the component reads; a component without summands is
one:

    k = s0^2 + sum_k sk^2 R_k + p^2 sum_{j<k} sj sk R_j R_k, and u^2 where the signatures are equal

R_k: equality for a categorical column, exp(-distance of positions / 3) for an ordinal one: a walk
from level to level. The pairs are the interactions: strong columns interact strongly. Summands
add up, each weighed by its share of the prediction. What more than two columns do together, and
what no column shows, is a signature's own and says nothing of any other.

Source: kernel: Duvenaud et al., "Additive Gaussian Processes" (2011), of order two; the term of a
signature by itself: Rasmussen and Williams (2006), section 2.7 (a nugget that is signal).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from autotune.frozen import dataclass
from autotune.search.priced import Term

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from autotune.cost.columns import FloatArray
    from autotune.search.priced import Part

    Codes = NDArray[np.int64]
    Singles = NDArray[np.float32]

ORDINAL_LENGTH = 3.0  # positions over which the effect of a count is forgotten


@dataclass(frozen=True, slots=True)
class Observed:
    """log(measured/predicted) of one part at one signature. codes: [reads].

    least: what is known is that the log ratio is larger (an out-of-memory). disturbed: other
    programs made it larger; later searches never hear of it.
    """

    codes: tuple[int, ...]
    log_ratio: float
    noise: float
    least: bool = False
    disturbed: bool = False


@dataclass(frozen=True, slots=True)
class Amplitudes:
    """Standard deviations of the kernel's terms; pair: of two columns', relative to their own.

    own: of a signature by itself. noise: of a measurement, on top of what is stated.
    """

    constant: float
    mains: tuple[float, ...]
    pair: float
    own: float = 0.0
    noise: float = 0.0


def codes_of(part: Part, observed: Sequence[Observed]) -> Codes:
    """[observed, reads] level of each dimension."""
    return np.asarray([o.codes for o in observed], np.int64).reshape(-1, len(part.reads))


class Shape:
    """Correlations of a part's levels, without amplitudes."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.tables = []
        for dimension in part.reads:
            size = len(dimension.levels)
            gap = np.abs(np.subtract.outer(np.arange(size), np.arange(size))).astype(np.float64)
            table = np.exp(-gap / ORDINAL_LENGTH) if dimension.ordinal else gap == 0
            self.tables.append(np.asarray(table, np.float64))
        every = tuple(range(len(part.reads)))
        self.summands = part.terms or (Term(part.name, every, np.ones(len(part.predicted))),)

    @cached_property
    def _keys(self) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
        keys = self._key(self.part.codes)
        order = np.argsort(keys)
        return keys[order], order

    def _key(self, codes: Codes) -> NDArray[np.int64]:
        key = np.zeros(len(codes), np.int64)
        for k, table in enumerate(self.tables):
            key = key * len(table) + codes[:, k]
        return key

    def shares(self, codes: Codes) -> list[FloatArray]:
        """By summand, its share at some codes; the mean where no candidate has them."""
        if len(self.summands) == 1:
            return [np.ones(len(codes))]
        keys, order = self._keys
        place = np.minimum(np.searchsorted(keys, self._key(codes)), len(keys) - 1)
        known = keys[place] == self._key(codes)
        return [
            np.where(known, s.share[order[place]], float(np.mean(s.share))) for s in self.summands
        ]

    def variance(self, amplitudes: Amplitudes) -> FloatArray:
        """[signatures] prior variance."""
        total: FloatArray = np.zeros(len(self.part.predicted))
        for summand in self.summands:
            mains = np.asarray([amplitudes.mains[k] for k in summand.reads])
            pairs = (mains.sum() ** 2 - (mains**2).sum()) / 2.0
            own = amplitudes.constant**2 + (mains**2).sum() + amplitudes.pair**2 * pairs
            total += summand.share**2 * own
        return total + amplitudes.own**2

    def kernel(self, left: Codes, right: Codes, amplitudes: Amplitudes) -> FloatArray:
        """[l, r] prior covariance."""
        total = np.zeros((len(left), len(right)))
        shares = zip(self.summands, self.shares(left), self.shares(right), strict=True)
        for summand, near, far in shares:
            main, single, squared = (np.zeros(total.shape) for _ in range(3))
            for k in summand.reads:
                own = self.tables[k][left[:, k]][:, right[:, k]] * amplitudes.mains[k]
                main += own * amplitudes.mains[k]
                single += own
                squared += own * own
            main += amplitudes.constant**2
            main += amplitudes.pair**2 / 2.0 * (single * single - squared)
            total += np.outer(near, far) * main
        return total + amplitudes.own**2 * self.same(left, right)

    def same(self, left: Codes, right: Codes) -> FloatArray:
        """[l, r] 1 where the signatures are equal."""
        found: FloatArray = np.equal.outer(self._key(left), self._key(right)).astype(np.float64)
        return found

    def cross(self, others: Codes, amplitudes: Amplitudes) -> Singles:
        """[signatures, m] prior covariance of all signatures with a few, in single precision.

        Derived: every sum over columns is a product with one-hot rows, one matrix product for
        thousands of signatures instead of a lookup for each column.
        """
        hot, starts = self._hot
        count = len(others)
        total = np.zeros((len(hot), count), np.float32)
        for summand, share in zip(self.summands, self.shares(others), strict=True):
            right = np.zeros((hot.shape[1], 3 * count), np.float32)
            for k in summand.reads:
                span = slice(starts[k], starts[k + 1])
                own = self.tables[k][:, others[:, k]] * amplitudes.mains[k]
                right[span] = np.concatenate(
                    [own * amplitudes.mains[k], own, own * own], axis=1, dtype=np.float32
                )
            sums = hot @ right
            main, single, squared = (sums[:, k * count : (k + 1) * count] for k in range(3))
            added = main + np.float32(amplitudes.constant**2)
            added += np.float32(amplitudes.pair**2 / 2.0) * (single * single - squared)
            added *= share.astype(np.float32)
            if len(self.summands) > 1:
                added *= summand.share.astype(np.float32)[:, None]
            total += added
        keys, order = self._keys
        for k, key in enumerate(self._key(others)):
            place = int(np.searchsorted(keys, key))
            if place < len(keys) and keys[place] == key:
                total[order[place], k] += np.float32(amplitudes.own**2)
        return total

    @cached_property
    def _hot(self) -> tuple[Singles, NDArray[np.int64]]:
        starts = np.concatenate([[0], np.cumsum([len(t) for t in self.tables])])
        codes = self.part.codes
        hot = np.zeros((len(codes), int(starts[-1])), np.float32)
        rows = np.arange(len(codes))
        for k in range(len(self.tables)):
            hot[rows, starts[k] + codes[:, k]] = 1.0
        return hot, starts
