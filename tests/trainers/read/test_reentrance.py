"""How layers are checkpointed is taken from the file, else from the release of transformers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app.job.load import Overrides, load_jobs

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.software import Software

HF = {"output_dir": "out", "per_device_train_batch_size": 4, "gradient_checkpointing": True}
FACTORY = {
    "model_name_or_path": "Qwen/Qwen2.5-7B", "stage": "sft", "finetuning_type": "lora",
    "lora_target": "all", "cutoff_len": 512, "bf16": True,
}  # fmt: skip
STATED = {"model": "Qwen/Qwen2.5-7B", "method.kind": "lora", "data.rows": 1000}


def software(folder: Path, values: dict[str, Any], **stated: object) -> Software:
    path = folder / "args.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    asked = Overrides(gpus=("h100",), stated={**STATED, **stated} if "stage" not in values else
                      {"data.rows": 1000, **stated})  # fmt: skip
    return load_jobs(path, asked)[0].job.software


@pytest.mark.parametrize("stated", [True, False, None])
def test_the_trainer_s_file_says_how_layers_are_checkpointed(
    tmp_path: Path, stated: bool | None
) -> None:
    kwargs = {} if stated is None else {"use_reentrant": stated}
    hf = software(tmp_path, {**HF, "gradient_checkpointing_kwargs": kwargs})
    assert hf.reentrant is stated
    assert hf.recomputes_reentrantly is (stated is True)
    own = {} if stated is None else {"use_reentrant_gc": stated}
    assert software(tmp_path, {**FACTORY, **own}).reentrant is stated


def test_what_nobody_states_is_as_transformers_has_it(tmp_path: Path) -> None:
    old = {"software.transformers": "4.48.1"}
    assert software(tmp_path, HF, **old).recomputes_reentrantly
    said = {**HF, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    assert not software(tmp_path, said, **old).recomputes_reentrantly
