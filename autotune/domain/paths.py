"""Paths as people type them, and as everything behind the command line gets them: from the root.

A worker, a script and a record are read from other folders than the one a command was typed in, so
a path becomes whole where it enters. What is printed may be short again.
"""

from __future__ import annotations

from pathlib import Path

from autotune.domain.errors import InputError

MOST_SHOWN = 300


def whole(path: str | Path) -> Path:
    """The path from the root: `~` is the home folder, relative ones start in the current folder.

    Links in it stay as they are, unless `..` follows one.

    Raises InputError for what no file system takes, and where the current folder is gone.
    """
    if "\0" in str(path):
        msg = f"the path {str(path)[:MOST_SHOWN]!r} holds a null character"
        raise InputError(msg, "write the path of a file or a folder")
    try:
        typed = Path(path).expanduser()
    except RuntimeError:  # ~somebody who is unknown, or no home folder: a name like any other
        typed = Path(path)
    try:
        return typed.resolve() if ".." in typed.parts else typed.absolute()
    except FileNotFoundError:
        msg = f"{path} cannot be found from here: the current folder is gone"
        raise InputError(msg, "change into a folder that exists") from None
    except (OSError, RuntimeError):  # a ring of links, a name that is too long: the reader says so
        return typed.absolute()


def check_spelled(*paths: str) -> None:
    """Raise InputError for a path whose bytes are no text: no file could name it."""
    for path in paths:
        try:
            path.encode()
        except UnicodeEncodeError:
            msg = f"the path {path[:MOST_SHOWN]!r} is not UTF-8: what trains could not name it"
            raise InputError(
                msg, "rename that folder or file; where its name is right, the shell's LC_ALL is"
                " not: export LC_ALL=C.UTF-8"
            ) from None  # fmt: skip


def stated_in(folder: str | Path, path: str) -> Path:
    """A path that a file in `folder` states, from the root."""
    try:
        typed = Path(path).expanduser()
    except RuntimeError:
        typed = Path(path)
    return whole(Path(folder) / typed)


def near(path: str | Path) -> str:
    """The path as short as it can be typed here: relative where it is below the current folder."""
    found = Path(path)
    try:
        return str(found.relative_to(Path.cwd())) if found.is_absolute() else str(found)
    except (ValueError, OSError):
        return str(found)
