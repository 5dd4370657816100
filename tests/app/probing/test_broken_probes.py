"""Probes that break, and probes of another device: what is tried, left out and said."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from simulatedmachine import Machine, options_of, search, step_of

from autotune.app.tune.tune import Options, tune
from autotune.app.whatif.explain import BROKE
from autotune.catalog.files import home_dir
from autotune.domain.errors import NoLocalDevice
from autotune.probe.record import PROBES_FILE, read_records

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.cost.bill import Bill
    from autotune.domain.answer.recommendation import Recommendation
    from autotune.domain.job import Job

pytestmark = pytest.mark.usefixtures("home")


@pytest.mark.parametrize(
    ("knob", "value"), [("precision", "fp32"), ("activation_checkpointing", "none")]
)
def test_what_the_model_likes_best_may_be_what_breaks_and_only_that_is_left_out(
    bill: Bill, tmp_path: Path, knob: str, value: str
) -> None:
    machine = Machine(status=lambda config, _: "crash" if config[knob] == value else "ok")
    found = search(bill, machine, tmp_path / "run", probes=20)
    broken = [record for record in found.records if record.status == "crash"]
    assert {record.config[knob] for record in broken} == {value}
    assert 2 <= len({record.key for record in broken}) <= 4
    assert found.explored.pick is not None
    runs = [config for i in range(len(bill))
            if (config := bill.candidates.config(i).as_dict())[knob] != value]  # fmt: skip
    pick = bill.candidates.config(found.explored.pick).as_dict()
    assert step_of(pick) <= 1.02 * min(map(step_of, runs))


def test_what_broke_here_is_not_offered_beside_the_pick(job: Job, tmp_path: Path) -> None:
    machine = Machine(status=lambda c, _: "crash" if c["precision"] == "fp32" else "ok")
    probing = options_of(machine, probes=8)
    answer = tune(job, Options(score="probe", run_dir=tmp_path / "run", probing=probing))
    assert any(run.status == "crash" for run in answer.probed)
    assert answer.best.config.precision == "bf16"
    assert answer.reasons["precision"] == BROKE
    assert answer.reasons["attention"].startswith("best run with")
    offered = {each.config["precision"] for each in answer.sensitivities if each.config}
    assert offered == {"bf16"}


def test_where_nothing_fits_nothing_is_said_of_how_much_better_the_best_may_be(
    job: Job, tmp_path: Path
) -> None:
    def answer(status: str) -> Recommendation:
        machine, run = Machine(status=lambda *_: status), tmp_path / status
        probing = options_of(machine, probes=3)
        return tune(job, Options(score="probe", run_dir=run, probing=probing))

    none, some = answer("oom_device"), answer("ok")
    assert none.best is None
    assert none.search.bound is None
    assert some.search.bound is not None


def test_probes_of_an_earlier_day_are_said(bill: Bill, tmp_path: Path) -> None:
    def said(when: str) -> list[str]:
        path = tmp_path / PROBES_FILE
        lines = [json.loads(line) | {"when": when} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        notes = search(bill, Machine(), tmp_path, probes=2, resume=True).notes
        return [note for note in notes if "earlier day" in note]

    search(bill, Machine(), tmp_path, probes=2)
    now = datetime.now(UTC)
    assert said(now.isoformat()) == []
    assert said("whenever") == []
    (note,) = said((now - timedelta(days=3, hours=1)).isoformat())
    assert "(3 days ago at most)" in note


def test_where_everything_breaks_three_are_tried_that_have_little_in_common(
    bill: Bill, tmp_path: Path
) -> None:
    machine = Machine(status=lambda _, __: "crash")
    with pytest.raises(NoLocalDevice, match="no probe could run"):
        search(bill, machine, tmp_path / "run")
    first, second, third = (r.config for r in read_records(tmp_path / "run" / PROBES_FILE))
    both = {name for name in ("precision", "activation_checkpointing", "attention")
            if first[name] == second[name]}  # fmt: skip
    assert both
    assert not any(third[name] == first[name] for name in both)


def test_measurements_of_another_device_are_said_and_no_later_search_learns_them(
    bill: Bill, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    first = search(bill, Machine(), folder, probes=3, reuse=True)
    assert not any("another device" in note for note in first.notes)
    lines = [json.loads(line) for line in (folder / PROBES_FILE).read_text().splitlines()]
    moved = [{**line, "fingerprint": "0123456789abcdef"} for line in lines]
    (folder / PROBES_FILE).write_text("".join(json.dumps(line) + "\n" for line in moved))
    kept = sorted((home_dir() / "residuals").glob("*.json"))
    for path in kept:
        path.unlink()
    found = search(bill, Machine(), folder, probes=3, reuse=True, resume=True)
    note = next(note for note in found.notes if "another device" in note)
    assert note.startswith(f"{len(moved)} of the {len(moved)} measurements")
    assert found.explored.pick is not None
    assert kept
    assert not list((home_dir() / "residuals").glob("*.json"))
