"""How sure a claim of a fit may be, and what the allocator's cache has to do with it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.cost.constants import Claims, memory_constants
from autotune.cost.memory import component as memory
from autotune.cost.spread.memory import borne, is_crowded, surest

if TYPE_CHECKING:
    from autotune.domain.job import Job

MODEL = "meta-llama/Llama-2-7b-hf"
CLAIMS = {"roomy": Claims(98, 0), "crowded": Claims(18, 0)}


def price(lab: Any, job: Job, device: str = "a100-sxm4-80gb", **knobs: Any) -> dict[str, float]:
    found: dict[str, float] = lab.price(
        memory.COMPONENT, job, lab.offer(device), lab.config(**knobs)
    )
    return found


@settings(deadline=None)
@given(p=st.floats(0, 1), crowded=st.booleans())
def test_a_claim_is_never_surer_than_tested_claims_of_its_kind(p: float, crowded: bool) -> None:
    found = float(borne(np.asarray([p]), np.asarray([crowded]), CLAIMS)[0])
    assert found == min(p, 0.95 if crowded else 0.99)
    assert found <= surest(crowded=crowded, claims=CLAIMS)
    assert float(borne(np.asarray([p]), np.asarray([crowded]), {})[0]) == p


def test_memory_that_is_just_full_is_crowded() -> None:
    held = np.asarray([10.0, 10.0 - 1e-9, 9.9, 11.0])
    assert is_crowded(held, np.full(4, 10.0)).tolist() == [True, True, False, True]


def test_a_run_whose_cache_would_fill_the_memory_is_claimed_less_surely(lab: Any) -> None:
    """Rows of many lengths leave blocks behind that no other batch can use."""
    even = lab.job(MODEL, lab.lora(), length=1024)
    ragged = replace(
        even, padding="longest", lengths=replace(even.lengths, quantiles=(64.0, 256.0, 1024.0))
    )
    claims = memory_constants().claims
    for micro in (1, 2, 4, 8, 16):
        own, varied = price(lab, even, micro=micro), price(lab, ragged, micro=micro)
        for found in (own, varied):
            held = found["reserved"] + found["context"]
            assert found["crowded"] == (held >= found["usable"] * (1 - 1e-9))
            most = surest(crowded=bool(found["crowded"]), claims=claims)
            assert found["fits_probability"] <= most
    crowded = [
        price(lab, ragged, micro=m, activation_checkpointing="full") for m in (16, 24, 32, 48, 64)
    ]
    assert any(f["crowded"] and f["total"] < 0.9 * f["usable"] for f in crowded), "nothing to see"
    for found in crowded:
        if found["crowded"] and found["total"] < 0.9 * found["usable"]:
            assert found["fits_probability"] == pytest.approx(claims["crowded"].bears)
    roomy = price(lab, even, micro=1)
    assert roomy["fits_probability"] == pytest.approx(claims["roomy"].bears)


def test_a_processor_caches_nothing(lab: Any) -> None:
    found = price(lab, lab.job(MODEL, lab.lora()), "cpu", precision="fp32")
    assert found["reserved"] == pytest.approx(found["allocated"])
