"""What a reader is, and how whole input becomes its damaged input.

A reader takes the damaged input that was drawn for it. It may raise `AutotuneError`, as a person's
mistake is told; `Refused` and `Unreadable` are words between rooms that mean the same.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.fuzz import damage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from random import Random

ROOT = Path(__file__).resolve().parents[2]
JOBS, OWN = ROOT / "jobs", ROOT / "tests" / "trainers" / "own"
EARLIER = ROOT / "tests" / "pins" / "written_at_cda109b"
DATA = JOBS / "data"
LOGGED = ROOT / "tests" / "learn" / "fixtures" / "llamafactory"
ODD_FILE = 0.02  # how often something that is no file lies in a file's place
TEXT, TREE, ROWS, LINES = "text", "tree", "rows", "lines"
_KINDS = {".yaml": TREE, ".yml": TREE, ".json": TREE, ".csv": ROWS, ".jsonl": LINES}


@dataclass(frozen=True)
class Reader:
    """One reader. draw: puts an input below a folder and says in words what it is.

    share: how many of the inputs are its, where others take 1: less where one takes longer.
    commands: that an input types at most; each may take as long as an input of one.
    """

    name: str
    draw: Callable[[Random, Path], str]
    read: Callable[[Path], object]
    share: float = 1.0
    commands: int = 1


READERS: dict[str, Callable[[], Reader]] = {}


def reader(make: Callable[[], Reader]) -> Callable[[], Reader]:
    """Enter a reader under the name of its function; it is made when it is asked for."""
    READERS[make.__name__.removeprefix("_").replace("_", " ")] = make
    return make


@cache
def _tree(path: Path) -> Any:
    if path.suffix == ".json":
        return json.loads(path.read_text("utf-8"))
    from ruamel.yaml import YAML

    return YAML(typ="safe", pure=True).load(path.read_text("utf-8"))


def damaged(rng: Random, seed: Path) -> bytes:
    """A file's content, damaged in its structure, or now and then in its bytes alone."""
    kind = _KINDS.get(seed.suffix, TEXT)
    content = seed.read_bytes()
    if kind == TEXT or rng.random() < 0.25:
        return damage.text(rng, content)
    if kind == TREE:
        tree = damage.tree(rng, _tree(seed))
        return damage.as_json(tree) if seed.suffix == ".json" else damage.as_yaml(tree)
    return damage.lines(rng, content) if kind == LINES else damage.table(rng, content)


def put(rng: Random, path: Path, seed: Path) -> str:
    """Put a damaged file, or now and then something else, at a path; what it is, in words."""
    path.unlink(missing_ok=True)
    if rng.random() < ODD_FILE:
        rng.choice(damage.OTHERS)(path)
        return f"{seed.name} as no file"
    content = damaged(rng, seed)
    path.write_bytes(content)
    return f"{seed.name}: {content[:300]!r}"


def of_files(
    name: str,
    seeds: Iterable[Path],
    read: Callable[[Path], object],
    *,
    share: float = 1.0,
    called: str = "",
    suffix: Mapping[str, str] | None = None,
    beside: Path | None = None,
) -> Reader:
    """A reader of one file.

    called: its name where the reader looks for one. beside: what lies in the same folder.
    """
    files = sorted(seeds)

    def draw(rng: Random, folder: Path) -> str:
        seed = rng.choice(files)
        end = (suffix or {}).get(seed.name, seed.suffix)
        if beside:
            (folder / beside.name).symlink_to(beside)
        return put(rng, folder / (called or f"file{end}"), seed)

    def only(folder: Path) -> object:
        names = (path for path in folder.iterdir() if beside is None or path.name != beside.name)
        return read(next(names))

    return Reader(name, draw, only, share)


def of_folder(
    name: str, seed: Path, read: Callable[[Path], object], *, share: float = 1.0, only: str = "*"
) -> Reader:
    """A reader of a whole folder of which one file is damaged."""
    files = sorted(path for path in seed.rglob(only) if path.is_file())

    def draw(rng: Random, folder: Path) -> str:
        shutil.copytree(seed, folder / "folder")
        chosen = rng.choice(files)
        return put(rng, folder / "folder" / chosen.relative_to(seed), chosen)

    return Reader(name, draw, lambda folder: read(folder / "folder"), share)


def of_texts(name: str, seeds: Sequence[str], reads: Sequence[Callable[[str], object]]) -> Reader:
    """Readers of a short text."""

    def draw(rng: Random, folder: Path) -> str:
        text = (
            rng.choice(damage.TEXTS)
            if rng.random() < 0.1
            else damage.phrase(rng, rng.choice(seeds))
        )
        (folder / "text").write_bytes(text.encode("utf-8", "surrogatepass"))
        return repr(text[:200])

    def read(folder: Path) -> None:
        from autotune.domain.errors import AutotuneError

        text = (folder / "text").read_bytes().decode("utf-8", "surrogatepass")
        for each in reads:
            with contextlib.suppress(AutotuneError):
                each(text)

    return Reader(name, draw, read)


@dataclass(frozen=True)
class Said:
    """How a command line ended, and what it printed."""

    code: int
    out: str
    err: str


def said(*words: str) -> Said:
    """A command line in this process; what it raises is raised."""
    from autotune.cli.application import run

    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words)
    for stream in (out, err):
        stream.flush()
    told = [each.buffer.getvalue().decode(errors="replace") for each in (out, err)]  # type: ignore[attr-defined]
    return Said(code, *told)


def typed(*words: str) -> int:
    """The exit code of a command line that is no bug. Raises InputError where it is refused."""
    from autotune.cli.application import BUG
    from autotune.domain.errors import InputError

    found = said(*words)
    if found.code == BUG:
        raise AssertionError(found.err[-500:])
    if found.code == InputError.exit_code:
        raise InputError(found.err)
    return found.code


@contextlib.contextmanager
def environment(**values: str) -> Any:
    """These variables of the environment, and afterwards what they were before."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
