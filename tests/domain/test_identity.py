"""Keys of what was kept stay the same when a dataclass gains a field."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from autotune.catalog.models.models import find_model
from autotune.domain.job import Method
from autotune.frozen import LATER, content, identity

LORA = Method("lora", "16bit", 8, 16.0, 0.0, ("q_proj",))


@dataclass(frozen=True)
class Before:
    rank: int
    inner: tuple[object, ...] = ()


@dataclass(frozen=True)
class After:
    rank: int
    inner: tuple[object, ...] = ()
    variant: str = field(default="none", metadata=LATER)


@pytest.mark.parametrize("value", [1, "a", (), (1,), (1, (2.5, "b")), Before(8, (Before(4),))])
def test_what_gained_no_field_has_the_text_of_its_repr(value: object) -> None:
    assert identity(value) == repr(value)


def test_a_field_that_came_later_counts_only_when_it_is_set() -> None:
    older = identity((Before(8, (Before(4),)),)).replace("Before", "After")
    assert identity((After(8, (After(4),)),)) == older
    assert identity((After(8, (After(4, (), "dora"),)),)) != older


def test_a_method_without_a_variant_is_the_method_it_was_before_there_were_any() -> None:
    assert "variant" not in identity(LORA)
    assert identity(replace(LORA, variant="dora")) != identity(LORA)


def test_a_dataclass_that_gains_a_field_has_the_content_that_it_had() -> None:
    assert content(After(8, (After(4),))) == content(Before(8, (Before(4),)))
    assert content(After(8, (), "dora")) != content(Before(8))


def test_a_model_is_known_by_its_facts_and_not_by_its_name_or_where_it_lies() -> None:
    model = find_model("huggyllama/llama-7b")
    moved = replace(model, name="mine", source="elsewhere", hf_config='{"a": 1}')
    assert moved.fingerprint == model.fingerprint
    assert replace(model, num_layers=model.num_layers + 1).fingerprint != model.fingerprint
    wider = replace(model.linears[0], out_features=8)
    assert replace(model, linears=(wider, *model.linears[1:])).fingerprint != model.fingerprint
