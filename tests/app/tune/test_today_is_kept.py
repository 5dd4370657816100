"""What today's run states stays, or the answer says in words what moves and what keeps it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autotune.app.estimate import estimate
from autotune.app.job.load import load_job, load_jobs
from autotune.app.tune.tune import Options, tune
from autotune.domain.answer.recommendation import Decisive
from autotune.domain.typed.overrides import Overrides
from autotune.report.payload import recommendation_payload
from autotune.report.screens.tune import recommendation_screen

if TYPE_CHECKING:
    from autotune.domain.answer.recommendation import Recommendation, Sensitivity
    from autotune.domain.job import Job

OPTIONS = Options(dry_run=True, fidelity="formula", trials=1)
AXOLOTL = Path(__file__).parents[3] / "jobs" / "trainers" / "axolotl.yml"
JOB = """\
model: meta-llama/Llama-3.1-8B
method: {{kind: lora, rank: 16, base: {base}}}
data: {{rows: 20000, max_length: 2048, lengths: {{p50: 500, p95: 1500, max: 2048}}}}
train: {{epochs: 2, global_batch_size: 64}}
evaluation: {{every_steps: {every}, rows: 2000}}
hardware: [{{gpu: {gpu}, price: 2 USD/h}}]
software: {{flash_attn: 2.8.0}}
evidence:
  - {{measured: {{duration: 9 h}}, config: {{micro_batch_size: 4, {today}}}, today: true}}
"""


def job(
    folder: Path, today: str, gpu: str = "a100-80gb", base: str = "16bit", every: int = 300,
    **sets: str,
) -> Job:  # fmt: skip
    path = folder / "job.yaml"
    path.write_text(JOB.format(today=today, gpu=gpu, base=base, every=every))
    return load_job(path, set_values={key.replace("__", "."): v for key, v in sets.items()})


def own(
    folder: Path, sets: dict[str, str] | None = None, gpu: str = "a100-80gb", **arguments: object
) -> Job:
    path = folder / "arguments.json"
    stated = {
        "model_name_or_path": "meta-llama/Llama-3.1-8B", "use_peft": True, "max_length": 2048,
        "per_device_train_batch_size": 4, "num_train_epochs": 3, "save_strategy": "epoch",
        "output_dir": "out",
    }  # fmt: skip
    path.write_text(json.dumps(stated | arguments))
    values = {"data.rows": 20_000}
    overrides = Overrides(gpus=(gpu,), stated=values, set_values=sets or {})
    return load_jobs(path, overrides)[0].job


def answered(asked: Job) -> Recommendation:
    answer = tune(asked, OPTIONS)
    assert answer.best is not None
    return answer


def worth(answer: Recommendation, key: str) -> Sensitivity | None:
    return next((each for each in answer.sensitivities if each.key == key), None)


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("packing", "on"), ("length_grouping", "on"), ("optimizer", "adamw_bnb_8bit"),
        ("adapter_dtype", "bf16"), ("kernels", "liger"), ("attention", "eager"),
    ],
)  # fmt: skip
def test_what_todays_run_states_of_a_numeric_knob_is_kept(
    tmp_path: Path, knob: str, value: str
) -> None:
    more = ", attention: flash_attention_2" if knob == "packing" else ""
    asked = job(tmp_path, f'{knob}: "{value}"{more}')
    answer = answered(asked)
    assert answer.best.config.as_dict()[knob] == value
    assert any(item.key == f"lock.{knob}" for item in asked.assumed)


def test_the_fused_form_of_the_same_optimizer_stays_free(tmp_path: Path) -> None:
    asked = job(tmp_path, "optimizer: adamw_torch")
    assert "optimizer" not in asked.lock


def test_a_precision_that_moves_is_said_on_the_first_screen_with_what_keeps_it(
    tmp_path: Path,
) -> None:
    answer = answered(job(tmp_path, "precision: fp16"))
    assert answer.best.config.precision == "bf16"
    screen = recommendation_screen(recommendation_payload(answer), width=100)
    assert "recision fp16 -> bf16" in screen
    assert "`--set precision=fp16` keeps it" in screen
    kept = worth(answer, "precision")
    assert kept.opens == "--set precision=fp16"
    typed = answered(job(tmp_path, "precision: fp16", precision="fp16"))
    assert typed.best.config.precision == "fp16"
    assert typed.best.duration_s.p50 == pytest.approx(kept.duration_s, rel=2e-3)
    assert not [note for note in typed.warnings if "rounded otherwise" in note]


def test_a_precision_that_stays_is_not_mentioned(tmp_path: Path) -> None:
    answer = answered(job(tmp_path, "precision: bf16"))
    assert not [note for note in answer.warnings if "rounded otherwise" in note]


def test_what_no_machine_can_run_of_todays_is_said_beside_the_pick(tmp_path: Path) -> None:
    answer = answered(job(tmp_path, "attention: flash_attention_2", gpu="t4", base="nf4"))
    told = [text for text in answer.warnings if isinstance(text, Decisive) and "flash" in text]
    assert "is not kept" in told[0]
    assert "--set attention" not in told[0]


def test_frequent_evaluations_are_shown_as_a_what_if_that_can_be_typed(tmp_path: Path) -> None:
    answer = answered(job(tmp_path, "precision: bf16", every=20))
    told = worth(answer, "evaluation.every_steps")
    assert told.class_ == "neutral"
    assert told.note == "2 evaluations, not 31"
    assert told.opens == "--set evaluation.every_steps=313"
    typed = answered(job(tmp_path, "precision: bf16", every=20, evaluation__every_steps="313"))
    assert typed.best.duration_s.p50 == pytest.approx(told.duration_s, rel=2e-3)


def test_saves_by_the_epoch_are_shown_as_a_what_if_that_can_be_typed(tmp_path: Path) -> None:
    slow = {"host.checkpoint_write": "0.2 MB/s"}
    answer = answered(own(tmp_path, {**slow, "limits.max_lost_work": "20h"}))
    assert answer.best is not None
    told = worth(answer, "checkpoint_every_steps")
    assert "by the epoch" in told.note
    key, _, value = told.opens.removeprefix("--set ").partition("=")
    typed = answered(own(tmp_path, {**slow, "limits.max_lost_work": "20h", key: value}))
    assert typed.best.checkpoints < answer.best.checkpoints
    assert typed.best.duration_s.p50 == pytest.approx(told.duration_s, rel=2e-3)


@pytest.mark.parametrize(
    "arguments", [{"save_strategy": "steps", "save_steps": 50}, {"load_best_model_at_end": True}]
)
def test_saves_that_are_free_or_must_meet_the_evaluations_have_no_what_if(
    tmp_path: Path, arguments: dict[str, object]
) -> None:
    slow = {"host.checkpoint_write": "0.2 MB/s", "limits.max_lost_work": "20h"}
    answer = answered(own(tmp_path, slow, **arguments))
    assert worth(answer, "checkpoint_every_steps") is None


@pytest.mark.parametrize(("often", "every"), [("epoch", 5000), ("steps", 70)])
def test_evaluations_by_the_epoch_are_counted_so(tmp_path: Path, often: str, every: int) -> None:
    sets = {"evaluation.rows": "500"}
    found = own(tmp_path, sets, eval_strategy=often, eval_steps=70).evaluation
    assert found.every_steps == every


def test_evaluations_of_axolotl_by_the_epoch_are_counted_so() -> None:
    overrides = Overrides(gpus=("h100-sxm",), stated={"data.rows": 52_000},
                          set_values={"evaluation.rows": "500"})  # fmt: skip
    asked = load_jobs(AXOLOTL, overrides)[0].job
    assert asked.evaluation.every_steps == (52_000 - 2_600) // 8 // 4  # val_set_size: 0.05


def test_what_today_offloads_is_left_where_it_fits_without_and_kept_where_it_does_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "zero.json").write_text(
        json.dumps({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}})
    )
    stated = {"deepspeed": str(tmp_path / "zero.json"), "bf16": True}
    asked = own(tmp_path, **stated)
    assert asked.today.offload == "optimizer"
    small = answered(asked).best
    assert (small.config.offload, small.config.sharding) == ("none", "none")
    large = answered(own(tmp_path, {"method.kind": "full"}, use_peft=False, **stated)).best
    assert large.config.offload == "optimizer"


def test_full_fine_tuning_under_deepspeed_leaves_offloading_where_it_fits_without(
    tmp_path: Path,
) -> None:
    """Its states are in fp32 on the device as on the host."""
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    (tmp_path / "zero.json").write_text(json.dumps({"zero_optimization": zero}))
    asked = own(
        tmp_path, {"method.kind": "full", "model": "Qwen/Qwen2.5-1.5B"}, use_peft=False,
        deepspeed=str(tmp_path / "zero.json"), bf16=True, gpu="a100-80gb:4",
    )  # fmt: skip
    best = answered(asked).best
    assert (best.config.offload, best.config.sharding[:4]) == ("none", "zero")


def test_parameters_in_the_hosts_memory_are_said_not_to_be_counted(tmp_path: Path) -> None:
    zero = {"stage": 3, "offload_param": {"device": "cpu"}}
    (tmp_path / "zero.json").write_text(json.dumps({"zero_optimization": zero}))
    stated = {"deepspeed": str(tmp_path / "zero.json"), "bf16": True}
    asked = own(tmp_path, **stated)
    for warnings in (answered(asked).warnings, estimate(asked).warnings):
        (told,) = (text for text in warnings if "offload_param" in text)
        assert isinstance(told, Decisive)
        assert "--set offload=all" in told


@pytest.mark.parametrize(("sets", "kept"), [({}, True), ({"sharding": "ddp"}, False)])
def test_full_fine_tuning_under_deepspeed_keeps_its_fp32_states_unless_told_otherwise(
    tmp_path: Path, sets: dict[str, str], kept: bool
) -> None:
    (tmp_path / "zero.json").write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    asked = own(
        tmp_path, {"method.kind": "full", "model": "Qwen/Qwen2.5-1.5B", **sets}, use_peft=False,
        deepspeed=str(tmp_path / "zero.json"), bf16=True, gpu="a100-80gb:4",
    )  # fmt: skip
    best = answered(asked).best
    assert best.config.sharding.startswith("zero") is kept
