"""LLaMA-Factory's words for the knobs: its own keys beside TrainingArguments'.

Source: hparams/{model,training}_args.py of llamafactory 0.9.5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.trainers.hf.spell import spell_argument

if TYPE_CHECKING:
    from autotune.domain.config import KnobValue
    from autotune.trainers.base import Changes, Target

ATTENTION = {"disabled": "eager", "sdpa": "sdpa", "fa2": "flash_attention_2"}
CHECKPOINTING_OFF = "disable_gradient_checkpointing"
_LIGER = "enable_liger_kernel"


def spell(knob: str, value: KnobValue, target: Target) -> Changes | str:
    """The keys that say it; most are TrainingArguments'."""
    if knob == "attention":
        word = next((k for k, v in ATTENTION.items() if v == value), None)
        return {"flash_attn": word} if word else "its flash_attn takes fa2, sdpa and disabled"
    if knob == "activation_checkpointing":
        return {**target.gone("gradient_checkpointing"), CHECKPOINTING_OFF: value == "none"}
    if knob == "kernels" and value != "chunked_loss":
        stated = target.gone("use_liger_kernel")
        return {**stated, _LIGER: True} if value == "liger" else {**stated, **_off(target)}
    if knob == "precision" and value == "fp8":
        return {**target.gone("fp16", "pure_bf16"), "bf16": True, "fp8": True}
    if knob == "precision" and target.has("pure_bf16") and value == "bf16":
        return {}
    return spell_argument(knob, value, target)


def _off(target: Target) -> Changes:
    return {_LIGER: False} if target.has(_LIGER) else {}
