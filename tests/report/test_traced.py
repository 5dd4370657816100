"""What a reader is told about a traced row."""

from __future__ import annotations

from dataclasses import replace

from autotune.domain.outcome import AllocatorRun, AtOp, MemoryTrace
from autotune.report.sections.memory import EXPANDABLE, traced_blocks, traced_payload

GIB = 2.0**30
TRACE = MemoryTrace(
    allocated_bytes=40 * GIB, formula_bytes=39 * GIB, phase="backward", op="mm",
    phases={"forward": 38 * GIB, "backward": 40 * GIB}, layers=(2, 4),
    versions={"transformers": "5.23.0"}, same_software=True,
)  # fmt: skip
RUN = AllocatorRun(
    capacity_bytes=45 * GIB, reserved_bytes=50 * GIB, in_use_bytes=40 * GIB, needed_bytes=44 * GIB,
    largest=AtOp(2, "forward", "cat", GIB), flushes=2, out_of_memory=None,
    expandable_needed_bytes=41 * GIB, expandable_out_of_memory=None,
)  # fmt: skip


def said(trace: MemoryTrace | None) -> str:
    return "\n".join(block.text for block in traced_blocks(traced_payload(trace)))


def test_rows_without_a_trace_say_nothing() -> None:
    assert traced_payload(None) is None
    assert said(None) == ""


def test_the_peak_is_named_by_phase_and_op() -> None:
    text = said(TRACE)
    assert "40.0 GiB allocated, in phase backward at mm" in text
    assert "2 and 4 layers" in text
    assert "forward 38.0 GiB" in text
    assert "allocator" not in text


def test_reserved_bytes_and_what_the_run_gets_by_with_are_stated() -> None:
    text = said(replace(TRACE, allocator=RUN))
    assert "reserves 50.0 GiB" in text
    assert "10.0 GiB more than is in use" in text
    assert "step 2 in phase forward at cat" in text
    assert "gets by with 44.0 GiB, or 41.0 GiB with " + EXPANDABLE in text
    assert "giving its cache back 2 times" in text


def test_a_run_that_runs_out_says_where_and_whether_expandable_segments_help() -> None:
    failed = AtOp(1, "optimizer", "states", 2 * GIB)
    text = said(replace(TRACE, allocator=replace(RUN, out_of_memory=failed)))
    assert "Within 45.0 GiB it runs out of memory in step 1 in phase optimizer at states" in text
    assert "asking for 2.0 GiB" in text
    assert "it does not." in text
    both = replace(RUN, out_of_memory=failed, expandable_out_of_memory=replace(failed, op="mm"))
    assert "it does not." not in said(replace(TRACE, allocator=both))
