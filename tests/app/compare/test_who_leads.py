"""Who leads among machines, and how their prices are marked, in `compare` and `tune` alike."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app.compare.compare import compare
from autotune.app.job.load import jobs_of_line, load_job
from autotune.app.tune.tune import Options, tune
from autotune.cli.application import run
from autotune.domain.job import NamedJob
from autotune.domain.typed.overrides import Overrides
from autotune.report.compare.payload import comparison_payload
from autotune.report.compare.table import COMPARE_REPORT
from autotune.report.layout.csv_rows import recommendation_csv
from autotune.report.page.page import recommendation_html
from autotune.report.payload import recommendation_payload
from autotune.report.screens.compare import comparison_screen
from autotune.report.screens.tune import recommendation_screen
from autotune.report.sections.answer import TUNE_REPORT

if TYPE_CHECKING:
    from autotune.domain.answer.comparison import Comparison
    from autotune.domain.job import Job

pytestmark = pytest.mark.usefixtures("home")

ROOT = Path(__file__).parents[3]
H100 = ROOT / "jobs" / "h100_38h.yaml"


def compared(job: Job) -> Comparison:
    (found,) = compare([NamedJob("", job)]).parts
    return found


def payload_of(job: Job) -> dict[str, Any]:
    return comparison_payload(compare([NamedJob("", job)]))


@pytest.fixture(scope="module")
def job() -> Job:
    return load_job(H100)


@pytest.fixture(scope="module")
def unmeasured(job: Job) -> Job:
    """An A100 that steps were measured on, and an H100 that is expected to cost 10 % less."""
    limits = replace(job.limits, deadline_s=None, budget_usd=None, max_session_s=None)
    plain = replace(job, evidence=(), today=None, limits=limits)
    offers = load_job(H100, gpus=("a100-80gb@2.00USD/h", "h200-sxm@2.00USD/h")).offers
    rows = compared(replace(plain, offers=offers)).rows
    usd = {row.row.offer.device.name: row.row.cost_usd.p50 for row in rows}
    ratio = 0.9 * usd["a100-sxm4-80gb"] / usd["h200-sxm"]
    return replace(
        plain, offers=(offers[0], replace(offers[1], usd_per_hour=ratio * offers[1].usd_per_hour))
    )


def test_a_device_nobody_measured_leads_only_where_it_wins_at_its_slow_end(unmeasured: Job) -> None:
    found = compared(unmeasured)
    assert found.cheapest.row.offer.device.name == "h200-sxm"
    assert found.cheapest.row.caution > 1.1
    assert found.leads.row.offer.device.name == "a100-sxm4-80gb"
    assert found.within is found.leads
    assert found.may_be_better == (found.cheapest,)
    cheap = tuple(replace(o, usd_per_hour=o.usd_per_hour / 4) for o in unmeasured.offers[1:])
    surely = compared(replace(unmeasured, offers=(unmeasured.offers[0], *cheap)))
    assert surely.leads is surely.cheapest
    assert surely.may_be_better == ()


def test_compare_and_tune_lead_with_the_same_machine_and_name_the_unmeasured_one_first(
    unmeasured: Job,
) -> None:
    answer = tune(unmeasured, Options(dry_run=True, fidelity="formula", trials=1))
    assert answer.best.offer.device.name == "a100-sxm4-80gb"
    first = answer.worth_a_probe[0]
    assert (first.knob, first.change) == ("machine", "h200-sxm")
    assert first.p10 < 0 < first.expected_saving_usd < first.p90
    text = COMPARE_REPORT.text(payload_of(unmeasured))
    assert "cheapest: a100-sxm4-80gb" in text
    assert "counting machines without measured runs at their worst" in text
    assert "but never measured: h200-sxm" in text
    screen = comparison_screen(payload_of(unmeasured))
    lines = [line for line in screen.splitlines() if line.startswith(("  a100", "  h200"))]
    assert lines[0].startswith("  a100")
    assert lines[1].startswith("  h200")
    assert "unmeasured" in screen


def test_a_machine_that_needs_offloading_leads_in_neither_where_another_holds_the_job() -> None:
    """compare named 8x h100-sxm with weights in host memory, where tune named 8x b200."""
    line = Overrides(
        gpus=("8xh100", "8xb200"),
        stated={
            "model": "meta-llama/Llama-3.1-405B", "method.kind": "lora", "data.rows": "10000",
            "data.max_length": "4096",
        },
    )  # fmt: skip
    job = jobs_of_line(line)[0].job
    found = compared(job)
    offloaded = [row for row in found.rows if row.row.config.offload != "none"]
    assert [row.row.offer.device.name for row in offloaded] == ["h100-sxm"]
    assert offloaded[0].row.caution >= 2.0
    answer = tune(job, Options(dry_run=True, fidelity="formula", trials=1))
    assert found.leads.row.offer.label == answer.best.offer.label == "8x b200"
    assert "in limits" not in comparison_screen(payload_of(job)), "there are none"


def test_an_answer_says_which_machine_may_be_better_though_nobody_measured_it(
    unmeasured: Job,
) -> None:
    answer = tune(unmeasured, Options(dry_run=True, fidelity="formula", trials=1))
    payload = recommendation_payload(answer)
    screen = " ".join(recommendation_screen(payload).split())
    assert "Possibly cheaper, but never measured: h200-sxm" in screen
    assert "--gpu h200-sxm" in TUNE_REPORT.text(payload)


def test_old_asked_scaled_and_free_prices_are_marked_in_every_table(job: Job) -> None:
    gpus = ("a10g:2", "a100-80gb", "rtx-6000-ada:2", "l40s@1.00USD/h")
    offers = load_job(H100, gpus=gpus).offers
    free = replace(offers[1], usd_per_hour=0.0, price_source="free", count=1)
    several = replace(job, evidence=(), today=None, offers=(*offers, free))
    payload = payload_of(several)
    marks = {
        (row["device"], row["usd_per_hour"] > 0): row["price_marks"] for row in payload["rows"]
    }
    assert marks["a10g", True] == ("scaled",)
    assert marks["rtx-6000-ada", True] == ("old", "asked")
    assert marks["a100-sxm4-80gb", True] == marks["l40s", True] == ()
    assert marks["a100-sxm4-80gb", False] == ("free",)
    for text in (COMPARE_REPORT.text(payload), comparison_screen(payload)):
        words = " ".join(text.split())
        assert "old, asked" in words
        assert "scaled: taken in proportion" in words
        assert "nearest to the limits" in words  # not the free one, though it costs nothing
    answer = tune(
        replace(several, offers=offers), Options(dry_run=True, fidelity="formula", trials=1)
    )
    told = recommendation_payload(answer)
    whole = TUNE_REPORT.text(told)
    alternatives = whole.partition("Alternatives")[2].partition("\n\n")[0]
    assert "old, asked" in alternatives
    assert "old, asked" in TUNE_REPORT.markdown(told)
    assert "old, asked" in recommendation_html(told)
    assert "price_marks" in recommendation_csv(told)


def test_a_recomputation_names_the_machine_that_may_be_better(
    unmeasured: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("AUTOTUNE_RUNS", str(tmp_path / "runs"))
    first, second = (offer.usd_per_hour for offer in unmeasured.offers)
    dearer = 1.1 * second  # this line's H200 takes less of an A100's time than the job's
    machines = f"a10g:2,a100-80gb@{first:.4f}USD/h,h200-sxm@{dearer:.4f}USD/h"
    contract = ["--set", f"data.max_length={unmeasured.max_length}", "--set", "method.rank=64"]
    line = ["--model", unmeasured.model.name, "--rows", "20k", *contract]
    quick = ["--fidelity", "formula", "-q"]
    assert run(["recompute", *line, "--gpu", machines, *quick, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["before"]["price_marks"] == ["scaled"]
    assert told["after"]["device"] == "a100-sxm4-80gb"
    assert told["worth_a_probe"][0]["change"] == "h200-sxm"
    assert run(["recompute", *line, "--gpu", machines, *quick]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "(scaled)" in words
    assert "but never measured: h200-sxm" in words


def test_a_plan_marks_the_prices_of_its_machines(capsys: Any) -> None:
    campaign = ROOT / "jobs" / "campaigns" / "rtx4090_qwen2.yaml"
    assert run(["plan", str(campaign), "--gpu", "rtx-6000-ada:2,a10g:2", "-q"]) == 0
    planned = " ".join(capsys.readouterr().out.split())
    assert "(old, asked)" in planned
    assert "(scaled)" in planned


def test_a_machine_that_would_hold_the_job_has_the_marks_of_its_price() -> None:
    sharded = load_job(
        H100, gpus=("rtx-6000-ada@1USD/h",), set_values={"model": "Qwen/Qwen2.5-32B"}
    )
    answer = tune(
        replace(sharded, evidence=(), today=None),
        Options(dry_run=True, fidelity="formula", trials=1),
    )
    assert answer.best is None
    payload = recommendation_payload(answer)
    found = {
        (each["device"], each["device_count"]): each["price_marks"]
        for each in payload["rejected"]["relaxations"]
        if each["kind"] == "machine"
    }
    assert found["rtx-pro-6000-bw-ws", 1] == ("old", "asked")
    assert found["rtx-6000-ada", 4] == ("scaled",)
    assert "(old, asked)" in recommendation_screen(payload)
