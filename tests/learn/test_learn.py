"""`autotune learn`: runs become factors of their machine, are kept once, and say why not."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app.estimate import estimate
from autotune.app.job.load import load_job
from autotune.app.learn.described import named_machine
from autotune.app.learn.learn import _knows, learn
from autotune.app.learn.tracked import TENSORBOARD
from autotune.cli.application import run
from autotune.domain.answer.recommendation import Decisive
from autotune.domain.errors import InputError
from autotune.evidence.learned.run import PastRun
from autotune.evidence.learned.store import known_runs, store_path

if TYPE_CHECKING:
    from pathlib import Path

Capture = pytest.CaptureFixture[str]
JOB = """
name: next
model: meta-llama/Llama-3.1-8B
method: {kind: full, base: 16bit}
data: {rows: 20000, max_length: 2048, lengths: {p50: 2048, p95: 2048, max: 2048}}
train: {epochs: 1, global_batch_size: 16}
hardware: [{gpu: h100-nvl, count: 2, price: 6 USD/h}, {gpu: a100-80gb, count: 2, price: 4 USD/h}]
lock: {sharding: fsdp, micro_batch_size: 1, activation_checkpointing: full}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def test_a_run_is_read_from_its_folder_with_the_devices_that_trained(
    tmp_path: Path, wandb_run: Any
) -> None:
    wandb_run(tmp_path / "wandb" / "run-20250123_033254-abc", 6.0)
    (own,) = learn([tmp_path]).usable
    cells = own.run.cells
    assert (cells["gpu"], cells["n_gpus"]) == ("h100-nvl", "2")  # 8 were visible
    assert (cells["micro_batch"], cells["grad_accum"], cells["global_batch"]) == ("1", "8", "16")
    assert float(cells["step_time_s"]) == pytest.approx(6.0)
    assert "incl. padding = 2048" in cells["notes"]  # of total_flos, under FSDP's shards
    assert (own.run.grade, own.run.versions["torch"]) == ("A", "2.4.0+cu118")


def test_a_faster_machine_makes_later_answers_faster_and_surer(
    tmp_path: Path, job: Path, wandb_run: Any
) -> None:
    before = estimate(load_job(job)).row
    step_s = before.step_time_s
    runs = tmp_path / "runs"
    for number, factor in enumerate((0.75, 0.77, 0.76)):
        wandb_run(runs / f"run-{number}", factor * step_s)
    found = learn([runs])
    (said,) = found.machines
    assert (said.device, said.count, said.runs) == ("h100-nvl", 2, 3)
    after = estimate(load_job(job)).row
    assert after.step_time_s / step_s == pytest.approx(said.factor, rel=0.05)
    assert said.factor < 0.9
    width = [row.duration_s.p90 / row.duration_s.p10 for row in (before, after)]
    assert width[1] < width[0]
    assert after.basis == "calibrated"
    told = [a for a in load_job(job).assumed if "past run" in a.value]
    assert told, load_job(job).assumed
    assert "2x h100-nvl" in told[0].why
    assert str(store_path()) in told[0].why


def test_the_answer_says_that_it_rests_on_past_runs(
    tmp_path: Path, job: Path, wandb_run: Any, capsys: Capture
) -> None:
    wandb_run(tmp_path / "run", 4.0)
    learn([tmp_path / "run"])
    assert run(["estimate", str(job)]) in {0, 3, 4}
    text = " ".join(capsys.readouterr().out.split())
    assert "corrected by measured runs (2x h100-nvl: " in text
    assert "than modelled, by 1 past run)" in text


def test_what_a_machine_taught_reaches_another_one_hardly(
    tmp_path: Path, job: Path, wandb_run: Any
) -> None:
    base = {own.device: own for own in load_job(job).learned}
    assert not base
    for number in range(3):
        wandb_run(tmp_path / f"run-{number}", 4.0 + 0.01 * number)
    learn([tmp_path])
    effects = {own.device: own for own in load_job(job).learned if own.component == "compute"}
    near, far = effects["h100-nvl"], effects["a100-sxm4-80gb"]
    assert near.here
    assert not far.here
    assert abs(math.log(far.factor)) < 0.4 * abs(math.log(near.factor))
    assert near.spread < far.spread <= 1.0


def test_the_same_run_counts_once_however_often_it_is_read(tmp_path: Path, wandb_run: Any) -> None:
    wandb_run(tmp_path / "one", 6.0)
    wandb_run(tmp_path / "copy", 6.0)
    first = learn([tmp_path])
    assert (first.read, first.new, len(first.usable)) == (1, 1, 1)
    again = learn([tmp_path / "copy", tmp_path])
    assert (again.new, again.known) == (0, 1)
    assert len(known_runs().runs) == 1


def test_a_dry_run_keeps_nothing(tmp_path: Path, home: Path, wandb_run: Any) -> None:
    wandb_run(tmp_path / "one", 6.0)
    assert len(learn([tmp_path / "one"], dry_run=True).usable) == 1
    assert not home.exists()


def test_the_export_is_read_as_the_public_table_and_holds_nothing_private(
    tmp_path: Path, capsys: Capture, wandb_run: Any
) -> None:
    wandb_run(tmp_path / "secret-folder", 6.0)
    out = tmp_path / "observations.csv"
    assert run(["learn", str(tmp_path / "secret-folder"), "--export", str(out), "--quiet"]) == 0
    text = out.read_text()
    assert not [
        word for word in ("secret", "somebody", "hf_", "/home", "@") if word in text.casefold()
    ]
    (row,) = csv.DictReader(text.splitlines())
    assert (row["model_id"], row["gpu"], row["task"]) == (
        "meta-llama/Llama-3.1-8B",
        "h100-nvl",
        "full",
    )
    capsys.readouterr()
    assert run(["validate", "--data", str(out), "--format", "json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["time"]["n"] == 1


def test_the_kept_file_holds_no_path_host_or_secret(tmp_path: Path, wandb_run: Any) -> None:
    wandb_run(tmp_path / "secret-folder", 6.0)
    learn([tmp_path])
    kept = store_path().read_text().casefold()
    assert not [word for word in ("secret", "somebody", "hf_", "/home") if word in kept]


def test_the_text_says_how_many_how_fast_and_why_not(
    tmp_path: Path, capsys: Capture, wandb_run: Any
) -> None:
    wandb_run(tmp_path / "good", 4.0)
    wandb_run(tmp_path / "unknown", 5.0, gpu="Wundercard 9000")
    broken = wandb_run(tmp_path / "broken", 5.0)
    (broken / "files" / "wandb-summary.json").write_text('{"train/train_runtime": 5')
    assert run(["learn", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "3 runs read, 1 usable." in text
    assert "Your 2x h100-nvl is" in text
    assert "1 x GPU unknown to the catalogue: Wundercard 9000" in text
    assert "1 x wandb-summary.json is damaged or cut short" in text


def test_no_usable_run_among_many_is_bad_input_with_the_reasons(
    tmp_path: Path, capsys: Capture, wandb_run: Any
) -> None:
    for number in range(40):
        wandb_run(tmp_path / str(number), 5.0 + number, gpu="Wundercard 9000")
    earlier = tmp_path / "rows.csv"
    earlier.write_text("rows of an earlier export")
    assert run(["learn", str(tmp_path), "--export", str(earlier)]) == 2
    assert earlier.read_text() == "rows of an earlier export"
    shown = capsys.readouterr()
    assert "40 x GPU unknown to the catalogue" in shown.out
    assert "none of 40 runs can be used" in shown.err
    assert not store_path().exists()


def test_an_empty_folder_and_a_missing_one_are_bad_input(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing"):
        assert run(["learn", str(tmp_path / name)]) == 2
    told = capsys.readouterr().err
    assert "no past run below" in told
    assert "1 folder" in told
    assert "1 folders" not in told


def test_a_home_that_cannot_be_written_is_said_and_nothing_is_half_written(
    tmp_path: Path, capsys: Capture, wandb_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb_run(tmp_path / "one", 6.0)
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("AUTOTUNE_HOME", str(blocked))
    assert run(["learn", str(tmp_path / "one")]) == 2
    shown = capsys.readouterr()
    assert "1 run read, 1 usable" in shown.out
    assert "cannot be written" in shown.err


def test_a_damaged_store_is_said_and_put_aside(tmp_path: Path, job: Path, wandb_run: Any) -> None:
    wandb_run(tmp_path / "one", 6.0)
    store_path().parent.mkdir(parents=True)
    store_path().write_text('{"runs": [{"id"')
    assert any("is damaged" in a.why for a in load_job(job).assumed)
    said = [each for each in estimate(load_job(job)).warnings if "is damaged" in each]
    assert len(said) == 1
    assert isinstance(said[0], Decisive), "on the first screen: the figures are other ones now"
    assert learn([tmp_path / "one"]).new == 1
    assert next(store_path().parent.glob("runs.json.damaged-*")).read_text() == '{"runs": [{"id"'
    assert len(known_runs().runs) == 1


def test_a_past_run_that_cannot_be_read_costs_no_other(
    tmp_path: Path, job: Path, wandb_run: Any
) -> None:
    wandb_run(tmp_path / "one", 6.0)
    wandb_run(tmp_path / "two", 6.2)
    assert learn([tmp_path / "one", tmp_path / "two"]).new == 2
    content = json.loads(store_path().read_text())
    content["runs"][1] = {"id": 7}
    store_path().write_text(json.dumps(content))
    whys = [assumed.why for assumed in load_job(job).assumed]
    assert any("1 of 2 runs cannot be read" in why for why in whys)
    assert any("1 past run" in str(a.value) for a in load_job(job).assumed)
    again = learn([tmp_path / "two"])
    assert again.known == 2
    assert any("the 1 that can be read are used on" in note for note in again.warnings)


def test_links_lead_nowhere(tmp_path: Path, wandb_run: Any) -> None:
    outside = wandb_run(tmp_path / "outside" / "run", 6.0)
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "linked").symlink_to(outside)
    (inside / "ring").symlink_to(inside)
    with pytest.raises(InputError, match="no past run"):
        learn([inside])


def test_what_is_far_from_the_model_is_left_out_unless_several_runs_agree(
    tmp_path: Path, wandb_run: Any
) -> None:
    wandb_run(tmp_path / "a", 22.0)
    alone = learn([tmp_path], dry_run=True)
    assert not alone.usable
    assert "slower than modelled" in alone.refusals[0].reason
    wandb_run(tmp_path / "b", 22.3)
    wandb_run(tmp_path / "c", 22.1)
    assert len(learn([tmp_path], dry_run=True).usable) == 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"per_device_train_batch_size": None}, "micro-batch is stated nowhere"),
        ({"odd_rows": 5}, "figures contradict"),
        ({"deepspeed": "/home/somebody/config.json"}, "stage that is stated nowhere"),
        ({"_name_or_path": "/home/somebody/own", "hidden_size": None}, "model unknown"),
    ],
)
def test_each_refusal_has_a_reason_of_its_own(
    tmp_path: Path, wandb_run: Any, change: dict[str, Any], reason: str
) -> None:
    wandb_run(tmp_path, 6.0, **change)
    (refusal,) = learn([tmp_path]).refusals
    assert reason in refusal.reason
    assert "somebody" not in refusal.reason


def test_a_number_of_devices_that_the_figures_contradict_is_not_believed(
    tmp_path: Path, wandb_run: Any
) -> None:
    """Of two devices that trained, eight would make a step of four times as many rows."""
    place = wandb_run(tmp_path / "a", 6.0, gpu="")
    learned = {of: learn([place], named_machine(f"{of}h100-nvl"), dry_run=True)
               for of in ("", "2x", "8x")}  # fmt: skip
    assert [len(each.usable) for each in learned.values()] == [1, 1, 0]
    assert learned[""].usable[0].run.cells["n_gpus"] == "2"
    (refusal,) = learned["8x"].refusals
    assert "make 2 devices, and --gpu says 8" in refusal.reason


def test_a_tracker_without_adapters_gives_way_to_any_other_logger_of_a_run() -> None:
    tracker = PastRun("one", TENSORBOARD, "hf", "A", {})
    output = PastRun("one", "Trainer output", "hf", "B", {})
    assert _knows(output) > _knows(tracker)
    assert _knows(replace(output, grade="A")) > _knows(output)


def test_what_is_damaged_is_said_once_and_its_name_does_not_steer_the_terminal(
    tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "trainer_state.json").write_text('{"x":')
    (tmp_path / "\x1b]0;title\x07\u202e.ipynb").write_text("[]")
    assert run(["learn", str(tmp_path)]) == 2
    told = " ".join(capsys.readouterr().out.split())
    assert "trainer_state.json is damaged: cut short" in told
    assert "not a notebook" in told
    assert not {"\x1b", "\x07", "\u202e"} & set(told)
    flat = told.replace(" ", "")
    assert "\\x1b]0;title" in flat
    assert "\\u202e.ipynb" in flat
