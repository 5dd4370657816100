"""A study whose trials are measured one by one, proposed by the same samplers.

The loop is that of `study`, with these differences: a trial's value comes from a measurement; the
calibrated search asks before each one whether it is worth its price; in the end the pick, the best
by what all measurements say together, is measured once more. Records are on the disk before the
study hears of them, and everything that decides what comes next follows from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from autotune.search.measurements import DROPPED, history_of
from autotune.search.record import TrialLog, TrialRecord
from autotune.search.samplers import CALIBRATED, check_sampler
from autotune.search.stopping import Remaining, judged, remaining
from autotune.search.study import Exploration, _add, _Places, _Search, _tell, _with_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study

    from autotune.cost.model import Bill
    from autotune.search.acquisition import Outlook
    from autotune.search.billed import BilledCandidates
    from autotune.search.record import Kind
    from autotune.search.residuals import Observed
    from autotune.search.selection import Objective
    from autotune.search.stopping import Purse

CLOSE = 0.03  # relative: a runner-up this near to the pick is measured again as well
MOST_AGAIN = 6  # measurements made again, in all
Z80 = 1.2816  # half an 80 % interval
TIE = 0.01


class Enough(Exception):  # noqa: N818 - not an error: no further measurement is wanted
    """Raised by the one who measures; the message says why the search stops."""


@dataclass(frozen=True, slots=True)
class Scored:
    """What measuring a candidate gave.

    value: what is minimised, None when the measurement broke. constraints: at most 0 where it
    fits. measured: seconds or bytes by part of the bill, for samplers that learn from them; noise:
    sd of the log of those that were measured less well than usual.
    """

    value: float | None
    constraints: dict[str, float]
    fits: bool
    reason: str
    measured: dict[str, float] = field(default_factory=dict)
    oom: bool = False
    noise: dict[str, float] = field(default_factory=dict)


class Measurer(Protocol):
    """Who measures, and what it costs. Both calls that measure may raise `Enough`."""

    def measure(self, index: int) -> Scored:
        """Run a candidate."""

    def again(self, index: int) -> Scored:
        """Run one that was measured, in a fresh process."""

    def purse(self, index: int) -> Purse:
        """What measuring that candidate next costs, and what may be spent."""


@dataclass(frozen=True, slots=True)
class MeasuredExploration(Exploration):
    """What a search measured.

    pick: the candidate, among those that ran and fit, of the least posterior mean; None when none
    fits. ties: others that measurements cannot tell from it. confirmed: measured again. left: what
    another measurement could still bring; None when nothing was learned.
    """

    pick: int | None = None
    ties: tuple[int, ...] = ()
    confirmed: frozenset[int] = frozenset()
    left: Remaining | None = None
    outlook: Outlook | None = None


@dataclass(frozen=True, slots=True)
class _Callable:
    """A plain function as one who measures, for free and once."""

    call: Callable[[int], Scored]

    def measure(self, index: int) -> Scored:
        """Call it."""
        return self.call(index)


class _MeasuredSearch(_Search):
    """Trials are worth what is measured."""

    def __init__(
        self, bill: Bill, objective: Objective, sampler: str, seed: int,
        prior: Mapping[str, Sequence[Observed]] | None,
    ) -> None:  # fmt: skip
        super().__init__(bill, objective, sampler, seed)
        from autotune.search.billed import BilledCandidates
        from autotune.search.calibrated import CalibratedSampler

        self.prior = dict(prior or {})
        self.priced: BilledCandidates = BilledCandidates(bill, self.space, objective)
        self.own = CalibratedSampler(self.priced, self._distributions(), prior=self.prior)

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
        from autotune.search.acquisition import Outlook

        names = {axis.name for axis in self.space.axes}
        history = history_of(study.get_trials(deepcopy=False), self.priced, names)
        return Outlook(self.priced, history, self.prior)

    def go(
        self, places: _Places, measurer: Measurer | _Callable, trials: int, *, resume: bool
    ) -> MeasuredExploration:
        """Ask, measure and tell until it is enough; then measure the pick again."""
        study = places.study(resume=resume)
        distributions = self._distributions()
        records = self._restore(study, places.log, distributions)
        resumed = len(records)
        why = self._search(study, places, measurer, trials, records)
        confirmed: frozenset[int] = frozenset()
        if isinstance(measurer, _Callable):
            outlook = self.outlook(study)
        else:
            outlook, confirmed, late = self._confirm(study, places, measurer, records)
            why = "; ".join(filter(None, (why, late)))
        found = {self._candidate(r): r for r in records if r.kind == "trial"}
        base = self._result(found, records, resumed, why)
        pick = self._ran(outlook)
        return MeasuredExploration(
            **{name: getattr(base, name) for name in Exploration.__slots__},
            pick=pick, ties=_ties(outlook, pick), confirmed=confirmed,
            left=remaining(outlook) if outlook.history.probes else None, outlook=outlook,
        )  # fmt: skip

    def _search(
        self, study: Study, places: _Places, measurer: Measurer | _Callable, trials: int,
        records: list[TrialRecord],
    ) -> str:  # fmt: skip
        """Trials until something ends the search; what it was."""
        distributions = self._distributions()
        tried = {self._candidate(record): record for record in records if record.kind == "trial"}
        failed = {self._candidate(record) for record in records if record.kind == "failed"}
        next_sampler = self._sampler_maker(distributions)
        while len(tried) < trials:
            stop = self._exhausted(len(tried) + len(failed), len(records), trials)
            stop = stop or self._stop(study, measurer)
            if stop:
                return stop
            study.sampler = next_sampler(len(records))
            trial = study.ask(distributions)
            record = self._judge(dict(trial.params), len(records), tried)
            if record.kind == "trial":
                try:
                    record = _with_score(record, measurer.measure(self._candidate(record)))
                except Enough as enough:
                    _drop(study, trial.number)
                    return str(enough)
                except BaseException:
                    _drop(study, trial.number)
                    raise
            record = _with_state(record, study, trial)
            if places.log:
                places.log.append(record)
            records.append(record)
            _tell(study, trial, record)
            if record.kind == "trial":
                tried[self._candidate(record)] = record
            if record.kind == "failed":
                failed.add(self._candidate(record))
        return f"{trials} configurations were measured, which was the most allowed"

    def _exhausted(self, tried: int, asked: int, trials: int) -> str:
        if tried >= len(self.bill):
            return "every candidate was tried"
        return "the sampler repeats itself" if asked >= self._most_asks(trials) else ""

    def _stop(self, study: Study, measurer: Measurer | _Callable) -> str:
        """Why the calibrated search ends before its next proposal; empty to go on."""
        if self.sampler != CALIBRATED or isinstance(measurer, _Callable):
            return ""
        outlook = self.own.outlook(study)
        if not outlook.history.probes:
            return ""
        proposal = outlook.propose()
        at = proposal.index if proposal is not None else outlook.incumbent
        stop = judged(outlook, proposal, measurer.purse(0 if at is None else at))
        return stop.reason if stop is not None else ""

    def _ran(self, outlook: Outlook) -> int | None:
        """The posterior pick as a candidate that was measured itself, not as a twin of one."""
        pick = outlook.pick()
        if pick is None or pick in outlook.history.measured:
            return pick
        twins = {int(i) for i in outlook.twins(pick)} & set(outlook.fitting)
        return min(twins, key=lambda i: (outlook.log_cost[i], i), default=outlook.incumbent)

    def _confirm(
        self, study: Study, places: _Places, measurer: Measurer, records: list[TrialRecord]
    ) -> tuple[Outlook, frozenset[int], str]:
        """Measure the pick again until the pick is one that was; a near runner-up as well."""
        distributions = self._distributions()
        done = {self._candidate(r) for r in records if r.kind == "repeat" and _measured(r)}
        made = 0
        while True:
            outlook = self.outlook(study)
            todo = [i for i in self._contenders(outlook) if i not in done]
            if not todo or made >= MOST_AGAIN:
                return outlook, frozenset(done), ""
            for index in todo:
                try:
                    scored = measurer.again(index)
                except Enough as enough:
                    late = f"{enough}, before the pick could be run again"
                    sure = self._contenders(outlook)[0] in done
                    return self.outlook(study), frozenset(done), "" if sure else late
                first = next(r for r in records if _is(r, self.space.params(index)))
                record = replace(
                    _with_score(first, scored), number=len(records), kind="repeat",
                    withdrawn=scored.value is None, sampler_state={},
                )  # fmt: skip
                if places.log:
                    places.log.append(record)
                records.append(record)
                _add(study, record, distributions)
                done.add(index)
                made += 1

    def _contenders(self, outlook: Outlook) -> list[int]:
        """The pick, and the best of the others when it is near."""
        pick = self._ran(outlook)
        if pick is None:
            return []
        others = [i for i in outlook.fitting if i != pick]
        rival = min(others, key=lambda i: outlook.log_cost[i], default=pick)
        gap = float(outlook.log_cost[rival] - outlook.log_cost[pick])
        return [pick, rival] if rival != pick and gap <= CLOSE else [pick]


def _ties(outlook: Outlook, pick: int | None) -> tuple[int, ...]:
    """Measured candidates whose difference to the pick is within 1 % or its own 80 % interval."""
    if pick is None:
        return ()
    others = np.asarray([i for i in outlook.fitting if i != pick], np.intp)
    if not len(others):
        return ()
    mean, sd = outlook.difference(others, pick)
    near = mean <= np.maximum(TIE, Z80 * sd)
    order = np.argsort(mean[near], kind="stable")
    return tuple(int(i) for i in others[near][order])


def _is(record: TrialRecord, params: Mapping[str, object]) -> bool:
    return record.kind == "trial" and record.params == params


def _measured(record: TrialRecord) -> bool:
    """Whether a repeat was run again, and not merely proposed again."""
    return bool(record.measured) or record.oom or record.withdrawn


def _with_score(record: TrialRecord, scored: Scored) -> TrialRecord:
    kind: Kind = "trial" if scored.value is not None else "failed"
    return replace(
        record, kind=kind, value=scored.value, constraints=scored.constraints,
        fits=scored.fits, reason=scored.reason, measured=scored.measured, oom=scored.oom,
        noise=scored.noise,
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
    who = _Callable(measurer) if callable(measurer) else measurer
    if run_dir is None:
        places = _Places(None, storage, study_name, job_key)
        return search.go(places, who, trials, resume=resume)
    header = {"job_key": job_key, "score": search.score, "measured": "yes"}
    with TrialLog(run_dir, header, resume=resume) as log:
        places = _Places(log, storage, study_name, job_key)
        return search.go(places, who, trials, resume=resume)
