"""Candidates as a product of named parameters, which is how a sampler sees them.

A parameter is an axis with more than one value in use that does not follow from the offer. Counts
are positions in their ascending values, so that a sampler knows which are close; everything else is
categorical. The product holds combinations that are no candidate: `find` says so, `distance` says
by how many parameters they miss.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.domain.candidates import OFFER
from autotune.domain.config import ACCUMULATION, KNOBS
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from autotune.domain.candidates import Candidates
    from autotune.domain.device import Offer

MAX_TABLE = 1 << 25  # combinations looked up in a table of 128 MiB; beyond that by bisection

ParamValue = int | bool | str


@dataclass(frozen=True, slots=True)
class Axis:
    """One parameter. `values` are what a sampler picks from; `codes` the level of each."""

    name: str
    values: tuple[ParamValue, ...]
    codes: tuple[int, ...]
    ordinal: bool


class ParameterSpace:
    """The parameters of a set of candidates, and the way back from parameters to a candidate."""

    def __init__(self, candidates: Candidates) -> None:
        """Keep the axes that a sampler has to choose."""
        self.candidates = candidates
        self.axes = tuple(_axes(candidates))

    @cached_property
    def _digits(self) -> list[NDArray[np.int64]]:
        """[n] for each axis, which of its values every candidate has."""
        digits = []
        for axis in self.axes:
            of_level = np.full(len(self.candidates.levels[axis.name]), -1, np.int64)
            of_level[list(axis.codes)] = np.arange(len(axis.codes))
            digits.append(of_level[self.candidates.codes[axis.name]])
        return digits

    @cached_property
    def _keys(self) -> NDArray[np.int64]:
        key = np.zeros(len(self.candidates), np.int64)
        for axis, digit in zip(self.axes, self._digits, strict=True):
            key = key * len(axis.values) + digit
        return key

    @cached_property
    def _table(self) -> NDArray[np.int32] | None:
        total = 1
        for axis in self.axes:
            total *= len(axis.values)
        if total > MAX_TABLE:
            return None
        table = np.full(total, -1, np.int32)
        table[self._keys] = np.arange(len(self._keys), dtype=np.int32)
        return table

    @cached_property
    def _sorted(self) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
        order = np.argsort(self._keys, kind="stable")
        return self._keys[order], order

    def params(self, index: int) -> dict[str, ParamValue]:
        """The parameters of a candidate."""
        return {
            axis.name: axis.values[int(digit[index])]
            for axis, digit in zip(self.axes, self._digits, strict=True)
        }

    def find(self, params: Mapping[str, Any]) -> int | None:
        """The candidate with those parameters, or None when the rules leave none.

        Raises KeyError or ValueError for parameters that are not of this space.
        """
        key = 0
        for axis in self.axes:
            key = key * len(axis.values) + axis.values.index(params[axis.name])
        if self._table is not None:
            found = int(self._table[key])
            return found if found >= 0 else None
        keys, order = self._sorted
        at = int(np.searchsorted(keys, key))
        return int(order[at]) if at < len(keys) and keys[at] == key else None

    def distance(self, params: Mapping[str, Any]) -> int:
        """[parameters] that must change to reach the nearest candidate."""
        differing = np.zeros(len(self.candidates), np.int16)
        for axis, digit in zip(self.axes, self._digits, strict=True):
            differing += digit != axis.values.index(params[axis.name])
        return int(differing.min())


def _axes(candidates: Candidates) -> list[Axis]:
    offers = candidates.codes[OFFER]
    found = []
    for name, levels in candidates.levels.items():
        column = candidates.codes[name]
        used = [int(code) for code in np.flatnonzero(np.bincount(column, minlength=len(levels)))]
        if name == ACCUMULATION or len(used) < 2:  # noqa: PLR2004 - one value is no choice
            continue
        if name == OFFER:
            labels = _offer_labels(levels)
            found.append(Axis(name, tuple(labels[c] for c in used), tuple(used), ordinal=False))
            continue
        pairs = np.bincount(offers * np.int64(len(levels)) + column)
        if np.count_nonzero(pairs) == np.count_nonzero(np.bincount(offers)):
            continue  # follows from the offer
        if name in KNOBS and KNOBS[name].kind == "count":
            used.sort(key=lambda code: int(levels[code]))
            found.append(Axis(name, tuple(range(len(used))), tuple(used), ordinal=True))
        else:
            found.append(Axis(name, tuple(levels[c] for c in used), tuple(used), ordinal=False))
    return found


def _offer_labels(offers: tuple[Offer, ...]) -> list[str]:
    """A distinct name for each offer: its label, price where that differs, a number where not."""
    labels = []
    for offer in offers:
        label = offer.label
        if label in labels:
            label = f"{offer.label} at {offer.usd_per_hour:g} USD/h"
        number, plain = 2, label
        while label in labels:
            label, number = f"{plain} #{number}", number + 1
        labels.append(label)
    return labels
