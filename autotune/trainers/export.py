"""Write a chosen configuration in a trainer's own words, ready to run.

What is covered: every trainer of the registry that has an export, in the spelling of the versions
that will run. Not covered: learning rate, schedule and data content, which are the user's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autotune.catalog.files import write_whole
from autotune.domain.errors import InputError, unknown
from autotune.trainers.contract import Export, Plan
from autotune.trainers.registry import FORMATS, TRAINERS
from autotune.trainers.versions import parse_version

if TYPE_CHECKING:
    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.trainers.contract import Trainer

_EXECUTABLE = ".sh"

__all__ = ["Export", "check_target", "export", "write_export"]


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
    return trainer.export(plan)


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


def _parse_target(target: str) -> tuple[Trainer, tuple[int, ...] | None]:
    name, at, version = target.strip().partition("@")
    if name in TRAINERS and name not in FORMATS:
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


def check_contract(job: Job, offer: Offer, config: Config) -> None:
    """Raise InputError if `config` on `offer` would not train what `job` says."""
    _check_devices(offer, config)
    product = config.micro_batch_size * config.gradient_accumulation_steps * offer.count
    if product != job.global_batch_size:
        msg = (
            f"micro_batch_size {config.micro_batch_size} x gradient_accumulation_steps "
            f"{config.gradient_accumulation_steps} x {offer.count} devices is {product}, but the "
            f"job's global_batch_size is {job.global_batch_size}"
        )
        raise InputError(msg, "the global batch is part of the job; change the split, not it")
    if config.precision in {"fp32", "tf32"} and job.method.base == "16bit":
        msg = f"precision {config.precision} needs base 32bit, but the job's base is 16bit"
        raise InputError(msg, "set base: 32bit in the job, or a 16-bit precision")
    if config.precision == "fp16" and job.method.kind == "full" and job.method.base == "16bit":
        msg = "precision fp16 with 16-bit trained weights cannot be scaled: base must be 32bit"
        raise InputError(msg, "set base: 32bit in the job, or precision bf16")


def _check_devices(offer: Offer, config: Config) -> None:
    if config.sharding == "none" and offer.count > 1:
        msg = f"sharding none uses one device, but the offer has {offer.count}"
        raise InputError(msg, "sharding must be ddp, fsdp, zero2 or zero3 on several devices")
    offloads = (config.sharding, config.offload) == ("zero2", "optimizer")
    if config.sharding != "none" and offer.count == 1 and not offloads:
        msg = f"sharding {config.sharding} needs at least two devices, but the offer has one"
        raise InputError(msg, "sharding must be none on one device")
