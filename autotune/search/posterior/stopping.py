"""When to stop probing, in the objective's own unit, and what stays uncertain then.

A search ends at the first of: the budget; no probe expected to save a stated fraction, the pick's
neighbours looked at, and either little left by the bound over all candidates or no better pick for
some probes; the next probe costing more than it is expected to save; nothing
left that could fit. No rule says "optimal": the remaining uncertainty is part of the answer.
"""

from __future__ import annotations

import math
from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from autotune.domain.errors import InputError
from autotune.domain.outcome import Z90
from autotune.domain.units import format_seconds, format_usd
from autotune.frozen import dataclass
from autotune.search.posterior.acquisition import LEAST_GAIN
from autotune.search.posterior.bound import LIKELY, bound_of
from autotune.search.posterior.improvement import expected_improvement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.search.posterior.acquisition import Posterior, Proposal

Rule = Literal["budget", "regret", "saving", "exhausted"]
Unit = Literal["usd", "s"]
WORDS = {"compute": "computing", "data": "loading data", "save": "saving",
         "compile": "compiling"}  # fmt: skip
NARROW = 0.05  # a joint bound under which a pick of this moment is one to end with
LOOKED_AT = 2  # of the pick's neighbours
UNCHANGED = 3  # probes after the pick's own that did not change it, where the bound is wider
LEAST_SHOWN = 0.001  # bounds below this are not told apart


@dataclass(frozen=True, slots=True)
class Remaining:
    """What another probe could still bring.

    saving: [USD or s] expected of the best next probe. fraction: the same, relative to the run.
    bound: share of the objective by which no candidate at all is better than the pick, with nine
    chances in ten. distrusted: parts that measurements contradict, and how many times as far off
    they are as the cost model says. alone: share by which the one that may be better by most may
    be so, at the lower end of its own 80 % interval.
    """

    saving: float
    fraction: float
    bound: float
    distrusted: Mapping[str, float] = field(default_factory=dict)
    alone: float = 0.0


@dataclass(frozen=True, slots=True)
class Stop:
    """Why probing ends, for people and for programs."""

    rule: Rule
    reason: str
    remaining: Remaining


@dataclass(frozen=True, slots=True)
class ProbeBudget:
    """What probing may cost. next_cost and spent in `unit`; limit None: there is none.

    aside: of the limit, kept for running the pick once more. asked_s: the limit as it was asked
    for, where `unit` is dollars.
    free: the device costs nothing, so that a probe is never dearer than what it saves. last: as
    many candidates as are allowed will then have been measured.
    """

    next_cost: float
    spent: float = 0.0
    limit: float | None = None
    unit: Unit = "usd"
    free: bool = False
    aside: float = 0.0
    asked_s: float | None = None
    last: bool = False

    @property
    def ends_here(self) -> bool:
        """Whether the next probe is affordable, and none is allowed behind it."""
        then = replace(self, spent=self.spent + self.next_cost)
        return not self.exceeded and (self.last or then.exceeded)

    @property
    def exceeded(self) -> bool:
        """Whether the next probe would leave too little of the budget."""
        needed = self.spent + self.next_cost + self.aside
        return self.limit is not None and needed > self.limit

    def amount_text(self, value: float) -> str:
        """An amount for people."""
        return format_usd(value) if self.unit == "usd" else format_seconds(value)


def described(left: Remaining, budget: ProbeBudget, *, saving: bool = True) -> str:
    """What stays uncertain, for people. saving: whether what a probe may save is yet to be said."""
    if not math.isfinite(left.saving):
        return "nothing that fits has been measured"
    bound = f"{left.bound:.1%}" if left.bound >= LEAST_SHOWN else f"{LEAST_SHOWN:.1%}"
    text = f"with a probability of 0.9 no configuration is more than {bound} better"
    if left.distrusted:
        text = f"{_doubt(left.distrusted)}: {text}"
    if not saving:
        return text
    return f"another probe is expected to save {budget.amount_text(left.saving)}; {text}"


def _doubt(distrusted: Mapping[str, float]) -> str:
    name = max(distrusted, key=lambda part: distrusted[part])
    what = WORDS.get(name, name)
    times = f"{distrusted[name]:.1f}"
    off = f"is {times} times as far off as the cost model says of itself"
    if float(times) <= 1.0:  # on average: what contradicts is how configurations differ
        off = "differs from one configuration to another by more than the cost model says of itself"
    return f"{what} {off}, which is not trusted here"


def over_budget(budget: ProbeBudget) -> str:
    """Why the next probe is not made: the limit as it was asked for, and what it goes into."""
    amount = budget.amount_text
    kept = f", {amount(budget.aside)} kept to run the pick once more" if budget.aside else ""
    limit = amount(budget.limit or 0.0)
    if budget.unit == "usd" and budget.asked_s is not None:
        limit = f"{format_seconds(budget.asked_s)} ({limit})"
    return (
        f"the probe budget of {limit} would be exceeded: "
        f"{amount(budget.spent)} spent, {amount(budget.next_cost)} for the next probe{kept}"
    )


def check_budget(budget: ProbeBudget) -> None:
    """Raise InputError when not even the first probe can be paid, or a figure is no amount."""
    for name, value in (("next_cost", budget.next_cost), ("spent", budget.spent)):
        if not math.isfinite(value) or value < 0:
            msg = f"{name} of a probe is {value!r}; it must be a finite number from 0 on"
            raise InputError(msg)
    if budget.limit is not None and budget.spent == 0 and budget.limit < budget.next_cost:
        msg = (
            f"the probe budget of {budget.amount_text(budget.limit)} is smaller than one probe "
            f"({budget.amount_text(budget.next_cost)})"
        )
        raise InputError(msg, "raise the budget, or score by the cost model (--score model)")


def remaining(posterior: Posterior) -> Remaining:
    """What is still uncertain about the pick. Without a pick: everything."""
    if posterior.incumbent is None:
        return Remaining(math.inf, math.inf, 1.0, alone=1.0)
    at = posterior.shortlist
    if not len(at):
        return Remaining(0.0, 0.0, 0.0)
    mean, sd, learned = posterior.comparison(at, posterior.incumbent)
    gains = expected_improvement(mean, learned)
    fraction = float(np.max(gains * posterior.chance(at)))
    value = posterior.value(posterior.incumbent)
    bound = bound_of(posterior)
    best = np.max((Z90 * sd - mean)[posterior.chance(at) >= LIKELY], initial=0.0)
    alone = float(1.0 - math.exp(-max(best, 0.0)))
    return Remaining(fraction * value, fraction, bound, posterior.distrusted, alone)


def confirmed(posterior: Posterior) -> bool:
    """Whether the pick's one-knob neighbours were looked at: two were probed, or none promises."""
    if posterior.incumbent is None:
        return False
    near = posterior.priced.neighbours(posterior.incumbent)
    tried = sum(index in posterior.history.tried for index in near)
    return tried >= LOOKED_AT or posterior.neighbour() is None


def settled(posterior: Posterior, left: Remaining) -> bool:
    """Whether little is left by the joint bound, or the pick has outlived some probes."""
    if posterior.incumbent is None or left.bound <= NARROW:
        return posterior.incumbent is not None
    measured = list(posterior.history.measured)
    return len(measured) - 1 - measured.index(posterior.incumbent) >= UNCHANGED


def judged(
    posterior: Posterior, proposal: Proposal | None, budget: ProbeBudget,
    left: Remaining | None = None,
) -> Stop | None:  # fmt: skip
    """Why to stop before the proposed probe, or None to go on.

    left: what `remaining` says of the posterior, where that is known.
    """
    left = left or remaining(posterior)
    if proposal is None:
        return Stop("exhausted", "no candidate is left that could fit", left)
    if budget.exceeded:
        return Stop("budget", over_budget(budget), left)
    if posterior.incumbent is None:
        return None
    if left.fraction < LEAST_GAIN and confirmed(posterior) and settled(posterior, left):
        reason = (
            f"no probe is expected to save more than {LEAST_GAIN:.1%} of the run, and the "
            "neighbours of the pick were tried"
        )
        return Stop("regret", reason, left)
    if left.saving < budget.next_cost and not budget.free:
        reason = (
            f"another probe costs {budget.amount_text(budget.next_cost)} and is expected to save "
            f"{budget.amount_text(left.saving)}"
        )
        return Stop("saving", reason, left)
    return None
