"""What is probed on one device: the job as it is probed, its candidates there, and their bill."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.domain.candidates import OFFER
from autotune.frozen import dataclass
from autotune.pricing import Pricing
from autotune.space.file import at_every_level

if TYPE_CHECKING:
    from autotune.cost.bill import Bill
    from autotune.domain.candidates import Candidates, SearchSpace
    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.domain.observation import Calibration

ROOMY_BYTES = 1e18  # more than any model: nothing is refused for memory


@dataclass(frozen=True, slots=True)
class Ground:
    """A search as all of its workers have it.

    job: the one that is probed, with its offers. offer: that the device is. offers: those of them
    that can run there; bill: of their candidates. exact: the offer is one of the user's job.
    """

    job: Job
    space: SearchSpace
    calibration: Calibration
    offer: Offer
    offers: tuple[Offer, ...]
    exact: bool
    bill: Bill
    held_bytes: float | None = None


def local_bill(
    job: Job, candidates: Candidates, space: SearchSpace, calibration: Calibration,
    offers: tuple[Offer, ...],
) -> Bill:  # fmt: skip
    """Every candidate of these offers, the user's own knobs at all levels."""
    levels = [candidates.levels[OFFER].index(offer) for offer in offers]
    here = candidates.take(np.flatnonzero(np.isin(candidates.codes[OFFER], levels)))
    return Pricing(job, calibration).bill(at_every_level(here, space.extra))


def without_limits(bill: Bill) -> Bill:
    """The bill for a device that only lends its speed: what fits it decides nothing."""
    roomy = np.full(len(bill), ROOMY_BYTES)
    return bill.with_memory(usable_bytes=roomy, fits_probability=np.ones(len(bill)))
