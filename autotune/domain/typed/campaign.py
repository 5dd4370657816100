"""The campaign file as a person types it: many runs in phases, what they share, in which order.

A run is a job file's keys beside the run's own (`after`, `repeat`, ...). Whatever a run leaves out
comes from its part, its phase or the campaign; only the merged job is checked as a job.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from autotune.domain.errors import InputError
from autotune.domain.typed.hardware import HardwareSection  # noqa: TC001 - pydantic reads it
from autotune.domain.typed.other_words import UNPRICED, typed_here
from autotune.domain.typed.values import (
    MAX_DEVICES,
    Knobs,
    Names,
    Section,
    Text,
    empty_list,
    machine_list,
    machine_word,
    real,
    refuse,
    shown,
    whole,
)
from autotune.domain.units import HOUR_S, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_REPEATS, MOST_STAGES, MOST_RUNS = 1000, 100, 2000
MOST_HOURS = 1e6


def _hours(value: object) -> object:
    """Hours as a number, or a duration with its unit such as "10 min"."""
    if isinstance(value, str) and any(character.isalpha() for character in value):
        try:
            return parse_seconds(value[:100]) / HOUR_S
        except InputError:
            refuse(f'{shown(value)} must be hours, such as 2.5, or a duration, such as "10 min"')
    return value


def _low_high(value: object) -> object:
    """One figure stands for a range of itself; "200-250" for [200, 250]."""
    if isinstance(value, str) and value.count("-") == 1:
        value = value.split("-")
    return value if isinstance(value, list | tuple) else [value, value]


Priority = Annotated[float, real(0.0, 1e9)]
Fraction = Annotated[float, real(0.0, 1.0, open_low=True)]
# The last validator runs first: text with a unit becomes a number, which is then checked.
Hours = Annotated[float, real(0.0, MOST_HOURS, open_low=True), BeforeValidator(_hours)]
Figure = Annotated[float, real(0.0, 1e15, open_low=True)]
Range = Annotated[tuple[Figure, Figure], BeforeValidator(_low_high)]


class JobKeys(Section):
    """Keys of a job file, checked where they are merged into a whole job."""

    model: Any = None
    method: Any = None
    data: Any = None
    train: Any = None
    evaluation: Any = None
    limits: Any = None
    lock: Any = None
    allow: Any = None
    software: Any = None
    evidence: Any = None


JOB_KEYS = tuple(JobKeys.model_fields)


def _varied(value: object) -> object:
    """Dotted keys of a job with the values that each takes; sections may be mappings too."""
    if not isinstance(value, dict):
        refuse("vary must name keys of the job with lists, such as {method.rank: [8, 16]}")
    found: dict[str, tuple[Any, ...]] = {}
    waiting = [(str(key), values) for key, values in value.items()]
    while waiting:
        key, values = waiting.pop(0)
        if isinstance(values, dict) and values:
            waiting = [(f"{key}.{inner}", each) for inner, each in values.items()] + waiting
            continue
        if not isinstance(values, list) or not values:
            what = "an empty list" if values == [] else shown(values)
            refuse(f"vary: {key[:80]} needs a list of values, such as [1, 2]; it is {what}")
        twice = next((each for n, each in enumerate(values) if each in values[:n]), None)
        if twice is not None:
            refuse(f"vary: {key[:80]} has {shown(twice)} twice; write repeat: 2 for equal runs")
        if not _is_unpriced(key) and key.partition(".")[0] not in JOB_KEYS:
            meant = typed_here(key).removeprefix("--set ").partition("=")[0]
            known = f"; write {meant}" if meant.partition(".")[0] in JOB_KEYS else ""
            refuse(f"vary: {shown(key)} is no key of a job, such as method.rank{known}")
        found[key] = tuple(values)
    return found


def _is_unpriced(key: str) -> bool:
    return key.rpartition(".")[2].casefold() in UNPRICED


class RunSection(JobKeys):
    """One run, or several of the same kind."""

    name: Text = ""  # where none is stated: of its part or phase, with a number
    repeat: Annotated[int, whole(1, MOST_REPEATS)] = 1
    # Every combination is a run; of what moves no price, such as the learning rate, one more alike.
    vary: Annotated[dict[str, tuple[Any, ...]], BeforeValidator(_varied)] = Field(
        default_factory=dict
    )
    stages: Annotated[int, whole(1, MOST_STAGES)] = 1  # its steps are trained in so many starts
    after: Names = ()
    priority: Priority | None = None
    expected_fraction: Fraction | None = None  # of its steps, with early stopping
    hours: Hours | None = None  # of one run, on one machine

    @property
    def count(self) -> int:
        """Runs in all."""
        return self.repeat * prod(len(values) for values in self.vary.values())

    def variants(self) -> Iterator[tuple[RunSection, dict[str, Any]]]:
        """Each combination of what varies, as a run of its own, with its keys of the job."""
        priced = {key: each for key, each in self.vary.items() if not _is_unpriced(key)}
        alike = self.count // prod(len(values) for values in priced.values())
        for values in product(*priced.values()):
            said = ", ".join(
                f"{key.rpartition('.')[2]} {each}" for key, each in zip(priced, values, strict=True)
            )
            name = f"{self.name} ({said})" if said else self.name
            own = {"name": name, "repeat": alike, "vary": {}}
            yield self.model_copy(update=own), dict(zip(priced, values, strict=True))


class StatedGroup(Section):
    """What a document says of a phase or of the campaign; compared with what it lists."""

    runs: Annotated[int, whole(0, 10**6)] | None = None
    hours: Hours | None = None


class StatedSection(StatedGroup):
    """What a document says of the whole campaign, its speed and its ideas."""

    tokens_per_s: Range | None = None
    steps_per_hour: Range | None = None
    trainable_parameters: Figure | None = None
    hours_on: Text | None = None  # the device that the runs' hours are of
    configs: Annotated[tuple[Knobs, ...], BeforeValidator(empty_list)] = ()


class PartSection(Section):
    """Runs that share something."""

    name: Text
    after: Names = ()
    defaults: JobKeys = Field(default_factory=JobKeys)
    priority: Priority | None = None
    expected_fraction: Fraction | None = None
    stated: StatedGroup | None = None
    runs: Annotated[tuple[RunSection, ...], BeforeValidator(empty_list)] = ()


class PhaseSection(PartSection):
    """A phase: its runs, or parts that hold runs."""

    parts: Annotated[tuple[PartSection, ...], BeforeValidator(empty_list)] = ()

    @model_validator(mode="after")
    def _agrees(self) -> PhaseSection:
        if bool(self.runs) == bool(self.parts):
            both = "both" if self.runs else "neither"
            refuse(f"phase {shown(self.name)} needs runs or parts, and states {both}")
        for part in self.parts:
            if not part.runs:
                refuse(f"part {shown(part.name)} of phase {shown(self.name)} has no runs")
        return self


class CampaignFile(Section):
    """A whole campaign file. Needed: hardware, and runs (in phases or without)."""

    name: Text | None = None
    hardware: Annotated[
        tuple[Annotated[HardwareSection, BeforeValidator(machine_word)], ...],
        BeforeValidator(machine_list),
        Field(min_length=1, max_length=1000),
    ]
    defaults: JobKeys = Field(default_factory=JobKeys)
    priority: Priority = 1.0
    expected_fraction: Fraction = 1.0
    hours_from: Literal["stated", "model"] = "stated"  # where a run states hours: which count
    parallel: Annotated[int, whole(1, MAX_DEVICES)] = 1
    hours_per_day: Annotated[float, real(0.0, 24.0, open_low=True)] = 24.0
    barrier: bool = False  # a phase starts when the one before it is done
    share: bool = False  # launch-bound runs two to a card
    mixed: bool = False  # each run on the machine that is cheapest for it
    stated: StatedSection | None = None
    phases: Annotated[tuple[PhaseSection, ...], BeforeValidator(empty_list)] = ()
    runs: Annotated[tuple[RunSection, ...], BeforeValidator(empty_list)] = ()

    @model_validator(mode="after")
    def _agrees(self) -> CampaignFile:
        if self.phases and self.runs:
            refuse("state phases or runs, not both; a phase holds runs")
        if not self.phases and not self.runs:
            refuse("the campaign is empty: state phases, or runs")
        count = sum(run.count for run in self.runs) + sum(
            run.count for phase in self.phases for part in (phase, *phase.parts)
            for run in part.runs
        )  # fmt: skip
        if count > MOST_RUNS:
            refuse(f"the campaign holds {count:,} runs, and at most {MOST_RUNS:,} are planned")
        return self
