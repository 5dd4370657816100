"""Whether the odds of an answer's limits follow from its own intervals, and are what it says."""

from __future__ import annotations

import math
import re
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from autotune.report.sections.limits import chances

if TYPE_CHECKING:
    from collections.abc import Iterator

Payload = dict[str, Any]
CLOSE = 1e-6
BUDGET = "budget"
P50, P90 = 0.5, 0.9
_NORMAL = NormalDist()


def limits_of(payload: Payload) -> dict[str, tuple[float, str]]:
    """The stated limits: the value, and the figure of a row that it is held against."""
    limits = payload["job"]["limits"]
    stated = {
        "deadline": (limits["deadline_s"], "duration_s"),
        "max_session": (limits["max_session_s"], "duration_s"),
        BUDGET: (limits["budget_usd"], "cost_usd"),
    }
    return {name: (value, of) for name, (value, of) in stated.items() if value is not None}


def missed(row: Payload, payload: Payload, caution: float = 1.0) -> dict[str, float]:
    """Limits that a row does not keep, and how far it lies beyond them at the asked quantile.

    Worked out from p50 and p90 alone: log-normal above the middle. caution: so much longer, where
    what nobody measured is to keep no limit.
    """
    confidence = payload["job"]["limits"]["confidence"]
    share = _NORMAL.inv_cdf(confidence) / _NORMAL.inv_cdf(P90)
    found = {}
    for name, (limit, figure) in limits_of(payload).items():
        middle, high = row[figure]["p50"], row[figure]["p90"]
        if middle <= 0:
            continue
        held = caution * middle * (high / middle) ** share
        if held > limit * (1 + 1e-9):
            found[name] = held - limit
    return found


def odds_follow(row: Payload, told: list[Payload], payload: Payload) -> Iterator[str]:
    """Each stated limit is told once, with a probability that the interval gives."""
    stated, asked = limits_of(payload), payload["job"]["limits"]["confidence"]
    if [each["limit"] for each in told] != list(stated):
        yield f"limits {list(stated)} are stated and {[e['limit'] for e in told]} are told"
        return
    for each in told:
        limit, figure = stated[each["limit"]]
        chance = each["probability"]
        if each["value"] != limit:
            yield f"{each['limit']} is {limit}, and {each['value']} is told"
        if each["kept"] != (chance >= asked):
            yield f"{each['limit']} is kept: {each['kept']}, with {chance} where {asked} is asked"
        if row[figure]["p50"] <= limit < row[figure]["p90"] and not P50 <= chance <= P90 + CLOSE:
            yield f"{each['limit']} lies between p50 and p90, and its probability is {chance}"
        if row[figure]["p90"] <= limit and chance < P90 - CLOSE:
            yield f"{each['limit']} lies above p90, and its probability is {chance}"
        if row[figure]["p50"] > limit and chance > P50 + CLOSE:
            yield f"{each['limit']} lies below the middle, and its probability is {chance}"
    beyond = missed(row, payload)
    for each in told:
        if each["kept"] == (each["limit"] in beyond) and not _at_the_edge(each, asked):
            yield f"{each['limit']} is kept: {each['kept']}, and the interval says otherwise"


def _at_the_edge(each: Payload, asked: float) -> bool:
    return math.isclose(each["probability"], asked, rel_tol=CLOSE)


def limits_agree(payload: Payload) -> Iterator[str]:
    """Of an answer of `tune` or `estimate`: its limits, and what is said to be missed."""
    row = payload.get("row") or payload.get("best")
    if row is None:
        if payload["limits"] or payload["misses"]:
            yield "nothing fits, and limits are kept or missed"
        return
    yield from odds_follow(row, payload["limits"], payload)
    if "misses" in payload:
        yield from misses_follow(row, payload["limits"], payload["misses"], payload)


def misses_follow(
    row: Payload, odds: list[Payload], told: list[Payload], payload: Payload
) -> Iterator[str]:
    """What is missed is what is not kept, by what the interval says."""
    by = {miss["limit"]: miss["by"] for miss in told}
    late = [each["limit"] for each in odds if not each["kept"]]
    if list(by) != late:
        yield f"limits that are not kept are {late}, and {list(by)} are told to be missed"
    beyond = missed(row, payload)
    for name, value in by.items():
        if name in beyond and not math.isclose(value, beyond[name], rel_tol=1e-6, abs_tol=1e-6):
            yield f"{name} is missed by {beyond[name]}, and {value} is told"


def odds_told(payload: Payload, text: str) -> Iterator[str]:
    """Every sentence about a limit has its own odds, and each limit has a sentence."""
    told = payload.get("limits") or []
    asked = chances(payload["job"]["limits"]["confidence"])
    true = {chances(each["probability"]) for each in told}
    odds = r"(?:under |over )?\d+ chances? in \d+"
    for found in re.findall(rf"(?:kept with |missed \()({odds})", text):
        if found not in true:
            yield f"a limit is said to be kept with {found}, and the odds are {sorted(true)}"
    for found in re.findall(rf"({odds}) are asked for", text):
        if found != asked:
            yield f"{found} are said to be asked for, and {asked} are"
    for each in told:
        own = chances(each["probability"])
        if f"kept with {own}" not in text and f"missed ({own})" not in text:
            yield f"the odds of {each['limit']} are not told"
