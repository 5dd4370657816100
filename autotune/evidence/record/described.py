"""The run that a row of a public table measured: its job, machine and configuration, or why none.

Also the split of its batch and its attention kernel. What it trained is in `training`, what it ran
on in `machine`, what was measured of it in `table`.

Models are looked up by bare names, that of a copy or a framework's too, in the catalogue and never
at the hub.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from autotune.catalog.local import default_host
from autotune.cost.memory.modelling_code import LITGPT
from autotune.domain.candidates import Candidate
from autotune.domain.config import Config
from autotune.domain.device import Device, Network, Offer
from autotune.domain.errors import InputError
from autotune.domain.job import Job, Limits
from autotune.evidence.cases import Refused
from autotune.evidence.record.kbit import casts_adapters
from autotune.evidence.record.kernels import attention_of, compile_of
from autotune.evidence.record.lengths import lengths_of
from autotune.evidence.record.machine import (
    SHARING_ASSUMED,
    device_of,
    network_of,
    offload_of,
    sharding_of,
    software_of,
    trainer_of,
    without_nvlink,
)
from autotune.evidence.record.notes import count_in
from autotune.evidence.record.refusals import refusal_of
from autotune.evidence.record.training import (
    checkpointing_of,
    method_of,
    optimizer_of,
    precision_of,
)
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autotune.domain.job import Lengths, Method
    from autotune.domain.model import Model
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
UNKNOWN_GPU = "GPU unknown to the catalogue"
LENGTH_NOT_STATED = "sequence length not stated"
BATCH_NOT_STATED = "batch size not stated"
MOST_TOKENS = 2**31  # of a micro-batch: more than any row of any table by a factor of a thousand
TOO_MANY_TOKENS = "micro_batch times seq_len is no batch that a GPU can hold"
BATCH_CONTRADICTS = "batch sizes contradict each other"


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
    device = device_of(row.texts["gpu"], row.notes)
    if model is None or device is None:
        raise Refused(UNKNOWN_MODEL if model is None else UNKNOWN_GPU)
    if LITGPT in row.words["source_repo"] and model.activation.startswith("gelu"):
        model = replace(model, activation="gelu")  # its GptNeoxMLP: torch's fused kernel
    device = without_nvlink(device, row.notes)
    gpus = row.counts["n_gpus"] or 1
    sharding, offload = sharding_of(row.texts["parallelism"], gpus, row.notes), offload_of(row)
    trainer = trainer_of(row)
    split = batch_split(row, gpus)
    if split[0] * (row.counts["seq_len"] or 1) > MOST_TOKENS:
        raise Refused(TOO_MANY_TOKENS)
    method, assumed = method_of(row, model)
    attention, more = attention_of(row, model, trainer)
    compiled, scope = compile_of(row)
    precision, default = precision_of(row, device)
    checkpointing, own = checkpointing_of(row)
    knobs = {
        "precision": precision,
        "optimizer": optimizer_of(row),
        "attention": attention,
        "activation_checkpointing": checkpointing,
        "sharding": sharding,
        "offload": offload[0],
        "compile": compiled,
        "compile_scope": scope,
    }
    network, joined = network_of(row, device, gpus)
    shared = SHARING_ASSUMED if "not stated" in row.words["parallelism"] and gpus > 1 else ""
    guessed = tuple(text for text in (default, own, offload[1], shared, joined) if text)
    return _described(
        row,
        _Parts(
            model, method, device, gpus, network, split, knobs, trainer, (*assumed, *more), guessed
        ),
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    model: Model
    method: Method
    device: Device
    gpus: int
    network: Network | None
    split: tuple[int, int]
    knobs: dict[str, str]
    trainer: str
    assumed: tuple[str, ...]
    guessed: tuple[str, ...]


def _described(row: Row, parts: _Parts) -> Described:
    known = lengths_of(row, row.counts["seq_len"])
    if known is None:
        raise Refused(LENGTH_NOT_STATED)
    workers = count_in(r"\bworkers (\d+)\b", row.notes) or 0
    cores = count_in(r"\bhost (\d+) cores\b", row.notes)
    micro, accumulation = parts.split
    global_batch = micro * accumulation * parts.gpus
    config = Config(
        micro_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        num_dataloader_workers=workers,
        checkpoint_every_steps=NEVER,
        save_total_limit=1,
        length_grouping="on" if _grouped(row) else "off",
        adapter_dtype="bf16" if _low_adapters(row, parts.trainer) else "fp32",
        **parts.knobs,  # type: ignore[arg-type]  # words of precision, attention and optimizer
    )
    return Described(
        job=_job(row, parts, known.lengths, row.counts["seq_len"], global_batch),
        offer=_offer(parts.device, parts.gpus, parts.network, cores),
        config=config,
        mean_known=known.mean_known,
        longest_known=known.longest_known,
        assumed=(*parts.assumed, *parts.guessed, *known.assumed),
        capped=known.capped,
        guessed=bool(parts.guessed),
    )


def _grouped(row: Row) -> bool:
    return "sorted by length" in row.notes or "bucketed by length" in row.notes


# fms-acceleration's plugin keeps adapters in the compute dtype: no cast around their products.
SIXTEEN_BIT_ADAPTERS = "framework_config=accelerated-peft"


def _low_adapters(row: Row, trainer: str) -> bool:
    """Whether adapters are stored in 16 bit."""
    own = SIXTEEN_BIT_ADAPTERS in row.notes or LITGPT in row.words["source_repo"]
    return own or casts_adapters(row, trainer)


def _job(row: Row, parts: _Parts, lengths: Lengths, longest: int | None, global_batch: int) -> Job:
    software = software_of(row)
    return Job(
        name=row.texts["model_id"],
        model=software.as_coded(parts.model),
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
        software=software,
        offers=(),
    )


@lru_cache(maxsize=256)
def _offer(device: Device, gpus: int, network: Network | None, cores: int | None) -> Offer:
    host = default_host(gpus // (network.nodes if network else 1), device)
    if cores:
        host = replace(host, cores=cores, assumed=tuple(x for x in host.assumed if x != "cores"))
    return Offer(device, gpus, 0.0, host, price_source="not needed", network=network)


def batch_split(row: Row, gpus: int) -> tuple[int, int]:
    """(micro-batch, accumulation) of the run. Raises Refused where nothing or too much is stated.

    The stated global batch wins over a stated accumulation: it is what the source multiplies.
    """
    micro, accumulation = row.counts["micro_batch"], row.counts["grad_accum"]
    total = row.counts["global_batch"]
    if micro is None and total and accumulation and total % (accumulation * gpus) == 0:
        micro = total // (accumulation * gpus)
    if micro is None:
        raise Refused(BATCH_NOT_STATED)
    if total is None:
        return micro, accumulation or 1
    if total % (micro * gpus):
        raise Refused(BATCH_CONTRADICTS)
    return micro, total // (micro * gpus)
