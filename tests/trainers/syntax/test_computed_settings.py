"""What a script computes: the user's word stands for it, and the refusal names that word."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.app.estimate import estimate
from autotune.app.job.load import load_jobs
from autotune.app.runs.user_file import patched
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides
from tests.commandline import typed
from tests.strangers import asked

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from autotune.domain.job import Job

SCRIPT = """\
from ours import load
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

ours = load()
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
adapter = LoraConfig(r=ours.size, lora_alpha=16, target_modules=["q_proj"])
model = get_peft_model(model, adapter)
args = TrainingArguments(
    "out",
    per_device_train_batch_size=ours.rows,
    gradient_accumulation_steps=ours.rows_again,
    num_train_epochs=ours.passes,
    gradient_checkpointing=ours.saving,
)
rows = rows.map(lambda row: tokenizer(row["text"], truncation=True, max_length=256))
Trainer(model=model, args=args, train_dataset=rows).train()
"""
WHOLE = (
    SCRIPT.partition("args = ")[0]
    + """\
args = TrainingArguments(**ours.arguments)
Trainer(model=model, args=args, train_dataset=rows).train()
"""
)
SAID = {
    "micro_batch_size": "4", "gradient_accumulation_steps": "2", "train.epochs": "5",
    "method.rank": "8",
}  # fmt: skip


def job(path: Path, text: str, said: Mapping[str, str], stated: Mapping[str, object] = {}) -> Job:
    path.write_text(text)
    asked = Overrides(("h100",), stated={"data.rows": 1000, **stated}, set_values=said)
    return load_jobs(path, asked)[0].job


def refusal(path: Path, text: str, said: Mapping[str, str]) -> InputError:
    with pytest.raises(InputError, match="must be written out") as refused:
        job(path, text, said)
    return refused.value


def test_the_refusal_names_what_to_type_for_each_setting(tmp_path: Path) -> None:
    refused = refusal(tmp_path / "train.py", SCRIPT, {})
    for said in ("method.rank=", "micro_batch_size=", "gradient_accumulation_steps=",
                 "train.epochs="):  # fmt: skip
        assert f"--set {said}" in str(refused.hint)


def test_what_the_refusal_names_answers_it(tmp_path: Path) -> None:
    found = job(tmp_path / "train.py", SCRIPT, SAID)
    assert (found.method.rank, found.epochs, found.global_batch_size) == (8, 5.0, 8)
    assert (found.today.micro_batch_size, found.today.gradient_accumulation_steps) == (4, 2)
    assert found.max_length == 256


@pytest.mark.parametrize("left_out", SAID)
def test_each_setting_is_asked_for_until_it_is_given(tmp_path: Path, left_out: str) -> None:
    said = {key: value for key, value in SAID.items() if key != left_out}
    refused = refusal(tmp_path / "train.py", SCRIPT, said)
    assert f"--set {left_out}=" in str(refused.hint)
    assert str(refused.hint).count("--set") == 1


def test_the_trainers_own_name_of_a_knob_answers_as_well(tmp_path: Path) -> None:
    said = {**SAID, "per_device_train_batch_size": "16"}
    del said["micro_batch_size"]
    assert job(tmp_path / "train.py", SCRIPT, said).today.micro_batch_size == 16


def test_a_global_batch_stands_for_the_accumulation(tmp_path: Path) -> None:
    said = {**SAID, "train.global_batch_size": "32"}
    del said["gradient_accumulation_steps"]
    found = job(tmp_path / "train.py", SCRIPT, said)
    assert found.global_batch_size == 32
    assert found.today.gradient_accumulation_steps == 8


def test_steps_or_a_flag_stand_for_epochs(tmp_path: Path) -> None:
    said = {key: value for key, value in SAID.items() if key != "train.epochs"}
    assert job(tmp_path / "train.py", SCRIPT, {**said, "train.steps": "70"}).steps == 70
    assert job(tmp_path / "train.py", SCRIPT, said, {"train.epochs": 2.0}).epochs == 2.0


def test_what_the_user_states_is_not_said_to_be_unread(tmp_path: Path) -> None:
    unread = "gradient_checkpointing computed"
    path = tmp_path / "train.py"
    before = estimate(job(path, SCRIPT, SAID), fidelity="formula")
    assert any(unread in each for each in before.warnings)
    told = job(path, SCRIPT, {**SAID, "activation_checkpointing": "full"})
    after = estimate(told, fidelity="formula")
    assert not any(unread in each for each in after.warnings)
    assert told.today.activation_checkpointing == "full"


def test_arguments_out_of_a_mapping_are_priced_on_three_words_and_said(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    refused = refusal(path, WHOLE, {"method.rank": "8"})
    assert "--set micro_batch_size=" in str(refused.hint)
    found = estimate(job(path, WHOLE, SAID), fidelity="formula")
    assert found.job.today.micro_batch_size == 4
    assert any("arguments computed" in each for each in found.warnings)


def test_the_script_is_given_back_with_what_it_computes_left_alone(tmp_path: Path) -> None:
    for text in (SCRIPT, WHOLE):
        found = job(tmp_path / "train.py", text, SAID)
        more = found.today.with_knobs(micro_batch_size=2, gradient_accumulation_steps=4)
        back = patched("same", found, found.offers[0], more)
        compile(back.text, "train.py", "exec")
        assert "per_device_train_batch_size=2" not in back.text
        assert any("set it there yourself" in each for each in back.notes)


def test_the_next_command_keeps_the_words_that_stand_for_the_script(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    said = [part for key, value in SAID.items() for part in ("--set", f"{key}={value}")]
    asked = ["estimate", str(path), "--rows", "1000", "--gpu", "h100", *said]
    found = typed(*asked, "--set", "precision=bf16", home=tmp_path)
    assert found.returncode == 0
    (following,) = [line for line in found.stdout.splitlines() if "autotune tune" in line]
    assert "--set micro_batch_size=4" in following
    assert "precision" not in following


def test_a_word_that_is_no_number_is_refused_by_its_own_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="micro_batch_size"):
        job(tmp_path / "train.py", SCRIPT, {**SAID, "micro_batch_size": "many"})


def test_flags_in_capitals_that_a_shell_decides_are_asked_for(tmp_path: Path) -> None:
    script = """\
import argparse
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
parser = argparse.ArgumentParser()
parser.add_argument("--EPOCHS", type=int)
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
settings = TrainingArguments("out", per_device_train_batch_size=2, num_train_epochs=args.EPOCHS)
Trainer(model=model, args=settings).train()
"""
    (tmp_path / "train.py").write_text(script)
    run = tmp_path / "run.sh"
    run.write_text("run() {\n  python train.py --EPOCHS $2\n}\n")
    with pytest.raises(InputError) as refused:
        load_jobs(run, asked())
    assert "--set train.epochs=" in str(refused.value.hint)
    found = load_jobs(run, asked(**{"train.epochs": "4"}))[0].job
    assert found.epochs == 4


def test_the_refusal_names_what_the_script_lacks_as_well(tmp_path: Path) -> None:
    """One more command is enough."""
    path = tmp_path / "train.py"
    path.write_text(
        SCRIPT.replace('from_pretrained("Qwen/Qwen2.5-0.5B")', "from_pretrained(ours.name)")
    )
    with pytest.raises(InputError, match="must be written out") as refused:
        load_jobs(path, Overrides(("h100",)))
    for flag in ("--model NAME", "--rows N", "--set method.rank=16"):
        assert flag in str(refused.value.hint)
    said = Overrides(
        ("h100",), stated={"data.rows": 1000, "model": "Qwen2.5-0.5B"}, set_values=SAID
    )
    assert load_jobs(path, said)[0].job.method.rank == 8
