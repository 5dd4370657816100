"""Servers of our own on a Unix socket, that a measurement kills and starts again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from socket import AF_UNIX, socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

NOBODY = 65534  # a user without rights, that a server runs as where we are root


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

    def lose(self, seconds: float) -> None:
        """Kill it, and start it again after that."""
        self.kill()
        time.sleep(seconds)
        self.start()

    def kill(self) -> None:
        """As a power cut would, with its own processes."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.socket.unlink(missing_ok=True)


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
    """What this machine lacks for a server; empty where it has all."""
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
