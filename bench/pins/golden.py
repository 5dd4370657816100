"""Pins on disk: played into a folder, compared with the recorded ones, and recorded anew."""

from __future__ import annotations

import difflib
import math
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.pins.cases import PINS, ROOT, cases

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

GOLDEN = PINS / "golden"
CLOSE = 1e-6  # relative: what another processor makes of the same arithmetic
NUMBER = re.compile(
    r"(?<![\w.])-?\d+\.\d{5,}(?:[eE][+-]?\d+)?|(?<![\w.])-?\d(?:\.\d+)?[eE][+-]?\d+"
)
WITH_NUMBERS = {".json", ".jsonl", ".csv"}
SHOWN_LINES = 60


def play(names: Iterable[str], out: Path) -> None:
    """Type the lines of these cases in a new process, and write what came of them to `out`.

    Raises RuntimeError where the process ends early.
    """
    with _plain_folder() as folder:
        scratch = Path(folder) / "tmp"
        scratch.mkdir()
        environment = {
            "PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch),
            "COLUMNS": "100", "LINES": "40", "NO_COLOR": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8",
            "AUTOTUNE_OFFLINE": "1", "PYTHONWARNINGS": "ignore",
            "HF_HUB_CACHE": str(scratch / "hub"), "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        for name in ("PYTHONHASHSEED", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            if name in os.environ:
                environment[name] = os.environ[name]
        done = subprocess.run(
            [sys.executable, "-m", "bench.pins.play", str(out), folder, *names],
            env=environment, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    if done.returncode:
        msg = f"the pinned commands could not be typed:\n{done.stdout}\n{done.stderr}"
        raise RuntimeError(msg)


@contextmanager
def _plain_folder() -> Iterator[str]:
    """A new folder, gone at the end, whose name holds nothing that Markdown escapes."""
    folder = Path(_short()) / f"pins-{secrets.token_hex(5)}"
    folder.mkdir(mode=0o700)
    try:
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _short() -> str:
    """A folder with a short name: that of a case is filled up to a fixed length."""
    short = Path("/tmp")  # noqa: S108 - a folder of its own is made in it
    return str((short if os.access(short, os.W_OK) else Path(tempfile.gettempdir())).resolve())


def record(names: Iterable[str]) -> None:
    """Put what the commands do now in the place of what was recorded and differs from it."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = list(names)
        play(chosen, Path(folder))
        for name in chosen:
            _replace(GOLDEN / name, Path(folder) / name)
    for path in GOLDEN.iterdir():
        if path.name not in cases():
            shutil.rmtree(path)


def _replace(golden: Path, now: Path) -> None:
    """Files that say the same but for last digits stay: what changes in the record has changed."""
    for name in _names(golden) & _names(now):
        if close(Path(name).suffix, _lines(golden / name), _lines(now / name)):
            shutil.copy(golden / name, now / name)
    shutil.rmtree(golden, ignore_errors=True)
    shutil.copytree(now, golden)


def differences(pin: str, played: Path) -> str:
    """What a pin prints and writes otherwise than recorded, as a diff; empty if it does not."""
    golden, now = GOLDEN / pin, played / pin
    texts = []
    for name in sorted(_names(golden) | _names(now)):
        before, after = _lines(golden / name), _lines(now / name)
        if before != after and not close(Path(name).suffix, before, after):
            lines = difflib.unified_diff(before, after, f"recorded/{name}", f"now/{name}", n=1)
            texts += _few(list(lines))
    return "\n".join(line.rstrip("\n") for line in texts)


def _names(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []


def _few(lines: list[str]) -> Iterator[str]:
    yield from lines[:SHOWN_LINES]
    if len(lines) > SHOWN_LINES:
        yield f"... and {len(lines) - SHOWN_LINES} more lines"


def close(suffix: str, before: list[str], after: list[str]) -> bool:
    """Whether two files say the same but for the last digits of unrounded figures."""
    if suffix not in WITH_NUMBERS:
        return False
    one, other = "".join(before), "".join(after)
    if NUMBER.sub("#", one) != NUMBER.sub("#", other):
        return False
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=CLOSE) for a, b in pairs)
