"""Whatever a machine answers, a measured answer agrees with itself; old faults are seen again."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from answerreports import problems
from drawnmachine import DrawnMachine, machines
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.app.job.load import load_job
from autotune.app.probing import measured_bill
from autotune.app.probing.plan import ProbeOptions
from autotune.app.tune.tune import Options, tune
from autotune.app.whatif import explain
from autotune.cost.constants import memory_constants
from autotune.domain.errors import NoLocalDevice
from autotune.domain.outcome import Estimated
from autotune.probe.record import read_records
from autotune.report import phrases
from autotune.search.posterior import stopping
from bench.replay.grid import FOLDER, RECORD, tiny_job
from bench.replay.recorded import RecordedRunner

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.domain.answer.recommendation import Recommendation

pytestmark = pytest.mark.usefixtures("home")

TINY = Path(__file__).parents[2] / "jobs" / "tiny_cpu.yaml"
TODAY = """
evidence:
  - measured: {duration: 5 min}
    config: {micro_batch_size: 4, num_dataloader_workers: 0, checkpoint_every_steps: 10,
             compile: off, precision: fp32}
    today: true
"""
NUMBER = itertools.count()


def job_file(folder: Path, *, today: bool) -> Path:
    if not (folder / "data").exists():
        shutil.copytree(TINY.parent / "data", folder / "data")
    path = folder / "job.yaml"
    path.write_text(TINY.read_text() + (TODAY if today else ""))
    return path


def measured(
    machine: object, path: Path, *, objective: Any = "cost", budget_s: float = 60.0,
    probes: int = 6, **limits: str,
) -> Recommendation:  # fmt: skip
    """Tuned by probes that the machine answers."""
    probing = ProbeOptions(
        runner=lambda _: machine,  # type: ignore[arg-type,return-value]
        reuse=False, budget_s=budget_s, probes=probes,
    )  # fmt: skip
    run = path.parent / f"run{next(NUMBER)}"
    options = Options(score="probe", objective=objective, run_dir=run, probing=probing)
    return tune(load_job(path, **limits), options)


@settings(
    max_examples=8, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(
    make=machines(),
    today=st.booleans(),
    limits=st.sampled_from(
        [{}, {"price": "3 USD/h"}, {"deadline": "20s"}, {"price": "3 USD/h", "deadline": "1h"}]
    ),
    objective=st.sampled_from(["cost", "time"]),
    allowed=st.sampled_from([(30.0, 9), (120.0, 5), (600.0, 2), (600.0, 9)]),
)
def test_a_measured_answer_agrees_with_itself_in_every_form(
    make: Callable[[], DrawnMachine], today: bool, limits: dict[str, str],
    objective: str, allowed: tuple[float, int], tmp_path: Path,
) -> None:  # fmt: skip
    path = job_file(tmp_path, today=today)
    try:
        found = measured(make(), path, objective=objective, budget_s=allowed[0],
                         probes=allowed[1], **limits)  # fmt: skip
    except NoLocalDevice:
        return  # every drawn probe broke: there is no answer
    assert problems(found) == []


def test_an_answer_from_the_recorded_grid_agrees_with_itself(tmp_path: Path) -> None:
    probing = ProbeOptions(
        probes=8, budget_s=3600.0, reuse=False,
        runner=lambda _: RecordedRunner(read_records(FOLDER / RECORD), 0),
    )  # fmt: skip
    options = Options(score="probe", run_dir=tmp_path / "run", probing=probing)
    found = tune(tiny_job(), options)
    assert found.best.basis == "measured"
    assert problems(found) == []


SLOW = {
    "speed_s": 0.5, "knobs": {}, "memory_bytes": 1e7, "wait": 0.0, "save_s": 0.1, "wall_s": 5.0,
    "fails": 0, "how": "oom", "spread": 0.01,
}  # fmt: skip


def _old_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of the modelled bill stays beside the measured one."""
    monkeypatch.setattr(measured_bill, "bound_of", lambda _parts, _in_training: "startup")


def _old_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What all steps take is the model's word."""
    own = explain.derived_reasons
    monkeypatch.setattr(
        explain, "derived_reasons",
        lambda job, row: own(job, replace(row, step_time_s=row.step_time_s / 100.0)),
    )  # fmt: skip


def _old_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept for the second run is taken off the budget that is told."""
    own = stopping.over_budget
    monkeypatch.setattr(
        stopping, "over_budget",
        lambda budget: own(replace(budget, limit=(budget.limit or 0.0) - budget.aside)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "seen"),
    [(_old_bound, "bound by startup, and training is"), (_old_steps, "all steps are said to take"),
     (_old_budget, "a probe budget of 55.0 s is told, and 60.0 s were asked for")],
)  # fmt: skip
def test_a_fault_that_is_put_back_is_seen_in_what_is_printed(
    fault: Callable[[pytest.MonkeyPatch], None], seen: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    path = job_file(tmp_path, today=False)
    assert problems(measured(DrawnMachine(**SLOW), path, probes=30)) == []
    fault(monkeypatch)
    found = problems(measured(DrawnMachine(**SLOW), path, probes=30))
    assert any(seen in text for text in found), found


RAGGED = """\
name: ragged
model: Qwen/Qwen2.5-0.5B
method: lora
data: {rows: 5000, max_length: 1024, padding: longest, lengths: {p50: 220, p95: 700, max: 1024}}
train: {global_batch_size: 8}
hardware: [{gpu: l4, price: 1 USD/h}]
lock: {micro_batch_size: 4, activation_checkpointing: none}
"""


def _sure_whatever_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose cache would fill the memory is said to fit like any other."""
    from autotune.cost.memory import component as memory

    monkeypatch.setattr(memory, "borne", lambda chance, _crowded, _claims: chance)


def _fits_beside_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phrases, "LITTLE_ROOM", "fits")


@pytest.mark.parametrize(
    ("fault", "seen"),
    [(_sure_whatever_is_cached, "its cache would fill the memory, and it is said to fit with"),
     (_fits_beside_an_alarm, "it is said to fit: verdict fits, crowded True")],
)  # fmt: skip
def test_a_fit_beside_an_alarm_is_seen_when_it_is_put_back(
    fault: Callable[[pytest.MonkeyPatch], None], seen: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    path = tmp_path / "job.yaml"
    path.write_text(RAGGED)
    answer = tune(load_job(path), Options(dry_run=True, fidelity="formula"))
    assert isinstance(answer.best, Estimated)
    assert answer.best.crowded, "nothing to see"
    assert answer.best.fits_probability <= memory_constants().claims["crowded"].bears
    assert problems(answer) == []
    fault(monkeypatch)
    found = problems(tune(load_job(path), Options(dry_run=True, fidelity="formula")))
    assert any(seen in text for text in found), found
