"""What the method and the releases make of the model, and its user should know before a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cost.dora import repeats_base
from autotune.cost.memory.experts import experts_fused, experts_quantised, retained_bytes
from autotune.cost.memory.states import quantised, sizes
from autotune.cost.parameters import saved_parameters
from autotune.cost.time.flops import products
from autotune.domain.answer.recommendation import Decisive
from autotune.domain.software import CLASS_FROM
from autotune.domain.units import format_bytes

if TYPE_CHECKING:
    from autotune.domain.job import Job


def method_notes(job: Job) -> tuple[str, ...]:
    """What the method and the releases make of the model, and its user should know."""
    return (*_class_note(job), *_unquantised_note(job), *_variant_note(job), *_saved_note(job))


def silent_note(job: Job) -> tuple[str, ...]:
    """That a script leaves the dtype of its weights to the release, which nobody states."""
    if job.origin is None or not job.origin.silent or job.stated_releases:
        return ()
    more = format_bytes(2.0 * sizes(job.model).total)
    name = Path(job.origin.path).name or "the script"
    told = f"{name} gives the weights no dtype: transformers before 5 loads fp32, {more} more"
    return (Decisive(f"{told}. State the dtype there"),)


def _class_note(job: Job) -> tuple[str, ...]:
    """That the release of transformers cannot load the model: its class came later."""
    software, family = job.software, job.model.family
    if software.has_class(family):
        return ()
    since = ".".join(map(str, CLASS_FROM[family]))
    return (
        Decisive(
            f"transformers {'.'.join(map(str, software.transformers))} cannot load "
            f"{job.model.name}: its class ({family}) came with {since}"
        ),
    )


def _unquantised_note(job: Job) -> tuple[str, ...]:
    """What of a quantised base stays in 16 bit though it was asked for; nothing where all is.

    Source: transformers 5 makes one parameter of a layer's experts, and bitsandbytes replaces
    linear layers alone.
    """
    base, version = job.method.base, ".".join(map(str, job.software.transformers))
    if not job.method.is_quantised:
        return ()
    if not quantised(job):
        text = f"transformers {version} leaves {job.model.name} in 16 bit: {base} changes nothing"
        return (Decisive(text),)
    size = sizes(job.model)
    if not experts_fused(job) or not size.fused:
        return ()
    if experts_quantised(job):
        return _unpacked_note(job)
    share = (size.linear - size.fused) / size.total
    text = (
        f"only {100 * share:.0f} % of {job.model.name} becomes {base}: the experts stay in 16 bit "
        f"({format_bytes(2.0 * size.fused)}); transformers {version} keeps a layer's experts as "
        "one parameter, which bitsandbytes leaves alone"
    )
    return (Decisive(text),)


def _unpacked_note(job: Job) -> tuple[str, ...]:
    """That bitsandbytes leaves quantised experts unpacked; nothing where it does not."""
    left = retained_bytes(job)
    if not left:
        return ()
    version = ".".join(map(str, job.software.bitsandbytes or ()))
    text = (
        f"bitsandbytes {version} leaves the experts of every layer unpacked beside "
        f"use_reentrant: false ({format_bytes(left)}); 0.50 does not, nor does use_reentrant: true"
    )
    return (Decisive(text),)


def _saved_note(job: Job) -> tuple[str, ...]:
    """What trains whole beside the adapters, in a sentence; nothing where nothing does."""
    method, tied = job.method, job.model.tied_head
    if not method.modules_to_save:
        return ()
    count = saved_parameters(job.model, method)
    text = (
        f"{' and '.join(method.modules_to_save)} train whole: {count / 1e6:,.0f} million weights, "
        "of which PEFT trains a copy beside the frozen ones, with gradients and moments"
    )
    apart = (
        f"{job.model.name} ties its head to the embedding: PEFT trains copies apart, so that they "
        "differ afterwards; ensure_weight_tying trains one, and is not counted"
    )
    return (text, Decisive(apart)) if tied else (text,)


def _variant_note(job: Job) -> tuple[str, ...]:
    """What the variant adds to the bill of LoRA, in a sentence; nothing for LoRA as it is."""
    method = job.method
    if not method.is_lora or method.variant == "none":
        return ()
    if not method.is_dora:
        return ("rsLoRA divides alpha by the square root of the rank: it costs what LoRA costs",)
    text = (
        "DoRA makes the norm of every adapted weight anew in each forward: public runs take 1.2 to "
        "2 times as long as with LoRA, most at small micro-batches"
    )
    if not repeats_base(job):
        return (text,)
    kept = 2.0 * sum(p.weights * p.adapted for p in products(job.model, method))
    why = "dropout" if method.dropout > 0 else "peft before 0.14"
    return (
        text,
        Decisive(
            f"under {why} DoRA multiplies every adapted weight twice and keeps a 16-bit copy of it "
            f"for the backward: up to {format_bytes(kept)}, a layer's share of it with activation "
            f"checkpointing; {'dropout 0' if method.dropout > 0 else 'peft 0.14'} does neither"
        ),
    )
