"""Why one of several answers was taken: what it is tied with, and what decided between equals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.units import format_seconds, format_usd
from autotune.report.phrases import LEAST_TOLD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.domain.answer.recommendation import Difference
    from autotune.domain.answer.tiebreak import Tiebreak
    from autotune.report.schema import RecommendationPayload


def tiebreak_phrase(found: Tiebreak | None, row: Mapping[str, Any]) -> str:
    """Why a machine was taken that costs the same as another; empty where no tiebreak decided.

    row: the machine with its `duration_s` and `cost_usd`.
    """
    if not found:
        return ""
    usd, hours = format_usd(found.cost_usd), format_seconds(found.duration_s)
    if found.by == "cost":
        own = format_usd(row["cost_usd"]["p50"])
        return (
            f"It takes as long as {found.over} ({hours}) and costs clearly less: {own}, not {usd}."
        )
    own = format_seconds(row["duration_s"]["p50"])
    return (
        f"It costs the same as {found.over} ({usd}) and ends clearly sooner: in {own}, not {hours}."
    )


def tie_phrase(payload: RecommendationPayload) -> str:
    """What a tie is with, and which of them was taken; empty where there is none."""
    best, ties = payload.best, payload.ties
    if not best or not ties:
        return ""
    one = "the next best" if ties == (0,) else "one of the alternatives"
    count = f"{len(ties)} alternatives" if len(ties) > 1 else one
    text = f"Too close to call: nothing known separates it from {count}"
    close = [each for each in payload.differences if each.place in ties]
    if close:
        text = f"Too close to call: {count} may be {_between(close)}"
    rows = [payload.alternatives[place] for place in ties]
    least = min(row.duration_s.p50 for row in rows)
    if best.basis == "measured" and least < best.duration_s.p50:
        text += f" (the fastest took {format_seconds(least)}); this is the simpler one"
    return f"{text}."


def _between(close: Sequence[Difference]) -> str:
    """How much better and how much worse; "just as good" below one in a hundred."""
    low, high = min(each.low for each in close), max(each.high for each in close)
    if max(-low, high) < LEAST_TOLD:
        return "just as good"
    better = f"up to {-low * 100:.0f} % better" if low <= -LEAST_TOLD else "just as good"
    to = "" if low <= -LEAST_TOLD else "up to "
    return f"{better} or {to}{max(high, 0.0) * 100:.0f} % worse"
