"""What would make a job fit that does not: one change at a time, each answered by the cost model.

Everything the space holds was tried already, so a change opens something that was closed: a lock, a
numeric knob, another machine, or the contract itself (quality: the user's call, never applied).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.catalog.devices import default_host, find_device
from autotune.catalog.prices import price_for
from autotune.cost.model import CostModel
from autotune.domain.config import KNOBS
from autotune.domain.device import Offer
from autotune.domain.recommendation import Relaxation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated
    from autotune.domain.space import SearchSpace

SHOWN = 8
COUNTS = (1, 2, 4, 8)
SHORTEST = 64  # tokens; rows shorter than this train nothing useful


@dataclass(frozen=True, slots=True)
class _Change:
    label: str
    job: Job
    quality: bool = False


def relaxations(job: Job, space: SearchSpace) -> tuple[Relaxation, ...]:
    """Single changes after which the job fits: the same training first, soonest first.

    When no change of the training's own knobs suffices alone, all of them together are one change.
    """
    from autotune.space.file import load_space

    wide = load_space("extended")
    found = [_tried(change, space, wide) for change in _single_changes(job)]
    if not any(found):
        found.append(_tried(_all_knobs(job), space, wide))
    found += [_tried(change, space, wide) for change in _contract_changes(job)]
    found.append(_other_machine(job, space))
    fitting = [each for each in found if each is not None]
    return tuple(sorted(fitting, key=lambda each: (each.quality, each.duration_s)))[:SHOWN]


def _single_changes(job: Job) -> Iterator[_Change]:
    for name in job.lock:
        kept = {knob: value for knob, value in job.lock.items() if knob != name}
        yield _Change(f"{name} not locked to {job.lock[name]}", replace(job, lock=kept))
    for name, values in _opt_in(job).items():
        opened = replace(job, allow=(*job.allow, name))
        yield _Change(f"{name} {' or '.join(values)} (--allow {name})", opened)


def _opt_in(job: Job) -> dict[str, tuple[str, ...]]:
    """Numeric knobs that save memory and are closed, with what opening them adds."""
    closed: dict[str, tuple[str, ...]] = {}
    if job.method.is_lora and "adapter_dtype" not in job.allow:
        closed["adapter_dtype"] = ("bf16",)
    if job.software.bitsandbytes and "optimizer" not in job.allow:
        closed["optimizer"] = ("adamw_bnb_8bit", "paged_adamw_8bit")
    return {name: values for name, values in closed.items() if name not in job.lock}


def _all_knobs(job: Job) -> _Change:
    opened = tuple(_opt_in(job))
    label = ", ".join(opened) or "all knobs"
    return _Change(
        f"every lock dropped and {label} opened", replace(job, lock={}, allow=(*job.allow, *opened))
    )


def _contract_changes(job: Job) -> Iterator[_Change]:
    """Changes of the contract that save memory or make a native precision valid."""
    method = job.method
    if method.kind == "full":
        targets = tuple(linear.name for linear in job.model.linears if linear.adaptable)
        lora = replace(method, kind="lora", rank=16, alpha=32.0, targets=targets)
        yield _Change("LoRA rank 16, not full fine-tuning", replace(job, method=lora), quality=True)
        if method.base == "16bit":
            fp32 = replace(job, method=replace(method, base="32bit"))
            yield _Change("base 32bit: fp32 weights under autocast", fp32, quality=True)
        method = lora
    if method.base != "nf4":
        nf4 = replace(job, method=replace(method, base="nf4"))
        yield _Change("QLoRA: an nf4 base", nf4, quality=True)
    half = job.max_length // 2
    if half >= SHORTEST:
        label = f"max_length {half}, not {job.max_length}"
        yield _Change(label, _shorter(job, half), quality=True)


def _shorter(job: Job, max_length: int) -> Job:
    cut = tuple(min(length, float(max_length)) for length in job.lengths.quantiles)
    lengths = replace(
        job.lengths,
        quantiles=cut,
        mean=sum(cut) / len(cut),
        maximum=min(job.lengths.maximum, max_length),
    )
    return replace(job, max_length=max_length, lengths=lengths)


def _tried(change: _Change, space: SearchSpace, wide: SearchSpace) -> Relaxation | None:
    opened = set(change.job.allow) & {name for name, knob in KNOBS.items() if knob.opt_in}
    opened |= set(change.job.allow) & {"optimizer"}
    best = _soonest(change.job, wide if opened else space)
    if best is None:
        return None
    return _relaxation(change.label, best, quality=change.quality)


def _relaxation(label: str, best: Estimated, *, quality: bool) -> Relaxation:
    return Relaxation(
        change=label,
        required_bytes=best.memory_bytes.total,
        available_bytes=best.usable_bytes,
        quality=quality,
        duration_s=best.duration_s.p50,
        cost_usd=best.cost_usd.p50,
    )


def _soonest(job: Job, space: SearchSpace, *, by_cost: bool = False) -> Estimated | None:
    """The soonest (or cheapest) candidate of a changed job that fits."""
    from autotune.search.selection import best_index
    from autotune.space.enumerate import enumerate_candidates

    bill = CostModel(job).price(enumerate_candidates(job, space).candidates)
    chosen = best_index(bill, "cost" if by_cost else "time", job.limits)
    return bill.estimate(chosen.index) if chosen.index is not None else None


def _other_machine(job: Job, space: SearchSpace) -> Relaxation | None:
    """The cheapest priced machine on which the same job fits, with as few devices as will do."""
    from autotune.app.overrides import priced_devices

    for count in COUNTS:
        if job.global_batch_size % count:
            continue
        offers = tuple(_offer(name, count) for name in priced_devices())
        elsewhere = replace(job, offers=tuple(o for o in offers if o is not None))
        best = _soonest(elsewhere, space, by_cost=True) if elsewhere.offers else None
        if best is not None:
            return _relaxation(f"another machine: {best.offer.label}", best, quality=False)
    return None


def _offer(name: str, count: int) -> Offer | None:
    device = find_device(name)
    price = price_for(name, count)
    if price is None:
        return None
    return Offer(
        device=device,
        count=count,
        usd_per_hour=price.usd_per_hour,
        host=default_host(count, device),
        price_source=price.source,
        price_as_of=price.as_of,
    )
