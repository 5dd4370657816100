"""What only a real process shows: imports, pipes, encodings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.cli.application import run

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "scipy", "peft", "trl", "accelerate")


def _run(*argv: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "autotune", *argv],
        cwd=ROOT, capture_output=True, timeout=900, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


def _imported(*argv: str, **environment: str) -> tuple[int, set[str]]:
    """The exit code, and the modules imported when the command line is done."""
    code = (
        "import sys, json\n"
        "from autotune.cli.application import run\n"
        "code = run(sys.argv[1:])\n"
        "print('\\n' + json.dumps([code, sorted(sys.modules)]), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *argv],
        cwd=ROOT, capture_output=True, timeout=900, check=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip
    left, names = json.loads(done.stderr.strip().splitlines()[-1])
    return left, set(names)


@pytest.mark.parametrize("argv", [("--help",), ("tune", "--help")])
def test_help_imports_nothing_heavy(argv: tuple[str, ...]) -> None:
    left, names = _imported(*argv)
    assert left == 0
    assert names & {*HEAVY, "optuna", "numpy", "ruamel", "tokenizers"} == set()


def test_a_model_scored_tune_never_imports_the_training_stack(tmp_path: Path) -> None:
    job = str(ROOT / "jobs" / "h100_38h.yaml")
    left, names = _imported("tune", job, "--fidelity", "formula", "--run", str(tmp_path / "run"))
    assert left in {0, 4}
    assert names & {*HEAVY, "optuna", "sqlalchemy", "sqlite3", "tqdm", "asyncio"} == set()


# What reads something that a job in one line has not, or that only a later command wants.
READERS = (
    "app.dataset.folder", "app.job.evidence", "app.runs.find", "evidence.calibrate",
    "probe.machine.kept", "trainers.launch.user_start", "trainers.own_file.patch",
    "trainers.syntax.command_line", "trainers.syntax.python_source",
)  # fmt: skip


def test_a_job_in_one_line_loads_no_reader_of_what_it_has_not(tmp_path: Path) -> None:
    line = ("--model", "Qwen/Qwen2.5-7B", "--rows", "20000", "--gpu", "h100")
    run = ("--fidelity", "formula", "--run", str(tmp_path / "run"))
    left, names = _imported("tune", *line, *run, AUTOTUNE_HOME=str(tmp_path / "home"))
    assert left == 0
    assert names & {f"autotune.{each}" for each in READERS} == set()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
@pytest.mark.parametrize("stated", [None, "2"])
def test_linear_algebra_takes_one_thread_unless_the_user_says_otherwise(stated: str | None) -> None:
    code = (
        "import os\n"
        "from autotune.cli import load_numpy\n"
        "load_numpy()\n"
        "import numpy\n"
        "print(len(os.listdir('/proc/self/task')), os.environ.get('OPENBLAS_NUM_THREADS'))\n"
    )
    inherited = {key: value for key, value in os.environ.items() if not key.endswith("_THREADS")}
    given = {} if stated is None else {"OPENBLAS_NUM_THREADS": stated}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, text=True,
        env={**inherited, "PYTHONPATH": str(ROOT), **given},
    )  # fmt: skip
    threads, left = done.stdout.split()
    assert left == str(stated), "what is started later has the user's environment"
    if stated is None or (os.cpu_count() or 1) > 1:
        assert threads == (stated or "1")


def test_the_module_runs_as_a_command() -> None:
    done = _run("--help")
    assert done.returncode == 0
    assert b"Usage: autotune" in done.stdout


def test_no_command_at_all_shows_the_help() -> None:
    done = _run()
    assert done.returncode == 2
    assert b"Commands:" in done.stdout + done.stderr


def test_a_reader_that_goes_away_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "autotune", "prices", "--format", "json"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        error = process.stderr.read()
        assert process.wait(timeout=900) == 0
    assert error == b""


def test_a_stream_without_block_characters_gets_ascii() -> None:
    rows = ROOT / "jobs" / "data"
    file = next(rows.glob("*.jsonl"))
    done = _run("dataset", str(file), PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert b"####" in done.stdout


def test_errors_come_in_two_lines_without_a_traceback() -> None:
    done = _run("estimate", "no-such-job.yaml")
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.startswith(b"error: ")
    assert b"Traceback" not in done.stderr


def test_completion_can_be_shown() -> None:
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # no shell above a daemon
    done = _run("--show-completion", "bash", **named)
    assert b"_AUTOTUNE_COMPLETE" in done.stdout


def test_a_full_disk_is_no_bug() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "autotune", "devices"],
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, timeout=900, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: this machine refused: No space left on device")
    assert b"bug" not in done.stderr


def test_an_interruption_while_modules_are_imported_leaves_with_130() -> None:
    code = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'autotune.cli.application':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from autotune.cli import main\n"
        "main(['devices'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=900, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 130
    assert done.stderr == b""


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    ("argv", "code"),
    [("tune jobs/h100_38h.yaml --dry-run -q", 4), ("devices", 0), ("estimate no-such.yaml", 2)],
)
def test_closed_streams_change_no_exit_code(argv: str, code: int, closed: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m autotune {argv} {closed}"],
        cwd=ROOT, capture_output=True, timeout=900, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr
    assert b"bug" not in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("argv", "code"), [("devices", 2), ("estimate no-such.yaml", 2)])
def test_streams_that_take_nothing_are_no_bug(argv: str, code: int, unbuffered: str) -> None:
    with Path("/dev/null").open("rb") as unwritable:
        done = subprocess.run(
            [sys.executable, "-m", "autotune", *argv.split()],
            cwd=ROOT, stdout=unwritable, stderr=unwritable, timeout=900, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    assert done.returncode == code


WAITING_TUNE = """
import sys, time
from autotune.app.tune import tune
from autotune.cli.application import run

def explore(*_):
    print("in the search", flush=True)
    time.sleep(600)

if sys.argv[1] == "wait":
    tune._explore = explore
sys.exit(run(sys.argv[2:]))
"""


def test_a_command_without_runs_that_is_interrupted_promises_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("autotune.app.learn.learn.learn", interrupted)
    assert run(["learn", str(tmp_path)]) != 0
    said = capsys.readouterr().err
    assert "interrupted before it ended" in said
    assert "type the same command again" in said
    assert "kept" not in said


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_ends_a_search_with_its_own_code_and_the_run_goes_on(
    name: str, tmp_path: Path
) -> None:
    number, folder = signal.Signals[name], tmp_path / "run"
    command = [sys.executable, "-c", WAITING_TUNE]
    tune = ["tune", str(ROOT / "jobs" / "rtx4090_qwen2_05b.yaml"), "--run", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [*command, "wait", *tune, "--fidelity", "formula"], env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # noqa: PLW1509 - nohup ignores one
    ) as started:  # fmt: skip
        assert started.stdout.readline() == "in the search\n"
        started.send_signal(number)
        _, said = started.communicate(timeout=600)
    assert started.returncode == 128 + number
    assert "interrupted; everything that finished is kept" in said
    assert [path.name for path in folder.iterdir()] == ["job.json"]
    again = [*command, "go", *tune, "--fidelity", "formula", "--resume", "--quiet"]
    done = subprocess.run(again, env=environment, capture_output=True, timeout=600, check=False)
    assert done.returncode == 0
    assert (folder / "recommendation.json").is_file()
