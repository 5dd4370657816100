"""The kinds of value in a job file's `stated:`: what a plan says of its run, and of which run.

It is checked, and never used as a fact. Which facts there are is the table of `claims/table`.

A figure may be a range: "40-50 min", "0.8 to 1.2 s", [1 h, 90 min], 200-250. What an entry does not
say of its circumstances (machine, rows, length, config) is as in the job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, model_validator

from autotune.domain.errors import InputError
from autotune.domain.typed.values import (
    MAX_CHARACTERS,
    MAX_RANK,
    Batch,
    Rows,
    Section,
    Size,
    Text,
    Tokens,
    empty_list,
    parse_step_time,
    real,
    refuse,
    shown,
    whole,
)
from autotune.domain.units import parse_figure, parse_seconds, parse_span

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_ENTRIES, MOST_NAMED = 200, 50


def _span(parse: Callable[[str], float]) -> BeforeValidator:
    """A figure or a range, checked and kept as text; a list of two is a range."""

    def check(value: object) -> str:
        if isinstance(value, list | tuple) and len(value) == 2:  # noqa: PLR2004 - two ends
            value = " to ".join(str(end) for end in value)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            refuse(f"{shown(value)} must be a figure or a range of two, such as {_EXAMPLES[parse]}")
        text = str(value)[:MAX_CHARACTERS]
        try:
            parse_span(text, parse)
        except InputError as error:
            refuse(f"{error.message}; write it as {_EXAMPLES[parse]}")
        return text

    return BeforeValidator(check)


_EXAMPLES: dict[Callable[[str], float], str] = {
    parse_seconds: '"40-50 min" or "38 h"',
    parse_step_time: '"0.8-1.2 s/step"',
    parse_figure: "28000, 28K or 200-250",
}


def entries(value: object) -> object:
    """One entry need not be in a list."""
    return [value] if isinstance(value, dict) else empty_list(value)


def _few(value: object) -> object:
    if not isinstance(value, dict):
        return value  # refused by its type
    if not value or len(value) > MOST_NAMED:
        refuse(f"{len(value)} named figures, and 1 to {MOST_NAMED} are taken")
    return value


Durations = Annotated[str, _span(parse_seconds)]
StepTimes = Annotated[str, _span(parse_step_time)]
Figures = Annotated[str, _span(parse_figure)]


class StatedMemory(Section):
    """A plan's memory table, on one device."""

    weights: Size | None = None
    adapters: Size | None = None
    gradients: Size | None = None
    optimizer: Size | None = None
    activations: Size | None = None
    logits: Size | None = None
    total: Size | None = None

    @model_validator(mode="after")
    def _agrees(self) -> StatedMemory:
        if all(getattr(self, name) is None for name in type(self).model_fields):
            refuse(f"state at least one of {', '.join(type(self).model_fields)}")
        return self


class StatedLearningRate(Section):
    """A change of the learning rate that a plan derives from a change of the global batch."""

    before: Annotated[float, real(0.0, 1e3, open_low=True)]
    after: Annotated[float, real(0.0, 1e3, open_low=True)]
    batch_before: Batch


class Circumstances(Section):
    """What a statement is about, where it is not the job as it stands."""

    kind: Literal["lora", "qlora"] | None = None
    rank: Annotated[int, whole(1, MAX_RANK)] | None = None
    rows: Rows | None = None
    max_length: Tokens | None = None


class StatedRun(Circumstances):
    """One of several runs that a plan adds up."""

    name: Text | None = None
    duration: Durations


StatedRuns = Annotated[tuple[StatedRun, ...], BeforeValidator(empty_list)]
Savings = Annotated[dict[Text, Durations], BeforeValidator(_few)]
