"""A job file that states everything, one that states the least, and what becomes of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app.job.load import load_job
from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from autotune.domain.job import Job

WHOLE: dict[str, Any] = json.loads((Path(__file__).parent / "whole_job.json").read_text())
MINIMAL: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B",
    "method": "lora",
    "data": {"rows": 1000},
    "hardware": "h100-sxm",
}


def write(folder: Path, values: object, name: str = "job.json") -> Path:
    path = folder / name
    path.write_text(values if isinstance(values, str) else json.dumps(values), encoding="utf-8")
    return path


def load(folder: Path, values: object, **changes: Any) -> Job:
    return load_job(write(folder, values), **changes)


def problem(folder: Path, values: object, **changes: Any) -> str:
    with pytest.raises(InputError) as caught:
        load(folder, values, **changes)
    return f"{caught.value.message} {caught.value.hint or ''}"
