"""`fake`: a device and a Trainer without torch. `tuned`: a run folder with a plan."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest

JOB = Path(__file__).parents[2] / "jobs" / "a100_llama7b_int8.yaml"


@pytest.fixture(scope="session")
def fake() -> Any:
    """tests/training/fake.py as a module."""
    path = Path(__file__).with_name("fake.py")
    spec = importlib.util.spec_from_file_location("fake_training", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AUTOTUNE_RUNS", str(tmp_path / "runs"))
    return tmp_path / "home"


@pytest.fixture
def tuned(case_a_run: Path, tmp_path: Path) -> Path:
    """A copy of that folder, to write into."""
    return Path(shutil.copytree(case_a_run, tmp_path / "runs" / "planned"))
