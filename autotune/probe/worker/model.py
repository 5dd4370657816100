"""The model that the job trains: real class, random weights, adapters, each in its dtype.

Beside it layers so small that what they take is the host's work, and how many kernels one has.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Iterator

DTYPES = {
    "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32,
}  # fmt: skip

TOKENS, WIDTH, HEADS = 8, 64, 4  # of the small layers
QUANTISED = frozenset({"nf4", "int8"})
WEIGHTS_SD = 0.02  # of random weights. Source: initializer_range of most config.json


def weights_dtype(request: dict[str, Any]) -> torch.dtype:
    """Weights are stored in the compute dtype, or in fp32 for a 32-bit base."""
    if request["method"]["base"] == "32bit":
        return torch.float32
    return DTYPES[request["precision"]]


def adapter_dtype(request: dict[str, Any]) -> torch.dtype:
    """Adapters in fp32 unless bf16 is asked for; never 16 bits under fp16 (gradients unscale)."""
    if request["adapter_dtype"] == "bf16" and request["precision"] != "fp16":
        return torch.bfloat16
    return torch.float32


def build(request: dict[str, Any], device: torch.device) -> Any:  # noqa: ANN401 - a module
    """The model on its device, ready for the Trainer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = dict(request["model"])
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    set_depth(config, request["num_layers"])
    config.use_cache = False
    quantised = request["method"]["base"] in QUANTISED
    with device, _unmade_projections() if quantised else contextlib.nullcontext():
        model = AutoModelForCausalLM.from_config(
            config, attn_implementation=request["attention"], dtype=weights_dtype(request)
        )
    if quantised:
        compute = DTYPES[request["precision"]]
        # what is sharded has one dtype, so 4-bit weights are stored as the compute dtype
        storage = compute if request["sharding"] in {"fsdp", "zero3"} else torch.uint8
        nested = request["method"].get("double_quant", True)
        _quantize(model, request["method"]["base"], (compute, storage), device, nested=nested)
    if request["method"]["kind"] == "lora":
        model = _with_adapters(model, request)
    return model


def set_depth(config: Any, num_layers: int) -> None:  # noqa: ANN401 - a config of any family
    """Another number of layers; patterns over layers repeat.

    As `trace.build` does it, which this folder cannot import: it runs where autotune is not.
    """
    for name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers"):
        if name in config.__dict__ or name in getattr(config, "attribute_map", {}):
            setattr(config, name, num_layers)
    types = getattr(config, "layer_types", None)
    if types:
        config.layer_types = (list(types) * num_layers)[:num_layers]


def _with_adapters(model: Any, request: dict[str, Any]) -> Any:  # noqa: ANN401 - a module
    from peft import LoraConfig, get_peft_model

    if request["activation_checkpointing"] == "full":
        model.enable_input_require_grads()  # frozen embeddings would cut the graph
    method, dtype = request["method"], adapter_dtype(request)
    lora = LoraConfig(
        task_type="CAUSAL_LM", r=method["rank"], lora_alpha=method["alpha"],
        lora_dropout=method["dropout"], target_modules=list(method["targets"]),
        use_dora=method.get("variant") == "dora", use_rslora=method.get("variant") == "rslora",
        modules_to_save=method.get("modules_to_save"),
    )  # fmt: skip
    adapted = get_peft_model(model, lora, autocast_adapter_dtype=dtype == torch.float32)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
    return adapted


@contextlib.contextmanager
def _unmade_projections() -> Iterator[None]:
    """Linear layers get no weights yet: all of a model that is to be quantised may not fit."""
    own = nn.Linear.__init__

    def init(self: nn.Linear, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - Linear's own
        own(self, *args, **{**kwargs, "device": "meta"})

    nn.Linear.__init__ = init
    try:
        yield
    finally:
        nn.Linear.__init__ = own


def _made(weight: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Random values in the place of a weight that has none."""
    if not weight.is_meta:
        return weight
    return torch.empty_like(weight, device=device).normal_(std=WEIGHTS_SD)


def _quantize(
    model: Any,  # noqa: ANN401
    base: str,
    dtypes: tuple[torch.dtype, torch.dtype],
    device: torch.device,
    *,
    nested: bool,
) -> None:
    """Replace the layers' projections by bitsandbytes' own, quantised from random weights.

    One after another, as transformers loads them: no more than one is there in 16 bits.

    dtypes: of computing, and of the tensors that hold 4-bit weights. nested: their scales too.
    """
    import bitsandbytes as bnb  # type: ignore[import-not-found,unused-ignore]  # when asked for

    compute, storage = dtypes
    head = model.get_output_embeddings()
    for name, module in list(model.named_modules()):
        if not isinstance(module, torch.nn.Linear):
            continue
        weight, bias = _made(module.weight.data, device), module.bias
        if bias is not None:
            bias = nn.Parameter(_made(bias.data, device))
        if module is head:
            if module.weight.is_meta:
                module.weight, module.bias = nn.Parameter(weight), bias
            continue
        shape = (module.in_features, module.out_features)
        if base == "nf4":
            new = bnb.nn.Linear4bit(
                *shape,
                bias=bias is not None,
                compute_dtype=compute,
                quant_type="nf4",
                quant_storage=storage,
                device="meta",
            )
            new.weight = bnb.nn.Params4bit(
                weight,
                requires_grad=False,
                quant_type="nf4",
                quant_storage=storage,
                compress_statistics=nested,
            )
        else:
            new = bnb.nn.Linear8bitLt(
                *shape, bias=bias is not None, has_fp16_weights=False, device="meta"
            )
            new.weight = bnb.nn.Int8Params(
                weight.cpu(), requires_grad=False, has_fp16_weights=False
            )
        new.bias = bias  # `new` was made of nothing
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, new.to(device))
    model.is_loaded_in_4bit = base == "nf4"
    model.is_loaded_in_8bit = base == "int8"


class Block(nn.Module):
    """A layer as the models here have it: two norms, attention with rotation, a gated network."""

    def __init__(self) -> None:
        """Small matrices: what it takes is the host's work."""
        super().__init__()
        self.norms = nn.ParameterList(nn.Parameter(torch.ones(WIDTH)) for _ in range(2))
        self.qkvo = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gated = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, width] -> the same."""
        own = self.norm(x, 0)
        q, k, v = (self.heads(self.qkvo[i](own)) for i in range(3))
        mixed = functional.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
        x = x + self.qkvo[3](mixed.transpose(1, 2).reshape(x.shape))
        own = self.norm(x, 1)
        gate, up, down = self.gated
        added: torch.Tensor = down(functional.silu(gate(own)) * up(own))
        return x + added

    def norm(self, x: torch.Tensor, which: int) -> torch.Tensor:
        """Divided by the root of the mean square."""
        own: torch.Tensor = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.norms[which] * own

    @staticmethod
    def heads(x: torch.Tensor) -> torch.Tensor:
        """[batch, heads, tokens, width of a head]."""
        return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)


def turned(x: torch.Tensor) -> torch.Tensor:
    """A rotation of halves, as rotary embeddings make one."""
    half = x.shape[-1] // 2
    return x * 0.5 + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * 0.5


class _Count(TorchDispatchMode):
    """Counts operations that compute something; views are none."""

    VIEWS = ("view", "transpose", "slice", "expand", "t.", "detach", "alias", "unsqueeze", "select")

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - torch's own signature
        name = str(func).partition("aten.")[2]
        self.seen += not name.lstrip("_").startswith(self.VIEWS)
        return func(*args, **(kwargs or {}))


def counted(layers: int) -> tuple[int, int]:
    """Kernels of the forward and of the backward of so many layers."""
    network = nn.Sequential(*(Block() for _ in range(layers)))
    with _Count() as ahead:
        loss = network(torch.randn(1, TOKENS, WIDTH)).sum()
    with _Count() as back:
        loss.backward()
    return ahead.seen, back.seen
