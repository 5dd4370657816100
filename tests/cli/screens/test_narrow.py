"""A terminal of 40 columns: nothing is wider but a command, which stays whole to be copied."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commandline import typed

ROOT = Path(__file__).parents[3]
COMMAND = re.compile(r"(hint: )?\s*\(?(autotune|cd|bash|export|MAX_STEPS|data:) ?")
WIDTH = 40


@pytest.mark.parametrize(
    "words",
    [
        "--help", "init --help", "estimate nope.yaml", "devices", "models", "runs", "prices h100",
        "estimate jobs/h100_38h.yaml --set foo=1 --fidelity formula",
        "estimate jobs/h100_38h.yaml --fidelity formula --verbose",
        "tune jobs/h100_38h.yaml --dry-run --fidelity formula",
        "compare jobs/h100_38h.yaml --gpu h100,a100-80gb",
        "plan jobs/campaigns/a100_llama7b.yaml --verbose",
        "dataset jobs/data/tiny.jsonl --tokenizer bytes",
        "learn tests/learn/fixtures/llamafactory --gpu h100 --dry-run",
    ],
)  # fmt: skip
def test_forty_columns_are_respected(tmp_path: Path, words: str) -> None:
    done = typed(*words.split(), home=tmp_path, COLUMNS=str(WIDTH))
    wide = [x for x in (done.stdout + done.stderr).splitlines() if len(x) > WIDTH]
    breakable = [x for x in wide if " " in x.strip() and not COMMAND.match(x)]
    assert breakable == []


def test_a_message_stays_one_line_where_the_terminal_is_no_narrow_one(tmp_path: Path) -> None:
    done = typed("estimate", "jobs/h100_38h.yaml", "--set", "foo=1", home=tmp_path, COLUMNS="80")
    assert len(done.stderr.splitlines()) == 2


def test_names_are_not_cut_into_syllables_beside_numbers(tmp_path: Path) -> None:
    words = ("tune", "jobs/h100_38h.yaml", "--dry-run", "--fidelity", "formula")
    shown = typed(*words, home=tmp_path, COLUMNS=str(WIDTH)).stdout
    assert re.search(
        r"^  gradient_checkpointing on\n    [\d.]+ h +\$[\d.]+ .*GiB$", shown, re.MULTILINE
    )


@pytest.mark.parametrize(
    "words",
    [
        "estimate jobs/h100_38h.yaml --fidelity formula --verbose",
        "plan jobs/campaigns/a100_llama7b.yaml --verbose",
        "compare jobs/h100_38h.yaml --gpu h100,a100-80gb",
    ],
)
def test_no_figure_and_no_setting_is_cut_at_forty_columns(tmp_path: Path, words: str) -> None:
    assert cut(tmp_path, *words.split()) == []


@pytest.mark.usefixtures("validated_once")
def test_no_figure_of_the_validation_is_cut_at_forty_columns(tmp_path: Path) -> None:
    assert cut(tmp_path, "validate") == []


def cut(home: Path, *words: str) -> list[str]:
    """Figures and settings of a wide screen that a narrow one lacks."""
    narrow, wide = (
        re.findall(r"[$+-]?\d[\d.,]*\d%?|\w+_\w+", typed(*words, home=home, COLUMNS=each).stdout)
        for each in (str(WIDTH), "120")
    )
    assert len(wide) > 20
    return [each for each in wide if each not in set(narrow)]
