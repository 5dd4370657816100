"""The tracker against real CPU runs, against full depth, and against published GPU numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from builders import needs

from autotune.trace.client import Traced, TraceFailed, Tracer
from autotune.trace.request import StepRequest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # peft reads names transformers renamed
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
needs("torch", "peft")

GIB = 2**30
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ATTENTION = ALL[:4]
LLAMA_7B = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
}  # fmt: skip
MISTRAL_7B = {
    **LLAMA_7B, "model_type": "mistral", "intermediate_size": 14336, "num_key_value_heads": 8,
    "sliding_window": None,
}  # fmt: skip
QWEN2_HALF_B = {
    "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
    "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}  # fmt: skip
SMALL = {
    "model_type": "llama", "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 704,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
BASE = StepRequest(
    model=LLAMA_7B, num_layers=32, micro_batch_size=4, seq_len=2048, precision="bf16",
    base="16bit", attention="sdpa", activation_checkpointing="none",
    optimizer="adamw_torch_fused", rank=16, targets=ALL,
)  # fmt: skip


def peak(tracer: Tracer, request: StepRequest, *, full: bool = False) -> float:
    found = tracer.trace(request, full=full)
    assert isinstance(found, Traced), found
    assert sum(found.parts.values()) == pytest.approx(found.peak_bytes, rel=1e-12)
    return found.peak_bytes


def cpu_peak_bytes(request: StepRequest) -> int:
    """Peak of the same step really run on the CPU, summed from the profiler's allocation events."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from autotune.trace.step import build

    model = build(request)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point():
                tensor.normal_(std=0.02)
    ids = torch.zeros(request.micro_batch_size, request.seq_len, dtype=torch.long)
    static = sum(t.untyped_storage().nbytes() for t in [*model.parameters(), *model.buffers()])
    states = 2 * sum(p.untyped_storage().nbytes() for p in model.parameters() if p.requires_grad)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
    live = highest = 0
    events = [e for e in prof.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        highest = max(highest, live)
    return static + states + highest


@pytest.mark.parametrize("rank", [0, 8])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_tracker_agrees_with_a_real_cpu_run(
    rank: int, checkpointing: str, precision: str
) -> None:
    from autotune.trace.step import trace_step

    request = replace(
        BASE, model=SMALL, num_layers=3, micro_batch_size=4, seq_len=256, attention="eager",
        precision=precision, base="32bit" if precision == "fp32" else "16bit", autocast=False,
        activation_checkpointing=checkpointing, rank=rank, optimizer="adamw_torch_fused",
    )  # fmt: skip
    traced = max(p.total for p in trace_step(request).peaks.values())
    assert traced == pytest.approx(cpu_peak_bytes(request), rel=0.002)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation_checkpointing": "full"},
        {"rank": 0, "optimizer": "adamw_torch"},
        {"base": "nf4", "activation_checkpointing": "full"},
        {"model": QWEN2_HALF_B, "num_layers": 24, "rank": 0},
    ],
)
def test_two_small_depths_extrapolate_to_the_full_depth(
    tracer: Tracer, changes: dict[str, object]
) -> None:
    request = replace(BASE, **changes)
    assert peak(tracer, request) == pytest.approx(peak(tracer, request, full=True), rel=1e-4)


# Source: an independent tracker on the same class, torch 2.13 and transformers 5.23 (GiB).
@pytest.mark.parametrize(
    ("changes", "gib"),
    [
        ({"activation_checkpointing": "full", "autocast": False}, 18.1),
        ({"autocast": False, "adapter_dtype": "bf16"}, 57.3),
        ({}, 65.6),
        ({"autocast": False}, 83.0),
        ({"dropout": 0.05}, 74.2),
        ({"activation_checkpointing": "full", "dropout": 0.05}, 18.1),
    ],
)
def test_llama2_7b_lora_matches_an_independent_trace(
    tracer: Tracer, changes: dict[str, object], gib: float
) -> None:
    assert peak(tracer, replace(BASE, **changes)) / GIB == pytest.approx(gib, abs=0.06)


CUBLAS_BYTES = 17.0e6  # two handles of 8.125 MiB on an A100; inside torch's published counters
# Source: foundation-model-stack/fms-acceleration, scripts/benchmarks/refs/a100_80gb.csv (876e2ed),
# peak torch allocated bytes of one A100-80GB, transformers 4.48, sequences packed to 4096.
PUBLISHED = [
    ({"rank": 0, "autocast": False}, 4, 72.435e9),
    ({"rank": 0, "autocast": False}, 8, 72.435e9),
    ({"targets": ATTENTION, "autocast": False}, 4, 26.705e9),
    ({"targets": ATTENTION, "autocast": False}, 8, 38.743e9),
    ({"targets": ATTENTION, "base": "nf4"}, 4, 16.374e9),
    ({"targets": ATTENTION, "base": "nf4"}, 8, 28.412e9),
]


@pytest.mark.parametrize(("changes", "micro_batch_size", "published"), PUBLISHED)
def test_mistral_7b_matches_published_allocated_bytes_within_half_a_percent(
    tracer: Tracer, changes: dict[str, object], micro_batch_size: int, published: float
) -> None:
    request = replace(
        BASE, model=MISTRAL_7B, seq_len=4096, micro_batch_size=micro_batch_size,
        activation_checkpointing="full", optimizer="adamw_torch", loss="upcast_copy", **changes,
    )  # fmt: skip
    assert peak(tracer, request) + CUBLAS_BYTES == pytest.approx(published, rel=0.005)


def test_a_cached_trace_needs_no_process(tracer: Tracer) -> None:
    first = tracer.trace(BASE)
    with Tracer(cache=tracer.cache) as other:
        again = other.trace(BASE)
        assert other._process is None
    assert isinstance(first, Traced)
    assert isinstance(again, Traced)
    assert again.cached
    assert again.peak_bytes == first.peak_bytes


def test_a_model_whose_code_fails_is_an_answer_and_the_next_trace_works(tracer: Tracer) -> None:
    broken = tracer.trace(replace(BASE, model={**LLAMA_7B, "num_attention_heads": 31}))
    unknown = tracer.trace(replace(BASE, model={**LLAMA_7B, "model_type": "no-such-model"}))
    assert isinstance(broken, TraceFailed)
    assert isinstance(unknown, TraceFailed)
    assert unknown.kind == "unsupported"
    assert "no-such-model" in unknown.message
    assert peak(tracer, BASE) > 0


def test_a_trace_that_hangs_is_stopped_and_reported(tmp_path: Path) -> None:
    with Tracer(cache=tmp_path, limit_s=0.01) as impatient:
        found = impatient.trace(BASE)
    assert isinstance(found, TraceFailed)
    assert found.kind == "timeout"


def test_padding_masks_cost_memory(tracer: Tracer) -> None:
    assert peak(tracer, replace(BASE, padded=True)) > peak(tracer, BASE)


A100_BYTES = 85_097_971_712  # torch.cuda total_memory of an A100-SXM4-80GB
CONTEXT_BYTES = 500 * 2**20


# Source: as above; the driver's reading (nvidia-smi) of the same runs, MiB. Both ran.
@pytest.mark.parametrize(
    ("changes", "micro_batch_size", "driver_mib"),
    [
        ({"rank": 0, "autocast": False}, 8, 72_988),
        ({"targets": ATTENTION, "autocast": False}, 8, 43_232),
    ],
)
def test_runs_that_fit_an_a100_fit_its_simulated_allocator(
    tracer: Tracer, changes: dict[str, object], micro_batch_size: int, driver_mib: int
) -> None:
    request = replace(
        BASE, model=MISTRAL_7B, seq_len=4096, micro_batch_size=micro_batch_size,
        activation_checkpointing="full", optimizer="adamw_torch", loss="upcast_copy", **changes,
    )  # fmt: skip
    found = tracer.run(
        request, capacity_bytes=A100_BYTES - CONTEXT_BYTES, blas_bytes=int(CUBLAS_BYTES)
    )
    assert isinstance(found, Traced), found
    allocator = found.allocator
    assert allocator.limited.out_of_memory is None
    assert allocator.expandable.out_of_memory is None
    assert found.peak_bytes <= allocator.needed <= allocator.roomy.reserved
    # What it gets by with is a lower bound of what the driver saw, and what it holds is near it.
    assert allocator.needed + CONTEXT_BYTES < driver_mib * 2**20 * 1.01
    assert allocator.limited.reserved + CONTEXT_BYTES == pytest.approx(driver_mib * 2**20, rel=0.12)
