"""What a trainer does where a row does not say: its default for checkpointing and for precision.

Every default that is taken is listed as an assumption of the row, and the row teaches no fit: it is
compared, and no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.evidence.record.machine import stack_of, trainer_of
from autotune.evidence.record.notes import version_of

if TYPE_CHECKING:
    from autotune.domain.device import Device
    from autotune.evidence.record.row import Row

_OFF = {"none", "no", "false", "off", "0"}
_ON = {"full", "yes", "true", "on", "1"}
# TRL's SFTConfig checkpoints by default since 0.21 (July 2025). Source: trl/trainer/sft_config.py.
TRL_CHECKPOINTS_FROM = (0, 21)
# ms-swift and Unsloth checkpoint by default. Source: command-line reference of ms-swift
# (gradient_checkpointing: True); Unsloth's use_gradient_checkpointing="unsloth" in its notebooks.
CHECKPOINTING_TRAINERS = frozenset({"ms-swift", "unsloth"})
CHECKPOINTING = "checkpointing not stated: the trainer's default, {}"
PRECISION = "compute precision not stated: {}, {}"


def checkpointing_of(row: Row) -> tuple[str, str]:
    """(value of the knob, what was assumed; empty where the row says it).

    "full (framework default)" and "full (unsloth, offloaded)" are full. Selective checkpointing is
    refused before.
    """
    word = row.word("grad_ckpt").partition("(")[0].strip()
    if word in _ON:
        return "full", ""
    if word in _OFF:
        return "none", ""
    found = "full" if _checkpoints(row) else "none"
    return found, CHECKPOINTING.format(found)


def _checkpoints(row: Row) -> bool:
    """Whether the trainer checkpoints by default.

    Source: peft's prepare_model_for_kbit_training switches it on, which TRL's trainer calls for a
    base in 4 or 8 bits; transformers' own default is off, as are the LoRA recipes of litgpt and
    torchtune.
    """
    trainer = trainer_of(row)
    if trainer in CHECKPOINTING_TRAINERS:
        return True
    if trainer != "trl":
        return False
    quantised = row.word("quant") not in {"", "none", "no"} or row.word("task") == "qlora"
    return quantised or (version_of("trl", row.notes) or (0, 0)) >= TRL_CHECKPOINTS_FROM


def precision_of(row: Row, device: Device) -> tuple[str, str] | None:
    """(compute dtype, what was assumed) of a trainer whose default is known; None of the others.

    Source: ms-swift's dtype AUTO takes bf16 where the card has it, else fp16; fms-acceleration's
    tables of the following snapshots name fp16 for the same runs.
    """
    if trainer_of(row) == "ms-swift":
        word = "bf16" if device.bf16_flop_per_s else "fp16"
        return word, PRECISION.format(word, "ms-swift's default")
    if stack_of(row) == "hf" and "fms-acceleration" in row.word("source_repo"):
        return "fp16", PRECISION.format("fp16", "as the table's next snapshot")
    return None
