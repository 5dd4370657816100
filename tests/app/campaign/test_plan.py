"""A campaign file in, a plan out: inheritance, hours, machines, budgets, bad files."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.app.campaign.file import load_campaign
from autotune.app.campaign.plan import PlanOptions, exit_status, plan
from autotune.app.campaign.subset import Item, best_subset, parse_budget, what_to_cut
from autotune.domain.answer.limits import held_with
from autotune.domain.errors import InputError
from autotune.domain.units import format_usd
from autotune.report.campaign.payload import plan_payload
from autotune.report.campaign.text import PLAN_REPORT
from autotune.report.screens.plan import plan_screen
from autotune.report.sections.limits import chances

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.answer.plan import Plan

HOURS_ONLY = """
hardware: {gpu: rtx4090, price: 0.50 USD/h}
runs:
  - {name: a, hours: 2, repeat: 3, priority: 5}
  - {name: b, hours: 30 min, after: a}
  - {name: c, hours: 1h 30min, after: [b], expected_fraction: 0.5}
"""
MODELLED = """
hardware: [{gpu: rtx4090, price: 0.50 USD/h}, {gpu: h100, price: 2.50 USD/h}]
defaults:
  model: Qwen/Qwen2-0.5B
  method: {kind: lora, rank: 4}
  data: {max_length: 128, padding: max_length}
  train: {epochs: 1, global_batch_size: 8}
phases:
  - name: first
    runs: [{name: long, train: {steps: 2000}}, {name: same, train: {steps: 2000}}]
  - name: second
    after: first
    defaults: {train: {steps: 600}}
    expected_fraction: 0.5
    runs: [{name: short, repeat: 2}, {name: staged, stages: 3, expected_fraction: 1}]
"""


def varied(vary: str) -> str:
    """The campaign with a run that varies something."""
    return MODELLED.replace("{name: short, repeat: 2}", f"{{name: short, repeat: 2, vary: {vary}}}")


def planned(tmp_path: Path, text: str, **options: object) -> Plan:
    path = tmp_path / "campaign.yaml"
    path.write_text(text, encoding="utf-8")
    price = options.pop("price", None)
    campaign = load_campaign(path, price=str(price) if price else None)
    return plan(campaign, PlanOptions(**options))  # type: ignore[arg-type]


NOWHERE_ALL = """
hardware: [{gpu: t4, price: 0.2 USD/h}, {gpu: 2xh100, price: 5 USD/h}]
defaults: {method: lora, data: {rows: 2000, max_length: 512}, train: {global_batch_size: 32}}
runs:
  - {model: Qwen/Qwen2.5-0.5B, name: small, lock: {sharding: none}}
  - {model: Qwen/Qwen2.5-14B, name: large, repeat: 2}
"""


def test_runs_that_no_one_machine_holds_are_priced_each_on_its_own(tmp_path: Path) -> None:
    found = planned(tmp_path, NOWHERE_ALL)
    small, large = found.runs
    assert found.apart is not None
    assert found.apart.machines == (0, 1)
    bills = small.on[0].cost_usd.p50, large.on[1].cost_usd.p50
    assert found.apart.cost_usd == pytest.approx(bills[0] + 2 * bills[1])
    assert found.mixed
    assert found.total.cost_usd.p50 == pytest.approx(bills[0] + 2 * bills[1])
    assert exit_status(found) == 0
    screen = " ".join(plan_screen(plan_payload(found)).split())
    assert "No one machine of the file holds all of them: small on t4; 2 x large on 2x" in screen


def test_machines_of_their_own_are_named_where_they_save_a_tenth(tmp_path: Path) -> None:
    both = NOWHERE_ALL.replace("small, lock: {sharding: none}", "small, repeat: 9")
    near = planned(tmp_path, both.replace("0.2 USD/h", "4.5 USD/h"))
    assert near.apart is not None
    assert "--mixed" not in plan_screen(plan_payload(near))
    far = planned(tmp_path, both)
    total = far.offers[far.machine].cost_usd.p50
    assert far.apart is not None
    less = total - far.apart.cost_usd
    assert less > total / 10
    screen = " ".join(plan_screen(plan_payload(far)).split())
    told = format_usd(far.apart.cost_usd)
    assert f"Each on the machine that is cheapest for it, they cost {told}" in screen
    assert "Plan that with `--mixed`" in screen


def test_a_run_without_a_name_is_called_by_its_group_and_number(tmp_path: Path) -> None:
    text = (
        "hardware: rtx4090\n"
        "phases: [{name: p, runs: [{hours: 1}, {hours: 1, name: own}, {hours: 2, after: p-1}]}, "
        "{name: q, parts: [{name: r, runs: [{hours: 1}]}]}]"
    )
    assert [run.name for run in planned(tmp_path, text).runs] == ["p-1", "own", "p-3", "r-1"]
    flat = planned(tmp_path, "hardware: rtx4090\nruns: [{hours: 1}, {hours: 1}]")
    assert [run.name for run in flat.runs] == ["run-1", "run-2"]
    with pytest.raises(InputError, match="two runs are called 'run-1'"):
        planned(tmp_path, "hardware: rtx4090\nruns: [{hours: 1}, {hours: 1, name: run-1}]")


def test_stated_hours_are_taken_as_they_are(tmp_path: Path) -> None:
    found = planned(tmp_path, HOURS_ONLY)
    total = found.offers[0]
    assert total.duration_s.p50 == pytest.approx((6 + 0.5 + 0.75) * 3600)
    assert total.cost_usd.p50 == pytest.approx(7.25 * 0.50)
    assert found.schedule.makespan_s == pytest.approx(7.25 * 3600)
    assert found.longest_chain_s == pytest.approx(3.25 * 3600)
    assert exit_status(found) == 0


@pytest.mark.parametrize("gpu", ["2xl40s", "g5.12xlarge"])
def test_a_campaign_that_states_what_it_expects_is_planned_on_other_machines(
    tmp_path: Path, gpu: str
) -> None:
    path = tmp_path / "campaign.yaml"
    path.write_text(HOURS_ONLY + "stated: {runs: 5}\n", encoding="utf-8")
    campaign = load_campaign(path, gpus=(gpu,))
    (offer,) = campaign.offers
    assert offer.label == {"2xl40s": "2x l40s", "g5.12xlarge": "4x a10g (aws g5.12xlarge)"}[gpu]


def test_stated_hours_that_nobody_stated_are_said_to_be_the_models(tmp_path: Path) -> None:
    silent = "no run of the campaign states hours: these are the model's"
    assert silent in planned(tmp_path, MODELLED, hours="stated").warnings
    assert silent not in planned(tmp_path, HOURS_ONLY, hours="stated").warnings


def test_hours_of_a_day_stretch_the_calendar_and_say_what_is_resumed(tmp_path: Path) -> None:
    found = planned(tmp_path, HOURS_ONLY, hours_per_day=1.0)
    assert found.days == pytest.approx(7.25)
    assert any("3 runs take longer than the 1 h of a day" in note for note in found.warnings)


def test_runs_inherit_and_equal_runs_are_one_job(tmp_path: Path) -> None:
    path = tmp_path / "campaign.yaml"
    path.write_text(MODELLED, encoding="utf-8")
    campaign = load_campaign(path)
    assert [job.steps for job in campaign.jobs] == [2000, 600, 200]
    assert [run.steps for run in campaign.runs] == [2000, 2000, 600, 600]
    assert [run.expected_fraction for run in campaign.runs] == [1.0, 1.0, 0.5, 1.0]
    assert campaign.runs[2].after == (0, 1)


def test_every_run_has_the_best_config_that_tune_finds_for_it(tmp_path: Path) -> None:
    from autotune.app.tune.tune import Options, tune

    found = planned(tmp_path, MODELLED)
    campaign = load_campaign(tmp_path / "campaign.yaml")
    best = tune(campaign.jobs[0], Options(fidelity="formula", dry_run=True, trials=1)).best
    rows = [on.row for on in found.runs[0].on]
    same = next(row for row in rows if row is not None and row.offer == best.offer)
    assert (same.config, same.cost_usd) == (best.config, best.cost_usd)


def test_early_stopping_shortens_what_grows_with_the_steps_only(tmp_path: Path) -> None:
    short = planned(tmp_path, MODELLED).runs[2].on[0]
    assert 0.5 * short.full_s < short.duration_s.p50 < short.full_s
    once = short.full_s - 2 * (short.full_s - short.duration_s.p50)
    parts = short.row.time_s
    assert once == pytest.approx(parts.load + parts.prepare + parts.compile + parts.final_save)


def test_a_run_that_varies_keys_is_every_combination_by_itself(tmp_path: Path) -> None:
    text = varied(
        "{method: {rank: [4, 8]}, train.steps: [600, 900], train.learning_rate: [1e-4, 3e-4]}"
    )
    text = text.replace("stages: 3,", "stages: 3, after: short,")
    spelled = ", ".join(
        f'{{name: "short (rank {rank}, steps {steps})", repeat: 4, method: {{rank: {rank}}}, '
        f"train: {{steps: {steps}}}}}"
        for rank, steps in product((4, 8), (600, 900))
    )
    names = ", ".join(
        f'"short (rank {rank}, steps {steps})"' for rank, steps in product((4, 8), (600, 900))
    )
    by_hand = MODELLED.replace("{name: short, repeat: 2}", spelled)
    by_hand = by_hand.replace("stages: 3,", f"stages: 3, after: [{names}],")
    found, wanted = planned(tmp_path, text), planned(tmp_path, by_hand)
    assert replace(found, wall_seconds=0.0) == replace(wanted, wall_seconds=0.0)
    assert sum(run.repeat for run in found.runs) == 2 + 16 + 1


def test_stages_start_anew_each_time(tmp_path: Path) -> None:
    found = planned(tmp_path, MODELLED)
    staged, row = found.runs[3].on[0], found.runs[3].on[0].row
    assert row.steps == 200
    assert staged.duration_s.p50 == pytest.approx(3 * row.duration_s.p50)


def test_each_machine_has_hours_of_its_own_and_the_cheapest_is_planned(tmp_path: Path) -> None:
    found = planned(tmp_path, MODELLED)
    first, second = found.offers
    assert first.duration_s.p50 != second.duration_s.p50
    assert found.offers[found.machine].cost_usd.p50 == min(o.cost_usd.p50 for o in found.offers)
    for total in found.offers:
        rate = total.offer.usd_per_hour / 3600
        assert total.cost_usd.p50 == pytest.approx(total.duration_s.p50 * rate)
    phases = sum(phase.duration_s for phase in found.phases if not phase.part)
    assert phases == pytest.approx(found.offers[found.machine].duration_s.p50)


@given(st.integers(1, 2000))
@settings(max_examples=8, deadline=None)
def test_doubling_every_price_doubles_every_cost_and_changes_no_pick(
    tmp_path_factory: pytest.TempPathFactory, cents: int
) -> None:
    folder = tmp_path_factory.mktemp("prices")
    once = planned(folder, MODELLED, price=f"{cents / 100} USD/h")
    twice = planned(folder, MODELLED, price=f"{2 * cents / 100} USD/h")
    assert once.machine == twice.machine
    for a, b in zip(once.runs, twice.runs, strict=True):
        for x, y in zip(a.on, b.on, strict=True):
            assert x.row.config == y.row.config
            assert y.cost_usd.p50 == pytest.approx(2 * x.cost_usd.p50)
    assert once.schedule == twice.schedule


def test_the_age_of_a_price_that_was_looked_up_is_told(tmp_path: Path) -> None:
    text = MODELLED.replace("{gpu: h100, price: 2.50 USD/h}", "{gpu: l4}")
    payload = plan_payload(planned(tmp_path, text))
    stated, looked_up = payload["offers"]
    assert stated["price_age_days"] is None
    assert looked_up["price_age_days"] > 0
    words = " ".join(PLAN_REPORT.text(payload).split())
    assert f"l4 {looked_up['price_age_days']} days ago" in words


def words_of(payload: dict[str, Any]) -> str:
    return " ".join(PLAN_REPORT.text(payload).split())


@pytest.mark.parametrize("kind", ["full", "qlora"])
def test_a_run_of_another_kind_leaves_what_the_defaults_say_of_theirs(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "campaign.yaml"
    text = MODELLED.replace("rank: 4", "rank: 4, base: 32bit" if kind == "qlora" else "rank: 4")
    path.write_text(text.replace("{name: long,", f"{{name: long, method: {{kind: {kind}}},"))
    job = load_campaign(path).jobs[0]
    assert job.method.is_lora == (kind == "qlora")
    assert kind == "full" or (job.method.base, job.method.rank) == ("nf4", 4)


def test_a_key_of_a_job_that_stands_one_level_too_high_is_named(tmp_path: Path) -> None:
    text = MODELLED.replace("{name: long,", "{name: long, objective: dpo,")
    with pytest.raises(InputError, match=r"did you mean train\.objective\?"):
        planned(tmp_path, text)


def test_a_machine_of_ones_own_is_one_machine(tmp_path: Path) -> None:
    text = HOURS_ONLY.replace(
        "{gpu: rtx4090, price: 0.50 USD/h}",
        "[{gpu: rtx4090, price: 0.50 USD/h}, {gpu: rtx4090, owned: {watts: 400, "
        "electricity: 0.20 USD/kWh, purchase: 2000 USD}}]",
    )
    alone, four = planned(tmp_path, text), planned(tmp_path, text, parallel=4)
    assert alone.machine == 1
    assert four.machine == 0
    own = alone.offers[1]
    assert own.energy_kwh == pytest.approx(7.25 * 0.4)
    assert own.electricity_usd == pytest.approx(7.25 * 0.4 * 0.20)
    assert own.full_usd is not None
    assert own.full_usd > own.cost_usd.p50
    assert own.watts_stated
    late = plan_payload(planned(tmp_path, text, deadline="4h"))
    enough = late["deadline"]["enough_machines"]
    assert late["machine"] == 1
    assert f"you own one: `--parallel {enough}` plans with" in words_of(late)
    rented = plan_payload(planned(tmp_path, HOURS_ONLY, deadline="4h"))
    assert "you own one" not in words_of(rented)
    rated = planned(tmp_path, text.replace("watts: 400, ", "")).offers[1]
    assert rated.watts == rated.offer.device.tdp_w
    assert not rated.watts_stated


def test_hours_of_one_device_are_not_taken_for_those_of_others(tmp_path: Path) -> None:
    text = MODELLED.replace("name: long,", "name: long, hours: 9,")
    path = tmp_path / "campaign.yaml"
    path.write_text(text, encoding="utf-8")
    two = plan(load_campaign(path), PlanOptions()).contradictions
    assert any("priced at the rate of h100-sxm they say nothing" in each for each in two)
    five = plan(load_campaign(path, gpus=["rtx4090,h100,l4,t4,a10g"]), PlanOptions()).contradictions
    assert any("at the rate of 4 other devices" in each for each in five)


def test_launch_bound_runs_may_share_a_card_and_others_not(tmp_path: Path) -> None:
    text = """
hardware: [{gpu: h100, price: 2 USD/h, host: {cores: 16}}]
defaults:
  model: Qwen/Qwen2-0.5B
  method: {kind: lora, rank: 4}
  data: {max_length: 64}
  train: {steps: 20000, global_batch_size: 1}
  lock: {compile: off}
runs: [{name: a, repeat: 4}]
"""
    found = planned(tmp_path, text, parallel=2)
    assert found.sharing.launch_bound == ("a",)
    assert found.sharing.schedule.makespan_s < found.schedule.makespan_s
    assert planned(tmp_path, text, parallel=2, share=True).schedule == found.sharing.schedule
    few = planned(tmp_path, text.replace("cores: 16", "cores: 1"), parallel=2)
    assert few.sharing.schedule is None
    assert "cores" in few.sharing.reason


def test_a_run_that_fits_nowhere_is_exit_3(tmp_path: Path) -> None:
    text = MODELLED.replace("Qwen/Qwen2-0.5B", "meta-llama/Llama-2-7b-hf").replace(
        "hardware: [{gpu: rtx4090, price: 0.50 USD/h}, {gpu: h100, price: 2.50 USD/h}]",
        "hardware: {gpu: v100-sxm2-16gb, price: 1 USD/h}",
    )
    text = text.replace("name: long,", "name: long, method: {kind: full, rank: null},")
    found = planned(tmp_path, text)
    assert exit_status(found) == 3
    assert found.schedule is None
    assert found.offers[0].missing == ("long",)


def test_a_run_that_misses_its_own_limit_is_exit_4(tmp_path: Path) -> None:
    found = planned(
        tmp_path, MODELLED.replace("defaults:\n", "defaults:\n  limits: {deadline: 30s}\n", 1)
    )
    assert exit_status(found) == 4
    assert any("not sure enough to keep a limit" in note for note in found.warnings)


@pytest.mark.parametrize("sure", [0.85, 0.95])
def test_a_budget_says_how_likely_the_runs_it_keeps_stay_within_it(
    tmp_path: Path, sure: float
) -> None:
    whole = planned(tmp_path, MODELLED)
    total = whole.offers[whole.machine].cost_usd
    found = planned(tmp_path, MODELLED, budget=f"{held_with(total, sure):.6f} USD")
    assert not found.subset.left_out
    told = found.budget_probability
    assert told == pytest.approx(sure, abs=0.01)
    payload = plan_payload(found)
    assert payload["subset"]["probability"] == told
    assert f"it is kept with {chances(told)}." in " ".join(PLAN_REPORT.text(payload).split())


def test_stated_hours_have_no_range_to_be_sure_of(tmp_path: Path) -> None:
    found = planned(tmp_path, HOURS_ONLY, budget="5h")
    assert found.subset is not None
    assert found.budget_probability is None
    assert "it is kept with" not in PLAN_REPORT.text(plan_payload(found))


def item(
    name: str, count: int, priority: float, usd: float, seconds: float, after: tuple[int, ...]
) -> Item:
    """A kind of runs whose figures have no range."""
    return Item(name, count, priority, usd, seconds, after, usd, seconds)


@pytest.mark.parametrize("sure", [0.8, 0.95])
@pytest.mark.parametrize("unit", ["USD", "h"])
def test_what_a_budget_keeps_stays_within_it_with_the_asked_probability(
    tmp_path: Path, sure: float, unit: str
) -> None:
    text = MODELLED.replace("defaults:\n", f"defaults:\n  limits: {{confidence: {sure}}}\n", 1)
    whole = planned(tmp_path, text)
    total = whole.offers[whole.machine]
    middle = total.cost_usd.p50 if unit == "USD" else total.duration_s.p50 / 3600
    found = planned(tmp_path, text, budget=f"{middle:.6f} {unit}")
    assert found.subset.left_out  # all of them would stay within it with 5 chances in 10
    assert found.budget_probability is not None
    assert found.budget_probability >= sure
    assert plan_payload(found)["subset"]["confidence"] == sure
    if unit == "USD":
        assert found.subset.cost_usd < middle


def test_a_deadline_says_how_likely_it_is_kept_and_on_how_many_machines(tmp_path: Path) -> None:
    open_end = planned(tmp_path, MODELLED).schedule
    kept = planned(tmp_path, MODELLED, deadline=f"{open_end.makespan_s * 9:.0f}s")
    assert kept.deadline.odds.kept
    assert exit_status(kept) == 0
    assert f"kept with {chances(kept.deadline.odds.probability)}" in " ".join(
        PLAN_REPORT.text(plan_payload(kept)).split()
    )
    half = planned(tmp_path, MODELLED, deadline=f"{open_end.makespan_s:.3f}s")
    assert half.deadline.odds.probability == pytest.approx(0.5, abs=0.02)
    assert not half.deadline.odds.kept
    assert exit_status(half) == 4
    enough = half.deadline.enough_machines
    shown = " ".join(PLAN_REPORT.text(plan_payload(half)).split())
    assert enough is not None
    assert f"`--parallel {enough}`" in shown
    again = {"deadline": f"{open_end.makespan_s:.3f}s", "parallel": enough}
    assert exit_status(planned(tmp_path, MODELLED, **again)) == 0
    assert exit_status(planned(tmp_path, MODELLED, **again | {"parallel": enough - 1})) == 4


def test_no_number_of_machines_shortens_the_longest_run(tmp_path: Path) -> None:
    found = planned(tmp_path, MODELLED, deadline="1s")
    assert found.deadline.enough_machines is None
    shown = " ".join(PLAN_REPORT.text(plan_payload(found)).split())
    assert "More machines of this kind would not keep it" in shown


def test_the_machine_that_keeps_the_deadline_is_planned_on(tmp_path: Path) -> None:
    cheap, fast = "{gpu: t4, price: 0.01 USD/h}", "{gpu: h100, price: 30 USD/h}"
    text = re.sub(r"hardware: .*", f"hardware: [{cheap}, {fast}]", MODELLED)
    slow = planned(tmp_path, text)
    assert slow.offers[slow.machine].offer.device.name == "t4"
    found = planned(tmp_path, text, deadline=f"{slow.schedule.makespan_s:.0f}s")
    assert found.offers[found.machine].offer.device.name == "h100-sxm"
    assert exit_status(found) == 0


ITEMS = st.lists(
    st.tuples(
        st.integers(1, 2), st.integers(1, 4), st.floats(0.1, 10), st.sets(st.integers(0, 4))
    ),
    min_size=1, max_size=5,
)  # fmt: skip


def allowed(items: list[Item], kept: tuple[int, ...]) -> bool:
    return all(
        kept[i] == items[i].count for n, item in zip(kept, items, strict=True) if n
        for i in item.after
    )  # fmt: skip


@given(ITEMS, st.floats(0.05, 0.95))
@settings(max_examples=40, deadline=None)
def test_no_subset_within_the_budget_is_worth_more(
    drawn: list[tuple[int, int, float, set[int]]], share: float
) -> None:
    pytest.importorskip("scipy")
    items = [
        item(str(n), count, priority, cost, cost * 7, tuple(i for i in sorted(after) if i < n))
        for n, (count, priority, cost, after) in enumerate(drawn)
    ]
    whole = sum(item.count * item.cost_usd for item in items)
    budget = parse_budget(f"{whole * share:.6f} USD")
    amount = budget.amount * (1 + 1e-9)
    every = [
        kept for kept in product(*(range(item.count + 1) for item in items))
        if allowed(items, kept)
        and sum(n * i.cost_usd for n, i in zip(kept, items, strict=True)) <= amount
    ]  # fmt: skip
    if not any(map(any, every)):
        with pytest.raises(InputError, match="too small for the cheapest run"):
            best_subset(items, budget)
        return
    found = best_subset(items, budget)
    kept = tuple(found.kept.get(item.name, 0) for item in items)
    assert allowed(items, kept)
    assert found.cost_usd <= amount
    best = max(sum(n * i.priority for n, i in zip(k, items, strict=True)) for k in every)
    assert found.priority == pytest.approx(best)


def test_what_is_cut_first_loses_least_and_takes_its_followers_along() -> None:
    items = [
        item("dear", 1, 1.0, 10.0, 36_000.0, ()),
        item("cheap", 2, 1.0, 1.0, 3_600.0, ()),
        item("follower", 1, 9.0, 1.0, 3_600.0, (0,)),
    ]
    cuts = what_to_cut(items)
    assert [cut.run for cut in cuts] == ["dear", "cheap", "follower"]
    assert cuts[0].also == ("follower",)
    assert (cuts[0].saves_usd, cuts[0].runs, cuts[0].priority) == (11.0, 2, 10.0)


def test_without_scipy_a_budget_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(InputError) as caught:
        planned(tmp_path, HOURS_ONLY, budget="5h")
    assert "pip install" in (caught.value.hint or "")


BAD = [
    ("hardware: rtx4090\nphases: []", "empty"),
    ("hardware: rtx4090\nruns: []", "empty"),
    ("hardware: rtx4090\nphases: [{name: p}]", "needs runs or parts"),
    ("hardware: rtx4090\nphases: [{name: p, parts: [{name: q}]}]", "has no runs"),
    ("model: x\nhardware: rtx4090", "neither phases nor runs"),
    (HOURS_ONLY.replace("hours: 2,", "hours: 2, after: c,"), "circular: a -> c -> b -> a"),
    (HOURS_ONLY.replace("after: a", "after: b"), "wait for itself"),
    (HOURS_ONLY.replace("after: a", "after: aa"), 'unknown run or phase "aa"'),
    (HOURS_ONLY.replace("priority: 5", "priority: -5"), "from 0"),
    (HOURS_ONLY.replace("hours: 2,", "hours: 0,"), "above 0"),
    (HOURS_ONLY.replace("hours: 2,", "hours: two days,"), "must be hours"),
    (HOURS_ONLY.replace("fraction: 0.5", "fraction: 1.5"), "above 0 to 1"),
    (HOURS_ONLY.replace("repeat: 3", "repeat: 0"), "from 1"),
    (HOURS_ONLY.replace("name: b", "name: a"), "two runs are called 'a'"),
    (HOURS_ONLY.replace("rtx4090", "rtx9999"), "unknown device"),
    (HOURS_ONLY.replace("hours: 2,", "ours: 2,"), "unknown key 'ours'"),
    (HOURS_ONLY.replace("hours: 2,", ""), "neither model nor hours"),
    (MODELLED.replace("after: first", "after: second"), "wait for itself"),
    (
        MODELLED.replace("- name: first", "- name: first\n    after: second").replace(
            "after: first", ""
        ),
        "of the later phase 'second'",
    ),
    (MODELLED.replace("rank: 4", "rank: -4"), "run 'long'"),
    (MODELLED.replace("stages: 3", "stages: 3, train: {epochs: 1}"), "train.steps"),
    (MODELLED.replace("name: second", "name: long"), "used twice"),
    (MODELLED.replace("Qwen/Qwen2-0.5B", "Qwen/Qwen2-0.5"), "run 'long'"),
    (
        varied("{rank: [8, 16]}"),
        "'rank' is no key of a job, such as method.rank; write method.rank",
    ),
    (varied("{method.rank: 8}"), "needs a list of values, such as .1, 2.; it is 8"),
    (varied("{method.rank: []}"), "empty list"),
    (varied("[8, 16]"), "vary must name keys"),
    (varied("{method.rank: [8, 8]}"), "has 8 twice; write repeat: 2"),
    (varied("{method.rank: [8, -1]}"), "rank -1.': method.rank: -1 must be"),
    (varied("{seed: [1]}").replace("name: long", "name: short"), "two runs are called 'short'"),
    (varied(str({"seed": [*range(1001)]})), "at most 2,000 are planned"),
]


@pytest.mark.parametrize(("text", "says"), BAD, ids=[says for _, says in BAD])
def test_a_campaign_that_cannot_be_says_what_is_wrong(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says.replace("(", r"\(")):
        planned(tmp_path, text)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"budget": "0.1h"}, "too small for the cheapest run"),
        ({"budget": "0 USD"}, "above zero"),
        ({"budget": "5h", "zero": True}, "every run has priority 0"),
        ({"budget": "80"}, "neither dollars nor hours"),
        ({"deadline": "soon"}, "not a duration"),
        ({"deadline": "0h"}, "must be above zero"),
        ({"parallel": 0}, "from 1 to"),
        ({"hours_per_day": 25.0}, "at most 24"),
        ({"hours_per_day": float("nan")}, "at most 24"),
    ],
)
def test_options_that_cannot_be_say_what_must_hold(
    tmp_path: Path, options: dict[str, object], says: str
) -> None:
    given_options = dict(options)
    zero = given_options.pop("zero", False)
    text = HOURS_ONLY.replace("runs:", "priority: 0\nruns:").replace(", priority: 5", "")
    with pytest.raises(InputError, match=says):
        planned(tmp_path, text if zero else HOURS_ONLY, **given_options)


def test_the_line_of_a_mistake_in_a_run_is_named(tmp_path: Path) -> None:
    text = MODELLED.replace("train: {steps: 600}", "train: {stepz: 600}")
    with pytest.raises(InputError, match=r"line 13, train\.stepz: unknown key"):
        planned(tmp_path, text)


def test_lengths_are_cut_where_a_run_varies_max_length(tmp_path: Path) -> None:
    text = MODELLED.replace(
        "max_length: 128", "max_length: 128, lengths: {p50: 40, p95: 90, max: 100}"
    )
    assert text != MODELLED
    varying = text.replace(
        "{name: short, repeat: 2}", "{name: short, vary: {data.max_length: [64, 128]}}"
    )
    path = tmp_path / "campaign.yaml"
    path.write_text(varying)
    runs = {run.name: run for run in load_campaign(path).runs}
    short, long = (runs[f"short (max_length {n})"] for n in (64, 128))
    assert 0 < short.tokens < long.tokens
