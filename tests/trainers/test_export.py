from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from exportcases import FULL, LORA, SOFTWARE, config, evaluation, job, offer, with_base
from hypothesis import given
from hypothesis import strategies as st

from autotune.app.runs.export import Export, check_target, export
from autotune.domain.errors import InputError
from autotune.domain.outcome import DiskUse

if TYPE_CHECKING:
    from pathlib import Path

ARGUMENTS = {"hf": "training_args.json", "trl": "sft_config.json"}
TARGETS = sorted(ARGUMENTS)


def arguments(exported: Export) -> dict[str, Any]:
    (name,) = [name for name in exported.files if name.endswith(".json")]
    loaded: dict[str, Any] = json.loads(exported.files[name])
    return loaded


def settings(exported: Export) -> dict[str, Any]:
    """The constants of train.py, without importing what it imports."""
    block = exported.files["train.py"].partition("\nMODEL = ")[2].partition("\n\nMODEL = ")[0]
    found: dict[str, Any] = {}
    exec("MODEL = " + block, found)  # noqa: S102 - our own text
    return found


def processes(exported: Export) -> int:
    found = re.search(r"^num_processes: (\d+)$", exported.files["accelerate.yaml"], re.MULTILINE)
    assert found
    return int(found[1])


@pytest.mark.parametrize("target", TARGETS)
def test_the_files_are_written_under_their_names(target: str) -> None:
    exported = export(target, job(), offer(), config())
    expected = {ARGUMENTS[target], "train.py", "accelerate.yaml", "run.sh"}
    assert set(exported.files) == {*expected, "prepare.py"}
    ready = export(target, job(pretokenized=True), offer(), config())
    assert set(ready.files) == expected
    assert all(text.endswith("\n") for text in exported.files.values())


@pytest.mark.parametrize(("typo", "close"), [("trll", "trl"), ("hff@5.10.0", "hf")])
def test_unknown_target_names_the_close_one(typo: str, close: str) -> None:
    with pytest.raises(InputError, match=f"did you mean {close}"):
        export(typo, job(), offer(), config())


@pytest.mark.parametrize("target", ["hf@", "hf@five", "hf@5..1", "trl@-1", "trl@1.9.0rc1"])
def test_a_version_that_is_no_version_is_refused(target: str) -> None:
    with pytest.raises(InputError, match="must be numbers joined by dots"):
        check_target(target, job())


@pytest.mark.parametrize(
    ("target", "known"),
    [
        ("hf@4.30.0", "4.57 to 5.23"), ("hf@5.24", "4.57 to 5.23"), ("hf@52.3", "4.57 to 5.23"),
        ("trl@0.9.0", "1.0 to 1.16"), ("trl@2", "1.0 to 1.16"), ("axolotl@0.11", "0.12 to 0.21"),
        ("axolotl@0.22.0", "0.12 to 0.21"), ("llamafactory@0.9", "0.9.4 to 0.9.5"),
        ("litgpt@0.6", "0.5 to 0.5.13"), ("unsloth@2025.1", "2026.10"),
    ],
)  # fmt: skip
def test_a_version_that_was_not_read_is_refused_with_the_known_range(
    target: str, known: str
) -> None:
    with pytest.raises(InputError, match="is not known") as caught:
        export(target, job(), offer(), config())
    assert caught.value.hint == f"known: {known}"


@pytest.mark.parametrize("target", ["hf@4.57", "hf@5", "hf@5.23.9", "trl@1.16.2", "axolotl@0.19"])
def test_every_version_of_the_known_range_is_written(target: str) -> None:
    check_target(target, job())


def test_trl_without_a_version_anywhere_is_refused_and_a_stated_one_is_taken() -> None:
    bare = job(software=replace(SOFTWARE, trl=None))
    with pytest.raises(InputError, match="has no TRL"):
        check_target("trl", bare)
    check_target("trl@1.16.0", bare)


def test_software_newer_than_every_checked_one_is_noted() -> None:
    newer = job(software=replace(SOFTWARE, transformers=(5, 24, 0)))
    assert any("newer than 5.23" in note for note in export("hf", newer, offer(), config()).notes)
    assert not any("newer" in note for note in export("hf", job(), offer(), config()).notes)


def test_software_older_than_every_checked_one_is_refused() -> None:
    older = job(software=replace(SOFTWARE, transformers=(4, 40, 0)))
    with pytest.raises(InputError, match=r"older than 4\.57"):
        export("hf", older, offer(), config())


@given(
    micro=st.integers(1, 64),
    accumulation=st.integers(1, 64),
    count=st.sampled_from([1, 2, 4, 8]),
    target=st.sampled_from(TARGETS),
)
def test_the_global_batch_read_back_from_the_files_is_the_jobs(
    micro: int, accumulation: int, count: int, target: str
) -> None:
    batch = micro * accumulation * count
    exported = export(
        target,
        job(global_batch_size=batch),
        offer(count),
        config(
            micro_batch_size=micro,
            gradient_accumulation_steps=accumulation,
            sharding="none" if count == 1 else "ddp",
        ),
    )
    read = arguments(exported)
    product = (
        read["per_device_train_batch_size"]
        * read["gradient_accumulation_steps"]
        * processes(exported)
    )
    assert product == batch == settings(exported)["GLOBAL_BATCH_SIZE"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_split_that_changes_the_global_batch_is_refused(target: str) -> None:
    with pytest.raises(InputError, match="is 6, but the job's global_batch_size is 8"):
        export(target, job(), offer(), config(micro_batch_size=3))


@pytest.mark.parametrize(
    ("count", "sharding", "words"),
    [(2, "none", "uses one device"), (1, "ddp", "at least two"), (1, "zero3", "at least two")],
)
def test_sharding_must_fit_the_number_of_devices(count: int, sharding: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        export("hf", job(), offer(count), config(sharding=sharding))


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_full_width_arithmetic_needs_a_32bit_base(precision: str) -> None:
    with pytest.raises(InputError, match="needs base 32bit"):
        export("hf", job(), offer(), config(precision=precision))


@pytest.mark.parametrize("target", TARGETS)
def test_adapter_and_length_settings_are_exact(target: str) -> None:
    exported = export(target, job(), offer(), config())
    found = settings(exported)
    assert found["LORA"] == {
        "r": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.05,
        "target_modules": ["q_proj", "v_proj", "down_proj"],
    }
    read = arguments(exported)
    assert read["num_train_epochs"] == 3
    assert (read["max_length"] if target == "trl" else found["MAX_LENGTH"]) == 48
    assert read["save_steps"] == 10
    assert read["save_total_limit"] == 2


def test_full_training_has_no_adapter() -> None:
    assert settings(export("hf", job(FULL), offer(), config()))["LORA"] is None


def test_steps_are_written_only_when_epochs_do_not_give_them() -> None:
    assert "max_steps" not in arguments(export("hf", job(), offer(), config()))
    stated = export("hf", job(steps=10), offer(), config())
    assert arguments(stated)["max_steps"] == 10
    assert any("max_steps 10" in note and "24 steps" in note for note in stated.notes)


@pytest.mark.parametrize(
    ("precision", "base", "flags", "dtype"),
    [
        ("bf16", "16bit", (True, False, None), "bfloat16"),
        ("fp16", "16bit", (False, True, None), "float16"),
        ("tf32", "32bit", (False, False, True), "float32"),
        ("fp32", "32bit", (False, False, False), "float32"),
        ("bf16", "32bit", (True, False, None), "float32"),
    ],
)
@pytest.mark.parametrize("target", TARGETS)
def test_precision_becomes_flags_and_a_dtype(
    target: str, precision: str, base: str, flags: tuple[bool | None, ...], dtype: str
) -> None:
    exported = export(target, job(with_base(LORA, base)), offer(), config(precision=precision))
    read = arguments(exported)
    assert (read["bf16"], read["fp16"], read.get("tf32")) == flags
    assert settings(exported)["WEIGHTS_DTYPE"] == dtype
    if target == "trl":
        assert read["model_init_kwargs"]["dtype"] == dtype


def test_adapters_stay_fp32_under_fp16_and_the_note_says_so() -> None:
    exported = export("hf", job(), offer(), config(precision="fp16", adapter_dtype="bf16"))
    assert settings(exported)["ADAPTER_DTYPE"] == "float32"
    assert any("gradient scaler" in note for note in exported.notes)
    bf16 = export("hf", job(), offer(), config(adapter_dtype="bf16"))
    assert settings(bf16)["ADAPTER_DTYPE"] == "bfloat16"


def test_compile_mode_is_absent_when_compile_is_off() -> None:
    off = arguments(export("hf", job(), offer(), config()))
    assert off["torch_compile"] is False
    assert "torch_compile_mode" not in off
    on = arguments(export("hf", job(), offer(), config(compile="max-autotune")))
    assert (on["torch_compile"], on["torch_compile_mode"]) == (True, "max-autotune")


def test_prefetch_is_absent_without_workers_and_forks_are_safe_with_them() -> None:
    none = export("hf", job(), offer(), config())
    assert "dataloader_prefetch_factor" not in arguments(none)
    assert "TOKENIZERS_PARALLELISM" not in none.files["run.sh"]
    some = export("hf", job(), offer(), config(num_dataloader_workers=4, prefetch_factor=3))
    assert arguments(some)["dataloader_prefetch_factor"] == 3
    assert "TOKENIZERS_PARALLELISM=false" in some.files["run.sh"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_cpu_offer_uses_the_cpu_and_nothing_of_a_gpu(target: str) -> None:
    method = with_base(LORA, "32bit")
    exported = export(target, job(method), offer(cpu=True), config(precision="tf32"), DiskUse(), "")
    read = arguments(exported)
    assert read["use_cpu"] is True
    assert read["dataloader_pin_memory"] is False
    assert "tf32" not in read
    assert "use_cpu: true" in exported.files["accelerate.yaml"]
    assert "export CUDA_VISIBLE_DEVICES=" not in exported.files["run.sh"]
    assert "expandable_segments" not in exported.files["run.sh"]
    assert any("tf32 does not exist" in note for note in exported.notes)


@pytest.mark.parametrize(
    ("torch", "name"),
    [
        ((2, 13, 0), "PYTORCH_ALLOC_CONF"),
        ((2, 11), "PYTORCH_ALLOC_CONF"),
        ((2, 9, 1), "PYTORCH_CUDA_ALLOC_CONF"),
        ((2, 8, 0), "PYTORCH_CUDA_ALLOC_CONF"),
    ],
)
def test_the_allocator_variable_follows_torch_and_the_risk(torch: Any, name: str) -> None:
    risky = job(software=replace(SOFTWARE, torch=torch))
    text = export("hf", risky, offer(), config(), risk="too near").files["run.sh"]
    assert f'export {name}="${{{name}:-expandable_segments:True}}"' in text
    assert "# segments that grow leave fewer gaps: too near" in text
    assert "expandable" not in export("hf", risky, offer(), config()).files["run.sh"]


def test_segments_do_not_grow_where_they_fail() -> None:
    windows = offer()
    windows = replace(windows, host=replace(windows.host, wsl=True))
    text = export("hf", job(), windows, config(), risk="too near").files["run.sh"]
    assert "expandable" not in text
    assert "WSL2" in text
    old = job(software=replace(SOFTWARE, torch=(2, 0, 1)))
    assert "expandable" not in export("hf", old, offer(), config(), risk="near").files["run.sh"]


def test_the_disk_check_asks_for_what_the_bill_says_and_names_it() -> None:
    text = export("hf", job(), offer(), config(), DiskUse(3, 2**30, 2**29)).files["run.sh"]
    assert f"need_bytes={3 * 2**30 + 2**29}\n" in text
    assert "# at once: 3 checkpoints of 1.0 GiB and the final model of 512.0 MiB\n" in text
    assert "need_bytes" not in export("hf", job(), offer(), config()).files["run.sh"]


@pytest.mark.parametrize(
    ("version", "present", "absent"),
    [
        ("4.57.6", "gradient_checkpointing", "activation_checkpointing"),
        ("5.22.0", "gradient_checkpointing", "activation_checkpointing"),
        ("5.23.0", "activation_checkpointing", "gradient_checkpointing"),
        ("5.1.0", "group_by_length", "train_sampling_strategy"),
        ("5.2.0", "train_sampling_strategy", "group_by_length"),
    ],
)
def test_an_argument_is_spelled_as_the_version_has_it(
    version: str, present: str, absent: str
) -> None:
    read = arguments(export(f"hf@{version}", job(), offer(), config(length_grouping="on")))
    assert present in read
    assert absent not in read


def test_fsdp_is_a_bool_where_it_can_be_and_left_to_accelerate_before() -> None:
    sharded = config(
        sharding="fsdp", activation_checkpointing="full", gradient_accumulation_steps=1
    )
    new = export("hf@5.10.0", job(), offer(2), sharded)
    read = arguments(new)
    assert read["fsdp"] is True
    assert read["fsdp_config"]["version"] == 2
    assert read["fsdp_config"]["activation_checkpointing"] is True
    assert read["gradient_checkpointing"] is False
    old = export("hf@5.9.0", job(), offer(2), sharded)
    assert "fsdp" not in arguments(old)
    assert "fsdp_version: 2" in old.files["accelerate.yaml"]
    assert any("start with run.sh" in note for note in old.notes)


def test_16bit_trained_weights_are_not_widened_by_fsdp() -> None:
    sharded = config(sharding="fsdp", gradient_accumulation_steps=1)
    exported = export("hf", job(FULL), offer(2), sharded)
    assert arguments(exported)["bf16"] is False
    assert 'mixed_precision: "no"' in exported.files["accelerate.yaml"]
    assert settings(exported)["WEIGHTS_DTYPE"] == "bfloat16"
    assert any("on purpose" in note for note in exported.notes)
    adapters = export("hf", job(), offer(2), sharded)
    assert arguments(adapters)["bf16"] is True


def test_only_zero3_with_adapters_takes_reentrant_checkpointing() -> None:
    def reentrant(sharding: str, count: int) -> bool:
        chosen = config(
            sharding=sharding,
            activation_checkpointing="full",
            gradient_accumulation_steps=2 // count,
        )
        read = arguments(export("hf", job(), offer(count), chosen))
        kwargs: dict[str, bool] = read["activation_checkpointing_kwargs"]
        return kwargs["use_reentrant"]

    assert [reentrant("none", 1), reentrant("ddp", 2), reentrant("zero3", 2)] == [
        False,
        False,
        True,
    ]


def test_evaluation_by_steps_or_once_at_the_end() -> None:
    by_steps = export("hf", job(evaluation=evaluation(5)), offer(), config())
    read = arguments(by_steps)
    assert (read["eval_strategy"], read["eval_steps"]) == ("steps", 5)
    assert read["per_device_eval_batch_size"] == 2
    assert settings(by_steps)["EVAL_AT_END"] is False
    once = export("hf", job(evaluation=evaluation(0)), offer(), config())
    assert arguments(once)["eval_strategy"] == "no"
    assert settings(once)["EVAL_AT_END"] is True
    only = export("hf", job(evaluation=evaluation(5), steps=0, epochs=0.0), offer(), config())
    assert settings(only)["TRAIN"] is False
    assert settings(only)["EVAL_AT_END"] is True


def test_generation_during_evaluation_is_a_note() -> None:
    generating = replace(evaluation(), generate_tokens=384)
    notes = export("hf", job(evaluation=generating), offer(), config()).notes
    assert any("generating 384 tokens" in note for note in notes)


def test_packing_is_trls_alone() -> None:
    packed = config(packing="on")
    assert any("no packing" in note for note in export("hf", job(), offer(), packed).notes)
    exported = export("trl", job(), offer(), packed)
    read = arguments(exported)
    assert (read["packing"], read["packing_strategy"]) == (True, "bfd")
    assert any("without flash attention" in note for note in exported.notes)


def test_padding_to_max_length_is_kept() -> None:
    padded = job(padding="max_length")
    assert settings(export("hf", padded, offer(), config()))["PADDING"] == "max_length"
    assert arguments(export("trl", padded, offer(), config()))["pad_to_multiple_of"] == 48
    assert "pad_to_multiple_of" not in arguments(export("trl", job(), offer(), config()))


@pytest.mark.parametrize(
    ("target", "loss", "words"),
    [
        ("hf", "chunked", "more memory"),
        ("trl@1.6.0", "upcast", "less memory"),
        ("trl@1.5.0", "chunked", "more memory"),
    ],
)
def test_a_loss_other_than_the_predicted_one_is_noted(target: str, loss: str, words: str) -> None:
    profile = replace(SOFTWARE, loss=loss)  # type: ignore[arg-type]
    notes = export(target, job(software=profile), offer(), config()).notes
    assert any(words in note for note in notes)


def test_the_learning_rate_is_the_trainers_and_the_note_says_whose_it_is() -> None:
    for target, rate in (("hf", 5e-5), ("trl", 2e-5)):
        exported = export(target, job(), offer(), config())
        assert arguments(exported)["learning_rate"] == rate
        assert any("learning rate" in note and "yours" in note for note in exported.notes)


def test_spot_machines_save_when_taken_away_and_go_on() -> None:
    spot = export("hf", job(), offer(spot=True), config())
    assert arguments(spot)["enable_jit_checkpoint"] is True
    assert 'RESUME="${RESUME:-1}"' in spot.files["run.sh"]
    assert 'RESUME="${RESUME:-0}"' in export("hf", job(), offer(), config()).files["run.sh"]
    old = export("hf@4.57.6", job(), offer(spot=True), config())
    assert "enable_jit_checkpoint" not in arguments(old)
    assert any("taken away" in note for note in old.notes)


@given(
    precision=st.sampled_from(["bf16", "fp16"]),
    attention=st.sampled_from(["eager", "sdpa", "flash_attention_2"]),
    base=st.sampled_from(["16bit", "32bit", "int8", "nf4"]),
    method=st.sampled_from([LORA, FULL]),
    name=st.text(min_size=1, max_size=30),
    target=st.sampled_from(TARGETS),
)
def test_every_script_is_valid_python_whatever_the_names(
    precision: str, attention: str, base: str, method: Any, name: str, target: str
) -> None:
    if method is FULL and (base in {"int8", "nf4"} or precision == "fp16"):
        base = "32bit"
    odd = job(with_base(method, base), name=name, dataset_path=name)
    odd = replace(odd, model=replace(odd.model, name=name))
    exported = export(target, odd, offer(), config(precision=precision, attention=attention))
    compile(exported.files["train.py"], "train.py", "exec")
    assert settings(exported)["MODEL"] == name
    assert "@" not in re.findall(r"^# @.*@$", exported.files["train.py"], re.MULTILINE)


def test_a_model_beside_the_job_file_is_found_from_where_run_sh_starts(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "rows.jsonl").write_text("{}")
    beside = job(base_dir=str(tmp_path), dataset_path=str(tmp_path / "rows.jsonl"))
    beside = replace(beside, model=replace(beside.model, name="tiny"))
    exported = export("hf", beside, offer(), config())
    assert settings(exported)["MODEL"] == str(tmp_path / "tiny")
    assert f'MODEL="$(found {tmp_path / "tiny"} model)"' in exported.files["run.sh"]
    assert (
        f'base_model: "{tmp_path / "tiny"}"'
        in (export("axolotl", beside, offer(), config()).files["axolotl.yml"])
    )


def test_unsloth_takes_one_gpu() -> None:
    for where, sharding in ((offer(2), "ddp"), (offer(cpu=True), "none")):
        split = config(sharding=sharding, gradient_accumulation_steps=2 // where.count)
        with pytest.raises(InputError, match="run on one GPU"):
            export("unsloth", job(), where, split)


def test_a_trainer_that_is_only_read_says_so() -> None:
    with pytest.raises(InputError, match="torchtune is read and given back, but not written"):
        check_target("torchtune", job())
