"""Which left-out configurations were called a fit, and how many of those runs ran out of memory.

A source that reports runs that ran out of memory beside runs that finished is counted run by run. A
source that reports only runs that finished hides how often such runs fail: each of its groups of
source, model and device counts as one run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.cost.spread.fit_claims import CLAIM_KINDS, CROWDED, ROOMY, Claims
from autotune.domain.outcome import FEASIBLE_PROBABILITY
from autotune.evidence.fit.time import left_out_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autotune.evidence.record.case import MeasuredCase

    Group = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class FitClaim:
    """One configuration that was called a fit by a prediction that has not seen its group."""

    group: Group
    kind: str
    failed: bool
    run_by_run: bool  # its source reports failures too


@dataclass(frozen=True, slots=True)
class FitClaims:
    """All of them."""

    each: tuple[FitClaim, ...]

    def without(self, group: Group | None) -> dict[str, Claims]:
        """The counts by kind, a group's own claims left aside."""
        kept = [claim for claim in self.each if claim.group != group]
        return {kind: _counted([c for c in kept if c.kind == kind]) for kind in CLAIM_KINDS}


def _counted(claims: Sequence[FitClaim]) -> Claims:
    runs = [claim for claim in claims if claim.run_by_run]
    groups = {claim.group for claim in claims if not claim.run_by_run}
    return Claims(len(runs) + len(groups), sum(claim.failed for claim in runs))


def both_outcomes(cases: Iterable[MeasuredCase]) -> set[str]:
    """Sources that report runs that ran out of memory beside runs that finished."""
    ended: dict[str, set[bool]] = {}
    for case in cases:
        ended.setdefault(case.group[0], set()).add(bool(case.oom))
    return {source for source, found in ended.items() if len(found) > 1}


def fit_claims(
    cases: Sequence[MeasuredCase], predicted: Mapping[str, Mapping[str, float]]
) -> FitClaims:
    """The claims among left-out predictions. cases: each configuration once."""
    sources = both_outcomes(cases)
    return FitClaims(
        tuple(
            FitClaim(
                left_out_key(case),
                CROWDED if own["crowded"] else ROOMY,
                bool(case.oom),
                case.group[0] in sources,
            )
            for case in cases
            if _offered(own := predicted[case.id])
        )
    )


def _offered(own: Mapping[str, float]) -> bool:
    room = own["total"] <= own["usable"] and not own["certain_oom"]
    return bool(room and own["fits_probability"] >= FEASIBLE_PROBABILITY)
