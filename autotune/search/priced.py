"""What the calibrated sampler asks of a cost model: candidates, and components that declare reads.

`Priced` is the whole contract, so that the sampler serves any cost model that can split its
objective into parts which a probe measures one by one. A part is told by what it reads: two
candidates that agree in those columns have the same part, measured or not.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from autotune.domain.errors import InputError
from autotune.domain.observation import BETWEEN_RUNS_SD
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.cost.columns import FloatArray

MEMORY = "memory"  # the part that decides what fits; it is no part of the objective


@dataclass(frozen=True, slots=True)
class Dimension:
    """One column that a part reads. `ordinal`: neighbouring levels behave alike.

    levels: the text of each level; what was learned elsewhere is matched by it.
    """

    name: str
    levels: tuple[str, ...]
    ordinal: bool = False


@dataclass(frozen=True, slots=True)
class Term:
    """A summand of a part that varies with some of the part's reads only.

    reads: positions among the part's reads. share: [signatures] of the part's prediction. A knob
    that touches a hundredth of a part can move it by little, whatever is wrong about the knob.
    """

    name: str
    reads: tuple[int, ...]
    share: FloatArray


@dataclass(frozen=True, slots=True)
class Part:
    """One component of the cost, per distinct combination (signature) of what it reads.

    codes: [signatures, reads] level of each dimension. row_of: [n] signature of each candidate.
    predicted: [signatures] what the cost model says; 0 where there is nothing to measure.
    spread: sd of log(measured/predicted) that the model expects of itself, all signatures alike.
    noise: sd of the log of one measurement. terms: the sum that the part is; none: one summand.
    """

    name: str
    reads: tuple[Dimension, ...]
    codes: NDArray[np.int64]
    row_of: NDArray[np.intp]
    predicted: FloatArray
    spread: float = 0.15
    noise: float = BETWEEN_RUNS_SD
    terms: tuple[Term, ...] = field(default=())

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


@runtime_checkable
class Limited(Protocol):
    """A `Priced` whose job has limits besides memory: a deadline, a budget."""

    @property
    def confidence(self) -> float:
        """The probability with which the limits must be kept."""

    def excesses(
        self, factors: Mapping[str, FloatArray], at: NDArray[np.intp]
    ) -> dict[str, FloatArray]:
        """By limit, the log of the value over the limit at `at`; at most 0 where it is kept."""


def part_of(
    name: str,
    reads: Sequence[Dimension],
    columns: Mapping[str, NDArray[np.integer]],
    predicted: FloatArray,
    *,
    spread: float = 0.15,
    noise: float = BETWEEN_RUNS_SD,
    terms: Mapping[str, FloatArray] | None = None,
) -> Part:
    """A part from columns of level codes and predictions, all of shape [n].

    terms: the predictions' summands, the chief one first. Each is taken to vary with the columns
    that its values vary with; a column that moves none of them belongs to the first.

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
    at_rows = {
        term: np.asarray(values, np.float64)[first] for term, values in (terms or {}).items()
    }
    return Part(
        name, tuple(reads), codes, row_of.astype(np.intp), own, spread, noise,
        _terms(codes, own, at_rows),
    )  # fmt: skip


def _terms(
    codes: NDArray[np.int64], predicted: FloatArray, values: Mapping[str, FloatArray]
) -> tuple[Term, ...]:
    """Summands by signature. Source: derived: d log(sum x) = sum of share x d log x."""
    found: list[Term] = []
    free = set(range(codes.shape[1]))
    total = np.maximum(predicted, 1e-300)
    for name, value in values.items():
        if (value > 0).any():
            reads = _varies_with(codes, value)
            free -= set(reads)
            found.append(Term(name, reads, np.clip(value / total, 0.0, 1.0)))
    if len(found) < 2:  # noqa: PLR2004 - one summand is the part itself
        return ()
    chief = found[0]
    reads = tuple(sorted({*chief.reads, *free}))
    return (Term(chief.name, reads, chief.share), *found[1:])


def _varies_with(codes: NDArray[np.int64], values: FloatArray) -> tuple[int, ...]:
    """Columns without which the values would not be a function of the rest."""
    kept = list(range(codes.shape[1]))
    sizes = codes.max(axis=0, initial=0) + 1
    for column in range(codes.shape[1]):
        rest = [k for k in kept if k != column]
        if sizes[column] == 1:  # nothing varies with what never does
            kept = rest
            continue
        key = np.zeros(len(codes), np.int64)
        for k in rest:
            key = key * sizes[k] + codes[:, k]
        _, first, row_of = np.unique(key, return_index=True, return_inverse=True)
        if np.allclose(values[first][row_of], values, rtol=1e-6, atol=0.0):
            kept = rest
    return tuple(kept)
