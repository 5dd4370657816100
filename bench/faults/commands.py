"""The commands that are disturbed: what comes before, what is run, and what is run again.

The probes of `tune --score probe` are those of the tests' fake worker, a real process that computes
nothing; those of `worker` are answered by the same formula in the worker's own process.
"""

from __future__ import annotations

import json
import math
import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.job.load import load_job
from autotune.catalog.files import SCRATCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.probe.record import ProbeRecord

ROOT = Path(__file__).parents[2]
JOB = str(ROOT / "jobs" / "rtx4090_qwen2_05b.yaml")
TINY = str(ROOT / "jobs" / "tiny_cpu.yaml")
CAMPAIGN = str(ROOT / "jobs" / "campaigns" / "rtx4090_qwen2.yaml")
FAKE = ROOT / "tests" / "probe" / "fake_worker.py"
# What is left to search is small: files are written as often, and priced in no time.
LOCKS = {"precision": "fp32", "compile": "off", "attention": "sdpa", "num_dataloader_workers": 0,
         "activation_checkpointing": "none"}  # fmt: skip
A100 = ("--gpu", "2xa100-80gb")
NO_RUN = 2  # exit code: bad input, as where there is nothing to resume
TIE = 1.003  # of what the pick costs
MOST_PROBES = 2


def nothing() -> int:
    """Nothing comes before or behind."""
    return 0


@dataclass(frozen=True, slots=True)
class Command:
    """What is run, what comes before and behind it, and what is run again after a fault.

    left: what it leaves, to be held against the undisturbed run; raises ValueError, KeyError or
    TypeError where a file cannot be read.
    """

    name: str
    run: Callable[[], int]
    again: Callable[[], int]
    before: Callable[[], int] = nothing
    behind: Callable[[], int] = nothing
    left: Callable[[Path], dict[str, Any]] = dict


def _cli(*words: str) -> int:
    from autotune.cli.application import run

    return run([*words, "--quiet"] if words[0] in {"tune", "verify"} else words)


def _tune(*more: str) -> int:
    return _cli("tune", JOB, "--fidelity", "formula", "--trials", "5", "--run", "run", *more)


def _again(resumed: int, afresh: Callable[[], int]) -> int:
    """Begin where there was nothing to resume."""
    return afresh() if resumed == NO_RUN else resumed


def _probed(*, resume: bool) -> int:
    from autotune.app.probing.plan import ProbeOptions
    from autotune.app.tune.tune import Options, tune
    from autotune.domain.errors import AutotuneError

    probing = ProbeOptions(probes=1, worker=(str(FAKE), "machine"))
    options = Options(score="probe", run_dir=Path("run").absolute(), probing=probing, resume=resume)
    try:
        tune(load_job(TINY, set_values={**LOCKS, "micro_batch_size": 4}), options)
    except AutotuneError as error:
        return error.exit_code
    return 0


def _verify() -> int:
    lines = [f"{step},1.5" for step in range(1, 101)]
    Path("steps.csv").write_text("\n".join(["step,step_time_s", *lines]) + "\n", encoding="utf-8")
    return _cli("verify", "run", "steps.csv")


def _past_runs() -> int:
    """One run is known already, another is new."""
    from bench.fuzz.tracked import write_mlflow, write_wandb

    write_wandb(Path("past") / "wandb")
    write_mlflow(Path("past") / "mlflow")
    return _cli("learn", "past/mlflow", *A100)


def _learn() -> int:
    return _cli("learn", "past", *A100)


def _plan() -> int:
    return _cli("plan", CAMPAIGN, "--parallel", "4", "--chart", "plan.svg")


def _prices() -> int:
    import sys
    from types import ModuleType, SimpleNamespace

    library: Any = ModuleType("gpuhunt")
    library.query = lambda **_: [
        SimpleNamespace(
            gpu_name="H100", gpu_count=1, gpu_memory=80.0, price=2.5, spot=False,
            instance_name="gpu_1x_h100_sxm5", location="us-east-1", flags=[],
        )
    ]  # fmt: skip
    sys.modules["gpuhunt"] = library
    os.environ.pop("AUTOTUNE_OFFLINE", None)
    return _cli("prices", "refresh")


class Formula:
    """A machine whose probes follow a formula."""

    on_phase, serving = None, False

    def close(self) -> None:
        """Nothing stays between probes."""

    def run(self, request: dict[str, Any], config: dict[str, Any], **asked: Any) -> ProbeRecord:  # noqa: ANN401 - a runner's
        """One probe."""
        from autotune.probe.record import ProbeRecord

        layers, micro = int(request["num_layers"]), config["micro_batch_size"]
        step_s = _step_s(config) * request["gradient_accumulation_steps"] * micro / 8 * layers / 2
        memory = 1e9 + 1e8 * layers * micro
        result = {
            "step": {"step_s": step_s, "micro_s": step_s, "optimizer_s": 0.0, "data_s": 0.0,
                     "accumulation": request["gradient_accumulation_steps"], "tokens": 1000,
                     "relative_error": 0.01},
            "memory": {"allocated_bytes": memory, "reserved_bytes": memory, "context_bytes": 2e8,
                       "driver_bytes": memory + 2e8, "total_bytes": 2e10},
            "checkpoint": {"save_s": 0.1, "bytes": 1000},
            "loader": [{"workers": 0, "batch_s": 0.001, "start_s": 0.0, "batches": 9}],
        }  # fmt: skip
        return ProbeRecord(
            request["key"], "ok", "", 5.0, config, "cpu", "", request, result,
            role=asked.get("role", "search"), predicted=asked.get("predicted") or {},
        )  # fmt: skip


def _step_s(config: dict[str, Any]) -> float:
    each = 0.02 + 0.03 * config["micro_batch_size"] ** 0.9
    each *= 1.3 if config["activation_checkpointing"] == "full" else 1.0
    return float(each * 8 / config["micro_batch_size"] + 0.004 * config["num_dataloader_workers"])


class Nobody:
    """Starts no worker."""

    def start(self, job: object, name: str) -> None:
        """Nothing."""

    def states(self) -> list[Any]:
        """None."""
        return []

    def stop(self) -> None:
        """Nothing."""


def _led(announce: Callable[[str], None], *, resume: bool) -> Any:  # noqa: ANN401 - app's Probed
    """Lead a search that starts no worker."""
    from autotune.app.probing.plan import Ground, ProbeOptions, local_bill
    from autotune.app.probing.study import StudySettings
    from autotune.app.workers.lead import Pace, probe_by_workers
    from autotune.pricing import Pricing
    from autotune.probe import device
    from autotune.space.enumerate import enumerate_candidates
    from autotune.space.file import load_space

    job, space = load_job(TINY, set_values=LOCKS), load_space(None)
    calibration = Pricing.learned(job).calibration
    bill = local_bill(job, enumerate_candidates(job, space).candidates, space, calibration,
                      job.offers)  # fmt: skip
    ground = Ground(job, space, calibration, job.offers[0], job.offers, exact=True, bill=bill)
    study = StudySettings(Path("run").absolute(), "job", resume=resume)
    pace = Pace(poll_s=0.02, quiet_s=0.2)
    options = ProbeOptions(probes=MOST_PROBES, runner=lambda _: Formula(), reuse=False, workers=0)
    return probe_by_workers(ground, device.cpu(), options, study, announce, Nobody(), pace)


def _begun() -> int:
    """A search whose leader is killed once others can join it."""

    def announced(line: str) -> None:
        if line.startswith("it waits for workers"):
            os.kill(os.getpid(), signal.SIGKILL)

    _led(announced, resume=False)
    return 1


def _work() -> int:
    from autotune.app.workers.join import work
    from autotune.domain.errors import AutotuneError

    def ours(options: Any) -> Any:  # noqa: ANN401 - ProbeOptions
        return replace(options, runner=lambda _: Formula(), reuse=False)

    try:
        work(Path("run").absolute(), None, "run", lambda _: None, ours)
    except AutotuneError as error:
        return error.exit_code
    return 0


def _led_to_its_end() -> int:
    """The search is taken up by a new leader, who finds it at its end."""
    found = _led(lambda _: None, resume=True)
    pick = found.explored.pick
    said = {"pick_s": _step_s(found.bill.candidates.config(pick).as_dict()),
            "confirmed": pick in found.explored.confirmed}  # fmt: skip
    Path("picked").write_text(json.dumps(said), encoding="utf-8")
    return 0


def files_left(folder: Path) -> dict[str, Any]:
    """Names and, of answers and evidence, what they say."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() or (path.name == ".lock" and name.startswith("home")):
            continue
        found[name] = _said(path)
    return found


def _said(path: Path) -> Any:  # noqa: ANN401 - JSON
    if path.name == "recommendation.json":
        best = json.loads(path.read_text(encoding="utf-8"))["best"]
        return best and (best["config"], best["device"])
    if path.name in {"runs.json", "residuals.json"}:
        content = json.loads(path.read_text(encoding="utf-8"))
        return sum(len(value) for value in content.values() if isinstance(value, list))
    if path.suffix == ".json":
        return isinstance(json.loads(path.read_text(encoding="utf-8")), dict)
    if path.suffix == ".jsonl":
        return len([json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()])
    return True


def search_left(folder: Path) -> dict[str, Any]:
    """Of a shared search: its pick, and whether any probe was lost or made to its end twice.

    What a worker measured before it was killed counts, so trials have other numbers, and workers
    are as many as there were: neither is compared.
    """
    picked = json.loads((folder / "picked").read_text(encoding="utf-8"))
    record = _lines(folder / "run" / "trials.jsonl")
    mine = {(r["number"], r["config"]) for r in record}
    theirs = {
        (r["number"], r["config"])
        for path in folder.glob("run/workers/*/trials.jsonl")
        for r in _lines(path, torn=True)
    }
    searched = [r["config"] for r in record if r["kind"] == "trial"]
    names = {
        name: True
        for path in folder.rglob("*")
        if path.is_file() and "workers" not in (name := path.relative_to(folder).as_posix())
        and not path.name.startswith(".lock")
    }  # fmt: skip
    every = {path.relative_to(folder).as_posix(): True for path in folder.rglob(f"*{SCRATCH}")}
    best = min(_step_s(config) for config in _measured(folder))
    return names | every | {
        "confirmed": picked["confirmed"],
        "the best of what was measured": picked["pick_s"] <= best * TIE,
        "lost": len(theirs - mine), "twice": len(searched) - len(set(searched)),
        "pick": round(math.log(picked["pick_s"]) / math.log(TIE)),
    }  # fmt: skip


def _measured(folder: Path) -> list[dict[str, Any]]:
    probes = [*folder.glob("run/workers/*/probes.jsonl"), folder / "run" / "probes.jsonl"]
    return [r["config"] for path in probes if path.exists() for r in _lines(path, torn=True)]


def _lines(path: Path, *, torn: bool = False) -> list[dict[str, Any]]:
    content = path.read_text(encoding="utf-8")
    whole = content[: content.rfind("\n") + 1] if torn else content
    return [json.loads(line) for line in whole.splitlines()]


COMMANDS = (
    Command("tune", _tune, lambda: _again(_tune("--resume"), _tune), left=files_left),
    Command(
        "tune --score probe",
        lambda: _probed(resume=False),
        lambda: _again(_probed(resume=True), lambda: _probed(resume=False)),
        left=files_left,
    ),
    Command("verify", _verify, _verify, before=_tune, left=files_left),
    Command("learn", _learn, _learn, before=_past_runs, left=files_left),
    Command("plan", _plan, _plan, left=files_left),
    Command("prices refresh", _prices, _prices, left=files_left),
    Command("worker", _work, _work, before=_begun, behind=_led_to_its_end, left=search_left),
)
