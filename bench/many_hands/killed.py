"""Eight workers on one search while they, who leads it and its database are killed: what is lost.

    python -m bench.many_hands [--workers 8] [--trials 200] [--kills 10] [--on journal --on ray]

Workers measure by a formula, in processes of their own; so does the driver, which leads the search
and starts the workers. What is killed is chosen by chance, every kind of it about as often: a
worker, the driver (SIGKILL at any instant; it is started again and resumes), the database (SIGKILL,
and started again) or, on Ray (`hands_on_ray`), a node with all that runs on it; there the journal
is shared by workers on two nodes. Printed for each storage:

lost            trials that a worker had on its disk, or had told, and that the record has not
twice           candidates that were measured to the end more than once
trials, kills   what was made and what was killed; stuck: whether it did not end by itself
same_pick       whether the pick is that of one worker, or costs the same within the tie
wall_s          of the whole search
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.workers.executor import LocalExecutor, WorkerJob
from autotune.search.measured.joining import Opened, Place, joining, leading, terms_of
from autotune.search.selection import TIE
from autotune.search.study.owner import Owner
from autotune.search.study.record import TRIALS_FILE, TrialRecord, records_of_workers
from autotune.search.study.storage import joined_study, stored
from autotune.search.study.turns import SharedStudy
from bench.many_hands import on_ray as hands_on_ray
from bench.many_hands import servers
from bench.many_hands.fake import MEASURE_S, ROOT, Fake, bill_of, search_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.app.workers.executor import Executor

JOURNAL, RAY = "journal", "ray"
SERVERS = {"postgresql": servers.postgresql, "redis": servers.redis_server}
STORAGES = (JOURNAL, *SERVERS, RAY)
LOOK_S = 0.2  # between looks of whoever leads
LEASE_S = 20.0
MOST_REFUSED = 20  # workers, or drivers, that ended with an error
QUIET_S = 300.0  # without a trial more: it is stuck
AWAY_S = 1.0  # at most, that a database is away, and that a kill waits for its instant


@dataclass(frozen=True, slots=True)
class Chaos:
    """What became of one search."""

    storage: str
    trials: int
    kills: int
    drivers: int  # that were killed, of all that was
    lost: int
    twice: int
    dropped: int
    stuck: bool
    same_pick: bool
    wall_s: float


def work(run_dir: Path, storage: str | None, trials: int, sampler: str) -> None:
    """One worker, until the search is over."""
    bill = bill_of()
    study, _ = terms_of(run_dir, storage, "hands")
    search, owner = search_of(bill, sampler), Owner.here()
    place = Place(run_dir, storage, "hands", "job", LEASE_S)
    with joining(search, study, place, owner) as (shared, log):
        search.work(shared, log, Fake(bill, MEASURE_S), trials)


def absent(storage: str) -> str:
    """What this machine lacks for a storage; empty where it has all."""
    if storage == JOURNAL:
        return ""
    return hands_on_ray.absent() if storage == RAY else servers.absent(storage)


def drive(asked: argparse.Namespace) -> None:
    """Lead the search until it has its trials: start workers, replace the lost, keep the record."""
    run_dir, url = asked.drive, asked.storage or None
    words = worker_words(run_dir, url, asked.trials, asked.sampler)
    job = WorkerJob(tuple(words), run_dir, "cpu", 1, {"PYTHONPATH": str(ROOT)})
    search = search_of(bill_of(), asked.sampler)
    place = Place(run_dir, url, "hands", "job", LEASE_S)
    with leading(search, place, {"version": "bench"}, resume=asked.resume) as led:
        crew = Crew(hands_on_ray.executor(asked.ray) if asked.ray else LocalExecutor(), job)
        try:
            over = False
            while not over:
                crew.fill(asked.workers)
                led.gather()
                led.shared.bury()
                made = sum(record.kind == "trial" for record in led.log.records)
                over = made >= asked.trials and not led.shared.pending()
                time.sleep(LOOK_S)
        finally:
            crew.executor.stop()
        led.gather()


@dataclass
class Crew:
    """The workers that a driver has started, which are replaced when they are lost."""

    executor: Executor
    job: WorkerJob
    failed: set[str] = field(default_factory=set)
    started: int = 0

    def fill(self, count: int) -> None:
        """Start as many as are wanting. Raises RuntimeError where many ended with an error.

        One that joins at the moment at which its server is killed is refused, and comes again.
        """
        states = self.executor.states()
        self.failed |= {s.name for s in states if s.state == "ended" and (s.code or 0) > 0}
        if len(self.failed) > MOST_REFUSED:
            raise RuntimeError(next(s.why for s in reversed(states) if s.why))
        for _ in range(count - sum(state.state != "ended" for state in states)):
            self.started += 1
            self.executor.start(self.job, f"{os.getpid()}-{self.started}")


def worker_words(run_dir: Path, url: str | None, trials: int, sampler: str) -> list[str]:
    """The command of a worker."""
    return [
        sys.executable, "-m", "bench.many_hands", "--worker", str(run_dir), "--storage", url or "",
        "--trials", str(trials), "--sampler", sampler,
    ]  # fmt: skip


@dataclass
class Driver:
    """The process that leads a search: started again, to resume, whenever it has ended badly."""

    words: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    killed: int = 0
    failed: int = 0

    def is_over(self) -> bool:
        """Whether the search has come to its end. Raises RuntimeError where it never will."""
        code = None if self.process is None else self.process.poll()
        if self.process is not None and code is None:
            return False
        if code == 0:
            return True
        self.failed += (code or 0) > 0
        if self.failed > MOST_REFUSED:
            raise RuntimeError(self.log.read_text(errors="replace")[-3000:])
        again = [] if self.process is None else ["--resume"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*self.words, *again], stdout=log, stderr=log, cwd=ROOT)
        return False

    def kill(self) -> None:
        """SIGKILL, whatever it is doing."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            self.killed += 1


def kill_worker(words: list[str], chance: random.Random) -> None:
    """SIGKILL for one process that measures: the guard of each has other words before these."""
    wanted = "\0".join(words).encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "cmdline").read_bytes().startswith(wanted):
                found.append(int(entry.name))
        except OSError:
            continue
    if found:
        os.kill(chance.choice(found), signal.SIGKILL)


def chaos(
    storage: str, folder: Path, *, workers: int, trials: int, kills: int, seed: int = 0,
    sampler: str = "calibrated",
) -> Chaos:  # fmt: skip
    """One search of several workers while they, their driver and what they share are killed."""
    chance = random.Random(seed)  # noqa: S311 - which of them is killed
    begun, run_dir = time.monotonic(), folder / "run"
    with ExitStack() as stack:
        url, more, victims = None, [], {}
        if storage in SERVERS:
            url, server = stack.enter_context(SERVERS[storage](folder / storage))
            victims["server"] = lambda: server.lose(chance.uniform(0.0, AWAY_S))
        elif storage == RAY:
            nodes = stack.enter_context(hands_on_ray.Nodes(workers))
            more = ["--ray", nodes.address]
            victims["node"] = lambda: nodes.lose(chance)
        words = worker_words(run_dir, url, trials, sampler)
        driver = Driver([
            *("--drive" if word == "--worker" else word for word in words),
            "--workers", str(workers), *more,
        ], folder / "driver.log")  # fmt: skip
        stack.callback(driver.kill)
        victims |= {"worker": lambda: kill_worker(words, chance), "driver": driver.kill}
        plan = _plan(victims, kills, chance)
        moments = sorted(chance.uniform(0.05, 0.7) * trials for _ in range(kills))
        made, since = 0, begun
        while not (over := driver.is_over()) and time.monotonic() - since < QUIET_S:
            before, made = made, sum(record.kind == "trial" for record in recorded(run_dir))
            since = time.monotonic() if made > before else since
            while plan and made >= moments[-len(plan)]:  # a busy machine passes several at once
                time.sleep(chance.uniform(0.0, AWAY_S))
                victims[plan.pop(0)]()
            time.sleep(LOOK_S)
        return Chaos(
            storage, kills=kills - len(plan), drivers=driver.killed, stuck=not over,
            wall_s=round(time.monotonic() - begun, 1), **_judged(run_dir, url, trials, sampler),
        )  # fmt: skip


def _plan(victims: dict[str, Callable[[], None]], kills: int, chance: random.Random) -> list[str]:
    """What is killed, in turn: every kind about as often as any other."""
    kinds = sorted(victims)
    plan = [kinds[number % len(kinds)] for number in range(kills)]
    chance.shuffle(plan)
    return plan


def recorded(run_dir: Path) -> list[TrialRecord]:
    """What the record has, whoever writes it now."""
    path = run_dir / TRIALS_FILE
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    return [TrialRecord.of(json.loads(line)) for line in whole.splitlines()]


@lru_cache
def alone(sampler: str, trials: int) -> float:
    """[USD] the pick of one worker, the same beside every storage."""
    bill = bill_of()
    search = search_of(bill, sampler)
    with stored(None, search.header(""), None, "alone", bill.job.name, resume=False) as store:
        found = search.measure_all(store, Fake(bill), trials, resume=False)
    return min(r.value for r in found.records if r.kind == "trial" and r.fits and r.value)


def _judged(run_dir: Path, url: str | None, trials: int, sampler: str) -> dict[str, Any]:
    """What was lost or made twice, and whether the best of it is what one worker finds."""
    records = recorded(run_dir)
    tried = [record for record in records if record.kind == "trial"]
    study = joined_study(run_dir=run_dir, storage=url, name="hands")
    with closing(Opened(study)):
        shared = SharedStudy(study)
        told = {r.number for r in shared.records()} | set(records_of_workers(run_dir))
        dropped = sum(bool(t.user_attrs.get("dropped")) for t in shared.trials())
    configs = [(record.offer, record.config) for record in tried]
    best = min(r.value for r in tried if r.fits and r.value is not None)
    one = alone(sampler, trials)
    return {
        "trials": len(tried), "lost": len(told - {record.number for record in records}),
        "twice": len(configs) - len(set(configs)), "dropped": dropped,
        "same_pick": abs(math.log(best / one)) <= TIE,
    }  # fmt: skip


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.many_hands", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--ray", default="", help=argparse.SUPPRESS)
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--storage", default="", help=argparse.SUPPRESS)
    parser.add_argument("--on", choices=STORAGES, action="append", help="repeatable; all")
    parser.add_argument("--sampler", default="calibrated")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    return parser.parse_args()


def main() -> None:
    """Run as a program: exit code 1 where anything was lost, made twice or stuck."""
    asked = _asked()
    if asked.worker is not None:
        work(asked.worker, asked.storage or None, asked.trials, asked.sampler)
        return
    if asked.drive is not None:
        drive(asked)
        return
    found: list[Chaos] = []
    for storage in asked.on or STORAGES:
        why = absent(storage)
        if why:
            print(f"{storage}: not tried, {why}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory(prefix="hands-", ignore_cleanup_errors=True) as name:
            Path(name).chmod(0o755)
            one = chaos(
                storage, Path(name), workers=asked.workers, trials=asked.trials,
                kills=asked.kills, sampler=asked.sampler,
            )  # fmt: skip
        found.append(one)
        if asked.format == "text":
            told = (f"{key} {value}" for key, value in asdict(one).items())
            print("  ".join(told), flush=True)
    if asked.format == "json":
        print(json.dumps([asdict(one) for one in found], indent=1))
    sys.exit(int(any(one.lost or one.twice or one.stuck or not one.same_pick for one in found)))


if __name__ == "__main__":
    main()
