"""The lock that `make test` installs names everything that pyproject.toml asks for, with hashes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {
    "product": ("dataset",),
    "test": ("dataset", "postgres", "probe", "ray", "redis", "test"),
}
LEFT_TO_ITSELF = {"torch"}  # another file for every accelerator


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


@pytest.mark.parametrize("file", EXTRAS)
def test_the_lock_names_every_dependency_with_its_hashes(file: str) -> None:
    text = (ROOT / "requirements" / f"{file}.txt").read_text()
    entries = re.split(r"\n(?=\S)", text)
    locked = {_name(entry) for entry in entries if "==" in entry}
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *(each for name in EXTRAS[file] for each in extras[name])]
    assert {_name(each) for each in wanted} - LEFT_TO_ITSELF <= locked
    assert [entry for entry in entries if "==" in entry and "--hash=sha256:" not in entry] == []


def test_the_lock_holds_the_versions_of_the_constraints() -> None:
    text = (ROOT / "requirements" / "test.txt").read_text()
    pins = re.findall(r"^([\w-]+==[\w.]+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert [pin for pin in pins if f"\n{pin} " not in f"\n{text}"] == ["torch==2.13.0"]
