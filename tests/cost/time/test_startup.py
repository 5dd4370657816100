from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.catalog.software import find_software
from autotune.cost.time import startup
from autotune.cost.time.attention import PLAN_BACKWARD_S, PLAN_FORWARD_S, leaves_cudnn
from autotune.domain.job import Lengths

LLAMA8, QWEN = "meta-llama/Llama-3.1-8B", "Qwen/Qwen2-0.5B"


def price(lab: Any, job: Any, price_per_hour: float = 2.0, compile_: str = "off") -> Any:
    offer = lab.offer("h100", price=price_per_hour)
    return lab.price(startup.COMPONENT, job, offer, lab.config(compile=compile_))


def test_a_rented_machine_downloads_the_weights_first(lab: Any) -> None:
    job = lab.job(LLAMA8, lab.lora())
    rented, owned = (price(lab, job, usd)["load_s"] for usd in (2.0, 0.0))
    assert rented - owned == pytest.approx(2 * 8_030_261_248 / 125e6, rel=0.1)


def test_a_larger_model_loads_longer(lab: Any) -> None:
    small, large = (price(lab, lab.job(m, lab.full()))["load_s"] for m in (QWEN, LLAMA8))
    assert startup.IMPORT_S < small < large


def test_quantising_takes_time_and_saves_no_reading(lab: Any) -> None:
    plain, nf4 = (price(lab, lab.job(LLAMA8, lab.lora(base=b)))["load_s"] for b in ("16bit", "nf4"))
    assert plain < nf4 < plain + 20


def test_compiling_costs_nothing_when_off_and_most_when_it_searches(lab: Any) -> None:
    job = lab.job(LLAMA8, lab.lora(), 1024)
    modes = ("off", "default", "reduce-overhead", "max-autotune")
    seconds = [price(lab, job, compile_=mode)["compile_s"] for mode in modes]
    assert seconds[0] == 0
    assert seconds == sorted(seconds)
    assert 30 < seconds[1] < 180
    assert seconds[3] > 3 * seconds[1]


def test_batches_of_changing_length_compile_a_second_time(lab: Any) -> None:
    uneven = Lengths((50.0, 300.0, 1024.0), 420.0, 1024, known=True)
    same, changing = (
        price(lab, lab.job(LLAMA8, lab.lora(), 1024, lengths=lengths), compile_="default")
        for lengths in (lab.equal_rows(1024), uneven)
    )
    assert changing["compile_s"] == 2 * same["compile_s"]


UNEVEN = Lengths((50.0, 120.0, 300.0, 1024.0), 330.0, 1024, known=True)


def planned(lab: Any, chosen: bool | None, gpu: str = "h100", **knobs: Any) -> float:
    software = replace(find_software(None), cudnn_attention=chosen)
    job = lab.job(LLAMA8, lab.lora(), 1024, lengths=UNEVEN, software=software, steps=400)
    config = lab.config(micro_batch_size=4, gradient_accumulation_steps=2, **knobs)
    return float(lab.price(startup.COMPONENT, job, lab.offer(gpu), config)["compile_s"])


def test_cudnn_builds_a_plan_for_every_length_that_a_run_meets(lab: Any) -> None:
    rng = np.random.default_rng(7)
    places = np.linspace(0.0, 1.0, len(UNEVEN.quantiles))
    drawn = np.ceil(np.interp(rng.random((800, 4)), places, UNEVEN.quantiles)).max(axis=1)
    lengths = len(np.unique(drawn))
    each = PLAN_FORWARD_S + PLAN_BACKWARD_S
    assert planned(lab, chosen=True) == pytest.approx(each * lengths, rel=0.05)
    kept = planned(lab, chosen=True, activation_checkpointing="full")
    assert kept / planned(lab, chosen=True) == pytest.approx(1.0 + PLAN_FORWARD_S / each)


def test_nothing_is_planned_where_cudnn_is_left_alone_or_lengths_stay(lab: Any) -> None:
    assert planned(lab, chosen=False) == 0.0
    assert planned(lab, chosen=None) == 0.0, "run.sh sees to it"
    assert planned(lab, chosen=True, gpu="a100") == 0.0, "torch does not ask cuDNN there"
    assert planned(lab, chosen=True, attention="flash_attention_2") == 0.0
    assert planned(lab, chosen=True, packing="on") == 0.0
    older = replace(find_software(None), torch=(2, 10, 0), cudnn_attention=True)
    job = lab.job(LLAMA8, lab.lora(), 1024, lengths=UNEVEN, software=older, steps=400)
    assert lab.price(startup.COMPONENT, job, lab.offer("h100"), lab.config())["compile_s"] == 0.0


def test_what_is_written_sets_the_variable_where_it_is_priced_so(lab: Any) -> None:
    def leaves(gpu: str, chosen: bool | None, lengths: Lengths, **knobs: Any) -> bool:
        software = replace(find_software(None), cudnn_attention=chosen)
        job = lab.job(LLAMA8, lab.lora(), 1024, lengths=lengths, software=software)
        return leaves_cudnn(job, lab.offer(gpu).device, lab.config(**knobs))

    assert leaves("h100", None, UNEVEN)
    assert not leaves("h100", None, lab.equal_rows(1024)), "one plan is enough, and it is faster"
    assert not leaves("h100", None, UNEVEN, attention="eager")
    assert not leaves("a100", None, UNEVEN)
    assert leaves("a100", False, UNEVEN)
    assert not leaves("h100", True, UNEVEN)
