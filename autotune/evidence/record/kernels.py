"""Which kernels a measured run used: attention, fused layers, the loss, unpacking of weights."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from autotune.cost.memory.modelling_code import LITGPT
from autotune.domain.config import FLASH
from autotune.domain.software import LOSS_COPIES_FROM, LOSS_COPIES_UNTIL, Version, unsloths_loss

if TYPE_CHECKING:
    from autotune.domain.model import Model
    from autotune.domain.software import LossKind
    from autotune.evidence.record.row import Row

Kernels = tuple[str, "LossKind"]
FMS = "fms-acceleration"
# What a source's own training code does: litgpt's chunked_cross_entropy (128 rows at once); MPT's
# default loss_fn fused_crossentropy, which overwrites the logits with their gradient; torchtune's
# recipes split the logits in eight (CEWithChunkedOutputLoss); torchtitan's train.py widens them and
# drops its own before the backward.
SOURCE_LOSS: dict[str, LossKind] = {
    "litgpt": "chunked", "llm-foundry": "fused", "torchtune": "chunked",
    "torchtitan": "upcast",
}  # fmt: skip
_CUT = re.compile(r"cut[- ]?cross[- ]?entropy|\bcce\b|linear[- ]cross[- ]?entropy|linear-ce")
_CHUNKED = re.compile(r"chunked (?:cross[- ]?entropy|ce|loss|output)")
_COMPILED = re.compile(r"(?:yes|true|on|default|regional|blocks?|max-autotune|reduce-overhead)\b")
_BLOCKS = re.compile(r"regional|blocks?|per[- ]layer|each layer")
OWN_BLOCKS = ("torchtitan", "torchtune", "pytorch/ao")  # compile block by block by default


ASSUMED_ATTENTION = ("sdpa attention",)


def attention_of(row: Row, model: Model, trainer: str) -> tuple[str, tuple[str, ...]]:
    """The attention knob, and what was assumed."""
    word = row.words["attn"]
    if model.position == "alibi":  # a bias on every score: flash attention 2 as called has none
        return "eager", ("eager attention under ALiBi",)
    stated = next((knob for start, knob in _ATTENTION if word.startswith(start)), "")
    if stated:
        return stated, ()
    if trainer == "unsloth":  # where flash-attn is not installed
        return FLASH[0], ("xformers' attention, as Unsloth takes it",)
    return "sdpa", ASSUMED_ATTENTION


_ATTENTION = (
    ("fa3", FLASH[1]), ("flash_attention_3", FLASH[1]), ("flash-attention-3", FLASH[1]),
    ("flash attention 3", FLASH[1]), ("fa", FLASH[0]), ("flash", FLASH[0]),
    ("xformers", FLASH[0]), ("eager", "eager"), ("sdpa", "sdpa"),
)  # fmt: skip


def compile_of(row: Row) -> tuple[str, str]:
    """(value of the knob `compile`, of `compile_scope`): "yes (per layer)" is regional."""
    word = row.words["compile"]
    if not _COMPILED.match(word):
        return "off", "model"
    mode = next((m for m in ("max-autotune", "reduce-overhead") if m in word), "default")
    whole = f"{row.words['source_repo']} {row.notes}"
    blocks = _BLOCKS.search(word) or any(name in whole for name in OWN_BLOCKS)
    return mode, "regional" if blocks else "model"


# GPT-2-like classes hand their logits to the loss as they are. Source: modeling_gpt_bigcode.py.
NATIVE_LOSS = ("gpt_bigcode", "starcoderbase", "gpt2")


def kernels_of(row: Row, transformers: Version) -> Kernels:
    """Replaced kernels and what the loss materialises."""
    kernels = row.words["other_kernels"]
    liger = "liger" in kernels
    if "foak" in kernels:
        return "unsloth", "fused" if liger or _CUT.search(kernels) else "inplace"
    stated = _stated_loss(row, kernels)
    if stated is not None or liger:
        return ("liger" if liger else "eager"), stated or "fused"
    if "unsloth" in kernels:
        return "unsloth", unsloths_loss("{}-{:02d}".format(*row.date))
    if OWN_CODE.search(row.notes):
        return "eager", "native"
    if transformers < LOSS_COPIES_UNTIL and any(n in row.words["model_id"] for n in NATIVE_LOSS):
        return "eager", "native"
    copies = LOSS_COPIES_FROM <= transformers < LOSS_COPIES_UNTIL
    return "eager", "upcast_copy" if copies else "upcast"


# In the notes: the classes of transformers do not run.
OWN_CODE = re.compile(r"\bown (loop and )?model code\b")
# torchtune's recipes held all logits before CEWithChunkedOutputLoss (release 0.3).
TORCHTUNE_CHUNKS_FROM = (2024, 9)


def _stated_loss(row: Row, kernels: str) -> LossKind | None:
    """A loss that never holds all logits, by its name or by whose code it is."""
    if _CUT.search(kernels):
        return "fused"
    if _CHUNKED.search(kernels):
        return "chunked"
    whose = f"{row.words['source_repo']} {row.notes}"
    found = next((own for source, own in SOURCE_LOSS.items() if source in whose), None)
    early = "torchtune" in whose and row.date < TORCHTUNE_CHUNKS_FROM
    return "upcast" if early and found == "chunked" else found


def autocast_of(row: Row) -> bool:
    """Whether 16-bit compute ran under autocast.

    litgpt's bf16-true has none. fms-acceleration's benchmark loads full and LoRA runs in 16 bit and
    sets bf16 or fp16 only for quantised bases, and elsewhere where its log says so
    (scenarios.yaml). Model code of one's own has none where the row says that weights are 16-bit.
    """
    if LITGPT in row.words["source_repo"]:
        return False
    if OWN_CODE.search(row.notes):
        return not row.words["precision"].endswith("-true")
    if FMS not in row.words["source_repo"]:
        return True
    return row.words["quant"] not in {"", "none"} or "autocast" in row.notes


def gptq_of(row: Row) -> Literal["none", "torch", "triton"]:
    """How a GPTQ base is unpacked: fms-acceleration's plugin brings Triton's kernel."""
    if "gptq" not in row.words["quant"]:
        return "none"
    return "triton" if FMS in row.words["source_repo"] else "torch"


_IN_BACKWARD = re.compile(r"optimi[sz]er[_ -]in[_ -](?:bwd|backward)|fused backward pass")
_FUSED_ADAPTERS = re.compile(r"lora_(?:mlp|qkv|o)_kernel|(?:axolotl|fused)[ \w]* lora kernels")


def own_operations(row: Row) -> tuple[bool, bool]:
    """(steps in the backward, fused adapters): operations of the trainer's own that the row names.

    Whether each weight is updated within the backward, so that no gradients are kept; whether
    adapters are one operation with their weights (axolotl docs/lora_optims.qmd).
    """
    named = ("other_kernels", "notes")
    steps = any(_IN_BACKWARD.search(row.words[c]) for c in ("optimizer", *named))
    return steps, any(_FUSED_ADAPTERS.search(row.words[c]) for c in named)
