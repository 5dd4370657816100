"""The length report of a data set."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from autotune.domain.units import format_count
from autotune.report.layout.blocks import (
    Bar,
    Bars,
    Block,
    Bullets,
    Commands,
    Paragraph,
    Section,
    table,
)
from autotune.report.layout.csv_rows import rows_csv
from autotune.report.layout.report import Report
from autotune.report.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.answer.dataset import DatasetReport

BUCKETS = 12


def dataset_payload(report: DatasetReport) -> dict[str, Any]:
    """Figures, quantiles and a coarse histogram; lengths in tokens, shares as fractions."""
    figures = {each.name: getattr(report, each.name) for each in fields(report)}
    del figures["lengths"]
    return {
        "schema_version": SCHEMA_VERSION,
        **figures,
        "quantiles": [{"probability": p, "tokens": tokens} for p, tokens in report.quantiles],
        "histogram": _buckets(report.histogram.counts),
        "job_lines": [{"line": line, "does": does} for line, does in report.job_lines],
    }


def dataset_csv(payload: Mapping[str, Any]) -> str:
    """One line a bucket of the histogram."""
    return rows_csv(payload["histogram"], ["from_tokens", "to_tokens", "rows"])


def dataset_sections(payload: Mapping[str, Any]) -> list[Section]:
    """The answer first: how many tokens, how long rows are, what padding wastes."""
    blocks: list[Block] = [Paragraph(_lead(payload), "strong"), *_basis(payload)]
    if payload["truncated_rows"]:
        text = (
            f"{format_count(payload['truncated_rows'])} rows are longer than "
            f"{format_count(payload['max_length'])} and lose "
            f"{format_count(payload['truncated_tokens'])} tokens; the longest has "
            f"{format_count(payload['longest_row'])}."
        )
        blocks.append(Paragraph(text, "warn"))
    cells = (
        (f"{100 * q['probability']:.0f}%", format_count(q["tokens"])) for q in payload["quantiles"]
    )
    quantiles = table(cells, ">rows up to", ">tokens")
    batch = payload["batch_size"]
    longest = _percent(payload["padding_waste"])
    fixed = _percent(payload["padding_waste_max_length"])
    grouping, packing = _percent(payload["grouping_gain"]), _percent(payload["packing_gain"])
    lines = tuple((each["line"], each["does"]) for each in payload["job_lines"])
    costs = Bullets(
        (
            f"padding to the longest of {batch} rows: {longest} of a batch is padding",
            f"padding to {format_count(payload['max_length'])}: {fixed} is padding",
            f"length grouping saves up to {grouping} of the tokens computed, packing {packing}",
        )
    )
    return [
        Section("", tuple(blocks)),
        Section("Lengths in tokens", (_bars(payload["histogram"]), quantiles)),
        Section("What padding costs", (costs,)),
        Section("For a job file", (Commands(lines),)),
    ]


def _lead(payload: Mapping[str, Any]) -> str:
    """Rows and tokens, and whether they were counted."""
    rows, tokens = format_count(payload["rows"]), format_count(payload["tokens"])
    mean = f"a row has {payload['mean']:.0f} on average"
    if payload["basis"] == "counted":
        return (
            f"{rows} rows, {tokens} tokens an epoch (counted with {payload['tokenizer']}); {mean}."
        )
    rows = rows if payload["rows_counted"] == payload["rows"] else _about(payload["rows"])
    tokens, low, high = (_about(payload[key]) for key in ("tokens", "tokens_p10", "tokens_p90"))
    how = "estimated from bytes" if payload["basis"] == "estimated" else "from a sample"
    return f"About {rows} rows, {tokens} tokens an epoch ({how}: {low} to {high}); {mean}."


def _about(value: float) -> str:
    """Three digits of a figure that is no count."""
    return format_count(float(f"{value:.3g}"))


def _basis(payload: Mapping[str, Any]) -> list[Block]:
    """What the figures rest on, where not every row was counted by a tokenizer."""
    found: list[Block] = []
    if payload["basis"] == "estimated":
        named = payload["tokenizer"] != "estimate"  # of a model, whose tokenizer is not to be had
        counts = "--tokenizer FILE" if named else "--model NAME or --tokenizer FILE"
        found.append(
            Paragraph(
                f"No tokenizer counted them: {payload['reason']}. Characters were counted by "
                f"script ({payload['tokenizer']}). {counts} counts tokens.",
                "warn",
            )
        )
    if payload["rows_counted"] < payload["rows"]:
        counted = format_count(payload["rows_counted"])
        found.append(Paragraph(f"{counted} of the rows were read; the rest is taken to be alike.",
                               "warn"))  # fmt: skip
    if payload["files"] > 1:
        found.append(Paragraph(f"{payload['files']} files of the folder were read together."))
    if payload["template"]:
        words = payload["template"]
        found.append(Paragraph(f"{words[0].upper()}{words[1:]}."))
    return found


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def _buckets(counts: Mapping[int, int]) -> list[dict[str, int]]:
    """Rows in equal ranges of length; every row is in exactly one."""
    longest = max(counts)
    width = max(1, -(-longest // BUCKETS))
    buckets = [
        {"from_tokens": low + 1, "to_tokens": low + width, "rows": 0}
        for low in range(0, longest, width)
    ]
    for length, rows in counts.items():
        buckets[max(length - 1, 0) // width]["rows"] += rows
    return buckets


def _bars(histogram: list[dict[str, int]]) -> Bars:
    most = max(bucket["rows"] for bucket in histogram)
    total = sum(bucket["rows"] for bucket in histogram)
    return Bars(
        tuple(
            Bar(
                f"{format_count(bucket['from_tokens'])} to {format_count(bucket['to_tokens'])}",
                format_count(bucket["rows"]),
                _percent(bucket["rows"] / total),
                0.0,
                bucket["rows"] / most,
                "count",
            )
            for bucket in histogram
        )
    )


DATASET_REPORT = Report(dataset_sections, dataset_csv)
