"""The run that a row of a public table measured: its job, machine and configuration, or why none.

What it trained is in `training`, what it ran on in `machine`, with which trainer and versions in
`software`; what was measured of it in `table`.

Models are looked up by bare names, that of a copy or a framework's too, in the catalogue and never
at the hub.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from autotune.cost.memory.modelling_code import LITGPT
from autotune.domain.candidates import Candidate
from autotune.domain.config import Config
from autotune.domain.errors import InputError
from autotune.domain.job import Job, Limits
from autotune.evidence.cases import Refused
from autotune.evidence.record.kernels import ASSUMED_ATTENTION, attention_of, compile_of
from autotune.evidence.record.lengths import lengths_of
from autotune.evidence.record.machine import machine_of
from autotune.evidence.record.refusals import refusal_of
from autotune.evidence.record.software import casts_adapters, software_of
from autotune.evidence.record.training import (
    ASSUMED_ADAPTERS,
    batch_split,
    checkpointing_of,
    method_of,
    optimizer_of,
    precision_of,
)
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autotune.domain.model import Model
    from autotune.domain.software import Software
    from autotune.evidence.record.row import Row

# Parts of a repackaged model's name that do not change its shape.
_REPACKED = re.compile(
    r"[-_](gptq|awq|int4|int8|bnb-4bit|4bit|8bit|unsloth-bnb-4bit|gguf|hf-4bit)\b", re.IGNORECASE
)
# What ms-swift calls models, and whose shape those have. OpenBuddy's fine-tunes add words to the
# vocabulary, which the shape leaves out. Source: ms-swift, swift/llm/utils/model.py.
_SHAPES = (
    (r"qwen1half-(\d+b|0_5b|1_8b|4b)(-chat)?(-int[48]|-awq)?", r"Qwen1.5-\1"),
    (r"(?:openbuddy-)?llama2-(7b|13b|70b)(-chat|-v[\d.]+(-bf16)?)*", r"Llama-2-\1-hf"),
    (r"(?:openbuddy-)?mistral-7b(-chat|-instruct|-v[\d.]+(-hf)?)*", r"Mistral-7B-v0.1"),
    (r"baichuan2-(7b|13b)", r"Baichuan2-\1-Chat"),
    (r"chatglm2-6b(-32k)?", r"chatglm3-6b"),
    (r"phi2-3b", r"phi-2"),
    (r"functiongemma-270m(-it)?", r"gemma-3-270m"),
)


@lru_cache(maxsize=1024)
def model_named(text: str, find_model: Callable[[str], Model]) -> Model | None:
    """The catalogue's model by its bare name, or that of what was repackaged; None if unknown."""
    for form in dict.fromkeys(_forms(text)):
        if not form or form.startswith((".", "~")) or form.casefold().endswith(".json"):
            continue
        try:
            return find_model(form)
        except InputError:
            continue
    return None


def _forms(text: str) -> Iterator[str]:
    """Ways to write the name, most specific first; what stands in brackets is a remark."""
    plain = re.sub(r"\(.*?\)", "", text).strip()
    for bare in (text.rsplit("/", 1)[-1], plain.rsplit("/", 1)[-1]):
        yield bare
        yield _REPACKED.sub("", bare)
    last = plain.rsplit("/", 1)[-1]
    for pattern, name in _SHAPES:
        found = re.fullmatch(pattern, last, re.IGNORECASE)
        if found:
            yield found.expand(name)


STEPS = 100  # any number: only the steady step is compared
NEVER = 10**6  # steps between saves: no save falls into the step that is compared
UNKNOWN_MODEL = "model unknown to the catalogue"
LENGTH_NOT_STATED = "sequence length not stated"
MOST_TOKENS = 2**31  # of a micro-batch: more than any row of any table by a factor of a thousand
TOO_MANY_TOKENS = "micro_batch times seq_len is no batch that a GPU can hold"


@dataclass(frozen=True, slots=True)
class Described(Candidate):
    """The run in the cost model's terms, and what is known of its lengths."""

    mean_known: bool  # the time of a step can be compared
    longest_known: bool  # the peak of memory can be compared
    assumed: tuple[str, ...]
    capped: bool = True  # lengths that are not known are below those of the job; else above
    guessed: bool = False  # a setting that decides the figures is a trainer's default, not stated


def describe(row: Row, find_model: Callable[[str], Model]) -> Described:
    """The run that the row measured. Raises Refused where the cost model does not cover it."""
    reason = refusal_of(row)
    if reason:
        raise Refused(reason)
    model = model_named(row.texts["model_id"], find_model)
    if model is None:
        raise Refused(UNKNOWN_MODEL)
    machine, software = machine_of(row), software_of(row)
    attention, own_kernel = attention_of(row, model, software.trainer)
    compiled, scope = compile_of(row)
    if LITGPT in row.words["source_repo"] and model.activation.startswith("gelu"):
        model = replace(model, activation="gelu")  # its GptNeoxMLP: torch's fused kernel
    offer, longest = machine.offer, row.counts["seq_len"]
    micro, accumulation = batch_split(row, offer.count)
    if micro * (longest or 1) > MOST_TOKENS:
        raise Refused(TOO_MANY_TOKENS)
    method, assumed = method_of(row, model, software.trainer)
    precision, default = precision_of(row, offer.device, software)
    checkpointing, own = checkpointing_of(row, software)
    optimizer = optimizer_of(row)
    known = lengths_of(row, longest)
    if known is None:
        raise Refused(LENGTH_NOT_STATED)
    guessed = tuple(text for text in (default, own, *machine.assumed) if text)
    batch = micro * accumulation * offer.count
    job = Job(
        name=row.texts["model_id"],
        model=software.as_coded(model),
        method=method,
        rows=STEPS * batch,
        max_length=longest or known.lengths.maximum,
        lengths=known.lengths,
        padding="longest",
        pretokenized=True,
        storage="local",
        epochs=1.0,
        steps=STEPS,
        global_batch_size=batch,
        evaluation=None,
        limits=Limits(vram_headroom=0.0, max_lost_work_s=1800.0),
        software=software,
        offers=(),
        zero=machine.zero,
        unsaid=tuple(
            name
            for name, taken in (
                ("attention", own_kernel == ASSUMED_ATTENTION),
                ("activation_checkpointing", own),
                ("method.targets", ASSUMED_ADAPTERS in assumed),
            )
            if taken
        ),
    )
    knobs = {
        "precision": precision,
        "optimizer": optimizer,
        "attention": attention,
        "activation_checkpointing": checkpointing,
        "sharding": machine.sharding,
        "offload": machine.offload,
        "compile": compiled,
        "compile_scope": scope,
    }
    config = Config(
        micro_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        num_dataloader_workers=machine.workers,
        checkpoint_every_steps=NEVER,
        save_total_limit=1,
        length_grouping="on" if _grouped(row) else "off",
        packing="on" if known.apart else "off",
        adapter_dtype="bf16" if _low_adapters(row, software) else "fp32",
        **knobs,  # type: ignore[arg-type]  # words of precision, attention and optimizer
    )
    return Described(
        job=job,
        offer=offer,
        config=config,
        mean_known=known.mean_known,
        longest_known=known.longest_known,
        assumed=(*assumed, *own_kernel, *guessed, *known.assumed),
        capped=known.capped,
        guessed=bool(guessed),
    )


def _grouped(row: Row) -> bool:
    return "sorted by length" in row.notes or "bucketed by length" in row.notes


# fms-acceleration's plugin keeps adapters in the compute dtype: no cast around their products.
SIXTEEN_BIT_ADAPTERS = re.compile(
    r"framework_config=accelerated-peft|\badapters in bf16\b|\bbf16 adapters\b"
)


def _low_adapters(row: Row, software: Software) -> bool:
    """Whether adapters are stored in 16 bit."""
    own = SIXTEEN_BIT_ADAPTERS.search(row.notes) is not None or LITGPT in row.words["source_repo"]
    return own or casts_adapters(row, software.trainer, software.trl)
