"""Terms of a step that follow from a source: in the direction, and by about as much, as it says.

None of these figures was fitted: each stands at what it is said to come from.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.catalog.devices import find_device
from autotune.cost.columns import Component, tabulate
from autotune.cost.time import collectives, compute
from autotune.cost.time.attention import flash_share, takes_cudnn
from autotune.cost.time.collectives import collective_seconds
from autotune.cost.time.dequantisation import SLOT_CLOCK, dequantised_bytes, instructions_per_s
from autotune.cost.time.step_terms import step_terms
from autotune.domain.candidates import Candidates
from autotune.domain.job import Lengths

LLAMA = "meta-llama/Llama-2-7b-hf"
GIB = np.array([2.0**30])


def terms_of(lab: Any, job: Any, device: str, count: int = 1, **knobs: Any) -> Any:
    held: list[Any] = []

    def hold(own: Any, columns: Any) -> dict[str, Any]:
        held.append(step_terms(own, columns))
        return {}

    pairs = [(lab.offer(device, count), lab.config(1, **knobs))]
    tabulate(Component("terms", compute.READS, hold), job, Candidates.of(pairs))
    return held[0]


def share_of(lab: Any, device: str, attention: str, **software: Any) -> float:
    held: list[float] = []

    def hold(own: Any, columns: Any) -> dict[str, Any]:
        held.append(float(flash_share(own, columns)[0]))
        return {}

    job = lab.job(LLAMA, lab.lora(), 4096)
    job = replace(job, software=replace(job.software, **software))
    pairs = [(lab.offer(device), lab.config(1, attention=attention))]
    tabulate(Component("share", compute.READS, hold), job, Candidates.of(pairs))
    return held[0]


def test_the_second_flash_kernel_makes_half_of_the_thirds_rate_on_an_h100(lab: Any) -> None:
    """pytorch/pytorch issue 142132: 329 and 631 TFLOP/s."""
    second, third = (share_of(lab, "h100", f"flash_attention_{n}") for n in (2, 3))
    assert second / third == pytest.approx(329 / 631, abs=0.05)


@pytest.mark.parametrize("device", ["a100", "l40s", "rtx-4090", "rtx-pro-6000-bw-server"])
def test_where_the_second_flash_kernel_is_the_newest_it_makes_what_was_timed(
    lab: Any, device: str
) -> None:
    assert share_of(lab, device, "flash_attention_2") == 1.0


@pytest.mark.parametrize(
    ("device", "torch", "cudnn"),
    [("h100", (2, 11, 0), True), ("h100", (2, 10, 0), False), ("h100", (2, 5, 0), True),
     ("h100", (2, 5, 1), False), ("b200", (2, 13, 0), True), ("a100", (2, 13, 0), False)],
)  # fmt: skip
def test_sdpa_asks_cudnn_first_on_datacentre_chips_from_torch_2_11(
    lab: Any, device: str, torch: tuple[int, ...], *, cudnn: bool
) -> None:
    """torch's check_prefer_cudnn_attention; 2.5.0 alone of the older ones."""
    software = {"torch": torch}
    sdpa, second = (share_of(lab, device, a, **software) for a in ("sdpa", "flash_attention_2"))
    assert (sdpa > second) == cudnn
    assert sdpa == (1.0 if cudnn else second)


def test_padding_keeps_sdpa_from_cudnns_timed_rate(lab: Any) -> None:
    held: list[bool] = []

    def hold(own: Any, columns: Any) -> dict[str, Any]:
        held.append(bool(takes_cudnn(own, columns)[0]))
        return {}

    even = lab.job(LLAMA, lab.lora(), 4096)
    ragged = replace(even, lengths=Lengths((100.0, 4096.0), 2000.0, 4096, known=True))
    for job in (even, ragged):
        pairs = [(lab.offer("h100"), lab.config(2, attention="sdpa"))]
        tabulate(Component("kernel", compute.READS, hold), job, Candidates.of(pairs))
    assert held == [True, False]


def test_torch_before_2_2_runs_the_first_flash_kernel(lab: Any) -> None:
    """Dao, FlashAttention-2 (2023), section 4.1: 1.3 to 3.0 times as fast as the first."""
    old, new = (share_of(lab, "a100", "sdpa", torch=(2, minor)) for minor in (1, 4))
    assert 1.3 <= new / old <= 3.0
    assert share_of(lab, "a100", "flash_attention_2", torch=(2, 1)) == new
    assert share_of(lab, "a100", "flash_attention_2", flash_attn=(1, 0, 9)) == old


def test_adapters_under_deepspeed_need_no_casts(lab: Any) -> None:
    """Its 16-bit engines cast the whole model, adapters too."""
    job = lab.job(LLAMA, lab.lora(), 512)
    plain, cast = (
        terms_of(lab, job, "a100", 2, sharding=sharding, adapter_dtype="fp32", precision="bf16")
        for sharding in ("ddp", "zero2")
    )
    narrow = terms_of(lab, job, "a100", 2, sharding="ddp", adapter_dtype="bf16", precision="bf16")
    assert cast.launches_forward[0] == narrow.launches_forward[0] < plain.launches_forward[0]
    assert cast.traffic_s[0] == narrow.traffic_s[0] < plain.traffic_s[0]


def test_fp16_with_scaled_gradients_reads_and_writes_them_once_more(lab: Any) -> None:
    """torch.amp.GradScaler.unscale_: 8 bytes a trained fp32 parameter."""
    job = lab.job(LLAMA, lab.full("32bit"), 512)
    offer = lab.offer("v100-sxm2-32gb", 1)
    fp32, fp16 = (
        lab.price(compute.COMPONENT, job, offer, lab.config(1, precision=p))["optimizer_s"]
        for p in ("fp32", "fp16")
    )
    weights, bandwidth = 6.74e9, 900e9
    assert fp16 - fp32 == pytest.approx(8 * weights / bandwidth / 0.77, rel=0.15)


def test_unpacking_nf4_waits_for_instructions_on_an_a100_and_for_memory_on_an_l40s(
    lab: Any,
) -> None:
    """bitsandbytes pull request 1747: a table instead of branches helps the former alone."""
    job = lab.job(LLAMA, lab.lora(base="nf4"), 512)
    assert instructions_per_s(find_device("l40s")) > 2 * instructions_per_s(find_device("a100"))
    old, new = (
        replace(job, software=replace(job.software, bitsandbytes=(0, minor, 0)))
        for minor in (43, 48)
    )
    gained = {
        device: float(terms_of(lab, old, device).unpacked_s[0])
        / float(terms_of(lab, new, device).unpacked_s[0])
        for device in ("a100", "l40s")
    }
    assert all(1.36 <= gain <= 2.07 for gain in gained.values())


def test_gptq_unpacked_by_torch_moves_22_bytes_a_weight_and_pass(lab: Any) -> None:
    """A 72B on one A100, 256 tokens: 2.75 s of a micro-step were measured, 2.74 by hand."""
    job = lab.job("Qwen/Qwen-72B", lab.lora(base="nf4"), 256)
    gptq = replace(job, software=replace(job.software, gptq="torch"))
    found = terms_of(lab, gptq, "a100", activation_checkpointing="full")
    assert float(found.dequantise_s[0]) == pytest.approx(3 * 22 * 71e9 / 2.039e12, rel=0.03)
    assert float(found.unpacked_s[0]) == 0.0
    nf4 = terms_of(lab, job, "a100", activation_checkpointing="full")
    assert float(nf4.dequantise_s[0]) < float(found.dequantise_s[0]) / 8


def test_zero_3_looks_after_every_module_and_takes_7_to_11_ms_a_layer_more(lab: Any) -> None:
    job = lab.job(LLAMA, lab.full(), 512)
    found = terms_of(lab, job, "a100", 2, sharding="zero3", activation_checkpointing="full")
    layers = job.model.num_layers
    assert 30 <= float(found.hook_visits[0]) / layers <= 45
    assert 5e-3 <= float(found.hook_visits[0]) / layers * 0.24e-3 <= 11e-3
    for other in ("fsdp", "ddp", "zero2"):
        assert terms_of(lab, job, "a100", 2, sharding=other).hook_visits[0] == 0


def test_zero3_looks_after_every_expert_that_runs_on_its_own(lab: Any) -> None:
    """128 experts of three matrices a layer, where the release loops over them; else one call."""
    job = lab.job("Qwen/Qwen3-30B-A3B", lab.lora(targets=("q_proj",)), 512)
    visits = {}
    for release in ((4, 51, 3), (5, 0, 0)):
        own = replace(job, software=replace(job.software, transformers=release))
        found = terms_of(lab, own, "a100", 2, sharding="zero3", activation_checkpointing="none")
        visits[release] = float(found.hook_visits[0])
    experts = 2.0 * job.model.num_layers * 3 * (128 - 1)  # forward and backward
    assert visits[4, 51, 3] - visits[5, 0, 0] == pytest.approx(experts)


def test_two_nvl_boards_may_talk_over_their_bridge_and_four_go_through_the_host() -> None:
    """Between 300 GB/s with the bridge and 52 without; which of them nobody says."""
    nvl, pcie = find_device("h100-nvl"), find_device("h100-pcie")
    two, four = (float(collective_seconds(nvl, n, "all_gather", GIB)[0]) for n in (2, 4))
    through_host = float(collective_seconds(pcie, 2, "all_gather", GIB)[0])
    assert 1.5 * two < through_host < 6 * two
    assert four > 3 * two


def test_codes_that_are_evenly_spaced_are_unpacked_as_fast_as_memory_is(lab: Any) -> None:
    job = lab.job(LLAMA, lab.lora(base="int8"), 512)
    found = terms_of(lab, job, "a100")
    assert float(found.unpacked_s[0]) == 0.0 < float(found.dequantise_s[0])


def test_recomputing_outside_of_fsdps_units_gathers_a_third_time(lab: Any) -> None:
    """huggingface/transformers issue 30404: a redundant all-gather in the backward."""
    job = lab.job(LLAMA, lab.full(), 512, global_batch_size=16)
    older = replace(job.software, recomputes_outside_fsdp=True, transformers=(4, 48, 0))
    outside = replace(job, software=older)

    def micro_s(own: Any, recompute: str) -> float:
        config = lab.config(1, sharding="fsdp", activation_checkpointing=recompute)
        offer = lab.offer("l40s", 8)
        found: float = lab.price(collectives.COMPONENT, own, offer, config)["per_micro_s"]
        return found

    assert micro_s(outside, "full") > 1.3 * micro_s(job, "full")
    assert micro_s(outside, "none") == micro_s(job, "none")


@pytest.mark.parametrize(
    "own", [{"reentrant": False}, {"transformers": (4, 53, 0)}, {"recomputes_outside_fsdp": False}]
)
def test_fsdp_gathers_twice_unless_a_reentrant_checkpoint_lies_around_its_unit(
    lab: Any, own: dict[str, Any]
) -> None:
    """torch's `_pre_forward` does nothing where the backward has begun; transformers 4.52."""
    software = lab.job(LLAMA, lab.full(), 512).software
    older = replace(software, recomputes_outside_fsdp=True, transformers=(4, 48, 0))
    assert older.gathers_to_recompute
    assert not replace(older, **own).gathers_to_recompute


def test_exchange_never_takes_less_than_what_computing_cannot_hide(lab: Any) -> None:
    job = lab.job(LLAMA, lab.full(), 512, global_batch_size=16)
    config = lab.config(1, sharding="fsdp")
    slow, fast = (
        lab.price(collectives.COMPONENT, job, lab.offer(name, 8), config)["per_micro_s"]
        for name in ("l40s", "a100")
    )
    assert slow > 10 * fast > 0


def test_a_family_that_fuses_its_norms_with_flash_attention_moves_and_issues_less(
    lab: Any,
) -> None:
    job = lab.job("Qwen/Qwen-7B", lab.lora(), 2048)
    flash, sdpa = (terms_of(lab, job, "a100", attention=a) for a in ("flash_attention_2", "sdpa"))
    assert float(flash.traffic_s[0]) < 0.8 * float(sdpa.traffic_s[0])
    assert float(flash.launches_forward[0]) < 0.8 * float(sdpa.launches_forward[0])


def test_a_loop_over_experts_waits_for_the_device_until_transformers_5(lab: Any) -> None:
    job = lab.job("mistralai/Mixtral-8x7B-v0.1", lab.lora(targets=lab.attention), 512)
    loop, grouped = (
        replace(job, software=replace(job.software, transformers=version))
        for version in ((4, 45), (5, 0))
    )
    assert terms_of(lab, loop, "a100").synchronised[0] == 1
    assert terms_of(lab, grouped, "a100").synchronised[0] == 0


def test_boards_at_half_rate_reach_their_peak_as_geforce_boards_do() -> None:
    assert find_device("l40").matmul_ceiling_fraction > find_device("l40s").matmul_ceiling_fraction
    assert find_device("rtx-a6000").matmul_ceiling_fraction < 0.85


def test_boards_that_a_slot_feeds_keep_no_boost_clock() -> None:
    """Nine runs of Unsloth on a T4 took 1.3 times as long as its rated clock says."""
    t4, l4 = find_device("t4"), find_device("l4")
    assert instructions_per_s(t4) == pytest.approx(SLOT_CLOCK * t4.fp32_flop_per_s)
    assert instructions_per_s(l4) == pytest.approx(SLOT_CLOCK * l4.fp32_flop_per_s / 2.0)
    a10, a6000 = find_device("a10"), find_device("rtx-a6000")
    assert a10.matmul_ceiling_fraction < 0.7 < a6000.matmul_ceiling_fraction


def test_a_card_for_desktops_is_not_also_in_the_server_of_its_architecture(lab: Any) -> None:
    job = lab.job(LLAMA, lab.lora(), 512)
    ada, blackwell, server = (
        float(terms_of(lab, job, name).launches_forward[0])
        for name in ("rtx-4090", "rtx-5090", "b200")
    )
    assert 0.9 < blackwell / ada < 1.0
    assert server > blackwell


def test_an_emulated_dtype_runs_at_its_measured_rate_whatever_the_shape(lab: Any) -> None:
    """bf16 on a T4: its best product, 2.3 of 8.1 TFLOP/s, was taken for a peak to fall short of."""
    one, two = (
        lab.price(compute.COMPONENT, lab.job(LLAMA, lab.lora(), tokens), lab.offer("t4"),
                  lab.config(1, precision="bf16", attention="sdpa"))
        for tokens in (128, 256)
    )  # fmt: skip
    assert 2.0 <= float(two["compute_s"]) / float(one["compute_s"]) < 2.1
    assert float(one["roofline_s"]) < float(one["compute_s"]) < 1.35 * float(one["roofline_s"])


def test_fp32_without_tf32_runs_at_one_rate_whatever_the_shape(lab: Any) -> None:
    """A T4 multiplies fp32 where a P100 does; at 8.1 TFLOP/s nothing waits for a last wave."""
    one, two, few = (
        float(lab.price(compute.COMPONENT, lab.job(LLAMA, lab.lora(), tokens), lab.offer("t4"),
                        lab.config(1, precision=precision, attention="sdpa"))["compute_s"])
        for tokens, precision in ((128, "fp32"), (256, "fp32"), (256, "fp16"))
    )  # fmt: skip
    assert 2.0 <= two / one < 2.1
    assert two > few


def test_int8_layers_were_undone_one_value_at_a_time_until_they_were_row_major(lab: Any) -> None:
    """h2oai/h2ogpt pull request 86: a micro-batch of a 30B takes 2.27 s in 8 bit, 0.6 in 16."""
    job = lab.job(LLAMA, replace(lab.lora(), base="int8"), 512)
    old, new = (
        dequantised_bytes(replace(job, software=replace(job.software, bitsandbytes=version)))
        for version in ((0, 44, 1), (0, 45, 0))
    )
    assert old == pytest.approx(25 * new)
