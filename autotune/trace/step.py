"""A training run of the real model class and PEFT on the meta device, op by op.

`trace_step` is one optimizer step with every state in place, then one evaluation batch and a save:
what the peak of a long run needs. `trace_run` is the start of a real run, in its order: the states
appear in the first optimizer step, and every allocation and free is kept for the allocator. What
happens between steps (scoring a batch, generating from it, saving) is in here too; the loss of a
batch is in `build`.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Any

import torch

from autotune.trace.build import DTYPES, build, loss_of, trainable
from autotune.trace.emulation import Autocast, cuda_like
from autotune.trace.tracker import Peak, Tracker

if TYPE_CHECKING:
    from autotune.trace.request import StepRequest

BLOCK_8BIT = 256  # Source: bitsandbytes optim.optimizer, blocksize of 8-bit states
MIN_8BIT_SIZE = 4096  # Source: bitsandbytes docs, min_8bit_size: smaller tensors keep fp32 states
STEPS = 3  # the first allocates the optimizer's states; the third repeats the second


def trace_step(request: StepRequest) -> Tracker:
    """One step of a run that has long begun. Raises what the model's code raises."""
    model = build(request)
    tracker = Tracker(int(model.config.vocab_size), padded=request.padded)
    _load(model, request, tracker)
    held = []
    if request.trains:
        held = _optimizer_states(model, request, tracker)
        if request.accumulates:
            _earlier_gradients(model, tracker)
    with cuda_like(), tracker:
        if request.trains:
            hooks = _gradient_hooks(model, tracker)
            _micro_step(model, request, tracker)
            for hook in hooks:
                hook.remove()
            _optimizer_step(model, request, tracker)
        _between_steps(model, request, tracker)
    del held
    return tracker


def trace_run(request: StepRequest, blas_bytes: int = 0) -> Tracker:
    """The first steps of a run, evaluation and save after the second, with every event kept.

    blas_bytes: [bytes] workspaces of the matrix library, half of them taken by the forward's thread
    and half by autograd's; they stay. Raises what the model's code raises.
    """
    model = build(request)
    tracker = Tracker(int(model.config.vocab_size), padded=request.padded)
    tracker.events = []
    _load(model, request, tracker)
    states: list[torch.Tensor] = []
    blas = _Workspaces(blas_bytes // 2, tracker)
    micro_steps = 2 if request.accumulates else 1  # a third repeats the second
    with cuda_like(), tracker:
        hooks = _gradient_hooks(model, tracker)
        for step in range(1, STEPS + 1 if request.trains else 1):
            tracker.step = step
            for _ in range(micro_steps):
                _micro_step(model, request, tracker, blas)
            if step == 1:
                tracker.at("optimizer", "states")
                states = _optimizer_states(model, request, tracker)
            _optimizer_step(model, request, tracker)
            if step == STEPS - 1:
                _between_steps(model, request, tracker)
        if not request.trains:
            _between_steps(model, request, tracker)
        for hook in hooks:
            hook.remove()
    del states, blas
    return tracker


class _Workspaces:
    """The matrix library's workspaces, one for each thread that has used it."""

    def __init__(self, size: int, tracker: Tracker) -> None:
        self.size, self.tracker = size, tracker
        self.of: dict[str, torch.Tensor] = {}

    def take(self) -> None:
        phase = self.tracker.phase
        if self.size and phase not in self.of:
            self.tracker.at(phase, "blas workspace")
            self.of[phase] = torch.empty(self.size, dtype=torch.uint8, device="meta")
            self.tracker.count(self.of[phase], "workspace")
            self.tracker.at(phase, "")


def _load(model: torch.nn.Module, request: StepRequest, tracker: Tracker) -> None:
    """Weights and adapters, with the 16-bit original of a matrix while it is quantised.

    Source: transformers 5.23 integrations/bitsandbytes.py: each weight is placed on the device and
    quantised there, one after the other.
    """
    for name, parameter in model.named_parameters():
        tracker.count(parameter, "adapters" if "lora_" in name else "weights")
        original = getattr(parameter, "original_shape", None)
        if original is not None:
            copy = torch.empty(original, dtype=DTYPES[request.precision], device="meta")
            tracker.op = "quantise"
            tracker.count(copy, "workspace")
            tracker.note()
            del copy
    for buffer in model.buffers():
        tracker.count(buffer, "weights")
    tracker.op = "resident"
    tracker.note()


def _optimizer_states(
    model: torch.nn.Module, request: StepRequest, tracker: Tracker
) -> list[torch.Tensor]:
    """AdamW's two moments: in the parameter's dtype, or 8-bit in blocks; paged live elsewhere."""
    if request.optimizer == "paged_adamw_8bit":
        return []
    states = []
    for parameter in trainable(model):
        if request.optimizer == "adamw_bnb_8bit" and parameter.numel() >= MIN_8BIT_SIZE:
            size = parameter.numel() + 4 * -(-parameter.numel() // BLOCK_8BIT)
            states += [torch.empty(size, dtype=torch.uint8, device="meta") for _ in range(2)]
        else:
            states += [torch.empty_like(parameter) for _ in range(2)]
    for state in states:
        tracker.count(state, "optimizer")
    return states


def _earlier_gradients(model: torch.nn.Module, tracker: Tracker) -> None:
    """What an earlier micro-step of the same optimizer step has left."""
    for parameter in trainable(model):
        parameter.grad = torch.empty_like(parameter)
        tracker.count(parameter.grad, "gradients")


def _gradient_hooks(model: torch.nn.Module, tracker: Tracker) -> list[Any]:
    def rename(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            tracker.count(parameter.grad, "gradients")

    return [p.register_post_accumulate_grad_hook(rename) for p in trainable(model)]


def _micro_step(
    model: Any, request: StepRequest, tracker: Tracker, blas: _Workspaces | None = None
) -> None:
    """Forward, loss and backward, under emulated autocast when the trainer would use it."""
    ids = torch.zeros(request.micro_batch_size, request.seq_len, dtype=torch.long, device="meta")
    mask = torch.ones_like(ids) if request.padded else None
    mode = _autocast(request)
    with mode or contextlib.nullcontext():
        tracker.at("forward", "")
        if blas is not None:
            blas.take()
        loss = loss_of(model, ids, mask, request.loss)
        if mode is not None:
            mode.forget()
            mode.caching = False  # each recompute is an autocast region of its own, with its cache
        tracker.at("backward", "")
        if blas is not None:
            blas.take()
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


def _autocast(request: StepRequest) -> Autocast | None:
    low = DTYPES[request.precision]
    return Autocast(low) if request.autocast and low != torch.float32 else None


def _optimizer_step(model: torch.nn.Module, request: StepRequest, tracker: Tracker) -> None:
    """The update, and then no gradients: a foreach AdamW holds one more copy of what it updates."""
    if request.optimizer == "adamw_torch":
        tracker.at("optimizer", "foreach_adamw")
        copies = [torch.empty_like(p) for p in trainable(model)]
        for copy in copies:
            tracker.count(copy, "optimizer")
        tracker.note()
        del copy, copies
    else:
        tracker.at("optimizer", "adamw")
        tracker.note()
    model.zero_grad(set_to_none=True)


def _between_steps(model: Any, request: StepRequest, tracker: Tracker) -> None:
    """Evaluation and generation, if the job has them, and a save."""
    mode = _autocast(request)
    if request.evaluation_rows:
        with torch.no_grad(), mode or contextlib.nullcontext():
            model.eval()
            evaluate(model, request, tracker)
            if mode is not None:
                mode.forget()
            if request.generate_tokens:
                generate(model, request, tracker)
            if mode is not None:
                mode.forget()
            model.train()
    with torch.no_grad():
        save(model, tracker)


__all__ = ["STEPS", "Peak", "build", "trace_run", "trace_step"]


def evaluate(model: Any, request: StepRequest, tracker: Tracker) -> None:
    """The loss of one evaluation batch; older trainers fill a key-value cache beside it."""
    tracker.at("evaluation", "")
    ids = _batch(request)
    mask = torch.ones_like(ids) if request.padded and request.evaluation_rows > 1 else None
    loss_of(model, ids, mask, request.loss, use_cache=request.evaluation_cache)


def generate(model: Any, request: StepRequest, tracker: Tracker) -> None:
    """Reading the prompt, and the last generated token: the cache is longest then.

    The tokens in between are appended to the cache at once: each of them needs less than the last.
    Source: transformers 5.23 generation/utils.py, `_sample` over a DynamicCache.
    """
    tracker.at("generation", "")
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    asked = inspect.signature(inner.forward).parameters
    last_only = {"logits_to_keep": 1} if "logits_to_keep" in asked else {}
    ids = _batch(request)
    cache = model(input_ids=ids, use_cache=True, **last_only).past_key_values
    if request.generate_tokens > 1:
        _lengthen(cache, request.generate_tokens - 1)
    model(input_ids=ids[:, :1], past_key_values=cache, use_cache=True, **last_only)


def _lengthen(cache: Any, tokens: int) -> None:
    for layer in cache.layers:
        if getattr(layer, "keys", None) is None:
            continue
        rows, heads, _, width = layer.keys.shape
        layer.update(
            layer.keys.new_empty((rows, heads, tokens, width)),
            layer.values.new_empty((rows, heads, tokens, layer.values.shape[-1])),
        )


def save(model: Any, tracker: Tracker) -> None:
    """What is written: references to the tensors, made contiguous where they are not.

    Source: transformers 5.23 `save_pretrained` and peft 0.21 `save_pretrained`; the optimizer's
    state dict holds references too, and the copies to the host are made there.
    """
    tracker.at("save", "state_dict")
    if hasattr(model, "get_base_model"):
        from peft import get_peft_model_state_dict

        state = get_peft_model_state_dict(model)
    else:
        state = model.state_dict()
    for name in list(state):
        state[name] = state[name].contiguous()
    tracker.note()


def _batch(request: StepRequest) -> torch.Tensor:
    return torch.zeros(request.evaluation_rows, request.seq_len, dtype=torch.long, device="meta")
