"""What `autotune calibrate` fitted, on what, and how far off left-out groups came out."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from autotune.cost.constants import CACHED
from autotune.domain.units import format_count
from autotune.report.layout.blocks import Paragraph, Section, section, table
from autotune.report.layout.csv_rows import rows_csv
from autotune.report.layout.report import Report
from autotune.report.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from autotune.evidence.fit.refit import Refit


BARELY = 0.05  # of a prior's spread: rows that take away less say nothing


def calibration_payload(found: Refit, written: Path | None, seconds: float) -> dict[str, Any]:
    """Everything that was fitted, and the errors of left-out groups."""
    model = found.fit.fitted(found.spreads)
    memory = found.memory.fit.constants
    accuracy = found.accuracy
    sources = found.sources_of_levels
    return {
        "schema_version": SCHEMA_VERSION,
        "rows": found.rows,
        "step": asdict(model.constants),
        "settled": found.settled,
        "log_sd": asdict(model.spreads),
        "offset": {
            effect: {
                level: {**asdict(own), "sources": sources.get((effect, level), 0)}
                for level, own in sorted(levels.items())
            }
            for effect, levels in model.offsets.items()
        },
        "covariance": {"names": list(model.names), "matrix": model.covariance.tolist()},
        "observed": found.observed,
        "left_out": {name: asdict(own) for name, own in accuracy.scopes.items()},
        "left_out_devices": {name: asdict(own) for name, own in accuracy.devices.items()},
        "sweeps": asdict(accuracy.sweeps),
        "memory": {
            **asdict(memory),
            "reserved": {CACHED: memory.cached_sd},
            "rows": found.memory.sources,
        },
        "seconds": seconds,
        "written": None if written is None else str(written),
    }


def calibration_csv(payload: Mapping[str, Any]) -> str:
    """One line a fitted number."""
    rows = [{"name": f"step.{n}", "value": v, "log_sd": None} for n, v in payload["step"].items()]
    rows += [
        {"name": f"log_sd.{n}", "value": v, "log_sd": None} for n, v in payload["log_sd"].items()
    ]
    rows += [
        {"name": f"memory.{name}", "value": value, "log_sd": log_sd}
        for name, value, log_sd in _memory(payload["memory"])
    ]
    rows += [
        {"name": f"offset.{effect}.{level}", "value": own["log_factor"], "log_sd": own["log_sd"]}
        for effect, levels in payload["offset"].items()
        for level, own in levels.items()
    ]
    return rows_csv(rows)


def _memory(memory: Mapping[str, Any]) -> list[tuple[str, float, float | None]]:
    """(name, value, spread) of every constant of memory."""
    tables = ("slack", "spreads", "cached", "reserved")
    found: list[tuple[str, float, float | None]] = [
        (f"{table} {name}", value, None)
        for table in tables
        for name, value in memory[table].items()
    ]
    offsets = sorted(memory["offsets"].items())
    return found + [(f"offset {n}", own["log_factor"], own["log_sd"]) for n, own in offsets]


def calibration_sections(payload: Mapping[str, Any]) -> list[Section]:
    """What was fitted on what, and the errors of groups that the fit has not seen."""
    total, sources = sum(payload["rows"].values()), len(payload["rows"])
    lead = f"Fitted on {format_count(total)} step times of {sources} sources."
    where = payload["written"]
    file = f"Written to {where}." if where else "Nothing was written; --out FILE writes the file."
    constants = [
        (name, f"{value:.4g}", _settled(payload["settled"].get(name)))
        for name, value in payload["step"].items()
    ]
    constants += [
        (f"log_sd {name}", f"{value:.3g}", "") for name, value in payload["log_sd"].items()
    ]
    offsets = [
        (
            f"{effect} {level}",
            f"{100 * math.expm1(own['log_factor']):+.1f} %",
            f"{own['log_sd']:.3f}",
            f"{own['sources']}" if own["sources"] != 1 else "1: stands for that source",
        )
        for effect, levels in payload["offset"].items()
        for level, own in levels.items()
        if own["log_sd"]
    ]
    left_out = [
        (
            name,
            format_count(own["n"]),
            f"{100 * own['median_ape']:.1f}%",
            f"{100 * own['p90_ape']:.1f}%",
            f"{100 * own['coverage']:.1f}%",
        )
        for name, own in {**payload["left_out"], **payload["left_out_devices"]}.items()
    ]
    memory = (
        (name, f"{value:.3g}", "" if log_sd is None else f"{log_sd:.3f}")
        for name, value, log_sd in _memory(payload["memory"])
    )
    rows = ((name, format_count(n)) for name, n in payload["rows"].items())
    titles = ("", ">rows", ">median error", ">90 % below", ">in interval")
    tables = {
        "Fitted on": table(rows, "source", ">steps"),
        "Constants": table(constants, "name", ">value", "by the rows"),
        "Offsets of whole steps, against the Trainer on an A100 80 GB": table(
            offsets, "", ">time", ">log sd", "sources"
        ),
        "Memory: slack of what comes and goes, own model code, spreads, what is cached": table(
            memory, "name", ">value", ">log sd"
        ),
        "Groups left out whole": table(left_out, *titles),
    }
    first = section("", Paragraph(lead, "strong"), Paragraph(file))
    return [first, *(Section(title, (drawn,)) for title, drawn in tables.items())]


def _settled(share: float | None) -> str:
    """How much of a constant's prior the rows took away."""
    if share is None:
        return "set, not fitted"
    told = f"{100 * share:.0f} % surer than its prior"
    return told if share >= BARELY else f"{told}: its prior"


CALIBRATE_REPORT = Report(calibration_sections, calibration_csv)
