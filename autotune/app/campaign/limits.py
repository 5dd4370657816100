"""Whether a campaign ends within its deadline: how likely, and on how many machines it would.

One model prices all runs, so they err together: the whole campaign is placed with every run at the
low end of its range, at its middle and at its high end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.app.campaign.list_schedule import longest_chain, schedule
from autotune.app.campaign.schedule import enough_machines, tasks_of
from autotune.domain.answer.limits import LimitOdds, held_with, probability_within
from autotune.domain.answer.plan import Deadline
from autotune.domain.job import CONFIDENCE, DEADLINE
from autotune.domain.outcome import Spread
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.app.campaign.file import Campaign
    from autotune.domain.answer.plan import PlannedRun, Subset, Task

HOURS_OF_A_DAY = 24.0
MOST_MACHINES = 64  # that are tried for a deadline


@dataclass(frozen=True, slots=True)
class When:
    """When a campaign must have ended: [s] from its start, on so many machines."""

    deadline_s: float
    machines: int
    barrier: bool
    share: bool
    hours_per_day: float
    confidence: float

    def of(self, tasks: Ends) -> LimitOdds:
        """How likely tasks end within it."""
        spread = self._spread(tasks)
        chance, held = (
            probability_within(spread, self.deadline_s), held_with(spread, self.confidence),
        )  # fmt: skip
        return LimitOdds(DEADLINE, self.deadline_s, chance, chance >= self.confidence, held)

    def told(self, tasks: Ends) -> Deadline:
        """The same, and the fewest machines that keep it, where these do not."""
        own = self.of(tasks)
        enough = self.machines if own.kept else self._enough(tasks)
        return Deadline(own, self.confidence, enough)

    def _enough(self, tasks: Ends) -> int | None:
        """The fewest more machines that keep it; None where the longest chain is too long."""
        days = HOURS_OF_A_DAY / self.hours_per_day
        if longest_chain(tasks[1], share=self.share) * days > self.deadline_s:
            return None
        most = min(enough_machines(tasks[1]) * 2, len(tasks[1]), MOST_MACHINES)
        for machines in range(self.machines + 1, most + 1):
            if replace(self, machines=machines).of(tasks).kept:
                return machines
        return None

    def _spread(self, tasks: Ends) -> Spread:
        days = HOURS_OF_A_DAY / self.hours_per_day
        low, middle, high = sorted(
            days * schedule(own, self.machines, barrier=self.barrier, share=self.share).makespan_s
            for own in tasks
        )
        return Spread(low, middle, high)


Ends = tuple[list["Task"], list["Task"], list["Task"]]  # at p10, p50 and p90 of every run


def ends_of(campaign: Campaign, runs: Sequence[PlannedRun], subset: Subset | None) -> Ends:
    """The tasks of the runs that are kept, at both ends of their ranges and at the middle."""
    low, middle, high = (tasks_of(campaign, runs, subset, end)[1] for end in ("p10", "p50", "p90"))
    return low, middle, high


def confidence_of(campaign: Campaign) -> float:
    """With which probability limits of the campaign are kept: the highest that its runs ask for."""
    return max((job.limits.confidence for job in campaign.jobs), default=CONFIDENCE)
