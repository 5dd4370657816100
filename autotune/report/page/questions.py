"""The page as a reader asks: five questions in order, each answered before it is explained.

What answers a question is shown; what explains the answer is folded under it. The sections are
those of the text report, so page and text say the same; a section that has no place here is folded
under the fourth question, so that nothing is lost.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.domain.units import format_count, format_seconds, format_usd
from autotune.frozen import dataclass
from autotune.report.layout.blocks import Bars, Bullets, Commands, Paragraph, Section, Table
from autotune.report.page.bills import (
    LONG,
    bills_html,
    choices_html,
    pick_tiles,
    probes_html,
    rows_by_name,
)
from autotune.report.page.blocks import (
    Markup,
    block_html,
    blocks_html,
    commands_html,
    few_bullets_html,
    fold,
    folded,
    joined,
    section_html,
    tag,
    titled,
    words_html,
)
from autotune.report.page.machines import (
    few_machines_html,
    keeping,
    machines,
    machines_html,
    misfits_words,
    plane_html,
)
from autotune.report.phrases import config_phrase, offer_name, price_phrase, rests_on
from autotune.report.screens.screen import change_words, difference_words, settings_phrase
from autotune.report.sections.answer import recommendation_sections
from autotune.report.sections.memory import KEEPING
from autotune.report.sections.unknown_lengths import lengths_open, range_phrase
from autotune.report.sections.what_ifs import opening_words
from autotune.report.ties import tie_phrase, tiebreak_phrase

if TYPE_CHECKING:
    from autotune.report.layout.blocks import Block
    from autotune.report.schema import LimitsPayload, RecommendationPayload, Row

NO_BREAK = "\N{NO-BREAK SPACE}"
RUN = "run"  # what the last question is called
COMMANDS = 4  # that are shown at most; the others are folded
EVERY, AN_HOUR = "Every machine and configuration", "What an hour saved costs"
BILLS = "Where the time and the memory go"
ELSEWHERE = "autotune recompute"
_ASKS_LENGTHS = re.compile(r"(no|real) row lengths|the rows' lengths")
CHECKED = "autotune verify"  # the last command that is shown


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its name in the contents, its answer, and what stands under it."""

    name: str
    short: str
    words: str
    answer: Markup
    content: tuple[Markup, ...] = ()


class Sections:
    """The report's sections. Each is taken once, by how its title begins."""

    def __init__(self, payload: RecommendationPayload) -> None:
        self.left = recommendation_sections(payload)

    def take(self, title: str) -> Section:
        """The first whose title begins so, or an empty one; "" takes the one without a title."""
        for each in self.left:
            if each.title.startswith(title) if title else not each.title:
                self.left.remove(each)
                return each
        return Section(title, ())

    def take_all(self, title: str) -> list[Section]:
        """Every one whose title begins so."""
        found = [each for each in self.left if each.title.startswith(title)]
        self.left = [each for each in self.left if each not in found]
        return found


def questions(payload: RecommendationPayload) -> list[Question]:
    """The questions that this answer has something to say to."""
    sections = Sections(payload)
    asked = _of_a_pick(payload, sections) if payload.best else _of_none(payload, sections)
    found = [each for each in asked if each.answer or any(each.content)]
    words = words_html([part for each in found for part in (each.answer, *each.content)])
    last = found[-1]
    last = replace(last, content=(*last.content, fold("Words used here", words, printed=True)))
    return [*found[:-1], last]


def _of_a_pick(payload: RecommendationPayload, sections: Sections) -> list[Question]:
    warnings = _but_lengths(sections.take("Warnings"), payload)
    sections.left.append(warnings)
    what = _what(payload, sections, warnings)
    why, machine = _why(payload, sections, what[1]), _machine(payload, sections)
    run = _run(sections)
    return [what[0], why, machine, _sure(payload, sections), run]


def _what(
    payload: RecommendationPayload, sections: Sections, warnings: Section
) -> tuple[Question, list[Paragraph]]:
    """What to run; and what the report's lead says of today's config."""
    best = payload.best
    assert best is not None  # noqa: S101 - the caller has checked
    _, *lead = sections.take("").blocks
    beside = [each for each in lead if isinstance(each, Paragraph) and each.tone == "good"]
    tie = "" if beside else tie_phrase(payload)  # what the next question begins with
    told = (*beside, *(each for each in lead if isinstance(each, Paragraph) and each.text == tie))
    own = [each for each in lead if each not in told]
    hours = format_seconds(best.duration_s.p50).replace(" ", NO_BREAK)
    dollars = format_usd(best.cost_usd.p50)
    answer = f"Run it on {offer_name(best)}: {hours}, {dollars}."
    if lengths_open(payload.job):
        ends = range_phrase(best, payload.short_rows, payload.job)
        answer = f"Run it on {offer_name(best)}: {ends}."
    settings = Paragraph(f"With {settings_phrase(best.config, best.device_count)}.")
    bills = bills_html(rows_by_name(payload))
    for section, _ in bills:
        sections.take(section.title)
    both = [titled(section.title, drawn) for section, drawn in bills]
    content = [
        *blocks_html([settings]),
        pick_tiles(payload, best),
        *blocks_html(own),
        folded(sections.take(KEEPING)),
        _warned(warnings),
        folded(_named(sections.take("Settings")), title="Every setting, and why", printed=True),
        fold(BILLS, tag("div", *both, class_="beside"), printed=True),
        folded(sections.take("The job"), title="The job and its arithmetic", printed=True),
    ]
    words = "What should I run, what does it cost, and does it fit?"
    return Question("what", "What to run", words, tag("p", answer), tuple(content)), beside


def _warned(warnings: Section) -> Markup:
    """That there are warnings, and where."""
    count = sum(len(block.items) for block in warnings.blocks if isinstance(block, Bullets))
    if not count:
        return Markup()
    words = f"{count} warnings to read before you start" if count > 1 else "1 warning to read first"
    return tag("p", tag("a", words, href=f"#{RUN}"), class_="warn")


def _named(settings: Section) -> Section:
    """Settings with the names that transformers' Trainer has for them, where these are others."""
    blocks: list[Block] = []
    for block in settings.blocks:
        if isinstance(block, Table):
            names = [(row[0], change_words(row[0])) for row in block.rows]
            shown = [own if own == name else f"{own} ({name})" for own, name in names]
            rows = tuple((name, *row[1:]) for name, row in zip(shown, block.rows, strict=True))
            blocks.append(replace(block, rows=rows))
        else:
            blocks.append(block)
    return Section(settings.title, tuple(blocks))


def _why(payload: RecommendationPayload, sections: Sections, beside: list[Paragraph]) -> Question:
    """The pick beside today and the alternatives."""
    answer = beside[0].text if beside else _next_best(payload)
    today, fall = sections.take("Beside today"), sections.take("From today")
    others, left_out = sections.take("Alternatives"), sections.take("What was left out")
    more = [*([today] if fall.blocks else []), others, left_out]
    content = (
        *blocks_html(beside[1:]),
        choices_html(payload),
        folded(_changes_that_count(fall), printed=True, wide=True)
        if fall.blocks
        else section_html(today),
        fold("Everything else that was compared", *map(section_html, more)),
    )
    return Question("why", "Why this", "Why this one?", tag("p", answer), content)


def _changes_that_count(fall: Section) -> Section:
    """The changes, without those that show as zero: these are named under it."""
    blocks: list[Block] = []
    nothing: list[str] = []
    for block in fall.blocks:
        if not isinstance(block, Bars):
            blocks.append(block)
            continue
        named = [replace(bar, name=_as_trainer(bar.name)) for bar in block.bars]
        kept = tuple(bar for bar in named if re.search(r"[1-9]", bar.shown))
        nothing += [bar.name for bar in named if bar not in kept]
        blocks.append(replace(block, bars=kept))
    if nothing:
        blocks.append(Paragraph(f"Without effect: {', '.join(nothing)}.", "quiet"))
    return Section(fall.title, tuple(blocks))


def _as_trainer(change: str) -> str:
    """A change, "compile off -> default", by the name that Trainer has for the setting."""
    name, space, ends = change.partition(" ")
    return f"{change_words(name)}{space}{ends}"


def _next_best(payload: RecommendationPayload) -> str:
    best, others = payload.best, payload.alternatives
    if not best or not others:
        return "Nothing else that was tried fits."
    if payload.tie:
        return tie_phrase(payload)
    other = others[0]
    same = offer_name(other) == offer_name(best)
    what = difference_words(other.config, best.config, LONG) if same else (
        f"{offer_name(other)} with {config_phrase(other.config)}"
    )  # fmt: skip
    figures = f"{format_seconds(other.duration_s.p50)}, {format_usd(other.cost_usd.p50)}"
    return f"The next best is {what}: {figures}."


def _machine(payload: RecommendationPayload, sections: Sections) -> Question:
    """The machines that were compared, where there are several."""
    best = payload.best
    front = sections.take("Time against money")
    found = machines(payload)
    words = "Which machine?"
    if not best:
        tried = len(payload.machines)
        none = tag("p", f"It fits on none of the {tried} machines tried.") if tried else Markup()
        return Question("machine", "Machine", words, none, (_all_machines(payload),))
    if len(found) > 1:
        answer, hour = _machines_answer(payload), section_html(replace(front, title=AN_HOUR))
        figure = tag("figure", plane_html(payload), few_machines_html(payload))
        content = (figure, fold(EVERY, hour, machines_html(payload)))
        return Question("machine", "Machine", words, tag("p", answer), content)
    return Question("machine", "Machine", words, *_alone(payload, best))


def _all_machines(payload: RecommendationPayload) -> Markup:
    return fold(EVERY, machines_html(payload)) if payload.machines else Markup()


def _alone(payload: RecommendationPayload, best: Row) -> tuple[Markup, tuple[Markup, ...]]:
    """The answer where one machine only is left, and what stands under it."""
    price = block_html(Paragraph(f"Its price: {price_phrase(best)}.", "quiet"))
    if payload.job.offers > 1:
        answer = f"It fits on only one of the job's machines: {offer_name(best)}."
        return tag("p", answer), (price, misfits_words(payload), _all_machines(payload))
    again = [
        (each.command, "the same job on every machine with a price")
        for each in payload.next
        if each.command.startswith(ELSEWHERE)
    ]
    answer = f"Only {offer_name(best)} was compared: the job names no other."
    return tag("p", answer), (price, commands_html(again))


def _machines_answer(payload: RecommendationPayload) -> str:
    """Which machine is the cheapest, and which the soonest, of those that keep the limits."""
    found, kept = machines(payload), keeping(payload)
    among, limits = kept or found, _limits(payload.job.limits)
    cheapest, soonest = among[0], min(among, key=lambda row: row.duration_s.p50)
    named = offer_name(cheapest)
    words = "the cheapest and the fastest" if soonest is cheapest else "the cheapest"
    which = f"that keep {limits}" if limits and kept else "on which it fits"
    if len(among) == 1:
        return f"Only {named} keeps {limits}."
    text = f"{named} is {words} of the {format_count(len(among))} machines {which}."
    best = payload.best
    if best and cheapest.caution > best.caution and named != offer_name(best):
        text = f"{offer_name(best)} leads the {format_count(len(among))} machines {which}; {named} "
        text += "may be cheaper, but nobody has measured it."
    elif best and payload.tiebreak and named != offer_name(best):
        text = f"{offer_name(best)} leads the {format_count(len(among))} machines {which}. "
        text += tiebreak_phrase(payload.tiebreak, best)
    return text if kept or not limits else f"{text} No machine keeps {limits}."


def _limits(limits: LimitsPayload) -> str:
    """The limits that were stated, by name."""
    stated = {
        "the deadline": limits.deadline_s,
        "the budget": limits.budget_usd,
        "the session limit": limits.max_session_s,
    }
    return " and ".join(name for name, value in stated.items() if value is not None)


def _run(sections: Sections, warned: str = "Before you start") -> Question:
    """The commands, and what to know before typing them, under that title."""
    section = sections.take("How to run it")
    warnings = replace(sections.take("Warnings"), title=warned)
    shown: list[tuple[str, str]] = []
    others: list[tuple[str, str]] = []
    rest: list[Block] = []
    for block in section.blocks:
        if isinstance(block, Commands) and block.items[0][1]:  # the others are lines of a script
            count = _commands_in_sight(block)
            shown += block.items[:count]
            others += block.items[count:]
        else:
            rest.append(block)
    more = fold("More commands, and the files", *blocks_html(rest), commands_html(others))
    content = (section_html(warnings), commands_html(shown), more)
    return Question(RUN, "Run it", "How do I run it and check it?", Markup(), content)


def _commands_in_sight(block: Commands) -> int:
    lines = [line for line, _ in block.items]
    checks = [i for i, line in enumerate(lines) if line.startswith(CHECKED)]
    return min(checks[0] + 1 if checks else 1, COMMANDS)


def _sure(payload: RecommendationPayload, sections: Sections) -> Question:
    """What it rests on, and what would change it."""
    best = payload.best
    answer = f"{rests_on(best)}." if best else ""
    probes = sections.take("Probes")
    changes = _but_lengths(sections.take("What would change"), payload)
    choices = [sections.take("What your own"), sections.take("Around")]
    settings = [sections.take("What settings"), sections.take("Worth a probe")]
    opening = "" if lengths_open(payload.job) else opening_words(payload, 1)
    around = [section_html(each) for each in reversed(choices)]
    readings = sections.take_all("What the measured")
    said = sections.take("What does not add up")
    assumed = sections.take("Assumed")
    found = sections.take("How it was found")
    measured = (best.measured if best else None) or {}
    source = measured.get("provenance")
    content = (
        *blocks_html([Paragraph(f"From {source}.", "quiet")] if source else []),
        titled(probes.title, probes_html(payload, probes)),
        tag("p", f"{changes.title}:", class_="strong") if changes.blocks else Markup(),
        *(
            few_bullets_html(each) if isinstance(each, Bullets) else block_html(each)
            for each in changes.blocks
        ),
        *blocks_html([Paragraph(opening)] if opening else []),
        fold("What other settings are worth", *map(section_html, settings)),
        *(folded(each) for each in readings),
        folded(said),
        fold("What your other choices are worth", *around),
        fold("Assumed, and how it was found", *map(section_html, (assumed, found))),
        *(folded(each) for each in sections.left),
    )
    return Question(
        "sure", "How sure", "How sure is it? What would change it?", tag("p", answer), content
    )


def _but_lengths(section: Section, payload: RecommendationPayload) -> Section:
    """Without the row lengths that are missing: the first answer asks for them."""
    if not lengths_open(payload.job):
        return section
    lists = [block for block in section.blocks if isinstance(block, Bullets)]
    kept = [
        (each, [item for item in each.items if not _ASKS_LENGTHS.search(item)]) for each in lists
    ]
    return Section(section.title, tuple(Bullets(tuple(i), b.tone) for b, i in kept if i))


def _of_none(payload: RecommendationPayload, sections: Sections) -> list[Question]:
    """Where nothing fits: what would, and why this does not."""
    lead = blocks_html(sections.take("").blocks)
    change, why = sections.take("What would make it fit"), sections.take("Why it does not fit")
    tried = sections.take("Why nothing fits")
    job = folded(sections.take("The job"), title="The job and its arithmetic", printed=True)
    run = replace(
        _run(sections, ""), words="What should I know before I try again?", short="Before"
    )
    sure = _sure(payload, sections)
    tried_too = (*blocks_html(why.blocks), folded(tried, title="What was tried", printed=True))
    return [
        Question("what", "What to run", "What should I run?", joined(lead),
                 (section_html(change), job)),
        Question("why", "Why nothing fits", "Why does nothing fit?", Markup(), tried_too),
        _machine(payload, sections),
        sure, run,
    ]  # fmt: skip
