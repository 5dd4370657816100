"""Probing a machine that others use: `python -m bench.replay.contended [--seeds N]`.

The search is run on the recorded grid of the tiny CPU job (`bench.replay.grid`) while imagined
programs come and go and make steps one to ten times as long. The worker's own windows, waits and
judgements are played through on a clock of their own, with the readings that betray such programs
and without any, where only the steps can. `--real N` probes this machine itself while N busy
processes run.

wrong: searches whose pick is more than 10 % over the least bill of the quiet record and that do not
say that they cannot tell. said: those that say so.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from autotune.app.job.load import load_job
from autotune.app.probing.plan import AnyRunner, ProbeOptions
from autotune.app.probing.study import StudySettings, probe_candidates
from autotune.domain.config import Config
from autotune.probe import device as devices
from autotune.probe.record import ProbeRecord, config_of, read_records
from autotune.probe.watch import disturbed
from autotune.probe.worker.disturbance import Counters
from autotune.probe.worker.windows import Step, Windows, summary
from bench.replay.grid import FOLDER, JOB, RECORD, tiny_job
from bench.replay.probed import bill_of, truth_of
from bench.replay.recorded import NOT_RECORDED, replay_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autotune.app.probing.study import Probed
    from autotune.cost.bill import Bill
    from autotune.domain.job import Job
    from bench.replay.probed import Truth

SEEDS, PROBES, BUDGET_S = 20, 12, 600.0
CLOSE = 0.10  # over the best: what must not go unsaid
CORES = 2.0
START_S, END_S = 9.0, 2.0  # importing and building; evaluation, saving and loader
OWN_SPREAD = 0.06  # sd of the log of a step on a quiet machine
BETWEEN = 0.02  # sd of the log between two quiet probes


@dataclass(frozen=True, slots=True)
class Load:
    """Programs that come and go. [s] quiet_s and busy_s: means of the times between and during.

    read: whether the kernel's counters betray them.
    """

    quiet_s: float
    busy_s: float
    most: float = 10.0  # times a step takes while they run, at most
    read: bool = True


LOADS = {
    "quiet": Load(math.inf, 0.0),
    "bursts": Load(20.0, 10.0),
    "bursts_unread": Load(20.0, 10.0, read=False),
    "short_bursts_unread": Load(2.0, 1.0, read=False),
    "half_unread": Load(30.0, 30.0, read=False),
    "long_bursts": Load(60.0, 60.0),
    "always": Load(0.0, 5.0),
    "always_unread": Load(0.0, 5.0, read=False),
}


class Contended:
    """A processor on its own clock that imagined programs share: `Host`, clock and waiting."""

    def __init__(self, load: Load, chance: random.Random) -> None:
        """The programs come and go as the random numbers have it."""
        self.load, self.chance = load, chance
        self.at_s = self.busy_s = self.own_s = self.waits_s = 0.0
        self.cores = int(CORES)
        self._spans: list[tuple[float, float]] = []  # until when, and how many times longer

    def factor(self, at_s: float) -> float:
        """How many times longer a step takes then."""
        while not self._spans or self._spans[-1][0] <= at_s:
            begun = self._spans[-1][0] if self._spans else 0.0
            busy = len(self._spans) % 2 == 1
            mean_s = self.load.busy_s if busy else self.load.quiet_s
            lasts = self.chance.expovariate(1.0 / mean_s) if 0 < mean_s < math.inf else mean_s
            times = math.exp(self.chance.uniform(0.0, math.log(self.load.most)))
            self._spans.append((begun + lasts, times if busy else 1.0))
        return next(times for until, times in self._spans if until > at_s)

    def read(self) -> Counters:
        """What the kernel would have counted."""
        if not self.load.read:
            return Counters(self.at_s, self.own_s)
        return Counters(self.at_s, self.own_s, self.busy_s, 0.0, {1: self.waits_s})

    def pass_by(self, seconds: float, *, working: bool) -> None:
        """Time goes by."""
        taken = 1.0 - 1.0 / self.factor(self.at_s)
        self.at_s += seconds
        own = (1.0 - taken) * CORES if working else 0.0
        self.own_s += seconds * own
        self.busy_s += seconds * (own + taken * CORES)
        self.waits_s += seconds * taken if working else 0.0

    def wait(self, _host: object, most_s: float) -> tuple[bool, float]:
        """Sleep until they are gone, where they can be seen; else for a moment."""
        begun = self.at_s
        while self.at_s - begun < most_s:
            self.pass_by(0.5, working=False)
            if not self.load.read or self.factor(self.at_s) < 1.1:  # noqa: PLR2004 - a tenth
                return True, self.at_s - begun
        return False, self.at_s - begun


class ContendedRunner(AnyRunner):
    """Stands in for a `Runner`: recorded quiet steps, made longer by imagined programs."""

    def __init__(self, records: Iterable[ProbeRecord], load: Load, seed: int) -> None:
        """Of each configuration the mean of its records is the quiet truth."""
        self.chance = random.Random(seed)  # noqa: S311 - a simulation
        self.machine = Contended(load, self.chance)
        self._runs: dict[str, list[ProbeRecord]] = defaultdict(list)
        for record in records:
            if record.ok:
                self._runs[replay_key(config_of(record))].append(record)
        self.count = 0

    def run(
        self, request: dict[str, Any], config: dict[str, Any], *,
        predicted: dict[str, float] | None = None, role: str = "search",
        timeout_s: float | None = None,  # noqa: ARG002 - a runner's signature
    ) -> ProbeRecord:  # fmt: skip
        """One probe on the machine's own clock."""
        runs, begun = self._runs.get(replay_key(Config.of(config))), self.machine.at_s
        if not runs:
            return ProbeRecord(
                request["key"], "unsupported", NOT_RECORDED, 0.0, config, "", "", {}, role=role
            )
        quiet_s = fmean(float(record.result["step"]["step_s"]) for record in runs)
        last = runs[-1].result["step"]
        self.machine.pass_by(START_S, working=False)
        steps = self._steps(quiet_s * math.exp(self.chance.gauss(0.0, BETWEEN)), request)
        self.machine.pass_by(END_S, working=False)
        best = steps.best
        step = summary(steps.steps[best.first : best.last]) | steps.report()
        scale = float(step["step_s"]) / float(last["step_s"])
        for name in ("micro_s", "optimizer_s", "data_s"):
            step[name] = float(last[name]) * scale
        step["accumulation"] = last["accumulation"]
        self.count += 1
        found = replace(
            runs[-1], key=request["key"], config=config, role=role, predicted=predicted or {},
            wall_s=self.machine.at_s - begun, when=str(self.count),
            result={**runs[-1].result, "step": step}, readings={},
        )  # fmt: skip
        return replace(found, disturbed=disturbed(found.result, {}))

    def _steps(self, quiet_s: float, request: dict[str, Any]) -> Windows:
        """What the worker's stopwatch does, step after step."""
        machine, steps = self.machine, []
        plan = {**request["steps"], **request["looks"], "patience_s": request["patience_s"]}
        windows = Windows(
            plan, steps, on_cpu=True, host=machine,  # type: ignore[arg-type]
            now=lambda: machine.at_s, wait=machine.wait,
        )  # fmt: skip
        windows.begin()
        while True:
            own = quiet_s * math.exp(self.chance.gauss(0.0, OWN_SPREAD))
            wall_s = own * machine.factor(machine.at_s)
            machine.pass_by(wall_s, working=True)
            steps.append(Step(wall_s, 1000, 0.0, wall_s, 0.0, own))
            if not windows.is_open:
                if windows.opens():
                    windows.opened(len(steps), machine.at_s)
                elif windows.given_up():
                    break
            if windows.full():
                windows.close(len(steps), machine.at_s)
                if windows.satisfied():
                    break
        windows.finish(len(steps), machine.at_s)
        return windows


@dataclass(frozen=True, slots=True)
class Grid:
    """The recorded job: every candidate, and what each took on a quiet machine."""

    job: Job
    bill: Bill
    records: list[ProbeRecord]

    @classmethod
    def of(cls, steps: int = 0, folder: Path = FOLDER) -> Grid:
        """The recorded job, or one with so many steps and nothing else: most of it is loading."""
        job = tiny_job(folder)
        job = replace(job, steps=steps, evaluation=None) if steps else job
        return cls(job, bill_of(job), read_records(folder / RECORD))

    def truth(self, folder: Path) -> Truth:
        """The quiet bills. folder: for the work."""
        return truth_of(self.job, self.bill, self.records, folder)

    def search(self, load: Load, seed: int, folder: Path) -> Probed:
        """One search on a machine that others use."""
        runner = ContendedRunner(self.records, load, seed)
        options = ProbeOptions(
            probes=PROBES, budget_s=BUDGET_S, reuse=False,
            runner=lambda _: runner,  # type: ignore[arg-type,return-value]
        )  # fmt: skip
        study = StudySettings(folder, "bench", seed=seed)
        return probe_candidates(self.bill, devices.cpu(), options, study, lambda _: None)


def judged(found: Probed, truth: Truth) -> dict[str, Any]:
    """How far a search's pick is from the best, and what was said of it."""
    pick, noise = found.explored.pick, found.noise
    regret = math.inf if pick is None else truth.regret(pick)
    return {
        "regret": regret, "cannot_tell": noise.cannot_tell, "why": noise.why,
        "step_regret": math.inf if pick is None else truth.step_regret(pick),
        "wrong": regret > CLOSE and not noise.cannot_tell,
        "ties": max((truth.regret(tie) - regret for tie in found.ties), default=0.0, key=abs),
        "probes": len(found.records), "probe_s": sum(r.wall_s for r in found.records),
        "disturbed": noise.disturbed_probes,
    }  # fmt: skip


def answer(
    loads: Iterable[str] = tuple(LOADS), seeds: int = SEEDS, steps: int = 0, folder: Path = FOLDER
) -> dict[str, Any]:
    """For every load: how far the picks are from the best, and what was said of it."""
    grid, truth = _known(steps, folder)
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in loads:
            runs = [
                judged(grid.search(LOADS[name], seed, Path(scratch) / f"{name}-{seed}"), truth)
                for seed in range(seeds)
            ]
            unsaid = [run["regret"] for run in runs if not run["cannot_tell"]]
            found[name] = {
                "wrong": sum(run["wrong"] for run in runs),
                "over": sum(run["regret"] > CLOSE for run in runs),
                "said": len(runs) - len(unsaid),
                "searches": len(runs),
                "regret": median(run["regret"] for run in runs),
                "worst": max(run["regret"] for run in runs),
                "worst_unsaid": max(unsaid, default=0.0),
                "step_regret": median(run["step_regret"] for run in runs),
                "probes": median(run["probes"] for run in runs),
                "runs": runs,
            }
    return found


@cache
def _known(steps: int, folder: Path) -> tuple[Grid, Truth]:
    """A recorded job and its quiet bills, which every load is judged by."""
    grid = Grid.of(steps, folder)
    with tempfile.TemporaryDirectory() as scratch:
        return grid, grid.truth(Path(scratch))


def really(count: int, probes: int = 4, budget_s: float = 300.0) -> dict[str, Any]:
    """Probe the recorded job on this machine while so many processes keep it busy.

    The truth is the quiet record, which is of another machine: only what is said can be judged,
    and that only where the processor is of its kind.
    """
    job = load_job(JOB, set_values={"compile": "off"})
    busy = [
        subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)
    ]
    try:
        with tempfile.TemporaryDirectory() as scratch:
            options = ProbeOptions(probes=probes, budget_s=budget_s, reuse=False)
            study = StudySettings(Path(scratch), "bench")
            found = probe_candidates(bill_of(job), devices.cpu(), options, study, print_line)
            _, truth = _known(0, FOLDER)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    return {"busy": count, **judged(found, truth), "noise": asdict(found.noise)}


def print_line(line: str) -> None:
    """A probe that finished."""
    print(line, file=sys.stderr, flush=True)


def text_of(found: dict[str, Any]) -> str:
    """The answer for people."""
    lines = ["load                 wrong  over 10 %  cannot tell  regret   worst  unsaid  probes"]
    lines += [
        f"{name:<20} {r['wrong']:>5}  {r['over']:>9}  {r['said']:>6} of {r['searches']:>2}  "
        f"{r['regret']:>6.1%}  {r['worst']:>6.1%}  {r['worst_unsaid']:>6.1%}  {r['probes']:>6.0f}"
        for name, r in found.items()
    ]
    return "\n".join(lines)


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS, help="searches for each load")
    parser.add_argument("--steps", type=int, default=0, help="of the job; 0: as it is")
    parser.add_argument("--load", choices=tuple(LOADS), action="append", help="only these")
    parser.add_argument("--real", type=int, help="probe this machine beside so many busy processes")
    parser.add_argument("--quick", action="store_true", help="three seeds")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args()
    if options.real is not None:
        print(json.dumps(really(options.real), indent=1))
        return
    seeds = 3 if options.quick else options.seeds
    found = answer(options.load or tuple(LOADS), seeds, options.steps)
    print(json.dumps(found, indent=1) if options.format == "json" else text_of(found))


if __name__ == "__main__":
    main()
