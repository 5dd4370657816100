"""Who measures candidates, what a measurement gives, and how to say that no more are wanted."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.search.axes import ParamValue
    from autotune.search.posterior.stopping import ProbeBudget
    from autotune.search.study.record import TrialRecord


class StopSearch(Exception):  # noqa: N818 - not an error: no further measurement is wanted
    """Raised by the one who measures; the message says why the search stops.

    budget: because what probing may cost is spent.
    """

    def __init__(self, why: str, *, budget: bool = False) -> None:
        super().__init__(why)
        self.budget = budget


class End(NamedTuple):
    """Why a search ended.

    by_itself: and not because no more was allowed. budget: because what probing may cost is spent.
    """

    why: str
    by_itself: bool
    budget: bool = False

    def before_the_pick(self, stop: StopSearch) -> End:
        """The same where the pick could not be run again; one cause is named once."""
        late = f"{stop}, before the pick could be run again"
        if self.budget and stop.budget:
            late = "the pick could not be run again"
        return self._replace(why="; ".join(filter(None, (self.why, late))))


@dataclass(frozen=True, slots=True)
class Scored:
    """What measuring a candidate gave.

    value: what is minimised, None when the measurement broke. constraints: at most 0 where it
    fits. measured: seconds or bytes by part of the bill, for samplers that learn from them; noise:
    sd of the log of those that were measured less well than usual. disturbed: other programs made
    it longer than it is; it is kept apart from what later searches read. looks, unexplained: how
    often steps were looked at, and how often they were too long or uneven and nothing said why.
    probe: which record of a probe says so, where it was measured again.
    """

    value: float | None
    constraints: dict[str, float]
    fits: bool
    reason: str
    measured: dict[str, float] = field(default_factory=dict)
    oom: bool = False
    noise: dict[str, float] = field(default_factory=dict)
    disturbed: bool = False
    looks: int = 0
    unexplained: int = 0
    probe: str = ""

    def on(self, record: TrialRecord) -> TrialRecord:
        """The record of a candidate with what was measured of it."""
        return replace(
            record, kind="failed" if self.value is None else "trial", value=self.value,
            constraints=self.constraints, fits=self.fits, reason=self.reason,
            measured=self.measured, oom=self.oom, noise=self.noise, disturbed=self.disturbed,
            looks=self.looks, unexplained=self.unexplained, probe=self.probe,
        )  # fmt: skip

    def again(
        self, params: Mapping[str, ParamValue], records: Sequence[TrialRecord], number: int,
        allowed: dict[str, float],
    ) -> TrialRecord:  # fmt: skip
        """The record of a candidate that was measured before, as trial `number`."""
        first = next(r for r in records if r.kind == "trial" and r.params == params)
        return replace(
            self.on(first), number=number, kind="repeat", withdrawn=self.value is None,
            sampler_state={}, allowed=allowed,
        )  # fmt: skip


class Measurer(Protocol):
    """Who measures, and what it costs. Both calls that measure may raise `StopSearch`."""

    def measure(self, index: int) -> Scored:
        """Run a candidate."""

    def again(self, index: int, told: Sequence[str]) -> Scored:
        """Run one that was measured, in a fresh process.

        told: `probe` of each time that this was done before.
        """

    @property
    def allowed(self) -> dict[str, float]:
        """How much may be measured, by what limits it; more of any may end a search later."""

    def stop_reason(self) -> str:
        """Why no further candidate may be measured; empty while one may."""

    def budget(self, index: int) -> ProbeBudget:
        """What measuring that candidate next costs, and what may be spent."""


class SharedMeasurer(Measurer, Protocol):
    """Who measures beside peers, and hears of what they do."""

    def count_pending(self, candidates: Sequence[int]) -> None:
        """Peers measure these now: they count for what may still be measured."""

    def made(self) -> list[dict[str, Any]]:
        """What was recorded since the last call, for peers that cannot read this disk."""

    def adopt(self, made: Sequence[dict[str, Any]]) -> None:
        """What a peer recorded of one trial."""
