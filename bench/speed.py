"""How fast autotune is: `python -m bench.speed [--quick] [--beside CHECKOUT] --format text|json`.

help_s        `autotune --help` as a process
tune_s        `autotune tune jobs/h100_38h.yaml --fidelity formula` as a process, end to end
tune_cpu_s    [processor seconds, user and system] of that process: less of a busy machine is in it
line_cpu_s    the same of a job in one line, with a catalogue's model and machine
imports_cpu_s the same of a process that imports autotune's four libraries and does nothing
tune_over_imports, line_over_imports: tune_cpu_s and line_cpu_s over imports_cpu_s
priced_per_s  candidates priced per second, out of more than a million
trace_s       one memory trace of the installed training code, its process running; null where what
              it traces is not installed
proposal_s    the calibrated sampler's next proposal: 100,000 candidates, 50 measured trials
pending_8_s   the same while eight workers measure other candidates
proposal_million_s  as proposal_s, out of more than a million candidates

Each is the median of several runs on this machine. With --beside, only what is of processes, of
this checkout and of another one in turns, and the first over the other: a machine is seldom as busy
for two minutes together.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from autotune.app.job.load import load_job
from autotune.cost.model import CostModel
from autotune.domain.config import PLAIN
from autotune.space.enumerate import enumerate_candidates
from autotune.space.file import load_space

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.domain.candidates import Candidates
    from autotune.domain.device import Offer
    from autotune.domain.job import Job

ROOT = Path(__file__).resolve().parent.parent
JOB = ROOT / "jobs" / "h100_38h.yaml"
MILLION = 1_000_000
RUNS, QUICK_RUNS = 7, 3
PROCESSES = {  # what of `python` is typed
    "help_cpu_s": ("-m", "autotune", "--help"),
    "tune_cpu_s": ("-m", "autotune", "tune", str(JOB), "--fidelity", "formula", "--quiet"),
    "line_cpu_s": (
        "-m", "autotune", "tune", "--model", "Qwen/Qwen2.5-7B", "--method", "lora",
        "--rows", "20000", "--gpu", "h100", "--fidelity", "formula", "--quiet",
    ),
    "imports_cpu_s": ("-c", "import numpy, optuna, typer, pydantic"),
}  # fmt: skip
PENDING = 8  # trials that workers measure
CANDIDATES, PROPOSALS = 100_000, 50


def median_s(
    action: Callable[[], object], runs: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """[s] median time of an action by a clock, after one run that warms caches up."""
    action()
    seconds = []
    for _ in range(runs):
        start = clock()
        action()
        seconds.append(clock() - start)
    return statistics.median(seconds)


ANSWERS = (0, 4)  # exit codes of an answer; 4 says that a limit of the job is missed


def child_cpu_s() -> float:
    """[s] user and system time of all processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # os.times counts in hundredths
    return used.ru_utime + used.ru_stime


def process_s(
    arguments: Sequence[str], runs: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """[s] median of `python <arguments>` by a clock, its start included."""
    with tempfile.TemporaryDirectory() as folder:
        return median_s(lambda: typed(arguments, ROOT, Path(folder)), runs, clock)


def typed(arguments: Sequence[str], checkout: Path, folder: Path) -> None:
    """Run `python <arguments>` in a checkout as it runs installed: from compiled modules."""
    environment = {
        **os.environ, "AUTOTUNE_RUNS": str(folder / "runs"), "AUTOTUNE_HOME": str(folder / "home"),
        "AUTOTUNE_OFFLINE": "1", "PYTHONPYCACHEPREFIX": str(folder / "compiled"),
        "PYTHONPATH": str(checkout),
    }  # fmt: skip
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, *arguments], cwd=checkout, env=environment, check=False,
        capture_output=True,
    )  # fmt: skip
    if done.returncode not in ANSWERS:
        raise RuntimeError(done.stderr.decode())


def beside_s(other: Path, runs: int) -> dict[str, dict[str, float]]:
    """[processor seconds] of this checkout and another in turns, and the first over the other."""
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, arguments in PROCESSES.items():
            seconds: dict[Path, list[float]] = {ROOT: [], other: []}
            for run in range(runs + 1):
                for checkout, own in seconds.items():
                    start = child_cpu_s()
                    typed(arguments, checkout, Path(folder))
                    if run:  # the first compiles
                        own.append(child_cpu_s() - start)
            here, there = (statistics.median(own) for own in seconds.values())
            found[name] = {"here": here, "there": there, "here_over_there": here / there}
    return found


def million_candidates(job: Job) -> tuple[Job, Candidates]:
    """A job on enough offers that its extended space holds more than a million candidates.

    The offers differ in price and count, as a price list does.
    """
    offer = job.offers[0]
    host = replace(offer.host, cores=1024)
    counts = [count for count in (1, 2, 4, 8) if job.global_batch_size % count == 0]
    offers: list[Offer] = []
    space = load_space("extended")
    candidates = enumerate_candidates(job, space).candidates
    wide = job
    while len(candidates) <= MILLION:
        for _ in range(max(len(offers), len(counts)) // len(counts)):  # doubles the offers
            price = offer.usd_per_hour * (1 + 0.01 * len(offers))
            offers += [replace(offer, count=n, host=host, usd_per_hour=n * price) for n in counts]
        wide = replace(job, offers=tuple(offers), allow=tuple(PLAIN), lock={})
        candidates = enumerate_candidates(wide, space).candidates
    return wide, candidates


def priced_per_s(job: Job, runs: int) -> float:
    """[candidates/s] of a bill of more than a million candidates."""
    wide, candidates = million_candidates(job)
    model = CostModel(wide)
    return len(candidates) / median_s(lambda: model.price(candidates).feasible, runs)


def proposals_s(job: Job, runs: int, most: int | None = CANDIDATES) -> tuple[float, float]:
    """[s] of the calibrated sampler's next proposal, alone and while eight workers measure.

    50 trials are measured. most: candidates, of more than a million; None: all of them.
    """
    import optuna

    from autotune.search.axes import ParameterSpace
    from autotune.search.billed import BilledCandidates
    from autotune.search.study.calibrated import CalibratedSampler

    wide, every = million_candidates(job)
    count = most or len(every)
    candidates = every.take(np.linspace(0, len(every) - 1, count).astype(np.intp))
    space = ParameterSpace(candidates)
    priced = BilledCandidates(CostModel(wide).price(candidates), space, "cost")
    distributions: dict[str, optuna.distributions.BaseDistribution] = {
        axis.name: optuna.distributions.IntDistribution(0, len(axis.values) - 1)
        if axis.ordinal
        else optuna.distributions.CategoricalDistribution(axis.values)
        for axis in space.axes
    }
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study()
    draw = np.random.default_rng(0)
    feasible = np.flatnonzero(priced.bill.feasible)
    for index in draw.choice(feasible, PROPOSALS, replace=False):
        measured = {
            part.name: float(part.predicted[part.row_of[index]] * np.exp(draw.normal(0.0, 0.2)))
            for part in priced.parts
            if part.predicted[part.row_of[index]] > 0
        }
        study.add_trial(
            optuna.trial.create_trial(
                value=1.0, params=priced.params(int(index)), distributions=distributions,
                user_attrs={"measured": measured},
            )
        )  # fmt: skip

    def action() -> None:
        study.sampler = CalibratedSampler(priced, distributions)
        trial = study.ask(distributions)
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)

    alone = median_s(action, runs)
    for _ in range(PENDING):
        study.sampler = CalibratedSampler(priced, distributions)
        study.ask(distributions)
    return alone, median_s(action, runs)


def trace_s(job: Job, runs: int) -> float | None:
    """[s] to trace a configuration that was not traced before, in a process that is warm."""
    from autotune.app.job.evidence import default_config
    from autotune.trace.client import TraceFailed, Tracer, traced_versions
    from autotune.trace.request import request_for

    if not traced_versions():
        return None
    config = default_config(job, job.offers[0])
    with tempfile.TemporaryDirectory() as folder, Tracer(cache=Path(folder)) as tracer:
        seconds = []
        for run in range(runs + 1):
            for checkpointing in ("none", "full"):
                tried = config.with_knobs(activation_checkpointing=checkpointing)
                found = tracer.trace(request_for(job, tried, job.max_length - run))
                if isinstance(found, TraceFailed):
                    return None
                if run:  # the first loads the model's class
                    seconds.append(found.seconds)
    return statistics.median(seconds)


def measure(*, quick: bool) -> dict[str, float | None]:
    """Every figure by name."""
    runs = QUICK_RUNS if quick else RUNS
    job = load_job(JOB)
    tune, line, imports = (
        process_s(PROCESSES[name], runs, child_cpu_s)
        for name in ("tune_cpu_s", "line_cpu_s", "imports_cpu_s")
    )
    alone, beside_others = proposals_s(job, runs)
    return {
        "help_s": process_s(["-m", "autotune", "--help"], runs),
        "tune_s": process_s(PROCESSES["tune_cpu_s"], runs),
        "tune_cpu_s": tune,
        "line_cpu_s": line,
        "imports_cpu_s": imports,
        "tune_over_imports": tune / imports,
        "line_over_imports": line / imports,
        "priced_per_s": priced_per_s(job, runs),
        "trace_s": trace_s(job, runs),
        "proposal_s": alone,
        "pending_8_s": beside_others,
        "proposal_million_s": proposals_s(job, runs, None)[0],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="another version of it")
    options = parser.parse_args()
    if options.beside is not None:
        both = beside_s(options.beside.resolve(), QUICK_RUNS if options.quick else RUNS)
        if options.format == "json":
            print(json.dumps(both, indent=1))
            return
        for name, own in both.items():
            each = "   ".join(f"{key} {value:.3g}" for key, value in own.items())
            print(f"{name:17} {each}")
        return
    figures = measure(quick=options.quick)
    if options.format == "json":
        print(json.dumps(figures, indent=1))
        return
    for name, value in figures.items():
        shown = "not measured" if value is None else f"{value:,.4g}"
        if name == "priced_per_s" and value is not None:
            shown = f"{value:,.0f}"
        print(f"{name:17} {shown}")


if __name__ == "__main__":
    main()
