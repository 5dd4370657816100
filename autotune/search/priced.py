"""What the calibrated sampler asks of a cost model: candidates, and components that declare reads.

`Priced` is the whole contract, so that the sampler serves any cost model that can split its
objective into parts which a probe measures one by one. A part is told by what it reads: two
candidates that agree in those columns have the same part, measured or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.cost.columns import FloatArray

MEMORY = "memory"  # the part that decides what fits; it is no part of the objective
DEFAULT_NOISE = 0.03


@dataclass(frozen=True, slots=True)
class Dimension:
    """One column that a part reads. `ordinal`: neighbouring levels behave alike.

    levels: the text of each level; what was learned elsewhere is matched by it.
    """

    name: str
    levels: tuple[str, ...]
    ordinal: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """One component of the cost, per distinct combination (signature) of what it reads.

    codes: [signatures, reads] level of each dimension. row_of: [n] signature of each candidate.
    predicted: [signatures] what the cost model says; 0 where there is nothing to measure.
    spread: sd of log(measured/predicted) that the model expects of itself, all signatures alike.
    noise: sd of the log of one measurement.
    """

    name: str
    reads: tuple[Dimension, ...]
    codes: NDArray[np.int64]
    row_of: NDArray[np.intp]
    predicted: FloatArray
    spread: float = 0.15
    noise: float = DEFAULT_NOISE

    def texts(self, row: int) -> dict[str, str]:
        """The signature in words: dimension -> level."""
        pairs = zip(self.reads, self.codes[row], strict=True)
        return {dimension.name: dimension.levels[code] for dimension, code in pairs}


class Priced(Protocol):
    """A cost model over n candidates whose parts declare what they read."""

    @property
    def identity(self) -> str:
        """What the measurements speak of: the job and the space. Equal: one study may go on."""

    @property
    def parts(self) -> Sequence[Part]:
        """The measurable parts; the one called `memory` decides what fits."""

    @property
    def limit(self) -> FloatArray:
        """[n] the most that the memory part may be."""

    @property
    def grows(self) -> Sequence[str]:
        """Dimensions along whose levels (in ascending order) memory never shrinks."""

    def __len__(self) -> int:
        """Candidates."""

    def totals(self, factors: Mapping[str, FloatArray], at: NDArray[np.intp]) -> FloatArray:
        """The objective at `at` when each part is its prediction times its factor."""

    def params(self, index: int) -> dict[str, Any]:
        """The parameters of a candidate."""

    def find(self, params: Mapping[str, Any]) -> int | None:
        """The candidate with those parameters; None when there is none."""

    def order(self) -> Iterator[int]:
        """Candidates in the order worth trying while nothing was measured, none twice."""

    def neighbours(self, index: int) -> Sequence[int]:
        """Candidates that differ from one in a single knob."""

    def plainness(self, indices: Sequence[int]) -> Sequence[tuple[float, ...]]:
        """Sort keys: of two that tie, the one with the smaller key is preferred."""


def part_of(
    name: str,
    reads: Sequence[Dimension],
    columns: Mapping[str, NDArray[np.integer]],
    predicted: FloatArray,
    *,
    spread: float = 0.15,
    noise: float = DEFAULT_NOISE,
) -> Part:
    """A part from columns of level codes and predictions, all of shape [n].

    Raises InputError when two candidates with the same reads have different predictions: then the
    declaration is wrong and one probe would be taken for another.
    """
    key = np.zeros(len(predicted), np.int64)
    for dimension in reads:
        key = key * len(dimension.levels) + columns[dimension.name]
    _, first, row_of = np.unique(key, return_index=True, return_inverse=True)
    own = np.asarray(predicted, np.float64)[first]
    if not np.allclose(own[row_of], predicted, rtol=1e-6, atol=0.0):
        names = ", ".join(dimension.name for dimension in reads)
        msg = f"component {name!r} varies with more than it declares to read ({names})"
        raise InputError(msg, "declare every column that its prediction depends on")
    codes = np.zeros((len(first), len(reads)), np.int64)
    for k, dimension in enumerate(reads):
        codes[:, k] = columns[dimension.name][first]
    return Part(name, tuple(reads), codes, row_of.astype(np.intp), own, spread, noise)
