"""A user's own knobs beside those that the cost model knows.

The model prices every level of such a knob alike. Each part of the cost may vary with it all the
same: the residuals get a column that no component reads, so that what the knob does is learned
from measurements alone, and a level that does nothing is left at the first one, which is today's.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.domain.errors import InputError
from autotune.search.priced import Dimension, Limited, Part, Term

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.cost.columns import FloatArray
    from autotune.search.priced import Priced

    Indices = NDArray[np.intp]

MOST_LEVELS = 64  # combinations of the extra knobs' levels


class WithKnobs:
    """A `Priced` with categorical knobs added: candidate x every combination of their levels.

    What measures a candidate passes the levels on to the training code; `params` has them by name.
    """

    def __init__(self, priced: Priced, knobs: Mapping[str, Sequence[str]]) -> None:
        """knobs: name -> levels, the present one first.

        Raises InputError for a knob without a choice, a repeated level, a name in use, or so many
        combinations that no handful of probes could tell them apart.
        """
        self._inner = priced
        self._knobs = {name: tuple(levels) for name, levels in knobs.items()}
        for name, levels in self._knobs.items():
            if len(set(levels)) != len(levels) or len(levels) < 2:  # noqa: PLR2004 - a choice
                msg = f"extra knob {name!r} has the levels {list(levels)}; it needs two or more"
                raise InputError(msg, "give every level once, the present one first")
            if any(name == d.name for part in priced.parts for d in part.reads):
                msg = f"extra knob {name!r} is a knob already"
                raise InputError(msg, "give it another name, or let the tuner search it")
        self._combinations = list(product(*(range(len(v)) for v in self._knobs.values())))
        if len(self._combinations) > MOST_LEVELS:
            msg = (
                f"the extra knobs have {len(self._combinations)} combinations of levels; "
                f"at most {MOST_LEVELS} can be searched"
            )
            raise InputError(msg, "leave knobs or levels out")
        self._asked: tuple[Indices, Indices] | None = None

    def __len__(self) -> int:
        return len(self._inner) * self._size

    @property
    def _size(self) -> int:
        return len(self._combinations)

    @property
    def grows(self) -> Sequence[str]:
        """As without the knobs."""
        return self._inner.grows

    @cached_property
    def identity(self) -> str:
        """Of the job, the space and the knobs."""
        facts = [self._inner.identity, self._knobs]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    @cached_property
    def limit(self) -> FloatArray:
        """[n] as without the knobs."""
        return np.repeat(self._inner.limit, self._size)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Every part reads every extra knob."""
        return tuple(self._part(part) for part in self._inner.parts)

    def _part(self, part: Part) -> Part:
        size, rows = self._size, len(part.predicted)
        levels = np.asarray(self._combinations, np.int64)
        codes = np.concatenate(
            [np.repeat(part.codes, size, axis=0), np.tile(levels, (rows, 1))], axis=1
        )
        row_of = (part.row_of[:, None] * size + np.arange(size)).ravel().astype(np.intp)
        new = tuple(range(len(part.reads), codes.shape[1]))
        terms = tuple(
            Term(term.name, (*term.reads, *new), np.repeat(term.share, size)) for term in part.terms
        )
        reads = (*part.reads, *(Dimension(name, words) for name, words in self._knobs.items()))
        return Part(
            part.name, reads, codes, row_of, np.repeat(part.predicted, size), part.spread,
            part.noise, terms,
        )  # fmt: skip

    def _within(self, at: Indices) -> Indices:
        """The same candidates without the knobs; the last ones are kept for who asks again."""
        if self._asked is None or self._asked[0] is not at:
            self._asked = (at, at // self._size)
        return self._asked[1]

    def totals(self, factors: Mapping[str, FloatArray], at: Indices) -> FloatArray:
        """The knobs act through the factors alone."""
        return self._inner.totals(factors, self._within(at))

    def excesses(self, factors: Mapping[str, FloatArray], at: Indices) -> dict[str, FloatArray]:
        """Limits of the job, if it has any."""
        if not isinstance(self._inner, Limited):
            return {}
        return self._inner.excesses(factors, self._within(at))

    def params(self, index: int) -> dict[str, Any]:
        """The candidate's parameters and the knobs' levels."""
        inner, combination = divmod(index, self._size)
        codes = self._combinations[combination]
        levels = {k: v[c] for (k, v), c in zip(self._knobs.items(), codes, strict=True)}
        return {**self._inner.params(inner), **levels}

    def find(self, params: Mapping[str, Any]) -> int | None:
        """The candidate with those parameters."""
        inner = self._inner.find({k: v for k, v in params.items() if k not in self._knobs})
        if inner is None:
            return None
        codes = tuple(levels.index(params[name]) for name, levels in self._knobs.items())
        return inner * self._size + self._combinations.index(codes)

    def order(self) -> Iterator[int]:
        """The model's order, with today's levels first."""
        for index in self._inner.order():
            yield from range(index * self._size, (index + 1) * self._size)

    def neighbours(self, index: int) -> list[int]:
        """One knob changed: one of the model's, or one of the user's."""
        inner, combination = divmod(index, self._size)
        own = self._combinations[combination]
        near = [i * self._size + combination for i in self._inner.neighbours(inner)]
        return near + [
            inner * self._size + k
            for k, other in enumerate(self._combinations)
            if sum(a != b for a, b in zip(own, other, strict=True)) == 1
        ]

    def plainness(self, indices: Sequence[int]) -> list[tuple[float, ...]]:
        """As without the knobs, then today's levels first."""
        inner = self._inner.plainness([index // self._size for index in indices])
        return [
            (*key, *map(float, self._combinations[index % self._size]))
            for key, index in zip(inner, indices, strict=True)
        ]
