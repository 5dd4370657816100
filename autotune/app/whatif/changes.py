"""What could be changed so that a job fits: machines and the contract itself, as edits of it.

Rungs are edits of which the first that fits is the one to name: the mildest comes first. Not here:
settings (`levers`), and which of all these are told (`relaxations`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.app.hardware.machines import COUNTS
from autotune.app.hardware.offers import at_price
from autotune.catalog.devices import default_host, find_device
from autotune.catalog.prices.prices import price_for, sold_counts
from autotune.cost.parameters import ALL_LINEAR, resolve_targets
from autotune.domain.candidates import OFFER
from autotune.domain.config import ACCUMULATION
from autotune.domain.device import Offer
from autotune.domain.edit import Edit
from autotune.domain.units import GB
from autotune.pricing import on_job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autotune.cost.bill import Bill
    from autotune.domain.answer.recommendation import Relaxation
    from autotune.domain.device import Host
    from autotune.domain.job import Job, Lengths, Method
    from autotune.pricing import Change, Question, QuestionEdit

Rungs = tuple["QuestionEdit", ...]

SHORTEST = 64  # tokens; rows shorter than this train nothing useful
LOWEST_RANK = 4
MOST_RUNGS = 3
PAIR_RUNGS = 3  # of a ladder that is climbed together with another
MOST_DEVICES = 3  # of which more pieces are tried
_LENGTH, _STEPS, _FEW = "data.max_length", "train.steps", "<1 %"  # the last: no loss of rows


def more_devices(question: Question) -> list[Rungs]:
    """More pieces of the devices that the job already names, as few as will do.

    A device that the job has as many of as one host holds makes no ladder.
    """
    offers = question[0].offers
    most = {offer.device.name: offer for offer in sorted(offers, key=lambda own: own.count)}
    ladders = (
        tuple(
            Edit(
                _offered((more,)), f"on {more.label}", typed=f"--gpu {more.device.name}:{count}",
                of="machine", columns=("sharding",),
            )
            for count in COUNTS
            if count > offer.count and (more := _more_of(offer, count)) is not None
        )
        for offer in list(most.values())[:MOST_DEVICES]
        if not offer.device.is_cpu and offer.network is None
    )  # fmt: skip
    return [rungs for rungs in ladders if rungs]


def _more_of(offer: Offer, count: int) -> Offer | None:
    """So many of the offer's device, at the catalogue's price or at that of each one now.

    None where machines of the device are sold, and none with so many.
    """
    sold = sold_counts(offer.device.name, spot=offer.spot)
    if sold and count not in sold:
        return None
    host = replace(default_host(count, offer.device), wsl=offer.host.wsl)
    more = replace(offer, count=count, instance="", host=host)
    price = price_for(offer.device.name, count, spot=offer.spot)
    if price is not None and offer.price_as_of is not None:
        return at_price(more, price)
    return replace(
        more,
        usd_per_hour=offer.usd_per_hour / offer.count * count,
        price_source=f"{offer.price_source}, times {count / offer.count:g}",
        price_asked=False,
        price_scaled_from=offer.count,
        price_age_days=None,
    )


HOST_PARTS = {"disk": "disk_bytes", "ram": "ram_bytes"}  # of a host, that may be short
_SHM = "shm_bytes"


def larger_host(bill: Bill, short: str) -> QuestionEdit:
    """The job's own machines with the least disk or memory of the host under which one fits."""
    part = HOST_PARTS[short]
    have = np.asarray([getattr(offer.host, part) for offer in bill.candidates.levels[OFFER]])
    lacking = bill.disk_short_bytes if short == "disk" else bill.ram_short_bytes
    needed = have[bill.candidates.codes[OFFER]] + lacking
    of_these = (bill.memory_violation <= 0) & (lacking > 0)
    least = float(np.min(needed, where=of_these, initial=np.inf))
    size = _rounded_up(least) if math.isfinite(least) else 0.0

    def edited(job: Job) -> Job:
        offers = tuple(replace(o, host=_stated_host(o.host, part, size)) for o in job.offers)
        return replace(job, offers=offers)

    what, typed = "a disk" if short == "disk" else "RAM", f"{size / GB:.0f}GB"
    label = f"{what} of {size / GB:,.0f} GB in the host"
    return Edit(on_job(edited), label, short, typed=f"--set host.{short}={typed}", of="machine")


def _stated_host(host: Host, part: str, size: float) -> Host:
    """The host as `--set host.PART=SIZE` states it; half of its RAM is /dev/shm unless stated."""
    values: dict[str, Any] = {part: size}
    if part == HOST_PARTS["ram"] and _SHM in host.assumed:
        values[_SHM] = size / 2
    assumed = tuple(name for name in host.assumed if name != part)
    return replace(host, assumed=assumed, **values)


def _rounded_up(size: float) -> float:
    """[bytes] with two digits, and whole GB."""
    step = max(10.0 ** (math.floor(math.log10(max(size, 1.0))) - 1), GB)
    return math.ceil(size / step) * step


def other_machines(count: int) -> QuestionEdit | None:
    """Every priced machine with so many devices, instead of the job's own."""
    from autotune.app.hardware.machines import priced_devices

    offers = tuple(o for o in (_priced(name, count) for name in priced_devices()) if o is not None)
    frees = ("sharding",) if count > 1 else ()
    return Edit(_offered(offers), of="machine", columns=frees) if offers else None


def _priced(name: str, count: int) -> Offer | None:
    device = find_device(name)
    price = price_for(name, count)
    if price is None or price.scaled_from:
        return None
    unpriced = Offer(device, count, 0.0, default_host(count, device), "")
    return at_price(unpriced, price)


def _offered(offers: tuple[Offer, ...]) -> Change:
    """Other offers. Locks that only another number of devices can keep are dropped with them."""

    def elsewhere(job: Job) -> Job:
        gone = (
            {"sharding", ACCUMULATION} if {o.count for o in job.offers} != {offers[0].count} else ()
        )
        lock = {name: value for name, value in job.lock.items() if name not in gone}
        return replace(job, offers=offers, lock=lock)

    return on_job(elsewhere)


def contract_changes(job: Job) -> list[Rungs]:
    """Changes of the contract that save memory or make a native precision valid."""
    method = job.method
    found: list[Rungs] = []
    if method.kind == "full":
        targets = resolve_targets(job.model, ALL_LINEAR)
        lora: dict[str, Any] = {"kind": "lora", "rank": 16, "alpha": 32.0, "targets": targets}
        as_lora = "--set method.kind=lora --set method.rank=16"
        found.append((_adapters("LoRA rank 16, not full fine-tuning", as_lora, **lora),))
        if method.base == "16bit":
            wide = "base 32bit: fp32 weights under autocast"
            found.append((base_edit("32bit", wide),))
        qlora = "--set method.kind=qlora --set method.rank=16"
        found.append((_adapters("QLoRA rank 16: an nf4 base", qlora, **lora, base="nf4"),))
    else:
        found += _smaller_bases(job)
        found += [(saved_edit(method),)] if method.modules_to_save else []
        ranks = _halved(method.rank, LOWEST_RANK)
        found.append(tuple(rank_edit(method, r) for r in ranks))
    lengths = _halved(job.max_length, SHORTEST)
    found.append(tuple(length_edit(job, length) for length in lengths))
    return [rungs for rungs in found if rungs]


def harm(each: Relaxation) -> int:
    """How far a change of the contract moves what is learned: 0 least, 2 most.

    Adapters over weights of 16 bits, of any rank, learn from all rows; so does a quantised base,
    whose weights are rounded; cut rows, and steps that are not made, are lost. Fewer than one row
    in a hundred is no loss, and what needs another machine as well is told by its price.
    """
    if not each.quality or "--gpu " in each.apply:
        return 0
    cut = f"{_LENGTH}=" in each.apply and f"(cuts {_FEW}" not in each.change
    if cut or f"{_STEPS}=" in each.apply:
        return 2
    return int(any(words in each.apply for words in ("kind=qlora", "base=nf4", "base=int8")))


def _smaller_bases(job: Job) -> Iterator[Rungs]:
    """Smaller bases than the job's own, the nearest first; quantised if bitsandbytes is there."""
    if job.method.base == "32bit":
        yield (base_edit("16bit", "weights loaded in 16 bits", "PEFT keeps the adapters in fp32"),)
    if job.software.bitsandbytes is None:
        return
    if job.method.base in {"16bit", "32bit"}:
        yield (base_edit("int8", "an int8 base"),)
    if job.method.base != "nf4":
        yield (base_edit("nf4", "QLoRA: an nf4 base"),)


def _halved(start: int, least: int) -> list[int]:
    values: list[int] = []
    value = start // 2
    while value >= least and len(values) < MOST_RUNGS:
        values.append(value)
        value //= 2
    return values


def base_edit(base: str, label: str = "", note: str = "") -> QuestionEdit:
    """The frozen or trained weights stored otherwise."""
    return _contract("method.base", base, lambda job: _with_method(job, base=base), label, note)


def rank_edit(method: Method, rank: int) -> QuestionEdit:
    """Adapters of another rank."""
    label = f"rank {rank}, not {method.rank}"
    return _contract("method.rank", str(rank), lambda job: _with_method(job, rank=rank), label)


def saved_edit(method: Method) -> QuestionEdit:
    """Nothing that trains whole beside the adapters."""
    label = f"adapters alone, not all of {' and '.join(method.modules_to_save)}"
    none = {"modules_to_save": ()}
    return _contract("method.modules_to_save", "none", lambda job: _with_method(job, **none), label)


def length_edit(job: Job, length: int) -> QuestionEdit:
    """Rows cut to fewer tokens."""
    label = f"max_length {length:,}, not {job.max_length:,}"
    if job.lengths.known:
        label = f"max_length {length:,} (cuts {_share_cut(job.lengths, length)} of rows)"
    return _contract(
        _LENGTH, str(length), lambda job: shorter(job, length), label,
        _cut(job.lengths, length),
    )  # fmt: skip


def epochs_edit(epochs: int) -> QuestionEdit:
    """Another number of passes over the rows."""

    def edited(job: Job) -> Job:
        steps = epochs * math.ceil(job.rows / job.global_batch_size)
        return replace(job, epochs=float(epochs), steps=steps)

    return _contract("train.epochs", str(epochs), edited)


def steps_edit(job: Job, steps: int) -> QuestionEdit:
    """Fewer optimizer steps: the training stops before it has seen all rows."""

    def edited(job: Job) -> Job:
        return replace(job, steps=steps, epochs=job.epochs * steps / job.steps)

    label = f"{steps:,} of {job.steps:,} steps ({100.0 * steps / job.steps:.0f} %)"
    return _contract(_STEPS, str(steps), edited, label)


def _contract(
    key: str, value: str, of_job: Callable[[Job], Job], label: str = "", note: str = ""
) -> QuestionEdit:
    """One key of the contract: the user's to change."""
    return Edit(
        on_job(of_job), label, key, value=value,
        typed=f"--set {key}={value}", changes="quality", note=note,
    )  # fmt: skip


def _with_method(job: Job, **fields: Any) -> Job:  # noqa: ANN401 - fields of Method
    return replace(job, method=replace(job.method, **fields))


def _adapters(label: str, typed: str, **fields: Any) -> QuestionEdit:  # noqa: ANN401 - as above
    """Adapters instead of all weights."""
    return Edit(
        on_job(lambda job: _with_method(job, **fields)), label, typed=typed, changes="quality",
    )  # fmt: skip


def _cut(lengths: Lengths, length: int) -> str:
    """How many rows a shorter length would truncate."""
    if not lengths.known:
        return "counts every row at the full length, so the gain is an upper bound"
    return f"truncates {_share_cut(lengths, length)} of the rows"


def _share_cut(lengths: Lengths, length: int) -> str:
    """How many rows are longer: "7 %"."""
    longer = 100.0 * sum(value > length for value in lengths.quantiles) / len(lengths.quantiles)
    return f"{longer:.0f} %" if longer >= 1.0 else _FEW


def shorter(job: Job, max_length: int) -> Job:
    """The job with rows cut to fewer tokens."""
    cut = tuple(min(length, float(max_length)) for length in job.lengths.quantiles)
    lengths = replace(
        job.lengths,
        quantiles=cut,
        mean=min(sum(cut) / len(cut), job.lengths.mean),
        maximum=min(job.lengths.maximum, max_length),
    )
    return replace(job, max_length=max_length, lengths=lengths)


def host_lacks(bill: Bill) -> list[str]:
    """What hosts have too little of, under candidates that a device holds."""
    lacking = {"disk": bill.disk_short_bytes, "ram": bill.ram_short_bytes}
    held = bill.memory_violation <= 0
    return [name for name, over in lacking.items() if bool((held & (over > 0)).any())]


def climbing(one: Rungs, two: Rungs) -> Rungs:
    """Pairs of rungs, the mildest of both first; the shorter ladder stays on its last."""
    one, two = one[:PAIR_RUNGS], two[:PAIR_RUNGS]
    if not one or not two:
        return one or two
    return tuple((a or one[-1]).then(b or two[-1]) for a, b in zip_longest(one, two))
