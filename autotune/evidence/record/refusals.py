"""Which rows the cost model cannot be compared with, why, and what would make them comparable.

A row is judged by its own cells and by what its notes state as a whole word: never by a part of a
word, by an option that is off, or by what is said of other runs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autotune.evidence.record.notes import names
from autotune.evidence.record.row import (
    BLANK,
    FAILED,
    FINISHED,
    FULL,
    LORA,
    NUMERIC,
    SURPLUS,
    WHOLE,
)

if TYPE_CHECKING:
    from autotune.evidence.record.row import Row

# Words of the notes that take a row out of a comparison of memory and speed, and why.
FLAGS = (
    ("DOUBTFUL", "the source or the collector doubts the figures"),
    ("FAILED RUN", "the run failed for an unknown cause"),
    ("FORWARD PASS ONLY", "forward pass only"),
    ("CAPACITY BOUNDARY", "the largest context that fits, not a reading"),
    ("CHECKPOINT SAVE TIME", "a checkpoint save, not training"),
    ("PADDING-FREE RATIO", "a ratio of two runs, not a reading"),
)
ENCODER = "an encoder or a sequence-to-sequence model"
_ENCODERS = re.compile(r"(distil|ro|al|de|camem|xlm)?bert(a|s)?|electra|vit|whisper|clip")
_SEQ2SEQ = re.compile(r"(flan|m|um|by|long)?t5|mt0|t0|bart|mbart|pegasus|nllb|opus|m2m100")
RAN = ("tokens_per_s_per_gpu", "samples_per_s", "step_time_s")
MEASURED = (*RAN, "peak_mem_gb")
VARIANTS = ("dora", "lora-fa", "lorafa", "galore", "loftq", "lisa")
MEGATRON = "Megatron with transformer-engine kernels"
EXPERT_KERNELS = "expert kernels other than the model's own"
SELECTIVE = "selective activation checkpointing"
PREFERENCES = "preference training: two models and two answers a row"
PICTURES = "a model that reads pictures"


def refusal_of(row: Row) -> str:
    """The reason to skip a row that its own cells give; empty when there is none."""
    for word, reason in FLAGS:
        if word in row.notes:
            return reason
    bad = _bad_cell(row)
    if bad:
        return bad
    if row.is_oom and any(row.numbers[column] is not None for column in RAN):
        return "says that it ran out of memory and how fast it ran"
    return _other_model_or_method(row) or _other_stack(row) or _not_stated(row)


def _bad_cell(row: Row) -> str:
    """What is wrong with a cell that should hold a positive number, or a known word."""
    for column, (least, most) in NUMERIC.items():
        value = row.numbers[column]
        if value is None and row.words[column] not in BLANK:
            return f"{column} is not a number above zero"
        if value is not None and not least <= value <= most:
            return f"{column} is outside {least:g} to {most:g}"
    for column in WHOLE:
        if row.numbers[column] is not None and row.counts[column] is None:
            return f"{column} is not a whole number"
    if row.words["oom"] not in FAILED | FINISHED:
        return "oom is not 1, 0, inferred or empty"
    return "more cells than the header has columns" * (SURPLUS in row.cells)


def _other_model_or_method(row: Row) -> str:
    words = re.split(r"[-_/. ]+", row.words["model_id"])
    if any(_ENCODERS.fullmatch(word) or _SEQ2SEQ.fullmatch(word) for word in words):
        return ENCODER
    task = row.words["task"]
    if task not in FULL | LORA | {"dora"}:
        return _other_task(task) or f"method {row.texts['task'] or 'not stated'}"
    variant = names(f"{row.words['optimizer']} ; {row.notes}", VARIANTS)
    if task == "dora" and variant == "dora":
        return ""
    return f"the variant {variant} of LoRA or of the optimizer, which is not modelled" * bool(
        variant
    )


def _other_task(task: str) -> str:
    if "dpo" in task or "orpo" in task or "grpo" in task:
        return PREFERENCES
    return PICTURES if "vision" in task else ""


def _other_stack(row: Row) -> str:
    kernels = row.words["other_kernels"]
    if "transformer-engine" in kernels or "megatron" in kernels:
        return MEGATRON
    if kernels.startswith("moe-") or "; moe-" in kernels:
        return EXPERT_KERNELS
    if row.words["grad_ckpt"] == "selective":
        return SELECTIVE
    return ""


def _not_stated(row: Row) -> str:
    if not row.texts["model_id"]:
        return "model not stated"
    gpu = row.words["gpu"]
    if not gpu or gpu.startswith("any"):
        return "GPU not stated"
    if row.counts["n_gpus"] is None:
        return "number of GPUs not stated"
    if not row.is_oom and all(row.numbers[column] is None for column in MEASURED):
        return "nothing measured that can be compared"
    return ""


# What would make a row usable, by the beginning of its reason.
_HELP = (
    ("the source or the collector doubts", "the figure confirmed: measured again, or by a log"),
    ("the run failed", "the cause; where it was memory, 1 in the column oom"),
    ("forward pass only", "a whole training step: forward, backward and update"),
    ("the largest context", "seconds or bytes of a run below that context"),
    ("a checkpoint save", "the seconds of a step without the save"),
    ("a ratio of two runs", "the two figures themselves"),
    (ENCODER, "nothing: decoders only are modelled"),
    ("method ", "nothing: full fine-tuning, LoRA, rsLoRA and QLoRA are modelled"),
    ("the variant", "a run of plain LoRA or AdamW beside it"),
    (PREFERENCES, "nothing: one answer a row is modelled"),
    (PICTURES, "a run on text rows alone"),
    (MEGATRON, "nothing: trainers that run PyTorch's own modules are modelled"),
    (EXPERT_KERNELS, "a run with the model's own experts"),
    (SELECTIVE, "a run with full checkpointing or none"),
    ("several machines", "`nodes N` in the notes, and as many GPUs on each"),
    ("tensor, pipeline", "a run with data parallelism alone"),
    ("hybrid sharding", "a run whose shards lie over all GPUs, or on one machine"),
    ("layers split", "a run with data parallelism, or on one GPU"),
    ("how the GPUs share", "the column parallelism: ddp, fsdp, zero2 or zero3"),
    ("model unknown", "`--data` takes the models of `autotune models`; a config.json adds one"),
    ("GPU unknown", "the name of a card in `autotune devices`"),
    ("model not stated", "the column model_id"),
    ("GPU not stated", "the column gpu"),
    ("number of GPUs", "the column n_gpus"),
    ("batch size not", "the columns micro_batch and grad_accum"),
    ("batch sizes contra", "global_batch = micro_batch x grad_accum x n_gpus"),
    ("compute precision", "the column precision: bf16, fp16, tf32 or fp32"),
    ("8-bit or 4-bit float", "a run in 16 bits"),
    ("quantisation other", "a base in nf4, int8 or 4-bit GPTQ"),
    ("experts quantised", "a run whose experts stay in 16 bits, as bitsandbytes leaves them"),
    ("full fine-tuning of quant", "the method: adapters train beside quantised weights"),
    ("LoRA rank", "the column lora_r"),
    ("LoRA targets", "the column target_modules with names of the model's linears"),
    ("a LoRA variant with other", "the adapted modules, so that their size can be checked"),
    ("optimizer ", "a run with AdamW, in 32 or in 8 bits"),
    ("sequence length", "the column seq_len, or the mean length in the notes"),
    ("length of the longest", "the longest row: `longest row 1304 tokens` in the notes"),
    ("time: mean row length", "the mean length: `about 210 tokens per row` in the notes"),
    ("time: loading", "the slope of the progress bar, or seconds a step without the first ones"),
    ("memory: kind", "the column peak_mem_kind: allocated, reserved or nvidia-smi"),
    ("memory: length", "the longest row: `longest row 1304 tokens` in the notes"),
    ("memory: more than", "bytes of one GPU, in decimal gigabytes"),
    ("nothing measured", "seconds of a step, tokens or rows a second, or bytes of memory"),
    ("weights or states", "what lies in the host's memory: optimizer, all or activations"),
)
CELLS = "the cell corrected"
# Reasons of rows that are no training of a decoder on a known GPU: nothing there could be compared.
_NO_TRAINING = (
    ENCODER, PICTURES, "forward pass only", "a checkpoint save", "a ratio of two runs",
    "the largest context", "the run failed", "GPU not stated",
)  # fmt: skip


def is_training(reason: str) -> bool:
    """Whether a row that was left out for this reason is a decoder's training on a GPU."""
    return not reason.startswith(_NO_TRAINING)


def help_for(reason: str) -> str:
    """What would make a row with this reason usable, in a few words."""
    return next((text for start, text in _HELP if reason.startswith(start)), CELLS)
