"""A pick's files with what starts them on somebody's machines: SkyPilot, Slurm, dstack, Kubernetes.

What trains is a trainer's export. Here are the versions that it is installed from, and the
orchestrator's own file beside it.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from autotune.catalog.software import REQUIRED
from autotune.domain.config import ZERO_STAGE
from autotune.orchestrators.contract import OUTPUT, REQUIREMENTS, SCRIPT, Launch
from autotune.orchestrators.registry import ORCHESTRATORS
from autotune.trainers.contract import Export
from autotune.trainers.schema import schema_of
from autotune.trainers.versions import show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.domain.candidates import Candidate
    from autotune.domain.job import Job
    from autotune.domain.outcome import DiskUse

_LONGEST_NAME = 40  # a Kubernetes name may have 63 characters, and pods add to it


def split_targets(targets: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Trainers' formats, and orchestrators, in the order in which they were asked for."""
    named = tuple(target.strip() for target in targets)
    trainers = tuple(name for name in named if name not in ORCHESTRATORS)
    return trainers, tuple(name for name in named if name in ORCHESTRATORS)


def orchestrated(
    names: Sequence[str],
    pick: Candidate,
    made: Export,
    trainer: str,
    *,
    disk: DiskUse,
    slow_end_s: float,
    writes_to: str | None,
) -> Export:
    """What a trainer's export needs beside it to be started by each orchestrator.

    Args:
        names: of the orchestrators.
        pick: what runs.
        made: the trainer's export, with its run.sh.
        trainer: whose export it is.
        disk: what the run writes.
        slow_end_s: [s] that nine runs in ten take at most; 0 where nobody knows.
        writes_to: the folder of results that the user's own file states; None: it says none, or
            the files are ours.

    Raises:
        InputError: An offer that an orchestrator has no words for.
    """
    wanted = "".join(f"{line}\n" for line in requirements(pick, trainer))
    launch = Launch(
        job=pick.job,
        name=_name(pick.job),
        offer=pick.offer,
        files={**made.files, REQUIREMENTS: wanted},
        slow_end_s=slow_end_s,
        written_bytes=disk.total_bytes + disk.fetched_bytes + disk.tokenised_bytes,
        writes_to=OUTPUT if writes_to is None else _below(writes_to),
    )
    files = {REQUIREMENTS: wanted}
    notes: list[str] = []
    for name in names:
        orchestrator = ORCHESTRATORS[name]
        files[orchestrator.file], said = orchestrator.export(launch)
        notes += said
    return Export(files, tuple(notes))


def requirements(pick: Candidate, trainer: str) -> list[str]:
    """Lines for pip: the versions that the answer was priced with, and the trainer's own package.

    A trainer that pins its own stack is named alone, at the newest version whose words are known.
    """
    software, config = pick.job.software, pick.config
    extra = {
        "bitsandbytes": pick.job.method.is_quantised or "8bit" in config.optimizer,
        "liger_kernel": config.kernels == "liger",
        "torchao": config.precision == "fp8",
        "flash_attn": config.attention == "flash_attention_2",
    }
    needed = [name for name, wanted in extra.items() if wanted]
    lines = []
    if trainer in {"hf", "trl"}:
        names = [*REQUIRED, "trl"] if trainer == "trl" else REQUIRED
        lines += [_pinned(name, getattr(software, name)) for name in names] + ["datasets"]
    else:
        schema = schema_of(trainer)
        lines.append(f"{schema.package}=={list(schema.versions)[-1]}")
        needed = [name for name in needed if name != "bitsandbytes"]
    lines += [_pinned(name, getattr(software, name)) for name in needed]
    return [*lines, *(["deepspeed"] if config.sharding in ZERO_STAGE else [])]


def _pinned(name: str, version: tuple[int, ...] | None) -> str:
    plain = name.replace("_", "-")
    return f"{plain}=={show(version)}" if version else plain


def _below(folder: str) -> str:
    """The folder if it is relative and stays below; nothing of what lies elsewhere."""
    path = PurePosixPath(folder)
    return "" if path.is_absolute() or ".." in path.parts or not path.parts else str(path)


def _name(job: Job) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", job.name.casefold()).strip("-")
    plain = plain if plain[:1].isalpha() else f"job-{plain}"
    return plain[:_LONGEST_NAME].strip("-") or "job"


__all__ = ["ORCHESTRATORS", "SCRIPT", "orchestrated", "requirements", "split_targets"]
