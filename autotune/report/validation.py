"""The validation table: predicted against measured, the misses included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.units import format_count
from autotune.report.blocks import Block, Bullets, Paragraph, Section, Table
from autotune.report.csv_rows import flattened, rows_csv
from autotune.report.markdown import sections_markdown
from autotune.report.schema import SCHEMA_VERSION
from autotune.report.text import sections_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.evidence.validation import Validation

LISTED = 12
NAME_WIDTH = 20
_FIGURES = (
    ("time", "seconds a step"),
    ("memory", "peak memory, as reported"),
    ("memory_allocated", "peak memory, allocated"),
)


def validation_payload(validation: Validation) -> dict[str, Any]:
    """The whole table; figures that compare nothing are null."""
    content = validation.as_dict()
    content["oom"]["listed"] = list(content["oom"]["listed"])
    content["groups"] = list(content["groups"])
    return {"schema_version": SCHEMA_VERSION, **content}


def validation_csv(payload: Mapping[str, Any]) -> str:
    """One line a group of source, model, GPU and task."""
    return rows_csv([flattened(group) for group in payload["groups"]])


def validation_text(payload: Mapping[str, Any], *, width: int = 80, colour: bool = False) -> str:
    """The table for a terminal."""
    return sections_text(validation_sections(payload), width=width, colour=colour)


def validation_markdown(payload: Mapping[str, Any]) -> str:
    """The table as Markdown."""
    return sections_markdown(validation_sections(payload))


def validation_sections(payload: Mapping[str, Any]) -> list[Section]:
    """Headline errors, out-of-memory verdicts, coverage, groups, and what was skipped."""
    lead = Paragraph(
        f"{format_count(payload['used'])} of {format_count(payload['rows'])} measured rows "
        f"compared ({payload['basis']}).",
        "strong",
    )
    note = Paragraph(
        "Error: |predicted / actual - 1|. Bias: median of predicted / actual - 1, above zero when "
        "the model says too much. Every source, model and GPU weighs the same.",
        "quiet",
    )
    sections = [
        Section("", (lead, _errors_table(payload), note)),
        Section("Out of memory", _oom_blocks(payload["oom"])),
        Section("Intervals", (Paragraph(_coverage(payload["coverage"])),)),
        _scopes_section(payload),
        _sweeps_section(payload["sweeps"]),
        _groups_section(payload["groups"]),
        _counts_section("Rows left out", payload["skipped"]),
        _counts_section("Compared only in part", payload["partial"]),
        _counts_section("Assumed for some rows", payload["assumed"]),
    ]
    return [section for section in sections if section.blocks]


def _errors_table(payload: Mapping[str, Any]) -> Table:
    rows = [(title, *_error_cells(payload[key])) for key, title in _FIGURES]
    titles = ("", "rows", "median error", "mean", "90 % below", "bias")
    return Table(titles, tuple(rows), frozenset(range(1, 6)))


def _error_cells(errors: Mapping[str, Any]) -> tuple[str, ...]:
    bias = errors["bias"]
    return (
        format_count(errors["n"]),
        _share(errors["median_ape"]),
        _share(errors["mape"]),
        _share(errors["p90_ape"]),
        "" if bias is None else f"{100 * bias:+.1f}%",
    )


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}%"


def _oom_blocks(oom: Mapping[str, Any]) -> tuple[Block, ...]:
    false_fits, false_ooms = oom["false_fits"], oom["false_ooms"]
    risky = f", and {oom['at_risk_fits']} at risk" if oom["at_risk_fits"] else ""
    items = (
        f"of {oom['oom_rows']} runs that ran out of memory, {false_fits} were said to fit",
        f"of {oom['fit_rows']} runs that fitted, {false_ooms} were said to run out{risky}",
    )
    blocks: tuple[Block, ...] = (Bullets(items),)
    if oom["listed"]:
        shown = ", ".join(oom["listed"][:LISTED])
        more = len(oom["listed"]) - LISTED
        rest = f" and {more} more (--format json lists all)" if more > 0 else ""
        blocks += (Paragraph(f"Wrong verdicts: {shown}{rest}."),)
    return blocks


def _coverage(coverage: Mapping[str, float | None]) -> str:
    time, memory = coverage.get("p10_p90"), coverage.get("memory_p10_p90")
    words = []
    if time is not None:
        words.append(f"time {_share(time)}")
    if memory is not None:
        words.append(f"memory {_share(memory)}")
    if not words:
        return "Nothing to compare the 80 % intervals with."
    return f"Actual values inside the 80 % interval: {', '.join(words)} (80 % is right)."


def _scopes_section(payload: Mapping[str, Any]) -> Section:
    scopes = {**payload["time_scopes"], **payload["time_devices"]}
    if not scopes:
        return Section("Steps by scope and by device", ())
    rows = tuple(
        (
            name,
            format_count(own["n"]),
            format_count(own["groups"]),
            _share(own["median_ape"]),
            _share(own["p90_ape"]),
            _share(own["coverage"]),
        )
        for name, own in scopes.items()
    )
    titles = ("", "rows", "groups", "median error", "90 % below", "in interval")
    blocks: tuple[Block, ...] = (Table(titles, rows, frozenset(range(1, 6))),)
    over = payload["time_median_over_devices"]
    if over is not None:
        blocks += (Paragraph(f"Median over devices with 8 rows or more: {_share(over)}."),)
    blocks += (Paragraph("Here every row weighs the same.", "quiet"),)
    return Section("Steps by scope and by device", blocks)


def _sweeps_section(sweeps: Mapping[str, Any] | None) -> Section:
    if sweeps is None or not sweeps["sweeps"]:
        return Section("Order inside sweeps", ())
    order = "no pair is 5 % apart"
    if sweeps["right_order"] is not None:
        order = f"{sweeps['pairs']} pairs 5 % apart, {_share(sweeps['right_order'])} in order"
    text = (
        f"{sweeps['sweeps']} sweeps of {sweeps['points']} runs over knobs of one job: {order}; "
        f"the predicted best is {_share(sweeps['mean_regret'])} slower than the measured best "
        f"on average, {_share(sweeps['worst_regret'])} at worst."
    )
    return Section("Order inside sweeps", (Paragraph(text),))


def _groups_section(groups: list[Mapping[str, Any]]) -> Section:
    if not groups:
        return Section("By source", ())
    rows = tuple(
        (
            _short(group["source_repo"]),
            _short(group["model_id"]),
            group["gpu"],
            group["task"],
            *_pair(group["memory"]),
            *_pair(group["time"]),
        )
        for group in groups
    )
    titles = ("source", "model", "GPU", "task", "mem n", "error", "time n", "error")
    return Section("By source", (Table(titles, rows, frozenset(range(4, 8))),))


def _short(name: str) -> str:
    """A name without its owner, cut to one column; JSON and CSV have it whole."""
    last = name.rpartition("/")[2]
    return last if len(last) <= NAME_WIDTH else f"{last[: NAME_WIDTH - 2]}.."


def _pair(errors: Mapping[str, Any]) -> tuple[str, str]:
    if not errors["n"]:
        return "", ""
    return format_count(errors["n"]), _share(errors["median_ape"])


def _counts_section(title: str, counts: Mapping[str, int]) -> Section:
    if not counts:
        return Section(title, ())
    rows = tuple((format_count(count), why) for why, count in counts.items())
    return Section(title, (Table(("rows", "why"), rows, frozenset({0})),))
