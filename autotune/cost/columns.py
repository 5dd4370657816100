"""Named columns over distinct combinations: what a cost component sees of the candidates.

A component declares the columns it reads. `tabulate` evaluates it once per distinct combination of
those and remembers which combination each candidate has, so a million candidates cost a few hundred
formula rows. Reading a column that was not declared is an error: the declaration is the truth that
the sampler, the waterfall and the reuse of probes rely on.

An answer prices many nearly equal questions: today's run under each reading of its time, mixtures
of old and new, single changes of the pick. Within `with reusing_tables():` a component whose
columns and whose job are those of an earlier question is priced once; nothing outlives the answer.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.cost.outputs import taken
from autotune.domain.candidates import OFFER, Candidates
from autotune.domain.job import Job
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.domain.device import Device, Host, Network, Offer


FloatArray = np.ndarray[Any, np.dtype[np.float64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
Outputs = dict[str, FloatArray]

MAX_TABLE_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class Coded:
    """A column as its distinct values and the index of each row's value among them."""

    levels: Sequence[Any]
    codes: NDArray[np.intp]

    @classmethod
    def of(cls, values: Sequence[Any]) -> Coded:
        """One level a row: what a column of plain values is."""
        return cls(values, np.arange(len(values)))

    @classmethod
    def joined(cls, parts: Sequence[Coded]) -> Coded:
        """The rows of each, one after the other; columns of the same levels share them."""
        if all(part.levels is parts[0].levels for part in parts):
            return cls(parts[0].levels, np.concatenate([part.codes for part in parts]))
        starts = np.cumsum([0, *(len(part.levels) for part in parts)])
        codes = [part.codes + start for part, start in zip(parts, starts[:-1], strict=True)]
        return cls([value for part in parts for value in part.levels], np.concatenate(codes))

    def numbers(self, number: Callable[[Any], float]) -> FloatArray:
        """[rows] a number of each row's value, computed once for each level."""
        return np.asarray([number(value) for value in self.levels], np.float64)[self.codes]

    def among(self, words: Sequence[str]) -> BoolArray:
        """[rows] where the value is one of the words."""
        here = [value in words for value in self.levels]
        if not any(here):
            return np.zeros(len(self.codes), np.bool_)
        return np.asarray(here, np.bool_)[self.codes]


class Columns:
    """Values of declared columns, one row per distinct combination. Arrays have shape [rows]."""

    def __init__(self, values: Mapping[str, Sequence[Any] | Coded], rows: int) -> None:
        """`values[name]` holds one value per row; offer fields are named `offer.<field>`."""
        self._values = {
            name: own if isinstance(own, Coded) else Coded.of(own) for name, own in values.items()
        }
        self.rows = rows
        self._known: dict[tuple[str, ...], Any] = {}  # arrays that formulas ask for again and again

    def signature(self) -> tuple[Any, ...]:
        """What tells these columns from others."""
        return tuple(
            (name, tuple(own.levels), own.codes.tobytes()) for name, own in self._values.items()
        )

    def where(self, chosen: BoolArray) -> Columns:
        """The chosen rows alone."""
        kept = {n: Coded(own.levels, own.codes[chosen]) for n, own in self._values.items()}
        return Columns(kept, int(np.count_nonzero(chosen)))

    def holding(self, name: str, value: object) -> Columns:
        """The same rows with one value of a knob."""
        same = Coded((value,), np.zeros(self.rows, np.intp))
        return Columns({**self._values, name: same}, self.rows)

    @classmethod
    def stacked(cls, parts: Sequence[Columns]) -> Columns:
        """The rows of each, one after the other. All have columns of the same names."""
        first = parts[0]._values  # noqa: SLF001 - its own
        values = {n: Coded.joined([each._values[n] for each in parts]) for n in first}  # noqa: SLF001
        return cls(values, sum(part.rows for part in parts))

    def _column(self, name: str) -> Coded:
        if name not in self._values:
            msg = f"column {name!r} is read but not declared (declared: {sorted(self._values)})"
            raise LookupError(msg)
        return self._values[name]

    def number(self, name: str) -> FloatArray:
        """[rows] a numeric knob, `offer.count` or `offer.price` as float64. Read-only."""
        key = (name,)
        if key not in self._known:
            self._known[key] = _fixed(self._column(name).numbers(float))
        found: FloatArray = self._known[key]
        return found

    def equals(self, name: str, *words: str) -> BoolArray:
        """[rows] where a categorical knob has one of the words. Read-only."""
        key = (name, *words)
        if key not in self._known:
            self._known[key] = _fixed(self._column(name).among(words))
        found: BoolArray = self._known[key]
        return found

    def choose(self, name: str, table: Mapping[str, float]) -> FloatArray:
        """[rows] a number looked up by a categorical knob's word."""
        return self.of_level(name, lambda value: table[value])

    def of_level(self, name: str, number: Callable[[Any], float]) -> FloatArray:
        """[rows] a number of each row's value of a knob, computed once for each value."""
        return self._column(name).numbers(number)

    def device(self, field: str) -> FloatArray:
        """[rows] a numeric field of the offer's device."""
        return self.of_device(lambda device: float(getattr(device, field)))

    def of_device(self, number: Callable[[Device], float]) -> FloatArray:
        """[rows] a number of each row's device, computed once for each device."""
        return self._column("offer.device").numbers(number)

    def coded_devices(self) -> Coded:
        """The devices there are, and which of them each row has."""
        return self._column("offer.device")

    def host(self, field: str) -> FloatArray:
        """[rows] a numeric field of the offer's host."""
        return self.of_host(lambda host: float(getattr(host, field)))

    def of_host(self, number: Callable[[Host], float]) -> FloatArray:
        """[rows] a number of each row's host, computed once for each host."""
        return self._column("offer.host").numbers(number)

    def of_network(self, number: Callable[[Network], float], alone: float) -> FloatArray:
        """[rows] a number of what joins each row's machines; `alone` where there is one machine."""
        return self._column("offer.network").numbers(
            lambda network: alone if network is None else number(network)
        )

    def per_node(self) -> FloatArray:
        """[rows] devices of one machine."""
        return self.number("offer.count") / self.of_network(lambda own: float(own.nodes), 1.0)

    def machines(self) -> list[tuple[Device, float, Network | None, NDArray[np.intp]]]:
        """Devices, how many and what joins their machines: each that there is, and its rows."""
        parts = [self._column(name) for name in ("offer.device", "offer.count", "offer.network")]
        key = np.zeros(self.rows, np.intp)
        for own in parts:
            key = key * len(own.levels) + own.codes
        order = np.argsort(key, kind="stable")
        starts = np.flatnonzero(np.diff(key[order]))
        found = []
        for rows in np.split(order, starts + 1):
            device, count, network = (own.levels[own.codes[rows[0]]] for own in parts)
            found.append((device, float(count), network, rows))
        return found

    def peak_flop_per_s(self) -> FloatArray:
        """[rows, FLOP/s] dense peak of the device in the row's precision."""
        device, precision = self._column("offer.device"), self._column("precision")
        pair = device.codes * len(precision.levels) + precision.codes
        found = np.zeros(len(device.levels) * len(precision.levels))
        for code in set(pair.tolist()):
            own, word = divmod(code, len(precision.levels))
            found[code] = device.levels[own].peak_flop_per_s(precision.levels[word])
        peaks: FloatArray = found[pair]
        return peaks

    def sequences(self, job: Job) -> FloatArray:
        """[rows] sequences of a micro-batch: a preference pair is two."""
        return self.number("micro_batch_size") * job.work.sequences

    def accumulation(self, job: Job) -> FloatArray:
        """[rows] micro-steps per optimizer step that make the global batch exactly.

        Every sharding here spreads the batch over all devices.
        """
        return job.global_batch_size / (
            self.number("micro_batch_size") * self.number("offer.count")
        )


def _fixed(array: np.ndarray) -> np.ndarray:
    """The same array, which nobody may write to."""
    array.flags.writeable = False
    return array


# Facts of a job that what-ifs move and of which most components read none.
FEW_READ = ("evaluation", "evidence", "pretokenized", "row_bytes", "storage", "today")


@dataclass(frozen=True, slots=True)
class Component:
    """A part of the bill: the columns it reads and the function that prices distinct rows.

    reads: knob names and `offer.<field>` names.
    price: (job, columns) -> named arrays of shape [rows].
    of_job: which of `FEW_READ` it reads; of a job that differs in others its tables stay.
    """

    name: str
    reads: tuple[str, ...]
    price: Callable[[Job, Columns], Outputs]
    of_job: tuple[str, ...] = FEW_READ


@dataclass(frozen=True, slots=True)
class Table:
    """A component's outputs per distinct row and the row of each candidate (shape [n])."""

    outputs: Outputs
    row_of: NDArray[np.intp]

    def gather(self, name: str) -> FloatArray:
        """[n] one output for every candidate."""
        return self.outputs[name][self.row_of]


class Tables:
    """The components' tables by name, each priced when something of it is first asked for."""

    def __init__(self, price: Callable[[str], Table]) -> None:
        """price: the table of a component."""
        self._price = price
        self._known: dict[str, Table] = {}

    def __getitem__(self, name: str) -> Table:
        if name not in self._known:
            self._known[name] = self._price(name)
        return self._known[name]

    def at(self, rows: NDArray[np.intp]) -> Tables:
        """The same of some candidates."""
        return Tables(lambda name: Table(self[name].outputs, self[name].row_of[rows]))


class _NoRows(dict[str, FloatArray]):
    """Outputs of a component when there is no candidate: whatever is asked for is empty."""

    def __missing__(self, name: str) -> FloatArray:
        return np.zeros(0)


_OF_OFFER: dict[str, Callable[[Offer], Any]] = {  # columns that an offer has
    "offer.device": attrgetter("device"),
    "offer.count": attrgetter("count"),
    "offer.host": attrgetter("host"),
    "offer.price": attrgetter("usd_per_hour"),
    "offer.spot": lambda offer: offer.interruptions_per_hour if offer.spot else 0.0,
    "offer.network": attrgetter("network"),
}


def distinct(values: Sequence[Any]) -> tuple[list[Any], NDArray[np.intp]]:
    """Distinct values in order of appearance, and the index of each value among them."""
    found: dict[Any, int] = {}
    index = np.asarray([found.setdefault(value, len(found)) for value in values], np.intp)
    return list(found), index


def tabulate(component: Component, job: Job, candidates: Candidates) -> Table:
    """Price a component once per distinct combination of the columns it reads."""
    if not len(candidates):
        return Table(_NoRows(), np.zeros(0, np.intp))
    levels: list[tuple[Any, ...]] = []
    key = np.zeros(len(candidates), np.intp)
    for name in component.reads:
        values, column = _column(candidates, name)
        levels.append(values)
        if len(values) > 1:
            key = key * len(values) + column
    total = math.prod(len(values) for values in levels)
    if total == 1:
        kept, row_of = np.zeros(1, np.intp), key
    elif total <= min(MAX_TABLE_ROWS, 4 * len(candidates) + 64):
        present = np.zeros(total, np.bool_)
        present[key] = True
        kept = np.flatnonzero(present)
        position = np.cumsum(present) - 1
        row_of = position[key]
    else:
        kept, row_of = np.unique(key, return_inverse=True)
    known = _KEPT.get()
    if known is None or len(kept) > ROWS:
        outputs = component.price(job, _decode(kept, component.reads, levels))
    else:
        outputs = known.outputs(component, job, kept, levels)
    return Table(outputs, row_of.astype(np.intp, copy=False))


def _column(candidates: Candidates, name: str) -> tuple[tuple[Any, ...], NDArray[np.integer[Any]]]:
    """The distinct values of a column, and which of them each candidate has."""
    if name not in _OF_OFFER:
        return candidates.levels[name], candidates.codes[name]
    offers, codes = candidates.levels[OFFER], candidates.codes[OFFER]
    if len(offers) == 1:  # without telling devices and hosts apart, which is slow
        return (_OF_OFFER[name](offers[0]),), codes
    values, of_offer = distinct([_OF_OFFER[name](offer) for offer in offers])
    return tuple(values), of_offer[codes] if len(values) > 1 else codes


def _decode(
    keys: NDArray[np.intp], names: Sequence[str], levels: Sequence[tuple[Any, ...]]
) -> Columns:
    """The column of every name for each mixed-radix key."""
    rest, same = keys, np.zeros(len(keys), np.intp)
    values: dict[str, Coded] = {}
    for name, own in zip(reversed(names), reversed(levels), strict=True):
        digit = same
        if len(own) > 1:
            rest, digit = np.divmod(rest, len(own))
        values[name] = Coded(own, digit)
    return Columns(values, len(keys))


JOBS = 64  # with tables of their own, the latest; bisections leave many behind
ROWS = 512  # of a table that is kept; larger ones are of whole search spaces, asked once
_BY_IDENTITY = ("offer.device", "offer.host")  # compared as objects: their equality is slow


@cache
def _facts(of_job: tuple[str, ...]) -> Callable[[Job], tuple[Any, ...]]:
    """Of a job what a price may depend on, which of `FEW_READ` being given.

    What is locked, opened or offered decides which candidates there are, never what one costs.
    """
    left_out = {"lock", "allow", "offers", *FEW_READ} - set(of_job)
    return attrgetter(*(name for name in Job.__slots__ if name not in left_out))


_Levels = list[tuple[Any, ...]]
_Tables = dict[tuple[Any, ...], list["_Made"]]


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """Outputs of a component. levels: what keeps alive the objects that it is found by."""

    keys: NDArray[np.intp]  # rising
    outputs: Outputs
    levels: _Levels

    def of(self, keys: NDArray[np.intp]) -> Outputs | None:
        """The outputs of these combinations; None where one of them is not among its own."""
        if len(keys) > len(self.keys):
            return None
        at = np.searchsorted(self.keys, keys)
        if at[-1] == len(self.keys) or (self.keys[at] != keys).any():
            return None
        return self.outputs if len(keys) == len(self.keys) else taken(self.outputs, at)


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
        self, component: Component, job: Job, keys: NDArray[np.intp], levels: _Levels
    ) -> Outputs:
        """The component's outputs, from before where they are known. Arrays are read-only."""
        tables, names = self._of(job, component.of_job), component.reads
        told = (
            tuple(map(id, own)) if name in _BY_IDENTITY else own
            for name, own in zip(names, levels, strict=True)
        )
        known = tables.setdefault((component.price, names, *told), [])
        for same in known:
            found = same.of(keys)
            if found is not None:
                return found
        made = component.price(job, _decode(keys, names, levels))
        for array in dict.values(made):  # what is priced later is read-only from the start
            _fixed(array)
        known.append(_Made(keys, made, levels))
        return made

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


@contextmanager
def reusing_tables() -> Iterator[None]:
    """Within it no table is priced twice; one inside another goes on with the outer one's."""
    token = _KEPT.set(_KEPT.get() or KeptTables())
    try:
        yield
    finally:
        _KEPT.reset(token)
