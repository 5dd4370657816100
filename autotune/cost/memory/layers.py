"""What one layer of a kind holds: kept of its forward, and for a moment in its backward.

Covers: the MLP, the norms and the attention of one decoder layer, for the modes of `activations`.
Does not cover: workspace inside a kernel, except flash attention's accumulators.

Source: fitted to a storage-counting trace of LlamaForCausalLM (transformers 5.23, peft 0.21), where
each width was varied alone: every coefficient came out linear, and whole up to the h of the MLP.
Flash attention's fp32 query gradient and expanded key gradients: derived from flash-attention 2's
backward (Dao 2023, algorithm 2), not seen by the trace.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost import deepspeed, dora, whole_modules
from autotune.cost.memory.activations import PYTHON_GELU, inner_bytes, layer_activations, norm_kept
from autotune.cost.memory.attention_kernel import (
    copies_heads,
    falls_to_math,
    scores_forward,
    split_bytes,
    splits_keys,
)
from autotune.cost.memory.experts import experts_looped, merged_experts_bytes, weighing_transient
from autotune.cost.memory.mixers import chunked_tokens, mixer_forward, mixer_transient
from autotune.cost.memory.modelling_code import (
    NARROW_NORMS,
    Attention,
    Mode,
    as_run,
    compiles_layers,
    fuses_adapters,
    mode_of_kind,
    padded_update,
)
from autotune.cost.memory.states import (
    dequantised_bytes,
    fp32_norms,
    fp32_stream,
    keeps_inputs,
    of_bitsandbytes,
    other_half,
    quantised,
    sizes,
)
from autotune.cost.time.attention import masked_share
from autotune.domain.config import FLASH
from autotune.domain.model import MIXING, XIELU
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from autotune.cost.columns import BoolArray, Columns, FloatArray
    from autotune.domain.job import Job, Method
    from autotune.domain.model import Model

_KINDS: tuple[Attention, ...] = ("eager", "sdpa", "flash_attention_2", "math")
_COMPUTE_BYTES = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 2.0}


@dataclass(frozen=True, slots=True)
class Transients:
    """[bytes/token] extra while the backward runs through a part; `per_key` a key more.

    product: how far below `mlp` it is while a matrix of the MLP is multiplied, which is when a
    quantised base has that matrix unpacked.
    """

    mlp: float
    product: float
    norm: float
    attention: float
    per_key: float
    mixer: float  # after the attention beside it, whose scores are gone


def layer_transients(model: Model, method: Method, mode: Mode) -> Transients:
    """Extra bytes of each part of one layer's backward."""
    heads = model.num_attention_heads
    scores = 0.0
    if not heads:
        pass
    elif mode.attention == "eager":
        scores = heads * (6.0 if mode.compute < 4.0 else 8.0)
    elif mode.attention == "math":
        scores = heads * 8.0
    elif mode.biased:
        scores = mode.compute
    if mode.splits_keys:
        scores += split_bytes(float(model.query_size))
    inner = max(_mlp(model, method, mode), dora.backward(model, method, mode))
    mlp = max(inner, weighing_transient(model, method, mode))
    return Transients(
        mlp=mlp,
        product=_below_peak(model, method, mode) + mlp - inner,
        norm=20.0 * model.hidden_size,
        attention=_attention(model, mode) if heads else 0.0,
        per_key=scores,
        mixer=mixer_transient(model.mixer, mode, float(model.hidden_size)) if model.mixer else 0.0,
    )


def norm_transient(model: Model, mode: Mode) -> float:
    """[bytes/token] of the final norm's backward."""
    return (18.0 if mode.train_base and mode.stream < 4.0 else 16.0) * model.hidden_size


def _width(model: Model, mode: Mode) -> float:
    """Elements of the MLP's inner width that one token passes, over all experts that run at once.

    Experts in a loop run one at a time, each on its share of the tokens.
    """
    inner = [item for item in model.linears if item.part in {"mlp", "expert", "shared_expert"}]
    names = {item.part: item for item in inner}  # the last of each part: its output projection
    width = 0.0
    for item in names.values():
        alone = mode.looped and item.part == "expert"
        width += item.in_features * min(item.active, item.count) / (item.count if alone else 1)
    return width


def _mlp(model: Model, method: Method, mode: Mode) -> float:
    f, h, e = _width(model, mode), float(model.hidden_size), mode.compute
    if mode.fused_adapters:  # the gradient of the product; all else overwrites what was kept
        return e * (f + h)
    if model.activation == PYTHON_GELU and mode.autocast:
        return 10.0 * f + 10.0 * h  # fp32 gradients of an expression that autocast widened
    if model.activation == XIELU and not mode.compiled:
        return _xielu(model, method, mode) * f + mode.stream * h
    wide = 4.0 * h if mode.stream > e else 0.0
    if mode.looped and model.is_moe:
        wide += 2.0 * e * h  # an expert's gradient of all tokens, and their sum so far
    if mode.train_base:
        return e * (2.0 * f + h) + wide
    inner = inner_bytes(model, mode)
    follows = bool(wide) and inner == mode.stream  # gradients are in the stream's dtype throughout
    if not _adapted(model, method):
        return inner * _factors(model) * f + (0.0 if follows else e * h) + wide
    if follows and mode.autocast and mode.adapter > e:  # the narrow copy of its input is gone
        own = (inner * _factors(model) - e) * f + wide
    else:
        own = _mlp_beside_adapters(mode, f, h)
    return own + (mode.adapter * f if method.dropout > 0 else 0.0)


def _xielu(model: Model, method: Method, mode: Mode) -> float:
    """[bytes/element] gradients of all that xIELU is made of where most of them are alive.

    Four in fp32 under autocast or with fp32 weights of its own, else in the compute dtype; in
    LoRA what its input still holds goes, or stays. Source: fitted to traces of Apertus 8B.
    """
    wide = mode.autocast or mode.stream > mode.compute
    most = 16.0 if wide else 8.0
    if mode.train_base:
        return most
    if not _adapted(model, method):
        return most + ((4.8 if wide else 2.8) if mode.quantised else 1.0)
    held = 0.0 if mode.quantised and wide else 1.0 if wide else 2.0
    dropped = (-1.0 if wide else 2.0) if method.dropout > 0 else 0.0
    return most - held + dropped


def _mlp_beside_adapters(mode: Mode, f: float, h: float) -> float:
    if mode.adapter == mode.compute or mode.reads_as_is:
        return 2.0 * mode.compute * f + mode.compute * h
    return 6.0 * f + 10.0 * h if mode.autocast else 4.0 * f + 12.0 * h


def _adapted(model: Model, method: Method) -> bool:
    """Whether a matrix of the MLP carries an adapter."""
    inner = {item.name for item in model.linears if item.part not in {*MIXING, "router"}}
    return bool(inner & set(method.targets))


def _factors(model: Model) -> float:
    """Gradients as wide as the MLP at once: of its product and, if gated, of both factors."""
    return 3.0 if model.mlp == "gated" else 2.0


def _below_peak(model: Model, method: Method, mode: Mode) -> float:
    f, e = _width(model, mode), mode.compute
    if mode.fused_adapters:
        return 0.0
    if not _adapted(model, method):
        return (inner_bytes(model, mode) * _factors(model) - e) * f
    return (
        (5.0 if method.dropout > 0 else 2.0) * f
        if mode.autocast and mode.adapter > e and not mode.reads_as_is
        else 0.0
    )


def _attention(model: Model, mode: Mode) -> float:
    q, k, e = float(model.query_size), float(model.kv_size), mode.compute
    if mode.attention in {"eager", "math"}:
        return 2.0 * e * k
    casts = 3.0 * (q + k) if mode.stream > e else 0.0
    accumulators = 4.0 * q + (2.0 * e * q if k < q else 0.0)
    return 2.0 * e * (q + k) + casts + accumulators


@dataclass(frozen=True, slots=True)
class Modes:
    """The distinct modes among the rows, and the mode of each row."""

    modes: list[Mode]
    of_row: NDArray[np.intp]

    def each(self, number: Callable[[Mode], float]) -> FloatArray:
        """[rows] a number of each row's mode."""
        return np.asarray([number(mode) for mode in self.modes], np.float64)[self.of_row]

    def of_kind(self, layer: Model) -> Modes:
        """The same of one kind of layer."""
        return replace(self, modes=[mode_of_kind(mode, layer) for mode in self.modes])

    @classmethod
    def of(cls, job: Job, columns: Columns, length: FloatArray) -> Modes:
        """Of every row."""
        method = job.method
        compute = columns.choose("precision", _COMPUTE_BYTES)
        kinds: dict[str, float] = {kind: float(i) for i, kind in enumerate(_KINDS)}
        attention = columns.choose("attention", {**kinds, FLASH[1]: kinds[FLASH[0]]})
        adapter = deepspeed.trained_bytes(job, columns) * method.is_lora
        shared = columns.shared_by("fsdp", "zero3")
        shared |= deepspeed.casts(columns)
        wide = (fp32_stream(job) & ~shared) | (fp32_norms(job) & ~deepspeed.casts(columns))
        wide |= whole_modules.widens_stream(job, columns) | other_half(job, columns)
        stream = np.where(wide, 4.0, compute)
        masked = masked_share(job, columns, length)
        attention = np.where(falls_to_math(job, columns, compute, masked), 3.0, attention)
        # Source: accelerate 1.15 accelerator.py: native_amp stays off under DeepSpeed.
        autocast = (compute < 4.0) & job.software.autocast & ~deepspeed.casts(columns)
        chunked = chunked_tokens(job.model, length) / length
        key = (
            compute
            + 0.5 * autocast
            + 10.0 * attention
            + 100.0 * adapter
            + 1000.0 * stream
            + 10000.0 * masked
            + 100000.0 * (compiled := compiles_layers(job, columns))
            + 400000.0 * chunked
            + 200000.0 * (splits := splits_keys(job, columns, compute, masked))
        )
        _, first, of_row = np.unique(key, return_index=True, return_inverse=True)
        modes = [
            Mode(
                compute=float(compute[i]),
                stream=float(stream[i]),
                train_base=not method.is_lora,
                adapter=float(adapter[i]),
                autocast=bool(autocast[i]),
                attention=_KINDS[int(attention[i])],
                masked=float(masked[i]),
                quantised=quantised(job),
                keeps_inputs=keeps_inputs(job),
                reads_as_is=of_bitsandbytes(job) and bool(autocast[i]),
                fused_norms=(job.software.kernels != "eager" or bool(compiled[i]))
                and job.model.norm == "rmsnorm",
                fused_gate=job.software.kernels == "liger" or bool(compiled[i]),
                compiled=bool(compiled[i]),
                looped=experts_looped(job),
                repeats_base=dora.repeats_base(job),
                fused_adapters=fuses_adapters(job),
                expands_heads=copies_heads(job, _KINDS[int(attention[i])]),
                splits_keys=bool(splits[i]),
                fused_mixer=job.fuses_mixers,
                chunked=float(chunked[i]),
                narrow_norms=job.software.own_model and job.software.stack in NARROW_NORMS,
            )
            for i in first
        ]
        return cls(modes, of_row.reshape(-1))


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """[bytes] of one layer of a kind for the whole micro-batch. Shapes [rows]."""

    layers: int  # of this kind
    lower: int  # layers below the lowest of this kind
    kept: FloatArray
    below: FloatArray  # what those layers keep
    above: FloatArray  # what the highest of this kind and those above it keep
    mlp: FloatArray  # with the temporaries of the MLP's backward: all that is alive then
    norm: FloatArray
    attention: FloatArray
    forward: FloatArray  # the most in its forward, where that may be more than in its backward
    norms: FloatArray  # of that what depends on no batch
    repeated: FloatArray  # of that forward beside the gradient of its output, where it is repeated

    @property
    def backward(self) -> FloatArray:
        """[bytes] the most that is alive of one layer during its backward."""
        within = np.maximum(np.maximum(self.mlp, self.norm), self.attention)
        return np.maximum(within, self.repeated)


def layers_of(
    job: Job, modes: Modes, tokens: FloatArray, length: FloatArray, repeats: BoolArray
) -> tuple[LayerBytes, ...]:
    """Of every kind of layer, and what the layers around it keep."""
    found = []
    for layer in job.model.layers:
        own = job if layer is job.model else replace(job, model=layer)
        alike = modes.of_kind(layer) if job.model.kinds else modes
        found.append(_layer(own, alike, tokens, length, repeats))
    if not job.model.kinds:
        return tuple(found)
    kept = {place: one.kept for one, kind in zip(found, job.model.kinds, strict=True)
            for place in kind.places}  # fmt: skip
    return tuple(
        replace(
            one,
            lower=min(kind.places),
            below=sum((kept[i] for i in range(min(kind.places))), np.zeros_like(tokens)),
            above=sum((kept[i] for i in range(max(kind.places), len(kept))), np.zeros_like(tokens)),
        )
        for one, kind in zip(found, job.model.kinds, strict=True)
    )


def _layer(
    job: Job, modes: Modes, tokens: FloatArray, length: FloatArray, repeats: BoolArray
) -> LayerBytes:
    model, method = as_run(job)
    kept = {mode: layer_activations(model, method, mode) for mode in modes.modes}
    extra = {mode: layer_transients(model, method, mode) for mode in modes.modes}
    whole = modes.each(lambda m: kept[m].per_token) + length * modes.each(lambda m: kept[m].per_key)
    whole = tokens * (whole + padded_update(job) * modes.each(lambda m: m.compute))
    rest = whole - tokens * modes.each(lambda m: kept[m].mlp)
    scores = modes.each(lambda m: extra[m].attention)
    scores = scores + length * modes.each(lambda m: extra[m].per_key)
    mixed = modes.each(lambda m: extra[m].mixer) - length * modes.each(lambda m: kept[m].per_key)
    if model.mixer:
        scores = np.maximum(scores, mixed) if model.num_attention_heads else mixed
    merged = merged_experts_bytes(job)
    mlp = merged + whole + tokens * modes.each(lambda m: extra[m].mlp)
    unpacked = dequantised_bytes(job, sizes(job.model))
    copies = modes.each(lambda m: dora.kept_weights(job, m))
    outside = modes.each(lambda m: dora.kept_weights(job, m, MIXING))
    more, mlp, rest = merged + copies, mlp + copies, rest + outside
    forward = _dora_forward(job, modes, tokens, whole + more, rest)
    forward = np.maximum(forward, tokens * modes.each(lambda m: _mixer_forward(model, m)))
    gradient = modes.each(lambda m: m.stream) * model.hidden_size
    return LayerBytes(
        layers=model.num_layers,
        lower=0,
        kept=whole + more,
        below=np.zeros_like(tokens),
        above=whole + more,
        mlp=mlp + np.maximum(0.0, unpacked - tokens * modes.each(lambda m: extra[m].product)),
        norm=rest + tokens * modes.each(lambda m: extra[m].norm),
        attention=rest + tokens * scores,
        forward=forward,
        norms=modes.each(lambda m: max((x.fixed for x in dora.forwards(job, m)), default=0.0)),
        repeated=np.where(repeats & (forward > 0.0), forward + tokens * gradient, 0.0),
    )


def _mixer_forward(model: Model, mode: Mode) -> float:
    """[bytes/token] of a layer at the fullest moment of its mixer's forward; 0: not the most."""
    inside = mixer_forward(model.mixer, mode)
    return inside and inside + norm_kept(model, mode) + 2.0 * mode.compute * model.hidden_size


def _dora_forward(
    job: Job, modes: Modes, tokens: FloatArray, whole: FloatArray, rest: FloatArray
) -> FloatArray:
    """[bytes] of a layer at the fullest moment of its forward under DoRA; 0 without."""
    found = np.zeros_like(tokens)
    for moment in zip(*(dora.forwards(job, mode) for mode in modes.modes), strict=True):
        fixed, own = (
            np.asarray([getattr(each, name) for each in moment])[modes.of_row]
            for name in ("fixed", "per_token")
        )
        reached = rest if moment[0].in_attention else whole
        found = np.maximum(found, reached + fixed + tokens * own)
    return found


def forward_scores(job: Job, modes: Modes, tokens: FloatArray, length: FloatArray) -> FloatArray:
    """[bytes] of one layer in the forward, where scores outlive it; else 0."""
    found = {mode: scores_forward(job.model, mode) for mode in modes.modes}
    each, key = modes.each(lambda mode: found[mode][0]), modes.each(lambda mode: found[mode][1])
    return tokens * (each + length * key)
