"""What became of a stated speed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.units import format_count, format_seconds
from autotune.report.layout.blocks import Bullets, Paragraph, Section, Table, Tone, columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONTRADICTIONS = "What the job file says and what does not hold"
_TITLE: dict[str, tuple[str, Tone]] = {
    "impossible": ("is impossible", "bad"),
    "beyond_observed": ("is beyond anything observed", "warn"),
    "plausible": ("is plausible", "good"),
}


def claim_section(claim: Mapping[str, Any] | None) -> Section:
    """The verdict, its reason, and the rates side by side."""
    if claim is None:
        return Section("", ())
    words, tone = _TITLE[claim["verdict"]]
    likely = claim["likely"]
    rows = (
        ("stated", format_count(claim["implied_tokens_per_s"]), _tera(claim["implied_flop_per_s"])),
        ("likely", format_count(likely["tokens_per_s"]), _tera(likely["flop_per_s"])),
        ("highest observed", "", _tera(claim["observed_flop_per_s"])),
        ("ceiling", "", _tera(claim["ceiling_flop_per_s"])),
    )
    span = (
        f"Likely: {format_seconds(likely['step_time_s'])} a step, "
        f"{format_seconds(likely['duration_s']['p10'])} to "
        f"{format_seconds(likely['duration_s']['p90'])} in all."
    )
    blocks = (
        Paragraph(f'"{claim["stated"]}" {words}.', tone),
        Paragraph(f"{claim['reason'][:1].upper()}{claim['reason'][1:]}."),
        Table(columns("", ">tokens/s", ">TFLOP/s"), rows),
        Paragraph(span),
    )
    return Section("The claim", blocks)


def contradictions_section(found: Sequence[str]) -> Section:
    """What the job file says of its plan or of its measurements that does not hold."""
    return Section(CONTRADICTIONS, (Bullets(tuple(found), "warn"),) if found else ())


def _tera(flop_per_s: float) -> str:
    return f"{flop_per_s / 1e12:,.3g}" if flop_per_s < 1e15 else f"{flop_per_s / 1e12:,.0f}"  # noqa: PLR2004 - display
