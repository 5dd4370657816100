"""The cost model against measurements: errors, coverage and verdicts.

The chance of fitting as it was said stands beside how often such runs fitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.units import format_count
from autotune.report.layout.blocks import Block, Bullets, Paragraph, Section, Table, section, table
from autotune.report.layout.csv_rows import flattened, rows_csv
from autotune.report.layout.report import Report
from autotune.report.lists.unseen import equally, headline, judged_section, percent
from autotune.report.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.evidence.validation.validate import Validation

LISTED = 12
NAMED = 2  # rows named beside a reason; JSON names all
NAME_WIDTH = 20
_FIGURES = (
    ("time", "seconds a step"),
    ("memory", "peak memory, as reported"),
    ("memory_allocated", "peak memory, allocated"),
)


def validation_payload(validation: Validation) -> dict[str, Any]:
    """The whole table; figures that compare nothing are null."""
    content = validation.as_dict()
    for name in ("listed", "wrong"):
        content["oom"][name] = list(content["oom"][name])
    for name in ("groups", "reliability"):
        content[name] = list(content[name])
    named = ("left_out", "bounds", "orientation", "machines", "saved")
    content.update({name: dict(content[name]) for name in named})
    for own in content["claims"].values():
        own["bears"] = (own["n"] - own["failures"] + 1) / (own["n"] + 2)
    return {"schema_version": SCHEMA_VERSION, **content}


def validation_csv(payload: Mapping[str, Any]) -> str:
    """One line a group of source, model, GPU and task."""
    return rows_csv([flattened(group) for group in payload["groups"]])


def validation_sections(payload: Mapping[str, Any]) -> list[Section]:
    """Headline errors, out-of-memory verdicts, coverage, groups, and what was skipped."""
    lead = Paragraph(
        f"{format_count(payload['used'])} of {format_count(payload['rows'])} measured rows "
        f"compared{_of_trainings(payload)} ({payload['basis']}).",
        "strong",
    )
    note = Paragraph(
        "Error: |predicted / actual - 1|. Bias: median of predicted / actual - 1, above zero when "
        "the model says too much. Every source, model and GPU weighs the same.",
        "quiet",
    )
    sections = [
        Section("", (lead, *headline(payload, _errors_table), note)),
        judged_section(payload),
        Section("Out of memory", _oom_blocks(payload["oom"])),
        reliability_section(payload["reliability"], payload["claims"]),
        Section(
            "Intervals",
            (
                Paragraph(_coverage(payload["coverage"])),
                *_memory_coverage(payload["memory_coverage"]),
            ),
        ),
        _counts_section("Where peaks of memory come from", payload["traced"]),
        _scopes_section(payload),
        _sweeps_section(payload["sweeps"]),
        _groups_section(payload["groups"]),
        _left_section("Rows left out", payload, "skipped"),
        _left_section("Compared only in part", payload, "partial"),
        _counts_section("Assumed for some rows", payload["assumed"]),
    ]
    return [each for each in sections if each.blocks]


def _left_section(title: str, payload: Mapping[str, Any], key: str) -> Section:
    """Rows by reason, and what would make them usable."""
    counts, names = payload[key], payload[f"{key}_rows"]
    rows = (
        (format_count(n), why, payload["usable_by"].get(why, ""), _first(names.get(why, ())))
        for why, n in counts.items()
    )
    return section(title, table(rows, ">rows", "why", "usable with", "which"))


def _of_trainings(payload: Mapping[str, Any]) -> str:
    if not payload["trainings"]:
        return ""
    return f", {percent(payload['used'] / payload['trainings'])} of those that train a decoder"


def _errors_table(payload: Mapping[str, Any]) -> Table:
    rows = [(title, *_error_cells(payload[key])) for key, title in _FIGURES]
    return table(rows, "", ">rows", ">median error", ">mean", ">90 % below", ">bias")


def _error_cells(errors: Mapping[str, Any]) -> tuple[str, ...]:
    bias = errors["bias"]
    return (
        format_count(errors["n"]),
        percent(errors["median_ape"]),
        percent(errors["mape"]),
        percent(errors["p90_ape"]),
        "" if bias is None else f"{100 * bias:+.1f}%",
    )


def _oom_blocks(oom: Mapping[str, Any]) -> tuple[Block, ...]:
    failed = (
        f"of {oom['oom_rows']} runs that ran out of memory, {_of(oom, 'false_fits', 'oom_rows')} "
        f"were said to fit{equally(oom['false_fit_share'])}"
    )
    finished = (
        f"of {oom['fit_rows']} runs that fitted, {_of(oom, 'false_ooms', 'fit_rows')} were said to "
        f"run out{equally(oom['false_oom_share'])}, and {_of(oom, 'at_risk_fits', 'fit_rows')} "
        f"at risk{equally(oom['at_risk_share'])}"
    )
    blocks: tuple[Block, ...] = (Bullets((failed, finished)),)
    told = _wrong_verdict_lines(oom["wrong"])
    if told:
        blocks += (Paragraph("Wrong or unsure, and what we believe happened:"),)
        blocks += (Bullets(tuple(told[:LISTED])),)
    if len(told) > LISTED:
        blocks += (Paragraph(f"{len(told) - LISTED} more: --format json lists all.", "quiet"),)
    return blocks


def _wrong_verdict_lines(wrong: list[Mapping[str, Any]]) -> list[str]:
    """One line for all runs with the same verdict and the same probable cause."""
    alike: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for item in wrong:
        alike.setdefault((item["verdict"], item["believed"]), []).append(item)
    lines = []
    for (verdict, believed), own in alike.items():
        least = min(item["fits_probability"] for item in own)
        most = max(item["fits_probability"] for item in own)
        chance = f"{least:.2f}" if most - least < SAME_CHANCE else f"{least:.2f} to {most:.2f}"
        ids = ", ".join(item["id"] for item in own)
        lines.append(f"{ids}: {_VERDICTS[verdict]}, P(fits) {chance}: {believed}.")
    return lines


SAME_CHANCE = 0.005
_VERDICTS = {
    "false_fit": "said to fit", "false_oom": "said to run out", "at_risk": "said to be at risk",
}  # fmt: skip


def _of(oom: Mapping[str, Any], what: str, rows: str) -> str:
    count, total = oom[what], oom[rows]
    return f"{count} ({percent(count / total)})" if total else str(count)


def _memory_coverage(kinds: Mapping[str, Mapping[str, Any]]) -> tuple[Block, ...]:
    if not kinds:
        return ()
    rows = tuple(
        (name.replace("_", " "), format_count(own["n"]), format_count(own["groups"]),
         percent(own["share"]))
        for name, own in kinds.items()
    )  # fmt: skip
    titles = ("memory, by what was read and kind of run", ">rows", ">groups", ">in interval")
    return (table(rows, *titles),)


def _coverage(coverage: Mapping[str, float | None]) -> str:
    time, memory = coverage.get("p10_p90"), coverage.get("memory_p10_p90")
    words = []
    if time is not None:
        words.append(f"time {percent(time)}")
    if memory is not None:
        words.append(f"memory {percent(memory)}")
    if not words:
        return "Nothing to compare the 80 % intervals with."
    return f"Actual values inside the 80 % interval: {', '.join(words)} (80 % is right)."


def _scopes_section(payload: Mapping[str, Any]) -> Section:
    scopes = {**payload["time_scopes"], **payload["time_devices"]}
    rows = (
        (
            name,
            format_count(own["n"]),
            format_count(own["groups"]),
            percent(own["median_ape"]),
            percent(own["p90_ape"]),
            percent(own["coverage"]),
        )
        for name, own in scopes.items()
    )
    titles = ("", ">rows", ">groups", ">median error", ">90 % below", ">in interval")
    over = payload["time_median_over_devices"]
    median = (
        f"Median over devices with 8 rows or more: {percent(over)}." if over is not None else ""
    )
    return section(
        "Steps by scope and by device",
        table(rows, *titles),
        Paragraph(median),
        Paragraph("Here every row weighs the same.", "quiet"),
    )


def _sweeps_section(sweeps: Mapping[str, Any] | None) -> Section:
    if sweeps is None or not sweeps["sweeps"]:
        return Section("Order inside sweeps", ())
    order = "no pair is 5 % apart"
    if sweeps["right_order"] is not None:
        order = f"{sweeps['pairs']} pairs 5 % apart, {percent(sweeps['right_order'])} in order"
    text = (
        f"{sweeps['sweeps']} sweeps of {sweeps['points']} runs over knobs of one job: {order}; "
        f"the predicted best is {percent(sweeps['mean_regret'])} slower than the measured best "
        f"on average, {percent(sweeps['worst_regret'])} at worst."
    )
    return Section("Order inside sweeps", (Paragraph(text),))


def _groups_section(groups: list[Mapping[str, Any]]) -> Section:
    rows = (
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
    titles = ("source", "model", "GPU", "task", ">mem n", ">error", ">time n", ">error")
    return section("By source", table(rows, *titles))


def _short(name: str) -> str:
    """A name without its owner, cut to one column; JSON and CSV have it whole."""
    last = name.rpartition("/")[2]
    return last if len(last) <= NAME_WIDTH else f"{last[: NAME_WIDTH - 2]}.."


def _pair(errors: Mapping[str, Any]) -> tuple[str, str]:
    if not errors["n"]:
        return "", ""
    return format_count(errors["n"]), percent(errors["median_ape"])


def _counts_section(title: str, counts: Mapping[str, int]) -> Section:
    rows = ((format_count(count), why) for why, count in counts.items())
    return section(title, table(rows, ">rows", "why"))


def _first(names: Sequence[str]) -> str:
    """The first rows by name; JSON has them all."""
    return ", ".join(names[:NAMED]) + (", .." if len(names) > NAMED else "")


TITLE = "Chance of fitting, as said and as seen"
_KINDS = {
    "roomy": "where what the allocator caches leaves room",
    "crowded": "where it would fill the memory",
}


def reliability_section(
    bins: Sequence[Mapping[str, Any]], claims: Mapping[str, Mapping[str, Any]]
) -> Section:
    """One line a bin that has runs, and how sure a claim may be."""
    rows = (
        (
            f"{own['low']:g} to {own['high']:g}",
            format_count(own["n"]),
            f"{own['predicted']:.3f}",
            f"{own['observed']:.3f}",
            f"{own['p10']:.3f} to {own['p90']:.3f}",
            format_count(own["finished_only"]),
        )
        for own in bins
        if own["n"]
    )
    titles = ("said", ">runs", ">said, mean", ">fitted", ">80 % interval", ">no failures told")
    note = (
        "No failures told: of the runs, those of sources that report only runs that finished, "
        "which cannot show a failure."
    )
    return section(TITLE, table(rows, *titles), Paragraph(note, "quiet"), *_bounds(claims))


def _bounds(claims: Mapping[str, Mapping[str, Any]]) -> tuple[Block, ...]:
    words = [
        f"{own['bears']:.3f} {_KINDS[kind]} ({own['failures']} of {format_count(own['n'])} such "
        "claims failed)"
        for kind, own in claims.items()
    ]
    if not words:
        return ()
    return (Paragraph(f"No answer claims more than {', or '.join(words)}."),)


VALIDATE_REPORT = Report(validation_sections, validation_csv)
