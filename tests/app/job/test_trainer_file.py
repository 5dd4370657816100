"""A trainer's own file as JOB: detected, completed by flags, given back; bad ones are refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.app.job.load import jobs_of_command, load_job, load_jobs, resolve_spec
from autotune.app.runs.user_file import check_in_place, patched, replace_in_place
from autotune.domain.errors import InputError
from autotune.domain.software import ZeroSettings
from autotune.domain.typed.overrides import Overrides

if TYPE_CHECKING:
    from autotune.domain.job import Job

OWN = Path(__file__).parents[2] / "trainers" / "own"
HF = {"output_dir": "out", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
COMMAND = (
    "python train.py --model_name_or_path Qwen/Qwen2.5-7B --use_peft --lora_r 16 "
    "--per_device_train_batch_size 4 --gradient-accumulation-steps=2 --bf16"
)
STATED = {"model": "Qwen/Qwen2.5-7B", "method.kind": "lora", "data.rows": 1000}


def load(
    path: Path, *, gpus: tuple[str, ...] = ("h100",), beside: tuple[str, ...] = (), **stated: object
) -> Job:
    keys = {key.replace("__", "."): value for key, value in stated.items()} or {"data.rows": 1000}
    return load_jobs(path, Overrides(gpus=gpus, stated=keys, beside=beside))[0].job


def load_hf(path: Path, **more: Any) -> Job:
    return load(path, model="Qwen/Qwen2.5-7B", method__kind="lora", data__rows=1000, **more)


def written(folder: Path, name: str, values: object) -> Path:
    path = folder / name
    path.write_text(values if isinstance(values, str) else json.dumps(values), encoding="utf-8")
    return path


def refused(path: Path, **more: Any) -> str:
    with pytest.raises(InputError) as caught:
        load_hf(path, **more)
    return f"{caught.value.message} {caught.value.hint}"


def test_an_axolotl_file_is_a_job_with_its_own_config_as_today() -> None:
    job = load(OWN / "axolotl.yml")
    assert (job.model.name, job.epochs, job.max_length) == ("meta-llama/Meta-Llama-3-8B", 4.0, 2048)
    assert (job.global_batch_size, job.method.rank) == (8, 32)
    assert (job.today.micro_batch_size, job.today.attention) == (2, "flash_attention_2")
    assert (
        job.today.checkpoint_every_steps == 119
    )  # 950 of 1000 rows in batches of 8, once an epoch
    saves = {"checkpoint_every_steps": 119, "save_total_limit": 4}  # by the epoch, all of them
    kept = {"attention": "flash_attention_2"}
    assert job.lock == {"optimizer": "adamw_bnb_8bit", **kept, **saves}


def test_what_was_ignored_is_listed(tmp_path: Path) -> None:
    text = (OWN / "axolotl.yml").read_text(encoding="utf-8").replace("val_set_size", "own_key")
    path = written(tmp_path, "axolotl.yml", text)
    told = " ".join(f"{a.key} {a.value}" for a in load(path).assumed)
    assert "lr_scheduler" in told
    assert "learning_rate" in told
    assert "own_key" in told
    assert "evaluation" not in told  # axolotl evaluates no rows where none are held out


@pytest.mark.parametrize("name", ["axolotl.yml", "llamafactory.yaml", "litgpt.yaml", "launch.sh"])
def test_a_recorded_job_is_the_same_job_again(name: str) -> None:
    job = load(OWN / name)
    again = resolve_spec(json.loads(job.spec), OWN)
    assert again.origin == job.origin
    assert (again.today, again.global_batch_size) == (job.today, job.global_batch_size)


def test_a_script_is_read_and_never_executed(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    text = (OWN / "sft_script.txt").read_text(encoding="utf-8")
    path = written(tmp_path, "train.py", f"open({str(ran)!r}, 'w')\n{text}")
    job = load(path)
    assert (job.global_batch_size, job.max_length, job.epochs) == (16, 1024, 3.0)
    assert not ran.exists()


def test_a_command_line_is_a_job() -> None:
    job = jobs_of_command(COMMAND, Overrides(gpus=("h100",), stated={"data.rows": 1000}))[0].job
    assert (job.global_batch_size, job.method.rank, job.max_length) == (8, 16, 1024)


def test_the_launcher_says_how_many_devices() -> None:
    job = load(OWN / "launch.sh")
    assert (job.offers[0].count, job.global_batch_size) == (2, 16)


def test_what_is_missing_is_asked_for_by_flag(tmp_path: Path) -> None:
    path = written(tmp_path, "args.json", HF)
    with pytest.raises(InputError) as caught:
        load_jobs(path, Overrides())
    assert caught.value.hint == (
        "add --model NAME --method lora|qlora|full --rows N or --data FILE --gpu NAME"
    )  # fmt: skip


def test_a_flag_does_not_change_what_the_file_says() -> None:
    with pytest.raises(InputError, match="says 2048"):
        load(OWN / "axolotl.yml", data__rows=1000, data__max_length=512)


def test_flags_of_a_trainers_file_beside_a_job_file_are_refused() -> None:
    jobs = Path(__file__).parents[3] / "jobs" / "h100_38h.yaml"
    with pytest.raises(InputError, match="--rows cannot be given beside it"):
        load(jobs)


def test_accelerate_beside_it_gives_devices_and_sharding(tmp_path: Path) -> None:
    config = {"distributed_type": "FSDP", "num_processes": 4, "mixed_precision": "bf16"}
    written(tmp_path, "accelerate.yaml", config)
    job = load_hf(written(tmp_path, "args.json", HF))
    assert (job.global_batch_size, job.offers[0].count) == (32, 4)
    assert job.today.sharding == "fsdp"


@pytest.mark.parametrize(
    ("said", "release", "base"),
    [
        ({"bf16": True}, {}, "32bit"),
        ({"bf16": True}, {"software.accelerate": "0.30.1"}, "32bit"),
        ({"bf16": True}, {"software.accelerate": "0.29.3"}, "16bit"),
        ({"bf16": False, "bfloat16": True}, {}, "16bit"),
    ],
)
def test_a_full_run_under_fsdp_is_priced_in_what_it_trains(
    tmp_path: Path, said: dict[str, bool], release: dict[str, str], base: str
) -> None:
    """Under mixed precision accelerate makes fp32 of what is trained, since 0.30; pure bf16 stays.

    Its pull request 2674.
    """
    text = {
        "base_model": "Qwen/Qwen2.5-7B", "sequence_len": 2048, "micro_batch_size": 1,
        "gradient_accumulation_steps": 4, "fsdp_version": 2,
        "fsdp_config": {"offload_params": False},
        **said,
    }  # fmt: skip
    said_beside = Overrides(("4x a100-80gb",), set_values=release, stated={"data.rows": 1000})
    job = load_jobs(written(tmp_path, "a.yaml", text), said_beside)[0].job
    assert (job.method.kind, job.method.base) == ("full", base)
    noted = [item.value for item in job.assumed if item.key == "method.base"]
    assert noted == (["32bit"] if base == "32bit" else noted)


OWN_STATES = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}


@pytest.mark.parametrize(
    ("bf16", "zero", "read"),
    [
        (OWN_STATES, {}, ZeroSettings(2.0, 2.0)),
        ({}, {"reduce_bucket_size": 2e8, "overlap_comm": True}, ZeroSettings(4.0, 4.0, 2e8, True)),
        ({}, {"reduce_bucket_size": "auto"}, ZeroSettings(bucket_elements=3584.0**2)),
        ({}, {"stage": 1}, ZeroSettings(whole_gradients=True)),
        ({}, {}, ZeroSettings()),
    ],
)
def test_states_and_buckets_of_ones_own_deepspeed_config_are_those_that_are_priced(
    tmp_path: Path, bf16: dict[str, bool], zero: dict[str, object], read: ZeroSettings
) -> None:
    config = {"bf16": {"enabled": True, **bf16}, "zero_optimization": {"stage": 2, **zero}}
    other = written(tmp_path, "deepspeed.json", config)
    job = load_hf(written(tmp_path, "args.json", {**HF, "bf16": True, "deepspeed": str(other)}))
    assert job.zero == read
    assert load_job(written(tmp_path, "again.json", json.loads(job.spec))).zero == read


def test_states_that_deepspeed_would_not_keep_are_refused(tmp_path: Path) -> None:
    config = {"bf16": {"bf16_optimizer_states": True}, "zero_optimization": {"stage": 2}}
    other = written(tmp_path, "deepspeed.json", config)
    path = written(tmp_path, "args.json", {**HF, "deepspeed": str(other)})
    assert "bf16_master_weights_and_grads is true too" in refused(path)


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ({"distributed_type": "DEEPSPEED", "num_processes": 2,
          "deepspeed_config": {"gradient_accumulation_steps": 4, "zero_stage": 2}},
         "gradient_accumulation_steps is 2"),
        ({"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 1},
         "micro_batch_size is 4"),
        ({"zero_optimization": {"stage": 2}, "train_batch_size": 100}, "train_batch_size is 100"),
        ({"zero_optimization": {"stage": 7}}, "must be 0 to 3"),
        ({"who": "knows"}, "neither a config of accelerate"),
    ],
)  # fmt: skip
def test_two_sources_that_contradict_each_other_are_refused(
    tmp_path: Path, beside: dict[str, object], said: str
) -> None:
    other = written(tmp_path, "other.json", beside)
    path = written(tmp_path, "args.json", {**HF, "bf16": True})
    assert said in refused(path, beside=(str(other),))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.yaml", "base_model: x\nsequence_len: 1\ncutoff_len: 2\nstage: sft\n", "two formats"),
        ("a.yaml", "base_model: x\nsequence_len: 9\nhardware: [h100]\n", "mixes axolotl"),
        ("a.yaml", "distributed_type: FSDP\nnum_machines: 1\n", "config of accelerate"),
        ("a.json", '{"zero_optimization": {}}', "config of DeepSpeed"),
        ("a.json", json.dumps({**HF, "gradient_accumulation_steps": "two"}), "whole number"),
        ("a.json", json.dumps({**HF, "bf16": True, "fp16": True}), "both true"),
        ("a.json", json.dumps({**HF, "num_train_epochs": [3]}), "num_train_epochs is a list"),
        ("a.json", json.dumps({**HF, "gradient_checkpointing": True,
                               "activation_checkpointing": False}), "two spellings"),
        ("a.yaml", "base_model: x\nsequence_len: 9\nadapter: qlora\n", "load_in_4bit"),
        ("a.yaml", "base_model: x\nsequence_len: 9\nadapter: [lora]\n", "adapter is a list"),
        ("a.yaml", "base_model: &a x\nsequence_len: *a\n", "aliases and anchors"),
        ("a.yaml", "base_model: !!python/object:os.system x\n", "the tag"),
        ("a.yaml", "%YAML 1.1\n---\nbase_model: x\n", "take the %YAML line out"),
        ("a.yaml", "base_model: x\n? [a, b]\n: c\n", "line 2: a key is a list or a mapping"),
        ("a.yaml", "base_model: x\n3: y\n", "the key 3 is not text"),
        ("a.yaml", "base_model: x\nbase_model: y\n", "line 2"),
        ("a.yaml", "base_model: x\n\tsequence_len: 1\n", "line 2"),
        ("a.yaml", "base_model: x\n---\nbase_model: y\n", "a second document"),
        ("a.json", '{"output_dir": "o", "per_device_train_batch', "line 1: not valid JSON"),
        ("a.json", '{"output_dir": "o", "save_steps": NaN}', "NaN is not a number"),
        ("a.yaml", "base_model: x\nnote: " + "a" * 10_000_000, "larger than 5 MB"),
        ("a.py", "x = '" + "a" * 10_000_000 + "'", "larger than 5 MB"),
        ("a.sh", "# " + "a" * 10_000_000, "larger than 5 MB"),
        ("a.py", "SFTConfig(per_device_train_batch_size=f'{n()}')\n", "must be written out"),
        ("a.py", "SFTConfig(**read('config.json'))\n", "must be written out"),
        ("a.py", "p.add_argument('--n')\nTrainingArguments(num_train_epochs=p.n)\n", "written out"),
        ("a.py", "SFTConfig(\n", "line 1: not valid Python"),
        ("a.py", "x = 1\n", "no TrainingArguments"),
        ("a.py", "import a\na.TrainingArguments(per_device_train_batch_size=n())\n", "written out"),
        ("a.py", "(" * 500 + ")" * 500, "not valid Python"),
        ("a.sh", "echo hello\n", "0 launch commands"),
        ("a.yaml", "model: x\nsft_type: lora\ntuner: x\ndata_seed: 1\n", "neither a job file nor"),
        ("a.ipynb", '{"cells": []}', "a.ipynb has no code cell"),
        ("a.sh", "python t.py --per_device_train_batch_size '4\n", "not closed"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_bad_files_are_refused_with_what_is_wrong(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    assert said in refused(written(tmp_path, name, text))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("", "no --flags"),
        ("python train.py", "no --flags"),
        ("python train.py --lr 3", "no flags of TrainingArguments"),
        (COMMAND + " 'open", "not closed"),
        ("torchrun --nproc_per_node many " + COMMAND[7:], "whole number"),
    ],
)
def test_bad_commands_are_refused_with_what_is_wrong(command: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        jobs_of_command(command, Overrides(gpus=("h100",), stated={"data.rows": 9}))
    assert said in f"{caught.value.message} {caught.value.hint}"


def test_in_place_keeps_the_old_file_and_refuses_a_changed_one(tmp_path: Path) -> None:
    before = (OWN / "axolotl.yml").read_text(encoding="utf-8")
    path = written(tmp_path, "axolotl.yml", before)
    path.chmod(0o640)
    job = load(path)
    found = patched("same", job, job.offers[0], job.today.with_knobs(compile="default"))
    backup = replace_in_place(found, str(path), before)
    assert backup.read_text(encoding="utf-8") == before
    assert "torch_compile: true" in path.read_text(encoding="utf-8")
    assert path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(InputError, match="changed since it was read"):
        replace_in_place(found, str(path), before)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["axolotl.yml", "axolotl.yml.bak"]


def test_in_place_needs_a_file_of_a_trainer() -> None:
    command = jobs_of_command(COMMAND, Overrides(gpus=("h100",), stated={"data.rows": 9}))[0].job
    with pytest.raises(InputError, match="not in a file"):
        check_in_place(command)
    jobs = Path(__file__).parents[3] / "jobs" / "h100_38h.yaml"
    with pytest.raises(InputError, match="not read from one"):
        check_in_place(load_jobs(jobs, Overrides())[0].job)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
    | st.sampled_from(["auto", "true", "sdpa", "lora", "qlora", "epoch", "1e400", "-1", "0.5"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip
KEYS = [
    "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps",
    "max_length", "max_seq_length", "packing", "bf16", "fp16", "tf32", "optim", "save_steps",
    "save_strategy", "save_total_limit", "torch_compile", "torch_compile_mode", "lora_r",
    "lora_alpha", "lora_target_modules", "load_in_4bit", "model_init_kwargs", "dtype",
    "gradient_checkpointing", "dataloader_num_workers", "eval_strategy", "eval_steps", "fsdp",
    "deepspeed", "base_model", "adapter", "micro_batch_size", "batch_size", "sequence_len",
    "num_epochs", "flash_attention", "saves_per_epoch", "val_set_size", "lora_target_linear",
    "finetuning_type", "cutoff_len", "stage", "quantization_bit", "flash_attn", "lora_rank",
    "lora_target", "checkpoint_dir", "train", "model", "tokenizer", "data", "use_peft", "devices",
    "quantize", "attn_implementation", "train_sampling_strategy", "group_by_length",
]  # fmt: skip
BASES: list[dict[str, object]] = [
    dict(HF),
    {"base_model": "Qwen/Qwen2.5-7B", "sequence_len": 512, "adapter": "lora"},
    {"model_name_or_path": "Qwen/Qwen2.5-7B", "finetuning_type": "lora", "cutoff_len": 512},
    {"model": {"_component_": "torchtune.models.lora_x"}, "batch_size": 2},
    {"checkpoint_dir": "Qwen/Qwen2.5-7B", "train": {"micro_batch_size": 1}, "lora_r": 8},
]


@settings(max_examples=150, deadline=None)
@given(base=st.sampled_from(BASES), more=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5))
def test_a_fuzzed_file_is_a_job_or_an_input_error(
    tmp_path_factory: pytest.TempPathFactory, base: dict[str, object], more: dict[str, object]
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.json"
    path.write_text(json.dumps({**base, **more}, default=str), encoding="utf-8")
    stated = {k: v for k, v in STATED.items() if k != "model" or "model" not in {**base, **more}}
    for keys in ({"data.rows": 1000}, stated):
        try:
            job = load_jobs(path, Overrides(gpus=("h100",), stated=keys))[0].job
        except InputError:
            continue
        if job.origin is not None and job.today is not None:
            with contextlib.suppress(InputError):
                patched("same", job, job.offers[0], job.today)
        return


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=200) | st.lists(
    st.sampled_from(["--bf16", "--optim", "--save_steps", "=", "'", '"', "\\", "\n", "{", "4",
                     "x.py", "--per_device_train_batch_size", " ", "--no_bf16",
                     "--model_init_kwargs"]),
    max_size=20).map(" ".join))  # fmt: skip
def test_a_fuzzed_command_or_script_is_a_job_or_an_input_error(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    overrides = Overrides(gpus=("h100",), stated=STATED)
    path = tmp_path_factory.getbasetemp() / "fuzz.py"
    path.write_text(f"SFTConfig({text})", encoding="utf-8", errors="ignore")
    with contextlib.suppress(InputError):
        assert jobs_of_command(text, overrides)
    with contextlib.suppress(InputError):
        assert load_jobs(path, overrides)


def test_of_a_flag_given_twice_the_last_is_priced_and_both_are_said() -> None:
    command = COMMAND + " --per_device_train_batch_size 3"
    job = jobs_of_command(command, Overrides(gpus=("h100",), stated={"data.rows": 9}))[0].job
    assert job.today.micro_batch_size == 3
    said = [each for each in job.origin.uncounted if "takes the last" in each.why]
    assert len(said) == 1
    assert "--per_device_train_batch_size" in str(said[0].value)


@pytest.mark.parametrize("data", ["--data JSON --data.json_path r.json",
                                  "--data.json_path r.json --data JSON"])  # fmt: skip
def test_litgpt_takes_a_class_of_data_and_its_arguments_in_either_order(data: str) -> None:
    command = f"litgpt finetune_lora Qwen/Qwen2.5-0.5B {data} --train.micro_batch_size 2"
    job = jobs_of_command(command, Overrides(gpus=("h100",), stated={"data.rows": 9}))[0].job
    assert job.today.micro_batch_size == 2


@pytest.mark.parametrize("stated", [True, False, None])
def test_gradients_reduced_after_every_micro_step_are_read(
    tmp_path: Path, stated: bool | None
) -> None:
    kwargs = {"accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": stated}}}
    path = written(tmp_path, "args.json", {**HF, "fsdp": "full_shard", **kwargs})
    assert load_hf(path, gpus=("h100:4",)).software.syncs_each_batch is (stated is True)
    text = (OWN / "axolotl.yml").read_text(encoding="utf-8") + json.dumps(kwargs)[1:-1] + "\n"
    own = written(tmp_path, "axolotl.yml", text)
    assert load(own).software.syncs_each_batch is (stated is True)


@pytest.mark.parametrize("kind", ["freeze", "oft"])
def test_ways_to_train_that_are_priced_as_another_ask_which(tmp_path: Path, kind: str) -> None:
    text = f"model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\nfinetuning_type: {kind}\n"
    path = written(tmp_path, "factory.yaml", f"{text}cutoff_len: 512\nbf16: true\n")
    with pytest.raises(InputError, match=f"finetuning_type {kind} is counted as") as refused:
        load(path)
    assert "--method lora|qlora|full" in str(refused.value.hint)
    for method in ("lora", "full"):
        job = load(path, data__rows=1000, method__kind=method)
        assert job.method.kind == method
        (told,) = job.origin.uncounted
        assert (told.key, told.value) == ("finetuning_type", kind)
        assert min(told.time_sd, told.memory_sd) > 0.1
    odd = written(tmp_path, "odd.yaml", text.replace(kind, "magic"))
    assert "lora, full, freeze and oft" in refused_by(odd)


def refused_by(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load(path)
    return f"{caught.value.message} {caught.value.hint}"
