from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.domain.errors import InputError
from autotune.evidence.log.run_log import (
    RunLog,
    Stretch,
    _windows,
    observations_of_log,
    speed_of,
)
from autotune.evidence.log.step_times import read_csv_log, read_record

if TYPE_CHECKING:
    from pathlib import Path

START = {"event": "start", "device": "NVIDIA H100 80GB HBM3", "device_count": 1, "max_steps": 400,
         "micro_batch_size": 4, "gradient_accumulation_steps": 2,
         "checkpoint_every_steps": 10}  # fmt: skip


def record(path: Path, *events: dict[str, Any], tail: str = "") -> Path:
    path.write_text("".join(json.dumps(event) + "\n" for event in events) + tail)
    return path


def step(number: int, seconds: float, **more: float) -> dict[str, Any]:
    return {"event": "step", "step": number, "duration_s": seconds, **more}


def test_step_times_leave_out_the_first_step(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,loss,step_time_s\n1,nan,60\n2,1,2.0\n3,1,\n4,1,4.0\n\n5,1,3.0\n")
    log = read_csv_log(path)
    speed = speed_of(log, 100.0, 0.0)
    assert (speed.step_s, speed.steps, log.steps_done) == (3.0, 3, 5)


def test_elapsed_times_hold_saves_and_new_sessions(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("Step, Elapsed_s\n10,50\n20,70\n30,90\n40,15\n50,35\n")
    log = read_csv_log(path)
    speed = speed_of(log, 0.0, 0.0)
    assert speed.step_s == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("step,loss\n1,2\n", "without step and time"),
        ("1,2\n2,3\n", "without step and time"),
        ("step,step_time_s\n", "no step with a time"),
        ("step,step_time_s\n1,fast\n", "line 2, step_time_s is 'fast'"),
        ("step,step_time_s\n1,-3\n", "line 2, step_time_s is -3"),
        ("step,step_time_s\n1,nan\n", "line 2, step_time_s is nan"),
        ("step,step_time_s\n1.5,3\n", "whole number"),
        ("step,step_time_s\ntrue,3\n", "line 2, step is 'true'"),
        ('step,step_time_s\n1,"3\n', "not a CSV"),
    ],
)
def test_what_is_wrong_in_a_csv_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        read_csv_log(path)
    assert says in refused.value.message


def test_a_record_gives_step_save_memory_and_machine(tmp_path: Path) -> None:
    path = record(
        tmp_path / "observations.jsonl", START,
        *(step(n, 2.0, data_wait_s=0.5) for n in range(1, 21)),
        {"event": "checkpoint", "step": 10, "duration_s": 7.0},
        {"event": "evaluation", "step": 10, "duration_s": 30.0},
        {"event": "memory", "step": 10, "allocated_bytes": 5e10, "reserved_bytes": 6e10},
        {"event": "later", "anything": [1]}, {"event": "end", "step": 20, "duration_s": 99.0},
        tail='{"event": "step", "st',
    )  # fmt: skip
    log = read_record(path)
    assert (log.gpu, log.gpus, log.max_steps, log.whole_s) == (
        "NVIDIA H100 80GB HBM3",
        1,
        400,
        99.0,
    )
    assert log.data_wait_s == 0.5
    speed = speed_of(log, 1.0, 1.0)
    assert speed is not None
    found = {o.quantity: o for o in observations_of_log(log, speed, {}, {"gpu": "h100"})}
    assert found["step_time_s"].value == 2.0
    assert found["checkpoint_save_s"].value == 7.0
    assert (found["memory_bytes"].value, found["memory_bytes"].kind) == (5e10, "allocated")


def test_each_session_of_a_resumed_training_warms_up_for_itself(tmp_path: Path) -> None:
    path = record(
        tmp_path / "observations.jsonl",
        START, step(1, 60.0), *(step(n, 2.0) for n in range(2, 9)),
        START, step(6, 60.0), *(step(n, 2.0) for n in range(7, 13)),
        {"event": "end", "duration_s": 200.0},
    )  # fmt: skip
    log = read_record(path)
    speed = speed_of(log, 1.0, 1.0)
    assert (speed.step_s, log.steps_done) == (2.0, 12)
    assert log.whole_s is None  # the first session was killed: how long it took is not known


def test_steps_of_another_configuration_or_machine_are_left_out_and_said(tmp_path: Path) -> None:
    config = {"precision": "bf16", "own_thing": 3}
    path = record(
        tmp_path / "observations.jsonl",
        START, *(step(n, 9.0) for n in range(1, 7)),
        START | {"config": config}, *(step(n, 2.0) for n in range(7, 12)),
        START | {"config": config}, *(step(n, 2.0) for n in range(12, 15)),
    )  # fmt: skip
    log = read_record(path)
    assert {part.seconds for part in log.stretches} == {2.0}
    assert log.steps_done == 14
    assert log.notes == ("6 steps of earlier sessions, run otherwise, are left out",)
    assert log.knobs == {"precision": "bf16"}
    with path.open("a") as stream:
        stream.write(json.dumps(START | {"device": "NVIDIA L40S"}) + "\n")
    assert read_record(path).gpu == START["device"]  # no step was made on the other one yet


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([START], "holds no step"),
        ([{**START, "config": {"precision": "int3"}}, step(1, 2.0)], "precision"),
        ([{**START, "config": []}, step(1, 2.0)], "config is"),
        ([{**START, "model": {"num_layers": -1}}, step(1, 2.0)], "num_layers is -1"),
        ([{"step": 1}], "with an event"),
        ([[1]], "with an event"),
        ([step(1, True)], "line 1.duration_s is true"),
        ([{"event": "step", "step": 0, "duration_s": 1}], "line 1.step is 0"),
        ([{**START, "device": 5}, step(1, 2.0)], "device is 5"),
        ([{**START, "max_steps": "9"}, step(1, 2.0)], "max_steps is '9'"),
    ],
)
def test_what_is_wrong_in_a_record_is_named(tmp_path: Path, events: list[Any], says: str) -> None:
    with pytest.raises(InputError) as refused:
        read_record(record(tmp_path / "observations.jsonl", *events))
    assert says in refused.value.message


def test_a_line_damaged_before_the_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "observations.jsonl"
    path.write_text('{"event": "st\n' + json.dumps(step(1, 2.0)) + "\n")
    with pytest.raises(InputError, match="line 1 is not JSON"):
        read_record(path)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet='step,_time\n0123.e-"nai{}[]:', max_size=80), header=st.booleans())
def test_no_csv_and_no_record_ends_in_a_traceback(tmp_path: Path, text: str, header: bool) -> None:
    path = tmp_path / "log"
    path.write_text(("step,elapsed_s\n" if header else "") + text)
    for read in (read_csv_log, read_record):
        try:
            speed = speed_of(read(path), 1.0, 1.0)
        except InputError:
            continue
        assert speed is None or speed.step_s > 0


@pytest.mark.parametrize("steps", [*range(1, 40), 149, 1001])
def test_the_windows_of_a_log_hold_every_step_once_and_in_order(steps: int) -> None:
    parts = [Stretch(n, n + 1, 1.0 + n) for n in range(steps)]
    windows = _windows(parts)
    assert [part for window in windows for part in window] == parts
    assert len(windows) <= 10
    assert len(windows) == 1 or all(len(window) >= 5 for window in windows)
    speed = speed_of(RunLog("log", "csv", steps, stretches=tuple(parts)), 0.0, 0.0)
    assert (speed.seen_sd is None) == (len(windows) < 3)
