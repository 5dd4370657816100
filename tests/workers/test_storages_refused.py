"""A storage that is away is waited for; one that is wrong, damaged or another's is named."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sqlite3
import time
from contextlib import closing
from copy import copy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import optuna
import pytest

from autotune.app.workers.executor import WorkerJob, WorkerState
from autotune.app.workers.lead import Crew
from autotune.app.workers.terms import readable
from autotune.domain.errors import InputError
from autotune.search.measured.joining import Place, joining, leading, terms_of
from autotune.search.study import backends
from autotune.search.study.backends import connect
from autotune.search.study.journal import JOB_KEY, JOB_NAME
from autotune.search.study.owner import Owner
from autotune.search.study.refusals import AGAIN, refused
from autotune.search.study.storage import joined_study, open_study, shared_journal, shared_study
from bench.many_hands.fake import bill_of, search_of
from bench.many_hands.servers import absent, postgresql, redis_server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class OperationalError(Exception):
    """As a driver raises it, where a server is not as it should be."""


def url_of(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'study.db'}"


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.pauses = 1000.0, list[float]()
        monkeypatch.setattr(backends.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(backends.time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def away(monkeypatch: pytest.MonkeyPatch, words: str, until: Callable[[], bool]) -> None:
    opened = backends._opened

    def tried(url: str) -> optuna.storages.BaseStorage:
        if until():
            return opened(url)
        raise OperationalError(words)

    monkeypatch.setattr(backends, "_opened", tried)


@pytest.mark.parametrize(
    "words",
    [
        "connection timeout expired",
        "[Errno -3] Temporary failure in name resolution",
        "FATAL:  sorry, too many clients already",
        "server closed the connection unexpectedly",
    ],
)
def test_who_joins_waits_for_a_server_that_is_away_says_so_once_and_joins(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, told = url_of(tmp_path), list[str]()
    optuna.create_study(storage=url, study_name="run")
    clock = Clock(monkeypatch)
    away(monkeypatch, words, lambda: clock.now >= 1300.0)
    study = joined_study(run_dir=None, storage=url, name="run", tell=told.append)
    assert study.study_name == "run"
    assert len(told) == 1
    assert words in told[0]
    assert "10.0 min at most" in told[0]
    assert clock.pauses[0] < clock.pauses[-1] == backends.PAUSES_S[-1]


@pytest.mark.parametrize(
    "words",
    [
        'connection to server at "db", port 5433 failed: Connection refused',
        'connection to server on socket "/run/.s.PGSQL.5432" failed: No such file or directory',
        "Error 111 connecting to db:6380. Connection refused.",
    ],
)
def test_who_joins_where_nothing_listens_waits_for_a_restart_and_no_longer(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, told = url_of(tmp_path), list[str]()
    optuna.create_study(storage=url, study_name="run")
    clock = Clock(monkeypatch)
    away(monkeypatch, words, lambda: False)
    asked: dict[str, Any] = {"run_dir": None, "storage": url, "name": "run", "tell": told.append}
    with pytest.raises(InputError, match=r"has not answered for 1[5-9]\.") as caught:
        joined_study(**asked)
    assert clock.now < 1020.0
    assert "correct the host and the port" in str(caught.value.hint)
    assert AGAIN in str(caught.value.hint)  # a search starts its own worker once more
    assert len(told) == 1
    assert "waiting for it, 15.0 s at most" in told[0]


def test_who_has_waited_for_ten_minutes_leaves_with_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    away(monkeypatch, "Connection refused", lambda: False)
    with pytest.raises(InputError, match="has not answered for 10") as caught:
        connect(url_of(tmp_path), backends.PATIENCE_S)
    assert clock.now == pytest.approx(1600.0, abs=3.0)
    assert "run the same command again" in str(caught.value.hint)
    ended = WorkerState.of_exit("one", 2, f"error: {caught.value.message} {caught.value.hint}")
    assert not ended.is_final
    assert WorkerState.of_exit("one", 2, "error: this worker cannot join the study").is_final


def test_an_outage_in_the_middle_of_a_search_is_told_once_and_so_is_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, told = Clock(monkeypatch), list[str]()
    back_at, words = clock.now + 1.0, "Connection refused"

    def answers() -> list[Any]:
        if clock.now < back_at:
            raise OperationalError(words)
        return []

    calm = backends.patient(SimpleNamespace(get_all_studies=answers), url_of(tmp_path), told.append)  # type: ignore[arg-type]
    assert calm.get_all_studies() == []
    assert told == []  # a second is no news
    back_at = clock.now + 120.0
    assert calm.get_all_studies() == []
    assert len(told) == 2
    assert "does not answer (Connection refused); waiting for it, 10.0 min at most" in told[0]
    assert told[1].endswith("answers again")
    assert calm.get_all_studies() == []
    assert len(told) == 2


@pytest.mark.parametrize(
    "words",
    [
        'FATAL:  password authentication failed for user "me"',
        'FATAL:  database "nosuch" does not exist',
        "failed to resolve host 'nohost.invalid': [Errno -2] Name or service not known",
        "FATAL:  no pg_hba.conf entry for host",
    ],
)
def test_a_wrong_url_is_refused_at_once_however_much_patience_there_is(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, told = Clock(monkeypatch), list[str]()
    away(monkeypatch, words, lambda: False)
    with pytest.raises(InputError, match="cannot be opened") as caught:
        connect(url_of(tmp_path), backends.PATIENCE_S, told.append)
    assert clock.pauses == told == []
    assert "AUTOTUNE_STORAGE" in str(caught.value.hint)


def test_a_leader_waits_where_it_goes_on_and_is_refused_at_once_where_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, told = url_of(tmp_path), list[str]()
    clock = Clock(monkeypatch)
    away(monkeypatch, "Connection refused", lambda: clock.now >= 1100.0)
    asked: dict[str, Any] = {"run_dir": tmp_path, "storage": url, "name": "run", "job_key": "a"}
    with pytest.raises(InputError, match="Connection refused") as caught:
        shared_study(**asked, resume=False, tell=told.append)
    assert "start the server" in str(caught.value.hint)
    assert clock.pauses == told == []
    assert shared_study(**asked, resume=True, tell=told.append).study_name == "run"
    assert len(told) == 1


@pytest.mark.parametrize("option", ["foo=1", "db=first"])
def test_an_option_that_redis_has_not_is_named(option: str) -> None:
    pytest.importorskip("redis")
    with pytest.raises(InputError, match=option.partition("=")[0]) as caught:
        connect(f"redis://127.0.0.1:1?{option}")
    assert "behind ? in the URL" in str(caught.value.hint)


def test_a_worker_that_left_over_an_outage_is_replaced_and_one_that_differs_is_not(
    tmp_path: Path,
) -> None:
    started, told = list[str](), list[str]()
    outage = refused("redis://db", OperationalError("Connection refused"), 600.0)
    said = {
        "first": f"error: {outage.message} hint: {outage.hint}",
        "second": "error: this worker cannot join the study: other code",
    }

    class Hands:
        def start(self, _: WorkerJob, name: str) -> None:
            started.append(name)

        def states(self) -> list[WorkerState]:
            names = zip(started, said.values(), strict=False)
            return [
                WorkerState.of_exit(name, 2, why) for name, why in names
            ] + [WorkerState(name, "running") for name in started[2:]]  # fmt: skip

        def stop(self) -> None:
            """Nothing runs."""

    crew = Crew(Hands(), WorkerJob(("worker",), tmp_path, "cpu"), 2, told.append)
    crew.start()
    assert [state.state for state in crew.watch()] == ["running"]
    assert len(started) == 3
    assert "has not answered" in told[0]
    assert "hint:" not in told[0]


# what a journal may hold that no Optuna writes, or another one
LINES = {
    "[1, 2]": "is not a line of an Optuna journal",
    "7": "is not a line of an Optuna journal",
    "[" * 100_000: "is not a line of an Optuna journal",
    '{"a": 1}': "cannot be replayed by Optuna",
    '{"op_code": "4", "worker_id": "x", "study_id": 0}': "cannot be replayed by Optuna",
    '{"op_code": 4, "worker_id": "x", "study_id": 0}': "cannot be replayed by Optuna",
    '{"op_code": 99, "worker_id": "x", "study_id": 0}': "of another Optuna: it has the operation",
}


@pytest.mark.parametrize(("line", "says"), LINES.items(), ids=range(len(LINES)))
def test_a_line_that_is_of_another_optuna_or_of_none_is_named_with_its_number(
    line: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "study.log"
    study = optuna.create_study(storage=shared_journal(path), study_name="s")
    with path.open("a") as file:
        file.write(f"{line}\n")
    for read in (lambda: shared_journal(path), study.get_trials):  # who comes, who is at work
        with pytest.raises(InputError, match=says) as caught:
            read()
        assert "study.log, line 2, " in caught.value.message
        assert "--resume" in str(caught.value.hint)


@pytest.mark.slow
def test_what_is_damaged_or_gone_in_redis_is_named_with_its_number(open_folder: Path) -> None:
    why = absent("redis")
    if why:
        pytest.skip(why)
    with redis_server(open_folder / "s") as (url, _):
        import redis

        client = redis.Redis.from_url(url)
        optuna.create_study(storage=connect(url), study_name="s").set_user_attr("a", 1)
        for at, line in enumerate(LINES, start=2):
            client.set(f"autotune:log:{at}", line)
        for at, says in enumerate(LINES.values(), start=2):
            client.set("autotune:log_number", at)
            with pytest.raises(InputError, match=f"entry {at}, {says}|entry {at}, is {says}"):
                connect(url)
            client.set(f"autotune:log:{at}", json.dumps({"op_code": 10, "worker_id": "x"}))
        client.delete("autotune:log:1")  # as a server does that is full
        with pytest.raises(InputError, match="entry 1, is gone") as caught:
            connect(url)
        assert "noeviction" in str(caught.value.hint)
        client.set("autotune:log_number", "many")
        with pytest.raises(InputError, match="how long its journal is"):
            connect(url)


def hurt(tmp_path: Path, *statements: str) -> str:
    with closing(sqlite3.connect(tmp_path / "study.db")) as file, file:
        for statement in statements:
            file.execute(statement)
    return url_of(tmp_path)


@pytest.mark.parametrize(
    ("statement", "lacks"),
    [
        ("ALTER TABLE studies RENAME TO gone", "it lacks studies"),
        ("DROP TABLE trial_values", "it lacks trial_values"),
        ("ALTER TABLE trials RENAME COLUMN state TO gone", "it lacks trials.state"),
        ("DROP TABLE version_info", "no such table: version_info"),
    ],
)
def test_a_database_that_lacks_a_table_or_a_column_is_named_and_gets_no_empty_one(
    statement: str, lacks: str, tmp_path: Path
) -> None:
    optuna.create_study(storage=url_of(tmp_path), study_name="s")
    url = hurt(tmp_path, statement)
    with pytest.raises(InputError, match=lacks) as caught:
        connect(url)
    assert "migration may have been interrupted" in str(caught.value.hint)
    with pytest.raises(InputError, match=lacks):  # still
        connect(url)


def test_a_table_that_goes_while_a_search_runs_is_named(tmp_path: Path) -> None:
    study = optuna.create_study(storage=connect(url_of(tmp_path)), study_name="s")
    hurt(tmp_path, "DROP TABLE trial_user_attributes")
    with pytest.raises(InputError, match="cannot read: no such table: trial_user_attributes"):
        study.add_trial(optuna.create_trial(value=1.0, user_attrs={"a": 1}))


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("UPDATE trial_user_attributes SET value_json='{'", "JSONDecodeError"),
        ("UPDATE trials SET state='ODD'", "LookupError"),
        ("UPDATE trial_params SET distribution_json='{}'", "KeyError"),
    ],
)
def test_what_a_database_holds_and_optuna_never_wrote_is_named(
    statement: str, says: str, tmp_path: Path
) -> None:
    study = optuna.create_study(storage=url_of(tmp_path), study_name="s")
    study.add_trial(optuna.create_trial(
        value=1.0, user_attrs={"a": 1}, params={"x": 1},
        distributions={"x": optuna.distributions.IntDistribution(0, 9)},
    ))  # fmt: skip
    url = hurt(tmp_path, statement)
    with pytest.raises(InputError, match=f"cannot be read: {says}") as caught:
        optuna.load_study(storage=connect(url), study_name="s").get_trials()
    assert "--resume" in str(caught.value.hint)


def test_a_study_that_is_deleted_under_a_worker_is_named(tmp_path: Path) -> None:
    study = optuna.create_study(storage=connect(url_of(tmp_path)), study_name="s")
    optuna.delete_study(storage=url_of(tmp_path), study_name="s")
    with pytest.raises(InputError, match="cannot be read"):
        study.set_user_attr("a", 1)


@pytest.mark.parametrize("told", ["x", {"a": 1}, {"number": "x", "kind": "trial", "params": {},
                                                  "value": 1.0}])  # fmt: skip
def test_a_trial_that_no_worker_told_so_is_named(told: Any, tmp_path: Path) -> None:
    search, place = search_of(bill_of(), "random"), Place(tmp_path / "run", None, "run", "job")
    with leading(search, place, {"version": "1"}, resume=False) as led:
        led.shared.study.add_trial(optuna.create_trial(value=1.0, user_attrs={"record": told}))
        with pytest.raises(InputError, match="cannot be read: ValueError: not "):
            led.shared.look()


@pytest.mark.parametrize("read", [lambda terms: terms["offers"], lambda terms: terms["x"].items()])
def test_terms_that_no_leader_wrote_are_named(read: Callable[[Any], Any]) -> None:
    with (
        pytest.raises(InputError, match="'run' says of its job is damaged") as caught,
        readable("run"),
    ):
        read({"x": 5})
    assert "--resume" in str(caught.value.hint)


@pytest.mark.parametrize("directions", [["maximize"], ["minimize", "minimize"]])
def test_a_study_that_autotune_did_not_make_is_not_joined_nor_led(
    directions: list[str], tmp_path: Path
) -> None:
    url = url_of(tmp_path)
    optuna.create_study(storage=url, study_name="run", directions=directions)
    with pytest.raises(InputError, match="autotune did not make"):
        joined_study(run_dir=None, storage=url, name="run")
    with pytest.raises(InputError, match="autotune did not make"):
        shared_study(run_dir=tmp_path, storage=url, name="run", job_key="a", resume=True)


@pytest.mark.parametrize("resume", [True, False])
def test_the_study_of_another_job_is_named_with_both_jobs(resume: bool, tmp_path: Path) -> None:
    url = url_of(tmp_path)
    asked: dict[str, Any] = {"storage": url, "name": "run", "resume": resume}
    shared_study(
        run_dir=tmp_path, storage=url, name="run", job_key="a", resume=False,
        marks={JOB_NAME: "theirs"},
    )  # fmt: skip
    for find in (
        lambda: shared_study(**asked, run_dir=tmp_path, job_key="b", marks={JOB_NAME: "ours"}),
        lambda: open_study(**asked, run_dir=None, job_key="b", job_name="ours"),
    ):
        with pytest.raises(InputError, match="of another job") as caught:
            find()
        assert "('theirs'), and this is 'ours'" in caught.value.message
        assert "--run" in str(caught.value.hint)
    study = optuna.load_study(storage=url, study_name="run")
    assert (study.user_attrs[JOB_KEY], study.user_attrs[JOB_NAME]) == ("a", "theirs")


def test_a_leader_names_its_job_in_the_study(tmp_path: Path) -> None:
    bill = bill_of()
    search, place = search_of(bill, "random"), Place(tmp_path / "run", None, "run", "job")
    with leading(search, place, {"version": "1"}, resume=False):
        study, _ = terms_of(place.run_dir, None, "run")
    assert study.user_attrs[JOB_NAME] == bill.job.name
    other = copy(search)
    other.priced = SimpleNamespace(identity="another")  # type: ignore[assignment]
    with (
        pytest.raises(InputError, match="another job or search space"),
        joining(other, study, place, Owner.here()),
    ):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["postgresql", "redis"])
def test_who_joins_while_the_server_is_down_joins_once_it_is_back(
    storage: str, open_folder: Path
) -> None:
    why = absent(storage)
    if why:
        pytest.skip(why)
    served, told = postgresql if storage == "postgresql" else redis_server, list[str]()
    with served(open_folder / "s") as (url, server):
        first = connect(url)
        optuna.create_study(storage=first, study_name="run")
        backends.close(first)
        server.kill()

        def tell(line: str) -> None:
            told.append(line)
            time.sleep(0.5)
            server.start()

        study = joined_study(run_dir=None, storage=url, name="run", tell=tell)
        assert study.study_name == "run"
        assert len(told) == 1
        backends.close(study._storage)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_shared_folder_without_locks_is_named_with_another_way_to_share(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = optuna.create_study(storage=shared_journal(tmp_path / "study.log"), study_name="s")

    def refuses(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuses)
    with pytest.raises(InputError, match="has no locks of files") as caught:
        study.add_trial(optuna.create_trial(value=1.0))
    assert "--storage postgresql" in str(caught.value.hint)
    monkeypatch.undo()
    study.add_trial(optuna.create_trial(value=2.0))
    assert [trial.value for trial in study.trials] == [2.0]


def test_a_driver_that_is_not_installed_is_answered_with_one_that_is_an_extra() -> None:
    absent = refused("postgresql+psycopg2://db/x", ModuleNotFoundError("", name="psycopg2"))
    assert "postgresql+psycopg://" in str(absent.hint)
    named = refused("postgresql+psycopg://db/x", ModuleNotFoundError("", name="psycopg"))
    assert "pip install 'psycopg[binary]'" in str(named.hint)


@pytest.mark.parametrize("option", ["ssl=true", "connect_timeout=x"])
def test_an_option_of_the_address_that_its_driver_refuses_is_no_damaged_database(
    option: str,
) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(
        InputError, match=r"cannot be opened: (invalid connection|bad value|could)"
    ) as caught:
        connect(f"postgresql+psycopg://me@127.0.0.1:1/tuning?{option}")
    assert "behind ? in the URL" in str(caught.value.hint)
    assert "migration" not in str(caught.value.hint)
