"""What holds the memory: where a configuration is too large, and what a trace found.

Says also which changes would make it fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.answer.recommendation import open_facts_of
from autotune.domain.units import format_bytes, format_count, format_seconds, format_usd
from autotune.report.layout.bars import MEMORY_LABELS, memory_bars
from autotune.report.layout.blocks import Bullets, Commands, Paragraph, Section, table
from autotune.report.phrases import chance, config_phrase, marked_name
from autotune.report.sections.how_to_run import again

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.domain.answer.recommendation import (
        Asked,
        FitsIf,
        Relaxation,
        SearchRecord,
        Shortfall,
    )
    from autotune.domain.outcome import AtOp, MemoryTrace
    from autotune.report.layout.blocks import Block, Table
    from autotune.report.schema import JobPayload, RecommendationPayload

BESIDE_THE_STEP = ("evaluation", "save")  # phases that no step of the training has
KEEPING = "What would keep the limits"  # a title of a section
ON_HOST = ("disk", "ram")  # short of the host, not of the device


def shortfall_sections(
    missing: Shortfall | None,
    changes: Sequence[Relaxation],
    asked: Asked | None,
    *,
    nearest: bool,
) -> list[Section]:
    """What is missing, then what would help, as options of what was asked.

    nearest: it is the nearest of many that do not fit.
    """
    sections = [_why(missing, nearest=nearest)] if missing else []
    command = "tune" if nearest else "estimate"
    return [*sections, _changes(changes, asked, command, missing=missing is not None)]


def _why(missing: Shortfall, *, nearest: bool) -> Section:
    blocks: list[Block] = [Paragraph(shortfall_lead(missing, nearest=nearest))]
    if missing.resource in ON_HOST:
        return Section("Why it does not fit", tuple(blocks))
    when = (f"when: in {missing.instant}", row_that_decides(missing))
    if nearest:
        parts = {**missing.memory_bytes, "usable": missing.available_bytes}
        blocks += [memory_bars(parts), Bullets(when)]
    else:  # the report of one configuration shows all of its parts anyway
        blocks.append(Bullets((holders(missing), *when)))
    if missing.memory_source:
        blocks.append(Paragraph(f"Usable: {missing.memory_source}, and the headroom."))
    return Section("Why it does not fit", tuple(blocks))


def shortfall_lead(missing: Shortfall, *, nearest: bool) -> str:
    """What is missing, in a sentence. nearest: it is the nearest of many that do not fit."""
    count = missing.device_count
    where = f"{count}x {missing.device}"
    needs, usable = format_bytes(missing.required_bytes), missing.available_bytes
    over = missing.over_bytes
    what = f"{config_phrase(missing.config)} on {where}"
    head = f"The closest one ({what})" if nearest else "It"
    if missing.resource == "disk":
        return (
            f"{head} fits in memory, but needs {needs} of disk for "
            f"{missing.fills or 'what it writes'}, {format_bytes(over)} more than the "
            f"{format_bytes(usable)} available."
        )
    if missing.resource == "ram":
        return (
            f"{head} fits on the device, but {missing.fills or 'the host'} needs {needs} of host "
            f"memory, {format_bytes(over)} more than the {format_bytes(usable)} available."
        )
    each = " on each device" if count > 1 else ""
    if missing.phase in BESIDE_THE_STEP:
        rows = missing.longest_batch.rows
        what = f" ({format_count(rows)} row{'s' * (rows > 1)})"
        each += f" in {missing.instant}{what if missing.phase == 'evaluation' else ''}"
    if over > 0:
        return (
            f"{head} needs {needs}{each}, and {format_bytes(usable)} are usable: "
            f"{format_bytes(over)} too much."
        )
    return (
        f"{head} needs {needs}{each} of {format_bytes(usable)} usable, which is too close. "
        f"The probability that it fits is {chance(missing.fits_probability)}, and 0.9 is required."
    )


def holders(missing: Shortfall) -> str:
    """The largest parts of the memory, each with its share."""
    total = missing.memory_bytes["total"]
    named = [
        f"{MEMORY_LABELS.get(part.name, part.name)} {format_bytes(part.bytes)} "
        f"({100 * part.bytes / total:.0f} %)"
        for part in missing.largest
    ]
    return f"largest parts: {', '.join(named)}"


def row_that_decides(missing: Shortfall) -> str:
    """The batch at which memory peaks."""
    batch = missing.longest_batch
    rows, tokens = batch.rows, format_count(batch.tokens_per_row)
    shape = f"1 row of {tokens} tokens"
    if rows > 1:
        shape = f"{format_count(rows)} rows x {tokens} tokens = {format_count(batch.tokens)}"
    return f"longest batch: {shape} ({batch.origin})"


def _changes(
    changes: Sequence[Relaxation],
    asked: Asked | None,
    command: str,
    *,
    missing: bool,
    does: str = "makes it fit",
) -> Section:
    """Changes after which it fits: the same training, other numbers in it, then the contract."""
    if not changes:
        nothing = "None of the changes tried, alone or in pairs, makes it fit."
        return Section("What would make it fit", (Paragraph(nothing),) if missing else ())
    free, numeric, own = by_class(changes)
    titles = ("change", ">duration", ">cost", ">memory")
    blocks: list[Block] = []
    if free:
        blocks += [
            Paragraph("With the same training (settings, then machines; the fastest first):"),
            changes_table(free, *titles),
        ]
    else:
        blocks.append(Paragraph(f"No setting or machine tried {does} with the same training."))
    if numeric:
        text = "With other rounding, optimizer states or batches:"
        blocks += [Paragraph(text), changes_table(numeric, *titles)]
    if own:
        text = "These change the result, so you decide; they were not applied:"
        blocks += [Paragraph(text), changes_table(own, *titles)]
    commands = tuple(
        (again(asked, command, each[0].apply), what)
        for each, what in (
            (free, "the first with the same training"),
            (numeric, "the first with other rounding, states or batches"),
            (own, "the first that changes the result"),
        )
        if each and each[0].apply
    )
    if commands:
        blocks.append(Commands(commands))
    return Section("What would make it fit", tuple(blocks))


def keeping_section(payload: RecommendationPayload) -> Section:
    """What would keep the limits that the pick misses."""
    if not payload.keeping:
        return Section("", ())
    found = _changes(payload.keeping, payload.asked, "tune", missing=False, does="keeps them")
    return Section(KEEPING, found.blocks)


def by_class(
    changes: Sequence[Relaxation],
) -> tuple[list[Relaxation], list[Relaxation], list[Relaxation]]:
    """Those that keep the training, those that change its numbers, those that change the result."""
    free = [change for change in changes if not change.quality]
    return (
        [change for change in free if not change.numeric],
        [change for change in free if change.numeric],
        [change for change in changes if change.quality],
    )


def changes_table(
    changes: Sequence[Relaxation], *titles: str, words: Callable[[str], str] = str
) -> Table:
    """What each change takes and, under a fourth title, needs. words: how it is named."""
    rows = (
        (
            words(change.change),
            format_seconds(change.duration_s),
            marked_name(format_usd(change.cost_usd), change if change.kind == "machine" else {}),
            f"{format_bytes(change.required_bytes)} of {format_bytes(change.available_bytes)}",
        )[: len(titles)]
        for change in changes
    )
    return table(rows, *titles)


def nothing_fits(job: JobPayload, search: SearchRecord, rejected: int) -> Paragraph:
    """The first sentence of an answer without a pick."""
    priced = format_count(search.priced)
    if search.probes:
        tried = f"{format_count(search.probes)} of {priced} possible configurations"
        return Paragraph(f"{job.name}: {tried} were probed, and none of them fits.", "bad")
    why = (
        f"nothing fits. All {priced} configurations that are possible on these "
        "machines need too much."
        if search.priced
        else f"cannot run here. None of {format_count(rejected)} configurations is possible on "
        "these machines."
    )
    return Paragraph(f"{job.name}: {why}", "bad")


EXPANDABLE = "PYTORCH_ALLOC_CONF=expandable_segments:True"


def traced_payload(trace: MemoryTrace | None) -> dict[str, Any] | None:
    """The trace of a row; None for rows whose memory rests on the formula."""
    if trace is None:
        return None
    from dataclasses import asdict

    return {**asdict(trace), "layers": list(trace.layers)}


def traced_blocks(trace: dict[str, Any] | None) -> tuple[Paragraph, ...]:
    """Where the peak is, and what the allocator makes of it."""
    if trace is None:
        return ()
    blocks = [Paragraph(_traced_peak(trace))]
    if trace["allocator"] is not None:
        blocks += _allocator(trace["allocator"])
    return tuple(blocks)


def _traced_peak(trace: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in trace["versions"].items())
    layers = trace["layers"]
    depth = f"{layers[0]} layers" if len(layers) == 1 else f"{layers[0]} and {layers[-1]} layers"
    phases = ", ".join(f"{name} {format_bytes(size)}" for name, size in trace["phases"].items())
    return (
        f"Traced through {versions}, {depth}: at most {format_bytes(trace['allocated_bytes'])} "
        f"allocated, {_at(trace['phase'], trace['op'])}. By phase: {phases}."
    )


def _at(phase: str, op: str) -> str:
    return f"in phase {phase} at {op}" if op else f"in phase {phase}"


def _allocator(run: dict[str, Any]) -> list[Paragraph]:
    largest = run["largest"]
    slack = run["reserved_bytes"] - run["in_use_bytes"]
    first = (
        f"Simulated allocator, three steps: reserves {format_bytes(run['reserved_bytes'])} where "
        f"there is room ({format_bytes(slack)} more than is in use), the last of it in step "
        f"{largest['step']} {_at(largest['phase'], largest['op'])}. It gets by with "
        f"{format_bytes(run['needed_bytes'])}, or {format_bytes(run['expandable_needed_bytes'])} "
        f"with {EXPANDABLE}."
    )
    capacity = format_bytes(run["capacity_bytes"])
    failed, expandable = run["out_of_memory"], run["expandable_out_of_memory"]
    if failed is None:
        flushes = run["flushes"]
        how = "without giving any of its cache back"
        if flushes:
            how = f"after giving its cache back {flushes} time{'s' * (flushes > 1)}, which is slow"
        return [Paragraph(first), Paragraph(f"Within {capacity} it goes on {how}.")]
    second = f"Within {capacity} it runs out of memory {_failure(failed)}"
    second += (
        f"; with {EXPANDABLE} it does not."
        if expandable is None
        else f"; with {EXPANDABLE} {_failure(expandable)}."
    )
    return [Paragraph(first), Paragraph(second, "bad")]


def _failure(failed: dict[str, Any] | AtOp) -> str:
    assert isinstance(failed, dict)  # noqa: S101 - payloads hold plain values
    return (
        f"in step {failed['step']} {_at(failed['phase'], failed['op'])}, "
        f"asking for {format_bytes(failed['size_bytes'])}"
    )


def open_section(fits_if: Sequence[FitsIf], most: int | None = None) -> Section:
    """How likely it fits by each thing that nobody said, where it turns on it."""
    facts = open_facts_of(fits_if)[:most]
    lines = tuple(
        f"{fact}: {', '.join(_value_phrase(x) for x in fits_if if x.fact == fact)}"
        f"{OLD_LOADING if fact == 'method.base' else ''}"
        for fact in facts
    )
    return Section("P(fits) by what nobody said", (Bullets(lines),) if lines else ())


OLD_LOADING = (
    "; 32bit is what Transformers before 5 loads unless dtype is given, and what FSDP under mixed "
    "precision trains"
)


def _value_phrase(own: FitsIf) -> str:
    listed = ", listed" if own.assumed else ""
    needed = format_bytes(own.required_bytes)
    return f"{own.value} {chance(own.fits_probability)} ({needed}{listed})"
