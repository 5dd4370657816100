"""The run that a row of a public table measured: its job, machine and configuration, or why none.

Also the split of its batch and its attention kernel. What it trained is in `training`, what it ran
on in `machine`, what was measured of it in `table`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from autotune.catalog.local import default_host
from autotune.cost.memory.modelling_code import LITGPT
from autotune.domain.candidates import Candidate
from autotune.domain.config import Config
from autotune.domain.device import Device, Offer
from autotune.domain.errors import InputError
from autotune.domain.job import Job, Limits
from autotune.evidence.cases import Refused
from autotune.evidence.record.machine import device_named, sharding_of, software_of
from autotune.evidence.record.row import FULL, LORA
from autotune.evidence.record.training import (
    lengths_of,
    method_of,
    optimizer_of,
    precision_of,
    stated_mean,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.domain.job import Lengths, Method
    from autotune.domain.model import Model
    from autotune.evidence.record.row import Row

STEPS = 100  # any number: only the steady step is compared
NEVER = 10**6  # steps between saves: no save falls into the step that is compared
UNKNOWN_MODEL = "model unknown to the catalogue"
UNKNOWN_GPU = "GPU unknown to the catalogue"
LENGTH_NOT_STATED = "sequence length not stated"
BATCH_NOT_STATED = "batch size not stated"
MOST_TOKENS = 2**31  # of a micro-batch: more than any row of any table by a factor of a thousand
TOO_MANY_TOKENS = "micro_batch times seq_len is no batch that a GPU can hold"
BATCH_CONTRADICTS = "batch sizes contradict each other"
# Parts of a repackaged model's name that do not change its shape.
_REPACKED = re.compile(
    r"[-_](gptq|awq|int4|int8|bnb-4bit|4bit|8bit|unsloth-bnb-4bit|gguf|hf-4bit)\b", re.IGNORECASE
)
# Words of the notes that take a row out of a comparison of memory and speed, and why.
FLAGS = (
    ("DOUBTFUL", "the source or the collector doubts the figures"),
    ("FAILED RUN", "the run failed for an unknown cause"),
    ("FORWARD PASS ONLY", "forward pass only"),
    ("CAPACITY BOUNDARY", "the largest context that fits, not a reading"),
    ("CHECKPOINT SAVE TIME", "a checkpoint save, not training"),
    ("PADDING-FREE RATIO", "a ratio of two runs, not a reading"),
)
ENCODERS = ("bert", "roberta", "electra", "deberta", "distilbert", "albert", "vit-", "whisper")
SEQ2SEQ = ("t5", "mt0", "t0_", "bart", "pegasus", "nllb", "opus-mt", "m2m100")
RAN = ("tokens_per_s_per_gpu", "samples_per_s", "step_time_s")
MEASURED = ("tokens_per_s_per_gpu", "samples_per_s", "step_time_s", "peak_mem_gb")


@dataclass(frozen=True, slots=True)
class Described(Candidate):
    """The run in the cost model's terms, and what is known of its lengths."""

    mean_known: bool  # the time of a step can be compared
    longest_known: bool  # the peak of memory can be compared
    assumed: tuple[str, ...]


def describe(row: Row, find_model: Callable[[str], Model]) -> Described:
    """The run that the row measured. Raises Refused where the cost model does not cover it."""
    reason = _refusal(row)
    if reason:
        raise Refused(reason)
    model = model_named(row.text("model_id"), find_model)
    device = device_named(row.text("gpu"))
    if model is None or device is None:
        raise Refused(UNKNOWN_MODEL if model is None else UNKNOWN_GPU)
    if LITGPT in row.word("source_repo") and model.activation.startswith("gelu"):
        model = replace(model, activation="gelu")  # its GptNeoxMLP: torch's fused kernel
    gpus = row.count("n_gpus") or 1
    sharding = sharding_of(row.text("parallelism"), gpus, row.notes)
    split = batch_split(row, gpus)
    if split[0] * (row.count("seq_len") or 1) > MOST_TOKENS:
        raise Refused(TOO_MANY_TOKENS)
    method, assumed = method_of(row, model)
    attention, more = _attention(row, model)
    knobs = {
        "precision": precision_of(row, device),
        "optimizer": optimizer_of(row),
        "attention": attention,
    }
    return _described(
        row, _Parts(model, method, device, gpus, sharding, split, knobs, (*assumed, *more))
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    model: Model
    method: Method
    device: Device
    gpus: int
    sharding: str
    split: tuple[int, int]
    knobs: dict[str, str]
    assumed: tuple[str, ...]


def _described(row: Row, parts: _Parts) -> Described:
    longest = row.count("seq_len")
    lengths, assumed = lengths_of(row, longest)
    if lengths is None:
        raise Refused(LENGTH_NOT_STATED)
    packed = row.word("packing") in {"yes", "true", "packed"}
    counted = row.number("tokens_per_s_per_gpu") is not None
    micro, accumulation = parts.split
    global_batch = micro * accumulation * parts.gpus
    config = Config(
        micro_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        checkpoint_every_steps=NEVER,
        save_total_limit=1,
        activation_checkpointing="full" if row.word("grad_ckpt") in _FULL else "none",
        compile="default" if row.word("compile") in {"yes", "true"} else "off",
        sharding=parts.sharding,
        length_grouping="on" if "sorted by length" in row.notes else "off",
        adapter_dtype="bf16" if _low_adapters(row) else "fp32",
        **parts.knobs,  # type: ignore[arg-type]  # words of precision, attention and optimizer
    )
    return Described(
        job=_job(row, parts, lengths, longest, global_batch),
        offer=_offer(parts.device, parts.gpus),
        config=config,
        mean_known=packed or lengths.known or stated_mean(row) is not None,
        longest_known=longest is not None,
        assumed=(*parts.assumed, *(assumed if packed or not counted or assumed else ())),
    )


_FULL = {"full", "yes", "true"}
# fms-acceleration's plugin keeps adapters in the compute dtype: no cast around their products.
SIXTEEN_BIT_ADAPTERS = "framework_config=accelerated-peft"


def _low_adapters(row: Row) -> bool:
    """Whether adapters are stored in 16 bit."""
    return SIXTEEN_BIT_ADAPTERS in row.notes or LITGPT in row.word("source_repo")


def _job(row: Row, parts: _Parts, lengths: Lengths, longest: int | None, global_batch: int) -> Job:
    return Job(
        name=row.text("model_id"),
        model=parts.model,
        method=parts.method,
        rows=STEPS * global_batch,
        max_length=longest or lengths.maximum,
        lengths=lengths,
        padding="longest",
        pretokenized=True,
        storage="local",
        epochs=1.0,
        steps=STEPS,
        global_batch_size=global_batch,
        evaluation=None,
        limits=Limits(vram_headroom=0.0, max_lost_work_s=1800.0),
        software=software_of(row),
        offers=(),
    )


@lru_cache(maxsize=256)
def _offer(device: Device, gpus: int) -> Offer:
    return Offer(device, gpus, 0.0, default_host(gpus, device), price_source="not needed")


@lru_cache(maxsize=1024)
def model_named(text: str, find_model: Callable[[str], Model]) -> Model | None:
    """The catalogue's model by its bare name, or that of what was repackaged; None if unknown.

    Bare names only: they are looked up in the catalogue and never at the hub.
    """
    bare = text.rsplit("/", 1)[-1]
    for form in dict.fromkeys((bare, _REPACKED.sub("", bare))):
        if not form or form.startswith((".", "~")) or form.casefold().endswith(".json"):
            continue
        try:
            return find_model(form)
        except InputError:
            continue
    return None


def batch_split(row: Row, gpus: int) -> tuple[int, int]:
    """(micro-batch, accumulation) of the run. Raises Refused where nothing or too much is stated.

    The stated global batch wins over a stated accumulation: it is what the source multiplies.
    """
    micro, accumulation = row.count("micro_batch"), row.count("grad_accum")
    total = row.count("global_batch")
    if micro is None and total and accumulation and total % (accumulation * gpus) == 0:
        micro = total // (accumulation * gpus)
    if micro is None:
        raise Refused(BATCH_NOT_STATED)
    if total is None:
        return micro, accumulation or 1
    if total % (micro * gpus):
        raise Refused(BATCH_CONTRADICTS)
    return micro, total // (micro * gpus)


def _attention(row: Row, model: Model) -> tuple[str, tuple[str, ...]]:
    word = row.word("attn")
    if model.position == "alibi":  # a bias on every score: flash attention 2 as called has none
        return "eager", ("eager attention under ALiBi",)
    if word.startswith(("fa", "flash", "xformers")):
        return "flash_attention_2", ()
    if word.startswith("eager"):
        return "eager", ()
    if word.startswith("sdpa"):
        return "sdpa", ()
    return "sdpa", ("sdpa attention",)


def _refusal(row: Row) -> str:
    """The reason to skip a row that its own cells give; empty when there is none."""
    for word, reason in FLAGS:
        if word in row.notes:
            return reason
    bad = row.bad_cells()
    if bad:
        return bad[0]
    if row.is_oom and any(row.number(column) is not None for column in RAN):
        return "says that it ran out of memory and how fast it ran"
    return _other_model_or_method(row) or _other_stack(row) or _not_stated(row)


def _other_model_or_method(row: Row) -> str:
    name = row.word("model_id").rsplit("/", 1)[-1]
    if name.startswith(SEQ2SEQ) or any(word in name for word in ENCODERS):
        return "an encoder or a sequence-to-sequence model"
    if row.word("task") not in FULL | LORA:
        return f"method {row.text('task') or 'not stated'}"
    variants = ("dora", "lora-fa", "lorafa", "galore", "loftq", "lisa")
    if any(word in row.word("optimizer") or word in row.notes.casefold() for word in variants):
        return "a LoRA or optimizer variant that is not modelled"
    return ""


def _other_stack(row: Row) -> str:
    kernels = row.word("other_kernels")
    if "transformer-engine" in kernels or "megatron" in kernels:
        return "Megatron with transformer-engine kernels"
    if "moe-" in kernels:
        return "expert kernels other than the model's own"
    if "offload" in row.notes.casefold() and "offload False" not in row.notes:
        return "weights or states offloaded to the host"
    if row.word("grad_ckpt") == "selective":
        return "selective activation checkpointing"
    return ""


def _not_stated(row: Row) -> str:
    if not row.text("model_id"):
        return "model not stated"
    gpu = row.word("gpu")
    if not gpu or gpu.startswith("any"):
        return "GPU not stated"
    if row.count("n_gpus") is None:
        return "number of GPUs not stated"
    if row.word("grad_ckpt") in {"", "unknown"}:
        return "activation checkpointing not stated"
    if not row.is_oom and all(row.number(column) is None for column in MEASURED):
        return "nothing measured that can be compared"
    return ""
