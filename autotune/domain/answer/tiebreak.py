"""Why a machine was taken where another one costs the same: it ends clearly sooner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.answer.contract import Answer
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.domain.device import Offer
    from autotune.domain.outcome import Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiebreak(Answer):
    """The machine that was passed over, and what it takes and costs; the tie is within 1 %.

    over: as --gpu takes it. by: time where what is minimised is money, cost where it is time.
    duration_s [s] and cost_usd [USD] are expected.
    """

    over: str
    by: str
    duration_s: float
    cost_usd: float

    @classmethod
    def of(cls, offer: Offer, objective: str, duration_s: Spread, cost_usd: Spread) -> Tiebreak:
        """The tiebreak over a machine with its time and money. objective: cost or time."""
        by = "time" if objective == "cost" else "cost"
        return cls(over=offer.label, by=by, duration_s=duration_s.p50, cost_usd=cost_usd.p50)
