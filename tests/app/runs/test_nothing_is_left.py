"""What is refused leaves nothing behind, and what is hostile is refused in time."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from autotune.app.job import file as read_jobfile
from autotune.app.job.load import load_job
from autotune.app.runs.export import export_run
from autotune.app.tune.tune import Options, tune
from autotune.app.validate import run_validation
from autotune.app.verify.plan import load_plan, planned_of
from autotune.domain.errors import InputError
from autotune.evidence.log.read import read_log

JOB = """\
model: Qwen/Qwen2-0.5B
method: lora
data: {{rows: 64, max_length: 64, padding: max_length{data}}}
train: {{global_batch_size: 8}}
hardware: [{{gpu: l4, price: {price}{machine}}}]
{rest}
"""


def stated(
    folder: Path, *, data: str = "", price: str = "1 USD/h", machine: str = "", rest: str = ""
) -> Path:
    path = folder / "job.yaml"
    path.write_text(JOB.format(data=data, price=price, machine=machine, rest=rest))
    return path


def refused(folder: Path, options: Options) -> str:
    with pytest.raises(InputError) as caught:
        tune(load_job(stated(folder)), options)
    return caught.value.message


@pytest.mark.parametrize(
    "wrong",
    [
        {"exports": ("nope",)},
        {"exports": ("hf@4.0",)},
        {"exports": ("hf", "trl@x")},
        {"storage": "nonsense"},
        {"storage": "sqlite:////no/such/folder/study.db"},
        {"space": "nope"},
    ],
)
def test_a_refused_option_leaves_no_run_folder(tmp_path: Path, wrong: dict[str, Any]) -> None:
    run_dir = tmp_path / "run"
    assert refused(tmp_path, Options(run_dir=run_dir, fidelity="formula", **wrong))
    assert not run_dir.exists()


def test_a_storage_refused_on_resume_keeps_the_trials(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    job = load_job(stated(tmp_path))
    tune(job, Options(run_dir=run_dir, fidelity="formula", trials=3))
    before = (run_dir / "trials.jsonl").read_text()
    refused(tmp_path, Options(run_dir=run_dir, fidelity="formula", resume=True, storage="nonsense"))
    assert (run_dir / "trials.jsonl").read_text() == before


def test_only_a_run_with_trials_is_told_that_none_of_them_is_lost(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    job, url = load_job(stated(tmp_path)), "redis://127.0.0.1:9/0"

    def hint(**changes: Any) -> str:
        options = Options(run_dir=tmp_path / "run", fidelity="formula", trials=3, **changes)
        with pytest.raises(InputError, match="cannot be opened") as caught:
            tune(job, options)
        return str(caught.value.hint)

    new = hint(storage=url)
    assert new == "start the server, or correct the host and the port in the URL"
    tune(job, Options(run_dir=tmp_path / "run", fidelity="formula", trials=3))
    assert hint(storage=url, resume=True) == (
        f"{new}; every finished trial is on the disk; nothing was lost"
    )


@pytest.mark.parametrize("name", ["x" * 300, "a/" + "y" * 300])
def test_a_folder_name_that_is_too_long_is_refused(tmp_path: Path, name: str) -> None:
    message = refused(tmp_path, Options(run_dir=tmp_path / name, fidelity="formula"))
    assert message.startswith("cannot use the run folder")


def test_software_too_old_to_write_for_still_gets_an_answer(tmp_path: Path) -> None:
    job = load_job(stated(tmp_path, rest="software: 2024-05"))
    answer = tune(job, Options(run_dir=tmp_path / "run", fidelity="formula"))
    assert answer.best is not None
    assert any("nothing to run was written: transformers" in note for note in answer.warnings)
    assert not (tmp_path / "run" / "run.sh").exists()


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null"])
def test_a_histogram_that_is_no_regular_file_is_refused(tmp_path: Path, path: str) -> None:
    job = stated(tmp_path, data=f", lengths: {{histogram: {path}}}")
    with pytest.raises(InputError, match="not a regular file"):
        load_job(job)


@pytest.mark.parametrize("key", ["checkpoint_write", "storage_read", "download"])
def test_a_rate_below_a_byte_a_second_is_refused(tmp_path: Path, key: str) -> None:
    job = stated(tmp_path, machine=f", host: {{{key}: 1e-300 B/s}}")
    with pytest.raises(InputError, match=f"host.{key}: '1e-300 B/s' must be at least 1 B/s"):
        load_job(job)


def test_a_month_that_buys_next_to_no_hours_is_no_price(tmp_path: Path) -> None:
    job = stated(tmp_path, price="{per_month: 10 USD, hours: 1e-300}")
    with pytest.raises(InputError, match="no sensible price"):
        load_job(job)


def test_a_pipe_that_stays_silent_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_jobfile, "SILENT_PIPE_S", 0.05)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="nothing came from it"):
        load_job(pipe)


def test_a_job_may_come_through_a_pipe(tmp_path: Path) -> None:
    text = stated(tmp_path).read_text()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    job = load_job(pipe)
    writer.join()
    assert job.steps == 8


@pytest.mark.parametrize("path", ["/dev/zero", "/"])
def test_measurements_that_are_no_regular_file_are_refused(path: str) -> None:
    with pytest.raises(InputError, match="is not a regular file"):
        run_validation(Path(path))


@pytest.mark.parametrize("answer", ['{"best": 5}', '{"schema_version": 1, "best": 5}', "[]"])
def test_a_damaged_answer_is_not_exported(tmp_path: Path, answer: str) -> None:
    run_dir = tmp_path / "run"
    tune(load_job(stated(tmp_path)), Options(run_dir=run_dir, fidelity="formula", trials=3))
    (run_dir / "recommendation.json").write_text(answer)
    with pytest.raises(InputError):
        export_run(run_dir, "hf")


def test_a_recorded_row_is_on_the_machine_of_its_price(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: Qwen/Qwen2-0.5B\nmethod: lora\ndata: {rows: 64, max_length: 64}\n"
        "hardware:\n  - {gpu: l4, price: 9 USD/h, host: {cores: 1}}\n"
        "  - {gpu: l4, price: 1 USD/h, host: {cores: 8}}\n"
    )
    job = load_job(path)
    row = {"device": "l4", "device_count": 1, "usd_per_hour": 1.0, "spot": False}
    offer = job.offer_of(row)
    assert offer.host.cores == 8
    moved = job.offer_of({**row, "usd_per_hour": 2.0})
    assert moved.device.name == "l4"
    assert job.offer_of({**row, "device_count": 2}) is None


def test_verify_compares_with_the_machine_that_was_picked_of_two_alike(tmp_path: Path) -> None:
    """It took the first offer of the device, export the one at the recorded price."""
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: Qwen/Qwen2-0.5B\nmethod: lora\ndata: {rows: 64, max_length: 64}\n"
        "hardware:\n  - {gpu: l4, price: 9 USD/h, host: {cores: 1}}\n"
        "  - {gpu: l4, price: 1 USD/h, host: {cores: 8}}\n"
    )
    run_dir = tmp_path / "run"
    tune(load_job(path), Options(run_dir=run_dir, fidelity="formula", trials=3))
    steps = tmp_path / "log.csv"
    steps.write_text("step,step_time_s\n" + "".join(f"{i},0.5\n" for i in range(1, 5)))
    job, folder, plans = load_plan(run_dir)
    planned = planned_of(job, folder, plans, read_log(steps))
    assert planned.offer.usd_per_hour == 1.0


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("limits: []", "must be a mapping of keys"),
        ("limits: 3", "must be a mapping of keys"),
        ("allow: {packing: true}", "must be a list"),
        ("evidence: 5", "must be a list"),
        ("lock: [a]", "must be a mapping of keys"),
    ],
)
def test_a_wrong_kind_of_value_is_named_without_python(
    tmp_path: Path, rest: str, said: str
) -> None:
    with pytest.raises(InputError) as caught:
        load_job(stated(tmp_path, rest=rest))
    assert said in caught.value.message
    assert not {"tuple", "dictionary", "Section"} & set(caught.value.message.split())
