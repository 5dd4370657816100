"""A knob that cannot be opened, or a value that cannot run, is refused with what would work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import load_job
from autotune.app.tune.tune import Options, tune
from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

JOB = """\
model: meta-llama/Llama-3.1-8B
method: {{kind: {kind}}}
data: {{rows: 2000, max_length: 1024, lengths: {{p50: 220, p95: 700}}, padding: {padding}}}
hardware: [{gpu}]
software: {software}
"""
OPTIONS = Options(dry_run=True, fidelity="formula", trials=1)


def job_of(
    folder: Path, allow: str = "", *, gpu: str = "a100-80gb", software: str = "default",
    kind: str = "lora", padding: str = "longest", sets: dict[str, str] | None = None,
) -> Job:  # fmt: skip
    path = folder / "job.yaml"
    path.write_text(JOB.format(gpu=gpu, software=software, kind=kind, padding=padding))
    return load_job(path, allow=[allow] if allow else [], set_values=sets or {})


@pytest.mark.parametrize(
    ("allow", "changes", "says", "hint"),
    [
        ("packing", {}, "packing needs flash attention", "--set software.flash_attn="),
        ("packing", {"gpu": "t4"}, "capability 8.0", "here --allow opens"),
        ("precision", {}, "does not have the precision natively", "here --allow opens"),
        ("offload", {"gpu": "cpu"}, "the host's already", "here --allow opens"),
        ("kernels", {"software": "'2024-05'"}, "liger", "--set software.liger_kernel="),
        ("kernels", {"sets": {"compile": "default"}}, "one of the two", "without the lock of comp"),
    ],
)
def test_a_lever_that_software_or_device_lacks_is_refused_with_what_would_open_it(
    tmp_path: Path, allow: str, changes: dict[str, str], says: str, hint: str
) -> None:
    with pytest.raises(InputError) as caught:
        job_of(tmp_path, allow, **changes)  # type: ignore[arg-type]  # sets is a mapping
    assert f"allow: {allow} has nothing to open" in str(caught.value)
    assert says in str(caught.value)
    assert caught.value.hint is not None
    assert hint in caught.value.hint


def test_what_the_hint_names_opens_the_lever(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        job_of(tmp_path, "packing")
    key, _, version = str(caught.value.hint).rpartition("--set ")[2].partition("=")
    job = job_of(tmp_path, "packing", sets={key: version})
    assert job.software.flash_attn == (2, 8, 3)
    best = tune(job, OPTIONS).best
    assert best.config.packing == "on"


def test_one_offer_that_can_is_enough(tmp_path: Path) -> None:
    job = job_of(tmp_path, "packing", gpu="t4, a100-80gb", software="'2025-02'")
    assert job.allow == ("packing",)


@pytest.mark.parametrize(
    ("allow", "changes"),
    [("adapter_dtype", {"kind": "full"}), ("length_grouping", {"padding": "max_length"})],
)
def test_a_lever_that_the_jobs_own_method_leaves_without_effect_is_noted(
    tmp_path: Path, allow: str, changes: dict[str, str]
) -> None:
    job = job_of(tmp_path, allow, **changes)  # type: ignore[arg-type]  # of texts alone
    assert [a.value for a in job.assumed if a.key == f"allow.{allow}"] == ["opens nothing"]


def test_a_locked_value_that_cannot_run_names_the_values_that_can(tmp_path: Path) -> None:
    job = job_of(tmp_path, sets={"kernels": "liger"}, software="'2024-05'")
    with pytest.raises(InputError, match="kernels liger is locked but not possible") as caught:
        tune(job, OPTIONS)
    assert "kernels none can run here" in str(caught.value.hint)


def test_a_package_of_the_software_is_set_beside_its_profile(tmp_path: Path) -> None:
    job = job_of(tmp_path, software="'2024-05'", sets={"software.liger_kernel": "0.5.10"})
    assert job.software.liger_kernel == (0, 5, 10)
    assert job.software.transformers == (4, 41, 1)
    with pytest.raises(InputError, match=r"software\.flash.*did you mean software\.flash_attn"):
        job_of(tmp_path, sets={"software.flash": "3"})
