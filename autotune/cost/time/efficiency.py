"""How much of its peak a device reaches in matrix products and attention, by their shape.

Measured operator times where the device has them, read off a grid in log m, n, k. A device without
borrows the curve of the nearest relative, scaled to its own best matrix product: what a curve says
about small products (waves, launch, memory) then comes from the relative.

A processor's is the same for every shape: its units are filled by sixteen values. So is that of a
GPU without tensor cores (Pascal), whose products are too slow to wait for memory or a last wave.

Efficiencies stay in (0, 1): a step never beats the device's dense peak. GeForce boards run above
the clock that the peak is stated for; where a product was measured above it, that is the limit.
A dtype that the device has no units for is emulated at one rate for every shape, which is what its
products were measured at: they are too slow to wait for memory or for a last wave. So are those in
fp32 of a GPU whose tensor cores know no tf32 (Volta, Turing): they run where Pascal's do.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from autotune.catalog.operators import attention_times, gemm_times
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from autotune.catalog.operators import AttentionTimes, GemmTimes
    from autotune.cost.columns import Columns, FloatArray
    from autotune.domain.device import Device

HIGHEST = 0.98
LARGE = 3000  # products with every size above are on the plateau
# Share of the fp32 rate of a dtype that the device has no units for. Best bf16 products: T4 2.3 of
# 8.1, V100 10.3 of 15.7, 2080 Ti 7.3 of 13.4 TFLOP/s (zzc0721/torch-performance-test-data).
EMULATED = 0.28
SMALL_SIDE_POWER = 0.5  # below the grid, time falls with the square root of n or k: derived
# Places of flat curves, behind those of all devices: of emulated dtypes, and of fp32 on vector
# lanes, from the first device's backwards.
EMULATED_CURVE, ON_LANES = -1, -2
HEAD_DIMS = (64, 128, 256)
UNMEASURED_HEAD_DIM = 0.85  # of the efficiency at dim 128: assumption
FLAT_ATTENTION = 0.5  # of a processor's matrix-product ceiling: assumption

# Relatives, by architecture: same tensor-core generation, else the oldest measured one.
_RELATIVES = {
    "hopper": "h100-sxm", "ada": "l40s", "blackwell": "b200", "ampere": "a100-sxm4-80gb",
    "cdna3": "h100-sxm", "cdna4": "b200",
}  # fmt: skip
_OLDEST = "a100-sxm4-80gb"
_TENSOR_CORES_FROM = 7.0  # compute capability; 0 where it is not NVIDIA's
# The die of its relative with no more power: it does no better there. An RTX 6000 Ada is the AD102
# of an L40S at 300 W instead of 350.
_SAME_CHIP = frozenset({"rtx-6000-ada"})
_CONSUMER_BLACKWELL = ("rtx-pro-6000-bw-server", 12.0)


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """Efficiency of one device on the common grid.

    gemm: [m, n, k] share of the dense peak; attention: [head_dim, seq, batch x heads] likewise.
    """

    gemm: FloatArray
    attention: FloatArray


SIDE = np.array(
    [512, 768, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192, 10240, 12288,
     16384, 51200, 65536], np.float64,
)  # fmt: skip
ROWS = 2.0 ** np.arange(6, 16)
SEQUENCE = 2.0 ** np.arange(7, 15)
HEADS = 2.0 ** np.arange(3, 12)
_LOG_SIDE, _LOG_ROWS = np.log(SIDE), np.log(ROWS)
_LOG_SEQUENCE, _LOG_HEADS = np.log(SEQUENCE), np.log(HEADS)


def _rising(times: FloatArray) -> FloatArray:
    """Times made non-decreasing along every axis: a larger product never takes less time."""
    for axis in range(times.ndim):
        times = np.maximum.accumulate(times, axis=axis)
    return times


def _gemm_grid(times: GemmTimes, peak: float) -> FloatArray:
    """[m, n, k] efficiency; the few missing corners take the efficiency of the next smaller n."""
    where = (
        np.searchsorted(ROWS, times.m),
        np.searchsorted(SIDE, times.n),
        np.searchsorted(SIDE, times.k),
    )
    flop = 2.0 * ROWS[:, None, None] * SIDE[None, :, None] * SIDE[None, None, :]
    seconds = np.full(flop.shape, np.nan)
    seconds[where] = times.seconds
    missing = np.isnan(seconds)
    smaller = np.roll(seconds / flop, 1, axis=1) * flop
    seconds = np.where(missing, smaller, seconds)
    return flop / (_rising(seconds) * peak)


def _rates_by_heads(
    times: AttentionTimes, peak: float
) -> dict[tuple[float, float], dict[float, list[float]]]:
    """Measured rates over the peak, by head dimension and length, then by batch x heads."""
    found: dict[tuple[float, float], dict[float, list[float]]] = {}
    heads = times.batch_size * times.num_heads
    columns = (times.head_dim, times.seq_len, heads, times.flop_per_s / peak)
    for dim, seq, size, rate in zip(*(column.tolist() for column in columns), strict=True):
        found.setdefault((dim, seq), {}).setdefault(size, []).append(rate)
    return found


def _attention_grid(times: AttentionTimes, peak: float) -> FloatArray:
    """[head_dim, seq, batch x heads] efficiency, medians over ways to reach batch x heads."""
    rates = _rates_by_heads(times, peak)
    grid = np.empty((len(HEAD_DIMS), len(SEQUENCE), len(HEADS)))
    reference = HEAD_DIMS.index(128)
    for d, dim in enumerate(HEAD_DIMS):
        for s, seq in enumerate(SEQUENCE):
            own = rates.get((dim, seq))
            if own is None:
                grid[d, s] = np.nan
                continue
            sizes = sorted(own)
            grid[d, s] = np.interp(_LOG_HEADS, np.log(sizes), [median(own[n]) for n in sizes])
    absent = np.isnan(grid)
    grid = np.where(absent, UNMEASURED_HEAD_DIM * grid[reference][None], grid)
    flop = SEQUENCE[None, :, None] ** 2 * HEADS[None, None, :]
    for d in range(len(HEAD_DIMS)):
        grid[d] = flop[0] / _rising(flop[0] / grid[d])
    return grid


@lru_cache(maxsize=64)
def _measured(name: str, peak: float) -> Curves | None:
    gemm, attention = gemm_times(name), attention_times(name)
    if gemm is None or attention is None or peak <= 0:
        return None
    return Curves(
        np.minimum(_gemm_grid(gemm, peak), HIGHEST),
        np.minimum(_attention_grid(attention, peak), HIGHEST),
    )


def _relative(device: Device) -> str:
    name, capability = _CONSUMER_BLACKWELL
    if device.architecture == "blackwell" and device.compute_capability >= capability:
        return name
    return _RELATIVES.get(device.architecture, _OLDEST)


@lru_cache(maxsize=8)
def _relative_curves(name: str) -> tuple[Curves, float]:
    """Curves of a measured device and its plateau in large products."""
    from autotune.catalog.devices import find_device

    peak = find_device(name).bf16_flop_per_s
    curves = _measured(name, peak)
    if curves is None:
        msg = f"operator times of {name} are missing from the catalogue"
        raise LookupError(msg)
    large_side, large_rows = SIDE >= LARGE, ROWS >= LARGE
    large = curves.gemm[large_rows][:, large_side][:, :, large_side]
    plateau = median(large.ravel().tolist())  # numpy's own loads its masked arrays for it
    return curves, plateau


def _flat(share: float) -> Curves:
    """The same share of the peak for every shape."""
    gemm = np.full((len(ROWS), len(SIDE), len(SIDE)), share)
    attention = np.full((len(HEAD_DIMS), len(SEQUENCE), len(HEADS)), share * FLAT_ATTENTION)
    return Curves(gemm, attention)


def _ceiling(device: Device) -> float:
    most = HIGHEST * max(device.matmul_ceiling_fraction, 1.0)
    return min(device.matmul_ceiling_fraction, most)


@lru_cache(maxsize=512)
def curves_of(device: Device) -> Curves:
    """The device's own measured curves, or its relative's scaled to the device's ceiling."""
    ceiling = _ceiling(device)
    if device.is_cpu or 0 < device.compute_capability < _TENSOR_CORES_FROM:
        return _flat(ceiling)
    own = _measured(device.name, device.bf16_flop_per_s)
    if own is not None:
        return own
    relative, plateau = _relative_curves(_relative(device))
    if device.name in _SAME_CHIP:
        ceiling = min(ceiling, plateau)
    scale = ceiling / plateau
    return Curves(
        np.minimum(relative.gemm * scale, ceiling),
        np.minimum(relative.attention * scale, ceiling),
    )


def distinct_devices(columns: Columns) -> tuple[list[Device], NDArray[np.intp]]:
    """The different devices in the order of their levels, and which one each row has."""
    own = columns.coded_devices()
    if len(own.levels) == 1:
        return list(own.levels), np.zeros(columns.rows, np.intp)
    place: dict[int, int] = {}
    numbers = [place.setdefault(id(device), len(place)) for device in own.levels]
    of_row = np.asarray(numbers)[own.codes]
    present = np.bincount(of_row, minlength=len(place)) > 0
    devices = dict(zip(numbers, own.levels, strict=True))
    return [devices[n] for n in np.flatnonzero(present).tolist()], (np.cumsum(present) - 1)[of_row]


def peak_of(columns: Columns) -> FloatArray:
    """[rows] dense peak; where the dtype is emulated, the share of fp32 that emulation reaches."""
    native = columns.peak_flop_per_s()
    if (native > 0).all():
        return native
    return np.where(native > 0, native, EMULATED * columns.device("fp32_flop_per_s"))


def fp32_on_lanes(device: Device) -> bool:
    """Whether a GPU with tensor cores multiplies fp32 on its vector lanes."""
    return device.compute_capability >= _TENSOR_CORES_FROM and device.tf32_flop_per_s <= 0


def curve_places(columns: Columns, index: np.ndarray) -> np.ndarray:
    """[rows] place of a row's curves in an `Efficiency`; index: its device's."""
    lanes = np.asarray([fp32_on_lanes(device) for device in columns.coded_devices().levels])
    lanes = lanes[columns.coded_devices().codes] & columns.equals("precision", "fp32")
    native = np.where(lanes, ON_LANES - index, index)
    return np.where(columns.peak_flop_per_s() > 0, native, EMULATED_CURVE)


@dataclass(frozen=True, slots=True, eq=False)
class Efficiency:
    """Efficiencies of several devices, looked up for many rows at once.

    Legend: `device` in the look-ups is an index into the devices given to `of`, or the place of
    emulated dtypes or of fp32 on vector lanes (`curve_places`). Shapes: [rows].
    """

    gemm_log: FloatArray
    attention_log: FloatArray
    shaped: FloatArray  # [device] 1 where small shapes are less efficient, 0 on a processor

    @classmethod
    def of(cls, devices: Sequence[Device]) -> Efficiency:
        """Stack the curves of the devices: an answer asks for those of its own a hundred times."""
        return _stacked(tuple(devices))

    def gemm(self, device: np.ndarray, m: FloatArray, n: FloatArray, k: FloatArray) -> FloatArray:
        """[rows] share of the peak that C[m, n] = A[m, k] B[k, n] reaches.

        Below the grid a product takes the time of the smallest measured number of rows, and the
        square root of the ratio in the other sides.
        """
        axes = (
            (m, _LOG_ROWS, 1.0),
            (n, _LOG_SIDE, SMALL_SIDE_POWER),
            (k, _LOG_SIDE, SMALL_SIDE_POWER),
        )
        return _look_up(self.gemm_log, device, axes, self.shaped[device])

    def attention(
        self, device: np.ndarray, seq: FloatArray, heads: FloatArray, head_dim: int
    ) -> FloatArray:
        """[rows] share of the peak of a causal flash forward over `heads` = batch x heads."""
        dim = int(np.argmin(np.abs(np.log(head_dim) - np.log(HEAD_DIMS))))
        axes = ((seq, _LOG_SEQUENCE, 1.0), (heads, _LOG_HEADS, 1.0))
        shaped = self.shaped[device]
        small = np.where(shaped > 0, min(head_dim / HEAD_DIMS[0], 1.0), 1.0)
        found: FloatArray = small * _look_up(self.attention_log[:, dim], device, axes, shaped)
        return found


@lru_cache(maxsize=16)
def _stacked(devices: tuple[Device, ...]) -> Efficiency:
    shaped = [0.0 if device.is_cpu else 1.0 for device in devices]
    lanes = [_flat(_ceiling(device)) for device in reversed(devices)]
    curves = [*(curves_of(device) for device in devices), *lanes, _flat(HIGHEST)]
    return Efficiency(
        np.log(np.stack([c.gemm for c in curves])),
        np.log(np.stack([c.attention for c in curves])),
        np.asarray([*shaped, *(0.0 for _ in lanes), 0.0]),
    )


def _look_up(
    table: FloatArray,
    device: np.ndarray,
    axes: tuple[tuple[FloatArray, FloatArray, float], ...],
    shaped: FloatArray,
) -> FloatArray:
    """[rows] exp of the multilinear interpolation of `table` [device, axis...] in log sizes.

    shaped: [rows] share of what being smaller than the table costs.
    """
    first = np.asarray(device)  # place in the flat table of the lowest corner around each row
    outside = np.zeros(len(device))
    weights = []
    for sizes, axis, power in axes:
        log_size = np.log(np.maximum(np.asarray(sizes, np.float64), 1e-9))
        outside = outside + power * np.minimum(log_size - axis[0], 0.0)
        place = np.interp(log_size, axis, np.arange(len(axis), dtype=np.float64))
        floor = np.minimum(place.astype(np.intp), len(axis) - 2)
        first = first * len(axis) + floor
        weights.append((1.0 - (place - floor), place - floor))
    flat = table.ravel()
    corners: list[tuple[np.ndarray, FloatArray | float]] = [
        (first, 1.0)
    ]  # of the axes so far, with their weights
    for a, (below, above) in enumerate(weights):
        stride = math.prod(table.shape[a + 2 :])
        corners = [
            *((index, weight * below) for index, weight in corners),
            *((index + stride, weight * above) for index, weight in corners),
        ]
    total = np.zeros(len(device))
    for index, weight in corners:
        total += weight * flat[index]
    result: FloatArray = np.exp(total + outside * shaped)
    return result
