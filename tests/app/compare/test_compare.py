"""Each row of a comparison is what `tune` finds on that machine alone, in its right place."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app.compare.compare import CompareOptions, compare, exit_status
from autotune.app.hardware.price_notes import OLDEST, price_notes
from autotune.app.job.load import load_job, load_jobs
from autotune.app.tune.tune import Options, tune
from autotune.catalog.prices.prices import price_for
from autotune.domain.answer.limits import held_with
from autotune.domain.job import NamedJob
from autotune.domain.typed.overrides import Overrides
from autotune.domain.units import format_age
from autotune.report.compare.payload import comparison_payload
from autotune.report.compare.table import COMPARE_REPORT
from autotune.report.payload import dumps
from autotune.search.selection import TIE

if TYPE_CHECKING:
    from autotune.domain.answer.comparison import Compared, Comparison
    from autotune.domain.job import Job

pytestmark = pytest.mark.usefixtures("home")

ROOT = Path(__file__).parents[3]
H100 = ROOT / "jobs" / "h100_38h.yaml"
OFFERS = ("h100-sxm", "a100-40gb:4@4.80USD/h", "h100-sxm:2@5.00USD/h", "l40s", "rtx-4090", "t4")


def compared(job: Job, **options: Any) -> Comparison:
    (found,) = compare([NamedJob("", job)], CompareOptions(**options)).parts
    return found


def payload_of(job: Job) -> dict[str, Any]:
    return comparison_payload(compare([NamedJob("", job)]))


@pytest.fixture(scope="module")
def job() -> Job:
    return load_job(H100, gpus=OFFERS)


@pytest.fixture(scope="module")
def found(job: Job) -> Comparison:
    return compared(job)


def test_each_row_is_what_tune_finds_on_that_machine_alone(job: Job) -> None:
    options = Options(dry_run=True, fidelity="formula", trials=1)
    unseen = replace(job, evidence=(), today=None)
    for row in compared(unseen).rows:
        alone = tune(replace(unseen, offers=(row.row.offer,)), options).best
        assert alone.config == row.row.config
        assert alone.cost_usd.p50 == pytest.approx(row.row.cost_usd.p50)


def test_rows_are_cheapest_first_and_what_does_not_fit_is_named(found: Comparison) -> None:
    costs = [row.row.cost_usd.p50 for row in found.rows]
    assert costs == sorted(costs)
    assert found.cheapest is found.rows[0]
    assert found.fastest is min(found.rows, key=lambda row: row.row.duration_s.p50)
    assert {(item.offer.device.name, item.reason) for item in found.infeasible} == {
        ("t4", "memory")
    }
    assert (found.infeasible[0].required_bytes or 0) > (found.infeasible[0].available_bytes or 0)


def test_the_cheapest_of_all_is_what_tune_picks_over_all(job: Job, found: Comparison) -> None:
    free = replace(job, limits=replace(job.limits, deadline_s=None, budget_usd=None))
    best = tune(free, Options(dry_run=True, fidelity="formula", trials=1)).best
    assert best.offer.label == found.cheapest.row.offer.label


def test_doubling_every_price_doubles_every_cost_and_changes_no_pick(
    job: Job, found: Comparison
) -> None:
    dear = replace(
        job, offers=tuple(replace(o, usd_per_hour=2 * o.usd_per_hour) for o in job.offers)
    )
    doubled = compared(dear)
    for before, after in zip(found.rows, doubled.rows, strict=True):
        assert after.row.config == before.row.config
        assert after.row.offer.label == before.row.offer.label
        assert after.row.cost_usd.p50 == pytest.approx(2 * before.row.cost_usd.p50)


def test_a_row_is_the_cheapest_just_below_its_flip_price_and_not_just_above(
    job: Job, found: Comparison
) -> None:
    assert found.cheapest is not None
    for row in found.rows:
        flip = row.flip_usd_per_hour
        assert flip is not None
        for factor, wins in ((0.99, True), (1.01, False)):
            offers = tuple(
                replace(o, usd_per_hour=factor * flip) if o == row.row.offer else o
                for o in job.offers
            )
            again = compared(replace(job, offers=offers)).cheapest
            assert (again.row.offer.label == row.row.offer.label) is wins


def test_one_machine_on_other_terms_is_no_doubt_about_the_order() -> None:
    found = compared(load_job(H100, gpus=["h100-sxm@3USD/h"], spot=True))
    cheapest, other = found.rows
    assert cheapest.row.offer.spot
    assert other.row.cost_usd.p50 > cheapest.row.cost_usd.p50
    assert not other.could_be_cheapest


def test_what_the_rows_rest_on_is_said_and_which_tune_would_trace(job: Job) -> None:
    payload = comparison_payload(compare([NamedJob("", job)]))
    assert payload["search"]["fidelity"] == "formula"
    text = " ".join(COMPARE_REPORT.text(payload).split())
    assert "`autotune tune --fidelity formula` would pick" in text
    assert "Calibrated: modelled, then corrected by earlier measurements." in text
    payload["rows"] = [replace(row, fits_probability=0.99) for row in payload["rows"]]
    assert "--fidelity auto" not in COMPARE_REPORT.text(payload)
    payload["rows"][0] = replace(payload["rows"][0], fits_probability=0.94)
    text = " ".join(COMPARE_REPORT.text(payload).split())
    device = payload["rows"][0]["device"]
    assert f"1 of the rows fit with a probability under 0.95 ({device})" in text
    assert "--fidelity auto traces those" in text


def test_near_ties_are_called_ties(job: Job, found: Comparison) -> None:
    assert found.cheapest is not None
    second = found.rows[1]
    assert second.flip_usd_per_hour is not None
    offers = tuple(
        replace(o, usd_per_hour=second.flip_usd_per_hour * (1 + TIE / 2))
        if o == second.row.offer
        else o
        for o in job.offers
    )
    tied = compared(replace(job, offers=offers))
    assert tied.tie
    assert [row.row.offer.label for row in tied.rows if row.tie] == [second.row.offer.label]


def test_the_exit_code_is_that_of_tune(job: Job) -> None:
    roomy = replace(job.limits, deadline_s=1e9, budget_usd=1e9)
    assert exit_status(compare([NamedJob("", replace(job, limits=roomy))])) == 0
    tight = replace(job.limits, deadline_s=1.0)
    assert exit_status(compare([NamedJob("", replace(job, limits=tight))])) == 4
    nothing = load_job(H100, gpus=["t4"])
    assert exit_status(compare([NamedJob("", nothing)])) == 3


def test_the_best_within_the_deadline_respects_it(job: Job, found: Comparison) -> None:
    fastest = found.fastest
    limit = 1.01 * held_with(fastest.row.duration_s, job.limits.confidence)
    limits = replace(job.limits, deadline_s=limit, budget_usd=None)
    within = compared(replace(job, limits=limits)).within
    assert held_with(within.row.duration_s, job.limits.confidence) <= limit


def test_case_d_needs_no_sharding_and_says_what_one_card_would_do(job: Job) -> None:
    rows = payload_of(job)["rows"]
    four = next(row for row in rows if row["device_count"] == 4)
    assert four["sharding_needed"] is False
    assert four["one_device"]["fits"]
    assert four["one_device"]["duration_s"] > four["duration_s"]["p50"]
    zero3 = next(each for each in four["shardings"] if each["sharding"] == "zero3")
    assert zero3["fits"]
    assert zero3["duration_s"] > four["duration_s"]["p50"]
    one = next(row for row in rows if (row["device"], row["device_count"]) == ("h100-sxm", 1))
    # 38 h on one H100 against 20 h on four A100 would need 1.9 times its speed: they have 1.26.
    assert four["duration_s"]["p50"] > one["duration_s"]["p50"] / 1.9


def test_a_model_that_one_card_cannot_hold_needs_its_sharding(tmp_path: Path) -> None:
    path = tmp_path / "big.json"
    path.write_text(json.dumps({
        "model": "meta-llama/Llama-2-70b-hf", "method": {"kind": "lora", "rank": 16},
        "data": {"rows": 10_000, "max_length": 512}, "train": {"global_batch_size": 16},
        "hardware": ["a100-80gb:8"],
    }))  # fmt: skip
    payload = payload_of(load_job(path))
    (row,) = payload["rows"]
    assert row["sharding_needed"] is True
    assert row["one_device"]["required_bytes"] > row["one_device"]["available_bytes"]
    assert row["config"]["sharding"] in {"zero3", "fsdp"}


def test_every_priced_device_is_answered() -> None:
    jobs = load_jobs(H100, Overrides(gpus=("all",)))
    payload = comparison_payload(compare(jobs))
    named = {(r["device"], r["device_count"]) for r in [*payload["rows"], *payload["infeasible"]]}
    assert named == {(offer.device.name, offer.count) for offer in jobs[0].job.offers}
    assert len(named) >= 60
    assert dumps(payload)


def test_at_its_break_even_rate_a_spot_offer_costs_what_on_demand_costs() -> None:
    found = compared(load_job(H100, gpus=["h100-sxm@3.00USD/h"], spot=True))
    row = next(row for row in found.rows if row.row.offer.spot)
    terms = row.spot
    assert terms.break_even_per_day is not None
    assert terms.break_even_per_day > terms.interruptions_per_day
    for factor, cheaper in ((0.9, True), (1.1, False)):
        rate = factor * terms.break_even_per_day / 24
        offers = tuple(
            replace(o, interruptions_per_hour=rate) if o.spot else o for o in found.job.offers
        )
        again = compared(replace(found.job, offers=offers))
        spot = next(r for r in again.rows if r.row.offer.spot)
        held = next(r for r in again.rows if not r.row.offer.spot)
        assert (spot.row.cost_usd.p50 < held.row.cost_usd.p50) is cheaper


def test_spot_is_held_against_the_best_config_on_demand_not_against_its_own(tmp_path: Path) -> None:
    price = price_for("h100-sxm")
    assert price is not None

    def row_on(**machine: Any) -> Compared:
        path = tmp_path / "job.json"
        path.write_text(json.dumps({
            "model": "Qwen/Qwen2-0.5B", "method": {"kind": "lora", "rank": 4},
            "data": {"rows": 800_000, "max_length": 128,
                     "lengths": {"p50": 100, "p95": 120, "max": 128}},
            "train": {"global_batch_size": 8}, "hardware": [{"gpu": "h100-sxm", **machine}],
        }))  # fmt: skip
        return compared(load_job(path)).rows[0]

    spot = row_on(spot=True, price="1 USD/h", interruptions_per_hour=59)
    held = row_on(price=f"{price.usd_per_hour} USD/h")
    often, seldom = (row.row.config.checkpoint_every_steps for row in (spot, held))
    assert often < seldom / 10  # a minute between interruptions is no config for on demand
    assert spot.spot.on_demand_usd == pytest.approx(held.row.cost_usd.p50)
    assert spot.row.cost_usd.p50 < spot.spot.on_demand_usd  # saves are cheap, and so is the hour
    assert spot.spot.break_even_per_day is None


def owned(folder: Path, **keys: Any) -> Job:
    path = folder / "own.json"
    machine = {"gpu": "rtx-4090", "owned": {"electricity": "0.30 USD/kWh", "watts": 450, **keys}}
    path.write_text(json.dumps({
        "model": "Qwen/Qwen2-0.5B", "method": "lora", "data": {"rows": 8000, "max_length": 128},
        "train": {"global_batch_size": 8}, "hardware": [machine],
    }))  # fmt: skip
    return load_job(path)


def test_an_owned_machine_costs_its_electricity_and_in_full_its_purchase(tmp_path: Path) -> None:
    marginal = owned(tmp_path, purchase="2000 USD", lifetime="4y", utilisation=0.5).offers[0]
    assert marginal.usd_per_hour == pytest.approx(0.135)
    assert marginal.full_usd_per_hour == pytest.approx(0.135 + 2000 / (4 * 8766 * 0.5))
    full = owned(tmp_path, purchase="2000 USD", lifetime="4y", utilisation=0.5, cost="full")
    assert full.offers[0].usd_per_hour == marginal.full_usd_per_hour
    (row,) = payload_of(full)["rows"]
    assert row["full_cost_usd"] == pytest.approx(row["cost_usd"]["p50"])


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"lifetime": "4y"}, "spread the purchase"),
        ({"cost": "full"}, "state purchase"),
        ({"purchase": "2000 USD", "utilisation": 0}, "above 0"),
        ({"purchase": "2000 USD", "utilisation": 1.5}, "above 0 to 1"),
        ({"purchase": "2000"}, "USD"),
    ],
)
def test_a_purchase_that_cannot_be_spread_is_refused(
    tmp_path: Path, keys: dict[str, Any], says: str
) -> None:
    from autotune.domain.errors import InputError

    with pytest.raises(InputError) as caught:
        owned(tmp_path, **keys)
    assert says in f"{caught.value.message} {caught.value.hint}"


def test_todays_config_stays_on_its_own_machine_among_many() -> None:
    job = load_job(H100, gpus=["l40s", "h100-sxm", "t4"])
    answer = tune(job, Options(dry_run=True, fidelity="formula", trials=1))
    assert answer.today.offer.device.name == "h100-sxm"


@pytest.mark.parametrize(("ages", "notes"), [((90,), 0), ((91, 20), 1), ((400, 91, 92, 93), 1)])
def test_a_price_of_last_year_is_a_named_warning(
    job: Job, ages: tuple[int, ...], notes: int
) -> None:
    offers = tuple(
        replace(offer, price_age_days=age, price_as_of="2025-06-01")
        for offer, age in zip(job.offers[2:], ages, strict=False)
    )
    found = price_notes(replace(job, offers=offers))
    assert len(found) == notes
    old = sorted(age for age in ages if age > 90)
    assert all(format_age(age) in found[0] for age in old[-OLDEST:])
    assert not old[:-OLDEST] or "1 more" in found[0]


def test_a_hostile_cache_is_named_in_the_answer_and_the_snapshot_is_used(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "prices"
    folder.mkdir(parents=True)
    (folder / "aws.csv").write_text("provider,usd_per_hour\naws,-1\n")
    job = load_job(H100, gpus=["l4"])
    assert job.offers[0].usd_per_hour > 0
    assert any("aws.csv is no table of prices" in note for note in compared(job).warnings)


def test_disks_that_are_not_alike_are_pointed_out(found: Comparison) -> None:
    assert any("to compare like with like" in note for note in found.warnings)
