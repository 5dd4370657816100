"""LLaMA-Factory's words for the knobs: its own keys beside TrainingArguments'.

Source: hparams/{model,training}_args.py of llamafactory 0.9.5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.trainers import words
from autotune.trainers.hf.keys import FULL, LIGER, spell_argument
from autotune.trainers.words import Word

if TYPE_CHECKING:
    from autotune.domain.config import KnobValue
    from autotune.trainers.contract import Changes, Target
    from autotune.trainers.words import Words

WORDS: Words = {
    "attention": (
        Word("flash_attn",
             (("disabled", "eager"), ("sdpa", "sdpa"), ("fa2", "flash_attention_2"))),
    ),
    "activation_checkpointing": (
        Word("disable_gradient_checkpointing", ((True, "none"), (False, "full"))),
        Word("gradient_checkpointing", FULL),
    ),
    "kernels": (
        Word("enable_liger_kernel", LIGER, unsaid="none"),
        Word("use_liger_kernel", LIGER, unsaid="none"),
    ),
}  # fmt: skip


def spell(knob: str, value: KnobValue, target: Target) -> Changes | str:
    """The keys that say it; most are TrainingArguments'."""
    said = words.spell(knob, value, WORDS, target) if knob in WORDS else None
    if said is not None:
        return said
    if knob == "attention":
        return "its flash_attn takes fa2, sdpa and disabled"
    if knob == "precision" and value == "fp8":
        return {**target.gone("fp16", "pure_bf16"), "bf16": True, "fp8": True}
    if knob == "precision" and target.has("pure_bf16") and value == "bf16":
        return {}
    return spell_argument(knob, value, target)
