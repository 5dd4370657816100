"""Liger's kernels and a chunked loss: memory by their source, time by the public pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.cost.fused_kernels import GAINED, running
from autotune.cost.memory import component as memory
from autotune.cost.memory import logits as head_memory
from autotune.cost.model import CostModel
from autotune.cost.time import compute
from autotune.domain.candidates import Candidates

LLAMA = "meta-llama/Llama-3.1-8B"


def parts(lab: Any, job: Any, **knobs: Any) -> dict[str, float]:
    found: dict[str, float] = lab.price(
        memory.COMPONENT, job, lab.offer("h100-sxm"), lab.config(1, **knobs)
    )
    return found


def micro_step(lab: Any, job: Any, device: str = "h100-sxm", **knobs: Any) -> dict[str, float]:
    offer = lab.offer(device, knobs.pop("count", 1))
    found: dict[str, float] = lab.price(
        compute.COMPONENT, job, offer, lab.config(knobs.pop("micro", 4), **knobs)
    )
    return found


def test_liger_holds_the_gradient_of_the_hidden_states_and_one_chunk_of_logits(lab: Any) -> None:
    """inc_factor = ceil(V / h), chunk = next power of two of T / inc_factor, 16-bit logits."""
    hidden, vocabulary, tokens = 4096, 128_256, 32_768
    two, many, autocast = np.asarray([2.0]), np.asarray([float(tokens)]), np.asarray([True])
    for method, head in ((lab.lora(), 0.0), (lab.full(), 2.0 * vocabulary * hidden)):
        job = running(lab.job(LLAMA, method, tokens), "liger")
        held = head_memory.backward_bytes(job, many, two, two, autocast)
        assert held[0] == 2.0 * tokens * hidden + head
        made = head_memory.forward_bytes(job, many, two, autocast)
        assert made[0] - held[0] == 2.0 * 1024 * vocabulary
        assert head_memory.gradient_bytes(job, many, two)[0] == 0.0


@pytest.mark.parametrize("kernels", ["liger", "chunked_loss"])
def test_an_8b_lora_at_32k_tokens_fits_one_h100_with_either(lab: Any, kernels: str) -> None:
    job, offer = lab.job(LLAMA, lab.lora(), 32_768, global_batch_size=16), lab.offer("h100-sxm")
    configs = [
        lab.config(1, 16, activation_checkpointing="full", kernels=value)
        for value in ("none", kernels)
    ]
    bill = CostModel(job).price(Candidates.of([(offer, config) for config in configs]))
    assert list(bill.feasible) == [False, True]
    assert bill.memory_bytes[1] == pytest.approx(36.0 * 2**30, rel=0.04)


def test_liger_keeps_no_output_of_the_activation_and_no_fp32_copy_at_a_norm(lab: Any) -> None:
    """Against a chunked loss, which leaves the layers alone."""
    job = lab.job(LLAMA, lab.lora(), 2048)
    whole = {"activation_checkpointing": "none"}
    liger, chunked = (
        parts(lab, job, kernels=value, **whole)["activations"]
        for value in ("liger", "chunked_loss")
    )
    gates = 32 * 2.0 * 14_336 * 2048  # what silu keeps of each layer's gate
    norms = 64 * 2.0 * 4096 * 2048
    assert chunked - liger == pytest.approx(gates + norms, rel=0.03)


def test_liger_against_none_agrees_with_a_published_peak_of_a_7b_in_full_under_zero3(
    lab: Any,
) -> None:
    """ms-swift, examples/train/liger/sft.sh: 54 GB without, 42 GB with it, a whole number each."""
    job = lab.job("Qwen/Qwen2.5-7B", lab.full(), 8192, global_batch_size=8)
    configs = [
        lab.config(1, 2, sharding="zero3", activation_checkpointing="full", kernels=value)
        for value in ("none", "liger")
    ]
    offer = lab.offer("a100-sxm4-80gb", 4)
    bill = CostModel(job).price(Candidates.of([(offer, config) for config in configs]))
    without, with_it = (bill.at("memory", "allocated", i) / 1e9 for i in (0, 1))
    assert without == pytest.approx(54.0, rel=0.08)
    assert with_it == pytest.approx(42.0, rel=0.08)


def test_the_expected_gain_is_that_of_the_published_pair_of_an_8b_lora_on_an_h100(lab: Any) -> None:
    """Soup, gate-h100-validation: 0.4257 s -> 0.4049 s a step, 5 repeats."""
    job = lab.job(LLAMA, lab.lora(), 1024, global_batch_size=4)
    without, with_it = (
        micro_step(lab, job, kernels=value)["micro_step_s"] for value in ("none", "liger")
    )
    assert with_it / without == pytest.approx(0.4049 / 0.4257, abs=0.025)


def test_the_pessimistic_end_of_liger_is_that_it_gains_nothing(lab: Any) -> None:
    job = lab.job(LLAMA, lab.lora(), 1024, global_batch_size=4)
    none, liger = (micro_step(lab, job, kernels=value) for value in ("none", "liger"))
    assert none["unmeasured_gain"] == 1.0
    assert liger["unmeasured_gain"] > 1.0
    assert liger["micro_step_s"] * liger["unmeasured_gain"] == pytest.approx(none["micro_step_s"])
    assert 0.0 < GAINED < 1.0
    assert liger["log_sd"] > none["log_sd"]


def test_a_chunked_loss_multiplies_the_head_once_more_and_is_never_faster(lab: Any) -> None:
    job = lab.job(LLAMA, lab.lora(), 4096)
    none, chunked = (
        micro_step(lab, job, activation_checkpointing="full", kernels=value)
        for value in ("none", "chunked_loss")
    )
    again = 4 * 4096 * 2.0 * 4096 * 128_256 / 989.4e12
    assert chunked["roofline_s"] - none["roofline_s"] == pytest.approx(again, rel=0.01)
    assert chunked["micro_step_s"] > none["micro_step_s"]
    assert chunked["unmeasured_gain"] == 1.0


def test_without_the_knob_a_bill_is_the_one_of_the_bare_components(lab: Any) -> None:
    """Prices of `none` beside other values are those of `none` alone, to the last bit."""
    job, offer = lab.job(LLAMA, lab.lora(), 2048), lab.offer("a100-sxm4-80gb")
    plain = [lab.config(micro) for micro in (1, 2, 4)]
    mixed = [c.with_knobs(kernels=v) for c in plain for v in ("none", "liger", "chunked_loss")]
    alone, beside = (
        CostModel(job).price(Candidates.of([(offer, config) for config in configs]))
        for configs in (plain, mixed)
    )
    assert list(alone.duration_s) == list(beside.duration_s[::3])
    assert list(alone.memory_bytes) == list(beside.memory_bytes[::3])


def test_a_software_that_states_liger_is_priced_with_the_memory_of_the_knob(lab: Any) -> None:
    job = lab.job(LLAMA, lab.lora(), 2048)
    stated = replace(job, software=job.software.running("liger"))
    assert parts(lab, stated)["total"] == parts(lab, job, kernels="liger")["total"]
    assert job.software.running("none") is job.software


def test_trl_keeps_its_own_loss_under_liger(lab: Any) -> None:
    job = lab.job(LLAMA, lab.lora(), 2048)
    trl = replace(job.software, loss="chunked")
    assert (trl.running("liger").kernels, trl.running("liger").loss) == ("liger", "chunked")
