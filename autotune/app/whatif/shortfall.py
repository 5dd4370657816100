"""Why a configuration does not fit: bytes over, what holds them, the batch that decides."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from autotune.cost.bill import ON_HOST
from autotune.cost.memory.component import peak_instant
from autotune.cost.memory.instants import INSTANTS
from autotune.domain.answer.recommendation import LongestBatch, Shortfall
from autotune.domain.outcome import FEASIBLE_PROBABILITY
from autotune.domain.units import format_count

if TYPE_CHECKING:
    from autotune.cost.bill import Bill
    from autotune.domain.config import Config
    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated


def shortfall_of(bill: Bill, index: int, row: Estimated | None = None) -> Shortfall | None:
    """Why the candidate does not fit; None where it does. row: its estimate, traced perhaps."""
    row = row or bill.estimate(index)
    disk, ram = float(bill.disk_short_bytes[index]), float(bill.ram_short_bytes[index])
    if row.feasible and max(disk, ram) <= 0:
        return None
    instant, rows, tokens = peak_instant(bill, index)
    phase, words = INSTANTS[instant]
    listed = max(row.fits_probability, bill.at("memory", "fits_as_listed", index))
    held = row.feasible or (
        row.memory_bytes.total <= row.usable_bytes and listed >= FEASIBLE_PROBABILITY
    )
    resource, available, required = _short_of(row, disk, ram, held=held)
    fills = {"disk": row.disk.words, "ram": on_host_words(bill, index)}.get(resource, "")
    return Shortfall(
        device=row.offer.device.name,
        device_count=row.offer.count,
        config=row.config.as_dict(),
        resource=resource,
        required_bytes=required,
        available_bytes=available,
        fits_probability=row.fits_probability,
        memory_bytes={**row.memory_bytes.as_dict(), "total": row.memory_bytes.total},
        phase=phase,
        instant=words,
        longest_batch=LongestBatch(rows, tokens, length_origin(bill.job, row.config)),
        memory_source=row.offer.memory_source,
        fills=fills,
    )


def _short_of(
    row: Estimated, disk: float, ram: float, *, held: bool
) -> tuple[Literal["memory", "disk", "ram"], float, float]:
    """What is short, how much of it there is, and how much is needed; bytes.

    held: the device holds it with the settings as listed.
    """
    host = row.offer.host
    if not row.feasible and not (held and max(disk, ram) > 0):
        return "memory", row.usable_bytes, row.memory_bytes.total
    if ram > 0:
        return "ram", host.ram_bytes, host.ram_bytes + ram
    return "disk", host.disk_bytes, host.disk_bytes + disk


def on_host_words(bill: Bill, index: int) -> str:
    """What it is that takes most of the host's memory."""
    most = max(ON_HOST, key=lambda name: bill.at("memory", name, index))
    config, count = bill.candidates.config(index), bill.candidates.offer(index).per_node
    if most == "host_bytes":
        return "offloading"
    each = f" in each of {count} processes" if count > 1 else ""
    if most == "loading_host_bytes":
        return f"loading fp32 weights{each}"
    if config.sharding == "zero2":
        return f"saving, for which ZeRO-2 copies the whole model{each},"
    gathers = {"fsdp": "the whole model", "zero3": "what was trained"}.get(config.sharding)
    return f"saving, for which one process gathers {gathers}," if gathers else "saving the model"


def length_origin(job: Job, config: Config) -> str:
    """Where the length of the longest row comes from: stated, counted or assumed."""
    most = f"data.max_length {format_count(job.max_length)}"
    assumed = {item.key for item in job.assumed}
    limit = f"{most}, which was assumed" if "data.max_length" in assumed else most
    if config.packing == "on":
        return f"packing fills every sequence to {limit}"
    if job.padding == "max_length":
        return f"every row is padded to {limit}"
    if not job.lengths.known:
        return f"no row lengths are stated, so every row counts as {limit}"
    data = job.stated_file.get("data") or {}
    file = data.get("dataset") or (data.get("lengths") or {}).get("histogram")
    if file is not None:
        counted = f"the longest row of {Path(file).name}"
    elif "data.lengths.max" in assumed:
        return f"no longest row is stated, so one may reach {limit}"
    else:
        counted = "the stated data.lengths.max"
    if job.lengths.basis == "estimated":
        counted += ", at most: estimated from bytes; data.tokenizer counts it"
    cut = job.lengths.truncated_rows
    return f"{counted}, cut to {limit}" if cut else counted
