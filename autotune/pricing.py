"""The priced job: what anything of it costs, under what its own evidence teaches.

Whoever asks for a bill asks a `Pricing`: of candidates, of a few configurations, of one, or of the
same for a changed job. Many questions (a job and what may be tried) are priced in as few passes as
there are jobs: what is locked, opened or offered decides which candidates there are and never what
one costs, so questions that differ in nothing else go together.

Not here: the formulas (`cost`), what evidence teaches (`evidence.calibrate`), which candidate is
best (`search.selection`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.model import CostModel
from autotune.domain.answer.recommendation import Decisive
from autotune.domain.candidates import Candidates
from autotune.domain.errors import InputError
from autotune.domain.observation import Calibration
from autotune.frozen import dataclass
from autotune.space.enumerate import valid_candidates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from autotune.cost.bill import Bill
    from autotune.domain.candidates import SearchSpace
    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.edit import Edit
    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated

    Question = tuple[Job, SearchSpace]
    QuestionEdit = Edit[Question]
    Change = Callable[[Question], Question]


PLAIN = Calibration()  # nothing was measured


@dataclass(frozen=True, slots=True)
class Pricing:
    """A job under a calibration. warnings: what its evidence could not teach, and why."""

    job: Job
    calibration: Calibration = PLAIN
    warnings: tuple[str, ...] = ()

    @classmethod
    def learned(cls, job: Job) -> Self:
        """The job under what its own evidence and the user's past runs teach."""
        damaged = tuple(
            Decisive(f"{why}; what is lost counts no more until it is learned or measured again")
            for why in dict.fromkeys(each.why for each in job.assumed if each.is_damage)
        )
        if not job.evidence:
            return cls(job, Calibration(machines=job.learned), damaged)
        from autotune.evidence.calibrate import calibration_from_evidence
        from autotune.evidence.reference import reference_of

        references = [reference_of(job, observation) for observation in job.evidence]
        calibration, warnings, _ = calibration_from_evidence(job, references)
        return cls(job, replace(calibration, machines=job.learned), (*damaged, *warnings))

    def bill(self, candidates: Candidates) -> Bill:
        """The bill of every candidate, in their order."""
        return CostModel(self.job, self.calibration).price(candidates)

    def of(self, pairs: Sequence[tuple[Offer, Config]]) -> Bill:
        """The bill of these configurations, each on its offer."""
        return self.bill(Candidates.of(list(pairs)))

    def one(self, offer: Offer, config: Config) -> Estimated:
        """One configuration on one offer."""
        return self.of([(offer, config)]).estimate(0)

    def variant(self, job: Job) -> Self:
        """A changed job under the same calibration."""
        return replace(self, job=job)

    def price(self, job: Job, candidates: Candidates) -> Bill:
        """The bill of a changed job's candidates: what `evidence` and `claims` ask with."""
        return self.variant(job).bill(candidates)


def plain_bill(job: Job, candidates: Candidates) -> Bill:
    """The bill under nothing that was measured: what evidence itself is held against."""
    return Pricing(job).bill(candidates)


def on_job(change: Callable[[Job], Job]) -> Change:
    """A question with its job changed, and all of what may be tried."""
    return lambda question: (change(question[0]), question[1])


def bills_under(
    question: Question, edits: Sequence[QuestionEdit], calibration: Calibration | None,
    *, fitting: bool = False, late: bool = True,
) -> list[Bill | None]:  # fmt: skip
    """The bill of a question under each change of it; None where nothing of it is valid then.

    fitting, late: as `bills_of` has them.
    """
    questions = [edit.apply(question) for edit in edits]
    return bills_of(questions, calibration, fitting=fitting, late=late)


def bills_of(
    questions: Sequence[Question], calibration: Calibration | None, *, fitting: bool = False,
    late: bool = True,
) -> list[Bill | None]:  # fmt: skip
    """The bill of each question; None where nothing of it is valid.

    fitting: of the candidates that a device holds alone, and None as well where there is none.
    late: with `fitting`, also those on offers that surely miss a limit.
    """
    found: list[Bill | None] = [None] * len(questions)
    groups: list[tuple[Job, list[tuple[int, Candidates]]]] = []
    for number, (job, space) in enumerate(questions):
        try:
            candidates = valid_candidates(job, space)
        except InputError:  # more settings than can be priced
            continue
        if not len(candidates):
            continue
        priced = replace(job, lock={}, allow=(), offers=())
        same = next((members for other, members in groups if other == priced), None)
        if same is None:
            same = []
            groups.append((priced, same))
        same.append((number, candidates))
    for _, members in groups:
        model = CostModel(questions[members[0][0]][0], calibration)
        every = Candidates.joined([own for _, own in members])
        held = np.arange(len(every))
        if fitting:
            held, bill = model.price_held(every, late=late)
        else:
            bill = model.price(every)
        begin = 0
        for number, own in members:
            first, end = np.searchsorted(held, (begin, begin + len(own)))
            if end > first:
                kept = own.take(held[first:end] - begin)
                found[number] = bill.take(np.arange(first, end), questions[number][0], kept)
            begin += len(own)
    return found
