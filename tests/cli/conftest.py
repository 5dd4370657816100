"""Answers to print without computing them, and command lines typed in a folder of their own."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import commandline
import pytest
import samples

from autotune.domain.job import NamedJob

if TYPE_CHECKING:
    from collections.abc import Callable

    from commandline import Done

    from autotune.app.tune.tune import Options
    from autotune.domain.answer.recommendation import Recommendation
    from autotune.domain.typed.overrides import Overrides


ROOT = Path(__file__).parents[2]
ODD = "mein Ordner ü'x"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with an odd name that holds the tiny job, its data and its model."""
    folder = tmp_path / ODD
    folder.mkdir()
    shutil.copytree(ROOT / "jobs" / "data", folder / "jobs" / "data")
    shutil.copy(ROOT / "jobs" / "tiny_cpu.yaml", folder / "jobs")
    return folder


@pytest.fixture
def typed(here: Path) -> Callable[..., Done]:
    """A command line in that folder, with nothing set but a home of its own."""

    def run(*words: str) -> Done:
        return commandline.typed(*words, home=here, cwd=here, AUTOTUNE_RUNS="")

    return run


@pytest.fixture
def recommendation() -> Recommendation:
    found: Recommendation = samples.recommendation()
    return found


@pytest.fixture
def infeasible() -> Recommendation:
    found: Recommendation = samples.infeasible()
    return found


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the loaders were called with; jobs come from the samples."""
    seen: dict[str, Any] = {}

    def load_job(source: Path, **changes: Any) -> object:
        seen.update(source=source, **changes)
        return samples.JOB

    def jobs_of_line(overrides: Overrides) -> list[NamedJob]:
        seen.update(asdict(overrides))
        return [NamedJob("", samples.JOB)]

    def load_jobs(
        source: Path, overrides: Overrides, *, variant: str | None = None, every: bool = False
    ) -> list[NamedJob]:
        seen.update(source=source, every=every, **asdict(overrides))
        return [NamedJob(variant or "", samples.JOB)]

    monkeypatch.setattr("autotune.app.job.load.load_job", load_job)
    monkeypatch.setattr("autotune.app.job.load.load_jobs", load_jobs)
    monkeypatch.setattr("autotune.app.job.load.jobs_of_line", jobs_of_line)
    return seen


@pytest.fixture
def answer_with(
    monkeypatch: pytest.MonkeyPatch, calls: dict[str, Any]
) -> Callable[[Recommendation | BaseException], dict[str, Any]]:
    """Makes `tune` return (or raise) this instead of searching; gives what it was called with."""

    def install(answer: Recommendation | BaseException) -> dict[str, Any]:
        def tune(job: object, options: Options, progress: object) -> Recommendation:
            calls.update(job=job, progress=progress, **asdict(options))
            if isinstance(answer, BaseException):
                raise answer
            return answer

        monkeypatch.setattr("autotune.app.tune.tune.tune", tune)
        return calls

    return install
