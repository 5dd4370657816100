"""A pick started elsewhere: the cases, and the real parsers where they are installed.

`make parsers` installs each parser in an environment of its own, below the checkout.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "trainers")]
import exportcases  # noqa: E402
from startedcases import Case, machine  # noqa: E402

from autotune.catalog.devices import find_device  # noqa: E402
from autotune.catalog.networks import find_network  # noqa: E402


@pytest.fixture(scope="session")
def cases() -> dict[str, Case]:
    """Machines that somebody rents or has, by name."""
    job = exportcases.job(global_batch_size=32, dataset_path=None)
    assumed = replace(exportcases.HOST, assumed=("cores", "ram_bytes", "shm_bytes", "disk_bytes"))
    with_rows = replace(job, dataset_path="/home/somebody/rows with blank.jsonl")
    return {
        "rented": Case(machine("h100-sxm", price_source="runpod, secure"), job),
        "named": Case(
            machine("a100-sxm4-40gb", 8, price_source="aws, list", instance="aws p4d.24xlarge",
                    spot=True), job, "ddp"
        ),
        "anywhere": Case(machine("h100-sxm", 2, price_source="job file", host=assumed), with_rows,
                         "ddp"),
        "owned": Case(machine("rtx-4090", price_source="owned", usd_per_hour=0.07), job),
        "processor": Case(exportcases.offer(cpu=True), job),
        "machines": Case(machine("h100-sxm", 16, price_source="aws, list", usd_per_hour=110.08,
                                 network=find_network("efa", 2, find_device("h100-sxm"), 8)[0]),
                         replace(job, global_batch_size=64), "fsdp"),
    }  # fmt: skip


@pytest.fixture(scope="session")
def real() -> Callable[[str, str, Path], str]:
    """Runs a few lines of Python in a parser's own environment on a file; skips without it."""

    def ask(environment: str, lines: str, file: Path) -> str:
        python = ROOT / f".venv-{environment}" / "bin" / "python"
        if not python.exists():
            pytest.skip(f"{environment} is not installed: make parsers")
        home = file.parent / "parser-home"
        home.mkdir(exist_ok=True)
        done = subprocess.run(
            [python, "-c", lines, file], capture_output=True, text=True, check=False, timeout=300,
            env={**os.environ, "HOME": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    return ask
