"""What several workers save, on a clock that is simulated: `python -m bench.search --workers 8`.

Machines whose truth is known (`bench.search.families`) are searched by 1, 2, 4 and 8 workers. Each
takes the next proposal of the same sampler, which counts what the others are measuring; a probe
takes as long as it takes on such a machine, and choosing takes nothing. One worker makes so many
probes, several twice as many together: eight have a quarter of its time for that. Per scenario and
number of workers, the median over the machines:

wall_s        simulated, of all probes
regret        of its pick: true cost above the true optimum
reach_s       simulated, until its pick was as good as the pick of one worker (within the tie) and
              stayed so; null where it never was
wall_share    reach_s over the wall_s of one worker: what the same pick costs in waiting
within        share of the machines on which that is a quarter at most
beside        mean regret at a quarter of one worker's wall_s minus that of its pick, in points, 150
              at most each, and the standard error: whether they are as good by then
again         share of the machines on which one worker whose measurements err otherwise reaches the
              pick of one worker at all, in the same number of probes: what is luck of it
stop_share    the same of a search that ends by itself: until its pick was as good as that of one
              worker when it would have ended, over what it took then
stop_within   share of the machines on which that is a quarter at most
regret_at     regret after each twelfth of one worker's wall_s, the third at the quarter
"""

from __future__ import annotations

import heapq
import math
import warnings
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING

import numpy as np
import optuna

from autotune.search.posterior.stopping import judged, remaining
from autotune.search.selection import TIE
from autotune.search.study.calibrated import CalibratedSampler
from bench.search.samplers import FREE, distributions, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.search.hidden import Hidden

    Drawn = Callable[[str, int], Hidden]
    # the machine, by scenario and seed; workers, probes; what else its probes' errors come from
    Task = tuple[Drawn, str, int, int, int, tuple[int, ...]]

SCENARIOS = ("billed_physics", "billed_noisy", "billed_good")
MACHINES, PROBES = 6, 12
START_S, STEPS_S, UNLIKE = 40.0, 20.0, 0.25  # of a probe; sd of the log of what its steps take
QUARTER, SLICES, TWICE = 0.25, 12, 2
MOST_REGRET = 1.5  # that one machine counts for in a mean
OTHERWISE = (1,)


@dataclass(frozen=True, slots=True)
class Timeline:
    """One search. moments: [s, regret] after every probe that ended; wall_s: of its end.

    stop_s: when one worker would have ended by itself; wall_s where it went on, or was not alone.
    """

    moments: list[tuple[float, float]]
    wall_s: float
    stop_s: float | None = None

    def regret_at(self, seconds: float) -> float:
        """The regret of what would be picked then; infinite before anything was found."""
        return next((r for at, r in reversed(self.moments) if at <= seconds), math.inf)

    def reach_s(self, regret: float) -> float:
        """From when on the pick was as good as that, within the tie; infinite if it never was."""
        good = (1.0 + regret) * (1.0 + TIE) - 1.0
        found = math.inf
        for at, own in reversed(self.moments):
            if own > good:
                break
            found = at
        return found


@dataclass(frozen=True, slots=True)
class Shared:
    """The figures of one number of workers on several machines."""

    wall_s: float
    regret: float | None
    reach_s: float | None
    wall_share: float | None
    within: float
    stop_share: float | None
    stop_within: float
    regret_at: list[float | None]
    beside: tuple[float, float]
    again: float | None = None


def probe_s(machine: Hidden, index: int) -> float:
    """[s] that the probe of a candidate takes, always the same."""
    draw = np.random.default_rng([machine.seed, 7, index])
    return START_S + STEPS_S * float(np.exp(draw.normal(0.0, UNLIKE)))


def searched(machine: Hidden, workers: int, probes: int) -> Timeline:
    """One search by so many workers, on a simulated clock."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = distributions(machine)
    sampler = CalibratedSampler(machine, space)
    study = optuna.create_study(sampler=sampler)
    running: list[tuple[float, int, optuna.Trial, int]] = []
    moments: list[tuple[float, float]] = []
    clock, begun, stop_s = 0.0, 0, None
    while True:
        while len(running) < workers and begun < probes:
            trial = study.ask(space)
            index = machine.find(trial.params)
            if index is None:
                break
            heapq.heappush(running, (clock + probe_s(machine, index), begun, trial, index))
            begun += 1
        if not running:
            return Timeline(moments, clock, stop_s or clock)
        clock, _, trial, index = heapq.heappop(running)
        tell(study, trial, machine, index)
        posterior = sampler.posterior(study)
        moments.append((clock, machine.regret(posterior.pick())))
        if workers == 1 and stop_s is None and posterior.incumbent is not None:
            left, proposal = remaining(posterior), sampler.proposal(posterior)
            stop_s = clock if judged(posterior, proposal, FREE, left=left) else None


def figures(
    alone: Sequence[Timeline], found: Sequence[Timeline], again: Sequence[Timeline] = ()
) -> Shared:
    """What several workers came to, beside one on the same machines. again: one, another time."""
    pairs = list(zip(alone, found, strict=True))
    reached = [f.reach_s(a.moments[-1][1]) for a, f in pairs]
    shares = [reach / a.wall_s for a, reach in zip(alone, reached, strict=True)]
    ends = [a.stop_s or a.wall_s for a in alone]
    picks = [a.moments[-1][1] for a in alone]
    gaps = [
        100.0 * (min(f.regret_at(QUARTER * a.wall_s), MOST_REGRET) - min(pick, MOST_REGRET))
        for (a, f), pick in zip(pairs, picks, strict=True)
    ]
    error = float(np.std(gaps, ddof=1)) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.inf
    late = [math.isfinite(o.reach_s(pick)) for o, pick in zip(again, picks, strict=False)]
    early = [f.reach_s(a.regret_at(end)) / end for (a, f), end in zip(pairs, ends, strict=True)]
    return Shared(
        wall_s=float(np.median([f.wall_s for f in found])),
        regret=_finite([f.moments[-1][1] for f in found]),
        reach_s=_finite(reached),
        wall_share=_finite(shares),
        within=float(np.mean([share <= QUARTER for share in shares])),
        stop_share=_finite(early),
        stop_within=float(np.mean([share <= QUARTER for share in early])),
        regret_at=[
            _finite([f.regret_at(a.wall_s * k / SLICES) for a, f in pairs])
            for k in range(1, SLICES + 1)
        ],
        beside=(round(float(np.mean(gaps)), 1), round(error, 1) if math.isfinite(error) else 0.0),
        again=float(np.mean(late)) if late else None,
    )


def _finite(values: Sequence[float]) -> float | None:
    """The median, the upper of two in the middle; None where that is of no pick."""
    found = sorted(values)[len(values) // 2]
    return round(found, 4) if math.isfinite(found) else None


def _one(task: Task) -> Timeline:
    drawn, scenario, seed, workers, probes, errs = task
    warnings.simplefilter("ignore")
    machine = drawn(scenario, seed)
    machine.errs = errs
    return searched(machine, workers, probes)


def measure(
    drawn: Drawn, scenarios: Sequence[str], counts: Sequence[int], *, machines: int, probes: int,
    seed: int, jobs: int,
) -> dict[str, dict[int, Shared]]:  # fmt: skip
    """The figures by scenario and number of workers, of which one is the first.

    drawn: the machine of a scenario and seed. probes: of one worker.
    """
    every = list(dict.fromkeys((1, *counts)))
    ways = [(count, ()) for count in every] + [(1, OTHERWISE)]
    tasks: list[Task] = [
        (drawn, scenario, seed + k, count, probes if count == 1 else TWICE * probes, errs)
        for scenario in scenarios for count, errs in ways for k in range(machines)
    ]  # fmt: skip
    if jobs == 1:
        timelines = iter([_one(task) for task in tasks])
    else:
        with get_context("spawn").Pool(min(jobs, len(tasks))) as pool:
            timelines = iter(pool.map(_one, tasks, chunksize=1))
    found: dict[str, dict[int, Shared]] = {}
    for scenario in scenarios:
        by_count = {count: [next(timelines) for _ in range(machines)] for count in every}
        again = [next(timelines) for _ in range(machines)]
        found[scenario] = {
            count: figures(by_count[1], own, again if count == 1 else ())
            for count, own in by_count.items()
        }
    return found


def _shown(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def line(count: int, own: Shared) -> str:
    """One number of workers, for people."""
    regrets = " ".join(_shown(r) for r in own.regret_at)
    beside, error = own.beside
    again = "" if own.again is None else f"again {own.again:.2f}  "
    return (
        f"{count} workers  wall_s {own.wall_s:.0f}  regret {_shown(own.regret, 3)}  "
        f"reach_s {_shown(own.reach_s, 0)}  wall_share {_shown(own.wall_share)}  "
        f"within {own.within:.2f}  beside {beside:+.1f} ± {error:.1f}  {again}"
        f"stop_share {_shown(own.stop_share)}  stop_within {own.stop_within:.2f}  "
        f"regret_at {regrets}"
    )
