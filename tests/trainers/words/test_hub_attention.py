"""Flash attention from the hub's kernels: read as what it is, kept as it is spelled, provided."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app.job.load import load_jobs
from autotune.app.runs.user_file import patched
from autotune.catalog.software import find_software
from autotune.domain.config import HUB_ATTENTION, KNOBS
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides
from autotune.space.rules import violations
from autotune.trainers.registry import TRAINERS

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

ARGUMENTS = {
    "model_name_or_path": "Qwen/Qwen2.5-7B", "use_peft": True, "lora_target_modules": "all-linear",
    "output_dir": "o", "per_device_train_batch_size": 2, "packing": False, "bf16": True,
}  # fmt: skip


def trl_job(folder: Path, attention: str, gpu: str = "h100", **stated: Any) -> Job:
    path = folder / "sft.json"
    path.write_text(json.dumps({**ARGUMENTS, "attn_implementation": attention}, indent=1))
    given = Overrides(gpus=(gpu,), stated={"data.rows": 1000}, set_values=stated)
    return load_jobs(path, given)[0].job


@pytest.mark.parametrize(("kernel", "knob"), [
    *HUB_ATTENTION.items(),
    ("kernels-community/flash-attn2@v4", "flash_attention_2"),
    ("kernels-community/flash-attn3:flash_attn_varlen_func", "flash_attention_3"),
])  # fmt: skip
def test_a_hub_kernel_is_the_flash_attention_it_holds(
    tmp_path: Path, kernel: str, knob: str
) -> None:
    job = trl_job(tmp_path, kernel)
    assert job.today.attention == job.lock["attention"] == knob
    assert job.software.hub_kernels is not None
    assert job.software.flash_attn is job.software.flash_attn_3 is None
    assert violations(job, job.offers[0], job.today) == []


def test_its_spelling_stays_in_the_file_and_another_kernel_replaces_it(tmp_path: Path) -> None:
    kernel = "kernels-community/flash-attn2"
    job = trl_job(tmp_path, kernel)
    split = job.today.with_knobs(micro_batch_size=1, gradient_accumulation_steps=2)
    assert job.global_batch_size == 2
    kept = patched("same", job, job.offers[0], split)
    assert f'"attn_implementation": "{kernel}"' in kept.text
    assert "attn_implementation" not in kept.changes
    other = patched("same", job, job.offers[0], split.with_knobs(attention="sdpa"))
    assert '"attn_implementation": "sdpa"' in other.text


def test_a_kernel_that_is_no_flash_attention_is_kept_and_counted_as_the_default() -> None:
    values = {**ARGUMENTS, "attn_implementation": "kernels-community/metal-flash-sdpa"}
    made = TRAINERS["trl"].read(values, "a.json")
    assert "attention" in made.kept
    assert "attention" not in made.knobs
    assert not made.hub_kernels


@pytest.mark.parametrize(("versions", "second", "third"), [
    ({}, False, False),
    ({"kernels": "0.18.2"}, True, True),
    ({"hub_kernels": "0.18.5"}, True, True),
    ({"kernels": "0.17.0"}, False, False),  # transformers 5.23 takes 0.18.2 up to 0.19
    ({"kernels": "0.19.0"}, False, False),
    ({"kernels": "0.17.0", "transformers": "5.20.1"}, True, True),
    ({"kernels": "0.18.2", "transformers": "4.57.1"}, False, False),
    ({"flash_attn": "2.8.3"}, True, False),
    ({"flash_attn_3": "3.0.0"}, False, True),
])  # fmt: skip
def test_the_package_kernels_provides_both_flash_attentions(
    versions: dict[str, str], second: bool, third: bool
) -> None:
    software = find_software(versions)
    assert (software.has_flash_attention, software.has_flash_attention_3) == (second, third)
    assert software.kernels == "eager"  # of the layers: a word, not a version


def test_a_gpu_that_flash_attention_does_not_run_on_still_does_not(tmp_path: Path) -> None:
    job = trl_job(tmp_path, "kernels-community/flash-attn2", "t4")
    assert job.today is not None
    assert any("flash attention" in each for each in violations(job, job.offers[0], job.today))


def test_a_job_may_name_the_kernel_where_it_names_the_knob() -> None:
    parse = KNOBS["attention"].parse
    assert parse("kernels-community/flash-attn2") == "flash_attention_2"
    with pytest.raises(InputError, match="attention value"):
        parse("kernels-community/flash-mla")


@pytest.mark.slow
def test_the_names_are_those_of_the_installed_transformers() -> None:
    utils = pytest.importorskip("transformers.modeling_flash_attention_utils")
    imports = pytest.importorskip("transformers.utils.import_utils")
    cuda = {k for k, on in utils.FLASH_ATTN_KERNEL_DEVICES.items() if "cuda" in on}
    assert cuda - {"kernels-community/flash-attn4"} == set(HUB_ATTENTION)
    for knob in ("flash_attention_2", "flash_attention_3"):
        assert HUB_ATTENTION[utils.FLASH_ATTN_KERNEL_FALLBACK[knob]] == knob
    software = find_software({"kernels": imports.KERNELS_MIN_VERSION})
    assert software.has_flash_attention
