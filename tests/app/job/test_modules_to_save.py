"""method.modules_to_save: what it may say, how it is told, and what leaving it out would do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.app.job.load import resolve_spec
from autotune.app.tune.tune import tune
from autotune.domain.errors import InputError
from autotune.report.payload import describe_method
from tests.app.job.test_adapter_variant import SPEC, spec

BOTH = ["embed_tokens", "lm_head"]


@pytest.mark.parametrize("nothing", [None, [], "none", "None"])
def test_nothing_trains_whole_where_nothing_is_named(nothing: Any) -> None:
    assert resolve_spec(spec({"modules_to_save": nothing}), Path()).method.modules_to_save == ()


@pytest.mark.parametrize("stated", [BOTH, "embed_tokens,lm_head", "[lm_head, model.embed_tokens]"])
def test_a_list_and_its_text_say_the_same(stated: Any) -> None:
    method = resolve_spec(spec({"modules_to_save": stated}), Path()).method
    assert method.modules_to_save == ("embed_tokens", "lm_head")
    assert "and all of embed_tokens, lm_head; base" in describe_method(method)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (spec({"modules_to_save": ["norm"]}), ["too small to matter", "embed_tokens"]),
        (spec({"modules_to_save": "all"}), ["unknown module", "lm_head"]),
        (spec({"modules_to_save": ["down_proj"]}), ["method.targets"]),
        (spec({"modules_to_save": {"a": 1}}), ["a mapping", "a list"]),
        (spec({"modules_to_save": 3}), ["must be a list"]),
        (spec({"modules_to_save": [["lm_head"]]}), ["must be text"]),
        ({**SPEC, "method": {"kind": "full", "modules_to_save": BOTH}}, ["kind is full"]),
        (
            spec({"modules_to_save": BOTH}, software={"trainer": "litgpt"}),
            ["litgpt", "leave method.modules_to_save out"],
        ),
    ],
)
def test_what_cannot_train_whole_is_refused_with_what_can(
    changed: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        resolve_spec(changed, Path())
    text = f"{caught.value.message} {caught.value.hint}"
    assert all(word in text for word in words), text


def test_an_answer_tells_of_tied_weights_and_prices_adapters_alone() -> None:
    job = resolve_spec(spec({"modules_to_save": BOTH}), Path())
    found = tune(job)
    assert any("ties its head to the embedding" in note for note in found.warnings)
    alone = next(one for one in found.sensitivities if one.key == "method.modules_to_save")
    assert alone.saved_usd > 0
