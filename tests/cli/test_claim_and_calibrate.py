from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.cli.application import run
from autotune.report.layout.blocks import Section, Table
from autotune.report.lists.calibration import BARELY, calibration_sections

JOBS = Path(__file__).parents[2] / "jobs"
Capture = pytest.CaptureFixture[str]
KEYS = {
    "stated", "implied_tokens_per_s", "implied_flop_per_s", "ceiling_flop_per_s", "verdict",
    "possible", "likely", "reason",
}  # fmt: skip


def test_a_claim_is_part_of_the_estimates_json(capsys: Capture) -> None:
    job = str(JOBS / "a100_llama7b_int8.yaml")
    assert run(["estimate", job, "--claim", "1.0 s/step", "--format", "json", "--quiet"]) == 0
    claim = json.loads(capsys.readouterr().out)["claim"]
    assert set(claim) >= KEYS
    assert (claim["verdict"], claim["possible"]) == ("impossible", False)
    assert set(claim["likely"]["duration_s"]) == {"p10", "p50", "p90"}


def test_without_a_claim_there_is_none(capsys: Capture) -> None:
    job = str(JOBS / "rtx4090_qwen2_05b.yaml")
    assert run(["estimate", job, "--format", "json", "--quiet"]) == 0
    assert "claim" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("style", ["text", "md"])
def test_a_report_says_what_became_of_the_claim(capsys: Capture, style: str) -> None:
    job = str(JOBS / "rtx4090_qwen2_05b.yaml")
    assert run(["estimate", job, "--claim", "5 h", "--format", style, "--quiet"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert '"5 h" is possible, but far slower than this job should be.' in text
    assert "0.69 % of the dense peak" in text


def test_an_unreadable_claim_leaves_with_2(capsys: Capture) -> None:
    assert run(["estimate", str(JOBS / "tiny_cpu.yaml"), "--claim", "soon"]) == 2
    assert "tokens/s" in capsys.readouterr().err


@pytest.mark.usefixtures("fitted_once")
def test_calibrate_prints_json_and_writes_its_file(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "calibration.toml"
    assert run(["calibrate", "--out", str(out), "--format", "json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["written"] == str(out)
    assert "[covariance]" in out.read_text(encoding="utf-8")
    assert len(found["covariance"]["matrix"]) == len(found["covariance"]["names"])
    assert found["left_out"]["all rows"]["n"] == sum(found["rows"].values())
    told = text_of(calibration_sections(found))
    for effect, levels in found["offset"].items():
        for level, own in levels.items():
            marked = [line for line in told if line[0] == f"{effect} {level}"]
            assert all(("stands for" in line[-1]) == (own["sources"] == 1) for line in marked)
    assert found["offset"]["stack"]["litgpt"]["sources"] == 1
    assert found["offset"]["device"]["h100-sxm"]["sources"] > 1
    for name, share in found["settled"].items():
        (line,) = [line for line in told if line[0] == name]
        assert line[-1].endswith(": its prior") == (share < BARELY)


def text_of(sections: list[Section]) -> list[tuple[str, ...]]:
    """Rows of the tables."""
    tables = [block for own in sections for block in own.blocks if isinstance(block, Table)]
    return [tuple(map(str, row)) for table in tables for row in table.rows]
