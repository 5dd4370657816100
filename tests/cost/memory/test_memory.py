from __future__ import annotations

import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import BLAS_A100, lora, memory_columns, memory_row, priced_job
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.catalog.devices import find_device
from autotune.catalog.models.models import find_model
from autotune.catalog.software import find_software
from autotune.cost.columns import Columns
from autotune.cost.memory.component import COMPONENT
from autotune.cost.memory.modelling_code import FMS
from autotune.cost.parameters import parameter_count, resolve_targets
from autotune.domain.job import Evaluation, Job, Lengths, Limits, Method
from autotune.domain.outcome import MemoryParts

GOLDEN = tomllib.loads((Path(__file__).parents[2] / "golden" / "memory.toml").read_text("utf-8"))
CASES = [
    pytest.param(published, row, id=row["id"])
    for published in GOLDEN["set"]
    for row in published["rows"]
]
PARTS = tuple(MemoryParts.__dataclass_fields__)
A100 = find_device("a100-sxm4-80gb")
TINY = find_model("Qwen/Qwen2-0.5B")
SEVEN = find_model("meta-llama/Llama-2-7b-hf")


def make_job(
    model: Any = TINY, method: Method | None = None, length: int = 512, **changed: Any
) -> Job:
    fields: dict[str, Any] = {
        "rows": 1000, "steps": 100, "global_batch_size": 64, "limits": Limits(0.08, 1800.0),
    }  # fmt: skip
    return priced_job(model, method or Method("full"), length, **{**fields, **changed})


DEFAULTS = memory_row()


def price(job: Job, **knobs: Any) -> dict[str, float]:
    return {k: float(v[0]) for k, v in COMPONENT.price(job, memory_columns(**knobs)).items()}


def golden_case(published: dict[str, Any], row: dict[str, Any]) -> dict[str, float]:
    row = {**published, **row}
    model = find_model(row["model"])
    method = Method("full", row["base"])
    if row["kind"] == "lora":
        targets = resolve_targets(model, row["targets"])
        method = Method("lora", row["base"], row["rank"], 16.0, row.get("dropout", 0.0), targets)
    software = replace(
        find_software(None),
        loss=row["loss"],
        autocast=row.get("autocast", True),
        kbit_upcast=row.get("kbit", "none"),
        kernels=row.get("kernels", "eager"),
        trainer=FMS if row.get("kernels") == "unsloth" else "",  # fms-acceleration's copies of them
    )
    if "transformers" in row:
        software = replace(software, transformers=tuple(row["transformers"]))
    batch, gpus = row["rows"], row.get("gpus", 1)
    job = make_job(model, method, row["length"], software=software, global_batch_size=batch * gpus)
    return price(
        job,
        offer__count=gpus,
        sharding=row.get("sharding", "none"),
        micro_batch_size=batch,
        precision=row.get("precision", "bf16"),
        activation_checkpointing=row["checkpointing"],
        attention=row["attention"],
        optimizer=row["optimizer"],
        adapter_dtype=row.get("adapter", "fp32"),
    )


@pytest.mark.parametrize(("published", "row"), CASES)
def test_allocated_bytes_are_those_published(
    published: dict[str, Any], row: dict[str, Any]
) -> None:
    found = golden_case(published, row)["allocated"]
    if "cuBLAS" in published["source"]:
        found -= BLAS_A100
    assert found / published["unit"] == pytest.approx(row["peak"], rel=0.03)


def test_median_error_over_published_gpu_rows_is_below_one_percent() -> None:
    published = GOLDEN["set"][0]
    errors = [
        abs(golden_case(published, row)["allocated"] / 1e9 / row["peak"] - 1)
        for row in published["rows"]
    ]
    assert len(errors) == 19
    assert float(np.median(errors)) < 0.01


def test_states_of_full_fine_tuning_are_eight_bytes_a_parameter_in_16_bit() -> None:
    count = parameter_count(SEVEN)
    parts = price(make_job(SEVEN, length=16), micro_batch_size=1)
    assert parts["weights"] == 2 * count
    assert parts["gradients"] == 2 * count
    assert parts["optimizer"] == 4 * count


def test_foreach_adamw_peaks_one_copy_of_the_trained_weights_above_fused() -> None:
    job = make_job(SEVEN, length=16, global_batch_size=1)
    fused = price(job, micro_batch_size=1)["allocated"]
    foreach = price(job, micro_batch_size=1, optimizer="adamw_torch")["allocated"]
    assert foreach - fused == pytest.approx(2 * parameter_count(SEVEN), rel=0.02)


def test_8_bit_states_are_a_quarter_of_fp32_and_paged_states_are_not_allocated() -> None:
    job = make_job(SEVEN, lora(SEVEN))
    full = price(job)["optimizer"]
    assert price(job, optimizer="adamw_bnb_8bit")["optimizer"] == pytest.approx(
        full / 4 * (1 + 4 / 256)
    )
    assert price(job, optimizer="paged_adamw_8bit")["optimizer"] == 0.0


def test_nf4_weights_are_codes_scales_and_unquantised_embeddings() -> None:
    linear = sum(x.in_features * x.out_features for x in SEVEN.linears) * SEVEN.num_layers
    rest = parameter_count(SEVEN) - linear
    found = price(make_job(SEVEN, lora(SEVEN, "nf4")))["weights"]
    assert found == pytest.approx(linear * (1 / 2 + 1 / 64 + 1 / 4096) + 2 * rest)


def test_int8_stores_a_byte_an_element_and_keeps_the_inputs_of_frozen_linears() -> None:
    int8 = price(make_job(SEVEN, lora(SEVEN, "int8", "attention")))
    half = price(make_job(SEVEN, lora(SEVEN, "16bit", "attention")))
    assert int8["weights"] < 0.55 * half["weights"]
    assert int8["activations"] > half["activations"]


def test_parts_sum_to_total_and_total_is_what_is_judged() -> None:
    found = price(make_job(SEVEN, lora(SEVEN)))
    assert sum(found[name] for name in PARTS) == pytest.approx(found["total"], rel=1e-12)
    assert found["allocated"] + found["context"] + found["fragmentation"] == pytest.approx(
        found["total"]
    )


def test_usable_is_torch_total_less_headroom_of_the_driver_total() -> None:
    found = price(make_job())
    headroom = 0.08 * A100.memory_driver_bytes
    assert found["usable"] == pytest.approx(A100.memory_torch_bytes - headroom)
    assert found["capacity"] == A100.memory_torch_bytes


def test_full_fine_tuning_of_seven_billion_does_not_fit_a_small_card() -> None:
    found = price(make_job(SEVEN), offer__device=find_device("rtx-4090"))
    assert found["certain_oom"] == 1.0
    assert found["fits_probability"] < 0.01
    assert price(make_job())["fits_probability"] > 0.99


def test_fits_probability_is_one_half_where_the_need_equals_the_capacity() -> None:
    found = price(make_job(SEVEN, lora(SEVEN)))
    need = found["allocated"] + found["context"] + found["fragmentation"]
    tight = replace(A100, memory_torch_bytes=need)
    assert price(make_job(SEVEN, lora(SEVEN)), offer__device=tight)[
        "fits_probability"
    ] == pytest.approx(0.5)


def test_what_the_allocator_caches_never_exceeds_what_is_left() -> None:
    job = make_job(SEVEN, lora(SEVEN))
    need = price(job)
    tight = replace(A100, memory_torch_bytes=need["allocated"] + need["context"] + 1e6)
    assert price(job, offer__device=tight)["reserved"] == pytest.approx(need["allocated"] + 1e6)


def test_what_the_allocator_caches_decides_nothing() -> None:
    job = make_job(TINY, length=512)
    ragged = replace(job, lengths=Lengths((10.0, 100.0, 512.0), 150.0, 512, known=True))
    varied, fixed = (
        price(one, attention="flash_attention_2", micro_batch_size=1) for one in (ragged, job)
    )
    assert varied["reserved"] > fixed["reserved"]
    assert varied["total"] == fixed["total"]
    emptied = replace(ragged, software=replace(ragged.software, empties_cache=True))
    flash = {"attention": "flash_attention_2", "micro_batch_size": 1}
    assert price(emptied, **flash)["reserved"] < varied["reserved"]


def test_adapters_under_a_reentrant_checkpoint_and_fsdp_keep_inputs_and_their_gradients() -> None:
    model, length, rows = SEVEN, 2048, 4
    new = make_job(model, lora(model), length, global_batch_size=2 * rows)
    old = replace(new, software=replace(new.software, transformers=(4, 48, 1)))
    knobs = {"activation_checkpointing": "full", "micro_batch_size": rows}
    fsdp = {**knobs, "offer__count": 2, "sharding": "fsdp"}
    stream = 2 * model.hidden_size * rows * length
    grown = price(old, **fsdp)["activations"] - price(old, **knobs)["activations"]
    assert grown > (model.num_layers - 2) * stream
    assert price(new, **fsdp)["activations"] <= price(old, **fsdp)["activations"] - 0.4 * grown
    said = replace(old, software=replace(old.software, reentrant=False))
    assert price(said, **fsdp) == price(new, **fsdp)
    full = replace(old, method=Method("full"))
    assert price(full, **fsdp)["allocated"] < price(full, **knobs)["allocated"]


def test_int8_inputs_stay_beside_a_checkpoint_and_nf4_inputs_do_not() -> None:
    knobs = {"activation_checkpointing": "full", "micro_batch_size": 4}
    held = [
        price(make_job(SEVEN, lora(SEVEN, base), 1024), **knobs)["activations"]
        for base in ("int8", "nf4")
    ]
    inner = 2 * SEVEN.intermediate_size * 4 * 1024 * SEVEN.num_layers
    assert held[0] - held[1] > inner


def test_a_padding_mask_expands_keys_of_grouped_heads_under_sdpa_only() -> None:
    ragged = replace(
        make_job(TINY, length=512), lengths=Lengths((10.0, 512.0), 150.0, 512, known=True)
    )
    flat = make_job(TINY, length=512)
    micro = {"micro_batch_size": 4}
    assert price(ragged, **micro)["allocated"] > price(flat, **micro)["allocated"]
    flash = {"attention": "flash_attention_2", **micro}
    assert price(ragged, **flash)["allocated"] == price(flat, **flash)["allocated"]


@pytest.mark.parametrize(("device", "precision"), [("t4", "fp16"), ("a100-sxm4-80gb", "fp32")])
def test_grouped_heads_without_a_mask_fall_back_to_scores_where_flash_cannot_run(
    device: str, precision: str
) -> None:
    job = make_job(TINY, lora(TINY, "32bit"), length=2048)
    own = {"offer__device": find_device(device), "precision": precision, "micro_batch_size": 1}
    ungrouped = replace(TINY, num_kv_heads=TINY.num_attention_heads)
    scores = 4 * 2048**2 * TINY.num_attention_heads * TINY.num_layers
    math = price(job, **own)["activations"]
    fused = price(replace(job, model=ungrouped), **own)["activations"]
    assert math - fused > 0.5 * scores


def test_accumulated_gradients_are_alive_during_the_forward() -> None:
    long = make_job(TINY, length=2048, global_batch_size=8)
    once = price(replace(long, global_batch_size=8), micro_batch_size=8)
    twice = price(replace(long, global_batch_size=16), micro_batch_size=8)
    assert once["gradients"] == 0.0
    assert twice["gradients"] == 2 * parameter_count(TINY)


def test_chunked_and_fused_losses_never_hold_all_logits() -> None:
    job = make_job(TINY, lora(TINY), length=2048)
    whole = price(job)["allocated"]
    for loss in ("chunked", "fused", "liger"):
        tiled = price(replace(job, software=replace(job.software, loss=loss)))
        assert tiled["allocated"] < 0.7 * whole


def test_evaluation_at_a_large_batch_can_be_the_peak() -> None:
    job = make_job(TINY, lora(TINY), length=512)
    plan = Evaluation(rows=100, every_steps=10, batch_size=64)
    grown = price(replace(job, evaluation=plan), micro_batch_size=1)
    assert grown["allocated"] > price(job, micro_batch_size=1)["allocated"]
    logits = 64 * 512 * TINY.vocab_size
    assert grown["logits"] == 10.0 * logits


def test_generation_keeps_keys_and_values_of_every_layer() -> None:
    plan = Evaluation(rows=100, every_steps=10, batch_size=4, generate_tokens=2000)
    job = make_job(SEVEN, lora(SEVEN), length=256, steps=0, evaluation=plan)
    longer = replace(job, evaluation=replace(plan, generate_tokens=3000))
    cache = 2 * SEVEN.kv_size * SEVEN.num_layers * 2 * 4 * 1000
    assert price(longer)["allocated"] - price(job)["allocated"] == pytest.approx(cache)


def test_scoring_fills_a_cache_only_before_transformers_5() -> None:
    plan = Evaluation(rows=100, every_steps=10, batch_size=4)
    new = make_job(SEVEN, lora(SEVEN), length=256, steps=0, evaluation=plan)
    old = replace(new, software=replace(new.software, transformers=(4, 57, 0)))
    cache = 2 * SEVEN.kv_size * SEVEN.num_layers * 2 * 4 * 256
    assert price(old)["allocated"] - price(new)["allocated"] == pytest.approx(cache)


def test_an_evaluation_only_job_needs_no_gradients() -> None:
    plan = Evaluation(rows=100, every_steps=0, batch_size=1)
    found = price(make_job(SEVEN, lora(SEVEN), steps=0, evaluation=plan))
    assert found["gradients"] == 0.0


def test_a_cpu_has_no_blas_workspace_and_a_process_for_context() -> None:
    cpu = replace(A100, name="cpu", vendor="cpu", compute_capability=0.0)
    found, gpu = price(make_job(), offer__device=cpu), price(make_job())
    assert gpu["workspace"] - found["workspace"] == pytest.approx(BLAS_A100)
    assert found["context"] == pytest.approx(0.6e9)


def test_reading_is_limited_to_what_is_declared() -> None:
    one = {name: [value] for name, value in DEFAULTS.items()}
    assert set(one) == set(COMPONENT.reads)
    for name in COMPONENT.reads:
        left = {key: value for key, value in one.items() if key != name}
        with pytest.raises(LookupError, match=name):
            COMPONENT.price(make_job(), Columns(left, 1))


METHODS = st.sampled_from(
    ["full-16bit", "full-32bit", "lora-16bit", "lora-32bit", "lora-nf4", "lora-int8"]
)
KNOBS = st.fixed_dictionaries(
    {
        "activation_checkpointing": st.sampled_from(["none", "full"]),
        "attention": st.sampled_from(["eager", "sdpa", "flash_attention_2"]),
        "optimizer": st.sampled_from(
            ["adamw_torch_fused", "adamw_torch", "adamw_bnb_8bit", "paged_adamw_8bit"]
        ),
        "adapter_dtype": st.sampled_from(["fp32", "bf16"]),
        "compile": st.sampled_from(["off", "default"]),
    }
)


def job_of(method: str, length: int = 256, model: Any = TINY) -> Job:
    kind, base = method.split("-")
    own = Method("full", base) if kind == "full" else lora(model, base)  # type: ignore[arg-type]
    return make_job(model, own, length)


@settings(max_examples=60, deadline=None)
@given(METHODS, KNOBS, st.integers(1, 16), st.integers(1, 2000), st.integers(1, 500))
def test_memory_never_falls_when_batch_length_or_layers_grow(
    method: str, knobs: dict[str, Any], rows: int, length: int, more: int
) -> None:
    job = replace(job_of(method, length), global_batch_size=10**7)  # always accumulates
    allocated = price(job, micro_batch_size=rows, **knobs)["allocated"]
    assert price(job, micro_batch_size=rows + more, **knobs)["allocated"] >= allocated
    longer = replace(job_of(method, length + more), global_batch_size=10**7)
    assert price(longer, micro_batch_size=rows, **knobs)["allocated"] >= allocated
    deeper = replace(job, model=replace(TINY, num_layers=TINY.num_layers + 1))
    assert price(deeper, micro_batch_size=rows, **knobs)["allocated"] >= allocated


@settings(max_examples=40, deadline=None)
@given(METHODS, KNOBS, st.integers(1, 16), st.integers(16, 2000))
def test_checkpointing_never_costs_memory(
    method: str, knobs: dict[str, Any], rows: int, length: int
) -> None:
    job = job_of(method, length)
    knobs = {**knobs, "micro_batch_size": rows}
    none = price(job, **{**knobs, "activation_checkpointing": "none"})["allocated"]
    full = price(job, **{**knobs, "activation_checkpointing": "full"})["allocated"]
    assert full <= none * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(METHODS, KNOBS, st.integers(1, 8), st.sampled_from(["fsdp", "zero2", "zero3"]))
def test_memory_never_rises_with_the_sharding_degree(
    method: str, knobs: dict[str, Any], rows: int, sharding: str
) -> None:
    job = replace(job_of(method, 512, SEVEN), global_batch_size=4096)
    found = [
        price(job, micro_batch_size=rows, sharding=sharding, offer__count=count, **knobs)
        for count in (1, 2, 4, 8)
    ]
    alone = price(job, micro_batch_size=rows, **knobs)["allocated"]
    if sharding == "fsdp":  # DeepSpeed's fp32 masters and buckets are there on one device too
        assert found[0]["allocated"] == alone
    for fewer, more in pairwise(found):
        assert more["allocated"] <= fewer["allocated"] * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(KNOBS, st.integers(1, 8), st.integers(16, 1024), st.booleans())
def test_wider_numbers_never_take_less(
    knobs: dict[str, Any], rows: int, length: int, full: bool
) -> None:
    knobs = {**knobs, "micro_batch_size": rows}
    half = price(job_of("full-16bit" if full else "lora-16bit", length), **knobs)["allocated"]
    wide = job_of("full-32bit" if full else "lora-32bit", length)
    assert price(wide, **knobs)["allocated"] >= half
    assert (
        price(wide, **{**knobs, "precision": "fp32", "adapter_dtype": "fp32"})["allocated"] >= half
    )
    assert price(wide, precision="fp32", **knobs) == price(wide, precision="tf32", **knobs)


@settings(max_examples=40, deadline=None)
@given(METHODS, KNOBS, st.integers(1, 64), st.integers(16, 4096))
def test_parts_are_never_negative_and_always_sum(
    method: str, knobs: dict[str, Any], rows: int, length: int
) -> None:
    found = price(job_of(method, length), micro_batch_size=rows, **knobs)
    assert all(found[name] >= 0 for name in PARTS)
    assert sum(found[name] for name in PARTS) == pytest.approx(found["total"], rel=1e-12)


def test_rows_are_priced_independently_of_each_other() -> None:
    job = job_of("lora-16bit")
    values = [
        {**DEFAULTS, "micro_batch_size": b, "attention": a, "precision": p, "optimizer": o}
        for b in (1, 4)
        for a in ("eager", "sdpa")
        for p in ("bf16", "fp32")
        for o in ("adamw_torch", "adamw_bnb_8bit")
    ]
    columns = Columns({name: [v[name] for v in values] for name in DEFAULTS}, len(values))
    together = COMPONENT.price(job, columns)
    for i, value in enumerate(values):
        alone = price(job, **{name.replace(".", "__"): item for name, item in value.items()})
        assert {name: float(array[i]) for name, array in together.items()} == pytest.approx(alone)
