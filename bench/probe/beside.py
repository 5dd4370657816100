"""Probes of two versions of autotune in turns: `python -m bench.probe --beside CHECKOUT`.

A machine is seldom as busy for two minutes together, so that figures of today and of another day
cannot be compared. Each version runs in a process of its own and in its own folder.

beyond_window_s  seconds of a search's probe outside the window that its figures rest on, median
window_s         of that window
first_s          beyond the window, of the first probe: it imports, also where later ones do not
import_s, first_import_s  of importing alone
over_plain       a probe's step over a plain Trainer's, each with the standard error
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.probe.paired import CLOCKS, against

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parents[2]
TURNS = ("whole", "steps", "plain")
TURN = """
import json, sys, tempfile
from pathlib import Path
try:
    from bench.probe.cost import CONFIG, STEPS_ONLY, WHOLE, Bench, parts_s, request_for, small_job
except ModuleNotFoundError:  # a checkout in which it is one file
    from bench.probe import CONFIG, STEPS_ONLY, WHOLE, Bench, parts_s, request_for, small_job
job = small_job()
whole, steps = (request_for(job, job.offers[0], CONFIG, effort=e) for e in (WHOLE, STEPS_ONLY))
with tempfile.TemporaryDirectory() as folder, Bench(Path(folder)) as bench:
    for line in sys.stdin:
        if line.strip() == "whole":
            record = bench.probe(whole)
            found = parts_s(record) | {"wall_s": record.wall_s}
        else:
            found = (bench.plain(steps) if line.strip() == "plain"
                     else bench.probe(steps).result["step"])
        print(json.dumps(found), flush=True)
"""  # of one checkout: a probe as its searches run it, or a plain run, for each line


class Checkout:
    """A version of autotune in a process of its own, which runs what it is told and waits."""

    def __init__(self, root: Path, home: Path) -> None:
        """root: the checkout; home: where it keeps what it learns."""
        environment = {
            **os.environ, "PYTHONPATH": str(root), "AUTOTUNE_HOME": str(home),
            "AUTOTUNE_OFFLINE": "1",
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-c", TURN], cwd=root, env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def turn(self, what: str) -> dict[str, Any]:
        """One run: `whole` (a search's probe), `steps` (without its other parts) or `plain`."""
        if self._process.stdin is None or self._process.stdout is None:
            msg = "no pipes"
            raise RuntimeError(msg)
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self.close()
            msg = f"it ended with {self._process.returncode} instead of answering"
            raise RuntimeError(msg)
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """Its own processes end with the pipe."""
        self._process.communicate()


def measure(other: Path, rounds: int) -> dict[str, Any]:
    """Probes of this checkout and another in turns, after one of each that is not counted."""
    with tempfile.TemporaryDirectory() as folder:
        both = {
            name: Checkout(root, Path(folder) / name)
            for name, root in (("here", ROOT), ("there", other))
        }
        runs: dict[str, dict[str, list[dict[str, Any]]]] = {
            name: {what: [] for what in TURNS} for name in both
        }
        try:
            for number in range(rounds + 1):
                for what in TURNS:
                    for name in sorted(both, reverse=bool(number % 2)):
                        runs[name][what].append(both[name].turn(what))
        finally:
            for checkout in both.values():
                checkout.close()
    found = {name: figures(own) for name, own in runs.items()}
    ratio = found["here"]["beyond_window_s"] / found["there"]["beyond_window_s"]
    return found | {"here_over_there": ratio, "load": os.getloadavg()[0]}


def figures(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The figures of one checkout; the first run of each kind warmed it up."""
    whole, steps, plain = (runs[what][1:] for what in TURNS)
    beyond = [found["wall_s"] - found["window"] for found in whole]
    return {
        "beyond_window_s": statistics.median(beyond),
        "first_s": runs["whole"][0]["wall_s"] - runs["whole"][0]["window"],
        "window_s": statistics.median(found["window"] for found in whole),
        "import_s": statistics.median(found["import"] for found in whole),
        "first_import_s": runs["whole"][0]["import"],
        "over_plain": {
            clock: against([s[name] for s in steps], [s[name] for s in plain])
            for clock, name in CLOCKS.items()
        },
    }


def lines(found: dict[str, Any]) -> Iterable[str]:
    """The two versions as a table."""
    names = ("beyond_window_s", "window_s", "first_s", "import_s", "first_import_s")
    yield f"{'':22} {'here':>8} {'there':>8}"
    for name in names:
        yield f"{name:22} {found['here'][name]:8.2f} {found['there'][name]:8.2f}"
    for clock in CLOCKS:
        both = [found[name]["over_plain"][clock] for name in ("here", "there")]
        yield (f"{'worker / plain, ' + clock:22} "
               + " ".join(f"{own['ratio']:8.3f}" for own in both)
               + "   errors " + " ".join(f"{own['error']:.1%}" for own in both))  # fmt: skip
    yield f"beyond_window_s, here over there: {found['here_over_there']:.2f}"
    yield f"load of the machine at the end: {found['load']:.1f}"
