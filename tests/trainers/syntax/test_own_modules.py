"""Settings that reach a trainer through a script's own modules, classes, functions and mappings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import load_jobs
from autotune.app.runs.user_file import patched
from autotune.domain.errors import InputError
from tests.strangers import asked, today, warnings

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

QWEN = "Qwen/Qwen2.5-0.5B"
IMPORTS = """\
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
"""
CONSTANTS = f"""\
BASE = "{QWEN}"
RANK, LAYERS = 24, ["q_proj", "v_proj"]
ADAPTER_RANK = 24
MICRO = 3
"""
OF_CONSTANTS = f"""\
{IMPORTS}from shared import ADAPTER_RANK, BASE, MICRO
model = AutoModelForCausalLM.from_pretrained(BASE)
model = get_peft_model(model, LoraConfig(r=ADAPTER_RANK, target_modules=["q_proj"]))
rows = rows.map(lambda row: tokenizer(row["text"], truncation=True, max_length=256))
args = TrainingArguments("out", per_device_train_batch_size=MICRO, num_train_epochs=1)
Trainer(model=model, args=args, train_dataset=rows).train()
"""
CLASSES = f"""\
from dataclasses import dataclass, field

@dataclass
class Base:
    model_name: str = "{QWEN}"
    longest: int = 384

@dataclass
class Adapter:
    r: int = 12
    layers: list = field(default_factory=lambda: ["k_proj", "v_proj"])

@dataclass
class Passes:
    micro: int = 2
    optim: str = "adamw_8bit"
    epochs: int = 2

@dataclass
class Settings:
    model: Base = field(default_factory=Base)
    adapter: Adapter = field(default_factory=Adapter)
    passes: Passes = field(default_factory=Passes)
"""
OF_CLASSES = f"""\
import argparse
{IMPORTS}from src.settings import Settings

def typed(args):
    cfg = Settings()
    if args.model:
        cfg.model.model_name = args.model
    if args.rank is not None:
        cfg.adapter.r = args.rank
    if args.optim:
        cfg.passes.optim = args.optim
    return cfg

def load(cfg):
    model = AutoModelForCausalLM.from_pretrained(cfg.model.model_name)
    return get_peft_model(model, LoraConfig(r=cfg.adapter.r, target_modules=cfg.adapter.layers))

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=None)
    parser.add_argument("--rank", type=int, default=None)
    parser.add_argument("--optim", default=None)
    cfg = typed(parser.parse_args())
    rows = data.map(lambda row: tokenizer(row, truncation=True, max_length=cfg.model.longest))
    args = TrainingArguments(
        "out", per_device_train_batch_size=cfg.passes.micro, num_train_epochs=cfg.passes.epochs,
        optim=cfg.passes.optim)
    Trainer(model=load(cfg), args=args, train_dataset=rows).train()

if __name__ == "__main__":
    main()
"""
YAML = f"""\
base: {{name: {QWEN}, bits: true}}
adapter: {{rank: 20, layers: [q_proj, o_proj]}}
run: {{micro: 2, again: 4, epochs: 1, save_steps: 70, longest: 320}}
"""
BUILDER = f"""\
{IMPORTS}
def bits_of(base):
    return BitsAndBytesConfig(load_in_4bit=bool(base["bits"]))

def build(base, adapter):
    model = AutoModelForCausalLM.from_pretrained(base["name"], quantization_config=bits_of(base))
    model = prepare_model_for_kbit_training(model)
    return get_peft_model(
        model, LoraConfig(r=int(adapter["rank"]), target_modules=list(adapter["layers"])))
"""
OF_YAML = """\
import argparse
import yaml
from transformers import Trainer, TrainingArguments
from src.model import build

def _load(path):
    with open(path) as file:
        return yaml.safe_load(file)

def arguments(run, most):
    made: dict = {
        "output_dir": "out",
        "per_device_train_batch_size": int(run["micro"]),
        "gradient_accumulation_steps": int(run.get("again", 1)),
        "num_train_epochs": int(run["epochs"]),
        "save_steps": run["save_steps"],
    }
    if most is not None:
        made["max_steps"] = int(most)
    return TrainingArguments(**made)

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default="configs/run.yaml")
    parser.add_argument("--set", nargs="*", default=[])
    parser.add_argument("--most", type=int, default=None)
    args = parser.parse_args()
    cfg = apply_overrides(load_config(args.config), args.set)
    run = cfg["run"]
    rows = data.map(lambda row: tokenizer(row, truncation=True, max_length=cfg["run"]["longest"]))
    model = build(cfg["base"], cfg["adapter"])
    Trainer(model=model, args=arguments(run=run, most=args.most), train_dataset=rows).train()
"""


def written(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def read(folder: Path, name: str, gpu: str = "h100", **more: str) -> Job:
    return load_jobs(folder / name, asked(gpu, **more))[0].job


def test_constants_of_a_module_are_what_it_binds_them_to(tmp_path: Path) -> None:
    written(tmp_path, {"train.py": OF_CONSTANTS, "shared.py": CONSTANTS})
    found = read(tmp_path, "train.py")
    assert (found.model.name, found.method.rank, today(found).micro_batch_size) == (QWEN, 24, 3)
    wanted = today(found).with_knobs(num_dataloader_workers=2)
    again = patched("same", found, found.offers[0], wanted)
    assert "dataloader_num_workers=2" in again.text
    assert (tmp_path / "shared.py").read_text() == CONSTANTS


def test_a_name_that_the_script_binds_itself_is_not_its_modules(tmp_path: Path) -> None:
    own = OF_CONSTANTS.replace("model = Auto", "MICRO = 5\nmodel = Auto").replace(", MICRO\n", "\n")
    written(tmp_path, {"train.py": own, "shared.py": CONSTANTS})
    assert today(read(tmp_path, "train.py")).micro_batch_size == 5


def test_classes_of_classes_count_where_no_option_is_typed(tmp_path: Path) -> None:
    written(tmp_path, {"train.py": OF_CLASSES, "src/settings.py": CLASSES})
    found = read(tmp_path, "train.py")
    assert (found.model.name, found.method.rank, found.epochs) == (QWEN, 12, 2.0)
    assert found.method.targets == ("k_proj", "v_proj")
    assert (today(found).optimizer, today(found).micro_batch_size) == ("adamw_bnb_8bit", 2)


def test_an_option_that_is_typed_is_set_on_the_class(tmp_path: Path) -> None:
    start = "python train.py --rank 40 --optim adamw_torch\n"
    written(tmp_path, {"train.py": OF_CLASSES, "src/settings.py": CLASSES, "go.sh": start})
    found = read(tmp_path, "go.sh")
    assert (found.method.rank, today(found).optimizer) == (40, "adamw_torch")


@pytest.mark.parametrize(
    ("typed", "micro", "again"),
    [("", 2, 4), (" --set run.micro=6", 6, 4), (" --set run.micro=6 run.again=1", 6, 1)],
)
def test_a_file_of_settings_goes_through_functions_and_a_mapping(
    tmp_path: Path, typed: str, micro: int, again: int
) -> None:
    start = f"python -m src.train --config configs/run.yaml{typed}\n"
    written(tmp_path, {
        "src/train.py": OF_YAML, "src/model.py": BUILDER, "configs/run.yaml": YAML,
        "scripts/go.sh": start,
    })  # fmt: skip
    found = read(tmp_path, "scripts/go.sh")
    assert (found.model.name, found.method.base, found.method.rank) == (QWEN, "nf4", 20)
    assert found.method.targets == ("q_proj", "o_proj")
    assert (today(found).micro_batch_size, today(found).gradient_accumulation_steps) == (
        micro, again,
    )  # fmt: skip
    assert today(found).checkpoint_every_steps == 70
    assert today(found).activation_checkpointing == "full"  # as what prepares the base switches on
    assert "branch" not in warnings(found)


def test_a_launchers_config_counts_beside_a_programs_own_settings(tmp_path: Path) -> None:
    accelerate = "distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: bf16\n"
    start = (
        "accelerate launch --config_file configs/two.yaml src/train.py --config configs/run.yaml\n"
    )
    written(tmp_path, {
        "src/train.py": OF_YAML, "src/model.py": BUILDER, "configs/run.yaml": YAML,
        "configs/two.yaml": accelerate, "go.sh": start,
    })  # fmt: skip
    found = read(tmp_path, "go.sh", "h100:2")
    assert (found.offers[0].count, found.global_batch_size) == (2, 2 * 4 * 2)
    assert today(found).sharding == "ddp"


def test_a_mapping_that_something_else_changes_is_not_known(tmp_path: Path) -> None:
    more = "    made.update(more)\n    return TrainingArguments"
    changed = OF_YAML.replace("    return TrainingArguments", more)
    written(tmp_path, {
        "src/train.py": changed, "src/model.py": BUILDER, "configs/run.yaml": YAML,
    })  # fmt: skip
    with pytest.raises(InputError, match=r"\*\* must be written out"):
        read(tmp_path, "src/train.py")


def test_a_function_that_is_called_twice_says_nothing(tmp_path: Path) -> None:
    other = '    build({"name": "other"}, {})\n    model = build('
    twice = OF_YAML.replace("    model = build(", other)
    written(tmp_path, {
        "src/train.py": twice, "src/model.py": BUILDER, "configs/run.yaml": YAML,
    })  # fmt: skip
    with pytest.raises(InputError, match="lora_r must be written out"):
        read(tmp_path, "src/train.py")


def test_evaluation_that_is_given_times_and_not_switched_on_stays_off(tmp_path: Path) -> None:
    text = OF_CONSTANTS.replace("num_train_epochs=1", "num_train_epochs=1, eval_steps=20")
    written(tmp_path, {"train.py": text, "shared.py": CONSTANTS})
    assert read(tmp_path, "train.py").evaluation is None
    on = text.replace("eval_steps=20", 'eval_steps=20, eval_strategy="steps"')
    written(tmp_path, {"train.py": on})
    assert read(tmp_path, "train.py").evaluation is not None


IN_A_SHELL = """\
#!/bin/bash
#SBATCH --gres=gpu:1
CONFIG=${CONFIG:-configs/run.yaml}
singularity exec --nv --bind "$PWD:/work" image.sif bash -c "cd /work && python src/train.py \\
    --config $CONFIG"
"""


def test_a_command_that_another_shell_is_handed_is_read(tmp_path: Path) -> None:
    written(tmp_path, {
        "src/train.py": OF_YAML, "src/model.py": BUILDER, "configs/run.yaml": YAML,
        "job.sbatch": IN_A_SHELL,
    })  # fmt: skip
    found = read(tmp_path, "job.sbatch")
    assert (found.method.rank, found.global_batch_size) == (20, 8)


@pytest.mark.parametrize("root", ["~/another", "/root/of/it", "/root/of/it/another"])
def test_a_file_at_home_on_another_machine_is_found_by_the_end_of_its_name(
    tmp_path: Path, root: str
) -> None:
    start = f"python {root}/src/train.py --config {root}/configs/run.yaml\n"
    written(tmp_path, {
        "src/train.py": OF_YAML, "src/model.py": BUILDER, "configs/run.yaml": YAML,
        "scripts/go.sh": start,
    })  # fmt: skip
    assert read(tmp_path, "scripts/go.sh").method.rank == 20


def test_a_name_alone_is_no_end_of_a_path(tmp_path: Path) -> None:
    written(tmp_path, {
        "run.yaml": YAML, "scripts/go.sh": "python -m trl.sft --config /elsewhere/run.yaml\n",
    })  # fmt: skip
    with pytest.raises(InputError, match="no such file is found"):
        read(tmp_path, "scripts/go.sh")


@pytest.mark.parametrize("line", ["%env WANDB_PROJECT=rows", "!pip install -q trl", "    %time"])
def test_what_a_notebook_hands_its_shell_does_nothing_in_a_script(
    tmp_path: Path, line: str
) -> None:
    written(tmp_path, {
        "train.py": f"if True:\n    pass\n{line}\n{OF_CONSTANTS}", "shared.py": CONSTANTS,
    })  # fmt: skip
    assert read(tmp_path, "train.py").method.rank == 24


def test_litgpt_behind_srun_has_the_folder_and_the_defaults_of_litgpt(tmp_path: Path) -> None:
    start = f"srun litgpt finetune_lora checkpoints/{QWEN} --data Alpaca --train.epochs 2\n"
    written(tmp_path, {"go.sh": start})
    found = read(tmp_path, "go.sh")
    assert (found.model.name, found.method.rank, found.epochs) == (QWEN, 8, 2.0)


@pytest.mark.parametrize(
    "source",
    ["source settings.sh", ". scripts/settings.sh", 'source "$(dirname "$0")/settings.sh"'],
)
def test_variables_of_a_file_that_a_script_sources_are_read(tmp_path: Path, source: str) -> None:
    start = f"{source}\npython train.py --model_name_or_path {QWEN} --use_peft False "
    flags = "--num_train_epochs $PASSES --per_device_train_batch_size $MICRO --optim $OPTIM\n"
    written(tmp_path, {
        "scripts/go.sh": f"MICRO=5\n{start}{flags}",
        "scripts/settings.sh": "PASSES=2\nMICRO=7\nOPTIM=adamw_torch\n",
    })  # fmt: skip
    found = read(tmp_path, "scripts/go.sh")
    assert (found.epochs, today(found).micro_batch_size, today(found).optimizer) == (
        2.0, 5, "adamw_torch",
    )  # fmt: skip


def test_a_variable_that_nothing_binds_is_asked_for(tmp_path: Path) -> None:
    start = f"source gone.sh\npython train.py --model_name_or_path {QWEN} --num_train_epochs $N\n"
    written(tmp_path, {"go.sh": start})
    with pytest.raises(InputError, match=r"leaves open --num_train_epochs \$N"):
        read(tmp_path, "go.sh")


LOADER = """\
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

def build(name, adapters=False, four=False, wide=False):
    how = {"dtype": dtype_of(wide)}
    if four:
        how["quantization_config"] = BitsAndBytesConfig(load_in_4bit=True)
    model = AutoModelForCausalLM.from_pretrained(name, **how)
    if adapters:
        model = get_peft_model(model, LoraConfig(r=48, target_modules=["k_proj"]))
    return model

def build_second(name):
    return AutoModelForCausalLM.from_pretrained(name)

def build_model(name, adapters=False, four=False):
    return build(name, adapters, four)
"""
OPTIONS = """\
from dataclasses import dataclass
from transformers import TrainingArguments as Theirs

@dataclass
class Arguments(Theirs):
    adapters: bool = False
    four: bool = False
    pairs: bool = False
"""
BY_FLAGS = """\
from transformers import HfArgumentParser, Trainer
from loader import build, build_second
from options import Arguments
from pairs import DPOTrainer

def main():
    (args,) = HfArgumentParser((Arguments,)).parse_args_into_dataclasses()
    model = build(args.model_name_or_path, args.adapters, args.four)
    if args.pairs:
        trainer = DPOTrainer(model=model, args=args, reference_model=build_second(args.reference))
    else:
        trainer = Trainer(model=model, args=args)
    trainer.train()

main()
"""


def by_flags(folder: Path, flags: str) -> Job:
    files = {"loader.py": LOADER, "options.py": OPTIONS, "train.py": BY_FLAGS}
    sizes = "--per_device_train_batch_size 2 --num_train_epochs 1 --model_max_length 256"
    shell = f"python train.py --model_name_or_path {QWEN} {sizes} {flags}\n"
    written(folder, {**files, "run.sh": shell})
    return read(folder, "run.sh")


def test_a_program_of_flags_has_the_adapters_that_its_own_module_puts_on(tmp_path: Path) -> None:
    found = by_flags(tmp_path, "--adapters true --pairs false")
    assert (found.method.rank, found.method.targets) == (48, ("k_proj",))
    assert found.method.base == "16bit"
    assert found.objective == "sft"
    assert "dtype computed" in warnings(found)


def test_a_flag_of_its_own_classes_chooses_the_pairs_and_their_second_model(tmp_path: Path) -> None:
    found = by_flags(tmp_path, "--adapters true --pairs true")
    assert found.objective == "dpo"
    assert "ref_model" in warnings(found)


PLAIN_YAML = f"""\
model_name_or_path: {QWEN}
max_steps: 9000
bf16: true
lora_r: 64
rate: 1.0e-4
per_device_train_batch_size: 7
"""
TAKES_SOME = """\
import sys, yaml
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

def main(path):
    cfg = yaml.safe_load(open(path))
    model = AutoModelForCausalLM.from_pretrained(cfg["model_name_or_path"])
    args = SFTConfig(per_device_train_batch_size=3, num_train_epochs=2, max_length=512,
                     learning_rate=cfg["rate"], bf16=cfg["bf16"])
    SFTTrainer(model=model, args=args).train()

main(sys.argv[1])
"""


def test_of_a_programs_own_settings_only_what_it_takes_out_counts(tmp_path: Path) -> None:
    start = "accelerate launch --num_processes 1 train.py conf.yaml\n"
    written(tmp_path, {"conf.yaml": PLAIN_YAML, "train.py": TAKES_SOME, "run.sh": start})
    found = read(tmp_path, "run.sh", **{"method.kind": "full"})
    assert today(found).micro_batch_size == 3
    assert found.steps == -(-1000 // 3) * 2


UNSLOTH = """\
%s
from unsloth import FastLanguageModel
from trl import SFTConfig, SFTTrainer
model, tok = FastLanguageModel.from_pretrained("unsloth/Qwen2.5-0.5B", max_seq_length=512)
model = FastLanguageModel.get_peft_model(model, r=16, target_modules=["q_proj"])
SFTTrainer(model=model, args=SFTConfig(max_steps=60)).train()
"""


def test_arguments_that_unsloth_has_in_the_place_of_trls_have_its_defaults(tmp_path: Path) -> None:
    written(tmp_path, {"a.py": UNSLOTH % "", "b.py": UNSLOTH % "from trl import SFTConfig"})
    first, late = today(read(tmp_path, "a.py")), today(read(tmp_path, "b.py"))
    assert (first.micro_batch_size, first.gradient_accumulation_steps) == (4, 2)
    assert first.optimizer == "adamw_bnb_8bit"
    assert (late.micro_batch_size, late.optimizer) == (8, "adamw_torch_fused")


DOWNLOADED = f"""\
from modelscope import snapshot_download
from peft import PeftModel
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
folder = snapshot_download("{QWEN}", revision="master")
model = AutoModelForCausalLM.from_pretrained(folder)
args = TrainingArguments("out", per_device_train_batch_size=2, num_train_epochs=1, fp16=%s)
model = PeftModel.from_pretrained(model, "before", is_trainable=True)
rows = rows.map(lambda row: tokenizer(row["text"], truncation=True, max_length=256))
Trainer(model=model, args=args).train()
"""


def test_a_model_that_is_downloaded_first_is_the_one_that_is_named(tmp_path: Path) -> None:
    written(tmp_path, {"train.py": DOWNLOADED % "False"})
    with pytest.raises(InputError, match="lora_r must be written out"):  # of an adapter before
        read(tmp_path, "train.py")
    found = read(tmp_path, "train.py", **{"method.rank": "24"})
    assert (found.model.name, found.method.is_lora, found.method.rank) == (QWEN, True, 24)
    assert "lora_target_modules" in warnings(found)
