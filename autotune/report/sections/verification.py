"""A run against its prediction, for people, JSON and CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.answer.verification import CLOSE
from autotune.domain.outcome import Spread
from autotune.domain.units import format_bytes, format_count, format_seconds, format_usd
from autotune.report.layout.blocks import Paragraph, Section, bullets, section, table
from autotune.report.layout.csv_rows import rows_csv
from autotune.report.layout.report import Report
from autotune.report.payload import decisive, job_payload
from autotune.report.phrases import seconds_span, usd_span
from autotune.report.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.answer.verification import Verification
    from autotune.report.layout.blocks import Block

_LABELS = {
    "step_time": "step",
    "tokens_per_s": "throughput",
    "data_wait": "waiting for data",
    "checkpoints": "checkpoints",
    "evaluation": "evaluation",
    "load": "loading",
    "prepare": "preparing data",
    "timed": "what the log times",
    "total": "whole run",
    "peak_memory": "peak memory",
}
NOT_LOGGED = "not logged"
_BASIS = {
    "measured": "as this one was measured",
    "calibrated": "on the planned machine, by what carries over",
    "modelled": "on the planned machine, as modelled: nothing carries over",
}


def verification_payload(found: Verification) -> dict[str, Any]:
    """Everything that was compared, in base units."""
    following = found.next_runs
    return {
        "schema_version": SCHEMA_VERSION,
        "job": job_payload(found.job),
        "run_dir": found.run_dir,
        "log": {
            "path": found.log,
            "steps_done": found.steps_done,
            "steps": found.steps,
            "finished": found.finished,
            "timed_by": found.timed_by,
            "smoke_steps": found.kind.smoke_steps,
            "ended": found.kind.ended,
            "waiting": found.kind.waiting,
            "spoiled": found.kind.spoiled,
            "step_time_s": found.step_s,
            "device": found.offer.device.name,
            "device_count": found.offer.count,
            "planned_device": found.planned.device.name,
            "planned_device_count": found.planned.count,
            "as_planned": found.offer == found.planned,
            "config": found.config.as_dict(),
        },
        "lines": found.lines,
        "explanations": found.explanations,
        "remaining": found.remaining,
        "next_runs": {
            "count": following.count,
            "device": following.offer.device.name,
            "device_count": following.offer.count,
            "basis": following.basis,
            "duration_s": following.duration_s,
            "cost_usd": following.cost_usd,
            "total_duration_s": following.count * following.duration_s.p50,
            "total_cost_usd": following.count * following.cost_usd.p50,
        },
        "calibration": found.learned,
        "start": found.start,
        "written": list(found.written),
        "warnings": list(found.warnings),
        "decisive": decisive(found.warnings),
    }


def verification_csv(payload: Mapping[str, Any]) -> str:
    """One line a quantity."""
    return rows_csv(payload["lines"])


def verification_sections(payload: Mapping[str, Any]) -> list[Section]:
    """The verdict, the lines, what explains them, what it means now."""
    sections = [
        verdict_section(payload),
        lines_section(payload),
        explanations_section(payload),
        outlook_section(payload),
        Section("What was learned", tuple(_learned(payload))),
        section("Warnings", bullets(payload["warnings"], "warn")),
    ]
    return [each for each in sections if each.blocks]


def verdict_section(payload: Mapping[str, Any]) -> Section:
    """As predicted or not, in a sentence."""
    return Section("", _lead(payload))


def lines_section(payload: Mapping[str, Any], *, notes: bool = True) -> Section:
    """Every quantity that was compared. notes: with what is to be said of each."""
    titles, rows = ["", ">predicted", ">actual", ">ratio"], _lines(payload)
    if notes:
        titles.append("")
    else:
        rows = [row[:-1] for row in rows if row[2] != NOT_LOGGED]
    return Section("Predicted and actual", (table(rows, *titles),))


def explanations_section(payload: Mapping[str, Any]) -> Section:
    """What would explain the difference."""
    return Section("What could explain it", tuple(_explanations(payload)))


def outlook_section(payload: Mapping[str, Any]) -> Section:
    """What remains of this run, and what the next ones take."""
    return section("From here", bullets(_outlook(payload)))


def _lead(payload: Mapping[str, Any]) -> tuple[Block, ...]:
    log, ratio = payload["log"], payload["lines"][0]["ratio"]
    head = f"{payload['job']['name']}, {_how_far(log)}: "
    if ratio is None:
        return (Paragraph(f"{head}no step time was predicted.", "warn"),)
    close = abs(ratio - 1.0) <= CLOSE
    words = (
        f"as long as predicted ({_times(ratio)} times)"
        if close
        else f"{_times(ratio)} times as long as predicted"
    )
    head += f"a step takes {words}."
    where = f"{log['device_count']}x {log['device']}"
    timed = Paragraph(f"On {where}; timed by {log['timed_by']}.", "quiet")
    ended = (Paragraph(f"Not finished: {log['ended']}.", "warn"),) if log["ended"] else ()
    return Paragraph(head, "good" if close else "warn"), *ended, timed


def _how_far(log: Mapping[str, Any]) -> str:
    done, steps, smoke = (format_count(n or 0) for n in (
        log["steps_done"], log["steps"], log["smoke_steps"],
    ))  # fmt: skip
    if log["smoke_steps"]:
        kind = "smoke run" if log["smoke_steps"] < log["steps"] else "run of another length"
        own = f"{kind} of {smoke} steps (the job has {steps})"
        return own if log["finished"] else f"step {done} of a {own}"
    return "finished" if log["finished"] else f"step {done} of {steps}"


def _lines(payload: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            _LABELS.get(line["what"], line["what"]),
            _figure(line["predicted"], line["unit"]),
            _figure(line["actual"], line["unit"]),
            "" if line["ratio"] is None else _times(line["ratio"]),
            line["note"],
        )
        for line in payload["lines"]
    ]


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= CLOSE else f"{ratio:.2g}"


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return NOT_LOGGED
    if unit == "s":
        return format_seconds(value)
    return format_bytes(value) if unit == "bytes" else f"{format_count(value)} {unit}"


def _explanations(payload: Mapping[str, Any]) -> list[Block]:
    found = payload["explanations"]
    if not found:
        return []
    items = (
        f"{item['text']}: that would make {format_seconds(item['predicted_s'])}, and "
        f"{format_seconds(item['measured_s'])} was measured"
        + ("" if item["explains"] else " (not enough by itself)")
        for item in found
    )
    blocks: list[Block] = [bullets(items)]
    alike = sum(item["explains"] for item in found)
    if alike > 1:
        text = f"The log fits {alike} of these equally well; it may also be a slower machine."
        blocks.append(Paragraph(text))
    return blocks


def _outlook(payload: Mapping[str, Any]) -> list[str]:
    left, following = payload["remaining"], payload["next_runs"]
    found = []
    if left["steps"]:
        usd = left["cost_usd"]
        price = "the price is unknown" if usd is None else format_usd(usd)
        found.append(
            f"this run: {format_count(left['steps'])} steps remain, "
            f"{format_seconds(left['duration_s'])}, {price}"
        )
    else:
        found.append("this run: finished, nothing remains")
    seconds, usd = Spread(**following["duration_s"]), Spread(**following["cost_usd"])
    each = f"{seconds_span(seconds)}, {usd_span(usd)}"
    basis = _BASIS[following["basis"]]
    count = following["count"]
    if count == 1:
        return [*found, f"the next run: {each}, {basis}"]
    total = (
        f"{format_seconds(following['total_duration_s'])}, "
        f"{format_usd(following['total_cost_usd'])}"
    )
    return [*found, f"each of {count} further runs: {each}, {basis}", f"all {count}: {total}"]


def _learned(payload: Mapping[str, Any]) -> list[Block]:
    if payload["log"]["spoiled"]:
        text = f"Its times teach nothing: {payload['log']['spoiled']}."
        return [Paragraph(text, "warn"), *_written(payload)]
    rows = [
        (item["component"], f"{item['before']:.2f}", f"{item['after']:.2f}", _spread(item))
        for item in payload["calibration"]
    ]
    drawn: list[Block] = [table(rows, "factor on", ">before", ">now", ">spread")] if rows else []
    started = [Paragraph(f"Later answers will use: {text}.") for text in start_words(payload)]
    return [*drawn, *started, *_written(payload)]


def start_words(payload: Mapping[str, Any]) -> list[str]:
    """What later answers take for a start on this machine, in a sentence."""
    start = payload["start"]
    if start is None:
        return []
    before, after = (format_seconds(start[key]) for key in ("before", "after"))
    return [f"a start on this machine takes {after} besides the weights (before: {before})"]


def _written(payload: Mapping[str, Any]) -> list[Block]:
    if not payload["written"]:
        return []
    return [Paragraph(f"Written: {', '.join(payload['written'])}.", "quiet")]


def _spread(item: Mapping[str, Any]) -> str:
    return "" if item["log_sd"] is None else f"{100 * item['log_sd']:.0f}%"


VERIFY_REPORT = Report(verification_sections, verification_csv)
