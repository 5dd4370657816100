"""What one change of the pick would be worth: settings to allow, and the user's choices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.config import CLOSED_FORMS, KNOBS, TRAINER_NAMES
from autotune.domain.units import format_bytes, format_seconds, format_usd
from autotune.report.layout.blocks import Bullets, Section, section, table
from autotune.report.phrases import NO_CHANGE, differences, signed, switched
from autotune.report.sections.unknown_lengths import AT_MAXIMUM, lengths_open

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.domain.answer.recommendation import Sensitivity
    from autotune.report.schema import RecommendationPayload, Row

UNMEASURED = "nobody has measured this gain with your software"
OPENINGS = 2  # of them are named at most, where there is little room
TIE = 0.01  # of a figure: less is no saving
WORTH = 0.02  # of the pick's time: a gain that is worth a line of the first screen
LARGE = 0.5  # of the pick's time: rows of any length take less by about as much
WORTH_USD, WORTH_S = 0.01, 60.0  # and at least one of these
WEIGHTY = ("activation_checkpointing", "sharding")  # what moves with it, and may be most of a gain
FOLLOW = frozenset({*CLOSED_FORMS, "num_dataloader_workers"})  # of the rest: not worth a word


def closed_section(payload: RecommendationPayload) -> Section:
    """What each setting that stays closed until the user opens it would be worth."""
    found = [each for each in payload.sensitivities if each.class_ != "quality"]
    title = "What settings that you may allow are worth (none is applied)"
    return _worth_section(title, payload, found)


def choices_section(payload: RecommendationPayload) -> Section:
    """What the user's own choices are worth on the pick's machine."""
    found = [each for each in payload.sensitivities if each.class_ == "quality"]
    title = "What your own choices are worth (they change the result; none is applied)"
    return _worth_section(title, payload, found)


def opening_words(payload: RecommendationPayload, most: int) -> str:
    """The settings to allow that would save most time, for the first screen; or empty."""
    best = payload.best
    if not best or not most:
        return ""
    before_s = best.duration_s.p50
    worth = [
        each
        for each in sorted(payload.sensitivities, key=lambda own: -(own.saved_s or 0.0))
        if each.class_ != "quality" and _is_worth_a_line(each, before_s)
    ]
    if lengths_open(payload.job):  # a figure of full rows is told where it is large for any rows
        worth = [each for each in worth if (each.saved_s or 0.0) >= LARGE * before_s]
    of_knob = {each.knob: each for each in reversed(worth)}
    first = [of_knob[knob] for knob in dict.fromkeys(each.knob for each in worth)][:most]
    told = [_opening(each, best) for each in first]
    text = f"You could save more with {'; '.join(told)}." if told else ""
    if not lengths_open(payload.job):
        return text
    rest = _on_lengths(payload, before_s, {each.knob for each in first})[: most - len(first)]
    listed = ", ".join(f"`{each.opens}`" for each in rest)
    words = f"May save more, depending on the row lengths: {listed}." if rest else ""
    return f"{text} {words}".strip()


def _on_lengths(
    payload: RecommendationPayload, before_s: float, told: set[str]
) -> list[Sensitivity]:
    """One change of each knob whose worth the row lengths decide; told: knobs to leave out."""
    closed = [
        e for e in payload.sensitivities
        if e.class_ != "quality" and e.fits and e.knob not in told
        and e.value != "off"  # what the user opened is open
        and (e.duration_s is None or _is_worth_a_line(e, before_s))
    ]  # fmt: skip
    # what saves padding alone comes first, then what saves most of full rows
    closed.sort(key=lambda e: (e.duration_s is not None, -(e.saved_s or 0.0)))
    found = {each.knob: each for each in reversed(closed)}
    return [found[knob] for knob in dict.fromkeys(each.knob for each in closed)]


def _is_worth_a_line(each: Sensitivity, before_s: float) -> bool:
    saved_s, saved_usd = each.saved_s or 0.0, each.saved_usd or 0.0
    return saved_s >= WORTH * before_s and (saved_s >= WORTH_S or saved_usd >= WORTH_USD)


def _opening(each: Sensitivity, pick: Row) -> str:
    after_s, before_s = each.duration_s or 0.0, pick.duration_s.p50
    value = f" ({each.value})" if each.value not in {"on", "off"} else ""
    words = f"`{each.opens}`{value if '=' not in each.opens else ''}: "
    words += f"{format_seconds(after_s)} instead of {format_seconds(before_s)} ({effect(each)}"
    beside = [
        f"{TRAINER_NAMES.get(knob, knob)} {switched(each.config[knob])}"
        for knob in WEIGHTY
        if each.config and knob != each.knob and each.config[knob] != pick.config[knob]
    ]
    words += f"; with {' and '.join(beside)}" if beside else ""
    return f"{words}, unmeasured)" if each.unmeasured else f"{words})"


def effect(each: Sensitivity) -> str:
    """What opening a closed knob changes for the user, in a few words."""
    knob = KNOBS.get(each.knob)
    if knob and knob.effect:
        return knob.effect
    if each.value == "tf32":
        return "other rounding, in matrix products alone"
    return "same results" if each.class_ == "neutral" else "other rounding"


def _worth_section(
    title: str, payload: RecommendationPayload, found: Sequence[Sensitivity]
) -> Section:
    """A table of changes; without what each saves where nobody stated how long the rows are."""
    pick, saves = payload.best, not lengths_open(payload.job)
    idle = [each for each in found if pick and _saves_nothing(each, pick)]
    found = [each for each in found if each not in idle]
    rows = (
        (
            each.opens,
            *_figures(each.duration_s, each.saved_s if saves else None, format_seconds),
            *_figures(each.cost_usd, each.saved_usd if saves else None, format_usd),
            format_bytes(each.memory_bytes),
        )
        for each in found
    )
    titles = ("option", ">duration", ">", ">cost", ">", ">memory")
    notes = tuple(f"{each.opens}: {'; '.join(_to_know(each, pick))}" for each in found)
    notes = tuple(note for note in notes if not note.endswith(": "))
    if pick and pick.basis == "measured":
        notes += ("only the pick was measured; these are modelled, and scaled to it",)
    notes += () if saves or not found else (AT_MAXIMUM,)
    if idle:
        listed = ", ".join(each.opens for each in idle)
        notes += (f"at their own best these save neither time nor memory: {listed}",)
    return section(title, table(rows, *titles), Bullets(notes))


def _saves_nothing(each: Sensitivity, pick: Row) -> bool:
    """Whether a change that fits is worth less than a tie, of time, of money and of memory."""
    if not each.fits or each.duration_s is None or each.cost_usd is None:
        return False
    pairs = (
        (each.duration_s, pick.duration_s.p50),
        (each.cost_usd, pick.cost_usd.p50),
        (each.memory_bytes, pick.memory_bytes["total"]),
    )
    return all(after >= before * (1.0 - TIE) for after, before in pairs)


def _figures(
    value: float | None, saved: float | None, show: Callable[[float], str]
) -> tuple[str, str]:
    """A figure and its change against the pick; "?" where there is none to tell."""
    if value is None:
        return "?", ""
    if saved is None:
        return show(value), ""
    return show(value), signed(-saved, show)


def _to_know(each: Sensitivity, pick: Row | None) -> list[str]:
    """What to know of a change: what it does, what moves with it, and how sure it is."""
    own = each.class_ == "quality"
    words = (
        [] if own else [f"{TRAINER_NAMES.get(each.knob, each.knob)} {each.value}, {effect(each)}"]
    )
    moved = _moved(each, pick)
    words += [f"with {moved}"] if moved else []
    words += [UNMEASURED] if each.unmeasured else []
    return [*words, *([each.note] if each.note else [])]


def _moved(each: Sensitivity, pick: Row | None) -> str:
    """The settings that move with a change that fits; empty where it stands alone."""
    config = each.config
    if pick is None or config is None or not each.fits:
        return ""
    kept = {*FOLLOW, each.knob}
    before, after = (
        {knob: value for knob, value in settings.items() if knob not in kept}
        for settings in (pick.config, config)
    )
    words = differences(after, before)
    return "" if words == NO_CHANGE else words
