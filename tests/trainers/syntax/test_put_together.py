"""Text that a script puts together, and what stands in its classes, modules and TRL's arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import jobs_of_command, load_jobs
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides
from autotune.trainers.syntax.python_source import parse_script
from tests.strangers import warnings

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

ARGUMENTS = "per_device_train_batch_size=2, num_train_epochs=1, max_length=512"
OVERRIDES = Overrides(("h100",), stated={"data.rows": 1000})
BY_NAME = f"""\
import os, sys
from pathlib import Path
from trl import SFTConfig, SFTTrainer
ROOT = Path(__file__).resolve().parents[2]
MODELS, SIZE = "/data/models", 2
NAME = {{}}
SFTTrainer(model=str(NAME), args=SFTConfig("out", {ARGUMENTS}), train_dataset=rows).train()
"""


def job(path: Path, text: str, overrides: Overrides = OVERRIDES) -> Job:
    path.write_text(text)
    (found,) = load_jobs(path, overrides)
    return found.job


@pytest.mark.parametrize(
    ("put", "value"),
    [
        ('ROOT / "models" / "gemma-2-2b-it"', "$ROOT/models/gemma-2-2b-it"),
        ('Path(MODELS) / "gemma-2-2b-it"', "/data/models/gemma-2-2b-it"),
        ('os.path.join(MODELS, "gemma-2-2b-it")', "/data/models/gemma-2-2b-it"),
        ('os.path.join(sys.argv[1], "gemma-2-2b-it")', "$FOLDER/gemma-2-2b-it"),
        ('Path("models/gemma-2-2b-it").resolve()', "models/gemma-2-2b-it"),
        ('f"{MODELS}/gemma-2-{SIZE}b-it"', "/data/models/gemma-2-2b-it"),
        ('"google/" + "gemma-2-2b-it"', "google/gemma-2-2b-it"),
    ],
)
def test_a_path_is_put_together(put: str, value: str) -> None:
    found = parse_script(BY_NAME.replace("{}", put), "train.py")
    assert found.values["model_name_or_path"] == value


@pytest.mark.parametrize(
    "put",
    [
        "ROOT / sys.argv[1]",
        'f"{MODELS}/gemma-{sys.argv[1]}"',
        'sys.argv[1] + "-it"',
        'f"{SIZE:>3}"',
    ],
)
def test_a_path_whose_last_part_is_not_known_is_none(put: str) -> None:
    assert "model_name_or_path" not in parse_script(BY_NAME.replace("{}", put), "train.py").values


def test_what_is_counted_is_no_path() -> None:
    text = BY_NAME.replace("{}", '"google/gemma-2-2b-it"')
    for count, known in (("SIZE * 2 // 2", 2), ("len(rows) / SIZE", None)):
        made = parse_script(text.replace("batch_size=2", f"batch_size={count}"), "train.py").values
        assert made.get("per_device_train_batch_size") == known


def test_a_folder_of_the_scripts_own_is_priced_as_the_model_it_is_called_after(
    tmp_path: Path,
) -> None:
    found = job(tmp_path / "train.py", BY_NAME.replace("{}", 'ROOT / "gemma-2-2b-it"'))
    assert found.model.num_layers == 26
    assert "called after that model" in warnings(found)


MODULE = """\
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

def adapted(model_id, rank=16):
    model = AutoModelForCausalLM.from_pretrained(model_id)
    return get_peft_model(model, LoraConfig(r=rank, target_modules=["q_proj"]))

if __name__ == "__main__":
    model_id = "google/gemma-2-2b-it"
    adapted(model_id)
"""
STARTED = f"""\
from transformers import Trainer, TrainingArguments
from making import adapted
MODEL = "Qwen/Qwen2.5-0.5B"
model = adapted(MODEL)
args = TrainingArguments("out", {ARGUMENTS.replace(", max_length=512", "")})
Trainer(model=model, args=args, train_dataset=rows).train()
"""


def test_what_a_module_does_where_it_is_started_itself_is_not_done(tmp_path: Path) -> None:
    (tmp_path / "making.py").write_text(MODULE)
    found = job(tmp_path / "train.py", STARTED)
    assert (found.model.name, found.method.rank) == ("Qwen/Qwen2.5-0.5B", 16)


def test_arguments_that_a_class_of_settings_holds_are_read(tmp_path: Path) -> None:
    (tmp_path / "settings.py").write_text(
        'class Config:\n    ARGUMENTS = {"per_device_train_batch_size": 3, "num_train_epochs": 2}\n'
    )
    (tmp_path / "making.py").write_text(MODULE)
    text = STARTED.replace("MODEL =", "from settings import Config\nMODEL =")
    text = text.replace(ARGUMENTS.replace(", max_length=512", ""), "**Config.ARGUMENTS")
    found = job(tmp_path / "train.py", text)
    assert (found.today.micro_batch_size, found.epochs) == (3, 2.0)


HANDED = f"""\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
def trained(model, rows):
    args = TrainingArguments("out", {ARGUMENTS.replace(", max_length=512", "")})
    trainer = Trainer(model=model, args=args, train_dataset=rows)
    trainer.train()
def again(path):
    return AutoModelForCausalLM.from_pretrained(path)
"""


def test_a_model_that_a_function_is_handed_may_have_adapters(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="how it is trained"):
        job(tmp_path / "train.py", HANDED)
    found = job(tmp_path / "train.py", HANDED + 'trained(again("Qwen/Qwen2.5-0.5B"), rows)\n')
    assert not found.method.is_lora


BY_TRL = """\
from trl import ModelConfig, ScriptArguments, SFTConfig, SFTTrainer, TrlParser, get_peft_config
script, config, model = TrlParser((ScriptArguments, SFTConfig, ModelConfig)).parse_args_and_config()
SFTTrainer(model=model.model_name_or_path, args=config, peft_config=get_peft_config(model)).train()
"""
YAML = """\
model_name_or_path: Qwen/Qwen2.5-0.5B
per_device_train_batch_size: 2
max_length: 512
num_train_epochs: 1
"""


def test_trls_own_arguments_put_no_adapter_on_unless_they_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(BY_TRL)
    for more, lora in (("", False), ("use_peft: true\n", True)):
        (tmp_path / "sft.yaml").write_text(YAML + more)
        (found,) = jobs_of_command("python train.py --config sft.yaml", OVERRIDES)
        assert found.job.method.is_lora == lora
    with pytest.raises(InputError) as error:
        load_jobs(tmp_path / "train.py", OVERRIDES)
    assert "train.py --config FILE.yaml" in str(error.value.hint)


def test_a_refusal_asks_with_the_scripts_own_defaults(tmp_path: Path) -> None:
    batch = 'per_device_train_batch_size=config.get("batch", 6)'
    epochs = 'num_train_epochs=int(getattr(config, "epochs", 2))'
    text = BY_NAME.replace("{}", '"Qwen/Qwen2.5-0.5B"').replace(
        "SFTTrainer(", "def run(config):\n SFTTrainer("
    )
    text = text.replace("per_device_train_batch_size=2, num_train_epochs=1", f"{batch}, {epochs}")
    with pytest.raises(InputError) as error:
        job(tmp_path / "train.py", text)
    hint = str(error.value.hint)
    assert "(its own defaults) --set micro_batch_size=6 --set train.epochs=2" in hint
    sets = {"micro_batch_size": "6", "train.epochs": "2"}
    found = job(tmp_path / "train.py", text, Overrides(("h100",), stated={"data.rows": 1000},
                                                       set_values=sets))  # fmt: skip
    assert (found.today.micro_batch_size, found.epochs) == (6, 2.0)


def test_a_script_without_arguments_is_told_which_one_makes_them(tmp_path: Path) -> None:
    (tmp_path / "training.py").write_text(STARTED)
    with pytest.raises(InputError) as error:
        job(tmp_path / "making.py", MODULE)
    assert str(tmp_path / "training.py") in str(error.value.hint)
    (tmp_path / "another.py").write_text(STARTED)  # of two it is not known which
    with pytest.raises(InputError) as error:
        job(tmp_path / "making.py", MODULE)
    assert "training.py" not in str(error.value.hint)


def test_a_loop_of_its_own_beside_a_trainer_is_said(tmp_path: Path) -> None:
    text = BY_NAME.replace("{}", '"Qwen/Qwen2.5-0.5B"')
    assert "backward" not in warnings(job(tmp_path / "train.py", text))
    loop = "for row in rows:\n    model(row).loss.backward()\n    optimizer.step()\n"
    assert "another training on line 9" in warnings(job(tmp_path / "train.py", text + loop))


TRIED = f"""\
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
print(model.generate(**question))
few = BitsAndBytesConfig(load_in_4bit=True)
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", quantization_config=few)
SFTTrainer(
    model=model, args=SFTConfig("out", {ARGUMENTS}), train_dataset=rows,
    peft_config=LoraConfig(r=8, target_modules=["q_proj"]),
).train()
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B")
"""


def test_what_a_notebook_loads_to_try_out_is_not_what_it_trains(tmp_path: Path) -> None:
    assert job(tmp_path / "train.py", TRIED).method.base == "nf4"
    plain = TRIED.replace("SFTTrainer(\n    model=model", "SFTTrainer(\n    model=other")
    assert "load_in_4bit" not in parse_script(plain, "train.py").values


def test_a_slice_with_underscores_is_as_many_rows(tmp_path: Path) -> None:
    text = TRIED.replace("train_dataset=rows", "train_dataset=rows.select(range(5_000))")
    with pytest.raises(InputError) as error:
        job(tmp_path / "train.py", text, Overrides(("h100",)))
    assert "--rows 5000" in str(error.value.hint)
    two = text + "rows.select(range(200))\n"  # of two it is not known which
    with pytest.raises(InputError) as error:
        job(tmp_path / "train.py", two, Overrides(("h100",)))
    assert "--rows N" in str(error.value.hint)


def test_epochs_that_are_minus_one_beside_steps_are_not_asked_for(tmp_path: Path) -> None:
    text = TRIED.replace("num_train_epochs=1", "num_train_epochs=-1, max_steps=20")
    assert job(tmp_path / "train.py", text).steps == 20
    with pytest.raises(InputError, match="from 0 on"):
        job(tmp_path / "train.py", TRIED.replace("num_train_epochs=1", "num_train_epochs=-1"))
