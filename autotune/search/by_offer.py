"""The part of a bill that speaks of one offer: the same figures, the same choices over it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.domain.candidates import OFFER, Candidates
from autotune.search.selection import choosable, figures

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autotune.cost.bill import Bill
    from autotune.search.selection import Objective


def best_of_each_offer(
    bill: Bill, objective: Objective, among: Iterable[int] | None = None
) -> list[int]:
    """The cheapest (or soonest) candidate of every offer; where memory is short, the nearest to it.

    An offer whose host alone is short (disk, memory) is left out: its figures are of no run.
    among: of these alone; an offer none of whose fitting candidates is among them is left out.
    """
    first, second = figures(bill, objective)
    fits, offers = choosable(bill, among), bill.candidates.codes[OFFER]
    found = []
    for number in range(len(bill.job.offers)):
        at = np.flatnonzero(offers == number)
        pool = at[fits[at]]
        if len(pool):  # what is free is free whatever it takes: then the soonest
            found.append(int(pool[np.lexsort((second[pool], first[pool]))[0]]))
        elif len(at) and (bill.memory_violation[at] > 0).all():
            found.append(int(at[np.argmin(bill.memory_violation[at])]))
    return found


def bill_of_offer(bill: Bill, number: int) -> Bill:
    """The candidates of the offer at `number` of the job, in their order; may be empty.

    Rules of choice see exactly what they would see if it were the job's only offer.
    """
    offer = bill.job.offers[number]
    at = np.flatnonzero(bill.candidates.codes[OFFER] == number)
    taken = bill.candidates.take(at)
    candidates = Candidates(
        {**taken.levels, OFFER: (offer,)}, {**taken.codes, OFFER: np.zeros(len(at), np.int32)}
    )
    job = replace(bill.job, offers=(offer,))
    return bill.take(at, job, candidates)
