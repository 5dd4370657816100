"""The bills of many questions (a job and what may be tried) in as few passes as there are jobs.

What is locked or opened decides which candidates there are and never what one costs, so questions
that differ in nothing else are priced together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.model import CostModel
from autotune.domain.candidates import Candidates
from autotune.domain.errors import InputError
from autotune.space.enumerate import enumerate_candidates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.app.whatif.changes import Question
    from autotune.cost.model import Bill
    from autotune.domain.calibration import Calibration
    from autotune.domain.job import Job


def bills_of(questions: Sequence[Question], calibration: Calibration | None) -> list[Bill | None]:
    """The bill of each question; None where nothing of it is valid."""
    found: list[Bill | None] = [None] * len(questions)
    groups: list[tuple[Job, list[tuple[int, Candidates]]]] = []
    for number, (job, space) in enumerate(questions):
        try:
            candidates = enumerate_candidates(job, space).candidates
        except InputError:  # the locks that remain are impossible there
            continue
        if not len(candidates):
            continue
        priced = replace(job, lock={}, allow=())
        same = next((members for other, members in groups if other == priced), None)
        if same is None:
            same = []
            groups.append((priced, same))
        same.append((number, candidates))
    for _, members in groups:
        job = questions[members[0][0]][0]
        bill = CostModel(job, calibration).price(Candidates.joined([own for _, own in members]))
        start = 0
        for number, own in members:
            at = np.arange(start, start + len(own))
            found[number] = bill.take(at, questions[number][0], own)
            start += len(own)
    return found
