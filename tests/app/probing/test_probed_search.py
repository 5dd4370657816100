"""A probed search on a machine that answers from a formula: what runs, when it stops, resuming."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from simulatedmachine import TINY, Killed, Machine, bill_of, options_of, search, sequence, step_of

from autotune.app.job.load import load_job
from autotune.app.probing.measured_bill import transferred
from autotune.app.probing.notes import notes_of
from autotune.app.probing.plan import ProbeOptions, candidates_of, plan_probe
from autotune.app.probing.probe import Prober
from autotune.app.probing.study import check_affordable
from autotune.app.probing.tune import without_limits
from autotune.cost.model import CostModel
from autotune.domain.errors import InputError, Interrupted
from autotune.probe import device as devices
from autotune.probe.record import PROBES_FILE, ProbeRecord, read_records
from autotune.probe.request import two_depths
from autotune.search.measured.prior import PRIOR_FILE
from autotune.search.study.record import TrialLog

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.cost.bill import Bill
    from autotune.domain.job import Job

pytestmark = pytest.mark.usefixtures("home")


def slow(config: dict[str, Any]) -> float:
    """[s] so far off what the model says of any configuration that one probe is not believed."""
    return 3.0 * step_of(config)


def best_step(bill: Bill) -> float:
    return min(step_of(bill.candidates.config(i).as_dict()) for i in range(len(bill)))


def test_the_pick_was_run_and_confirmed_and_is_the_machine_s_best(
    bill: Bill, tmp_path: Path
) -> None:
    found = search(bill, Machine(), tmp_path)
    pick = found.explored.pick
    assert pick is not None
    config = bill.candidates.config(pick).as_dict()
    assert step_of(config) <= best_step(bill) * 1.05
    runs = [r for r in found.records if r.config["micro_batch_size"] == config["micro_batch_size"]]
    assert {r.role for r in runs} >= {"search", "confirm"}
    assert pick in found.explored.confirmed
    assert found.rows[0].index == pick
    assert len(found.records) < len(bill) / 4


def test_why_it_stopped_and_what_stays_uncertain_are_said_and_never_optimal(
    bill: Bill, tmp_path: Path
) -> None:
    said = search(bill, Machine(), tmp_path).stopped_because
    assert "no probe is expected to save more than 0.3%" in said
    assert "no configuration is more than" in said
    assert "optimal" not in said


def test_on_a_paid_device_it_stops_when_a_probe_costs_more_than_it_saves(tmp_path: Path) -> None:
    job = load_job(TINY, set_values={"compile": "off"}, price="3 USD/h")
    bill = bill_of(job)
    found = search(bill, Machine(wall_s=60.0), tmp_path)
    assert "another probe costs $" in found.stopped_because
    assert "expected to save $" in found.stopped_because
    assert len(found.records) <= 4


@pytest.mark.parametrize("when", ["before", "after", "between"])
def test_killed_at_every_probe_boundary_it_goes_on_with_the_same_proposals(
    bill: Bill, tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a probe, after it, and between its record and the study's: once at each."""
    search(bill, Machine(), tmp_path / "straight")
    straight = sequence(tmp_path / "straight")
    assert len(straight) >= 5
    append, limit = TrialLog.append, 0

    def dies(number: int, moment: str) -> None:
        if moment == when and number >= 1:
            raise Killed

    def told(log: TrialLog, record: Any) -> None:
        if when == "between" and len(log.records) >= limit:
            raise Killed
        append(log, record)

    monkeypatch.setattr(TrialLog, "append", told)
    folder, kills = tmp_path / "pieces", 0
    for limit in range(len(straight) + 2):  # noqa: B007 - read by `told`
        try:
            search(bill, Machine(dies=dies), folder, resume=kills > 0)
            break
        except Killed:
            kills += 1
    told_apart = [probe for probe in straight if when != "between" or probe[1] != "repeat"]
    assert kills >= len(told_apart) - 1, "a study hears of repeats with the first"
    assert sequence(folder) == straight


def test_an_interrupted_probe_is_kept_but_is_no_answer(bill: Bill, tmp_path: Path) -> None:
    search(bill, Machine(), tmp_path / "straight")
    folder = tmp_path / "stopped"
    stopping = Machine(status=lambda *_: "interrupted" if stopping.count == 3 else "ok")
    with pytest.raises(Interrupted, match="2 finished probes are kept"):
        search(bill, stopping, folder)
    at_once = Machine(status=lambda *_: "interrupted")
    with pytest.raises(Interrupted, match="2 finished probes are kept"):
        search(bill, at_once, folder, resume=True)
    search(bill, Machine(), folder, resume=True)
    kept = [r for r in read_records(folder / PROBES_FILE) if r.status != "interrupted"]
    assert [(r.key, r.role) for r in kept] == sequence(tmp_path / "straight")


def test_resuming_a_finished_search_runs_nothing(bill: Bill, tmp_path: Path) -> None:
    first = search(bill, Machine(), tmp_path)
    machine = Machine()
    again = search(bill, machine, tmp_path, resume=True)
    assert machine.count == 0
    assert again.explored.pick == first.explored.pick
    assert again.stopped_because == first.stopped_because


@pytest.mark.parametrize("limit", [{"probes": 3}, {"budget_s": 27.0}])
def test_a_search_that_a_limit_ended_goes_on_under_a_wider_one_as_if_it_had_been_that_wide(
    bill: Bill, tmp_path: Path, limit: dict[str, Any]
) -> None:
    wide = {name: 2 * value for name, value in limit.items()}
    search(bill, Machine(), tmp_path, **limit)
    assert len(sequence(tmp_path)) >= 4, "the pick was confirmed"
    machine = Machine()
    search(bill, machine, tmp_path, resume=True, **limit)
    assert machine.count == 0, "the limit is as it was"
    found = search(bill, machine, tmp_path, resume=True, **wide)
    searched = [record.key for record in found.records if record.role == "search"]
    search(bill, Machine(), tmp_path / "straight", **wide)
    straight = [key for key, role in sequence(tmp_path / "straight") if role == "search"]
    assert len(searched) > 3
    assert searched == straight[: len(searched)]
    machine = Machine()
    search(bill, machine, tmp_path, resume=True, **limit)
    assert machine.count == 0, "a narrower one stops nothing that was run"


def test_a_run_of_which_another_was_interrupted_is_counted_as_the_first(
    job: Job, bill: Bill, tmp_path: Path
) -> None:
    stopping = Machine(slow, status=lambda *_: "interrupted" if stopping.count == 3 else "ok")
    with pytest.raises(Interrupted, match="2 finished probes are kept"):
        search(bill, stopping, tmp_path)
    lines: list[str] = []
    prober = Prober(job, bill, devices.cpu(), options_of(Machine()), "cost", tmp_path, lines.append)
    at = next(i for i in range(len(bill)) if prober.key_of(i) == sequence(tmp_path)[-1][0])
    prober.measure(at)
    assert lines[0].startswith("probe 2 of 12 | "), lines  # a doubtful one is run once more


def test_no_more_is_probed_than_allowed(bill: Bill, tmp_path: Path) -> None:
    found = search(bill, Machine(), tmp_path, probes=3)
    assert sum(r.role == "search" for r in found.records) == 3
    assert "3 configurations were probed, as many as allowed" in found.stopped_because


def test_a_budget_keeps_room_for_the_second_run_of_the_pick(bill: Bill, tmp_path: Path) -> None:
    found = search(bill, Machine(wall_s=10.0), tmp_path, budget_s=40.0)
    assert sum(r.wall_s for r in found.records) <= 40.0
    assert "budget" in found.stopped_because
    assert found.explored.pick in found.explored.confirmed


def test_a_budget_smaller_than_one_probe_is_refused(job: Job, bill: Bill) -> None:
    with pytest.raises(InputError, match="smaller than one probe"):
        check_affordable(job, bill, ProbeOptions(budget_s=1.0), "cost")


def test_equals_are_a_tie_and_the_plainer_is_taken(bill: Bill, tmp_path: Path) -> None:
    found = search(bill, Machine(step=lambda _: 0.1), tmp_path)
    pick = found.explored.pick
    assert pick is not None
    assert found.ties
    config = bill.candidates.config(pick)
    rows = {row.index: row.row.config for row in found.rows}
    assert config.num_dataloader_workers == min(
        rows[i].num_dataloader_workers for i in (*found.ties, pick)
    )


def test_a_pick_that_does_not_fit_the_second_time_gives_way(bill: Bill, tmp_path: Path) -> None:
    first = search(bill, Machine(slow), tmp_path / "a").explored.pick
    assert first is not None
    unlucky = bill.candidates.config(first).as_dict()
    names = ("micro_batch_size", "precision", "attention", "activation_checkpointing")

    def status(config: dict[str, Any], role: str) -> str:
        same = all(config[n] == unlucky[n] for n in names)
        return "oom_device" if same and role == "confirm" else "ok"

    found = search(bill, Machine(slow, status=status), tmp_path / "b")
    assert found.explored.pick not in {first, None}
    assert any("2 of 3 runs" in note for note in found.notes), (
        "the first was far off its prediction"
    )


@pytest.mark.parametrize(("left", "fitted"), [(0.01, 3), (0.01, 2), (0.2, 1)])
def test_a_run_that_ended_close_to_the_limit_is_repeated_and_its_share_is_kept(
    bill: Bill, tmp_path: Path, left: float, fitted: int
) -> None:
    class Tight(Machine):
        def run(self, request: dict[str, Any], config: dict[str, Any], **rest: Any) -> ProbeRecord:
            found = super().run(request, config, **rest)
            held = found.result["memory"]["driver_bytes"] * (1.0 + left)
            memory = {**found.result["memory"], "total_bytes": held}
            return replace(found, result={**found.result, "memory": memory})

    ends = iter(["ok"] * (fitted if left < 0.1 else 9) + ["oom_device"] * 9)
    machine = Tight(slow, status=lambda _c, _r: next(ends))
    found = search(bill, machine, tmp_path, probes=1)
    roles = [record.role for record in found.records]
    if left > 0.1:
        assert roles == ["search", "repeat", "confirm"], "far off its prediction: once more"
    else:
        assert roles[:3] == ["search", "repeat", "repeat"]
    if fitted == 2:  # one of three did not fit: it is not offered
        assert found.explored.pick is None


def test_stock_samplers_are_answered_from_the_same_pick(bill: Bill, tmp_path: Path) -> None:
    found = search(bill, Machine(), tmp_path, sampler="random", probes=5)
    assert found.explored.pick in {row.index for row in found.rows}
    assert found.explored.pick in found.explored.confirmed


def test_a_second_run_starts_from_what_the_first_learned_and_says_what_that_saved(
    bill: Bill, tmp_path: Path
) -> None:
    cold = search(bill, Machine(), tmp_path / "cold", reuse=True)
    (tmp_path / "home" / PROBES_FILE).unlink()  # what was learned stays, the probes do not
    warm = search(bill, Machine(), tmp_path / "warm", reuse=True)
    count = [sum(r.role == "search" for r in found.records) for found in (cold, warm)]
    assert count[1] < count[0]
    assert any(
        f"it needed {count[1]} new probes, the first run {count[0]}" in note for note in warm.notes
    )
    assert (tmp_path / "warm" / PRIOR_FILE).exists()
    best = [found.rows[0].row.step_time_s for found in (cold, warm)]
    assert best[1] == pytest.approx(best[0], rel=0.03)


def test_a_run_that_was_cut_short_is_no_measure_of_what_a_search_needs(
    bill: Bill, tmp_path: Path
) -> None:
    cut = search(bill, Machine(), tmp_path / "cut", reuse=True, probes=2)
    assert not cut.explored.ended
    (tmp_path / "home" / PROBES_FILE).unlink()
    warm = search(bill, Machine(), tmp_path / "warm", reuse=True)
    assert warm.explored.ended
    assert not any("the first run" in note for note in warm.notes)
    (tmp_path / "home" / PROBES_FILE).unlink()
    last = search(bill, Machine(), tmp_path / "last", reuse=True, probes=1)
    assert any("made 1 new probes before no more were allowed" in note for note in last.notes)


def test_a_resumed_run_goes_on_with_the_prior_it_began_with(bill: Bill, tmp_path: Path) -> None:
    search(bill, Machine(), tmp_path / "cold", reuse=True)
    (tmp_path / "home" / PROBES_FILE).unlink()
    search(bill, Machine(), tmp_path / "straight", reuse=True)
    (tmp_path / "home" / PROBES_FILE).unlink()
    for path in (tmp_path / "home" / "residuals").iterdir():
        path.unlink()
    search(bill, Machine(), tmp_path / "cold2", reuse=True)
    (tmp_path / "home" / PROBES_FILE).unlink()

    def dies(number: int, when: str) -> None:
        if number == 1 and when == "before":
            raise Killed

    with pytest.raises(Killed):
        search(bill, Machine(dies=dies), tmp_path / "pieces", reuse=True)
    for path in (tmp_path / "home" / "residuals").iterdir():
        path.unlink()
    search(bill, Machine(), tmp_path / "pieces", resume=True, reuse=True)
    assert sequence(tmp_path / "pieces") == sequence(tmp_path / "straight")


@pytest.mark.parametrize("damage", ["cut", "nan", "other"])
def test_a_damaged_prior_or_one_of_another_job_is_no_silent_restart(
    bill: Bill, tmp_path: Path, damage: str
) -> None:
    search(bill, Machine(), tmp_path / "cold", reuse=True)
    (tmp_path / "home" / PROBES_FILE).unlink()
    search(bill, Machine(), tmp_path / "warm", reuse=True)
    path = tmp_path / "warm" / PRIOR_FILE
    content = json.loads(path.read_text())
    if damage == "nan":
        content["observed"][0]["log_ratio"] = math.nan
    if damage == "other":
        content["identity"] = "another"
    text = json.dumps(content)
    path.write_text(text[: len(text) // 2] if damage == "cut" else text)
    with pytest.raises(InputError, match="prior"):
        search(bill, Machine(), tmp_path / "warm", resume=True, reuse=True)


def test_what_another_shape_of_the_family_taught_is_a_weak_prior_by_name(
    job: Job, bill: Bill, tmp_path: Path
) -> None:
    search(bill, Machine(), tmp_path / "cold", reuse=True)
    deeper = replace(job, model=replace(job.model, num_layers=3))
    found = search(bill_of(deeper), Machine(), tmp_path / "other", reuse=True)
    assert any("weak prior" in note for note in found.notes)


def test_a_storage_that_cannot_be_opened_is_bad_input(bill: Bill, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be opened"):
        search(bill, Machine(), tmp_path / "run", storage="sqlite:////nowhere/at/all.db")


def test_a_storage_goes_on_after_a_kill_with_the_same_proposals(bill: Bill, tmp_path: Path) -> None:
    search(bill, Machine(), tmp_path / "straight")
    url = f"sqlite:///{tmp_path / 'study.db'}"

    def dies(number: int, when: str) -> None:
        if number == 2 and when == "before":
            raise Killed

    with pytest.raises(Killed):
        search(bill, Machine(dies=dies), tmp_path / "run", storage=url)
    search(bill, Machine(), tmp_path / "run", storage=url, resume=True)
    assert sequence(tmp_path / "run") == sequence(tmp_path / "straight")


@pytest.mark.parametrize("bad", [-1.0, "quick"])
def test_a_record_with_a_measurement_that_cannot_be_stops_by_name(
    bill: Bill, tmp_path: Path, bad: object
) -> None:
    search(bill, Machine(), tmp_path, probes=2)
    path = tmp_path / "trials.jsonl"
    trials = [json.loads(line) for line in path.read_text().splitlines()]
    trials[0]["measured"]["compute"] = bad
    path.write_text("".join(json.dumps(trial) + "\n" for trial in trials))
    before = path.read_text()
    with pytest.raises(InputError, match="measured compute is"):
        search(bill, Machine(), tmp_path, resume=True, probes=4)
    assert path.read_text() == before, "nothing is lost"


@pytest.mark.parametrize(
    ("name", "bad"),
    [("value", math.nan), ("value", math.inf), ("value", "1"), ("measured", {"compute": math.nan})],
)
def test_a_record_with_a_figure_that_cannot_be_stops_by_name(
    bill: Bill, tmp_path: Path, name: str, bad: object
) -> None:
    search(bill, Machine(), tmp_path, probes=2)
    path = tmp_path / "trials.jsonl"
    trials = [json.loads(line) for line in path.read_text().splitlines()]
    trials[0][name] = bad
    path.write_text("".join(json.dumps(trial) + "\n" for trial in trials))
    with pytest.raises(InputError, match="line 1, is not a trial"):
        search(bill, Machine(), tmp_path, resume=True, probes=4)


def test_a_storage_of_another_space_is_refused(bill: Bill, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    search(bill, Machine(), tmp_path / "a" / "run", storage=url, probes=2)
    narrow = load_job(TINY, set_values={"compile": "off", "precision": "fp32"})
    with pytest.raises(InputError, match=r"another job or space|of this search space"):
        search(bill_of(narrow), Machine(), tmp_path / "b" / "run", storage=url, resume=True)


def test_figures_that_no_device_makes_are_no_measurement(bill: Bill, tmp_path: Path) -> None:
    search(bill, Machine(), tmp_path / "first", reuse=True)
    shared = tmp_path / "home" / PROBES_FILE
    lines = [json.loads(line) for line in shared.read_text().splitlines()]
    for line in lines:
        line["result"]["step"]["step_s"] = -1.0
    shared.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for path in (tmp_path / "home" / "residuals").iterdir():
        path.unlink()
    found = search(bill, Machine(), tmp_path / "second", reuse=True, probes=3)
    assert all(row.row.step_time_s > 0 for row in found.rows)


def test_deadline_and_budget_are_constraints_of_the_study(tmp_path: Path) -> None:
    job = load_job(
        TINY, set_values={"compile": "off"}, price="3 USD/h", deadline="1s", budget="1USD"
    )
    search(bill_of(job), Machine(), tmp_path, probes=2)
    trials = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    assert all(t["constraints"]["deadline"] > 0 > t["constraints"]["budget"] for t in trials)


def deep_job(layers: int) -> Job:
    job = load_job(TINY, set_values={"compile": "off"})
    return replace(job, model=replace(job.model, num_layers=layers))


def test_a_model_that_cannot_be_held_is_measured_at_two_depths_and_the_answer_says_so(
    tmp_path: Path,
) -> None:
    job = deep_job(100)
    bill = bill_of(job)
    small = bill.with_memory(usable_bytes=bill.usable_bytes * 0 + 5e8)
    machine = Machine()
    found = search(small, machine, tmp_path, probes=3)
    depths = two_depths(job)
    assert {request["num_layers"] for request in machine.asked} == set(depths)
    assert found.explored.pick is None, "100 layers were extrapolated beyond 5e8 bytes"
    said = f"{depths[0]} and {depths[1]} of its 100 layers"
    assert any(said in note for note in found.notes)


def test_the_second_run_is_at_full_depth_where_it_can_be_held() -> None:
    job = deep_job(100)
    row = bill_of(job).estimate(0)
    effort = ProbeOptions().effort
    assert plan_probe(job, replace(row, usable_bytes=1.0), effort).two_depths
    assert plan_probe(job, replace(row, usable_bytes=1.0), effort, full=True).two_depths
    assert not plan_probe(job, replace(row, usable_bytes=1e12), effort, full=True).two_depths


def test_a_device_that_cannot_hold_the_model_still_lends_its_speed(tmp_path: Path) -> None:
    job = deep_job(100)
    bill = without_limits(bill_of(job))
    machine = Machine()
    found = search(bill, machine, tmp_path, probes=2, held_bytes=5e8)
    assert {request["num_layers"] for request in machine.asked} == set(two_depths(job) or ())
    assert len(found.rows) == 2
    assert "confirm" in {record.role for record in found.records}


def test_extrapolation_and_full_depth_are_compared_where_both_ran(tmp_path: Path) -> None:
    job = deep_job(60)
    bill = bill_of(job)
    prober = Prober(
        job, bill, devices.cpu(), options_of(Machine()), "cost", tmp_path, lambda _: None
    )
    index = next(i for i in range(len(bill)) if prober._plan(bill.estimate(i)).two_depths)
    prober.measure(index)
    assert prober._plan(bill.estimate(index), full=True, known_to_fit=True).key != (
        prober._plan(bill.estimate(index)).key
    )
    prober.again(index)
    assert any(
        "extrapolation over full depth was 1.000" in note for note in notes_of(prober, index)
    )


def test_a_run_more_of_what_an_earlier_study_probed_is_counted_as_that(
    job: Job, bill: Bill, tmp_path: Path
) -> None:
    search(bill, Machine(), tmp_path / "first", probes=1, reuse=True)
    told: list[str] = []
    prober = Prober(
        job, bill, devices.cpu(), options_of(Machine(), probes=1), "cost", tmp_path / "second",
        told.append,
    )  # fmt: skip
    (tmp_path / "second").mkdir()
    earlier = read_records(tmp_path / "first" / PROBES_FILE)[0]
    index = candidates_of(bill, earlier)[0]
    prober.memo.records.append(replace(earlier, reused=True))
    prober.again(index)
    assert [line.split(" | ")[0] for line in told] == ["probe of an earlier study, run 2"]


def test_a_probe_of_which_a_killed_worker_never_told_counts_once_and_no_other_counts_twice(
    job: Job, bill: Bill, tmp_path: Path
) -> None:
    def worker(name: str, slower: float) -> tuple[Prober, Machine]:
        machine = Machine(step=lambda config: slower * step_of(config))
        folder = tmp_path / name
        folder.mkdir()
        known = ("cost", folder, lambda _: None)
        return Prober(job, bill, devices.cpu(), options_of(machine), *known), machine

    (dead, _), (peer, _) = worker("dead", 1.0), worker("peer", 1.01)
    later, machine = worker("later", 1.02)
    for prober in (dead, peer):
        prober.measure(0)
        prober.again(0)
    untold, told = dead.memo.records[-1], peer.memo.records[-1]
    for known in ([untold, told], [told, untold]):
        later.memo.records = [*peer.memo.records[:1], *known]
        found = later.again(0, [told.digest])
        assert found.probe == untold.digest, "it is on the disk and was not counted"
        assert later.again(0, [""]).probe == known[1].digest, "an older record names no probe"
    assert machine.count == 0
    third = later.again(0, [told.digest, untold.digest])
    assert machine.count == 1
    assert third.probe not in {told.digest, untold.digest}


def test_between_a_processor_and_a_gpu_only_the_loader_s_work_carries_over(
    job: Job, bill: Bill, tmp_path: Path
) -> None:
    found = search(bill, Machine(), tmp_path, probes=3)
    elsewhere = load_job(TINY, gpus=("t4",), price="1 USD/h")
    whole = bill_of(elsewhere)
    carried = transferred(found.rows, bill, job.offers[0], whole, CostModel(job).calibration)
    assert set(carried.calibration.factors) == {"data"}
    assert "says nothing about t4" in carried.note


def test_between_gpus_computing_carries_over_and_saving_does_not(tmp_path: Path) -> None:
    here = load_job(TINY, gpus=("a100-80gb",), price="1 USD/h", set_values={"compile": "off"})
    bill = bill_of(here)
    found = search(bill, Machine(step=lambda _: 2.0), tmp_path, probes=3)
    there = bill_of(load_job(TINY, gpus=("h100",), price="2 USD/h"))
    carried = transferred(
        found.rows, bill, here.offers[0], there, CostModel(here).calibration
    ).calibration
    assert set(carried.factors) == {"compute", "data"}
    assert carried.log_sds["compute"] >= 0.2
    assert carried.factors["compute"] > 1
