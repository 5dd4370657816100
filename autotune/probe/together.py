"""Probes of a job on several machines: a launcher on each, one meeting point, one shared folder.

The machine that searches lays each request into its run folder, which all of them see. On every
other one `autotune worker RUN` follows: it starts torchrun with the same meeting point when a
request lies there, and ends it when the request is gone. Nothing that lies in the folder is
executed: each machine starts its own autotune. Who is there, the one that searches too, is told by
a count that goes up, so that no clock is compared with another machine's.

Source: torchrun's c10d rendezvous, https://pytorch.org/docs/stable/elastic/run.html
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import socket
import subprocess
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any

from autotune.catalog.files import read_regular, write_whole
from autotune.domain.errors import InputError, NoLocalDevice
from autotune.frozen import dataclass
from autotune.probe.runner import kill_all, worker_environment
from autotune.probe.worker.contract import RESULT_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from autotune.domain.device import Offer
    from autotune.probe.runner import Runner

MACHINES, TERMS, OVER, CALLED = "machines", "terms.json", "over", "called"
LEADS = "leader.count"  # of the machine that searches
BEAT_S, LOST_S, LOOK_S, SAID_S = 0.5, 60.0, 0.2, 60.0
MOST_BYTES = 1_000_000
GREATEST_PORT = 65535
NAMED = "name this machine as the others reach it, such as node0:29500"


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the launchers of one probe meet, and how many processes each of them starts."""

    endpoint: str
    nodes: int
    per_node: int

    @classmethod
    def of(cls, text: str, offer: Offer) -> Meeting:
        """The meeting of an offer's machines. Raises InputError for what is no HOST:PORT."""
        host, _, port = text.strip().rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= GREATEST_PORT:
            msg = f"--rendezvous {text[:80]!r} must be HOST:PORT"
            raise InputError(msg, NAMED)
        return cls(f"{host}:{port}", offer.nodes, offer.per_node)

    def check_place(self) -> None:
        """Raise InputError for a host that nobody knows, or a port of this machine that is taken.

        Else it waits for its other machines first, and hears of it in the first probe.
        """
        host, _, port = self.endpoint.rpartition(":")
        with contextlib.suppress(UnicodeError):  # a name that no host can have is not known either
            try:
                found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
            except OSError as error:
                why = f"the host {host!r} is not known here ({error.strerror or error})"
                msg = f"--rendezvous {self.endpoint}: {why}"
                raise InputError(msg, NAMED) from None
            for family, kind, protocol, _, address in found:
                self._check_free(family, kind, protocol, address)

    def _check_free(self, family: int, kind: int, protocol: int, address: Any) -> None:  # noqa: ANN401 - as the system has it
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(address)
            except OSError as error:
                if error.errno not in {errno.EADDRINUSE, errno.EACCES}:
                    return  # no address of this machine's own, as behind a forwarded port
                msg = (
                    f"--rendezvous {self.endpoint}: that port cannot be used here: {error.strerror}"
                )
                raise InputError(msg, "name a port of this machine that is free") from None

    def launcher(self, name: str) -> tuple[str, ...]:
        """Arguments of python before the worker's; name: of the one probe."""
        return (
            "-m", "torch.distributed.run", "--nnodes", str(self.nodes), "--nproc-per-node",
            str(self.per_node), "--rdzv-backend", "c10d", "--rdzv-endpoint", self.endpoint,
            "--rdzv-id", name,
        )  # fmt: skip

    def begin(self, folder: Path) -> None:
        """The request in a probe's folder is whole, so that every machine may take part in it.

        Raises NoLocalDevice where one has left.
        """
        self.wait(folder.parent.parent, LOST_S)
        (folder / CALLED).touch()

    def wait(
        self, run_dir: Path, limit_s: float | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """Until the other machines are there. Raises NoLocalDevice where one is not in time."""
        begun = time.monotonic()
        first: dict[str, bytes] = {}
        moved: set[str] = set()
        said = -SAID_S
        while len(moved) < self.nodes - 1:
            for name, count in _beats(run_dir):
                if first.setdefault(name, count) != count:
                    moved.add(name)
            waited = time.monotonic() - begun
            missing = self.nodes - 1 - len(moved)
            what = f"{missing} more machine{'s' * (missing > 1)}"
            if limit_s is not None and waited > limit_s:
                msg = f"{what} of {self.nodes} did not show for {limit_s:.0f} s"
                raise NoLocalDevice(
                    msg,
                    f"type here the same command with --resume, there: autotune worker {run_dir}",
                )
            if waited > 2 * BEAT_S and waited - said > SAID_S and missing:
                tell(f"waiting for {what}; type there: autotune worker {run_dir}")
                said = waited
            time.sleep(LOOK_S)


def _beats(run_dir: Path) -> list[tuple[str, bytes]]:
    """The count of each machine that was ever here."""
    found = []
    for path in sorted((run_dir / MACHINES).glob("*.beat")):
        with contextlib.suppress(OSError):
            found.append((path.stem, path.read_bytes()))
    return found


@contextlib.contextmanager
def gathered(
    run_dir: Path, meeting: Meeting, terms: dict[str, Any], tell: Callable[[str], None]
) -> Iterator[None]:
    """While the other machines follow this search; they are told when it is over.

    terms: what they have to have too.
    """
    folder = run_dir / MACHINES
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.beat"), folder / OVER):
        old.unlink(missing_ok=True)
    asked = {"endpoint": meeting.endpoint, "nodes": meeting.nodes, "per_node": meeting.per_node}
    write_whole(folder / TERMS, json.dumps({**terms, **asked}))
    try:
        with _beating(folder / LEADS):
            meeting.wait(run_dir, tell=tell)
            tell(f"{meeting.nodes} machines meet at {meeting.endpoint}")
            yield
    finally:
        write_whole(folder / OVER, "the search has ended")
        (folder / TERMS).unlink(missing_ok=True)


def terms_in(run_dir: Path) -> dict[str, Any] | None:
    """What a search on several machines asks of the others; None where a folder holds none."""
    try:
        found = json.loads(read_regular(run_dir / MACHINES / TERMS, MOST_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        msg = f"{run_dir / MACHINES / TERMS} cannot be read: {error}"
        raise InputError(msg, "begin the search again with --resume, then join again") from None
    return dict(found)


class _Leader:
    """The machine that searches, as another one sees it."""

    def __init__(self, path: Path) -> None:
        self.path, self.count, self.since = path, b"", time.monotonic()

    def check(self) -> None:
        """Raise NoLocalDevice where its count has stood still for too long."""
        count = b""
        with contextlib.suppress(OSError):
            count = self.path.read_bytes()
        now = time.monotonic()
        if count not in {b"", self.count}:
            self.count, self.since = count, now
        elif now - self.since > LOST_S:
            msg = f"the machine that searches has not shown itself for {LOST_S:.0f} s"
            raise NoLocalDevice(
                msg, "it was killed, or its folder is away: type its `autotune tune` there again "
                "with --resume, then this command here"
            )  # fmt: skip


def follow(run_dir: Path, runner: Runner, tell: Callable[[str], None]) -> str:
    """Take part in every probe until the search is over; why it is.

    Raises NoLocalDevice where the machine that searches was lost.
    """
    name = f"{socket.gethostname()}-{os.getpid()}"
    folder = run_dir / MACHINES
    done: set[str] = set()
    tell(f"machine {name} takes part in the probes of {run_dir}")
    leader = _Leader(folder / LEADS)
    with _beating(folder / f"{name}.beat") as over:
        while True:
            with contextlib.suppress(OSError):
                return (folder / OVER).read_text(encoding="utf-8")
            leader.check()
            for called in sorted((run_dir / "probing").glob(f"probe-*/{CALLED}")):
                if called.parent.name not in done:
                    done.add(called.parent.name)
                    tell(f"takes part in {called.parent.name}")
                    _take_part(called, folder / f"{name}.log", runner, leader)
            over.wait(LOOK_S)


def _take_part(called: Path, log: Path, runner: Runner, leader: _Leader) -> None:
    """One probe, until it ends here, or its folder or who searches is gone."""
    asked, result = called.with_name("request.json"), called.with_name(RESULT_FILE)
    try:
        environment = json.loads(read_regular(asked, MOST_BYTES)).get("environment")
    except (OSError, ValueError):  # gone before it could be read
        return
    mark = secrets.token_hex(8)
    with tempfile.TemporaryDirectory() as own, log.open("ab") as words:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and worker
            runner.command(str(asked), str(result)), stdin=subprocess.DEVNULL, stdout=words,
            stderr=words, cwd=own, start_new_session=True,
            env=worker_environment(runner.place, mark, environment),
        )  # fmt: skip
        try:
            while process.poll() is None and called.exists():
                leader.check()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_S)
        finally:
            kill_all(process, mark)


@contextlib.contextmanager
def _beating(beat: Path) -> Iterator[threading.Event]:
    """While this machine is here: its count goes up."""
    over = threading.Event()

    def count() -> None:
        number = 0
        while not over.is_set():
            number += 1
            with contextlib.suppress(OSError):
                beat.write_text(str(number), encoding="ascii")
            over.wait(BEAT_S)

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    try:
        yield over
    finally:
        over.set()
        thread.join()
        beat.unlink(missing_ok=True)
