"""The first screen of `tune`: what to run, whether it fits, why, and what to type next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.catalog.hub import is_hub_id
from autotune.catalog.software import install_command
from autotune.cost.spread.variance import STATED, said
from autotune.domain.units import format_bytes, format_seconds, format_usd
from autotune.report.layout.blocks import Bullets, Commands, Paragraph, Section, section, table
from autotune.report.phrases import (
    NO_CHANGE,
    VERDICT,
    bound_words,
    fit_phrase,
    global_batch,
    intervals,
    memory_phrase,
    nothing_saved,
    offer_name,
    price_marks,
    saved_phrase,
    sentence,
    switched,
)
from autotune.report.screens.infeasible import (
    nothing_fits_sections,
    relaxed_section,
    relaxed_sections,
)
from autotune.report.screens.screen import (
    MOST_ASSUMED,
    ONE_LINE,
    SHORT,
    TIGHTEST,
    basis_phrase,
    change_words,
    decisive_blocks,
    difference_words,
    fewer,
    grounds_section,
    lengths_phrase,
    machine_phrase,
    run_closing_section,
    screen_text,
    settings_phrase,
    shortened,
    shows,
)
from autotune.report.sections.answer import limit_blocks, takes_phrase
from autotune.report.sections.how_to_run import OWN, to_probe, to_train, to_verify
from autotune.report.sections.memory import by_class
from autotune.report.sections.settings import (
    MACHINE,
    against,
    minimised,
    unmeasured_machines,
)
from autotune.report.sections.unknown_lengths import NO_SAVING, lengths_open, open_blocks
from autotune.report.sections.waterfall import largest_moves
from autotune.report.sections.what_ifs import OPENINGS, opening_words
from autotune.report.ties import tie_phrase, tiebreak_phrase

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.report.layout.blocks import Block, Tone
    from autotune.report.schema import EstimatePayload, RecommendationPayload, Row

DISK = "checkpoint_write"  # the key of a host by which saves are priced
NAME, LABEL = 48, 44  # [characters] of a job's name; of an alternative's label
WHOLE_LABEL = 72  # of a label that may take two lines
OTHERS = 5  # machines beside those in the table that are named
ALTERNATIVES, CHANGES = 3, 3
TELLING = ("compile", "activation_checkpointing", "micro_batch_size", "attention", "sharding")


def recommendation_screen(
    payload: RecommendationPayload, *, width: int = 80, colour: bool = False
) -> str:
    """The answer of `tune` as one screen."""
    compose = _sections if payload.best else nothing_fits_sections
    return screen_text(lambda tight: compose(payload, tight), width=width, colour=colour)


def _sections(payload: RecommendationPayload, tight: int) -> list[Section]:
    best = payload.best
    assert best is not None  # noqa: S101 - the caller has checked
    return [
        Section("", tuple(_opening(payload, best, tight))),
        *_in_time(payload, tight),
        _beside_today(payload, best, tight),
        _alternatives(payload, best, tight),
        _worth_opening(payload, tight),
        grounds_section(
            payload.job,
            payload.assumed,
            fewer(MOST_ASSUMED, tight, 4, 5, 7),
            _rests_on(payload, best),
        ),
        _sharpen(payload, best, tight),
        _to_run(payload),
        run_closing_section(payload),
    ]


def _in_time(payload: RecommendationPayload, tight: int) -> list[Section]:
    """What would keep the limits that the pick misses; where it is tight, in one table."""
    if not payload.keeping:
        return []
    does = "keep the limits"
    if shows(tight, until=4):
        return relaxed_sections(payload.keeping, payload.asked, "tune", tight, does)
    first = [found[0] for found in by_class(payload.keeping) if found][: fewer(3, tight, 9)]
    title = f"What would {does}" + (" (the last changes the result)" if first[-1].quality else "")
    return [relaxed_section(title, first, payload.asked, "tune", titles=("", ">", ">"))]


def _opening(payload: RecommendationPayload, best: Row, tight: int) -> list[Block]:
    name = shortened(payload.job.name, NAME)
    lead = f"{name}: run it on {machine_phrase(best)}. {takes_phrase(payload, best)}."
    blocks = opening_blocks(payload, best, lead, tiebreak_phrase(payload.tiebreak, best))
    blocks += decisive_blocks(payload, SHORT if shows(tight, until=6) else ONE_LINE)
    blocks.append(Paragraph(_why(payload, best) if shows(tight, until=8) else bound_phrase(best)))
    tie = tie_phrase(payload)
    if tie and shows(tight, until=10):
        blocks.append(Paragraph(tie))
    return blocks


def opening_blocks(
    payload: RecommendationPayload | EstimatePayload, row: Row, lead: str, why: str = ""
) -> list[Block]:
    """The lead of a screen, then limits, why this machine, settings and whether they fit."""
    fits = f"{sentence(fit_phrase(row))}: {memory_phrase(row)}, at the longest batch."
    return [
        Paragraph(lead, "strong"),
        *open_blocks(payload),
        *limit_blocks(payload.limits, payload.job),
        *([Paragraph(why)] if why else []),
        Paragraph(f"Settings: {settings_phrase(row.config, row.device_count)}."),
        Paragraph(fits, "plain" if row.verdict == "fits" else "bad"),
    ]


def _why(payload: RecommendationPayload, best: Row) -> str:
    """What the time is spent on, and what other settings would cost."""
    text = bound_phrase(best)
    told = [
        f"{change_words(name)} {switched(value)}{rest.partition(';')[0]}"
        for name in TELLING
        for value, _, clause in [payload.reasons.get(name, "").partition(" ")]
        if "would" in (rest := f" {clause}")
    ]
    if not payload.today and told:
        text += f" Other settings: {'; '.join(told[:2])}."
    return text


def bound_phrase(row: Row) -> str:
    """What the time is spent on, and what sets its pace."""
    total = row.duration_s.p50
    share = row.time_s["train"] / total if total else 0.0
    text = f"Why: bound by {bound_words(row).partition('. ')[0]}"
    return f"{text}; training steps are {100 * share:.0f} % of the time." if share else f"{text}."


def _beside_today(payload: RecommendationPayload, best: Row, tight: int) -> Section:
    today = payload.today
    if not today:
        return Section("", ())
    told = nothing_saved(today, best)
    if told:
        tone: Tone = "warn" if today.verdict == "certain_oom" else "plain"
        return section("", Paragraph(told, tone))
    if lengths_open(payload.job):
        changed = difference_words(best.config, today.config, 2 * WHOLE_LABEL)
        around = [each for each in payload.waterfall or () if "." in each.change]  # keys of a job
        words = [changed] * (changed != NO_CHANGE or not around)
        saves = intervals(best.config, today.config)
        words += [saves.partition(", ")[0]] * (bool(saves) and saves != changed)
        words += [f"{each.change} {each.to}" for each in around]
        return Section("", (Paragraph(f"Changed from today: {', '.join(words)}. {NO_SAVING}"),))
    most, whole = fewer(CHANGES, tight, 4, 6), shows(tight, until=3)
    rows = largest_moves(payload.waterfall or (), today, most, _named(payload, best), every=whole)
    blocks: list[Block] = [table(rows, "", ">", ">")] if rows else []
    risk = f"; it {VERDICT[today.verdict]}" if today.verdict == "at_risk" else ""
    title = f"Compared with today ({_figures(today)}{risk}): {_saved(today, best)}"
    return Section(title, tuple(blocks)) if blocks else Section("", (Paragraph(title),))


def _named(payload: RecommendationPayload, best: Row) -> Callable[[str], str]:
    """Names of changes; of fewer saves that what they are worth rests on an assumed disk."""
    own = f"({best.device})", f" {best.device})"
    hosts = (item.value for item in payload.assumed if item.key.removesuffix(".host").endswith(own))
    assumed = any(f"{DISK} " in value for value in hosts)

    def named(key: str) -> str:
        mark = f" (host.{DISK} assumed)" if assumed and key == "checkpoint_every_steps" else ""
        return change_words(key) + mark

    return named


def _saved(today: Row, best: Row) -> str:
    """Time and money against today."""
    batch = ""
    if global_batch(today) != global_batch(best):
        batch = f"; today's global batch is {global_batch(today)}"
    return saved_phrase(today, best, "at the same cost") + batch


def _figures(row: Row) -> str:
    return f"{format_seconds(row.duration_s.p50)}, {format_usd(row.cost_usd.p50)}"


def _alternatives(payload: RecommendationPayload, best: Row, tight: int) -> Section:
    objective = payload.search.objective
    others = _some(payload.alternatives, best, fewer(ALTERNATIVES, tight, 6), objective)
    unmeasured = unmeasured_machines(best, payload.worth_a_probe, fewer(2, tight, 5))
    elsewhere = _other_machines(payload, (best, *others)) if shows(tight, until=6) else ""
    more = [Paragraph(text) for text in (elsewhere, unmeasured) if text]
    if not others:
        return Section("", tuple(more))
    free = not any(row.usd_per_hour for row in (best, *others))
    marked = not free and any(price_marks(row) != price_marks(best) for row in others)
    marked = marked and shows(tight, until=10)
    rows = tuple(
        (
            _label(row, best, WHOLE_LABEL if shows(tight, until=2) else LABEL),
            format_seconds(row.duration_s.p50),
            *(() if free else (format_usd(row.cost_usd.p50), against(row, best, objective))),
            format_bytes(row.memory_bytes["total"]),
            *((f"price {price_marks(row)}" if price_marks(row) else "",) if marked else ()),
        )
        for row in others
    )
    figures = [">"] * (len(rows[0]) - marked - 1)
    drawn = table(rows, "", *figures, *([""] if marked else []))
    title = "Next best: time, peak memory" if free else "Next best: time, cost, peak memory"
    return Section(title, (drawn, *more))


def _some(rows: Sequence[Row], best: Row, most: int, objective: str) -> Sequence[Row]:
    """The best alternatives, the last of them on the best of other machines if there is one."""
    shown = rows[:most]
    elsewhere = [row for row in rows if offer_name(row) != offer_name(best)]
    if most == 1 or not elsewhere:
        return shown
    other = min(elsewhere, key=lambda row: minimised(row, objective))
    return shown if other in shown else (*shown[:-1], other)


def _other_machines(payload: RecommendationPayload, shown: Sequence[Row]) -> str:
    """What became of the machines that are not shown; nothing where they are many."""
    named = {offer_name(row) for row in shown}
    rest = [row for row in payload.machines or () if offer_name(row) not in named]
    if not rest or len(rest) > OTHERS:
        return ""
    told = [
        f"{offer_name(row)} {format_seconds(row.duration_s.p50)}, {format_usd(row.cost_usd.p50)}"
        for row in rest
        if row.verdict == "fits"
    ]
    unfit = [offer_name(row) for row in rest if row.verdict == "certain_oom"]
    tight = [offer_name(row) for row in rest if row.verdict == "at_risk"]
    told += [f"too tight on {' and '.join(tight)}"] if tight else []
    told += [f"does not fit on {' or '.join(unfit)}"] if unfit else []
    return f"Other machines: {'; '.join(told)}."


def _label(row: Row, best: Row, length: int) -> str:
    elsewhere = offer_name(row) != offer_name(best)
    machine = f"{offer_name(row)}: " if elsewhere else ""
    words = difference_words(row.config, best.config, length - len(machine))
    if elsewhere and words == intervals(row.config, best.config):
        words = NO_CHANGE  # what follows from the machine
    return machine + words


def _worth_opening(payload: RecommendationPayload, tight: int) -> Section:
    """What the settings to allow would be worth, the largest ones."""
    words = opening_words(
        payload, fewer(OPENINGS, tight, 3, 9 if lengths_open(payload.job) else TIGHTEST)
    )
    return Section("", (Paragraph(words),) if words else ())


def _rests_on(payload: RecommendationPayload, best: Row) -> str:
    """What the figures rest on; of a measured answer also what may still be better."""
    search, text = payload.search, f"Based on {basis_phrase(best, payload.job, payload.assumed)}"
    if best.basis != "measured":
        return text
    left = search.stopped_because.rpartition("; ")[2]
    more = f" {sentence(left)}." if left.endswith("better") else ""
    return f"{text} Probes: {search.probes}.{more}"


def _sharpen(payload: RecommendationPayload, best: Row, tight: int) -> Section:
    """The two things that would narrow the ranges most, each as something to type or to add."""
    items: list[str] = []
    job, narrowest = payload.job, payload.narrowest
    if lengths_phrase(job) and not lengths_open(job):
        items.append(_how_to_state_lengths(payload))
    probe = to_probe(payload)
    blocks: list[Block] = []
    if probe and "measured step" in narrowest:  # it is told below
        stated = (each for each in payload.narrowings if each.fact in STATED)
        narrowest = next((said(each) for each in stated), "")
    if narrowest and "lengths" not in narrowest:
        items.append(shortened(narrowest))
    items += _checks(payload)
    if not probe and best.basis != "measured":
        items.append("`autotune verify RUN LOG` with the log of a run, finished or half-way")
    if items:
        blocks.append(Bullets(tuple(items[: 2 - bool(probe)])))
    worth = "" if lengths_open(job) or not shows(tight, until=9) else _worth(payload, tight)
    again = payload.search.score == "probe"  # of probes that other programs disturbed
    gain = worth or ("measures the best settings" if probe and shows(tight, until=3) else "")
    gain = probe[0].what if probe and again else gain
    blocks += [Commands(((each.command, gain),)) for each in probe]
    elsewhere = probe and not again and best.device != "cpu"
    where = f" (on a machine with {best.device})" if elsewhere else ""
    return Section(f"For a more exact answer{where}", tuple(blocks))


def _worth(payload: RecommendationPayload, tight: int) -> str:
    """What a probe may find that nobody has measured; empty where there is nothing."""
    best = payload.best
    found = [each for each in payload.worth_a_probe if each.knob != MACHINE]
    if not found or not best:
        return ""
    changes = (each.partition("=") for each in found[0].change.split(", "))
    named = ", ".join(f"{change_words(knob)} {value}" for knob, _, value in changes)
    saving = format_seconds(found[0].expected_saving_s)
    if found[0].expected_saving_usd > 0:
        saving = f"{format_usd(found[0].expected_saving_usd)}"
        saving += f" (up to {format_usd(found[0].p90)})"
    where = f"on {best.device}: " if shows(tight, until=5) else ""
    return f"{where}{named} may save {saving}; nobody has measured it"


def _checks(payload: RecommendationPayload) -> list[str]:
    """What would tell apart the readings of a time that was measured: the first that decides."""
    journey = payload.journey
    gaps = [gap for gap in journey.measured if len(gap.open) > 1] if journey else []
    found = []
    for gap in gaps[:1]:
        deciding = [check for check in gap.checks if check.decides] or gap.checks
        measured = format_seconds(gap.measured_s)
        found += [f"what explains the measured {measured}: {deciding[0].text}"] if deciding else []
    return [shortened(text) for text in found]


def _how_to_state_lengths(payload: RecommendationPayload) -> str:
    if payload.job.lengths_basis == "published":
        return "row lengths: `--data FILE` counts your rows"
    return _how_to_count(payload)


def _how_to_count(payload: RecommendationPayload) -> str:
    """What makes the tokenizer of the model usable here, by why it was not."""
    why = next((item.why for item in payload.assumed if item.key == "data.lengths"), "")
    if "not installed" in why:
        return f"row lengths: {install_command('dataset')}, and your rows are counted"
    name = payload.job.model
    if not is_hub_id(name):
        return "row lengths: name the model's tokenizer, `--set data.tokenizer=FOLDER`"
    return (
        f"row lengths: `hf download {name} tokenizer.json --local-dir TOK` with a network, then "
        "`--set data.tokenizer=TOK`"
    )


def _to_run(payload: RecommendationPayload) -> Section:
    steps = [*to_train(payload), *to_verify(payload)]
    if not steps:
        return Section("", ())
    commands = Commands(tuple((step.command, "") for step in steps))
    own = [name for name in payload.files if name.startswith(OWN)]
    smoke = any(step.command.startswith("MAX_STEPS") for step in steps)
    order = ": a short test, the full run, then a check against this answer" if smoke else ""
    if not own:
        return Section(f"To run it{order}", (commands,))
    text = f"Your file with these settings: {payload.run_dir or ''}/{own[0]}"
    return Section(f"To run it{order}", (Paragraph(text), commands))
