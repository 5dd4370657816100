"""A study whose trials are measured one by one, proposed by the same samplers.

The loop is that of `study`, with two differences: a trial's value comes from a measurement, and it
ends when the one who measures says so. Records are on the disk before the study hears of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from autotune.search.record import TrialLog, TrialRecord
from autotune.search.samplers import check_sampler
from autotune.search.study import Exploration, _Places, _Search, _tell, _with_state

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from optuna.study import Study

    from autotune.cost.model import Bill
    from autotune.search.record import Kind
    from autotune.search.selection import Objective


class Enough(Exception):  # noqa: N818 - not an error: no further measurement is wanted
    """Raised by the one who measures; the message says why the search stops."""


@dataclass(frozen=True, slots=True)
class Scored:
    """What measuring a candidate gave.

    value: what is minimised, None when the measurement broke. constraints: at most 0 where it
    fits. measured: seconds or bytes by part of the bill, for samplers that learn from them.
    """

    value: float | None
    constraints: dict[str, float]
    fits: bool
    reason: str
    measured: dict[str, float] = field(default_factory=dict)
    oom: bool = False


class _MeasuredSearch(_Search):
    """Trials are worth what `measure` says."""

    def go(
        self, places: _Places, measure: Callable[[int], Scored], trials: int, *, resume: bool
    ) -> Exploration:
        """Ask, measure and tell until enough candidates were measured."""
        study = places.study(resume=resume)
        distributions = self._distributions()
        records = self._restore(study, places.log, distributions)
        resumed = len(records)
        tried = {self._candidate(record): record for record in records if record.kind == "trial"}
        failed = {self._candidate(record) for record in records if record.kind == "failed"}
        next_sampler = self._sampler_maker(distributions)
        why = "probes"
        while len(tried) < trials:
            if len(tried) + len(failed) >= len(self.bill):
                why = "every candidate was tried"
                break
            if len(records) >= self._most_asks(trials):
                why = "the sampler repeats itself"
                break
            study.sampler = next_sampler(len(records))
            trial = study.ask(distributions)
            params = dict(trial.params)
            record = self._judge(params, len(records), tried)
            if record.kind == "trial":
                try:
                    scored = measure(self._candidate(record))
                except Enough as enough:
                    why = str(enough)
                    _drop(study, trial.number)
                    break
                record = _with_score(record, scored)
            record = _with_state(record, study, trial)
            if places.log:
                places.log.append(record)
            records.append(record)
            _tell(study, trial, record)
            if record.kind == "trial":
                tried[self._candidate(record)] = record
            if record.kind == "failed":
                failed.add(self._candidate(record))
        return self._result(tried, records, resumed, why)


def _with_score(record: TrialRecord, scored: Scored) -> TrialRecord:
    kind: Kind = "trial" if scored.value is not None else "failed"
    return replace(
        record, kind=kind, value=scored.value, constraints=scored.constraints,
        fits=scored.fits, reason=scored.reason, measured=scored.measured, oom=scored.oom,
    )  # fmt: skip


def _drop(study: Study, number: int) -> None:
    """A trial that was asked for and never measured."""
    from optuna.trial import TrialState

    study.tell(number, state=TrialState.FAIL)


def explore_measured(  # noqa: PLR0913 - what a search is, each named
    bill: Bill,
    measure: Callable[[int], Scored],
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
) -> Exploration:
    """Measure up to `trials` distinct candidates, in the order that a sampler proposes.

    `measure` is given a candidate's number and may raise `Enough`. `best` of the result is by the
    cost model's values; what was measured is in the records. Raises InputError as `explore` does.
    """
    check_sampler(sampler)
    search = _MeasuredSearch(bill, objective, sampler, seed)
    if run_dir is None:
        places = _Places(None, storage, study_name, job_key)
        return search.go(places, measure, trials, resume=resume)
    header = {"job_key": job_key, "score": search.score, "measured": "yes"}
    with TrialLog(run_dir, header, resume=resume) as log:
        places = _Places(log, storage, study_name, job_key)
        return search.go(places, measure, trials, resume=resume)
