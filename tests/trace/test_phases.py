"""Evaluation, generation and saving against real CPU runs; a run of three steps end to end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from builders import needs

from autotune.trace.request import StepRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.trace.tracker import Tracker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # peft reads names transformers renamed
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
needs("torch", "peft")

SMALL = {
    "model_type": "llama", "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 704,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
REQUEST = StepRequest(
    model=SMALL, num_layers=3, micro_batch_size=4, seq_len=256, precision="bf16", base="16bit",
    attention="eager", activation_checkpointing="none", optimizer="adamw_torch_fused", rank=8,
    targets=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    autocast=False, evaluation_rows=4,
)  # fmt: skip


def phase(tracker: Tracker, name: str) -> int:
    """[bytes] the most that was alive in a phase."""
    return max(peak.total for (of, _), peak in tracker.peaks.items() if of == name)


def allocated_on_cpu(request: StepRequest, action: Callable[[Any, Any], object]) -> int:
    """[bytes] the most that an action allocates on a real model, by the profiler's events."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from autotune.trace.step import build

    model: Any = build(request)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point():
                tensor.normal_(std=0.02)
    model.eval()
    ids = torch.ones(request.evaluation_rows, request.seq_len, dtype=torch.long)
    with (
        torch.no_grad(),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof,
    ):
        kept = action(model, ids)
    del kept
    live = highest = 0
    events = [e for e in prof.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        highest = max(highest, live)
    return highest


@pytest.mark.parametrize("rank", [0, 8])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_evaluation_agrees_with_a_real_cpu_run(rank: int, precision: str) -> None:
    from autotune.trace.step import trace_step

    base = "32bit" if precision == "fp32" else "16bit"
    request = replace(REQUEST, rank=rank, precision=precision, base=base)
    tracker = trace_step(request)
    real = allocated_on_cpu(
        request, lambda model, ids: model(input_ids=ids, labels=ids, use_cache=False).loss
    )
    assert phase(tracker, "evaluation") - phase(tracker, "save") == pytest.approx(real, rel=0.005)


@pytest.mark.parametrize("rank", [0, 8])
def test_generation_agrees_with_a_real_cpu_run_of_generate(rank: int) -> None:
    import torch

    from autotune.trace.step import trace_step

    tokens = 96
    # In bf16 the CPU's own product kernel copies a weight that a GPU reads where it is.
    request = replace(
        REQUEST, rank=rank, seq_len=64, generate_tokens=tokens, precision="fp32", base="32bit"
    )
    tracker = trace_step(request)

    def generated(model: Any, ids: Any) -> object:
        model.config.use_cache = True
        return model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens,
            min_new_tokens=tokens, do_sample=False, pad_token_id=0, use_cache=True,
        )  # fmt: skip

    real = allocated_on_cpu(request, generated)
    assert phase(tracker, "generation") - phase(tracker, "save") == pytest.approx(real, rel=0.03)


def test_generation_holds_a_longer_cache_for_more_tokens() -> None:
    from autotune.trace.step import trace_step

    short, long = (
        phase(trace_step(replace(REQUEST, seq_len=64, generate_tokens=n)), "generation")
        for n in (200, 1200)
    )
    layers, width, rows = 3, 2 * 64, 4
    a_layer_twice = 1 + 1 / layers  # the last token's cache is a copy, one layer at a time
    cached = 2 * 2 * layers * width * rows * 1000  # keys and values, 16-bit
    assert long - short == pytest.approx(cached * a_layer_twice, rel=0.25)


def test_saving_copies_nothing() -> None:
    from autotune.trace.step import trace_step

    for rank in (0, 8):
        tracker = trace_step(replace(REQUEST, rank=rank))
        resident = tracker.peaks["load", "resident"].total
        states = tracker.peaks["optimizer", "adamw"].parts["optimizer"]
        assert phase(tracker, "save") == resident + states


@pytest.mark.parametrize(
    "changes",
    [{}, {"rank": 0}, {"activation_checkpointing": "full"}, {"rank": 0, "accumulates": True}],
)
def test_three_steps_of_a_run_agree_with_one_step_in_the_long_run(changes: dict[str, Any]) -> None:
    from autotune.trace.answers import simulate
    from autotune.trace.step import trace_run, trace_step

    request = replace(REQUEST, **changes)
    run, step = trace_run(request), trace_step(request)
    most = max(peak.total for peak in run.peaks.values())
    assert most == pytest.approx(max(p.total for p in step.peaks.values()), rel=1e-3)
    assert run.events is not None
    live = highest = 0
    for event in run.events:
        live += event.size
        highest = max(highest, live)
    assert highest == most
    found = simulate(run.events)
    # A block that is hardly larger than what was asked is handed out whole.
    assert most <= found.allocated <= found.reserved
    assert found.allocated <= most * 1.25
    first = [e for e in run.events if e.op == "states" and e.size > 0]
    assert {event.step for event in first} == {1}


def test_the_first_step_lacks_the_states_that_the_later_ones_carry() -> None:
    from autotune.trace.answers import simulate
    from autotune.trace.step import trace_run

    run = trace_run(replace(REQUEST, rank=0, seq_len=32))
    assert run.events is not None
    first = [event for event in run.events if event.step <= 1 and event.phase != "optimizer"]
    keys: set[int] = set()
    alone = []
    for event in first:  # frees of what the left-out phase allocated go too
        if event.size > 0:
            keys.add(event.key)
        elif event.key not in keys:
            continue
        alone.append(event)
    assert simulate(run.events).reserved > simulate(alone).reserved


def test_library_workspaces_are_taken_once_for_each_thread() -> None:
    from autotune.trace.step import trace_run

    run = trace_run(REQUEST, blas_bytes=64 * 2**20)
    assert run.events is not None
    taken = [event for event in run.events if event.size == 32 * 2**20]
    assert [(event.step, event.phase) for event in taken] == [(1, "forward"), (1, "backward")]
    assert not [e for e in run.events if e.size == -32 * 2**20 and e.step < 3]


@pytest.mark.parametrize("changes", [{}, {"rank": 0, "activation_checkpointing": "full"}])
def test_remembered_shapes_change_nothing(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.trace import tracker
    from autotune.trace.step import trace_step

    request = replace(REQUEST, autocast=True, dropout=0.1, generate_tokens=8, **changes)
    trace_step(request)
    remembered = trace_step(request).peaks
    monkeypatch.setattr(tracker, "MOST_REMEMBERED", 0)
    monkeypatch.setattr(tracker, "_ops", {})
    assert remembered == trace_step(request).peaks
