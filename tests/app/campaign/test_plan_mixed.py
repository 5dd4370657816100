"""A mix of machines: each run where it is cheapest, in time, within a budget, on what one owns."""

from __future__ import annotations

import csv
import io
import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from autotune.app.campaign.file import load_campaign
from autotune.app.campaign.limits import When, ends_of
from autotune.app.campaign.list_schedule import longest_chain, lower_bound, schedule
from autotune.app.campaign.plan import PlanOptions, exit_status, plan
from autotune.app.job.load import load_job
from autotune.app.tune.tune import Options, tune
from autotune.domain.answer.limits import held_with
from autotune.domain.answer.plan import Task
from autotune.report.campaign.payload import plan_csv, plan_payload
from autotune.report.campaign.schedule import plan_svg
from autotune.report.screens.plan import plan_screen

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.answer.plan import Plan, PlannedRun

ONE = "{gpu: t4, price: 0.20 USD/h}"
CHEAP, FAST = "{gpu: rtx4090, price: 0.34 USD/h}", "{gpu: h100, price: 2.50 USD/h}"
OWN = "{gpu: rtx4090, owned: {watts: 400, electricity: 0.20 USD/kWh}}"
TEXT = """
hardware: [HARDWARE]
defaults:
  method: {kind: lora, rank: 8}
  data: {rows: 4000, max_length: 512, lengths: {p50: 220, p95: 400, max: 512}}
  train: {epochs: 1, global_batch_size: 16}
runs:
  - {name: tiny, model: Qwen/Qwen2.5-0.5B, repeat: 4}
  - {name: small, model: Qwen/Qwen2.5-3B, repeat: 2}
  - {name: seven, model: Qwen/Qwen2.5-7B}
  - {name: large, model: Qwen/Qwen2.5-14B, repeat: REPEAT, after: [tiny]}
"""
CONFIDENT = 0.8


def planned(folder: Path, *hardware: str, repeat: int = 2, **options: object) -> Plan:
    path = folder / "campaign.yaml"
    text = TEXT.replace("HARDWARE", ", ".join(hardware)).replace("REPEAT", str(repeat))
    path.write_text(text, encoding="utf-8")
    return plan(load_campaign(path), PlanOptions(**options))  # type: ignore[arg-type]


def bill(runs: tuple[PlannedRun, ...], machines: tuple[int, ...]) -> float:
    own = zip(runs, machines, strict=True)
    return math.fsum(run.on[at].cost_usd.p50 * run.repeat for run, at in own)


def ways(found: Plan) -> list[tuple[int, ...]]:
    """Every way to give each run a machine that holds it."""
    able = [[n for n, on in enumerate(run.on) if not on.reason] for run in found.runs]
    return list(itertools.product(*able))


def test_a_mix_costs_the_least_bill_of_each_run_as_tune_has_it(tmp_path: Path) -> None:
    found = planned(tmp_path, CHEAP, FAST, mixed=True)
    least = []
    for run in found.runs:
        path = tmp_path / "job.yaml"
        model = {"tiny": "0.5B", "small": "3B", "seven": "7B", "large": "14B"}[run.name]
        keys = TEXT.partition("defaults:\n")[2].partition("runs:")[0].replace("\n  ", "\n").strip()
        path.write_text(f"hardware: [{CHEAP}, {FAST}]\nmodel: Qwen/Qwen2.5-{model}\n{keys}\n")
        best = tune(load_job(path), Options(dry_run=True, fidelity="formula", trials=1)).best
        least.append(best.cost_usd.p50 * run.repeat)
        assert best.offer.label == found.offers[run.machine].offer.label
    assert found.mixed
    assert found.total.cost_usd.p50 == pytest.approx(sum(least))
    assert found.total.cost_usd.p50 < found.offers[found.one_machine].cost_usd.p50
    assert sum(phase.cost_usd for phase in found.phases) == pytest.approx(sum(least))
    assert min(bill(found.runs, way) for way in ways(found)) == pytest.approx(sum(least))


def test_one_machine_is_planned_unless_a_mix_is_asked_for(tmp_path: Path) -> None:
    found = planned(tmp_path, CHEAP, FAST)
    assert not found.mixed
    assert {run.machine for run in found.runs} == {found.machine}
    assert found.apart is not None
    asked = planned(tmp_path, CHEAP, FAST, mixed=True)
    assert asked.apart == found.apart
    assert asked.total.cost_usd.p50 == pytest.approx(found.apart.cost_usd)
    path = tmp_path / "campaign.yaml"
    path.write_text("mixed: true\n" + path.read_text())
    assert plan(load_campaign(path)).mixed


@pytest.mark.parametrize("share", [0.35, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("parallel", [1, 2])
def test_a_mix_in_time_is_within_a_tenth_of_the_cheapest_of_all_mixes(
    tmp_path: Path, share: float, parallel: int
) -> None:
    """Against every way to place the runs, each scheduled as it is."""
    machines = (ONE, CHEAP, FAST)
    late = planned(tmp_path, *machines, mixed=True, parallel=parallel)
    assert late.schedule is not None
    deadline = share * late.schedule.makespan_s
    words = {"mixed": True, "parallel": parallel, "deadline": f"{deadline:.3f}s"}
    found = planned(tmp_path, *machines, **words)
    campaign = load_campaign(tmp_path / "campaign.yaml")
    when = When(deadline, parallel, False, False, 24.0, CONFIDENT)
    least = math.inf
    for way in ways(found):
        runs = tuple(
            type(run)(**{name: getattr(run, name) for name in run.__slots__} | {"machine": at})
            for run, at in zip(found.runs, way, strict=True)
        )
        if when.of(ends_of(campaign, runs, None)).kept:
            least = min(least, bill(found.runs, way))
    assert found.deadline is not None
    assert found.deadline.odds.kept == (least < math.inf)
    assert found.total.cost_usd.p50 <= 1.1 * least
    assert exit_status(found) == (0 if least < math.inf else 4)


def test_a_deadline_that_only_a_mix_keeps_is_planned_mixed(tmp_path: Path) -> None:
    """The slow machine alone holds the large runs; the small ones end sooner on the other."""
    machines = "{gpu: 4xt4, price: 1 USD/h}", CHEAP
    alone = planned(tmp_path, *machines, repeat=1)
    assert alone.mixed is False
    mix = planned(tmp_path, *machines, repeat=1, mixed=True)
    held = held_with(mix.total.duration_s, CONFIDENT)
    assert held < 0.8 * held_with(alone.total.duration_s, CONFIDENT)
    deadline = f"{held * 1.01:.0f}s"
    found = planned(tmp_path, *machines, repeat=1, deadline=deadline)
    assert found.mixed
    assert exit_status(found) == 0
    assert exit_status(planned(tmp_path, machines[0], repeat=1, deadline=deadline)) == 4


def test_the_soonest_mix_is_no_later_than_any_machine(tmp_path: Path) -> None:
    mix = planned(tmp_path, CHEAP, FAST, mixed=True, objective="time")
    able = [each for each in mix.offers if not each.missing]
    assert all(mix.total.duration_s.p50 <= each.duration_s.p50 for each in able)


def test_ones_own_machine_stands_beside_rented_ones_as_one(tmp_path: Path) -> None:
    found = planned(tmp_path, OWN, FAST, mixed=True, parallel=3)
    own = [n for n, run in enumerate(found.runs) if run.machine == 0]
    assert own
    assert found.mixed
    assert found.schedule is not None
    taken = sorted(
        (placed.start_s, placed.end_s)
        for placed in found.schedule.placements
        if found.task_runs[placed.task] in own
    )
    assert len(taken) == sum(found.runs[n].repeat for n in own)
    assert all(a[1] <= b[0] * (1 + 1e-9) for a, b in itertools.pairwise(taken))
    assert any("its runs wait for each other" in note for note in found.warnings)


def test_four_at_once_of_ones_own_machine_are_one(tmp_path: Path) -> None:
    found = planned(tmp_path, OWN, "{gpu: rtx4090, price: 0.34 USD/h}", repeat=1, parallel=4)
    assert found.apart is None  # the large runs fit on none
    text = (tmp_path / "campaign.yaml").read_text().replace("14B", "1.5B")
    (tmp_path / "campaign.yaml").write_text(text)
    campaign = load_campaign(tmp_path / "campaign.yaml")
    rented = plan(campaign, PlanOptions(parallel=4))
    assert rented.machine == 1
    assert rented.schedule is not None
    own = plan(campaign, PlanOptions(parallel=4, mixed=True))
    assert {run.machine for run in own.runs} == {0}
    assert own.schedule is not None
    assert own.schedule.makespan_s == pytest.approx(own.total.duration_s.p50)
    assert rented.apart is not None
    assert rented.apart.makespan_s == pytest.approx(own.schedule.makespan_s)
    between = f"{0.7 * held_with(own.total.duration_s, CONFIDENT):.0f}s"
    both = plan(campaign, PlanOptions(parallel=4, mixed=True, deadline=between))
    assert exit_status(both) == 0
    assert {run.machine for run in both.runs} == {0, 1}
    assert own.total.cost_usd.p50 < both.total.cost_usd.p50 < rented.total.cost_usd.p50


def test_tasks_of_the_one_machine_of_a_kind_bound_the_schedule() -> None:
    tasks = [Task(f"{n}", 10.0, kind=1, single=True) for n in range(3)]
    tasks += [Task("other", 12.0), Task("behind", 1.0, after=(3,))]
    placed = schedule(tasks, 4)
    assert placed.makespan_s == longest_chain(tasks) == lower_bound(tasks, 4) == 30.0
    assert placed.placements[3].start_s == 0.0
    assert placed.placements[4].start_s == 12.0
    light = [replace(task, busy=0.5, memory=0.4, shareable=True) for task in tasks]
    assert longest_chain(light) == 30.0  # only two to a card are sooner
    assert schedule(light, 4, share=True).makespan_s >= longest_chain(light, share=True) == 15.0
    behind = [*tasks, Task("last", 7.0, after=(0, 1, 2))]
    assert schedule(behind, 4).makespan_s == lower_bound(behind, 4) == 37.0
    kinds = {p.machine for p in placed.placements[:3]}
    assert len(kinds) == 1


def test_a_kind_of_machine_that_saves_nothing_is_not_rented(tmp_path: Path) -> None:
    """Two offers of one card, 0.1 % apart, and one that is needed."""
    twin = FAST.replace("2.50", "2.5025")
    found = planned(tmp_path, CHEAP, FAST, twin, mixed=True)
    assert {run.machine for run in found.runs} == {0, 1}
    alike = planned(tmp_path, FAST, twin, mixed=True)
    assert not alike.mixed
    assert any("no mix of these" in note for note in alike.warnings)
    alone = planned(tmp_path, FAST, mixed=True)
    assert any("names one machine" in note for note in alone.warnings)


def test_a_budget_keeps_more_of_a_mix(tmp_path: Path) -> None:
    whole = planned(tmp_path, CHEAP, FAST)
    budget = f"{0.6 * whole.total.cost_usd.p50:.4f} USD"
    one = planned(tmp_path, CHEAP, FAST, budget=budget)
    mix = planned(tmp_path, CHEAP, FAST, budget=budget, mixed=True)
    assert one.subset is not None
    assert mix.subset is not None
    kept = sum(mix.subset.kept.values())
    assert kept > sum(one.subset.kept.values())
    assert mix.subset.cost_usd == pytest.approx(
        sum(run.here.cost_usd.p50 * mix.subset.kept.get(run.name, 0) for run in mix.runs)
    )
    assert mix.budget_probability is not None
    assert mix.budget_probability >= CONFIDENT
    assert (
        f"With `--mixed`, each run on its cheapest machine, the budget keeps {kept}."
        in " ".join(plan_screen(plan_payload(one)).split())
    )


def test_a_budget_that_pays_no_run_on_one_machine_is_planned_mixed(tmp_path: Path) -> None:
    whole = planned(tmp_path, CHEAP, FAST)
    dear, cheap = (whole.runs[0].on[n].cost_usd.p90 for n in (whole.machine, 0))
    assert cheap < dear / 2
    found = planned(tmp_path, CHEAP, FAST, budget=f"{cheap * 1.2:.4f} USD")
    assert found.mixed
    assert found.subset is not None
    assert found.subset.kept == {"tiny": 1}


def test_every_format_says_where_each_run_is(tmp_path: Path) -> None:
    found = planned(tmp_path, CHEAP, FAST, mixed=True, parallel=2)
    payload = plan_payload(found)
    on = {run["run"]: run["machine"] for run in payload["runs"]}
    assert on == {"tiny": 0, "small": 0, "seven": 0, "large": 1}
    assert payload["mixed"]
    assert all(on[each["run"]] == each["offer"] for each in payload["schedule"]["placements"])
    rows = list(csv.DictReader(io.StringIO(plan_csv(payload))))
    taken = {row["run"]: row["device"] for row in rows if row["planned"] == "true"}
    assert taken == dict.fromkeys(("tiny", "small", "seven"), "rtx-4090") | {"large": "h100-sxm"}
    paid = sum(
        float(row["cost_usd.p50"]) * int(row["repeat"]) for row in rows if row["planned"] == "true"
    )
    assert paid == pytest.approx(payload["total"]["cost_usd"]["p50"])
    assert "large 1/2 on h100-sxm: " in plan_svg(payload)
    screen = " ".join(plan_screen(payload).split())
    assert "4 x tiny, 2 x small, seven on rtx-4090; 2 x large on h100-sxm" in screen
