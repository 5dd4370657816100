"""Facts of trainers, kernels and sharding that the formula of peak memory rests on."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from builders import BLAS_A100, equal_rows, lora, memory_columns, priced_job
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.catalog.models.models import find_model
from autotune.catalog.software import find_software
from autotune.cost.memory import logits
from autotune.cost.memory.component import COMPONENT
from autotune.cost.memory.instants import INSTANTS
from autotune.cost.memory.modelling_code import windowed_share
from autotune.cost.memory.peak import instants
from autotune.cost.memory.step import Step
from autotune.domain.job import Job, Lengths, Method

if TYPE_CHECKING:
    from autotune.cost.columns import Columns
    from autotune.domain.model import Model

SEVEN = find_model("mistralai/Mistral-7B-v0.1")
UNSLOTH: dict[str, Any] = {"kernels": "unsloth", "flash_attn": (2, 8, 0)}


def job_of(model: Model = SEVEN, method: Method | None = None, **software: Any) -> Job:
    profile = replace(find_software(None), **{"loss": "upcast", **software})
    own = method or lora(model)
    return priced_job(model, own, 2048, global_batch_size=64, software=profile)


def columns(**knobs: Any) -> Columns:
    own = {
        "micro_batch_size": 2, "activation_checkpointing": "full", "attention": "flash_attention_2"
    }  # fmt: skip
    return memory_columns(**{**own, **knobs})


def peaks(job: Job, **knobs: Any) -> dict[str, float]:
    found = instants(Step.of(job, columns(**knobs)))
    return {name: float(item.total[0]) for name, item in found.items()}


def allocated(job: Job, **knobs: Any) -> float:
    return float(COMPONENT.price(job, columns(**knobs))["allocated"][0])


def test_fused_norms_keep_their_input_and_no_fp32_copy_of_it() -> None:
    tokens, layers, hidden = 2 * 2048, SEVEN.num_layers, SEVEN.hidden_size
    dropping = lora(SEVEN, dropout=0.1)  # which Unsloth's operations for adapters do not take
    plain, fused = (job_of(method=dropping, **software) for software in ({}, UNSLOTH))
    saved = 2.0 * hidden * tokens * (2 * layers)  # the final norm too; not the first, which is free
    none = {"activation_checkpointing": "none"}
    apart = peaks(plain, **none)["head backward"] - peaks(fused, **none)["head backward"]
    assert apart == pytest.approx(saved, rel=0.001)


def test_fused_adapters_keep_what_they_read_once_and_make_the_mlp_s_product_again() -> None:
    model, tokens = SEVEN, 2 * 2048
    found = Step.of(job_of(**UNSLOTH), columns(activation_checkpointing="none"))
    h, f, q, k = model.hidden_size, model.intermediate_size, model.query_size, model.kv_size
    norms = 2 * (2 * h + 4)
    attention = 2 * (h + q + k + k + q) + 4 * model.num_attention_heads
    assert float(found.layers[0].kept[0]) == tokens * (norms + attention + 2 * (h + 2 * f))


def test_axolotl_s_adapters_keep_as_little_as_unsloth_s_beside_norms_of_their_own() -> None:
    knobs = {"activation_checkpointing": "none"}
    own, fused, unsloth = (
        float(Step.of(job_of(**software), columns(**knobs)).layers[0].kept[0])
        for software in ({}, {"fused_adapters": True}, UNSLOTH)
    )
    norms = 2 * 2048 * 2 * (4.0 - 2.0) * SEVEN.hidden_size  # fp32 inputs of two norms
    assert fused - unsloth == pytest.approx(norms, rel=0.01)
    assert own > 1.3 * fused
    dropping = {"method": lora(SEVEN, dropout=0.1), "fused_adapters": True}
    plain = {**dropping, "fused_adapters": False}
    with_dropout, without = (
        float(Step.of(job_of(**each), columns(**knobs)).layers[0].kept[0])
        for each in (dropping, plain)
    )
    assert with_dropout == without


@pytest.mark.parametrize(
    ("loss", "as_of", "chunks"),
    [
        ("chunked", "2026-08", (1.0, 4.0, 8.0)),
        ("fused", "2026-08", (1.0, 4.0, 8.0)),
        ("chunked", "2025-12", (1.0, 1.0, 1.0)),  # the nearest, and no limit
        ("fused", "2025-03", None),
        ("inplace", "2024-05", None),
    ],
)
def test_unsloth_s_loss_makes_all_logits_where_half_of_what_is_free_holds_them(
    loss: str, as_of: str, chunks: tuple[float, ...] | None
) -> None:
    job = job_of(kernels="unsloth", loss=loss, as_of=as_of)
    free, tokens = np.asarray([12.0, 0.5, 400.0]) * 2**30, np.asarray([4096.0, 4096.0, 200_000.0])
    found = logits.sized_chunk_bytes(job, tokens, np.full(3, 2.0), free)
    count = tokens * SEVEN.vocab_size  # 0.49 GiB in fp32; 23.8 of the third are six times 4 GiB
    expected = np.zeros(3) if chunks is None else 6.0 / np.asarray(chunks)
    assert found / count == pytest.approx(expected)


def test_unsloth_s_older_losses_hold_logits_in_16_bits_and_what_accelerate_hands_on() -> None:
    tokens, two, autocast = (
        np.asarray([512.0, 4096.0]),
        np.full(2, 2.0),
        np.full(2, fill_value=True),
    )
    count = tokens * SEVEN.vocab_size
    old = job_of(kernels="unsloth", loss="inplace", as_of="2024-05")
    assert logits.forward_bytes(old, tokens, two, autocast) / count == pytest.approx(6.0)
    assert logits.backward_bytes(old, tokens, two, two, autocast) / count == pytest.approx(2.0)
    fms = job_of(kernels="unsloth", loss="inplace", trainer="fms")
    assert (logits.forward_bytes(fms, tokens, two, autocast) / count >= 8.0).all()
    cut = job_of(kernels="unsloth", loss="fused", as_of="2025-03")
    states = 6.0 * tokens * SEVEN.hidden_size
    held = logits.forward_bytes(cut, tokens, two, autocast) - states
    assert held / count == pytest.approx([2.0, 0.0])


def test_unsloth_s_segments_grow_so_that_nothing_outgrown_stays() -> None:
    found = {}
    for as_of in ("2024-03", "2024-04"):
        priced = COMPONENT.price(job_of(**UNSLOTH, as_of=as_of), columns())
        found[as_of] = float(priced["reserved"][0] - priced["allocated"][0])
    assert found["2024-04"] == 0.0 < found["2024-03"]


def test_unsloth_copies_grouped_keys_for_every_head_where_flash_is_not_installed() -> None:
    whole = {"activation_checkpointing": "none"}
    with_flash, without = (
        float(Step.of(job_of(kernels="unsloth", flash_attn=v), columns(**whole)).layers[0].kept[0])
        for v in ((2, 8, 0), None)
    )
    copies = 2.0 * 2 * (SEVEN.query_size - SEVEN.kv_size) * 2 * 2048
    assert without - with_flash == pytest.approx(copies, rel=0.3)


def test_a_head_that_was_widened_is_made_again_in_16_bits() -> None:
    base = lora(SEVEN, base="nf4")
    plain, widened = (
        peaks(job_of(method=base, kbit_upcast=kept))["head backward"] for kept in ("norms", "all")
    )
    head = SEVEN.vocab_size * SEVEN.hidden_size
    wide = 2.0 * 2.0 * head  # embedding and head, in fp32 instead of 16 bits
    assert widened - plain >= wide + 2.0 * head


def test_model_code_of_one_s_own_has_no_shifted_copy_of_its_logits() -> None:
    tokens, two = np.asarray([2048.0]), np.asarray([2.0])
    for autocast, apart in ((True, 2.0), (False, 2.0)):
        each = [
            logits.forward_bytes(
                job_of(loss="native", own_model=own), tokens, two, np.asarray([autocast])
            )
            / (tokens * SEVEN.vocab_size)
            for own in (False, True)
        ]
        assert each[0] - each[1] == pytest.approx(apart)


def test_a_reentrant_checkpoint_holds_the_recomputed_output() -> None:
    new, old = job_of(), job_of(transformers=(4, 48, 1))
    stream = 2.0 * SEVEN.hidden_size * 2 * 2048
    assert peaks(old)["first layer"] - peaks(new)["first layer"] == pytest.approx(stream)


def test_every_instant_at_which_memory_can_peak_has_words_and_a_phase() -> None:
    dora = replace(lora(SEVEN), variant="dora")
    for method in (lora(SEVEN), dora, Method("full")):
        found = instants(Step.of(job_of(method=method), columns()))
        assert found.keys() <= INSTANTS.keys()
    assert "adapted forward" in instants(Step.of(job_of(method=dora), columns()))
    assert INSTANTS["adapted forward"][0] == "forward"


def test_a_frozen_head_keeps_nothing_for_the_backward() -> None:
    tokens, hidden = 2 * 2048, SEVEN.hidden_size
    step = Step.of(job_of(), columns())
    held = instants(step)["head backward"].activations - step.saved - step.final_norm
    assert float(held[0]) == 0.0
    full = Step.of(job_of(method=Method("full")), columns())
    held = instants(full)["head backward"].activations - full.saved - full.final_norm
    assert float(held[0]) == 2.0 * hidden * tokens


def test_fsdp_gathers_two_layers_at_the_top_of_the_backward_and_one_at_its_bottom() -> None:
    job, knobs = job_of(), {"offer__count": 4, "sharding": "fsdp"}
    step = Step.of(job, columns(**knobs))
    found = instants(step)
    layer = float(step.gathered_layer[0])
    beside = {
        name: float((found[name].workspace - step.gathered_root)[0])
        for name in ("first layer", "last layer", "head forward", "saving")
    }
    casts = float((step.cached_casts / SEVEN.num_layers)[0])
    assert beside["first layer"] == pytest.approx(2 * layer + casts)
    assert beside["last layer"] == pytest.approx(layer + casts)
    assert beside["saving"] == layer
    assert beside["head forward"] == pytest.approx(float(step.cached_casts[0]))


def test_an_old_trainer_saves_a_whole_copy_of_fsdps_weights_on_every_device() -> None:
    knobs = {"offer__count": 4, "sharding": "fsdp"}
    found = {}
    for version in ((4, 31, 0), (4, 32, 0)):
        job = job_of()
        job = replace(job, software=replace(job.software, transformers=version))
        step = Step.of(job, columns(**knobs))
        saving = instants(step)["saving"].workspace - step.gathered_root
        found[version] = float(saving[0])
        assert float(step.gathered_layer[0]) < float(step.static.stored[0]) / 20
    assert found[4, 31, 0] == pytest.approx(float(step.static.stored[0]))
    assert found[4, 32, 0] == pytest.approx(float(step.gathered_layer[0]))


def test_a_bitsandbytes_of_spring_2023_saves_adapters_with_two_copies_of_an_int8_base() -> None:
    found = {}
    for version in ((0, 37, 2), (0, 38, 0), (0, 39, 0), (0, 39, 1)):
        job = job_of(method=Method("lora", rank=8, targets=("q_proj",), base="int8"))
        job = replace(job, software=replace(job.software, bitsandbytes=version))
        step = Step.of(job, columns())
        found[version] = float(instants(step)["saving"].workspace[0])
    assert found[0, 37, 2] == found[0, 39, 1] == 0.0
    assert found[0, 38, 0] == found[0, 39, 0] == pytest.approx(2.0 * step.size.linear)


@pytest.mark.parametrize(
    ("devices", "rows", "measured_gb"),
    [(2, 2, 39.99), (4, 4, 28.04), (8, 2, 22.50), (8, 4, 22.61)],
)
def test_fsdp_holds_all_gradients_of_earlier_micro_steps(
    devices: int, rows: int, measured_gb: float
) -> None:
    """Rows fms-0387, 0427, 0428 and 0431: Mistral-7B in full, two micro-steps, short rows."""
    job = job_of(method=Method("full"), autocast=False)
    job = replace(job, lengths=equal_rows(400), max_length=400)
    twice, once = (
        allocated(
            replace(job, global_batch_size=micro_steps * devices * rows),
            offer__count=devices, sharding="fsdp", micro_batch_size=rows,
        ) / 1e9
        for micro_steps in (2, 1)
    )  # fmt: skip
    assert twice == pytest.approx(measured_gb, rel=0.06)
    assert once < 0.93 * measured_gb


def test_a_trainer_that_reduces_at_each_micro_step_holds_its_share_of_gradients() -> None:
    knobs = {"offer__count": 4, "sharding": "fsdp"}
    step, own = (
        Step.of(job_of(method=Method("full"), **software), columns(**knobs)).static
        for software in ({}, {"own_model": True, "stack": "torchtune"})
    )
    assert float(step.sums[0]) == pytest.approx(4 * float(step.gradients[0]), rel=1e-6)
    assert float(own.sums[0]) == float(own.gradients[0])


def test_a_window_shorter_than_the_rows_gives_sdpa_a_mask() -> None:
    long = replace(SEVEN, sliding_window=1024)
    unmasked = allocated(job_of(), attention="sdpa", activation_checkpointing="none")
    masked = allocated(job_of(long), attention="sdpa", activation_checkpointing="none")
    assert masked > 1.04 * unmasked
    flash = {"attention": "flash_attention_2", "activation_checkpointing": "none"}
    assert allocated(job_of(long), **flash) == allocated(job_of(), **flash)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("mistralai/Mistral-7B-v0.1", 1.0),
        ("google/gemma-2-9b", 0.5),
        ("google/gemma-3-1b-pt", 1 - 4 / 26),
        ("meta-llama/Llama-2-7b-hf", 0.0),
    ],
)
def test_windows_are_counted_by_layer(name: str, share: float) -> None:
    assert windowed_share(find_model(name)) == pytest.approx(share)


# Source: Lightning-AI/litgpt tutorials/resource-tables.md (October 2023): allocated GB on an A100,
# LoRA r8 on queries and values, dropout 0.05, bf16-true, or bnb.nf4 and bnb.nf4-dq.
LITGPT = [
    ("microsoft/phi-1_5", 1044, 1, "bf16", 4.82), ("microsoft/phi-1_5", 1044, 4, "bf16", 10.68),
    ("meta-llama/Llama-2-7b-hf", 1304, 1, "bf16", 21.30),
    ("meta-llama/Llama-2-7b-hf", 1304, 2, "bf16", 29.07),
    ("meta-llama/Llama-2-13b-hf", 1304, 1, "bf16", 38.12),
    ("meta-llama/Llama-2-7b-hf", 1304, 1, "nf4", 14.14),
    ("meta-llama/Llama-2-7b-hf", 1304, 1, "nf4-dq", 13.84),
    ("meta-llama/Llama-2-13b-hf", 1304, 1, "nf4", 23.14),
    ("meta-llama/Llama-2-13b-hf", 1304, 1, "nf4-dq", 22.55),
]  # fmt: skip


@pytest.mark.parametrize(("name", "length", "rows", "weights", "published"), LITGPT)
def test_litgpt_runs_match_their_published_peak(
    name: str, length: int, rows: int, weights: str, published: float
) -> None:
    model = find_model(name)
    activation = "gelu" if model.activation.startswith("gelu") else model.activation
    model = replace(model, activation=activation)
    base = "16bit" if weights == "bf16" else "nf4"
    method = lora(model, base, dropout=0.05, double_quant=weights == "nf4-dq")
    method = replace(method, rank=8, targets=("q_proj", "v_proj"))
    job = job_of(
        model, method, own_model=True, stack="litgpt", loss="chunked", autocast=False,
        transformers=(4, 35), bitsandbytes=(0, 41, 1), torch=(2, 1, 0),
    )  # fmt: skip
    lengths = Lengths((float(length), float(length)), float(length), length, known=True)
    job = replace(job, lengths=lengths, max_length=length)
    found = peaks(
        job, micro_batch_size=rows, attention="sdpa", activation_checkpointing="none",
        adapter_dtype="bf16", optimizer="adamw_torch",
    )  # fmt: skip
    assert (max(found.values()) + BLAS_A100) / 1e9 == pytest.approx(published, rel=0.03)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["full", "lora", "nf4"]),
    st.sampled_from(["ddp", "zero2", "zero3", "fsdp"]),
    st.sampled_from(["none", "full"]),
    st.integers(1, 4),
)
def test_states_of_one_device_never_grow_with_the_number_of_devices(
    kind: str, sharding: str, checkpointing: str, rows: int
) -> None:
    method = Method("full") if kind == "full" else lora(SEVEN, kind if kind == "nf4" else "16bit")
    knobs = {
        "sharding": sharding,
        "micro_batch_size": rows,
        "activation_checkpointing": checkpointing,
    }
    job = job_of(method=method)
    statics = [Step.of(job, columns(offer__count=n, **knobs)).static for n in (2, 4, 8)]
    for fewer, more in pairwise(statics):
        for name in ("weights", "adapters", "gradients", "optimizer"):
            assert float(getattr(more, name)[0]) <= float(getattr(fewer, name)[0])
    totals = [allocated(job, offer__count=n, **knobs) for n in (2, 4, 8)]
    assert totals == sorted(totals, reverse=True)
