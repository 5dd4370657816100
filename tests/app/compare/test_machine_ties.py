"""Of machines that cost the same, the one that ends clearly sooner, in every command alike."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from autotune.app.campaign.file import load_campaign
from autotune.app.campaign.plan import PlanOptions, plan
from autotune.app.compare.compare import CompareOptions, compare
from autotune.app.job.load import load_job
from autotune.app.tune.tune import Options, tune
from autotune.cost.spread.joint import Loadings
from autotune.domain.job import NamedJob
from autotune.report.campaign.payload import plan_payload
from autotune.report.campaign.text import PLAN_REPORT
from autotune.report.compare.payload import comparison_payload
from autotune.report.compare.table import COMPARE_REPORT
from autotune.report.page.page import recommendation_html
from autotune.report.payload import recommendation_payload
from autotune.report.screens.compare import comparison_screen
from autotune.report.screens.tune import recommendation_screen
from autotune.report.sections.answer import TUNE_REPORT
from autotune.search.selection import Contender, tiebreak

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.answer.comparison import Comparison
    from autotune.domain.job import Job

pytestmark = pytest.mark.usefixtures("home")

A100, H100, H200 = "a100-sxm4-80gb", "h100-sxm", "h200-sxm"  # H200: no measured step
KEYS = """\
model: meta-llama/Llama-3.1-8B
method: {kind: lora, rank: 16}
data: {rows: 20000, max_length: 1024, lengths: {p50: 220, p95: 700, max: 1024}}
train: {epochs: 1, global_batch_size: 16}
"""


def job_on(folder: Path, *gpus: str) -> Job:
    path = folder / "job.yaml"
    path.write_text(KEYS + f"hardware: [{', '.join(f'{{gpu: {gpu}}}' for gpu in gpus)}]\n")
    return load_job(path)


def compared(job: Job, objective: str = "cost") -> Comparison:
    (found,) = compare([NamedJob("", job)], CompareOptions(objective=objective)).parts
    return found


def priced(job: Job, **usd_per_hour: float) -> Job:
    by_name = {name.replace("_", "-"): price for name, price in usd_per_hour.items()}
    offers = tuple(replace(o, usd_per_hour=by_name[o.device.name]) for o in job.offers)
    return replace(job, offers=offers)


@pytest.fixture
def even(tmp_path: Path) -> Job:
    """An A100, and an H100 on which the job costs half a percent more."""
    job = job_on(tmp_path, A100, H100)
    usd = {r.row.offer.device.name: r.row.cost_usd.p50 / r.row.offer.usd_per_hour
           for r in compared(job).rows}  # fmt: skip
    return priced(job, **{A100: 2.0, H100: 2.0 * 1.005 * usd[A100] / usd[H100]})


def told(text: str) -> str:
    return " ".join(text.split())


def test_tune_takes_the_machine_that_costs_the_same_and_ends_clearly_sooner(even: Job) -> None:
    answer = tune(even, Options(dry_run=True, fidelity="formula", trials=1))
    assert answer.best.offer.device.name == H100
    assert answer.tiebreak.over == A100
    assert answer.tiebreak.by == "time"
    assert answer.best.cost_usd.p50 <= 1.01 * answer.tiebreak.cost_usd
    assert answer.best.duration_s.p50 < 0.6 * answer.tiebreak.duration_s
    payload = recommendation_payload(answer)
    for text in (recommendation_screen(payload), TUNE_REPORT.text(payload)):
        assert f"It costs the same as {A100} ($" in told(text)
        assert "and ends clearly sooner: in " in told(text)
    page = told(recommendation_html(payload))
    assert f"1x {H100} leads the 2 machines on which it fits. It costs the same as" in page
    assert "is the cheapest of" not in page


def test_compare_leads_with_the_same_machine_and_says_why(even: Job) -> None:
    found = compared(even)
    assert found.cheapest.row.offer.device.name == A100
    assert found.leads.row.offer.device.name == H100
    assert found.within is found.leads
    payload = comparison_payload(compare([NamedJob("", even)]))
    assert payload["tiebreak"].over == A100
    for text in (comparison_screen(payload), COMPARE_REPORT.text(payload)):
        assert f"It costs the same as {A100} ($" in told(text)
        assert "nearest to the limits" not in text


def test_a_plan_is_made_on_the_same_machine_and_says_why(even: Job, tmp_path: Path) -> None:
    prices = {offer.device.name: offer.usd_per_hour for offer in even.offers}
    hardware = ", ".join(f"{{gpu: {n}, price: {p:.6f} USD/h}}" for n, p in prices.items())
    path = tmp_path / "campaign.yaml"
    keys = KEYS.replace("\n", "\n  ")
    runs = "runs: [{name: one}, {name: two, repeat: 3}]"
    path.write_text(f"hardware: [{hardware}]\ndefaults:\n  {keys}\n{runs}\n")
    found = plan(load_campaign(path), PlanOptions())
    assert found.offers[found.machine].offer.device.name == H100
    assert found.tiebreak.over == A100
    text = PLAN_REPORT.text(plan_payload(found))
    assert f"It costs the same as {A100} ($" in told(text)


def test_no_tiebreak_where_one_costs_more_than_the_tie_or_ends_no_sooner(even: Job) -> None:
    a100, h100 = (offer.usd_per_hour for offer in even.offers)
    dearer = compared(priced(even, **{A100: a100, H100: 1.01 * h100}))
    assert dearer.leads is dearer.cheapest
    assert dearer.tiebreak is None
    cheaper = compared(priced(even, **{A100: a100, H100: 0.97 * h100}))
    assert cheaper.leads.row.offer.device.name == H100
    assert cheaper.tiebreak is None


def test_asked_for_the_least_time_the_one_that_costs_clearly_less_is_taken(tmp_path: Path) -> None:
    (own,) = job_on(tmp_path, H100).offers
    fast = replace(own.host, checkpoint_write_bytes_per_s=2 * own.host.checkpoint_write_bytes_per_s)
    dear, cheap = replace(own, host=fast, usd_per_hour=9.0), replace(own, usd_per_hour=3.0)
    job = replace(job_on(tmp_path, H100), offers=(dear, cheap))
    found = compared(job, "time")
    assert found.fastest.row.offer == dear
    assert found.leads.row.offer == cheap
    assert found.tiebreak.by == "cost"
    answer = tune(job, Options(dry_run=True, fidelity="formula", trials=1, objective="time"))
    assert answer.best.offer == cheap
    text = told(recommendation_screen(recommendation_payload(answer)))
    assert f"It takes as long as {H100} (" in text
    assert ") and costs clearly less: $" in text


def test_a_device_that_nobody_measured_wins_no_tie(tmp_path: Path) -> None:
    job = job_on(tmp_path, A100, H200)
    rows = {row.row.offer.device.name: row.row for row in compared(job).rows}
    assert rows[H200].caution > 1.1
    ratio = rows[A100].cost_usd.p50 / (rows[H200].cost_usd.p50 * rows[H200].caution)
    prices = {name: row.offer.usd_per_hour for name, row in rows.items()}
    alike = priced(job, **{A100: prices[A100], H200: 1.005 * ratio * prices[H200]})
    assert rows[H200].duration_s.p50 * rows[H200].caution < 0.8 * rows[A100].duration_s.p50
    found = compared(alike)
    assert found.leads.row.offer.device.name == A100
    answer = tune(alike, Options(dry_run=True, fidelity="formula", trials=1))
    assert answer.best.offer.device.name == A100


def test_a_card_of_ones_own_that_costs_nothing_is_kept(tmp_path: Path) -> None:
    job = priced(job_on(tmp_path, A100, H100), **{A100: 0.0, H100: 0.01})
    assert compared(job).leads.row.offer.device.name == A100
    answer = tune(job, Options(dry_run=True, fidelity="formula", trials=1))
    assert answer.best.offer.device.name == A100


def machine(**fields: object) -> Contender:
    sd = fields.pop("sd", 0.1)
    key = fields.pop("key", "one")
    usual = Contender(
        score=1.0, least=1.0, other=100.0, devices=1, caution=1.0,
        unsure=lambda: Loadings({("device", key): sd}),
    )  # fmt: skip
    return replace(usual, **fields)


SOONER = {"other": 70.0, "key": "two"}


@pytest.mark.parametrize(
    ("other", "taken"),
    [
        (machine(**SOONER), 1),
        (machine(**SOONER, score=1.009, least=1.009), 1),
        (machine(**SOONER, score=1.011, least=1.011), 0),
        (machine(**SOONER, devices=2), 0),
        (machine(**SOONER, caution=1.5), 0),
        (machine(**SOONER, sd=0.5), 0),
        (machine(other=70.0, sd=0.5, key="one"), 0),
        (machine(other=70.0, sd=0.12, key="one"), 1),
    ],
    ids=["sooner", "within", "dearer", "more devices", "unmeasured", "unsure", "apart", "together"],
)
def test_what_a_tiebreak_asks_for(other: Contender, taken: int) -> None:
    assert tiebreak([machine(), other], 0) == taken


def test_the_tie_is_with_the_least_and_not_with_a_plainer_pick() -> None:
    plain = machine(score=1.008, least=1.0)
    assert tiebreak([plain, machine(**SOONER, score=1.009, least=1.009)], 0) == 1
    assert tiebreak([plain, machine(**SOONER, score=1.015, least=1.015)], 0) == 0
