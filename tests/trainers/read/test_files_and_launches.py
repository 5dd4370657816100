"""Settings of files and launch commands that cut a run, or start it elsewhere than they seem to."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import load_jobs
from autotune.app.runs.user_file import SAME, patched
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides
from tests.strangers import file as job
from tests.strangers import warnings

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

QWEN = "Qwen/Qwen2.5-0.5B"
FLAGS = (
    f"--model_name_or_path {QWEN} --per_device_train_batch_size 2 --num_train_epochs 1 "
    "--use_peft false --max_length 256 --bf16"
)
FACTORY = {
    "model_name_or_path": QWEN, "stage": "sft", "do_train": True, "finetuning_type": "lora",
    "dataset": "mine", "cutoff_len": 512, "per_device_train_batch_size": 2, "bf16": True,
    "gradient_accumulation_steps": 1, "num_train_epochs": 1.0,
}  # fmt: skip


def factory(tmp_path: Path, **more: object) -> Job:
    values = {key: value for key, value in {**FACTORY, **more}.items() if value is not None}
    return job(tmp_path / "a.yaml", json.dumps(values))


def assumed(found: Job) -> str:
    return "\n".join(f"{each.key} {each.value} {each.why}" for each in found.assumed)


def test_llama_factory_takes_no_more_rows_of_each_data_set_than_the_file_says(
    tmp_path: Path,
) -> None:
    assert factory(tmp_path, max_samples=100).rows == 100
    assert factory(tmp_path, max_samples=100, dataset="mine,yours").rows == 200
    assert factory(tmp_path, max_samples=100_000).rows == 1000
    held = factory(tmp_path, max_samples=100, val_size=0.1)
    assert (held.rows, held.held_out) == (90, 10)


def test_rows_that_are_set_are_not_cut(tmp_path: Path) -> None:
    text = json.dumps({**FACTORY, "max_samples": 100})
    assert job(tmp_path / "a.yaml", text, **{"data.rows": "1000"}).rows == 1000


def test_rows_of_a_command_are_cut_where_one_number_says_so(tmp_path: Path) -> None:
    run = tmp_path / "run.sh"
    assert job(run, f"python run_clm.py {FLAGS} --max_train_samples 64\n").rows == 64
    assert job(run, f"python run_clm.py {FLAGS} --max_train_samples 10,20\n").rows == 1000
    assert job(run, f"python run_clm.py {FLAGS} --max_train_samples -1\n").rows == 1000


def test_one_length_of_two_stands_beside_llama_factorys_default(tmp_path: Path) -> None:
    found = factory(tmp_path, cutoff_len=None, max_target_length=256)
    assert found.max_length == 512 + 256


def test_llama_factory_evaluates_only_where_a_strategy_says_so(tmp_path: Path) -> None:
    stated = {"val_size": 0.1, "eval_steps": 10}
    assert factory(tmp_path, **stated).evaluation is None
    once = factory(tmp_path, **stated, do_eval=True).evaluation
    assert once is not None
    assert once.every_steps == 0
    often = factory(tmp_path, **stated, eval_strategy="steps").evaluation
    assert often is not None
    assert often.every_steps == 10


@pytest.mark.parametrize("more", [{"do_predict": True}, {"export_dir": "out"}])
def test_what_trains_nothing_is_refused_whatever_its_stage(
    tmp_path: Path, more: dict[str, object]
) -> None:
    with pytest.raises(InputError, match="trains nothing"):
        factory(tmp_path, stage="rm", do_train=None, **more)


def test_a_file_that_is_called_after_a_reward_model_is_one(tmp_path: Path) -> None:
    text = json.dumps({
        "model_name_or_path": QWEN, "per_device_train_batch_size": 2, "num_train_epochs": 1,
        "use_peft": False, "max_length": 256,
    })  # fmt: skip
    assert job(tmp_path / "rm.yaml", text).objective == "reward"
    assert job(tmp_path / "train_reward_model.yaml", text).objective == "reward"
    assert job(tmp_path / "rm_old_files.yaml", text).objective == "sft"


def test_another_optimizer_of_a_programs_own_is_said(tmp_path: Path) -> None:
    text = f"python train.py {FLAGS} --optimizer_type rmsprop\n"
    assert "optimizer_type 'rmsprop'" in warnings(job(tmp_path / "run.sh", text))


@pytest.mark.parametrize("stage", [2, 3])
def test_zero_that_offloads_on_one_device_can_run(tmp_path: Path, stage: int) -> None:
    zero = {"stage": stage, "offload_optimizer": {"device": "cpu"}}
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": zero}))
    found = job(tmp_path / "run.sh", f"deepspeed --num_gpus 1 train.py --deepspeed ds.json {FLAGS}")
    assert found.today is not None
    assert (found.today.sharding, found.today.offload) == ("zero2", "optimizer")
    assert "cannot run as it stands" not in warnings(found)


def test_the_precision_of_the_trainers_file_counts_beside_accelerates(tmp_path: Path) -> None:
    launcher = {"distributed_type": "MULTI_GPU", "num_processes": 2, "mixed_precision": "fp16"}
    (tmp_path / "acc.yaml").write_text(json.dumps(launcher))
    start = "accelerate launch --config_file acc.yaml train.py"
    found = job(tmp_path / "run.sh", f"{start} {FLAGS}\n")
    assert found.today is not None
    assert found.today.precision == "bf16"
    assert "mixed_precision fp16 the trainer's file says bf16" in assumed(found)
    other = job(tmp_path / "run.sh", f"{start} {FLAGS.replace(' --bf16', ' --lora_r 8')}\n")
    assert other.today is not None
    assert other.today.precision == "fp16"


ARRAY = f"""\
#!/bin/bash
BATCH=4
ARGS=(
    --model_name_or_path {QWEN}
    --per_device_train_batch_size "$BATCH"   # of each device
    # --packing true
    --num_train_epochs 2 --use_peft false
    --max_length 256
)
ARGS+=( --gradient_accumulation_steps 8 )
python train.py "${{ARGS[@]}}" --bf16
"""


def test_flags_in_an_array_are_read(tmp_path: Path) -> None:
    found = job(tmp_path / "run.sh", ARRAY)
    today = found.today
    assert today is not None
    assert (today.micro_batch_size, today.gradient_accumulation_steps, found.epochs) == (4, 8, 2.0)
    assert today.packing == "off"
    assert "ARGS[@]" not in warnings(found)


def test_flags_that_an_array_may_get_are_said(tmp_path: Path) -> None:
    added = "ARGS+=( --gradient_accumulation_steps 8 )\n"
    text = ARRAY.replace(added, f"if [ $1 = big ]; then\n  {added}fi\n")
    found = job(tmp_path / "run.sh", text)
    assert found.today is not None
    assert found.today.gradient_accumulation_steps == 1
    assert "flags ${ARGS[@]}: the script decides" in warnings(found)


def test_a_whole_command_in_an_array_is_read(tmp_path: Path) -> None:
    text = f'cmd=(torchrun --nproc_per_node 2\n     train.py {FLAGS})\necho "${{cmd[@]}}"\n'
    found = job(tmp_path / "run.sh", f'{text}"${{cmd[@]}}"\n')
    assert (found.offers[0].count, found.global_batch_size) == (2, 4)


def test_a_command_with_an_array_is_given_back_with_the_flag_behind_it(tmp_path: Path) -> None:
    found = job(tmp_path / "run.sh", ARRAY)
    assert found.today is not None
    other = replace(found.today, micro_batch_size=2, gradient_accumulation_steps=16)
    back = patched(SAME, found, found.offers[0], other).text
    assert '"${ARGS[@]}" --bf16 --per_device_train_batch_size 2' in back
    again = job(tmp_path / "again.sh", back).today
    assert again is not None
    assert (again.micro_batch_size, again.gradient_accumulation_steps) == (2, 16)


def test_a_comment_that_ends_in_a_backslash_hides_no_command(tmp_path: Path) -> None:
    text = f"# torchrun old.py \\\npython train.py \\\n  {FLAGS}\n"
    assert job(tmp_path / "run.sh", text).global_batch_size == 2


def test_flags_whose_command_is_a_comment_are_no_command(tmp_path: Path) -> None:
    text = f"# python old.py \\\n  --num_train_epochs 9 \\\n  --bf16\npython train.py {FLAGS}\n"
    assert job(tmp_path / "run.sh", text).epochs == 1.0


def test_a_loop_over_names_in_quotes_is_several_launches(tmp_path: Path) -> None:
    flags = FLAGS.replace(QWEN, "$name")
    text = f'for name in "{QWEN}" "Qwen/Qwen2.5-7B"\ndo\n  python train.py {flags}\ndone\n'
    (tmp_path / "run.sh").write_text(text)
    overrides = Overrides(("h100",), stated={"data.rows": 1000})
    names = [each.job.model.name for each in load_jobs(tmp_path / "run.sh", overrides)]
    assert names[0] == QWEN
    assert "Qwen/Qwen2.5-7B" in warnings(job(tmp_path / "run.sh", text))


def test_a_file_behind_a_script_or_a_recipe_is_its_settings(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(json.dumps({
        "model_name_or_path": QWEN, "per_device_train_batch_size": 2, "num_train_epochs": 1,
        "use_peft": False, "max_length": 256,
    }))  # fmt: skip
    found = job(tmp_path / "run.sh", "accelerate launch --num_processes 2 mine/run_it.py a.yaml\n")
    assert (found.offers[0].count, found.max_length) == (2, 256)


def test_devices_that_a_script_counts_are_those_that_are_visible(tmp_path: Path) -> None:
    lines = "IDS=0,1,2\nN=$(echo $IDS | tr ',' '\\n' | wc -l)\n"
    text = f"{lines}torchrun --nproc_per_node $N train.py {FLAGS}\n"
    assert job(tmp_path / "run.sh", text).offers[0].count == 3
    text = f"CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node $N train.py {FLAGS}\n"
    found = job(tmp_path / "run.sh", text)
    assert found.offers[0].count == 2
    assert "processes $N" in warnings(found)


def test_the_slots_of_deepspeeds_hostfile_are_counted(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# of one rack\none slots=2\ntwo slots=2\n\nthree slots=2\n")
    start = "deepspeed --hostfile hosts"
    run = tmp_path / "run.sh"
    assert job(run, f"{start} train.py {FLAGS}\n").offers[0].count == 6
    assert job(run, f"{start} --num_nodes 2 train.py {FLAGS}\n").offers[0].count == 4
    assert job(run, f"{start} --num_gpus 1 train.py {FLAGS}\n").offers[0].count == 3
    away = job(run, f"deepspeed --hostfile away train.py {FLAGS}\n")
    assert "hostfile 'away'" in warnings(away) or "hostfile away" in warnings(away)


def test_a_run_that_sees_no_device_is_said_first(tmp_path: Path) -> None:
    text = f"CUDA_VISIBLE_DEVICES=-1 python train.py {FLAGS}\n"
    assert "CUDA_VISIBLE_DEVICES -1: hides every device" in warnings(job(tmp_path / "run.sh", text))
    assert "hides" not in warnings(job(tmp_path / "run.sh", text.replace("-1", "0", 1)))


def test_a_flag_that_argparse_completes_is_read(tmp_path: Path) -> None:
    text = f"python train.py {FLAGS.replace('--num_train_epochs 1', '')} --max_step 50\n"
    found = job(tmp_path / "run.sh", text)
    assert found.steps == 50
    assert "abbreviated max_steps" in assumed(found)


def test_a_script_that_is_not_there_is_noted(tmp_path: Path) -> None:
    run = tmp_path / "run.sh"
    assert "train.py not found" in assumed(job(run, f"python train.py {FLAGS}\n"))
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("print()\n")
    text = f"python /home/other/src/train.py {FLAGS}\n"
    assert "not found" not in assumed(job(run, text))


@pytest.mark.parametrize(
    ("value", "hint"),
    [("5,3,7", "a run has one"), ("...", "a placeholder"), ("$N", "--set train.epochs=3")],
)
def test_a_value_that_is_no_number_is_refused_with_what_to_write(
    tmp_path: Path, value: str, hint: str
) -> None:
    flags = FLAGS.replace("--num_train_epochs 1", f"--num_train_epochs '{value}'")
    with pytest.raises(InputError) as refused:
        job(tmp_path / "run.sh", f"python train.py {flags}\n")
    assert hint in (refused.value.hint or "")


def test_a_template_is_refused_with_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        job(tmp_path / "a.yaml", "model_name_or_path: {{model}}\nnum_train_epochs: 1\n")
    assert "the file that is made of it" in (refused.value.hint or "")


@pytest.mark.parametrize("done", ["do_eval", "do_predict"])
def test_a_file_whose_training_is_switched_off_evaluates(tmp_path: Path, done: str) -> None:
    with pytest.raises(InputError, match="is an evaluation and trains nothing"):
        factory(tmp_path, do_train=0, **{done: 1})
    assert factory(tmp_path, do_train=True, do_eval=True).rows == 1000


def test_continued_pretraining_packs_unless_it_says_otherwise(tmp_path: Path) -> None:
    packed = factory(tmp_path, stage="pt").today
    assert packed is not None
    assert packed.packing == "on"
    plain = factory(tmp_path, stage="pt", packing=False).today
    assert plain is not None
    assert plain.packing == "off"


def test_one_word_of_llama_factory_makes_no_file_of_its_own(tmp_path: Path) -> None:
    text = json.dumps({
        "model_name_or_path": QWEN, "per_device_train_batch_size": 2, "num_train_epochs": 1,
        "dataset_dir": "rows", "max_length": 256, "max_prompt_length": 128, "beta": 0.1,
    })  # fmt: skip
    found = job(tmp_path / "dpo_full.yaml", text, **{"method.kind": "full"})
    assert (found.objective, found.method.kind) == ("dpo", "full")


def test_the_launchers_config_is_read_in_front_of_a_module(tmp_path: Path) -> None:
    launcher = {"distributed_type": "MULTI_GPU", "num_processes": 4}
    (tmp_path / "acc.yaml").write_text(json.dumps(launcher))
    found = job(tmp_path / "run.sh", f"accelerate launch --config_file acc.yaml -m mine.t {FLAGS}")
    assert found.offers[0].count == 4


@pytest.mark.parametrize(
    ("place", "objective"),
    [("dpo/recipes/a.yaml", "dpo"), ("SimPO_all/configs/inpo.yaml", ""), ("kto/a.yaml", "kto")],
)
def test_a_repositorys_name_does_not_say_which_preference_it_is(
    tmp_path: Path, place: str, objective: str
) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    text = json.dumps({
        "model_name_or_path": QWEN, "per_device_train_batch_size": 2, "num_train_epochs": 1,
        "use_peft": False, "max_length": 256, "max_prompt_length": 128,
    })  # fmt: skip
    if objective:
        assert job(path, text).objective == objective
    else:
        with pytest.raises(InputError, match="does not say which kind"):
            job(path, text)


def test_fp16_under_deepspeed_has_fp32_masters(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    flags = FLAGS.replace("--bf16", "--fp16")
    found = job(tmp_path / "run.sh", f"deepspeed --num_gpus 2 t.py --deepspeed ds.json {flags}")
    assert found.method.base == "32bit"
    assert "cannot run as it stands" not in warnings(found)


def test_a_model_that_sees_is_refused_by_the_name_of_its_eye(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a model that sees"):
        job(tmp_path / "run.sh", f"python t.py {FLAGS} --vision_model_id siglip\n")


def test_a_data_set_of_the_command_takes_the_place_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "model: {_component_: torchtune.models.llama3_2.llama3_2_1b}\n"
        "checkpointer: {checkpoint_dir: /tmp/Llama-3.2-1B-Instruct}\n"
        "dataset: {_component_: torchtune.datasets.alpaca_dataset}\nepochs: 1\nbatch_size: 2\n"
    )
    plain = "tune run full_finetune_single_device --config a.yaml"
    named = job(tmp_path / "run.sh", f"{plain}\n").lengths
    other = job(tmp_path / "run.sh", f"{plain} dataset.source=mine/rows\n").lengths
    assert (named.known, other.known) == (True, False)
