"""A probe that broke says why, first; its whole words are kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app.job.load import load_job
from autotune.app.probing.plan import ProbeOptions
from autotune.app.runs.find import last_answered, list_runs, passed_over, to_resume
from autotune.app.runs.folder import Identity
from autotune.app.tune.tune import Options, tune
from autotune.domain.errors import InputError, NoLocalDevice
from autotune.probe.device import cpu
from autotune.probe.outcomes import MOST_LOG_BYTES, exception_of, explained, hint_for
from autotune.probe.runner import Place, Runner

if TYPE_CHECKING:
    from autotune.domain.config import Config
    from autotune.domain.job import Job

ROOT = Path(__file__).parents[2]
WORKER = """\
import sys
print("noise " * 40_000, file=sys.stderr)
def inner(path):
    with open(path):
        pass
def outer():
    try:
        inner("first.json")
    except FileNotFoundError:
        inner("no/such/request.json")
outer()
"""
WHY = "FileNotFoundError: [Errno 2] No such file or directory: 'no/such/request.json'"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    path = tmp_path / "broken worker.py"
    path.write_text(WORKER)
    return path


def test_the_exception_comes_first_then_the_trace_then_the_log(
    broken: Path, tmp_path: Path, request_body: dict[str, Any], config: Config
) -> None:
    logs = tmp_path / "run" / "failed"
    place = Place(cpu(), tmp_path / "run" / "probing", 30.0, (str(broken),), sys.executable, logs)
    record = Runner(place).run(request_body, config.as_dict())
    first, *trace, last = record.message.splitlines()
    assert (record.status, record.attempts) == ("crash", 2)
    assert first == f"{WHY} (exit code 1)"
    assert trace[-2:] == ['  File "' + str(broken) + '", line 4, in inner', "    with open(path):"]
    assert len(trace) <= 6
    kept = Path(last.removeprefix("full log: "))
    assert kept.is_absolute()
    assert kept.parent == logs
    assert kept.read_text().rstrip().endswith(WHY)
    assert kept.stat().st_size < MOST_LOG_BYTES + 1000
    assert not list((tmp_path / "run" / "probing").iterdir())


TELLING = """\
import json, os, sys
request, result = sys.argv[-2:]
asked = json.load(open(request))
print("logging in with " + os.environ["WANDB_API_KEY"], file=sys.stderr)
if {in_result}:
    json.dump({{"schema_version": 1, "key": asked["key"], "status": "crash",
               "message": "OSError: {token} has no access to the repository",
               "trace": "  File 'x', line 1\\n    login(token='{token}')"}}, open(result, "w"))
else:
    raise OSError("{token} has no access to the repository")
"""
HUB_TOKEN, WANDB_KEY = "hf_" + "abcdefghijklmnopqrstuv", "0123456789abcdef" * 2  # nobody's


@pytest.mark.parametrize("in_result", [False, True])
def test_a_token_in_a_traceback_is_in_no_record_and_no_log(
    tmp_path: Path, request_body: dict[str, Any], config: Config,
    monkeypatch: pytest.MonkeyPatch, in_result: bool,
) -> None:  # fmt: skip
    monkeypatch.setenv("WANDB_API_KEY", WANDB_KEY)
    worker, run_dir = tmp_path / "telling.py", tmp_path / "run"
    worker.write_text(TELLING.format(token=HUB_TOKEN, in_result=in_result))
    place = Place(
        cpu(), run_dir / "probing", 30.0, (str(worker),), sys.executable, run_dir / "failed"
    )
    record = Runner(place).run(request_body, config.as_dict())
    assert record.message.startswith("OSError: LEFT-OUT has no access to the repository")
    logs = [path.read_text() for path in (run_dir / "failed").iterdir()]
    assert logs
    for said in (*logs, json.dumps(record.result), record.message):
        assert HUB_TOKEN not in said
        assert WANDB_KEY not in said
    assert "logging in with LEFT-OUT" in logs[0]


TRACE = "Traceback (most recent call last):\n  File 'x', line 1\n"
FATAL = "Fatal Python error: Segmentation fault"


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("", ""),
        ("killed", "killed"),
        (f"{TRACE}ValueError: a\nb\n", "ValueError: a"),
        (f"{TRACE}KeyError: 1\n\nDuring handling\n\n{TRACE}OSError: 2\n", "OSError: 2"),
        (f"{FATAL}\n\nThread 0x1:\n  File 'x'\n", FATAL),
    ],
)
def test_the_line_that_says_why_is_found(text: str, first: str) -> None:
    assert exception_of(text) == first


def test_a_result_that_names_its_failure_is_told_with_the_end_of_its_trace() -> None:
    result = {"trace": f"Traceback (most recent call last):\n  File 'x', line 9\n    go()\n{WHY}\n"}
    said = explained("unsupported", WHY, result, "", Path("/run/failed/1.log"))
    assert said.splitlines() == [
        WHY,
        "  File 'x', line 9",
        "    go()",
        "full log: /run/failed/1.log",
    ]
    assert explained("oom_device", "8 GiB", {}, "noise", None) == "8 GiB"


def test_doctor_is_named_only_where_it_helps() -> None:
    assert "doctor" in hint_for("unsupported", "ImportError: flash_attn")
    words = "InductorError: InvalidCxxCompiler: No working C++ compiler found in torch._inductor"
    assert "install one (Debian: apt-get install g++)" in hint_for("unsupported", words)
    assert "doctor" in hint_for("crash", "ModuleNotFoundError: No module named 'peft'")
    assert "doctor" in hint_for("cuda_error", "CUDA error: unknown")
    assert "doctor" not in hint_for("crash", WHY)
    assert "micro_batch_size" in hint_for("timeout", "no result within its time")


def test_a_search_in_which_nothing_ran_says_why_everywhere_and_is_never_the_last_run(
    broken: Path, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_RUNS", str(tmp_path / "runs"))
    answered = tune(job, Options(run_dir=tmp_path / "runs" / "1-answered", fidelity="formula"))
    probing = ProbeOptions(worker=(str(broken),), probes=2)
    with pytest.raises(NoLocalDevice) as caught:
        tune(job, Options(score="probe", run_dir=tmp_path / "runs" / "2-broken", probing=probing))
    assert caught.value.message.startswith(f"no probe could run: crash, {WHY}")
    assert "full log: " in caught.value.message
    assert "doctor" not in (caught.value.hint or "")
    folder = tmp_path / "runs" / "2-broken"
    for name, key in (("probes.jsonl", "message"), ("trials.jsonl", "reason")):
        told = json.loads((folder / name).read_text().splitlines()[0])[key]
        assert WHY in told.splitlines()[0]
        assert Path(told.splitlines()[-1].removeprefix("full log: ")).is_file()
    states = {run.path.name: run.state for run in list_runs()}
    assert states == {"1-answered": "answered", "2-broken": "failed"}
    assert WHY in next(run.summary for run in list_runs() if run.state == "failed")
    assert last_answered() == tmp_path / "runs" / "1-answered" == Path(answered.run_dir or "")
    (note,) = passed_over()
    assert "2-broken" in note


def test_resume_takes_the_newest_unfinished_run_of_the_same_job(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_RUNS", str(tmp_path / "runs"))
    other = load_job(ROOT / "jobs" / "tiny_cpu.yaml", set_values={"train.epochs": "3"})
    for name, what in (("1", job), ("2", job), ("3", other)):
        tune(what, Options(run_dir=tmp_path / "runs" / name, fidelity="formula", trials=3))
    mine = Identity(job, ("", "cost"))
    assert to_resume(mine) == tmp_path / "runs" / "2"
    (tmp_path / "runs" / "1" / "recommendation.json").unlink()
    assert to_resume(mine) == tmp_path / "runs" / "1"
    again = tune(job, Options(resume=True, fidelity="formula", trials=3))
    assert again.run_dir == str(tmp_path / "runs" / "1")
    with pytest.raises(
        InputError, match=r"no run in .* is of this job and these options; the last"
    ):
        to_resume(Identity(job, ("", "time")))
