"""Eight workers on one search while they and its database are killed: what is lost, and its pick.

    python -m bench.many_hands [--workers 8] [--trials 200] [--kills 10] [--on journal,...,ray]

Workers measure by a formula, in processes of their own; the one that is killed is chosen by chance,
as is the moment. A database is killed with SIGKILL and started again. On Ray (`hands_on_ray`) the
journal is shared by workers on two nodes, which are lost too. Printed for each storage:

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
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from socket import AF_UNIX, socket
from typing import TYPE_CHECKING, Any

from autotune.app.job.load import load_job
from autotune.cost.model import CostModel
from autotune.search.measured.joining import Place, joining, leading, terms_of
from autotune.search.measured.measurer import FunctionMeasurer, Scored
from autotune.search.measured.shared import SharedSearch
from autotune.search.measured.study import explore_measured
from autotune.search.selection import TIE
from autotune.search.study.owner import Owner
from autotune.search.study.record import records_of_workers
from autotune.space.enumerate import enumerate_candidates
from autotune.space.file import load_space

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.cost.bill import Bill
    from autotune.search.measured.joining import Led
    from bench.hands_on_ray import HandsOnRay

ROOT = Path(__file__).parents[1]
JOB = ROOT / "jobs" / "h100_38h.yaml"
STORAGES = ("journal", "postgresql", "redis")
RAY = "ray"
LOOK_S = 0.2  # between looks of whoever leads
MEASURE_S = 0.05  # that a fake measurement takes
LEASE_S = 20.0
MOST_REFUSED = 20  # workers that ended with an error
MOST_S = 900.0  # of one search: what takes longer is stuck
NOBODY = 65534  # a user without rights, that a server runs as where we are root


@dataclass(frozen=True, slots=True)
class Chaos:
    """What became of one search."""

    storage: str
    trials: int
    kills: int
    lost: int
    twice: int
    dropped: int
    stuck: bool
    same_pick: bool
    wall_s: float


def bill_of(path: Path = JOB) -> Bill:
    """The candidates of a job."""
    job = load_job(path)
    return CostModel(job).price(enumerate_candidates(job, load_space(None)).candidates)


def truth(bill: Bill, index: int) -> float:
    """What a fake measurement finds: the model's figure, off by what the candidate settles."""
    chance = random.Random(bill.candidates.config(index).key)  # noqa: S311 - not a secret
    return float(bill.cost_usd[index]) * math.exp(chance.gauss(0.0, 0.05))


def scored(bill: Bill, index: int, seconds: float = 0.0) -> Scored:
    """A fake measurement."""
    time.sleep(seconds)
    fits = bool(bill.feasible[index])
    ratio = truth(bill, index) / float(bill.cost_usd[index])
    compute = float(bill.estimate(index).step_time_s) * ratio
    return Scored(
        truth(bill, index), {"memory": -0.1 if fits else 0.1, "disk": 0.0}, fits=fits,
        reason="fits" if fits else "memory",
        measured={"compute": compute, "memory": float(bill.estimate(index).memory_bytes.total)},
    )  # fmt: skip


def search_of(bill: Bill, sampler: str) -> SharedSearch:
    """The same search in every process."""
    return SharedSearch(bill, "cost", sampler, 0, None)


def work(run_dir: Path, storage: str | None, trials: int, sampler: str) -> None:
    """One worker, until the search is over."""
    bill = bill_of()
    study, _ = terms_of(run_dir, storage, "hands")
    search, owner = search_of(bill, sampler), Owner.here()
    place = Place(run_dir, storage, "hands", "job", LEASE_S)
    with joining(search, study, place, owner) as (shared, log):
        measurer = FunctionMeasurer(lambda index: scored(bill, index, MEASURE_S))
        search.work(shared, log, measurer, trials)


@contextmanager
def postgresql(folder: Path) -> Iterator[tuple[str, Server]]:
    """A PostgreSQL server of our own on a Unix socket, run by a user without rights."""
    data, sockets = folder / "data", folder / "s"
    for made in (folder, sockets):
        made.mkdir(parents=True, exist_ok=True)
        made.chmod(0o755)
    if os.geteuid() == 0:
        for made in (folder, sockets):
            os.chown(made, NOBODY, NOBODY)
    bins = _postgres_bins()
    subprocess.run(
        _as_user([f"{bins}/initdb", "-D", str(data), "-A", "trust", "-U", "autotune", "-N"]),
        check=True, capture_output=True, cwd=folder,
    )  # fmt: skip
    command = [f"{bins}/postgres", "-D", str(data), "-k", str(sockets), "-c", "listen_addresses="]
    server = Server(_as_user(command), folder, sockets / ".s.PGSQL.5432")
    with server:
        yield f"postgresql+psycopg://autotune@/postgres?host={sockets}", server


@contextmanager
def redis_server(folder: Path) -> Iterator[tuple[str, Server]]:
    """A Redis server of our own on a Unix socket, that keeps every line it confirms."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "redis.sock"
    command = [
        "redis-server", "--port", "0", "--unixsocket", str(path), "--dir", str(folder),
        "--appendonly", "yes", "--appendfsync", "always", "--save", "",
    ]  # fmt: skip
    with Server(command, folder, path) as server:
        yield f"unix://{path}", server


def _postgres_bins() -> str:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    path = str(found[-1]) if found else shutil.which("postgres")
    if path is None:
        msg = "PostgreSQL is not installed (Debian: postgresql)"
        raise FileNotFoundError(msg)
    return str(Path(path).parent)


def _as_user(command: list[str]) -> list[str]:
    """PostgreSQL refuses to be run by root."""
    if os.geteuid() != 0:
        return command
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *command]


def absent(storage: str) -> str:
    """What this machine lacks for a storage; empty where it has all."""
    from importlib.util import find_spec

    if storage == "journal":
        return ""
    if storage == RAY:
        from bench import hands_on_ray

        return hands_on_ray.absent()
    package = {"postgresql": "psycopg", "redis": "redis"}[storage]
    if find_spec(package) is None:
        return f"the package {package} is not installed"
    if storage == "redis":
        return "" if shutil.which("redis-server") else "redis-server is not installed"
    try:
        _postgres_bins()
    except FileNotFoundError as error:
        return str(error)
    return ""


class Server:
    """A server that can be killed and started again."""

    def __init__(self, command: list[str], folder: Path, socket: Path) -> None:
        self.command, self.folder, self.socket = command, folder, socket
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:  # noqa: PYI034 - not subclassed
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it and wait until its socket takes a connection."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )
        deadline = time.monotonic() + 60.0
        while not self._listens():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.folder / "log").read_text(errors="replace")[-2000:])
            time.sleep(0.05)

    def _listens(self) -> bool:
        with socket(AF_UNIX) as tried:
            return tried.connect_ex(str(self.socket)) == 0

    def kill(self) -> None:
        """As a power cut would, with its own processes."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.socket.unlink(missing_ok=True)


@dataclass
class Hands:
    """The workers of a search, which are replaced when they are killed."""

    command: list[str]
    folder: Path
    count: int
    processes: list[subprocess.Popen[bytes]]
    failed: int = 0

    def fill(self) -> None:
        """Start as many as are wanting. Raises RuntimeError where several ended with an error.

        One that joins at the moment at which its server is killed is refused, and comes again.
        """
        for process in [p for p in self.processes if p.poll() is not None]:
            self.processes.remove(process)
            self.failed += process.returncode > 0
            if self.failed > MOST_REFUSED:
                words = (self.folder / "hands.log").read_text(errors="replace")[-3000:]
                raise RuntimeError(words)
        while len(self.processes) < self.count:
            with (self.folder / "hands.log").open("ab") as log:
                self.processes.append(
                    subprocess.Popen(self.command, stdout=log, stderr=log, cwd=ROOT)
                )

    def kill_one(self, chance: random.Random) -> None:
        """SIGKILL for one of them."""
        living = [p for p in self.processes if p.poll() is None]
        if living:
            found = chance.choice(living)
            found.kill()
            found.wait()

    def end(self) -> None:
        """Nobody stays behind."""
        for process in self.processes:
            process.kill()
            process.wait()


def chaos(
    storage: str, folder: Path, *, workers: int, trials: int, kills: int, seed: int = 0,
    sampler: str = "calibrated",
) -> Chaos:  # fmt: skip
    """One search of several workers while they, and the database, are killed."""
    chance = random.Random(seed)  # noqa: S311 - which of them is killed
    bill, begun = bill_of(), time.monotonic()
    run_dir = folder / "run"
    with ExitStack() as stack:
        url, server = _served(stack, storage, folder)
        place = Place(run_dir, url, "hands", "job", LEASE_S)
        search = search_of(bill, sampler)
        led = stack.enter_context(leading(search, place, {"version": "bench"}, resume=False))
        command = [
            sys.executable, "-m", "bench.many_hands", "--worker", str(run_dir), "--storage",
            url or "", "--trials", str(trials), "--sampler", sampler,
        ]  # fmt: skip
        hands = _hands(storage, command, folder, workers)
        stack.callback(hands.end)
        done, moments = 0, sorted(chance.uniform(0.05, 0.9) * trials for _ in range(kills))
        over = False
        while not over and time.monotonic() - begun < MOST_S:
            hands.fill()
            led.gather()
            led.shared.bury()
            made = sum(record.kind == "trial" for record in led.log.records)
            while done < kills and made >= moments[done]:  # a busy machine passes several at once
                done += 1
                if server is not None and chance.random() < 1.0 / 3.0:
                    server.kill()
                    time.sleep(chance.uniform(0.0, 0.5))
                    server.start()
                else:
                    hands.kill_one(chance)
            over = made >= trials and not led.shared.pending()
            time.sleep(LOOK_S)
        hands.count = 0
        led.gather()
        return Chaos(
            storage, kills=done, stuck=not over, wall_s=round(time.monotonic() - begun, 1),
            **_judged(led, run_dir, trials, sampler),
        )  # fmt: skip


def _hands(storage: str, command: list[str], folder: Path, workers: int) -> Hands | HandsOnRay:
    if storage == RAY:
        from bench.hands_on_ray import HandsOnRay

        return HandsOnRay(command, folder, workers, MOST_REFUSED)
    return Hands(command, folder, workers, [])


def _served(
    stack: ExitStack, storage: str, folder: Path
) -> tuple[str | None, Server | None]:  # fmt: skip
    if storage == "postgresql":
        return stack.enter_context(postgresql(folder / "pg"))
    if storage == "redis":
        return stack.enter_context(redis_server(folder / "redis"))
    return None, None


@lru_cache
def alone(sampler: str, trials: int) -> float:
    """[USD] the pick of one worker, the same beside every storage."""
    bill = bill_of()
    found = explore_measured(
        bill, lambda index: scored(bill, index), sampler=sampler, trials=trials
    )
    return min(r.value for r in found.records if r.kind == "trial" and r.fits and r.value)


def _judged(led: Led, run_dir: Path, trials: int, sampler: str) -> dict[str, Any]:
    """What was lost or made twice, and whether the best of it is what one worker finds."""
    records = [r for r in led.log.records if r.kind == "trial"]
    numbers = {record.number for record in led.log.records}
    told = {record.number for record in led.shared.records()} | set(records_of_workers(run_dir))
    configs = [(record.offer, record.config) for record in records]
    best = min(r.value for r in records if r.fits and r.value is not None)
    one = alone(sampler, trials)
    return {
        "trials": len(records), "lost": len(told - numbers),
        "twice": len(configs) - len(set(configs)),
        "dropped": sum(bool(t.user_attrs.get("dropped")) for t in led.shared.trials()),
        "same_pick": abs(math.log(best / one)) <= TIE,
    }  # fmt: skip


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--worker", type=Path)
    parser.add_argument("--storage", default="")
    parser.add_argument("--on", default=",".join((*STORAGES, RAY)))
    parser.add_argument("--sampler", default="calibrated")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    asked = parser.parse_args()
    if asked.worker is not None:
        work(asked.worker, asked.storage or None, asked.trials, asked.sampler)
        return
    found: list[dict[str, Any]] = []
    for storage in asked.on.split(","):
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
        found.append(asdict(one))
        if asked.format == "text":
            print("  ".join(f"{key} {value}" for key, value in asdict(one).items()))
    if asked.format == "json":
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
