"""Where nothing fits: a closed knob that changes nothing but the speed is opened without asking.

A knob that changes rounding or batches is the user's to open, so where one of those would do, it
stays the answer (`relaxing`), and nothing is opened.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.app.whatif.levers import lever_changes
from autotune.domain.answer.recommendation import Decisive
from autotune.domain.candidates import OFFER
from autotune.domain.config import KNOBS
from autotune.domain.units import format_seconds, format_usd
from autotune.pricing import bills_under
from autotune.report.phrases import marked_name
from autotune.search.alternatives import bill_of_offer
from autotune.search.selection import choosable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autotune.cost.bill import Bill
    from autotune.domain.answer.recommendation import Relaxation
    from autotune.domain.config import Config
    from autotune.domain.observation import Calibration
    from autotune.domain.outcome import Estimated
    from autotune.pricing import Question, QuestionEdit


def last_resort(question: Question, calibration: Calibration) -> Question | None:
    """The question with the knob opened under which something fits; None where none is."""
    changes, bills = _levers(question, calibration)
    able = [change for change, bill in zip(changes, bills, strict=True) if _fits(bill)]
    if not able or not all(_neutral(change) for change in able):
        return None
    return able[0].apply(question)


def opened_bills(
    question: Question, bill: Bill, calibration: Calibration, offers: int
) -> dict[int, Bill]:
    """The bill of each of the first `offers` on which nothing fits until a neutral knob is opened.

    bill: of the question as it is.
    """
    job, space = question
    fitting = set(bill.candidates.codes[OFFER][choosable(bill)].tolist())
    unfit = [number for number in range(offers) if number not in fitting]
    if not unfit:
        return {}
    alone = replace(job, offers=tuple(job.offers[number] for number in unfit))
    found = _last_resorts((alone, space), calibration)
    return {unfit[number]: opened for number, opened in found}


def _last_resorts(question: Question, calibration: Calibration) -> Iterator[tuple[int, Bill]]:
    """The same for each offer of a job by itself: its number, and its bill with the knob opened."""
    changes, bills = _levers(question, calibration)
    for number in range(len(question[0].offers)):
        able = [
            (change, own)
            for change, bill in zip(changes, bills, strict=True)
            if bill is not None and _fits(own := bill_of_offer(bill, number))
        ]
        if able and all(_neutral(change) for change, _ in able):
            yield number, able[0][1]


def opened_words(config: Config) -> str:
    """The knobs of a configuration that are opened where nothing else fits: "offload all"."""
    values = config.as_dict()
    return ", ".join(
        f"{name} {values[name]}"
        for name, knob in KNOBS.items()
        if knob.opt_in and knob.knob_class == "neutral" and values[name] != knob.choices[0]
    )


def opened_note(best: Estimated, others: Sequence[Relaxation]) -> str:
    """That a knob was opened, and the soonest other machine that does without."""
    opened = opened_words(best.config)
    text = f"nothing fits without it, so {opened} was opened: the same training, slower"
    machine = next((each for each in others if each.kind == "machine"), None)
    if machine is not None:
        figures = f"{format_seconds(machine.duration_s)}, {format_usd(machine.cost_usd)}"
        marks = machine.offer.price_marks if machine.offer is not None else ()
        figures = marked_name(figures, {"price_marks": marks})
        text += f". Without it {machine.change}: {figures}"
    return Decisive(text)


def _levers(
    question: Question, calibration: Calibration
) -> tuple[list[QuestionEdit], list[Bill | None]]:  # fmt: skip
    changes = lever_changes(question)
    return changes, bills_under(question, changes, calibration)


def _fits(bill: Bill | None) -> bool:
    return bill is not None and bool(choosable(bill).any())


def _neutral(change: QuestionEdit) -> bool:
    return change.changes == "neutral"
