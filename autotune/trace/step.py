"""One training step of the real model class and PEFT on the meta device, op by op.

A traced step is: weights resident, AdamW states resident, forward, loss, backward, optimizer; then
one evaluation batch. What it yields is the largest live count per (phase, op).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from autotune.trace.emulation import Autocast, cuda_like
from autotune.trace.quantized import quantize_linears
from autotune.trace.tracker import Peak, Tracker

if TYPE_CHECKING:
    from autotune.trace.request import StepRequest

DTYPES = {
    "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32,
}  # fmt: skip
BLOCK_8BIT = 256  # Source: bitsandbytes optim.optimizer, blocksize of 8-bit states
MIN_8BIT_SIZE = 4096  # Source: bitsandbytes docs, min_8bit_size: smaller tensors keep fp32 states


def build(request: StepRequest) -> torch.nn.Module:
    """The model class that transformers would train, on the meta device, adapters attached."""
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = dict(request.model)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    _set_depth(config, request.num_layers)
    config.use_cache = False
    stored = torch.float32 if request.base == "32bit" else DTYPES[request.precision]
    before = torch.get_default_dtype()
    torch.set_default_dtype(stored)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                config, attn_implementation=request.attention, dtype=stored
            )
    finally:
        torch.set_default_dtype(before)
    model.train()
    checkpointing = request.activation_checkpointing == "full"
    if request.base in {"nf4", "int8"}:
        quantize_linears(model, request.base, DTYPES[request.precision])
        if request.upcast_norms:
            _upcast_norms(model)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if request.rank:
        if checkpointing:
            model.enable_input_require_grads()
        model = _with_adapters(model, request)
    return model


def _set_depth(config: Any, num_layers: int) -> None:
    for name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers"):
        if name in config.__dict__ or name in getattr(config, "attribute_map", {}):
            setattr(config, name, num_layers)
    types = getattr(config, "layer_types", None)
    if types:
        config.layer_types = (list(types) * num_layers)[:num_layers]


def _upcast_norms(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.dim() == 1 and parameter.dtype in {torch.float16, torch.bfloat16}:
            parameter.data = parameter.data.float()


def _with_adapters(model: Any, request: StepRequest) -> Any:
    from peft import LoraConfig, get_peft_model

    with torch.device("meta"):
        model = get_peft_model(
            model,
            LoraConfig(
                r=request.rank,
                lora_alpha=2 * request.rank,
                lora_dropout=request.dropout,
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


def trace_step(request: StepRequest, *, record_events: bool = False) -> Tracker:
    """Run one step and return the tracker with its peaks. Raises what the model's code raises."""
    model = build(request)
    tracker = Tracker(int(model.config.vocab_size), padded=request.padded)
    if record_events:
        tracker.events = []
    _count_static(model, tracker)
    states = _optimizer_states(model, request, tracker)
    ids = torch.zeros(request.micro_batch_size, request.seq_len, dtype=torch.long, device="meta")
    with cuda_like(), tracker:
        hooks = _gradient_hooks(model, tracker)
        loss = _forward(model, ids, request, tracker)
        for hook in hooks:
            hook.remove()
        del loss
        tracker.phase = "optimizer"
        _optimizer_step(model, request, tracker)
        model.zero_grad(set_to_none=True)
        if request.evaluation_rows:
            tracker.phase = "evaluation"
            _evaluate(model, request, tracker)
    del states
    return tracker


def _count_static(model: torch.nn.Module, tracker: Tracker) -> None:
    for name, parameter in model.named_parameters():
        tracker.count(parameter, "adapters" if "lora_" in name else "weights")
    for buffer in model.buffers():
        tracker.count(buffer, "weights")
    tracker.peaks[("load", "resident")] = Peak(sum(tracker.live.values()), dict(tracker.live))


def _trainable(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def _optimizer_states(
    model: torch.nn.Module, request: StepRequest, tracker: Tracker
) -> list[torch.Tensor]:
    """AdamW's two moments: in the parameter's dtype, or 8-bit in blocks; paged live elsewhere."""
    if request.optimizer == "paged_adamw_8bit":
        return []
    states = []
    for parameter in _trainable(model):
        if request.optimizer == "adamw_bnb_8bit" and parameter.numel() >= MIN_8BIT_SIZE:
            size = parameter.numel() + 4 * -(-parameter.numel() // BLOCK_8BIT)
            states += [torch.empty(size, dtype=torch.uint8, device="meta") for _ in range(2)]
        else:
            states += [torch.empty_like(parameter) for _ in range(2)]
    for state in states:
        tracker.count(state, "optimizer")
    return states


def _gradient_hooks(model: torch.nn.Module, tracker: Tracker) -> list[Any]:
    def rename(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            tracker.count(parameter.grad, "gradients")

    return [p.register_post_accumulate_grad_hook(rename) for p in _trainable(model)]


def _forward(
    model: Any,
    ids: torch.Tensor,
    request: StepRequest,
    tracker: Tracker,
) -> torch.Tensor:
    """Forward, loss and backward, under emulated autocast when the trainer would use it."""
    low = DTYPES[request.precision]
    mode = Autocast(low) if request.autocast and low != torch.float32 else None
    mask = torch.ones_like(ids) if request.padded else None
    with mode or contextlib.nullcontext():
        tracker.phase = "forward"
        loss = _loss(model, ids, mask, request.loss)
        if mode is not None:
            mode.forget()
            mode.caching = False  # each recompute is an autocast region of its own, with its cache
        tracker.phase = "backward"
        # The engine itself: `loss.backward()` under a function mode would leave the mode off
        # during the recompute of activation checkpointing.
        torch.autograd.Variable._execution_engine.run_backward(  # noqa: SLF001
            (loss,),
            (torch.ones_like(loss),),
            False,
            False,
            (),
            True,
            accumulate_grad=True,
        )
        if mode is not None:
            mode.forget()
    return loss


def _loss(model: Any, ids: torch.Tensor, mask: Any, kind: str) -> torch.Tensor:
    if kind in {"chunked", "fused"}:
        return _chunked_loss(model, ids, mask)
    if kind == "upcast_copy":
        hidden, head = _hidden_and_head(model, ids, mask)
        logits = head(hidden)
        upcast = logits.float()  # a local of the old loss: alive until the loss is known
        shifted = upcast[..., :-1, :].contiguous()
        loss = functional.cross_entropy(
            shifted.view(-1, shifted.shape[-1]), ids[..., 1:].reshape(-1)
        )
        loss.kept = (hidden, logits)
        return loss
    found: torch.Tensor = model(
        input_ids=ids, attention_mask=mask, labels=ids, use_cache=False
    ).loss
    return found


def _hidden_and_head(model: Any, ids: torch.Tensor, mask: Any) -> tuple[Any, Any]:
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    hidden = inner.base_model(input_ids=ids, attention_mask=mask, use_cache=False)[0]
    return hidden, inner.get_output_embeddings()


CHUNK_TOKENS = 1024  # tokens whose logits exist at once; TRL and liger choose about as many


def _chunked_loss(model: Any, ids: torch.Tensor, mask: Any) -> torch.Tensor:
    from torch.utils.checkpoint import checkpoint

    hidden, head = _hidden_and_head(model, ids, mask)
    flat, labels = hidden.reshape(-1, hidden.shape[-1]), ids.reshape(-1)

    def part(rows: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(head(rows).float(), wanted, reduction="sum")

    total = None
    for start in range(0, flat.shape[0], CHUNK_TOKENS):
        rows, wanted = flat[start : start + CHUNK_TOKENS], labels[start : start + CHUNK_TOKENS]
        one = checkpoint(part, rows, wanted, use_reentrant=False)
        total = one if total is None else total + one
    return total


def _optimizer_step(model: torch.nn.Module, request: StepRequest, tracker: Tracker) -> None:
    """The optimizer's own temporaries: a foreach AdamW holds one more copy of what it updates."""
    if request.optimizer == "adamw_torch":
        copies = [torch.empty_like(p) for p in _trainable(model)]
        for copy in copies:
            tracker.count(copy, "optimizer")
        tracker._note("foreach_adamw", None, ())  # noqa: SLF001 - same package
    else:
        tracker._note("adamw", None, ())  # noqa: SLF001 - same package


def _evaluate(model: Any, request: StepRequest, tracker: Tracker) -> None:
    low = DTYPES[request.precision]
    ids = torch.zeros(request.evaluation_rows, request.seq_len, dtype=torch.long, device="meta")
    mode = Autocast(low) if request.autocast and low != torch.float32 else contextlib.nullcontext()
    with torch.no_grad(), mode:
        model.eval()
        _loss(model, ids, None, request.loss)
        model.train()
    tracker.phase = "optimizer"
