"""What to run: the recommended configuration in a trainer's own words.

What is covered: every trainer of the registry that has an export, in the spelling of the versions
that will run. Not covered: learning rate, schedule and data content, which are the user's.
"""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.app.runs.folder import config_of_row, load_recommendation_payload, load_run_job
from autotune.app.runs.orchestrated import ORCHESTRATORS, orchestrated, split_targets
from autotune.app.runs.user_file import (
    OWN_FOLDER,
    SAME,
    check_same,
    is_same,
    left_behind,
    output_folder,
    same_export,
)
from autotune.catalog.files import umask_mode, write_whole
from autotune.domain.answer.recommendation import Decisive
from autotune.domain.candidates import Candidate
from autotune.domain.errors import InputError, unknown
from autotune.domain.objective import PAIRED
from autotune.domain.outcome import DiskUse
from autotune.domain.secrets import without_secrets
from autotune.frozen import dataclass
from autotune.trainers.contract import Export, Plan
from autotune.trainers.registry import FORMATS, TRAINERS
from autotune.trainers.versions import parse_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated
    from autotune.trainers.contract import Trainer

DEFAULT_EXPORT = "hf"
PAIRS_EXPORT = "trl"  # transformers' Trainer has no loss of pairs
NOTHING = DiskUse()  # is known of what a run writes


def check_exports(job: Job, targets: Sequence[str]) -> None:
    """Raise InputError for a target that cannot be written, before anything is."""
    trainers, orchestrators = split_targets(targets)
    for target in trainers:
        if is_same(target):
            check_same(target, job)
        else:
            check_target(target, job)
    if orchestrators and not trainers and not default_exports(job)[0]:
        raise InputError(default_exports(job)[1][0], "name a trainer as well: --export NAME")


def default_exports(job: Job) -> tuple[tuple[str, ...], list[str]]:
    """What is written when nobody asked for a trainer; nothing, and why, if it cannot be.

    A job that was read from a trainer's own file gives that file back.
    """
    if job.origin is not None:
        return (SAME,), []
    name = PAIRS_EXPORT if job.objective in PAIRED else DEFAULT_EXPORT
    try:
        check_target(name, job)
    except InputError as error:
        what = f"{error.message}; {error.hint}" if job.objective in PAIRED else error.message
        return (), [Decisive(f"nothing to run was written: {what}")]
    return (name,), []


def export_pick(
    job: Job, best: Estimated, targets: Sequence[str], run_dir: Path
) -> tuple[list[Path], list[str]]:
    """Write the pick for each target into the run folder; returns the paths and the notes.

    One trainer fills the folder itself; several get a folder each. An orchestrator's file lies
    beside what the first trainer starts. Where no trainer is named, that is the job's own; a file
    that cannot be changed where it stands is replaced by one of ours, and that is said.
    """
    pick = _Pick(job, best.offer, best.config, best.disk, best.risk, best.duration_s.p90)
    trainers, orchestrators = split_targets(targets)
    if not trainers:
        return _write_default(pick, orchestrators, run_dir)
    paths: list[Path] = []
    notes: list[str] = []
    for place, target in enumerate(trainers):
        beside = orchestrators if place == 0 else ()
        written, said = _write(target, pick, run_dir, beside, alone=len(trainers) == 1)
        paths += written
        notes += [f"{target}: {note}" for note in said] if len(trainers) > 1 else said
    return paths, notes


def _write_default(
    pick: _Pick, orchestrators: Sequence[str], run_dir: Path
) -> tuple[list[Path], list[str]]:
    """The user's own file, or one of ours where it cannot be changed, and why."""
    targets, notes = default_exports(pick.job)
    chunked, packed = pick.config.kernels == "chunked_loss", pick.config.packing == "on"
    if (chunked or packed) and targets == (DEFAULT_EXPORT,):
        targets = ("trl",)  # Trainer's own loss holds all logits, and it packs no rows
    if not targets:
        return [], notes
    try:
        paths, said = _write(targets[0], pick, run_dir, orchestrators, alone=True)
    except InputError as error:
        if SAME not in targets:
            raise
        origin = pick.job.origin
        instead = TRAINERS[origin.trainer].stand_in if origin else DEFAULT_EXPORT
        notes = [f"{error.message}: {instead} was written instead"]
        try:
            paths, said = _write(instead, pick, run_dir, orchestrators, alone=True)
        except InputError as second:
            return [], [Decisive(f"no file was written: {error.message}; {second.message}")]
    return list(paths), notes + said


def other_formats(job: Job, best: Estimated, targets: Sequence[str]) -> tuple[str, ...]:
    """The formats that the pick can be written in as well."""
    named = {target.strip().partition("@")[0] for target in targets}
    named |= {job.origin.trainer} if job.origin and SAME in named else set()
    found = []
    for name in FORMATS:
        if name not in named:
            with contextlib.suppress(InputError):
                export(name, job, best.offer, best.config)
                found.append(name)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Pick(Candidate):
    """What is written: a candidate, and what the bill knows of it."""

    disk: DiskUse
    risk: str
    slow_end_s: float  # [s] that nine runs in ten take at most


def _write(
    target: str, pick: _Pick, run_dir: Path, orchestrators: Sequence[str], *, alone: bool
) -> tuple[tuple[Path, ...], list[str]]:
    """The files of one target and of what starts it elsewhere, and what they cannot express."""
    if is_same(target):
        below = f"{OWN_FOLDER}/" if alone else ""
        made = same_export(target, pick.job, pick.offer, pick.config, pick.risk, below)
        folder = run_dir if alone else run_dir / OWN_FOLDER
    else:
        made = export(
            target, pick.job, pick.offer, pick.config,
            disk=pick.disk, risk=pick.risk,
            python="" if orchestrators else sys.executable,
        )  # fmt: skip
        folder = run_dir if alone else run_dir / target.replace("@", "-")
    notes = list(made.notes)
    files, sources = made.files, _modes_of_sources(pick.job) if is_same(target) else {}
    if orchestrators:
        own = pick.job.origin if is_same(target) else None
        beside = orchestrated(
            orchestrators, pick, made, own.trainer if own else target.partition("@")[0],
            disk=pick.disk, slow_end_s=pick.slow_end_s,
            writes_to=(output_folder(pick.job, relative=True) or "/") if own else None,
        )  # fmt: skip
        files = files | beside.files
        notes += [*beside.notes, *(left_behind(own, orchestrators) if own else ())]
    return write_export(Export(files), folder, sources), notes


def export_run(run_dir: Path, to: str) -> tuple[tuple[Path, ...], list[str]]:
    """Write a finished run's pick in another format; returns the paths and the notes.

    In a folder of its own, so that the run's run.sh stays what its answer names. Raises InputError
    when nothing was picked.
    """
    from autotune.report.recorded import recorded_payload

    job = load_run_job(run_dir)
    payload = load_recommendation_payload(run_dir)
    recorded = recorded_payload(payload, str(run_dir)).best  # refuses a damaged one
    row = payload["best"]
    if not row:
        msg = f"the run {run_dir} found nothing that fits: there is nothing to export"
        raise InputError(msg, "see its report for the smallest changes that would fit")
    offer = job.offer_of(row)
    if offer is None:
        msg = f"the recorded offer {json.dumps(row['device'])} is no longer in the run's job"
        raise InputError(msg, "tune again")
    pick = _Pick(
        job, offer, config_of_row(row), (recorded and recorded.disk) or NOTHING,
        str(row.get("risk", "")), float((row.get("duration_s") or {}).get("p90", 0.0)),
    )  # fmt: skip
    trainers, orchestrators = split_targets((to,))
    if not trainers:
        paths, notes = _write_default(pick, orchestrators, run_dir)
        return tuple(paths), notes
    held = frozenset(payload.get("files") or ())
    return _write(to, pick, run_dir, (), alone=_RUN not in held or _replaces(to, pick, held))


_RUN = "run.sh"


def _replaces(to: str, pick: _Pick, held: frozenset[str]) -> bool:
    """Whether an export writes the files that the run's own run.sh starts, and not another's."""
    return is_same(to) or export(to, pick.job, pick.offer, pick.config).files.keys() <= held


_EXECUTABLE = ".sh"

__all__ = ["Export", "check_target", "export", "write_export"]


def check_target(target: str, job: Job) -> None:
    """Raise InputError if `target` ("hf", "trl@1.9.0", ...) cannot be written for this job."""
    trainer, version = _parse_target(target)
    check_objective(trainer, job)
    trainer.plan_versions(job, version)


def check_objective(trainer: Trainer, job: Job) -> None:
    """Raise InputError for a trainer that is not written for what the job trains."""
    if job.objective in trainer.objectives:
        return
    able = ", ".join(name for name, own in FORMATS.items() if job.objective in own.objectives)
    msg = f"a file of {trainer.name} is not written for {job.objective}"
    own = "give your own script or config as JOB, and it comes back with these settings"
    raise InputError(msg, f"--export {able} is; or {own}" if able else own)


def export(  # noqa: PLR0913 - what a plan is, each named
    target: str,
    job: Job,
    offer: Offer,
    config: Config,
    disk: DiskUse = NOTHING,
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
        disk: what the run writes; checked against the free disk.
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
    check_objective(trainer, job)
    check_contract(job, offer, config)
    if offer.nodes > 1 and not trainer.several_machines:
        able = ", ".join(name for name, own in FORMATS.items() if own.several_machines)
        msg = f"an export of {trainer.name} starts on one machine, and this is {offer.label}"
        raise InputError(msg, f"export one of: {able}")
    transformers, trl = trainer.plan_versions(job, version)
    plan = Plan(
        job=replace(job, evaluation=job.timed_evaluation),
        offer=offer,
        config=config,
        torch=job.software.torch,
        transformers=transformers,
        trl=trl,
        disk=disk,
        risk=risk,
        out_dir=out_dir,
        trainer=version,
        python=python,
    )
    made = trainer.export(plan)
    if offer.nodes == 1:
        return made
    return replace(made, notes=(*made.notes, on_machines(offer)))


def on_machines(offer: Offer) -> str:
    """How a run on several machines is started."""
    return Decisive(
        f"On each of {offer.nodes} machines: MASTER_ADDR=FIRST NODE_RANK=0..{offer.nodes - 1} "
        "bash run.sh. All see one OUTPUT_DIR and the same data; FIRST is an address of the first"
    )


def _modes_of_sources(job: Job) -> dict[str, int]:
    """Permissions of the user's own files, by their names: what comes of them is as private."""
    found = {}
    for path in (job.origin.path, *(each.path for each in job.origin.beside)) if job.origin else ():
        with contextlib.suppress(OSError):
            found[Path(path).name] = Path(path).stat().st_mode & 0o777
    return found


def _mode(name: str, path: Path, sources: Mapping[str, int]) -> int:
    plain = umask_mode(0o777 if path.suffix == _EXECUTABLE else 0o666)
    source = None if name == "run.sh" else sources.get(path.name.removesuffix(".diff"))
    if source is None:
        return plain
    return source if not name.endswith(".diff") else source & 0o666


def write_export(
    exported: Export, run_dir: Path, sources: Mapping[str, int] | None = None
) -> tuple[Path, ...]:
    """Write every file below `run_dir`, each at once or not at all; returns their paths.

    Files of an earlier export in `run_dir` are replaced; nothing outside it is ever touched, and no
    secret is written. sources: permissions of the user's own files, by their names.

    Raises:
        InputError: a name that would lie outside `run_dir`, or a folder that cannot be written.
    """
    root = run_dir.resolve()
    targets = {name: _inside(root, name) for name in exported.files}
    try:
        for name, path in targets.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            text, _ = without_secrets(exported.files[name])
            write_whole(path, text, _mode(name, path, sources or {}))
    except OSError as error:
        msg = f'cannot write to "{run_dir}": {error.strerror or error}'
        raise InputError(msg, "make room there, or choose another folder with --run") from error
    return tuple(targets.values())


def _parse_target(target: str) -> tuple[Trainer, tuple[int, ...] | None]:
    name, at, version = target.strip().partition("@")
    if name in TRAINERS and name not in FORMATS:
        msg = f"a file of {name} is read and given back, but not written from nothing"
        raise InputError(msg, f"export one of: {', '.join(FORMATS)}")
    if name not in FORMATS:
        hint = (
            f"formats: {', '.join(FORMATS)}; a version may follow, as in hf@5.10.0; beside them,"
            f" what starts the run elsewhere: {', '.join(ORCHESTRATORS)}"
        )
        kind = "trainer"
        raise unknown(kind, name, (*FORMATS, *ORCHESTRATORS), hint)
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
