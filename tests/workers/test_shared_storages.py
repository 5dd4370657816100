"""Storages that several workers share: what is wrong with one is said, and nothing is lost."""

from __future__ import annotations

import errno
import sqlite3
import subprocess
import sys
from contextlib import closing
from shlex import quote
from typing import TYPE_CHECKING

import optuna
import pytest

from autotune.app.probing.tune import _resumed
from autotune.app.tune.tune import Options
from autotune.app.workers.lead import joined_by
from autotune.catalog.files import SCRATCH
from autotune.domain.answer.recommendation import Asked
from autotune.domain.errors import InputError
from autotune.domain.paths import near
from autotune.search.measured.joining import Place, joining, leading, terms_of, worker_folder
from autotune.search.study import backends
from autotune.search.study.backends import connect, with_driver
from autotune.search.study.owner import OWNER, Owner, place
from autotune.search.study.record import TrialRecord
from autotune.search.study.storage import shared_journal
from autotune.search.study.turns import BEAT, CHOSEN, PROBES, SharedStudy, TakenAwayError
from bench.many_hands.fake import Fake, bill_of, search_of
from bench.many_hands.servers import absent, postgresql, redis_server

if TYPE_CHECKING:
    from pathlib import Path

DISTRIBUTIONS = {"x": optuna.distributions.IntDistribution(0, 9)}


def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'study.db'}"


def change(tmp_path: Path, statement: str) -> None:
    with closing(sqlite3.connect(tmp_path / "study.db")) as file, file:
        file.execute(statement)


@pytest.mark.parametrize(
    ("statement", "named", "hint"),
    [
        ("UPDATE alembic_version SET version_num='v3.0.0.d'", "set up by Optuna 4.0.0", "upgrade"),
        ("UPDATE alembic_version SET version_num='v9.9.9'", "set up by Optuna 4", "pip install -U"),
        ("ALTER TABLE studies RENAME COLUMN study_name TO name", "cannot read", "migration"),
    ],
    ids=["older", "newer", "half migrated"],
)
def test_a_database_of_another_optuna_or_half_migrated_is_named_with_what_to_do(
    tmp_path: Path, statement: str, named: str, hint: str
) -> None:
    url = sqlite_url(tmp_path)
    optuna.create_study(storage=url, study_name="kept")
    change(tmp_path, "UPDATE version_info SET library_version='4.0.0'")
    change(tmp_path, statement)
    with pytest.raises(InputError, match=named) as caught:
        connect(url)
    assert hint in str(caught.value.hint)
    assert "nothing was lost" in str(caught.value.hint)


@pytest.mark.parametrize(
    "url", ["postgresql+psycopg://u:secret@127.0.0.1:9/db", "redis://:secret@127.0.0.1:9"]
)
def test_a_server_that_is_not_there_is_named_without_its_password(url: str) -> None:
    kind = "postgresql" if url.startswith("postgresql") else "redis"
    pytest.importorskip({"postgresql": "psycopg", "redis": "redis"}[kind])
    with pytest.raises(InputError, match="cannot be opened") as caught:
        connect(url)
    assert "secret" not in caught.value.message + str(caught.value.hint)
    assert "start the server" in str(caught.value.hint)


@pytest.mark.parametrize(
    "words", ["FATAL:  the database system is starting up", "LOADING Redis is loading the dataset"]
)
def test_a_server_that_is_just_coming_up_is_waited_for_at_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    answers = iter([ConnectionError(words)] * (backends.FIRST_TRIES + 2))
    opened, pauses = backends._opened, []

    def coming_up(url: str) -> optuna.storages.BaseStorage:
        for error in answers:
            raise error
        return opened(url)

    monkeypatch.setattr(backends, "_opened", coming_up)
    monkeypatch.setattr(backends.time, "sleep", pauses.append)
    assert connect(sqlite_url(tmp_path)).get_all_studies() == []
    assert len(pauses) == backends.FIRST_TRIES + 2
    monkeypatch.setattr(backends, "START_UP_S", 0.0)
    answers = iter([ConnectionError(words)])
    with pytest.raises(InputError, match="cannot be opened"):
        connect(sqlite_url(tmp_path))


def test_a_plain_postgresql_url_takes_the_driver_of_the_extra() -> None:
    assert with_driver("postgresql://u@h/d") == "postgresql+psycopg://u@h/d"
    assert with_driver("postgresql+pg8000://u@h/d") == "postgresql+pg8000://u@h/d"


@pytest.mark.slow
def test_three_processes_make_the_tables_of_a_new_database_at_once(tmp_path: Path) -> None:
    code = f"from autotune.search.study.backends import connect; connect({sqlite_url(tmp_path)!r})"
    started = [
        subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) for _ in range(3)
    ]
    ended = [process.communicate()[1].decode() for process in started]
    assert [process.returncode for process in started] == [0] * 3, ended


def test_a_line_that_a_killed_writer_left_half_is_cut_off_and_never_counts(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    study = optuna.create_study(storage=shared_journal(path), study_name="s")
    study.add_trial(optuna.create_trial(value=1.0))
    with path.open("ab") as file:
        file.write(b'{"op_code": 4, "stu')
    again = optuna.load_study(storage=shared_journal(path), study_name="s")
    assert len(again.trials) == 1
    again.add_trial(optuna.create_trial(value=2.0))
    assert [t.value for t in study.trials] == [1.0, 2.0]


def test_a_damaged_journal_is_named_with_how_it_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    optuna.create_study(storage=shared_journal(path), study_name="s")
    path.write_bytes(b"no journal\n" + path.read_bytes())
    with pytest.raises(InputError, match="line 1, is not a line of an Optuna journal") as caught:
        shared_journal(path)
    assert "--resume" in str(caught.value.hint)


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["postgresql", "redis"])
def test_an_outage_of_the_server_is_waited_out(storage: str, open_folder: Path) -> None:
    why = absent(storage)
    if why:
        pytest.skip(why)
    served = postgresql if storage == "postgresql" else redis_server
    with served(open_folder / "s") as (url, server):
        opened = connect(url)
        study = optuna.create_study(storage=opened, study_name="s")
        study.add_trial(optuna.create_trial(value=1.0))
        server.kill()
        restarted = subprocess.Popen(["sleep", "0.5"])
        restarted.wait()
        server.start()
        study.add_trial(optuna.create_trial(value=2.0))
        assert [t.value for t in study.trials] == [1.0, 2.0]
        backends.close(opened)


@pytest.mark.slow
def test_a_redis_server_that_forgot_the_study_is_named(open_folder: Path) -> None:
    why = absent("redis")
    if why:
        pytest.skip(why)
    with redis_server(open_folder / "s") as (url, _):
        study = optuna.create_study(storage=connect(url), study_name="s")
        import redis

        redis.Redis.from_url(url).flushall()
        with pytest.raises(InputError, match="has lost the study") as caught:
            study.get_trials()
        assert "--resume" in str(caught.value.hint)


def elsewhere(name: str) -> Owner:
    """A worker of another machine: nobody here can look whether its process lives."""
    return Owner(name, 1, "1", "another machine", "other")


def gone() -> Owner:
    """A worker that was here and has ended."""
    return Owner("gone", 1, "another start", place(), "here")


def pair(tmp_path: Path, lease_s: float) -> tuple[SharedStudy, SharedStudy]:
    path = tmp_path / "study.log"
    study = optuna.create_study(storage=shared_journal(path), study_name="s")
    other = optuna.load_study(storage=shared_journal(path), study_name="s")
    return (
        SharedStudy(study, Owner.here("here"), lease_s=lease_s, beat_s=0.02),
        SharedStudy(other, elsewhere("there"), lease_s=lease_s, beat_s=0.02),
    )


def test_a_silent_worker_of_another_machine_loses_its_trial_after_its_lease_and_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair(tmp_path, lease_s=2.0)
    trial = there.ticket()
    there.choose(trial, DISTRIBUTIONS)
    assert [t.number for t in here.pending()] == [trial.number]
    now = [1000.0]
    monkeypatch.setattr("autotune.search.study.turns.time.monotonic", lambda: now[0])
    here.watch()  # the other shows no life
    while not here.bury():
        assert now[0] <= 1002.0
        now[0] += 0.05
        here.watch()
    assert now[0] > 1002.0
    assert here.pending() == []
    with pytest.raises(TakenAwayError):
        there.check_ours(trial)


def test_what_a_dead_worker_measured_is_told_with_its_probes(tmp_path: Path) -> None:
    study = optuna.create_study(storage=shared_journal(tmp_path / "study.log"), study_name="s")
    probes = [{"key": "of the first", "status": "ok"}]
    there = SharedStudy(study, gone())
    trial = there.ticket()
    there.choose(trial, DISTRIBUTIONS)
    record = TrialRecord(0, "trial", dict(trial.params), 5.0, {}, fits=True, reason="fits")
    here = SharedStudy(
        study, Owner.here("here"), known=lambda: {0: record}, made=lambda: probes
    )  # fmt: skip
    here.bury()
    (told,) = study.trials
    assert told.value == 5.0
    assert told.user_attrs[PROBES] == probes, "who goes on would take the trial for unmeasured"


def test_what_a_worker_recorded_before_its_telling_failed_is_told_and_not_measured_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bill = bill_of()
    shared = Place(tmp_path / "run", None, "hands", "job")
    search, measurer = search_of(bill, "random"), Fake(bill)

    def refused(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with leading(search, shared, {"version": "1"}, resume=False) as led:
        study, _ = terms_of(shared.run_dir, None, shared.name)
        with joining(search, study, shared, gone()) as (own, log), monkeypatch.context() as faulty:
            faulty.setattr(SharedStudy, "_tell", refused)
            with pytest.raises(OSError, match="Input/output"):
                search.work(own, log, measurer, len(bill))
        study, _ = terms_of(shared.run_dir, None, shared.name)
        with joining(search, study, shared, Owner.here("next")) as (own, log):
            own.bury()
            assert [record.number for record in own.records()] == [0]
            search.work(own, log, measurer, 3)
        led.gather()
        tried = [record.number for record in led.log.records if record.kind == "trial"]
        assert len(tried) == len(measurer.measured) == len(set(measurer.measured)) == 3


def test_what_a_killed_worker_had_half_written_is_gone_once_its_search_is_led_again(
    tmp_path: Path,
) -> None:
    search, shared = search_of(bill_of(), "random"), Place(tmp_path / "run", None, "hands", "job")
    with leading(search, shared, {"version": "1"}, resume=False):
        pass
    half = worker_folder(shared.run_dir, "gone") / f".search.json.abcdefgh{SCRATCH}"
    half.parent.mkdir(parents=True)
    half.write_text("{")
    with leading(search, shared, {"version": "1"}, resume=True):
        assert not half.exists()


def test_a_worker_that_shows_life_keeps_its_trial(tmp_path: Path) -> None:
    here, there = pair(tmp_path, lease_s=60.0)  # on a busy machine a beat may take seconds
    with here, there:
        trial = there.ticket()
        there.choose(trial, DISTRIBUTIONS)
        count = here.pending()[0].system_attrs[BEAT]
        while here.pending()[0].system_attrs[BEAT] < count + 20:
            assert here.bury() == []
    there.check_ours(trial)


def test_after_an_outage_of_the_storage_every_lease_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair(tmp_path, lease_s=60.0)
    there.choose(there.ticket(), DISTRIBUTIONS)
    now = [1000.0]
    monkeypatch.setattr("autotune.search.study.turns.time.monotonic", lambda: now[0])
    here.watch()
    now[0] += 3600.0  # nobody could look meanwhile
    here.watch()
    assert here.bury() == []
    for _ in range(70):  # each look a moment after the last
        now[0] += 0.05
        here.watch()
    assert here.bury() == []
    here.lease_s = 1.0
    assert len(here.bury()) == 1


def test_who_was_stopped_itself_takes_nobody_for_dead_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair(tmp_path, lease_s=60.0)
    trial = there.ticket()
    there.choose(trial, DISTRIBUTIONS)
    now = [1000.0]
    monkeypatch.setattr("autotune.search.study.turns.time.monotonic", lambda: now[0])
    here.watch()
    now[0] += 75.0  # the machine slept; the other may have beaten all the time
    assert here.bury() == [], "it has not looked yet"
    here.watch()
    assert here.bury() == []
    there.check_ours(trial)


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0])
def test_a_clock_that_jumps_costs_no_living_worker_its_trial(
    jump_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    here, there = pair(tmp_path, lease_s=60.0)
    trial = there.ticket()
    there.choose(trial, DISTRIBUTIONS)
    now = time.time()
    here.watch()
    monkeypatch.setattr(time, "time", lambda: now + jump_s)
    here.watch()
    assert here.bury() == []
    there.check_ours(trial)


def test_nobody_asks_before_an_earlier_ticket_has_chosen(tmp_path: Path) -> None:
    here, there = pair(tmp_path, lease_s=60.0)
    first = there.ticket()
    order: list[str] = []
    import threading

    def second() -> None:
        here.ticket()
        order.append("asked")

    thread = threading.Thread(target=second)
    thread.start()
    while len(there.trials()) < 2:
        pass
    order.append("chosen")
    there.choose(first, DISTRIBUTIONS)
    thread.join(600.0)
    assert order == ["chosen", "asked"]


def test_what_is_chosen_while_a_database_answers_is_read_with_all_of_its_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database answers table by table, in an order that differs between processes.

    Here the parameters come first, and the peer chooses before the attributes are read.
    """
    import sqlalchemy
    from optuna.storages._rdb.models import TrialModel

    mapper = sqlalchemy.inspect(TrialModel)
    parameters_first = sorted(mapper.attrs, key=lambda prop: prop.key != "params")
    monkeypatch.setattr(mapper, "_prop_set", tuple(parameters_first))
    url = sqlite_url(tmp_path)
    study = optuna.create_study(storage=url, study_name="s")
    here = SharedStudy(study, Owner.here("here"))
    there = SharedStudy(optuna.load_study(storage=url, study_name="s"), elsewhere("there"))
    ticket = there.ticket()
    two = {name: optuna.distributions.IntDistribution(0, 9) for name in "xy"}
    chosen: list[str] = []

    def choose(*asked: object) -> None:
        if "FROM trial_system_attributes" in str(asked[2]) and not chosen:
            chosen.append("now")
            there.choose(ticket, two)

    engine = study._storage._backend.engine  # type: ignore[attr-defined]
    sqlalchemy.event.listen(engine, "before_cursor_execute", choose)
    pending = here.pending()
    assert chosen
    assert [trial.params.keys() for trial in pending] == [two.keys()]


def test_resuming_alone_leaves_the_trials_of_living_workers_alone(tmp_path: Path) -> None:
    from autotune.search.study.storage import of_a_peer

    study = optuna.create_study(storage=sqlite_url(tmp_path), study_name="s")
    alive, dead = Owner.here("alive"), Owner("dead", 2**22 + 1, "1", Owner.here().place, "here")
    for owner in (alive, dead):
        study._storage.set_trial_system_attr(study.ask()._trial_id, OWNER, owner.as_dict())
    study.ask()
    assert [of_a_peer(trial) for trial in study.get_trials()] == [True, False, False]
    assert CHOSEN not in study.get_trials()[0].system_attrs


@pytest.mark.parametrize(
    ("url", "typed"),
    [
        ("postgresql+psycopg://me@host/tuning", "postgresql+psycopg://me@host/tuning"),
        ("postgresql+psycopg://me:a-word@host/tuning", "URL"),
        ("postgresql+psycopg://host/tuning?user=me&password=a-word", "URL"),
    ],
)
def test_commands_to_join_and_to_go_on_name_the_storage_unless_it_holds_a_password(
    url: str, typed: str, tmp_path: Path
) -> None:
    place = Place(tmp_path / "run", url, "run")
    worker = "autotune worker --study run"
    stated = f"AUTOTUNE_STORAGE=URL {worker}" if typed == "URL" else f"{worker} --storage {url}"
    assert " ".join(joined_by(place)) == stated
    words = ("autotune", "tune", "job.yaml", "--score", "probe", "--storage", url)
    told = _resumed(Options(storage=url, asked=Asked(words, str(tmp_path))), tmp_path / "run")
    on = f"autotune tune job.yaml --score probe --run {near(tmp_path / 'run')} --resume"
    wanted = f"AUTOTUNE_STORAGE=URL {on}" if typed == "URL" else f"{on} --storage {quote(url)}"
    assert told == f"(cd {quote(str(tmp_path))} && {wanted})"
