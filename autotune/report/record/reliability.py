"""The probability of fitting as it was said, beside how often such runs fitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.units import format_count
from autotune.report.layout.blocks import Block, Paragraph, Section, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TITLE = "Chance of fitting, as said and as seen"
_KINDS = {
    "roomy": "where what the allocator caches leaves room",
    "crowded": "where it would fill the memory",
}


def reliability_section(
    bins: Sequence[Mapping[str, Any]], claims: Mapping[str, Mapping[str, Any]]
) -> Section:
    """One line a bin that has runs, and how sure a claim may be."""
    rows = tuple(
        (
            f"{own['low']:g} to {own['high']:g}",
            format_count(own["n"]),
            f"{own['predicted']:.3f}",
            f"{own['observed']:.3f}",
            f"{own['p10']:.3f} to {own['p90']:.3f}",
            format_count(own["finished_only"]),
        )
        for own in bins
        if own["n"]
    )
    if not rows:
        return Section(TITLE, ())
    titles = ("said", "runs", "said, mean", "fitted", "80 % interval", "no failures told")
    blocks: tuple[Block, ...] = (Table(titles, rows, frozenset(range(1, 6))),)
    note = (
        "No failures told: of the runs, those of sources that report only runs that finished, "
        "which cannot show a failure."
    )
    blocks += (Paragraph(note, "quiet"),)
    return Section(TITLE, (*blocks, *_bounds(claims)))


def _bounds(claims: Mapping[str, Mapping[str, Any]]) -> tuple[Block, ...]:
    words = [
        f"{own['bears']:.3f} {_KINDS[kind]} ({own['failures']} of {format_count(own['n'])} such "
        "claims failed)"
        for kind, own in claims.items()
    ]
    if not words:
        return ()
    return (Paragraph(f"No answer claims more than {', or '.join(words)}."),)
