"""What several workers save, on a clock that is simulated: `python -m bench.search_workers`.

Machines whose truth is known (`bench.families`) are searched by 1, 2, 4 and 8 workers. Each takes
the next proposal of the same sampler, which counts what the others are measuring; a probe takes as
long as it takes on such a machine, and choosing takes nothing. One worker makes so many probes,
several twice as many together: eight have a quarter of its time for that. Per scenario and number
of workers, the median over the machines:

wall_s        simulated, of all probes
regret        of its pick: true cost above the true optimum
reach_s       simulated, until its pick was as good as the pick of one worker (within the tie) and
              stayed so; null where it never was
wall_share    reach_s over the wall_s of one worker: what the same pick costs in waiting
within        share of the machines on which that is a quarter at most
regret_at     regret after each twelfth of one worker's wall_s, the third at the quarter
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import os
import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import optuna

from autotune.search.selection import TIE
from autotune.search.study.calibrated import CalibratedSampler
from bench.samplers import distributions, tell
from bench.search import FIRST_SEED, machine_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.hidden import Hidden

WORKERS = (1, 2, 4, 8)
SCENARIOS = ("billed_physics", "billed_noisy", "billed_good")
MACHINES, PROBES = 6, 12
START_S, STEPS_S, UNLIKE = 40.0, 20.0, 0.25  # of a probe; sd of the log of what its steps take
QUARTER, SLICES, TWICE = 0.25, 12, 2


@dataclass(frozen=True, slots=True)
class Timeline:
    """One search. moments: [s, regret] after every probe that ended; wall_s: of its end."""

    moments: list[tuple[float, float]]
    wall_s: float

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
    regret_at: list[float | None]


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
    clock, begun = 0.0, 0
    while True:
        while len(running) < workers and begun < probes:
            trial = study.ask(space)
            index = machine.find(trial.params)
            if index is None:
                break
            heapq.heappush(running, (clock + probe_s(machine, index), begun, trial, index))
            begun += 1
        if not running:
            return Timeline(moments, clock)
        clock, _, trial, index = heapq.heappop(running)
        tell(study, trial, machine, index)
        moments.append((clock, machine.regret(sampler.posterior(study).pick())))


def figures(alone: Sequence[Timeline], found: Sequence[Timeline]) -> Shared:
    """What several workers came to, beside one on the same machines."""
    reached = [f.reach_s(a.moments[-1][1]) for a, f in zip(alone, found, strict=True)]
    shares = [reach / a.wall_s for a, reach in zip(alone, reached, strict=True)]
    return Shared(
        wall_s=float(np.median([f.wall_s for f in found])),
        regret=_finite([f.moments[-1][1] for f in found]),
        reach_s=_finite(reached),
        wall_share=_finite(shares),
        within=float(np.mean([share <= QUARTER for share in shares])),
        regret_at=[
            _finite([f.regret_at(a.wall_s * k / SLICES) for a, f in zip(alone, found, strict=True)])
            for k in range(1, SLICES + 1)
        ],
    )


def _finite(values: Sequence[float]) -> float | None:
    """The median, the upper of two in the middle; None where that is of no pick."""
    found = sorted(values)[len(values) // 2]
    return round(found, 4) if math.isfinite(found) else None


def measure(
    scenario: str, machines: int, probes: int, seed: int, workers: Sequence[int] = WORKERS
) -> dict[int, Shared]:
    """The figures of a scenario by the number of workers; the first is one."""
    there = [machine_of(scenario, seed + k) for k in range(machines)]
    found = {
        count: [searched(m, count, probes if count == 1 else TWICE * probes) for m in there]
        for count in workers
    }
    return {count: figures(found[workers[0]], own) for count, own in found.items()}


def _shown(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scenario", action="extend", nargs="+", help="only these")
    parser.add_argument("--machines", type=int, default=MACHINES)
    parser.add_argument("--probes", type=int, default=PROBES, help="of one worker")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    warnings.simplefilter("ignore")
    answer = {}
    for scenario in asked.scenario or SCENARIOS:
        found = measure(scenario, asked.machines, asked.probes, asked.first_seed)
        answer[scenario] = {str(count): asdict(own) for count, own in found.items()}
        if asked.format == "json":
            continue
        print(scenario)
        for count, own in found.items():
            regrets = " ".join(_shown(r) for r in own.regret_at)
            print(
                f"  {count} workers  wall_s {own.wall_s:.0f}  "
                f"regret {_shown(own.regret, 3)}  reach_s {_shown(own.reach_s, 0)}  "
                f"wall_share {_shown(own.wall_share)}  within {own.within:.2f}  "
                f"regret_at {regrets}", flush=True,
            )  # fmt: skip
    if asked.format == "json":
        print(json.dumps(answer, indent=1, allow_nan=False))


if __name__ == "__main__":
    main()
