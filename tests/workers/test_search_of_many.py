"""`tune --score probe --workers N` on a machine that answers from a formula."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import optuna
import pytest
from simulatedmachine import TINY, Machine, options_of, search, step_of
from waiting import until

from autotune.app.job.load import load_job
from autotune.app.probing.figures import short
from autotune.app.probing.plan import Ground, local_bill
from autotune.app.probing.probe import Prober
from autotune.app.probing.study import StudySettings
from autotune.app.workers import lead
from autotune.app.workers import terms as terms_of_study
from autotune.app.workers.executor import LocalExecutor, WorkerState
from autotune.app.workers.join import KNOWN_PROBES, LEFT, LEFT_FILE, leave, reasons, work
from autotune.app.workers.lead import probe_by_workers
from autotune.app.workers.terms import checked, ground_of, terms_of
from autotune.cli.commands.worker import worker
from autotune.domain.errors import InputError, Interrupted, NoLocalDevice
from autotune.domain.paths import near
from autotune.pricing import Pricing
from autotune.probe import device as devices
from autotune.probe.machine.starts import remember
from autotune.probe.outcomes import MAKE_ROOM
from autotune.probe.record import PROBES_FILE, read_records
from autotune.search.measured.joining import TERMS, Place, leading
from autotune.search.measured.joining import terms_of as study_and_terms
from autotune.search.measured.measurer import End
from autotune.search.measured.shared import SharedSearch, Task
from autotune.search.study.record import TRIALS_FILE, TrialRecord
from autotune.search.study.storage import shared_study
from autotune.space.enumerate import enumerate_candidates
from autotune.space.file import load_space

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.app.probing.study import Probed
    from autotune.app.workers.executor import WorkerJob

pytestmark = pytest.mark.usefixtures("home")

HANDS = Path(__file__).with_name("hands.py")
linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are watched through /proc")


@dataclass
class FakeHands:
    """Processes of this machine that measure by a formula."""

    inner: LocalExecutor = field(default_factory=LocalExecutor)
    after_start: Callable[[LocalExecutor], None] = lambda _: None
    runs: Path | None = None  # of a machine that has not the leader's folder
    together: int = 0  # how many have to be there before any of them measures

    def start(self, job: WorkerJob, name: str) -> None:
        url = job.environment.get("AUTOTUNE_STORAGE", "")
        folder = "" if self.runs else str(job.folder)
        words = (sys.executable, str(HANDS), folder, url, job.folder.name)
        there = {"AUTOTUNE_RUNS": str(self.runs)} if self.runs else {}
        there["HANDS_TOGETHER"] = str(self.together)
        changed = replace(job, argv=words, environment={**job.environment, **there})
        self.inner.start(changed, name)
        self.after_start(self.inner)

    def states(self) -> list[WorkerState]:
        return self.inner.states()

    def stop(self) -> None:
        self.inner.stop()


def ground() -> Ground:
    job = load_job(TINY, set_values={"compile": "off"})
    space = load_space(None)
    calibration = Pricing.learned(job).calibration
    candidates = enumerate_candidates(job, space).candidates
    bill = local_bill(job, candidates, space, calibration, job.offers)
    return Ground(job, space, calibration, job.offers[0], job.offers, exact=True, bill=bill)


def many(
    folder: Path, hands: FakeHands | None = None, *, resume: bool = False,
    storage: str | None = None, workers: int = 2, told: list[str] | None = None,
) -> Probed:  # fmt: skip
    study = StudySettings(folder, "job", storage=storage, resume=resume)
    options = replace(options_of(Machine()), workers=workers)
    announce = (lambda _: None) if told is None else told.append
    return probe_by_workers(
        ground(), devices.cpu(), options, study, announce, hands or FakeHands()
    )  # fmt: skip


def pick_s(found: Probed) -> float:
    assert found.explored.pick is not None
    return step_of(found.bill.candidates.config(found.explored.pick).as_dict())


def searched(folder: Path) -> list[str]:
    """The configurations that were measured to the end, as the record has them."""
    lines = (folder / TRIALS_FILE).read_text().splitlines()
    return [r["config"] for r in map(json.loads, lines) if r["kind"] == "trial"]


@pytest.mark.slow
def test_two_workers_find_what_one_finds_and_confirm_it(tmp_path: Path) -> None:
    found = many(tmp_path / "run", FakeHands(together=2))
    alone = search(found.bill, Machine(), tmp_path / "alone")
    assert pick_s(found) <= pick_s(alone) * 1.003
    assert found.explored.pick in found.explored.confirmed
    tried = searched(tmp_path / "run")
    assert len(tried) == len(set(tried)) == found.explored.trials
    owners = {path.parent.name for path in (tmp_path / "run" / "workers").glob("*/trials.jsonl")}
    assert len(owners) == 2


@pytest.mark.slow
def test_workers_that_share_nothing_but_the_storage_tell_their_probes_through_it(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    found = many(tmp_path / "run", FakeHands(runs=tmp_path / "elsewhere"), storage=url)
    assert not list((tmp_path / "run").glob("workers/*/trials.jsonl"))
    assert list((tmp_path / "elsewhere" / "run").glob("workers/*/trials.jsonl"))
    assert len(searched(tmp_path / "run")) == found.explored.trials
    assert len(read_records(tmp_path / "run" / PROBES_FILE)) == len(found.records)
    assert found.rows[0].index == found.explored.pick


@linux
@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced_and_its_configuration_probed_by_another(
    tmp_path: Path,
) -> None:
    told: list[str] = []

    def kill_first(local: LocalExecutor) -> None:
        if len(local._started) == 2:
            process, job = next(iter(local._started.values()))
            thread = threading.Thread(target=kill_when_busy, args=(process, job.folder))
            thread.start()

    found = many(tmp_path / "run", FakeHands(after_start=kill_first), told=told)
    assert any("killed by signal 9" in line for line in told)
    assert not list((tmp_path / "run").glob("workers/*/probing/*")), "what its probes left"
    assert "2 workers, and 1 cpu here: probes take turns" in told
    tried = searched(tmp_path / "run")
    assert len(tried) == len(set(tried))
    assert found.explored.pick in found.explored.confirmed


def until_probed(folder: Path) -> None:
    """Wait for the first probe."""
    until(lambda: any(folder.glob("workers/*/probes.jsonl")))


def kill_when_busy(process: subprocess.Popen[bytes], folder: Path) -> None:
    until_probed(folder)
    left = folder / "workers" / "killed" / "probing" / "session-killed"
    left.mkdir(parents=True)
    (left / ".lock").touch()
    (left / "checkpoint").touch()
    os.kill(process.pid, signal.SIGKILL)


@linux
@pytest.mark.slow
def test_a_search_whose_leader_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from test_search_of_many import many\nfrom pathlib import Path\n"
        f"many(Path({str(folder)!r}))\n"
    )
    path = os.pathsep.join((str(HANDS.parent), os.environ.get("PYTHONPATH", "")))
    leader = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path})
    until_probed(folder)
    leader.kill()
    leader.wait()
    found = many(folder, resume=True)
    tried = searched(folder)
    assert len(tried) == len(set(tried)) == found.explored.trials
    assert found.explored.pick in found.explored.confirmed


@pytest.mark.parametrize("left_at_look", [0, 3])
def test_a_leader_without_workers_believes_the_one_that_left_because_it_was_over(
    left_at_look: int, tmp_path: Path
) -> None:
    """Also one that left before this leader came."""
    study = shared_study(
        run_dir=tmp_path, storage=None, name="run", job_key="job", resume=False,
    )  # fmt: skip
    looks, asked = 0, terms()

    def depart() -> None:
        if looks == left_at_look:
            leave(shared, tmp_path / "workers" / "somebody", asked, "nothing better is left")

    def look() -> tuple[list[Any], list[Any]]:
        nonlocal looks
        looks += 1
        depart()
        assert looks < 9, "it waits for another worker"
        return [], []

    shared: Any = SimpleNamespace(study=study, bury=list, look=look)
    depart()
    led = SimpleNamespace(shared=shared, gather=int)
    undecided = SimpleNamespace(decide=lambda *_: Task("search"), at_work=list)
    crew = SimpleNamespace(count=0, watch=list)
    news = lead.News(lambda _: None, "", waits=True)
    pace = lead.Pace(poll_s=0.0, quiet_s=0.0)
    left = partial(reasons, shared, tmp_path, asked)
    end = lead._followed(led, undecided, SimpleNamespace(bill=[]), crew, news, pace, left)  # type: ignore[arg-type]
    assert end == Task("end", "nothing better is left")


def test_who_left_a_search_of_fewer_probes_is_not_believed_of_one_of_more(tmp_path: Path) -> None:
    place = Place(tmp_path, None, "run", "job")
    own = ground()
    search_of = SharedSearch(own.bill, "cost", "calibrated", 0, {})
    few, more = (
        terms_of(own, options_of(Machine(), probes=probes), objective="cost", sampler="calibrated",
                 seed=0, job_key="job", prior=None)
        for probes in (2, 7)
    )  # fmt: skip
    with leading(search_of, place, few, resume=False) as led:
        leave(led.shared, tmp_path / "workers" / "somebody", few, "its probes are spent")
        assert reasons(led.shared, tmp_path, few) == ["its probes are spent"]
    with leading(search_of, place, more, resume=True) as led:
        assert reasons(led.shared, tmp_path, more) == []
    with leading(search_of, place, more, resume=True) as led:  # the one before was killed so early
        assert reasons(led.shared, tmp_path, more) == []


def test_who_left_is_believed_though_a_leader_was_killed_when_it_had_cleared_the_journal(
    tmp_path: Path,
) -> None:
    place, own = Place(tmp_path, None, "run", "job"), ground()
    search_of = SharedSearch(own.bill, "cost", "calibrated", 0, {})
    asked, folder = terms(), tmp_path / "workers" / "somebody"
    folder.mkdir(parents=True)
    with leading(search_of, place, asked, resume=False) as led:
        leave(led.shared, folder, asked, "nothing better is left")
    for _ in range(2):  # the first one ends as soon as it leads
        with leading(search_of, place, asked, resume=True) as led:
            attributes = led.shared.study.user_attrs
            assert not any(name.startswith(LEFT) for name in attributes), "written anew"
            said = reasons(led.shared, tmp_path, json.loads(json.dumps(asked)))
            assert said == ["nothing better is left"]
    (folder / LEFT_FILE).write_text("{")
    with leading(search_of, place, asked, resume=True) as led:
        assert reasons(led.shared, tmp_path, asked) == []


def test_the_best_are_measured_again_side_by_side_and_only_behind_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bill = ground().bill
    own = SharedSearch(bill, "cost", "calibrated", 0, {})
    records = [
        TrialRecord(index, "trial", own.space.params(index), 1.0, {}, fits=True, reason="fits",
                    measured={"compute": 1.0}, config=bill.candidates.config(index).key)
        for index in range(4)
    ]  # fmt: skip
    pending: list[Any] = []
    shared: Any = SimpleNamespace(look=lambda: (records, pending), study=None)
    counted: list[list[int]] = []
    measurer: Any = SimpleNamespace(allowed={}, count_pending=lambda at: counted.append([*at]))
    behind = SimpleNamespace(
        told=lambda _: (), next=lambda running: min({1, 2} - set(running), default=None)
    )
    monkeypatch.setattr(own, "hear", lambda *_: None)
    monkeypatch.setattr(own, "posterior", lambda *_: None)
    monkeypatch.setattr(own, "_finals", lambda *_: behind)
    monkeypatch.setattr(own, "_end_of_search", lambda *_: End("it is over", by_itself=True))
    monkeypatch.setattr(own, "_ended_before", lambda *_: End("it is over", by_itself=True))
    monkeypatch.setattr(own, "_front_is_worth", lambda *_: False)
    asked = []
    for _ in range(3):
        task = own.decide(shared, measurer, 9)
        asked.append((task.kind, task.index))
        pending.append(SimpleNamespace(params=own.space.params(task.index)))
    assert asked == [("again", 1), ("again", 2), ("wait", -1)]
    assert counted == [[], [1], [], [1, 2]], "they are not in the budget that ended the search"
    pending[:] = [SimpleNamespace(params=own.space.params(7))]
    assert own.decide(shared, measurer, 9).kind == "wait", "one is measured for the first time"


def test_a_leader_says_what_it_waits_for_and_who_begins_with_what(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, told = [100.0], list[str]()
    monkeypatch.setattr(lead, "time", SimpleNamespace(monotonic=lambda: now[0]))
    news = lead.News(told.append, "autotune worker run", waits=True, since=now[0])
    assert told == ["it waits for workers; one joins it with: autotune worker run"]
    bill = ground().bill
    for passed in (30.0, 30.0, 30.0, 90.0):  # said after 60 s, and after twice that
        now[0] += passed
        news.hear([], bill)
    assert [line.partition(";")[0] for line in told[1:]] == [
        "nobody has probed for 60.0 s", "nobody has probed for 2.0 min",
    ]  # fmt: skip
    news.hear([(3, "one", 0)], bill)
    news.hear([(3, "one", 0)], bill)
    assert told[3:] == [f"worker one probes {short(bill.candidates.config(0))}"]


def test_a_leader_says_that_its_workers_wait_in_a_queue_and_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, told = [100.0], list[str]()
    monkeypatch.setattr(lead, "time", SimpleNamespace(monotonic=lambda: now[0]))
    news = lead.News(told.append, "autotune worker run", waits=False, since=now[0])
    bill = ground().bill
    queued = [WorkerState(name, "queued", why="pending: Priority") for name in "ab"]
    now[0] += 60.0
    news.hear([], bill, [queued[0], WorkerState("b", "running")])
    assert told[1:] == [], "one of them is about to probe"
    news.hear([], bill, queued)
    assert told[1:] == [
        "nobody has probed for 60.0 s; 2 workers are queued or starting (pending: Priority)"
    ]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Interrupted("1 probe is kept", "--resume")])
def test_a_worker_that_is_interrupted_says_how_it_joins_again(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> str:
        raise error

    monkeypatch.setattr("autotune.app.workers.join.work", interrupted)
    with pytest.raises(Interrupted) as caught:
        worker(tmp_path, quiet=True)
    assert caught.value.hint == "the same command joins again"


def test_what_is_absent_of_a_search_to_join_is_named() -> None:
    for asked, absent in ({"study": "run"}, "--storage"), ({"storage": "redis://h"}, "--study"):
        with pytest.raises(InputError, match=f"{absent} is absent"):
            worker(**asked, quiet=True)
    with pytest.raises(InputError, match="no search to join is named"):
        worker(quiet=True)


@pytest.mark.parametrize("named", [True, False])
def test_a_worker_whose_disk_is_full_says_where_and_what_to_do(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError(errno.ENOSPC, "No space left", *([str(tmp_path / "run" / "a")] * named))

    def full(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr("autotune.app.workers.join.terms_of", full)
    with pytest.raises(NoLocalDevice) as caught:
        worker(tmp_path / "run", quiet=True)
    where = tmp_path / "run" / "a" if named else tmp_path / "run"
    assert caught.value.message == f"the disk is full: {near(where)}"
    assert caught.value.hint == MAKE_ROOM
    error.errno = errno.EACCES
    with pytest.raises(OSError, match="No space"):
        worker(tmp_path / "run", quiet=True)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:a?mode=memory"])
def test_a_database_in_the_memory_of_one_process_is_no_storage_to_share(
    url: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="memory of one process"):
        shared_study(run_dir=tmp_path, storage=url, name="run", job_key="job", resume=False)
    with pytest.raises(InputError, match="memory of one process"):
        work(None, url, "run", print)


def test_a_worker_whose_sqlite_file_is_not_here_is_told_and_makes_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file") as caught:
        work(None, f"sqlite:///{tmp_path / 'study.db'}", "run", print)
    assert "other machines" in str(caught.value.hint)
    assert not list(tmp_path.iterdir())


def test_a_sqlite_file_in_no_folder_is_refused_with_what_to_make(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'none' / 'study.db'}"
    with pytest.raises(InputError, match="unable to open") as caught:
        shared_study(run_dir=tmp_path, storage=url, name="run", job_key="job", resume=False)
    assert "create the folder" in str(caught.value.hint)


@pytest.mark.slow
def test_who_joins_a_study_rebuilt_from_records_knows_what_was_probed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = many(folder)
    (folder / "study.log").unlink()
    shutil.rmtree(folder / "workers")  # they were on another machine
    many(folder, resume=True, workers=0)
    study, _ = study_and_terms(folder, None, folder.name)
    assert len(study.user_attrs[KNOWN_PROBES]) == len(first.records) > 0
    prober = Prober(
        ground().job, ground().bill, devices.cpu(), options_of(Machine()), "cost",
        tmp_path / "own", lambda _: None,
    )  # fmt: skip
    prober.adopt(study.user_attrs[KNOWN_PROBES])
    assert prober.searched == first.explored.trials


def terms() -> dict[str, Any]:
    """As the study keeps them: JSON."""
    found = terms_of(
        ground(), options_of(Machine()), objective="cost", sampler="calibrated", seed=0,
        job_key="job", prior=None,
    )  # fmt: skip
    kept: dict[str, Any] = json.loads(json.dumps(found))
    return kept


def test_a_worker_prices_the_search_from_the_study_as_its_leader_does() -> None:
    own, theirs = ground(), ground_of(checked(terms()))
    assert theirs.bill.cost_usd.tolist() == own.bill.cost_usd.tolist()
    assert [theirs.bill.candidates.config(i).key for i in range(len(own.bill))] == [
        own.bill.candidates.config(i).key for i in range(len(own.bill))
    ]


def test_a_worker_knows_how_long_a_start_takes_that_its_leader_watched() -> None:
    remember(devices.cpu(), "run", 4.2)
    own, kept = ground(), terms()
    assert kept["offers"][0]["host"]["start"]["seconds"] == pytest.approx(4.2)
    theirs = ground_of(checked(kept))
    assert theirs.offer.host.start == own.offer.host.start
    assert theirs.bill.cost_usd.tolist() == own.bill.cost_usd.tolist()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"version": "0.0.1 (code 123)"}, "started by autotune 0.0.1"),
        ({"packages": {"torch": "1.0"}}, "measures with torch 1.0"),
        ({"model": "another"}, "model has another shape"),
        ({"data": "another"}, "data differ"),
        ({"figures": {"candidates": 5, "keys": "", "log_s": 0, "log_usd": 0}}, "5 candidates"),
        ({"format": 99}, "another form"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_worker_that_differs_from_the_study_is_refused_by_name(
    change: dict[str, Any], named: str
) -> None:
    with pytest.raises(InputError, match=named) as caught:
        ground_of(checked(terms() | change))
    assert caught.value.hint


def test_a_study_that_prices_otherwise_than_this_machine_is_refused() -> None:
    kept = terms()
    dearer = [{**offer, "usd_per_hour": offer["usd_per_hour"] + 1.0} for offer in kept["offers"]]
    with pytest.raises(InputError, match="cost something else here"):
        ground_of(checked(kept | {"offers": dearer}))


def test_a_search_that_works_alone_cannot_be_joined(tmp_path: Path) -> None:
    found = ground()
    url = f"sqlite:///{tmp_path / 'study.db'}"
    search(found.bill, Machine(), tmp_path / "run", storage=url)
    with pytest.raises(InputError, match="works alone"):
        work(None, url, "run", print)
    with pytest.raises(InputError, match="holds no study 'other'") as caught:
        work(None, url, "other", print)
    assert "studies there: run" in str(caught.value.hint)
    with pytest.raises(InputError, match="none does not exist"):
        work(tmp_path / "none", None, None, print)
    with pytest.raises(InputError, match="no search that could be joined"):
        work(tmp_path, None, None, print)


def test_two_versions_of_autotune_do_not_work_on_one_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    study = optuna.create_study(storage=url, study_name="run")
    study.set_user_attr(TERMS, terms())
    monkeypatch.setattr(terms_of_study, "code_version", lambda: "0.9 (code abc)")
    with pytest.raises(InputError, match=r"started by autotune .*, and this is 0\.9"):
        work(None, url, "run", print)
