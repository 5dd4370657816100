"""Measured operator times per device: matrix products, attention, collectives.

Files: `data/operators/<device>/{gemm,attention,nccl}.csv`, latencies in whole nanoseconds, medians
over serving stacks. Forward kernels on boost clocks and warm caches: an upper bound of what a
training step reaches. Loaded when asked for, and kept.

Source: operator database of ai-dynamo/aiconfigurator, commit 095f58a51 (2026-08-21), Apache-2.0.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.catalog.tables import DATA, CatalogDataError
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from pathlib import Path

IntArray = np.ndarray[Any, np.dtype[np.int64]]
FloatArray = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True, eq=False)
class GemmTimes:
    """C[m, n] = A[m, k] B[k, n] in bf16, fp32 accumulation; 2 m n k FLOP. All of shape [rows]."""

    m: IntArray
    n: IntArray
    k: IntArray
    seconds: FloatArray

    @property
    def flop_per_s(self) -> FloatArray:
        """[FLOP/s] reached by each product."""
        rate: FloatArray = 2.0 * self.m * self.n * self.k / self.seconds
        return rate


@dataclass(frozen=True, slots=True, eq=False)
class AttentionTimes:
    """Causal flash attention in bf16, forward only. All of shape [rows]."""

    batch_size: IntArray
    seq_len: IntArray
    num_heads: IntArray
    num_kv_heads: IntArray
    head_dim: IntArray
    seconds: FloatArray

    @property
    def flop_per_s(self) -> FloatArray:
        """[FLOP/s] reached by each call, counting the causal half: 2 b s^2 heads head_dim."""
        work = 2.0 * self.batch_size * self.seq_len**2 * self.num_heads * self.head_dim
        rate: FloatArray = work / self.seconds
        return rate


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveTimes:
    """One collective inside one node. `op` is all_gather, all_reduce or reduce_scatter.

    `message_bytes` is the size of the whole buffer; the source counts its 2-byte elements.
    """

    op: tuple[str, ...]
    num_gpus: IntArray
    message_bytes: IntArray
    seconds: FloatArray

    def select(self, op: str, num_gpus: int) -> tuple[IntArray, FloatArray]:
        """Message bytes (ascending) and seconds of one collective over that many devices."""
        chosen = (self.num_gpus == num_gpus) & (np.asarray(self.op) == op)
        order = np.argsort(self.message_bytes[chosen])
        return self.message_bytes[chosen][order], self.seconds[chosen][order]


def _seconds(latency_ns: IntArray) -> FloatArray:
    return latency_ns.astype(np.float64) * 1e-9


def _path(device_name: str, table: str) -> Path | None:
    path = DATA / "operators" / device_name / f"{table}.csv"
    return path if device_name and path.is_file() else None


def _integers(path: Path, columns: int) -> IntArray:
    """[rows, columns] of a file whose cells below the header are all whole numbers."""
    body = path.read_text(encoding="ascii").partition("\n")[2]
    cells = body.replace("\n", ",").rstrip(",")
    flat = np.fromstring(cells, np.int64, sep=",")
    if flat.size != cells.count(",") + 1 or flat.size % columns or (flat <= 0).any():
        msg = f"{path} must hold rows of {columns} positive whole numbers"
        raise CatalogDataError(msg)
    return flat.reshape(-1, columns)


@lru_cache
def gemm_times(device_name: str) -> GemmTimes | None:
    """Times of matrix products on a device of the catalogue; None where nobody measured it."""
    path = _path(device_name, "gemm")
    if path is None:
        return None
    table = _integers(path, 4)
    return GemmTimes(table[:, 0], table[:, 1], table[:, 2], _seconds(table[:, 3]))


@lru_cache
def attention_times(device_name: str) -> AttentionTimes | None:
    """Times of causal attention on a device of the catalogue; None where nobody measured it."""
    path = _path(device_name, "attention")
    if path is None:
        return None
    table = _integers(path, 6)
    b, s, heads, kv_heads, dim, latency = table.T
    return AttentionTimes(b, s, heads, kv_heads, dim, _seconds(latency))


@lru_cache
def collective_times(device_name: str) -> CollectiveTimes | None:
    """Times of collectives inside one node of a device; None where nobody measured it."""
    path = _path(device_name, "nccl")
    if path is None:
        return None
    lines = path.read_text(encoding="ascii").splitlines()[1:]
    cells = [line.split(",") for line in lines]
    table = np.array([row[1:] for row in cells], np.int64)
    ops = tuple(row[0] for row in cells)
    return CollectiveTimes(ops, table[:, 0], table[:, 1], _seconds(table[:, 2]))
