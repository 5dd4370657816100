"""Gradients under FSDP before they are reduced, and what AdamW holds while it steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from builders import lora, memory_columns, priced_job

from autotune.catalog.devices import find_device
from autotune.catalog.models.hf_config import model_from_config
from autotune.catalog.models.models import find_model
from autotune.catalog.software import find_software
from autotune.cost.memory.peak import instants
from autotune.cost.memory.step import Step
from autotune.cost.parameters import layer_parameters, parameter_count
from autotune.domain.job import Job, Method

if TYPE_CHECKING:
    from autotune.domain.model import Model

GIB = 2.0**30
LLAMA_7B = find_model("huggyllama/llama-7b")
LLAMA_3 = find_model("meta-llama/Meta-Llama-3-8B")


def job_of(model: Model, base: Any = "32bit", batch: int = 4, **software: Any) -> Job:
    profile = replace(find_software(None), **{"loss": "upcast", **software})
    method = Method("full", base)
    return priced_job(model, method, 8, global_batch_size=batch, software=profile)


def totals(job: Job, **knobs: Any) -> dict[str, float]:
    """[bytes] of every instant on each of four devices, beside weights and states."""
    own = {"offer.count": 4, "sharding": "fsdp", "activation_checkpointing": "full"}
    stated = {"micro_batch_size": 1, "optimizer": "adamw_torch"} | own | knobs
    columns = memory_columns(**{key.replace(".", "__"): value for key, value in stated.items()})
    found = instants(Step.of(job, columns))
    return {
        name: float((each.total - each.weights - each.optimizer)[0]) for name, each in found.items()
    }


# A Llama of 256 wide, six layers and 8,192 words in fp32 under the first FSDP of torch 2.13, four
# processes with gloo, bf16 mixed precision, rows of 8 tokens, checkpoints: every allocation of the
# processor's allocator was counted. In layers of 16 bit: the peak of the backward, without and with
# a micro-batch before it.
CONFIG = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 8192,
    "max_position_embeddings": 2048, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
SMALL = model_from_config(CONFIG, "small", "test")


@pytest.mark.parametrize(("batch", "measured"), [(4, 18.66), (12, 26.89)])
def test_the_root_s_gradients_stand_twice_beside_its_weights(batch: int, measured: float) -> None:
    layer = 2.0 * layer_parameters(SMALL)
    found = totals(job_of(SMALL, batch=batch))
    backward = max(value for name, value in found.items() if name != "optimizer")
    assert backward / layer == pytest.approx(measured, rel=0.01)
    assert backward == found["end of backward"]


def test_small_roots_leave_the_peak_to_the_last_layer() -> None:
    # the same with 2,048 words: 7.97 layers, of which the layer's own gradients are two
    model = model_from_config({**CONFIG, "vocab_size": 2048}, "small", "test")
    found = totals(job_of(model))
    assert found["last layer"] / 2.0 / layer_parameters(model) == pytest.approx(7.97, rel=0.08)
    assert found["last layer"] > found["end of backward"]


def test_adapters_and_other_sharding_have_no_gradients_that_wait() -> None:
    job = job_of(LLAMA_3, "16bit")
    adapters = replace(job, method=lora(LLAMA_3))
    for own, sharding, waits in ((job, "fsdp", 1), (adapters, "fsdp", 0), (job, "zero3", 0)):
        columns = memory_columns(offer__count=4, sharding=sharding)
        root = 2.0 * 2 * LLAMA_3.vocab_size * LLAMA_3.hidden_size
        assert Step.of(own, columns).unreduced.root[0] == waits * root
    alone = totals(job_of(LLAMA_3, "16bit", 1), **{"offer.count": 1, "sharding": "none"})
    assert alone["end of backward"] == pytest.approx(2.0 * parameter_count(LLAMA_3), rel=0.01)


def test_adamw_makes_its_denominator_twice_until_torch_2_1() -> None:
    # LLaMA-Factory issue 1221: 7B by ZeRO-2 on eight V100, torch 2.0.1: 28.28 GiB were there when
    # AdamW asked for 3.14 more, and did not get it
    job = job_of(LLAMA_7B, "16bit", torch=(2, 0, 1), transformers=(4, 33, 0))
    knobs = {"offer.device": find_device("v100-sxm2-32gb"), "offer.count": 8, "sharding": "zero2"}
    stepping = totals(job, precision="fp16", **knobs)["optimizer"]
    states = (2.0 + 12.0 / 8) * parameter_count(LLAMA_7B)
    assert (states + stepping) / GIB == pytest.approx(28.28 + 3.14, rel=0.01)
    later = totals(replace(job, software=find_software(None)), precision="fp16", **knobs)
    assert stepping - later["optimizer"] == pytest.approx(4.0 * parameter_count(LLAMA_7B) / 8)


def test_flat_parameters_of_fsdp_are_updated_in_turn_until_torch_2_1() -> None:
    shard = 4.0 * parameter_count(LLAMA_7B) / 4
    old, new = (
        totals(job_of(LLAMA_7B, torch=version))["optimizer"] for version in ((2, 0, 1), (2, 1, 0))
    )
    root = 4.0 * 2.0 * LLAMA_7B.vocab_size * LLAMA_7B.hidden_size / 4
    assert new - old == pytest.approx(shard - 2.0 * root, rel=0.001)
