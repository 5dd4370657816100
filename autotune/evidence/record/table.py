"""Reading a public table of measurements: each row as a case, a run with its Observations.

Every row becomes a `MeasuredCase` or a `Skipped` with its reason; an odd row never stops the rest.

How a row becomes a job. One optimizer step of the run is described: global batch, micro-batch,
devices, lengths. Packed rows are full sequences without padding. Rows that are not packed take the
mean length that the source states (with the padding in it, where the source counts padding), else
an assumption that is listed; `seq_len` is then the longest row, which decides memory. Full
fine-tuning in 16 bit keeps everything in 16 bit unless the source mixes precisions. The job keeps
no memory free, as the run did not.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.catalog.files import read_regular
from autotune.catalog.models.models import find_model
from autotune.domain.config import SPLIT
from autotune.domain.errors import InputError
from autotune.domain.observation import Observation
from autotune.domain.units import GB, GIB, MIB
from autotune.evidence.cases import MeasuredCase, Refused, Skipped
from autotune.evidence.record.described import Described, describe
from autotune.evidence.record.notes import grades_of, is_logged
from autotune.evidence.record.row import Row, rows_of
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autotune.domain.job import Job
    from autotune.domain.model import Model
    from autotune.domain.observation import MemoryKind

SHIPPED_ROWS = Path(__file__).parents[1] / "data" / "measured.csv"
MAX_BYTES = 500_000_000
DRIVER_READING = r"nvidia-smi (?:used \(mean over GPUs\)|peak) (\d+) MiB"
RESERVED_READING = r"device reserved (\d+\.\d+) GiB"
_KINDS: dict[str, MemoryKind] = {
    "allocated": "allocated", "reserved": "reserved", "nvidia-smi": "nvidia-smi",
    "active (torch)": "allocated", "active": "allocated",
}  # fmt: skip
NOTHING_TO_COMPARE = "nothing measured that can be compared"
LONGEST_NOT_STATED = "length of the longest row not stated"
STARTED_INSIDE = "loading or compiling is inside the seconds"
_STARTED_INSIDE = re.compile(
    r"step time is an upper bound|\(upper bound\)|start-up is a large share|incl\. start-up"
)
MEAN_NOT_STATED = "mean row length not stated"
_SOURCE = ("source_repo", "source_path", "source_commit_or_date")
_OLDER = "older s"  # "older software snapshot", "older snapshot"


@dataclass(frozen=True, slots=True)
class Table:
    """What a public table holds for the cost model."""

    cases: tuple[MeasuredCase, ...]
    skipped: tuple[Skipped, ...]

    @property
    def rows(self) -> int:
        """Rows of the file."""
        return len(self.cases) + len(self.skipped)


def read_cases(path: Path, find_model: Callable[[str], Model] = find_model) -> Table:
    """Every row of the table as a case that the cost model can predict, or skipped by reason.

    find_model: the catalogue's lookup of a bare name; raises InputError for an unknown model.
    """
    cases: list[MeasuredCase] = []
    skipped: list[Skipped] = []
    jobs: dict[str, Job] = {}
    for row in read_table(path):
        outcome = case_of(row, find_model)
        if isinstance(outcome, Skipped):
            skipped.append(outcome)
        else:
            job = jobs.setdefault(repr(outcome.job), outcome.job)
            cases.append(replace(outcome, job=job))
    return Table(tuple(cases), tuple(skipped))


def case_of(row: Row, find_model: Callable[[str], Model]) -> MeasuredCase | Skipped:
    """One row as a case, or skipped."""
    try:
        return _measured(row, describe(row, find_model))
    except Refused as refused:
        return Skipped(row.id, str(refused))


def _measured(row: Row, described: Described) -> MeasuredCase:
    partial: list[str] = []
    seen: list[Observation] = []
    bounded: list[Observation] = []
    for observation, exact in _observations(row, described, partial):
        (seen if exact else bounded).append(observation)
    if not seen and not bounded:
        raise Refused(partial[0] if partial else NOTHING_TO_COMPARE)
    return MeasuredCase(
        id=row.id,
        group=(
            row.texts["source_repo"],
            row.texts["model_id"],
            row.texts["gpu"],
            row.texts["task"],
        ),
        job=described.job,
        offer=described.offer,
        config=described.config,
        observations=tuple(seen),
        bounded=tuple(bounded),
        capped=described.capped,
        guessed=described.guessed,
        replicate_key=replicate_key(row),
        sweep_key=sweep_key(row),
        logged=is_logged(row.notes),
        grades=grades_of(row.notes),
        longest_known=described.longest_known,
        older=_OLDER in row.notes,
        assumed=described.assumed,
        partial=tuple(partial),
    )


def _observations(
    row: Row, described: Described, partial: list[str]
) -> Iterator[tuple[Observation, bool]]:
    """What the row measured, and whether a prediction of it is one, or only bounds it.

    What cannot be compared either way goes to `partial`, with its reason. Raises Refused for a run
    out of memory whose longest row is not known.
    """
    shared: dict[str, Any] = {
        "provenance": " ".join(row.texts[column] for column in _SOURCE).strip(),
        "knobs": {name: getattr(described.config, name) for name in SPLIT},
        "facts": {k: v for k, v in row.cells.items() if v and k not in {"id", "notes"}},
    }
    if row.is_oom:
        if not described.longest_known:
            raise Refused(LONGEST_NOT_STATED)
        yield Observation(f"{row.id}/oom", "oom", 1.0, **shared), True
        return
    step_s = _step_time(row, described)
    if step_s is not None and _STARTED_INSIDE.search(row.notes):
        partial.append(f"time: {STARTED_INSIDE}")
    elif step_s is not None:
        if not described.mean_known:
            partial.append(f"time: {MEAN_NOT_STATED}")
        seen = Observation(f"{row.id}/step_time_s", "step_time_s", step_s, **shared)
        yield seen, described.mean_known
    for kind, size in _peaks(row, described, partial):
        if not described.longest_known:
            partial.append(f"memory: {LONGEST_NOT_STATED}")
        exact = described.longest_known and kind != "unknown"
        name = f"{row.id}/memory_bytes, {kind}"
        yield Observation(name, "memory_bytes", size, kind=kind, **shared), exact


_IDENTITY = (
    "source_repo", "model_id", "task", "lora_r", "target_modules", "gpu", "n_gpus", "parallelism",
    "quant", "optimizer", "seq_len", "micro_batch", "grad_accum", "global_batch", "packing",
    "grad_ckpt", "attn", "compile", "other_kernels",
)  # fmt: skip


def replicate_key(row: Row) -> str:
    """Equal for rows that measure the same configuration in the same source, at whatever date."""
    numbers = (str(row.numbers[c] or row.words[c]) for c in _IDENTITY)
    return "|".join((*numbers, _variant(row)))


# Columns of `_IDENTITY` that a search turns, or that follow from what it turns.
_TURNED = (
    "parallelism", "optimizer", "micro_batch", "grad_accum", "global_batch", "grad_ckpt", "attn",
    "compile",
)  # fmt: skip


def sweep_key(row: Row) -> str:
    """Equal for rows of one source and snapshot that differ only in knobs of a search."""
    fixed = [row.words[column] for column in _IDENTITY if column not in _TURNED]
    year, month = row.date
    return "|".join((*fixed, _variant(row), row.words["source_commit_or_date"], f"{year}-{month}"))


def _variant(row: Row) -> str:
    """What only the notes tell apart: the acceleration framework or the experiment's file."""
    found = re.search(r"framework_config=(\S+?)(?:;|$)", row.notes)
    if found:
        return found[1] + (" mp" if "multipack" in row.notes else "")
    found = re.search(r"\bexp(?:eriment)? ([^;]+);", row.notes)
    return found[1].strip() if found else ""


def _step_time(row: Row, described: Described) -> float | None:
    """[s] of one optimizer step: from rates, which are printed with more digits, else as given.

    A rate of tokens is one of steps only where the lengths are known; where not, it bounds nothing.
    """
    tokens, samples = row.numbers["tokens_per_s_per_gpu"], row.numbers["samples_per_s"]
    stated = row.numbers["step_time_s"]
    job, gpus = described.job, described.offer.count
    if samples is not None:
        return job.global_batch_size / samples
    if stated is not None:
        return stated
    if tokens is None or not described.mean_known:
        return None
    packed = described.config.packing == "on"
    each = job.max_length if packed else job.lengths.mean
    return job.global_batch_size * each / (tokens * gpus)


def _peaks(
    row: Row, described: Described, partial: list[str]
) -> Iterator[tuple[MemoryKind, float]]:
    """[bytes] peaks by kind: the table's own, and others that the notes give beside it.

    A reading is never mixed with one of another kind.
    """
    peak = row.numbers["peak_mem_gb"]
    if peak is None:
        return
    kind = _KINDS.get(row.words["peak_mem_kind"], "unknown")
    if kind == "unknown":
        partial.append("memory: kind of reading not stated")
    card = described.offer.device.memory_driver_bytes
    if peak * GB > card:
        partial.append("memory: more than the GPU has")
        return
    yield kind, peak * GB
    held = re.search(RESERVED_READING, row.notes)
    if held and kind == "allocated":
        yield "reserved", float(held[1]) * GIB
    reading = re.search(DRIVER_READING, row.notes)
    if not reading or kind in {"nvidia-smi", "unknown"}:
        return
    driver = float(reading[1]) * MIB
    if peak * GB <= driver <= card:
        yield "nvidia-smi", driver
    else:
        partial.append("memory: the driver's reading contradicts the peak")


def read_table(path: Path) -> list[Row]:
    """Every row of a CSV with the columns of the shipped table.

    Raises InputError when the file cannot be read as such a table; single odd cells are left to
    the caller, who skips the row by name.
    """
    try:
        content = read_regular(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        msg = f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise InputError(msg) from None
    try:
        text = io.StringIO(content.decode("utf-8-sig"), newline="")
        return list(rows_of(csv.DictReader(text), path))
    except (UnicodeDecodeError, csv.Error) as error:
        msg = f"{path} is not a CSV in UTF-8: {error}"
        raise InputError(msg) from None
