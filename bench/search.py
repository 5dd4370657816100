"""How many probes a sampler needs: `python -m bench.search [--quick] --format text|json`.

Simulated machines (`bench.simulated`), the same for every method. Per scenario and
method, over the machines:

probes_to_3pct, probes_to_1pct  median probes until the recommendation's true cost is within 3 %
                                and 1 % of the true optimum; null when the median machine never is
regret_10, regret_20            median regret after so many probes; null while nothing was found
regret_20_p90                   the same, of the machine at the 90th percentile
oom_probes                      mean probes of a study that ran out of memory

A probe that repeats a configuration or runs out of memory counts like any other. Machines are those
of the seeds from 100 on: the method was worked out on those below. `--docs` also writes the table
and the curves of docs/search.md; with `--method` those of the other methods stay.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from functools import lru_cache
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.samplers import study_curve
from bench.simulated import SCENARIOS, Grid, Machine

if TYPE_CHECKING:
    from collections.abc import Sequence

METHODS = ("random", "tpe", "tpe_warm", "gp_warm", "nsga2", "ladder", "calibrated")
MACHINES, QUICK_MACHINES = 20, 4
FIRST_SEED = 100  # machines below were looked at while the method was worked out
PROBES, QUICK_PROBES = 40, 20
GP_PROBES = 24  # half a second to a second each: what a full run can afford
Curve = list[float]
Task = tuple[str, str, int, int]  # scenario, method, seed, probes
Figures = dict[str, float | int | None]


@lru_cache(maxsize=2)
def _grid(gpus: int) -> Grid:
    return Grid.of(gpus)


def _machine(scenario: str, seed: int) -> Machine:
    wanted = SCENARIOS[scenario]
    return Machine(_grid(wanted.gpus), seed, wanted.bias, cliffs=wanted.cliffs)


def _run(task: Task) -> tuple[Task, Curve, int]:
    """The regret after every probe, and the probes that ran out of memory."""
    scenario, method, seed, probes = task
    os.environ["OMP_NUM_THREADS"] = "1"
    curve, ooms = study_curve(_machine(scenario, seed), method, probes, seed)
    return task, curve, ooms


def figures(curves: Sequence[Curve], ooms: Sequence[int]) -> Figures:
    """The figures of one method in one scenario."""
    return {
        "probes_to_3pct": _median_probes(curves, 0.03),
        "probes_to_1pct": _median_probes(curves, 0.01),
        "regret_10": regret(curves, 10, 50),
        "regret_20": regret(curves, 20, 50),
        "regret_20_p90": regret(curves, 20, 90),
        "oom_probes": round(float(np.mean(ooms)), 2),
    }


def _median_probes(curves: Sequence[Curve], within: float) -> float | None:
    """The first probe from which on, at its time, the pick was that good; median of machines."""
    first = [
        next((k + 1 for k, regret in enumerate(curve) if regret <= within), float("inf"))
        for curve in curves
    ]
    found = _quantile(first, 50)
    return found if np.isfinite(found) else None


def regret(curves: Sequence[Curve], after: int, percent: float) -> float | None:
    """The regret of the machine at that percentile after so many probes; null without a pick."""
    found = _quantile([curve[min(after, len(curve)) - 1] for curve in curves], percent)
    return round(found, 5) if np.isfinite(found) else None


def _quantile(values: Sequence[float], percent: float) -> float:
    """Linear between ranks, infinite where a rank that counts is."""
    ranked = sorted(values)
    place = (len(ranked) - 1) * percent / 100.0
    low, share = int(place), place - int(place)
    if share == 0:
        return ranked[low]
    return ranked[low] + share * (ranked[low + 1] - ranked[low])


def simulate(
    tasks: Sequence[Task], jobs: int, record: Path | None
) -> dict[str, dict[str, tuple[list[Curve], list[int]]]]:
    """Curves and out-of-memory probes of every machine by scenario and method."""
    known = _recorded(record)
    todo = [task for task in tasks if task not in known]
    with get_context("spawn").Pool(jobs) as pool:
        for done, (task, curve, ooms) in enumerate(pool.imap_unordered(_run, todo), start=1):
            known[task] = (curve, ooms)
            if record is not None:
                with record.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([task, curve, ooms]) + "\n")
            if done % MACHINES == 0:
                print(f"{done}/{len(todo)} studies", file=sys.stderr)
    found: dict[str, dict[str, tuple[list[Curve], list[int]]]] = {}
    for task in tasks:
        scenario, method, _, _ = task
        by_method = found.setdefault(scenario, {})
        curves, counts = by_method.setdefault(method, ([], []))
        curves.append(known[task][0])
        counts.append(known[task][1])
    return found


def _recorded(record: Path | None) -> dict[Task, tuple[Curve, int]]:
    if record is None or not record.exists():
        return {}
    lines = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    return {(t[0], t[1], t[2], t[3]): (curve, ooms) for t, curve, ooms in lines}


def available(methods: Sequence[str]) -> list[str]:
    """Methods whose packages are installed."""
    missing = any(find_spec(name) is None for name in ("scipy", "torch"))
    return [method for method in methods if method != "gp_warm" or not missing]


def answer(
    found: dict[str, dict[str, tuple[list[Curve], list[int]]]], methods: Sequence[str]
) -> dict[str, dict[str, Figures | None]]:
    """The figures by scenario and method; null for a method that could not run."""
    return {
        scenario: {
            method: figures(*by_method[method]) if method in by_method else None
            for method in methods
        }
        for scenario, by_method in found.items()
    }


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few machines, few probes")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--machines", type=int, help="machines per scenario")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help="of the machines")
    parser.add_argument("--probes", type=int, help="probes per machine")
    parser.add_argument("--method", action="append", choices=METHODS, help="only these")
    parser.add_argument("--scenario", action="append", choices=tuple(SCENARIOS), help="only these")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--record", type=Path, help="keep finished studies here; run only the rest")
    parser.add_argument("--docs", action="store_true", help="write docs/search.md's table and plot")
    options = parser.parse_args()
    if options.docs and options.scenario:
        parser.error("--docs writes all scenarios")
    os.environ["OMP_NUM_THREADS"] = "1"
    methods = options.method or METHODS
    machines = options.machines or (QUICK_MACHINES if options.quick else MACHINES)
    probes = options.probes or (QUICK_PROBES if options.quick else PROBES)
    tasks = [
        (scenario, method, seed, min(probes, GP_PROBES) if method == "gp_warm" else probes)
        for scenario in options.scenario or tuple(SCENARIOS)
        for method in available(methods)
        for seed in range(options.first_seed, options.first_seed + machines)
    ]
    found = simulate(tasks, options.jobs, options.record)
    result = answer(found, methods)
    if options.docs:
        from bench.search_docs import write

        curves = {s: {m: c for m, (c, _) in by.items()} for s, by in found.items()}
        write(_with_tails(result, curves), curves)
    if options.format == "json":
        print(json.dumps(result, indent=1, allow_nan=False))
        return
    for scenario, by_method in result.items():
        print(scenario)
        for method, values in by_method.items():
            print(f"  {method:12}", _line(values))


def _with_tails(
    result: dict[str, dict[str, Figures | None]], curves: dict[str, dict[str, list[Curve]]]
) -> dict[str, dict[str, Figures | None]]:
    """The figures and the regret after ten probes of the machine at the 90th percentile."""
    return {
        scenario: {
            method: {**values, "regret_10_p90": regret(curves[scenario][method], 10, 90)}
            if values is not None
            else None
            for method, values in by_method.items()
        }
        for scenario, by_method in result.items()
    }


def _line(values: dict[str, Any] | None) -> str:
    if values is None:
        return "not installed"
    shown = [f"{name} {'-' if value is None else f'{value:.3g}'}" for name, value in values.items()]
    return "  ".join(shown)


if __name__ == "__main__":
    main()
