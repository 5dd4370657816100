"""Files and commands of other people as jobs, and what is said of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from autotune.app.estimate import estimate
from autotune.app.job.load import jobs_of_command, load_jobs
from autotune.domain.typed.overrides import Overrides

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from autotune.domain.config import Config
    from autotune.domain.job import Job


def asked(
    gpu: str = "h100", stated: Mapping[str, object] | None = None, **set_values: str
) -> Overrides:
    """A device and how many rows there are, which such files seldom say."""
    return Overrides((gpu,), stated={"data.rows": 1000, **(stated or {})}, set_values=set_values)


def file(
    path: Path, text: str, gpu: str = "h100", stated: Mapping[str, object] | None = None,
    **set_values: str,
) -> Job:  # fmt: skip
    """The job of a file with that text, written first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return load_jobs(path, asked(gpu, stated, **set_values))[0].job


def command(
    text: str, gpu: str = "h100", stated: Mapping[str, object] | None = None, **set_values: str
) -> Job:
    """The job of a launch command."""
    return jobs_of_command(text, asked(gpu, stated, **set_values))[0].job


def notebook(*cells: str) -> str:
    """A notebook of these cells of code."""
    code = [{"cell_type": "code", "source": cell} for cell in cells]
    return json.dumps({"nbformat": 4, "cells": code})


def today(found: Job) -> Config:
    """The configuration that the file or command runs."""
    assert found.today is not None
    return found.today


def warnings(found: Job) -> str:
    """All that is said first of it."""
    return "\n".join(estimate(found, fidelity="formula").warnings)
