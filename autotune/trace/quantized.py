"""Stand-ins for bitsandbytes' quantised linear layers: same bytes, same temporaries, same saves.

bitsandbytes needs CUDA to build its layers; on the meta device only byte counts matter. The layout
is bitsandbytes': nf4 keeps two weights a byte plus block statistics, int8 one byte a weight plus a
row scale. Both dequantise the whole weight in forward and in backward; int8 also keeps its input.
Source: bitsandbytes 0.50 `autograd/_functions.py` (MatMul4Bit, MatMul8bitLt) and `functional.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

NF4_BLOCK = 64  # weights per absmax
NF4_NESTED_BLOCK = 256  # absmax values per nested absmax (double quantisation)


class _Quantized(torch.autograd.Function):
    """y = x W^T with W dequantised on the fly, forward and backward; W is frozen.

    As bitsandbytes does, what the backward needs hangs on the context and not among the saved
    tensors, so activation checkpointing neither drops it nor waits for it.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, packed: torch.Tensor, layer: Any) -> torch.Tensor:
        ctx.layer, ctx.packed = layer, packed
        flat = x.reshape(-1, layer.in_features)
        if layer.kind == "int8":
            ctx.x = x
            return _int8_product(flat, layer).view(*x.shape[:-1], layer.out_features)
        weight = layer.dequantized(x.dtype)
        return torch.mm(flat, weight.t()).view(*x.shape[:-1], layer.out_features)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        layer = ctx.layer
        weight = layer.dequantized(grad.dtype)
        flat = torch.mm(grad.reshape(-1, layer.out_features), weight)
        return flat.view(*grad.shape[:-1], layer.in_features), None, None


def _int8_product(flat: torch.Tensor, layer: Any) -> torch.Tensor:
    """The input's 8-bit copy, the 32-bit product, and the product in the input's dtype."""
    rows = flat.shape[0]
    codes = torch.empty_like(flat, dtype=torch.int8)
    product = torch.empty((rows, layer.out_features), dtype=torch.int32, device="meta")
    out = torch.empty((rows, layer.out_features), dtype=flat.dtype, device="meta")
    del codes, product
    return out


class QuantizedLinear(nn.Linear):
    """A frozen linear layer whose weight is stored as bitsandbytes stores it."""

    def __init__(self, layer: nn.Module, kind: str, compute: torch.dtype) -> None:
        """Take the shape of `layer`; kind is "nf4" (double quantisation) or "int8"."""
        nn.Module.__init__(self)
        self.compute = compute
        if isinstance(layer, nn.Linear):
            self.in_features, self.out_features = layer.in_features, layer.out_features
        else:  # transformers' Conv1D stores the transpose
            self.in_features, self.out_features = layer.weight.shape
        self.kind = kind
        count = self.in_features * self.out_features
        if kind == "nf4":
            blocks = -(-count // NF4_BLOCK)
            stored, statistics = count // 2, blocks + 4 * -(-blocks // NF4_NESTED_BLOCK)
        else:
            stored, statistics = count, 4 * self.out_features
        empty = torch.empty((stored,), dtype=torch.uint8, device="meta")
        self.weight = nn.Parameter(empty, requires_grad=False)
        self.weight.original_shape = (self.out_features, self.in_features)
        self.register_buffer(
            "statistics", torch.empty((statistics,), dtype=torch.uint8, device="meta")
        )
        self.bias = layer.bias

    def dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        """A fresh 16-bit copy of the whole weight, as every call of bitsandbytes makes."""
        return torch.empty((self.out_features, self.in_features), dtype=dtype, device="meta")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]: computed in 16 bits, returned as it came.

        LLM.int8 quantises its input whatever its dtype; nf4 casts it first.
        """
        cast = x if self.kind == "int8" else x.to(self.compute)
        y = _Quantized.apply(cast, self.weight, self)
        out: torch.Tensor = y if self.bias is None else y + self.bias.to(y.dtype)
        out = out.to(x.dtype)
        # PEFT clones the result of 4-bit layers before adding the adapter's.
        return out if self.kind == "int8" else out.clone()


def unpack_for_dora() -> None:
    """Let peft's DoRA unpack the stand-ins as it unpacks bitsandbytes' layers.

    4-bit codes become the dtype that was quantised, 8-bit ones times their fp32 scales fp32.
    Source: peft 0.21 utils/integrations.py, dequantize_bnb_weight; bitsandbytes 0.50
    functional.py, int8_vectorwise_dequant.
    """
    from peft.tuners.lora import dora

    plain = dora.dequantize_module_weight

    def unpacked(layer: nn.Module) -> torch.Tensor:
        if not isinstance(layer, QuantizedLinear):
            return plain(layer)
        return layer.dequantized(torch.float32 if layer.kind == "int8" else layer.compute)

    dora.dequantize_module_weight = unpacked


def quantize_linears(
    model: nn.Module, kind: str, compute: torch.dtype, skip: tuple[str, ...] = ("lm_head",)
) -> None:
    """Replace every linear layer but the head by its quantised stand-in.

    Source: transformers 5.23 integrations/bitsandbytes.py: nn.Linear itself, not what derives from
    it, and Conv1D.
    """
    from transformers.pytorch_utils import Conv1D

    for name, module in list(model.named_modules()):
        for child_name, child in list(module.named_children()):
            full = f"{name}.{child_name}" if name else child_name
            linear = type(child) is nn.Linear or isinstance(child, Conv1D)
            if linear and not any(full.endswith(s) for s in skip):
                setattr(module, child_name, QuantizedLinear(child, kind, compute))
