"""How a screen ends: what it rests on, what to type next, and where the rest is."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from autotune.report.layout.blocks import Bullets, Commands, Paragraph, Section, Table
from autotune.report.screens.fitting import SHORT, shortened
from autotune.report.screens.words import assumed_phrase, lengths_phrase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from autotune.domain.answer.recommendation import NextStep
    from autotune.domain.job import Assumption
    from autotune.report.layout.blocks import Block
    from autotune.report.schema import JobPayload, RecommendationPayload

DECISIVE = 3  # warnings that are shown themselves
VERBOSE = "add --verbose"


def decisive_blocks(payload: Mapping[str, Any], length: int = SHORT) -> list[Block]:
    """Warnings that may change what the reader does, each in so many characters."""
    return warning_blocks(payload.get("decisive", []), length)


def warning_blocks(warnings: Sequence[str], length: int = SHORT) -> list[Block]:
    """The first warnings, in a sentence each."""
    found = warnings[:DECISIVE]
    return [Paragraph(shortened(_sentence(text), length), "warn") for text in found]


def _sentence(text: str) -> str:
    """With a capital, unless it begins with the name of something."""
    first = text.partition(" ")[0]
    return text[:1].upper() + text[1:] if first.isalpha() else text


def grounds_section(
    job: JobPayload | None, assumed: Sequence[Assumption], most: int, lead: str = ""
) -> Section:
    """What the figures rest on: lead, unknown lengths, and `most` of the assumptions."""
    texts = [lead, lengths_phrase(job) if job else "", assumed_phrase(assumed, most)]
    told = " ".join(text for text in texts if text)
    return Section("", (Paragraph(told),) if told else ())


def next_section(steps: Sequence[NextStep], title: str = "Next") -> Section:
    """Commands with what they do."""
    commands = tuple((step.command, step.what) for step in steps)
    return Section(title, (Commands(commands),) if commands else ())


def closing_section(payload: Mapping[str, Any], where: str = VERBOSE) -> Section:
    """How many notes are not here, how much of the file does not hold, and where everything is."""
    job = payload.get("job")
    shown = len(payload.get("decisive", [])[:DECISIVE])
    shown += bool(job and lengths_phrase(job))
    notes = max(0, len(payload["warnings"]) - shown)
    broken = len(payload.get("contradictions", []))
    told = [f"{notes} more note{'' if notes == 1 else 's'}"] if notes else []
    if broken:
        what = "1 statement" if broken == 1 else f"{broken} statements"
        told.append(f"{what} of the file do{'es' if broken == 1 else ''} not hold")
    lead = f"{'; '.join(told)}. " if told else ""
    return Section("", (Paragraph(f"{lead}Everything: {where}", "quiet"),))


def run_closing_section(payload: RecommendationPayload) -> Section:
    """The same, where everything is in a run folder, if there is one."""
    run_dir = payload.run_dir
    if not run_dir:
        return closing_section(payload)
    report = f"`autotune report {quote(run_dir)} --verbose`"
    return closing_section(payload, f"{report}, or its report.html")


def of_the_job(assumed: Sequence[Assumption]) -> list[Assumption]:
    """Assumptions without those of single machines, where there are many of them."""
    return [item for item in assumed if not item.key.startswith("hardware[")]


def trimmed(section: Section, most: int) -> Section:
    """A section with the first `most` lines of its tables and lists; says how many are left out.

    Where only one is left out, it is shown instead: saying so takes a line as well.
    """
    blocks: list[Block] = []
    for block in section.blocks:
        if isinstance(block, Table) and len(block.rows) > most + 1:
            rest = len(block.rows) - most
            kept = Table(block.columns, block.rows[:most], block.strong_rows)
            blocks += [kept, Paragraph(f"and {rest} more", "quiet")]
        elif isinstance(block, Bullets) and len(block.items) > most + 1:
            rest = len(block.items) - most
            items = tuple(shortened(item) for item in block.items[:most])
            blocks.append(Bullets((*items, f"and {rest} more"), block.tone))
        else:
            blocks.append(block)
    return Section(section.title, tuple(blocks))
