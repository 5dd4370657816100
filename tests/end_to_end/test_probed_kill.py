"""A probed search that is really killed, with real worker processes, goes on as if nothing were."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app.job.load import load_job
from autotune.app.probing.plan import ProbeOptions
from autotune.app.tune.tune import Options, tune
from autotune.probe import runner as probe_runner
from autotune.probe.record import PROBES_FILE, ProbeLog, read_records
from autotune.probe.runner import Runner
from autotune.search.study.record import TRIALS_FILE, TrialLog

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes"),
]
for package in ("torch", "transformers", "peft"):
    pytest.importorskip(package)
ROOT = Path(__file__).parents[2]
FAKE = ROOT / "tests" / "probe" / "fake_worker.py"
PROBES, MOST_LIVES = 3, 20


def search(folder: Path, *, resume: bool) -> None:
    locks = {"precision": "fp32", "compile": "off", "attention": "sdpa"}
    job = load_job(ROOT / "jobs" / "tiny_cpu.yaml", set_values=locks)
    probing = ProbeOptions(probes=PROBES, worker=(str(FAKE), "machine"), reuse=False)
    options = Options(score="probe", run_dir=folder, probing=probing, resume=resume)
    tune(job, options)


def sequence(folder: Path) -> list[tuple[str, str]]:
    return [(record.key, record.role) for record in read_records(folder / PROBES_FILE)]


def proposals(folder: Path) -> list[tuple[str, Any]]:
    lines = (folder / TRIALS_FILE).read_text(encoding="utf-8").splitlines()
    return [(trial["kind"], trial["params"]) for trial in map(json.loads, lines)]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(call: Callable[..., Any], at: int, *, after: bool) -> Callable[..., Any]:
    """The call, with a SIGKILL of this process before or after it, the `at`-th time."""
    count = 0

    def wrapped(*arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        if count == at and not after:
            die()
        found = call(*arguments, **named)
        if count == at:
            die()
        return found

    return wrapped


def torn(log: ProbeLog, record: Any) -> None:
    """Half a line reaches the disk."""
    with log.path.open("ab") as stream:
        stream.write(record.line()[:40])
    die()


# Each life gets one probe further: it dies at the second probe, or at the first record.
MOMENTS: dict[str, Callable[[], None]] = {
    "before a probe": lambda: setattr(Runner, "run", dying(Runner.run, 2, after=False)),
    "during a probe": lambda: setattr(
        probe_runner, "wait", dying(probe_runner.wait, 2, after=False)
    ),
    "after a probe, before its record": lambda: setattr(
        Runner, "run", dying(Runner.run, 2, after=True)
    ),
    "between a probe's record and the study's": lambda: setattr(
        ProbeLog, "append", dying(ProbeLog.append, 1, after=True)
    ),
    "after the study's record": lambda: setattr(
        TrialLog, "append", dying(TrialLog.append, 1, after=True)
    ),
}


def life(folder: Path, arm: Callable[[], None], *, resume: bool) -> None:
    arm()
    search(folder, resume=resume)


def lived(folder: Path, arm: Callable[[], None]) -> int | None:
    """The exit code of a process that goes on with the search and may die of its arm."""
    context: Any = multiprocessing.get_context("fork")
    began = (folder / "job.json").exists()
    process = context.Process(target=life, args=(folder, arm), kwargs={"resume": began})
    process.start()
    process.join()
    code: int | None = process.exitcode
    return code


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("straight") / "run"
    assert lived(folder, lambda: None) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_kill_9_at_every_boundary_makes_the_same_next_proposal(
    tmp_path: Path, straight: Path, moment: str
) -> None:
    folder, kills = tmp_path / "run", 0
    while (code := lived(folder, MOMENTS[moment])) == -signal.SIGKILL and kills < MOST_LIVES:
        kills += 1
    assert code == 0
    wanted = proposals(straight) if moment == "after the study's record" else sequence(straight)
    at_the_first = moment in {
        "between a probe's record and the study's", "after the study's record"
    }  # fmt: skip
    assert kills == len(wanted) - (0 if at_the_first else 1), "it died at every one"
    assert sequence(folder) == sequence(straight)
    assert proposals(folder) == proposals(straight)


@pytest.mark.slow
def test_a_record_that_was_torn_by_the_kill_never_counted(tmp_path: Path, straight: Path) -> None:
    folder = tmp_path / "run"
    whole = dying(ProbeLog.append, 0, after=False)

    def arm() -> None:
        count = 0

        def append(log: ProbeLog, record: Any) -> None:
            nonlocal count
            count += 1
            (torn if count == 2 else whole)(log, record)

        ProbeLog.append = append  # type: ignore[method-assign]

    assert lived(folder, arm) == -signal.SIGKILL
    assert (folder / PROBES_FILE).read_bytes()[-1:] != b"\n"
    assert lived(folder, lambda: None) == 0
    assert sequence(folder) == sequence(straight)
    assert proposals(folder) == proposals(straight)
