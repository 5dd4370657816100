"""What strangers' files say in words of their own: read, or said first, or refused with help."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from autotune.app.estimate import estimate
from autotune.app.job.load import jobs_of_command, load_jobs
from autotune.app.runs.user_file import patched, same_export
from autotune.domain.errors import InputError
from tests.strangers import asked, file, today, warnings

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

QWEN = "Qwen/Qwen2.5-0.5B"
ARGUMENTS = {
    "model_name_or_path": QWEN, "per_device_train_batch_size": 2, "num_train_epochs": 1,
    "use_peft": False, "max_length": 512, "packing": False,
}  # fmt: skip
START = f"python train.py --model_name_or_path {QWEN} --num_train_epochs 1"
SCRIPT = f"""\
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, TrainingArguments, Trainer
%s
model = AutoModelForCausalLM.from_pretrained("{QWEN}")
args = TrainingArguments("out", per_device_train_batch_size=2, num_train_epochs=1, bf16=True%s)
Trainer(model=model, args=args, train_dataset=rows).train()
%s
"""


def arguments(path: Path, gpu: str = "h100", **more: object) -> Job:
    return file(path, json.dumps({**ARGUMENTS, **more}), gpu)


def command(text: str) -> Job:
    return jobs_of_command(f"{START} {text}", asked())[0].job


@pytest.mark.parametrize(
    ("flags", "rank", "base", "micro"),
    [
        ("--use_peft --peft_lora_r 4 --per_device_train_batch 3", 4, "16bit", 3),
        ("--lora_r 8 --load_in_bits 4 --train_bsz_per_gpu 2", 8, "nf4", 2),
        ("--lora_r 8 --load_in_bits 8 --batch_size_per_gpu 2", 8, "int8", 2),
        ("--lora_r 8 --use_qlora 1 --bsz_per_device 2", 8, "nf4", 2),
    ],
)
def test_other_names_of_one_setting(flags: str, rank: int, base: str, micro: int) -> None:
    found = command(flags)
    assert (found.method.rank, found.method.base) == (rank, base)
    assert today(found).micro_batch_size == micro


def test_epochs_and_rank_by_their_short_names(tmp_path: Path) -> None:
    settings = {
        "model_name": QWEN, "r": 8, "lora_alpha": 16, "n_epochs": 2, "sequence_len": 640,
        "per_device_train_batch_size": 2, "learning_rate": 1e-4,
    }  # fmt: skip
    found = file(tmp_path / "hyperparameters.json", json.dumps(settings))
    assert (found.method.rank, found.epochs, found.max_length) == (8, 2.0, 640)


def test_a_list_of_targets_as_fire_takes_it() -> None:
    found = command(
        "--lora_r 8 --per_device_train_batch_size 2 --lora_target_modules '[q_proj,k_proj]'"
    )
    assert found.method.targets == ("q_proj", "k_proj")


@pytest.mark.parametrize(
    ("call", "padding"),
    [
        ('tokenizer(text, truncation=True, max_length=256, padding="max_length")', "max_length"),
        ("tokenizer(text, truncation=True, max_length=256, padding=True)", "longest"),
        (
            'tok(a, truncation=True, max_length=256, padding="max_length", return_tensors="pt")',
            "longest",
        ),
    ],
)
def test_rows_that_a_script_fills_up_count_in_full(tmp_path: Path, call: str, padding: str) -> None:
    found = file(tmp_path / "train.py", SCRIPT % (f"rows = [{call} for text in texts]", "", ""))
    assert (found.padding, found.max_length) == (padding, 256)


def test_length_grouping_of_rows_that_are_filled_up_is_left_alone(tmp_path: Path) -> None:
    call = 'rows = tokenizer(texts, truncation=True, max_length=256, padding="max_length")'
    found = file(tmp_path / "train.py", SCRIPT % (call, ", group_by_length=True", ""))
    assert today(found).length_grouping == "off"
    assert "cannot run" not in warnings(found)


def test_of_two_quantisations_in_front_of_the_training_none_is_taken(tmp_path: Path) -> None:
    two = "a = BitsAndBytesConfig(load_in_4bit=True)\nb = BitsAndBytesConfig(load_in_8bit=True)"
    found = file(tmp_path / "train.py", SCRIPT % (two, "", ""))
    assert found.method.base == "16bit"
    assert "load_in_4bit computed" in warnings(found)
    late = "four = BitsAndBytesConfig(load_in_8bit=True)"  # loaded again, to be tried out
    first = "four = BitsAndBytesConfig(load_in_4bit=True)\nlora = LoraConfig(r=8)"
    text = "from peft import LoraConfig\n" + SCRIPT % (first, "", late)
    found = file(tmp_path / "again.py", text.replace('")', '", quantization_config=four)', 1))
    assert found.method.base == "nf4"


def test_a_run_that_saves_nothing_is_priced_so_and_stays_so(tmp_path: Path) -> None:
    saved = arguments(tmp_path / "a.json", save_steps=10)
    never = arguments(tmp_path / "b.json", save_strategy="no")
    assert today(never).checkpoint_every_steps > 10**6
    end = arguments(tmp_path / "c.json", save_steps=-1)
    some, none, once = (estimate(each, fidelity="formula").row for each in (saved, never, end))
    assert none.time_s.checkpoint == none.checkpoints == 0
    assert once.checkpoints == 1
    assert 0 < once.time_s.checkpoint < some.time_s.checkpoint / 10
    made = patched(
        "same", never, never.offers[0], today(never).with_knobs(checkpoint_every_steps=50)
    )
    assert not any(key.startswith("save") for key in made.changes)


def test_an_interval_that_no_run_reaches_is_never_and_is_not_written(tmp_path: Path) -> None:
    found = arguments(tmp_path / "a.json", save_steps=10**11)
    assert today(found).checkpoint_every_steps == 10**9 - 1
    assert "save_steps" not in patched("same", found, found.offers[0], today(found)).changes


def test_a_base_in_few_bits_whose_adapters_are_not_in_the_script_is_asked_for(
    tmp_path: Path,
) -> None:
    four = "four = BitsAndBytesConfig(load_in_4bit=True)"
    text = SCRIPT % (four, "", "")
    with pytest.raises(InputError, match="how it is trained"):
        file(tmp_path / "train.py", text.replace('")', '", quantization_config=four)', 1))


def test_a_limit_of_minus_one_keeps_every_checkpoint(tmp_path: Path) -> None:
    assert arguments(tmp_path / "a.json", save_total_limit=-1).today is not None


@pytest.mark.parametrize(
    "stated",
    [
        {"fsdp": "shard_grad_op auto_wrap"},
        {"fsdp": "full_shard", "fsdp_config": {"reshard_after_forward": False}},
        {"fsdp": ["hybrid_shard", "auto_wrap"]},
    ],
)
def test_sharding_less_than_everything_is_said(tmp_path: Path, stated: dict[str, object]) -> None:
    said = warnings(arguments(tmp_path / "a.json", "h100:4", bf16=True, **stated))
    assert "priced as" in said
    plain = warnings(
        arguments(tmp_path / "b.json", "h100:4", bf16=True, fsdp="full_shard auto_wrap")
    )
    assert "priced as" not in plain


def test_a_file_of_another_program_with_two_words_of_axolotls_is_not_axolotls(
    tmp_path: Path,
) -> None:
    text = f"model: {QWEN}\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 4\n"
    text += "sample_packing: true\nsequence_len: 1024\nlora_rank: 16\nmax_steps: 20\n"
    found = file(tmp_path / "sft.yaml", text)
    assert (found.method.rank, found.global_batch_size, found.max_length) == (16, 8, 1024)
    assert today(found).packing == "on"


def test_a_key_that_stands_there_twice_with_one_value_is_that_value(tmp_path: Path) -> None:
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in ARGUMENTS.items())
    assert file(tmp_path / "a.yaml", f"{text}num_train_epochs: 1\n").epochs == 1.0
    with pytest.raises(InputError) as refused:
        file(tmp_path / "b.yaml", f"{text}num_train_epochs: 2\n")
    assert "takes the last one" in str(refused.value.hint)


def test_what_wandb_kept_of_a_run_is_no_config(tmp_path: Path) -> None:
    text = "wandb_version: 1\n_wandb:\n  value: {}\nmax_steps:\n  desc: null\n  value: 2\n"
    with pytest.raises(InputError, match="what W&B kept of a run"):
        file(tmp_path / "config.yaml", text)


def test_a_mapping_called_model_makes_no_job_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither a job file nor a trainer's file"):
        file(
            tmp_path / "config.yaml",
            f"model: {{name: {QWEN}}}\ndataset: {{name: a}}\nrun: {{a: 1}}\n",
        )


def test_an_interval_of_nothing_is_refused_with_help(tmp_path: Path) -> None:
    text = f"checkpoint_dir: checkpoints/{QWEN}\nlora_r: 8\ntrain:\n  global_batch_size: 8\n"
    text += "  micro_batch_size: 2\n  epochs: 1\neval:\n  interval: 0\n"
    with pytest.raises(InputError, match=r"eval\.interval is 0, and litgpt divides") as refused:
        file(tmp_path / "lora.yaml", text)
    assert "leave it out" in str(refused.value.hint)


def test_a_small_config_of_accelerate_is_told_as_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a config of accelerate"):
        file(tmp_path / "a.yaml", "distributed_type: DEEPSPEED\nnum_processes: 4\n")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "a.json",
            '{"finetuning_type": "lora", "flash_attn": "fa2", "adapter_name_or_path": "out"}',
            "inference",
        ),
        (
            "gr00t_finetune.py",
            SCRIPT % ("from gr00t import GR00T_N1_5\nGR00T_N1_5()", "", ""),
            "sees",
        ),
    ],
)
def test_what_trains_no_decoder_is_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        file(tmp_path / name, text)


def test_a_script_whose_name_says_reward_model_is_one(tmp_path: Path) -> None:
    assert file(tmp_path / "train_reward_model.py", SCRIPT % ("", "", "")).objective == "reward"


def test_a_command_of_torchrun_is_started_by_accelerate_where_the_pick_shards() -> None:
    text = f"A=1 torchrun --nproc_per_node 4 train.py --model_name_or_path {QWEN} --bf16 True"
    text += " --num_train_epochs 1 --use_peft False --per_device_train_batch_size 2"
    found = jobs_of_command(text, asked("h100:4"))[0].job
    sharded = today(found).with_knobs(sharding="fsdp")
    made = same_export("same", found, found.offers[0], sharded, folder="own/")
    last = made.files["run.sh"].strip().splitlines()[-1]
    assert last.startswith(
        'A=1 accelerate launch --config_file "$here"/own/accelerate.yaml train.py'
    )
    plain = same_export("same", found, found.offers[0], today(found).with_knobs(sharding="ddp"))
    assert "torchrun --nproc_per_node 4 train.py" in plain.files["run.sh"]


@pytest.mark.parametrize(
    ("condition", "attention", "said"),
    [
        ("False", "sdpa", False),
        ("True", "flash_attention_2", False),
        ("torch.cuda.is_available()", "flash_attention_2", False),
        ("has_kernel()", "sdpa", True),
    ],
)
def test_what_a_mapping_gets_under_a_condition_counts_where_that_is_known(
    tmp_path: Path, condition: str, attention: str, *, said: bool
) -> None:
    held = f'held = {{}}\nif {condition}:\n    held["attn_implementation"] = "flash_attention_2"'
    text = (SCRIPT % (held, "", "")).replace(f'"{QWEN}")', f'"{QWEN}", **held)')
    found = file(tmp_path / "train.py", text)
    assert today(found).attention == attention
    assert ("attn_implementation computed" in warnings(found)) is said


def test_flags_that_a_program_makes_are_not_priced_as_none(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("model: Qwen/Qwen2.5-0.5B\n")
    run = tmp_path / "run.sh"
    run.write_text(
        'mapfile -t MORE < <(python words.py "${1:-own.yaml}")\nswift sft "${MORE[@]}"\n'
    )
    with pytest.raises(InputError) as refused:
        load_jobs(run, asked())
    assert "MORE" in str(refused.value)
    assert "own.yaml" in str(refused.value.hint)


def test_a_flag_that_a_job_file_has_as_a_key_is_the_programs(tmp_path: Path) -> None:
    run = tmp_path / "run.sh"
    run.write_text(
        "python train.py --method baseline --model_name_or_path Qwen/Qwen2.5-0.5B --use_peft "
        "--per_device_train_batch_size 2 --num_train_epochs 1\n"
    )
    assert load_jobs(run, asked())[0].job.method.is_lora


def test_a_loop_over_an_array_has_its_words(tmp_path: Path) -> None:
    run = tmp_path / "run.sh"
    run.write_text(
        'lengths=(256 512)\nfor length in "${lengths[@]}"; do\n'
        "  python train.py --model_name_or_path Qwen/Qwen2.5-0.5B --max_length $length --use_peft "
        "--per_device_train_batch_size 2 --num_train_epochs 1\ndone\n"
    )
    found = load_jobs(run, asked(), every=True)
    assert [each.job.max_length for each in found] == [256, 512]


def test_a_script_that_hands_settings_to_another_names_them(tmp_path: Path) -> None:
    run = tmp_path / "run.sh"
    run.write_text("sbatch jobs/go.slurm --config configs/dpo.yaml --lora_r 8\n")
    with pytest.raises(InputError) as refused:
        load_jobs(run, asked())
    assert "configs/dpo.yaml" in f"{refused.value} {refused.value.hint}"


@pytest.mark.parametrize("name", ["$MODEL_DIR", "merged-pt", "somebody/some-model"])
def test_a_model_that_nobody_knows_may_be_set(tmp_path: Path, name: str) -> None:
    run = tmp_path / "run.sh"
    run.write_text(
        f"python train.py --model_name_or_path {name} --use_peft "
        "--per_device_train_batch_size 2 --num_train_epochs 1\n"
    )
    with pytest.raises(InputError) as refused:
        load_jobs(run, asked())
    assert "--set model=NAME" in str(refused.value.hint)
    assert load_jobs(run, asked(model="Qwen/Qwen2.5-0.5B"))[0].job.model.name.endswith("0.5B")


def test_flags_that_are_added_to_a_commands_text_are_said(tmp_path: Path) -> None:
    run = tmp_path / "run.sh"
    run.write_text(
        'CMD="python train.py --model_name_or_path Qwen/Qwen2.5-0.5B --use_peft \\\n'
        '  --per_device_train_batch_size 2 --num_train_epochs 1"\n'
        'if [ -n "$FAST" ]; then\n  CMD="${CMD} --optim adamw_8bit"\nfi\n'
        'CMD+=" --gradient_checkpointing"\neval "$CMD"\n'
    )
    said = warnings(load_jobs(run, asked())[0].job)
    assert "--optim adamw_8bit" in said
    assert "--gradient_checkpointing" in said


def test_a_variable_that_is_bound_to_the_same_twice_is_that(tmp_path: Path) -> None:
    start = "python train.py --model_name_or_path Qwen/Qwen2.5-0.5B --use_peft --num_train_epochs 1"
    both = f"rows=2\n{start} --per_device_train_batch_size $rows\n"
    run = tmp_path / "run.sh"
    run.write_text(both + both)
    assert today(load_jobs(run, asked())[0].job).micro_batch_size == 2
    run.write_text(both + both.replace("rows=2", "rows=3"))
    with pytest.raises(InputError, match="leaves open"):
        load_jobs(run, asked())


def test_settings_that_an_array_names_are_those_of_the_launch(tmp_path: Path) -> None:
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "a.yaml").write_text(json.dumps(ARGUMENTS))
    run = tmp_path / "run.sh"
    run.write_text(
        'files=("a.yaml" )  # "b.yaml"\nfor each in "${files[@]}"; do\n'
        "  accelerate launch --num_processes 1 \\\n    own_sft.py settings/$each\ndone\n"
    )
    assert today(load_jobs(run, asked())[0].job).micro_batch_size == 2
