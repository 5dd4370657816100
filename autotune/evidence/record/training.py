"""What a measured run trained: method, batch, precision and optimizer; what its row does not say.

Of checkpointing and precision a trainer's default is taken where the row says nothing. Every one
that is taken is listed as an assumption of the row, and the row teaches no fit: it is compared, and
no more.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.cost.memory.modelling_code import LITGPT
from autotune.cost.parameters import FUSED_QKV, adapter_parameters, saveable, saved_parameters
from autotune.domain.job import QUANTISED, Method
from autotune.evidence.cases import Refused
from autotune.evidence.record.kernels import FMS
from autotune.evidence.record.notes import trainable_of
from autotune.evidence.record.row import FULL, SAVES

if TYPE_CHECKING:
    from autotune.domain.device import Device
    from autotune.domain.job import Base, Variant
    from autotune.domain.model import Model
    from autotune.domain.software import Software
    from autotune.evidence.record.row import Row

SAME_COUNT = 0.1  # a stated number of trainable parameters agrees with the rank within this

# Projections by the role that sources name them with; the first word of a role names it.
ROLES = {
    "q": ("q_proj", "query", "q", "wq"),
    "k": ("k_proj", "key", "k", "wk"),
    "v": ("v_proj", "value", "v", "wv"),
    "o": ("o_proj", "dense", "out_proj", "proj", "wo", "attn.proj"),
    "gate": ("gate_proj", "fc_1", "w1"),
    "up": ("up_proj", "fc_2", "w3", "fc_in", "c_fc", "fc1", "dense_h_to_4h"),
    "down": ("down_proj", "w2", "fc_out", "fc2", "dense_4h_to_h"),
}
FUSED_MLP = ("gate_up_proj", "dense_h_to_4h")
DEFAULT_TARGETS = {
    "ms-swift": ("q_proj", "k_proj", "v_proj"),  # its table of models names the fused qkv or q,k,v
}
ASSUMED_TARGETS = ("q_proj", "v_proj")  # PEFT's own default for most families
ASSUMED_ADAPTERS = "LoRA on the query and value projections"


QUANTISATION = "quantisation other than nf4, int8 and 4-bit GPTQ"
FUSED_EXPERTS = "experts quantised inside the parameter that holds them all"
NARROW = "8-bit or 4-bit float compute"
PRECISION_NOT_STATED = "compute precision not stated"
QUANTISED_FULL = "full fine-tuning of quantised weights"
BATCH_NOT_STATED = "batch size not stated"
BATCH_CONTRADICTS = "batch sizes contradict each other"
RANK_NOT_STATED = "LoRA rank not stated"
NO_TARGETS = "LoRA targets that the model does not have"
OTHER_VARIANT = "a LoRA variant with other trainable parameters"


def base_of(row: Row, trainer: str) -> Base:
    """Storage of the base weights. Raises Refused for a quantisation that is not modelled.

    GPTQ keeps four bits a weight and a 16-bit scale per group of 128, close to nf4's 4.13 bits, and
    dequantises each matrix before the product as nf4 does: its rows are priced as nf4.
    """
    quant = row.words["quant"]
    if quant in {"", "none", "no"}:
        if row.words["task"] == "qlora":
            return "nf4"
        return "32bit" if _wide_weights(row, trainer) else "16bit"
    if "experts" in quant:
        raise Refused(FUSED_EXPERTS)
    if "8" in quant and any(word in quant for word in ("gptq", "awq", "hqq")):
        raise Refused(QUANTISATION)
    if quant.startswith(_FOUR_BITS) or re.search(r"\bnf4\b", quant):
        return "nf4"
    if quant.startswith(_EIGHT_BITS):
        return "int8"
    raise Refused(QUANTISATION)


_FOUR_BITS = (
    "nf4", "bnb-nf4", "bnb.nf4", "gptq", "int4 (bnb", "bnb int4", "bnb 4", "bnb-4bit", "fp4",
    "4bit (bnb", "4-bit (bnb",
)  # fmt: skip
_EIGHT_BITS = ("int8", "bnb int8", "bnb.int8", "llm.int8", "bnb 8", "bnb-8bit", "8bit (bnb")
_LOADED_WIDE = re.compile(
    r"fp32-loaded weights|base weights (?:probably )?fp32|fp32 weights config"
)
_MIXED = re.compile(r"mixed precision|\b(?:on|over|with) fp32 weights")


def _wide_weights(row: Row, trainer: str) -> bool:
    """Whether weights are kept in 32 bit under a 16-bit compute dtype."""
    if _LOADED_WIDE.search(row.notes):
        return True
    if row.words["task"] not in FULL:
        return row.words["precision"] in {"fp32", "tf32", "fp32/tf32", "float32"}
    word = row.words["precision"]
    if word in {"fp32", "tf32", "fp32/tf32", "float32"} or re.search(r"\b(mixed|amp)\b", word):
        return True
    if word == "fp16" and trainer in SCALED and "zero" not in row.words["parallelism"]:
        return True
    if FMS in row.words["source_repo"] and "fsdp" in row.words["parallelism"]:
        return "autocast" in row.notes  # accelerate keeps trained weights in fp32 then
    own_stack = any(name in row.words["source_repo"] for name in KEEP_FP32_MASTER)
    return own_stack or _MIXED.search(row.notes.casefold()) is not None


# Dropout of adapters where a row does not say: fms-acceleration's benchmark (scenarios.yaml), and
# litgpt's finetune/lora.py.
SOURCE_DROPOUT = {FMS: 0.1, LITGPT: 0.05}

# Trainers that keep fp32 weights and cast them for compute, whatever dtype their tables print.
KEEP_FP32_MASTER = ("torchtitan", "pytorch/ao", "llm-foundry")


# Trainers whose fp16 is that of a GradScaler, which takes no 16-bit gradients of trained weights.
# Source: torch, amp/grad_scaler.py: "Attempting to unscale FP16 gradients."
SCALED = frozenset({"transformers", "trl"})

_DTYPES = {
    "fp32": "fp32", "float32": "fp32", "tf32": "tf32", "fp16": "fp16", "float16": "fp16",
    "16-true": "fp16", "bf16": "bf16", "bfloat16": "bf16", "bf16-true": "bf16",
}  # fmt: skip


def precision_of(row: Row, device: Device, software: Software) -> tuple[str, str]:
    """The compute dtype, and what was assumed. Raises Refused where it is not modelled or known."""
    word = row.words["precision"]
    if any(narrow in word for narrow in ("fp4", "mxfp", "int8", "nvfp")):
        raise Refused(NARROW)
    if "fp8" in word:
        if not device.fp8_flop_per_s:
            raise Refused(NARROW)
        return "fp8", ""
    if word == "fp32/tf32":
        return ("tf32" if device.tf32_flop_per_s else "fp32"), ""
    first = re.split(r"[ (\-]", word)[0]
    stated = _DTYPES.get(word) or _DTYPES.get(first) or _stated_dtype(row.notes.casefold())
    if stated:
        return stated, ""
    if word in {"mixed", "amp"}:
        return ("bf16" if device.bf16_flop_per_s else "fp16"), ""
    found = default_precision(row, device, software)
    if found is None:
        raise Refused(PRECISION_NOT_STATED)
    return found


def _stated_dtype(notes: str) -> str | None:
    if re.search(r"amp_bf16|bf16 autocast|autocast bf16|weights bf(loat)?16", notes):
        return "bf16"
    if re.search(r"amp_fp16|fp16 autocast|autocast fp16|weights f(loat|p)16|^fp16|fp16 =", notes):
        return "fp16"
    return None


_ADAMW = re.compile(
    r"(?:torch\.optim\.)?(?:paged[ _])?adamw?(?:[ _](?:torch|hf|32bit|anyprecision))*"
    r"(?: ?\((?:distributed|deepspeed|torch|fused=false)\))?"
)


def optimizer_of(row: Row) -> str:
    """The optimizer knob; not stated: AdamW of torch. Raises Refused for one not modelled.

    A clause behind a plus sign ("8bit + optimizer_in_bwd") is no part of the optimizer's name.
    """
    word = row.words["optimizer"].partition("+")[0].strip()
    if "adam" in word and ("8bit" in word or "8-bit" in word):
        return "paged_adamw_8bit" if "paged" in word else "adamw_bnb_8bit"
    if "adam" in word and "fused" in word and "false" not in word:
        return "adamw_torch_fused"
    if word in {"", "unknown"} or _ADAMW.fullmatch(word):
        return "adamw_torch"
    reason = f"optimizer {row.texts['optimizer']}"
    raise Refused(reason)


def rank_of(row: Row) -> int | None:
    """The LoRA rank: its column, else what the notes say."""
    found = re.search(r"\brank ?= ?(\d+)\b|\bLoRA r(?:ank)? ?(\d+)\b", row.notes)
    stated = next((part for part in found.groups() if part), None) if found else None
    return row.counts["lora_r"] or (int(stated) if stated else None)


def requested_targets(row: Row) -> tuple[tuple[str, ...], str | None]:
    """Names of adapted modules as the source writes them, and what was assumed."""
    text = row.texts["target_modules"]
    noted = re.search(r"target=(\w+)", row.notes)
    if not text and noted:
        text = noted[1]
    word = text.casefold()
    word = word.partition("(")[0].strip()
    if word in {"all-linear", "all", "all linear"}:
        return ("all-linear",), None
    if word.startswith(("attention", "self_attn")):
        return ("attention",), None
    if not text or word in {"default", "unknown", "auto"}:
        for source, names in DEFAULT_TARGETS.items():
            if source in row.words["source_repo"]:
                return names, None
        return ASSUMED_TARGETS, ASSUMED_ADAPTERS
    named = re.sub(r"\(.*?\)", "", text)
    return tuple(part for part in re.split(r"[\s,;+|]+", named) if part), None


def model_targets(model: Model, names: tuple[str, ...]) -> tuple[tuple[str, ...], bool]:
    """Linears of the model that the names mean, and whether the names were the model's own.

    As PEFT does, names that match modules win; only when none does, roles are translated ("query"
    means q_proj, or the fused projection of a family that has one).
    """
    linears = model.matrices
    can = [linear.name for linear in linears if linear.adaptable]
    if names == ("all-linear",):
        return tuple(dict.fromkeys(can)), True
    if names == ("attention",):
        found = [x.name for x in linears if x.adaptable and x.part == "attention"]
        return tuple(dict.fromkeys(found)), True
    own = tuple(dict.fromkeys(name for name in can if name in names))
    if own:
        return own, True
    wanted = {role for role, words in ROLES.items() for name in names if name in words}
    chosen = [name for name in can if _roles(name) & wanted]
    return tuple(dict.fromkeys(chosen)), False


def _roles(name: str) -> set[str]:
    if name in FUSED_QKV:
        return {"q", "k", "v"}
    if name in FUSED_MLP:
        return {"gate", "up"}
    return {role for role, words in ROLES.items() if name in words}


def method_of(row: Row, model: Model, trainer: str) -> tuple[Method, tuple[str, ...]]:
    """The method and what was assumed. Raises Refused for one that is not modelled."""
    base = base_of(row, trainer)
    if row.words["task"] in FULL:
        if base in QUANTISED:
            raise Refused(QUANTISED_FULL)
        return Method("full", base), ()
    rank = rank_of(row)
    if rank is None:
        raise Refused(RANK_NOT_STATED)
    names, assumed = requested_targets(row)
    variant: Variant = "dora" if row.words["task"] == "dora" else "none"
    targets, exact = model_targets(model, names)
    if not targets:
        raise Refused(NO_TARGETS)
    saved = tuple(saveable(model)[place] for place in SAVES.get(row.words["task"], ()))
    source = row.words["source_repo"]
    dropout = next((own for name, own in SOURCE_DROPOUT.items() if name in source), 0.0)
    method = Method(
        "lora", base, rank, float(2 * rank), dropout, targets, variant, modules_to_save=saved
    )
    if variant == "none" and exact and _other_variant(row, model, method):
        raise Refused(OTHER_VARIANT)
    if base == "nf4" and LITGPT in source:  # its `bnb.nf4` and `bnb.nf4-dq` are two settings
        method = replace(method, double_quant="dq" in row.words["quant"])
    gptq = "4-bit GPTQ priced as nf4" if "gptq" in row.words["quant"] else None
    return method, tuple(text for text in (assumed, gptq) if text)


def _other_variant(row: Row, model: Model, method: Method) -> bool:
    stated = trainable_of(row.notes)
    if stated is None:
        return False
    counted = adapter_parameters(model, method) + saved_parameters(model, method)
    return abs(stated / counted - 1) > SAME_COUNT


_OFF = {"none", "no", "false", "off", "0"}
_ON = {"full", "yes", "true", "on", "1"}
# TRL's SFTConfig checkpoints by default since 0.21 (July 2025). Source: trl/trainer/sft_config.py.
TRL_CHECKPOINTS_FROM = (0, 21)
# ms-swift and Unsloth checkpoint by default. Source: command-line reference of ms-swift
# (gradient_checkpointing: True); Unsloth's use_gradient_checkpointing="unsloth" in its notebooks.
CHECKPOINTING_TRAINERS = frozenset({"ms-swift", "unsloth"})
CHECKPOINTING = "checkpointing not stated: the trainer's default, {}"
PRECISION = "compute precision not stated: {}, {}"


def checkpointing_of(row: Row, software: Software) -> tuple[str, str]:
    """(value of the knob, what was assumed; empty where the row says it).

    "full (framework default)" and "full (unsloth, offloaded)" are full. Selective checkpointing is
    refused before.
    """
    word = row.words["grad_ckpt"].partition("(")[0].strip()
    if word in _ON:
        return "full", ""
    if word in _OFF:
        return "none", ""
    found = "full" if _checkpoints(row, software) else "none"
    return found, CHECKPOINTING.format(found)


def _checkpoints(row: Row, software: Software) -> bool:
    """Whether the trainer checkpoints by default.

    Source: peft's prepare_model_for_kbit_training switches it on, which TRL's trainer calls for a
    base in 4 or 8 bits; transformers' own default is off, as are the LoRA recipes of litgpt and
    torchtune.
    """
    if software.trainer in CHECKPOINTING_TRAINERS:
        return True
    if software.trainer != "trl":
        return False
    quantised = row.words["quant"] not in {"", "none", "no"} or row.words["task"] == "qlora"
    return quantised or (software.trl or (0, 0)) >= TRL_CHECKPOINTS_FROM


def default_precision(row: Row, device: Device, software: Software) -> tuple[str, str] | None:
    """(compute dtype, what was assumed) of a trainer whose default is known; None of the others.

    Source: ms-swift's dtype AUTO takes bf16 where the card has it, else fp16; fms-acceleration's
    tables of the following snapshots name fp16 for the same runs.
    """
    if software.trainer == "ms-swift":
        word = "bf16" if device.bf16_flop_per_s else "fp16"
        return word, PRECISION.format(word, "ms-swift's default")
    if software.stack == "hf" and "fms-acceleration" in row.words["source_repo"]:
        return "fp16", PRECISION.format("fp16", "as the table's next snapshot")
    return None


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
