"""Files that a command writes: whole or not at all, on the disk, with the modes a user expects.

Every file that another command or a person reads goes through here. Records that grow line by line
(`trials.jsonl`, probes) append through here; their own modules read them. What belongs to the user
and to no run (refreshed prices, cached traces, learned residuals) lies below `home_dir`. How the
shipped files are read: `tables`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import tempfile
import time
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, TypeVar

from autotune.catalog.locks import LEFT_OVER_S, LOCK_FILE, NoLocks, hold, is_at, take
from autotune.domain.paths import whole
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
MOST_READ_BYTES = 1 << 28  # of a file that autotune keeps
SCRATCH = ".autotune-part"  # how the name of a half-written file ends
MERGE_WAIT_S = 60.0  # for another process that keeps what it learned


def write_json(path: Path, content: object) -> None:
    """Write what later commands read again, as `write_whole` does."""
    write_whole(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def write_whole(
    path: Path,
    content: str | bytes,
    mode: int | None = None,
    check: Callable[[Path], object] | None = None,
) -> None:
    """Write a file beside its place, sync it, and rename it over whatever stands there.

    A reader, another process and a power cut see the old file or the new one. A link is replaced
    and not followed; a pipe or a device, as `/dev/stdout` is, is written to. Text becomes UTF-8.
    What killed processes left half written in the folder is taken away.

    mode: permissions; those of the file that is replaced, or what umask leaves, if left out.
    check: reads the new file, by whatever name, before it takes the old one's place.
    Raises OSError where the folder cannot be written, and what `check` raises; nothing of ours
    stays behind.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(_as_bytes(content))
        return
    with _written(path, content, mode) as scratch:
        if check is not None:
            check(scratch)
        scratch.replace(path)
    _sync_folder(path.parent)


def append_synced(stream: BinaryIO, content: bytes) -> None:
    """Write behind what a file holds, and wait until the disk has it: all of it, or nothing.

    stream: opened for appending, and nothing waits in its buffer. Raises OSError with its name.
    """
    handle = stream.fileno()
    end = os.lseek(handle, 0, os.SEEK_END)
    try:
        _write_all(handle, content, stream.name)
        os.fsync(handle)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, end)
        if isinstance(error, OSError):
            error.filename = stream.name
        raise


def write_new(path: Path, content: str | bytes) -> bool:
    """Write a file that nobody else has written; whether it was ours to write."""
    with _written(path, content, None) as scratch:
        try:
            os.link(scratch, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            if os.path.lexists(path):
                return False
            scratch.replace(path)
    _sync_folder(path.parent)
    return True


def is_scratch(path: Path, names: tuple[str, ...] = ()) -> bool:
    """Whether a file is what a killed process left half written.

    names: of files whose earlier versions' names ended as chance would have it.
    """
    ours = path.name.startswith(".") and path.name.endswith(SCRATCH)
    return ours or any(path.name.startswith(f".{name}.") for name in names)


def read_regular(path: Path, most_bytes: int = MOST_READ_BYTES) -> bytes:
    """What a file holds that another program wrote: a pipe or a device is not waited for.

    Raises OSError where there is none or it cannot be read, ValueError for what is not a
    regular file or is larger.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            msg = "it is not a regular file"
            raise ValueError(msg)
        content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        msg = f"it is larger than {most_bytes / 1e6:g} MB"
        raise ValueError(msg)
    return content


@contextlib.contextmanager
def merging(path: Path) -> Iterator[None]:
    """Alone with a file of evidence, for a writer that reads it again, adds to it, and writes it.

    Its folder is made. Raises OSError: where the folder cannot be written, where its file system
    has no locks (`NoLocks`), where another process holds it for a minute.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = take(path.parent / LOCK_FILE, MERGE_WAIT_S)
    if lock is None:
        msg = f"another process has held {path.parent / LOCK_FILE} for {MERGE_WAIT_S:.0f} s"
        raise TimeoutError(msg)
    with lock:
        yield


@dataclass(frozen=True, slots=True)
class Entries(Generic[T]):
    """What can be read of a file that holds a list.

    found: its entries. about: what stands beside the list. damage: what cannot be read, in words;
    empty for a sound file.
    """

    found: tuple[T, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)
    damage: str = ""


def readable_entries(text: bytes | str, name: str, read: Callable[[Any], T]) -> Entries[T]:
    """Entries of the list of that name in a JSON object, one by one: a bad one costs no other.

    read: makes an entry of its JSON; raises ValueError, KeyError, TypeError or AttributeError where
    it is none. Of a text that breaks off, or that is garbled half-way, the entries before are read.
    """
    about: dict[str, Any] = {}
    broken = ""
    try:
        about = json.loads(text)
        listed = list(about[name])
    except (ValueError, RecursionError):
        listed = _entries_before_the_break(text, name)
        broken = f"the file breaks off behind {len(listed)} of its {name}"
    except (KeyError, TypeError):
        return Entries(damage=f"it has no list of {name}")
    found: list[T] = []
    for entry in listed:
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
            found.append(read(entry))
    bad = len(listed) - len(found)
    lost = f"{bad} of {len(listed)} {name} cannot be read" if bad else ""
    return Entries(tuple(found), about, ", ".join(filter(None, (broken, lost))))


def kept_entries(
    path: Path, most_bytes: int, name: str, read: Callable[[Any], T]
) -> Entries[T]:  # fmt: skip
    """`readable_entries` of a file: none where there is no file, damage where it cannot be read."""
    try:
        text = read_regular(path, most_bytes)
    except (FileNotFoundError, NotADirectoryError):
        return Entries()
    except (OSError, ValueError) as error:
        return Entries(damage=str(error))
    return readable_entries(text, name, read)


def _entries_before_the_break(text: bytes | str, name: str) -> list[Any]:
    """The whole entries of a list whose end is missing."""
    words = text.decode(errors="replace") if isinstance(text, bytes) else text
    opening = re.search(rf'"{name}"\s*:\s*\[', words)
    found: list[Any] = []
    at = opening.end() if opening else len(words)
    decoder = json.JSONDecoder()
    with contextlib.suppress(ValueError, RecursionError):
        while at < len(words):
            at = len(words) - len(words[at:].lstrip(" \t\r\n,"))
            entry, at = decoder.raw_decode(words, at)
            found.append(entry)
    return found


def set_aside(path: Path, damage: str = "", used: int = 0) -> str:
    """Move a damaged file out of the way, never over another one; a sentence that says so.

    damage: of `Entries`. used: entries of it that are kept on.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    aside, number = path.with_name(f"{path.name}.damaged-{stamp}"), 2
    while os.path.lexists(aside):
        aside, number = path.with_name(f"{path.name}.damaged-{stamp}-{number}"), number + 1
    path.rename(aside)
    what = f"the {used} that can be read are used on" if used else "what it held is not used"
    why = f" ({damage})" if damage else ""
    return f"{path} was damaged{why}: it is kept as {aside.name}, and {what}"


@contextlib.contextmanager
def _written(path: Path, content: str | bytes, mode: int | None) -> Iterator[Path]:
    """The content on the disk under a name that is no file's yet, and that is gone at the end.

    It is locked while it is ours, so that another process can tell it from a dead one's.
    """
    sweep(path.parent)
    handle, scratch = _new_scratch(path)
    try:
        try:
            _write_all(handle, _as_bytes(content), str(path))
            os.fchmod(handle, _mode(path) if mode is None else mode)
            os.fsync(handle)
            yield scratch
        finally:
            os.close(handle)
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()


def _new_scratch(path: Path) -> tuple[int, Path]:
    """A new file, open and ours: nobody took it for a dead one's before it was locked."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=SCRATCH)
        scratch, ours = path.parent / name, False
        try:
            ours = _is_ours(handle, scratch)
            if ours:
                return handle, scratch
        finally:
            if not ours:
                os.close(handle)
                with contextlib.suppress(OSError):
                    scratch.unlink()


def _is_ours(handle: int, scratch: Path) -> bool:
    try:
        return hold(handle, scratch) and is_at(handle, scratch)  # and not another's of that name
    except NoLocks:  # there only old files are taken for a dead one's
        return True


def _write_all(handle: int, content: bytes, name: str) -> None:
    left = memoryview(content)
    try:
        while left:
            left = left[os.write(handle, left) :]
    except OSError as error:
        error.filename = name  # a call on a handle names no file
        raise


def sweep(folder: Path) -> None:
    """Take away half-written files whose writers are dead."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for path in [folder / entry.name for entry in entries if entry.name.endswith(SCRATCH)]:
            if is_scratch(path):
                _take_away(path)


def _take_away(path: Path) -> None:
    with contextlib.suppress(OSError):
        try:
            lock = take(path)
        except NoLocks:
            lock = None
            if time.time() - path.stat().st_mtime > LEFT_OVER_S:
                path.unlink()
        if lock is not None:
            lock.close(remove=True)


def _as_bytes(content: str | bytes) -> bytes:
    return content.encode("utf-8") if isinstance(content, str) else content


def _mode(path: Path) -> int:
    with contextlib.suppress(OSError):
        if not path.is_symlink():
            return path.stat().st_mode & 0o777
    return umask_mode(0o666)


def umask_mode(wanted: int) -> int:
    """What umask leaves of permissions."""
    umask = os.umask(0o077)
    os.umask(umask)
    return wanted & ~umask


def _sync_folder(folder: Path) -> None:
    """The name itself onto the disk; file systems that cannot do that are left as they are."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


MACHINES = "machines"  # under the home: what was measured of each


def machines_dir() -> Path:
    """Where what was measured of machines is kept: `machines` below `home_dir`."""
    return home_dir() / MACHINES


def starts_dir() -> Path:
    """Where starts that were watched on machines are kept."""
    return machines_dir() / "starts"


def kept_at_home(*places: str) -> frozenset[str]:
    """Those places under the home in which anything was ever kept: most answers are made without.

    One of which that cannot be told is among them.
    """
    home = home_dir()
    found = set(places)
    for place in places:
        try:
            (home / place).stat()
        except (FileNotFoundError, NotADirectoryError):
            found.discard(place)
        except OSError:
            pass
    return frozenset(found)


def home_dir() -> Path:
    """$AUTOTUNE_HOME, else ~/.cache/autotune, from the root. Not created here."""
    stated = os.environ.get("AUTOTUNE_HOME")
    return whole(stated) if stated else Path.home() / ".cache" / "autotune"
