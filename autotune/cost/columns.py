"""Named columns over distinct combinations: what a cost component sees of the candidates.

A component declares the columns it reads. `tabulate` evaluates it once per distinct combination of
those and remembers which combination each candidate has, so a million candidates cost a few hundred
formula rows. Reading a column that was not declared is an error: the declaration is the truth that
the sampler, the waterfall and the reuse of probes rely on.

What is priced once and used again within an answer: `outputs`.
"""

from __future__ import annotations

import math
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.cost.outputs import FEW_READ, Made, fixed, kept_tables
from autotune.cost.outputs import BoolArray as BoolArray  # noqa: PLC0414 - public here
from autotune.cost.outputs import FloatArray as FloatArray  # noqa: PLC0414
from autotune.cost.outputs import Outputs as Outputs  # noqa: PLC0414
from autotune.domain.candidates import OFFER, Candidates
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.domain.device import Device, Host, Network, Offer
    from autotune.domain.job import Job


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
            self._known[key] = fixed(self._column(name).numbers(float))
        found: FloatArray = self._known[key]
        return found

    def equals(self, name: str, *words: str) -> BoolArray:
        """[rows] where a categorical knob has one of the words. Read-only."""
        key = (name, *words)
        if key not in self._known:
            self._known[key] = fixed(self._column(name).among(words))
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

    @property
    def several(self) -> BoolArray:
        """[rows] whether several devices train together."""
        return self.number("offer.count") > 1

    def shared_by(self, *shardings: str) -> BoolArray:
        """[rows] whether several devices train together under one of these values."""
        return self.several & self.equals("sharding", *shardings)

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


ROWS = 512  # of a table that is kept; larger ones are of whole search spaces, asked once
_BY_IDENTITY = ("offer.device", "offer.host")  # compared as objects: their equality is slow


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

    def price() -> Outputs:
        return component.price(job, _decode(kept, component.reads, levels))

    known = kept_tables()
    if known is None or len(kept) > ROWS:
        return Table(price(), row_of.astype(np.intp, copy=False))
    told = (
        tuple(map(id, own)) if name in _BY_IDENTITY else own
        for name, own in zip(component.reads, levels, strict=True)
    )
    columns = (component.price, component.reads, *told)
    outputs = known.outputs(job, component.of_job, columns, Made(kept, levels), price)
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
