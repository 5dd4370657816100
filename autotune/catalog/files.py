"""Files that a command writes: whole or not at all, on the disk, with the modes a user expects.

Every file that another command or a person reads goes through here. Records that grow line by line
(`trials.jsonl`, probes) append through here; their own modules read them. What belongs to the user
and to no run (refreshed prices, cached traces, learned residuals) lies below `home_dir`. How the
shipped files are read: `tables`.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import IO

from autotune.domain.paths import whole


def write_whole(path: Path, content: str | bytes, mode: int | None = None) -> None:
    """Write a file beside its place, sync it, and rename it over whatever stands there.

    A reader, another process and a power cut see the old file or the new one. A link is replaced
    and not followed; a pipe or a device, as `/dev/stdout` is, is written to. Text becomes UTF-8.

    mode: permissions; those of the file that is replaced, or what umask leaves, if left out.
    Raises OSError where the folder cannot be written; nothing of ours stays behind.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(_as_bytes(content))
        return
    scratch = _written(path, content, mode)
    try:
        scratch.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise
    _sync_folder(path.parent)


def append_synced(stream: IO[bytes], content: bytes) -> None:
    """Write behind what a file holds, and wait until the disk has it. Raises OSError."""
    stream.write(content)
    stream.flush()
    os.fsync(stream.fileno())


def write_new(path: Path, content: str | bytes) -> bool:
    """Write a file that nobody else has written; whether it was ours to write."""
    scratch = _written(path, content, None)
    try:
        os.link(scratch, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        if path.exists():
            return False
        scratch.replace(path)
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()
    _sync_folder(path.parent)
    return True


def is_scratch(path: Path, names: tuple[str, ...]) -> bool:
    """Whether a file is what a killed process left of one of these names, half written."""
    return any(path.name.startswith(f".{name}.") for name in names)


def _written(path: Path, content: str | bytes, mode: int | None) -> Path:
    """The content on the disk under a name that is no file's yet."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    scratch = path.parent / name
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(_as_bytes(content))
            stream.flush()
            os.fsync(stream.fileno())
        scratch.chmod(_mode(path) if mode is None else mode)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise
    return scratch


def _as_bytes(content: str | bytes) -> bytes:
    return content.encode("utf-8") if isinstance(content, str) else content


def _mode(path: Path) -> int:
    with contextlib.suppress(OSError):
        if not path.is_symlink():
            return path.stat().st_mode & 0o777
    umask = os.umask(0o077)
    os.umask(umask)
    return 0o666 & ~umask


def _sync_folder(folder: Path) -> None:
    """The name itself onto the disk; file systems that cannot do that are left as they are."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def machines_dir() -> Path:
    """Where what was measured of machines is kept: `machines` below `home_dir`."""
    return home_dir() / "machines"


def home_dir() -> Path:
    """$AUTOTUNE_HOME, else ~/.cache/autotune, from the root. Not created here."""
    stated = os.environ.get("AUTOTUNE_HOME")
    return whole(stated) if stated else Path.home() / ".cache" / "autotune"
