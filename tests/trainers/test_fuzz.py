"""A damaged file is a job, or an error that names the file: never a traceback.

`AUTOTUNE_FUZZ=1000` takes so many files a format the whole way instead of a few.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from fuzzing import SUFFIX, damaged
from hypothesis import HealthCheck, given, settings
from ownfiles import BESIDE, FILES, syntax_of

from autotune.app.job.load import load_jobs
from autotune.app.runs.user_file import same_export
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides

if TYPE_CHECKING:
    from pathlib import Path

CASES = int(os.environ.get("AUTOTUNE_FUZZ", "15"))
FLAGS: list[dict[str, object]] = [
    {"data.rows": 1000},
    {"data.rows": 1000, "model": "Qwen/Qwen2.5-7B", "method.kind": "lora"},
]
FUZZ = settings(
    max_examples=CASES, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip


def answered(path: Path, beside: tuple[str, ...] = ()) -> list[str]:
    """What was refused; everything else is raised. A job is also given back with another split."""
    refused = []
    for stated in FLAGS:
        try:
            job = load_jobs(path, Overrides(gpus=("h100",), stated=stated, beside=beside))[0].job
            if job.origin is None or job.today is None:
                continue
            changed = job.today.with_knobs(
                micro_batch_size=1,
                gradient_accumulation_steps=job.global_batch_size // job.offers[0].count,
                checkpoint_every_steps=77, activation_checkpointing="full", compile="default",
            )  # fmt: skip
            same_export("same", job, job.offers[0], changed)
        except InputError as error:
            refused.append(error.message)
    return refused


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_a_job_or_an_error_that_says_where(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"file{SUFFIX[syntax_of(name)]}"

    @FUZZ
    @given(text=damaged(name))
    def check(text: str) -> None:
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        for message in answered(path):
            assert message.strip()
            assert len(message) < 3000

    check()


@pytest.mark.parametrize("name", BESIDE)
def test_a_damaged_config_beside_a_file_is_a_job_or_an_error(name: str, tmp_path: Path) -> None:
    main = tmp_path / "args.json"
    main.write_text(
        '{"output_dir": "o", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, '
        '"bf16": true}', encoding="utf-8",
    )  # fmt: skip
    path = tmp_path / f"beside{SUFFIX[syntax_of(name)]}"

    @FUZZ
    @given(text=damaged(name))
    def check(text: str) -> None:
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        answered(main, (str(path),))

    check()
