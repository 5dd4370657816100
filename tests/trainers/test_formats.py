"""Every format: only keys that its trainer has, the job unchanged, and what it cannot say, said."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pytest
from exportcases import FILE_OF, FULL, LORA, config, evaluation, job, offer, values_of, with_base
from hypothesis import given, settings
from hypothesis import strategies as st
from ownfiles import FILES, FOLDER

from autotune.app.job.load import load_jobs
from autotune.app.job.overrides import Overrides
from autotune.domain.config import KNOBS
from autotune.domain.errors import InputError
from autotune.trainers.export import export
from autotune.trainers.registry import FORMATS, TRAINERS
from autotune.trainers.schema import schema_of
from autotune.trainers.versions import parse_version

if TYPE_CHECKING:
    from autotune.domain.config import Config
    from autotune.domain.job import Job
    from autotune.trainers.base import Export
    from autotune.trainers.parsed import Parsed
    from autotune.trainers.schema import Schema

MLP = ("q_proj", "v_proj", "gate_proj", "up_proj", "down_proj")
METHODS = {
    "lora": replace(LORA, targets=MLP), "nf4": replace(LORA, base="nf4", targets=("q_proj",)),
    "full": FULL,
}  # fmt: skip
TARGETS = [
    "hf@4.57", "hf@5.2", "hf@5.10", "hf@5.23", "trl@1.0", "trl@1.16", "axolotl@0.12",
    "axolotl@0.17", "axolotl@0.19", "llamafactory@0.9.4", "llamafactory@0.9.5", "litgpt@0.5.13",
]  # fmt: skip


UNASKED = {"litgpt": [("attention", "sdpa")], "unsloth": [("attention", "sdpa")]}


def dotted(values: dict[str, Any], schema: Schema, above: str = "") -> dict[str, Any]:
    """Every key, those inside a mapping as well where the schema lists them."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = above + key
        found[name] = value
        if isinstance(value, dict) and any(known.startswith(f"{name}.") for known in schema.keys):
            found |= dotted(value, schema, f"{name}.")
    return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("method", METHODS)
def test_every_key_that_is_written_is_one_of_the_trainer(target: str, method: str) -> None:
    schema = schema_of(target.partition("@")[0])
    for knobs in (
        config(length_grouping="on", compile="default", num_dataloader_workers=2),
        config(activation_checkpointing="full", optimizer="paged_adamw_8bit"),
    ):
        what = job(METHODS[method], evaluation=evaluation(), padding="max_length")
        values = dotted(values_of(target, export(target, what, offer(), knobs)), schema)
        unknown = [key for key in values if schema.find(key) is None]
        assert unknown == []
        wrong = {
            key: value
            for key, value in values.items()
            if not getattr(schema.find(key), "admits", bool)(value)
        }
        assert wrong == {}


@pytest.mark.parametrize("method", METHODS)
def test_every_argument_of_unsloths_calls_is_one_of_them(method: str) -> None:
    text = export("unsloth", job(METHODS[method]), offer(), config()).files["unsloth_train.py"]
    calls = {
        getattr(node.func, "attr", getattr(node.func, "id", "")): node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
    }
    named = {name: {str(k.arg) for k in call.keywords} for name, call in calls.items()}
    schema = schema_of("unsloth")
    assert all(schema_of("trl").find(key) for key in named["SFTConfig"])
    assert all(schema.find(key) for key in named["from_pretrained"])
    assert ("get_peft_model" in named) is (method != "full")
    assert all(schema.find(key) for key in named.get("get_peft_model", ()))


@pytest.mark.parametrize("target", ["hf@4.57", "hf@5.0", "hf@5.10", "hf@5.20", "hf@5.23"])
def test_no_argument_is_written_that_the_version_does_not_have(target: str) -> None:
    schema, version = schema_of("hf"), parse_version(target.partition("@")[2], target)
    knobs = config(length_grouping="on", activation_checkpointing="full", compile="default")
    values = values_of(target, export(target, job(), offer(spot=True), knobs))
    for name in values:
        key = schema.find(name)
        assert key is not None
        since, until = (text.rpartition(" ")[2] for text in (key.since, key.until))
        assert not since or parse_version(since, name)[:2] <= version, name
        assert not until or parse_version(until, name)[:2] >= version, name


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("knob", KNOBS)
def test_each_value_of_each_knob_is_written_or_its_absence_said(target: str, knob: str) -> None:
    """What is read back is the value, or a note names the knob or the value."""
    plain = config()
    choices = (True, False) if knob == "pin_memory" else KNOBS[knob].choices or (1, 2, 4, 8)
    for value in choices:
        knobs, count, method = _with(plain, knob, value)
        what = job(method, offers=(offer(count),))
        try:
            made = export(target, what, offer(count), knobs)
        except InputError:
            continue  # refused with a reason
        values = values_of(target, made)
        read = TRAINERS[target].read(values, target).meaning
        said = " ".join(made.notes).casefold()
        rest = " ".join(text for name, text in made.files.items() if name != FILE_OF[target])
        assert (
            read.get(knob) == value
            or knob in said
            or (isinstance(value, str) and value.replace("_", " ") in said)
            or _in_the_rest(knob, value, rest)
            or (knob, value) in UNASKED.get(target, ())
            or (value == "fp32" and values["bf16"] is values["fp16"] is values["tf32"] is False)
            or (value == "tf32" and values["tf32"] is True)
            or (knob == "adapter_dtype" and values.get("pure_bf16") is True)
            or (knob, value) == ("compile_scope", "model")  # what every trainer does
            or (knob == "compile_scope" and "cannot say compile" in said)
        ), (value, made.notes)


OFFLOADS_WITH: dict[Any, dict[str, Any]] = {
    "optimizer": {"sharding": "zero2"}, "all": {"sharding": "fsdp"},
    "activations": {"activation_checkpointing": "full"},
}  # fmt: skip


def _with(plain: Config, knob: str, value: Any) -> tuple[Config, int, Any]:
    """A config of the job with that knob, on as many devices as it needs."""
    beside = OFFLOADS_WITH.get(value, {}) if knob == "offload" else {}
    several = (knob == "sharding" and value != "none") or "sharding" in beside
    count = 2 if several else 1
    method = with_base(LORA, "32bit") if value in {"fp32", "tf32"} else METHODS["nf4"]
    split = {"micro_batch_size": 4, "gradient_accumulation_steps": 2 // count}
    if knob in split:
        split = {"micro_batch_size": 8 // value, "gradient_accumulation_steps": 8 // value}
        split[knob] = value
    workers = 2 if knob in {"prefetch_factor", "pin_memory"} else 0
    if knob == "compile_scope":
        split["compile"] = "default"
    return (
        plain.with_knobs(**{"num_dataloader_workers": workers, **split, **beside, knob: value}),
        count,
        method,
    )


def _in_the_rest(knob: str, value: object, rest: str) -> bool:
    """Whether train.py, the launcher's file or DeepSpeed's says it."""
    if knob == "attention":
        return f'ATTENTION = "{value}"' in rest
    if knob == "adapter_dtype":
        return f'ADAPTER_DTYPE = "{"float32" if value == "fp32" else "bfloat16"}"' in rest
    if knob == "compile_scope":
        return value == "regional" and "dynamo_use_regional_compilation: true" in rest
    if knob == "offload":
        said = {
            "optimizer": ('offload_optimizer_device: "cpu"', '"offload_optimizer"'),
            "all": ("fsdp_offload_params: true",),
        }
        return any(text in rest for text in said.get(str(value), ()))
    if knob == "sharding":
        words = {
            "none": "", "ddp": "CUDA_VISIBLE_DEVICES:-0,1", "fsdp": "FSDP",
            "zero2": '"stage": 2', "zero3": '"stage": 3',
        }  # fmt: skip
        staged = f"zero_stage: {str(value)[-1]}"
        return words[str(value)] in rest or staged in rest
    return False


@lru_cache
def own_job(name: str) -> Job:
    """The job of one of the users' files."""
    path = FOLDER / name
    rows = {"data.rows": 1000, "model": "Qwen/Qwen2.5-7B", "method.kind": "lora"}
    for stated in (rows, {"data.rows": 1000}):
        try:
            return load_jobs(path, Overrides(gpus=("h100:1",), stated=stated))[0].job
        except InputError as error:
            last = error
    raise last


YAMLS = sorted(name for name in FILES if not name.endswith(".txt"))


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(YAMLS),
    target=st.sampled_from(sorted(FORMATS)),
    divisor=st.integers(0, 3),
    workers=st.sampled_from([0, 2]),
    checkpointing=st.sampled_from(["none", "full"]),
)
def test_from_any_file_into_any_format_the_job_is_the_same(
    name: str, target: str, divisor: int, workers: int, checkpointing: str
) -> None:
    found = own_job(name)
    count = found.offers[0].count
    each = found.global_batch_size // count
    micro = 2**divisor if each % 2**divisor == 0 else 1
    knobs = config(
        micro_batch_size=micro, gradient_accumulation_steps=each // micro,
        num_dataloader_workers=workers, activation_checkpointing=checkpointing,
        sharding="none" if count == 1 else "ddp", packing="off",
    )  # fmt: skip
    try:
        made = export(target, found, found.offers[0], knobs)
    except InputError:
        return  # a contract that the format has no words for: refused, with what it is
    again = TRAINERS[target].read(values_of(target, made), target)
    assert again.batch_on(count) == found.global_batch_size
    _same_contract(found, again, target, made)


def _same_contract(found: Job, again: Parsed, target: str, made: Export) -> None:
    """Length, epochs or steps, rank, alpha, targets and base: bit-identical where it says them."""
    train = again.values["train"]
    assert train in ({"epochs": found.epochs}, {"steps": found.steps})
    method, data = again.values.get("method", {}), again.values.get("data", {})
    if target in {"hf", "trl"}:  # these stand in train.py
        script = made.files["train.py"]
        assert f"MAX_LENGTH = {found.max_length}" in script or target == "trl"
        assert f'BASE = "{found.method.base}"' in script
        if found.method.is_lora:
            assert f'"r": {found.method.rank},' in script
            assert json.dumps(list(found.method.targets)) in script
        assert data.get("max_length", found.max_length) == found.max_length
        return
    assert data["max_length"] == found.max_length
    assert method["kind"] == found.method.kind
    if found.method.is_lora:
        stated = (method["rank"], method["alpha"], set(method["targets"]))
        wanted = (found.method.rank, found.method.alpha, set(found.method.targets))
        assert stated == wanted
        assert (method.get("base") or "16bit") == found.method.base
