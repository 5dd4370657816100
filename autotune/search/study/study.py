"""Exploring priced candidates as an Optuna study, with a record that outlives the process.

The loop: ask the sampler, look the proposal up in the bill, write the record, tell the study. While
nothing is measured, the calibrated sampler's proposals do not depend on what it is told: those are
looked up and written together, and Optuna is loaded only for a storage of the user's.
An infeasible candidate is a complete trial with positive constraints, never a failed one. A
combination that is no candidate is told with the number of parameters by which it misses, and a
repeat with what is known; neither counts as a trial.
"""

from __future__ import annotations

from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.domain.errors import InputError
from autotune.frozen import dataclass
from autotune.search.axes import ParameterSpace
from autotune.search.selection import Objective, score_name, scores, violations
from autotune.search.study.journal import OTHER_SPACE
from autotune.search.study.record import TrialRecord
from autotune.search.study.samplers import CALIBRATED, check_sampler, sampler_maker
from autotune.search.study.storage import (
    finished_trial,
    of_a_peer,
    stored,
    tell,
    with_sampler_state,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study

    from autotune.cost.bill import Bill
    from autotune.search.billed import BilledCandidates
    from autotune.search.posterior.kernel import Observed
    from autotune.search.study.calibrated import CalibratedSampler
    from autotune.search.study.record import TrialLog
    from autotune.search.study.storage import StudyStore

ASKS_PER_TRIAL = 10  # proposals at most, repeats and invalid ones included, for each trial
SLOW_ASKS_PER_TRIAL = 3  # for gp, whose proposals take half a second
SPARE_ASKS = 100
TOGETHER = 500  # modelled trials written at once: what a kill may cost of a search of many
FARTHEST = 1e6  # violations beyond this are cut: no sampler needs to tell them apart


@dataclass(frozen=True, slots=True)
class Exploration:
    """What a search tried.

    best: candidate of the best feasible trial; None when none is feasible.
    tried: candidates of all trials, in order. resumed: records that were there before.
    """

    best: int | None
    tried: tuple[int, ...]
    records: tuple[TrialRecord, ...]
    resumed: int
    score: str
    sampler: str
    stopped_because: str

    @property
    def trials(self) -> int:
        """Distinct candidates that were evaluated."""
        return len(self.tried)


def explore(  # noqa: PLR0913 - what a search is, each named
    bill: Bill,
    *,
    objective: Objective = "cost",
    sampler: str = CALIBRATED,
    trials: int = 40,
    seed: int = 0,
    run_dir: Path | None = None,
    storage: str | None = None,
    study_name: str = "autotune",
    job_key: str = "",
    resume: bool = False,
    on_trial: Callable[[TrialRecord], None] | None = None,
) -> Exploration:
    """Try up to `trials` distinct candidates, proposed by a sampler and scored by the bill.

    With a run folder, every finished trial is on the disk before `on_trial` hears of it, and
    `resume` goes on after the last one. The same seed gives the same trials, resumed or not.
    Raises InputError for an unknown sampler, a folder or storage of another job, or one that
    cannot be opened.
    """
    check_sampler(sampler)
    search = Search(bill, objective, sampler, seed)
    header = {"job_key": job_key, "score": search.score}
    with stored(run_dir, header, storage, study_name, bill.job.name, resume=resume) as store:
        return search.run(store, trials, resume, on_trial)


class Search:
    """The candidates as parameters, and what a proposal is worth.

    prior: what earlier runs observed, for the calibrated sampler.
    """

    def __init__(
        self, bill: Bill, objective: Objective, sampler: str, seed: int,
        prior: Mapping[str, Sequence[Observed]] | None = None,
    ) -> None:  # fmt: skip
        self.bill = bill
        self.objective: Objective = objective
        self.sampler = sampler
        self.seed = seed
        self.prior = dict(prior or {})
        self.score = score_name(bill, objective)
        self.space = ParameterSpace(bill.candidates)
        self.values = scores(bill, objective)
        self.memory, self.disk = violations(bill)
        finite = self.values[np.isfinite(self.values)]
        self.worst = float(finite.max(initial=0.0))

    @cached_property
    def priced(self) -> BilledCandidates:
        """The candidates as the calibrated sampler sees them."""
        from autotune.search.billed import BilledCandidates

        return BilledCandidates(self.bill, self.space, self.objective)

    @cached_property
    def calibrated(self) -> CalibratedSampler:
        """The calibrated sampler; it keeps its fit from one proposal to the next."""
        from autotune.search.study.calibrated import CalibratedSampler

        return CalibratedSampler(self.priced, self.distributions, prior=self.prior)

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """The fixed superset of every parameter's values."""
        from optuna.distributions import CategoricalDistribution, IntDistribution

        return {
            axis.name: IntDistribution(0, len(axis.values) - 1)
            if axis.ordinal
            else CategoricalDistribution(axis.values)
            for axis in self.space.axes
        }

    def run(
        self,
        store: StudyStore,
        trials: int,
        resume: bool,  # noqa: FBT001 - internal
        on_trial: Callable[[TrialRecord], None] | None,
    ) -> Exploration:
        """Propose and tell until enough candidates were tried, or nothing new comes."""
        records, more = self._proposals(store, resume=resume)
        resumed = len(records)
        tried = {self._candidate(record): record for record in records if record.kind == "trial"}
        failed = sum(record.kind == "failed" for record in records)
        most_asks = self._most_asks(trials)
        why = f"all {trials} trials were made"
        while len(tried) < trials:
            if len(tried) + failed >= len(self.bill):
                why = "every candidate was tried"
                break
            if len(records) >= most_asks:
                why = "the sampler repeats itself"
                break
            made = more(min(trials - len(tried), most_asks - len(records), TOGETHER), tried)
            for record in made:
                if record.kind == "trial":
                    tried[self._candidate(record)] = record
                failed += record.kind == "failed"
                if on_trial is not None:
                    on_trial(record)
            if made[-1].kind == "repeat" and self.sampler == CALIBRATED:
                why = "everything worth trying was tried"
                break
        return self._result(tried, records, resumed, why)

    def _proposals(
        self, store: StudyStore, *, resume: bool
    ) -> tuple[list[TrialRecord], Callable[[int, dict[int, TrialRecord]], list[TrialRecord]]]:
        """The records there are, and what adds the next ones to them: at most so many."""
        known = store.log.records if store.log else []
        if self.sampler == CALIBRATED and not store.storage and not any(r.measured for r in known):
            return self._in_order(store)
        study = store.study(resume=resume)
        records = self._restore(study, store.log)
        next_sampler = self._sampler_maker()

        def more(most: int, tried: dict[int, TrialRecord]) -> list[TrialRecord]:
            study.sampler = next_sampler(len(records))
            made = self._add_modelled(study, store.log, records, most)
            return made or [self._try_next(study, store.log, records, tried)]

        return records, more

    def _in_order(
        self, store: StudyStore
    ) -> tuple[list[TrialRecord], Callable[[int, dict[int, TrialRecord]], list[TrialRecord]]]:
        """The same where nothing is measured: the order of the model, whatever is told of it.

        No sampler is asked, so Optuna is not loaded; the journal is written for it.
        """
        log, records = store.log, list(store.log.records) if store.log else []
        journal = store.journal(self.space.axes, self.priced.identity)
        journal.add(records)
        known = {self.space.find(record.params) for record in records}
        order = (index for index in self.priced.order() if index not in known)

        def more(most: int, tried: dict[int, TrialRecord]) -> list[TrialRecord]:
            made = [
                self._record_of(self.space.params(index), number, ())
                for number, index in enumerate(islice(order, most), start=len(records))
            ] or [self._record_of(self.space.params(0), len(records), tried)]
            if log:
                log.append(*made)
            records.extend(made)
            journal.add(made)
            return made

        return records, more

    def _add_modelled(
        self, study: Study, log: TrialLog | None, records: list[TrialRecord], most: int
    ) -> list[TrialRecord]:
        """What the calibrated sampler proposes whatever it is told: one write, then the study."""
        if self.sampler != CALIBRATED:
            return []
        made = [
            self._record_of(self.space.params(index), number, ())
            for number, index in enumerate(self.calibrated.modelled(study, most), len(records))
        ]
        if log and made:
            log.append(*made)
        records += made
        study.add_trials(finished_trial(record, self.distributions) for record in made)
        return made

    def _try_next(
        self, study: Study, log: TrialLog | None, records: list[TrialRecord],
        tried: Collection[int],
    ) -> TrialRecord:  # fmt: skip
        """The sampler's next proposal, looked up, written and told."""
        trial = study.ask(self.distributions)
        record = self._record_of(dict(trial.params), len(records), tried)
        record = with_sampler_state(record, study, trial)
        if log:
            log.append(record)
        records.append(record)
        tell(study, trial, record)
        return record

    def _result(
        self, tried: dict[int, TrialRecord], records: list[TrialRecord], resumed: int, why: str
    ) -> Exploration:
        fitting = [index for index, record in tried.items() if record.fits]
        best = min(fitting, key=lambda i: (self.values[i], self.bill.duration_s[i]), default=None)
        return Exploration(
            best=best,
            tried=tuple(tried),
            records=tuple(records),
            resumed=resumed,
            score=self.score,
            sampler=self.sampler,
            stopped_because=why,
        )

    def _most_asks(self, trials: int) -> int:
        each = SLOW_ASKS_PER_TRIAL if self.sampler == "gp" else ASKS_PER_TRIAL
        return each * trials + SPARE_ASKS

    def _sampler_maker(self) -> Callable[[int], BaseSampler]:
        """The sampler for the n-th proposal."""
        if self.sampler != CALIBRATED:
            return sampler_maker(self.sampler, self.seed)
        return lambda _number: self.calibrated

    def _candidate(self, record: TrialRecord) -> int:
        """The candidate of a recorded trial. Raises InputError when this space has none."""
        try:
            found = self.space.find(record.params)
        except (KeyError, ValueError):
            found = None
        if found is None or self._config_text(found) != record.config:
            msg = f"trial {record.number} of the record is not a candidate of this search space"
            raise InputError(msg, OTHER_SPACE)
        return found

    def _config_text(self, index: int) -> str:
        return self.bill.candidates.config(index).key

    def _record_of(
        self, params: dict[str, Any], number: int, tried: Collection[int]
    ) -> TrialRecord:
        """What a proposal is worth."""
        index = self.space.find(params)
        if index is None:
            away = self.space.distance(params)
            return TrialRecord(
                number, "invalid", params, self.worst,
                {"memory": float(away), "disk": float(away)},  # every trial has the same names
                fits=False,
                reason=f"no candidate: {away} to change", sampler=self.sampler,
            )  # fmt: skip
        value = float(self.values[index])
        memory, disk = float(self.memory[index]), float(self.disk[index])
        offer, config = self.bill.candidates.offer(index).label, self._config_text(index)
        if not np.isfinite([value, memory, disk]).all():
            return TrialRecord(
                number, "failed", params, None, {}, fits=False,
                reason="the cost model gave no finite figure", offer=offer, config=config,
                sampler=self.sampler,
            )  # fmt: skip
        constraints = {"memory": min(memory, FARTHEST), "disk": min(disk, FARTHEST)}
        fits = memory <= 0 and disk <= 0
        reason = "fits" if fits else "memory" if memory > 0 else "disk"
        return TrialRecord(
            number, "repeat" if index in tried else "trial", params, value, constraints,
            fits=fits, reason=reason, offer=offer, config=config, sampler=self.sampler,
        )  # fmt: skip

    def _restore(self, study: Study, log: TrialLog | None) -> list[TrialRecord]:
        """Bring record and study to the same trials; the record is what counts."""
        from optuna.trial import TrialState

        known: dict[int, TrialRecord] = {}
        for trial in study.get_trials(deepcopy=False):
            if not trial.state.is_finished():
                if not of_a_peer(trial):  # its process died before the end
                    study.tell(trial.number, state=TrialState.FAIL)
            elif "record" in trial.user_attrs:
                record = TrialRecord.of(trial.user_attrs["record"])
                known[record.number] = record
        if log is None:
            return [known[number] for number in sorted(known)]
        study.add_trials(
            finished_trial(record, self.distributions)
            for record in log.records
            if record.number not in known
        )
        last = max((record.number for record in log.records), default=-1)
        unwritten = [known[number] for number in sorted(known) if number > last]
        if unwritten:
            log.append(*unwritten)
        return list(log.records)
