"""A study whose trials are measured one by one, proposed by the same samplers.

The loop is that of `study`, with these differences: a trial's value comes from a measurement; the
calibrated search asks before each one whether it is worth its price; in the end the pick, the best
by what all measurements say together, is measured once more. Records are on the disk before the
study hears of them, and everything that decides what comes next follows from them. Where machines
of several prices are searched, the front's other corner and its knee are probed behind the search.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.frozen import dataclass
from autotune.search.measured.finals import (
    finals_of,
    is_final,
    measured_as_today,
    overturned,
    untried_as_today,
)
from autotune.search.measured.measurer import End, StopSearch
from autotune.search.posterior.measurements import DROPPED, history_of
from autotune.search.posterior.stopping import Remaining, judged, remaining
from autotune.search.study.record import TrialRecord, next_number
from autotune.search.study.samplers import CALIBRATED, asking_for, check_sampler
from autotune.search.study.storage import (
    finished_trial,
    of_a_peer,
    stored,
    tell,
    with_sampler_state,
)
from autotune.search.study.study import Exploration, Search

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from optuna.samplers import BaseSampler
    from optuna.study import Study

    from autotune.cost.bill import Bill
    from autotune.search.measured.finals import Finals
    from autotune.search.measured.front import Front
    from autotune.search.measured.measurer import Measurer
    from autotune.search.posterior.acquisition import Posterior
    from autotune.search.posterior.kernel import Observed
    from autotune.search.posterior.stopping import Stop
    from autotune.search.selection import Objective
    from autotune.search.study.record import TrialLog
    from autotune.search.study.storage import StudyStore

FRONT, MOST_FRONT = "calibrated front", 4  # how its trials are marked; probes of it, in all
SEARCHED = "the search ended before the front was probed"
SEARCH_ENDED = "the search ended before the best were measured again"


@dataclass(frozen=True, slots=True)
class MeasuredExploration(Exploration):
    """What a search measured.

    pick: the best of the candidates that ran and fit, by what all measurements say; None when none
    fits. ties: others that measurements cannot tell from it, and that differ by little at most.
    confirmed: measured again. left: what another measurement could still bring; None when nothing
    was learned. ended: the search ended by itself, and not because no more was allowed. undecided:
    why the pick cannot be told from others; empty when it can. unnoticed: share of measurements
    that were too long and betrayed it by nothing.
    """

    pick: int | None = None
    ties: tuple[int, ...] = ()
    confirmed: frozenset[int] = frozenset()
    left: Remaining | None = None
    posterior: Posterior | None = None
    ended: bool = False
    undecided: str = ""
    unnoticed: float = 0.0


class MeasuredSearch(Search):
    """Trials are worth what is measured."""

    def __init__(
        self, bill: Bill, objective: Objective, sampler: str, seed: int,
        prior: Mapping[str, Sequence[Observed]] | None,
    ) -> None:  # fmt: skip
        super().__init__(bill, objective, sampler, seed, prior)
        self.front: Front | None = None
        if self.sampler == CALIBRATED:
            from autotune.search.measured.front import front_behind

            self.front = front_behind(bill, self.space, objective, self.distributions, self.prior)

    def header(self, job_key: str) -> dict[str, str]:
        """What all records of the search have in common, those of its workers too."""
        space = self.priced.identity
        return {"job_key": job_key, "score": self.score, "measured": "yes", "space": space}

    def _restore(self, study: Study, log: TrialLog | None) -> list[TrialRecord]:
        """A trial whose process died was never measured: its candidate is as before."""
        for trial in study.get_trials(deepcopy=False):
            if not trial.state.is_finished() and not of_a_peer(trial):
                _drop(study, trial.number)
        return super()._restore(study, log)

    def posterior(self, study: Study) -> Posterior:
        """What all measurements say, whoever proposed them."""
        if self.sampler == CALIBRATED:
            return self.calibrated.posterior(study)
        from autotune.search.posterior.acquisition import Posterior

        names = {axis.name for axis in self.space.axes}
        history = history_of(study.get_trials(deepcopy=False), self.priced, names)
        return Posterior(self.priced, history, self.prior)

    def measure_all(
        self, store: StudyStore, measurer: Measurer, trials: int, *, resume: bool
    ) -> MeasuredExploration:
        """Ask, measure and tell until it is enough; then measure the pick again."""
        study = store.study(resume=resume)
        records = self._restore(study, store.log)
        resumed = len(records)
        end = self._search_and_repeat(study, store, measurer, trials, records)
        return self._explored(study, records, resumed, end.why, ended=end.by_itself)

    def _explored(
        self, study: Study, records: list[TrialRecord], resumed: int, why: str, *, ended: bool
    ) -> MeasuredExploration:
        """What all measurements say when no more are made."""
        posterior = self.posterior(study)
        finals = self._finals(posterior, records)
        base = self._result(self._tried(records), records, resumed, why)
        left = remaining(posterior) if posterior.history.probes else None
        return MeasuredExploration(
            **{name: getattr(base, name) for name in Exploration.__slots__},
            pick=finals.pick, ties=finals.ties, confirmed=frozenset(finals.again), left=left,
            posterior=posterior, ended=ended, unnoticed=finals.share,
            undecided=finals.undecided(left.alone if left else 0.0),
        )  # fmt: skip

    def _search_and_repeat(
        self, study: Study, store: StudyStore, measurer: Measurer, trials: int,
        records: list[TrialRecord],
    ) -> End:  # fmt: skip
        """Search, and measure the best again; search on where that changed what was believed."""
        while True:
            known = len(records)
            if known and is_final(records[-1], measurer.allowed):
                end = self._ended_before(study, measurer, records[-1])
            else:
                end = self._search(study, store, measurer, trials, records)
                if end.by_itself:
                    self._probe_front(study, store, measurer, records)
            late = self._measure_again(study, store, measurer, records, end)
            if late is not None:
                return end.before_the_pick(late)
            if not end.by_itself or len(records) == known:
                return end
            if not overturned(records, self._candidate):
                return end
            searched = len(records)
            end = self._search(study, store, measurer, trials, records)
            if len(records) == searched:
                return end

    def _ended_before(self, study: Study, measurer: Measurer, last: TrialRecord) -> End:
        """Why a search had ended that was killed while its best were measured again."""
        stop = self._stop(study, measurer)
        if stop is not None:
            return End(stop.reason, stop.rule != "budget", stop.rule == "budget")
        why = measurer.stop_reason()
        return End(why or SEARCH_ENDED, by_itself=not why and not last.allowed)

    def _finals(self, posterior: Posterior, records: Sequence[TrialRecord]) -> Finals:
        return finals_of(
            posterior, records, self._candidate, self._measured_pick(posterior), self.values
        )

    def _search(
        self, study: Study, store: StudyStore, measurer: Measurer, trials: int,
        records: list[TrialRecord],
    ) -> End:  # fmt: skip
        """Trials until something ends the search; what it was, and whether nothing was wanting."""
        next_sampler = self._sampler_maker()
        while (end := self._end_of_search(study, measurer, trials, records)) is None:
            study.sampler = self._of_today(study, measurer) or next_sampler(len(records))
            try:
                self._measure_next(study, store, measurer, records)
            except StopSearch as refusal:
                return End(str(refusal), by_itself=False, budget=refusal.budget)
        return end

    def _end_of_search(
        self, study: Study, measurer: Measurer, trials: int,
        records: Sequence[TrialRecord], pending: Collection[int] = (),
    ) -> End | None:  # fmt: skip
        """Why no further candidate is proposed, and whether that is its end; None to go on.

        pending: candidates that peers measure now.
        """
        tried = self._tried(records).keys() | pending
        failed = {self._candidate(record) for record in records if record.kind == "failed"}
        if len(tried) >= trials:
            why = f"{trials} configurations were measured, as many as allowed"
            return End(why, by_itself=False)
        if len(tried) + len(failed) >= len(self.bill):
            return End("every candidate was tried", by_itself=True)
        if len(records) >= self._most_asks(trials):
            return End("the sampler repeats itself", by_itself=True)
        begun = any(record.sampler == FRONT for record in records)
        judgement = self._stop(study, measurer)
        if judgement is not None:
            spent = judgement.rule == "budget"
            return End(judgement.reason, begun or not spent, spent)
        return End(SEARCHED, by_itself=True) if begun else None  # no front before the search's end

    def _tried(self, records: Sequence[TrialRecord]) -> dict[int, TrialRecord]:
        """The trial of every candidate that has one, in their order."""
        return {self._candidate(record): record for record in records if record.kind == "trial"}

    def _measure_next(
        self, study: Study, store: StudyStore, measurer: Measurer,
        records: list[TrialRecord], name: str = "",
    ) -> None:  # fmt: skip
        """Ask the sampler, measure, record, tell. Raises StopSearch, and drops the trial."""
        trial = study.ask(self.distributions)
        record = self._record_of(dict(trial.params), next_number(records), self._tried(records))
        if record.kind == "trial":
            try:
                record = measurer.measure(self._candidate(record)).on(record)
            except BaseException:
                _drop(study, trial.number)
                raise
        record = with_sampler_state(record, study, trial)
        record = replace(record, sampler=name or record.sampler)
        if store.log:
            store.log.append(record)
        records.append(record)
        tell(study, trial, record)

    def _probe_front(
        self, study: Study, store: StudyStore, measurer: Measurer, records: list[TrialRecord]
    ) -> None:
        """The other corner of the front and its knee, as far as probes of them are worth it."""
        made = sum(record.sampler == FRONT for record in records)
        while self.front is not None and made < MOST_FRONT:
            aim = self.front.next_aim(study, measurer.budget)
            if aim is None:
                return
            study.sampler = aim
            try:
                self._measure_next(study, store, measurer, records, FRONT)
            except StopSearch:
                return
            made += 1

    def _stop(self, study: Study, measurer: Measurer) -> Stop | None:
        """Why the calibrated search ends before its next proposal; None to go on."""
        if self.sampler != CALIBRATED:
            return None
        posterior = self.calibrated.posterior(study)
        if not posterior.history.probes:
            return None
        proposal = self.calibrated.proposal(posterior)
        at = proposal.index if proposal is not None else posterior.incumbent
        return judged(posterior, proposal, measurer.budget(0 if at is None else at))

    def _measured_pick(self, posterior: Posterior) -> int | None:
        """The posterior pick as a candidate that was measured itself, not as a twin of one."""
        pick = posterior.pick()
        if pick is None:
            return None
        if pick not in posterior.history.measured:
            twins = {int(i) for i in posterior.twins(pick)} & set(posterior.fitting)
            cost = posterior.log_cost
            pick = min(twins, key=lambda i: (cost.of(i), i), default=posterior.incumbent)
        if pick is None:
            return None
        return measured_as_today(posterior, self.space, self.bill.candidates, pick)

    def _of_today(self, study: Study, measurer: Measurer) -> BaseSampler | None:
        """Asks for the pick with own knobs as today, where nothing may be measured behind it."""
        if self.sampler != CALIBRATED:
            return None
        posterior = self.calibrated.posterior(study)
        pick = self._measured_pick(posterior) if self.bill.candidates.extra else None
        if pick is None:
            return None
        index = untried_as_today(posterior, self.space, self.bill.candidates, pick)
        if index is None or not measurer.budget(index).ends_here:
            return None
        return asking_for(self.space.params(index))

    def _measure_again(
        self, study: Study, store: StudyStore, measurer: Measurer, records: list[TrialRecord],
        end: End,
    ) -> StopSearch | None:  # fmt: skip
        """Measure the pick and its rivals in turns; what ended that before the pick's turn.

        end: of the search.
        """
        allowed = {} if end.by_itself else measurer.allowed
        while True:
            finals = self._finals(self.posterior(study), records)
            index = finals.next()
            if index is None:
                return None
            try:
                scored = measurer.again(index, finals.told(index))
            except StopSearch as stop:
                return None if finals.pick in finals.again else stop
            params = self.space.params(index)
            record = scored.again(params, records, next_number(records), allowed)
            if store.log:
                store.log.append(record)
            records.append(record)
            study.add_trial(finished_trial(record, self.distributions))


def _drop(study: Study, number: int) -> None:
    """A trial that was asked for and never measured."""
    from optuna.trial import TrialState

    trial = study.get_trials(deepcopy=False)[number]
    study._storage.set_trial_user_attr(trial._trial_id, DROPPED, True)  # noqa: FBT003, SLF001
    study.tell(number, state=TrialState.FAIL)


def explore_measured(  # noqa: PLR0913 - what a search is, each named
    bill: Bill,
    measurer: Measurer,
    *,
    objective: Objective = "cost",
    sampler: str,
    trials: int,
    seed: int = 0,
    run_dir: Path | None = None,
    storage: str | None = None,
    study_name: str = "autotune",
    job_key: str = "",
    resume: bool = False,
    prior: Mapping[str, Sequence[Observed]] | None = None,
) -> MeasuredExploration:
    """Measure up to `trials` distinct candidates, in the order that a sampler proposes.

    prior: what earlier runs observed (`past`); a resumed search must be given the same. `best` of
    the result is by the cost model's values, `pick` by what was measured. Raises InputError as
    `explore` does.
    """
    check_sampler(sampler)
    search = MeasuredSearch(bill, objective, sampler, seed, prior)
    with stored(
        run_dir, search.header(job_key), storage, study_name, bill.job.name, resume=resume
    ) as store:
        return search.measure_all(store, measurer, trials, resume=resume)
