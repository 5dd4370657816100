"""How large the package is, and how far a job walks: `python -m bench.house [--format json]`.

files, lines      of the package; `code_lines` are those with no docstring, no comment and not blank
one_importer      files that exactly one other imports: each wants a reason that a reader would give
                  (`REASONS`, or that both together would be too long); without_reason: those that
                  have none
below_100_lines   files below a hundred lines
folders           the largest, in files
walks             by command, from its first function to its first bill: the modules whose functions
                  are entered (rooms), how often another one is entered (stays), and how often one
                  that had been left (returns). `domain/` and `cost/` hold values and formulas, and
                  are no stops. `validate` is the way of one row of a public table.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import sys
import tempfile
import tokenize
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
JOB = ROOT / "jobs" / "h100_38h.yaml"
WALKS = {
    "estimate": ("estimate", str(JOB), "--fidelity", "formula"),
    "tune": ("tune", str(JOB), "--fidelity", "formula"),
}
ROWS = ROOT / "autotune" / "evidence" / "data" / "measured.csv"
NO_STOPS = ("autotune.domain.", "autotune.cost.", "autotune.frozen")  # values, formulas, records
SMALL, LARGEST = 100, 5
TOO_LONG = 400  # lines of one file
REASONS = {  # why a file stands alone though one other imports it, by where it lies
    "autotune.app.init.write": "what a command asks for; the command line holds no logic",
    "autotune.app.learn.": "one file a source of past runs, or what a command asks for",
    "autotune.app.notebook": "loaded with an answer, never by `import autotune`",
    "autotune.app.refresh_prices": "what a command asks for; the command line holds no logic",
    "autotune.app.validate": "what a command asks for; the command line holds no logic",
    "autotune.claims.contradictions": "loaded for a job that states or measured something",
    "autotune.cli.": "loaded when its command is typed",
    "autotune.evidence.record.": "one file a question about a row of the record",
    "autotune.orchestrators.": "one file an orchestrator",
    "autotune.probe.guard": "a program of its own",
    "autotune.report.lists.": "one file an answer",
    "autotune.report.screens.": "one file an answer",
    "autotune.search.posterior.together": "one file a way to choose the next probe",
    "autotune.trace.worker": "a program of its own",
    "autotune.trainers.": "one file a format",
}


class Size(TypedDict):
    """Files, lines and importers of a package. folders: the largest, in files."""

    files: int
    lines: int
    code_lines: int
    one_importer: int
    without_reason: list[str]
    below_100_lines: int
    folders: dict[str, int]


class Walk(TypedDict):
    """A way in figures. rooms: modules, stays: with every return to one, way: in order."""

    rooms: int
    stays: int
    returns: int
    way: list[str]


def modules(package: Path) -> dict[str, Path]:
    """Dotted name -> file, of every module of a package."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def code_lines(text: str) -> int:
    """Lines of a Python text that hold code: docstrings, comments and blank lines are left out."""
    quiet = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    quiet |= {tokenize.ENDMARKER, tokenize.ENCODING}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in quiet:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def imported(text: str, known: dict[str, Path]) -> set[str]:
    """Modules of the package that a text imports, inside functions and for type checkers too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in known else node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found & known.keys()


def alone(package: Path) -> dict[str, str]:
    """Every file that exactly one other imports, and the reason; empty where there is none."""
    known = modules(package)
    texts = {name: path.read_text() for name, path in known.items()}
    importers: dict[str, list[str]] = {name: [] for name in known}
    for name, text in texts.items():
        for other in imported(text, known) - {name}:
            importers[other].append(name)
    found = {}
    for name, readers in importers.items():
        if len(readers) != 1 or known[name].name == "__init__.py":
            continue
        both = sum(len(texts[each].splitlines()) for each in (name, readers[0]))
        own = next((why for start, why in REASONS.items() if name.startswith(start)), "")
        found[name] = own or (f"{both} lines with {readers[0]}" if both > TOO_LONG else "")
    return found


def size(package: Path) -> Size:
    """Files, lines and importers of a package."""
    known = modules(package)
    texts = {name: path.read_text() for name, path in known.items()}
    rooms = [name for name, path in known.items() if path.name != "__init__.py"]
    lines = {name: len(text.splitlines()) for name, text in texts.items()}
    reasons = alone(package)
    folders = Counter(str(path.parent.relative_to(package.parent)) for path in known.values())
    return {
        "files": len(known),
        "lines": sum(lines.values()),
        "code_lines": sum(code_lines(text) for text in texts.values()),
        "one_importer": len(reasons),
        "without_reason": [name for name, reason in reasons.items() if not reason],
        "below_100_lines": sum(lines[name] < SMALL for name in rooms),
        "folders": dict(folders.most_common(LARGEST)),
    }


class _Billed(BaseException):
    """The walk is at its end; no `except Exception` of the product may stop it."""


def _stays(argv: tuple[str, ...]) -> list[str]:
    """Modules that a command enters on the way to its first bill, one for each stay, in order."""
    from autotune.cli.application import application

    stays: list[str] = []

    def look(frame: FrameType, event: str, _: object) -> None:
        name, function = str(frame.f_globals.get("__name__")), frame.f_code.co_name
        if event == "return" and (name, function) == ("autotune.cost.model", "price"):
            raise _Billed
        if event != "call" or function.startswith("<") or stays[-1:] == [name]:
            return
        began = stays or (name.startswith("autotune.cli.") and function == argv[0])
        if began and name.startswith("autotune.") and not name.startswith(NO_STOPS):
            stays.append(name)

    silence = io.StringIO()
    with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
        sys.setprofile(look)
        try:
            application()(argv, standalone_mode=False)
        except _Billed:
            pass
        finally:
            sys.setprofile(None)
    return stays


def walk(argv: tuple[str, ...]) -> Walk:
    """The way of a command to its first bill, in figures and in the order of first entry."""
    _stays(argv)  # modules are loaded, and caches filled: what is left is the way
    stays = _stays(argv)
    rooms = list(dict.fromkeys(stays))
    way = [name.removeprefix("autotune.") for name in rooms]
    return Walk(rooms=len(rooms), stays=len(stays), returns=len(stays) - len(rooms), way=way)


def ways(folder: Path) -> dict[str, tuple[str, ...]]:
    """The commands whose ways are walked, by name; `folder` gets a table of one row."""
    table = folder / "one_row.csv"
    with ROWS.open(encoding="utf-8") as lines:
        table.write_text("".join(islice(lines, 2)), encoding="utf-8")
    return {**WALKS, "validate": ("validate", "--data", str(table))}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="How large the package is.")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    form = parser.parse_args().format
    found = size(ROOT / "autotune")
    with tempfile.TemporaryDirectory() as home:
        os.environ.update({"AUTOTUNE_HOME": home, "AUTOTUNE_RUNS": home})
        walks = {name: walk(argv) for name, argv in ways(Path(home)).items()}
    if form == "json":
        print(json.dumps({**found, "walks": walks}, indent=2))
        return
    print(f"{found['files']:,} files, {found['lines']:,} lines, {found['code_lines']:,} of code")
    print(f"{found['one_importer']} files with one importer, {found['below_100_lines']} short ones")
    print("without a reason: " + (", ".join(found["without_reason"]) or "none"))
    print("largest folders: " + ", ".join(f"{name} {n}" for name, n in found["folders"].items()))
    for name, way in walks.items():
        print(f"{name}: {way['rooms']} rooms, {way['stays']} stays, {way['returns']} returns")
        print("  " + " > ".join(way["way"]))


if __name__ == "__main__":
    main()
