"""What a component gives: some of it priced only when it is read, and none of it twice.

How far a step may be off takes longer to price than the step, and is asked of few of the candidates
that are priced: of what is shown, and of all where a limit must be kept.

An answer prices many nearly equal questions: today's run under each reading of its time, mixtures
of old and new, single changes of the pick. Within `with reusing_tables():` a component whose
columns and whose job are those of an earlier question is priced once; nothing outlives the answer.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.domain.job import Job
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from numpy.typing import NDArray

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
Outputs = dict[str, FloatArray]


def fixed(array: np.ndarray) -> np.ndarray:
    """The same array, which nobody may write to."""
    array.flags.writeable = False
    return array


class Later(dict[str, "FloatArray"]):
    """Outputs of which some are priced once one of them, or all there are, is read."""

    def __init__(self, now: Outputs, names: Collection[str], price: Callable[[], Outputs]) -> None:
        """names: what `price` will give."""
        super().__init__(now)
        self._names, self._price = names, price

    def __missing__(self, name: str) -> FloatArray:
        if name not in self._names:
            raise KeyError(name)
        self._settle()
        return self[name]

    def _settle(self) -> None:
        if self._names:
            self._names, made = (), self._price()
            for array in made.values():
                array.flags.writeable = False
            self.update(made)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._names

    def __iter__(self) -> Iterator[str]:
        self._settle()
        return super().__iter__()

    def keys(self) -> Any:  # noqa: ANN401, D102 - a dict's
        self._settle()
        return super().keys()

    def values(self) -> Any:  # noqa: ANN401, D102
        self._settle()
        return super().values()

    def items(self) -> Any:  # noqa: ANN401, D102
        self._settle()
        return super().items()


def split(outputs: Outputs) -> tuple[Outputs, Collection[str]]:
    """What is priced, and the names of what is not."""
    now = dict(dict.items(outputs))
    return now, outputs._names if isinstance(outputs, Later) else ()  # noqa: SLF001 - of this file


def taken(outputs: Outputs, at: NDArray[np.intp]) -> Outputs:
    """[at] the outputs of some rows, read-only. What is priced later stays so."""
    now, later = split(outputs)
    found = {name: fixed(own[at]) for name, own in now.items()}
    if not later:
        return found
    return Later(found, later, lambda: {name: outputs[name][at] for name in later})


def joined(rows: int, parts: Sequence[tuple[BoolArray, Outputs]]) -> Outputs:
    """[rows] the outputs of parts, each of its own rows. What is priced later stays so."""
    apart = [(here, *split(own)) for here, own in parts]
    later = dict.fromkeys(name for _, _, names in apart for name in names)

    def rest() -> Outputs:
        return _joined(rows, [(here, {n: own[n] for n in later}) for here, own in parts])

    now = _joined(rows, [(here, own) for here, own, _ in apart])
    return Later(now, later, rest) if later else now


def _joined(rows: int, parts: Sequence[tuple[BoolArray, Outputs]]) -> Outputs:
    found: Outputs = {}
    for here, outputs in parts:
        for name, own in outputs.items():
            found.setdefault(name, np.zeros(rows))[here] = own
    return found


JOBS = 64  # with tables of their own, the latest; bisections leave many behind
# Facts of a job that what-ifs move and of which most components read none.
FEW_READ = ("evaluation", "evidence", "pretokenized", "row_bytes", "storage", "today")


@cache
def _facts(of_job: tuple[str, ...]) -> Callable[[Job], tuple[Any, ...]]:
    """Of a job what a price may depend on, which of `FEW_READ` being given.

    What is locked, opened or offered decides which candidates there are, never what one costs.
    """
    left_out = {"lock", "allow", "offers", *FEW_READ} - set(of_job)
    return attrgetter(*(name for name in Job.__slots__ if name not in left_out))


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """Combinations of columns, rising. levels: what keeps alive the objects they are known by."""

    keys: NDArray[np.intp]
    levels: Sequence[tuple[Any, ...]]

    def places(self, keys: NDArray[np.intp]) -> NDArray[np.intp] | None:
        """Where these combinations are among its own; None where one of them is not."""
        if len(keys) > len(self.keys):
            return None
        at = np.searchsorted(self.keys, keys)
        if at[-1] == len(self.keys) or (self.keys[at] != keys).any():
            return None
        return at


_Tables = dict[tuple[Any, ...], list[tuple[Made, Outputs]]]


@dataclass(frozen=True, slots=True)
class _OfJob:
    """What is kept of one job. facts: what of it a price may depend on."""

    job: Job
    facts: Any
    tables: _Tables


class KeptTables:
    """Outputs by job, component and columns: which values there are, and which combinations."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._jobs: dict[tuple[str, ...], list[_OfJob]] = {}

    def outputs(
        self, job: Job, of_job: tuple[str, ...], columns: tuple[Any, ...], asked: Made,
        price: Callable[[], Outputs],
    ) -> Outputs:  # fmt: skip
        """A component's outputs, from before where they are known. Arrays are read-only.

        columns: the component and the values that its columns have.
        """
        known = self._of(job, of_job).setdefault(columns, [])
        for made, outputs in known:
            at = made.places(asked.keys)
            if at is not None:
                return outputs if len(at) == len(made.keys) else taken(outputs, at)
        found = price()
        for array in dict.values(found):  # what is priced later is read-only from the start
            fixed(array)
        known.append((asked, found))
        return found

    def _of(self, job: Job, of_job: tuple[str, ...]) -> _Tables:
        jobs = self._jobs.setdefault(of_job, [])
        for known in reversed(jobs):
            if known.job is job:
                return known.tables
        facts = _facts(of_job)(job)
        same = next((n for n, known in enumerate(jobs) if known.facts == facts), None)
        tables = {} if same is None else jobs.pop(same).tables
        self._jobs[of_job] = [*jobs[1 - JOBS :], _OfJob(job, facts, tables)]
        return tables


_KEPT: ContextVar[KeptTables | None] = ContextVar("kept_tables", default=None)


def kept_tables() -> KeptTables | None:
    """Those of the answer that is being made; None outside of one."""
    return _KEPT.get()


@contextmanager
def reusing_tables() -> Iterator[None]:
    """Within it no table is priced twice; one inside another goes on with the outer one's."""
    token = _KEPT.set(_KEPT.get() or KeptTables())
    try:
        yield
    finally:
        _KEPT.reset(token)
