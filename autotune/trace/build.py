"""The model class that the trainer would train, on the meta device: depth, dtypes, adapters.

Code that transformers does not ship runs only for a request that names where it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from autotune.domain.job import QUANTISED
from autotune.trace.quantized import quantize_linears, unpack_for_dora

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
    _set_depth(config, request.num_layers)
    config.use_cache = False
    stored = torch.float32 if request.base == "32bit" else DTYPES[request.precision]
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
        quantize_linears(model, request.base, DTYPES[request.precision])
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


def _set_depth(config: Any, num_layers: int) -> None:
    for name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers"):
        if name in config.__dict__ or name in getattr(config, "attribute_map", {}):
            setattr(config, name, num_layers)
    types = getattr(config, "layer_types", None)
    if types:
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
                task_type="CAUSAL_LM",
            ),
        )
    # PEFT moves adapters to the base's dtype when it moves devices; on meta that move is skipped.
    dtype = torch.float32 if request.adapter_dtype == "fp32" else DTYPES[request.precision]
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.to(dtype)
    return model


def trainable(model: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    """The parameters that the optimizer updates."""
    return (p for p in model.parameters() if p.requires_grad)
