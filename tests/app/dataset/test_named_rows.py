"""How many rows a script loads, as far as it says so, and what is asked for where it does not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import load_jobs
from autotune.catalog.datasets import counted, row_counts
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

SCRIPT = """
from datasets import load_dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

{lines}
args = SFTConfig("out", per_device_train_batch_size=4, bf16=True, max_length=512{more})
peft = LoraConfig(r=8, target_modules=["q_proj"])
SFTTrainer("Qwen/Qwen2.5-0.5B", args=args, train_dataset=rows, peft_config=peft).train()
"""


def job(folder: Path, lines: str, more: str = "", **given: object) -> Job:
    """The job of a script that loads its rows so."""
    path = folder / "train.py"
    path.write_text(SCRIPT.format(lines=lines, more=more))
    return load_jobs(path, Overrides(("h100",), stated=given))[0].job


def data(folder: Path, count: int) -> None:
    """A file of chats beside the script."""
    chat = {
        "messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So"}]
    }
    (folder / "rows").mkdir()
    (folder / "rows" / "train.jsonl").write_text(f"{json.dumps(chat)}\n" * count)


FILE = 'load_dataset("json", data_files="rows/train.jsonl", split="train")'


BY_SPLIT = """
files = {"train": "rows/train.jsonl", "test": "rows/test.jsonl"}
loaded = load_dataset("json", data_files=files)
rows = loaded["train"]
"""


@pytest.mark.parametrize(
    ("lines", "rows"),
    [
        (f"rows = {FILE}", 40),
        ('path = "rows/train.jsonl"\nrows = load_dataset("json", data_files=path)["train"]', 40),
        ("rows = " + FILE.replace('"train")', '"train[:25%]")'), 10),
        (f"rows = {FILE}.shuffle(1).select(range(30))", 30),
        (BY_SPLIT, 40),
        (
            f'rows = {FILE}\nheld = load_dataset("json", data_files="rows/t.jsonl", split="test")',
            40,
        ),
        (
            f'rows = {FILE}\neval_rows = load_dataset("json", data_files="t.jsonl", split="train")',
            40,
        ),
        ('rows = load_dataset("timdettmers/openassistant-guanaco", split="train")', 9846),
        ('rows = load_dataset("tatsu-lab/alpaca", split="train[:500]")', 500),
        ('rows = load_dataset("wikitext", "wikitext-2-raw-v1")["train"]', 36718),
        ('rows = load_dataset("HuggingFaceH4/ultrachat_200k", split="train_sft")', 207865),
        ('rows = load_dataset("open-r1/OpenR1-Math-220k", split="train")', 93733),
        ('rows = load_dataset("cnn_dailymail", "3.0.0", split="train")', 287113),
    ],
)
def test_rows_that_a_script_names_are_counted(tmp_path: Path, lines: str, rows: int) -> None:
    """In a file that is here, or as published."""
    data(tmp_path, 40)
    assert job(tmp_path, lines).rows == rows


@pytest.mark.parametrize(
    "lines",
    [
        f'rows = {FILE}.filter(lambda row: row["good"])',
        f'rows = concatenate_datasets([{FILE}, load_dataset("org/more", split="train")])',
        f"rows = {FILE}.select(range(count()))",
        f"rows = {FILE}.map(group_texts, batched=True)",
        f"rows = {FILE}.map(lambda row: tok(row, return_overflowing_tokens=True))",
        f"rows = {FILE}\nrows = rows[:20]",
        'rows = load_dataset("json", data_files="rows/other.jsonl", split="train")',
        'rows = load_dataset("json", data_files=sys.argv[1], split="train")',
        'rows = load_dataset("json", data_files="rows/*.jsonl", split="train")',
        f'rows = {FILE}\nmore = load_dataset("tatsu-lab/alpaca", split="train")',
        'rows = load_dataset("HuggingFaceH4/ultrachat_200k", split="train")',
        'rows = load_dataset("wikitext", split="train")',
        'rows = load_dataset("open-r1/OpenR1-Math-220k", "extended", split="train")',
        'rows = load_dataset("org/unknown", split="train")',
        'rows = load_dataset("tatsu-lab/alpaca")',
        'rows = load_dataset("tatsu-lab/alpaca", split="train[100:200]")',
    ],
)
def test_rows_that_it_leaves_open_are_asked_for(tmp_path: Path, lines: str) -> None:
    """What leaves rows out or joins others is not executed, and nothing is guessed."""
    data(tmp_path, 40)
    with pytest.raises(InputError, match="does not say how many rows"):
        job(tmp_path, lines)


def test_rows_that_are_stated_stand_before_what_is_loaded(tmp_path: Path) -> None:
    """A flag says what the file does not, and steps need no rows."""
    data(tmp_path, 40)
    stated = job(tmp_path, f"rows = {FILE}", **{"data.rows": 77})
    assert (stated.rows, stated.dataset_path) == (77, None)
    assert job(tmp_path, f"rows = {FILE}", ", max_steps=6").rows == 24


@pytest.mark.parametrize(
    "row", [{"question": "Why?", "reply": "So"}, {"text": ""}, {"chosen": "So", "rejected": "No"}]
)
def test_rows_that_its_own_code_puts_together_are_counted_alone(
    tmp_path: Path, row: dict[str, str]
) -> None:
    """Their columns are none of the trainer's: how long they are is not known, how many is."""
    data(tmp_path, 40)
    (tmp_path / "rows" / "train.jsonl").write_text(f"{json.dumps(row)}\n" * 40)
    found = job(tmp_path, f"rows = {FILE}.map(put_together)")
    assert (found.rows, found.lengths.basis, found.dataset_path) == (40, "unknown", None)


def test_a_split_that_is_held_out_is_taken_off(tmp_path: Path) -> None:
    """Of the rows of the file a tenth is not trained on."""
    data(tmp_path, 40)
    lines = f"parts = {FILE}.train_test_split(test_size=0.1)\nrows = parts['train']"
    assert job(tmp_path, lines).rows == 36


def test_every_count_of_rows_names_its_source() -> None:
    """By configuration and split, each once."""
    keys = [(each.name, each.config, each.split) for each in row_counts()]
    assert len(set(keys)) == len(keys)
    for each in row_counts():
        found = [counted(name, each.config, each.split) for name in (each.name, *each.aliases)]
        assert {one.rows for one in found if one} == {each.rows}
    assert counted("tatsu-lab/alpaca", "", "test") is None
