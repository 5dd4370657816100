"""What the installed transformers really hands to sdpa, against what the cost model counts."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LENGTH = 32


def model_of(*, lora: bool) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=256, attn_implementation="sdpa",
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    if lora:
        peft = pytest.importorskip("peft")
        wanted = peft.LoraConfig(r=4, target_modules="all-linear")
        model = peft.get_peft_model(model, wanted)
    return model.train()


def batch(mask: str) -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    ids = torch.randint(0, 256, (2, LENGTH))
    found = {"input_ids": ids, "labels": ids}
    if mask != "absent":
        found["attention_mask"] = torch.ones_like(ids)
    if mask == "ragged":
        found["attention_mask"][0, LENGTH // 2 :] = 0
    return found


def masks_in(graph: Any) -> set[bool]:
    """Whether each sdpa call of a graph, and of the graphs inside it, gets an explicit mask."""
    return {
        node.kwargs.get("attn_mask", node.args[3] if len(node.args) > 3 else None) is not None
        for module in graph.modules()
        if hasattr(module, "graph")
        for node in module.graph.nodes
        if node.op == "call_function" and "scaled_dot" in str(node.target)
    }


def eager(model: Any, inputs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> set[bool]:
    functional = pytest.importorskip("torch").nn.functional
    found: set[bool] = set()
    real = functional.scaled_dot_product_attention

    def spy(*args: Any, **kwargs: Any) -> Any:
        found.add(kwargs.get("attn_mask") is not None)
        return real(*args, **kwargs)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", spy)
    model(**inputs).loss.backward()
    return found


def compiled(model: Any, inputs: dict[str, Any], *, by_block: bool) -> set[bool]:
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    found: set[bool] = set()

    def backend(graph: Any, _: Any) -> Any:
        found.update(masks_in(graph))
        return graph.forward

    if by_block:
        for name, module in list(model.named_modules()):
            if name.endswith("layers"):
                for block in module:
                    block.compile(backend=backend)
    else:
        model = torch.compile(model, backend=backend)
    model(**inputs).loss.backward()
    return found


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize(("mask", "masked"), [("absent", False), ("ones", False), ("ragged", True)])
def test_eager_sdpa_gets_a_mask_for_padding_alone(
    mask: str, masked: bool, lora: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert eager(model_of(lora=lora), batch(mask), monkeypatch) == {masked}


@pytest.mark.parametrize(
    ("mask", "masked", "lora"),
    [("absent", False, False), ("ones", True, False), ("ones", True, True)],
)
def test_compiled_whole_sdpa_gets_a_mask_whenever_the_batch_carries_one(
    mask: str, masked: bool, lora: bool
) -> None:
    assert compiled(model_of(lora=lora), batch(mask), by_block=False) == {masked}


def test_compiled_by_block_an_all_ones_mask_is_dropped_as_in_eager_mode() -> None:
    assert compiled(model_of(lora=False), batch("ones"), by_block=True) == {False}
