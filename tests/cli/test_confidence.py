"""How sure a limit must be kept, from the command line to the exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import commandline
import pytest

from autotune.cli.application import run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Typed = Callable[..., tuple[int, Any]]

# On sale together: a card that no training step was measured on, cheap, and a measured one.
NINE = (
    "--model", "meta-llama/Llama-3.1-8B", "--rows", "52k", "--max-length", "1024", "--epochs", "3",
    "--set", "data.lengths.p50=500", "--set", "data.lengths.p95=900",
    "--set", "data.lengths.max=1024", "--gpu", "rtx-4090@0.35USD/h,a100-80gb@1.40USD/h",
)  # fmt: skip


@pytest.fixture
def typed(tmp_path: Path) -> Typed:
    """A command line in a folder of its own, answered by the formula: exit code and JSON."""

    def run_it(*words: str) -> tuple[int, Any]:
        how = () if words[0] == "compare" else ("--fidelity", "formula")
        dry = ("--dry-run",) if words[0] == "tune" else ()
        asked = (*words, *how, *dry, "--format", "json", "--quiet")
        done = commandline.typed(*asked, home=tmp_path, cwd=tmp_path)
        return done.returncode, done.json if done.stdout else None

    return run_it


def test_a_card_that_may_be_late_is_not_picked_for_a_deadline(typed: Typed) -> None:
    _, free = typed("tune", *NINE)
    cheap = free["best"]
    assert cheap["device"] == "rtx-4090"
    middle, high = cheap["duration_s"]["p50"], cheap["duration_s"]["p90"]
    deadline = f"{middle * (high / middle) ** 0.4:.0f}s"  # kept with 7 chances in 10
    code, found = typed("tune", *NINE, "--deadline", deadline)
    assert (code, found["best"]["device"]) == (0, "a100-sxm4-80gb")
    assert found["limits"][0]["probability"] >= 0.8
    assert found["limits"][0]["kept"]
    assert found["misses"] == []
    code, bold = typed("tune", *NINE, "--deadline", deadline, "--set", "limits.confidence=0.6")
    assert (code, bold["best"]["device"]) == (0, "rtx-4090")
    assert bold["limits"][0]["probability"] == pytest.approx(0.696, abs=0.02)
    assert bold["job"]["limits"]["confidence"] == 0.6


@pytest.mark.parametrize("command", ["tune", "compare"])
def test_the_exit_code_is_4_exactly_where_a_limit_is_not_kept(typed: Typed, command: str) -> None:
    seen = []
    for hours in (1, 8, 11, 13, 16, 24, 40):
        code, found = typed(command, *NINE, "--deadline", f"{hours}h")
        if command == "tune":
            kept = all(each["kept"] for each in found["limits"])
            assert bool(found["misses"]) is not kept
        else:
            kept = any(all(e["kept"] for e in row["limits"]) for row in found["rows"])
        assert code == (0 if kept else 4)
        seen.append(code)
    assert seen == sorted(seen, reverse=True), "a later deadline is never missed more"
    assert set(seen) == {0, 4}


def test_a_surer_limit_is_missed_where_a_milder_one_is_kept(typed: Typed) -> None:
    one = (*NINE[:-1], "rtx-4090@0.35USD/h")
    row = typed("estimate", *one)[1]["row"]
    only = (*one, "--set", f"limits.deadline={1.02 * row['duration_s']['p90']:.0f}s")
    mild = typed("estimate", *only)[1]["limits"][0]
    assert mild["kept"]
    sure = typed("estimate", *only, "--set", "limits.confidence=0.99")[1]["limits"][0]
    assert sure["probability"] == mild["probability"]
    assert not sure["kept"]


@pytest.mark.usefixtures("typed")
@pytest.mark.parametrize("value", ["0.5", "1", "80", "0", "-0.2", "nan", "likely"])
def test_a_confidence_outside_one_half_to_one_is_refused(
    value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tune", *NINE, "--set", f"limits.confidence={value}"]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "limits.confidence" in shown
    assert "must be a probability above 0.5 and below 1" in shown
    assert ("80 % is written 0.8" in shown) == (value == "80")
