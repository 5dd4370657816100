"""What compiled layers keep, against the graphs that torch's partitioner makes of real classes."""

from __future__ import annotations

from typing import Any

import pytest
from builders import needs

from autotune.catalog.models.hf_config import model_from_config
from autotune.cost.memory.activations import layer_activations
from autotune.cost.memory.modelling_code import Mode
from autotune.cost.time import compute
from autotune.cost.time.kernels import compiled_elementwise_bytes, compiled_loss, elementwise_bytes
from autotune.domain.job import Method

needs("torch", "transformers")
ROWS, LENGTH = 2, 64
LLAMA = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 512,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "n_embd": 256, "n_layer": 1, "n_head": 4, "vocab_size": 512,
    "n_positions": 128, "attn_pdrop": 0.0,
}  # fmt: skip


def described(config: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    settings = dict(config)
    return AutoConfig.for_model(settings.pop("model_type"), **settings)


def kept_by_partitioner(config: dict[str, Any]) -> float:
    """[bytes/token] that the compiled layer's forward hands to its backward, weights left out."""
    import functorch.compile as fc
    import torch
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table
    from transformers import AutoModelForCausalLM

    found: list[int] = []
    tokens = ROWS * LENGTH

    def partition(joint: Any, inputs: Any, **kwargs: Any) -> Any:
        forward, backward = min_cut_rematerialization_partition(
            joint, inputs, compiler="inductor", **kwargs
        )
        outputs = next(node for node in forward.graph.nodes if node.op == "output").args[0]
        for node in outputs[kwargs["num_fwd_outputs"] :]:
            value = getattr(node, "meta", {}).get("val")
            if isinstance(value, torch.Tensor) and value.numel() % tokens == 0:
                stays = node.op != "placeholder" or value.shape == (ROWS, LENGTH, 256)  # its input
                weight = node.op != "placeholder" and value.ndim == 2 and tokens not in value.shape
                found.append(value.numel() * value.element_size() * (stays and not weight))
        return forward, backward

    model = AutoModelForCausalLM.from_config(described(config), attn_implementation="sdpa").train()
    layer = model.model.layers[0] if hasattr(model, "model") else model.transformer.h[0]

    def plain(graph: Any, _inputs: Any) -> Any:
        return fc.make_boxed_func(graph.forward)

    layer.compile(
        backend=aot_autograd(
            fw_compiler=plain, bw_compiler=plain, partition_fn=partition,
            decompositions=select_decomp_table(),
        )
    )  # fmt: skip
    ids = torch.arange(tokens).reshape(ROWS, LENGTH) % 512
    with torch.autocast("cpu", torch.bfloat16):
        model(input_ids=ids, use_cache=False).logits.sum().backward()
    return sum(found) / tokens


@pytest.mark.filterwarnings("ignore")  # of what torch says to itself while it traces
@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_a_compiled_layer_keeps_what_the_partitioner_keeps(config: dict[str, Any]) -> None:
    """No less than it, and at most a tenth more: where a sum can be made again, one is."""
    model = model_from_config(described(config).to_dict(), "small", "a test")
    eager = {"compute": 2.0, "stream": 4.0, "train_base": True, "adapter": 0.0, "autocast": True}
    own = {"compiled": True, "fused_norms": model.norm == "rmsnorm", "fused_gate": True}
    mode = Mode(**eager, attention="sdpa", masked=0.0)  # type: ignore[arg-type]
    compiled = Mode(**eager, **own, attention="sdpa", masked=0.0)  # type: ignore[arg-type]
    kept = layer_activations(model, Method("full"), compiled).per_token
    measured = kept_by_partitioner(config)
    assert measured * 0.99 <= kept <= measured * 1.10
    assert layer_activations(model, Method("full"), mode).per_token > 1.25 * measured


def test_scores_that_are_one_kernel_between_two_products_travel_less(lab: Any) -> None:
    job = lab.job("Llama-3.1-8B", lab.full(), 1024)
    found = {
        name: lab.price(compute.COMPONENT, job, lab.offer("a100"), lab.config(1, **knobs))
        for name, knobs in {
            "eager": {"attention": "eager"},
            "compiled": {"attention": "eager", "compile": "default"},
            "eager sdpa": {"attention": "sdpa"},
            "compiled sdpa": {"attention": "sdpa", "compile": "default"},
        }.items()
    }
    moved = {name: float(value["bandwidth_s"]) for name, value in found.items()}
    fewer = (moved["compiled"] - moved["compiled sdpa"]) / (moved["eager"] - moved["eager sdpa"])
    assert fewer == pytest.approx(28 / 56, rel=0.01)


def test_what_compiling_leaves_does_not_depend_on_how_eager_code_wrote_an_activation() -> None:
    """GPT-2's gelu is eight kernels in Python; compiled it is one, as another model's is."""
    new, plain = (
        model_from_config(described({**GPT2, "activation_function": name}).to_dict(), name, "test")
        for name in ("gelu_new", "gelu")
    )
    left = [compiled_elementwise_bytes(model) for model in (new, plain)]
    eager = [elementwise_bytes(model, Method("full")).forward for model in (new, plain)]
    assert left[0] == left[1]
    assert eager[0] > 3 * eager[1] > 3 * left[1].forward


@pytest.mark.parametrize(
    ("loss", "share"), [("upcast", 8 / 30), ("native", 8 / 19), ("liger", 0.6)]
)
def test_a_compiled_loss_reads_sixteen_bit_logits(loss: str, share: float) -> None:
    assert compiled_loss(loss) == pytest.approx(share)
