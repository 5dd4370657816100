from __future__ import annotations

from typing import Any

import pytest

from autotune.cost.time import startup
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
