from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.domain.errors import InputError
from autotune.evidence.log.read import read_log
from autotune.evidence.log.run_log import speed_of, with_elapsed
from autotune.evidence.log.trainer_state import read_trainer_state, rows_of, saved_beside

if TYPE_CHECKING:
    from pathlib import Path

WORDS = {
    "global_step": 100, "max_steps": 400, "num_train_epochs": 1, "epoch": 0.25,
    "train_batch_size": 4, "save_steps": 50, "log_history": [],
}  # fmt: skip


def write(path: Path, **changes: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**WORDS, **changes}))
    return path


def line(step: int, **more: float) -> dict[str, Any]:
    return {"step": step, "epoch": step / 400, "loss": 1.0, "learning_rate": 1e-4, **more}


def checkpoints(top: Path, seconds: dict[int, float]) -> Path:
    """Checkpoint folders written at these seconds; the newest one's state."""
    state = top
    for step, written in seconds.items():
        state = write(top / f"checkpoint-{step}" / "trainer_state.json", global_step=step)
        os.utime(state, (1.7e9 + written, 1.7e9 + written))
    return state


def test_the_newest_of_ms_swifts_runs_in_one_output_folder_is_read(tmp_path: Path) -> None:
    old = checkpoints(tmp_path / "v0-20261121-101500", {40: 0})
    checkpoints(tmp_path / "v1-20261122-101500", {30: 900})
    assert read_log(tmp_path).steps_done == 30
    os.utime(old, (1.8e9, 1.8e9))
    assert read_log(tmp_path).steps_done == 40


def test_an_output_folder_that_is_not_there_yet_is_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_log(tmp_path / "output")


def test_a_half_way_state_alone_holds_no_time(tmp_path: Path) -> None:
    log = read_trainer_state(write(tmp_path / "trainer_state.json", log_history=[line(100)]))
    assert not log.is_timed
    assert (log.steps_done, log.max_steps, log.micro_batch_size) == (100, 400, 4)


def test_checkpoint_folders_time_the_steps_between_them_with_one_save_each(tmp_path: Path) -> None:
    log = read_trainer_state(checkpoints(tmp_path, {50: 0, 100: 107, 150: 214}))
    speed = speed_of(log, predicted_save_s=7.0, predicted_first_s=30.0)
    assert speed.step_s == pytest.approx(2.0)
    assert speed.save_assumed
    assert speed.save_s is None


def test_the_last_line_is_known_by_its_rate_too(tmp_path: Path) -> None:
    end = {"step": 400, "train_runtime": 800.0, "train_steps_per_second": 0.5,
           "train_samples_per_second": 4.0}  # fmt: skip
    path = write(tmp_path / "trainer_state.json", global_step=400, log_history=[line(10), end])
    log = read_trainer_state(path)
    assert (log.covered_s, log.covered_steps, log.timed_by) == (800.0, 400, "train_runtime")
    assert log.samples_per_step == pytest.approx(8.0)


def test_one_runtime_beside_a_loss_times_the_steps_before_it(tmp_path: Path) -> None:
    history = [line(50, train_runtime=100.0), line(100)]
    log = read_trainer_state(write(tmp_path / "trainer_state.json", log_history=history))
    assert (log.covered_s, log.covered_steps) == (100.0, 50)


def test_folders_that_were_copied_at_once_time_nothing(tmp_path: Path) -> None:
    assert not read_trainer_state(checkpoints(tmp_path, {50: 0, 100: 0.2, 150: 0.4})).is_timed


def test_runtimes_beside_the_losses_tell_step_and_save_apart(tmp_path: Path) -> None:
    entries, seconds = [], 40.0  # compiling
    for step in range(10, 201, 10):
        seconds += 20.0
        entries.append(line(step, train_runtime=seconds))
        seconds += 8.0 if step % 50 == 0 else 0.0
        if step % 100 == 0:
            entries.append({"step": step, "eval_loss": 1.0, "eval_runtime": 3.0})
            seconds += 3.0
    path = write(tmp_path / "trainer_state.json", global_step=200, log_history=entries)
    speed = speed_of(read_trainer_state(path), predicted_save_s=1.0, predicted_first_s=0.0)
    assert speed.step_s == pytest.approx(2.0)
    assert speed.save_s == pytest.approx(8.0)
    assert not speed.save_assumed


def test_the_runtime_at_the_end_of_a_resumed_run_counts_its_last_session(tmp_path: Path) -> None:
    end = {"step": 400, "train_runtime": 300.0, "train_steps_per_second": 0.5, "train_loss": 1.0,
           "train_samples_per_second": 8.0}  # fmt: skip
    path = write(tmp_path / "trainer_state.json", global_step=400, log_history=[line(400), end])
    log = read_trainer_state(path)
    assert log.covered_steps == 150
    assert log.samples_per_step == pytest.approx(16.0)
    assert "resumed" in log.notes[0]


def test_elapsed_times_a_state_that_does_not(tmp_path: Path) -> None:
    log = read_trainer_state(write(tmp_path / "trainer_state.json"))
    timed = with_elapsed(log, 260.0, before_s=60.0)
    speed = speed_of(timed, predicted_save_s=5.0, predicted_first_s=45.0)
    assert speed.step_s == pytest.approx((200.0 - 45.0 - 5.0) / 100)  # the save at 50; 100 is last


def test_losses_that_are_nan_are_no_matter(tmp_path: Path) -> None:
    history = [line(50, grad_norm=float("nan")) | {"loss": float("nan")}]
    assert read_trainer_state(write(tmp_path / "s.json", log_history=history)).steps_done == 100


def test_a_save_interval_that_was_not_in_force_is_not_taken(tmp_path: Path) -> None:
    log = read_trainer_state(write(tmp_path / "checkpoint-133" / "trainer_state.json",
                                   global_step=133, save_steps=500))  # fmt: skip
    assert log.save_every_steps is None
    assert "save_steps 500" in log.notes[0]


def test_memory_metrics_add_up_to_the_peak(tmp_path: Path) -> None:
    sizes = {"before_init_mem_gpu": 1, "init_mem_gpu_alloc_delta": 10,
             "train_mem_gpu_alloc_delta": 100, "train_mem_gpu_peaked_delta": 1000}  # fmt: skip
    history = [line(100, train_runtime=10.0, train_loss=1.0, **sizes)]
    log = read_trainer_state(write(tmp_path / "s.json", log_history=history))
    assert log.memory_bytes == {"allocated": 1111}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"global_step": True}, "global_step is true"),
        ({"global_step": "100"}, "global_step is '100'"),
        ({"global_step": -1}, "global_step is -1"),
        ({"global_step": 1.5}, "whole number"),
        ({"global_step": 500}, "beyond max_steps"),
        ({"global_step": 10**400}, "must be a number"),
        ({"log_history": {}}, "must be a list"),
        ({"log_history": [1]}, "must be a mapping"),
        ({"log_history": [{"loss": 1.0}]}, "log_history[0].step"),
        ({"log_history": [line(50), line(40)]}, "must not go back"),
        ({"log_history": [line(300)]}, "reaches step 300"),
        ({"log_history": [line(50, train_runtime=float("nan"))]}, "train_runtime"),
        ({"log_history": [line(50) | {"train_runtime": "3"}]}, "train_runtime is '3'"),
        ({"log_history": [line(50) | {"eval_runtime": True}]}, "eval_runtime is true"),
        ({"epoch": "1"}, "epoch is '1'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as refused:
        read_trainer_state(write(tmp_path / "trainer_state.json", **changes))
    assert says in refused.value.message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"global_step": 3, "log_hist', "cut short"),
        (b"[" * 200_000, "nested deeper"),
        (b'{"global_step": ' + b"9" * 9000 + b"}", "longer numbers"),
        (b"[]", "not a trainer_state.json"),
        (b'{"a": 1}', "not a trainer_state.json"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"  \n", "is empty"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, text: bytes, says: str) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_bytes(text)
    with pytest.raises(InputError, match=says):
        read_trainer_state(path)


def test_a_file_too_large_for_a_log_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    with path.open("wb") as stream:
        stream.truncate(2**33)
    with pytest.raises(InputError, match="larger than"):
        read_trainer_state(path)
    with pytest.raises(InputError, match="not a plain file"):
        read_trainer_state(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["step", "train_runtime", "eval_runtime", "train_loss", "loss",
                         "train_steps_per_second", "train_samples_per_second"]),
        inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(st.sampled_from(sorted(WORDS)), JSON, max_size=4),
       history=st.lists(JSON, max_size=4))  # fmt: skip
def test_no_state_ends_in_a_traceback(
    tmp_path: Path, changes: dict[str, Any], history: list[Any]
) -> None:
    path = write(tmp_path / "trainer_state.json", **{"log_history": history, **changes})
    try:
        log = read_trainer_state(path)
        speed = speed_of(log, 1.0, 1.0)
    except InputError:
        return
    assert speed is None or speed.step_s > 0


@pytest.mark.slow
def test_a_real_trainer_writes_what_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2,
    )  # fmt: skip
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(40)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), per_device_train_batch_size=4, max_steps=20,
        gradient_accumulation_steps=2, save_steps=5, logging_steps=1, eval_strategy="steps",
        eval_steps=10, report_to=[], use_cpu=True, disable_tqdm=True,
        include_num_input_tokens_seen=True,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=transformers.LlamaForCausalLM(config), args=arguments, train_dataset=rows,
        eval_dataset=rows[:8],
    )  # fmt: skip
    trainer.train()
    trainer.save_state()

    half = read_trainer_state(tmp_path / "out" / "checkpoint-10" / "trainer_state.json")
    assert (half.steps_done, half.max_steps, half.micro_batch_size) == (10, 20, 4)
    assert half.save_every_steps == 5
    assert half.timed_by == "train_runtime beside the losses"

    whole = read_trainer_state(tmp_path / "out" / "trainer_state.json")
    runtime = next(e["train_runtime"] for e in trainer.state.log_history if "train_loss" in e)
    assert whole.steps_done == whole.covered_steps == 20
    assert whole.covered_s == pytest.approx(runtime, abs=1e-3)
    assert whole.samples_per_step == pytest.approx(8.0, rel=0.02)
    assert [step for step, _ in whole.evaluations] == [10, 20]
    assert whole.evaluation_rows == 8
    assert whole.tokens == 20 * 8 * 8
    speed = speed_of(whole, 0.0, 0.0)
    assert 0 < speed.step_s < runtime / 20

    # without the runtimes: the folders' dates are what is left
    for state in (tmp_path / "out").glob("checkpoint-*/trainer_state.json"):
        content = json.loads(state.read_text())
        written = 1.7e9 + 10.0 * content["global_step"]
        for entry in content["log_history"]:
            entry.pop("train_runtime", None)
        state.write_text(json.dumps(content))
        os.utime(state, (written, written))
    dated = read_trainer_state(tmp_path / "out" / "checkpoint-20" / "trainer_state.json")
    assert dated.timed_by == "when its checkpoint folders were written"
    assert dated.covered_s == pytest.approx(150.0)
    shutil.rmtree(tmp_path / "out")


def test_a_config_beside_the_state_that_is_no_file_says_nothing_and_is_not_waited_for(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert saved_beside(tmp_path / "trainer_state.json") == ({}, {})


@pytest.mark.parametrize(
    ("metrics", "rows"),
    [
        ({"eval_runtime": 31.25, "eval_samples_per_second": 64.0}, 2000),
        ({"eval_runtime": 2.0, "eval_samples_per_second": 8.0, "eval_b_runtime": 1.0,
          "eval_b_samples_per_second": 5.0}, 21),
        ({"eval_runtime": 2.0}, 0),
        ({"eval_runtime": 0.0, "eval_samples_per_second": 8.0}, 0),
        ({"eval_runtime": 2.0, "eval_samples_per_second": "fast"}, 0),
        ({"eval_runtime": 2000.0, "eval_samples_per_second": 0.9}, 0),
        ({"eval_loss": 1.0}, 0),
    ],
)  # fmt: skip
def test_rows_of_an_evaluation_are_told_where_its_rounded_rate_still_tells_them(
    metrics: dict[str, Any], rows: int
) -> None:
    assert rows_of(metrics) == rows


def test_a_log_that_is_not_there_is_refused_with_what_is_called_nearly_so(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("{'loss': 1.0}\n")
    with pytest.raises(InputError, match="does not exist; did you mean train"):
        read_log(tmp_path / "trian.log")
