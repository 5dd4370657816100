"""What DeepSpeed's ZeRO keeps, against its own source: 2 + 12/N bytes and the fp32 gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from builders import memory_row, priced_job

from autotune.catalog.devices import find_device
from autotune.catalog.models.models import find_model
from autotune.catalog.software import find_software
from autotune.cost.columns import Columns
from autotune.cost.memory.component import COMPONENT
from autotune.cost.memory.component import READS as MEMORY_READS
from autotune.cost.memory.peak import instants
from autotune.cost.memory.states import sizes, static_bytes
from autotune.cost.memory.step import Step
from autotune.cost.parameters import parameter_count, resolve_targets
from autotune.cost.time.optimizer import optimizer_terms
from autotune.domain.job import Job, Limits, Method
from autotune.domain.software import ZeroSettings

if TYPE_CHECKING:
    from autotune.domain.model import Model

EIGHT = find_model("meta-llama/Meta-Llama-3-8B")
THIRTY_TWO = find_model("Qwen/Qwen2.5-32B")
GIB = 2.0**30
KNOBS = memory_row(
    offer__device=find_device("h100-sxm-80gb"), offer__count=2, sharding="zero2",
    micro_batch_size=1, activation_checkpointing="full",
)  # fmt: skip


def job_of(model: Model = EIGHT, method: Method | None = None, length: int = 512) -> Job:
    return priced_job(
        model, method or Method("full"), length, rows=1000, steps=100, global_batch_size=64,
        limits=Limits(0.08, 1800.0), software=find_software(None),
    )  # fmt: skip


def columns(**knobs: Any) -> Columns:
    stated = {name.replace("__", "."): value for name, value in knobs.items()}
    return Columns({name: [value] for name, value in {**KNOBS, **stated}.items()}, 1)


def peak(job: Job, **knobs: Any) -> float:
    assert set(KNOBS) == set(MEMORY_READS)
    return float(COMPONENT.price(job, columns(**knobs))["allocated"][0])


def static(job: Job, **knobs: Any) -> Any:
    return static_bytes(job, columns(**knobs), sizes(job.model))


def test_zero2_keeps_the_weights_whole_and_twelve_bytes_of_states_in_shares() -> None:
    found, parameters = static(job_of()), parameter_count(EIGHT)
    assert found.weights[0] == 2.0 * parameters
    assert found.optimizer[0] == 12.0 * parameters / 2
    assert found.gradients[0] == 2.0 * parameters / 2


def test_zero3_shares_all_of_it_and_its_gradient_partition_never_goes() -> None:
    found, parameters = static(job_of(), sharding="zero3", offer__count=4), parameter_count(EIGHT)
    assert found.weights[0] == 2.0 * parameters / 4
    assert found.optimizer[0] == 12.0 * parameters / 4
    assert found.zero.standing[0]
    assert found.zero.always[0] == 2.0 * 5e8


def test_an_8b_model_under_zero2_is_too_much_for_two_h100() -> None:
    # 2 N weights, 6 N states, and at the step 4 N of fp32 gradients, their source and its copy
    assert peak(job_of()) >= 12.0 * parameter_count(EIGHT)
    assert peak(job_of()) / GIB > 86
    assert peak(job_of(), offer__count=4) / GIB < 75


def test_a_32b_model_on_eight_h200_needs_the_masters_room() -> None:
    knobs = {"offer__device": find_device("h200"), "offer__count": 8}
    job, parameters = job_of(THIRTY_TWO), parameter_count(THIRTY_TWO)
    assert peak(job, **knobs) >= (2.0 + 20.0 / 8) * parameters
    shared = peak(job, sharding="zero3", **knobs)
    assert 14.0 * parameters / 8 < shared < 0.6 * peak(job, **knobs)


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_fp32_weights_under_bf16_arithmetic_are_the_same_run(sharding: str) -> None:
    wide = job_of(method=Method("full", "32bit"))
    assert peak(wide, sharding=sharding) == pytest.approx(peak(job_of(), sharding=sharding))
    alone = static(wide, sharding=sharding, precision="fp32")
    assert alone.optimizer[0] == static(wide, sharding=sharding).optimizer[0]
    assert alone.gradients[0] == 2 * static(wide, sharding=sharding).gradients[0]


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_adapters_are_16_bit_with_fp32_masters_whatever_dtype_was_asked_for(sharding: str) -> None:
    targets = resolve_targets(EIGHT, "all-linear")
    job = job_of(method=Method("lora", "16bit", 64, 128.0, 0.0, targets))
    wide = static(job, sharding=sharding)
    narrow = static(job, sharding=sharding, adapter_dtype="bf16")
    assert wide.element[0] == 2.0
    assert wide.optimizer[0] == narrow.optimizer[0] == 12.0 * wide.trainable[0] / 2
    assert peak(job, sharding=sharding) > peak(job, sharding="ddp", adapter_dtype="bf16") or (
        sharding == "zero3"
    )


def test_eight_bit_moments_leave_the_masters_in_32_bit() -> None:
    parameters = parameter_count(EIGHT)
    small = static(job_of(), optimizer="adamw_bnb_8bit").optimizer[0]
    assert small == pytest.approx((4.0 + 2.03125) * parameters / 2)
    assert static(job_of(), optimizer="paged_adamw_8bit").optimizer[0] == 4.0 * parameters / 2


def test_accumulated_gradients_lie_beside_those_of_the_backward_under_zero2() -> None:
    job = job_of()
    once = replace(job, global_batch_size=2)
    several, one = (instants(Step.of(each, columns())) for each in (job, once))
    share = 2.0 * parameter_count(EIGHT) / 2
    for name in ("first layer", "last layer", "end of backward"):
        assert one[name].gradients[0] == share
        assert several[name].gradients[0] == 2 * share
    assert several["optimizer"].gradients[0] == share


def test_the_step_moves_masters_moments_and_the_copies_between_them() -> None:
    # read for the norm 2, laid flat 4, widened 6, clipped 8, AdamW 28, written back 6
    device = KNOBS["offer.device"]
    terms = optimizer_terms(job_of(), columns())
    moved = terms.traffic_s[0] * device.memory_bandwidth_bytes_per_s
    assert moved == pytest.approx(54.0 * parameter_count(EIGHT) / 2)


def test_the_bound_of_fsdp_and_ddp_does_not_move() -> None:
    parameters = parameter_count(EIGHT)
    for sharding, shares in (("ddp", 1), ("fsdp", 2)):
        found = static(job_of(), sharding=sharding)
        assert found.optimizer[0] == 4.0 * parameters / shares
        assert not np.any(found.zero.step + found.zero.always + found.zero.backward)


def test_a_config_that_keeps_masters_and_moments_in_16_bit_is_priced_so() -> None:
    parameters = parameter_count(EIGHT)
    narrow = replace(job_of(), zero=ZeroSettings(master_bytes=2.0, moment_bytes=2.0))
    found = static(narrow)
    assert found.optimizer[0] == 6.0 * parameters / 2
    assert found.zero.step[0] == 2.0 * parameters / 2  # no fp32 copy of the gradients
    assert peak(narrow) < peak(job_of()) - 3.0 * parameters
    wide = static(narrow, precision="fp16")  # a setting of the bf16 engine alone
    assert wide.optimizer[0] == 12.0 * parameters / 2


def test_the_buckets_are_those_of_the_users_config() -> None:
    """Two of a size under overlap_comm at stage 2; at stage 3 one."""
    own = ZeroSettings(bucket_elements=1e8, overlapping=True)
    two, three = replace(job_of(), zero=own), replace(job_of(), zero=own)
    assert static(two).zero.backward[0] == 2.0 * (2 * 1e8 + 1e8)
    assert static(three, sharding="zero3").zero.always[0] == 2.0 * 1e8
    assert static(job_of()).zero.backward[0] == 2.0 * (5e8 + 5e8)


def test_stage_one_shares_states_and_keeps_gradients_whole() -> None:
    """2 bytes a weight and 2 of its gradient on each device, and 12/N; the step comes on top."""
    one, parameters = replace(job_of(), zero=ZeroSettings(whole_gradients=True)), 8.03e9
    found = static(one, offer__count=8)
    assert found.gradients[0] == 2.0 * parameter_count(EIGHT)
    assert found.optimizer[0] == 12.0 * parameter_count(EIGHT) / 8
    more = peak(one, offer__count=8) - peak(job_of(), offer__count=8)
    assert 1.5 * 7 / 8 * parameters < more < 2.0 * parameters
    assert peak(one, sharding="zero3") == peak(job_of(), sharding="zero3")


def test_deepspeed_s_fp16_engine_has_no_autocast_that_widens_a_loss_of_16_bit_logits() -> None:
    job = job_of(find_model("openai-community/gpt2"), length=1024)
    job = replace(job, software=replace(job.software, loss="native", autocast=True))
    count = job.model.vocab_size * 1024.0
    for sharding, each in (("zero2", 8.0), ("ddp", 16.0)):
        found = instants(Step.of(job, columns(sharding=sharding, precision="fp16")))
        assert float(found["head backward"].logits[0]) == each * count


def test_4_bit_weights_by_zero3_agree_with_what_peft_documents(lab: Any) -> None:
    """Llama-2 70B, rank 8, packed rows of 2,048: docs/source/accelerate/deepspeed.md, 09802c1."""
    job = lab.job("llama-2-70b", lab.lora(rank=8, base="nf4"), 2048, global_batch_size=8)
    settings = lab.config(
        2, 2, sharding="zero3", activation_checkpointing="full", attention="flash_attention_2"
    )
    found = lab.price(COMPONENT, job, lab.offer("a100-sxm4-40gb", 2), settings)
    assert found["total"] / 1e9 == pytest.approx(36.6, rel=0.1)
