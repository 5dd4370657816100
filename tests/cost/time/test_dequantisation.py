"""4-bit linears that are given fp32: what they move, and where they are not.

Llama-2 7B has 6.476e9 weights in projections; bitsandbytes answers in the dtype of its input.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.catalog.devices import find_device
from autotune.cost.constants import constants
from autotune.cost.time import dequantisation, kernels
from tests.cost.time.test_time_physics import LLAMA, terms_of

WEIGHTS = 6.476e9
PREPARED: dict[str, Any] = {"kbit_upcast": "all", "bitsandbytes": (0, 43, 0)}


def job_of(lab: Any, model: str = LLAMA, **software: Any) -> Any:
    job = lab.job(model, lab.lora(base="nf4"), 512)
    return replace(job, software=replace(job.software, **software))


def moved(lab: Any, job: Any, device: str = "a100", count: int = 1, **knobs: Any) -> float:
    """[bytes] of everything but products, as if at the data sheet's bandwidth."""
    found = terms_of(lab, job, device, count, activation_checkpointing="full", **knobs)
    bandwidth = find_device(device).memory_bandwidth_bytes_per_s
    return float(found.traffic_s[0]) * bandwidth


def test_since_0_41_every_forward_writes_its_unpacked_weights_in_fp32_and_reads_them(
    lab: Any,
) -> None:
    """Twice with checkpoints: 2 + 4 bytes written from 16 bit, 4 + 2 read back into it."""
    old, new = (
        moved(lab, job_of(lab, **{**PREPARED, "bitsandbytes": version}))
        for version in ((0, 40, 2), (0, 41, 0))
    )
    assert new - old == pytest.approx(2 * 12 * WEIGHTS, rel=0.01)


def test_since_0_47_they_compute_as_they_are_asked_and_their_inputs_alone_are_cast(
    lab: Any,
) -> None:
    """`Linear4bit` of 0.46.1 takes the dtype of its first input, that of 0.47.0 the one it has."""
    old, new = (job_of(lab, **{**PREPARED, "bitsandbytes": v}) for v in ((0, 46, 1), (0, 47, 0)))
    assert moved(lab, old) - moved(lab, new) == pytest.approx(2 * 12 * WEIGHTS, rel=0.01)
    assert dequantisation.wide_linears(new)
    issued = [
        sum(kernels.launches(job, fp32_adapters=True, eager_attention=False)) for job in (old, new)
    ]
    assert issued[1] < issued[0]


def test_without_autocast_a_compute_dtype_that_nobody_states_multiplies_at_the_rate_of_fp32(
    lab: Any,
) -> None:
    """312 TFLOP/s of 16 bit on an A100, 19.5 of fp32; what is not 4 bits is as it was."""
    plain, wide = (job_of(lab, fp32_products=on) for on in (False, True))
    seconds = {
        precise: float(terms_of(lab, job, "a100", 1).gemm_s[0])
        for precise, job in (("bf16", plain), ("fp32", wide))
    }
    assert seconds["fp32"] / seconds["bf16"] == pytest.approx(312.0 / 19.5, rel=0.01)
    base = lab.job(LLAMA, lab.lora(), 512)
    same = replace(base, software=replace(base.software, fp32_products=True))
    found = [float(terms_of(lab, job, "a100", 1).gemm_s[0]) for job in (base, same)]
    assert found[0] == found[1]


def test_that_release_costs_no_more_speed_than_was_reported(lab: Any) -> None:
    """bitsandbytes issue 667: a Llama-2 7B lost 35 to 40 % from 0.40.2 to 0.41.0; 10 % here."""
    old, new = (
        float(
            terms_of(lab, job_of(lab, **{**PREPARED, "bitsandbytes": version}), "a100").seconds(
                constants()
            )["micro_step_s"][0]
        )
        for version in ((0, 40, 2), (0, 41, 0))
    )
    assert 0.05 < 1.0 - old / new < 0.4


@pytest.mark.parametrize(
    "software",
    [
        {"kbit_upcast": "none"},
        {"kernels": "unsloth"},
        {"fused_adapters": True},
        {"gptq": "torch"},
    ],
)
def test_linears_that_are_given_16_bit_write_no_fp32(lab: Any, software: dict[str, Any]) -> None:
    assert dequantisation.wide_linears(job_of(lab, **PREPARED))
    assert not dequantisation.wide_linears(job_of(lab, **{**PREPARED, **software}))


def test_a_layernorm_that_autocast_widens_gives_its_linears_fp32_unasked(lab: Any) -> None:
    plain = {"kbit_upcast": "none", "bitsandbytes": (0, 43, 0)}
    assert dequantisation.wide_linears(job_of(lab, "bigcode/starcoder2-7b", **plain))
    assert not dequantisation.wide_linears(job_of(lab, LLAMA, **plain))


def test_fsdp_hands_a_module_16_bit_so_nothing_is_written_wide(lab: Any) -> None:
    job = job_of(lab, **PREPARED)
    narrow = job_of(lab, **{**PREPARED, "kbit_upcast": "none"})
    shared = [moved(lab, own, count=2, sharding="fsdp") for own in (job, narrow)]
    copied = [moved(lab, own, count=2) for own in (job, narrow)]
    assert shared[0] == pytest.approx(shared[1], rel=0.15)
    assert copied[0] - copied[1] > 2 * 12 * WEIGHTS


@pytest.mark.parametrize(
    ("version", "kernels", "double_quant", "least", "most"),
    [
        (
            (0, 43, 3),
            "eager",
            False,
            34.0,
            55.0,
        ),  # 20.5 + 14.0 us; with quantised scales 31.6 + 24.4
        ((0, 45, 5), "eager", True, 34.0, 55.0),
        ((0, 49, 2), "eager", False, 65.0, 72.0),  # 37.2 + 31.4 us
        ((0, 49, 2), "eager", True, 108.0, 118.0),  # 61.5 + 51.7 us
        ((0, 49, 2), "unsloth", True, 34.0, 55.0),
    ],
)
def test_operators_of_torch_make_the_processor_unpack_slower(
    lab: Any,
    version: tuple[int, ...],
    kernels: str,
    *,
    double_quant: bool,
    least: float,
    most: float,
) -> None:
    """What `MatMul4Bit` of each release took of a processor where a kernel takes 14 and 10 us."""
    job = job_of(lab, bitsandbytes=version, kernels=kernels)
    job = replace(job, method=replace(job.method, double_quant=double_quant))
    forward, backward = dequantisation.unpacking_kernels(job)
    assert least < forward * 14.0 + backward * 10.0 < most


def test_experts_that_are_one_parameter_are_unpacked_only_where_a_switch_quantises_them(
    lab: Any,
) -> None:
    """OLMoE 1B-7B: 6.44e9 weights in experts; their 16-bit copies wait for the backward."""
    olmoe, experts, once = "allenai/OLMoE-1B-7B-0924", 6.4425e9, np.ones(1)
    moved = 2.0 + dequantisation.PACKED_BYTES["nf4"]

    def unpacked(again: float = 1.0, **software: Any) -> float:
        job = job_of(lab, olmoe, **software)
        return float(dequantisation.micro_step_bytes(job, again * once)[0])

    plain, linear = unpacked(), unpacked(transformers=(4, 51, 3))
    assert linear - plain == pytest.approx(3 * moved * experts, rel=0.01)
    for again in (0.0, 1.0):
        few = unpacked(again, quantised_experts=True) - unpacked(again)
        assert few == pytest.approx((1 + again) * moved * experts, rel=0.001)
    left: dict[str, Any] = {"bitsandbytes": (0, 49, 1), "reentrant": False}
    assert unpacked(quantised_experts=True, **left) == unpacked(**left)
