"""Memory traffic and kernel launches of everything in a step that is not a matrix product.

Bytes are read + written by the kernels that transformers, peft and bitsandbytes issue in eager
mode; fused kernels (liger, unsloth, torch.compile) cut them. Launches are the kernels themselves:
small micro-batches are bound by the processor that issues them.

Covers: norms, activations, residuals, RoPE, loss on fp32 logits, adapters under autocast, nf4 and
int8 bases, eager attention's score matrices.
Does not cover: dropout outside adapters; routers beyond a fixed number of launches.

Legend: h hidden, f ffn width, q and k widths of query and key heads, V vocabulary, r rank.
Source of the bytes: derived, kernel by kernel (16-bit activations: 2 bytes); those of bitsandbytes
are estimates. Source of the launches: see `layer_launches` and `adapter_launches`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from autotune.cost import dora
from autotune.cost.memory.experts import experts_looped
from autotune.cost.time.dequantisation import (
    packed,
    unpacking_kernels,
    wide_linears,
    widens_weights,
)
from autotune.cost.time.flops import head_weights, products
from autotune.domain.model import MIXING, XIELU
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autotune.cost.columns import FloatArray
    from autotune.domain.job import Job, Method
    from autotune.domain.model import Model
    from autotune.domain.software import Software


class Passes(NamedTuple):
    """Something done once in the forward (and again when recomputed) and once in the backward."""

    forward: float
    backward: float

    def total(self, recomputed: FloatArray) -> FloatArray:
        """[rows] forward, backward and `recomputed` further forwards."""
        return self.forward * (1.0 + recomputed) + self.backward

    @classmethod
    def sum(cls, parts: Iterable[Passes]) -> Passes:
        """Of all of them."""
        return cls(*(sum(each) for each in zip(*parts, strict=True)))


@dataclass(frozen=True, slots=True)
class KernelSet:
    """What fused kernels leave of the eager traffic and launches."""

    elementwise: float
    adapters: float
    launches: float


# Shares of eager traffic. liger: RMSNorm 32 -> 4 bytes, SwiGLU 10 -> 6, RoPE one pass, the head
# and its loss in chunks; unsloth: the same and LoRA products without casts.
KERNEL_SETS = {
    "eager": KernelSet(1.0, 1.0, 1.0),
    "liger": KernelSet(0.45, 1.0, 0.75),
    "unsloth": KernelSet(0.45, 0.5, 0.6),
}


# Adapters fused with their weights, beside the kernels that are there: the casts and sums between
# them go, as under Unsloth. Launches: the forward of 512 tokens on an H100 is 2.5 times as fast in
# 16 bit and 2.1 times with nf4, of 8,096 tokens 1.06 and 1.13 times (axolotl pull request 2324).
FUSED_ADAPTERS = KernelSet(1.0, 0.5, 0.6)


def kernel_set(software: Software, model: Model) -> KernelSet:
    """What the software's fused kernels leave; they exist for Llama-like layers only.

    Source: liger-kernel and unsloth patch RMSNorm, RoPE and gated MLPs; axolotl's adapters.
    """
    if model.norm != "rmsnorm" or model.mlp != "gated":
        return KERNEL_SETS["eager"]
    fused = KERNEL_SETS[software.kernels]
    if not software.fused_adapters:
        return fused
    own = FUSED_ADAPTERS
    return KernelSet(
        fused.elementwise, min(fused.adapters, own.adapters), min(fused.launches, own.launches)
    )


def logits_again(software: Software) -> float:
    """Times that a tiled loss multiplies hidden states and head again in the backward.

    Source: trl 1.16 kernels/chunked_logprob.py, backward; Wijmans et al., "Cut Your Losses" (2024),
    section 4.3. litgpt keeps its chunks, Unsloth's and Liger's make the gradient in the forward.
    """
    tiled = software.loss == "chunked" and not software.own_model
    return 1.0 if tiled and software.kernels != "unsloth" else 0.0


# torch.compile makes one kernel of what stands between two products; CUDA graphs also replay the
# launches. [bytes per element] of a norm with the residual sum before it (both read and written;
# backward: gradient, input and the sum's gradient in, one gradient out, gradient and input again
# for the scale), of an activation and of RoPE. How eager code wrote them does not matter. Derived.
COMPILED_NORM, COMPILED_ROPE = Passes(8, 12), Passes(4, 4)
COMPILED_GATED, COMPILED_PLAIN = Passes(6, 12), Passes(4, 8)
# [bytes per logit] 16-bit logits are read for the maximum and for the sum, and again where their
# gradient is written; no fp32 copy travels. Derived. Of losses with kernels or chunks of their own
# it leaves this share: assumption.
COMPILED_LOSS_BYTES, COMPILED_LOSS = 8.0, 0.6
COMPILED_ADAPTERS = 0.6
COMPILED_LAUNCHES = {"off": 1.0, "default": 0.4, "reduce-overhead": 0.12, "max-autotune": 0.12}
DYNAMIC_GRAPH_LAUNCHES = 0.4  # CUDA graphs are not replayed when batches change their length
BROKEN_GRAPH = (
    0.5  # share of the benefit that graph breaks of bitsandbytes layers leave: assumption
)

# Latent attention joins queries and keys of the parts that are rotated and those that are not.
# [bytes per element] 16-bit reads and writes, and kernels. Source: derived from transformers 5.23
# DeepseekV2Attention: one cat of the queries, two copies into new keys; their backward splits both
# and puts the gradients of both splits together.
JOINED_HEADS, JOINED_KERNELS = Passes(4, 8), Passes(4, 7)

_SOFT_ACTIVATIONS = ("gelu_new", "gelu_fast", "quick_gelu")  # written in Python: many kernels
# Source: derived, op by op, of transformers 5.23 XIELUActivation without its CUDA kernels, under
# autocast (softplus and expm1 answer in fp32, and all that follows them).
XIELU_PASSES = Passes(100, 164)
# [bytes per logit] forward + backward with fp32 logits, by what the loss materialises.
LOSS_BYTES = {
    "upcast": 30.0, "upcast_copy": 38.0, "native": 19.0, "inplace": 12.0, "chunked": 30.0,
    "fused": 12.0, "liger": 12.0,
}  # fmt: skip


# Families whose own code takes flash-attn's RMSNorm and rotary kernels when it is installed.
# Source: Qwen/Qwen-7B modeling_qwen.py (`rms_norm`, `apply_rotary_emb_func`).
FUSES_WITH_FLASH = ("qwen",)


def fuses_with_flash(model: Model) -> bool:
    """Whether norms and RoPE are one kernel each under flash attention."""
    return model.family in FUSES_WITH_FLASH


def elementwise_bytes(
    model: Model, method: Method, *, fp32_norms: bool = False, fused: bool = False
) -> Passes:
    """[bytes per token] norms, activations, residuals and RoPE of all layers, eager kernels.

    fused: norms and RoPE are one kernel each.

    fp32_norms: `prepare_model_for_kbit_training` leaves norms in fp32, so that every projection
    after one casts its input again.
    """
    upcast = fp32_norms and method.is_quantised
    return Passes.sum(_elementwise(x, upcast=upcast, fused=fused) for x in model.layers)


def _elementwise(model: Model, *, upcast: bool, fused: bool) -> Passes:
    """The same of layers that are alike."""
    h, q, k = model.hidden_size, model.query_size, model.kv_size
    norm = Passes(32, 50) if model.norm == "rmsnorm" and not fused else Passes(4, 10)
    norms = model.norms_per_layer * h
    if model.qk_norm != "none":
        norms += q + k
    if model.latent:
        norms += sum(model.latent.normed)
    width = activated_width(model)
    if model.activation == XIELU:
        act = XIELU_PASSES
    elif model.activation in _SOFT_ACTIVATIONS:
        act = Passes(30, 46)
    elif model.mlp == "gated":
        act = Passes(10, 18)
    else:
        act = Passes(4, 6)
    rope = Passes(20, 24) if model.position == "rope" else Passes(0, 0)
    if fused and model.position == "rope":
        rope = Passes(4, 4)
    gate = Passes(10, 14) if model.gated_attention else Passes(0, 0)  # its sigmoid, and a product
    residual = 6 * h * model.blocks
    turned = model.rotated_size
    joined = JOINED_HEADS if model.latent else Passes(0, 0)
    casts = 30.0 * h * upcast  # five projections, each reads 4 bytes and writes 2
    layers = model.num_layers
    return Passes(
        layers
        * (
            norm.forward * norms
            + act.forward * width
            + rope.forward * turned
            + gate.forward * q
            + residual
            + casts
            + joined.forward * (q + k)
        ),
        layers
        * (
            norm.backward * norms
            + act.backward * width
            + rope.backward * turned
            + gate.backward * q
            + residual
            + casts
            + joined.backward * (q + k)
        ),
    )


def compiled_elementwise_bytes(model: Model) -> Passes:
    """[bytes per token] the same of all layers where torch.compile fuses it."""
    return Passes.sum(_compiled_elementwise(layer) for layer in model.layers)


def _compiled_elementwise(model: Model) -> Passes:
    gated = COMPILED_GATED if model.mlp == "gated" else COMPILED_PLAIN
    rope = COMPILED_ROPE if model.position == "rope" or model.qk_norm != "none" else Passes(0, 0)
    norms, width = model.norms_per_layer * model.hidden_size, activated_width(model)
    turned = model.rotated_size
    if model.latent:
        norms += sum(model.latent.normed)
        turned += model.query_size + model.kv_size  # joined: read and written like what is turned
    ahead, back = (COMPILED_NORM[i] * norms + gated[i] * width + rope[i] * turned for i in range(2))
    return Passes(model.num_layers * ahead, model.num_layers * back)


def compiled_loss(loss: str) -> float:
    """Share of a loss's eager traffic that is left where torch.compile has the whole model."""
    if loss in {"chunked", "fused", "liger"}:
        return COMPILED_LOSS
    return min(COMPILED_LOSS_BYTES / LOSS_BYTES[loss], 1.0)


def activated_width(model: Model) -> float:
    """[elements] MLP width a token passes through in one layer, mean over layers."""
    total = 0.0
    layers = max(model.num_layers, 1)
    for layer in model.layers:
        count = layer.num_layers
        down = [
            x for x in layer.linears if x.part not in MIXING and x.out_features == model.hidden_size
        ]
        total += sum(x.in_features * x.active for x in down) * count
    return total / layers


def adapter_bytes(job: Job, *, fp32: bool) -> Passes:
    """[bytes per token] what adapters add: casts, dropout, products, scaling and sums.

    fp32 adapters under autocast read the input as 16-bit, write it as fp32, and cast it back.
    """
    forward_in = 14.0 if fp32 else 2.0
    backward_in = 22.0 if fp32 else 10.0
    if job.method.dropout > 0:
        forward_in += 9.0 if fp32 else 5.0
        backward_in += 9.0 if fp32 else 5.0
    forward = backward = 0.0
    for p in products(job.model, job.method):
        forward += p.adapted * (forward_in * p.inputs + 12.0 * p.outputs)
        backward += p.adapted * (backward_in * p.inputs + 8.0 * p.outputs)
    ahead, back = dora.output_bytes(job, fp32=fp32)
    return Passes(forward + ahead, backward + back)


def cast_bytes(model: Model, method: Method) -> Passes:
    """[bytes] autocast's 16-bit copies of fp32 weights, and the casts of their gradients back.

    Once in each forward (copies of trained weights are kept until its end).
    """
    if method.base != "32bit":
        return Passes(0.0, 0.0)
    weights = sum(p.weights * p.matrices for p in products(model, method)) + head_weights(model)
    return Passes(6.0 * weights, 0.0 if method.is_lora else 6.0 * weights)


def other_half_bytes(model: Model, method: Method) -> Passes:
    """[bytes] autocast's copies of weights in the other 16 bits; trained ones have gradients cast.

    Source: derived; see `memory.states.other_half`.
    """
    weights = sum(p.weights * p.matrices for p in products(model, method)) + head_weights(model)
    return Passes(4.0 * weights, 0.0 if method.is_lora else 4.0 * weights)


# [bytes per score] eager attention: scores, scaling, mask, fp32 softmax, cast, product with values.
EAGER_SCORE_BYTES = Passes(22, 34)
# The same where torch.compile makes one kernel between the two products, in the forward (the 16-bit
# product in; fp32 softmax for the backward and its 16-bit copy out) and in the backward. Rows of
# scores up to this length are held in registers; longer ones are read again for what was summed.
# Source: derived; what the forward keeps: the partitioner's graphs, which
# tests/cost/memory/test_compiled.py makes; the length: torch._inductor choices.py,
# should_use_persistent_reduction.
COMPILED_SCORE_BYTES, REREAD_SCORE_BYTES, HELD_SCORES = Passes(12, 16), Passes(2, 6), 1024.0


# An adapter's kernels are issued by few lines of Python, a layer's through many modules: two more
# adapted projections a layer cost ms-swift 0.4 ms each with recomputation (28 kernels), against
# 20 us a kernel in full fine-tuning.
ADAPTER_WEIGHT = 0.5


def layer_launches(
    model: Model, method: Method, *, eager_attention: bool, fused: bool = False
) -> Passes:
    """Kernels of one layer without adapters, eager mode. fused: as in `elementwise_bytes`.

    Source: counted with a torch dispatch mode on transformers 5.23 (Llama: 38 forward; backward 60
    with frozen weights, 71 with trained ones); other families by their modules.
    """
    linears = sum(x.active for x in model.linears)
    norm = Passes(6, 9) if model.norm == "rmsnorm" and not fused else Passes(1, 2)
    norms = model.norms_per_layer + (2 if model.qk_norm != "none" else 0)
    norms += len(model.latent.normed) if model.latent else 0
    rope = Passes(10, 12) if model.position == "rope" else Passes(0, 0)
    if fused and model.position == "rope":
        rope = Passes(2, 2)
    attention = Passes(8, 12) if eager_attention else Passes(4, 5)
    if not model.num_attention_heads:  # `attention.mixer_kernels`
        rope = attention = Passes(0, 0)
    if model.latent:
        attention = Passes.sum((attention, JOINED_KERNELS))
    gradients = 0.0 if method.is_lora else linears + 2.0 * model.norms_per_layer
    forward = norm.forward * norms + rope.forward + attention.forward + linears + 2.5 * model.blocks
    backward = norm.backward * norms + rope.backward + attention.backward + gradients
    backward += linears + 9 * model.blocks
    return Passes(forward, backward)


def adapter_launches(method: Method, *, fp32: bool) -> Passes:
    """Kernels of one adapted projection.

    Source: counted with a torch dispatch mode on peft 0.21 under bf16 autocast: 8 and 10.
    """
    casts = 2 if fp32 else 0
    dropout = 1 if method.dropout > 0 else 0
    return Passes(6.0 + casts + dropout, 8.0 + casts + dropout)


def launches(
    job: Job, *, fp32_adapters: bool, eager_attention: bool, fused: bool = False
) -> Passes:
    """Kernels of one micro-step over all layers, in kernels of a plain layer.

    The forward is issued from Python, the backward by autograd's C++ engine.
    """
    model, method = job.model, job.method
    forward = backward = 0.0
    for one in model.layers:
        layer = layer_launches(one, method, eager_attention=eager_attention, fused=fused)
        ahead, back = layer
        if one.is_moe:
            # One loop over experts before transformers 5, grouped products since.
            loops = one.num_experts if experts_looped(job) else 3
            ahead += 6.0 * loops
            back += 8.0 * loops
        forward, backward = forward + ahead * one.num_layers, backward + back * one.num_layers
    matrices = sum(p.active for p in products(model, method))
    adapted = ADAPTER_WEIGHT * sum(p.adapted for p in products(model, method))
    adapter = adapter_launches(method, fp32=fp32_adapters)
    ahead, back = dora.kernels(job, fp32=fp32_adapters)
    forward += adapted * (adapter.forward + ahead)
    backward += adapted * (adapter.backward + back)
    held = sum(p.active for p in packed(job))
    unpacked = unpacking_kernels(job)
    forward += unpacked[0] * held
    backward += unpacked[1] * held
    if wide_linears(job):  # of inputs and outputs; of weights, there and back
        forward += ADAPTER_WEIGHT * (4 if widens_weights(job) else 2) * matrices
        backward += ADAPTER_WEIGHT * 2 * matrices
    if method.is_lora and method.base == "int8":
        forward += 25 * held  # row statistics, codes, int32 product, outlier columns apart
        backward += 4 * held
    return Passes(forward + 15, backward + 20)
