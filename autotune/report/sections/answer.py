"""The report of `tune` and `estimate` as sections, made from their JSON payloads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.job import Assumption
from autotune.domain.units import format_bytes, format_count, format_seconds, format_usd
from autotune.report.layout.bars import memory_bars, time_bars
from autotune.report.layout.blocks import Bullets, Paragraph, Section, bullets, section, table
from autotune.report.layout.csv_rows import estimate_csv, recommendation_csv
from autotune.report.layout.report import Report
from autotune.report.phrases import (
    VERDICT,
    bound_words,
    config_phrase,
    differences,
    fit_phrase,
    global_batch,
    memory_phrase,
    nothing_saved,
    offer_name,
    price_phrase,
    rests_on,
    saved_phrase,
    seconds_span,
    sentence,
    speed_phrase,
    step_arithmetic,
    token_arithmetic,
    usd_span,
)
from autotune.report.sections.glossary import with_words
from autotune.report.sections.how_to_run import run_section
from autotune.report.sections.limits import (
    chances,
    claim_section,
    contradictions_section,
    limit_phrases,
)
from autotune.report.sections.memory import (
    keeping_section,
    nothing_fits,
    open_section,
    shortfall_sections,
    traced_blocks,
)
from autotune.report.sections.settings import (
    alternatives_section,
    front_section,
    price_changes,
    settings_section,
    today_section,
    worth_a_probe_section,
)
from autotune.report.sections.unknown_lengths import lengths_open, open_blocks, range_phrase
from autotune.report.sections.waterfall import journey_sections
from autotune.report.sections.what_ifs import choices_section, closed_section
from autotune.report.ties import tie_phrase, tiebreak_phrase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.domain.answer.limits import LimitOdds
    from autotune.domain.answer.recommendation import Nearest, ProbedRun, Rejected
    from autotune.report.layout.blocks import Block, Table
    from autotune.report.schema import EstimatePayload, JobPayload, RecommendationPayload, Row

NEAREST = 3
NOT_MEASURED = "-"
MACHINES = 12  # assumptions about machines that are listed one by one
_FOLDED = {
    "host": "typical of each; --format json has them",
    "price": "the catalogue's, dated: `autotune prices`; --format json has each source",
    "interruptions_per_day": "of spot; --format json has them",
}


def recommendation_sections(payload: RecommendationPayload) -> list[Section]:
    """The whole report, the answer first."""
    best = payload.best
    sections = [
        *([_answer(payload)] if best else _nothing_fits(payload)),
        _job_section(payload.job, best or payload.today),
        assumed_section(payload.assumed),
    ]
    if best:
        sections.append(settings_section(best, payload.reasons))
        sections += bill_sections(best)
        sections += [keeping_section(payload), today_section(payload), *journey_sections(payload)]
        sections.append(contradictions_section(payload.contradictions))
        sections += [alternatives_section(payload), front_section(payload)]
    sections += [
        _probes_section(payload),
        _rejected_section(payload.rejected, best),
        _changes_section(payload),
        closed_section(payload),
        worth_a_probe_section(payload),
        choices_section(payload),
        warnings_section(payload.warnings),
        run_section(payload),
        _search_section(payload),
    ]
    return [section for section in sections if section.blocks]


def estimate_sections(payload: EstimatePayload) -> list[Section]:
    """The report of one priced configuration."""
    row = payload.row
    lead, fits = row_blocks(row, f"{payload.job.name}: ")
    if lengths_open(payload.job):
        text = range_phrase(row, payload.short_rows, payload.job)
        where = f"{offer_name(row)} with {config_phrase(row.config)}"
        lead = Paragraph(f"{payload.job.name}: {text}, on {where}.", "strong")
    late = limit_blocks(payload.limits, payload.job)
    sections = [
        Section("", (lead, *open_blocks(payload), *late, fits)),
        open_section(payload.fits_if),
        *_missing(payload),
        claim_section(payload.claim),
        contradictions_section(payload.contradictions),
        _job_section(payload.job, row),
        assumed_section(payload.assumed),
        settings_section(row, {}),
        *bill_sections(row),
        warnings_section(payload.warnings),
    ]
    return [section for section in sections if section.blocks]


def row_blocks(row: Row, name: str = "") -> tuple[Paragraph, Paragraph]:
    """What one configuration takes, and whether it fits. name: what to begin with."""
    lead = (
        f"{name}{seconds_span(row.duration_s)} and {usd_span(row.cost_usd)} on "
        f"{offer_name(row)} with {config_phrase(row.config)}."
    )
    fits = f"{sentence(fit_phrase(row))}: {memory_phrase(row)} at the longest batch. {_basis(row)}"
    return (
        Paragraph(lead, "strong"),
        Paragraph(fits, "plain" if row.verdict == "fits" else "bad"),
    )


def _missing(payload: EstimatePayload) -> list[Section]:
    missing = payload.shortfall
    if missing is None:
        return []
    return shortfall_sections(missing, (payload.relaxations or ()), payload.asked, nearest=False)


def bill_sections(row: Row) -> list[Section]:
    """Where the time and the memory go, and what bounds the run."""
    count = row.checkpoints
    saves = f"; {format_count(count)} checkpoint{'' if count == 1 else 's'} of "
    saves += format_bytes(row.checkpoint_bytes)
    if row.disk is not None:
        saves += f", at most {format_bytes(row.disk.total_bytes)} on the disk at once"
    time_blocks: list[Block] = [time_bars(row.time_s)]
    speed = speed_phrase(row) + (saves if count else "")
    time_blocks.append(Paragraph(sentence(speed) + "."))
    time_blocks.append(Paragraph(f"Bound by {bound_words(row)}."))
    bars = memory_bars(row.memory_bytes)
    return [
        Section("Where the time goes", tuple(time_blocks)),
        Section("Where the memory goes", (bars, _usable_note(row), *traced_blocks(row.traced))),
    ]


def assumed_section(assumed: Sequence[Assumption]) -> Section:
    """What nobody stated."""
    items = (f"{item.key}: {item.value} ({item.why})" for item in _folded(assumed))
    return section("Assumed (write the key into the job to replace it)", bullets(items))


def _folded(assumed: Sequence[Assumption]) -> list[Assumption]:
    """Hosts and prices of many machines in one line each."""
    of_machines = [item for item in assumed if item.key.startswith("hardware[")]
    if len(of_machines) <= MACHINES:
        return list(assumed)
    lines: list[Assumption] = [item for item in assumed if item not in of_machines]
    for key, why in _FOLDED.items():
        count = sum(item.key.endswith(f".{key}") for item in of_machines)
        if count:
            lines.append(Assumption(key=f"{key}s", value=f"of {count} machines", why=why))
    return lines


def warnings_section(warnings: Sequence[str]) -> Section:
    """What the reader must know before acting."""
    return section("Warnings", bullets(warnings, "warn"))


def _answer(payload: RecommendationPayload) -> Section:
    row = payload.best
    assert row is not None  # noqa: S101 - the caller has checked
    lead = Paragraph(
        f"{payload.job.name}: run it on {offer_name(row)} with "
        f"{config_phrase(row.config)}. {takes_phrase(payload, row)}.",
        "strong",
    )
    blocks: list[Block] = [lead, *open_blocks(payload)]
    blocks += limit_blocks(payload.limits, payload.job)
    blocks += [Paragraph(why)] if (why := tiebreak_phrase(payload.tiebreak, row)) else []
    today = payload.today
    if today and not lengths_open(payload.job):
        blocks.append(Paragraph(_saving(today, row), "good"))
    fits = f"{sentence(fit_phrase(row))}: {memory_phrase(row)}."
    blocks.append(Paragraph(f"{fits} {_basis(row)}"))
    tie = tie_phrase(payload)
    if tie:
        blocks.append(Paragraph(tie))
    return Section("", tuple(blocks))


def takes_phrase(payload: RecommendationPayload, row: Row) -> str:
    """How long the pick takes and what it costs: a range where row lengths are unknown."""
    if lengths_open(payload.job):
        text = range_phrase(row, payload.short_rows, payload.job)
        return f"It takes {text}"
    costs = f" and costs {usd_span(row.cost_usd)}" if row.usd_per_hour else ""
    return f"It takes {seconds_span(row.duration_s)}{costs}"


def limit_blocks(found: Sequence[LimitOdds], job: JobPayload) -> list[Block]:
    """The stated limits: those that are missed, then those that are kept, with their odds."""
    kept, missed = limit_phrases(found, job.limits.confidence)
    blocks: list[Block] = [Paragraph(f"{sentence(missed)}.", "bad")] if missed else []
    return [*blocks, Paragraph(f"{sentence(kept)}.")] if kept else blocks


def _nothing_fits(payload: RecommendationPayload) -> list[Section]:
    rejected = payload.rejected
    lead = nothing_fits(payload.job, payload.search, rejected.count)
    missing = rejected.shortfall
    if payload.search.probes and missing is None:  # the model says that it would fit
        return [Section("", (lead,))]
    return [
        Section("", (lead,)),
        *shortfall_sections(missing, rejected.relaxations, payload.asked, nearest=True),
    ]


def _saving(today: Row, pick: Row) -> str:
    told = nothing_saved(today, pick)
    if told:
        return told
    batch = ""
    if global_batch(today) != global_batch(pick):
        batch = f" (the global batch changes from {global_batch(today)}, too)"
    risk = f", which {VERDICT[today.verdict]}," if today.verdict == "at_risk" else ""
    saved = saved_phrase(today, pick, "costs the same")
    return f"Compared with today's config{risk} that is {saved}{batch}."


def _basis(row: Row) -> str:
    return f"{rests_on(row)}; ranges are 80 % intervals."


def _job_section(job: JobPayload, row: Row | None) -> Section:
    steps = step_arithmetic(job)
    if row and row.packed:
        steps += "; fewer, as rows are packed"
    lines = [f"{job.model}, {job.method}", steps, token_arithmetic(job)]
    if row:
        count = job.offers
        among = f", one of {count} offers" if count > 1 else ""
        lines.append(f"{offer_name(row)}, {price_phrase(row)}{among}")
    limits = job.limits
    stated = []
    if limits.deadline_s is not None:
        stated.append(f"deadline {format_seconds(limits.deadline_s)}")
    if limits.budget_usd is not None:
        stated.append(f"budget {format_usd(limits.budget_usd)}")
    if limits.max_session_s is not None:
        stated.append(f"sessions of at most {format_seconds(limits.max_session_s)}")
    if stated:
        asked = chances(limits.confidence)
        lines.append(f"limit: {', '.join(stated)}; {asked} are wanted")
    return Section("The job", (Bullets(tuple(lines)),))


def _usable_note(row: Row) -> Paragraph:
    usable = format_bytes(row.memory_bytes["usable"])
    where = "each device" if row.device_count > 1 else row.device
    source = row.usable_source
    after = f"{source}, and headroom" if source else "after what the driver keeps and the headroom"
    risk = row.risk if row.verdict == "fits" and row.device != "cpu" else ""
    narrow = f" run.sh lets the allocator's segments grow: {risk}." if risk else ""
    return Paragraph(
        f"Peak at the longest batch. Usable on {where}: {usable} ({after}).{narrow}", "quiet"
    )


def _rejected_section(rejected: Rejected, best: Row | None) -> Section:
    blocks: list[Block] = []
    if rejected.by_reason:
        counts = sorted(rejected.by_reason.items(), key=lambda item: (-item[1], item[0]))
        rows = ((format_count(count), why) for why, count in counts)
        blocks.append(table(rows, ">candidates", "why not"))
    nearest = rejected.nearest[:NEAREST]
    if nearest:
        blocks.append(Paragraph("Nearest misses:"))
        blocks.append(_nearest_table(nearest, best))
    title = "What was left out" if best else "Why nothing fits"
    return Section(title, tuple(blocks))


def _nearest_table(nearest: Sequence[Nearest], best: Row | None) -> Table:
    rows = (
        (
            f"{miss.device_count}x {miss.device}",
            _unlike(miss, best),
            format_bytes(miss.required_bytes),
            format_bytes(miss.available_bytes),
            _why_not(miss),
        )
        for miss in nearest
    )
    return table(rows, "device", "config", ">needs", ">usable", ">why not")


def _unlike(miss: Nearest, best: Row | None) -> str:
    """What the miss does otherwise than a pick on the same machine, else its whole config."""
    if best and (miss.device, miss.device_count) == (best.device, best.device_count):
        return differences(miss.config, best.config)
    return config_phrase(miss.config)


def _why_not(miss: Nearest) -> str:
    """What a miss lacks; what is under nine chances in ten to fit might not."""
    over = miss.required_bytes - miss.available_bytes
    short = miss.short_of or miss.reason
    if over > 0:
        return f"{format_bytes(over)} too much" + ("" if short == "memory" else f" {short}")
    return {"memory": "might not fit", "limit": "misses a limit"}.get(short, short)


def _probes_section(payload: RecommendationPayload) -> Section:
    """One line a probe; nothing for an answer without probes."""
    runs = payload.probed
    if not runs:
        return Section("Probes", ())
    best = payload.best
    pick = best.config if best else runs[0].config
    rows = (_probe(run, pick) for run in runs)
    titles = ("config", ">predicted", ">measured", ">ratio", ">memory", "outcome")
    note = Paragraph("Seconds of an optimizer step; configs are told by what the pick does not.",
                     "quiet")  # fmt: skip
    return section("Probes", table(rows, *titles), note)


def _probe(run: ProbedRun, pick: dict[str, int | bool | str]) -> tuple[str, ...]:
    predicted, measured = run.predicted_step_s, run.step_time_s
    words = {"same settings": "the pick"}
    config = differences(run.config, pick)
    ratio = f"{measured / predicted:.2f}" if measured and predicted else NOT_MEASURED
    outcome = "run again" if run.role in {"confirm", "repeat"} else "ran"
    if run.status != "ok":
        outcome = run.status
    if run.disturbed:
        outcome += ", disturbed"
    if run.reused:
        outcome += ", earlier study"
    return (
        words.get(config, config),
        format_seconds(predicted) if predicted else NOT_MEASURED,
        format_seconds(measured) if measured else NOT_MEASURED,
        ratio,
        format_bytes(run.memory_bytes) if run.memory_bytes else NOT_MEASURED,
        outcome,
    )


def _changes_section(payload: RecommendationPayload) -> Section:
    items = price_changes(payload)
    job = payload.job
    narrowest = payload.narrowest
    if narrowest:
        items.insert(0, narrowest)
    if not job.lengths_known and "lengths" not in narrowest:
        items.append(
            "real row lengths (`--data FILE` counts them, or state data.lengths): shorter rows "
            "make the run shorter and smaller"
        )
    return section("What would change the answer", bullets(items))


def _search_section(payload: RecommendationPayload) -> Section:
    search = payload.search
    text = (
        f"Priced {format_count(search.priced)} of {format_count(search.space_size)} "
        f"candidates in {format_seconds(search.wall_seconds)} (score {search.score}, "
        f"fidelity {search.fidelity}, sampler {search.sampler}); "
        f"stopped: {search.stopped_because}."
    )
    return Section("How it was found", (Paragraph(text, "quiet"),))


TUNE_REPORT = Report(recommendation_sections, recommendation_csv, with_words)
ESTIMATE_REPORT = Report(estimate_sections, estimate_csv, with_words)
