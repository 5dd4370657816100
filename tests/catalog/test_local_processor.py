"""A processor has the formats that its instructions multiply, and no others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import jobs_of_line
from autotune.catalog import local
from autotune.domain.config import Config
from autotune.domain.typed.overrides import Overrides
from autotune.space.rules import violations

if TYPE_CHECKING:
    from collections.abc import Iterator

OLD = "fma avx avx2 f16c"
FLAGS = {
    OLD: (),
    f"{OLD} avx512f avx512bw avx512_vnni": (),
    f"{OLD} avx512f avx512_bf16": ("bf16",),
    f"{OLD} avx512f avx512_bf16 avx512_fp16 amx_tile amx_bf16": ("bf16", "fp16"),
}


@pytest.fixture
def _fresh() -> Iterator[None]:
    yield
    local.cpu_device.cache_clear()


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("flags", FLAGS)
def test_16_bit_rates_follow_the_flags_and_what_is_emulated_is_refused(
    flags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"model name\t: A processor @ 2.50GHz\nsiblings\t: 4\ncpu cores\t: 2\nflags\t: {flags}\n"
    monkeypatch.setattr(local, "_cpuinfo", lambda: text)
    local.cpu_device.cache_clear()
    device = local.cpu_device()
    native = FLAGS[flags]
    for name in ("bf16", "fp16"):
        assert (device.peak_flop_per_s(name) > 0) is (name in native)
        if name in native:
            assert device.peak_flop_per_s(name) > device.fp32_flop_per_s
    stated = {"model": "Qwen/Qwen2.5-0.5B", "method.kind": "full", "data.rows": 100}
    job = jobs_of_line(Overrides(gpus=("cpu",), stated={**stated, "data.max_length": 128}))[0].job
    offer = replace(job.offers[0], device=device)
    config = Config(
        micro_batch_size=job.global_batch_size, gradient_accumulation_steps=1,
        checkpoint_every_steps=10, precision="bf16", pin_memory=False,
    )  # fmt: skip
    refused = [why for why in violations(job, offer, config) if "natively" in why]
    assert bool(refused) is ("bf16" not in native)
