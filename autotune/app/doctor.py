"""`autotune doctor`: what this machine is, what each part of it means here, and blocks for a job.

Everything is read or measured now; the only thing written is a test file, which is removed. With
`--measure` the machine's own speeds are measured as well, and kept.
"""

from __future__ import annotations

import errno
import math
from typing import TYPE_CHECKING, Literal

from autotune.app.hardware.measuring import (
    OLD_DAYS,
    known_age,
    local_device,
    measure_here,
    too_doubtful,
)
from autotune.app.hardware.this_machine import MOST_LOG_SD
from autotune.catalog.devices import cpu_device, local_host
from autotune.catalog.software import REQUIRED, install_command, installed_versions
from autotune.domain.errors import InputError
from autotune.domain.units import GB, GIB, MB, format_bytes, format_seconds
from autotune.frozen import dataclass
from autotune.probe import device as devices
from autotune.probe.machine.measure import PARTS, WRITTEN_BYTES, figure, write_once

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from autotune.app.hardware.measuring import Measured
    from autotune.domain.device import Fact
    from autotune.domain.job import Job
    from autotune.domain.outcome import Spread
    from autotune.probe.device import LocalDevice
    from autotune.probe.worker.contract import Phase

Level = Literal["fine", "note", "missing"]
PACKAGES = (
    "torch", "transformers", "peft", "accelerate", "trl", "datasets", "bitsandbytes",
    "flash_attn", "deepspeed", "kernels",
)  # fmt: skip
SMALL_SHM_BYTES = 1 * GIB
SLOW_WRITE_BYTES_PER_S = 100 * MB
BUSY_BYTES = 1 * GIB


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: what it is, and what that means for training here."""

    name: str
    value: str
    meaning: str
    level: Level = "fine"


@dataclass(frozen=True, slots=True)
class Examination:
    """All findings, and the blocks that a job file can take over."""

    findings: tuple[Finding, ...]
    job_blocks: str
    measured: Measured | None = None

    @property
    def can_probe(self) -> bool:
        """Whether `tune --score probe` could run here."""
        return not any(f.level == "missing" and f.name in REQUIRED for f in self.findings)


def examine(folder: Path) -> Examination:
    """Look at this machine; checkpoints would be written to `folder`. Raises InputError."""
    gpus, versions = devices.gpus(), installed_versions(PACKAGES)
    write = write_speed(folder)
    disk = _disk(folder, write) if write else _full(folder)
    findings = [*_devices(gpus, versions), *_host(), disk, *_versions(versions), _known()]
    return Examination(tuple(findings), job_blocks(gpus, versions, write))


def examine_and_measure(
    folder: Path, job: Job | None = None,
    on_phase: Callable[[Phase, float], None] | None = None,
) -> Examination:  # fmt: skip
    """The same, and what the machine does in a second; what cannot be measured is told as such.

    job: whose modelled step the effect is told of.
    """
    gpus, versions = devices.gpus(), installed_versions(PACKAGES)
    done = measure_here(folder, job, on_phase)
    facts = done.measurement.found.facts
    disk = next((fact for fact in facts if fact.name == "disk_write"), None)
    write = disk.value if disk and disk.log_sd < MOST_LOG_SD else 0.0
    found = [*_devices(gpus, versions), *_host(), *([_disk(folder, write)] if write else [])]
    found += [*_versions(versions), *_figures(done)]
    return Examination(tuple(found), job_blocks(gpus, versions, write), done)


def write_speed(folder: Path) -> float:
    """[bytes/s] of writing a file until the disk has it, in the folder of the checkpoints.

    0 where it has too little room for the file. Raises InputError for a folder that is none.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return write_once(folder, WRITTEN_BYTES)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return 0.0
        msg = f"{folder} cannot be written: {error.strerror or error}"
        raise InputError(msg, "name the folder that checkpoints go to with --folder") from None


def _devices(gpus: list[LocalDevice], versions: dict[str, str]) -> list[Finding]:
    if not gpus:
        text = "no NVIDIA driver or device: answers come from the cost model, and probes run only "
        return [Finding("GPU", "none", text + "on the processor", "note")]
    found = [_gpu(gpu) for gpu in gpus]
    if "+cpu" in versions.get("torch", ""):
        text = "this build of torch cannot use the GPU: install one for CUDA"
        found.append(Finding("torch", versions["torch"], text, "missing"))
    return found


def _gpu(gpu: LocalDevice) -> Finding:
    name, meaning = f"GPU {gpu.index}", _about_gpu(gpu)
    if gpu.refused:
        return Finding(name, f"{gpu.name}, driver {gpu.driver}", meaning, "note")
    value = f"{gpu.name}, {format_bytes(gpu.free_bytes)} of {format_bytes(gpu.total_bytes)} free, "
    value += f"driver {gpu.driver}"
    known = gpu.device is not None and gpu.used_bytes <= BUSY_BYTES
    return Finding(name, value, meaning, "fine" if known else "note")


def _about_gpu(gpu: LocalDevice) -> str:
    if gpu.refused:
        return f"its memory cannot be read: {gpu.refused}"
    if gpu.part_of is not None:
        return (
            f"a slice of {gpu.part_of.name}: a job on {gpu.part_of.name} takes the slice's memory "
            "here, and the times of the whole board"
        )
    if gpu.unified:
        return "works in the host's memory; not in the catalogue: probes cannot match it"
    if gpu.device is None:
        return (
            "not in the catalogue: probes cannot match it to an offer; "
            "`autotune help machines` says what can be done"
        )
    if gpu.used_bytes > BUSY_BYTES:
        held = f"{format_bytes(gpu.used_bytes)} are held by {len(gpu.processes)} process(es)"
        return f"{held}: end them before probing, or less will fit"
    return f"is {gpu.device.name} in job files and --gpu, with the memory that is free on it"


def _processor() -> Finding:
    """The formats that the processor multiplies itself: in others torch emulates, far slower."""
    device = cpu_device()
    has = [name for name in ("fp32", "bf16", "fp16") if device.peak_flop_per_s(name) > 0]
    absent = [name for name in ("bf16", "fp16") if name not in has]
    meaning = f"{', '.join(has)} on `gpu: cpu`"
    if absent:
        meaning += f"; {' and '.join(absent)} would be emulated: never chosen there"
    return Finding("processor", device.architecture, meaning)


def _host() -> list[Finding]:
    host = local_host()
    workers = max(host.cores - 1, 0)
    found = [
        _processor(),
        Finding("cores", str(host.cores),
                f"up to {workers} data loader worker{'s' * (workers != 1)} beside training"),
        Finding("RAM", format_bytes(host.ram_bytes),
                "holds the model while it loads, and every data loader worker"),
    ]  # fmt: skip
    small = host.shm_bytes < SMALL_SHM_BYTES
    meaning = (
        "too small for several workers: batches pass through it (docker run --shm-size=16g)"
        if small
        else "enough for the batches that workers hand over"
    )
    found.append(
        Finding("/dev/shm", format_bytes(host.shm_bytes), meaning, "note" if small else "fine")  # noqa: S108 - its size only
    )
    if host.wsl:
        text = "the driver may move GPU memory to the host instead of failing: slow, not out of it"
        found.append(Finding("WSL", "yes", text, "note"))
    return found


def _disk(folder: Path, write: float) -> Finding:
    import shutil

    free = shutil.disk_usage(folder).free
    value = f"{format_bytes(free)} free, writes {write / MB:.0f} MB/s"
    example = 10 * GB / write
    meaning = f"a checkpoint of 10 GB would take about {example:.0f} s, synced"
    slow = write < SLOW_WRITE_BYTES_PER_S
    return Finding(f"disk of {folder}", value, meaning, "note" if slow else "fine")


def _full(folder: Path) -> Finding:
    text = "has too little room to write a test file; --folder names another"
    return Finding(f"disk of {folder}", "not measured", text, "note")


def _versions(versions: dict[str, str]) -> list[Finding]:
    found = []
    for name in PACKAGES:
        if name in versions:
            found.append(Finding(name, versions[name], _about(name)))
        elif name in REQUIRED:
            text = f"probes and traces need it: {install_command('probe')}"
            found.append(Finding(name, "not installed", text, "missing"))
    absent = [name for name in PACKAGES if name not in versions and name not in REQUIRED]
    if absent:
        text = "settings that need them are left out, or cannot run here"
        found.append(Finding(", ".join(absent), "not installed", text, "note"))
    return found


def _about(name: str) -> str:
    return {
        "torch": "runs the training", "transformers": "probes time its Trainer",
        "peft": "LoRA adapters", "accelerate": "devices and mixed precision",
        "trl": "`--export trl` can run here", "datasets": "reads the rows of exported scripts",
        "bitsandbytes": "int8 and nf4 bases, 8-bit optimizers",
        "flash_attn": "flash_attention_2 can be searched", "deepspeed": "zero2 and zero3 can run",
        "kernels": "attention kernels of the hub can be fetched, built for this torch",
    }[name]  # fmt: skip


def _known() -> Finding:
    """Whether this machine was measured before, and how long ago."""
    known = known_age(local_device())
    what = "`autotune doctor --measure` takes about a minute"
    if known is None:
        text = f"answers for this machine use data sheets and typical hosts; {what} to measure it"
        return Finding("measured facts", "none", text, "note")
    on, days, damage = known
    if damage:
        left = "what can be read is used" if on else "none can be read"
        return Finding(
            "measured facts",
            f"damaged: {damage}",
            f"{left}; `autotune doctor --measure` writes the file anew",
            "note",
        )
    old = days is None or days > OLD_DAYS
    text = (
        f"older than {OLD_DAYS} days: {what}" if old else "every answer for this machine uses them"
    )
    age = "of unknown age" if days is None else f"{days} day{'s' * (days != 1)} old"
    age = "today" if days == 0 else age
    return Finding("measured facts", f"of {on}, {age}", text, "note" if old else "fine")


MEANINGS = {
    "host": "not a price by itself: tells one host from another",
    "matmul": "used instead of the data sheet's peak and a typical share of it",
    "elementwise": "used instead of the data sheet's bandwidth",
    "issue": "used instead of what a host of this kind takes to launch a kernel",
    "copies": "used instead of what the bus of this generation carries",
    "loader": "used instead of what a row takes a loader elsewhere",
    "disk": "used instead of what a volume writes elsewhere, where the job states nothing",
}


def _figures(done: Measured) -> list[Finding]:
    """What was measured part by part, what was not, what it changes and what it cost."""
    facts, missing = done.measurement.found.facts, done.measurement.missing
    found = []
    for part, name in PARTS.items():
        own = [fact for fact in facts if _part_of(fact) == part]
        if own:
            text = "; ".join(dict.fromkeys(_told(fact) for fact in own))
            found.append(Finding(f"measured {name}", text, MEANINGS[part]))
    for why in dict.fromkeys(each.why for each in missing):
        names = ", ".join(PARTS[each.part] for each in missing if each.why == why)
        found.append(Finding(names, "not measured", why, "note"))
    return [*found, *_noise(done), *_effect(done), _kept(done)]


def _part_of(fact: Fact) -> str:
    named = {"host_thread": "host", "disk_write": "disk", "attention": "matmul",
             "new_size": "matmul"}  # fmt: skip
    kind = fact.name.partition("_")[0]
    return named.get(fact.name) or {"copy": "copies"}.get(kind, kind)


def _told(fact: Fact) -> str:
    wide = fact.log_sd >= MOST_LOG_SD
    off = f"within {math.exp(fact.log_sd):.1f} times" if wide else f"± {fact.log_sd:.0%}"
    return f"{figure(fact)} ({off})"


def _noise(done: Measured) -> list[Finding]:
    why = done.measurement.disturbed
    doubtful = too_doubtful(done.measurement)
    parts = [_part_of(fact) for fact in done.measurement.found.facts if fact.name in doubtful]
    names = ", ".join(dict.fromkeys(PARTS[part] for part in parts))
    if not why and not names:
        return []
    if not why:
        text = "they varied too much from one repetition to the next, though no other program was "
        text += "seen: prices leave out the least certain of them; measure again"
        return [Finding("uneven figures", names, text, "note")]
    left = f"; prices leave out the least certain figures of {names}" if names else ""
    text = f"figures may be off and their ranges are wider{left}; measure again when it is quiet"
    return [Finding("busy machine", "; ".join(why), text, "note")]


def _effect(done: Measured) -> list[Finding]:
    effect = done.effect
    if effect is None:
        return []

    def said(own: Spread) -> str:
        ends = f"{format_seconds(own.p10)} to {format_seconds(own.p90)}"
        return f"{format_seconds(own.p50)} ({ends})"

    before, after = (own.p90 / own.p10 for own in (effect.before, effect.after))
    factors = f"its range was a factor of {before:.1f} and is {after:.1f}"
    value = f"{said(effect.before)} before, {said(effect.after)} now"
    return [Finding(f"a step of {effect.job}", value, factors)]


def _kept(done: Measured) -> Finding:
    cost = f"in {format_seconds(done.measurement.seconds)}"
    if done.path is not None:
        text = (
            f"kept in {done.path}: every later price of this machine uses it; delete it to forget"
        )
        if done.note:
            return Finding("measured", cost, f"{text}; {done.note}", "note")
        return Finding("measured", cost, text)
    return Finding("measured", cost, f"not kept: {done.not_kept or 'there is nothing'}", "note")


def job_blocks(gpus: list[LocalDevice], versions: dict[str, str], write: float) -> str:
    """`hardware` and `software` of this machine, as YAML that a job file takes."""
    host = local_host()
    known = [gpu for gpu in gpus if gpu.device is not None]
    name = known[0].device.name if known and known[0].device else "cpu"
    count = sum(1 for gpu in known if gpu.device and gpu.device.name == name) or 1
    price = "" if name == "cpu" else "    price: free    # or what an hour of this machine costs\n"
    lines = (
        "hardware:\n"
        f"  - gpu: {name}\n"
        f"    count: {count}\n"
        f"{price}"
        "    host:\n"
        f"      cores: {host.cores}\n"
        f"      ram: {host.ram_bytes / GIB:.1f} GiB\n"
        f"      shm: {host.shm_bytes / GIB:.2f} GiB\n"
        f"      disk: {host.disk_bytes / GB:.0f} GB\n"
    )
    if write > 0:
        lines += f"      checkpoint_write: {write / MB:.0f} MB/s\n"
    stated = {name: versions[name] for name in (*REQUIRED, "trl", "bitsandbytes", "flash_attn")
              if name in versions}  # fmt: skip
    if not stated:
        return lines
    return (
        lines
        + "software:\n"
        + "".join(f'  {name}: "{value.partition("+")[0]}"\n' for name, value in stated.items())
    )
