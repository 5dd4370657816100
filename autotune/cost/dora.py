"""What DoRA adds to LoRA: magnitudes, tensors that the graph keeps, and a norm of every weight.

DoRA scales every output of an adapted matrix by m / ||W + s B A||, row by row. peft makes that norm
anew in each forward: it multiplies A and B through an identity matrix, adds the product to a copy
of the weight in the adapter's dtype, and takes the norm. No gradient flows through it.

Covers: linear layers of 16 and 32 bits and of bitsandbytes, with and without dropout, autocast or
not. Does not cover: `ephemeral_gpu_offload`; peft's cache of norms, which is off by default and
never used in training; other implementations (Unsloth's, torchtune's), priced as peft's.

Source: Liu et al., "DoRA" (2024), sections 3 and 4.3; peft 0.21 tuners/lora/dora.py and
variants.py; kernels counted with a torch dispatch mode on that version, bytes derived and checked
with a storage-counting trace (tests/cost).

Legend: i and o input and output features of an adapted matrix; a bytes of the adapter's dtype; e
bytes of what its products answer in: the compute dtype under autocast, else a.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from autotune.cost.memory.states import PACKED_BYTES
from autotune.domain.model import MIXING
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.cost.memory.modelling_code import Mode
    from autotune.domain.job import Job, Method
    from autotune.domain.model import Linear, Model, Part

# Before, the base's product was repeated even without dropout. Source: huggingface/peft#2122.
REUSES_BASE_FROM = (0, 14)
# Kernels beside those of a LoRA projection, by the adapter's dtype: counted on peft 0.21 under bf16
# autocast, forward and backward: fp32 24 and 25 against 9 and 12, bf16 16 and 17 against 5 and 8.
KERNELS = {True: (15.0, 13.0), False: (11.0, 9.0)}
REPEATED_KERNELS = (3.0, 3.0)  # more where the base's product is repeated
# [bytes per token and output] elementwise, beside LoRA's: products with two scales, their sum, and
# in the backward the gradient of either scale. Derived, kernel by kernel.
OUTPUT_BYTES = {True: (36.0, 74.0), False: (12.0, 26.0)}

# [bytes] a weight to unpack what bitsandbytes stores: 4-bit codes to 16 bit, 8-bit ones to fp32.
_UNPACKED = {"nf4": PACKED_BYTES["nf4"] + 2.0, "int8": PACKED_BYTES["int8"] + 4.0}


class Extra(NamedTuple):
    """What a micro-step's forward and backward do more than LoRA's."""

    forward: float
    backward: float


@dataclass(frozen=True, slots=True)
class Forward:
    """[bytes] alive in the forward of one adapted matrix beyond what the layer keeps in the end.

    fixed: whatever the batch; per_token: more a token (negative where the layer has not come so
    far).
    """

    fixed: float
    per_token: float
    in_attention: bool  # nothing of the MLP is kept yet


def repeats_base(job: Job) -> bool:
    """Whether the base's product is made a second time, on the dropped-out input."""
    return job.method.is_dora and (job.method.dropout > 0 or job.software.peft < REUSES_BASE_FROM)


def _adapted(model: Model, method: Method) -> Iterator[tuple[int, Linear]]:
    """(number of layers, matrix) of every adapted matrix; nothing without DoRA."""
    if not method.is_dora:
        return
    for layers, item in model.all_linears:
        if item.adaptable and item.name in method.targets:
            yield layers, item


def kept(mode: Mode, item: Linear, base: float) -> float:
    """[bytes/token] both products stay, for the gradients of the scales. base: of the base's."""
    if mode.repeats_base:
        base = _answers(mode)
    return (base + _answers(mode)) * item.out_features


def _answers(mode: Mode) -> float:
    return mode.compute if mode.autocast else mode.adapter


def kept_weights(job: Job, mode: Mode, parts: tuple[Part, ...] = ()) -> float:
    """[bytes] copies of weights that a layer keeps for a repeated base product; a mean.

    That product's backward needs the weight as it was multiplied: a copy wherever it was cast or
    unpacked. parts: of these of the layer alone.
    """
    if not mode.repeats_base:
        return 0.0
    found = sum(
        count * item.in_features * item.out_features
        for count, item in _adapted(job.model, job.method)
        if not parts or item.part in parts
    )
    return _copied(job, mode) * found / job.model.num_layers


def first_weights(job: Job, mode: Mode) -> float:
    """[bytes] of those copies that the layer next to the embedding does not keep.

    What its attention reads needs no gradient.
    """
    if not mode.repeats_base:
        return 0.0
    own = [item for item in job.model.lowest.linears if item.part in MIXING][:-1]
    own = [item for item in own if item.adaptable and item.name in job.method.targets]
    return _copied(job, mode) * sum(float(item.in_features * item.out_features) for item in own)


def _copied(job: Job, mode: Mode) -> float:
    stored, answers = job.method.plain_bytes, _answers(mode)
    unpacked = job.method.is_quantised
    return answers if unpacked or stored != mode.adapter or stored != answers else 0.0


def forwards(job: Job, mode: Mode) -> tuple[Forward, ...]:
    """What the forward of each adapted matrix holds at its two fullest moments.

    The norm: the weight, its update, the scaled update and their sum in the adapter's dtype, and
    the identity matrix that the graph keeps. The outputs: three products in the adapter's dtype
    beside weight, update and identity.
    """
    found = []
    a, wide = mode.adapter, mode.autocast and mode.adapter > mode.compute
    identity = mode.compute if wide else a
    own = _copy_of_weight(job, mode)
    for _, item in _adapted(job.model, job.method):
        i, o = float(item.in_features), float(item.out_features)
        narrow = a * i if wide else 0.0  # the cast input, which autocast casts again and keeps
        if mode.repeats_base:  # the input before dropout, and the base's first product
            narrow += (a * i if a > mode.compute or not wide else 0.0) + mode.compute * o
        if a > mode.compute:  # else the graph keeps them: stream, residual, what a norm gave, input
            narrow += mode.compute * 3.0 * job.model.hidden_size
            narrow += mode.compute * i if _ends_mlp(job.model, item) else 0.0
        missing, inside = _not_yet(job.model, mode, item), item.part in MIXING
        eye = ((a + mode.compute if wide else a) * i * i, narrow)
        norm = (identity * i * i + (3.0 * a + own) * i * o, narrow)
        outputs = (identity * i * i + (a + own) * i * o, narrow + 3.0 * a * o)
        for fixed, per_token in (eye, norm, outputs):
            found.append(Forward(fixed, per_token - missing, inside))
    return tuple(found)


def _copy_of_weight(job: Job, mode: Mode) -> float:
    """[bytes] an element of the weight as the norm reads it, where it is not the parameter."""
    same = not job.method.is_quantised and job.method.plain_bytes == mode.adapter
    return 0.0 if same else mode.adapter


def _not_yet(model: Model, mode: Mode, item: Linear) -> float:
    """[bytes/token] of what a layer keeps that comes after this matrix."""
    if item.part in MIXING or _ends_mlp(model, item):
        return 0.0
    inner = [one for one in model.linears if one.part == item.part]
    return 2.0 * mode.compute * inner[-1].in_features if inner else 0.0


def _ends_mlp(model: Model, item: Linear) -> bool:
    inner = [one for one in model.linears if one.part == item.part]
    return item.part not in MIXING and bool(inner) and item.name == inner[-1].name


def backward(model: Model, method: Method, mode: Mode) -> float:
    """[bytes/token] alive while the backward is at the matrix before the MLP's activation.

    Gradients of its outputs in the adapter's dtype, before and after either scale, less what the
    matrix after the activation has freed by then. Source: fitted to a storage-counting trace of
    LlamaForCausalLM where each width was varied alone.
    """
    inner = [item for item in model.linears if item.part in {"mlp", "shared_expert"}]
    if not method.is_dora or not any(item.name in method.targets for item in inner[:-1]):
        return 0.0
    f, h = float(inner[-1].in_features), float(inner[-1].out_features)
    if mode.adapter <= mode.compute:
        return 0.0  # below what LoRA's own backward holds
    if mode.repeats_base:
        return 12.5 * f - 5.0 * h if mode.autocast else 10.0 * f - 9.0 * h
    return 14.0 * f - 2.0 * h if mode.autocast else 12.0 * f - 4.0 * h


def norm_flop(model: Model, method: Method) -> float:
    """[FLOP] of one forward to multiply A and B: 2 r i (i + o) a matrix, whatever the batch."""
    return sum(
        2.0 * count * method.rank * item.in_features * (item.in_features + item.out_features)
        for count, item in _adapted(model, method)
    )


def norm_bytes(job: Job, *, fp32: bool) -> float:
    """[bytes] of one forward's norms: identity, update, casts, scaling, sum and norm."""
    a = 4.0 if fp32 else 2.0
    identity = a + (a + 2.0 + 2.0 if fp32 else a)  # written, cast, read by the product
    same = not fp32 if job.method.base == "16bit" else fp32 and job.method.base == "32bit"
    own = _UNPACKED.get(job.method.base, 0.0) + (0.0 if same else 2.0 + a)  # unpacked, cast
    each = 2.0 + (2.0 + a if fp32 else 0.0) + own + 2.0 * a + 3.0 * a + a
    return sum(
        count * (identity * item.in_features**2 + each * item.in_features * item.out_features)
        for count, item in _adapted(job.model, job.method)
    )


def output_bytes(job: Job, *, fp32: bool) -> Extra:
    """[bytes per token] elementwise work on the outputs of adapted matrices, beside LoRA's."""
    width = sum(
        count * item.active * item.out_features for count, item in _adapted(job.model, job.method)
    )
    ahead, back = OUTPUT_BYTES[fp32]
    return Extra(ahead * width, back * width)


def kernels(job: Job, *, fp32: bool) -> Extra:
    """Kernels of one adapted projection beside LoRA's."""
    if not job.method.is_dora:
        return Extra(0.0, 0.0)
    ahead, back = KERNELS[fp32]
    more = REPEATED_KERNELS if repeats_base(job) else (0.0, 0.0)
    return Extra(ahead + more[0], back + more[1])
