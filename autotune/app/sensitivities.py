"""What the user's own choices are worth in hours and dollars: length, base, rank, epochs.

They change what is trained, so none is ever applied; each is priced as the job that `--set` would
make, at its own best config on the pick's machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.app.changes import SHORTEST, shorter
from autotune.cost.model import CostModel
from autotune.domain.errors import InputError
from autotune.domain.recommendation import Sensitivity
from autotune.domain.units import HOUR_S, format_bytes
from autotune.search.selection import best_index
from autotune.space.enumerate import enumerate_candidates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.domain.calibration import Calibration
    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated
    from autotune.domain.space import SearchSpace

SAME = 0.02  # relative; a duration closer than this is "no time"


@dataclass(frozen=True, slots=True)
class _Choice:
    key: str
    value: str
    job: Job
    note: str = ""


def sensitivities(
    job: Job, space: SearchSpace, calibration: Calibration, pick: Estimated,
    modelled: Estimated | None = None,
) -> tuple[Sensitivity, ...]:  # fmt: skip
    """One entry for each choice that applies to the job; those that fit nowhere say so.

    modelled: the model's bill of a pick that was measured; every choice then stands beside the
    measured one.
    """
    if not job.steps:
        return ()
    here = replace(job, offers=(pick.offer,), today=None)
    found = (_priced(choice, space, calibration, pick, modelled) for choice in _choices(here))
    return tuple(each for each in found if each is not None)


def _beside(row: Estimated, modelled: Estimated, measured: Estimated) -> tuple[float, float]:
    """[s], [bytes] of a row beside what was measured of the pick, `modelled` being its bill.

    Formula: every part of the bill in the proportion of measured to modelled, a part that the
    model does not see as measured; memory by the difference.
    Source: derived: the choices run the pick's code on the pick's machine.
    """
    own, before, after = (each.time_s.as_dict() for each in (row, modelled, measured))
    duration_s = sum(
        own[name] * after[name] / before[name] if before[name] > 0 else after[name] for name in own
    )
    more = measured.memory_bytes.total - modelled.memory_bytes.total
    return duration_s, max(row.memory_bytes.total + more, 0.0)


def _choices(job: Job) -> Iterator[_Choice]:
    half = job.max_length // 2
    if half >= SHORTEST:
        yield _Choice("data.max_length", str(half), shorter(job, half), _cut(job, half))
    method = job.method
    if method.is_lora and method.base != "nf4" and job.software.bitsandbytes:
        yield _Choice("method.base", "nf4", replace(job, method=replace(method, base="nf4")))
    if method.is_lora and method.base != "16bit":
        plain = replace(job, method=replace(method, base="16bit"))
        yield _Choice("method.base", "16bit", plain)
    if method.is_lora and method.rank > 1:
        rank = method.rank // 2
        yield _Choice("method.rank", str(rank), replace(job, method=replace(method, rank=rank)))
    if not method.is_lora and method.base == "16bit":
        wide = replace(job, method=replace(method, base="32bit"))
        yield _Choice("method.base", "32bit", wide, "fp32 weights and states under bf16 compute")
    fewer = _fewer_epochs(job)
    if fewer is not None:
        yield fewer


def _fewer_epochs(job: Job) -> _Choice | None:
    """One pass less, of those that make more than one."""
    epochs = math.ceil(job.epochs) - 1
    if epochs < 1:
        return None
    steps = epochs * math.ceil(job.rows / job.global_batch_size)
    return _Choice("train.epochs", str(epochs), replace(job, epochs=float(epochs), steps=steps))


def _cut(job: Job, length: int) -> str:
    """How many rows a shorter length would truncate."""
    if not job.lengths.known:
        return "counts every row at the full length, so the gain is an upper bound"
    quantiles = job.lengths.quantiles
    longer = sum(value > length for value in quantiles) / len(quantiles)
    return f"truncates {100 * longer:.0f} % of the rows"


def _priced(
    choice: _Choice, space: SearchSpace, calibration: Calibration, pick: Estimated,
    modelled: Estimated | None,
) -> Sensitivity | None:  # fmt: skip
    """The choice's best config on the same machine; None where it is not valid there."""
    try:
        found = enumerate_candidates(choice.job, space)
    except InputError:
        return None
    bill = CostModel(choice.job, calibration).price(found.candidates)
    index = best_index(bill, "time", choice.job.limits).index
    if index is None:
        return None
    row = bill.estimate(index)
    duration_s, needed = row.duration_s.p50, row.memory_bytes.total
    if modelled is not None:
        duration_s, needed = _beside(row, modelled, pick)
    cost_usd = duration_s / HOUR_S * row.offer.usd_per_hour
    saved_s = pick.duration_s.p50 - duration_s
    return Sensitivity(
        key=choice.key,
        value=choice.value,
        duration_s=duration_s,
        cost_usd=cost_usd,
        saved_s=saved_s,
        saved_usd=pick.cost_usd.p50 - cost_usd,
        memory_bytes=needed,
        basis=row.basis if modelled is None else "calibrated",
        note="; ".join(part for part in (choice.note, _of_memory(pick, saved_s, needed)) if part),
    )


def _of_memory(pick: Estimated, saved_s: float, needed: float) -> str:
    """Said where a choice buys memory and no time, as a quantised base often does."""
    saved_bytes = pick.memory_bytes.total - needed
    no_time = saved_s <= SAME * pick.duration_s.p50
    if no_time and saved_bytes > 0:
        return f"saves {format_bytes(saved_bytes)} of memory, not time"
    return ""
