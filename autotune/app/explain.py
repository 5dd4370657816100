"""Why the pick is the pick, and what would make an infeasible job fit.

Both are answers of the cost model to a changed question: one knob changed, everything else kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.cost.model import CostModel
from autotune.domain.candidates import Candidates
from autotune.domain.config import KNOBS
from autotune.domain.recommendation import Relaxation
from autotune.domain.units import format_bytes, format_seconds

if TYPE_CHECKING:
    import numpy as np

    from autotune.cost.model import Bill
    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.domain.space import SearchSpace

DERIVED = {"gradient_accumulation_steps", "checkpoint_every_steps", "save_total_limit"}
RELEVANT_FRACTION = 0.002  # changes below 0.2 % of the duration are "no difference"


def reasons(bill: Bill, pick: int) -> dict[str, str]:
    """One clause per knob: what the best other value of that knob alone would cost.

    Only knobs with more than one value in the space have an alternative.
    """
    found: dict[str, str] = {}
    for name in KNOBS:
        if name in DERIVED:
            continue
        others = _one_knob_away(bill, pick, name)
        if len(others):
            found[name] = _clause(bill, pick, name, others)
        elif name in bill.job.lock:
            found[name] = "locked by the job"
        else:
            found[name] = "the only value that is valid here"
    found |= _derived_reasons(bill, pick)
    return found


def _one_knob_away(bill: Bill, pick: int, name: str) -> np.ndarray:
    import numpy as np

    same = np.ones(len(bill), np.bool_)
    for axis, codes in bill.candidates.codes.items():
        if axis not in {name, *DERIVED}:
            same &= codes == codes[pick]
    same &= bill.candidates.codes[name] != bill.candidates.codes[name][pick]
    return np.flatnonzero(same)


def _clause(bill: Bill, pick: int, name: str, others: np.ndarray) -> str:
    import numpy as np

    fitting = others[bill.feasible[others]]
    if not len(fitting):
        nearest = int(others[np.argmin(bill.memory_violation[others])])
        over = float(bill.memory_bytes[nearest] - bill.usable_bytes[nearest])
        value = bill.candidates.value(name, nearest)
        if over > 0:
            return f"{value} would need {format_bytes(over)} more than there is"
        return f"{value} would not fit safely"
    best = int(fitting[np.argmin(bill.duration_s[fitting])])
    value = bill.candidates.value(name, best)
    extra = float(bill.duration_s[best] - bill.duration_s[pick])
    if abs(extra) < RELEVANT_FRACTION * float(bill.duration_s[pick]):
        saved = float(bill.memory_bytes[best] - bill.memory_bytes[pick])
        if saved > 0.01 * float(bill.memory_bytes[pick]):
            return f"as fast as {value}, and {format_bytes(saved)} smaller"
        return f"no difference to {value}"
    if extra < 0:
        return f"{value} would be {format_seconds(-extra)} faster, within the tie: simpler wins"
    return f"{value} would take {format_seconds(extra)} longer"


def _derived_reasons(bill: Bill, pick: int) -> dict[str, str]:
    job, offer = bill.job, bill.candidates.offer(pick)
    micro = bill.candidates.value("micro_batch_size", pick)
    interval_s = float(bill.interval_steps[pick] * bill.step_s[pick])
    split = f"{micro} x accumulation x {offer.count} device(s) = {job.global_batch_size}"
    if "checkpoint_every_steps" in job.lock:
        checkpoints = "locked by the job"
    elif offer.spot:
        checkpoints = f"every {format_seconds(interval_s)}: saves against work lost (Young/Daly)"
    else:
        checkpoints = f"at most {format_seconds(interval_s)} of work to lose (max_lost_work)"
    return {
        "gradient_accumulation_steps": f"makes the global batch exactly: {split}",
        "checkpoint_every_steps": checkpoints,
        "save_total_limit": "what the disk holds, two at most",
    }


def _quality_changes(job: Job) -> list[tuple[str, Job]]:
    """Changes of the contract that save memory: the user's call, never applied."""
    changes: list[tuple[str, Job]] = []
    method = job.method
    if method.kind == "full":
        lora = replace(
            method, kind="lora", rank=16, alpha=32.0,
            targets=tuple(linear.name for linear in job.model.linears if linear.adaptable),
        )  # fmt: skip
        changes.append(("LoRA (rank 16) instead of full fine-tuning", replace(job, method=lora)))
        changes.append(
            ("QLoRA: an nf4 base with LoRA rank 16", replace(job, method=replace(lora, base="nf4")))
        )
    elif method.base in {"16bit", "32bit", "int8"}:
        changes.append(("QLoRA: an nf4 base", replace(job, method=replace(method, base="nf4"))))
    half = job.max_length // 2
    if half >= 64:  # noqa: PLR2004 - shorter rows than this train nothing useful
        quantiles = tuple(min(q, float(half)) for q in job.lengths.quantiles)
        shorter = replace(
            job.lengths, quantiles=quantiles, maximum=min(job.lengths.maximum, half),
            mean=sum(quantiles) / len(quantiles),
        )  # fmt: skip
        changed = replace(job, max_length=half, lengths=shorter)
        changes.append((f"max_length {half} instead of {job.max_length}", changed))
    return changes


def relaxations_of_contract(job: Job, space: SearchSpace) -> tuple[Relaxation, ...]:
    """Changes of the contract that give a job without any valid candidate one that fits."""
    from autotune.space.enumerate import enumerate_candidates

    changes = _quality_changes(job)
    if job.method.base == "16bit":
        fp32 = replace(job, method=replace(job.method, base="32bit"))
        changes.insert(0, ("base 32bit: fp32 weights under autocast", fp32))
    found: list[Relaxation] = []
    for label, changed in changes:
        bill = CostModel(changed).price(enumerate_candidates(changed, space).candidates)
        if bool(bill.feasible.any()):
            leanest = int((bill.memory_bytes + 1e18 * ~bill.feasible).argmin())
            required = float(bill.memory_bytes[leanest])
            available = float(bill.usable_bytes[leanest])
            found.append(Relaxation(label, required, available, quality=True))
    return tuple(found)


def _neutral_changes(offer: Offer, config: Config, job: Job) -> list[tuple[str, Config]]:
    """Changes of knobs that save memory, in the order of their usual cost in time."""
    smallest = config.with_knobs(
        micro_batch_size=1, gradient_accumulation_steps=max(job.global_batch_size // offer.count, 1)
    )
    changes = [("micro_batch_size 1", smallest)]
    changes.append(
        ("activation_checkpointing full", smallest.with_knobs(activation_checkpointing="full"))
    )
    leanest = changes[-1][1]
    if job.method.is_lora and config.adapter_dtype == "fp32":
        leanest = leanest.with_knobs(adapter_dtype="bf16")
        changes.append(("adapter_dtype bf16 (allow: [adapter_dtype])", leanest))
    if job.software.bitsandbytes and not offer.device.is_cpu:
        leanest = leanest.with_knobs(optimizer="paged_adamw_8bit")
        changes.append(("optimizer paged_adamw_8bit", leanest))
    return changes


def relaxations(bill: Bill, nearest: int, limit: int = 6) -> tuple[Relaxation, ...]:
    """The smallest changes that fit, starting from the nearest miss; quality ones are marked."""
    job, offer = bill.job, bill.candidates.offer(nearest)
    start = bill.estimate(nearest).config
    found: list[Relaxation] = []
    configs = _neutral_changes(offer, start, job)
    for label, config in configs:
        if config.key != start.key:
            found += _if_it_fits(job, offer, config, label, quality=False)
    leanest = configs[1][1]
    for label, changed in _quality_changes(job):
        found += _if_it_fits(changed, offer, leanest, label, quality=True)
    needed = float(bill.memory_bytes[nearest])
    if not found:
        found.append(
            Relaxation(
                f"a device with at least {format_bytes(needed * 1.1)} of memory", needed,
                float(bill.usable_bytes[nearest]), quality=False,
            )
        )  # fmt: skip
    return tuple(found[:limit])


def _if_it_fits(
    job: Job, offer: Offer, config: Config, label: str, *, quality: bool
) -> list[Relaxation]:
    bill = CostModel(job).price(Candidates.of([(offer, config)]))
    if not bool(bill.feasible[0]):
        return []
    required, available = float(bill.memory_bytes[0]), float(bill.usable_bytes[0])
    return [Relaxation(label, required, available, quality)]
