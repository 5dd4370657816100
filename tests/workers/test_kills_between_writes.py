"""A worker or a leader is killed before any of its writes to the study: who comes next goes on.

Each is a real process that ends by SIGKILL at that write, so that nothing of it is undone.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import optuna
import pytest

from autotune.domain.errors import InputError
from autotune.search.measured import joining as joins
from autotune.search.measured.joining import Place, joining, leading, terms_of
from autotune.search.posterior.measurements import DROPPED, RECORD, history_of, is_dropped
from autotune.search.study import turns
from autotune.search.study.backends import close
from autotune.search.study.owner import Owner, place
from autotune.search.study.record import TrialRecord
from autotune.search.study.storage import joined_study, shared_journal
from autotune.search.study.turns import SharedStudy, TakenAwayError
from bench.many_hands.fake import Fake, bill_of, scored, search_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from autotune.search.measured.shared import SharedSearch

linux = pytest.mark.skipif(sys.platform != "linux", reason="it forks")
WRITES = (
    "create_new_study", "set_study_user_attr", "create_new_trial", "set_trial_param",
    "set_trial_user_attr", "set_trial_system_attr", "set_trial_state_values",
)  # fmt: skip
TRIALS = 2


def in_child(work: Callable[[], None], at: int = 0) -> tuple[int, int]:
    """Do it in a forked process that is killed before its write of that number, from 1.

    Its exit code, and how many writes it began.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read)
            _count_writes(write, at)
            work()
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as told:
        count = len(told.read())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), count


def _count_writes(told: int, at: int) -> None:
    count = [0]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            count[0] += 1
            os.write(told, b".")
            if count[0] == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return called

    for kind in (optuna.storages.JournalStorage, optuna.storages._CachedStorage):
        for name in WRITES:
            setattr(kind, name, counted(getattr(kind, name)))


@pytest.fixture(scope="module")
def search() -> SharedSearch:
    return search_of(bill_of(), "random")


@pytest.fixture(params=["journal", "sqlite"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    url = None if request.param == "journal" else f"sqlite:///{tmp_path / 'study.db'}"
    return Place(tmp_path / "run", url, "hands", "job")


def lead(search: SharedSearch, where: Place, *, resume: bool = False) -> None:
    with leading(search, where, {"version": "1"}, resume=resume):
        pass


def join(search: SharedSearch, where: Place, trials: int = TRIALS) -> None:
    study, _ = terms_of(where.run_dir, where.storage, where.name)
    with joining(search, study, where, Owner.here()) as (shared, log):
        search.work(shared, log, Fake(search.bill), trials)


def check_whole(search: SharedSearch, where: Place) -> None:
    """Nobody measures any more; every trial is told or given up; the record has each told one."""
    study = joined_study(run_dir=where.run_dir, storage=where.storage, name=where.name)
    trials = study.get_trials()
    assert all(trial.state.is_finished() for trial in trials)
    assert all((RECORD in t.user_attrs) != is_dropped(t) for t in trials)
    close(study._storage)
    with leading(search, where, {"version": "1"}, resume=True) as led:
        records = [record for record in led.log.records if record.kind == "trial"]
        assert {r.number for r in led.shared.records()} == {r.number for r in led.log.records}
    configs = [record.config for record in records]
    assert len(configs) == len(set(configs)) == TRIALS


@linux
@pytest.mark.slow
def test_a_leader_that_is_killed_while_it_begins_is_taken_for_what_it_is_and_followed(
    search: SharedSearch, where: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joins, "BEGIN_S", 0.0)
    code, writes = in_child(lambda: lead(search, where))
    assert (code, writes) == (0, 7)
    points = range(2, writes + 1)  # before the first there is no study
    for at in points if where.storage is None else points[1:2]:  # a database is slow to make
        url = where.storage and f"sqlite:///{tmp_path / f'{at}.db'}"
        here = Place(tmp_path / f"run-{at}", url, where.name, where.job_key)
        assert in_child(lambda: lead(search, here), at)[0] == -signal.SIGKILL  # noqa: B023
        with pytest.raises(InputError, match="has no terms yet") as caught:
            terms_of(here.run_dir, here.storage, here.name)
        assert "--resume" in str(caught.value.hint)
        lead(search, here, resume=True)
        assert in_child(lambda: join(search, here))[0] == 0  # noqa: B023
        check_whole(search, here)


@linux
@pytest.mark.slow
def test_a_worker_that_is_killed_before_any_of_its_writes_leaves_nothing_half_done(
    search: SharedSearch, tmp_path: Path
) -> None:
    first = Place(tmp_path / "run")
    lead(search, first)
    code, writes = in_child(lambda: join(search, first))
    assert code == 0
    assert writes > 10 * TRIALS
    for at in range(1, writes + 1):
        here = Place(tmp_path / f"run-{at}")
        lead(search, here)
        assert in_child(lambda: join(search, here), at)[0] == -signal.SIGKILL  # noqa: B023
        assert in_child(lambda: join(search, here))[0] == 0  # noqa: B023
        check_whole(search, here)


def test_who_joins_waits_for_a_leader_that_is_just_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, looks = Place(tmp_path), list[float]()
    journal = shared_journal(tmp_path / "study.log")
    study = optuna.create_study(storage=journal, study_name=here.name)

    def wait(seconds: float) -> None:
        looks.append(seconds)
        study.set_user_attr(joins.TERMS, [joins.BEGUN, {"version": "1"}][len(looks) - 1])
        study.set_user_attr(joins.JOB_KEY, "job")

    monkeypatch.setattr(joins.time, "sleep", wait)
    assert terms_of(here.run_dir, None, here.name)[1] == {"version": "1"}
    assert looks == [joins.LOOK_S] * 2


def gone(name: str = "gone") -> Owner:
    """A worker that was here and has ended."""
    return Owner(name, 1, "another start", place(), "here")


def test_who_was_half_given_up_and_tells_its_trial_after_all_is_believed(tmp_path: Path) -> None:
    """Who gave it up was killed between its two steps."""
    search = search_of(bill_of(), "calibrated")
    study = optuna.create_study(storage=shared_journal(tmp_path / "study.log"), study_name="s")
    worker = SharedStudy(study, Owner.here("silent"))
    trial = worker.ticket()
    study.sampler = search.calibrated
    worker.choose(trial, search.distributions)
    study._storage.set_trial_user_attr(trial._trial_id, DROPPED, value=True)
    assert search.calibrated.history(study).pending, "it goes on, for all that others know"
    index = search._candidates(study.get_trials())[0]
    told = search._record_of(dict(trial.params), trial.number, {})
    worker.finish(trial, scored(search.bill, index).on(told), [])
    assert search.calibrated.history(study).tried == {index}, "it would be measured twice"


def test_a_run_that_is_being_told_overturns_none_before_it_counts() -> None:
    search = search_of(bill_of(), "calibrated")
    index, space = 0, search.distributions

    def trial(state: optuna.trial.TrialState, seconds: float) -> optuna.trial.FrozenTrial:
        found = optuna.create_trial(
            state=state, params=search.space.params(index), distributions=space,
            value=1.0 if state == optuna.trial.TrialState.COMPLETE else None,
            user_attrs={"measured": {"compute": seconds}},
        )  # fmt: skip
        found.number = int(state == optuna.trial.TrialState.RUNNING)
        return found

    complete, running = optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.RUNNING
    before = [trial(complete, 2.0)]
    known = history_of(before, search.priced, set(space)).observed
    half_told = history_of([*before, trial(running, 1.0)], search.priced, set(space))
    assert half_told.observed == known
    assert half_told.pending == [index]


def record_of(number: int, x: int) -> TrialRecord:
    return TrialRecord(number, "trial", {"x": x}, float(x), {}, fits=True, reason="fits")


DISTRIBUTIONS = {"x": optuna.distributions.IntDistribution(0, 9)}


def test_numbers_that_others_draw_while_a_study_is_rebuilt_are_no_recorded_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = optuna.create_study(storage=shared_journal(tmp_path / "study.log"), study_name="s")
    leader, worker = (
        SharedStudy(study, Owner.here("leader")),
        SharedStudy(study, Owner.here("worker")),
    )
    tickets: list[optuna.trial.Trial] = []
    storage, numbers = study._storage, iter(range(9))
    create = storage.create_new_trial

    def and_a_ticket(*asked: Any, **named: Any) -> int:
        if next(numbers) == 1:
            tickets.append(worker.ticket())
        return create(*asked, **named)

    monkeypatch.setattr(storage, "create_new_trial", and_a_ticket)
    records = [record_of(0, 3), record_of(1, 4), record_of(3, 5)]
    leader.rebuild(records, DISTRIBUTIONS)
    assert tickets[0].number == 1
    assert leader.records() == records
    at = {t.number: t.user_attrs["record"]["number"] for t in study.trials if t.value is not None}
    assert at == {0: 0, 2: 1, 3: 3}, "each at its number where that is free"
    with pytest.raises(TakenAwayError):  # it would be told as trial 1, which the record has
        worker.choose(tickets[0], DISTRIBUTIONS)


def test_a_trial_that_its_worker_still_measures_is_left_to_it_when_the_study_is_rebuilt(
    tmp_path: Path,
) -> None:
    study = optuna.create_study(storage=shared_journal(tmp_path / "study.log"), study_name="s")
    leader, worker = (
        SharedStudy(study, Owner.here("leader")),
        SharedStudy(study, Owner.here("worker")),
    )
    trial = worker.ticket()
    worker.choose(trial, DISTRIBUTIONS)
    leader.rebuild([record_of(0, trial.params["x"])], DISTRIBUTIONS)
    assert len(study.trials) == 1
    worker.check_ours(trial)


def test_what_is_known_of_another_candidate_is_not_told_for_a_dead_worker(tmp_path: Path) -> None:
    """As where a study was lost and begun again: its numbers are those of older trials."""
    study = optuna.create_study(storage=shared_journal(tmp_path / "study.log"), study_name="s")
    dead = SharedStudy(study, gone())
    trial = dead.ticket()
    dead.choose(trial, DISTRIBUTIONS)
    other = record_of(0, (trial.params["x"] + 1) % 10)
    SharedStudy(study, Owner.here("here"), known=lambda: {0: other}).bury()
    (found,) = study.trials
    assert is_dropped(found)


def test_who_is_silent_at_its_turn_keeps_the_others_waiting_for_a_third_of_a_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = optuna.create_study(storage=shared_journal(tmp_path / "study.log"), study_name="s")
    here = SharedStudy(study, Owner.here("here"))
    busy = SharedStudy(study, Owner("busy", 1, "1", "another machine", "other"))
    silent = SharedStudy(study, Owner("silent", 1, "1", "another machine", "other"))
    now = [1000.0]
    monkeypatch.setattr(turns.time, "monotonic", lambda: now[0])
    chosen = busy.ticket()
    busy.choose(chosen, DISTRIBUTIONS)
    ticket = silent.ticket()
    here.watch()
    waited = 0.0
    while not here.bury():
        now[0] += 1.0
        waited += 1.0
        here.watch()
    assert turns.TURN_LEASE_S < waited <= turns.TURN_LEASE_S + 1.0
    with pytest.raises(TakenAwayError):
        silent.choose(ticket, DISTRIBUTIONS)
    busy.check_ours(chosen)  # who measures is given its whole lease


def test_who_died_while_it_gave_a_trial_back_did_not_die_of_its_candidate(tmp_path: Path) -> None:
    study = optuna.create_study(storage=shared_journal(tmp_path / "study.log"), study_name="s")
    here = SharedStudy(study, Owner.here("here"))
    for steps in (1, 0):  # of the two of giving back
        dead = SharedStudy(study, gone(f"gone-{steps}"))
        trial = dead.ticket()
        study.sampler = optuna.samplers.RandomSampler(seed=0)
        dead.choose(trial, DISTRIBUTIONS)
        if steps:
            study._storage.set_trial_user_attr(trial._trial_id, DROPPED, value=True)
        here.bury()
        assert is_dropped(study.trials[trial.number])
        assert here.deaths(trial.params) == 1 - steps
