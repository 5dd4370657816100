"""`guard.py PARENT COMMAND...`: runs COMMAND, and ends all that came of it when PARENT dies.

On Linux it stays as the parent of whatever its command leaves behind: the kernel tells it when
PARENT is gone and gives it every orphan, also one in a session of its own. It ends as its command
ended, by the same signal or code. Elsewhere it becomes COMMAND.

A program of its own because code between fork and exec of a process with threads is not safe.
Source: man 2 prctl, PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
WAITED_FOR = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
LOOK_S = 5.0  # between looks whether the parent is there, should its death never be told
SWEEPS = 100


def main() -> None:
    """Run as a program."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform != "linux":
        os.execv(command[0], command)  # noqa: S606 - no shell is the point
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WAITED_FOR)
    prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel was told
        sys.exit(1)
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        _become(command, prctl, guard, before)
    status = _status_of(child, parent)
    end_all_below()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if status is None:
        sys.exit(128 + signal.SIGTERM)
    _end_as(status, prctl)


def _status_of(child: int, parent: int) -> int | None:
    """How the child ended; None where we are to end first.

    The signals are blocked and asked for: a handler would miss one that comes just before a wait.
    """
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        came = signal.sigtimedwait(WAITED_FOR, LOOK_S)
        if (came and came.si_signo != signal.SIGCHLD) or os.getppid() != parent:
            return None


def _become(
    command: list[str], prctl: Callable[..., int], guard: int, mask: set[signal.Signals | int]
) -> None:
    """The child: it dies with its guard, however that ends. Never returns."""
    try:
        prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != guard:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execv(command[0], command)  # noqa: S606 - no shell is the point
    finally:
        os._exit(127)


def end_all_below() -> None:
    """Kill what is below us until nothing is: a process may start another while we look."""
    for _ in range(SWEEPS):
        for pid in _children(os.getpid()):
            _kill_tree(pid)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            os.waitpid(-1, 0)
            continue
        return


def _kill_tree(pid: int) -> None:
    below = _children(pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
    for each in below:
        _kill_tree(each)


def _children(parent: int) -> list[int]:
    found = []
    for name in [path.name for path in Path("/proc").iterdir()]:
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                text = Path("/proc", name, "stat").read_bytes()
                state, above = text.rpartition(b")")[2].split()[:2]  # behind any name
                if int(above) == parent and state != b"Z":
                    found.append(int(name))
    return found


def _end_as(status: int, prctl: Callable[..., int]) -> None:
    if os.WIFSIGNALED(status):
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # one core file of a crash is enough
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    sys.exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    main()
