"""What every first screen is made of: one screen full, its words, and how it ends.

What is shown is decided at 80 columns, so that every terminal shows the same, and the least
important goes first where it is too long. The words are for a reader who knows transformers'
Trainer, and no more.
"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from autotune.domain.config import SPLIT, TRAINER_NAMES
from autotune.domain.units import format_count
from autotune.report.layout.blocks import Bullets, Commands, Paragraph, Section, Table
from autotune.report.layout.text import sections_text
from autotune.report.phrases import (
    KERNELS,
    NO_CHANGE,
    OFFLOAD,
    SHARDING,
    intervals,
    mode_words,
    offer_name,
    price_history,
    price_phrase,
    rests_on,
    switched,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from autotune.domain.answer.recommendation import NextStep
    from autotune.domain.job import Assumption
    from autotune.report.layout.blocks import Block
    from autotune.report.schema import JobPayload, RecommendationPayload, Row

MOST_LINES, COLUMNS = 30, 80
TIGHTEST = 11
ONE_LINE, SHORT = 80, 150  # [characters] of a text that others wrote, such as a warning: two lines


def screen_text(
    compose: Callable[[int], Sequence[Section]], *, width: int = COLUMNS, colour: bool = False
) -> str:
    """The fullest of a report's versions that fits the screen.

    compose: the sections at a tightness from 0 (everything) to `TIGHTEST`.
    """
    sections = _fullest(compose)
    spare = MOST_LINES - _lines(sections, max(width, COLUMNS))
    gaps = _gaps(sections)[: max(spare, 0)]
    return sections_text(sections, width=width, colour=colour, gaps=gaps)


def _fullest(compose: Callable[[int], Sequence[Section]]) -> list[Section]:
    sections: list[Section] = []
    for tight in range(TIGHTEST + 1):
        sections = [section for section in compose(tight) if section.blocks]
        if _lines(sections, COLUMNS) <= MOST_LINES:
            break
    return sections


def _lines(sections: Sequence[Section], width: int) -> int:
    """Lines of a terminal, which breaks those that are too long."""
    text = sections_text(sections, width=width, gaps=())
    return sum(max(1, -(-len(line) // width)) for line in text.splitlines())


def _gaps(sections: Sequence[Section]) -> list[int]:
    """Where an empty line helps, most first: around the answer, before what to type, elsewhere."""
    titled = [number for number, section in enumerate(sections) if section.title and number]
    ends = [titled[0], titled[-1]] if titled else []
    rest = [number for number in range(1, len(sections)) if number not in ends]
    return [*dict.fromkeys(ends), *rest]


def shortened(text: str, length: int = SHORT) -> str:
    """A text of unknown length in at most `length` characters.

    Whole sentences, else (of a line or more) what stands before a semicolon, a colon or a
    parenthesis that would not close, else whole words.
    """
    flat = " ".join(text.split())
    if len(flat) <= length:
        return flat
    head = flat[: length + 1]
    sentences = head.rpartition(". ")[0]
    if len(sentences) > length / 3:
        return f"{sentences}."
    opened = head.rpartition(" (")[0] if head.count("(") > head.count(")") else ""
    clauses = [each for each in (head.rpartition("; ")[0], opened) if len(each) > length / 3]
    closed = [each for each in clauses if each.count("(") == each.count(")")]
    before_colon = head.rpartition(": ")[0]
    closed = closed or [before_colon] * (len(before_colon) > length / 4)
    if closed and length >= ONE_LINE:
        return f"{max(closed, key=len)}."
    return f"{flat[: length - 2].rpartition(' ')[0] or flat[: length - 3]}..."


def fewer(most: int, tight: int, *at: int) -> int:
    """How many of `most` are shown: one less from each tightness in `at` on."""
    return most - sum(tight >= step for step in at)


def shows(tight: int, until: int) -> bool:
    """Whether what goes at tightness `until` is still there."""
    return tight < until


BASIS = {
    "modelled": "a model of the hardware, not on a measurement",
    "traced": "a model for the time, and for memory a dry run of your training code without a GPU",
    "calibrated": "a model of the hardware, corrected by measured runs",
    "measured": "training steps measured on the device",
}
MEASURED_HERE = (
    "a model of the hardware, with the speeds of this machine as doctor --measure found them"
)
# What moves the answer most, first; only where nobody stated it.
WEIGHTY = (
    "hardware", "model", "model.shape", "method.kind", "method.states", "train.steps",
    "train.epochs", "data.rows", "data.max_length", "train.global_batch_size", "method.rank",
    "method.base", "price", "data.padding", "interruptions_per_day", "today",
)  # fmt: skip
MOST_ASSUMED = 3
TOLD = frozenset({"hardware", "model", "method.states"})  # on the fullest screen too
TOLD_DAYS = 30  # of a price, from which its age is said


def settings_phrase(config: Mapping[str, object], count: int) -> str:
    """What is set, by the names that Trainer has for it where they differ."""
    micro, accumulation = config["micro_batch_size"], config["gradient_accumulation_steps"]
    words = [
        f"micro-batch {micro} (per_device_train_batch_size)",
        f"accumulation {accumulation}",
        *mode_words(config),
    ]
    if count > 1:
        words.append(SHARDING.get(str(config["sharding"]), str(config["sharding"])))
    if config.get("kernels", "none") != "none":
        words.append(KERNELS[str(config["kernels"])])
    if config.get("offload", "none") != "none":
        words.append(OFFLOAD[str(config["offload"])])
    words += [
        f"{name} on"
        for knob, name in (("packing", "packing"), ("length_grouping", "group_by_length"))
        if config.get(knob) == "on"
    ]
    return ", ".join(words)


def change_words(key: str) -> str:
    """A knob or a key of the job file, as Trainer calls it."""
    return TRAINER_NAMES.get(key, key)


def difference_words(config: Mapping[str, object], pick: Mapping[str, object], length: int) -> str:
    """What a config does otherwise than the pick, without what follows from the rest.

    In `length` characters: what does not fit is counted.
    """
    words = []
    micro = config[SPLIT[0]]
    if micro != pick[SPLIT[0]]:  # the other follows: the global batch is kept
        words.append(f"micro-batch {micro}")
    changed = [name for name, value in config.items() if value != pick.get(name)]
    told = [name for name in changed if name not in (*SPLIT, *FOLLOWS)]
    compiles = config.get("compile") != "off" and "compile" in told
    for name in told:
        value = config[name]
        if name == "sharding" and str(value) in SHARDING:
            words.append(SHARDING[str(value)])
        elif name == "compile" and compiles and config.get(SCOPE) == "regional":
            words.append(f"{change_words(name)} {switched(value)} ({config[SCOPE]})")
        elif (name, value) == ("sharding", "none"):
            continue  # one device: the machine says so
        elif name != SCOPE or not compiles:
            words.append(f"{change_words(name)} {switched(value)}")
    return within(words, length) or intervals(config, pick) or NO_CHANGE


FOLLOWS = ("checkpoint_every_steps", "save_total_limit", "num_dataloader_workers")
SCOPE = "compile_scope"


def within(words: Sequence[str], length: int) -> str:
    """As many of the words as stand in `length` characters, one at least, and how many do not."""
    shown = len(words)
    while shown > 1 and len(", ".join(words[:shown])) + (8 if shown < len(words) else 0) > length:
        shown -= 1
    more = f" +{len(words) - shown} more" if shown < len(words) else ""
    return ", ".join(words[:shown]) + more


def machine_phrase(row: Row) -> str:
    """The machine with its price: "1x h100-sxm at $2.50/h"; in full for a price nobody stated."""
    price = price_phrase(row)
    if row.usd_per_hour == 0:
        return f"{offer_name(row)} (free)"
    seen = price_history(row, TOLD_DAYS)
    return f"{offer_name(row)} at {price.partition(' (')[0]}{seen}"


def basis_phrase(row: Row, job: JobPayload, assumed: Sequence[Assumption] = ()) -> str:
    """What the figures rest on, and what the ranges mean; nothing of that for upper bounds."""
    ranges = "" if lengths_phrase(job) else " 8 of 10 runs should end within the ranges."
    own = next((text for text in job.learned if text.startswith(f"{offer_name(row)}: ")), "")
    learned = f" ({own})" if own and row.basis == "calibrated" else ""
    ends = (f"({row.device}).measured", f" {row.device}).measured")
    facts = any(item.key.endswith(ends) and item.value != "left out" for item in assumed)
    text = MEASURED_HERE if facts and row.basis == "modelled" else rests_on(row, BASIS)
    return f"{text}{learned}.{ranges}"


def lengths_phrase(job: JobPayload) -> str:
    """What unknown or estimated row lengths do to the figures; empty where they were counted."""
    if not job.steps:
        return ""
    interval = job.tokens_interval
    basis = {
        "estimated": "estimated from bytes, because the model's tokenizer cannot be used here",
        "published": "published figures for this data set, not counted",
    }.get(job.lengths_basis)
    if interval and basis:
        low, high = (format_count(float(f"{interval[key]:.3g}")) for key in ("p10", "p90"))
        return f"Row lengths are {basis}; the ranges cover {low} to {high} tokens."
    if job.lengths_known:
        return ""
    return (
        f"Unless said otherwise, figures count every row as {format_count(job.max_length)} "
        "tokens and are upper bounds."
    )


def assumed_phrase(assumed: Sequence[Assumption], most: int = MOST_ASSUMED) -> str:
    """The assumptions that matter most, in one line; empty where all was stated."""
    ranked = sorted(
        (item for item in assumed if _weight(item.key) < len(WEIGHTY)),
        key=lambda item: _weight(item.key),
    )
    most = max(most, sum(item.key in TOLD for item in ranked))
    if not ranked or not most:
        return ""
    ranked.sort(key=lambda item: item.key not in TOLD)
    named = [f"{_key(item.key)} {shortened(item.value, 40)}" for item in ranked[:most]]
    rest = len(assumed) - len(named)
    more = f", and {rest} more" if rest else ""
    return f"Assumed: {'; '.join(named)}{more}."


def _weight(key: str) -> int:
    for rank, name in enumerate(WEIGHTY):
        if key == name or (("[" in key) and key.endswith(f".{name}")):
            return rank
    return len(WEIGHTY)


def _key(key: str) -> str:
    """hardware[0] (h100-sxm).price -> price of h100-sxm; data.rows stays."""
    if key.startswith("hardware[") and "(" in key:
        machine = key.partition("(")[2].partition(")")[0]
        return f"{key.rpartition('.')[2]} of {machine}"
    return key


DECISIVE = 3  # warnings that are shown themselves
VERBOSE = "the same command with --verbose"


def decisive_blocks(payload: Mapping[str, Any], length: int = SHORT) -> list[Block]:
    """Warnings that may change what the reader does, each in so many characters."""
    return warning_blocks(payload.get("decisive", []), length)


def warning_blocks(warnings: Sequence[str], length: int = SHORT) -> list[Block]:
    """The first warnings, in a sentence each."""
    found = warnings[:DECISIVE]
    return [Paragraph(shortened(_sentence(text), length), "warn") for text in found]


def _sentence(text: str) -> str:
    """With a full stop, and a capital unless it begins with the name of something."""
    first = text.partition(" ")[0]
    text += "" if text.endswith((".", ":", "!", "?")) else "."
    return text[:1].upper() + text[1:] if first.isalpha() else text


def grounds_section(
    job: JobPayload | None, assumed: Sequence[Assumption], most: int, lead: str = ""
) -> Section:
    """What the figures rest on: lead, unknown lengths, and `most` of the assumptions."""
    texts = [lead, lengths_phrase(job) if job else "", assumed_phrase(assumed, most)]
    told = " ".join(text for text in texts if text)
    return Section("", (Paragraph(told),) if told else ())


def next_section(steps: Sequence[NextStep]) -> Section:
    """Commands with what they do."""
    commands = tuple((step.command, step.what) for step in steps)
    return Section("Next", (Commands(commands),) if commands else ())


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
        told.append(f"{what} in the file do{'es' if broken == 1 else ''} not add up")
    lead = f"{'; '.join(told)}. " if told else ""
    return Section("", (Paragraph(f"{lead}Full report: {where}", "quiet"),))


def run_closing_section(payload: RecommendationPayload) -> Section:
    """The same, where everything is in a run folder, if there is one."""
    run_dir = payload.run_dir
    if not run_dir:
        return closing_section(payload)
    report = f"`autotune report {quote(run_dir)} --verbose`"
    return closing_section(payload, f"{report}, or report.html in that folder")


def of_the_job(assumed: Sequence[Assumption]) -> list[Assumption]:
    """Assumptions without those of single machines, where there are many of them."""
    return [item for item in assumed if not item.key.startswith("hardware[")]


def trimmed(section: Section, most: int) -> Section:
    """A section with the first `most` lines of its tables and lists; says how many are left out.

    A table's strong rows stay: they take the place of the last of these lines.
    Where only one is left out, it is shown instead: saying so takes a line as well.
    """
    blocks: list[Block] = []
    for block in section.blocks:
        if isinstance(block, Table) and len(block.rows) > most + 1:
            strong = [number for number in sorted(block.strong_rows) if number >= most][:most]
            kept = [*range(most - len(strong)), *strong]
            bold = frozenset(i for i, number in enumerate(kept) if number in block.strong_rows)
            blocks.append(Table(block.columns, tuple(block.rows[i] for i in kept), bold))
            blocks.append(Paragraph(f"and {len(block.rows) - most} more", "quiet"))
        elif isinstance(block, Bullets) and len(block.items) > most + 1:
            rest = len(block.items) - most
            items = tuple(shortened(item) for item in block.items[:most])
            blocks.append(Bullets((*items, f"and {rest} more"), block.tone))
        else:
            blocks.append(block)
    return Section(section.title, tuple(blocks))
