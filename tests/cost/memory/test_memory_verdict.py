from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autotune.cost.columns import Component
from autotune.cost.constants import Offset, memory_constants
from autotune.cost.memory import component as memory

if TYPE_CHECKING:
    from autotune.domain.job import Job

MODEL = "meta-llama/Llama-2-7b-hf"


def price(lab: Any, job: Job, count: int = 1, **knobs: Any) -> dict[str, float]:
    offer = lab.offer("a100-sxm4-80gb", count)
    found: dict[str, float] = lab.price(memory.COMPONENT, job, offer, lab.config(**knobs))
    return found


def moving(found: dict[str, float]) -> float:
    return found["allocated"] - found["weights"] - found["adapters"] - found["optimizer"]


def test_only_what_comes_and_goes_needs_slack_and_more_of_it_on_several_devices(lab: Any) -> None:
    job, slack = lab.job(MODEL, lab.lora()), memory_constants().slack
    one, two = price(lab, job), price(lab, job, 2, sharding="fsdp")
    assert one["fragmentation"] == pytest.approx(slack.one_device * moving(one))
    assert two["fragmentation"] == pytest.approx(slack.several * moving(two))
    assert 0.05 < slack.one_device < slack.several < 0.4


def test_an_offset_of_own_model_code_scales_what_is_saved_and_widens_the_spread(lab: Any) -> None:
    job = lab.job(MODEL, lab.lora())
    stack = replace(job.software, own_model=True, stack="somebody's")
    own = replace(job, software=stack)
    shipped = memory_constants()

    def at(job: Job, **offsets: Offset) -> dict[str, float]:
        model = replace(shipped, offsets=dict(offsets) or {stack.stack: Offset(0.0, 0.0)})
        component = Component("memory", memory.READS, partial(memory.price_memory, model=model))
        found: dict[str, float] = lab.price(
            component, job, lab.offer("a100-sxm4-80gb"), lab.config()
        )
        return found

    as_written = at(own)
    larger = at(own, **{stack.stack: Offset(0.1, 0.05)})
    assert larger["activations"] == pytest.approx(as_written["activations"] * np.exp(0.1))
    assert larger["weights"] == as_written["weights"]
    assert larger["log_sd"] > as_written["log_sd"]
    by_family = at(own, **{stack.stack: Offset(0.1, 0.2), f"{stack.stack} llama": Offset(0.3, 0.1)})
    assert by_family["activations"] == pytest.approx(as_written["activations"] * np.exp(0.3))
    unknown = price(lab, replace(job, software=replace(stack, stack="nobody's")))
    assert unknown["activations"] == as_written["activations"]
    assert unknown["log_sd"] > larger["log_sd"]
    plain = price(lab, job)
    assert at(job, hf=Offset(0.5, 0.5))["activations"] == plain["activations"]


def test_runs_on_shards_are_less_sure_than_one_source_of_them_shows(lab: Any) -> None:
    job, between = lab.job(MODEL, lab.full()), memory_constants().between_shards
    one, ddp = price(lab, job), price(lab, job, 4, sharding="ddp")
    assert max(one["log_sd"], ddp["log_sd"]) < 0.05
    for sharding in ("fsdp", "zero2", "zero3"):
        assert between <= price(lab, job, 4, sharding=sharding)["log_sd"] < 1.1 * between
    own = replace(job, software=replace(job.software, own_model=True, stack="torchtitan"))
    offset = memory_constants().offset(own.software, "llama")
    assert price(lab, own, 4, sharding="fsdp")["log_sd"] < offset.log_sd + 0.05


def test_a_compiled_model_is_less_sure_the_more_of_it_is_live(lab: Any) -> None:
    job = lab.job(MODEL, lab.lora())
    known = {"activation_checkpointing": "full", "micro_batch_size": 1}
    live = {"activation_checkpointing": "none", "micro_batch_size": 8}
    sure = price(lab, job, compile="default", **known)
    unsure = price(lab, job, compile="default", **live)
    eager = price(lab, job, compile="off", **live)
    assert unsure["activations"] < eager["activations"]
    assert sure["log_sd"] < unsure["log_sd"] < 0.4
    assert unsure["log_sd"] > 2 * eager["log_sd"]


def test_the_chance_of_fitting_falls_with_the_batch_and_ends_in_a_certain_failure(lab: Any) -> None:
    job = lab.job(MODEL, lab.lora(), length=2048)
    found = [price(lab, job, micro=micro) for micro in (1, 2, 4, 8, 16)]
    chances = [own["fits_probability"] for own in found]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] > 0.99
    assert found[-1]["certain_oom"] == 1.0
    assert chances[-1] < 0.01
