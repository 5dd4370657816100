"""Installed from a wheel: nothing that is said or needed lies in the repository alone."""

from __future__ import annotations

import ast
import email
import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "autotune"
# Paths and make targets of a checkout, and words that mean one.
OF_THE_REPOSITORY = re.compile(
    r"\b(?:docs|jobs|tests|bench|requirements|search_spaces)/|\bautotune/[a-z_]+/"
    r"|CONTRIBUTING|CHANGELOG|constraints\.txt|\bcheckout\b|-m bench"
    r"|`make [a-z]|\bmake (?:demo|test|walk|install|check|docs|parsers|gpu-suite)\b"
)


def said(path: Path) -> list[tuple[int, str]]:
    """Texts of a module that may reach a user: all but docstrings, and those of commands."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    commands = path.parent.name == "cli"
    silent = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
        and not (commands and isinstance(node, ast.FunctionDef))
    }
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent
    ]


def test_no_message_names_what_only_the_repository_has() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text[max(0, hit.start() - 30) : hit.end() + 30]!r}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, text in said(path)
        for hit in OF_THE_REPOSITORY.finditer(text)
    ]
    found += [
        f"{path.relative_to(ROOT)}: {hit[0]!r}"
        for path in sorted((PACKAGE / "cli" / "topics").glob("*.txt"))
        for hit in OF_THE_REPOSITORY.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not found


def test_the_search_for_such_words_finds_them(tmp_path: Path) -> None:
    folder = tmp_path / "cli"
    folder.mkdir()
    (folder / "x.py").write_text(
        '"""docs/x.md"""\n'
        'def command():\n    """see jobs/a.yaml"""\n    return f"`make demo` {1}"\n'
    )
    assert [bool(OF_THE_REPOSITORY.search(text)) for _, text in said(folder / "x.py")] == [True] * 2


@pytest.mark.parametrize(
    ("remote", "page"),
    [
        ("https://example.org/me/tool.git\n", "https://example.org/me/tool"),
        ("git@example.org:me/tool.git\n", "https://example.org/me/tool"),
        ("ssh://git@example.org/me/tool", "https://example.org/me/tool"),
        ("https://me:word@example.org/me/tool.git", "https://example.org/me/tool"),
        ("/srv/git/tool.git", ""),
        ("", ""),
    ],
)
def test_the_addresses_of_the_package_are_those_of_the_clone(remote: str, page: str) -> None:
    pytest.importorskip("hatchling", reason="needs hatchling, which requirements/test.txt has")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    assert hook.address(remote) == page


@pytest.mark.slow
def test_the_wheel_holds_what_it_reads_and_says_what_it_is(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="needs hatchling, which requirements/test.txt has")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as held:
        names = set(held.namelist())
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        told = email.message_from_bytes(held.read(metadata))
    data = {
        path.relative_to(ROOT).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert data <= names
    assert {f"autotune/search_spaces/{path.name}" for path in ROOT.glob("search_spaces/*")} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert told["License-Expression"] == "Apache-2.0"
    assert told["Description-Content-Type"] == "text/markdown"
    assert "fine-tuning" in str(told.get_payload())
