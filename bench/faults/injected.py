"""File operations below a folder, counted, and one of them made to fail.

Operations are counted below Python's own files: opening for writing, writing, syncing, truncating,
renaming, linking, removing, making folders, permissions.
"""

from __future__ import annotations

import _pyio  # type: ignore[import-not-found]
import builtins
import errno
import io
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

FAULTS = ("kill", "torn", "short", "ENOSPC", "EIO")
OF_WRITES = frozenset({"torn", "short"})  # the same as `kill`, or as nothing, at other operations
BY_PATH = ("mkdir", "rmdir", "unlink", "rename", "replace", "link", "symlink", "chmod")
BY_HANDLE = ("write", "fsync", "ftruncate", "fchmod")
LIMIT_S = 120.0  # a busy machine is no hang
HUNG = -1
POLL_S = 0.002


class Injected:
    """Counts the file operations below a folder, and fails at one of them."""

    def __init__(self, root: Path, at: int, fault: str, told: int) -> None:
        """told: a handle to which a letter is written for every operation, "w" for a write."""
        self.root, self.at, self.fault, self.told, self.count = str(root), at, fault, told, 0
        self.real = {name: getattr(os, name) for name in (*BY_PATH, *BY_HANDLE, "open")}

    def install(self) -> None:
        """From here on."""
        for name in BY_PATH:
            setattr(os, name, self._wrapped(name, str))
        for name in BY_HANDLE:
            setattr(os, name, self._wrapped(name, _path_of))
        real_open, plain = self._wrapped("open", str), io.open

        def opened(path: Any, flags: int, *rest: Any, **named: Any) -> int:  # noqa: ANN401
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            call = real_open if writes else self.real["open"]
            return int(call(path, flags, *rest, **named))

        def file(path: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:  # noqa: ANN401
            mine = set(mode) & set("wax+")
            return (_pyio.open if mine else plain)(path, mode, *rest, **named)

        setattr(os, "open", opened)  # noqa: B010 - typed otherwise
        setattr(builtins, "open", file)  # noqa: B010
        setattr(io, "open", file)  # noqa: B010

    def _wrapped(self, name: str, place: Callable[[Any], str]) -> Callable[..., Any]:
        real = self.real[name]

        def call(first: Any, *rest: Any, **named: Any) -> Any:  # noqa: ANN401
            below = first if name != "symlink" else rest[0]  # the second is what is made
            where = str(Path(place(below)).absolute()) if named.get("dir_fd") is None else self.root
            if not where.startswith(self.root):
                return real(first, *rest, **named)
            self.count += 1
            self.real["write"](self.told, b"w" if name == "write" else b".")
            if self.count == self.at:
                return self._failed(name, first, rest, named)
            return real(first, *rest, **named)

        return call

    def _failed(self, name: str, first: Any, rest: tuple[Any, ...], named: dict[str, Any]) -> Any:  # noqa: ANN401
        if name == "write" and self.fault in OF_WRITES:
            half = bytes(rest[0])[: (len(rest[0]) + 1) // 2]
            if self.fault == "short":
                return self.real["write"](first, half)
            self.real["write"](first, half[: len(rest[0]) // 2])
        if self.fault in {"kill", "torn"}:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "short":
            return self.real[name](first, *rest, **named)
        number = getattr(errno, self.fault)
        raise OSError(number, os.strerror(number), str(first))


def _path_of(handle: int) -> str:
    try:
        return str(Path(f"/proc/self/fd/{handle}").readlink())
    except OSError:
        return ""


def in_child(
    folder: Path, work: Callable[[], int], at: int = 0, fault: str = ""
) -> tuple[int, bytes]:
    """A forked child: its exit code (-9: killed, HUNG), and a letter for each file operation."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        code = 1
        try:
            begin(folder)
            Injected(folder, at, fault, write).install()
            code = work()
        finally:
            os._exit(code)
    os.close(write)
    status, until, letters = None, time.monotonic() + LIMIT_S, b""
    with os.fdopen(read, "rb") as told:
        os.set_blocking(told.fileno(), False)
        while status is None and time.monotonic() < until:
            letters += told.read() or b""
            done, code = os.waitpid(pid, os.WNOHANG)
            status = code if done else None
            time.sleep(POLL_S)
        letters += told.read() or b""
    if status is None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return HUNG, letters
    return os.waitstatus_to_exitcode(status), letters


def begin(folder: Path) -> None:
    """Work in a folder that has all that is written; what is said goes to a file beside it."""
    os.chdir(folder)
    quiet = os.open(folder.parent / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os.close(quiet)
    os.environ["AUTOTUNE_HOME"] = str(folder / "home")
    os.environ["AUTOTUNE_RUNS"] = str(folder / "runs")
