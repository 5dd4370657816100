"""What a probe costs and how far to trust it: `python -m bench.probe [--quick] --format text|json`.

With --beside CHECKOUT another version of it takes turns with this one: seconds outside the window
of a probe as a search of each runs it, and each one's step against a plain Trainer.

overhead_s     seconds of a probe by part, medians; all but `window` is beyond the measured steps;
               of the probes of a search, which one server forks, after the first; as `alone`, of
               those that import everything for themselves, such as the run of the pick
worker         a probe's step over that of a plain transformers Trainer run of the same arguments
repeat         the same configuration probed again and again: sd of a step over its mean
depth          two small depths extrapolated, over full depth where both ran

All on this machine's processor with small models. Probes that are compared take turns.
wall is what a clock on the wall saw, cpu the processor's own seconds, which other programs on the
machine disturb less. `error` is the standard error of a median of ratios between neighbours in
time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from autotune.app.job.load import load_job
from autotune.domain.config import Config
from autotune.probe import device as devices
from autotune.probe.request import Effort, key_of, request_for
from autotune.probe.runner import Place, Runner, worker_environment
from autotune.probe.session import Session
from autotune.probe.two_depth import STEP_TIMES, agreement, extrapolated, requests_at_depths
from bench.probe import beside as probe_beside
from bench.probe.paired import CLOCKS, against, spread

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType
    from typing import Literal

    Kind = Literal["full", "lora"]

    from autotune.domain.job import Job
    from autotune.probe.record import ProbeRecord

ROOT = Path(__file__).resolve().parents[2]
PLAIN = Path(__file__).with_name("plain_trainer.py")
CONFIG = Config(
    micro_batch_size=2, gradient_accumulation_steps=1, checkpoint_every_steps=50,
    precision="fp32", pin_memory=False,
)  # fmt: skip
STEPS_ONLY = Effort(
    most=30, measured=24, least=16, seconds=8.0, patience_s=12.0, loader=False, evaluation=False,
    checkpoint_max_bytes=0.0,
)  # fmt: skip
BRIEF = replace(STEPS_ONLY, most=24, measured=20, least=12, seconds=3.0, patience_s=3.0)
WHOLE = Effort(most=30, measured=16, least=8, seconds=6.0, patience_s=10.0)
DEPTHS, QUICK_DEPTHS = (8, 16, 24), (12,)
ROUNDS, QUICK_ROUNDS = 5, 3
TIMEOUT_S = 300.0


def small_job(*, layers: int = 2, hidden: int = 64, kind: Kind = "lora") -> Job:
    """The tiny CPU job with a model of that depth and width; every row padded to one length."""
    job = load_job(ROOT / "jobs" / "tiny_cpu.yaml", set_values={"precision": "fp32"})
    fields = json.loads(job.model.hf_config) | {
        "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": hidden * 5 // 2,
        "head_dim": hidden // 4,
    }  # fmt: skip
    model = replace(job.model, num_layers=layers, hf_config=json.dumps(fields))
    return replace(
        job, model=model, method=replace(job.method, kind=kind), padding="max_length",
        max_length=128, dataset_path=None, lengths=replace(job.lengths, quantiles=(128.0, 128.0)),
        global_batch_size=CONFIG.micro_batch_size * CONFIG.gradient_accumulation_steps,
    )  # fmt: skip


class Bench:
    """Probes and plain runs on this processor, one at a time."""

    def __init__(self, folder: Path) -> None:
        """folder: of probes under way."""
        self.place = Place(devices.cpu(), folder / "probing", TIMEOUT_S)
        self.runner = Runner(self.place)  # of probes that import everything for themselves
        self.session = Session(self.place)
        self._plain: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        """Use as a context manager: the processes end with the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the processes that stayed."""
        self.session.close()
        if self._plain is not None:
            self._plain.kill()
            self._plain.communicate()

    def probe(self, request: dict[str, Any], *, served: bool = True) -> ProbeRecord:
        """One probe that must succeed; served: as a search runs it."""
        run = self.session.run if served else self.runner.run
        record = run(request, CONFIG.as_dict())
        if not record.ok:
            msg = f"{record.status}: {record.message}"
            raise RuntimeError(msg)
        return record

    def plain(self, request: dict[str, Any]) -> dict[str, float]:
        """One plain run of a request."""
        if self._plain is None:
            self._plain = subprocess.Popen(
                [sys.executable, str(PLAIN)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True, env=worker_environment(self.place, "plain"),
            )  # fmt: skip
        if self._plain.stdin is None or self._plain.stdout is None:
            msg = "no pipes"
            raise RuntimeError(msg)
        self._plain.stdin.write(json.dumps(request) + "\n")
        self._plain.stdin.flush()
        found: dict[str, float] = json.loads(self._plain.stdout.readline())
        return found


def worker_over_plain(
    bench: Bench, job: Job, rounds: int, effort: Effort = STEPS_ONLY
) -> dict[str, Any]:
    """The worker's step over the plain Trainer's, taking turns."""
    request = request_for(job, job.offers[0], CONFIG, effort=effort)
    bench.probe(request)  # both import
    bench.plain(request)
    probed, plain = [], []
    for number in range(rounds):
        for own in (True, False) if number % 2 else (False, True):
            if own:
                probed.append(bench.probe(request).result["step"])
            else:
                plain.append(bench.plain(request))
    return {
        clock: against([s[name] for s in probed], [s[name] for s in plain])
        | {"repeat": spread([s[name] for s in probed])}
        for clock, name in CLOCKS.items()
    }


def depth_over_full(
    bench: Bench, job: Job, rounds: int, effort: Effort = STEPS_ONLY
) -> dict[str, Any]:
    """Extrapolation over full depth: times from several turns, memory from the first of them."""
    offer = job.offers[0]
    pair = requests_at_depths(job, offer, CONFIG, effort)
    if pair is None:
        msg = f"{job.model.num_layers} layers are too few for two depths"
        raise ValueError(msg)
    full = request_for(job, offer, CONFIG, effort=effort)
    asked = (*pair, full)
    turns = [[bench.probe(request) for request in asked] for _ in range(rounds)]
    low, high, whole = (_middle(runs) for runs in zip(*turns, strict=True))
    line = extrapolated(low, high, job.model.num_layers)
    first = turns[0]
    memory = agreement(extrapolated(first[0], first[1], job.model.num_layers), first[2])
    found: dict[str, Any] = {
        "layers": job.model.num_layers, "depths": line.result["extrapolated"]["depths"],
        "allocated": memory["allocated_bytes"], "driver": memory["driver_bytes"],
    }  # fmt: skip
    for clock, name in CLOCKS.items():
        found[clock] = float(line.result["step"][name]) / float(whole.result["step"][name])
    return found


def _middle(records: Sequence[ProbeRecord]) -> ProbeRecord:
    """The first record with the median times of all: one that was disturbed bends no line."""
    step = dict(records[0].result["step"])
    for name in STEP_TIMES:
        step[name] = statistics.median(float(r.result["step"][name]) for r in records)
    return replace(records[0], result={**records[0].result, "step": step})


def parts_s(record: ProbeRecord) -> dict[str, float]:
    """[s] of a probe by part; `start` is what comes before the worker's first line, and the end."""
    seconds, train = record.result["seconds"], record.result["train_seconds"]
    extra = (record.result.get("compile") or {}).get("extra_s", 0.0)
    found = {
        "start": record.wall_s - seconds["total"],
        "import": seconds["import"],
        "build": seconds["build"] + seconds["prepare"],
        "compile": min(extra, train["longest"] + train["warmup"]),
        "longest": train["longest"],
        "warmup": train["warmup"],
        "window": train["window"],
        "evaluation": seconds.get("evaluation", 0.0),
        "checkpoint": seconds.get("checkpoint", 0.0),
        "loader": seconds.get("loader", 0.0),
    }
    before = max(train["longest"] + train["warmup"], 1e-9)
    for name in ("longest", "warmup"):  # compiling happened in these
        found[name] -= found["compile"] * train[name] / before
    return found | {"trainer": record.wall_s - sum(found.values())}


def overhead(records: Sequence[ProbeRecord]) -> dict[str, float]:
    """[s] of whole probes of one configuration: medians by part, and of all but the window."""
    every = [parts_s(record) for record in records]
    found = {name: statistics.median(p[name] for p in every) for name in every[0]}
    found["beyond_window"] = statistics.median(
        record.wall_s - p["window"] for record, p in zip(records, every, strict=True)
    )
    return found


def repeats(
    bench: Bench, job: Job, rounds: int
) -> tuple[dict[str, float], dict[str, float], dict[str, Any]]:
    """Whole probes of one configuration: parts of served ones and others, how a step differs."""
    request = request_for(job, job.offers[0], CONFIG, effort=WHOLE)
    bench.probe(request)  # the server imports, once in a search
    pairs = [(bench.probe(request), bench.probe(request, served=False)) for _ in range(rounds)]
    records = [served for served, _ in pairs]
    steps = [record.result["step"] for record in records]
    repeat: dict[str, Any] = {
        clock: spread([step[name] for step in steps]) for clock, name in CLOCKS.items()
    }
    repeat["said"] = statistics.median(step["relative_error"] for step in steps)
    memory = [r.result["memory"] for r in records]
    repeat["allocated"] = spread([m["allocated_bytes"] for m in memory])
    repeat["driver"] = spread([m["driver_bytes"] for m in memory])
    alone = [other for _, other in pairs]
    return overhead(records), overhead(alone), repeat | {"probes": rounds}


def compiled_parts(bench: Bench, job: Job) -> dict[str, float]:
    """[s] of one probe with torch.compile, by part."""
    request = request_for(
        job, job.offers[0], CONFIG.with_knobs(compile="default"), effort=STEPS_ONLY, num_layers=1
    )
    return parts_s(bench.probe(request | {"key": key_of(request)}))


def measure(*, quick: bool) -> dict[str, Any]:
    """Every figure by name."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    kinds: tuple[Kind, ...] = ("lora",) if quick else ("lora", "full")
    with tempfile.TemporaryDirectory() as folder, Bench(Path(folder)) as bench:
        served, alone, repeat = repeats(bench, small_job(), rounds)
        found: dict[str, Any] = {
            "overhead_s": served, "overhead_alone_s": alone, "repeat": repeat,
            "worker": {
                kind: worker_over_plain(bench, small_job(kind=kind), rounds)
                for kind in kinds
            },
            "depth": [
                depth_over_full(bench, small_job(layers=layers, hidden=128, kind="full"), rounds)
                for layers in (QUICK_DEPTHS if quick else DEPTHS)
            ],
        }  # fmt: skip
        if not quick:
            found["overhead_compiled_s"] = compiled_parts(bench, small_job())
    found["load"] = os.getloadavg()[0]
    return found


def lines(found: dict[str, Any]) -> Iterable[str]:
    """The figures as tables."""
    for name in ("overhead_s", "overhead_alone_s", "overhead_compiled_s"):
        if name in found:
            yield f"{name:22} seconds"
            yield from (f"  {part:20} {value:7.2f}" for part, value in found[name].items())
    repeat = found["repeat"]
    yield f"repeat of {repeat['probes']} probes     relative sd"
    yield from (f"  {n:20} {v:7.2%}" for n, v in repeat.items() if n != "probes")
    yield "worker / plain Trainer    ratio     error  repeat"
    for kind, clocks in found["worker"].items():
        for clock, own in clocks.items():
            yield (f"  {kind + ', ' + clock:20} {own['ratio']:8.3f} {own['error']:9.2%} "
                   f"{own['repeat']:7.2%}")  # fmt: skip
    yield "two depths / full depth    wall     cpu  allocated  driver"
    for own in found["depth"]:
        name = f"{own['layers']} layers from {own['depths'][0]}, {own['depths'][1]}"
        yield (f"  {name:24} {own['wall']:4.3f} {own['cpu']:7.3f} "
               f"{own['allocated']:10.4f} {own['driver']:7.4f}")  # fmt: skip
    yield f"load of the machine at the end: {found['load']:.1f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.probe", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="fewer runs and one depth")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="another version of it")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # so that runs do not wait for each other
    if options.beside is not None:
        rounds = QUICK_ROUNDS if options.quick else ROUNDS
        found = probe_beside.measure(options.beside.resolve(), rounds)
        said = probe_beside.lines(found)
    else:
        found = measure(quick=options.quick)
        said = lines(found)
    if options.format == "json":
        print(json.dumps(found, indent=1))
        return
    for line in said:
        print(line)


if __name__ == "__main__":
    main()
