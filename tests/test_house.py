"""The house itself: no import circles, no crowded folders, every room says what it answers."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from bench.house import TOO_LONG, alone, code_lines, modules, walk, ways

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "autotune"
CROWDED = 15  # files of one folder, of the package as of its tests: a screen of 24 lines lists them
# What `python -m bench.house` prints: these may only fall.
ONE_IMPORTER = 49  # plug-ins apart, of which there is one file each
ROOMS_AND_STAYS = {"estimate": (26, 31), "tune": (29, 37), "validate": (18, 30)}


@cache
def known() -> dict[str, Path]:
    """The modules of the house."""
    return modules(PACKAGE)


@cache
def docstring_and_imports(path: Path) -> tuple[str, frozenset[str]]:
    """What a file says of itself; the modules of the house it imports, inside functions too.

    What only type checkers read binds nobody at run time and is left out. Parsed once for all.
    """
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            if isinstance(child, ast.ImportFrom) and (child.module or "").startswith("autotune"):
                for alias in child.names:
                    full = f"{child.module}.{alias.name}"
                    found.add(full if full in known() else str(child.module))
            elif isinstance(child, ast.Import):
                found.update(alias.name for alias in child.names if alias.name in known())
            elif not isinstance(child, ast.expr):  # no import stands inside an expression
                visit(child)

    tree = ast.parse(path.read_text())
    visit(tree)
    return ast.get_docstring(tree) or "", frozenset(found)


def test_no_module_imports_itself_by_a_detour_not_even_inside_functions() -> None:
    graph = {name: docstring_and_imports(path)[1] - {name} for name, path in known().items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_every_file_is_looked_at_by_the_linter() -> None:
    """A folder's name must not keep its files from it, as that of a folder of runs may."""
    ruff = [sys.executable, "-m", "ruff", "check", "--show-files", "autotune"]
    listed = subprocess.run(ruff, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert {str(path) for path in known().values()} <= set(listed.splitlines())


def test_no_folder_is_crowded() -> None:
    counts: dict[Path, int] = {}
    for path in known().values():
        if path.name not in {"__init__.py", "__main__.py"}:
            counts[path.parent] = counts.get(path.parent, 0) + 1
    for path in (ROOT / "tests").rglob("test_*.py"):  # what they import has its own names
        counts[path.parent] = counts.get(path.parent, 0) + 1
    assert counts[ROOT / "tests"] > 1
    crowded = {str(k.relative_to(ROOT)): n for k, n in counts.items() if n > CROWDED}
    assert not crowded


def test_no_file_is_too_long() -> None:
    lines = {name: len(path.read_text().splitlines()) for name, path in known().items()}
    assert {name: count for name, count in lines.items() if count > TOO_LONG} == {}


def test_a_file_that_one_other_imports_has_a_reason_to_stand_alone() -> None:
    reasons = alone(PACKAGE)
    assert [name for name, reason in reasons.items() if not reason] == []
    alone_here = [name for name, why in reasons.items() if not why.startswith("one file")]
    assert len(alone_here) <= ONE_IMPORTER


def test_every_file_says_what_is_in_it() -> None:
    for path in known().values():
        text, _ = docstring_and_imports(path)
        assert text, path
        assert not re.fullmatch(r"\w+ room\.", text), f"{path}: says nothing"


def test_the_architecture_page_names_what_is_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`(autotune/[\w/.]+)`(?:\s+`([^`]+)`)?", text)
    assert len(named) > 40
    for path, name in named:
        place = ROOT / path
        assert place.exists(), path
        if name and not name.startswith("autotune/"):
            assert name in place.read_text(), f"{path}: no {name}"


def test_each_question_of_a_stranger_is_one_search() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text().partition("## Where is ...?")[2]
    rows = re.findall(r"^\| ([^|]+) \| `([^`]+)` \| `(autotune/[^`]+)`", page, re.MULTILINE)
    assert len(rows) >= 20
    texts = {path: path.read_text(encoding="utf-8").splitlines() for path in known().values()}
    for question, search, place in rows:
        pattern = re.compile(search)
        hits = {
            str(path.relative_to(ROOT)) for path, lines in texts.items()
            if any(pattern.search(line) for line in lines)
        }  # fmt: skip
        assert hits == {place}, question


def test_lines_of_code_are_counted_without_docstrings_comments_and_blank_lines() -> None:
    text = '"""What."""\n\nX = 1  # one\n\n\ndef f():\n    """Why."""\n    # how\n    '
    text += 'return """a\nb"""\n'
    assert code_lines(text) == 4


def test_the_walk_of_a_job_begins_at_the_command_and_ends_at_the_pricing() -> None:
    found = walk(("estimate", str(ROOT / "jobs" / "h100_38h.yaml"), "--fidelity", "formula"))
    assert found["way"][0] == "cli.commands.estimate"
    assert {"app.job.load", "pricing"} <= set(found["way"])
    assert not any(name.startswith(("report.", "cost.")) for name in found["way"])
    assert found["stays"] == found["rooms"] + found["returns"]


@pytest.mark.parametrize("command", ROOMS_AND_STAYS)
def test_the_walk_of_a_job_or_a_row_gets_no_longer(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("AUTOTUNE_HOME", "AUTOTUNE_RUNS"):  # what earlier tests kept would be looked up
        monkeypatch.setenv(place, str(tmp_path / "home"))
    found = walk(ways(tmp_path)[command])
    rooms, stays = ROOMS_AND_STAYS[command]
    assert found["rooms"] <= rooms, found["way"]
    assert found["stays"] <= stays
    if command != "estimate":  # the page draws a job's way to its answer, and a row's
        page = (ROOT / "docs" / "architecture.md").read_text()
        assert " > ".join(found["way"]) in " ".join(page.split())
