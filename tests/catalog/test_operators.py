from __future__ import annotations

import numpy as np
import pytest

from autotune.catalog.devices import load_devices
from autotune.catalog.operators import attention_times, collective_times, gemm_times
from autotune.catalog.tables import DATA

MEASURED = sorted(path.name for path in (DATA / "operators").iterdir())


def test_nine_devices_of_the_catalogue_are_measured() -> None:
    assert len(MEASURED) == 9
    assert set(MEASURED) <= set(load_devices())


@pytest.mark.parametrize("name", MEASURED)
def test_no_product_and_no_attention_beats_the_data_sheet(name: str) -> None:
    gemm, attention = gemm_times(name), attention_times(name)
    peak = load_devices()[name].bf16_flop_per_s
    assert 0.5 * peak < gemm.flop_per_s.max() <= 1.02 * peak
    assert 0.3 * peak < attention.flop_per_s.max() <= peak


@pytest.mark.parametrize("name", MEASURED)
def test_rates_of_collectives_stay_under_the_link(name: str) -> None:
    times, device = collective_times(name), load_devices()[name]
    message, seconds = times.select("all_reduce", 2)
    assert (np.diff(message) > 0).all()
    # Ring all-reduce over 2 devices moves each byte once per direction.
    assert (message / seconds).max() < 1.05 * device.link_bytes_per_s


def test_known_cells_of_the_source() -> None:
    gemm = gemm_times("a100-sxm4-80gb")
    row = (gemm.m == 64) & (gemm.n == 512) & (gemm.k == 512)
    assert gemm.seconds[row] == pytest.approx([6.44e-6])
    nccl = collective_times("a100-sxm4-80gb")
    message, seconds = nccl.select("all_gather", 2)
    assert message[0] == 2 * 65536 or message[0] < 2 * 65536
    assert seconds[message == 131072] == pytest.approx([12.37e-6])


@pytest.mark.parametrize("name", ["t4", "cpu", "", "../models.json", "nonsense"])
def test_a_device_that_nobody_measured_has_no_times(name: str) -> None:
    assert gemm_times(name) is None
    assert attention_times(name) is None
    assert collective_times(name) is None


def test_times_are_read_once_and_kept() -> None:
    for name in MEASURED:
        gemm_times.cache_clear()
        first = gemm_times(name)
        assert first is not None
        assert gemm_times(name) is first
