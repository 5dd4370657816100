"""Type the commands of cases, each case in a folder of its own, and write down what came of them.

Run as `python -m bench.pins.play OUT FOLDER CASE...` by bench.pins.golden, in a clean process.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import runpy
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

from bench.pins.cases import LENGTH, ROOT, TOKEN, Case, cases
from bench.pins.machine import NOW, Clock, pretend

if TYPE_CHECKING:
    from datetime import datetime

LARGE_BYTES = 6000  # from which on a file of a case that is not pinned whole is pinned by its hash
JOURNAL = "study.log"  # in the form of its library, with names of this process
LONG = re.compile(rb"-?\d+\.\d{5,}(?:e[+-]?\d+)?|-?\d\.\d+e[+-]?\d+")


def main(argv: list[str]) -> None:
    """Play the named cases below the folder, and write them to OUT."""
    out, folder, *names = argv
    clock = pretend()
    for number, name in enumerate(names):
        _play(name, cases()[name], _sandbox(Path(folder), number), Path(out) / name, clock)


def _sandbox(folder: Path, number: int) -> Path:
    width = LENGTH - len(str(folder)) - 1
    made = folder / str(number).rjust(width, "0")
    made.mkdir()
    return made


def _play(name: str, case: Case, here: Path, out: Path, clock: Clock) -> None:
    case.furnish(here)
    for path in here.rglob("*"):
        _dated(path, NOW - timedelta(days=3))
    case.train_half_way(here)
    os.environ["HOME"] = str(here / "home")
    os.environ["AUTOTUNE_HOME"] = str(here / "home" / "autotune")
    os.chdir(here)
    known = _files(here)
    for step, line in case.lines.items():
        clock.goes, clock.interrupts = name == "doctor", step == "interrupted"
        code, stdout, stderr = _typed(shlex.split(line))
        now = _files(here)
        _write(out / step, here, line, (code, stdout, stderr))
        for path in sorted(now):
            if now[path] != known.get(path):
                _dated(here / path, NOW)
                _keep(here / path, out / step / "files" / path, here, whole=case.whole)
        gone = sorted(set(known) - set(now))
        if gone:
            (out / step / "removed.txt").write_text("\n".join(gone) + "\n", encoding="utf-8")
        known = now


def _dated(path: Path, at: datetime) -> None:
    os.utime(path, (at.timestamp(), at.timestamp()))


def _files(here: Path) -> dict[str, str]:
    return {
        path.relative_to(here).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in here.rglob("*")
        if path.is_file()
    }


def _typed(words: list[str]) -> tuple[int, bytes, bytes]:
    """Exit code, stdout and stderr of `python -m autotune WORDS`, in this process."""
    out, err = io.BytesIO(), io.BytesIO()
    argv, sys.argv = sys.argv, ["autotune", *words]
    code: object = 0
    with (
        io.TextIOWrapper(out, "utf-8", write_through=True) as stdout,
        io.TextIOWrapper(err, "utf-8", write_through=True) as stderr,
        redirect_stdout(stdout), redirect_stderr(stderr),
    ):  # fmt: skip
        try:
            runpy.run_module("autotune", run_name="__main__", alter_sys=True)
        except SystemExit as left:
            code = left.code
        texts = out.getvalue(), err.getvalue()
    sys.argv = argv
    return (code if isinstance(code, int) else int(code is not None)), *texts


def _write(out: Path, here: Path, line: str, answer: tuple[int, bytes, bytes]) -> None:
    code, stdout, stderr = answer
    out.mkdir(parents=True)
    (out / "command.txt").write_text(f"$ autotune {line}\nexit code {code}\n", encoding="utf-8")
    form = re.search(r"--format[ =](json|csv|md|html)\b", line)
    for name, content in (("stdout", stdout), ("stderr", stderr)):
        if content:
            ending = form[1] if form and name == "stdout" and code in (0, 3, 4, 6) else "txt"
            (out / f"{name}.{ending}").write_bytes(content)
            _keep(out / f"{name}.{ending}", out / f"{name}.{ending}", here, whole=True)


def _keep(path: Path, to: Path, here: Path, *, whole: bool) -> None:
    """One file, as it is pinned: pages by their text and a hash, what is large by a hash."""
    to.parent.mkdir(parents=True, exist_ok=True)
    content = neutral(path.read_bytes(), here)
    if path.name == JOURNAL:
        content = b"the journal of the study\n"
    elif path.suffix == ".html":
        path.unlink() if path == to else None
        to = to.with_name(to.name + ".txt")
        content = f"sha256 {_hash(content)}\n{_text_of(content.decode())}".encode()
    elif (len(content) > LARGE_BYTES and not whole) or b"\0" in content:
        lines = len(content.splitlines())
        content = f"sha256 {_hash(content)}, {lines} lines\n".encode()
    elif path.suffix == ".py":
        to = to.with_name(to.name + ".txt")  # it is not of this house's style
    to.write_bytes(content)


def neutral(content: bytes, here: Path) -> bytes:
    """The content without this machine's folders and without where its Python lies."""
    python = "/the/python"
    for path, token in (
        (shlex.quote(sys.executable), python), (sys.executable, python),
        (here.resolve(), TOKEN), (here, TOKEN), (ROOT, "/folder/of/the/checkout"),
    ):  # fmt: skip
        content = content.replace(str(path).encode(), token.encode())
    return content


def _hash(content: bytes) -> str:
    """Of the content; figures count to six digits, as processors differ in the last ones."""
    return hashlib.sha256(LONG.sub(lambda m: b"%.6g" % float(m[0]), content)).hexdigest()


class _Text(HTMLParser):
    """The words of a page, a line an element; neither styles nor scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._hidden = False

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002
        self._hidden = tag in {"script", "style"}

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002
        self._hidden = False

    def handle_data(self, data: str) -> None:
        if data.strip() and not self._hidden:
            self.lines.append(" ".join(data.split()))


def _text_of(page: str) -> str:
    reader = _Text()
    reader.feed(page)
    return "\n".join(reader.lines) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
