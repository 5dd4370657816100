"""The answer of `recompute`: what changed and why, the bill and the memory side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.paths import near
from autotune.domain.units import (
    GIB,
    format_age,
    format_bytes,
    format_count,
    format_seconds,
    format_usd,
)
from autotune.report.layout.bars import MEMORY_LABELS, TIME_LABELS
from autotune.report.layout.blocks import Paragraph, Section, Table, bullets, section, table
from autotune.report.layout.csv_rows import flattened, rows_csv
from autotune.report.layout.report import Report
from autotune.report.payload import (
    decisive,
    facts_of,
    job_payload,
    row_payload,
)
from autotune.report.phrases import (
    config_phrase,
    marked_name,
    moved_cells,
    offer_name,
    price_marks,
    seconds_span,
    usd_span,
)
from autotune.report.schema import SCHEMA_VERSION
from autotune.report.sections.answer import assumed_section, limit_blocks, warnings_section
from autotune.report.sections.glossary import with_words
from autotune.report.sections.limits import contradictions_section
from autotune.report.sections.settings import unmeasured_machines
from autotune.report.sections.unknown_lengths import (
    lengths_open,
    open_blocks,
    range_phrase,
)
from autotune.report.sections.waterfall import waterfall_section

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.domain.answer.recompute import Recomputation, Recomputed
    from autotune.report.layout.blocks import Block
    from autotune.report.schema import Row

Payload = dict[str, Any]
MOST_KEPT = 30
CHANGED = "What changes, and why"


def recompute_payload(found: Recomputation) -> Payload:
    """`autotune recompute --format json`. The first part at the top; all of several in variants."""
    parts = [_part(part) for part in found.parts]
    payload: Payload = {
        "schema_version": SCHEMA_VERSION,
        "run": found.source,
        "changed": found.changed,
        **parts[0],
        "contradictions": list(found.parts[0].after.contradictions),
        "warnings": list(dict.fromkeys(w for part in found.parts for w in part.warnings)),
        "decisive": decisive([w for part in found.parts for w in part.warnings]),
        "wall_seconds": found.wall_seconds,
    }
    if len(parts) > 1:
        payload["changed"] = found.changed
        payload["variants"] = parts
    return payload


def _part(part: Recomputed) -> Payload:
    after = part.after
    return {
        "variant": part.variant or None,
        "job": job_payload(after.job),
        "assumed": after.job.assumed,
        "before": part.before,
        "after": row_payload(after.best) if after.best else None,
        **facts_of(part, "changed", "changes", "unchanged"),
        "waterfall": part.waterfall.steps if part.waterfall else (),
        "observations": part.observations,
        "lengths_known": bool(after.job.lengths.known),
        **facts_of(after, "short_rows", "limits", "worth_a_probe", "misses", "run_dir"),
    }


def recompute_csv(payload: Payload) -> str:
    """Two lines a variant: before and after, empty where nothing fits."""
    rows = []
    for part in parts_of(payload):
        for role in ("before", "after"):
            lead = {"role": role, "variant": part["variant"] or ""}
            rows.append({**lead, **flattened(part[role] or {})})
    return rows_csv(rows)


def parts_of(payload: Payload) -> list[Payload]:
    """The variants, or the one answer that there is."""
    found: list[Payload] = payload.get("variants") or [payload]
    return found


def _sections(payload: Payload) -> list[Section]:
    parts = parts_of(payload)
    sections = [Section("", leads(payload, parts))]
    if len(parts) > 1:
        sections.append(variants_table(parts))
    first = parts[0]
    sections += [
        changed_section(first),
        _bill(first),
        _fall(first),
        _memory(parts),
        _changes("Otherwise", first, ("verdict",)),
        _observations(first["observations"]),
        _unchanged_section(first),
        contradictions_section(payload["contradictions"]),
        assumed_section(first["assumed"]),
        warnings_section(payload["warnings"]),
    ]
    return [section for section in sections if section.blocks]


def leads(payload: Payload, parts: Sequence[Payload]) -> tuple[Block, ...]:
    """Before and after, of each variant."""
    blocks: list[Block] = []
    by_verdict: dict[str, list[str]] = {}
    for part in parts:
        name = f"{part['variant']}: " if part["variant"] else f"{part['job']['name']}: "
        if part["before"] is None or part["after"] is None:
            words = [
                f"{role}, {_one_line(part[role], part) if part[role] else 'nothing fits'}"
                for role in ("before", "after")
            ]
            blocks.append(Paragraph(name + "; ".join(words) + ".", "bad"))
            continue
        verdict = "another recommendation" if part["changed"] else "the recommendation stays"
        if len(parts) > 1:
            by_verdict.setdefault(verdict, []).append(part["variant"])
        else:
            blocks.append(Paragraph(f"{name}{verdict}.", "strong"))
            blocks.append(Paragraph(f"Before: {_one_line(part['before'], part)}."))
            blocks.append(Paragraph(f"After: {_one_line(part['after'], part)}."))
            better = unmeasured_machines(part["after"], part.get("worth_a_probe"), 2)
            blocks += [Paragraph(better)] if better else []
            blocks += [*open_blocks(part), *limit_blocks(part["limits"], part["job"])]
    title = payload["job"]["name"].partition(":")[0]
    for verdict, names in by_verdict.items():
        text = f"{title}: {verdict} for {', '.join(names)}."
        blocks.append(Paragraph(text, "strong"))
    blocks.append(Paragraph(f"Recomputed from {near(payload['run'])}.", "quiet"))
    return tuple(blocks)


def _one_line(row: Row, part: Payload) -> str:
    age = row.price_age_days
    seen = "" if age is None else f" at a price seen {format_age(age)} ago"
    seen += f" ({price_marks(row)})" if price_marks(row) else ""
    if lengths_open(part["job"]):
        short = part["short_rows"] if row is part["after"] else None
        text = range_phrase(row, short, part["job"])
        return f"{offer_name(row)} with {config_phrase(row.config)}, {text}{seen}"
    return (
        f"{offer_name(row)} with {config_phrase(row.config)}, "
        f"{seconds_span(row.duration_s)}, {usd_span(row.cost_usd)}{seen}"
    )


def variants_table(parts: Sequence[Payload]) -> Section:
    """Each variant, before and after."""
    rows = [
        (
            part["variant"] or "",
            role,
            marked_name(offer_name(row), row),
            _short(row["config"]),
            format_seconds(row["duration_s"]["p50"]),
            format_usd(row["cost_usd"]["p50"]),
            format_bytes(row["memory_bytes"]["total"]),
        )
        if (row := part[role])
        else (part["variant"] or "", role, "nothing fits", "", "", "", "")
        for part in parts
        for role in ("before", "after")
    ]
    titles = ("variant", "", "machine", "config", ">duration", ">cost", ">memory")
    return section("Each variant, before and after", table(rows, *titles))


def _short(config: Mapping[str, Any]) -> str:
    """Split and precision: "8 x 2, bf16"."""
    split = f"{config['micro_batch_size']} x {config['gradient_accumulation_steps']}"
    return f"{split}, {config['precision']}"


def changed_section(part: Payload) -> Section:
    """What changes in the answer, and why."""
    return _changes(CHANGED, part, ("job", "machine", "price", "software", "knob"))


def _changes(title: str, part: Payload, kinds: Sequence[str]) -> Section:
    rows = (
        (each["what"], _value(each, "from"), _value(each, "to"), each["why"])
        for each in part["changes"]
        if each["kind"] in kinds
    )
    return section(title, table(rows, "", "before", "after", "why"))


def _value(each: Mapping[str, Any], key: str) -> str:
    value = each[key]
    if isinstance(value, str) or value is None:
        return value or "none"
    if each["what"] == "usd_per_hour":
        return f"{format_usd(value)}/h"
    return format_count(value)


def _bill(part: Payload) -> Section:
    if part["before"] is None or part["after"] is None or lengths_open(part["job"]):
        return Section("The bill", ())
    before, after = part["before"], part["after"]
    why = {each["what"]: each["why"] for each in part["changes"]}
    rows = [
        (
            label,
            *moved_cells(before["time_s"].get(name, 0.0), after["time_s"][name], format_seconds),
            why.get(f"time_s.{name}", ""),
        )
        for name, label in TIME_LABELS.items()
        if before["time_s"].get(name, 0.0) or after["time_s"][name]
    ]
    for name, show in (("duration_s", format_seconds), ("cost_usd", format_usd)):
        old, new = before[name]["p50"], after[name]["p50"]
        rows.append((name.rpartition("_")[0], *moved_cells(old, new, show), ""))
    titles = ("", ">before", ">after", ">change", "because of")
    return section("The bill", table(rows, *titles))


def _fall(part: Payload) -> Section:
    if part["before"] is None or part["after"] is None or lengths_open(part["job"]):
        return Section("", ())
    ends = [
        (role, part[role]["duration_s"]["p50"], part[role]["cost_usd"]["p50"])
        for role in ("before", "after")
    ]
    return waterfall_section(part["waterfall"], ends[0], ends[1], "From before to after")


def _memory(parts: Sequence[Payload]) -> Section:
    """Components down; before and after across, or variants across where there are several."""
    title = "Memory by component (GiB, at the peak)"
    if len(parts) == 1:
        picks = [(role, parts[0][role]) for role in ("before", "after") if parts[0][role]]
        return section(title, _memory_table(picks))
    blocks: list[Block] = []
    for role in ("before", "after"):
        picks = [(part["variant"] or "", part[role]) for part in parts if part[role]]
        if picks:
            machines = ", ".join(dict.fromkeys(offer_name(row) for _, row in picks))
            blocks += [Paragraph(f"{role.capitalize()}, on {machines}:"), _memory_table(picks)]
    return Section(title, tuple(blocks))


def _memory_table(picks: Sequence[tuple[str, Row]]) -> Table:
    memories = [row.memory_bytes for _, row in picks]
    rows = (
        (
            MEMORY_LABELS.get(name, name),
            *(f"{memory.get(name, 0.0) / GIB:.2f}" for memory in memories),
        )
        for name in (*MEMORY_LABELS, "total", "usable")
        if any(memory.get(name) for memory in memories)
    )
    return table(rows, "", *(f">{name}" for name, _ in picks))


def _observations(found: Sequence[Mapping[str, Any]]) -> Section:
    items = (f"{each['id']} ({_measured(each)}): {each['status']}; {each['why']}" for each in found)
    return section("What was measured before", bullets(items))


def _measured(each: Mapping[str, Any]) -> str:
    value = float(each["value"])
    if each["quantity"] == "memory_bytes":
        return format_bytes(value)
    if each["quantity"] == "tokens_per_s":
        return f"{format_count(value)} tokens/s"
    if each["quantity"] == "oom":
        return "out of memory"
    return format_seconds(value)


def _unchanged_section(part: Payload) -> Section:
    words = [
        f"{each['what']} {each['value']}"
        for each in part["unchanged"]
        if each["kind"] in {"job", "machine", "software", "knob", "verdict"}
    ]
    return section("What stays", Paragraph(", ".join(words[:MOST_KEPT]) + "." * bool(words)))


RECOMPUTE_REPORT = Report(_sections, recompute_csv, with_words)
