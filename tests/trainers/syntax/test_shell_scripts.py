"""Shell scripts as people write them: commands in variables, several launches, own variables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import jobs_of_command, load_jobs
from autotune.app.runs.user_file import SAME, patched
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides
from autotune.trainers.syntax.shell_script import parse_shell, rewrite_shell, shell_names
from tests.strangers import warnings

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

HELD = """\
#!/bin/bash
BATCH=${2:-4}
OUT=./out
EXTRA=""
if [ "$1" = "lora" ]; then
    EXTRA="--lora_dim 128"
fi
CMD="deepspeed --num_gpus=1 train.py \\
    --model_name_or_path Qwen/Qwen2.5-0.5B \\
    --leaf_module "Experts" \\
    --max_seq_len 512 \\
    --per_device_train_batch_size $BATCH \\
    --num_train_epochs 2 \\
    --output_dir $OUT/run \\
    $EXTRA"
echo $CMD
eval $CMD
"""
SWEEP = """\
MODEL=Qwen/Qwen2.5-0.5B
python train.py --model_name_or_path $MODEL --per_device_train_batch_size 2 --max_steps 9
python train.py --model_name_or_path $MODEL --per_device_train_batch_size 8 --max_steps 9
"""


def job(path: Path, text: str, **set_values: str) -> Job:
    path.write_text(text)
    set_values = {"method.kind": "full", "data.max_length": "512", **set_values}
    overrides = Overrides(("h100",), stated={"data.rows": 1000}, set_values=set_values)
    (found,) = load_jobs(path, overrides)
    return found.job


def test_a_command_that_is_the_text_of_a_variable_is_read(tmp_path: Path) -> None:
    found = job(tmp_path / "run.sh", HELD)
    assert found.model.name == "Qwen/Qwen2.5-0.5B"
    assert (found.today.micro_batch_size, found.epochs) == (4, 2.0)


def test_a_variable_whose_flags_the_script_decides_warns_and_widens(tmp_path: Path) -> None:
    found = job(tmp_path / "run.sh", HELD)
    without = job(tmp_path / "run.sh", HELD.replace('    $EXTRA"', '    --seed 1"'))
    assert "$EXTRA" in warnings(found)
    assert "$EXTRA" not in warnings(without)
    assert found.uncounted_sd > without.uncounted_sd == (0.0, 0.0)


def test_a_command_in_a_variable_is_given_back_inside_its_quotes() -> None:
    text = rewrite_shell(HELD, {"per_device_train_batch_size": 16, "bf16": True}, "run.sh")
    assert parse_shell(text, "run.sh").values["per_device_train_batch_size"] == "16"
    assert text.count('"') == HELD.count('"')
    assert text.index("--bf16 True") < text.index("echo $CMD")
    with pytest.raises(InputError, match="text in quotes"):
        rewrite_shell(HELD, {"model_init_kwargs": {"a": "b"}}, "run.sh")


def test_the_first_of_several_launches_is_priced_and_the_others_are_named(tmp_path: Path) -> None:
    found = job(tmp_path / "run.sh", SWEEP)
    assert found.today.micro_batch_size == 2
    assert "another launch on line 3" in warnings(found).casefold()
    offer = found.offers[0]
    text = patched("same", found, offer, found.today).text
    assert text.splitlines()[2] == SWEEP.splitlines()[2]


def test_the_first_value_of_a_loop_is_priced_and_the_others_are_named(tmp_path: Path) -> None:
    text = (
        "for SIZE in 2 4 8; do\n  python train.py --model_name_or_path Qwen/Qwen2.5-0.5B "
        "--per_device_train_batch_size $SIZE --max_steps 9\ndone\n"
    )
    found = job(tmp_path / "run.sh", text)
    assert found.today.micro_batch_size == 2
    assert "size 4, 8" in warnings(found).casefold()
    assert shell_names("for A in 1 2; do\ndone\nfor A in 3; do\ndone\n") == {}


def test_a_variable_that_holds_flags_is_as_many_words_as_it_has() -> None:
    text = (
        'OPTIONS="--max_steps 9 --per_device_train_batch_size 2"\n'
        "python train.py --model_name_or_path a/b $OPTIONS --seed 3 --num_train_epochs 1\n"
    )
    values = parse_shell(text, "run.sh").values
    assert values["max_steps"] == "9"
    changed = rewrite_shell(text, {"per_device_train_batch_size": 4}, "run.sh")
    assert changed.endswith("--num_train_epochs 1 --per_device_train_batch_size 4\n")
    assert parse_shell(changed, "run.sh").values["per_device_train_batch_size"] == "4"


def test_names_are_made_of_those_before_them_and_of_the_script_s_own_defaults() -> None:
    text = "BASE=/data\nMODEL=$BASE/m\nSIZE=${3:-8}\nOPEN=$1\nMADE=$(date)\n"
    assert shell_names(text) == {"BASE": "/data", "MODEL": "/data/m", "SIZE": "8"}


def test_what_the_user_may_type_behind_the_script_leaves_its_own_default() -> None:
    text = (
        'MODEL=gpt2\nSIZE=${4}\nSIZE=${SIZE:-"2"}\nOPEN=$1\nTWICE=1\nTWICE=2\n'
        'while [[ $# -ge 1 ]]; do\n  case "$1" in\n    -m|--model)\n      MODEL="$2"\n'
        "      shift ;;\n    --epochs) EPOCHS=$2 ;;\n  esac\n  shift\ndone\n"
        "python train.py --model_name_or_path $MODEL --per_device_train_batch_size $SIZE\n"
    )
    assert shell_names(text) == {"MODEL": "gpt2", "SIZE": "2"}
    values = parse_shell(text, "run.sh").values
    assert values == {"model_name_or_path": "gpt2", "per_device_train_batch_size": "2"}


def test_what_is_piped_into_a_command_of_its_own_is_no_value_of_a_flag() -> None:
    text = (
        "torchrun train.py --per_device_train_batch_size 2 --dataloader_num_workers 1 "
        "> >(tee ${LOG}/out.log) 2> >(tee $(date +%s)/err.log >&2)\n"
    )
    assert parse_shell(text, "run.sh").values["dataloader_num_workers"] == "1"


@pytest.mark.parametrize(
    "start",
    [
        "torchrun --nproc_per_node $(nvidia-smi -L | wc -l)",
        "torchrun --nproc-per-node=gpu",
        'N=$(python -c "import t; print(t.cuda.device_count())")\ntorchrun --nproc_per_node=$N',
    ],
)
def test_a_start_on_every_device_is_on_those_that_are_asked_about(
    tmp_path: Path, start: str
) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        f"{start} train.py --model_name_or_path Qwen/Qwen2.5-0.5B --max_steps 9 "
        "--per_device_train_batch_size 2 --gradient_accumulation_steps 3 --max_length 512\n"
    )
    own = {"method.kind": "full"}
    (found,) = load_jobs(path, Overrides(("h100:4",), stated={"data.rows": 1000}, set_values=own))
    assert (found.job.offers[0].count, found.job.global_batch_size) == (4, 24)


def test_a_launcher_may_say_a_flag_twice() -> None:
    text = (
        "mpirun --mca a 1 --mca b 2 python train.py --model_name_or_path a/b "
        "--per_device_train_batch_size 2\n"
    )
    assert parse_shell(text, "run.sh").values["per_device_train_batch_size"] == "2"


def test_a_script_s_own_batch_size_is_each_device_s_and_stays(tmp_path: Path) -> None:
    text = "python train.py --model_name_or_path Qwen/Qwen2.5-0.5B --batch_size 3 --max_steps 9 "
    found = job(tmp_path / "run.sh", text + "--output_dir o --num_train_epochs 1\n")
    assert found.today.micro_batch_size == 3
    assert found.lock["micro_batch_size"] == 3


def test_squad_by_any_script_of_that_name_is_told_as_classification(tmp_path: Path) -> None:
    text = (
        "python nvidia_run_squad_deepspeed.py --model_name_or_path a/b "
        "--per_device_train_batch_size ${N} --num_train_epochs 2\n"
    )
    with pytest.raises(InputError, match="trains classification"):
        job(tmp_path / "run.sh", text)


def test_a_value_that_the_script_computes_has_to_be_written_out(tmp_path: Path) -> None:
    text = "python train.py --model_name_or_path a/b --per_device_train_batch_size ${N} --bf16\n"
    with pytest.raises(InputError) as refused:
        job(tmp_path / "run.sh", text)
    assert "--set micro_batch_size=4" in (refused.value.hint or "")


def test_a_placeholder_in_a_command_is_named_as_one() -> None:
    overrides = Overrides(("h100",), stated={"data.rows": 1000})
    with pytest.raises(InputError, match="placeholder") as refused:
        jobs_of_command("axolotl train examples/<config>.yaml", overrides)
    assert "put the name" in (refused.value.hint or "")
    text = "python train.py --model_name_or_path <your model> --per_device_train_batch_size 2"
    with pytest.raises(InputError, match="<your model>"):
        jobs_of_command(f"{text} --use_peft --lora_r 8 --max_length 64", overrides)


def test_a_json_template_says_what_is_to_be_filled_in(tmp_path: Path) -> None:
    path = tmp_path / "ds_TEMPLATE.json"
    path.write_text('{"train_batch_size": GB_SIZE}')
    with pytest.raises(InputError, match="not valid JSON") as refused:
        load_jobs(path, Overrides(("h100",)))
    assert "GB_SIZE" in (refused.value.hint or "")


def test_a_workflow_is_no_job_file_that_lacks_a_flag(tmp_path: Path) -> None:
    path = tmp_path / "workflow.yml"
    path.write_text("name: tests\non: push\njobs: {build: {runs-on: ubuntu}}\n")
    with pytest.raises(InputError, match="neither a job file nor a trainer's file"):
        load_jobs(path, Overrides(("h100",), stated={"data.rows": 9}))


@pytest.mark.parametrize(
    ("folder", "said"),
    [("step2_dpo_finetuning", "dpo"), ("step2_reward_model_finetuning", "reward")],
)
def test_a_script_of_pairs_is_priced_as_its_folder_says_never_as_supervised(
    tmp_path: Path, folder: str, said: str
) -> None:
    text = (
        "deepspeed main.py --model_name_or_path Qwen/Qwen2.5-0.5B "
        "--per_device_train_batch_size 4 --max_seq_len 512 --num_train_epochs 1\n"
    )
    (tmp_path / folder).mkdir()
    assert job(tmp_path / folder / "run.sh", text).objective == said
    assert job(tmp_path / "run.sh", text).objective == "sft"


def test_an_actor_beside_a_critic_is_reinforcement_learning(tmp_path: Path) -> None:
    text = "deepspeed main.py --actor_model_name_or_path a/b --num_train_epochs 1 --output_dir o\n"
    with pytest.raises(InputError, match="reinforcement learning"):
        job(tmp_path / "run.sh", text)


def test_a_folder_of_checkpoints_alone_is_no_file_of_litgpt(tmp_path: Path) -> None:
    text = "python train_bert.py --checkpoint_dir experiments --num_layers 6 --batch_size 8\n"
    with pytest.raises(InputError, match="holds no flags"):
        job(tmp_path / "run.sh", text)


LOOPS = (
    "for SIZE in 2 4; do\n  for RANK in 8 16; do\n"
    "    python train.py --model_name_or_path Qwen/Qwen2.5-0.5B --use_peft --lora_r $RANK "
    "--per_device_train_batch_size $SIZE --max_steps 9 --learning_rate 1e-4\n  done\ndone\n"
    "python train.py --model_name_or_path Qwen/Qwen2.5-1.5B --use_peft --lora_r 4 "
    "--per_device_train_batch_size 1 --max_steps 9\n"
)
NAMES = [f"line 3, SIZE={size}, RANK={rank}" for size in (2, 4) for rank in (8, 16)] + ["line 6"]


def test_every_launch_of_a_sweep_is_a_variant(tmp_path: Path) -> None:
    file = tmp_path / "sweep.sh"
    file.write_text(LOOPS)
    overrides = Overrides(("h100",), stated={"data.rows": 9})
    found = load_jobs(file, overrides, every=True)
    assert [each.variant for each in found] == NAMES
    read = [(each.job.today.micro_batch_size, each.job.method.rank)
            for each in found if each.job.today]  # fmt: skip
    assert read == [(2, 8), (2, 16), (4, 8), (4, 16), (1, 4)]
    assert found[-1].job.model.name == "Qwen/Qwen2.5-1.5B"
    assert len(load_jobs(file, overrides)) == 1


@pytest.mark.parametrize(("name", "rank", "size"), [("2", 16, 2), (NAMES[2], 8, 4), ("5", 4, 1)])
def test_a_launch_is_taken_by_name_or_number_and_changed_where_it_stands(
    tmp_path: Path, name: str, rank: int, size: int
) -> None:
    file = tmp_path / "sweep.sh"
    file.write_text(LOOPS)
    found = load_jobs(file, Overrides(("h100",), stated={"data.rows": 9}), variant=name)[0].job
    assert (found.method.rank, found.today.micro_batch_size) == (rank, size)
    assert "--variant 2 is the next" in warnings(found)
    made = patched(SAME, found, found.offers[0], replace(found.today, checkpoint_every_steps=7))
    lines = made.text.splitlines()
    assert [i for i, line in enumerate(lines, 1) if "--save_steps 7" in line] == [
        6 if name == "5" else 3
    ]


def test_a_launch_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    file = tmp_path / "sweep.sh"
    file.write_text(LOOPS)
    with pytest.raises(InputError, match="unknown variant") as refused:
        load_jobs(file, Overrides(("h100",), stated={"data.rows": 9}), variant="9")
    assert "2: line 3, SIZE=2, RANK=16" in f"{refused.value.message} {refused.value.hint}"


WRITTEN = """\
STAGE=3
cat > /tmp/ds/zero_own.json <<EOF
{"zero_optimization": {"stage": $STAGE, "offload_optimizer": {"device": "cpu"}},
 "bf16": {"enabled": true}}
EOF
cat << 'END' | tee start.yaml
distributed_type: DEEPSPEED
mixed_precision: bf16
num_processes: 2
deepspeed_config: {deepspeed_config_file: /tmp/ds/zero_own.json}
END
accelerate launch --config_file start.yaml train.py --model_name_or_path Qwen/Qwen2.5-0.5B \\
    --per_device_train_batch_size 2 --num_train_epochs 1 --gradient_accumulation_steps 4
"""


def test_configs_that_a_script_writes_out_of_its_own_lines_are_read(tmp_path: Path) -> None:
    found = job(tmp_path / "go.sh", WRITTEN)
    assert found.today is not None
    assert (found.today.sharding, found.today.offload) == ("zero3", "optimizer")
    assert (found.offers[0].count, found.global_batch_size) == (2, 16)
    returned = patched(SAME, found, found.offers[0], found.today).text
    assert returned.startswith(WRITTEN.rstrip())  # its own files stay as they are
    twice = WRITTEN.replace("accelerate launch", "cat > start.yaml <<E\na: 1\nE\naccelerate launch")
    with pytest.raises(InputError, match="no such file"):
        job(tmp_path / "go.sh", twice)


def test_a_trainers_own_file_may_be_written_by_the_script_that_starts_it(tmp_path: Path) -> None:
    text = (
        "cat > run.yml <<'EOF'\nbase_model: Qwen/Qwen2.5-0.5B\nsequence_len: 512\n"
        "micro_batch_size: 3\ngradient_accumulation_steps: 2\nnum_epochs: 1\nadapter: lora\n"
        "lora_r: 8\nlora_target_linear: true\ndatasets: [{path: a, type: alpaca}]\nEOF\n"
        "axolotl train run.yml --num-epochs 2\n"
    )
    path = tmp_path / "go.sh"
    path.write_text(text)
    (found,) = load_jobs(path, Overrides(("h100",), stated={"data.rows": 1000}))
    assert (found.job.method.rank, found.job.epochs, found.job.global_batch_size) == (8, 2.0, 6)


def test_a_script_that_starts_another_is_not_priced_as_it(tmp_path: Path) -> None:
    (tmp_path / "inner.sh").write_text(SWEEP)
    flags = "--model_name_or_path Qwen/Qwen2.5-0.5B --gradient_accumulation_steps 4 --batch_size 2"
    with pytest.raises(InputError, match=r"starts the shell script inner\.sh") as refused:
        job(tmp_path / "go.sh", f"bash inner.sh {flags}\n")
    assert f"give {tmp_path / 'inner.sh'} as JOB" in str(refused.value.hint)
    with pytest.raises(InputError, match="0 launch commands") as refused:
        job(tmp_path / "go.sh", "#!/bin/bash\n#SBATCH --nodes=1\nbash inner.sh\n")
    assert "it starts inner.sh" in str(refused.value.hint)


def test_a_file_that_a_variable_names_in_front_of_the_flags_is_said(tmp_path: Path) -> None:
    text = "NEW=runs/$(date).yaml\npython train.py $NEW --per_device_train_batch_size 2\n"
    assert "flags $NEW" in warnings(job(tmp_path / "go.sh", text, model="Qwen/Qwen2.5-0.5B"))


def test_how_often_it_saves_is_asked_for_where_a_shell_decides_it(tmp_path: Path) -> None:
    text = SWEEP.partition("\n")[2].replace("--max_steps 9", "--max_steps 90 --save_steps ${EVERY}")
    text = text.replace("$MODEL", "Qwen/Qwen2.5-0.5B")
    with pytest.raises(InputError, match=r"leaves open --save_steps") as refused:
        job(tmp_path / "go.sh", text)
    assert "--set checkpoint_every_steps=500" in str(refused.value.hint)
    found = job(tmp_path / "go.sh", text, checkpoint_every_steps="30")
    assert found.today is not None
    assert found.today.checkpoint_every_steps == 30


PAGE = """\
# How to train

It is simple: run `python train.py --max_steps 5`.

```python
trainer.train(--batch_size)
```

```bash
$ pip install trl
$ python train.py --model_name_or_path Qwen/Qwen2.5-0.5B \\
    --per_device_train_batch_size 2 --max_steps 9
```

~~~
python train.py --model_name_or_path Qwen/Qwen2.5-0.5B --per_device_train_batch_size 8 --max_steps 7
~~~
"""


def test_a_page_is_its_blocks_of_commands(tmp_path: Path) -> None:
    found = job(tmp_path / "README.md", PAGE)
    assert (found.global_batch_size, found.steps) == (2, 9)
    assert "another launch on line 16" in warnings(found)
    overrides = Overrides(
        ("h100",), stated={"data.rows": 1000},
        set_values={"method.kind": "full", "data.max_length": "512"},
    )  # fmt: skip
    (second,) = load_jobs(tmp_path / "README.md", overrides, variant="2")
    assert (second.job.global_batch_size, second.job.steps) == (8, 7)


SAFE = """\
ZERO_STAGE=3
LAUNCH="$(which python) -m accelerate.commands.launch --num_processes=2"
while [[ "$#" -gt 0 ]]; do
    arg="$1"
    case "${arg}" in
        --zero_stage) ZERO_STAGE="$1" ;;
        --zero_stage=*)
            ZERO_STAGE="${arg#*=}"
            ;;
    esac
done
$LAUNCH train.py --model_name_or_path Qwen/Qwen2.5-0.5B --per_device_train_batch_size 2 \\
    --num_train_epochs 1 --zero_stage "${ZERO_STAGE}"
"""


def test_what_a_user_may_type_behind_an_equals_sign_leaves_the_script_s_own_default(
    tmp_path: Path,
) -> None:
    found = job(tmp_path / "go.sh", SAFE)
    assert found.today is not None
    assert (found.today.sharding, found.offers[0].count) == ("zero3", 2)


def test_a_deciding_flag_that_a_shell_fills_in_is_said(tmp_path: Path) -> None:
    text = SAFE.replace("ZERO_STAGE=3\n", "").replace('"${ZERO_STAGE}"', "$(stage_of)")
    assert "zero_stage" in warnings(job(tmp_path / "go.sh", text))
    assert "zero_stage" not in warnings(job(tmp_path / "go.sh", SAFE))


@pytest.mark.parametrize(
    ("slip", "said"),
    [
        (" \\  # rows of a device", "a blank behind a backslash"),
        ("", "no backslash before a flag"),
    ],
)
def test_a_command_that_the_shell_ends_early_is_read_whole_and_said(
    tmp_path: Path, slip: str, said: str
) -> None:
    lines = [
        "llamafactory-cli train", "--stage sft --finetuning_type lora",
        "--model_name_or_path Qwen/Qwen2.5-0.5B --cutoff_len 512",
        "--per_device_train_batch_size 4", "--gradient_accumulation_steps 8", "--max_steps 10",
    ]  # fmt: skip
    ends = [" \\", " \\", " \\", slip, " \\", ""]
    path = tmp_path / "run.sh"
    path.write_text("".join(f"{a}{b}\n" for a, b in zip(lines, ends, strict=True)))
    (found,) = load_jobs(path, Overrides(("h100",), stated={"data.rows": 2000}))
    assert found.job.global_batch_size == 32
    assert found.job.steps == 10
    assert said in [each.key for each in found.job.origin.uncounted]


def test_a_line_of_flags_behind_another_command_is_not_its(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "python train.py \\\n  --per_device_train_batch_size 4 --max_steps 10 > log\n"
        "--gradient_accumulation_steps 8\n"
    )
    assert parse_shell(path.read_text(), "run.sh").values.get("gradient_accumulation_steps") is None
