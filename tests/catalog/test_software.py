from __future__ import annotations

from typing import Any

import pytest

from autotune.catalog.software import find_software, load_software, of_pairs
from autotune.domain.errors import InputError


def test_the_default_profile_is_current_and_has_no_flash_attention() -> None:
    found = find_software(None)
    assert (found.name, found.as_of) == ("default", "2026-11-21")
    assert found.transformers == (5, 23, 0)
    assert found.trl == (1, 16, 0)
    assert not found.has_flash_attention
    assert found.bitsandbytes is not None
    assert found.loss == "upcast"
    assert find_software("default") == found


@pytest.mark.parametrize(
    ("spec", "loss"),
    [
        ("2025-02", "upcast_copy"),  # transformers 4.48
        ("2024-05", "upcast"),
        ({"transformers": "4.45.2"}, "upcast"),
        ({"transformers": "4.48.1"}, "upcast_copy"),
        ({"transformers": "4.50.0"}, "upcast"),
        ({"trainer": "trl"}, "chunked"),
        ({"trainer": "trl", "trl": "1.8.0"}, "upcast"),
        ({"trainer": "trl", "trl": None}, "upcast"),
        ({"kernels": "liger"}, "liger"),
        ({"kernels": "liger", "trainer": "trl"}, "chunked"),
        ({"kernels": "unsloth", "trainer": "trl"}, "fused"),
        ({"loss": "chunked"}, "chunked"),
        ({"trainer": "own"}, "upcast"),
        ({"trainer": "own", "own_model": True}, "native"),
        ({"trainer": "own", "own_model": True, "loss": "chunked"}, "chunked"),
    ],
)
def test_the_loss_follows_from_versions_trainer_and_kernels(spec: Any, loss: str) -> None:
    assert find_software(spec).loss == loss


def test_versions_change_a_profile_and_its_name_says_so() -> None:
    found = find_software({"transformers": "5.10.0", "flash-attn": 2.8, "bitsandbytes": "none"})
    assert found.transformers == (5, 10, 0)
    assert found.flash_attn == (2, 8, 0)
    assert found.bitsandbytes is None
    assert found.torch == find_software(None).torch
    assert found.name != "default"
    assert find_software({"torch": "2.8.0+cu128"}).torch == (2, 8, 0)
    assert find_software({"profile": "2025-02"}) == load_software()["2025-02"]
    assert find_software({"autocast": False}).autocast is False
    assert find_software({"steps_in_backward": "true"}).steps_in_backward is True
    assert find_software({"kbit_prepared": "true"}).kbit_upcast == "all"


@pytest.mark.parametrize(
    "spec",
    [
        "newest",
        {"tranformers": "5.0.0"},
        {"torch": "new"},
        {"torch": None},
        {"torch": -1},
        {"torch": [2, 8]},
        {"torch": True},
        {"profile": "2031"},
        {"kernels": "magic"},
        {"kernels": []},
        {"trainer": "me"},
        {"loss": "none"},
        {"autocast": "maybe"},
        42,
        ["torch"],
    ],
)
def test_nonsense_is_an_input_error(spec: Any) -> None:
    with pytest.raises(InputError) as caught:
        find_software(spec)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("stated", "base", "kept"),
    [
        ({"kbit_prepared": "true"}, "nf4", "all"),
        ({"kbit_prepared": "true"}, "16bit", "none"),
        ({"trainer": "trl", "trl": "0.19.1"}, "nf4", "norms"),
        ({"trainer": "trl", "trl": "0.19.1"}, "int8", "all"),
        ({"trainer": "trl", "trl": "0.19.1"}, "16bit", "none"),
        ({"trainer": "trl", "trl": "1.0.0"}, "nf4", "none"),
        ({"trl": "0.19.1"}, "nf4", "none"),
    ],
)
def test_only_a_base_in_few_bits_is_prepared(stated: dict[str, str], base: str, kept: str) -> None:
    """Source: trl 0.19 models/utils.py prepares a base in few bits; 1.0 does no longer."""
    assert find_software(stated).over(base).kbit_upcast == kept


@pytest.mark.parametrize(
    ("objective", "spec", "loss"),
    [
        ("dpo", "default", "chunked"), ("kto", {"trl": "1.15.0"}, "chunked"),
        ("dpo", {"trl": "1.14.0"}, "upcast"), ("orpo", "default", "upcast"),
        ("orpo", {"kernels": "liger"}, "upcast"), ("dpo", {"kernels": "liger"}, "chunked"),
        ("dpo", {"kernels": "liger", "trl": "1.9.0"}, "liger"), ("reward", "default", "chunked"),
        ("dpo", {"kernels": "unsloth"}, "fused"), ("dpo", {"loss": "native"}, "native"),
    ],
)  # fmt: skip
def test_of_pairs_trl_holds_the_logits_that_its_trainer_holds(
    objective: Any, spec: Any, loss: str
) -> None:
    assert of_pairs(find_software(spec), objective, spec, ours=True).loss == loss
    mapping = spec if isinstance(spec, dict) else {}
    by_trl = find_software({**mapping, "trainer": "trl"})
    assert of_pairs(by_trl, objective, spec, ours=False).loss == loss
    another = find_software(spec)
    assert of_pairs(another, objective, spec, ours=False) == another


@pytest.mark.parametrize(("objective", "by"), [("dpo", "llamafactory"), ("orpo", "")])
def test_of_pairs_ligers_loss_is_off_where_every_logit_is_needed(objective: Any, by: str) -> None:
    default = find_software("default")
    whole = of_pairs(default, objective, "default", ours=not by, by=by)
    assert whole.running("liger").loss == whole.loss == "upcast"
    assert default.running("liger").loss == "liger"
