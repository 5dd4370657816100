"""The table of other people's files: what it calls right, wrong and refused."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.corpus import look, words
from bench.corpus.__main__ import items, main, table, verdicts
from bench.corpus.look import Look, look_at
from bench.corpus.through import Read
from bench.corpus.verdict import CLEAR, CRASH, NO_HELP, RIGHT, WRONG, Verdict, judged, plain

if TYPE_CHECKING:
    from types import ModuleType

AXOLOTL = """\
base_model: meta-llama/Llama-3.2-1B
load_in_4bit: true
adapter: qlora
lora_r: 16
lora_target_linear: true
datasets:
  - path: my/rows
    type: alpaca
sequence_len: 2048
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 1
optimizer: adamw_bnb_8bit
gradient_checkpointing: true
"""


@pytest.mark.parametrize("module", [look, words])
def test_the_independent_look_imports_nothing_of_the_product(module: ModuleType) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text())
    named = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    named += [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    assert not [name for name in named if name.startswith("autotune")]


def test_the_look_finds_the_obvious_keys() -> None:
    found = look_at(Path("a/qlora.yml"), AXOLOTL)
    assert found.in_scope
    assert found.facts() == {
        "model": "llama-3.2-1b", "method": "lora", "base": "nf4", "micro": 2, "accumulation": 4,
        "length": 2048, "rank": 16, "optimizer": "adamw8", "checkpointing": "full",
    }  # fmt: skip


def test_the_look_finds_them_in_a_script_and_in_a_command() -> None:
    script = (
        'MODEL = "Qwen/Qwen2.5-0.5B"\nmodel, t = FastModel.from_pretrained(MODEL, '
        "load_in_4bit=True)\nmodel = FastModel.get_peft_model(model, r=8)\n"
        "args = SFTConfig(per_device_train_batch_size=2, max_steps=60)\n"
    )
    found = look_at(Path("train.py"), script)
    assert (found.method, found.base, found.rank, found.micro) == ("lora", "nf4", 8, 2)
    command = "accelerate launch \\\n run.py --model_name_or_path a/b --lora-r 4 \\\n --max_steps 9"
    assert look_at(Path("run.sh"), command).model == "b"


@pytest.mark.parametrize(
    ("text", "objective"),
    [
        (AXOLOTL + "rl: dpo\n", "preference"),
        (AXOLOTL + "reward_model: true\n", "reward"),
        (AXOLOTL + "processor_type: AutoProcessor\n", "vision"),
        (AXOLOTL, "sft"),
    ],
)
def test_the_look_tells_what_is_trained(text: str, objective: str) -> None:
    assert look_at(Path("a/x.yml"), text).objective == objective


def test_a_reading_that_differs_is_wrong_and_one_that_the_answer_owns_up_to_is_not() -> None:
    seen = Look(trains=True, micro=2, optimizer="lion")
    assert judged(seen, Read({"micro": 4})).kind == WRONG
    counted = Read({"micro": 2, "optimizer": "adamw"}, said="optimizer lion is counted as adamw")
    assert judged(seen, counted).kind == RIGHT
    silent = Read({"micro": 2, "optimizer": "adamw"})
    assert judged(seen, silent).cause == "optimizer: lion read as adamw"


def test_a_job_of_another_kind_must_be_refused_by_its_name_and_with_help() -> None:
    seen = Look(trains=True, objective="preference")
    assert judged(seen, Read({"micro": 2})).kind == WRONG
    assert judged(seen, Read(refusal="x trains preference pairs", hint="--as sft")).kind == CLEAR
    assert judged(seen, Read(refusal="unknown LoRA target", hint="see peft")).kind == NO_HELP
    assert judged(seen, Read(crash="KeyError: 1")).kind == CRASH


def test_trainers_are_counted_apart_from_other_folders() -> None:
    found = {
        "axolotl/a.yml": (Verdict(RIGHT, in_scope=True), {}),
        "scripts/a.sh": (Verdict(WRONG, "x", in_scope=True), {}),
    }
    text = table(found)
    assert "| **trainers** | 1 | 1 | 0 | 0 | 0 | 0 |" in text
    assert "trainers: in scope 1: right 100.0 %" in text
    assert "all: in scope 2: right 50.0 %" in text


def test_a_folder_that_says_what_its_scripts_train_is_looked_at() -> None:
    folders = "step2_dpo_finetuning/training_scripts/opt/run.sh"
    assert look_at(Path(folders), "deepspeed main.py --lr 1").objective == "preference"
    seen = Look(trains=False, objective="preference")
    assert judged(seen, Read({"objective": "sft"})).kind == WRONG
    assert judged(seen, Read({"objective": "dpo"})).kind == RIGHT
    assert judged(Look(trains=False), Read({"objective": "dpo"})).kind == WRONG


def test_causes_are_counted_without_names_and_numbers() -> None:
    assert plain('a/b.yaml: unknown target "q_proj" on line 12') == (
        'FILE unknown target "..." on line N'
    )


def test_a_folder_makes_a_table_with_a_line_a_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, pages = tmp_path / "axolotl", tmp_path / "pages"
    own.mkdir()
    pages.mkdir()
    (own / "qlora.yml").write_text(AXOLOTL)
    (own / "broken.yml").write_text(AXOLOTL.replace("lora_r: 16", "lora_r: many"))
    (pages / "README.md").write_text(
        "Type\n```bash\ntrl sft --model_name_or_path Qwen/Qwen2.5-0.5B \\\n"
        "  --per_device_train_batch_size 2 --output_dir x\n```\n"
    )
    assert [name for name, _, _ in items(tmp_path)] == [
        "axolotl/broken.yml", "axolotl/qlora.yml", "pages/README.md#0"
    ]  # fmt: skip
    monkeypatch.setenv("AUTOTUNE_OFFLINE", "1")
    found = verdicts(tmp_path, only="axolotl")
    assert found["axolotl/qlora.yml"][0].kind == RIGHT
    assert found["axolotl/broken.yml"][0].kind == CLEAR
    text = table(found)
    assert "| axolotl | 2 | 1 | 1 | 0 | 0 | 0 |" in text
    assert "all: in scope 2: right 50.0 %" in text
    assert "   1 refused clearly: FILE: lora_r is 'many'" in text


def test_the_table_is_printed_as_json_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_OFFLINE", "1")
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path))
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.yml").write_text(AXOLOTL)
    assert main([str(tmp_path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["one/a.yml"]["verdict"] == "right"


def test_the_look_knows_that_unsloth_puts_no_adapters_on_a_model_that_is_trained_in_full() -> None:
    script = (
        'model, t = FastModel.from_pretrained("a/b", full_finetuning=True)\n'
        "model = FastModel.get_peft_model(model, r=8)\n"
        "args = SFTConfig(per_device_train_batch_size=2, max_steps=60)\n"
    )
    found = look_at(Path("train.py"), script)
    assert (found.method, found.rank) == ("full", None)


def test_a_model_of_a_kind_not_described_is_counted_apart_from_one_unknown(tmp_path: Path) -> None:
    (tmp_path / "axolotl").mkdir()
    for name, model in (
        ("kind", "moonshotai/Kimi-Linear-48B-A3B-Instruct"),
        ("unknown", "nobody/knows-this"),
    ):
        text = AXOLOTL.replace("meta-llama/Llama-3.2-1B", model)
        (tmp_path / "axolotl" / f"{name}.yml").write_text(text)
    said = table(verdicts(tmp_path))
    assert "1 are of a kind that is not described, 1 not known without the hub" in said
    assert "moonshotai/Kimi-Linear-48B-A3B-Instruct (its kind is not described)" in said
    assert "nobody/knows-this (its config.json, of the hub or a folder)" in said
