"""Whether the job's software and model can train the variant of LoRA that was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.cost.dora import repeats_base
from autotune.cost.memory.states import experts_fused
from autotune.cost.time.flops import products
from autotune.domain.answer.recommendation import Decisive
from autotune.domain.errors import InputError
from autotune.domain.units import format_bytes

if TYPE_CHECKING:
    from autotune.domain.job import Job

# Source: release notes of peft 0.8.0 (rank-stabilised scaling), 0.9.0 (DoRA on linear layers) and
# 0.10.0 (on those of bitsandbytes).
RSLORA_FROM, DORA_FROM, QUANTISED_DORA_FROM = (0, 8), (0, 9), (0, 10)
_PLAIN = "leave method.variant out for plain LoRA"


def check_variant(job: Job) -> None:
    """Raises InputError for a variant that the software is too old for, or that cannot be wrapped.

    peft raises for DoRA on one parameter of all experts (0.21 tuners/lora/layer.py, ParamWrapper).
    """
    method, peft = job.method, job.software.peft
    if not method.is_lora or method.variant == "none":
        return
    if job.software.own_model:
        msg = f"{job.software.stack} has adapters of its own and no {method.variant}"
        raise InputError(msg, _PLAIN)
    needed = _needed(job)
    if peft < needed:
        has, wants = (".".join(map(str, version)) for version in (peft, needed))
        what = f"{method.variant} on a base {method.base}" if wants == "0.10" else method.variant
        msg = f"method.variant {method.variant}: peft is {has}, and {what} came with {wants}"
        raise InputError(msg, f"--set software.peft={wants}.0 or later; or {_PLAIN}")
    if not method.is_dora or not experts_fused(job):
        return
    experts = {x.name for x in job.model.linears if x.part == "expert" and x.adaptable}
    wrapped = [name for name in method.targets if name in experts]
    if wrapped:
        rest = [name for name in method.targets if name not in experts]
        msg = (
            f"method.variant dora: {', '.join(wrapped)} of {job.model.name} is one parameter of "
            "all experts in this transformers, and peft has no DoRA for such"
        )
        keep = f"--set method.targets={','.join(rest)}" if rest else "target other modules"
        raise InputError(msg, f"{keep}; or {_PLAIN}")


def variant_note(job: Job) -> tuple[str, ...]:
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


def _needed(job: Job) -> tuple[int, int]:
    if not job.method.is_dora:
        return RSLORA_FROM
    return QUANTISED_DORA_FROM if job.method.is_quantised else DORA_FROM
