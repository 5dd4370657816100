"""What a device offers, and what sits beside the tensors: context, libraries, allocator.

Does not cover: other processes on the device (the app subtracts measured use of a local device).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.domain.units import MIB

if TYPE_CHECKING:
    from autotune.cost.columns import Columns, FloatArray
    from autotune.cost.constants import Slack
    from autotune.domain.device import Device
    from autotune.domain.job import Job

# Buffers of NCCL's communicators, outside torch's allocator, on each of several GPUs. Peers that
# write to each other's memory have theirs there: fms-acceleration's runs on two and four A100 read
# 1.3 GB that nothing else explains. Without peer access they lie in the host's memory: one GPU
# against two or four without NVLink reads 7 and 15 MB more (Soup, experts4bit-qlora). Source for
# where: NCCL 2.20 src/transport/p2p.cc and shm.cc.
NCCL_PEER_BYTES, NCCL_HOST_BYTES = 1.3e9, 0.015e9
# Resident memory of a process that has imported torch 2.13, transformers 5.23, peft and accelerate
# and run a step: 0.47 to 0.6 GB on Linux.
CPU_CONTEXT_BYTES = 0.6e9


def _context(device: Device) -> float:
    """[bytes] of the CUDA context and loaded kernels.

    It grows with the number of SMs and the kernels that a generation loads. Measured: an H100 with
    torch 2.11 and CUDA 13.0, 619 MiB once CUDA began and 767 after training, twice to the byte
    (runs/recorded/h100-sxm). Assumptions: Blackwell by its SMs, others.
    """
    if device.is_cpu:
        return CPU_CONTEXT_BYTES
    return {"hopper": 767.0, "blackwell": 860.0}.get(device.architecture, 500.0) * MIB


def _nccl(device: Device) -> float:
    return NCCL_PEER_BYTES if device.has_nvlink else NCCL_HOST_BYTES


def blas_bytes(device: Device) -> float:
    """[bytes] of cuBLAS workspaces: one for the forward's thread, one for autograd's.

    Source: torch.cuda documentation of CUBLAS_WORKSPACE_CONFIG: ":4096:2:16:8" (8.125 MiB) by
    default, ":4096:8" (32 MiB) on Hopper.
    """
    if device.is_cpu:
        return 0.0
    return 2.0 * (32.0 if device.compute_capability >= 9.0 else 8.125) * MIB


def context(columns: Columns) -> FloatArray:
    """[bytes] outside torch's allocator."""
    several = columns.several & (columns.device("compute_capability") > 0)
    return columns.of_device(_context) + np.where(several, columns.of_device(_nccl), 0.0)


def blas_workspace(columns: Columns) -> FloatArray:
    """[bytes] of library workspaces inside torch's allocator."""
    return columns.of_device(blas_bytes)


def capacity(columns: Columns) -> FloatArray:
    """[bytes] that processes can use: the total that torch sees, below the driver's."""
    return columns.device("memory_torch_bytes")


def usable(job: Job, columns: Columns) -> FloatArray:
    """[bytes] of the capacity without the headroom, which is a share of the driver's total."""
    headroom = job.limits.vram_headroom * columns.device("memory_driver_bytes")
    return capacity(columns) - headroom


def fragmentation(columns: Columns, moving: FloatArray, slack: Slack) -> FloatArray:
    """[bytes] that a run needs beside what is in use: pieces of segments that no request fits."""
    return np.where(columns.several, slack.several, slack.one_device) * moving


def caches(columns: Columns) -> FloatArray:
    """[rows] 1 where torch's allocator keeps what was freed: everywhere but on a processor."""
    return columns.of_device(lambda device: float(not device.is_cpu))
