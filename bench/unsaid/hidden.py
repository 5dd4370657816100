"""A run of the record without one fact that it states, as the product takes it then."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.app.dataset.lengths import all_at_maximum
from autotune.app.job.evidence import complete_config
from autotune.app.job.method import RANK
from autotune.catalog.software import INSTALLABLE, find_software, loss_kind
from autotune.cost.parameters import resolve_targets
from autotune.domain.errors import InputError
from autotune.domain.job import Assumption
from autotune.evidence.record.training import CHECKPOINTING_TRAINERS
from autotune.trainers.hf.read import HF_DEFAULTS, TRL_DEFAULTS, TRL_MAX_LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.evidence.cases import MeasuredCase


EVERYTHING = "all of these"


def _assuming(case: MeasuredCase, key: str, why: str = "not stated", **job: Any) -> MeasuredCase:  # noqa: ANN401 - fields of a job
    """The run with other facts of its job, of which one is now assumed."""
    said = (*case.job.assumed, Assumption(key, "", why))
    return replace(case, job=replace(case.job, assumed=said, **job))


def _with_knob(case: MeasuredCase, name: str, value: Any) -> MeasuredCase:  # noqa: ANN401 - any knob's value
    job = replace(case.job, unsaid=(*case.job.unsaid, name))
    return replace(case, job=job, config=case.config.with_knobs(**{name: value}))


def without_lengths(case: MeasuredCase) -> MeasuredCase | None:
    """Every row as long as where rows are cut; where nobody says that either, at TRL's default."""
    job = case.job
    if job.max_length > job.lengths.mean:
        return _assuming(case, "data.lengths", lengths=all_at_maximum(job.max_length))
    if job.lengths.known or case.config.packing == "on":  # every row is full
        return None
    most = max(TRL_MAX_LENGTH, job.max_length)
    hidden = _assuming(case, "data.lengths", lengths=all_at_maximum(most), max_length=most)
    return _assuming(hidden, "data.max_length")


def without_versions(case: MeasuredCase) -> MeasuredCase | None:
    """The default profile's versions, with the trainer, its code and its kernels as stated."""
    own, default = case.job.software, find_software(None)
    changed = replace(
        own, torch=default.torch, transformers=default.transformers, peft=default.peft,
        trl=own.trl and default.trl, accelerate=default.accelerate,
        bitsandbytes=default.bitsandbytes, flash_attn=own.flash_attn and INSTALLABLE["flash_attn"],
    )  # fmt: skip
    if own.loss in {"upcast", "upcast_copy"}:
        changed = replace(changed, loss=loss_kind(changed, own.trainer))
    return _assuming(case, "software", software=changed, unsaid=(*case.job.unsaid, "software"))


def without_trainer(case: MeasuredCase) -> MeasuredCase | None:
    """The Trainer of transformers, which a job file that names none has."""
    if case.job.software.stack == "hf":
        return None
    own = replace(
        case.job.software, stack="hf", own_model=False, autocast=True, trainer="",
        loss="upcast",
    )  # fmt: skip
    return _assuming(case, "software.trainer", software=own)


def without_attention(case: MeasuredCase) -> MeasuredCase | None:
    """The default of the trainer; a bias on every score leaves one kernel."""
    if case.job.model.position == "alibi" or any("attention" in text for text in case.assumed):
        return None
    return _with_knob(case, "attention", complete_config({}, case.job, case.offer).attention)


def without_checkpointing(case: MeasuredCase) -> MeasuredCase:
    """The default of the trainer."""
    own = case.job.software.trainer
    found = TRL_DEFAULTS if own == "trl" else HF_DEFAULTS
    value = "full" if own in CHECKPOINTING_TRAINERS else found["activation_checkpointing"]
    return _with_knob(case, "activation_checkpointing", value)


def without_split(case: MeasuredCase) -> MeasuredCase | None:
    """The Trainer's micro-batch, or the largest below that makes the global batch."""
    config = complete_config({}, case.job, case.offer)
    changed = _with_knob(case, "micro_batch_size", config.micro_batch_size)
    more = {"gradient_accumulation_steps": config.gradient_accumulation_steps}
    return replace(changed, config=changed.config.with_knobs(**more))


def without_precision(case: MeasuredCase) -> MeasuredCase | None:
    """The device's native 16-bit dtype."""
    return _with_knob(case, "precision", complete_config({}, case.job, case.offer).precision)


def without_optimizer(case: MeasuredCase) -> MeasuredCase | None:
    """The Trainer's."""
    return _with_knob(case, "optimizer", HF_DEFAULTS["optimizer"])


def without_sharing(case: MeasuredCase) -> MeasuredCase | None:
    """The batch alone is shared."""
    if case.offer.count == 1:
        return None
    return _with_knob(case, "sharding", complete_config({}, case.job, case.offer).sharding)


def without_kernels(case: MeasuredCase) -> MeasuredCase | None:
    """No fused kernels, and the loss that the versions have."""
    own = case.job.software
    if own.own_model:
        return None
    plain = replace(own, kernels="eager")
    return _assuming(case, "lock.kernels", software=replace(plain, loss=loss_kind(plain)))


def without_base(case: MeasuredCase) -> MeasuredCase | None:
    """Weights in 16 bit; who quantises says so."""
    if case.job.method.is_quantised:
        return None
    own, unsaid = replace(case.job.method, base="16bit"), (*case.job.unsaid, "method.base")
    return _assuming(case, "method.base", method=own, unsaid=unsaid)


def without_adapters(case: MeasuredCase) -> MeasuredCase | None:
    """The rank and the targets that a job has which states none."""
    if not case.job.method.is_lora or any("LoRA on" in text for text in case.assumed):
        return None
    targets = resolve_targets(case.job.model, ("all-linear",))
    own = replace(case.job.method, rank=RANK, targets=targets)
    unsaid = (*case.job.unsaid, "method.targets")
    return _assuming(case, "method.targets", method=own, unsaid=unsaid)


def without_padding(case: MeasuredCase) -> MeasuredCase | None:
    """To the longest of a batch."""
    if case.job.one_length or case.job.max_length <= case.job.lengths.mean:
        return None
    return _assuming(case, "data.padding")


FACTS: dict[str, Callable[[MeasuredCase], MeasuredCase | None]] = {
    "row lengths": without_lengths,
    "padding": without_padding,
    "versions": without_versions,
    "trainer": without_trainer,
    "attention kernel": without_attention,
    "activation checkpointing": without_checkpointing,
    "micro-batch": without_split,
    "precision": without_precision,
    "optimizer": without_optimizer,
    "sharding": without_sharing,
    "fused kernels": without_kernels,
    "dtype of the weights": without_base,
    "rank and targets": without_adapters,
}


def hidden(case: MeasuredCase, fact: str) -> MeasuredCase | None:
    """The run as the product has it where nobody says the fact; None where it states none."""
    if fact != EVERYTHING:
        try:
            return FACTS[fact](case)
        except InputError:  # no split of the global batch
            return None
    found = case
    for each in FACTS:
        found = hidden(found, each) or found
    return found
