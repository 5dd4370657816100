"""The benches of the search: what their figures mean, and that every method runs."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest

from autotune.domain.config import Config
from bench import search, search_docs, search_machines
from bench.replay import Point, calibrated_order, in_order
from bench.samplers import ladder, study_curve
from bench.simulated import Grid, Machine

if TYPE_CHECKING:
    from pathlib import Path

INF = math.inf


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine(Grid.of(1), 3, 0.1)


def test_figures_count_probes_of_the_median_machine_and_say_null_when_it_never_gets_there() -> None:
    curves = [[INF, 0.5, 0.02, 0.005], [0.2, 0.02, 0.02, 0.02], [INF, INF, 0.9, 0.3]]
    found = search.figures(curves, [1, 0, 3])
    assert found["probes_to_3pct"] == 3
    assert found["probes_to_1pct"] is None
    assert found["regret_10"] == pytest.approx(0.02)
    assert found["regret_20_p90"] == pytest.approx(0.02 + 0.8 * 0.28)
    assert found["oom_probes"] == pytest.approx(1.33)
    assert search.figures([[INF]], [1])["regret_10"] is None
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("method", ["random", "tpe_warm", "nsga2", "ladder", "calibrated"])
def test_every_method_gives_a_curve_that_its_machine_explains(
    machine: Machine, method: str
) -> None:
    curve, ooms = study_curve(machine, method, 5, seed=0)
    again, _ = study_curve(machine, method, 5, seed=0)
    assert curve == again, "a study is the same every time"
    assert len(curve) == 5
    assert 0 <= ooms <= 5
    assert all(regret >= 0 for regret in curve)


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
    answer = search.answer(found, ("random", "ladder", "gp_warm"))
    assert set(answer) == {"one_card_b10"}
    assert answer["one_card_b10"]["gp_warm"] is None
    names = {"probes_to_3pct", "probes_to_1pct", "regret_10", "regret_20", "regret_20_p90",
             "oom_probes"}  # fmt: skip
    assert set(answer["one_card_b10"]["ladder"] or {}) == names
    assert "| one_card_b10 | ladder |" in search_docs.table(answer)
    curves = {s: {m: c for m, (c, _) in by.items()} for s, by in found.items()}
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
    figures = {s: {m: search.figures(c, [0, 0]) for m, c in by.items()} for s, by in both.items()}
    page = f"{search_docs.table(figures)}\n\n{search_docs.equal_regret(both)}"
    plot = search_docs.plot(both)
    better = {"cliffs": {"calibrated": [[0.3, 0.2, 0.1]] * 2}}
    own = {"cliffs": {"calibrated": search.figures(better["cliffs"]["calibrated"], [1, 1])}}
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
