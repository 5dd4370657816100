"""Programs that people wrote themselves: whose flags and settings are read, and whose are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import load_jobs
from autotune.app.runs.user_file import patched
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides
from autotune.trainers.syntax.shell_words import computed_text
from tests.strangers import asked, command, file, warnings

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

QWEN = "Qwen/Qwen2.5-0.5B"
START = f"python train.py --model_name_or_path {QWEN} --num_train_epochs 1 --use_peft False"
SCRIPT = f"""\
from transformers import AutoModelForCausalLM, TrainingArguments, Trainer
model = AutoModelForCausalLM.from_pretrained("{QWEN}")
args = TrainingArguments("out", per_device_train_batch_size=2, num_train_epochs=1, %s)
Trainer(model=model, args=args, train_dataset=rows).train()
"""


@pytest.mark.parametrize(
    "text",
    [
        "deepspeed --module openrlhf.cli.train_sft --train.micro_batch_size 4 --data.max_len 2048",
        "python -m train.sample llama --num_epochs 1 --batch_size 16 --base_model x",
        "torchrun finetune.py --micro_batch_size 2 --global_batch_size 64 --seq_length 4096",
    ],
)
def test_flags_of_another_program_are_no_file_of_a_trainer(text: str) -> None:
    with pytest.raises(InputError, match=r"holds no flags of|whose words are not read"):
        command(text)


@pytest.mark.parametrize(
    "text",
    [
        f"base_model: {QWEN}\nnum_epochs: 3\nlora:\n  rank: 8\ntraining:\n  batch_size: 20\n",
        f"stage: sft\nfinetuning_type: lora\nmodel_name_or_path: {QWEN}\nhyper:\n  epochs: 3\n",
    ],
)
def test_settings_in_sections_of_their_own_are_no_file_of_a_trainer(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(InputError, match="neither a job file nor a trainer's file"):
        file(tmp_path / "config.yaml", text)


def test_a_class_of_the_programs_own_is_not_trls_of_the_same_name(tmp_path: Path) -> None:
    text = "from rewards import RewardConfig\ncheck(RewardConfig(correct=1.0))\n"
    with pytest.raises(InputError, match="holds no TrainingArguments"):
        file(tmp_path / "reward.py", text)


@pytest.mark.parametrize("told", ['model="Qwen/Qwen3-0.6B"', '"Qwen/Qwen3-0.6B"'])
def test_a_trainer_without_arguments_is_told_how_to_say_its_defaults(
    tmp_path: Path, told: str
) -> None:
    bare = f"from trl import SFTTrainer\nSFTTrainer({told}, train_dataset=rows).train()\n"
    with pytest.raises(InputError, match="without arguments") as refused:
        file(tmp_path / "quick.py", bare)
    assert 'args=SFTConfig(output_dir="out")' in str(refused.value.hint)
    said = bare.replace("train_dataset", 'args=SFTConfig(output_dir="out"), train_dataset')
    said = said.replace("import SFTTrainer", "import SFTConfig, SFTTrainer")
    assert file(tmp_path / "said.py", said)


def test_arguments_that_are_made_elsewhere_are_not_said_to_be_none(tmp_path: Path) -> None:
    text = "from trl import SFTTrainer\nimport mine\nSFTTrainer(model, args=mine.made()).train()\n"
    with pytest.raises(InputError, match="holds no TrainingArguments"):
        file(tmp_path / "made.py", text)


def test_a_class_made_of_trls_with_a_trainings_sizes_is_read(tmp_path: Path) -> None:
    text = SCRIPT.replace("TrainingArguments, ", "") % "bf16=True"
    text = "from alignment import TrainingArguments\n" + text
    assert file(tmp_path / "train.py", text).today.micro_batch_size == 2  # type: ignore[union-attr]


def test_arguments_without_sizes_and_without_a_training_are_refused(tmp_path: Path) -> None:
    text = 'from transformers import TrainingArguments\nargs = TrainingArguments("dummy")\n'
    with pytest.raises(InputError, match=r"calls no train\(\)"):
        file(tmp_path / "infer.py", text)


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("args, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n",
         "takes its arguments as flags", "--from-args"),
        ("HuggingFace(entry_point='train.py', hyperparameters={'epochs': 1}).fit()\n",
         "starts another script on SageMaker", "entry_point"),
    ],
)  # fmt: skip
def test_a_script_without_arguments_says_what_to_give(
    tmp_path: Path, text: str, said: str, hint: str
) -> None:
    with pytest.raises(InputError, match=said) as refused:
        file(tmp_path / "launch.py", text)
    assert hint in str(refused.value.hint)


@pytest.mark.parametrize("name", ["AutoModelForSeq2SeqLM", "AutoModelForMaskedLM"])
def test_an_encoder_is_refused_by_its_class(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="trains an encoder"):
        file(tmp_path / "t5.py", SCRIPT.replace("AutoModelForCausalLM", name) % "bf16=True")


def test_a_computed_setting_that_decides_is_said_first_and_widens(tmp_path: Path) -> None:
    sure = file(tmp_path / "a.py", SCRIPT % "gradient_checkpointing=False")
    unsure = file(tmp_path / "b.py", SCRIPT % "gradient_checkpointing=choose(model)")
    assert "gradient_checkpointing computed" in warnings(unsure)
    assert unsure.uncounted_sd > sure.uncounted_sd == (0.0, 0.0)


def test_a_functions_default_counts_where_calls_state_only_what_stands_before_it(
    tmp_path: Path,
) -> None:
    text = SCRIPT % "bf16=True"
    cut = (
        "def tokenize(rows, tokenizer, max_length=512):\n"
        "    return tokenizer(rows, truncation=True, max_length=max_length)\n"
    )
    found = file(tmp_path / "a.py", cut + "rows = tokenize(load(), tok)\n" + text)
    assert found.max_length == 512
    other = file(tmp_path / "b.py", cut + "rows = tokenize(load(), tok, 256)\n" + text)
    assert other.max_length != 512


@pytest.mark.parametrize(
    ("flags", "accumulation", "length", "attention"),
    [
        ("--batch_size 2 --grad_accum 16 --max_length 512", 16, 512, "sdpa"),
        ("--batch_size 2 --gradient_accumulation 4 --response_max_length 2048 --flash_attention_2",
         4, 2048, "flash_attention_2"),
        ("--batch_size 2 --max_source_length 384 --max_target_length 128", 1, 512, "sdpa"),
    ],
)  # fmt: skip
def test_a_programs_own_names_of_sizes_are_read(
    flags: str, accumulation: int, length: int, attention: str
) -> None:
    found = command(f"{START} {flags}")
    today = found.today
    assert (today.micro_batch_size, today.gradient_accumulation_steps) == (2, accumulation)
    assert (found.max_length, today.attention) == (length, attention)


def test_a_programs_own_epochs_and_targets_are_read() -> None:
    found = command(
        f"python train.py --model_name_or_path {QWEN} --per_device_train_batch_size 2 --epochs 4 "
        "--lora_rank 8 --trainable q_proj,k_proj --use_4bit True"
    )
    assert (found.epochs, found.method.targets) == (4.0, ("q_proj", "k_proj"))
    assert found.method.base == "nf4"


@pytest.mark.parametrize(
    "flag", ["--offload", "--micro_train_batch_size 1", "--lora_layers 8", "--sequence_parallel"]
)
def test_a_programs_own_flag_that_speaks_of_the_run_warns_and_widens(flag: str) -> None:
    plain = command(f"{START} --per_device_train_batch_size 2")
    found = command(f"{START} --per_device_train_batch_size 2 {flag}")
    assert flag.removeprefix("--").split()[0] in warnings(found)
    assert found.uncounted_sd > plain.uncounted_sd


@pytest.mark.parametrize(
    "flag", ["--lora_path x", "--eval_batch_size 4", "--bnb_4bit_compute_dtype bfloat16"]
)
def test_a_programs_own_flag_of_files_or_evaluation_widens_nothing(flag: str) -> None:
    assert command(f"{START} --per_device_train_batch_size 2 {flag}").uncounted_sd == (0.0, 0.0)


@pytest.mark.parametrize(("share", "every"), [("0.25", 25), ("50", 50)])
def test_saves_by_a_share_of_the_run_are_that_many(share: str, every: int) -> None:
    found = command(f"{START} --per_device_train_batch_size 10 --save_steps {share}")
    assert (found.steps, found.today.checkpoint_every_steps) == (100, every)


def test_a_share_that_is_less_than_a_step_is_every_step() -> None:
    flags = "--per_device_train_batch_size 10 --save_steps 5e-324"
    assert command(f"{START} {flags}").today.checkpoint_every_steps == 1


def test_saves_and_evaluations_below_nought_are_never() -> None:
    flags = "--per_device_train_batch_size 10 --save_steps -1 --eval_steps -1"
    assert command(f"{START} {flags}").evaluation is None


def test_packing_wins_over_grouping_by_length_and_says_so(tmp_path: Path) -> None:
    text = (
        f"base_model: {QWEN}\nsequence_len: 512\nmicro_batch_size: 1\nnum_epochs: 1\n"
        "sample_packing: true\ngroup_by_length: true\nflash_attention: true\n"
        "datasets: [{path: a, type: alpaca}]\n"
    )
    found = file(tmp_path / "a.yaml", text)
    assert (found.today.packing, found.today.length_grouping) == ("on", "off")
    assert any(each.key == "length grouping" for each in found.assumed)


def test_rays_workers_are_the_devices_of_llama_factorys_file(tmp_path: Path) -> None:
    text = (
        f"model_name_or_path: {QWEN}\nstage: sft\nfinetuning_type: lora\ncutoff_len: 512\n"
        "per_device_train_batch_size: 1\ngradient_accumulation_steps: 8\nray_num_workers: 4\n"
    )
    found = file(tmp_path / "a.yaml", text)
    assert (found.offers[0].count, found.global_batch_size) == (4, 32)


SBATCH = f"""\
#!/bin/bash
#SBATCH --job-name=sft
#SBATCH --time=01:00:00
echo "python train.py --num_train_epochs 9"
if [ ! -f data/train.json ]; then rm -f train.yaml; fi
TOTAL=64
PER_GPU=2
GPUS=4
ACCUMULATION=$(($TOTAL/PER_GPU/GPUS))
torchrun --nproc-per-node=$GPUS --module training.train \\
    --model_name_or_path {QWEN} --use_peft False --num_train_epochs 1 \\
    --per_device_train_batch_size $PER_GPU --gradient_accumulation_steps $ACCUMULATION
"""


@pytest.mark.parametrize("name", ["run.slurm", "run.sbatch", "run.bash", "run.sh"])
def test_a_schedulers_script_is_read_and_its_sums_are_counted(tmp_path: Path, name: str) -> None:
    found = file(tmp_path / name, SBATCH)
    assert (found.today.gradient_accumulation_steps, found.epochs) == (8, 1.0)
    assert (found.offers[0].count, found.global_batch_size) == (4, 64)


@pytest.mark.parametrize(
    ("text", "value"),
    [("$((128 / (2 * 8)))", "8"), ("$(($A * 2 + 1))", "9"), ("$((A/0))", "$((A/0))"),
     ("$((A / $B))", "$((A / $B))"), ("$((2**99))", "$((2**99))"), ("$(expr $A \\* 2)", "8")],
)  # fmt: skip
def test_a_sum_is_counted_where_every_number_is_known(text: str, value: str) -> None:
    assert computed_text(text, {"A": "4"}) == value


def test_a_command_names_its_file_from_the_root_of_the_repository(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "sft.yaml").write_text(
        f"base_model: {QWEN}\nsequence_len: 512\nmicro_batch_size: 3\nnum_epochs: 1\n"
        "datasets: [{path: a, type: alpaca}]\n"
    )
    found = file(tmp_path / "scripts" / "run.sh", "axolotl train configs/sft.yaml\n")
    assert found.today.micro_batch_size == 3
    with pytest.raises(InputError, match="no such file is found"):
        file(tmp_path / "scripts" / "other.sh", "axolotl train configs/none.yaml\n")


SETTINGS = """\
model: {name: Qwen/Qwen2.5-0.5B, max_seq_length: 768}
lora: {r: 16, target_modules: [q_proj, v_proj]}
training: {num_train_epochs: 2, per_device_train_batch_size: 4, gradient_accumulation_steps: 2}
"""
LOADS = """\
import argparse, yaml
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
def load_config(path):
    return yaml.safe_load(open(path))
def train(config):
    tc = config["training"]
    lora = config.get("lora", {})
    model = AutoModelForCausalLM.from_pretrained(config["model"]["name"])
    args = SFTConfig(
        per_device_train_batch_size=int(tc["per_device_train_batch_size"]),
        gradient_accumulation_steps=tc["gradient_accumulation_steps"],
        num_train_epochs=tc.get("num_train_epochs", 9),
        max_length=config["model"]["max_seq_length"],
    )
    peft = LoraConfig(r=lora["r"], target_modules=lora["target_modules"])
    SFTTrainer(model=model, args=args, peft_config=peft).train()
parser = argparse.ArgumentParser()
parser.add_argument("--config", %s)
parser.add_argument("--epochs", type=int, default=None)
args = parser.parse_args()
config = load_config(args.config)
if args.epochs is not None:
    config["training"]["num_train_epochs"] = args.epochs
train(config)
"""
DEFAULT, REQUIRED = 'default="configs/sft.yaml"', "required=True"


def repository(folder: Path, script: str) -> Path:
    (folder / "configs").mkdir()
    (folder / "configs" / "sft.yaml").write_text(SETTINGS)
    (folder / "src").mkdir()
    (folder / "src" / "train.py").write_text(script)
    return folder / "src" / "train.py"


def says(found: Job) -> tuple[object, ...]:
    today = found.today
    return (found.model.name, found.max_length, found.method.rank, found.epochs,
            today.micro_batch_size, today.gradient_accumulation_steps)  # fmt: skip


def test_the_settings_that_a_script_loads_are_read_where_it_names_their_file(
    tmp_path: Path,
) -> None:
    (found,) = load_jobs(repository(tmp_path, LOADS % DEFAULT), asked())
    assert says(found.job) == (QWEN, 768, 16, 2.0, 4, 2)
    assert any(each.value.endswith("sft.yaml") for each in found.job.assumed)


def test_settings_that_are_named_on_the_command_line_are_taken_by_beside(tmp_path: Path) -> None:
    path = repository(tmp_path, LOADS % REQUIRED)
    with pytest.raises(InputError, match="must be written out") as refused:
        load_jobs(path, asked())
    assert "--beside FILE names the settings" in str(refused.value.hint)
    settings = str(tmp_path / "configs" / "sft.yaml")
    more = Overrides(("h100",), stated={"data.rows": 1000}, beside=(settings,))
    assert says(load_jobs(path, more)[0].job) == (QWEN, 768, 16, 2.0, 4, 2)


def test_a_command_starts_its_script_with_the_settings_that_it_names(tmp_path: Path) -> None:
    repository(tmp_path, LOADS % REQUIRED)
    start = "torchrun --nproc_per_node 2 src/train.py --config configs/sft.yaml\n"
    found = file(tmp_path / "scripts" / "run.sh", start)
    assert says(found) == (QWEN, 768, 16, 2.0, 4, 2)
    assert found.offers[0].count == 2


def test_the_file_of_settings_may_stand_in_a_variable(tmp_path: Path) -> None:
    repository(tmp_path, LOADS % REQUIRED)
    start = 'CONFIG="${1:-configs/sft.yaml}"\npython src/train.py --config_path "${CONFIG}"\n'
    assert says(file(tmp_path / "run.sh", start)) == (QWEN, 768, 16, 2.0, 4, 2)


def test_a_script_of_loaded_settings_is_given_back_with_the_pick_in_it(tmp_path: Path) -> None:
    (found,) = load_jobs(repository(tmp_path, LOADS % DEFAULT), asked())
    today = found.job.today
    wanted = today.with_knobs(micro_batch_size=2, gradient_accumulation_steps=4)
    back = patched("same", found.job, found.job.offers[0], wanted)
    assert "per_device_train_batch_size=2," in back.text
    assert 'num_train_epochs=tc.get("num_train_epochs", 9)' in back.text
    compile(back.text, "train.py", "exec")


def test_a_setting_that_the_script_sets_itself_is_not_the_files(tmp_path: Path) -> None:
    script = (LOADS % DEFAULT).replace("if args.epochs is not None:", "if True:")
    with pytest.raises(InputError, match="num_train_epochs must be written out"):
        load_jobs(repository(tmp_path, script), asked())


LAUNCH = f"""\
    torchrun --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE train.py \\
      --model_name_or_path {QWEN} --use_peft False --num_train_epochs $EPOCHS \\
      --per_device_train_batch_size 2
"""
SKY = f"""\
name: sft
resources: {{accelerators: A100:4, use_spot: true}}
envs: {{EPOCHS: 3, WANDB_API_KEY: }}
setup: pip install trl
run: |
    cd work
{LAUNCH}"""
DSTACK = f"""\
type: task
env: [EPOCHS=3, SKYPILOT_NUM_GPUS_PER_NODE=4, HF_TOKEN]
commands:
  - pip install trl
  - |
{LAUNCH}resources: {{gpu: A100:4}}
"""
KUBERNETES = f"""\
apiVersion: batch/v1
kind: Job
metadata: {{name: sft}}
spec:
  template:
    spec:
      containers:
        - name: train
          image: x
          env: [{{name: EPOCHS, value: "3"}}, {{name: TOKEN, valueFrom: {{}}}}]
          command: [torchrun, --nproc_per_node=4, train.py]
          args: [--model_name_or_path, {QWEN}, --use_peft, "False", --num_train_epochs, "$(EPOCHS)",
                 --per_device_train_batch_size, "2"]
"""


@pytest.mark.parametrize("text", [SKY, DSTACK, KUBERNETES])
def test_a_task_of_an_orchestrator_is_the_script_that_it_runs(tmp_path: Path, text: str) -> None:
    found = file(tmp_path / "task.yaml", text)
    assert (found.today.micro_batch_size, found.epochs) == (2, 3.0)
    assert (found.offers[0].count, found.global_batch_size) == (4, 8)
    assert found.origin.path.endswith("task.sh")


def test_a_task_that_starts_no_training_says_so_by_its_name(tmp_path: Path) -> None:
    text = "resources: {accelerators: A100:1}\nrun: |\n  python serve.py\n"
    with pytest.raises(InputError, match=r"task\.yaml holds 0 launch commands"):
        file(tmp_path / "task.yaml", text)


@pytest.mark.parametrize("name", ["rl.toml", "Makefile", "Dockerfile.train"])
def test_a_file_of_another_kind_is_told_as_one_and_not_as_faulty_yaml(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(InputError, match="which is not read") as refused:
        file(tmp_path / name, "[model]\nname = 1\ntrain:\n\tpython train.py --epochs 1\n")
    assert "--from-args" in str(refused.value.hint)


def test_unsloths_checkpointing_in_a_file_of_ones_own_is_plain_checkpointing() -> None:
    found = command(f"{START} --per_device_train_batch_size 2 --gradient_checkpointing unsloth")
    assert found.today.activation_checkpointing == "full"
