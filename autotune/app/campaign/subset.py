"""Which runs to keep under a budget, and which to cut first.

    maximise the priorities of the runs kept, within the budget with the asked probability,
    none kept without what it waits for
    among the subsets that are equally valuable, the cheapest

Solved exactly as two integer programs; scipy (HiGHS) is imported only here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.catalog.software import install_command
from autotune.domain.answer.plan import Cut, Subset
from autotune.domain.errors import InputError
from autotune.domain.job import CONFIDENCE
from autotune.domain.units import format_seconds, format_usd, parse_seconds, parse_usd
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

CUTS_SHOWN = 8
_ROOM = 1e-9  # relative; the budget's own rounding
_TOLERANCE = 1e-5  # relative; above the feasibility tolerance of the solver, 1e-6
SOLVER_S = 20.0  # [s] after which the best subset found is refused rather than called the best


@dataclass(frozen=True, slots=True)
class Item:
    """One kind of run: what one of it takes, how many there are, what it waits for.

    held_usd, held_s: what it stays within with the asked probability, as cost and device time.
    """

    name: str
    count: int
    priority: float
    cost_usd: float
    device_s: float
    after: tuple[int, ...]
    held_usd: float
    held_s: float


@dataclass(frozen=True, slots=True)
class Budget:
    """An upper bound in dollars or in device-hours."""

    text: str
    usd: float | None
    device_s: float | None

    def of(self, item: Item) -> float:
        """What one run may take of it, with the asked probability."""
        return item.held_usd if self.usd is not None else item.held_s

    @property
    def amount(self) -> float:
        """Dollars or seconds."""
        return self.usd if self.usd is not None else self.device_s or 0.0

    def shown(self, amount: float) -> str:
        """An amount of it for people."""
        return format_usd(amount) if self.usd is not None else format_seconds(amount)


def parse_budget(text: str) -> Budget:
    """A budget such as "100USD", "$100" or "80h". Raises InputError."""
    usd = seconds = None
    try:
        if "$" in text or "usd" in text.casefold():
            usd = parse_usd(text)
        else:
            seconds = parse_seconds(text)
    except InputError:
        msg = f"--budget {text[:60]!r} is neither dollars nor hours"
        raise InputError(msg, 'write "100USD" or "80h"') from None
    if not (usd or seconds):
        msg = f"--budget {text[:60]!r} must be above zero"
        raise InputError(msg, 'write "100USD" or "80h"')
    return Budget(text, usd, seconds)


def best_subset(items: Sequence[Item], budget: Budget, confidence: float = CONFIDENCE) -> Subset:
    """The most valuable runs within the budget. Raises InputError when not one is.

    confidence: with which the items' `held` figures are within it.
    """
    if not any(item.priority for item in items):
        msg = "every run has priority 0, so a budget cannot choose among them"
        raise InputError(msg, "give the runs that matter a priority above 0")
    least = min(
        (budget.of(item) + _needs(items, i, budget) for i, item in enumerate(items)), default=0.0
    )
    if least > budget.amount * (1 + _ROOM):
        msg = (
            f"the budget of {budget.text.strip()} is too small for the cheapest run, "
            f"which may take {budget.shown(least)}"
        )
        raise InputError(msg, "raise --budget, or plan smaller runs")
    kept = [item.count for item in items]
    if _takes(items, kept, budget) > budget.amount * (1 + _ROOM):
        kept = _solved(items, budget)
    return _subset(items, kept, budget, confidence)


def _needs(items: Sequence[Item], index: int, budget: Budget) -> float:
    """What everything that a run waits for takes."""
    before = _closure([item.after for item in items], index)
    return sum(items[i].count * budget.of(items[i]) for i in before)


def _closure(edges: Sequence[Sequence[int]], index: int) -> set[int]:
    """Everything reached from `index` along the edges, itself left out."""
    found: set[int] = set()
    left = list(edges[index])
    while left:
        at = left.pop()
        if at not in found:
            found.add(at)
            left += edges[at]
    return found


def _solved(items: Sequence[Item], budget: Budget) -> list[int]:
    """How many of each kind to keep. The solver's own tolerance must not break the budget."""
    kept = _best_two(items, budget, 1.0)
    if _takes(items, kept, budget) > budget.amount * (1 + _ROOM):
        kept = _best_two(items, budget, 1.0 - _TOLERANCE)
    return kept


def _takes(items: Sequence[Item], kept: Sequence[int], budget: Budget) -> float:
    return sum(n * budget.of(item) for n, item in zip(kept, items, strict=True))


def _best_two(items: Sequence[Item], budget: Budget, share: float) -> list[int]:
    """Two programs: the most value, then the least of the budget at that value."""
    value = np.asarray([item.priority for item in items])
    takes = np.asarray([budget.of(item) for item in items])
    value = value / max(float(value.max()), 1e-300)
    within = (takes / budget.amount, -np.inf, share * (1.0 + _ROOM))
    best = _program(items, -value, [within])
    reached = float(value @ np.asarray(best))
    return _program(items, takes / budget.amount, [within, (value, reached - 1e-7, np.inf)])


def _program(
    items: Sequence[Item],
    objective: NDArray[np.float64],
    bounds: Sequence[tuple[NDArray[np.float64], float, float]],
) -> list[int]:
    """Whole numbers x[i] up to count[i]; z[i] = 1 only where all of kind i are kept.

    x[j] <= count[j] z[i] for every i that j waits for; count[i] z[i] <= x[i].
    """
    try:
        from scipy.optimize import (  # type: ignore[import-untyped]  # it ships no types
            Bounds,
            LinearConstraint,
            milp,
        )
    except ImportError:
        msg = "the best subset under a budget needs scipy, which is not installed"
        raise InputError(msg, install_command("plan")) from None
    kinds = len(items)
    counts = np.asarray([item.count for item in items], float)
    whole = sorted({i for item in items for i in item.after})
    place = {i: kinds + k for k, i in enumerate(whole)}
    size = kinds + len(whole)
    rows: list[NDArray[np.float64]] = []
    for i in whole:
        row = np.zeros(size)
        row[place[i]], row[i] = counts[i], -1.0
        rows.append(row)
    for j, item in enumerate(items):
        for i in item.after:
            row = np.zeros(size)
            row[j], row[place[i]] = 1.0, -counts[j]
            rows.append(row)
    constraints = [LinearConstraint(np.asarray(rows), -np.inf, 0.0)] if rows else []
    for vector, low, high in bounds:
        padded = np.concatenate([vector, np.zeros(len(whole))])
        constraints.append(LinearConstraint(padded[None, :], low, high))
    found = milp(
        np.concatenate([objective, np.zeros(len(whole))]),
        integrality=np.ones(size),
        bounds=Bounds(np.zeros(size), np.concatenate([counts, np.ones(len(whole))])),
        constraints=constraints,
        options={"time_limit": SOLVER_S, "mip_rel_gap": 0.0},
    )
    if found.x is None or found.status != 0:
        msg = f"no best subset was proven within {SOLVER_S:.0f} s: {found.message}"
        raise InputError(msg, "plan fewer kinds of runs, or a larger --budget")
    return [round(float(x)) for x in found.x[:kinds]]


def _subset(
    items: Sequence[Item], kept: Sequence[int], budget: Budget, confidence: float
) -> Subset:
    pairs = list(zip(items, kept, strict=True))
    return Subset(
        budget_usd=budget.usd,
        budget_device_s=budget.device_s,
        kept={item.name: n for item, n in pairs if n},
        left_out={item.name: item.count - n for item, n in pairs if n < item.count},
        priority=sum(n * item.priority for item, n in pairs),
        of_priority=sum(item.count * item.priority for item in items),
        cost_usd=sum(n * item.cost_usd for item, n in pairs),
        device_s=sum(n * item.device_s for item, n in pairs),
        confidence=confidence,
    )


def what_to_cut(items: Sequence[Item]) -> tuple[Cut, ...]:
    """Kinds of runs by what an hour saved costs in priority, least first; dependents go too."""
    behind: list[list[int]] = [[] for _ in items]
    for j, item in enumerate(items):
        for i in item.after:
            behind[i].append(j)
    found = []
    for index, item in enumerate(items):
        also = sorted(_closure(behind, index))
        gone = [item, *(items[i] for i in also)]
        found.append(
            Cut(
                run=item.name,
                runs=sum(each.count for each in gone),
                also=tuple(items[i].name for i in also),
                priority=sum(each.count * each.priority for each in gone),
                saves_device_s=sum(each.count * each.device_s for each in gone),
                saves_usd=sum(each.count * each.cost_usd for each in gone),
            )
        )
    found.sort(
        key=lambda cut: (cut.priority / max(cut.saves_device_s, 1e-9), -cut.saves_device_s, cut.run)
    )
    return tuple(found[:CUTS_SHOWN])
