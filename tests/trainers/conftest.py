from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode does not: exportcases lives here


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user's shell may hold must not reach the classes under test."""
    for name in (
        "ACCELERATE_USE_FSDP",
        "ACCELERATE_USE_DEEPSPEED",
        "ACCELERATE_MIXED_PRECISION",
        "FSDP_CPU_RAM_EFFICIENT_LOADING",  # set by TrainingArguments itself
    ):
        monkeypatch.setenv(name, "")  # so that undoing removes what the test sets
        monkeypatch.delenv(name)
