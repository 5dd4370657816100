"""Workers as Slurm jobs: against commands that behave as Slurm's do, and against Slurm itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from waiting import until

from autotune.app.workers import slurm
from autotune.app.workers.executor import WorkerJob
from autotune.app.workers.lead import Crew
from autotune.app.workers.slurm import SlurmExecutor
from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from autotune.app.workers.executor import WorkerState

SLEEPS = "import time; print('up', flush=True); time.sleep(600)"
# A controller in one file: jobs are processes in sessions of their own, their number is their pid.
FAKE = """#!{python}
import json, os, signal, subprocess, sys
from pathlib import Path
home, me = Path({home!r}), Path(sys.argv[0]).name
if (home / "down").exists():
    sys.stderr.write("slurm_load_jobs error: Unable to contact slurm controller\\n")
    raise SystemExit(1)
if me == "sbatch":
    script, flags = sys.stdin.read(), dict(a.partition("=")[::2] for a in sys.argv[1:])
    if os.environ.get("SBATCH_PARTITION") == "nowhere":
        sys.stderr.write("sbatch: error: invalid partition specified: nowhere\\n")
        raise SystemExit(1)
    with (home / "submitted").open("a") as kept:
        kept.write(json.dumps([flags, script]) + "\\n")
    with open(flags["--output"], "ab") as log:
        job = subprocess.Popen(["sh", "-c", script], stdin=subprocess.DEVNULL, stdout=log,
                               stderr=log, start_new_session=True, cwd=flags["--chdir"])
    print(f"{{job.pid}};cluster")
elif me == "squeue":
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            waits = (home / "full").exists()
            if state != "Z":
                print(f"{{entry.name}}|" + ("PENDING|Priority" if waits else "RUNNING|None"))
else:
    for number in sys.argv[1:]:
        try:
            os.killpg(int(number), signal.SIGKILL)
        except ProcessLookupError:
            pass
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fake commands first in PATH; what they were asked is in this folder."""
    home = tmp_path / "slurm"
    home.mkdir()
    for name in ("sbatch", "squeue", "scancel"):
        path = home / name
        path.write_text(FAKE.format(python=sys.executable, home=str(home)))
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")
    return home


@pytest.fixture
def executor(home: Path) -> Iterator[SlurmExecutor]:
    made = SlurmExecutor()
    yield made
    (home / "down").unlink(missing_ok=True)
    made.stop()


def job(folder: Path, code: str, device: str = "cpu", count: int = 1) -> WorkerJob:
    return WorkerJob((sys.executable, "-c", code), folder, device, count, {"WHO": "it's me"})


def state(executor: SlurmExecutor, name: str) -> WorkerState:
    return next(found for found in executor.states() if found.name == name)


def number(folder: Path, name: str) -> int:
    return int((folder / "workers" / f"{name}.slurm").read_text())


def test_a_job_ends_with_its_code_and_last_words(executor: SlurmExecutor, tmp_path: Path) -> None:
    says = "import os; print(os.environ['WHO']); raise SystemExit(5)"
    executor.start(job(tmp_path, says), "1")
    until(lambda: state(executor, "1").state == "ended")
    found = state(executor, "1")
    assert (found.code, found.why, found.is_final) == (5, "it's me", True)


def test_a_worker_asks_for_its_gpus_on_one_node(
    executor: SlurmExecutor, home: Path, tmp_path: Path
) -> None:
    executor.start(job(tmp_path, "print()", "h100-sxm", 4), "1")
    flags, _ = json.loads((home / "submitted").read_text())
    assert flags["--gpus-per-node"] == "4"
    assert flags["--nodes"] == "1"
    assert "--no-requeue" in flags


def test_a_worker_of_a_processor_has_the_whole_node(
    executor: SlurmExecutor, home: Path, tmp_path: Path
) -> None:
    executor.start(job(tmp_path, "print()"), "1")
    flags, _ = json.loads((home / "submitted").read_text())
    assert "--exclusive" in flags


def test_a_job_whose_node_fails_is_no_final_answer(executor: SlurmExecutor, tmp_path: Path) -> None:
    executor.start(job(tmp_path, SLEEPS), "1")
    until(lambda: state(executor, "1").state == "running")
    os.killpg(number(tmp_path, "1"), signal.SIGKILL)
    until(lambda: state(executor, "1").state == "ended")
    found = state(executor, "1")
    assert found.code is None
    assert not found.is_final


def test_while_the_controller_is_away_nothing_counts_as_lost(
    executor: SlurmExecutor, home: Path, tmp_path: Path
) -> None:
    executor.start(job(tmp_path, SLEEPS), "1")
    (home / "down").touch()
    found = state(executor, "1")
    assert found.state == "running"
    assert found.unheard
    assert "Unable to contact slurm controller" in found.why


def test_that_the_controller_is_away_and_that_it_is_back_is_said_once(
    executor: SlurmExecutor, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "ASK_S", 0.0)
    told: list[str] = []
    crew = Crew(executor, job(tmp_path, SLEEPS), 1, told.append)
    crew.start()
    for is_down in (False, True, True, False, False):
        (home / "down").touch() if is_down else (home / "down").unlink(missing_ok=True)
        assert [found.state for found in crew.watch()] == ["running"]
    assert [line.partition(":")[0] for line in told] == [
        "squeue refused", "it is known again how the workers are",
    ]  # fmt: skip
    assert "taken to run on" in told[0]


def test_a_job_that_waits_says_why_and_the_controller_is_not_asked_at_every_look(
    executor: SlurmExecutor, home: Path, tmp_path: Path
) -> None:
    (home / "full").touch()
    executor.start(job(tmp_path, SLEEPS), "1")
    found = state(executor, "1")
    assert (found.state, found.why) == ("queued", "pending: Priority")
    (home / "full").unlink()
    assert state(executor, "1").state == "queued", "what it said a moment ago"
    executor.start(job(tmp_path, SLEEPS), "2")
    assert state(executor, "1").state == "running"


def test_the_next_search_takes_over_a_job_that_outlived_the_last(
    executor: SlurmExecutor, home: Path, tmp_path: Path
) -> None:
    executor.start(job(tmp_path, SLEEPS), "1")
    again = SlurmExecutor()
    again.start(job(tmp_path, SLEEPS), "2")
    assert state(again, "2").state == "running"
    assert len((home / "submitted").read_text().splitlines()) == 1
    again.start(job(tmp_path, SLEEPS), "3")
    assert len((home / "submitted").read_text().splitlines()) == 2
    again.stop()
    assert [found.state for found in again.states()] == ["ended", "ended"]
    assert SlurmExecutor().states() == []


def test_what_sbatch_refuses_is_said_in_its_words(
    executor: SlurmExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
    with pytest.raises(InputError, match="invalid partition specified"):
        executor.start(job(tmp_path, SLEEPS), "1")


def test_without_slurm_the_missing_commands_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="sbatch, squeue, scancel"):
        SlurmExecutor()


CONF = """ClusterName=one
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={home}/munge/sock
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
SlurmctldPort={port}
SlurmdPort={next_port}
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
ReturnToService=2
MailProg=/bin/true
KillWait=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=500 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo")


@pytest.fixture
def real_slurm(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Slurm on this machine alone, in a temporary folder."""
    missing = [name for name in DAEMONS if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs slurm-wlm and root; missing: {', '.join(missing) or 'root'}")
    home, munge = open_folder, open_folder / "munge"
    for folder in (munge, home / "state", home / "spool"):
        folder.mkdir(mode=0o700)
    (munge / "key").write_bytes(os.urandom(1024))
    (munge / "key").chmod(0o600)
    port, host = 20000 + os.getpid() % 20000, os.uname().nodename.partition(".")[0]
    (home / "slurm.conf").write_text(CONF.format(
        host=host, home=home, port=port, next_port=port + 1, cpus=os.cpu_count(),
    ))  # fmt: skip
    monkeypatch.setenv("SLURM_CONF", str(home / "slurm.conf"))
    own = [f"--{what}={munge}/{name}" for what, name in (
        ("key-file", "key"), ("socket", "sock"), ("pid-file", "pid"), ("log-file", "log"),
        ("seed-file", "seed"),
    )]  # fmt: skip
    try:
        subprocess.run(["munged", "--force", *own], check=True, timeout=60)
        for daemon in ("slurmctld", "slurmd"):
            subprocess.run([daemon, "-f", str(home / "slurm.conf")], check=True, timeout=60)
        until(lambda: "idle" in subprocess.run(
            ["sinfo", "--noheader", "--format=%T"], capture_output=True, text=True, check=False
        ).stdout, 90.0)  # fmt: skip
        yield home
    finally:
        for path in (home / "slurmd.pid", home / "slurmctld.pid", munge / "pid"):
            if path.exists():
                os.kill(int(path.read_text()), signal.SIGTERM)


@pytest.mark.slow
def test_slurm_itself_runs_cancels_and_hands_on_what_an_earlier_search_left(
    real_slurm: Path, tmp_path: Path
) -> None:
    assert real_slurm.exists()
    first = SlurmExecutor()
    says = "import os; print(os.environ['WHO']); raise SystemExit(5)"
    first.start(job(tmp_path, says), "1")
    until(lambda: state(first, "1").state == "ended", 120.0)
    assert (state(first, "1").code, state(first, "1").why) == (5, "it's me")
    first.start(job(tmp_path, SLEEPS), "2")
    until(lambda: state(first, "2").state == "running", 120.0)
    again = SlurmExecutor()
    again.start(job(tmp_path, SLEEPS), "3")
    assert state(again, "3").state == "running"
    assert number(tmp_path, "2") > number(tmp_path, "1")
    assert not (tmp_path / "workers" / "3.slurm").exists()
    again.stop()
    lost = state(again, "3")
    assert (lost.state, lost.is_final) == ("ended", False)
