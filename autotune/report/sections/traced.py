"""What a trace found about memory, in sentences and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.units import format_bytes
from autotune.report.layout.blocks import Paragraph

if TYPE_CHECKING:
    from autotune.domain.answer.traced import AtOp, MemoryTrace

EXPANDABLE = "PYTORCH_ALLOC_CONF=expandable_segments:True"


def traced_payload(trace: MemoryTrace | None) -> dict[str, Any] | None:
    """The trace of a row; None for rows whose memory rests on the formula."""
    if trace is None:
        return None
    from dataclasses import asdict

    return {**asdict(trace), "layers": list(trace.layers)}


def traced_blocks(trace: dict[str, Any] | None) -> tuple[Paragraph, ...]:
    """Where the peak is, and what the allocator makes of it."""
    if trace is None:
        return ()
    blocks = [Paragraph(_peak(trace))]
    if trace["allocator"] is not None:
        blocks += _allocator(trace["allocator"])
    return tuple(blocks)


def _peak(trace: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in trace["versions"].items())
    layers = trace["layers"]
    depth = f"{layers[0]} layers" if len(layers) == 1 else f"{layers[0]} and {layers[-1]} layers"
    phases = ", ".join(f"{name} {format_bytes(size)}" for name, size in trace["phases"].items())
    return (
        f"Traced through {versions}, {depth}: at most {format_bytes(trace['allocated_bytes'])} "
        f"allocated, {_at(trace['phase'], trace['op'])}. By phase: {phases}."
    )


def _at(phase: str, op: str) -> str:
    return f"in phase {phase} at {op}" if op else f"in phase {phase}"


def _allocator(run: dict[str, Any]) -> list[Paragraph]:
    largest = run["largest"]
    slack = run["reserved_bytes"] - run["in_use_bytes"]
    first = (
        f"Simulated allocator, three steps: reserves {format_bytes(run['reserved_bytes'])} where "
        f"there is room ({format_bytes(slack)} more than is in use), the last of it in step "
        f"{largest['step']} {_at(largest['phase'], largest['op'])}. It gets by with "
        f"{format_bytes(run['needed_bytes'])}, or {format_bytes(run['expandable_needed_bytes'])} "
        f"with {EXPANDABLE}."
    )
    capacity = format_bytes(run["capacity_bytes"])
    failed, expandable = run["out_of_memory"], run["expandable_out_of_memory"]
    if failed is None:
        flushes = run["flushes"]
        how = "without giving any of its cache back"
        if flushes:
            how = f"after giving its cache back {flushes} time{'s' * (flushes > 1)}, which is slow"
        return [Paragraph(first), Paragraph(f"Within {capacity} it goes on {how}.")]
    second = f"Within {capacity} it runs out of memory {_failure(failed)}"
    second += (
        f"; with {EXPANDABLE} it does not."
        if expandable is None
        else f"; with {EXPANDABLE} {_failure(expandable)}."
    )
    return [Paragraph(first), Paragraph(second, "bad")]


def _failure(failed: dict[str, Any] | AtOp) -> str:
    assert isinstance(failed, dict)  # noqa: S101 - payloads hold plain values
    return (
        f"in step {failed['step']} {_at(failed['phase'], failed['op'])}, "
        f"asking for {format_bytes(failed['size_bytes'])}"
    )
