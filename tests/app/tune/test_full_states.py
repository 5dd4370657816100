"""Full fine-tuning says what its states are in, and what fp32 would take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from autotune.app.job.load import load_job
from autotune.app.tune.tune import Options, tune
from autotune.cost.parameters import parameter_count
from autotune.domain.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

JOB = {
    "model": "Qwen/Qwen2.5-0.5B", "method": "full", "data": {"rows": 8000, "max_length": 512},
    "hardware": [{"gpu": "h100-sxm", "price": "2 USD/h"}],
}  # fmt: skip


def path_of(folder: Path) -> Path:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(JOB), encoding="utf-8")
    return path


def test_full_fine_tuning_says_what_its_states_are_in_and_what_fp32_would_take(
    tmp_path: Path,
) -> None:
    job = load_job(path_of(tmp_path))
    said = next(item for item in job.assumed if item.key == "method.states")
    assert said.value == "bf16 weights and moments"
    assert "DeepSpeed" not in said.why
    assert format_bytes(8.0 * parameter_count(job.model)) in said.why
    stated = load_job(path_of(tmp_path), set_values={"method.base": "16bit"})
    assert said in stated.assumed
    wide = load_job(path_of(tmp_path), set_values={"method.base": "32bit"})
    assert "method.states" not in {item.key for item in wide.assumed}
    several = load_job(path_of(tmp_path), gpus=("h100-sxm:2@4USD/h",))
    shared = next(item for item in several.assumed if item.key == "method.states")
    assert shared.value == "bf16, fp32 masters under DeepSpeed"


def test_fp32_weights_and_states_are_priced_beside_the_answer(tmp_path: Path) -> None:
    options = Options(dry_run=True, fidelity="formula", trials=1)
    answer = tune(load_job(path_of(tmp_path)), options)
    assert answer.best is not None
    wide = next(each for each in answer.sensitivities if each.key == "method.base")
    assert wide.value == "32bit"
    changed = tune(load_job(path_of(tmp_path), set_values={"method.base": "32bit"}), options).best
    assert wide.duration_s == pytest.approx(changed.duration_s.p50, rel=2e-3)


def test_offload_on_one_card_is_said_to_train_with_fp32_masters_and_not_the_same(
    tmp_path: Path,
) -> None:
    big = {**JOB, "model": "meta-llama/Llama-2-13b-hf"}
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(big), encoding="utf-8")
    answer = tune(load_job(path), Options(dry_run=True, fidelity="formula", trials=1))
    (found,) = [each for each in answer.rejected.relaxations if "offload optimizer" in each.change]
    assert "fp32 masters and moments" in found.change
    assert found.class_ == "numeric"
