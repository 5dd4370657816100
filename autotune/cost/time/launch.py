"""Kernels that the processor issues in a micro-step, and how fast it does so.

Small micro-batches of small models are bound by this, not by the device.

Covers: eager Python, fused kernel sets, torch.compile with and without CUDA graphs, FSDP's units.
Does not cover: other work on the host's cores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.time import kernels, processor
from autotune.cost.time.attention import waits_for_lengths
from autotune.cost.time.efficiency import distinct_devices

if TYPE_CHECKING:
    from autotune.cost.columns import BoolArray, Columns, FloatArray
    from autotune.domain.job import Job

# Speed of the host against the servers around A100 that the constants were fitted on. Assumptions.
BASE_YEAR, YEARLY_GAIN = 2020, 0.03
DESKTOP = 0.5  # desktop processors are about twice as fast in one thread


def one_length(job: Job) -> bool:
    """Whether every batch is padded to the same length: full padding, or equal rows."""
    return job.padding == "max_length" or job.lengths.maximum == job.lengths.quantiles[0]


def unchanging_lengths(job: Job, columns: Columns) -> BoolArray:
    """[rows] whether every batch has the same shape: one length, or packing."""
    return one_length(job) | columns.equals("packing", "on")


def host_factor(columns: Columns) -> FloatArray:
    """[rows] seconds to issue a kernel against the fitted ones; younger boards have younger hosts.

    Source: assumption, by the board's release year and kind.
    """
    devices, index = distinct_devices(columns)
    year = np.asarray([d.release_year or BASE_YEAR for d in devices], np.float64)
    factor = (1.0 - YEARLY_GAIN) ** np.clip(year - BASE_YEAR, -2.0, 5.0)
    desktop = np.asarray([d.name.startswith("rtx") for d in devices])
    own = np.asarray([device.is_cpu for device in devices])
    of_device = np.where(own, processor.ISSUE, factor * np.where(desktop, DESKTOP, 1.0))
    return of_device[index]


def remaining_share(job: Job, columns: Columns, *, compiled: bool = True) -> FloatArray:
    """[rows] share of the eager launches that fused kernels or torch.compile leave."""
    if not compiled:
        return np.full(columns.rows, kernels.kernel_set(job.software, job.model).launches)
    left = columns.choose("compile", kernels.COMPILED_LAUNCHES)
    graphs = ~columns.equals("compile", "off")
    changing = graphs & ~unchanging_lengths(job, columns)
    left = np.where(changing, np.maximum(left, kernels.DYNAMIC_GRAPH_LAUNCHES), left)
    if job.method.is_lora and job.method.base in ("int8", "nf4"):
        left = np.where(graphs, 1.0 - kernels.BROKEN_GRAPH * (1.0 - left), left)
    return np.minimum(kernels.kernel_set(job.software, job.model).launches, left)


def issued_kernels(
    job: Job, columns: Columns, recomputed: FloatArray, *, compiled: bool = True
) -> tuple[FloatArray, FloatArray]:
    """[launches] of the forward passes and of the backward, in units of the fitted host."""
    fp32 = columns.equals("adapter_dtype", "fp32")
    eager = columns.equals("attention", "eager")
    forward, backward = np.zeros(columns.rows), np.zeros(columns.rows)
    for wide in (False, True):
        for scores in (False, True):
            own = kernels.launches(job, fp32_adapters=wide, eager_attention=scores)
            here = (fp32 == wide) & (eager == scores)
            forward = np.where(here, own.forward, forward)
            backward = np.where(here, own.backward, backward)
    ahead, back = _further_kernels(job, columns)
    forward, backward = forward + ahead, backward + back
    factor = remaining_share(job, columns, compiled=compiled) * host_factor(columns)
    return forward * (1.0 + recomputed) * factor, backward * factor


def _further_kernels(job: Job, columns: Columns) -> tuple[FloatArray, FloatArray]:
    """[launches] that a processor has beside those of a GPU; 0 on a GPU."""
    forward, backward = np.zeros(columns.rows), np.zeros(columns.rows)
    own = processor.on_processor(columns)
    if not own.any():
        return forward, backward
    fp32, half = columns.equals("adapter_dtype", "fp32"), processor.half(columns)
    for wide in (False, True):
        for cast in (False, True):
            more = processor.further_kernels(job, fp32_adapters=wide, autocast=cast)
            here = own & (fp32 == wide) & (half == cast)
            forward = np.where(here, more.forward, forward)
            backward = np.where(here, more.backward, backward)
    return forward, backward


def synchronised(job: Job, columns: Columns) -> FloatArray:
    """[rows] 1 where every layer's forward waits for an answer of the device, else 0.

    Flash attention asks for the lengths of padded rows, LLM.int8 for the columns with outliers.
    Source: `attention.waits_for_lengths`; LLM.int8's outlier search is taken to wait likewise.
    """
    asks = waits_for_lengths(job, columns)
    return (asks | (job.method.is_lora and job.method.base == "int8")).astype(np.float64)


def fsdp_visits(job: Job, columns: Columns, recomputed: FloatArray) -> FloatArray:
    """[rows] times that a wrapped module is gathered and freed in a micro-step."""
    alone = job.software.wraps_adapters_alone
    left = kernels.kernel_set(job.software, job.model).launches if alone else 0.0
    units = kernels.fsdp_units(job.model, job.method, left)
    sharded = columns.equals("sharding", "fsdp") & (columns.number("offer.count") > 1)
    return np.where(sharded, units * (2.0 + recomputed), 0.0)
