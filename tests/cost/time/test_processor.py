"""A processor as the device: nothing overlaps, casts are kernels, new sizes are compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autotune.catalog.models.hf_config import model_from_config
from autotune.cost.time import compute, evaluation, kernels, launch
from autotune.cost.time.efficiency import Efficiency
from autotune.domain.job import Evaluation, Lengths
from tests.cost.time.test_kernels import counted

if TYPE_CHECKING:
    from autotune.domain.device import Device

UNEVEN = Lengths((62.0, 131.0, 256.0), 131.0, 256, known=True)
TINY: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "head_dim": 16,
    "tie_word_embeddings": True, "use_cache": False,
}  # fmt: skip


def cpu(lab: Any, **fields: Any) -> Device:
    """Two cores with bf16 instructions, twice as fast as in fp32."""
    own = {
        "name": "cpu", "vendor": "cpu", "compute_capability": 0.0, "fp32_flop_per_s": 3.3e11,
        "bf16_flop_per_s": 6.6e11, "fp16_flop_per_s": 0.0, "tf32_flop_per_s": 0.0,
        "memory_bandwidth_bytes_per_s": 51.2e9, "matmul_ceiling_fraction": 0.6, "release_year": 0,
    }  # fmt: skip
    return replace(lab.offer("a100").device, **own, **fields)


def job_of(lab: Any, **fields: Any) -> Any:
    job = lab.job("meta-llama/Llama-2-7b-hf", lab.lora(8, base="32bit"), 256, lengths=UNEVEN)
    return replace(job, model=model_from_config(TINY, "tiny", "test"), **fields)


def step(lab: Any, job: Any, device: Any, micro: int = 8, **knobs: Any) -> dict[str, float]:
    found: dict[str, float] = lab.price(
        compute.COMPONENT, job, lab.offer(device), lab.config(micro, **knobs)
    )
    return found


def of_two_layers(lab: Any, attention: str, *, autocast: bool) -> tuple[int, int]:
    """Operations that two more layers of fp32 weights with adapters add, forward and backward."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    found = []
    for layers in (2, 4):
        config = transformers.LlamaConfig(
            **{**TINY, "num_hidden_layers": layers}, attn_implementation=attention
        )
        network = transformers.LlamaForCausalLM(config).train()
        network = peft.get_peft_model(
            network, peft.LoraConfig(r=8, target_modules=list(lab.all_linear))
        )
        rows, kept = torch.randint(0, 256, (2, 16)), []
        mask = torch.ones_like(rows)
        mask[0, 9:] = 0

        def forward(
            network: Any = network, rows: Any = rows, mask: Any = mask, kept: Any = kept
        ) -> None:
            kept.append(network(input_ids=rows, attention_mask=mask, labels=rows).loss)

        ahead = counted(torch, forward, autocast=autocast)
        found.append((ahead, counted(torch, kept[0].backward, autocast=False)))
    return found[1][0] - found[0][0], found[1][1] - found[0][1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("autocast", [False, True])
def test_kernels_on_a_processor_are_those_of_the_installed_code(
    lab: Any, attention: str, autocast: bool
) -> None:
    forward, backward = of_two_layers(lab, attention, autocast=autocast)
    job = job_of(lab)
    eager = attention == "eager"
    plain = kernels.launches(job, fp32_adapters=True, eager_attention=eager)
    more = launch.further_kernels(job, fp32_adapters=True, autocast=autocast)
    head = (15.0, 20.0)  # of `launches`, once
    assert plain.forward + more.forward - head[0] == pytest.approx(forward, rel=0.05)
    assert plain.backward + more.backward - head[1] == pytest.approx(backward, rel=0.05)


def test_on_a_processor_issuing_and_computing_add_up_and_on_a_gpu_they_overlap(lab: Any) -> None:
    for device, overlaps in ((cpu(lab), False), ("a100", True)):
        found = step(lab, job_of(lab), device)
        terms = found["compute_s"] + found["bandwidth_s"] + found["launch_s"]
        if overlaps:
            assert found["micro_step_s"] < 0.999 * terms
        else:
            assert found["micro_step_s"] == pytest.approx(terms)


def test_a_tiny_model_is_quicker_in_fp32_and_a_large_one_in_bf16(lab: Any) -> None:
    """Casts and code for new sizes cost the same at every size; products do not."""
    large = lab.job("meta-llama/Llama-2-7b-hf", lab.lora(8, base="32bit"), 256, lengths=UNEVEN)
    for job, quicker, slower in ((job_of(lab), "fp32", "bf16"), (large, "bf16", "fp32")):
        one, other = (
            step(lab, job, cpu(lab), 4, precision=precision)["micro_step_s"]
            for precision in (quicker, slower)
        )
        assert one < 0.8 * other


def test_code_for_new_sizes_is_generated_where_lengths_change_only(lab: Any) -> None:
    ragged, full = job_of(lab), job_of(lab, padding="max_length")
    more = step(lab, ragged, cpu(lab))["launch_s"] - step(lab, full, cpu(lab))["launch_s"]
    assert more == pytest.approx(25 * launch.NEW_SIZES_S)
    plain = [step(lab, job, cpu(lab), precision="fp32")["launch_s"] for job in (ragged, full)]
    assert plain[0] == pytest.approx(plain[1])
    again = {"activation_checkpointing": "full"}
    repeated = step(lab, ragged, cpu(lab), **again)["launch_s"]
    assert repeated - step(lab, full, cpu(lab), **again)["launch_s"] == pytest.approx(more)


def test_trained_weights_need_products_of_their_own(lab: Any) -> None:
    """A Llama's layer has four shapes here, and the head; adapters two inputs, three outputs."""
    lora, full = job_of(lab), job_of(lab, method=lab.full("32bit"))
    assert launch.distinct_products(lora, backward=False) == 10
    assert launch.distinct_products(lora, backward=True) == 25
    assert launch.distinct_products(full, backward=False) == 5
    assert launch.distinct_products(full, backward=True) == 15


def test_small_products_reach_a_processor_s_rate_and_not_a_gpu_s(lab: Any) -> None:
    """Measured on a core: 64 x 64 weights 75 GFLOP/s, 2048 x 2048 weights 81."""
    lost = []
    for device in (cpu(lab), lab.offer("a100").device):
        curves, where, rows = Efficiency.of([device]), np.zeros(1, np.intp), np.full(1, 1760.0)
        small, large = (
            float(curves.gemm(where, rows, np.full(1, side), np.full(1, side))[0])
            for side in (64.0, 2048.0)
        )
        lost.append(large / small)
    assert lost[0] == pytest.approx(81 / 75, rel=0.1)
    assert lost[1] > 5


def test_an_evaluation_on_a_processor_generates_code_for_each_batch_of_new_length(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, batches = Evaluation(16, every_steps=25), 2
    for lengths, code in ((UNEVEN, 10 * launch.NEW_SIZES_S), (lab.equal_rows(256), 0.0)):
        job = job_of(lab, evaluation=plan, lengths=lengths)
        costs = []
        for each in (launch.NEW_SIZES_S, 0.0):
            with monkeypatch.context() as patched:
                patched.setattr(launch, "NEW_SIZES_S", each)
                found = lab.price(evaluation.COMPONENT, job, lab.offer(cpu(lab)), lab.config(8))
            costs.append(found["once_s"])
        assert costs[0] - costs[1] == pytest.approx(batches * code)
