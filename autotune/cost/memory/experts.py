"""How the experts of a mixture lie on the device, and what one pass over them holds.

Covers: a linear layer for each matrix of an expert, or one parameter for all experts of a layer,
in 16 bit or in few bits. Such a parameter is made 16-bit again for each pass, all experts of the
layer together, and autograd keeps that copy for the backward.
Does not cover: kernels that unpack the experts that are routed to alone (axolotl's scattermoe).

Source: bitsandbytes 0.50 nn/parametrize.py, replace_parameter_4bit and its hooks; axolotl 0.16 to
0.21 monkeypatch/moe_quant.py, which quantises what has three dimensions as it is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.cost.memory.modelling_code import family_memory

if TYPE_CHECKING:
    from autotune.cost.memory.modelling_code import Mode
    from autotune.domain.job import Job, Method
    from autotune.domain.model import Model

EXPERT = "expert"
ROUTED = frozenset({EXPERT, "router"})
# Source: transformers 4.48 modeling_mixtral.py loops over experts of nn.Linear; 5.23 has one 3-D
# parameter and one grouped product for all, which integrations/bitsandbytes.py does not replace.
EXPERTS_FUSED_FROM = (5, 0)
# Families whose experts were one parameter from the first release of their class on.
# Source: transformers 4.51 modeling_llama4.py (Llama4TextExperts), 4.55 modeling_gpt_oss.py
# (GptOssExperts), 4.46 modeling_granitemoe.py (GraniteMoeParallelExperts) and its heirs.
FUSED_AT_ONCE = frozenset(
    {"llama4_text", "gpt_oss", "granitemoe", "granitemoeshared", "granitemoehybrid"}
)
# Those of which a class with linear layers takes the place where a trainer's switch asks for it.
# Source: axolotl 0.8.1 to 0.21 monkeypatch/models/llama4/modeling.py.
LINEARISED = frozenset({"llama4_text"})
# Until then a checkpoint that stops its second forward early, as torch's own does, never empties
# the cache of what a pass unpacked, so that the 16-bit experts of every layer stay.
# Source: bitsandbytes 0.49.2 and 0.50.0 nn/parametrize.py (pull request 1999): OLMoE 1B-7B retained
# 12.9 GiB. axolotl's own int8 did so until its pull request 3915.
EMPTIES_CACHE_FROM = (0, 50)
# Bytes of an int8 weight of such a parameter as it is used: codes times scales are fp32.
# Source: bitsandbytes 0.50 _ops.py, int8_vectorwise_dequant: two products, one after the other.
_UNPACKED_BYTES = {"int8": 4.0}


def experts_fused(job: Job) -> bool:
    """Whether routed experts are one parameter, which bitsandbytes leaves in 16 bit by itself.

    Unsloth makes linear layers of gpt-oss's experts where it loads them in 4 bits, whatever
    transformers does. Source: unsloth_zoo 2026.10.9 temporary_patches/gpt_oss.py,
    GptOssExpertsBnb4bit; a T4 held 12.8 GiB of the 20B model after loading.
    """
    by_unsloth = job.software.kernels == "unsloth" and job.method.base == "nf4"
    apart = (by_unsloth and job.model.family == "gpt_oss") or _linearised(job)
    at_once = job.model.family in FUSED_AT_ONCE
    fused = at_once or job.software.transformers >= EXPERTS_FUSED_FROM
    return job.model.is_moe and fused and not apart


def experts_quantised(job: Job) -> bool:
    """Whether that one parameter is stored in few bits, as a trainer's switch asks for."""
    asked = job.software.quantised_experts and job.method.is_quantised
    return asked and experts_fused(job)


def experts_looped(job: Job) -> bool:
    """Whether a mixture's experts run one after another, each on tokens that are looked up."""
    before = job.software.transformers < EXPERTS_FUSED_FROM
    return job.model.is_moe and (before or _linearised(job))


def _linearised(job: Job) -> bool:
    return job.software.linear_experts and job.model.family in LINEARISED


def unpacked_bytes(job: Job) -> float:
    """[bytes] of a weight of quantised experts, as a pass makes it and its backward keeps it."""
    return _UNPACKED_BYTES.get(job.method.base, 2.0)


def experts_of_layer(job: Job) -> float:
    """[elements] of the routed experts of a layer of the job's model; the most of any kind."""
    return max(
        sum(x.in_features * x.out_features * x.count for x in kind.linears if x.part == EXPERT)
        for kind in job.model.layers
    )


def quantised_elements(job: Job) -> float:
    """[elements] of the experts of all layers that are one parameter in few bits."""
    if not experts_quantised(job):
        return 0.0
    return sum(
        layers * float(x.in_features * x.out_features * x.count)
        for layers, x in job.model.all_linears
        if x.part == EXPERT
    )


def merged_experts_bytes(job: Job) -> float:
    """[bytes] of the weights that a layer makes of its experts in a pass, and keeps.

    PEFT cannot run an adapter beside one parameter of all experts: it adds the product of the
    adapter's matrices to the weights and multiplies with the sum. Source: peft 0.21
    tuners/lora/layer.py, ParamWrapper; a trace of Mixtral keeps one 16-bit copy a layer.
    Quantised experts are unpacked; what adapters are added to besides stays until the pass ends.
    """
    if not (job.method.is_lora and experts_fused(job)):
        return 0.0
    experts = [x for x in job.model.matrices if x.part == EXPERT]
    adapted = [x for x in experts if x.adaptable and x.name in job.method.targets]
    sums = 2.0 * sum(x.in_features * x.out_features * x.count for x in adapted)
    if not experts_quantised(job):
        return sums
    return sums + unpacked_bytes(job) * experts_of_layer(job)


def keeps_unpacked(job: Job) -> bool:
    """Whether checkpointed layers leave the experts unpacked that a pass of them made."""
    empties = (job.software.bitsandbytes or EMPTIES_CACHE_FROM) >= EMPTIES_CACHE_FROM
    return not empties and job.software.reentrant is False and experts_quantised(job)


def retained_bytes(job: Job) -> float:
    """[bytes] of experts that checkpointed layers leave unpacked, beside those of one layer."""
    if not keeps_unpacked(job):
        return 0.0
    return unpacked_bytes(job) * max(0.0, quantised_elements(job) - experts_of_layer(job))


def weighing_transient(model: Model, method: Method, mode: Mode) -> float:
    """[bytes/token] where the outputs of its experts are weighted, put in order and summed.

    An output is as wide as the stream, once for every expert of a token. Three are alive at once:
    in the backward the gradient, the zeros it is put into and the result; in the forward the
    weighted ones, what the experts read and, under autocast, an fp32 copy of two. A recomputed
    forward comes that far only where a shared expert keeps something after it. Weights in fp32
    make all of them fp32. Source: derived from transformers 5.23 integrations/moe.py,
    grouped_mm_experts_forward; multiples of h fitted to traces of eleven families.
    """
    routed = [x for x in model.linears if x.part == "expert" and x.active < x.count]
    if not routed or mode.looped:
        return 0.0
    h, copies = float(model.hidden_size), routed[-1].active
    output = copies * h * mode.compute
    if family_memory(model.family).fp32_weighing:
        return 3.0 * copies * h * 4.0
    adapted = any(x.adaptable and x.name in method.targets for x in routed)
    shared = any(x.part == "shared_expert" for x in model.linears)
    if shared and mode.autocast and not (adapted or mode.train_base):
        return 4.0 * output + 8.0 * h
    return 3.0 * output + 6.0 * h
