"""`stated:` of a job file -> Statements: which machine and run an entry speaks of.

Which facts it may state, and how each is read: `claims/table`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.app.hardware.machines import as_devices
from autotune.catalog.devices import find_device
from autotune.claims.table import span_of, values_of
from autotune.domain.errors import InputError
from autotune.domain.statement import About, StatedDuration, Statement
from autotune.domain.typed.machine import machine_entry
from autotune.domain.units import parse_seconds

if TYPE_CHECKING:
    from autotune.domain.typed.stated import Circumstances


def statement_of(entry: Any, index: int) -> Statement:  # noqa: ANN401 - a model of claims.table
    """One entry, its names looked up. Raises InputError for hardware that nobody knows."""
    try:
        machine = _machine(entry.hardware)
    except InputError as error:
        msg = f"stated[{index}].hardware: {error.message}"
        raise InputError(msg, error.hint) from None
    about = _about(entry, machine)
    values = values_of(entry)
    runs = tuple(
        StatedDuration(
            run.name or _named(run),
            _about(run, (about.gpu, about.count), about),
            span_of(parse_seconds)(run.duration),
        )
        for run in values.pop("runs", ())
    )
    return Statement(where=f"stated[{index}]", about=about, runs=runs, **values)


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
