"""A row for each command: its operations, the faults tried, and what was wrong after how many."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import traceback
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.catalog.files import SCRATCH
from bench.faults.commands import COMMANDS, nothing
from bench.faults.injected import FAULTS, HUNG, OF_WRITES, begin, in_child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.faults.commands import Command

KINDS = ("lost", "stuck", "corrupt", "left behind")
ANSWERED = frozenset({0, 3, 4})  # exit codes of an answer
LOADED = (
    "autotune.cli.commands.tune", "autotune.cli.commands.verify", "autotune.cli.commands.lists",
    "autotune.app.tune.tune", "autotune.app.probing.tune", "autotune.search.study.study",
    "autotune.search.study.storage", "autotune.app.verify.verify", "autotune.app.workers.lead",
    "autotune.app.workers.join", "autotune.report.page.page", "autotune.app.refresh_prices",
    "autotune.evidence.calibrate",
)  # fmt: skip


def measured(
    names: list[str] | None = None,
    most: int | None = None,
    faults: Sequence[str] = FAULTS,
    lanes: int = 1,
) -> Iterator[dict[str, Any]]:
    """A row for each command. most: points of each fault; None: every operation."""
    for name in LOADED:  # once, before any fork
        import_module(name)
    for command in [c for c in COMMANDS if not names or c.name in names]:
        with tempfile.TemporaryDirectory(prefix="faults-") as name:
            yield _in_warm_process(command, Path(name).resolve(), most, faults, lanes)


def _in_warm_process(
    command: Command, work: Path, most: int | None, faults: Sequence[str], lanes: int
) -> dict[str, Any]:
    """A process that has run the command, and from which its faults are forked: its row."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _warm(command, work)
            row = tried(command, work, most, faults, lanes)
            (work / "row").write_text(json.dumps(row), encoding="utf-8")
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if status:
        said = work / "said"
        words = said.read_text(encoding="utf-8")[-2000:] if said.exists() else ""
        msg = f"the faults of {command.name} cannot be tried: {words}"
        raise RuntimeError(msg)
    row: dict[str, Any] = json.loads((work / "row").read_text(encoding="utf-8"))
    return row


def _warm(command: Command, work: Path) -> None:
    """Run it once here: tables are read, and what it imports is loaded."""
    folder = work / "one"
    folder.mkdir()
    _come_before(command, folder)
    begin(folder)
    command.run()
    command.again()
    os.chdir(work)
    shutil.rmtree(folder)


def _come_before(command: Command, folder: Path) -> None:
    """What comes before, which may kill itself. Raises RuntimeError where it does not end."""
    if in_child(folder, command.before)[0] == HUNG:
        msg = f"what comes before {command.name} does not end"
        raise RuntimeError(msg)


def tried(
    command: Command, work: Path, most: int | None, faults: Sequence[str] = FAULTS, lanes: int = 1
) -> dict[str, Any]:
    """The command's row. lanes: processes that try faults side by side: most of one is waiting."""
    folder, begun = work / "one", work / "begun"
    folder.mkdir()
    _come_before(command, folder)
    shutil.copytree(folder, begun, symlinks=True)
    code, letters = in_child(folder, command.run)
    behind, _ = in_child(folder, command.behind)
    if {code, behind} - ANSWERED:
        msg = f"{command.name} fails undisturbed, with exit codes {code} and {behind}"
        raise RuntimeError(msg)
    expected = command.left(folder)
    points = list(_points(letters, most, faults))
    found = _side_by_side(
        lanes,
        lambda lane: [
            _after(command, expected, begun, work / f"lane-{lane}" / "one", fault, at)
            for fault, at in points[lane::lanes]
        ],
        work,
    )
    wrong = Counter(what for what, _ in found if what)
    return {
        "command": command.name, "operations": len(letters), "points": len(points),
        **{kind: wrong[kind] for kind in KINDS},
        "examples": sorted(words for what, words in found if what),
    }  # fmt: skip


def _after(
    command: Command, expected: dict[str, Any], begun: Path, folder: Path, fault: str, at: int
) -> tuple[str, str]:
    """What is wrong after one fault and the second run, and where; empty for nothing."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(begun, folder, symlinks=True)
    in_child(folder, command.run, at, fault)
    again, _ = in_child(folder, command.again)
    if again in ANSWERED and command.behind is not nothing:
        again, _ = in_child(folder, command.behind)
    what, which = _judged(command, expected, folder, again)
    return what, f"{fault} at operation {at}: {what}: {which}"


def _side_by_side(
    lanes: int, work_of: Callable[[int], list[tuple[str, str]]], folder: Path
) -> list[tuple[str, str]]:
    """What forked processes find, each its share. Raises RuntimeError where one fails."""
    forked = []
    for lane in range(lanes):
        (folder / f"lane-{lane}").mkdir()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                found = json.dumps(work_of(lane))
                (folder / f"lane-{lane}" / "found").write_text(found, encoding="utf-8")
                code = 0
            finally:
                if code:
                    traceback.print_exc()
                os._exit(code)
        forked.append(pid)
    if any(os.waitpid(pid, 0)[1] for pid in forked):
        msg = "a lane of faults has failed"
        raise RuntimeError(msg)
    lines = [json.loads((folder / f"lane-{lane}" / "found").read_text()) for lane in range(lanes)]
    return [(what, words) for line in lines for what, words in line]


def _points(letters: bytes, most: int | None, faults: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Faults and the operations at which they are tried, from 1."""
    for fault in faults:
        places = [
            number
            for number, letter in enumerate(letters, start=1)
            if fault not in OF_WRITES or letter == ord("w")
        ]
        step = max(1, len(places) // most) if most else 1
        yield from ((fault, at) for at in places[step // 2 :: step])


def _judged(command: Command, expected: dict[str, Any], folder: Path, code: int) -> tuple[str, str]:
    """What is wrong after the second run, and where; empty for nothing."""
    if code not in ANSWERED:
        return "stuck", f"exit code {code}"
    try:
        left = command.left(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return "corrupt", str(error)[:200]
    lost = [f"{name}: {left.get(name)}" for name in expected if expected[name] != left.get(name)]
    if lost:
        return "lost", ", ".join(lost[:3])
    more = set(left) - set(expected) - {"run/failure.json"}
    behind = [n for n in sorted(more) if SCRATCH in n or ".lock" in n or "probe-" in n]
    return ("left behind", ", ".join(behind[:3])) if behind else ("", "")
