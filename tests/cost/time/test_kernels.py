from __future__ import annotations

from typing import Any

import pytest

from autotune.catalog.models.hf_config import model_from_config
from autotune.cost.time import kernels

# Operations that only describe memory anew.
FREE = {
    "view", "_unsafe_view", "t", "transpose", "expand", "slice", "unsqueeze", "detach", "permute",
    "alias", "split", "select", "reshape", "as_strided", "squeeze", "lift_fresh", "empty",
    "empty_like", "split_with_sizes", "new_empty", "_reshape_alias", "is_same_size",
    "_local_scalar_dense",
}  # fmt: skip


def counted(torch: Any, run: Any, *, autocast: bool = True) -> int:
    """Operations of one call that start a kernel."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):  # type: ignore[misc]
        total = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.total += func.__name__.split(".")[0] not in FREE
            return func(*args, **(kwargs or {}))

    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), Counter() as counter:
        run()
    return int(counter.total)


def of_one_layer(targets: list[str] | None) -> tuple[dict[str, Any], float, float]:
    """The tiny Llama's config, and operations of one layer's forward and backward."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    found, shape = [], {}
    for layers in (2, 4):
        config = transformers.LlamaConfig(
            hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=256, use_cache=False,
        )  # fmt: skip
        network = transformers.LlamaForCausalLM(config).to(torch.bfloat16).train()
        if targets:
            network = peft.get_peft_model(network, peft.LoraConfig(r=4, target_modules=targets))
        rows = torch.randint(0, 256, (1, 16))
        kept: list[Any] = []

        def forward(network: Any = network, rows: Any = rows, kept: Any = kept) -> None:
            kept.append(network(input_ids=rows, labels=rows).loss)

        ahead = counted(torch, forward)
        shape = {**config.to_dict(), "model_type": "llama"}
        found.append((ahead, counted(torch, kept[0].backward)))
    return shape, (found[1][0] - found[0][0]) / 2, (found[1][1] - found[0][1]) / 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("targets", [[], ["q_proj", "v_proj"], list("qkvogud")])
def test_launches_are_those_of_the_installed_code(lab: Any, targets: list[str]) -> None:
    if len(targets) > 2:
        targets = list(lab.all_linear)
    shape, forward, backward = of_one_layer(targets or None)
    model = model_from_config(shape, "tiny", "test")
    method = lab.lora(4, tuple(targets)) if targets else lab.full()
    layer = kernels.layer_launches(model, method, eager_attention=False)
    adapter = kernels.adapter_launches(method, fp32=True)
    expected = layer.forward + len(targets) * adapter.forward
    assert forward == pytest.approx(expected, rel=0.1)
    expected = layer.backward + len(targets) * adapter.backward
    assert backward == pytest.approx(expected, rel=0.1)


def test_adapters_and_quantised_bases_add_launches(lab: Any) -> None:
    def total(method: Any) -> float:
        job = lab.job("meta-llama/Llama-2-7b-hf", method)
        return sum(kernels.launches(job, fp32_adapters=True, eager_attention=False))

    few, many = lab.lora(4, ("q_proj", "v_proj")), lab.lora(4)
    assert (
        total(few) < total(many) < total(lab.lora(4, base="nf4")) < total(lab.lora(4, base="int8"))
    )


def test_fused_kernels_exist_for_llama_like_layers_only(lab: Any) -> None:
    from dataclasses import replace

    for name, fused in (("meta-llama/Llama-2-7b-hf", True), ("openai-community/gpt2", False)):
        job = lab.job(name, lab.full())
        software = replace(job.software, kernels="liger")
        left = kernels.kernel_set(software, job.model)
        assert (left.elementwise < 1) == fused
