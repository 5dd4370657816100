"""`autotune init`: what lies in a folder becomes a job that runs; nothing is written over."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app.init import write
from autotune.app.job.load import load_job
from autotune.catalog.devices import find_device
from autotune.cli.application import run
from autotune.probe import device as devices
from autotune.probe.device import LocalDevice

if TYPE_CHECKING:
    from autotune.domain.job import Job

    Capture = pytest.CaptureFixture[str]

ROOT = Path(__file__).parents[2]
ROWS = "".join(json.dumps({"text": f"row {i} of the tide table"}) + "\n" for i in range(64))
CONFIG: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2,
    "intermediate_size": 128, "vocab_size": 32_000, "max_position_embeddings": 512,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(devices, "gpus", list)
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def model_in(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def said(capsys: Capture, *argv: str, code: int = 0) -> str:
    assert run(["init", *argv, "-q"]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def job_in(folder: Path) -> Job:
    return load_job(folder / "autotune.yaml")


SCRIPT = """
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer
four = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B", quantization_config=four)
args = SFTConfig("out", per_device_train_batch_size=4, num_train_epochs=2, max_length=512)
rows = load_dataset("json", data_files="rows.jsonl", split="train")
adapter = LoraConfig(r=8, lora_alpha=16)
SFTTrainer(model, args=args, train_dataset=rows, peft_config=adapter).train()
"""


def test_a_script_that_trains_says_the_job_and_is_named_as_one_itself(
    tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "rows.jsonl").write_text(ROWS)
    (tmp_path / "finetune.py").write_text(SCRIPT)
    (tmp_path / "eval.py").write_text("import torch\n")
    told = said(capsys)
    assert "autotune tune finetune.py --gpu NAME\n" in told
    assert "eval.py" not in told
    of_init, own = job_in(tmp_path), load_job(tmp_path / "finetune.py", gpus=["l4"])
    for part in ("model", "method", "epochs", "global_batch_size", "max_length"):
        assert getattr(of_init, part) == getattr(own, part), part
    (tmp_path / "run.sh").write_text("accelerate launch --num_processes 4 finetune.py\n")
    told = said(capsys, "--out", "second.yaml")
    assert "autotune tune run.sh --gpu NAME --data FILE\n    so is finetune.py" in told
    assert load_job(tmp_path / "second.yaml").global_batch_size == 16


def test_the_command_on_a_trainers_file_has_a_flag_for_all_that_the_file_lacks(
    tmp_path: Path, capsys: Capture
) -> None:
    rows = 'load_dataset(name, split="train[:500]")'
    text = SCRIPT.replace("Qwen/Qwen2.5-1.5B", "nobody/has-it")
    text = text.replace('load_dataset("json", data_files="rows.jsonl", split="train")', rows)
    (tmp_path / "finetune.py").write_text(text)
    told = said(capsys)
    assert "autotune tune finetune.py --gpu NAME --rows 500 --set model=NAME\n" in told


def test_what_a_trainers_file_trains_for_is_the_jobs_and_what_is_not_priced_is_said(
    tmp_path: Path, capsys: Capture
) -> None:
    pairs = json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"}) + "\n"
    (tmp_path / "rows.jsonl").write_text(pairs * 32)
    text = (ROOT / "jobs" / "trainers" / "llamafactory.yaml").read_text()
    (tmp_path / "own.yaml").write_text(text.replace("stage: sft", "stage: dpo"))
    said(capsys)
    assert job_in(tmp_path).objective == "dpo"
    (tmp_path / "own.yaml").write_text(text.replace("stage: sft", "stage: ppo"))
    told = said(capsys, "--out", "second.yaml")
    assert "not read: own.yaml trains by reinforcement learning" in told
    assert "model: none was found" in told


def test_the_model_that_the_trainers_file_trains_comes_before_one_that_lies_there(
    tmp_path: Path, capsys: Capture
) -> None:
    folder = tmp_path / "project"
    model_in(folder / "other")
    (folder / "train.jsonl").write_text(ROWS)
    text = "base_model: %s\nadapter: lora\nlora_r: 8\nlora_alpha: 16\nmicro_batch_size: 1\n"
    (folder / "axolotl.yml").write_text(text % "Qwen/Qwen2.5-0.5B")
    out = said(capsys, "project")
    assert "other" not in out
    assert job_in(folder).model.name == "Qwen/Qwen2.5-0.5B"
    (folder / "axolotl.yml").write_text(text % "nobody/knows-this")
    assert "other" in said(capsys, "project", "--out", "second.yaml")


def test_the_rows_that_the_trainers_file_names_come_before_others(
    tmp_path: Path, capsys: Capture
) -> None:
    for name in ("aaa_train.jsonl", "mine.jsonl"):
        (tmp_path / name).write_text(ROWS)
    (tmp_path / "configs").mkdir()
    config = "base_model: Qwen/Qwen2.5-0.5B\nadapter: lora\nlora_r: 8\nsequence_len: 512\n"
    config += "micro_batch_size: 1\ndatasets: [{path: ../mine.jsonl, type: completion}]\n"
    (tmp_path / "configs" / "axolotl.yml").write_text(config)
    shown = said(capsys)
    assert "data: mine.jsonl, 64 rows" in shown
    assert job_in(tmp_path).dataset_path == str(tmp_path / "mine.jsonl")
    assert "# dataset: aaa_train.jsonl" in (tmp_path / "autotune.yaml").read_text()


def test_the_published_rows_of_the_data_set_that_a_script_loads_are_the_jobs(
    tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "train.py").write_text(
        "from datasets import load_dataset\n"
        "from trl import SFTConfig, SFTTrainer\n"
        "rows = load_dataset('databricks/databricks-dolly-15k', split='train')\n"
        "args = SFTConfig(per_device_train_batch_size=2, output_dir='out')\n"
        "SFTTrainer(model='Qwen/Qwen2.5-0.5B', args=args, train_dataset=rows).train()\n"
    )
    told = said(capsys)
    assert "data: none is here; 15,011 rows, by the file below" in told
    assert "still to fill in" not in told
    assert job_in(tmp_path).rows == 15_011


def test_the_tiny_model_and_its_rows_become_a_job_that_tune_answers(
    tmp_path: Path, capsys: Capture
) -> None:
    shutil.copytree(ROOT / "jobs" / "data", tmp_path / "mein Ordner ü")
    out = said(capsys, "mein Ordner ü")
    assert "next: autotune tune 'mein Ordner ü/autotune.yaml'" in out
    job = job_in(tmp_path / "mein Ordner ü")
    tiny = load_job(ROOT / "jobs" / "tiny_cpu.yaml")
    assert (job.rows, job.lengths.mean) == (200, pytest.approx(tiny.lengths.mean, rel=0.05))
    assert job.model.num_layers == 2
    command = ["tune", "mein Ordner ü/autotune.yaml", "--fidelity", "formula", "--format", "json"]
    assert run([*command, "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["job"]["rows"] == 200


def test_in_an_empty_folder_each_missing_value_is_a_line_that_tune_names(
    tmp_path: Path, capsys: Capture
) -> None:
    assert "to fill in: " in said(capsys)
    path = tmp_path / "autotune.yaml"
    lines = path.read_text().splitlines()
    (line,) = (i for i, text in enumerate(lines, 1) if text.startswith("model:"))
    assert "FILL IN" in lines[line - 1]
    assert run(["tune", str(path), "-q"]) == 2
    assert f"line {line}, model: is empty" in capsys.readouterr().err
    path.write_text(path.read_text().replace("model:  ", "model: gpt2  "))
    (line,) = (i for i, text in enumerate(lines, 1) if text.strip().startswith("dataset:"))
    assert run(["tune", str(path), "-q"]) == 2
    assert f"line {line}: data.rows is missing" in capsys.readouterr().err
    (tmp_path / "rows.jsonl").write_text(ROWS)
    path.write_text(path.read_text().replace("  dataset: ", "  dataset: rows.jsonl "))
    assert job_in(tmp_path).rows == 64


@pytest.mark.parametrize("what", ["file", "folder", "broken link"])
def test_what_is_there_is_never_written_over(tmp_path: Path, capsys: Capture, what: str) -> None:
    path = tmp_path / "autotune.yaml"
    if what == "file":
        path.write_text("mine\n")
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "nowhere")
    error = said(capsys, code=2)
    assert "autotune.yaml exists" in error
    assert "--out" in error
    if what == "file":
        assert path.read_text() == "mine\n"
    assert not (tmp_path / "nowhere").exists()
    said(capsys, "--out", "other.yaml")
    assert (tmp_path / "other.yaml").is_file()


def test_an_axolotl_config_gives_method_sizes_and_model(tmp_path: Path, capsys: Capture) -> None:
    shutil.copy(ROOT / "jobs" / "trainers" / "axolotl.yml", tmp_path)
    (tmp_path / "train.jsonl").write_text(ROWS)
    (tmp_path / "eval.jsonl").write_text(ROWS[:100].rpartition("\n")[0] + "\n")
    assert "axolotl" in said(capsys)
    job = job_in(tmp_path)
    assert (job.model.name, job.method.rank) == ("meta-llama/Meta-Llama-3-8B", 32)
    assert (job.epochs, job.global_batch_size, job.max_length) == (4, 8, 2048)
    assert job.rows == 64
    assert "# dataset: eval.jsonl" in (tmp_path / "autotune.yaml").read_text()


def test_an_adapter_gives_its_base_and_its_shape(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen2.5-7B", "r": 24,
        "lora_alpha": 48, "lora_dropout": 0.1, "target_modules": ["v_proj", "q_proj"],
    }))  # fmt: skip
    (tmp_path / "rows.csv").write_text("question,answer\nwhy,because\nhow,so\n")
    said(capsys)
    job = job_in(tmp_path)
    assert (job.model.name, job.method.rank, job.method.alpha) == ("Qwen/Qwen2.5-7B", 24, 48)
    assert set(job.method.targets) == {"q_proj", "v_proj"}
    assert job.rows == 2


def test_the_gpus_of_this_machine_become_the_hardware(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = LocalDevice(0, "NVIDIA L4", 24e9, 0.0, "580", find_device("l4"))
    monkeypatch.setattr(devices, "gpus", lambda: [board, board])
    model_in(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text(ROWS)
    said(capsys)
    (offer,) = job_in(tmp_path).offers
    assert (offer.device.name, offer.count, offer.usd_per_hour) == ("l4", 2, 0.0)


def test_a_gpu_that_nobody_knows_is_named_and_others_stand_in(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = LocalDevice(0, "NVIDIA Novelty\n900", 24e9, 0.0, "580", None)
    monkeypatch.setattr(devices, "gpus", lambda: [odd])
    model_in(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text(ROWS)
    said(capsys)
    assert "NVIDIA Novelty 900 is here" in (tmp_path / "autotune.yaml").read_text()
    assert {offer.device.name for offer in job_in(tmp_path).offers} == {
        find_device(name).name for name in write.RENTED
    }


def test_rows_of_unknown_columns_are_named_with_their_columns(
    tmp_path: Path, capsys: Capture
) -> None:
    model_in(tmp_path / "model")
    (tmp_path / "mine.jsonl").write_text('{"body": "some words", "n": 1}\n')
    assert "data.rows is missing" in said(capsys)
    text = (tmp_path / "autotune.yaml").read_text()
    assert "mine.jsonl: columns that look like text: body" in text
    with_column = text.replace("  dataset: ", "  dataset: mine.jsonl\n  column: body  #")
    (tmp_path / "autotune.yaml").write_text(with_column)
    assert job_in(tmp_path).rows == 1


def test_what_is_named_is_taken(tmp_path: Path, capsys: Capture) -> None:
    model_in(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text(ROWS)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "other.jsonl").write_text('{"text": "one row"}\n')
    out = ("--out", "elsewhere/job.yaml")
    said(capsys, "--model", "gpt2", "--data", "elsewhere/other.jsonl", *out)
    job = load_job(tmp_path / "elsewhere" / "job.yaml")
    assert (job.model.name, job.rows) == ("openai-community/gpt2", 1)
    assert "unknown model" in said(capsys, "--model", "nobody-knows", "--out", "x.yaml", code=2)
    assert "No such file" in said(capsys, "--data", "absent.jsonl", "--out", "x.yaml", code=2)
    assert not (tmp_path / "x.yaml").exists()


def test_files_that_are_something_else_are_passed_by(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "package.json").write_text('{"name": "x"}')
    (tmp_path / "settings.json").write_text('{"a": {"b": 1}}')
    (tmp_path / "broken.yaml").write_text("a: [1,\n")
    (tmp_path / "bomb.yaml").write_text("a: &a [x]\nb: [*a, *a]\n")
    (tmp_path / "config.json").write_text("[]")
    (tmp_path / "binary.jsonl").write_bytes(b"\0\1\2" * 99)
    (tmp_path / "adapter_config.json").write_text("{")
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "loop").symlink_to(tmp_path)
    out = said(capsys)
    assert "model: none was found" in out
    assert "data: none was found" in out


def test_a_folder_that_is_none_or_cannot_be_written_is_refused(
    tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "file").write_text("")
    assert "does not exist" in said(capsys, "nowhere", code=2)
    assert "is no folder" in said(capsys, "file", code=2)
    assert "cannot be written" in said(capsys, "--out", "no/such/folder/job.yaml", code=2)


@pytest.mark.parametrize("name", ["a: b", "line\nbreak", "# x", "'quote\"", "yes", "12", "{x", "ü"])
def test_any_name_of_folder_and_files_gives_a_file_that_loads(
    tmp_path: Path, capsys: Capture, name: str
) -> None:
    folder = tmp_path / name
    model_in(folder / name)
    (folder / f"{name} train.jsonl").write_text(ROWS)
    said(capsys, str(folder))
    if "\n" in name:  # no path with a line end is taken by a job file, which says so
        assert "printable" in str(refusal(folder))
    else:
        assert job_in(folder).rows == 64


def refusal(folder: Path) -> object:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - its text is asserted
        job_in(folder)
    return caught.value
