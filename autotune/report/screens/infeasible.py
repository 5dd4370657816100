"""The first screen where nothing fits: what is short, and the smallest changes that would do."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.report.layout.blocks import Bullets, Commands, Paragraph, Section
from autotune.report.screens.screen import (
    MOST_ASSUMED,
    decisive_blocks,
    fewer,
    grounds_section,
    run_closing_section,
    shortened,
    shows,
    within,
)
from autotune.report.sections.how_to_run import again
from autotune.report.sections.memory import (
    ON_HOST,
    by_class,
    changes_table,
    holders,
    nothing_fits,
    row_that_decides,
    shortfall_lead,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.domain.answer.recommendation import Asked, Relaxation, Shortfall
    from autotune.report.layout.blocks import Block
    from autotune.report.schema import RecommendationPayload

NAME, CHANGE = 48, 40  # [characters] of a job's name; of a change's
WHOLE_CHANGE = 110  # of a change that may take some lines
_PART = re.compile(r", (?!not )| and (?=with |on )")  # where another change begins
OF_EACH = 2  # changes that keep the training, that change its numbers, that are the user's


def nothing_fits_sections(payload: RecommendationPayload, tight: int) -> list[Section]:
    """The answer without a pick."""
    rejected = payload.rejected
    asked = payload.asked
    job = replace(payload.job, name=shortened(payload.job.name, NAME))
    lead = nothing_fits(job, payload.search, rejected.count)
    if payload.search.probes and rejected.shortfall is None:  # the model says that it would fit
        return [
            Section("", (lead, *decisive_blocks(payload))),
            grounds_section(payload.job, payload.assumed, fewer(MOST_ASSUMED, tight, 5, 7, 7)),
            run_closing_section(payload),
        ]
    return [
        Section("", (lead, *decisive_blocks(payload))),
        why_section(rejected.shortfall, tight, nearest=True),
        reasons_section(rejected.by_reason, rejected.shortfall),
        *relaxed_sections(rejected.relaxations, asked, "tune", tight),
        grounds_section(payload.job, payload.assumed, fewer(MOST_ASSUMED, tight, 5, 7, 7)),
        run_closing_section(payload),
    ]


def why_section(missing: Shortfall | None, tight: int, *, nearest: bool) -> Section:
    """What is short, by how much, and what holds it."""
    if missing is None:
        return Section("", ())
    blocks: list[Block] = [Paragraph(shortfall_lead(missing, nearest=nearest))]
    if missing.resource not in ON_HOST:
        held = (holders(missing),) if shows(tight, until=5) else ()
        row = (row_that_decides(missing),) if shows(tight, until=8) else ()
        blocks += [Bullets(held + row)] if row else []
    return Section("What is short", tuple(blocks))


def reasons_section(by_reason: dict[str, int], missing: Shortfall | None) -> Section:
    """Why candidates are not valid, where none came as far as memory."""
    if missing is not None or not by_reason:
        return Section("", ())
    counts = sorted(by_reason.items(), key=lambda item: (-item[1], item[0]))[:4]
    return Section("Why", (Bullets(tuple(shortened(why) for why, _ in counts)),))


def relaxed_sections(
    changes: Sequence[Relaxation], asked: Asked | None, command: str, tight: int,
    does: str = "fit",
) -> list[Section]:  # fmt: skip
    """The two smallest changes of each kind, and the command that makes the first of each.

    does: what the job does with each of them.
    """
    most, length = fewer(OF_EACH, tight, 4), WHOLE_CHANGE if shows(tight, until=3) else CHANGE
    free, numeric, own = (found[:most] for found in by_class(changes))
    if not changes:
        text = "None of the changes tried, alone or in pairs, makes it fit."
        return [Section("", (Paragraph(text),))]
    return [
        relaxed_section(f"What would {does}, {how}", found, asked, command, length)
        for how, found in (
            ("with the same training", free),
            ("with other rounding, optimizer states or batches", numeric),
            ("but changes the result (you decide)", own),
        )
    ]


def relaxed_section(
    title: str, changes: Sequence[Relaxation], asked: Asked | None, command: str,
    length: int = CHANGE, titles: Sequence[str] = ("", ">", ">", ">"),
) -> Section:  # fmt: skip
    """Changes with their figures, of which the fourth is memory, and what makes the first."""
    if not changes:
        return Section("", ())
    blocks: list[Block] = [
        changes_table(changes, *titles, words=lambda text: within(_PART.split(text), length))
    ]
    apply = changes[0].apply
    if apply:
        blocks.append(Commands(((again(asked, command, apply), ""),)))
    return Section(title, tuple(blocks))
