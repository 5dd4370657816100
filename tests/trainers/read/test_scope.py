"""What a file trains is looked at before anything is priced, in every dialect."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from autotune.app.estimate import estimate
from autotune.app.job.load import jobs_of_command, load_jobs
from autotune.app.runs.user_file import check_same
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides
from autotune.trainers.scope import aim_of, settled

if TYPE_CHECKING:
    from pathlib import Path

AXOLOTL = """\
base_model: meta-llama/Llama-3.2-1B
adapter: lora
lora_r: 16
lora_target_linear: true
datasets: [{path: my/rows, type: alpaca}]
sequence_len: 512
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 1
"""
FACTORY = """\
model_name_or_path: Qwen/Qwen2.5-0.5B
finetuning_type: lora
template: qwen
dataset: mine
cutoff_len: 512
per_device_train_batch_size: 1
"""
SEEING = FACTORY.replace("Qwen/Qwen2.5-0.5B", "google/gemma-3-4b-pt")
TUNE = """\
model: {_component_: torchtune.models.llama3_2.lora_llama3_2_1b, lora_rank: 8}
checkpointer: {checkpoint_dir: /tmp/Llama-3.2-1B-Instruct}
batch_size: 2
"""
TUNE_RUN = TUNE + "epochs: 1\noptimizer: {_component_: torch.optim.AdamW}\n"
HF = "model_name_or_path: Qwen/Qwen2.5-0.5B\nper_device_train_batch_size: 2\nmax_length: 512\n"
FLAGS = (
    "--model_name_or_path Qwen/Qwen2.5-0.5B --per_device_train_batch_size 2 --max_steps 9 "
    "--max_length 512\n"
)
SCRIPT = """\
from trl import {0}Config, {0}Trainer
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
args = {0}Config(per_device_train_batch_size=2, max_steps=10, max_length=256)
trainer = {0}Trainer(model=model, args=args)
"""
FILES = {
    "axolotl-grpo.yml": (AXOLOTL + "rl: grpo\n", "reinforcement"),
    "axolotl-vision.yml": (AXOLOTL + "processor_type: AutoProcessor\n", "vision"),
    "axolotl-kd.yml": (AXOLOTL + "kd_trainer: true\n", "distillation"),
    "factory-v1-export.yaml": (
        "{model: Qwen/Qwen3-4B, template: qwen3, export_dir: out, export_size: 5, infer_dtype: x}",
        "merging",
    ),
    "factory-merge.yaml": (FACTORY + "export_dir: out\n", "merging"),
    "factory-predict.yaml": (FACTORY + "stage: sft\ndo_predict: true\n", "evaluation"),
    "factory-vision.yaml": (SEEING + "stage: sft\nimage_max_pixels: 262144\n", "vision"),
    "factory-tower.yaml": (SEEING.replace("4b", "4b-it") + "freeze_vision_tower: true\n", "vision"),
    "tune-eval.yaml": (TUNE + "tasks: [truthfulqa_mc2]\n", "evaluation"),
    "tune-chat.yaml": (TUNE + "max_new_tokens: 300\nprompt: {user: hi}\n", "inference"),
    "tune-kd.yaml": (TUNE_RUN + "kd_ratio: 0.5\n", "distillation"),
    "which.yaml": (HF + "beta: 0.05\nmax_prompt_length: 128\n", "preference"),
    "scored.yaml": (HF + "reward_model_name_or_path: a/b\n", "reinforcement"),
    "cut.yaml": (HF + "prompt_max_length: 128\n", "preference"),
    "sees.yaml": (HF + "image_folder: images\n", "vision"),
    "draws.yaml": (HF + "resolution: 512\n", "diffusion"),
    "t2i.sh": (f"python finetune_t2i.py {FLAGS}", "diffusion"),
    "stage1.sh": (f"python examples/finetune_multi_modal.py {FLAGS}", "vision"),
    "trl-grpo.yaml": (HF + "num_generations: 8\n", "reinforcement"),
    "bco.py": (SCRIPT.format("BCO"), "preference"),
    "grpo.py": (SCRIPT.format("GRPO"), "reinforcement"),
    "vision.py": (SCRIPT.format("SFT") + "c = UnslothVisionDataCollator(model)\n", "vision"),
}  # fmt: skip


PREFERENCES = {
    "axolotl-ipo.yml": (AXOLOTL + "rl: ipo\n", "dpo"),
    "axolotl-simpo.yml": (AXOLOTL + "rl: simpo\n", "orpo"),
    "axolotl-reward.yml": (AXOLOTL + "reward_model: true\n", "reward"),
    "factory-rm.yaml": (FACTORY + "stage: rm\n", "reward"),
    "factory-kto.yaml": (FACTORY + "stage: kto\n", "kto"),
    "factory-simpo.yaml": (FACTORY + "stage: dpo\npref_loss: simpo\n", "orpo"),
    "tune.yaml": (TUNE_RUN + "loss: {_component_: torchtune.rlhf.loss.DPOLoss}\n", "dpo"),
    "handbook.yaml": (HF + "beta: 0.05\noutput_dir: data/zephyr-7b-dpo-full\n", "dpo"),
    "handbook-orpo.yaml": (HF + "beta: 0.05\nmax_prompt_length: 128\n", "orpo"),
    "pairs.py": (SCRIPT.format("DPO"), "dpo"),
    "answers.py": (SCRIPT.format("KTO"), "kto"),
    "run_mistral_orpo.sh": (f"accelerate launch main.py {FLAGS}", "orpo"),
}  # fmt: skip


def given(tmp_path: Path, name: str) -> Path:
    path = tmp_path / name
    path.write_text({**PREFERENCES, **FILES}[name][0])
    return path


def asked(**more: object) -> Overrides:
    return Overrides(("h100",), stated={"data.rows": 100_000}, **more)


@pytest.mark.parametrize("name", FILES)
def test_what_is_not_priced_is_refused_in_the_first_line_with_its_reason(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(InputError) as refused:
        load_jobs(given(tmp_path, name), asked())
    assert FILES[name][1] in refused.value.message
    assert "\n" not in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize("model", ['"Qwen/Qwen2.5-1.5B", ', 'model="Qwen/Qwen2.5-1.5B", '])
@pytest.mark.parametrize("kind", ["GRPO", "Reward", "SFT"])
def test_a_model_that_is_named_to_its_trainer_is_read(
    tmp_path: Path, kind: str, model: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        f"from trl import {kind}Config, {kind}Trainer\n"
        f'args = {kind}Config(output_dir="out", per_device_train_batch_size=4)\n'
        f"{kind}Trainer({model}args=args, train_dataset=rows).train()\n"
    )
    (found,) = load_jobs(path, asked(priced_as=None if kind == "SFT" else "sft"))
    assert found.job.model.name == "Qwen/Qwen2.5-1.5B"


@pytest.mark.parametrize("name", ["axolotl-ipo.yml", "handbook.yaml", "grpo.py"])
def test_as_sft_prices_it_and_says_so_first(tmp_path: Path, name: str) -> None:
    own = {} if name.startswith("axolotl") else {"method.kind": "full"}
    (found,) = load_jobs(given(tmp_path, name), asked(priced_as="sft", set_values=own))
    warnings = estimate(found.job, fidelity="formula").warnings
    assert "priced as supervised fine-tuning" in warnings[0]
    assert found.job.origin
    assert found.job.objective == "sft" != found.job.origin.objective
    assert json.loads(found.job.spec)["origin"]["objective"] == found.job.origin.objective


def test_a_price_as_another_kind_of_training_is_wider(tmp_path: Path) -> None:
    path = given(tmp_path, "axolotl-ipo.yml")
    (other,) = load_jobs(path, asked(priced_as="sft"))
    # Its LoRA kernels are switched on by themselves, but not beside `rl`.
    path.write_text(
        AXOLOTL + "lora_mlp_kernel: false\nlora_qkv_kernel: false\nlora_o_kernel: false\n"
    )
    (plain,) = load_jobs(path, asked())
    wide, own = (estimate(x.job, fidelity="formula").row for x in (other, plain))
    assert wide.duration_s.p50 == pytest.approx(own.duration_s.p50, rel=0.2)
    assert wide.duration_s.p90 > 1.5 * own.duration_s.p90
    assert other.job.uncounted_sd[1] > plain.job.uncounted_sd[1] == 0.0


def test_settings_of_another_kind_of_training_are_not_given_back(tmp_path: Path) -> None:
    (found,) = load_jobs(given(tmp_path, "axolotl-ipo.yml"), asked(priced_as="sft"))
    with pytest.raises(InputError, match="trains dpo, and what was priced is sft"):
        check_same("same", found.job)


def test_what_trains_nothing_cannot_be_priced_as_training(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        load_jobs(given(tmp_path, "tune-eval.yaml"), asked(priced_as="sft"))
    assert "--as" not in str(refused.value.hint)


@pytest.mark.parametrize(
    "command",
    [
        "accelerate launch run_bco.py --model_name_or_path a/b --per_device_train_batch_size 2",
        "trl grpo --model_name_or_path a/b --per_device_train_batch_size 2",
        "python examples/scripts/gkd.py --model_name_or_path a/b --output_dir x",
    ],
)
def test_a_command_is_told_by_its_script(command: str) -> None:
    with pytest.raises(InputError, match="trains"):
        jobs_of_command(command, asked())


@pytest.mark.parametrize("name", PREFERENCES)
def test_a_preference_is_priced_as_what_it_is(tmp_path: Path, name: str) -> None:
    """Pairs take longer than rows, and its own file is given back."""
    own = {} if name.startswith(("axolotl", "factory", "tune")) else {"method.kind": "full"}
    (found,) = load_jobs(given(tmp_path, name), asked(set_values=own))
    assert found.job.objective == PREFERENCES[name][1]
    (plain,) = load_jobs(tmp_path / name, asked(set_values=own, priced_as="sft"))
    one, other = (estimate(x.job, fidelity="formula").row for x in (found, plain))
    assert one.step_time_s > other.step_time_s  # a small model issues kernels most of the time
    assert one.memory_bytes.total >= other.memory_bytes.total
    check_same("same", found.job)


@pytest.mark.parametrize("kind", ["dpo", "kto", "orpo"])
def test_a_file_that_fits_several_preferences_is_priced_as_the_one_that_is_named(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "args.yaml"
    path.write_text(HF + "beta: 0.05\nmax_prompt_length: 128\n")
    own = {"method.kind": "full"}
    with pytest.raises(InputError, match="does not say which kind") as refused:
        load_jobs(path, asked(set_values=own))
    assert f"{kind}" in str(refused.value.hint)
    (found,) = load_jobs(path, asked(set_values=own, priced_as=kind))
    assert found.job.objective == kind


def test_preferences_cannot_be_packed(tmp_path: Path) -> None:
    path = given(tmp_path, "pairs.py")
    own = {"method.kind": "full", "packing": "on"}
    with pytest.raises(InputError, match="packing joins rows"):
        load_jobs(path, asked(set_values=own))


def test_a_name_that_says_sft_as_well_is_a_supervised_file(tmp_path: Path) -> None:
    path = tmp_path / "sft_before_dpo.yaml"
    path.write_text(HF)
    (found,) = load_jobs(path, asked(set_values={"method.kind": "full"}))
    assert found.job.objective == "sft"


@pytest.mark.parametrize(
    "text",
    [AXOLOTL, FACTORY + "stage: sft\nfreeze_vision_tower: true\ndo_train: true\n", TUNE_RUN, HF],
)
def test_supervised_files_pass(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sft.yaml"
    path.write_text(text)
    (found,) = load_jobs(path, asked(set_values={"method.kind": "full"} if text == HF else {}))
    assert found.job.objective == "sft"


def test_continued_pre_training_is_in_scope(tmp_path: Path) -> None:
    path = tmp_path / "pt.yaml"
    path.write_text(FACTORY + "stage: pt\n")
    (found,) = load_jobs(path, asked())
    assert found.job.objective == "pretraining"


@pytest.mark.parametrize("flag", ["--learning_rate 1e-5", "--epoch 3", "--lr 2e-4"])
def test_what_learns_may_generate_when_it_evaluates(flag: str) -> None:
    flags = dict([flag[2:].split()])
    assert aim_of("hf", {**flags, "max_new_tokens": "512"}).objective == "sft"
    assert aim_of("hf", {"max_new_tokens": "512"}).objective == "inference"


def test_a_key_that_is_off_is_no_sign() -> None:
    assert aim_of("axolotl", {"rl": None, "reward_model": False}).objective == "sft"
    assert aim_of("llamafactory", {"export_dir": "x", "do_train": True}).objective == "sft"


def test_as_is_refused_beside_a_job_file_and_for_another_word(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("model: Qwen/Qwen2.5-0.5B\ndata: {rows: 100}\nhardware: [h100]\n")
    with pytest.raises(InputError, match="--as cannot be given"):
        load_jobs(path, Overrides(priced_as="sft"))
    with pytest.raises(InputError, match="reinforcement"):
        settled(aim_of("axolotl", {"rl": "grpo"}), "x", "grpo")
