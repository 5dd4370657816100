"""A model of 4-bit weights is made one projection at a time: all of it in 16 bits may not fit."""

from __future__ import annotations

import sys
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from autotune.probe.worker import model as worker_model  # noqa: E402 - it needs torch
from bench.gpu_suite.items import TINY, Item  # noqa: E402

LIVE: weakref.WeakSet[Any] = weakref.WeakSet()  # weights in 16 bits that are to be quantised
MOST: list[int] = []


class Packed(torch.nn.Linear):
    """bitsandbytes' layer, as far as it is used: it packs its weight when it goes to a device."""

    def __init__(self, *shape: int, bias: bool, device: str, **options: Any) -> None:
        super().__init__(*shape, bias=bias, device=device)
        self.options = options

    def to(self, *args: Any, **kwargs: Any) -> Any:
        packed = torch.zeros(self.weight.numel() // 2, 1, dtype=torch.uint8)
        self.weight = torch.nn.Parameter(packed, requires_grad=False)
        return super().to(*args, **kwargs)


def params(weight: torch.Tensor, **_: Any) -> torch.nn.Parameter:
    assert not weight.is_meta
    assert weight.std() > 0, "a weight of nothing says nothing of its product's speed"
    LIVE.add(weight)
    MOST.append(len(LIVE))
    return torch.nn.Parameter(weight, requires_grad=False)


@pytest.fixture
def request_body(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    library = SimpleNamespace(nn=SimpleNamespace(Linear4bit=Packed, Params4bit=params))
    monkeypatch.setitem(sys.modules, "bitsandbytes", library)
    body = Item("tiny", TINY, "full", (1, 64)).request("cpu", dry=True)
    method = {**body["method"], "base": "nf4"}
    return {**body, "method": method, "precision": "bf16", "num_layers": 4}


def test_no_more_than_one_projection_is_there_in_16_bits(request_body: dict[str, Any]) -> None:
    MOST.clear()
    made = worker_model.build(request_body, torch.device("cpu"))
    packed = [module for module in made.modules() if isinstance(module, Packed)]
    assert len(packed) == 4 * 7
    assert max(MOST) == 1
    assert not any(p.is_meta for p in made.parameters())
    assert not any(b.is_meta for b in made.buffers())
    assert made.is_loaded_in_4bit


@pytest.mark.parametrize("tied", [True, False])
def test_the_head_stays_as_it_is(request_body: dict[str, Any], *, tied: bool) -> None:
    request_body["model"] = {**request_body["model"], "tie_word_embeddings": tied}
    made = worker_model.build(request_body, torch.device("cpu"))
    head = made.get_output_embeddings().weight
    assert head.dtype == torch.bfloat16
    assert (head is made.get_input_embeddings().weight) == tied
    assert 0.001 < float(head.detach().float().std()) < 0.1


def test_other_models_are_made_whole_and_linear_layers_are_as_they_were(
    request_body: dict[str, Any],
) -> None:
    request_body["method"] = {**request_body["method"], "base": "16bit"}
    made = worker_model.build(request_body, torch.device("cpu"))
    assert not any(isinstance(module, Packed) for module in made.modules())
    assert not torch.nn.Linear(2, 2).weight.is_meta
