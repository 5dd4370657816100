"""A pick that is started elsewhere: what is written for it, and the machines of the tests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import exportcases

from autotune.app.runs.export import export
from autotune.app.runs.orchestrated import orchestrated
from autotune.catalog.devices import find_device
from autotune.domain.candidates import Candidate
from autotune.domain.outcome import DiskUse

if TYPE_CHECKING:
    from autotune.domain.device import Offer
    from autotune.domain.job import Job


@dataclass(frozen=True)
class Case:
    """A machine and how its run is started."""

    offer: Offer
    job: Job
    sharding: str = "none"

    def written(self, *names: str, target: str = "hf") -> Any:
        """What is written beside run.sh: an Export."""
        config = exportcases.config(
            sharding=self.sharding, micro_batch_size=4,
            gradient_accumulation_steps=self.job.global_batch_size // (4 * self.offer.count),
        )  # fmt: skip
        made = export(target, self.job, self.offer, config)
        pick = Candidate(self.job, self.offer, config)
        return orchestrated(
            names,
            pick,
            made,
            target,
            disk=DiskUse(3, 2e9, fetched_bytes=1e6),
            slow_end_s=36_000.0,
            writes_to=None,
        )


def machine(name: str, count: int = 1, **changes: Any) -> Offer:
    """An offer of a device of the catalogue."""
    offer = exportcases.offer(count)
    return replace(offer, device=find_device(name), **changes)
