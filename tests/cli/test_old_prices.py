"""A product that is used a year from now, with the prices that it was shipped with."""

from __future__ import annotations

import re
from datetime import date
from typing import TYPE_CHECKING

import pytest
from commandline import typed

from autotune.report.screens.screen import MOST_LINES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from commandline import Done

SEVEN_B = ("--model", "Llama-7B", "--rows", "304k", "--max-length", "512", "--global-batch", "128")
LIMITED = (
    "--model", "Qwen2.5-7B", "--method", "qlora", "--rows", "20k", "--deadline", "10h",
    "--budget", "20USD",
)  # fmt: skip
CAMPAIGN = "jobs/campaigns/rtx4090_qwen2.yaml"
LINES = (
    ("compare", *SEVEN_B, "--gpu", "all"),
    ("compare", *LIMITED, "--gpu", "all"),
    ("compare", *SEVEN_B, "--gpu", "h100,a100,l40s,4090"),
    ("tune", *SEVEN_B, "--gpu", "h100", "--dry-run", "--fidelity", "formula"),
    ("estimate", *SEVEN_B, "--gpu", "4090", "--fidelity", "formula"),
    ("plan", CAMPAIGN, "--gpu", "l4,a100"),
    ("plan", CAMPAIGN, "--parallel", "4", "--budget", "0.5USD"),
)
DAYS = (date(2026, 11, 22), date(2028, 2, 29))


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Done]:
    """Types a command line on another day."""

    def type_on(day: date, *words: str) -> Done:
        monkeypatch.setattr("autotune.catalog.prices.prices.today", lambda: day)
        return typed(*words, home=tmp_path)

    return type_on


@pytest.mark.parametrize("words", LINES, ids=lambda words: f"{words[0]} {words[-1]}")
@pytest.mark.parametrize("day", DAYS, ids=str)
def test_a_screen_is_one_screen_on_any_day(
    on: Callable[..., Done], day: date, words: tuple[str, ...]
) -> None:
    done = on(day, *words)
    assert done.returncode in (0, 3), done.stderr
    assert len(done.stdout.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("words", LINES[:5], ids=lambda words: f"{words[0]} {words[-1]}")
def test_old_prices_are_told_once_with_what_to_do(
    on: Callable[..., Done], words: tuple[str, ...]
) -> None:
    said = " ".join(on(DAYS[1], *words).stdout.split())
    assert said.count("`autotune prices refresh` renews") == 1
    assert len(re.findall(r"\d+ months (?:ago|old)|the oldest \d+", said)) == 1
    assert not re.search(r"\d{3} days ago", said)  # a year is not counted in days


def test_a_mark_that_every_price_has_is_on_no_line(on: Callable[..., Done]) -> None:
    table = on(DAYS[1], *LINES[2]).stdout.partition("Machines")[2].partition("On ")[0]
    assert "l40s" in table
    assert "old" not in table.split("8 of 10")[0].replace(",", " ").split()


def test_the_machine_that_a_plan_chose_is_in_its_table(on: Callable[..., Done]) -> None:
    said = on(DAYS[0], "plan", CAMPAIGN).stdout
    table = said.partition("Machines, each with its own hours")[2].partition("Phases")[0]
    assert ["rtx-4090", "(own)*"] in [line.split()[:2] for line in table.splitlines()]
