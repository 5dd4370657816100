"""The benches of the search: what their figures mean, and that every method runs."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autotune.domain.config import Config
from bench.replay.sweeps import Point, calibrated_order, in_order, measure
from bench.search import docs as search_docs
from bench.search import machines as search_machines
from bench.search import scenarios as search
from bench.search.families import STRANGE, stranger
from bench.search.level import cell, levels
from bench.search.level import line as beside
from bench.search.rivals import ladder, topk
from bench.search.samplers import Ran, study_of
from bench.search.simulated import Grid, Machine
from bench.search.workers import Timeline, figures, line, searched

if TYPE_CHECKING:
    from pathlib import Path

INF = math.inf


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine(Grid.of(1), 3, 0.1)


def test_figures_count_probes_of_the_median_machine_and_say_null_when_it_never_gets_there() -> None:
    curves = [[INF, 0.5, 0.02, 0.005], [0.2, 0.02, 0.02, 0.02], [INF, INF, 0.9, 0.3]]
    found = search.figures([Ran(c, n) for c, n in zip(curves, (1, 0, 3), strict=True)])
    assert found["probes_to_3pct"] == 3
    assert found["probes_to_1pct"] is None
    assert found["regret_10"] == pytest.approx(0.02)
    assert found["regret_20_p90"] == pytest.approx(0.02 + 0.8 * 0.28)
    assert found["oom_probes"] == pytest.approx(1.33)
    assert found["bound_coverage_10"] is None, "nothing was said"
    assert search.figures([Ran([INF], 1)])["regret_10"] is None
    json.dumps(found, allow_nan=False)


def test_a_pick_is_reached_when_it_is_as_good_and_stays_so_on_the_simulated_clock() -> None:
    alone = Timeline([(60.0, INF), (120.0, 0.02), (180.0, 0.1), (240.0, 0.02)], 240.0)
    eight = Timeline([(50.0, 0.02), (55.0, 0.5), (58.0, 0.02), (120.0, 0.0)], 120.0)
    assert alone.reach_s(0.02) == 240.0
    assert eight.reach_s(0.02) == 58.0, "it was lost in between"
    assert math.isinf(eight.reach_s(-0.5))
    found = figures([alone], [eight])
    assert (found.wall_share, found.within) == (0.2417, 1.0)
    assert figures([alone], [alone]).wall_share == 1.0
    assert found.regret_at[2] == 0.02, "at a quarter of the time"
    assert (found.beside, found.again) == ((0.0, 0.0), None)
    worse = Timeline([(60.0, 0.1)], 240.0)
    assert figures([alone, alone], [eight, worse], [alone, worse]).beside == (4.0, 4.0)
    assert figures([alone, alone], [alone, alone], [alone, worse]).again == 0.5
    assert math.isinf(eight.regret_at(1.0))


def test_a_search_that_ends_by_itself_is_compared_with_what_it_took_until_then() -> None:
    alone = Timeline([(60.0, 0.3), (120.0, 0.02), (180.0, 0.02), (240.0, 0.0)], 240.0, 120.0)
    eight = Timeline([(30.0, 0.02), (120.0, 0.0)], 120.0)
    found = figures([alone], [eight])
    assert (found.stop_share, found.stop_within) == (0.25, 1.0), "0.02 after 30 of 120 s"
    assert (found.wall_share, found.within) == (0.5, 0.0), "0.0 after 120 of 240 s"
    assert "stop_share 0.25  stop_within 1.00" in line(8, found)
    on = Timeline(alone.moments, 240.0)
    assert figures([on], [eight]).stop_share == 0.5, "it went on to its end"


def test_the_bench_of_the_search_says_what_several_workers_save(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "search --workers 2 --machines 1 --probes 2 --jobs 1 --scenario grid_good"
    monkeypatch.setattr("sys.argv", [*words.split(), "--format", "json"])
    search.main()
    found = json.loads(capsys.readouterr().out)["grid_good"]["calibrated"]
    assert found["1"]["wall_share"] <= 1.0
    assert found["1"]["again"] in {0.0, 1.0}
    assert found["2"]["again"] is None
    assert len(found["2"]["regret_at"]) == 12
    assert found["2"]["wall_s"] < 1.9 * found["1"]["wall_s"], "four probes by two"
    monkeypatch.setattr("sys.argv", ["search", "--workers", "0"])
    with pytest.raises(SystemExit):
        search.main()


def test_several_workers_are_never_given_one_candidate_and_take_less_time(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    probe = machine.probe
    monkeypatch.setattr(machine, "probe", lambda index: (seen.append(index), probe(index))[1])
    together = searched(machine, 4, 4)
    assert len(set(seen)) == len(seen) == len(together.moments) == 4
    assert together.wall_s < searched(machine, 1, 4).wall_s / 2.0


def test_a_bound_holds_where_nothing_is_better_by_more_at_ten_probes_and_at_the_stop() -> None:
    curve = [0.5, 0.25, 0.0]
    right = Ran(curve, 0, [None, 0.2, 0.0], stop=2)
    wrong = Ran(curve, 0, [None, 0.19, 0.3], stop=2)
    on = Ran(curve, 0, [None, 0.1, 0.1])
    found = search.figures([right, wrong, on])
    assert not right.holds(1), "a bound that was not said is none"
    assert found["bound_coverage_10"] == 1.0
    assert found["bound_median_10"] == pytest.approx(0.1)
    assert found["bound_coverage_stop"] == pytest.approx(0.667)
    assert found["stop_probe"] == 2
    assert found["stop_regret"] == pytest.approx(0.25)
    assert search.figures([on])["stop_probe"] is None


@pytest.mark.parametrize("scenario", STRANGE)
def test_every_stranger_is_far_from_its_model_in_its_own_way(scenario: str) -> None:
    machine = stranger(scenario, 3)
    other = stranger(scenario, 4)
    off = np.log(machine.true_cost / machine.predicted_cost)
    assert 0.03 < off.std() < 0.8
    assert 0.02 < machine.truly_fits.mean() < 0.7
    assert not np.allclose(machine.true_cost, other.true_cost)
    assert np.allclose(machine.true_cost, stranger(scenario, 3).true_cost)
    index = int(np.argmin(np.where(machine.truly_fits, machine.true_cost, INF)))
    assert machine.regret(index) == 0.0
    measured = machine.probe(index)
    assert measured is not None
    assert machine.probe(index) == measured
    usual = 0.2 if not machine.family.noisy else 2.5
    assert abs(math.log(machine.measured_cost(index, measured) / machine.best_cost)) < usual
    compute = machine.true_factor("compute")
    rows = next(p for p in machine.parts if p.name == "compute").row_of
    one = compute[rows == rows[index]]
    assert (np.ptp(one) > 0) == machine.family.physics, "workers slow a step down undeclared"


def test_topk_measures_the_models_best_and_no_twin_of_one_it_has(machine: Machine) -> None:
    asked = topk(machine, 0)
    first = [next(asked)] + [asked.send(None) for _ in range(9)]
    signatures = {tuple(int(p.row_of[i]) for p in machine.parts) for i in first}
    assert len(signatures) == 10
    assert first[0] == next(machine.order())


@pytest.mark.parametrize(
    "method", ["random", "tpe_warm", "nsga2", "topk", "hill", "plain_gp", "ladder", "calibrated"]
)
def test_every_method_gives_a_curve_that_its_machine_explains(
    machine: Machine, method: str
) -> None:
    ran = study_of(machine, method, 5, seed=0)
    assert ran == study_of(machine, method, 5, seed=0), "a study is the same every time"
    assert len(ran.curve) == 5
    assert 0 <= ran.ooms <= 5
    assert all(regret >= 0 for regret in ran.curve)


def test_a_rival_and_an_own_sampler_run_on_billed_candidates_too() -> None:
    machine = stranger("billed_good", 1)
    for method in ("random_fits", "hill", "ladder", "tpe"):
        ran = study_of(machine, method, 4, seed=0)
        assert len(ran.curve) == 4
        assert ran.bounds == []


def test_the_ladder_raises_the_micro_batch_until_it_does_not_fit(machine: Machine) -> None:
    steps = ladder(machine)
    asked: list[dict[str, Any]] = [next(steps)]
    asked += [steps.send(cost) for cost in (3.0, 2.0, 1.5, None, 1.6)]
    assert [params["micro_batch"] for params in asked[:4]] == [0, 1, 2, 3]
    assert asked[4]["micro_batch"] == 2
    assert asked[4]["attention"] == "flash"


def test_answers_have_the_scenarios_methods_and_figures_that_are_promised(tmp_path: Path) -> None:
    pairs = [(method, seed) for method in ("random", "ladder") for seed in (0, 1)]
    tasks = [("one_card_b10", method, seed, 2) for method, seed in pairs]
    record = tmp_path / "studies.jsonl"
    found = search.simulate(tasks, 1, record)
    assert len(record.read_text().splitlines()) == 4
    assert search.simulate(tasks, 1, record) == found
    assert search.simulate(tasks, 1, record, ["ladder"]) == found
    again = [json.loads(line)[0][1] for line in record.read_text().splitlines()[4:]]
    assert again == ["ladder", "ladder"], "only what was asked for is run again"
    answer = search.answer(found, ("random", "ladder", "gp_warm"))
    assert set(answer) == {"one_card_b10"}
    assert answer["one_card_b10"]["gp_warm"] is None
    names = {"probes_to_3pct", "probes_to_1pct", "regret_6", "regret_6_p90", "regret_10",
             "regret_10_p90", "regret_20", "regret_20_p90", "oom_probes", "bound_coverage_10",
             "bound_median_10", "bound_coverage_stop", "stop_probe", "stop_regret",
             "stop_regret_p90", "study_s"}  # fmt: skip
    assert set(answer["one_card_b10"]["ladder"] or {}) == names
    assert "| one_card_b10 | ladder |" in search_docs.table(answer)
    curves = {s: {m: [r.curve for r in c] for m, c in by.items()} for s, by in found.items()}
    assert search_docs.plot(curves).count("<polyline") == 2


def test_equal_regret_compares_with_the_best_stock_sampler_and_the_probes_it_took() -> None:
    curves = {
        "cliffs": {
            "tpe": [[INF, 0.9, 0.5, 0.4, 0.4, 0.4], [INF, 0.7, 0.5, 0.4, 0.4, 0.4]],
            "random": [[INF, 2.0, 2.0, 2.0, 2.0, 2.0]] * 2,
            "calibrated": [[0.5, 0.3, 0.0, 0.0, 0.0, 0.0], [0.5, 0.1, 0.0, 0.0, 0.0, 0.0]],
        }
    }
    line = search_docs.equal_regret(curves).splitlines()[-1]
    assert line == (
        "- cliffs: tpe has a median regret of 40.0% after 4 probes, calibrated after 2: "
        "2.0 times fewer."
    )


def test_a_page_keeps_rows_lines_and_curves_of_methods_that_are_not_run_again() -> None:
    both = {"cliffs": {"tpe": [[0.9, 0.5, 0.4]] * 2, "calibrated": [[0.5, 0.3, 0.2]] * 2}}
    figures = {
        s: {m: search.figures([Ran(r, 0) for r in c]) for m, c in by.items()}
        for s, by in both.items()
    }
    page = f"{search_docs.table(figures)}\n\n{search_docs.equal_regret(both)}"
    plot = search_docs.plot(both)
    better = {"cliffs": {"calibrated": [[0.3, 0.2, 0.1]] * 2}}
    own = {
        "cliffs": {
            "calibrated": search.figures([Ran(r, 1) for r in better["cliffs"]["calibrated"]])
        }
    }
    rows = search_docs.table(own, page).splitlines()
    assert rows[:3] == page.splitlines()[:3]
    assert rows[3].startswith("| cliffs | **calibrated** |")
    assert "10.0%" in rows[3]
    line = search_docs.equal_regret(better, page).splitlines()[-1]
    assert line == (
        "- cliffs: tpe has a median regret of 40.0% after 3 probes, calibrated after 1: "
        "3.0 times fewer."
    )
    drawn = search_docs.drawn_before(plot)
    again = search_docs.plot(better, drawn)
    assert drawn["cliffs"]["tpe"] in again
    assert drawn["cliffs"]["calibrated"] not in again
    assert sorted(search_docs.plot(both, drawn).splitlines()) == sorted(plot.splitlines())


def test_the_model_is_as_far_off_on_the_machines_as_their_biases_say(machine: Machine) -> None:
    fits, cost_sd, memory_sd, oom, regret, rank, large = search_machines.facts(machine)
    assert fits == machine.truly_fits.mean()
    assert 0.15 < cost_sd < 0.45
    assert 0.05 < memory_sd < 0.2
    assert oom in {0.0, 1.0}
    assert large in {0.0, 1.0}
    assert (math.isnan(regret)) == (oom == 1.0)
    assert rank >= 0


def test_a_recorded_sweep_is_probed_once_a_point_and_regret_is_against_its_best(
    build: Any,
) -> None:
    offer = build.offer("h100", 1, 2.5)
    points = [
        Point(offer, Config(m, 8 // m, 1, "bf16"), pace, guess, 1e9 * m, 6e9)
        for m, pace, guess in ((1, 2.0, 1.5), (2, 1.2, 1.2), (4, 1.0, 1.3), (8, None, 1.0))
    ]
    order = calibrated_order(points)
    assert sorted(order) == [0, 1, 2, 3]
    assert in_order(points, [3, 0, 2]) == [INF, 1.0, 0.0]


def test_where_nothing_ran_yet_every_method_has_the_worst_that_was_recorded(build: Any) -> None:
    offer = build.offer("h100", 1, 2.5)
    points = [
        Point(offer, Config(m, 8 // m, 1, "bf16"), pace, guess, 1e9, 9e9)
        for m, pace, guess in ((1, 3.0, 2.0), (2, 1.0, 1.5), (4, None, 1.0))
    ]
    by_model = measure([points])["model"]
    assert by_model["regret_1"] == 2.0, "its first ran out of memory: not the best of what came"
    assert by_model["regret_2"] == 0.0


def test_a_replay_holds_the_search_against_the_models_distinct_best(build: Any) -> None:
    offer = build.offer("h100", 1, 2.5)
    points = [
        Point(offer, Config(m, 8 // m, 1, "bf16"), pace, guess, 1e9 * m, 9e9)
        for m, pace, guess in ((1, 2.0, 1.0), (1, 2.1, 1.0), (1, 2.2, 1.0), (4, 1.0, 1.3))
    ]
    found = measure([points])
    assert list(found) == ["random", "model", "topk", "calibrated"]
    assert found["model"]["probes_to_3pct"] == 4, (
        "the model's order repeats what it takes for equal"
    )
    assert found["topk"]["probes_to_3pct"] == 2


def test_the_page_leads_with_machines_of_no_prior_and_says_what_held_there() -> None:
    rival, own = Ran([0.5, 0.25, 0.25], 1), Ran([0.5, 0.125, 0.0], 0, [0.9, 0.2, 0.1], stop=3)
    figures = {"grid_good": {"topk": search.figures([rival]), "calibrated": search.figures([own])}}
    text = search_docs.strangers(figures, 100)
    assert text.startswith("Machines of the seeds from 100 on, ")
    assert "| grid_good | topk | 25.0% / 25.0% |" in text
    assert "| grid_good | **calibrated** | 0.0% / 0.0% |" in text
    assert "| grid_good | 100% | 10.0% | 3 | 100% | 0.0% / 0.0% |" in text


def test_families_that_are_not_run_again_stay_as_the_page_has_them_and_keep_their_place() -> None:
    def page(*families: str, regret: float) -> str:
        curves = {f: {"topk": [[regret]], "calibrated": [[regret / 2]]} for f in families}
        runs = {f: {m: [Ran(c[0], 0, [0.5])] for m, c in of.items()} for f, of in curves.items()}
        figures = search.answer(runs, ("topk", "calibrated"))
        parts = search_docs.strangers(figures, 100), search_docs.beside_rivals(curves)
        return "\n\n".join([*parts, search_docs.against_topk(curves)])

    before = page("grid_good", "billed_noisy", "billed_good", regret=0.5).splitlines()
    own = page("billed_noisy", regret=0.3)
    again = search_docs.with_other_families(own, "\n".join(before)).splitlines()
    noisy = [line for line in again if "billed_noisy" in line]
    assert noisy == [line for line in own.splitlines() if "billed_noisy" in line]
    assert len(noisy) == 5, "two methods, what was said, where it stands, the claim about probes"
    for now, old in zip(again, before, strict=True):
        assert now == old or "billed_noisy" in now
        assert ("billed_noisy" in now) == ("billed_noisy" in old), "families keep their order"
    assert search_docs.with_other_families(own, "") == own


def test_ahead_level_and_behind_are_said_by_the_standard_error_of_paired_machines() -> None:
    spread = [0.1 * k for k in range(1, 8)]
    rival = [[r] for r in spread]

    def word(ours: list[float]) -> tuple[str, float]:
        own = levels({"topk": rival, "hill": [[INF]] * 7, "calibrated": [[r] for r in ours]})[2]
        assert (own.after, own.percent, own.rival) == (10, 50, "topk")
        return own.word, own.error

    everywhere = word([r - 0.05 for r in spread])
    assert everywhere == ("ahead", pytest.approx(0.0, abs=1e-9)), "the same on every machine"
    assert word([r + 0.05 for r in spread])[0] == "behind"
    level, error = word([0.7, 0.1, 0.6, 0.45, 0.2, 0.5, 0.3])
    assert level == "level"
    assert error > 0.05
    assert word([INF] * 7) == word([1.5] * 7), "without a pick: as much as counts at most"
    assert levels({"calibrated": rival}) == []
    assert levels({"topk": rival}) == []
    own = levels({"topk": rival, "calibrated": [[r - 0.05] for r in spread]})[0]
    assert beside(own) == "after 6, median: ahead of topk, -5.0 points, standard error 0.0"
    assert cell(own) == "ahead (topk -5.0 ± 0.0)"


def test_the_answer_says_of_the_calibrated_sampler_where_it_stands_and_of_no_other() -> None:
    runs = {"topk": [Ran([0.5, 0.25], 1)] * 3, "calibrated": [Ran([0.5, 0.125], 0)] * 3}
    found = search.answer({"grid_good": runs}, ("topk", "calibrated"))["grid_good"]
    assert "beside" not in (found["topk"] or {})
    own = (found["calibrated"] or {})["beside"]
    assert [(b["after"], b["percent"]) for b in own][:3] == [(6, 50), (6, 90), (10, 50)]
    assert {b["word"] for b in own} == {"ahead"}
    json.dumps(found, allow_nan=False)
    page = search_docs.beside_rivals(
        {"grid_good": {m: [r.curve for r in c] for m, c in runs.items()}}
    )
    assert page.splitlines()[-1].startswith("| grid_good | 3 | ahead (topk -12.5 ± 0.0) |")


def test_the_claim_about_probes_is_held_against_the_models_distinct_best_where_there_is_one() -> (
    None
):
    better = {"topk": [[0.5, 0.4, 0.4, 0.2]] * 2, "calibrated": [[0.5, 0.1, 0.0, 0.0]] * 2}
    level = {"topk": [[0.1, 0.0]] * 2, "calibrated": [[0.1, 0.0]] * 2}
    worse = {"topk": [[0.1, 0.0]] * 2, "calibrated": [[0.1, 0.05]] * 2}
    misfit = {"topk": [[INF, INF]] * 2, "calibrated": [[INF, 0.05]] * 2}
    by_family = {"a": better, "b": level, "c": worse, "d": misfit, "e": {"topk": [[0.1]]}}
    lines = search_docs.against_topk(by_family).splitlines()[2:]
    assert lines[0].endswith("of 20.0% after 4 probes, calibrated after 2: 2.0 times fewer.")
    assert lines[1].endswith("calibrated after 2: no fewer.")
    assert lines[2].endswith("calibrated has 5.0% at the end: none.")
    assert lines[3] == "- d: nothing that topk measured fits on the median machine."
    assert len(lines) == 4
