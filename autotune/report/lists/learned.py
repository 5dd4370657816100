"""What `autotune learn` read, what it teaches, and why the rest teaches nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from autotune.domain.units import MB, format_count, format_range, format_seconds
from autotune.report.layout.blocks import (
    Block,
    Commands,
    Paragraph,
    Section,
    Table,
    bullets,
    section,
    table,
)
from autotune.report.layout.csv_rows import rows_csv
from autotune.report.layout.report import Report
from autotune.report.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autotune.evidence.learned.effects import Usable

MOST_KINDS = 20  # of runs, listed in the text
_RUN = ("id", "source", "model", "device", "device_count", "method", "grade", "step_time_s",
        "measured_over_modelled", "save_s", "place")  # fmt: skip


def learned_payload(found: Any, exported: str | None, *, dry_run: bool) -> dict[str, Any]:  # noqa: ANN401 - its fields
    """Counts, machines, runs and refusals. Factors are of seconds: below one is faster."""
    return {
        "schema_version": SCHEMA_VERSION,
        "read": found.read,
        "usable": len(found.usable),
        "files": found.files,
        "folders": found.folders,
        "machines": [
            {
                "device": own.device, "device_count": own.count, "runs": own.runs,
                "measured_over_modelled": own.measured, "factor": own.factor,
                "spread": own.spread, "save_bytes_per_s": own.save_bytes_per_s,
            }
            for own in found.machines
        ],
        "runs": [_run(own) for own in found.usable],
        "refused": [
            {"reason": own.reason, "count": own.count, "places": list(own.places)}
            for own in found.refusals
        ],
        "kept": found.kept,
        "new": found.new,
        "known": found.known,
        "dry_run": dry_run,
        "exported": exported,
        "warnings": list(found.warnings),
    }  # fmt: skip


def _run(own: Usable) -> dict[str, Any]:
    row = own.run.row
    return {
        "id": row.id,
        "source": own.run.source,
        "model": row.texts["model_id"],
        "device": own.residual.device,
        "device_count": own.residual.count,
        "method": row.texts["task"],
        "grade": own.run.grade,
        "step_time_s": row.numbers["step_time_s"],
        "measured_over_modelled": math.exp(own.residual.log),
        "save_s": own.run.save_s,
        "place": str(own.place),
        "notes": list(own.run.notes),
    }


def learned_csv(payload: Mapping[str, Any]) -> str:
    """One line a usable run."""
    return rows_csv(payload["runs"], list(_RUN))


def learned_sections(payload: Mapping[str, Any]) -> list[Section]:
    """The answer first: how many runs, and what they say of each machine."""
    blocks: list[Block] = [Paragraph(_lead(payload), "strong")]
    blocks += [Paragraph(_machine(own)) for own in payload["machines"]]
    blocks.append(Paragraph(_kept(payload)))
    blocks += [Paragraph(text, "warn") for text in payload["warnings"]]
    refused = (
        f"{own['count']} x {own['reason']} ({own['places'][0]})" for own in payload["refused"]
    )
    again = ("autotune runs", "earlier answers: ask one again, and it starts from these")
    sections = [
        Section("", tuple(blocks)),
        section("Runs", _runs(payload["runs"])),
        section("Not used, and why", bullets(refused)),
        section("Next", Commands((again,) if payload["usable"] else ())),
    ]
    return [each for each in sections if each.blocks]


def _lead(payload: Mapping[str, Any]) -> str:
    read, usable = payload["read"], payload["usable"]
    return f"{format_count(read)} run{'s' * (read != 1)} read, {format_count(usable)} usable."


def _machine(own: Mapping[str, Any]) -> str:
    name = f"Your {own['device_count']}x {own['device']}"
    factor = own["measured_over_modelled"]
    if abs(math.log(factor)) < math.log(1.01):
        pace = "as fast as modelled"
    else:
        way = "faster" if factor < 1 else "slower"
        pace = f"{max(factor, 1 / factor):.2f} times {way} than modelled"
    runs = f"{own['runs']} run{'s' * (own['runs'] != 1)}"
    applied = f". Later answers there take {own['factor']:.2f} times what is modelled"
    saves = own["save_bytes_per_s"]
    disk = f" Its disk saves at {saves / MB:,.0f} MB/s." if saves else ""
    narrower = f", within a range {100 * (1 - own['spread']):.0f} % narrower"
    return f"{name} is {pace}, by {runs}{applied}{narrower}.{disk}"


def _kept(payload: Mapping[str, Any]) -> str:
    exported = f" Exported to {payload['exported']}." if payload["exported"] else ""
    if payload["dry_run"]:
        return f"Nothing was kept: a dry run.{exported}"
    if payload["kept"] is None:
        return f"Nothing was kept.{exported}"
    new, known = payload["new"], payload["known"]
    return (
        f"{format_count(new)} new, {format_count(known)} kept in {payload['kept']}; "
        f"delete it to forget them.{exported}"
    )


def _runs(runs: Sequence[Mapping[str, Any]]) -> Table:
    """Runs of one kind in a line: how many, their steps and how far they are from the model."""
    kinds: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for own in runs:
        name = own["model"].rpartition("/")[2]
        machine = f"{own['device_count']}x {own['device']}"
        kinds.setdefault((own["source"], name, own["method"], machine), []).append(own)
    rows = []
    for kind, alike in list(kinds.items())[:MOST_KINDS]:
        steps = _range([own["step_time_s"] for own in alike], format_seconds)
        ratios = _range([own["measured_over_modelled"] for own in alike], "{:.2f}".format)
        grades = "".join(sorted({own["grade"] for own in alike}))
        rows.append((str(len(alike)), *kind, steps, ratios, grades))
    titles = (">", "of", "model", "method", "on", ">step", ">of modelled", "grade")
    return table(rows, *titles)


def _range(values: Sequence[float], show: Callable[[float], str]) -> str:
    return format_range(min(values), max(values), show)


LEARN_REPORT = Report(learned_sections, learned_csv)
