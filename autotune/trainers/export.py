"""Write a chosen configuration in a trainer's own words, ready to run.

What is covered: Hugging Face `Trainer` and TRL `SFTTrainer`, launched by accelerate, and the own
files of axolotl, LLaMA-Factory, litgpt and Unsloth, in the spelling of the versions that will run.
Not covered: torchtune, which is read only (its development has ended); learning rate, schedule and
data content, which are the user's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autotune.catalog.files import write_whole
from autotune.domain.errors import InputError, unknown
from autotune.trainers.contract import check_contract
from autotune.trainers.detect import DIALECTS
from autotune.trainers.format import Export, Plan
from autotune.trainers.hf.hf import HuggingFace
from autotune.trainers.hf.trl import Trl
from autotune.trainers.litgpt.export import LitGptFile
from autotune.trainers.own_yaml import AxolotlFile, LlamaFactoryFile
from autotune.trainers.unsloth.export import UnslothScript
from autotune.trainers.versions import parse_version

if TYPE_CHECKING:
    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.trainers.format import TrainerFormat

FORMATS: dict[str, TrainerFormat] = {
    item.name: item
    for item in (
        HuggingFace(), Trl(), AxolotlFile(), LlamaFactoryFile(), LitGptFile(), UnslothScript(),
    )
}  # fmt: skip
_EXECUTABLE = ".sh"

__all__ = ["FORMATS", "Export", "check_target", "export", "write_export"]


def check_target(target: str, job: Job) -> None:
    """Raise InputError if `target` ("hf", "trl@1.9.0", ...) cannot be written for this job."""
    trainer, version = _parse_target(target)
    trainer.plan_versions(job, version)


def export(  # noqa: PLR0913 - what a plan is, each named
    target: str,
    job: Job,
    offer: Offer,
    config: Config,
    checkpoint_bytes: float = 0.0,
    risk: str = "",
    out_dir: str = "output",
    *,
    python: str = "",
) -> Export:
    """The files that run `config` of `job` on `offer` with one trainer.

    Args:
        target: a format, optionally with the version that will run: "hf", "trl@1.9.0". Without a
            version the job's software profile decides.
        job: the contract.
        offer: where it runs.
        config: one value for every knob.
        checkpoint_bytes: [bytes] of one checkpoint; checked against the free disk when not 0.
        risk: why the candidate fits only narrowly, empty where it does not; asks the allocator
            to fragment less.
        out_dir: default of OUTPUT_DIR; relative to the folder that holds the files.
        python: an interpreter to start with where the one in PATH lacks what training imports.

    Returns:
        The texts by file name, and notes on what the format cannot express.

    Raises:
        InputError: unknown format or version, or a configuration that breaks the job's contract.
    """
    trainer, version = _parse_target(target)
    check_contract(job, offer, config)
    transformers, trl = trainer.plan_versions(job, version)
    plan = Plan(
        job=job,
        offer=offer,
        config=config,
        torch=job.software.torch,
        transformers=transformers,
        trl=trl,
        checkpoint_bytes=checkpoint_bytes,
        risk=risk,
        out_dir=out_dir,
        trainer=version,
        python=python,
    )
    return trainer.write(plan)


def write_export(exported: Export, run_dir: Path) -> tuple[Path, ...]:
    """Write every file below `run_dir`, each at once or not at all; returns their paths.

    Files of an earlier export in `run_dir` are replaced; nothing outside it is ever touched.

    Raises:
        InputError: a name that would lie outside `run_dir`, or a folder that cannot be written.
    """
    root = run_dir.resolve()
    targets = {name: _inside(root, name) for name in exported.files}
    try:
        for name, path in targets.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, exported.files[name], 0o755 if path.suffix == _EXECUTABLE else 0o644)
    except OSError as error:
        msg = f'cannot write to "{run_dir}": {error.strerror or error}'
        raise InputError(msg, "choose another folder with --run") from error
    return tuple(targets.values())


def _parse_target(target: str) -> tuple[TrainerFormat, tuple[int, ...] | None]:
    name, at, version = target.strip().partition("@")
    if name in DIALECTS and name not in FORMATS:
        msg = f"a file of {name} is read and given back, but not written from nothing"
        raise InputError(msg, f"export one of: {', '.join(FORMATS)}")
    if name not in FORMATS:
        hint = f"formats: {', '.join(FORMATS)}; a version may follow, as in hf@5.10.0"
        kind = "trainer"
        raise unknown(kind, name, FORMATS, hint)
    return FORMATS[name], parse_version(version, target) if at else None


def _inside(root: Path, name: str) -> Path:
    parent, parts = (root / name).parent.resolve(), Path(name).parts
    if not parts or ".." in parts or not parent.is_relative_to(root):
        msg = f'file "{name}" would lie outside the run folder "{root}"'
        raise InputError(msg)
    return parent / Path(name).name
