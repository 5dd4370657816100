"""A training as the Trainer tells it, on a simulated card, against the plan of case A."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autotune.app.verify.verify import VerifyOptions, verify
from autotune.domain.errors import InputError
from autotune.evidence.log.step_times import read_record
from autotune.training import process, session
from autotune.training.callback import Recorder

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.answer.verification import Verification

A100 = "NVIDIA A100-SXM4-80GB"
LLAMA = SimpleNamespace(
    config=SimpleNamespace(num_hidden_layers=32, hidden_size=4096, _attn_implementation="sdpa"),
    dtype="torch.float16", is_quantized=True,
)  # fmt: skip


@pytest.fixture
def device(fake: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A simulated A100 that this process trains on."""
    made = fake.Device()
    made.allocated = made.reserved = 10 * fake.GIB
    monkeypatch.setitem(sys.modules, "torch", fake.torch_of(made, A100))
    monkeypatch.setattr(process, "_trainings", 0)
    monkeypatch.setattr(process, "scheduled_s", lambda: (0.0, 0.0))  # its host is its own
    return made


def pick(run: Path) -> dict[str, Any]:
    best: dict[str, Any] = json.loads((run / "recommendation.json").read_text())["best"]
    return best


def as_planned(fake: Any, run: Path, out: Path, **changes: Any) -> Any:
    """TrainingArguments of the run's pick."""
    knobs = pick(run)["config"]
    compiled = knobs["compile"] != "off"
    stated = {
        "per_device_train_batch_size": knobs["micro_batch_size"],
        "gradient_accumulation_steps": knobs["gradient_accumulation_steps"],
        "dataloader_num_workers": knobs["num_dataloader_workers"],
        "dataloader_prefetch_factor": knobs["prefetch_factor"],
        "dataloader_pin_memory": knobs["pin_memory"],
        "bf16": knobs["precision"] == "bf16", "fp16": knobs["precision"] == "fp16",
        "torch_compile": compiled, "torch_compile_mode": knobs["compile"] if compiled else None,
        "gradient_checkpointing": knobs["activation_checkpointing"] == "full",
        "optim": SimpleNamespace(value=knobs["optimizer"]),
    }  # fmt: skip
    return fake.arguments(out, **(stated | changes))


def begun(
    fake: Any, device: Any, run: Path, out: Path, *, state: dict[str, Any] | None = None,
    callback: Any = None, **changes: Any,
) -> Any:  # fmt: skip
    """A training of the run's job that has just begun."""
    known = {"save_steps": pick(run)["config"]["checkpoint_every_steps"]} | (state or {})
    args = as_planned(fake, run, out, **changes)
    steps = known.pop("max_steps", 2375)
    training = fake.Training(callback or Recorder(run), device, args, steps, **known)
    training.begin(LLAMA)
    return training


def events(path: Path, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["event"] == name]


def line(found: Verification, what: str) -> Any:
    return next(line for line in found.lines if line.what == what)


def test_fifty_steps_as_predicted_are_on_plan(
    fake: Any, device: Any, tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = pick(tuned)
    training = begun(fake, device, tuned, tmp_path / "out")
    device.reserved = int(row["reserved_bytes"])
    device.allocated = int(0.98 * row["reserved_bytes"])
    for _ in range(51):
        training.step(row["step_time_s"])
    out, said = capsys.readouterr()
    assert out == ""
    opened, judged = said.splitlines()
    assert opened.startswith(f"autotune: recording into {tuned / 'observations.jsonl'}; predicted")
    assert "not made as planned" not in opened
    assert judged.startswith("autotune: step 50: on plan: ")
    assert "1.00 of the predicted" in judged
    assert "memory" in judged


@pytest.mark.parametrize(
    ("parts", "cause"),
    [
        ({"work": 0.9, "fetch": 0.5}, "data wait"),
        ({"work": 1.4, "fetch": 0.0}, "forward, backward and optimizer"),
        ({"work": 0.95, "fetch": 0.0, "log": 0.45}, "logging and callbacks"),
    ],
)
def test_forty_percent_slower_is_said_with_its_cause(
    fake: Any, device: Any, tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    parts: dict[str, float], cause: str,
) -> None:  # fmt: skip
    step_s = pick(tuned)["step_time_s"]
    training = begun(fake, device, tuned, tmp_path / "out")
    for _ in range(51):
        training.step(
            parts["work"] * step_s, parts["fetch"] * step_s, log_s=parts.get("log", 0) * step_s
        )
    judged = capsys.readouterr().err.splitlines()[1]
    assert "40 % slower than predicted: " + cause in judged
    assert "at this pace" in judged
    assert "planned" in judged


def test_a_compiler_at_work_and_the_first_steps_are_not_judged(
    fake: Any, device: Any, tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step_s = pick(tuned)["step_time_s"]
    training = begun(fake, device, tuned, tmp_path / "out")
    for step in range(50):
        training.step((30 if step in {0, 1, 20} else 1) * step_s)
    assert "on plan" in capsys.readouterr().err


def test_memory_above_the_prediction_is_said(
    fake: Any, device: Any, tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = pick(tuned)
    training = begun(fake, device, tuned, tmp_path / "out")
    device.allocated, device.reserved = int(1.3 * row["memory_bytes"]["total"]), 79 * fake.GIB
    for _ in range(50):
        training.step(row["step_time_s"])
    said = capsys.readouterr().err
    assert "% above the prediction so far" in said
    assert "only 1.0 GiB left on the device" in said


def test_the_record_is_what_verify_reads_half_way_and_at_the_end(
    fake: Any, device: Any, tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = pick(tuned)
    every = row["config"]["checkpoint_every_steps"]
    training = begun(fake, device, tuned, tmp_path / "out")
    for step in range(1, 2376):
        save_s = 6.0 if step % every == 0 or step == 2375 else 0.0
        training.step(1.1 * row["step_time_s"], 0.1 * row["step_time_s"], save_s=save_s)
        if step == 600:
            training.callback.session.record.flush()
            found = verify(None, tuned)
            assert not found.finished
            assert line(found, "step_time").ratio == pytest.approx(1.2, rel=1e-4)
            assert found.remaining.steps == 2375 - 600
    training.end()
    assert f"autotune verify {tuned}" in capsys.readouterr().err
    found = verify(None, tuned)
    assert found.finished
    assert found.offer.device.name == row["device"]
    assert line(found, "step_time").ratio == pytest.approx(1.2, rel=1e-4)
    assert line(found, "data_wait").actual == pytest.approx(0.1 * row["step_time_s"], rel=0.01)
    assert line(found, "checkpoints").actual == pytest.approx(6.0 * row["checkpoints"])
    assert not any("not made as planned" in text for text in found.warnings)


def test_an_evaluation_is_recorded_with_its_rows(
    fake: Any, device: Any, tuned: Path, tmp_path: Path
) -> None:
    training = begun(fake, device, tuned, tmp_path / "out")
    for number in range(1, 21):
        training.step(1.0, evaluate_s=4.0 if number % 10 == 0 else 0.0)
    training.end()
    told = events(tuned / "observations.jsonl", "evaluation")
    assert [(event["step"], event["rows"]) for event in told] == [(10, 40), (20, 40)]
    log = read_record(tuned / "observations.jsonl")
    assert log.evaluation_rows == 40
    assert log.evaluated_s == pytest.approx((4.0, 4.0))


def test_verify_names_the_wait_for_data_as_what_explains_a_slow_step(
    fake: Any, device: Any, tuned: Path, tmp_path: Path
) -> None:
    step_s = pick(tuned)["step_time_s"]
    training = begun(fake, device, tuned, tmp_path / "out")
    for _ in range(60):
        training.step(step_s, 0.5 * step_s)
    training.end()
    explained = verify(None, tuned).explanations[0]
    assert (explained.name, explained.explains) == ("data_wait", True)
    assert explained.predicted_s == pytest.approx(1.5 * step_s, rel=0.02)
    anew = begun(fake, device, tuned, tmp_path / "out")
    for _ in range(60):
        anew.step(1.5 * step_s)
    anew.end()
    assert "data_wait" not in {item.name for item in verify(None, tuned).explanations}


def test_what_was_run_otherwise_is_said_and_priced_as_it_is(
    fake: Any, device: Any, tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = pick(tuned)
    training = begun(
        fake, device, tuned, tmp_path / "out", gradient_checkpointing=True, bf16=True, fp16=False,
        per_device_train_batch_size=4, gradient_accumulation_steps=32,
    )  # fmt: skip
    said = capsys.readouterr().err
    for text in ("micro_batch_size 4 (planned ", "activation_checkpointing full (planned none)"):
        assert text in said
    for _ in range(40):
        training.step(9.0)
    training.end()
    found = verify(tuned, tuned / "observations.jsonl")
    assert (found.config.micro_batch_size, found.config.activation_checkpointing) == (4, "full")
    assert line(found, "step_time").predicted > 1.1 * row["step_time_s"]


@pytest.mark.parametrize(
    ("state", "changes", "model", "why"),
    [
        ({"max_steps": 60, "num_train_epochs": 30}, {}, None, "max_steps is 60"),
        ({}, {"gradient_accumulation_steps": 1, "per_device_train_batch_size": 2}, None, "batch"),
        ({}, {}, SimpleNamespace(config=SimpleNamespace(num_hidden_layers=2, hidden_size=4096)),
         "num_layers 2"),
    ],
)  # fmt: skip
def test_a_training_of_another_job_is_recorded_without_its_plan(  # noqa: PLR0917 - fixtures
    fake: Any, device: Any, tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    state: dict[str, Any], changes: dict[str, Any], model: Any, why: str,
) -> None:  # fmt: skip
    args = as_planned(fake, tuned, tmp_path / "out", **changes)
    steps = state.get("max_steps", 2375)
    epochs = state.get("num_train_epochs", 1)
    training = fake.Training(Recorder(), device, args, steps, num_train_epochs=epochs)
    training.begin(model or LLAMA)
    for _ in range(51):
        training.step(1.0, 0.25)
    opened, judged = capsys.readouterr().err.splitlines()
    assert "without a plan" in opened
    assert why in opened
    assert "1.2 s a step, 250 ms of it waiting for data" in judged
    assert len(read_record(tmp_path / "out" / "observations.jsonl").stretches) >= 1
    assert not (tuned / "observations.jsonl").exists()


def test_without_any_run_it_records_beside_the_checkpoints(
    fake: Any, device: Any, case_a_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = fake.Training(
        Recorder(), device, as_planned(fake, case_a_run, tmp_path / "out"), 2375
    )
    training.begin()
    training.step(1.0)
    training.end()
    assert "no runs in" in capsys.readouterr().err
    assert read_record(tmp_path / "out" / "observations.jsonl").steps_done == 1


def test_the_last_run_is_the_plan_where_none_is_named(
    fake: Any, device: Any, tuned: Path, tmp_path: Path
) -> None:
    begun(fake, device, tuned, tmp_path / "out", callback=Recorder())
    assert (tuned / "observations.jsonl").is_file()


def test_a_training_that_goes_on_appends_and_one_that_starts_anew_moves_the_old_record(
    fake: Any, device: Any, tuned: Path, tmp_path: Path
) -> None:
    record = tuned / "observations.jsonl"
    first = begun(fake, device, tuned, tmp_path / "out")
    for _ in range(20):
        first.step(5.0)
    first.end()
    with record.open("a") as stream:
        stream.write('{"event": "step", "st')  # killed in mid-writing
    again = begun(fake, device, tuned, tmp_path / "out", state={"global_step": 15})
    for _ in range(10):
        again.step(7.0)
    again.end()
    log = read_record(record)
    assert [event["step"] for event in events(record, "step")] == [*range(1, 21), *range(16, 26)]
    assert [part.begin for part in log.stretches if part.warm_up] == [0, 15]
    anew = begun(fake, device, tuned, tmp_path / "out")
    anew.step(5.0)
    anew.end()
    assert read_record(record).steps_done == 1
    assert read_record(tuned / "observations-1.jsonl").steps_done == 25


def test_only_the_main_process_writes(
    fake: Any, device: Any, tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = begun(
        fake, device, tuned, tmp_path / "out", state={"is_world_process_zero": False}
    )  # fmt: skip
    training.step(1.0)
    training.end()
    assert not (tuned / "observations.jsonl").exists()
    assert capsys.readouterr().err == ""


def test_another_card_than_planned_is_said_and_predicted_for(
    fake: Any, device: Any, tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    card = "NVIDIA H100 80GB HBM3"
    monkeypatch.setitem(sys.modules, "torch", fake.torch_of(device, card))
    begun(fake, device, tuned, tmp_path / "out")
    said = capsys.readouterr().err
    assert "this is h100-sxm, and a100-sxm4-80gb was planned" in said
    assert "on 1x h100-sxm:" in said


def test_on_the_cpu_nothing_is_predicted_and_verify_refuses(
    fake: Any, device: Any, tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = as_planned(fake, tuned, tmp_path / "out", device=SimpleNamespace(type="cpu"))
    training = fake.Training(Recorder(tuned), device, args, 2375)
    training.begin(LLAMA)
    for _ in range(51):
        training.step(1.0)
    assert "without a prediction: the run is on the CPU" in capsys.readouterr().err
    training.end()
    with pytest.raises(InputError, match="on the CPU, and a100-sxm4-80gb was planned"):
        verify(None, tuned)
    assert line(verify(None, tuned, VerifyOptions(gpu="a100")), "step_time").actual > 0


def test_a_plan_made_elsewhere_is_followed_though_its_job_cannot_be_read_here(
    fake: Any, device: Any, tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tuned / "job.json"
    record = json.loads(job.read_text())
    record["spec"]["model"] = "/elsewhere/model"
    job.write_text(json.dumps(record))
    training = begun(fake, device, tuned, tmp_path / "out", dataloader_pin_memory=False)
    for _ in range(51):
        training.step(pick(tuned)["step_time_s"])
    opened, judged = capsys.readouterr().err.splitlines()
    assert "pin_memory False (planned True)" in opened
    assert "on plan" in judged


def test_its_import_is_light_and_it_needs_no_transformers_until_it_is_made() -> None:
    heavy = ("torch", "transformers", "optuna", "numpy", "pydantic", "accelerate")
    code = (
        f"import sys; from autotune import TrainerCallback; print({{*sys.modules}} & {{*{heavy}}})"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"


def test_a_training_draws_the_same_random_numbers_with_it(
    fake: Any, device: Any, tuned: Path, tmp_path: Path
) -> None:
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002 - the global one
    training = begun(fake, device, tuned, tmp_path / "out")
    for _ in range(51):
        training.step(1.0)
    training.end()
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002


# What goes wrong in the recorder ends the recording, with a line, and nothing else.


def broken_clock(monkeypatch: pytest.MonkeyPatch, device: Any, _: Path) -> None:
    monkeypatch.setattr(device, "has_passed", lambda _: 1 / 0)


def full_disk(monkeypatch: pytest.MonkeyPatch, _: Any, __: Path) -> None:
    def write(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write)


def no_memory_counters(monkeypatch: pytest.MonkeyPatch, _: Any, __: Path) -> None:
    monkeypatch.setattr(sys.modules["torch"].cuda, "memory_stats", lambda _: None)


def a_clock_that_answers_nan(monkeypatch: pytest.MonkeyPatch, device: Any, _: Path) -> None:
    monkeypatch.setattr(device, "between", lambda *_: float("nan"))


def arguments_of_another_kind(monkeypatch: pytest.MonkeyPatch, _: Any, __: Path) -> None:
    monkeypatch.setattr(session, "start_of", lambda *_: {}["max_steps"])


def no_stderr(monkeypatch: pytest.MonkeyPatch, _: Any, __: Path) -> None:
    monkeypatch.setattr(sys, "stderr", None)


@pytest.mark.parametrize(
    "breaks",
    [
        broken_clock, full_disk, no_memory_counters, a_clock_that_answers_nan,
        arguments_of_another_kind, no_stderr,
    ],
)  # fmt: skip
def test_nothing_that_breaks_reaches_the_training(
    fake: Any, device: Any, tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], breaks: Any,
) -> None:  # fmt: skip
    breaks(monkeypatch, device, tmp_path)
    training = begun(fake, device, tuned, tmp_path / "out")
    for _ in range(60):
        training.step(1.0, log_s=0.01, save_s=0.1, evaluate_s=0.1)
    training.end()
    ended = [text for text in capsys.readouterr().err.splitlines() if "recording ended" in text]
    assert len(ended) == (breaks is not no_stderr)


def test_a_damaged_run_costs_the_plan_and_not_the_record(
    fake: Any, device: Any, tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = as_planned(fake, tuned, tmp_path / "out")
    for text in ("{", "[]", "null", '{"schema_version": 1}', "\x00\xff", '{"best": {"config": 1}}'):
        (tuned / "recommendation.json").write_text(text)
        training = fake.Training(Recorder(tuned), device, args, 2375)
        training.begin(LLAMA)
        training.step(1.0)
        training.end()
        assert "without a plan" in capsys.readouterr().err
        assert read_record(tmp_path / "out" / "observations.jsonl").steps_done == 1


@pytest.mark.parametrize("run", ["/nowhere/at/all", "", 12, "a\0b", "x" * 5000])
def test_a_run_that_is_none_costs_the_plan_and_not_the_record(
    fake: Any, device: Any, case_a_run: Path, tmp_path: Path, run: Any
) -> None:
    args = as_planned(fake, case_a_run, tmp_path / "out")
    training = fake.Training(Recorder(run), device, args, 2375)
    training.begin(LLAMA)
    training.step(1.0)
    training.end()
    assert read_record(tmp_path / "out" / "observations.jsonl").steps_done == 1


def test_a_run_folder_that_cannot_be_written_leaves_the_output_folder(
    fake: Any, device: Any, tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tuned / "observations.jsonl").mkdir()
    (tuned / "observations.jsonl" / "x").touch()
    before = os.stat
    training = begun(fake, device, tuned, tmp_path / "out", state={"global_step": 3})
    training.step(1.0)
    training.end()
    assert os.stat is before
    assert "cannot be written: recording into" in capsys.readouterr().err
    assert (tmp_path / "out" / "observations.jsonl").is_file()


def test_ctrl_c_passes_through_and_what_there_was_is_kept_at_exit(
    fake: Any, device: Any, tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = begun(fake, device, tuned, tmp_path / "out")
    for _ in range(9):
        training.step(1.0)

    def interrupted(_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(device, "has_passed", interrupted)
        with pytest.raises(KeyboardInterrupt):
            training.step(1.0)
    training.callback.session.close()
    assert read_record(tuned / "observations.jsonl").steps_done == 10
