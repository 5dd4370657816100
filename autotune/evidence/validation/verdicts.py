"""Whether runs fitted as was said: wrong verdicts with their causes, and the probability by bin.

A false fit is a run that ran out of memory although tune would have offered its configuration; a
false alarm is a run that finished although the predicted need is more than the device has; a run at
risk finished and was expected to, with less certainty than tune asks for. Rates also with every
group of source, model and GPU weighing the same. Every configuration counts once.

Sources that report only runs that finished cannot show a failure; how many of a bin's runs are
theirs is counted beside it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

from autotune.domain.outcome import Z90
from autotune.domain.units import format_bytes
from autotune.evidence.cases import both_outcomes, memory_cases
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.evidence.accuracy import Prediction
    from autotune.evidence.cases import MeasuredCase


Verdict = Literal["false_fit", "false_oom", "at_risk"]
SAME_NEED = 0.005  # predicted needs this close are the same situation
CLOSE = 0.01  # [share] a predicted peak this close to the measured one is right
FULL = 0.95  # of the capacity: the driver saw a full card


@dataclass(frozen=True, slots=True)
class WrongVerdict:
    """A run whose verdict was wrong or not sure enough, and what we believe happened."""

    id: str
    verdict: Verdict
    fits_probability: float
    required_bytes: float
    available_bytes: float
    measured_bytes: float | None  # allocated, where torch read it
    believed: str


@dataclass(frozen=True, slots=True)
class OomCounts:
    """Counts over distinct configurations; shares with groups weighted equally, None without any.

    listed: ids of false fits and false alarms. wrong: those and the runs at risk, explained.
    """

    oom_rows: int
    false_fits: int
    fit_rows: int
    false_ooms: int
    at_risk_fits: int
    listed: tuple[str, ...]
    false_fit_share: float | None = None
    false_oom_share: float | None = None
    at_risk_share: float | None = None
    wrong: tuple[WrongVerdict, ...] = ()


def verdicts(cases: Sequence[MeasuredCase], predictions: dict[str, Prediction]) -> OomCounts:
    """The counts, and every wrong verdict with its probable cause."""
    kept = memory_cases(cases)
    ooms, fits = [c for c in kept if c.oom], [c for c in kept if not c.oom]
    said = {case.id: _verdict(case, predictions[case.id]) for case in kept}
    wrong = [
        _explained(case, verdict, predictions, kept)
        for kind in ("false_fit", "false_oom", "at_risk")
        for case in kept
        if (verdict := said[case.id]) == kind
    ]
    counts = {kind: sum(v == kind for v in said.values()) for kind in _KINDS}
    return OomCounts(
        oom_rows=len(ooms),
        false_fits=counts["false_fit"],
        fit_rows=len(fits),
        false_ooms=counts["false_oom"],
        at_risk_fits=counts["at_risk"],
        listed=tuple(item.id for item in wrong if item.verdict != "at_risk"),
        false_fit_share=_share(ooms, said, "false_fit"),
        false_oom_share=_share(fits, said, "false_oom"),
        at_risk_share=_share(fits, said, "at_risk"),
        wrong=tuple(wrong),
    )


_KINDS: tuple[Verdict, ...] = ("false_fit", "false_oom", "at_risk")


def _verdict(case: MeasuredCase, found: Prediction) -> Verdict | None:
    if case.oom:
        return "false_fit" if found.accepted else None
    if found.over:
        return "false_oom"
    return None if found.accepted else "at_risk"


def _share(
    cases: Sequence[MeasuredCase], said: dict[str, Verdict | None], kind: Verdict
) -> float | None:
    """Mean over groups of source, model and GPU of the share of a verdict."""
    groups: dict[tuple[str, ...], list[float]] = {}
    for case in cases:
        groups.setdefault(case.group[:3], []).append(float(said[case.id] == kind))
    if not groups:
        return None
    return float(np.mean([np.mean(own) for own in groups.values()]))


def _explained(
    case: MeasuredCase,
    verdict: Verdict,
    predictions: dict[str, Prediction],
    kept: Sequence[MeasuredCase],
) -> WrongVerdict:
    own = predictions[case.id]
    reasons = [
        _formula(case, own),
        _other_outcome(case, predictions, kept),
        _full_card(case, own),
        _own_code(case),
    ]
    believed = "; ".join(reason for reason in reasons if reason)
    return WrongVerdict(
        id=case.id,
        verdict=verdict,
        fits_probability=own.fits_probability,
        required_bytes=own.memory["total"],
        available_bytes=own.usable_bytes,
        measured_bytes=case.peak_bytes("allocated"),
        believed=believed or _margin(case, own),
    )


def _formula(case: MeasuredCase, own: Prediction) -> str:
    """Whether the formula was off where torch read the peak."""
    torch_read = case.peak_bytes("allocated")
    if torch_read is None:
        return ""
    ratio = own.memory["allocated"] / torch_read - 1.0
    if abs(ratio) <= CLOSE:
        return ""
    word = "too much" if ratio > 0 else "too little"
    read = format_bytes(torch_read)
    return f"predicted {100 * abs(ratio):.1f} % {word} (torch read {read} allocated)"


def _other_outcome(
    case: MeasuredCase, predictions: dict[str, Prediction], kept: Sequence[MeasuredCase]
) -> str:
    """Runs of the same source that need the same and ended otherwise: the edge of the card."""
    need = predictions[case.id].memory["total"]
    same = [
        other.id
        for other in kept
        if other.oom != case.oom
        and other.group[0] == case.group[0]
        and other.offer == case.offer
        and abs(predictions[other.id].memory["total"] / need - 1.0) <= SAME_NEED
    ]
    if not same:
        return ""
    ended = "ran" if case.oom else "ran out of memory"
    more = f" and {len(same) - 2} more" if len(same) > 2 else ""  # noqa: PLR2004 - two are named
    return f"the edge of the card: {', '.join(same[:2])}{more} need the same and {ended}"


def _full_card(case: MeasuredCase, own: Prediction) -> str:
    reserved = case.peak_bytes("reserved")
    held = case.peak_bytes("nvidia-smi") if reserved is None else reserved
    if not held or held < FULL * own.usable_bytes:
        return ""
    what = "the driver read" if reserved is None else "torch held"
    room = format_bytes(own.usable_bytes)
    return f"a full card that gave cached segments back: {what} {format_bytes(held)} of {room}"


def _own_code(case: MeasuredCase) -> str:
    software = case.job.software
    if not software.own_model:
        return ""
    if case.peak is None:
        return (
            f"{software.stack} has model code of its own and its table no memory: that its runs "
            "finished is all that bounds them"
        )
    return f"{software.stack} has model code of its own, known by an offset only"


def _margin(case: MeasuredCase, own: Prediction) -> str:
    room = own.usable_bytes - own.memory["total"]
    side = "left" if room > 0 else "missing"
    ended = "ran out of memory" if case.oom else "finished"
    return f"{format_bytes(abs(room))} {side} by the prediction, and it {ended}"


EDGES = (0.0, 0.01, 0.1, 0.5, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Runs whose probability of fitting was said to lie from `low` up to `high`.

    n: runs, `finished_only` of them of sources that report no failures. predicted: mean of what was
    said. observed: share that fitted, with its 80 % interval. None where there is no run.
    """

    low: float
    high: float
    n: int
    finished_only: int
    predicted: float | None = None
    observed: float | None = None
    p10: float | None = None
    p90: float | None = None


def reliability(
    cases: Sequence[MeasuredCase], predictions: Mapping[str, Prediction]
) -> tuple[ReliabilityBin, ...]:
    """Every bin, the least sure first."""
    kept = memory_cases(cases)
    sources = both_outcomes(kept)
    binned: list[list[MeasuredCase]] = [[] for _ in EDGES[1:]]
    for case in kept:
        binned[bin_of(predictions[case.id].fits_probability)].append(case)
    return tuple(
        _bin(i, own, [predictions[c.id].fits_probability for c in own], sources)
        for i, own in enumerate(binned)
    )


def bin_of(probability: float) -> int:
    """The bin that a probability falls into; an edge belongs to the bin above it."""
    return max(sum(probability >= edge for edge in EDGES[:-1]) - 1, 0)


def _bin(
    i: int, cases: Sequence[MeasuredCase], said: Sequence[float], sources: set[str]
) -> ReliabilityBin:
    n, low, high = len(cases), EDGES[i], EDGES[i + 1]
    hidden = sum(case.group[0] not in sources for case in cases)
    if not n:
        return ReliabilityBin(low, high, 0, 0)
    fitted = sum(not case.oom for case in cases)
    p10, p90 = share_interval(fitted, n)
    return ReliabilityBin(low, high, n, hidden, sum(said) / n, fitted / n, p10, p90)


def share_interval(hits: float, n: int) -> tuple[float, float]:
    """80 % interval of a share.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference" (1927).
    """
    share, extra = hits / n, Z90**2 / n
    middle = (share + extra / 2.0) / (1.0 + extra)
    half = Z90 * math.sqrt(share * (1.0 - share) / n + extra / (4.0 * n)) / (1.0 + extra)
    return max(middle - half, 0.0), min(middle + half, 1.0)
