"""A measured search that several workers share: what each does next follows from what all know.

Every worker asks the same question of the same study: is another candidate worth measuring, is the
front, has the pick to be measured again, or is it over? Candidates are measured side by side, with
those of peers counted as pending. What ends a search is judged when nothing is pending any more.
Its best are then measured again, a few at the same time, so that what drifts touches all alike.
"""

from __future__ import annotations

import time
from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal

from autotune.frozen import dataclass
from autotune.search.measured.finals import is_final, overturned
from autotune.search.measured.measurer import End, StopSearch
from autotune.search.measured.study import (
    FRONT,
    MOST_FRONT,
    MeasuredExploration,
    MeasuredSearch,
)
from autotune.search.study.owner import OWNER, Owner
from autotune.search.study.samplers import asking_for
from autotune.search.study.storage import with_sampler_state
from autotune.search.study.turns import MOST_DEATHS, PROBES, TakenAwayError

if TYPE_CHECKING:
    from collections.abc import Callable

    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

    from autotune.search.measured.measurer import SharedMeasurer
    from autotune.search.study.record import TrialLog, TrialRecord
    from autotune.search.study.turns import SharedStudy

WAIT_S = 0.3  # between looks at what peers are doing
LOST = "it was silent for so long that its trial was given up; what it measured is kept"


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be done next. index: of `again`; told: the probes by which that was done before.

    allowed: of `again`, as its record has it. end: why, and whether the search ended by itself and
    not because no more was allowed.
    """

    kind: Literal["search", "front", "again", "wait", "end"]
    why: str = ""
    ended: bool = False
    index: int = -1
    told: tuple[str, ...] = ()
    allowed: dict[str, float] = field(default_factory=dict)


class SharedSearch(MeasuredSearch):
    """One worker's part in a search, or the view of whoever only looks on."""

    refused = ""  # why this worker may measure no further candidate
    _heard: frozenset[int] = frozenset()

    def work(
        self, shared: SharedStudy, log: TrialLog, measurer: SharedMeasurer,
        trials: int, tell: Callable[[str], None] = lambda _: None,
    ) -> Task:  # fmt: skip
        """Measure what is asked for until the search is over; why it is."""
        while True:
            shared.bury()
            task = self.decide(shared, measurer, trials)
            if task.kind == "end":
                return task
            if task.kind == "wait":
                time.sleep(WAIT_S)
                continue
            trial = shared.ticket()
            try:
                task = self.decide(shared, measurer, trials)  # now that it is our turn
                if task.kind in {"end", "wait"}:
                    shared.drop(trial)
                    continue
                self._do(task, trial, shared, log, measurer)
            except TakenAwayError:
                tell(LOST)
            except StopSearch as stop:
                shared.drop(trial)
                if task.kind == "again":
                    late = "" if shared.pending() else ", before the pick could be run again"
                    return Task("end", f"{stop}{late}")
                self.refused = str(stop)
            except BaseException:
                if not log.has(trial.number):  # otherwise the disk has it, and others tell it
                    shared.drop(trial)
                raise

    def _do(
        self, task: Task, trial: Trial, shared: SharedStudy, log: TrialLog,
        measurer: SharedMeasurer,
    ) -> None:  # fmt: skip
        """Choose, measure, record on the disk, tell."""
        records, pending = shared.look()  # nobody else can choose before we have
        shared.study.sampler = self._sampler_for(task, trial.number, shared.study, measurer)
        shared.choose(trial, self.distributions)
        peers = self._candidates(pending)
        record = self._measured(task, trial, records, peers, shared, measurer)
        if record is None:
            shared.drop(trial)
            return
        record = with_sampler_state(record, shared.study, trial)
        shared.check_ours(trial)
        log.append(record)
        shared.finish(trial, record, measurer.made())
        self._heard |= {trial.number}

    def _sampler_for(self, task: Task, number: int, study: Study, measurer):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - Optuna's
        if task.kind == "again":
            return asking_for(self.space.params(task.index))
        if task.kind == "front" and self.front is not None:
            return self.front.next_aim(study, measurer.budget)
        own = self._of_today(study, measurer) if task.kind == "search" else None
        return own or self._sampler_maker()(number)

    def _measured(
        self, task: Task, trial: Trial, records: list[TrialRecord], peers: list[int],
        shared: SharedStudy, measurer: SharedMeasurer,
    ) -> TrialRecord | None:  # fmt: skip
        """What the trial gave; None where a peer is measuring just that."""
        params, tried = dict(trial.params), self._tried(records)
        if task.kind == "again":
            scored = measurer.again(task.index, task.told)
            return scored.again(params, records, trial.number, task.allowed)
        record = self._record_of(params, trial.number, tried)
        if record.kind != "trial":
            return record
        index = self._candidate(record)
        if index in peers:
            return None
        if shared.deaths(params) >= MOST_DEATHS:
            why = f"{MOST_DEATHS} workers died while they measured it"
            return replace(record, kind="failed", value=None, constraints={}, fits=False,
                           reason=why)  # fmt: skip
        scored = measurer.measure(index)
        name = FRONT if task.kind == "front" else record.sampler
        return replace(scored.on(record), sampler=name)

    def _candidates(self, trials: list[FrozenTrial]) -> list[int]:
        found = (self.space.find(dict(trial.params)) for trial in trials)
        return [index for index in found if index is not None]

    def at_work(self, pending: list[FrozenTrial]) -> list[tuple[int, str, int]]:
        """Of each trial that a worker measures now: its number, whose it is, which candidate."""
        owners = [(trial, Owner.of(trial.system_attrs.get(OWNER))) for trial in pending]
        return [
            (trial.number, owner.name, index)
            for trial, owner in owners
            if owner is not None
            for index in self._candidates([trial])
        ]

    def hear(self, shared: SharedStudy, measurer: SharedMeasurer) -> None:
        """Take in what peers measured since the last time."""
        for trial in shared.trials():
            if trial.state.is_finished() and trial.number not in self._heard:
                self._heard |= {trial.number}
                if trial.user_attrs.get(PROBES):
                    measurer.adopt(trial.user_attrs[PROBES])
        measurer.count_pending(self._candidates(shared.pending()))

    def decide(self, shared: SharedStudy, measurer: SharedMeasurer, trials: int) -> Task:
        """What is to be done next, by all that is known now."""
        self.hear(shared, measurer)
        records, pending = shared.look()
        last, running = records[-1] if records else None, self._candidates(pending)
        finals = bool(running) and self._tried(records).keys() >= set(running)  # all of it again
        again = finals
        if last and is_final(last, measurer.allowed):
            again, end = True, self._ended_before(shared.study, measurer, last)
        else:
            if finals:  # what is measured again had no part in what ended the search
                measurer.count_pending(())
            found = self._end_of_work(shared, measurer, trials, records, running)
            if finals:
                measurer.count_pending(running)
            if found is None:
                return Task("wait" if finals else "search")
            end = found
        if pending and not finals:
            return Task("wait")
        return self._behind(shared, measurer, trials, records, running, end, again=again)

    def _behind(
        self, shared: SharedStudy, measurer: SharedMeasurer, trials: int,
        records: list[TrialRecord], running: list[int], end: End, *, again: bool,
    ) -> Task:  # fmt: skip
        """What is done behind the search: the front, the best once more. again: that was begun.

        running: candidates that peers measure again now.
        """
        if not again and end.by_itself and self._front_is_worth(shared.study, measurer, records):
            return Task("front")
        finals = self._finals(self.posterior(shared.study), records)
        index = finals.next(running)
        if index is not None:
            allowed = {} if end.by_itself else measurer.allowed
            return Task("again", index=index, told=finals.told(index), allowed=allowed)
        if running:
            return Task("wait")
        if again and end.by_itself and overturned(records, self._candidate):
            found = self._end_of_work(shared, measurer, trials, records, [])
            return Task("search") if found is None else Task("end", found.why, found.by_itself)
        return Task("end", end.why, end.by_itself)

    def _front_is_worth(
        self, study: Study, measurer: SharedMeasurer, records: list[TrialRecord]
    ) -> bool:
        made = sum(record.sampler == FRONT for record in records)
        if self.front is None or self.refused or made >= MOST_FRONT:
            return False
        return self.front.next_aim(study, measurer.budget) is not None

    def _end_of_work(
        self, shared: SharedStudy, measurer: SharedMeasurer, trials: int,
        records: list[TrialRecord], pending: list[int],
    ) -> End | None:  # fmt: skip
        """Why this worker proposes no further candidate; None to go on. pending: of peers."""
        end = self._end_of_search(shared.study, measurer, trials, records, pending)
        if end is not None:
            return end
        why = measurer.stop_reason() or self.refused
        return End(why, by_itself=False) if why else None

    def explored(self, shared: SharedStudy, resumed: int, end: Task) -> MeasuredExploration:
        """What all workers measured, once it is over."""
        records = shared.records()
        return self._explored(shared.study, records, resumed, end.why, ended=end.ended)
