"""A machine that is named twice is priced once, and a name that is empty is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import load_job
from autotune.cli.application import run

if TYPE_CHECKING:
    from pathlib import Path

JOB = "model: Qwen/Qwen2.5-0.5B\nmethod: lora\ndata: {{rows: 10, max_length: 64}}\nhardware: {}\n"


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format("[h100, h100-sxm, {gpu: H100, count: 1}, {gpu: h100, count: 2}]"))
    return path


def test_other_spellings_of_one_machine_are_one_offer(job_file: Path) -> None:
    job = load_job(job_file)
    assert [(o.device.name, o.count) for o in job.offers] == [("h100-sxm", 1), ("h100-sxm", 2)]
    assert any("2 of the entries left out" in item.value for item in job.assumed)


def test_the_same_device_at_another_price_or_on_spot_is_another_offer(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    listed = "[{gpu: h100, price: 2 USD/h}, {gpu: h100, price: 3 USD/h}, {gpu: h100, spot: true}]"
    path.write_text(JOB.format(listed))
    assert len(load_job(path).offers) == 3


def test_a_price_limit_counts_every_machine_once(job_file: Path) -> None:
    one = load_job(job_file, max_price="5 USD/gpu-h")
    assert len(one.offers) == 2


@pytest.mark.parametrize("option", ["--gpu", "--allow", "--export"])
@pytest.mark.parametrize("value", ["", " , "])
def test_an_option_that_names_nothing_is_bad_input(
    job_file: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    assert run(["tune", str(job_file), "--dry-run", option, value]) == 2
    assert "names nothing" in capsys.readouterr().err
