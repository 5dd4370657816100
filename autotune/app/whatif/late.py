"""What would keep a limit that a job misses: one change at a time, each answered by the cost model.

As `relaxations` answers a job that does not fit, with one more change of the contract: fewer
optimizer steps, as many as the limit leaves time for.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune.app.whatif.changes import contract_changes, more_devices, steps_edit
from autotune.app.whatif.relaxations import SORTS, Tries, sort_of
from autotune.domain.answer.limits import odds

if TYPE_CHECKING:
    from autotune.app.whatif.changes import Rungs
    from autotune.domain.answer.recommendation import Relaxation
    from autotune.domain.candidates import SearchSpace
    from autotune.domain.job import Job
    from autotune.domain.observation import Calibration
    from autotune.domain.outcome import Estimated
    from autotune.search.selection import Objective

OF_EACH = 2  # told of each sort: settings, machines, changes of the contract
SHARES = (1.0, 0.95, 0.85)  # of the steps that are left, by the shares of the pick's time
LEAST_STEPS = 2
RANK = "method.rank"  # fewer of it save memory and hardly any time, so they are not tried


class _InTime(Tries):
    """A question whose pick is late: only what keeps every limit counts."""

    sure = True

    def keeping(self, pick: Estimated) -> tuple[Relaxation, ...]:
        """Settings, then machines, then changes of the contract, the best of each first."""
        job = self.question[0]
        settings: list[Rungs] = [(change,) for change in self.settings]
        sooner = [each for each in contract_changes(job) if each[0].key != RANK]
        contract = [_fewer_steps(job, pick), *sooner]
        kept = self.first_of([*settings, *more_devices(self.question), *contract])
        if len(settings) > 1 and not any(sort_of(each) == "setting" for each in kept):
            kept = self.fewest() + kept
        kept += self.elsewhere(late=False)
        found: list[Relaxation] = []
        for sort in SORTS:
            own = (each for each in kept if sort_of(each) == sort)
            distinct = {(each.change, each.duration_s): each for each in own}.values()
            found += sorted(distinct, key=self.rank)[:OF_EACH]
        return tuple(found)


def keeping_the_limits(
    job: Job, space: SearchSpace, calibration: Calibration, objective: Objective, pick: Estimated
) -> tuple[Relaxation, ...]:
    """Changes after which the job keeps all its limits, as surely as is asked. pick: is late."""
    tries = _InTime((job, space), calibration, set(job.lock), dict(job.lock), objective)
    return tries.keeping(pick)


def _fewer_steps(job: Job, pick: Estimated) -> Rungs:
    """As many optimizer steps as the limits leave, most first; none where a start is too long.

    Formula: steps x (share x total - once) / (total - once), with the share of its time that the
    pick may take, and what happens once.
    """
    found = odds(job.limits, pick.duration_s, pick.cost_usd)
    share = min((each.value / each.held for each in found if each.held > 0), default=1.0)
    once, total = pick.time_s.once, pick.time_s.total
    if not job.steps or total <= once or share >= 1.0:
        return ()
    most = job.steps * (share * total - once) / (total - once)
    counts = dict.fromkeys(_rounded_down(most * own) for own in SHARES)
    return tuple(steps_edit(job, steps) for steps in counts if LEAST_STEPS <= steps < job.steps)


def _rounded_down(value: float) -> int:
    """With two digits."""
    if value < 1.0:
        return 0
    unit = 10.0 ** max(math.floor(math.log10(value)) - 1, 0)
    return int(math.floor(value / unit) * unit)
