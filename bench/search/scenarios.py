"""How many probes a sampler needs: `python -m bench.search [--quick] --format text|json`.

Machines whose truth is known, the same for every method: drawn from the sampler's own prior
(`bench.search.simulated`), and drawn from none (`bench.search.families`). Per scenario and method,
over the machines:

probes_to_3pct, probes_to_1pct  median probes until the recommendation's true cost is within 3 %
                                and 1 % of the true optimum; null when the median machine never is
regret_6, regret_10, regret_20  median regret after so many probes; null while nothing was found
regret_6_p90, ...               the same, of the machine at the 90th percentile
oom_probes                      mean probes of a study that ran out of memory
bound_coverage_10               share of machines on which, after ten probes, no candidate was
                                better than the pick by more than was said; null for methods that
                                say nothing
bound_median_10                 median of what was said: the share that may be saved at most
stop_probe                      median probe after which a search that costs nothing would end by
                                itself; null where the median machine goes on
bound_coverage_stop, stop_regret, stop_regret_p90
                                the same then; at the last probe where it went on
beside                          of the calibrated sampler alone: after so many probes, its regret
                                minus the best rival's, the standard error of that, and
                                whether it is ahead, level or behind (`bench.search.level`)
study_s                         mean seconds of computing that a study took, its machine included

A probe that repeats a configuration or runs out of memory counts like any other. Machines are those
of the seeds from 100 on: the method was worked out on those below. `--docs` also writes the table
and the curves of docs/search.md; with `--method` those of the other methods stay, and with
`--scenario` those of the other families (one that is run is written whole).

`--workers 2 4 8` prints instead what so many workers save of the time of one, on a simulated clock
(`bench.search.workers` says of each figure what it is).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, replace
from functools import lru_cache
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.search.families import STRANGE, stranger
from bench.search.level import OURS, Level, levels, line
from bench.search.samplers import Ran, study_of
from bench.search.simulated import SCENARIOS, Grid, Machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.search.hidden import Hidden

METHODS = (
    "random", "random_fits", "topk", "hill", "plain_gp", "tpe", "tpe_warm", "gp_warm", "nsga2",
    "ladder", "calibrated",
)  # fmt: skip
ALL_SCENARIOS = (*STRANGE, *SCENARIOS)
MACHINES, QUICK_MACHINES = 20, 2
FIRST_SEED = 100  # machines below were looked at while the method was worked out
PROBES, QUICK_PROBES = 40, 20
GP_PROBES, QUICK_GP_PROBES = 24, 10  # half a second to a second each: what a run can afford
AFTER, TEN = (6, 10, 20), 10
Curve = list[float]
Task = tuple[str, str, int, int]  # scenario, method, seed, probes
Figures = dict[str, Any]  # numbers and null; `beside` of the calibrated sampler is a list


@lru_cache(maxsize=2)
def _grid(gpus: int) -> Grid:
    return Grid.of(gpus)


def machine_of(scenario: str, seed: int) -> Hidden:
    """The machine of that seed."""
    if scenario in STRANGE:
        return stranger(scenario, seed)
    wanted = SCENARIOS[scenario]
    return Machine(_grid(wanted.gpus), seed, wanted.bias, cliffs=wanted.cliffs)


def _run(task: Task) -> tuple[Task, Ran]:
    scenario, method, seed, probes = task
    os.environ["OMP_NUM_THREADS"] = "1"
    begun = time.process_time()
    ran = study_of(machine_of(scenario, seed), method, probes, seed)
    return task, replace(ran, seconds=round(time.process_time() - begun, 2))


def figures(studies: Sequence[Ran]) -> Figures:
    """The figures of one method in one scenario."""
    curves = [ran.curve for ran in studies]
    return {
        "probes_to_3pct": _median_probes(curves, 0.03),
        "probes_to_1pct": _median_probes(curves, 0.01),
        **{
            f"regret_{after}{name}": regret(curves, after, percent)
            for after in AFTER
            for name, percent in (("", 50), ("_p90", 90))
        },
        "oom_probes": round(float(np.mean([ran.ooms for ran in studies])), 2),
        **_said(studies),
        "study_s": round(float(np.mean([ran.seconds for ran in studies])), 2),
    }


def _said(studies: Sequence[Ran]) -> Figures:
    """What was said of how much better others may be, and what came of stopping."""
    if not all(ran.bounds for ran in studies):
        names = ("bound_coverage_10", "bound_median_10", "stop_probe", "bound_coverage_stop",
                 "stop_regret", "stop_regret_p90")  # fmt: skip
        return dict.fromkeys(names)
    ten = [min(TEN, len(ran.curve)) for ran in studies]
    at_stop = [ran.stop or len(ran.curve) for ran in studies]
    bounds = [ran.bounds[n - 1] for ran, n in zip(studies, ten, strict=True)]
    stop = _quantile([float("inf") if ran.stop is None else ran.stop for ran in studies], 50)
    stopped = [[ran.curve[n - 1]] for ran, n in zip(studies, at_stop, strict=True)]
    return {
        "bound_coverage_10": _share([r.holds(n) for r, n in zip(studies, ten, strict=True)]),
        "bound_median_10": round(_quantile([1.0 if b is None else b for b in bounds], 50), 5),
        "stop_probe": stop if np.isfinite(stop) else None,
        "bound_coverage_stop": _share([r.holds(n) for r, n in zip(studies, at_stop, strict=True)]),
        "stop_regret": regret(stopped, 1, 50),
        "stop_regret_p90": regret(stopped, 1, 90),
    }


def _share(held: Sequence[bool]) -> float:
    return round(float(np.mean(held)), 3)


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
    tasks: Sequence[Task], jobs: int, record: Path | None, again: Sequence[str] = ()
) -> dict[str, dict[str, list[Ran]]]:
    """The studies of every machine by scenario and method.

    record: finished studies, which are not run again but those of the methods in `again`.
    """
    known = {task: ran for task, ran in _recorded(record).items() if task[1] not in again}
    todo = [task for task in tasks if task not in known]
    begun = time.monotonic()
    with get_context("spawn").Pool(min(jobs, max(len(todo), 1))) as pool:
        for done, (task, ran) in enumerate(pool.imap_unordered(_run, todo), start=1):
            known[task] = ran
            if record is not None:
                with record.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([task, asdict(ran)]) + "\n")
            if done % MACHINES == 0:
                print(f"{done}/{len(todo)} studies", file=sys.stderr)
    if todo:
        print(f"{len(todo)} studies in {time.monotonic() - begun:.0f} s", file=sys.stderr)
    found: dict[str, dict[str, list[Ran]]] = {}
    for task in tasks:
        found.setdefault(task[0], {}).setdefault(task[1], []).append(known[task])
    return found


def _recorded(record: Path | None) -> dict[Task, Ran]:
    if record is None or not record.exists():
        return {}
    lines = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    return {(t[0], t[1], t[2], t[3]): Ran(**ran) for t, ran in lines}


def available(methods: Sequence[str]) -> list[str]:
    """Methods whose packages are installed."""
    missing = any(find_spec(name) is None for name in ("scipy", "torch"))
    return [method for method in methods if method != "gp_warm" or not missing]


def answer(
    found: dict[str, dict[str, list[Ran]]], methods: Sequence[str]
) -> dict[str, dict[str, Figures | None]]:
    """The figures by scenario and method; null for a method that could not run."""
    answer: dict[str, dict[str, Figures | None]] = {}
    for scenario, by_method in found.items():
        of = {m: figures(by_method[m]) if m in by_method else None for m in methods}
        own = of.get(OURS)
        beside = levels({m: [ran.curve for ran in studies] for m, studies in by_method.items()})
        if own is not None and beside:
            own["beside"] = [asdict(level) for level in beside]
        answer[scenario] = of
    return answer


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.search", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="few machines, few probes")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--machines", type=int, help="machines per scenario")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help="of the machines")
    parser.add_argument("--probes", type=int, help="probes per machine")
    parser.add_argument("--method", action="extend", nargs="+", choices=METHODS, help="only these")
    parser.add_argument(
        "--scenario", action="extend", nargs="+", choices=ALL_SCENARIOS, help="only these"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--record", type=Path, help="keep finished studies here; run only the rest")
    parser.add_argument(
        "--again", nargs="+", choices=METHODS, default=(), help="run these though they are recorded"
    )
    parser.add_argument("--docs", action="store_true", help="write docs/search.md's table and plot")
    parser.add_argument(
        "--workers", type=int, nargs="+", metavar="N", help="what so many workers save of the time"
    )
    options = parser.parse_args()
    for name in ("machines", "probes", "jobs"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name} is {value}; it must be at least 1")
    if options.workers and min(options.workers) < 1:
        parser.error(f"--workers is {min(options.workers)}; it must be at least 1")
    return options


def _several(options: argparse.Namespace) -> None:
    """Print what several workers save, as {SCENARIO: {calibrated: {WORKERS: figures}}} in JSON."""
    from bench.search import workers as search_workers

    machines = options.machines or (QUICK_MACHINES if options.quick else search_workers.MACHINES)
    found = search_workers.measure(
        machine_of, options.scenario or search_workers.SCENARIOS, options.workers,
        machines=machines, probes=options.probes or search_workers.PROBES,
        seed=options.first_seed, jobs=options.jobs,
    )  # fmt: skip
    if options.format == "json":
        answer = {
            scenario: {"calibrated": {str(count): asdict(own) for count, own in by_count.items()}}
            for scenario, by_count in found.items()
        }
        print(json.dumps(answer, indent=1, allow_nan=False))
        return
    for scenario, by_count in found.items():
        print(scenario)
        for count, own in by_count.items():
            print(" ", search_workers.line(count, own))


def main() -> None:
    """Simulate and print."""
    options = _options()
    os.environ["OMP_NUM_THREADS"] = "1"
    if options.workers:
        _several(options)
        return
    methods = options.method or METHODS
    machines = options.machines or (QUICK_MACHINES if options.quick else MACHINES)
    probes = options.probes or (QUICK_PROBES if options.quick else PROBES)
    most = QUICK_GP_PROBES if options.quick else GP_PROBES
    tasks = [
        (scenario, method, seed, min(probes, most) if method == "gp_warm" else probes)
        for scenario in options.scenario or ALL_SCENARIOS
        for method in available(methods)
        for seed in range(options.first_seed, options.first_seed + machines)
    ]
    found = simulate(tasks, options.jobs, options.record, options.again)
    result = answer(found, methods)
    if options.docs:
        from bench.search.docs import write

        write(result, {s: {m: [r.curve for r in c] for m, c in by.items()}
                       for s, by in found.items()}, options.first_seed)  # fmt: skip
    if options.format == "json":
        print(json.dumps(result, indent=1, allow_nan=False))
        return
    for scenario, by_method in result.items():
        print(scenario)
        for method, values in by_method.items():
            print(f"  {method:12}", _line(values))
        for beside in (by_method.get(OURS) or {}).get("beside", ()):
            print("   ", line(Level(**beside)))


def _line(values: dict[str, Any] | None) -> str:
    if values is None:
        return "not installed"
    shown = [
        f"{name} {'-' if value is None else f'{value:.3g}'}"
        for name, value in values.items() if name != "beside"
    ]  # fmt: skip
    return "  ".join(shown)


if __name__ == "__main__":
    main()
