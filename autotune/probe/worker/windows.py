"""When steps are steady, what a steady step takes, and another window where one was disturbed.

A step's seconds are judged against `a + b x tokens`, fitted with a, b >= 0: batches of different
lengths may differ by what their lengths explain. Where every batch has the same shape this is the
plain median.

A window begins at the first steady steps and lasts until a step is known well enough, at most for
so many steps and so many seconds. One that others disturbed is measured again in the same process,
once they have left the machine alone for a moment; what is waited, how many windows there are and
how long all of it may take is bounded. The calmest window is the result, and it says whether it was
calm. Steps that a host issues kernel by kernel may go on differing by more than the tolerance:
where all was counted and nobody else was there, the last half of them is a calm window with a wide
error. Free of torch.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import disturbance
from .disturbance import (
    Host,
    between,
    slowdown,
    spread_of,
    unexplained,
    wait_for_calm,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .disturbance import Counters

WINDOW = 6  # steps; a shorter one, or medians of neighbouring ones, let a compile step pass
TOLERANCE = 0.12  # of the fitted seconds
OUTLIER = 1.5  # times the fitted seconds


@dataclass(frozen=True)
class Step:
    """One optimizer step. [s] wall time from the end of the step before, and its parts."""

    wall_s: float
    tokens: int  # padding included
    data_s: float  # blocked in the data loader
    micro_s: float  # forward and backward of all micro-steps
    optimizer_s: float
    cpu_s: float = 0.0  # of all threads of this process; far below wall_s: others had the processor


@dataclass(frozen=True)
class Fit:
    """[s] seconds of a step with that many tokens: a + b x tokens."""

    a: float
    b: float

    def at(self, tokens: float) -> float:
        """[s] of a step."""
        return self.a + self.b * tokens


def fit_steps(tokens: Sequence[float], seconds: Sequence[float]) -> Fit:
    """The line through the median of the steps with the median slope, within a, b >= 0.

    Source: Theil (1950) and Sen (1968): the median of pairwise slopes withstands outliers.
    """
    slopes = [
        (t2 - t1) / (n2 - n1)
        for i, (n1, t1) in enumerate(zip(tokens, seconds, strict=True))
        for n2, t2 in list(zip(tokens, seconds, strict=True))[i + 1 :]
        if n2 != n1
    ]
    steepest = statistics.median(t / n if n else 0.0 for n, t in zip(tokens, seconds, strict=True))
    b = min(max(statistics.median(slopes), 0.0), steepest) if slopes else 0.0
    a = statistics.median(t - b * n for n, t in zip(tokens, seconds, strict=True))
    return Fit(max(a, 0.0), b)


def is_steady(steps: Sequence[Step]) -> bool:
    """Whether every one of these steps is within the tolerance of the line through them."""
    fit = fit_steps([s.tokens for s in steps], [s.wall_s for s in steps])
    return all(abs(s.wall_s - fit.at(s.tokens)) <= TOLERANCE * fit.at(s.tokens) for s in steps)


def first_steady(steps: Sequence[Step]) -> int | None:
    """Index of the first step of the earliest steady window, or None."""
    for start in range(len(steps) - WINDOW + 1):
        if is_steady(steps[start : start + WINDOW]):
            return start
    return None


def summary(steps: Sequence[Step], tokens: Sequence[int] | None = None) -> dict[str, float | int]:
    """What the steady steps say. [s] step_s is the mean step at these batches, outliers apart.

    Formula: median(t_i / f_i) x mean(f_i), f the fitted seconds: robust to stalls, and unbiased
    over batches of different lengths. Data, micro and optimizer seconds likewise; they do not sum
    to the step, because the Trainer's own work lies between them. stall_share: what the outliers
    add to the mean of all steps.
    """
    counts = [s.tokens for s in steps]
    found: dict[str, float | int] = {"steps": len(steps), "tokens": statistics.fmean(counts)}
    walls = [s.wall_s for s in steps]
    fit = fit_steps(counts, walls)
    ratios = ratios_of(steps)
    centre = statistics.median(ratios)
    beyond = [r - centre for r in ratios if r > OUTLIER * centre]
    found["step_s"] = _typical(counts, walls)
    found["micro_s"] = _typical(counts, [s.micro_s for s in steps])
    found["optimizer_s"] = statistics.median(s.optimizer_s for s in steps)
    found["data_s"] = statistics.median(s.data_s for s in steps)
    found["cpu_s"] = _typical(counts, [s.cpu_s for s in steps])
    found["median_s"] = statistics.median(walls)
    found["mean_s"] = statistics.fmean(walls)
    found["stall_share"] = sum(beyond) / centre / len(ratios)
    # Half of what stalls add: whether they are the machine's own and go on, nobody knows.
    found["relative_error"] = math.hypot(error_of(ratios), found["stall_share"] / 2.0)
    found["outliers"] = len(beyond)
    slope = disturbance.slope_of(ratios) if len(ratios) >= WINDOW else 0.0
    found["slope_per_step"] = slope / centre  # warming up, throttling, fragmenting
    found["seconds_fixed"], found["seconds_per_token"] = fit.a, fit.b
    found["expected_s"] = centre * fit.at(statistics.fmean(tokens)) if tokens else found["step_s"]
    return found


def error_of(ratios: Sequence[float]) -> float:
    """Relative standard error of a step: of the median of its ratios, outliers apart.

    Formula: 1.25 x sd / sqrt(n), of normal values.
    """
    centre = statistics.median(ratios)
    inside = [r for r in ratios if r <= OUTLIER * centre]
    spread = statistics.stdev(inside) / centre if len(inside) > 1 else 0.0
    return 1.25 * spread / math.sqrt(len(ratios))


def ratios_of(steps: Sequence[Step]) -> list[float]:
    """Seconds of each step over what its length explains, in order."""
    fit = fit_steps([s.tokens for s in steps], [s.wall_s for s in steps])
    return [s.wall_s / max(fit.at(s.tokens), 1e-12) for s in steps]


def typical_s(steps: Sequence[Step]) -> float:
    """[s] the mean step at these batches, outliers apart."""
    return _typical([s.tokens for s in steps], [s.wall_s for s in steps])


def _typical(tokens: Sequence[int], seconds: Sequence[float]) -> float:
    fit = fit_steps(tokens, seconds)
    fitted = [fit.at(n) for n in tokens]
    if min(fitted) <= 0:
        return statistics.median(seconds)
    ratios = [t / f for t, f in zip(seconds, fitted, strict=True)]
    return statistics.median(ratios) * statistics.fmean(fitted)


WINDOWS, CALM_S, LEAST_S, PATIENCE_S = 3, 15.0, 1.0, 60.0
AGREE = 1.15  # times the quickest window: what a calm one may take
KNOWN = 0.005  # relative error of a step from which more of them tell no more: half a tie
LEAST_UNSTEADY = 2 * WINDOW  # steps by which a pace that wavers can be told from one that changes
AGAIN = 2  # steps after a pause that belong to no window: clocks and caches come back


@dataclass
class Window:
    """Steps `first` to before `last`; block_s: seconds a step by the host's clock."""

    first: int
    last: int = 0
    step_s: float = 0.0
    block_s: float = 0.0
    seen: dict[str, Any] = field(default_factory=dict)
    disturbed: list[str] = field(default_factory=list)


class Windows:
    """Decides after every step whether to go on. The steps are the caller's list, which grows."""

    def __init__(
        self, plan: dict[str, Any], steps: list[Step], *, on_cpu: bool, host: Host | None = None,
        now: Callable[[], float] = time.perf_counter,
        wait: Callable[[Host, float], tuple[bool, float]] | None = None,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Begin to count when told to.

        plan: longest, most, measured, least (steps), seconds, patience_s; windows (at most), calm_s
        (of waiting, in all), window_s (of a window, at least). waiting: is told of each wait.
        """
        self.plan, self.steps, self.on_cpu = plan, steps, on_cpu
        self.host, self.now = host or Host(), now
        self._waiting = waiting
        self._wait = wait or (lambda host, most_s: wait_for_calm(host, most_s, on_cpu=on_cpu))
        self.done: list[Window] = []
        self.waited_s = 0.0
        self.begun_s = 0.0
        self._since: Counters | None = None  # when the search for a window began
        self._searched_s = 0.0
        self._open: Window | None = None
        self._opened: tuple[Counters, float, int] | None = None
        self._from = self._checked = int(plan["longest"])  # where the search for a window begins

    def begin(self) -> None:
        """Training starts."""
        self.begun_s, self._since = self.now(), self.host.read()
        self._searched_s = self.begun_s

    @property
    def is_open(self) -> bool:
        """Whether a window is under way."""
        return self._open is not None

    @property
    def first(self) -> int:
        """The first step of the open window."""
        return self._open.first if self._open is not None else len(self.steps)

    @property
    def wanted(self) -> int:
        """Steps that a window usually has."""
        return WINDOW + int(self.plan["measured"])

    def opens(self) -> bool:
        """Whether the last steps were steady: then a window begins at the first of them."""
        found = first_steady(self.steps[self._checked :])
        if found is None:
            self._checked = max(self._checked, len(self.steps) - WINDOW + 1)
            return False
        self._open = Window(self._checked + found)
        self._checked += found + 1
        return True

    def opened(self, marks: int, at_s: float) -> None:
        """The window's clocks start. marks: steps that have ended, some of them unresolved.

        at_s: on the clock of `now`, when all of them had.
        """
        self._opened = (self.host.read(), at_s, marks)

    def given_up(self) -> bool:
        """Whether steps that do not become steady are taken as they are.

        Where others are the reason, they are waited for first, and once in vain is enough.
        """
        done = len(self.steps) - self._from + int(self.plan["longest"])
        least = int(self.plan["longest"]) + int(self.plan["least"])
        if done < least:
            return False
        if done >= int(self.plan["most"]) or self._late:
            return True
        long = self.now() - self._searched_s > float(self.plan["seconds"])
        return long and not self.done and self._in_vain()

    def _in_vain(self) -> bool:
        """Wait for the others that keep steps from becoming steady; whether that did not help."""
        self._take_unsteady()
        if not self.done or self.satisfied():
            return True
        self.done.pop()  # there will be a better one
        self._since = self.host.read()
        return False

    @property
    def _late(self) -> bool:
        spent = self.now() - self.begun_s - self.waited_s
        return spent > float(self.plan.get("patience_s", PATIENCE_S))

    def full(self) -> bool:
        """Whether the open window has lasted long enough."""
        if self._open is None or self._opened is None:
            return False
        since, counted = self.now() - self._opened[1], len(self.steps) - self._open.first
        if since >= float(self.plan["seconds"]) and counted >= int(self.plan["least"]):
            return True
        if since < float(self.plan.get("window_s", LEAST_S)):
            return False
        if counted >= WINDOW + int(self.plan["measured"]):
            return True
        if counted < WINDOW + int(self.plan["least"]):
            return False
        ratios = ratios_of(self.steps[self._open.first :])
        stalled = max(ratios) > OUTLIER * statistics.median(
            ratios
        )  # how often, a longer look shows
        return not stalled and error_of(ratios) <= KNOWN

    def close(self, marks: int, at_s: float) -> None:
        """The open window ends here, and is judged; marks, at_s: as of `opened`."""
        if self._open is None or self._opened is None:
            return
        window, (before, began, first) = self._open, self._opened
        window.last = len(self.steps)
        window.block_s = (at_s - began) / max(marks - first, 1)
        self._judge(window, before, steady=True)
        self.done.append(window)
        self._open = self._opened = None

    def _judge(self, window: Window, before: Counters, *, steady: bool) -> None:
        steps = self.steps[window.first : window.last]
        window.step_s = typical_s(steps)
        window.seen = {
            **between(before, self.host.read(), self.host.cores),
            **spread_of(ratios_of(steps)),
            "steady": steady, "device": "cpu" if self.on_cpu else "cuda",
        }  # fmt: skip
        if not steady and window.last - window.first >= LEAST_UNSTEADY:
            window.seen["steady"] = disturbance.differ_by_themselves(window.seen)
        window.disturbed = disturbance.disturbances(window.seen)

    def satisfied(self) -> bool:
        """Whether no further window is wanted; else the machine is calm now, and one may begin."""
        if not self.done or (not self.done[-1].disturbed and self._agrees(self.done[-1])):
            return True
        left = float(self.plan.get("calm_s", CALM_S)) - self.waited_s
        if len(self.done) >= int(self.plan.get("windows", WINDOWS)) or left <= 0 or self._late:
            return True
        self._waiting()
        calm, slept_s = self._wait(self.host, left)
        self.waited_s += slept_s
        self._from = self._checked = len(self.steps) + AGAIN
        self._searched_s = self.now()
        return not calm

    def finish(self, marks: int, at_s: float) -> None:
        """Training is over: whatever there is becomes a window."""
        if self._open is not None and len(self.steps) - self._open.first >= WINDOW:
            self.close(marks, at_s)
        if not self.done:
            self._take_unsteady()

    def _take_unsteady(self) -> None:
        """The last half of steps that never became steady."""
        if not self.steps or self._since is None:
            return
        longest = int(self.plan["longest"])
        first = max(len(self.steps) // 2, min(longest, len(self.steps) - 1))
        window = Window(first, len(self.steps))
        self._judge(window, self._since, steady=False)
        self.done.append(window)

    @property
    def before(self) -> list[Step]:
        """The steps before the first window: warming up, and compiling."""
        return self.steps[: self.done[0].first]

    @property
    def best(self) -> Window:
        """The last calm window that is no slower than others, else the quickest of all.

        Others only ever make steps longer: a quicker window, however disturbed, shows that a calm
        one was not as calm as it looked.
        """
        calm = [w for w in self.done if not w.disturbed and self._agrees(w)]
        return calm[-1] if calm else min(self.done, key=lambda window: window.step_s)

    def _agrees(self, window: Window) -> bool:
        return window.step_s <= AGREE * min(other.step_s for other in self.done)

    def report(self) -> dict[str, Any]:
        """What is kept of the best window and of those before it."""
        best = self.best
        return {
            "disturbed": best.disturbed,
            "window": {**best.seen, "slowdown": slowdown(best.seen)},
            "windows": [
                {
                    "step_s": window.step_s,
                    "disturbed": window.disturbed,
                    "unexplained": unexplained(window.seen) or not self._agrees(window),
                }
                for window in self.done
            ],
            "waited_s": self.waited_s,
        }
