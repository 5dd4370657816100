from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from autotune.catalog import software as extras
from autotune.catalog.software import DISTRIBUTION, install_command

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_distribution_is_named_as_the_project_is() -> None:
    assert PROJECT["name"] == DISTRIBUTION


@pytest.mark.parametrize("extra", sorted(PROJECT["optional-dependencies"]))
def test_a_hint_names_every_package_of_an_extra_and_never_a_distribution_of_others(
    extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated = PROJECT["optional-dependencies"][extra]
    told = [f"{package}; extra == '{extra}'" for package in stated]
    monkeypatch.setattr(extras, "requires", lambda _name: [*told, "numpy>=2.1"])
    command = install_command(extra)
    assert command.startswith("pip install ")
    for package in stated:
        assert package in command
    assert "autotune" not in command
    assert "numpy" not in command


def test_a_source_tree_that_nobody_installed_says_how_from_the_checkout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "requires", absent)
    assert install_command("probe") == "pip install -e '.[probe]' in the folder of pyproject.toml"


def test_an_extra_that_is_not_ours_is_a_mistake_of_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extras, "requires", lambda _name: ["numpy>=2.1"])
    with pytest.raises(KeyError):
        install_command("nonsense")


def test_no_text_of_the_project_installs_somebody_elses_distribution() -> None:
    pattern = re.compile(r"(pip|uv|pipx) install[^\n`]*[\s'\"]autotune(\[|\s|'|\"|`|$)")
    texts = [
        *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "Makefile",
        *(ROOT / "autotune").rglob("*.py"),
    ]  # fmt: skip
    wrong = [str(path.relative_to(ROOT)) for path in texts if pattern.search(path.read_text())]
    assert wrong == []
