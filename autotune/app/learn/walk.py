"""The files below what was named that a training may have left: bounded, read-only, no links.

A link is never followed, neither of a folder nor of a file, so nothing outside of what was named is
read, and a ring of links ends nothing. Files are read whole only where they are small, and by their
ends where they are logs.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autotune.catalog.files import read_regular
from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEPTH, MOST_FOLDERS, MOST_FILES = 12, 50_000, 500_000
SMALL_BYTES = 20_000_000  # of a JSON, a YAML or a notebook
LOG_BYTES = 50_000_000  # of a log: read up to here
PASSED_OVER = frozenset({
    ".git", "node_modules", "__pycache__", ".venv", "venv", "site-packages", ".cache",
    ".ipynb_checkpoints",
})  # fmt: skip


class Unreadable(Exception):  # noqa: N818 - a finding, not an error
    """A file that says nothing; the message is the reason."""


@dataclass(slots=True)
class Folder:
    """A folder and the names of its files; links are no files."""

    path: Path
    files: frozenset[str]
    folders: tuple[str, ...] = ()


@dataclass(slots=True)
class Walk:
    """What was seen on the way."""

    folders: list[Folder] = field(default_factory=list)
    files: int = 0
    cut: str = ""  # why it ended early
    unreadable: list[str] = field(default_factory=list)

    @property
    def seen(self) -> str:
        """How much, in words."""
        files, folders = self.files, len(self.folders)
        return f"{files:,} file{'s' * (files != 1)} in {folders:,} folder{'s' * (folders != 1)}"


def walk(roots: list[Path]) -> Walk:
    """Every folder below the roots; a root that is a file is a folder with one file.

    Raises InputError for a root that is not there.
    """
    found = Walk()
    seen: set[tuple[int, int]] = set()
    for root in roots:
        _refuse_missing(root)
        if root.is_file():
            found.folders.append(Folder(root.parent, frozenset({root.name})))
            found.files += 1
            continue
        for folder in _below(root, 0, found):
            try:
                stat = folder.path.stat()
            except OSError:
                continue
            if (stat.st_dev, stat.st_ino) not in seen:
                seen.add((stat.st_dev, stat.st_ino))
                found.folders.append(folder)
    return found


def _refuse_missing(root: Path) -> None:
    try:
        there = root.is_dir() or root.is_file()
    except (OSError, ValueError):
        there = False
    if not there:
        msg = f"{root} is neither a folder nor a file"
        raise InputError(msg, "name the folder that your training outputs lie in")


def _below(path: Path, depth: int, found: Walk) -> Iterator[Folder]:
    if len(found.folders) >= MOST_FOLDERS or found.files >= MOST_FILES:
        found.cut = f"stopped after {found.seen}"
        return
    try:
        with os.scandir(path) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
        files = frozenset(e.name for e in listed if e.is_file(follow_symlinks=False))
        folders = tuple(
            e.name for e in listed
            if e.is_dir(follow_symlinks=False) and e.name not in PASSED_OVER
        )  # fmt: skip
    except OSError as error:
        found.unreadable.append(f"{path}: {error.strerror}")
        return
    found.files += len(files)
    yield Folder(path, files, folders)
    if depth >= DEPTH:
        if folders:
            found.cut = f"folders deeper than {DEPTH} below what was named were left out"
        return
    for name in folders:
        yield from _below(path / name, depth + 1, found)


def read_bytes(path: Path, most: int = SMALL_BYTES) -> bytes:
    """A small file. Raises Unreadable with the reason."""
    try:
        return read_regular(path, most)
    except ValueError as error:
        msg = f"{path.name} cannot be read: {error}"
        raise Unreadable(msg) from None
    except OSError as error:
        msg = f"{path.name} cannot be read: {error.strerror}"
        raise Unreadable(msg) from None


def read_text(path: Path, most: int = SMALL_BYTES) -> str:
    """A small text; bytes that are no UTF-8 become marks."""
    return read_bytes(path, most).decode("utf-8", "replace")


def read_log(path: Path) -> str:
    """A log up to `LOG_BYTES`; the rest of a longer one is not read."""
    try:
        with path.open("rb") as stream:
            return stream.read(LOG_BYTES).decode("utf-8", "replace")
    except OSError as error:
        msg = f"{path.name} cannot be read: {error.strerror}"
        raise Unreadable(msg) from None


def read_json(path: Path) -> Any:  # noqa: ANN401 - whatever it holds
    """Parsed JSON. Raises Unreadable: damaged, cut short, nested too deeply."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError):
        msg = f"{path.name} is damaged or cut short"
        raise Unreadable(msg) from None


def read_mapping(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file. Raises Unreadable for a damaged one."""
    if not path.is_file() or path.is_symlink():
        return {}
    found = read_json(path)
    return found if isinstance(found, dict) else {}


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping, read safely and without aliases. Raises Unreadable."""
    from autotune.app.job.file import document_of

    try:
        return document_of(read_text(path, 2_000_000), path.name, json=False).values
    except InputError:
        msg = f"{path.name} is no YAML mapping that can be read"
        raise Unreadable(msg) from None


MOST_YAML = 20  # files of one folder that are looked into


def trainer_files(*places: Path) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """The YAML files in folders that are a trainer's: where each lies, whose it is, its mapping."""
    from autotune.trainers.registry import detect

    for place in places:
        try:
            names = sorted(p for p in place.iterdir() if p.suffix in {".yaml", ".yml"})
        except OSError:
            continue
        for path in [own for own in names if not own.is_symlink()][:MOST_YAML]:
            try:
                values = read_yaml(path)
                trainer = detect(values, path.name)
            except (Unreadable, InputError):
                continue
            if trainer is not None:
                yield place, trainer.name, values
