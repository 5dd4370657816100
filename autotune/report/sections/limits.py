"""What was stated beside an answer and whether it holds: the limits of a job, and a speed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from autotune.domain.answer.limits import odds
from autotune.domain.job import BUDGET, DEADLINE, SESSION, Limits
from autotune.domain.units import format_count, format_seconds, format_usd
from autotune.report.layout.blocks import Paragraph, Section, Tone, bullets, section, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.domain.answer.limits import LimitOdds
    from autotune.report.schema import LimitsPayload, Row

CERTAIN, HARDLY = 0.995, 0.01  # hundredths end here
SLOW = 2.0  # likely speed over a claimed one: from here the claim is of a slow run
LATE = {DEADLINE: "past the deadline", SESSION: "longer than a session", BUDGET: "over the budget"}
MAY_BE_LATE = {
    DEADLINE: "may be past the deadline", SESSION: "may outlast a session",
    BUDGET: "may be over the budget",
}  # fmt: skip


def stated_limits(limits: LimitsPayload) -> dict[str, float]:
    """The limits that somebody stated, by their names in JSON."""
    names = ("deadline_s", "budget_usd", "max_session_s")
    return {name: limits[name] for name in names if limits[name] is not None}


def odds_of_row(limits: LimitsPayload, row: Row) -> tuple[LimitOdds, ...]:
    """How likely a row keeps each stated limit."""
    stated = Limits(
        vram_headroom=0.0, max_lost_work_s=0.0, deadline_s=limits.deadline_s,
        budget_usd=limits.budget_usd, max_session_s=limits.max_session_s,
        confidence=limits.confidence,
    )  # fmt: skip
    return odds(stated, row.duration_s, row.cost_usd)


def missed_words(limits: LimitsPayload, row: Row) -> dict[str, str]:
    """Of each limit that a row does not keep: whether its middle is past it, or it only may be."""
    middle = {
        DEADLINE: row.duration_s.p50, SESSION: row.duration_s.p50,
        BUDGET: row.cost_usd.p50,
    }  # fmt: skip
    return {
        each.limit: (LATE if middle[each.limit] > each.value else MAY_BE_LATE)[each.limit]
        for each in odds_of_row(limits, row)
        if not each.kept
    }


def limit_phrases(found: Sequence[LimitOdds], confidence: float) -> tuple[str, str]:
    """What is kept and what is missed, each in a clause or empty."""
    alike: dict[str, list[str]] = {}
    for each in found:
        if each.kept:
            alike.setdefault(_odds(each), []).append(_limit(each))
    kept = [f"{' and '.join(limits)}: kept with {odds}" for odds, limits in alike.items()]
    missed = [(f"{_limit(each)} missed ({_odds(each)})") for each in found if not each.kept]
    needed = " and ".join(_limit_figure(each, each.held) for each in found if not each.kept)
    which = "they" if len(missed) > 1 else "it"
    asked = f". To keep {which.replace('they', 'them')} with {chances(confidence)}, {which} would "
    asked += f"have to be {needed}"
    return "; ".join(kept), "; ".join(missed) + (asked if missed else "")


def _limit(each: LimitOdds) -> str:
    return f"{_name(each.limit)} of {_limit_figure(each, each.value)}"


def _name(limit: str) -> str:
    return limit.replace("_", " ")


def _odds(each: LimitOdds) -> str:
    return chances(each.probability)


def _limit_figure(each: LimitOdds, value: float) -> str:
    return format_usd(value) if each.limit == BUDGET else format_seconds(value)


def chances(probability: float) -> str:
    """A probability as chances, never rounded up: "8 chances in 10", "93 chances in 100"."""
    if probability < HARDLY:
        return "under 1 chance in 100"
    if probability >= CERTAIN:
        return "over 99 chances in 100"
    hundredths = math.floor(100.0 * probability + 1e-9)
    tenths, rest = divmod(hundredths, 10)
    count, among = (hundredths, 100) if rest else (tenths, 10)
    return f"{count} chance{'' if count == 1 else 's'} in {among}"


CONTRADICTIONS = "What does not add up in the job file"
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
    if claim["verdict"] == "plausible" and _slow(claim):
        words, tone = "is possible, but far slower than this job should be", "warn"
    likely = claim["likely"]
    rates = (
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
    return section(
        "The claim",
        Paragraph(f'"{claim["stated"]}" {words}.', tone),
        Paragraph(f"{claim['reason'][:1].upper()}{claim['reason'][1:]}."),
        table(rates, "", ">tokens/s", ">TFLOP/s"),
        Paragraph(span),
    )


def _slow(claim: Mapping[str, Any]) -> bool:
    """Whether the likely speed is many times the claimed one."""
    return bool(claim["likely"]["tokens_per_s"] > SLOW * claim["implied_tokens_per_s"])


def contradictions_section(found: Sequence[str]) -> Section:
    """What the job file says of its plan or of its measurements that does not hold."""
    return section(CONTRADICTIONS, bullets(found, "warn"))


def _tera(flop_per_s: float) -> str:
    return f"{flop_per_s / 1e12:,.3g}" if flop_per_s < 1e15 else f"{flop_per_s / 1e12:,.0f}"  # noqa: PLR2004 - display
