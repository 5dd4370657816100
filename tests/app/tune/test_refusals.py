"""A lock that cannot be names what, its value, what must hold, and the nearest that works."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from autotune.app.estimate import estimate
from autotune.app.job.load import jobs_of_line
from autotune.app.tune.tune import Options, tune
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

OPTIONS = Options(dry_run=True, fidelity="formula", trials=1)
STATED = {"model": "meta-llama/Llama-3.1-8B", "data.rows": "20000", "method.kind": "lora"}


def job(gpu: str, **sets: str) -> Job:
    named = {key.replace("__", "."): value for key, value in sets.items()}
    return jobs_of_line(Overrides(gpus=(gpu,), stated=STATED, set_values=named))[0].job


def refused(gpu: str, **sets: str) -> InputError:
    """The one error of `tune` and of `estimate`."""
    with pytest.raises(InputError) as caught:
        tune(job(gpu, **sets), OPTIONS)
    with pytest.raises(InputError) as again:
        estimate(job(gpu, **sets))
    assert again.value.message == caught.value.message
    return caught.value


EXCLUDING = [
    ("h100", {"kernels": "liger", "compile": "default"}),
    ("h100", {"packing": "on", "length_grouping": "on"}),
    ("h100:2", {"offload": "all", "sharding": "zero3"}),
    ("h100:2", {"offload": "optimizer", "optimizer": "paged_adamw_8bit"}),
]


@pytest.mark.parametrize(("gpu", "sets"), EXCLUDING)
def test_two_levers_that_exclude_each_other_are_both_named_with_what_runs(
    gpu: str, sets: dict[str, str]
) -> None:
    error = refused(gpu, **sets)
    for knob, value in sets.items():
        assert f"{knob} {value}" in error.message
        found = re.search(rf"\b{knob} (\w+)", error.hint)
        assert tune(job(gpu, **{**sets, knob: found[1]}), OPTIONS).best is not None


@pytest.mark.parametrize(
    ("gpu", "knob", "value"),
    [("t4", "attention", "flash_attention_2"), ("a100-80gb", "precision", "fp8")],
)
def test_a_lever_that_the_device_lacks_names_those_it_has(gpu: str, knob: str, value: str) -> None:
    error = refused(gpu, **{knob: value})
    assert f"{knob} {value}" in error.message
    listed = re.search(rf"{knob} ([\w, ]+) can run here", error.hint)
    assert value not in listed[1]
    for other in listed[1].split(", "):
        job(gpu, **{knob: other})  # is no error


def test_a_lever_that_the_software_lacks_names_the_package_to_type() -> None:
    error = refused("h100", attention="flash_attention_3")
    typed = re.search(r"--set (software\.\w+)=(\S+)", error.hint)
    able = job("h100", attention="flash_attention_3", **{typed[1].replace(".", "__"): typed[2]})
    best = tune(able, OPTIONS).best
    assert best.config.attention == "flash_attention_3"


def test_a_lock_that_makes_nothing_fit_is_the_first_that_is_named_to_give_way() -> None:
    answer = tune(job("l4", micro_batch_size="16", data__max_length="2048"), OPTIONS)
    assert answer.best is None
    first = answer.rejected.relaxations[0]
    assert first.kind == "lock"
    assert "not the locked 16" in first.change
    assert first.apply == "--set micro_batch_size=1"


def test_lengths_beside_a_data_set_on_one_line_are_refused_with_both(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a few words"}\n' * 20)
    stated = {"model": STATED["model"], "data.dataset": str(rows)}
    sets = {"data.lengths.p50": "900", "data.lengths.p95": "1500"}
    with pytest.raises(InputError, match=r"data\.lengths\.p50 900.*rows\.jsonl") as caught:
        jobs_of_line(Overrides(gpus=("h100",), stated=stated, set_values=sets))
    assert "--rows N" in caught.value.hint
