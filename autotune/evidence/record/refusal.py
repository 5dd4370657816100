"""Why a row of a public table is not compared with the cost model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.evidence.record.method import FULL, LORA
from autotune.evidence.record.row import FAILED

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
ENCODERS = ("bert", "roberta", "electra", "deberta", "distilbert", "albert", "vit-", "whisper")
SEQ2SEQ = ("t5", "mt0", "t0_", "bart", "pegasus", "nllb", "opus-mt", "m2m100")
RAN = ("tokens_per_s_per_gpu", "samples_per_s", "step_time_s")
MEASURED = ("tokens_per_s_per_gpu", "samples_per_s", "step_time_s", "peak_mem_gb")


def is_oom(row: Row) -> bool:
    """Whether the source says, or its log shows, that the run ran out of memory."""
    return row.word("oom") in FAILED


def refusal_of(row: Row) -> str:
    """The reason to skip a row that its own cells give; empty when there is none."""
    for word, reason in FLAGS:
        if word in row.notes:
            return reason
    bad = row.bad_cells()
    if bad:
        return bad[0]
    if is_oom(row) and any(row.number(column) is not None for column in RAN):
        return "says that it ran out of memory and how fast it ran"
    return _not_covered(row) or _not_stated(row)


def _not_covered(row: Row) -> str:
    return _other_model_or_method(row) or _other_stack(row)


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
    if not is_oom(row) and all(row.number(column) is None for column in MEASURED):
        return "nothing measured that can be compared"
    return ""
