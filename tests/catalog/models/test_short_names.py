"""What a name without its organisation means, and where it means nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.catalog.models.models import find_model, in_full, is_named
from autotune.catalog.models.short_names import meant_by
from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("typed", "full"),
    [
        ("llama3.2-1b", "meta-llama/Llama-3.2-1B"),
        ("Llama3.1_70B", "meta-llama/Llama-3.1-70B"),
        ("qwen3-coder-30b-a3b", "Qwen/Qwen3-Coder-30B-A3B-Instruct"),
        ("hunyuan-7b", "tencent/Hunyuan-7B-Pretrain"),
        ("olmo-2-13b", "allenai/OLMo-2-1124-13B"),
        ("vicuna-7b", "lmsys/vicuna-7b-v1.5"),
        ("codestral-22b", "mistralai/Codestral-22B-v0.1"),
        ("llama2-13b-chat", "meta-llama/Llama-2-13b-chat-hf"),  # not somebody's copy
        ("stablelm-2-1.6b", "stabilityai/stablelm-2-1_6b"),
    ],
)
def test_a_short_name_is_the_model_that_was_not_tuned(typed: str, full: str) -> None:
    assert find_model(typed) == find_model(full)
    assert is_named(typed)


@pytest.mark.parametrize(
    "typed", ["qwen2.5-05b", "devstral", "llama-8b", "coder-30b", "1b", "qwen3", "7b-falcon3", "v"]
)
def test_a_name_that_may_be_several_shapes_or_none_is_refused(
    typed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_OFFLINE", "1")
    assert in_full(typed) == ()
    with pytest.raises(InputError, match="unknown model"):
        find_model(typed)


def test_all_that_tells_shapes_apart_must_be_typed() -> None:
    names = ["a/Phi-4", "a/Phi-4-mini-instruct", "a/Phi-4-reasoning", "a/phi-4-AWQ", "a/Phi-4-2503"]
    assert meant_by("phi4", names) == ["a/Phi-4", "a/Phi-4-2503"]
    assert meant_by("phi-4-mini", names) == ["a/Phi-4-mini-instruct"]


def test_a_later_version_comes_first() -> None:
    names = ["x/m-7b-v0.1", "x/m-7b-v0.3", "x/m-7b-instruct-v0.4"]
    assert meant_by("m-7b", names) == ["x/m-7b-v0.3", "x/m-7b-v0.1", "x/m-7b-instruct-v0.4"]


def test_a_folder_elsewhere_may_be_called_so(tmp_path: Path) -> None:
    model = find_model("/no/such/models/Hunyuan-7B", tmp_path)
    assert model.shape_of == "tencent/Hunyuan-7B-Pretrain"


def test_a_folder_of_that_name_is_the_model(tmp_path: Path) -> None:
    (tmp_path / "hunyuan-7b").mkdir()
    with pytest.raises(InputError, match=r"config\.json"):
        find_model("hunyuan-7b", tmp_path)
