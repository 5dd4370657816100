"""A study whose trials are measured one by one, proposed by the same samplers.

The loop is that of `study`, with these differences: a trial's value comes from a measurement; the
calibrated search asks before each one whether it is worth its price; in the end the pick, the best
by what all measurements say together, is measured once more. Records are on the disk before the
study hears of them, and everything that decides what comes next follows from them. Where machines
of several prices are searched, the front's other corner and its knee are probed behind the search.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.search.measured.finals import finals_of, is_measured, overturned
from autotune.search.measured.measurer import Enough, Plain, Scored
from autotune.search.posterior.measurements import DROPPED, history_of
from autotune.search.posterior.stopping import Remaining, judged, remaining
from autotune.search.selection import TIE
from autotune.search.study.record import TrialLog, TrialRecord
from autotune.search.study.samplers import CALIBRATED, check_sampler
from autotune.search.study.study import Exploration, _add, _Places, _Search, _tell, _with_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study

    from autotune.cost.bill import Bill
    from autotune.search.billed import BilledCandidates
    from autotune.search.measured.finals import Finals
    from autotune.search.measured.front import FrontSampler
    from autotune.search.measured.measurer import Measurer
    from autotune.search.posterior.acquisition import Outlook
    from autotune.search.posterior.residuals import Observed
    from autotune.search.posterior.stopping import Stop
    from autotune.search.selection import Objective
    from autotune.search.study.record import Kind

FRONT, MOST_FRONT = "calibrated front", 4  # how its trials are marked; probes of it, in all
SEARCHED = "the search had ended before the front was probed"
SEARCH_ENDED = "the search had ended before the best were measured again"


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
    outlook: Outlook | None = None
    ended: bool = False
    undecided: str = ""
    unnoticed: float = 0.0


class _MeasuredSearch(_Search):
    """Trials are worth what is measured."""

    def __init__(
        self, bill: Bill, objective: Objective, sampler: str, seed: int,
        prior: Mapping[str, Sequence[Observed]] | None,
    ) -> None:  # fmt: skip
        super().__init__(bill, objective, sampler, seed)
        from autotune.search.billed import BilledCandidates
        from autotune.search.study.calibrated import CalibratedSampler

        self.prior = dict(prior or {})
        self.priced: BilledCandidates = BilledCandidates(bill, self.space, objective)
        self.own = CalibratedSampler(self.priced, self._distributions(), prior=self.prior)
        self.front: FrontSampler | None = None
        if self.sampler == CALIBRATED:
            from autotune.search.measured.front import front_behind

            self.front = front_behind(
                bill, self.space, objective, self._distributions(), self.prior
            )

    def _sampler_maker(
        self, distributions: dict[str, BaseDistribution]
    ) -> Callable[[int], BaseSampler]:
        if self.sampler == CALIBRATED:
            return lambda _number: self.own
        return super()._sampler_maker(distributions)

    def _restore(
        self, study: Study, log: TrialLog | None, distributions: dict[str, BaseDistribution]
    ) -> list[TrialRecord]:
        """A trial whose process died was never measured: its candidate is as before."""
        for trial in study.get_trials(deepcopy=False):
            if not trial.state.is_finished():
                _drop(study, trial.number)
        return super()._restore(study, log, distributions)

    def outlook(self, study: Study) -> Outlook:
        """What all measurements say, whoever proposed them."""
        if self.sampler == CALIBRATED:
            return self.own.outlook(study)
        from autotune.search.posterior.acquisition import Outlook

        names = {axis.name for axis in self.space.axes}
        history = history_of(study.get_trials(deepcopy=False), self.priced, names)
        return Outlook(self.priced, history, self.prior)

    def go(
        self, places: _Places, measurer: Measurer | Plain, trials: int, *, resume: bool
    ) -> MeasuredExploration:
        """Ask, measure and tell until it is enough; then measure the pick again."""
        study = places.study(resume=resume)
        records = self._restore(study, places.log, self._distributions())
        resumed = len(records)
        why, ended = self._measure_all(study, places, measurer, trials, records)
        outlook = self.outlook(study)
        finals = self._finals(outlook, records)
        found = {self._candidate(r): r for r in records if r.kind == "trial"}
        base = self._result(found, records, resumed, why)
        left = remaining(outlook) if outlook.history.probes else None
        return MeasuredExploration(
            **{name: getattr(base, name) for name in Exploration.__slots__},
            pick=finals.pick, ties=finals.ties, confirmed=frozenset(finals.again), left=left,
            outlook=outlook, ended=ended, unnoticed=finals.share,
            undecided=finals.undecided(left.bound if left else 0.0),
        )  # fmt: skip

    def _measure_all(
        self, study: Study, places: _Places, measurer: Measurer | Plain, trials: int,
        records: list[TrialRecord],
    ) -> tuple[str, bool]:  # fmt: skip
        """Search, and measure the best again; search on where that changed what was believed."""
        if isinstance(measurer, Plain):
            return self._search(study, places, measurer, trials, records)
        while True:
            known = len(records)
            if known and records[-1].kind == "repeat" and is_measured(records[-1]):
                why, ended = self._ended_before(study, measurer)
            else:
                why, ended = self._search(study, places, measurer, trials, records)
                if ended:
                    self._probe_front(study, places, measurer, records)
            late = self._measure_again(study, places, measurer, records)
            why = "; ".join(filter(None, (why, late)))
            if late or not ended or len(records) == known:
                return why, ended
            if not overturned(records, self._candidate):
                return why, ended
            searched = len(records)
            why, ended = self._search(study, places, measurer, trials, records)
            if len(records) == searched:
                return why, ended

    def _ended_before(self, study: Study, measurer: Measurer) -> tuple[str, bool]:
        """Why a search had ended that was killed while its best were measured again."""
        stop = self._stop(study, measurer)
        if stop is not None:
            return stop.reason, stop.rule != "budget"
        enough = measurer.enough()
        return (enough, False) if enough else (SEARCH_ENDED, True)

    def _finals(self, outlook: Outlook, records: Sequence[TrialRecord]) -> Finals:
        return finals_of(outlook, records, self._candidate, self._ran(outlook), self.values)

    def _search(
        self, study: Study, places: _Places, measurer: Measurer | Plain, trials: int,
        records: list[TrialRecord],
    ) -> tuple[str, bool]:  # fmt: skip
        """Trials until something ends the search; what it was, and whether nothing was wanting."""
        tried = {self._candidate(record): record for record in records if record.kind == "trial"}
        failed = {self._candidate(record) for record in records if record.kind == "failed"}
        next_sampler = self._sampler_maker(self._distributions())
        begun = any(record.sampler == FRONT for record in records)
        while len(tried) < trials:
            stop = self._exhausted(len(tried) + len(failed), len(records), trials)
            if stop:
                return stop, True
            judgement = self._stop(study, measurer)
            if judgement is not None:
                return judgement.reason, begun or judgement.rule != "budget"
            if begun:  # the front is begun when the search has ended
                return SEARCHED, True
            study.sampler = next_sampler(len(records))
            try:
                record = self._one(study, places, measurer, records, tried)
            except Enough as enough:
                return str(enough), False
            if record.kind == "trial":
                tried[self._candidate(record)] = record
            if record.kind == "failed":
                failed.add(self._candidate(record))
        return f"{trials} configurations were measured, which was the most allowed", False

    def _one(
        self, study: Study, places: _Places, measurer: Measurer | Plain,
        records: list[TrialRecord], tried: dict[int, TrialRecord], name: str = "",
    ) -> TrialRecord:  # fmt: skip
        """Ask the study's sampler, measure, record, tell. Raises Enough, and drops the trial."""
        trial = study.ask(self._distributions())
        record = self._judge(dict(trial.params), len(records), tried)
        if record.kind == "trial":
            try:
                record = _with_score(record, measurer.measure(self._candidate(record)))
            except BaseException:
                _drop(study, trial.number)
                raise
        record = _with_state(record, study, trial)
        record = replace(record, sampler=name or record.sampler)
        if places.log:
            places.log.append(record)
        records.append(record)
        _tell(study, trial, record)
        return record

    def _probe_front(
        self, study: Study, places: _Places, measurer: Measurer, records: list[TrialRecord]
    ) -> None:
        """The other corner of the front and its knee, as far as probes of them are worth it."""
        tried = {self._candidate(record): record for record in records if record.kind == "trial"}
        made = sum(record.sampler == FRONT for record in records)
        while self.front is not None and made < MOST_FRONT:
            aim = self.front.wanting(study, measurer.purse)
            if aim is None:
                return
            study.sampler = aim
            try:
                record = self._one(study, places, measurer, records, tried, FRONT)
            except Enough:
                return
            if record.kind == "trial":
                tried[self._candidate(record)] = record
            made += 1

    def _exhausted(self, tried: int, asked: int, trials: int) -> str:
        if tried >= len(self.bill):
            return "every candidate was tried"
        return "the sampler repeats itself" if asked >= self._most_asks(trials) else ""

    def _stop(self, study: Study, measurer: Measurer | Plain) -> Stop | None:
        """Why the calibrated search ends before its next proposal; None to go on."""
        if self.sampler != CALIBRATED or isinstance(measurer, Plain):
            return None
        outlook = self.own.outlook(study)
        if not outlook.history.probes:
            return None
        proposal = self.own.proposal(outlook)
        at = proposal.index if proposal is not None else outlook.incumbent
        return judged(outlook, proposal, measurer.purse(0 if at is None else at))

    def _ran(self, outlook: Outlook) -> int | None:
        """The posterior pick as a candidate that was measured itself, not as a twin of one."""
        pick = outlook.pick()
        if pick is None:
            return None
        if pick not in outlook.history.measured:
            twins = {int(i) for i in outlook.twins(pick)} & set(outlook.fitting)
            pick = min(twins, key=lambda i: (outlook.log_cost[i], i), default=outlook.incumbent)
        return None if pick is None else self._sober(outlook, pick)

    def _sober(self, outlook: Outlook, pick: int) -> int:
        """The pick with own knobs as today, each where that was measured too and is as good."""
        candidates = self.bill.candidates
        for name in candidates.extra:
            present = candidates.levels[name][0]
            plain = self.space.find({**self.space.params(pick), name: present})
            if plain is None or plain == pick or plain not in outlook.fitting:
                continue
            mean, _ = outlook.difference(np.asarray([plain], np.intp), pick)
            if mean[0] <= TIE:
                pick = plain
        return pick

    def _measure_again(
        self, study: Study, places: _Places, measurer: Measurer, records: list[TrialRecord]
    ) -> str:
        """Measure the pick and its rivals in turns; why that ended before the pick had its turn."""
        distributions = self._distributions()
        while True:
            finals = self._finals(self.outlook(study), records)
            index = finals.next()
            if index is None:
                return ""
            try:
                scored = measurer.again(index, finals.again.count(index))
            except Enough as enough:
                done = finals.pick in finals.again
                return "" if done else f"{enough}, before the pick could be run again"
            first = next(r for r in records if _is(r, self.space.params(index)))
            record = replace(
                _with_score(first, scored), number=len(records), kind="repeat",
                withdrawn=scored.value is None, sampler_state={},
            )  # fmt: skip
            if places.log:
                places.log.append(record)
            records.append(record)
            _add(study, record, distributions)


def _is(record: TrialRecord, params: Mapping[str, object]) -> bool:
    return record.kind == "trial" and record.params == params


def _with_score(record: TrialRecord, scored: Scored) -> TrialRecord:
    kind: Kind = "trial" if scored.value is not None else "failed"
    return replace(
        record, kind=kind, value=scored.value, constraints=scored.constraints,
        fits=scored.fits, reason=scored.reason, measured=scored.measured, oom=scored.oom,
        noise=scored.noise, disturbed=scored.disturbed, looks=scored.looks,
        unexplained=scored.unexplained,
    )  # fmt: skip


def _drop(study: Study, number: int) -> None:
    """A trial that was asked for and never measured."""
    from optuna.trial import TrialState

    trial = study.get_trials(deepcopy=False)[number]
    study._storage.set_trial_user_attr(trial._trial_id, DROPPED, True)  # noqa: FBT003, SLF001
    study.tell(number, state=TrialState.FAIL)


def explore_measured(  # noqa: PLR0913 - what a search is, each named
    bill: Bill,
    measurer: Measurer | Callable[[int], Scored],
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

    measurer: a plain function measures for nothing, and nothing is measured again. prior: what
    earlier runs observed (`past`); a resumed search must be given the same. `best` of the result
    is by the cost model's values, `pick` by what was measured. Raises InputError as `explore` does.
    """
    check_sampler(sampler)
    search = _MeasuredSearch(bill, objective, sampler, seed, prior)
    who = Plain(measurer) if callable(measurer) else measurer
    if run_dir is None:
        places = _Places(None, storage, study_name, job_key)
        return search.go(places, who, trials, resume=resume)
    space = search.priced.identity
    header = {"job_key": job_key, "score": search.score, "measured": "yes", "space": space}
    with TrialLog(run_dir, header, resume=resume) as log:
        places = _Places(log, storage, study_name, job_key)
        return search.go(places, who, trials, resume=resume)
