"""`stated:` of a job file -> Statements in base units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.app.hardware.machines import as_devices
from autotune.catalog.devices import find_device
from autotune.domain.errors import InputError
from autotune.domain.statement import About, Span, StatedDuration, Statement
from autotune.domain.typed.machine import machine_entry
from autotune.domain.typed.values import parse_step_time
from autotune.domain.units import parse_bytes, parse_figure, parse_seconds, parse_span

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.domain.statement import SpeedName
    from autotune.domain.typed.stated import Circumstances, StatedEntry

_TERA = 1e12


def statement_of(entry: StatedEntry, index: int) -> Statement:
    """One entry, its names looked up. Raises InputError for hardware that nobody knows."""
    try:
        machine = _machine(entry.hardware)
    except InputError as error:
        msg = f"stated[{index}].hardware: {error.message}"
        raise InputError(msg, error.hint) from None
    about = _about(entry, machine)
    rate = entry.learning_rate
    return Statement(
        where=f"stated[{index}]",
        about=about,
        speeds=_speeds(entry),
        figures=_figures(entry),
        runs=tuple(
            StatedDuration(
                run.name or _named(run),
                _about(run, (about.gpu, about.count), about),
                _span(run.duration, parse_seconds),
            )
            for run in entry.runs
        ),
        savings_s={k: _span(v, parse_seconds) for k, v in (entry.savings or {}).items()},
        memory_bytes={
            name: parse_bytes(size)
            for name in (type(entry.memory).model_fields if entry.memory else ())
            if (size := getattr(entry.memory, name)) is not None
        },
        learning_rate=(rate.before, rate.after, rate.batch_before) if rate else None,
    )


def _machine(text: str | None) -> tuple[str | None, int]:
    if text is None:
        return None, 1
    entry = as_devices(machine_entry(text))
    return find_device(str(entry["gpu"])).name, int(entry.get("count", 1))


def _about(
    part: Circumstances, machine: tuple[str | None, int], within: About | None = None
) -> About:
    """The circumstances of an entry, or of one run within an entry."""
    of = within or About()
    knobs = getattr(part, "config", None)
    return About(
        machine[0],
        machine[1],
        part.kind or of.kind,
        part.rank or of.rank,
        part.rows or of.rows,
        part.max_length or of.max_length,
        dict(knobs) if knobs else dict(of.knobs),
    )


def _named(part: Circumstances) -> str:
    """A run by what sets it apart: "qlora, rank 16"."""
    words: list[str] = [part.kind or ""]
    words += [f"{name} {value:,}" for name in ("rank", "rows", "max_length")
              if (value := getattr(part, name)) is not None]  # fmt: skip
    return ", ".join(word for word in words if word) or "a run"


def _span(text: str, parse: Callable[[str], float]) -> Span:
    return Span(*parse_span(text, parse))


def _speeds(entry: StatedEntry) -> dict[SpeedName, Span]:
    found: dict[SpeedName, Span] = {}
    if entry.step_time is not None:
        found["step_time_s"] = _span(entry.step_time, parse_step_time)
    rates: tuple[SpeedName, ...] = ("tokens_per_s", "rows_per_s", "steps_per_hour")
    for name in rates:
        text = getattr(entry, name)
        if text is not None:
            found[name] = _span(text, parse_figure)
    if entry.duration is not None and not entry.runs:
        found["duration_s"] = _span(entry.duration, parse_seconds)
    return found


def _figures(entry: StatedEntry) -> dict[str, Span]:
    found = {
        name: _span(text, parse_figure)
        for name in ("steps", "checkpoints", "trainable_parameters", "backward_passes",
                     "warmup_steps", "warmup_rows")
        if (text := getattr(entry, name)) is not None
    }  # fmt: skip
    durations = {
        "checkpoint_save_s": entry.checkpoint_save,
        "checkpoint_time_s": entry.checkpoint_time,
        "saved_s": entry.saved,
        "total_s": entry.duration if entry.runs else None,
    }
    found |= {k: _span(text, parse_seconds) for k, text in durations.items() if text is not None}
    if entry.tflops is not None:
        found["flop_per_s"] = _span(entry.tflops, parse_figure).scaled(_TERA)
    return found
