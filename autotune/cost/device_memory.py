"""What a device offers, and what sits beside the tensors: context, libraries, allocator.

Does not cover: other processes on the device (the app subtracts measured use of a local device).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.cost.columns import Columns, FloatArray
    from autotune.domain.device import Device
    from autotune.domain.job import Job

MIB = 2.0**20
# Share of allocated bytes that the caching allocator cannot give back: median of 306 single steps
# in a simulation of torch's allocator (21 % at p90).
SLACK = 0.07
# Share that it reserves when there is room. Source: fms-acceleration benchmark tables, 601 runs on
# A100-80GB that state both torch's peak and the driver's reading (context of 0.5 GiB taken off):
# medians by method, sharding and padding.
CACHED_FULL, CACHED_LORA, CACHED_SHARDED_FULL, CACHED_RAGGED = 0.10, 0.16, 0.42, 0.45
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


def _each(columns: Columns, number: Callable[[Device], float]) -> FloatArray:
    """[rows] a number of each row's device, computed once for each device."""
    devices = columns.devices()
    known = {id(device): number(device) for device in {id(d): d for d in devices}.values()}
    return np.asarray([known[id(device)] for device in devices], np.float64)


def context(columns: Columns) -> FloatArray:
    """[bytes] outside torch's allocator."""
    return _each(columns, _context)


def blas_workspace(columns: Columns) -> FloatArray:
    """[bytes] of library workspaces inside torch's allocator."""
    return _each(columns, _blas)


def capacity(columns: Columns) -> FloatArray:
    """[bytes] that processes can use: the total that torch sees, below the driver's."""
    return _each(columns, lambda device: device.memory_torch_bytes)


def compute_capability(columns: Columns) -> FloatArray:
    """[rows] 0 where the notion does not exist."""
    return _each(columns, lambda device: device.compute_capability)


def driver_total(columns: Columns) -> FloatArray:
    """[bytes] total as the driver reports it."""
    return _each(columns, lambda device: device.memory_driver_bytes)


def needed(allocated: FloatArray, context_bytes: FloatArray) -> FloatArray:
    """[bytes] without which a run fails: in use, the slack of the allocator, the context."""
    return allocated * (1.0 + SLACK) + context_bytes


def fragmentation(
    job: Job, columns: Columns, allocated: FloatArray, room: FloatArray, whole: FloatArray
) -> FloatArray:
    """[bytes] that the caching allocator holds beside what is in use.

    room: bytes it should stay within; whole: bytes it can get at all. It caches freely while there
    is room, and frees cached blocks when there is none, but not the slack; never above the whole.
    Source: torch documentation of the CUDA caching allocator; the shares above.
    """
    cached = np.full(columns.rows, CACHED_LORA if job.method.is_lora else CACHED_FULL)
    if not job.method.is_lora:
        sharded = (columns.number("offer.count") > 1) & columns.equals("sharding", "fsdp", "zero3")
        cached = np.where(sharded, CACHED_SHARDED_FULL, cached)
    lengths = job.lengths.quantiles
    if job.padding == "longest" and lengths[0] < lengths[-1]:
        ragged = ~columns.equals("packing", "on")
        cached = np.where(ragged, np.maximum(cached, CACHED_RAGGED), cached)
    free = np.maximum(room - allocated, 0.0)
    held = np.maximum(SLACK * allocated, np.minimum(cached * allocated, free))
    return np.minimum(held, np.maximum(whole - allocated, 0.0))
