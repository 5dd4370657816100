from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cost.time import flops
from autotune.domain.job import Lengths

LLAMA = "meta-llama/Llama-2-7b-hf"
# 32 layers x (4 x 4096^2 + 3 x 4096 x 11008) and 32000 x 4096.
LAYERS, HEAD = 6_476_005_376, 131_072_000


def test_full_fine_tuning_takes_six_flop_per_weight(lab: Any) -> None:
    job = lab.job(LLAMA, lab.full())
    assert flops.linear_weights(job.model, job.method) == LAYERS
    assert flops.useful_flop_per_token(job.model, job.method) == 6 * (LAYERS + HEAD)


def test_frozen_weights_take_four_flop_and_adapters_six(lab: Any) -> None:
    job = lab.job(LLAMA, lab.lora(rank=16, targets=lab.attention))
    adapters = 32 * 16 * 4 * (4096 + 4096)
    assert flops.adapter_weights(job.model, job.method) == adapters
    assert flops.useful_flop_per_token(job.model, job.method) == 4 * (LAYERS + HEAD) + 6 * adapters


def test_recomputation_skips_the_down_projection_only_in_full_fine_tuning(lab: Any) -> None:
    full = lab.job(LLAMA, lab.full())
    lora = lab.job(LLAMA, lab.lora(rank=16))
    down = 32 * 4096 * 11008
    adapters = flops.adapter_weights(lora.model, lora.method)
    assert flops.recomputed_flop_per_token(full.model, full.method) == 2 * (LAYERS - down)
    assert flops.recomputed_flop_per_token(lora.model, lora.method) == 2 * (LAYERS + adapters)


def test_a_mixture_counts_the_experts_a_token_passes_through(lab: Any) -> None:
    job = lab.job("mistralai/Mixtral-8x7B-v0.1", lab.full())
    attention = 2 * 4096 * 4096 + 2 * 4096 * 1024
    experts = 2 * 3 * 4096 * 14336
    router = 4096 * 8
    counted = flops.linear_weights(job.model, job.method) / 32
    assert counted == pytest.approx(attention + experts, abs=router + 1)


@given(
    st.lists(st.integers(1, 4096), min_size=2, max_size=9).map(sorted),
)
def test_mean_square_length_matches_a_fine_sum(quantiles: list[int]) -> None:
    values = tuple(float(q) for q in quantiles)
    lengths = Lengths(values, float(np.mean(values)), quantiles[-1], known=True)
    u = (np.arange(20_000) + 0.5) / 20_000
    fine = np.interp(u, np.linspace(0, 1, len(values)), values)
    assert flops.mean_square_length(lengths) == pytest.approx(np.mean(fine**2), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
def test_counts_equal_those_of_torch(lab: Any, checkpointing: bool) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    from autotune.catalog.models.hf_config import model_from_config

    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=256, max_position_embeddings=128,
        attn_implementation="eager", use_cache=False,
    )  # fmt: skip
    network = transformers.LlamaForCausalLM(config).train()
    if checkpointing:
        network.activation_checkpointing_enable()
    batch, length = 2, 32
    rows = torch.randint(0, 256, (batch, length))
    with FlopCounterMode(display=False) as counter:
        network(input_ids=rows, labels=rows).loss.backward()
    model = model_from_config({**config.to_dict(), "model_type": "llama"}, "tiny", "test")
    method = lab.full()
    tokens = batch * length
    expected = tokens * flops.useful_flop_per_token(model, method)
    expected += 3.0 * flops.attention_flop(model, batch * length**2)  # eager: no causal half
    if checkpointing:
        expected += tokens * flops.recomputed_flop_per_token(model, method)
        expected += flops.attention_flop(model, batch * length**2)
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.002)
