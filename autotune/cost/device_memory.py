"""What a device offers, and what sits beside the tensors: context, libraries, allocator.

Does not cover: other processes on the device (the app subtracts measured use of a local device).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from autotune.cost.columns import Columns, FloatArray
    from autotune.domain.device import Device
    from autotune.domain.job import Job

MIB = 2.0**20
# Share of allocated bytes that the caching allocator cannot give back: median of 306 single steps
# in a simulation of torch's allocator (21 % at p90).
SLACK = 0.07
# What the allocator holds beside the allocated peak when there is room, as a share of what comes
# and goes in a step (the peak without weights, adapters and states).
# Source: fms-acceleration benchmark tables, A100-80GB, runs that state both torch's peak and the
# driver's reading, context taken off; medians: 0.28 for 11 fully trained on one GPU, 0.29 for 50
# LoRA and nf4 on one, 0.31 for 71 sharded ones with adapters, 0.85 for 17 sharded and fully
# trained. Ragged batches, whose blocks fit no other batch: ms-swift v2 benchmark, torch's reserved
# peak, median of 29 runs over six models (1.4 to 3.5 by model).
CACHED, CACHED_SHARDED_FULL, CACHED_RAGGED = 0.29, 0.85, 2.0
# Communicators and their buffers, outside torch's allocator, on each of several GPUs.
# Source: the same runs: what the driver reads beyond the above on two and four GPUs.
NCCL_BYTES = 1.3e9
# Resident memory of a process that has imported torch 2.13, transformers 5.23, peft and accelerate
# and run a step: 0.47 to 0.6 GB on Linux.
CPU_CONTEXT_BYTES = 0.6e9


def _context(device: Device) -> float:
    """[bytes] of the CUDA context and loaded kernels.

    It grows with the number of SMs and the kernels that a generation loads.
    """
    if device.is_cpu:
        return CPU_CONTEXT_BYTES
    return {"hopper": 600.0, "blackwell": 700.0}.get(device.architecture, 500.0) * MIB


def _blas(device: Device) -> float:
    """[bytes] of cuBLAS workspaces: one for the forward's thread, one for autograd's.

    Source: torch.cuda documentation of CUBLAS_WORKSPACE_CONFIG: ":4096:2:16:8" (8.125 MiB) by
    default, ":4096:8" (32 MiB) on Hopper.
    """
    if device.is_cpu:
        return 0.0
    return 2.0 * (32.0 if device.compute_capability >= 9.0 else 8.125) * MIB


def context(columns: Columns) -> FloatArray:
    """[bytes] outside torch's allocator."""
    several = (columns.number("offer.count") > 1) & (columns.device("compute_capability") > 0)
    return columns.of_device(_context) + np.where(several, NCCL_BYTES, 0.0)


def blas_workspace(columns: Columns) -> FloatArray:
    """[bytes] of library workspaces inside torch's allocator."""
    return columns.of_device(_blas)


def capacity(columns: Columns) -> FloatArray:
    """[bytes] that processes can use: the total that torch sees, below the driver's."""
    return columns.device("memory_torch_bytes")


def compute_capability(columns: Columns) -> FloatArray:
    """[rows] 0 where the notion does not exist."""
    return columns.device("compute_capability")


def driver_total(columns: Columns) -> FloatArray:
    """[bytes] total as the driver reports it."""
    return columns.device("memory_driver_bytes")


def fragmentation(allocated: FloatArray) -> FloatArray:
    """[bytes] that a run needs beside what is in use: split blocks that no request fits."""
    return SLACK * allocated


def cached(
    job: Job, columns: Columns, allocated: FloatArray, moving: FloatArray, room: FloatArray
) -> FloatArray:
    """[bytes] that the caching allocator is expected to hold beside the allocated peak.

    moving: the part of the peak that comes and goes in a step. room: bytes left beside the peak;
    what is cached is given back before a run fails, so it decides nothing.
    """
    if job.software.empties_cache:
        return np.minimum(fragmentation(allocated), room)
    sharded = (columns.number("offer.count") > 1) & columns.equals("sharding", "fsdp", "zero3")
    share = np.where(sharded & (not job.method.is_lora), CACHED_SHARDED_FULL, CACHED)
    lengths = job.lengths.quantiles
    if job.padding == "longest" and lengths[0] < lengths[-1]:
        share = np.where(columns.equals("packing", "on"), share, CACHED_RAGGED)
    return np.minimum(share * moving, np.maximum(room, 0.0))
