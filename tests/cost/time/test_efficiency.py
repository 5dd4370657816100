from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.catalog.devices import find_device, load_devices
from autotune.catalog.operators import gemm_times
from autotune.cost.time.efficiency import Efficiency, curves_of

DEVICES = list(load_devices().values())
EFFICIENCY = Efficiency.of(DEVICES)
# Boards whose real clock is above the one that their peak is stated for: measured.
MOST = np.array([max(1.0, device.matmul_ceiling_fraction) for device in DEVICES])
SIZES = st.floats(1.0, 1e6)


def one(name: str, m: float, n: float, k: float) -> float:
    efficiency = Efficiency.of([find_device(name)])
    place = np.zeros(1, np.intp)
    return float(efficiency.gemm(place, np.array([m]), np.array([n]), np.array([k]))[0])


@given(SIZES, SIZES, SIZES)
def test_matrix_products_never_beat_the_peak_on_any_device(m: float, n: float, k: float) -> None:
    place = np.arange(len(DEVICES))
    same = np.ones(len(DEVICES))
    share = EFFICIENCY.gemm(place, m * same, n * same, k * same)
    assert (share > 0).all()
    assert (share < MOST).all()


@given(SIZES, st.floats(1.0, 1e5), st.integers(16, 512))
def test_attention_never_beats_the_peak_on_any_device(seq: float, heads: float, dim: int) -> None:
    place = np.arange(len(DEVICES))
    same = np.ones(len(DEVICES))
    share = EFFICIENCY.attention(place, seq * same, heads * same, dim)
    assert (share > 0).all()
    assert (share < MOST).all()


@given(SIZES, SIZES, SIZES, st.floats(1.0, 8.0), st.sampled_from([0, 1, 2]))
def test_a_larger_product_never_takes_less_time(
    m: float, n: float, k: float, factor: float, axis: int
) -> None:
    small = [m, n, k]
    large = [size * (factor if a == axis else 1.0) for a, size in enumerate(small)]
    place = np.arange(len(DEVICES))
    same = np.ones(len(DEVICES))
    seconds = [
        np.prod(sizes) / EFFICIENCY.gemm(place, *(size * same for size in sizes))
        for sizes in (small, large)
    ]
    assert (seconds[1] >= seconds[0] * (1 - 1e-9)).all()


def test_measured_products_come_back_where_time_grows_with_size() -> None:
    times = gemm_times("a100-sxm4-80gb")
    measured = times.flop_per_s / find_device("a100-sxm4-80gb").bf16_flop_per_s
    efficiency = Efficiency.of([find_device("a100-sxm4-80gb")])
    place = np.zeros(len(measured), np.intp)
    found = efficiency.gemm(
        place, times.m.astype(float), times.n.astype(float), times.k.astype(float)
    )
    # Times made non-decreasing lower some efficiencies and raise none.
    assert (found <= measured * (1 + 1e-9)).all()
    assert np.median(found / measured) > 0.98


def test_few_rows_leave_most_of_the_device_idle() -> None:
    shares = [one("h100-sxm", m, 4096, 4096) for m in (16, 64, 512, 4096)]
    assert shares == sorted(shares)
    assert shares[0] < 0.06
    assert shares[-1] > 0.7


@pytest.mark.parametrize("name", ["rtx-4090", "t4", "a100-pcie-40gb", "v100-sxm2-16gb"])
def test_a_device_nobody_timed_reaches_its_own_ceiling(name: str) -> None:
    device = find_device(name)
    assert gemm_times(name) is None
    best = curves_of(device).gemm.max()
    assert best == pytest.approx(min(device.matmul_ceiling_fraction, 0.98), rel=1e-6)


def test_a_board_that_runs_above_its_stated_clock_reaches_what_was_measured_of_it() -> None:
    """76.5 TFLOP/s on an RTX 3090, whose peak is 71.2 (zzc0721/torch-performance-test-data)."""
    device = find_device("rtx-3090")
    assert curves_of(device).gemm.max() * device.bf16_flop_per_s == pytest.approx(76.5e12, rel=0.03)


def test_a_card_does_no_better_than_a_measured_one_of_the_same_chip_and_more_power() -> None:
    """An RTX 6000 Ada and an L40S are the same AD102."""
    own, measured = find_device("rtx-6000-ada"), find_device("l40s")
    assert own.tdp_w < measured.tdp_w
    assert np.median(curves_of(own).gemm) <= np.median(curves_of(measured).gemm) * 1.001
