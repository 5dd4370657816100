"""What each kind of logger left is read as the training that it was, and damage is named."""

from __future__ import annotations

import enum
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from autotune.app.learn import notebook, trainer_output
from autotune.app.learn.described import named_machine, past_run
from autotune.app.learn.learn import learn
from autotune.app.learn.pickled import arguments_of
from autotune.app.learn.walk import Unreadable, walk
from autotune.evidence.cases import Refused
from autotune.evidence.log.console import read_printed

ROWS, LENGTH, STEPS, MICRO, ACCUMULATION = 160, 32, 60, 4, 2  # of train_tiny.py


def _read(folder: Path) -> Any:
    own = [f for f in walk([folder]).folders if trainer_output.is_run(f)]
    return trainer_output.read(folder, own)


@pytest.mark.slow
def test_a_real_trainers_output_is_read_with_its_arguments_and_nothing_is_unpickled(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(pickle, "Unpickler", never)
    monkeypatch.setitem(sys.modules, "torch", None)
    found = _read(trained / "out")
    told = json.loads((trained / "out" / "train_results.json").read_text())
    assert found.steps == STEPS
    assert found.results["train_runtime"] == told["train_runtime"]
    run = past_run(found)
    cells = run.cells
    assert (cells["gpu"], cells["n_gpus"], cells["task"]) == ("cpu", "1", "full")
    assert (cells["micro_batch"], cells["grad_accum"]) == (str(MICRO), str(ACCUMULATION))
    assert (cells["precision"], cells["optimizer"], cells["grad_ckpt"]) == (
        "fp32", "adamw_torch", "none",
    )  # fmt: skip
    assert f"incl. padding = {LENGTH}" in cells["notes"]
    assert run.model["hidden_size"] == 64
    evaluations = sum(
        line["eval_runtime"]
        for line in json.loads((trained / "out" / "trainer_state.json").read_text())["log_history"]
        if "eval_runtime" in line
    )
    expected = (told["train_runtime"] - evaluations) / STEPS
    assert float(cells["step_time_s"]) == pytest.approx(expected, rel=1e-3)
    assert run.evaluation_s == pytest.approx(evaluations / 3)
    assert (run.evaluation_rows, run.evaluation_batch) == (8, 8)
    assert run.grade == "B"
    assert any("3 saves inside" in note for note in run.notes)


def test_an_adapters_own_base_is_read_where_it_still_lies_on_this_machine(tmp_path: Path) -> None:
    """The output holds the adapter alone, so runs of a model in a folder taught nothing."""
    base, out = tmp_path / "base", tmp_path / "out"
    base.mkdir()
    out.mkdir()
    (base / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 64}))
    (out / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    line = {"step": 60, "train_runtime": 90.0, "epoch": 1.0}
    state = {"global_step": 60, "max_steps": 60, "log_history": [line], "num_train_epochs": 1}
    (out / "trainer_state.json").write_text(json.dumps(state))
    assert _read(out).model["hidden_size"] == 64
    shutil.rmtree(base)
    assert not _read(out).model


def _with_adapter(trained: Path, folder: Path, *targets: str) -> Path:
    out = Path(shutil.copytree(trained / "out", folder / "out"))
    (out / "adapter_config.json").write_text(json.dumps({"r": 8, "target_modules": targets}))
    return out


@pytest.mark.slow
def test_an_adapter_may_name_its_modules_layer_by_layer(trained: Path, tmp_path: Path) -> None:
    names = [f"model.layers.{n}.self_attn.{name}" for n in (0, 1) for name in ("q_proj", "v_proj")]
    cells = past_run(_read(_with_adapter(trained, tmp_path, *names))).cells
    assert (cells["task"], cells["target_modules"]) == ("lora", "q_proj v_proj")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modules", "task"),
    [
        (["model.embed_tokens", "lm_head"], "lora+embed+head"),
        (["lm_head", "norm"], "lora+head"),
        (["norm"], "lora"),
        (None, "lora"),
    ],
)
def test_what_an_adapter_trained_whole_is_read_with_it(
    trained: Path, tmp_path: Path, modules: list[str] | None, task: str
) -> None:
    out = _with_adapter(trained, tmp_path, "q_proj")
    stated = {"r": 8, "target_modules": ["q_proj"], "modules_to_save": modules}
    (out / "adapter_config.json").write_text(json.dumps(stated))
    assert past_run(_read(out)).cells["task"] == task


@pytest.mark.slow
def test_a_run_whose_job_makes_no_sense_is_left_out_and_costs_no_other(
    trained: Path, tmp_path: Path
) -> None:
    _with_adapter(trained, tmp_path, "nosuch")
    found = learn([tmp_path, trained / "out"], dry_run=True)
    assert found.read == 2
    assert any("LoRA targets" in each.reason for each in found.refusals)


@pytest.mark.slow
def test_an_output_and_a_tracker_are_one_run_though_one_leaves_the_first_steps_out(
    trained: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(trained / "out", tmp_path / "out"))
    whole = json.loads((out / "train_results.json").read_text())["train_runtime"]
    for path in out.rglob("trainer_state.json"):
        state = json.loads(path.read_text())
        for line in state["log_history"]:
            line.setdefault("train_runtime", whole * line["step"] / STEPS)
        path.write_text(json.dumps(state))
    slope, plain = past_run(_read(out)), past_run(_read(trained / "out"))
    assert any(note.startswith("slope of train_runtime") for note in slope.notes)
    assert slope.steps < plain.steps
    assert slope.id == plain.id


@pytest.mark.slow
def test_a_checkpoint_alone_is_the_run_it_is_of(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "out" / "checkpoint-60", tmp_path / "out" / "checkpoint-60")
    found = _read(tmp_path / "out")
    assert found.steps == STEPS
    with pytest.raises((Refused, Unreadable), match=r"ended before its time|without a figure"):
        past_run(found)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "nan", "empty", "arguments"])
def test_damage_of_a_trainers_output_is_named_and_never_a_wrong_run(
    trained: Path, tmp_path: Path, damage: str
) -> None:
    out = tmp_path / "out"
    shutil.copytree(trained / "out", out)
    for name in ("all_results.json", "train_results.json"):
        (out / name).unlink()
    shutil.rmtree(out / "checkpoint-60")
    shutil.rmtree(out / "checkpoint-40")
    shutil.rmtree(out / "checkpoint-20")
    state = out / "trainer_state.json"
    text = state.read_text()
    if damage == "cut":
        state.write_text(text[: len(text) // 2])
    elif damage == "nan":
        state.write_text(
            text.replace(str(json.loads(text)["log_history"][-1]["train_runtime"]), "NaN")
        )
    elif damage == "empty":
        state.write_text("")
    else:
        (out / "training_args.bin").write_bytes((out / "training_args.bin").read_bytes()[:900])
    found = learn([tmp_path], dry_run=True)
    assert not found.usable
    (refusal,) = found.refusals
    expected = {
        "cut": "trainer_state.json is damaged", "empty": "trainer_state.json is damaged",
        "nan": "trainer_state.json is damaged", "arguments": "GPU is named nowhere",
    }[damage]  # fmt: skip
    assert expected in refusal.reason


def test_a_hostile_pickle_runs_nothing_and_grows_nothing(tmp_path: Path) -> None:
    import os
    import pickle
    import zipfile

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.system, (f"touch {tmp_path}/owned",))

    laughs: list[Any] = ["ha"]
    for _ in range(40):
        laughs = [laughs] * 50
    path = tmp_path / "training_args.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps({"x": Evil(), "laughs": laughs, "bf16": True}))
    found = arguments_of(path)
    assert found["bf16"] is True
    assert not (tmp_path / "owned").exists()
    path.write_bytes(b"PK\x03\x04 nonsense")
    with pytest.raises(Unreadable, match="damaged"):
        arguments_of(path)


@pytest.mark.slow
def test_a_real_trainers_console_gives_the_slope_of_a_run_that_was_cut_off(trained: Path) -> None:
    text = (trained / "output.log").read_text()
    printed = read_printed(text)
    assert printed.results["train_runtime"] > 0
    assert printed.steps == STEPS


def _bar(points: list[tuple[int, int]], total: int = 1000) -> str:
    return "\r".join(
        f" 5%|##  | {s}/{total} [{t // 3600}:{t // 60 % 60:02d}:{t % 60:02d}<1:00, 2.0s/it]"
        for s, t in points
    )


def test_an_unfinished_run_is_timed_by_its_bar_and_a_jump_of_the_clock_is_left_out() -> None:
    points = [(step, 3 * step) for step in range(0, 600, 10)]
    log = read_printed(_bar(points)).log("a")
    assert sum(p.seconds for p in log.stretches) / sum(p.steps for p in log.stretches) == 3
    slept = [(s, t + (40_000 if s > 300 else 0)) for s, t in points]
    printed = read_printed(_bar(slept))
    assert printed.jumped
    assert max(part.seconds / part.steps for part in printed.stretches) < 4
    back = [(s, t - (700 if s > 300 else 0)) for s, t in points]
    assert read_printed(_bar(back)).jumped


def test_of_two_runs_in_one_log_the_last_is_read_and_said() -> None:
    slow = _bar([(step, 9 * step) for step in range(0, 500, 10)])
    fast = _bar([(step, 2 * step) for step in range(0, 500, 10)])
    printed = read_printed(slow + "\n" + fast)
    assert any("two runs" in note for note in printed.notes)
    assert {part.seconds / part.steps for part in printed.stretches} == {2.0}


@pytest.mark.parametrize("runtime", [1.3251, 1.3249, 2.5052, 99.955, 6274.9503])
def test_one_end_printed_whole_and_rounded_is_one_run(runtime: float) -> None:
    """1.3251 and its own '1.325' lay on two sides of a third digit, so one run read as two."""
    bar = _bar([(step, 9 * step) for step in range(0, 500, 10)], total=490)
    rounded = f"{{'train_runtime': '{runtime:.4g}', 'train_loss': '5.001'}}"
    whole = f"{{'train_runtime': {runtime}, 'train_loss': 5.00123}}"
    printed = read_printed(f"{bar}\n{rounded}\n{whole}\n")
    assert (printed.steps, printed.notes) == (490, ())
    other = f"{{'train_runtime': {runtime * 1.01}, 'train_loss': 5.00123}}"
    assert read_printed(f"{bar}\n{other}\n{bar}\n{rounded}\n{whole}\n").notes


def test_a_notebook_of_a_model_in_a_folder_is_read_while_that_is_there(tmp_path: Path) -> None:
    base, path = tmp_path / "base", tmp_path / "train.ipynb"
    base.mkdir()
    (base / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 64}))
    said = "TrainOutput(global_step=60, training_loss=5.5, metrics={'train_runtime': 90.0})"
    for name in ("base", str(base)):
        cell = {
            "cell_type": "code", "source": f"m = AutoModelForCausalLM.from_pretrained({name!r})",
            "outputs": [{"output_type": "stream", "name": "stdout", "text": said}],
        }  # fmt: skip
        path.write_text(json.dumps({"cells": [cell]}))
        assert notebook.read(path).model == {"model_type": "llama", "hidden_size": 64}
    (base / "config.json").write_text("{")
    assert notebook.read(path).model == {}
    shutil.rmtree(base)
    assert notebook.read(path).model == {}


@pytest.mark.slow
def test_a_notebook_that_really_trained_is_read_from_its_source_and_outputs(tmp_path: Path) -> None:
    """Its cells run here, and their outputs are what the Trainer printed and gave."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    path = tmp_path / "tiny.ipynb"
    path.write_text(json.dumps(_notebook()))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "run_notebook.py"), str(path)], cwd=tmp_path,
        check=False, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = notebook.read(path)
    assert found.steps == STEPS
    run = past_run(found)
    assert (run.cells["micro_batch"], run.cells["grad_accum"]) == (str(MICRO), str(ACCUMULATION))
    assert f"incl. padding = {LENGTH}" in run.cells["notes"]
    assert run.cells["grad_ckpt"] == "none"
    assert float(run.cells["step_time_s"]) > 0
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    with pytest.raises(Unreadable, match="damaged or cut short"):
        notebook.read(path)
    path.write_text(json.dumps(_notebook()))
    with pytest.raises(Unreadable, match="hold no training"):
        notebook.read(path)


def _notebook() -> dict[str, Any]:
    """A notebook in nbformat 4 that trains a tiny model; nothing of it has run."""
    cells = (
        """import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
""",
        """class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 160
    def __getitem__(self, index):
        ids = torch.arange(32) % 256
        return {"input_ids": ids, "labels": ids}
""",
        """config = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=4, vocab_size=256, max_position_embeddings=64)
args = TrainingArguments("out", per_device_train_batch_size=4, use_cpu=True,
    gradient_accumulation_steps=2, num_train_epochs=3, gradient_checkpointing=False,
    save_strategy="no", report_to="none")
""",
        """trainer = Trainer(model=LlamaForCausalLM(config), args=args, train_dataset=Rows())
trainer.train()
""",
    )
    codes = [
        {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [],
         "source": cell.splitlines(keepends=True)}
        for cell in cells
    ]  # fmt: skip
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": codes}


def test_a_huge_or_deep_file_is_named_and_not_read(tmp_path: Path) -> None:
    deep = tmp_path / "deep"
    deep.mkdir()
    (deep / "trainer_state.json").write_text("[" * 200_000)
    huge = tmp_path / "huge"
    huge.mkdir()
    with (huge / "trainer_state.json").open("wb") as stream:
        stream.truncate(3_000_000_000)  # sparse
    found = learn([tmp_path], dry_run=True)
    assert not found.usable
    assert sum(refusal.count for refusal in found.refusals) == 2


def test_a_yaml_bomb_and_a_tag_are_refused(tmp_path: Path, wandb_run: Any) -> None:
    bomb = wandb_run(tmp_path / "bomb", 6.0)
    (bomb / "files" / "config.yaml").write_text("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n")
    tag = wandb_run(tmp_path / "tag", 6.1)
    (tag / "files" / "config.yaml").write_text("a: !!python/object/apply:os.system ['true']\n")
    found = learn([tmp_path], dry_run=True)
    assert not found.usable
    assert "config.yaml is no YAML mapping" in found.refusals[0].reason
    assert found.refusals[0].count == 2


def test_a_machine_is_named_as_everywhere() -> None:
    assert (named_machine("8xH100").device, named_machine("8xH100").count) == ("h100-sxm", 8)
    assert named_machine("cpu").device == "cpu"


FACTORY = Path(__file__).parent / "fixtures" / "llamafactory"


def test_what_llama_factory_wrote_is_read_with_its_yaml_and_the_machine_that_is_named(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    shutil.copytree(FACTORY, out)
    found = _read(out)
    assert found.source == "LLaMA-Factory output"
    told = json.loads((FACTORY / "train_results.json").read_text())
    run = past_run(found, named_machine("cpu"))
    cells = run.cells
    assert (cells["task"], cells["micro_batch"], cells["grad_accum"]) == ("full", "4", "2")
    assert (cells["seq_len"], cells["n_gpus"], cells["precision"]) == ("128", "1", "fp32")
    steps = json.loads((FACTORY / "trainer_state.json").read_text())["global_step"]
    assert float(cells["step_time_s"]) == pytest.approx(told["train_runtime"] / steps, rel=0.15)
    with pytest.raises(Refused, match="GPU is named nowhere"):
        past_run(found)
    assert "hiyouga/LLaMA-Factory" in cells["source_repo"]


@pytest.mark.parametrize("runtime_s", [1.3255, 2.5055, 30.415, 30.425])
def test_a_runtime_between_two_figures_is_one_run_in_whatever_width_a_logger_keeps_it(
    runtime_s: float,
) -> None:
    """Whole, in 32 bits, and to four digits, as the line has it that the Trainer prints."""
    found = _read(FACTORY)
    ids = set()
    for kept in (runtime_s, float(np.float32(runtime_s)), float(f"{runtime_s:.4g}")):
        results = {**found.results, "train_runtime": kept}
        ids.add(past_run(replace(found, results=results), named_machine("cpu")).id)
    assert len(ids) == 1


def test_a_rate_of_three_decimals_makes_a_slow_run_no_resumed_one() -> None:
    """0.003 steps a second are 290 s a step as well as 390 s: 290 s were taken for 331 s."""
    found = _read(FACTORY)

    def step_s(steps: int, each_s: float) -> float:
        rates = {"train_steps_per_second": round(1 / each_s, 3),
                 "train_samples_per_second": 8 / each_s}  # fmt: skip
        results = {**found.results, **rates, "train_runtime": steps * each_s}
        run = past_run(replace(found, results=results, log=None), named_machine("cpu"))
        return float(run.cells["step_time_s"])

    assert found.steps == 80
    for each_s in (290.0, 390.0, 650.0):
        assert step_s(80, each_s) == pytest.approx(each_s)
    assert step_s(40, 40.0) == pytest.approx(40.0), "the 40 steps since it was resumed"


@pytest.mark.parametrize("torn", [0.3, 0.7, 0.98])
def test_a_torn_log_of_llama_factory_is_read_up_to_where_it_is_whole(
    tmp_path: Path, torn: float
) -> None:
    out = tmp_path / "out"
    shutil.copytree(FACTORY, out)
    for name in ("all_results.json", "train_results.json", "trainer_state.json"):
        (out / name).unlink()
    log = out / "trainer_log.jsonl"
    text = log.read_text()
    log.write_text(text[: int(torn * len(text))])
    found = _read(out)
    assert 0 < found.log.steps_done <= 80


class ByName:
    """A member of an enumeration as Python 3.11.0 to 3.11.3 write it: by its class and name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple[Any, tuple[Any, str]]:
        return getattr, (Color, self.name)


class Color(enum.Enum):
    PAGED_ADAMW = "paged_adamw_32bit"
    STEPS = "steps"


@pytest.mark.parametrize("name", ["PAGED_ADAMW", "STEPS"])
def test_a_member_that_was_written_by_its_name_has_its_value(name: str, tmp_path: Path) -> None:
    state = SimpleNamespace(optim=ByName(name), learning_rate=1e-4)
    with zipfile.ZipFile(tmp_path / "training_args.bin", "w") as archive:
        archive.writestr("training_args/data.pkl", pickle.dumps(state, 2))
    found = arguments_of(tmp_path / "training_args.bin")
    assert found == {"optim": Color[name].value, "learning_rate": 1e-4}
