"""The cheapest probe that would decide between explanations that evidence cannot tell apart."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.cost.columns import BoolArray, FloatArray
    from autotune.search.priced import Priced

Z95 = 1.96
MEMORY_FREE = ("memory",)  # explanations of a time say nothing about memory


@dataclass(frozen=True, slots=True)
class Deciding:
    """A probe and what it tells apart.

    told_apart: pairs of explanations; together: pairs that this probe leaves open. shows: for each
    explanation, what the probe would measure, by part.
    """

    index: int
    cost: float
    told_apart: tuple[tuple[str, str], ...]
    together: tuple[tuple[str, str], ...]
    shows: dict[str, dict[str, float]]

    @property
    def decides(self) -> bool:
        """Whether it tells all explanations apart."""
        return not self.together


def deciding_probe(
    explanations: Mapping[str, Priced], cost: FloatArray, fits: BoolArray | None = None
) -> Deciding | None:
    """The cheapest candidate whose measured parts would differ under every two explanations.

    explanations: name -> the cost model under that belief, all over the same candidates. cost: [n]
    of a probe. fits: [n] candidates that may be probed; all when left out. Two explanations are
    told apart where the log ratio of a part exceeds 1.96 sd of a measurement's noise from the
    middle between them, on either side. Where no candidate decides, the one that tells most pairs
    apart, the cheapest of those; None when none tells anything.

    Raises InputError for fewer than two explanations, or models of different candidates.
    """
    if len(explanations) < 2:  # noqa: PLR2004 - one explanation needs no decision
        msg = f"{len(explanations)} explanations; a probe decides between at least two"
        raise InputError(msg)
    if any(len(model) != len(cost) for model in explanations.values()):
        msg = "the explanations are cost models of different candidates"
        raise InputError(msg, "price the same candidates under each belief")
    pairs = list(combinations(explanations, 2))
    apart = np.stack([_apart(explanations[a], explanations[b]) for a, b in pairs])
    allowed = np.ones(len(cost), np.bool_) if fits is None else fits
    count = np.where(allowed, apart.sum(axis=0), 0)
    if not count.any():
        return None
    at = np.flatnonzero(count == count.max())
    index = int(at[np.argmin(cost[at])])
    return Deciding(
        index=index,
        cost=float(cost[index]),
        told_apart=tuple(p for p, row in zip(pairs, apart, strict=True) if row[index]),
        together=tuple(p for p, row in zip(pairs, apart, strict=True) if not row[index]),
        shows={
            name: {
                part.name: float(part.predicted[part.row_of[index]])
                for part in model.parts
                if part.name not in MEMORY_FREE
            }
            for name, model in explanations.items()
        },
    )


def _apart(left: Priced, right: Priced) -> BoolArray:
    """[n] candidates at which some part would be measured differently under both."""
    others = {part.name: part for part in right.parts}
    found = np.zeros(len(left), np.bool_)
    for part in left.parts:
        if part.name in MEMORY_FREE or part.name not in others:
            continue
        other = others[part.name]
        one, two = part.predicted[part.row_of], other.predicted[other.row_of]
        both = (one > 0) & (two > 0)
        gap = np.abs(np.log(np.where(both, one, 1.0) / np.where(both, two, 1.0)))
        found |= (gap > 2.0 * Z95 * part.noise) | ((one > 0) != (two > 0))
    return found
