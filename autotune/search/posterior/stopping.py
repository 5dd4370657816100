"""When to stop probing, in the objective's own unit, and what stays uncertain then.

A search ends at the first of: the budget; the remaining regret bounded under a stated fraction and
the pick's neighbours looked at; the next probe costing more than it is expected to save; nothing
left that could fit. No rule says "optimal": the remaining uncertainty is part of the answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from autotune.domain.errors import InputError
from autotune.domain.outcome import Z90
from autotune.domain.units import format_seconds, format_usd
from autotune.search.posterior.acquisition import INFLATED, LEAST_FIT
from autotune.search.posterior.improvement import expected_improvement

if TYPE_CHECKING:
    from autotune.search.posterior.acquisition import Outlook, Proposal

Rule = Literal["budget", "regret", "saving", "exhausted"]
Unit = Literal["usd", "s"]
REGRET = 0.003  # of the objective: expected saving under which no probe is worth its name
LEAST_SHOWN = 0.001  # bounds below this are not told apart
LIKELY = 0.1  # probability of fitting from which a candidate counts for the bound


@dataclass(frozen=True, slots=True)
class Remaining:
    """What another probe could still bring.

    saving: [USD or s] expected of the best next probe. fraction: the same, relative to the run.
    bound: share of the objective by which no single candidate is better than the pick, each with
    nine chances in ten.
    """

    saving: float
    fraction: float
    bound: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Why probing ends, for people and for programs."""

    rule: Rule
    reason: str
    remaining: Remaining


@dataclass(frozen=True, slots=True)
class Purse:
    """What probing may cost. next_cost and spent in `unit`; budget None: no limit.

    aside: of the budget, kept for running the pick once more. asked_s: the budget as it was asked
    for, where `unit` is dollars.
    free: the device costs nothing, so that a probe is never dearer than what it saves.
    """

    next_cost: float
    spent: float = 0.0
    budget: float | None = None
    unit: Unit = "usd"
    free: bool = False
    aside: float = 0.0
    asked_s: float | None = None

    @property
    def exceeded(self) -> bool:
        """Whether the next probe would leave too little of the budget."""
        needed = self.spent + self.next_cost + self.aside
        return self.budget is not None and needed > self.budget

    def shown(self, value: float) -> str:
        """An amount for people."""
        return format_usd(value) if self.unit == "usd" else format_seconds(value)


def described(left: Remaining, purse: Purse, *, saving: bool = True) -> str:
    """What stays uncertain, for people. saving: whether what a probe may save is yet to be said."""
    if not math.isfinite(left.saving):
        return "nothing that fits has been measured"
    bound = f"{left.bound:.1%}" if left.bound >= LEAST_SHOWN else f"{LEAST_SHOWN:.1%}"
    text = f"with nine chances in ten no single configuration is more than {bound} better"
    if not saving:
        return text
    return f"another probe is expected to save {purse.shown(left.saving)}; {text}"


def over_budget(purse: Purse) -> str:
    """Why the next probe is not made: the budget as it was asked for, and what it goes into."""
    kept = f", {purse.shown(purse.aside)} kept to run the pick once more" if purse.aside else ""
    budget = purse.shown(purse.budget or 0.0)
    if purse.unit == "usd" and purse.asked_s is not None:
        budget = f"{format_seconds(purse.asked_s)} ({budget})"
    return (
        f"the probe budget of {budget} would be exceeded: "
        f"{purse.shown(purse.spent)} spent, {purse.shown(purse.next_cost)} for the next probe{kept}"
    )


def check_budget(purse: Purse) -> None:
    """Raise InputError when not even the first probe can be paid, or a figure is no amount."""
    for name, value in (("next_cost", purse.next_cost), ("spent", purse.spent)):
        if not math.isfinite(value) or value < 0:
            msg = f"{name} of a probe is {value!r}; it must be a finite number from 0 on"
            raise InputError(msg)
    if purse.budget is not None and purse.spent == 0 and purse.budget < purse.next_cost:
        msg = (
            f"the probe budget of {purse.shown(purse.budget)} is smaller than one probe "
            f"({purse.shown(purse.next_cost)})"
        )
        raise InputError(msg, "raise the budget, or score by the cost model (--score model)")


def remaining(outlook: Outlook) -> Remaining:
    """What is still uncertain about the pick. Without a pick: everything."""
    if outlook.incumbent is None:
        return Remaining(math.inf, math.inf, 1.0)
    at = outlook.shortlist
    if not len(at):
        return Remaining(0.0, 0.0, 0.0)
    mean, sd = outlook.difference(at, outlook.incumbent)
    fits = outlook.chance[at]
    fraction = float(np.max(expected_improvement(mean, sd) * fits))
    likely = fits >= LIKELY
    best = np.max((Z90 * sd - mean)[likely], initial=0.0)
    value = outlook.value(outlook.incumbent)
    return Remaining(fraction * value, fraction, float(1.0 - math.exp(-max(best, 0.0))))


def confirmed(outlook: Outlook, least: float = REGRET) -> bool:
    """Whether the pick's one-knob neighbours were looked at.

    None is left that would promise the stated fraction even with three times the uncertainty, or
    at least two were probed.
    """
    if outlook.incumbent is None:
        return False
    near = outlook.priced.neighbours(outlook.incumbent)
    if sum(index in outlook.history.tried for index in near) >= 2:  # noqa: PLR2004 - a round
        return True
    left = [i for i in near if outlook.allowed[i] and outlook.chance[i] > LEAST_FIT]
    if not left:
        return True
    at = np.asarray(left, np.intp)
    mean, sd = outlook.difference(at, outlook.incumbent)
    gains = expected_improvement(mean, INFLATED * sd) * outlook.chance[at]
    return bool(np.max(gains) < least)


def verdict(
    outlook: Outlook, proposal: Proposal | None, purse: Purse, *, least: float = REGRET
) -> Stop | None:
    """Why to stop before the proposed probe, or None to go on.

    Raises InputError for a budget smaller than one probe.
    """
    check_budget(purse)
    return judged(outlook, proposal, purse, least=least)


def judged(
    outlook: Outlook, proposal: Proposal | None, purse: Purse, *, least: float = REGRET
) -> Stop | None:
    """`verdict` for a search under way: a budget that is used up ends it and is no error."""
    left = remaining(outlook)
    if proposal is None:
        return Stop("exhausted", "no candidate is left that could fit", left)
    if purse.exceeded:
        return Stop("budget", over_budget(purse), left)
    if outlook.incumbent is None:
        return None
    if left.fraction < least and confirmed(outlook, least):
        reason = (
            f"no probe is expected to save more than {least:.1%} of the run, and the neighbours "
            "of the pick were looked at"
        )
        return Stop("regret", reason, left)
    if left.saving < purse.next_cost and not purse.free:
        reason = (
            f"another probe costs {purse.shown(purse.next_cost)} and is expected to save "
            f"{purse.shown(left.saving)}"
        )
        return Stop("saving", reason, left)
    return None
