"""A candidate, what may be tried, and candidates as integer-coded columns: a million in megabytes.

Every axis is one column: `offer` and each knob of the search space. `levels[axis]` are its distinct
values, `codes[axis][i]` the level of candidate i. Axes that are not searched have one level. What
is no knob is one of the user's own: `extra`. A `SearchSpace` lists the values of every knob, as its
file does.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.domain.config import KNOBS, UNSET, Config
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from autotune.domain.config import KnobValue
    from autotune.domain.device import Offer
    from autotune.domain.job import Job

OFFER = "offer"
CLOSED_FORM = 0  # level of checkpoint_every_steps and save_total_limit: the bill finds the best


@dataclass(frozen=True, slots=True)
class Candidates:
    """Columns of codes. Shapes: every array of `codes` is [n], dtype int32."""

    levels: dict[str, tuple[Any, ...]]
    codes: dict[str, NDArray[np.int32]]

    def __len__(self) -> int:
        return len(self.codes[OFFER])

    def offer(self, index: int) -> Offer:
        """The offer of candidate `index`."""
        found: Offer = self.levels[OFFER][self.codes[OFFER][index]]
        return found

    def value(self, axis: str, index: int) -> Any:  # noqa: ANN401 - a knob's value is int|bool|str
        """The value of one axis of candidate `index`."""
        return self.levels[axis][self.codes[axis][index]]

    @property
    def extra(self) -> tuple[str, ...]:
        """Axes of the user's own knobs."""
        return tuple(axis for axis in self.levels if axis != OFFER and axis not in KNOBS)

    def config(self, index: int, **closed_forms: int) -> Config:
        """Candidate `index` as a Config; closed forms fill what the grid does not hold."""
        knobs = {name: self.value(name, index) for name in KNOBS}
        extra = tuple((name, self.value(name, index)) for name in self.extra)
        return Config(**{**knobs, **closed_forms}, extra=extra)

    def take(self, indices: NDArray[np.intp]) -> Candidates:
        """The candidates at `indices`, in that order."""
        same = np.zeros(len(indices), np.int32)  # of all axes that are not searched
        codes = {
            axis: column[indices] if len(self.levels[axis]) > 1 else same
            for axis, column in self.codes.items()
        }
        return Candidates(self.levels, codes)

    @classmethod
    def joined(cls, parts: Sequence[Candidates]) -> Candidates:
        """The candidates of all parts, one part after the other; axes that a part lacks: unset."""
        axes = tuple(dict.fromkeys(axis for part in parts for axis in part.levels))
        levels: dict[str, tuple[Any, ...]] = {}
        codes: dict[str, NDArray[np.int32]] = {}
        for axis in axes:
            own = [part.levels.get(axis, (UNSET,)) for part in parts]
            distinct: dict[Any, int] = {}
            for value in (value for values in own for value in values):
                distinct.setdefault(value, len(distinct))
            columns = [
                np.asarray([distinct[value] for value in values], np.int32)[
                    part.codes.get(axis, np.zeros(len(part), np.int32))
                ]
                for part, values in zip(parts, own, strict=True)
                if len(part)
            ]
            levels[axis] = tuple(distinct)
            codes[axis] = np.concatenate(columns) if columns else np.zeros(0, np.int32)
        return cls(levels, codes)

    @classmethod
    def of(cls, pairs: list[tuple[Offer, Config]]) -> Candidates:
        """Columns for explicit candidates, in the order given."""
        levels: dict[str, tuple[Any, ...]] = {}
        codes: dict[str, NDArray[np.int32]] = {}
        columns: dict[str, list[Any]] = {OFFER: [offer for offer, _ in pairs]}
        for name in KNOBS:
            columns[name] = [getattr(config, name) for _, config in pairs]
        own = [dict(config.extra) for _, config in pairs]
        for name in dict.fromkeys(name for extra in own for name in extra):
            columns[name] = [extra.get(name, UNSET) for extra in own]
        for axis, values in columns.items():
            distinct: list[Any] = []
            column = np.empty(len(values), np.int32)
            for i, value in enumerate(values):
                if value not in distinct:
                    distinct.append(value)
                column[i] = distinct.index(value)
            levels[axis] = tuple(distinct)
            codes[axis] = column
        return cls(levels, codes)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run a job: what is trained, on which offer, with which configuration."""

    job: Job
    offer: Offer
    config: Config

    @property
    def candidates(self) -> Candidates:
        """Columns of this one, as a price is asked for."""
        return Candidates.of([(self.offer, self.config)])


AUTO: tuple[KnobValue, ...] = ()  # worked out: every split, a closed form, what the device wants


def by_job(runs: Sequence[Candidate]) -> Iterator[tuple[list[int], Candidates]]:
    """Places and columns of the candidates of every job among several: what is priced together."""
    jobs: dict[int, list[int]] = {}
    for place, run in enumerate(runs):
        jobs.setdefault(id(run.job), []).append(place)
    for places in jobs.values():
        yield places, Candidates.of([(runs[i].offer, runs[i].config) for i in places])


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Values of every knob. `AUTO` (no values) means that they follow from job and offer.

    extra: levels of the user's own knobs, the present one first. The cost model prices them alike.
    """

    name: str
    values: dict[str, tuple[KnobValue, ...]]
    extra: dict[str, tuple[KnobValue, ...]] = field(default_factory=dict)
