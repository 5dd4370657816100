"""What `autotune compare` answers: a row a machine, and what decides between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from autotune.domain.answer.contract import Answer
from autotune.domain.answer.limits import misses
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.domain.answer.limits import LimitOdds, Miss, ShortRows
    from autotune.domain.answer.tiebreak import Tiebreak
    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated, ShortOf


@dataclass(frozen=True, slots=True)
class Split:
    """The best config of an offer with one way of sharing the work; row None: nothing fits."""

    sharding: str
    row: Estimated | None


@dataclass(frozen=True, slots=True)
class OneDevice:
    """Whether one device of a kind holds the job alone. row: its bill, where it does."""

    row: Estimated | None
    required_bytes: float
    available_bytes: float


@dataclass(frozen=True, slots=True)
class SpotTerms(Answer):
    """A spot offer against the same machine on demand.

    break_even_per_day: interruptions at which both cost the same; None: cheaper at any rate.
    """

    interruptions_per_day: float
    on_demand_usd: float
    break_even_per_day: float | None


@dataclass(frozen=True, slots=True)
class Compared:
    """The best config of one offer, and where it stands among the others.

    tie: within 1 % of the cheapest. could_be_cheapest: the low end of its 80 % range is below the
    cheapest's median. flip_usd_per_hour: below this price it would be the cheapest; for the
    cheapest itself, the price above which it no longer is. None: no price of its own decides.
    """

    row: Estimated
    limits: tuple[LimitOdds, ...]
    tie: bool = False
    could_be_cheapest: bool = False
    flip_usd_per_hour: float | None = None
    sessions: int = 1
    one_device: OneDevice | None = None  # offers of several devices
    splits: tuple[Split, ...] = ()  # the same
    spot: SpotTerms | None = None
    short_rows: ShortRows | None = None  # where nobody stated how long the rows are

    @property
    def misses(self) -> tuple[Miss, ...]:
        """The limits that it does not keep with the asked probability."""
        return misses(self.limits)

    def order(self, objective: Literal["cost", "time"]) -> tuple[float, float, str]:
        """What puts it before or behind another: cost then time, or time then cost."""
        own = self.row
        first, second = own.cost_usd.p50, own.duration_s.p50
        if objective == "time":
            first, second = second, first
        return first, second, own.offer.label


@dataclass(frozen=True, slots=True)
class NotFitting:
    """An offer on which nothing fits, or nothing is valid (bytes None).

    short_of: what it has too little of; None where what rejects it is no shortage.
    """

    offer: Offer
    reason: str
    short_of: ShortOf | None = None
    required_bytes: float | None = None
    available_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One job over its offers. rows: cheapest first. within: the best that respects all limits.

    leads: what to rent, `within` or the best there is: a device that no training step was measured
    on leads only where it wins at the slow end of its interval. may_be_better: those that would be
    expected to beat it, the most promising first.
    """

    variant: str
    job: Job
    rows: tuple[Compared, ...]
    infeasible: tuple[NotFitting, ...]
    cheapest: Compared | None
    fastest: Compared | None
    within: Compared | None
    tie: bool
    priced: int
    space_size: int
    warnings: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()  # of the job file, with its first variant
    leads: Compared | None = None
    tiebreak: Tiebreak | None = None  # why `leads` leads, where a tiebreak decided
    may_be_better: tuple[Compared, ...] = ()


@dataclass(frozen=True, slots=True)
class Scaling:
    """A straight line through the variants of one offer that differ in nothing but their rows.

    off: the largest relative distance of a variant's duration from the line.
    """

    offer: Offer
    sizes: tuple[int, ...]
    fixed_s: float
    s_per_row: float
    fixed_usd: float
    usd_per_row: float
    off: float
    label: str = ""  # what else the variants have in common

    @staticmethod
    def through(points: Sequence[tuple[int, Compared]], label: str) -> Scaling:
        """Least squares through the medians of some numbers of rows.

        Source: derived: loading, compiling and the final save happen once, the rest by the row.
        """
        ordered = sorted(points, key=lambda point: point[0])
        sizes = np.asarray([rows for rows, _ in ordered], np.float64)
        seconds = np.asarray([found.row.duration_s.p50 for _, found in ordered], np.float64)
        slope, fixed = (float(x) for x in np.polyfit(sizes, seconds, 1, w=1.0 / seconds))
        offer = ordered[0][1].row.offer
        return Scaling(
            offer=offer,
            sizes=tuple(rows for rows, _ in ordered),
            fixed_s=fixed,
            s_per_row=slope,
            fixed_usd=fixed * offer.usd_per_s,
            usd_per_row=slope * offer.usd_per_s,
            off=float(np.max(np.abs((fixed + slope * sizes) / seconds - 1.0))),
            label=label,
        )


@dataclass(frozen=True, slots=True)
class Comparisons:
    """A file's jobs, compared: one, or one a variant."""

    parts: tuple[Comparison, ...]
    scaling: tuple[Scaling, ...] = ()
    wall_seconds: float = 0.0
    fidelity: str = "formula"

    @property
    def rows(self) -> tuple[Compared, ...]:
        """Every row of every part, the cheapest first."""
        found = (row for part in self.parts for row in part.rows)
        return tuple(sorted(found, key=lambda own: (own.row.cost_usd.p50, own.row.duration_s.p50)))

    @property
    def cheapest(self) -> Compared | None:
        """The row that costs least; None where nothing fits."""
        return next(iter(self.rows), None)

    @property
    def fastest(self) -> Compared | None:
        """The row that ends soonest; None where nothing fits."""
        return min(self.rows, key=lambda own: own.row.duration_s.p50, default=None)

    @property
    def leads(self) -> Compared | None:
        """What to rent; None where nothing fits, and of several variants, whose choice is yours."""
        return self.parts[0].leads if len(self.parts) == 1 else None
