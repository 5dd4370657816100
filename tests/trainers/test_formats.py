"""From any file into any format: only arguments that the version has, and the job unchanged."""

from __future__ import annotations

import ast
import json
from functools import lru_cache
from typing import TYPE_CHECKING

import pytest
from contract import METHODS
from exportcases import config, job, offer, values_of
from hypothesis import given, settings
from hypothesis import strategies as st
from ownfiles import FILES, FOLDER

from autotune.app.job.load import load_jobs
from autotune.app.runs.export import export
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides
from autotune.trainers.registry import FORMATS, TRAINERS
from autotune.trainers.schema import schema_of
from autotune.trainers.versions import parse_version

if TYPE_CHECKING:
    from autotune.domain.job import Job
    from autotune.trainers.contract import Export
    from autotune.trainers.parsed import Parsed


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
    values = values_of("hf", export(target, job(), offer(spot=True), knobs))
    for name in values:
        key = schema.find(name)
        since, until = (text.rpartition(" ")[2] for text in (key.since, key.until))
        assert not since or parse_version(since, name)[:2] <= version, name
        assert not until or parse_version(until, name)[:2] >= version, name


@lru_cache
def own_job(name: str) -> Job:
    """The job of one of the users' files."""
    path = FOLDER / name
    rows = {"data.rows": 1000, "model": "Qwen/Qwen2.5-7B", "method.kind": "lora"}
    for stated in (rows, {"data.rows": 1000}, {}):
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
