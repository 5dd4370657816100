"""Who may write here now: locks that end with the process that holds them, however it ends.

A lock is `flock` on a file of its own, so a killed holder leaves no lock, only an empty file. Only
processes of one machine, or of machines that share a file system with locks, see each other's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from autotune.domain.errors import InputError
from autotune.domain.paths import near

try:
    import fcntl
except ImportError:  # pragma: no cover - no such lock on Windows: there every lock is free
    HAS_LOCKS = False
else:
    HAS_LOCKS = True

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK_FILE = ".lock"  # of a folder
POLL_S = 0.01
LEFT_OVER_S = 3600.0  # after which what was left is nobody's, where no lock can tell
PAUSES_S = (0.0, 0.05, 0.2)  # between tries to take a folder away
_TRIES = 5  # whoever only looks (`is_held`) has the lock for a moment, so one refusal is none


class NoLocks(OSError):  # noqa: N818 - the name is the condition, as in FileNotFound
    """The file system has no locks, so two writers could not be told apart."""


def unlocked(folder: Path, error: NoLocks | None = None) -> InputError:
    """What a run says of a folder that it has no lock of. error: None where another has it."""
    if error is None:
        msg = f"{near(folder)} is in use by another process"
        return InputError(msg, "wait for it to end, or choose another --run")
    msg = f"{near(folder)} cannot be locked by one process: {error.strerror}"
    hint = "choose a folder on a local disk with --run, or mount this one with locks"
    return InputError(msg, hint)


class Lock:
    """A lock that this process holds until it is closed, or the process ends."""

    def __init__(self, path: Path, handle: int) -> None:
        """Made by `take` alone."""
        self.path, self._handle = path, handle

    def close(self, *, remove: bool = False) -> None:
        """Give it back. remove: nobody needs its file any more."""
        handle, self._handle = self._handle, -1
        if handle < 0:
            return
        try:
            if remove and is_at(handle, self.path):  # not one that others made in its place
                self.path.unlink()
        except OSError:  # an empty file stays behind, and its lock is free
            pass
        finally:
            os.close(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def take(path: Path, wait_s: float = 0.0) -> Lock | None:
    """The lock of that file, made where there is none; None where another process has it.

    A link in its place is never followed. wait_s: how long to wait for another holder [s].
    Raises NoLocks where the file system has none, and OSError where the file cannot be made.
    """
    until = time.monotonic() + wait_s
    refused = 0
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | _NOT_A_LINK, 0o666)
        try:
            if _locked(handle, path) and is_at(handle, path):
                found, handle = Lock(path, handle), -1
                return found
        finally:
            if handle >= 0:
                os.close(handle)
        refused += 1
        if refused >= _TRIES and time.monotonic() >= until:
            return None
        time.sleep(POLL_S)


def is_held(path: Path) -> bool:
    """Whether a process holds the lock of that file now. False where nobody can tell."""
    if not HAS_LOCKS:  # pragma: no cover - Windows
        return False
    try:
        handle = os.open(path, os.O_RDONLY | _NOT_A_LINK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


def hold(handle: int, path: Path, wait_s: float = 0.0) -> bool:
    """Lock an open file until it is closed; whether nobody else has it. Raises NoLocks.

    wait_s: how long to wait for another holder [s].
    """
    until, refused = time.monotonic() + wait_s, 0
    while not _locked(handle, path):
        refused += 1
        if refused >= _TRIES and time.monotonic() >= until:
            return False
        time.sleep(POLL_S)
    return True


@contextlib.contextmanager
def own_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A new folder of this process alone, gone at the end; what dead processes left goes first.

    Its lock lies inside. Raises OSError where none can be made.
    """
    take_away_dead(parent, prefix)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            lock = take(folder / LOCK_FILE)
        except NoLocks:
            lock = None
        except FileNotFoundError:  # it was taken for a dead one's before it was locked
            continue
        try:
            yield folder
        finally:
            _remove(folder)
            if lock is not None:
                lock.close()
        return


def take_away_dead(parent: Path, *prefixes: str) -> None:
    """Remove what `own_folder` made there and whose process died.

    A folder without a lock is nobody's after an hour, and at once where it is empty.
    """
    for folder in [folder for prefix in prefixes for folder in parent.glob(f"{prefix}*")]:
        with contextlib.suppress(OSError):
            if (folder / LOCK_FILE).is_file():
                lock = take(folder / LOCK_FILE)
                if lock is not None:
                    with lock:
                        _remove(folder)
            elif time.time() - folder.stat().st_mtime > LEFT_OVER_S:
                _remove(folder)
            else:
                folder.rmdir()


def _remove(folder: Path) -> None:
    """Take a folder away; what a disk or a network folder refuses once is tried again.

    Its lock goes last: by it the next process knows what a killed one had begun to remove.
    """
    for pause_s in PAUSES_S:
        inside = [path for path in folder.glob("*") if path.name != LOCK_FILE]
        for path in inside:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    path.unlink()
        if not any(map(os.path.lexists, inside)):
            shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(pause_s)


_NOT_A_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def _locked(handle: int, path: Path) -> bool:
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if not HAS_LOCKS:  # pragma: no cover - Windows
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        why = f"its file system has no locks (flock: {error.strerror})"
        raise NoLocks(error.errno, why, str(path)) from None
    return True


def is_at(handle: int, path: Path) -> bool:
    """Whether the open file still has that name: its last holder may have taken it away."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))  # noqa: PTH116 - by its handle
    except FileNotFoundError:
        return False
