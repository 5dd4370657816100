"""The software a job runs on: versions, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LossKind = Literal["upcast", "upcast_copy", "native", "chunked", "fused"]
KbitUpcast = Literal["none", "norms", "all"]  # all: peft prepare_model_for_kbit_training


@dataclass(frozen=True, slots=True)
class Software:
    """A dated profile. Versions are tuples such as (5, 23, 0); None means not installed.

    `loss` says what the training loop's loss materialises: `upcast` (fp32 logits, 12 bytes a logit
    at the peak), `upcast_copy` (older code that also keeps shifted or 16-bit logits, 14),
    `native` (in the logits' own dtype: GPT-2-like classes of transformers before 4.50, 8 in 16
    bit), `chunked` (never all logits at once), `fused` (no logits at all).
    """

    name: str
    as_of: str
    torch: tuple[int, ...]
    transformers: tuple[int, ...]
    trl: tuple[int, ...] | None
    peft: tuple[int, ...]
    accelerate: tuple[int, ...]
    flash_attn: tuple[int, ...] | None
    bitsandbytes: tuple[int, ...] | None
    kernels: Literal["eager", "liger", "unsloth"] = "eager"
    loss: LossKind = "upcast"
    autocast: bool = True  # False: a trainer that runs 16-bit compute without autocast
    kbit_upcast: KbitUpcast = "none"  # what a quantised base keeps in fp32: trl 1.x nothing

    @property
    def has_flash_attention(self) -> bool:
        """Whether flash-attention 2 can be imported."""
        return self.flash_attn is not None
