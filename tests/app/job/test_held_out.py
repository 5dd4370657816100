"""Rows that a trainer's file takes from the training, and the scales of its base in 4 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from autotune.app.job.load import jobs_of_command, load_jobs
from autotune.app.runs.export import export
from autotune.cost.memory.states import sizes, weight_bytes
from autotune.cost.run_time import evaluations
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

QWEN = "Qwen/Qwen2.5-0.5B"
AXOLOTL = f"""base_model: {QWEN}
sequence_len: 512
micro_batch_size: 1
num_epochs: 1
datasets: [{{path: own.jsonl, type: alpaca}}]
adapter: qlora
load_in_4bit: true
lora_r: 8
lora_target_linear: true
"""
FACTORY = f"""model_name_or_path: {QWEN}
stage: sft
finetuning_type: lora
quantization_bit: 4
dataset: own
cutoff_len: 512
per_device_train_batch_size: 1
"""
TRL = (
    f"python sft.py --model_name_or_path {QWEN} --use_peft --lora_r 8 --load_in_4bit "
    "--max_length 512 --per_device_train_batch_size 1"
)
SWIFT = f"swift sft --model {QWEN} --max_length 512 --quant_bits 4 --quant_method bnb"
SCRIPT = f"""rows = rows.train_test_split(test_size=0.1, seed=1)
nf4 = BitsAndBytesConfig(load_in_4bit=True)
model = AutoModelForCausalLM.from_pretrained("{QWEN}", quantization_config=nf4)
args = SFTConfig(max_length=512, num_train_epochs=1, eval_strategy="epoch")
SFTTrainer(model=model, args=args, peft_config=LoraConfig(r=8), train_dataset=rows["train"])
"""
COMMANDS = {"trl": TRL, "swift": SWIFT}
FILES = {"axolotl.yml": AXOLOTL, "factory.yaml": FACTORY, "train.py": SCRIPT}


def read(folder: Path, name: str, more: str = "", **set_values: str) -> Job:
    overrides = Overrides(("h100",), stated={"data.rows": 1000}, set_values=set_values)
    if name in COMMANDS:
        return jobs_of_command(COMMANDS[name] + more, overrides)[0].job
    path = folder / name
    path.write_text(FILES[name] + more, encoding="utf-8")
    return load_jobs(path, overrides)[0].job


@pytest.mark.parametrize(
    ("name", "more", "trained"),
    [
        ("axolotl.yml", "val_set_size: 0.05\n", 950),
        ("axolotl.yml", "val_set_size: 30\n", 970),
        ("axolotl.yml", "val_set_size: 0\n", 1000),
        ("factory.yaml", "val_size: 0.1\n", 900),
        ("factory.yaml", "val_size: 100\n", 900),
        ("swift", " --split_dataset_ratio 0.01", 990),
        ("swift", " --split_dataset_ratio 0.01 --eval_strategy no", 1000),
        ("trl", " --test_split_size 0.0015", 998),  # a share is rounded up
        ("train.py", "", 900),
    ],
)
def test_rows_that_evaluate_are_not_trained_on(
    tmp_path: Path, name: str, more: str, trained: int
) -> None:
    job = read(tmp_path, name, more)
    assert (job.rows, job.held_out) == (trained, 1000 - trained)
    told = [note.value for note in job.assumed if note.key == "data.rows"]
    assert told == ([f"{trained:,}"] if trained < 1000 else [])


def test_the_steps_are_those_of_the_rows_that_are_trained_on(tmp_path: Path) -> None:
    assert read(tmp_path, "axolotl.yml", "val_set_size: 0.5\n").steps == 500


def test_an_evaluation_reads_what_is_held_out_when_the_file_schedules_one(tmp_path: Path) -> None:
    held_out = "val_set_size: 0.1\n"
    assert read(tmp_path, "axolotl.yml", held_out).evaluation is None  # axolotl then never does
    job = read(tmp_path, "axolotl.yml", held_out + "evals_per_epoch: 3\n")
    assert (job.evaluation.rows, job.evaluation.every_steps) == (100, 300)
    other = read(tmp_path, "train.py", **{"evaluation.rows": "7"})
    assert other.evaluation.rows == 7


def test_swift_evaluates_what_it_holds_out_at_every_save(tmp_path: Path) -> None:
    job = read(tmp_path, "swift", " --split_dataset_ratio 0.1 --save_steps 20")
    assert (job.evaluation.rows, job.evaluation.every_steps) == (100, 20)


def test_a_set_value_holds_out_other_rows_and_none_may_be_left_over(tmp_path: Path) -> None:
    assert read(tmp_path, "trl", **{"data.held_out": "0.2"}).rows == 800
    with pytest.raises(InputError, match="none is left to train on"):
        read(tmp_path, "trl", **{"data.held_out": "1000"})


@pytest.mark.parametrize(
    ("name", "more", "double"),
    [
        ("axolotl.yml", "", True),
        ("axolotl.yml", "bnb_config_kwargs: {bnb_4bit_use_double_quant: false}\n", False),
        ("factory.yaml", "", True),
        ("factory.yaml", "double_quantization: false\n", False),
        ("swift", "", True),
        ("swift", " --bnb_4bit_use_double_quant false", False),
        ("trl", "", False),
        ("trl", " --use_bnb_nested_quant", True),
        ("train.py", "", False),
    ],
)
def test_scales_are_quantised_where_the_trainer_does_it(
    tmp_path: Path, name: str, more: str, *, double: bool
) -> None:
    job = read(tmp_path, name, more)
    assert (job.method.base, job.method.double_quant) == ("nf4", double)


def test_plain_scales_take_their_bytes_and_are_said(tmp_path: Path) -> None:
    """Source: bitsandbytes: an fp32 scale a block of 64; or 8 bits, and fp32 for 256 of them."""
    plain = read(tmp_path, "trl")
    double = read(tmp_path, "trl", " --use_bnb_nested_quant")
    linear = sizes(plain.model).linear
    more = linear * (4 - 1 - 4 / 256) / 64
    assert weight_bytes(plain, sizes(plain.model)) - weight_bytes(
        double, sizes(double.model)
    ) == pytest.approx(more)
    assert "method.double_quant" in {note.key for note in plain.assumed}
    assert "method.double_quant" not in {note.key for note in double.assumed}


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("hf", "bnb_4bit_use_double_quant=False"),
        ("trl", "bnb_4bit_use_double_quant=False"),
        ("axolotl", 'bnb_4bit_use_double_quant": false'),
        ("llamafactory", "double_quantization: false"),
        ("litgpt", 'quantize: "bnb.nf4"'),
    ],
)
def test_an_export_stores_the_base_as_it_was_priced(tmp_path: Path, target: str, says: str) -> None:
    for more, said in (("", True), (" --use_bnb_nested_quant", False)):
        job = read(tmp_path, "trl", more)
        assert job.today is not None
        made = export(target, job, job.offers[0], job.today)
        assert (says in "".join(made.files.values())) is said


@pytest.mark.parametrize(("name", "text"), [
    ("axolotl.yml", "saves_per_epoch: 2\nval_set_size: 0.5\n"),
    ("factory.yaml", "save_strategy: epoch\nval_size: 0.5\nper_device_eval_batch_size: 1\n"),
])  # fmt: skip
def test_saves_by_the_epoch_stand_among_the_rows_that_are_counted(
    tmp_path: Path, name: str, text: str
) -> None:
    """80 rows, of which half are trained on, in batches of 1; axolotl saves twice an epoch."""
    rows = tmp_path / "own.jsonl"
    rows.write_text('{"text": "one row"}\n' * 80, encoding="utf-8")
    path = tmp_path / name
    path.write_text(FILES[name] + text, encoding="utf-8")
    job = load_jobs(path, Overrides(("h100",), stated={"data.dataset": str(rows)}))[0].job
    every = 20 if name == "axolotl.yml" else 40
    assert (job.rows, job.today.checkpoint_every_steps) == (40, every)
    assert job.lock["checkpoint_every_steps"] == every


@pytest.mark.parametrize(("name", "text"), [
    ("axolotl.yml", "val_set_size: 0.2\nevals_per_epoch: 4\neval_on_start: true\n"),
    ("axolotl.yml", "val_set_size: 0.2\neval_steps: 200\neval_on_start: true\n"),
    ("factory.yaml", ("val_size: 0.2\neval_strategy: steps\neval_steps: 200\neval_on_start: true\n"
     "num_train_epochs: 1\n")),
    ("trl", " --test_split_size 0.2 --eval_steps 200 --eval_on_start --num_train_epochs 1"),
])  # fmt: skip
def test_an_evaluation_before_the_first_step_is_one_more(
    tmp_path: Path, name: str, text: str
) -> None:
    """800 rows in batches of 1, an evaluation every 200 steps."""
    job = read(tmp_path, name, text)
    assert (job.evaluation.at_start, job.evaluation.rows, job.steps) == (True, 200, 800)
    assert job.evaluation.times(job.steps) == 5
    assert list(evaluations(job, np.array([800.0, 400.0]))) == [5.0, 3.0]
    later = read(tmp_path, name, text, **{"evaluation.at_start": "false"})
    assert later.evaluation.times(later.steps) == 4
    for each in (job, later):
        assert each.today is not None
        written = str(export("hf", each, each.offers[0], each.today))
        assert ("eval_on_start" in written) == (each is job)


LITGPT = """checkpoint_dir: checkpoints/EleutherAI/pythia-160m
precision: bf16-true
lora_r: 8
data: {class_path: litgpt.data.JSON, init_args: {json_path: own.json, val_split_fraction: 0.2}}
train: {micro_batch_size: 2, global_batch_size: 8, max_seq_length: 512, epochs: 1}
"""


@pytest.mark.parametrize(("text", "rows"), [
    ("eval: {interval: 25, max_iters: 10}\n", 20), ("eval: {interval: 25}\n", 200),
    ("eval: {interval: 25, max_iters: 1000}\n", 200),
])  # fmt: skip
def test_litgpt_evaluates_so_many_batches_of_what_it_holds_out(
    tmp_path: Path, text: str, rows: int
) -> None:
    """A hundred batches of 2 unless stated, and never more rows than are held out of 1,000."""
    path = tmp_path / "litgpt.yaml"
    path.write_text(LITGPT + text, encoding="utf-8")
    job = load_jobs(path, Overrides(("h100",), stated={"data.rows": 1000}))[0].job
    assert (job.rows, job.steps) == (800, 100)
    assert (job.evaluation.rows, job.evaluation.every_steps) == (rows, 25)
    path.write_text(LITGPT.replace("0.2", "0.0") + text, encoding="utf-8")
    plain = load_jobs(path, Overrides(("h100",), stated={"data.rows": 1000}))[0].job
    assert (plain.rows, plain.evaluation) == (1000, None)
