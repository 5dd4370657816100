"""A search that goes on: within what it was asked, and after what stopped it is out of the way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from autotune.app.job.load import load_job
from autotune.app.probing.plan import ProbeOptions
from autotune.app.tune.tune import Options, tune
from autotune.domain.errors import Interrupted, NoLocalDevice
from autotune.probe import runner as running
from autotune.probe.outcomes import MAKE_ROOM
from autotune.report.payload import recommendation_payload
from autotune.report.screens.tune import recommendation_screen

if TYPE_CHECKING:
    from autotune.domain.job import Job

FAKE = Path(__file__).with_name("fake_worker.py")
JOB = Path(__file__).parents[2] / "jobs" / "tiny_cpu.yaml"
LOCKS = {
    "precision": "fp32",
    "compile": "off",
    "attention": "sdpa",
    "num_dataloader_workers": 0,
    "micro_batch_size": 4,
}
PROBING = ProbeOptions(worker=(str(FAKE), "machine"))


@pytest.fixture(scope="module")
def narrow() -> Job:
    return load_job(JOB, set_values=LOCKS)


def searched(run: Path) -> set[str]:
    """Configurations that were probed, without the pick's second run."""
    lines = (run / "probes.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return {r["key"] for r in records if r["role"] == "search" and r["status"] != "interrupted"}


def test_a_search_is_resumed_within_the_limits_that_it_was_asked(
    narrow: Job, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    asked = Options(score="probe", run_dir=run, probing=replace(PROBING, probes=1, budget_s=300.0))
    tune(narrow, asked)
    gone_on = replace(asked, resume=True, probing=PROBING)
    tune(narrow, gone_on)
    assert len(searched(run)) == 1
    record = json.loads((run / "job.json").read_text(encoding="utf-8"))
    assert record["limits"] == {"probes": 1, "budget_s": 300.0}
    tune(narrow, replace(gone_on, probing=replace(PROBING, probes=2)))
    record = json.loads((run / "job.json").read_text(encoding="utf-8"))
    assert record["limits"] == {"probes": 2, "budget_s": 300.0}, "asked for more, and that is kept"


def test_limits_that_nobody_wrote_are_the_usual_ones() -> None:
    assert PROBING.within({}) == PROBING
    assert PROBING.within({"probes": 3.0}).most == 3
    stated = replace(PROBING, probes=2, budget_s=60.0)
    assert stated.within({"probes": 9, "budget_s": 900.0}) == stated


def test_a_full_disk_stops_a_search_that_goes_on_once_there_is_room(
    narrow: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    asked = Options(score="probe", run_dir=run, probing=replace(PROBING, probes=1))
    with monkeypatch.context() as full:
        full.setattr(running, "LEAST_FREE_BYTES", 2**62)
        hangs = replace(PROBING, probes=1, worker=(str(FAKE), "hang"))
        with pytest.raises(NoLocalDevice, match="the disk is full") as caught:
            tune(narrow, replace(asked, probing=hangs))
    assert caught.value.hint == MAKE_ROOM
    answer = tune(narrow, replace(asked, resume=True))
    assert answer.best is not None
    assert len(searched(run)) == 1


@pytest.mark.parametrize(("workers", "others"), [(None, ""), (0, ", and the workers that joined")])
def test_an_interrupted_search_says_what_is_kept_and_who_goes_on(
    workers: int | None, others: str, narrow: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("autotune.app.probing.tune._probed", interrupted)
    asked = Options(
        score="probe", run_dir=tmp_path / "run", probing=replace(PROBING, workers=workers)
    )
    with pytest.raises(Interrupted) as caught:
        tune(narrow, asked)
    go_on = f"{others} go on" if others else ""
    assert caught.value.message == f"interrupted; every finished probe is kept{go_on}"
    assert "--resume" in str(caught.value.hint)


def test_a_dry_run_says_on_the_first_screen_what_would_be_probed(
    narrow: Job, tmp_path: Path
) -> None:
    asked = Options(score="probe", run_dir=tmp_path / "run", probing=PROBING, dry_run=True)
    shown = recommendation_screen(recommendation_payload(tune(narrow, asked)), width=80)
    assert "dry run: at most" in " ".join(shown.split()).lower()
