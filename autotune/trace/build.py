"""The model class and the loss that the trainer would train, on the meta device.

Code that transformers does not ship runs only for a request that names where it is.

bitsandbytes needs CUDA to build its quantised linear layers; on the meta device only byte counts
matter, so stand-ins keep the same bytes, temporaries and saves: nf4 two weights a byte plus block
statistics, int8 one byte a weight plus a row scale. Both dequantise the whole weight in forward and
in backward; int8 also keeps its input.
Source: bitsandbytes 0.50 `autograd/_functions.py` (MatMul4Bit, MatMul8bitLt) and `functional.py`.

Losses are told apart by what they materialise: `upcast` is the installed class's own; `upcast_copy`
that of transformers 4.46 to 4.49; `chunked` that of trl, which never has all logits.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from autotune.domain.job import QUANTISED
from autotune.domain.software import TILE_TOKENS, TILE_VOCABULARY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.trace.request import StepRequest

DTYPES = {
    "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32,
}  # fmt: skip
LOW = frozenset({torch.float16, torch.bfloat16})


class Unsupported(Exception):  # noqa: N818 - an answer, not a defect
    """The installed software cannot build this model."""


def build(request: StepRequest) -> torch.nn.Module:
    """The model in training mode, adapters attached.

    Raises Unsupported, or what the model's code raises.
    """
    from transformers import AutoModelForCausalLM

    config = _config(request)
    set_depth(config, request.num_layers)
    config.use_cache = False
    stored = torch.float32 if request.base == "32bit" else DTYPES[request.precision]
    if request.base == "16bit" and request.base_dtype:
        stored = DTYPES[request.base_dtype]
    before = torch.get_default_dtype()
    torch.set_default_dtype(stored)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                config,
                attn_implementation=request.attention,
                dtype=stored,
                trust_remote_code=bool(request.remote),
            )
    finally:
        torch.set_default_dtype(before)
    model.train()
    checkpointing = request.activation_checkpointing == "full"
    if request.base in QUANTISED:
        compute, nested = DTYPES[request.precision], request.double_quant
        quantize_linears(model, request.base, compute, nested=nested)
        _upcast(model, request.kbit_upcast)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if request.rank:
        if checkpointing:
            model.enable_input_require_grads()
        model = _with_adapters(model, request)
    return model


def _config(request: StepRequest) -> Any:
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if request.remote:
        return AutoConfig.from_pretrained(request.remote, trust_remote_code=True)
    fields = {name: value for name, value in request.model.items() if name != "auto_map"}
    kind = fields.pop("model_type")
    if kind not in CONFIG_MAPPING_NAMES:
        msg = f"{kind!r} is no model type of the installed transformers"
        if "auto_map" in request.model:
            msg += "; its own code runs only with --trust-remote-code"
        raise Unsupported(msg)
    return AutoConfig.for_model(kind, **fields)


def set_depth(config: Any, num_layers: int) -> None:
    """Another number of layers; patterns over layers repeat."""
    for name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers"):
        if name in config.__dict__ or name in getattr(config, "attribute_map", {}):
            setattr(config, name, num_layers)
    types = getattr(config, "layer_types", None)
    if types:
        with contextlib.suppress(AttributeError):  # of Falcon-H1 it follows from the depth
            config.layer_types = (list(types) * num_layers)[:num_layers]


def _upcast(model: torch.nn.Module, which: str) -> None:
    """What the preparation for training on a quantised base keeps in fp32.

    Source: peft `prepare_model_for_kbit_training` (all that is not quantised); fms-acceleration's
    own preparation, from its published static bytes (norms alone).
    """
    for parameter in model.parameters():
        wide = which == "all" or (which == "norms" and parameter.dim() == 1)
        if wide and parameter.dtype in LOW:
            parameter.data = parameter.data.float()


def _with_adapters(model: Any, request: StepRequest) -> Any:
    from peft import LoraConfig, get_peft_model

    if request.dora and request.base in QUANTISED:
        unpack_for_dora()
    with torch.device("meta"):
        model = get_peft_model(
            model,
            LoraConfig(
                r=request.rank,
                lora_alpha=2 * request.rank,
                lora_dropout=request.dropout,
                use_dora=request.dora,
                target_modules=list(request.targets),
                modules_to_save=list(request.modules_to_save) or None,
                task_type="CAUSAL_LM",
            ),
        )
    # PEFT moves adapters to the base's dtype when it moves devices; on meta that move is skipped.
    dtype = torch.float32 if request.adapter_dtype == "fp32" else DTYPES[request.precision]
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.to(dtype)
        elif ".modules_to_save." in name:
            parameter.data = parameter.data.to(DTYPES[request.saved_dtype])
    for module in model.modules():  # as PEFT does it beside bitsandbytes. Source: its lora/bnb.py
        if isinstance(getattr(module, "base_layer", None), QuantizedLinear):
            module.cast_input_dtype_enabled = not request.autocast
    return model


def trainable(model: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    """The parameters that the optimizer updates."""
    return (p for p in model.parameters() if p.requires_grad)


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

    def __init__(
        self, layer: nn.Module, kind: str, compute: torch.dtype, *, nested: bool = True
    ) -> None:
        """Take the shape of `layer`; kind is "nf4" (nested: double quantisation) or "int8"."""
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
            scales = blocks + 4 * -(-blocks // NF4_NESTED_BLOCK) if nested else 4 * blocks
            stored, statistics = count // 2, scales
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
    model: nn.Module,
    kind: str,
    compute: torch.dtype,
    *,
    nested: bool = True,
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
            if linear and not full.endswith("lm_head"):
                setattr(module, child_name, QuantizedLinear(child, kind, compute, nested=nested))


def loss_of(
    model: Any, ids: torch.Tensor, mask: Any, kind: str, *, use_cache: bool = False
) -> torch.Tensor:
    """The loss of a batch. What the trainer keeps beside it hangs on the tensor."""
    if kind == "chunked":
        hidden, head = _hidden_and_head(model, ids, mask, use_cache=use_cache)
        rows = hidden.reshape(-1, hidden.shape[-1])
        weight = head.weight
        logprobs: torch.Tensor = _Tiled.apply(rows, weight)
        return -logprobs.mean()
    if kind == "upcast_copy":
        hidden, head = _hidden_and_head(model, ids, mask, use_cache=use_cache)
        logits = head(hidden)
        upcast = logits.float()  # a local of the old loss: alive until the loss is known
        shifted = upcast[..., :-1, :].contiguous()
        loss = functional.cross_entropy(
            shifted.view(-1, shifted.shape[-1]), ids[..., 1:].reshape(-1)
        )
        loss.kept = (hidden, logits)
        return loss
    answer = model(input_ids=ids, attention_mask=mask, labels=ids, use_cache=use_cache)
    found: torch.Tensor = answer.loss
    return found


def _hidden_and_head(model: Any, ids: torch.Tensor, mask: Any, *, use_cache: bool) -> Any:
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    hidden = inner.base_model(input_ids=ids, attention_mask=mask, use_cache=use_cache)[0]
    return hidden, inner.get_output_embeddings()


class _Tiled(torch.autograd.Function):
    """Log-probabilities of the labels, a tile of logits at a time; what its kernels allocate.

    On CUDA each tile is one matrix product into the same buffer, folded in place by a kernel.
    Source: trl 1.16 kernels/chunked_logprob.py, ChunkedLogProbFunction.
    """

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows = hidden.shape[0]
        statistics = [hidden.new_empty(rows, dtype=torch.float32) for _ in range(7)]
        for _ in _tiles(hidden, weight):
            pass
        ctx.save_for_backward(hidden, weight, statistics[0])
        return statistics[1]

    @staticmethod
    def backward(ctx: Any, _grad: torch.Tensor) -> Any:
        hidden, weight, _ = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        of_hidden = torch.zeros_like(hidden, dtype=torch.float32) if wanted[0] else None
        of_weight = torch.zeros_like(weight, dtype=torch.float32) if wanted[1] else None
        for _ in _tiles(hidden, weight):
            pass
        return (
            None if of_hidden is None else of_hidden.to(hidden.dtype),
            None if of_weight is None else of_weight.to(weight.dtype),
        )


def _tiles(hidden: torch.Tensor, weight: torch.Tensor) -> Iterator[torch.Tensor]:
    """One buffer of logits, and the copy of each part of the head that has another dtype."""
    rows, vocabulary = hidden.shape[0], weight.shape[0]
    tile = hidden.new_empty((min(rows, TILE_TOKENS), min(TILE_VOCABULARY, vocabulary)))
    for start in range(0, vocabulary, TILE_VOCABULARY):
        part = weight[start : start + TILE_VOCABULARY].to(hidden.dtype)
        yield part
        del part
    del tile
