"""Kernels that the processor issues in a micro-step, how fast it does so, and what it runs itself.

Small micro-batches of small models are bound by this, not by the device.

Where the processor is the device it runs a kernel while it issues it, so nothing overlaps, and
nothing is waited for either. Each cast of autocast is a kernel like any other. Products of 16 bits
go through oneDNN, which generates code for every new combination of sizes; batches padded to their
longest row bring new ones until the end, since its cache holds the products of some forty lengths.

Covers: eager Python, fused kernel sets, torch.compile with and without CUDA graphs, FSDP's units;
on a processor the casts that autocast adds on fp32 weights and adapters, and products of new sizes.
Does not cover: other work on the host's cores; on a processor: torch.compile, several sockets,
threads that wait for a core. What one kernel is and how many there are: `kernels`.

Source of a processor's counts: a torch dispatch mode on transformers 5.23 and peft 0.21. Source of
its times: layers of 8 tokens, by depth, and products of new sizes, torch 2.13 on one core of an AMD
EPYC with avx512_bf16. Products of old sizes reach the rate of large ones from 64 x 64 on;
elementwise kernels are no quicker from the cache than memory is (exponentials, sums and conversions
bound them), nor in 16 bits than in 32. oneDNN's documentation: "Primitive cache" (1024 entries by
default).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.batches import unchanging_lengths, waited_length
from autotune.cost.memory.experts import EXPERT, experts_looped
from autotune.cost.time import kernels
from autotune.cost.time.attention import mixer_kernels, waits_for_lengths
from autotune.cost.time.efficiency import distinct_devices
from autotune.cost.time.flops import products
from autotune.cost.time.kernels import ADAPTER_WEIGHT, Passes, adapter_launches
from autotune.cost.time.measured_rates import issue_factors
from autotune.domain.config import FLASH

if TYPE_CHECKING:
    from autotune.cost.columns import BoolArray, Columns, FloatArray
    from autotune.domain.device import Device
    from autotune.domain.job import Job, Method
    from autotune.domain.model import Linear, Model

# Speed of the host against the servers around A100 that the constants were fitted on. Assumptions.
BASE_YEAR, YEARLY_GAIN = 2020, 0.03
# Hosts that come with these chips only: DGX A100 has EPYC 7742, DGX H100 Xeon 8480C, DGX B200 Xeon
# 8570; one thread of the later two is 1.4 times as fast (PassMark, single thread). Their cards of
# the same architecture (RTX) sit in anyone's.
HOSTS = {"hopper": 0.7, "blackwell": 0.7}
DESKTOP = 0.5  # desktop processors are about twice as fast in one thread
# 14 us a kernel of the forward and 10 of the backward against the fitted ones: no driver is called.
PROCESSOR_ISSUE = 0.4
NEW_SIZES_S = 0.9e-3  # code for one product of sizes that were not met before
PLAIN_ADAPTER = Passes(4.0, 6.0)  # kernels of an adapted projection without autocast
CASTS_OF_A_LAYER = 3.0  # of activations between fp32 and 16-bit kernels, forward


def host_factor(columns: Columns) -> FloatArray:
    """[rows] seconds to issue a kernel against the fitted ones; younger boards have younger hosts.

    Source: assumption, by the board's release year and kind; where this machine was measured, that.
    """
    forward, backward = host_factors(columns)
    return (forward + backward) / 2.0


def host_factors(columns: Columns) -> tuple[FloatArray, FloatArray]:
    """[rows] the same of the forward and of the backward, which differ where they were measured."""
    devices, index = distinct_devices(columns)
    forward, backward = _factors_of(tuple(devices))
    return forward[index], backward[index]


@lru_cache(maxsize=16)
def _factors_of(devices: tuple[Device, ...]) -> tuple[FloatArray, FloatArray]:
    """[device] the same: every price of a step asks for those of its machines three times."""
    year = np.asarray([d.release_year or BASE_YEAR for d in devices], np.float64)
    factor = (1.0 - YEARLY_GAIN) ** np.clip(year - BASE_YEAR, -2.0, 5.0)
    desktop = np.asarray([d.name.startswith("rtx") for d in devices])
    shipped = np.asarray([HOSTS.get(d.architecture, np.inf) for d in devices])
    factor = np.where(desktop, factor, np.minimum(factor, shipped))
    own = np.asarray([device.is_cpu for device in devices])
    of_device = np.where(own, PROCESSOR_ISSUE, factor * np.where(desktop, DESKTOP, 1.0))
    known = [issue_factors(device) or (usual, usual)
             for device, usual in zip(devices, of_device, strict=True)]  # fmt: skip
    forward, backward = np.asarray(known, np.float64).T
    return forward, backward


def remaining_share(job: Job, columns: Columns, *, gains: BoolArray | bool = True) -> FloatArray:
    """[rows] share of the eager launches that fused kernels or torch.compile leave.

    gains: [rows] False for what is left if torch.compile removes nothing.
    """
    left = columns.choose("compile", kernels.COMPILED_LAUNCHES)
    graphs = ~columns.equals("compile", "off")
    changing = graphs & ~unchanging_lengths(job, columns)
    left = np.where(changing, np.maximum(left, kernels.DYNAMIC_GRAPH_LAUNCHES), left)
    if job.method.is_lora and job.method.is_quantised:
        left = np.where(graphs, 1.0 - kernels.BROKEN_GRAPH * (1.0 - left), left)
    fused = kernels.kernel_set(job.software, job.model).launches
    return np.where(gains, np.minimum(fused, left), fused)


def issued_kernels(
    job: Job,
    columns: Columns,
    recomputed: FloatArray,
    fp32: BoolArray,
    *,
    gains: BoolArray | bool = True,
) -> tuple[FloatArray, FloatArray]:
    """[launches] of the forward passes and of the backward, in units of the fitted host.

    fp32: [rows] where adapters are held so, and their input is cast.
    """
    eager = columns.equals("attention", "eager")
    flash = columns.equals("attention", *FLASH) & kernels.fuses_with_flash(job.model)
    forward, backward = np.zeros(columns.rows), np.zeros(columns.rows)
    for wide in (False, True):
        for scores, fused in ((False, False), (True, False), (False, True)):
            here = (fp32 == wide) & (eager == scores) & (flash == fused)
            if not here.any():
                continue
            own = kernels.launches(job, fp32_adapters=wide, eager_attention=scores, fused=fused)
            forward = np.where(here, own.forward, forward)
            backward = np.where(here, own.backward, backward)
    mixing = mixer_kernels(job, waited_length(job, columns))
    ahead, back = _further_kernels(job, columns)
    forward, backward = forward + mixing[0] + ahead, backward + mixing[1] + back
    left = remaining_share(job, columns, gains=gains)
    ahead_host, back_host = host_factors(columns)
    return forward * (1.0 + recomputed) * left * ahead_host, backward * left * back_host


def _further_kernels(job: Job, columns: Columns) -> tuple[FloatArray, FloatArray]:
    """[launches] that a processor has beside those of a GPU; 0 on a GPU."""
    forward, backward = np.zeros(columns.rows), np.zeros(columns.rows)
    own = on_processor(columns)
    if not own.any():
        return forward, backward
    fp32, narrow = columns.equals("adapter_dtype", "fp32"), half(columns)
    for wide in (False, True):
        for cast in (False, True):
            here = own & (fp32 == wide) & (narrow == cast)
            if not here.any():
                continue
            more = further_kernels(job, fp32_adapters=wide, autocast=cast)
            forward = np.where(here, more.forward, forward)
            backward = np.where(here, more.backward, backward)
    return forward, backward


def synchronised(job: Job, columns: Columns) -> FloatArray:
    """[rows] 1 where every layer's forward waits for an answer of the device, else 0.

    Flash attention asks for the lengths of padded rows, LLM.int8 for the columns with outliers, a
    loop over experts for the tokens of each.
    Source: `attention.waits_for_lengths`; LLM.int8's outlier search is taken to wait likewise;
    transformers before 5, `torch.where` on the mask of every expert.
    """
    asks = waits_for_lengths(job, columns)
    inside = job.method.is_lora and job.method.base == "int8"
    return (asks | inside | experts_looped(job)).astype(np.float64)


def fsdp_visits(job: Job, columns: Columns, recomputed: FloatArray) -> FloatArray:
    """[rows] times that a wrapped module is gathered and freed in a micro-step."""
    alone = job.software.wraps_adapters_alone
    left = kernels.kernel_set(job.software, job.model).launches if alone else 0.0
    units = fsdp_units(job.model, job.method, left)
    sharded = columns.shared_by("fsdp")
    again = recomputed * (1.0 if job.software.gathers_to_recompute else 0.0)
    return np.where(sharded, units * (2.0 + again), 0.0)


def hook_visits(job: Job, columns: Columns, recomputed: FloatArray) -> FloatArray:
    """[rows] times that DeepSpeed's third stage looks after a module in a micro-step.

    Every module with weights, and every one that holds such, fetches before its pass and releases
    behind it, forward, recomputed and backward.
    Source: deepspeed runtime/zero/parameter_offload.py, `_register_hooks_recursively`.
    """
    looped = experts_looped(job)
    modules = hooked_modules(job.model, job.method, looped=looped)
    sharded = columns.equals("sharding", "zero3")
    return np.where(sharded, modules * (2.0 + recomputed), 0.0)


def on_processor(columns: Columns) -> BoolArray:
    """[rows] whether a processor is the device."""
    return columns.of_device(lambda device: float(device.is_cpu)) > 0


def half(columns: Columns) -> BoolArray:
    """[rows] whether products are of 16 bits."""
    return columns.equals("precision", "bf16", "fp16", "fp8")


def further_kernels(job: Job, *, fp32_adapters: bool, autocast: bool) -> Passes:
    """Kernels of a micro-step that `kernels.launches` has not: casts, and adapters in full.

    Without autocast adapters have fewer than are counted there.
    """
    every = products(job.model, job.method)
    matrices, adapted = sum(p.active for p in every), sum(p.adapted for p in every)
    counted = adapter_launches(job.method, fp32=fp32_adapters)
    dropout = 1.0 if job.method.dropout > 0 else 0.0
    own = counted if autocast else Passes(*(n + dropout for n in PLAIN_ADAPTER))
    forward = adapted * (own.forward - ADAPTER_WEIGHT * counted.forward)
    backward = adapted * (own.backward - ADAPTER_WEIGHT * counted.backward)
    if autocast and job.method.base == "32bit":
        forward += matrices + CASTS_OF_A_LAYER * job.model.num_layers
        backward += matrices * (1.0 if job.method.is_lora else 2.0)
    return Passes(forward, backward)


def new_sizes_s(job: Job, columns: Columns, unchanging: BoolArray, *, backward: bool) -> FloatArray:
    """[s] code generated for the products of a micro-step; 0 where all batches have one shape."""
    sizes = distinct_products(job, backward=backward)
    new = on_processor(columns) & half(columns) & ~unchanging
    each_s = columns.of_device(lambda d: (d.rates.new_size_s if d.rates else 0.0) or NEW_SIZES_S)
    return np.where(new, each_s * sizes, 0.0)


def distinct_products(job: Job, *, backward: bool) -> float:
    """Products of different sizes in a micro-step: layers repeat them.

    Forward: projections, adapters (by their inputs and by their outputs) and the head. Backward:
    as many for the inputs, and one for each trained matrix.
    """
    model: Model = job.model
    every = products(model, job.method)
    base = {(p.inputs, p.outputs) for p in every} | {(model.hidden_size, model.vocab_size)}
    adapters = {("in", p.inputs) for p in every if p.adapted}
    adapters |= {("out", p.outputs) for p in every if p.adapted}
    ahead = len(base) + len(adapters)
    trained = len(adapters) if job.method.is_lora else len(base)
    return float(2 * ahead + trained if backward else ahead)


def fsdp_units(model: Model, method: Method, left: float = 1.0) -> float:
    """Modules that FSDP wraps one by one: layers, and every adapter matrix.

    left: share of the adapters' visits that is left: none where adapters are sharded with their
    layer; of a fused kernel set that of its launches: with fused adapters, two A100 under FSDP
    take half as long at small batches (fms-acceleration).
    Source: peft `fsdp_auto_wrap_policy` (leaf modules with trainable weights are wrapped alone).
    """
    adapted = sum(p.matrices * p.adapted / p.active for p in products(model, method))
    return model.num_layers + 1.0 + 2.0 * adapted * left


def hooked_modules(model: Model, method: Method, *, looped: bool) -> float:
    """Modules of all layers that DeepSpeed's third stage hooks: holders, linears, norms, adapters.

    A layer and each of its blocks hold modules; an adapted linear its base and two matrices.
    looped: experts run one after another, each of linears, and a micro-batch has tokens for all. A
    block that is declared a leaf is fetched at once, with the same work for every parameter.
    Source: deepspeed 0.18 runtime/zero/partitioned_param_coordinator.py (fetch_sub_module) and
    partition_parameters.py (AllGatherCoalescedHandle.wait).
    """
    layers = sum(
        x.num_layers * (1 + x.blocks + sum(_hooked(one, looped=looped) for one in x.linears))
        + x.num_layers * x.norms_per_layer
        for x in model.layers
    )
    adapted = sum(p.matrices * p.adapted / p.active for p in products(model, method))
    return layers + 3.0 * adapted


def _hooked(linear: Linear, *, looped: bool) -> float:
    """Modules that are the matrices of this shape in one layer."""
    if linear.part != EXPERT:
        return linear.active
    return float(linear.count) if looped else 1.0
