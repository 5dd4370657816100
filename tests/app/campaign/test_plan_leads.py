"""A plan chooses its machine as `tune` does: sure limits, no gain nobody measured, last resorts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.app.campaign.file import load_campaign
from autotune.app.campaign.plan import PlanOptions, exit_status, plan
from autotune.app.job.load import load_job
from autotune.app.tune.tune import Options, tune
from autotune.domain.answer.recommendation import Decisive

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.answer.plan import Plan

OPTIONS = Options(dry_run=True, fidelity="formula", trials=1)
KEYS = """\
model: {model}
method: {{kind: lora, rank: 16}}
data: {{rows: 20000, max_length: 1024, lengths: {{p50: 220, p95: 700, max: 1024}}}}
train: {{epochs: 1, global_batch_size: 16}}
limits: {{{limits}}}
"""
LLAMA_8B, LLAMA_70B = "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B"


def planned(folder: Path, hardware: str, model: str = LLAMA_8B, limits: str = "") -> Plan:
    path = folder / "campaign.yaml"
    keys = KEYS.format(model=model, limits=limits).replace("\n", "\n  ")
    path.write_text(f"hardware: {hardware}\ndefaults:\n  {keys}\nruns: [{{name: one}}]\n")
    return plan(load_campaign(path), PlanOptions())


def tuned_on(folder: Path, hardware: str, model: str = LLAMA_8B, limits: str = "") -> str:
    path = folder / "job.yaml"
    path.write_text(f"hardware: {hardware}\n{KEYS.format(model=model, limits=limits)}")
    best = tune(load_job(path), OPTIONS).best
    return best.offer.label


def unmeasured_at(folder: Path, share: float) -> str:
    """A measured A100, and an H100 priced so that it is expected to cost `share` of the A100."""
    text = "[{{gpu: a100-80gb, price: 2 USD/h}}, {{gpu: h200-sxm, price: {price} USD/h}}]"
    even = planned(folder, text.format(price=2)).offers
    usd = {total.offer.device.name: total.cost_usd.p50 for total in even}
    return text.format(price=2 * share * usd["a100-sxm4-80gb"] / usd["h200-sxm"])


@pytest.mark.parametrize(("share", "leads"), [(0.9, "a100-sxm4-80gb"), (0.2, "h200-sxm")])
def test_a_plan_leads_with_an_unmeasured_device_only_where_it_wins_at_its_slow_end(
    tmp_path: Path, share: float, leads: str
) -> None:
    hardware = unmeasured_at(tmp_path, share)
    found = planned(tmp_path, hardware)
    assert found.offers[found.machine].offer.device.name == leads
    assert found.offers[found.machine].offer.label == tuned_on(tmp_path, hardware)
    told = [note for note in found.warnings if "may be better" in note]
    assert bool(told) is (leads != "h200-sxm")
    assert all(isinstance(note, Decisive) for note in told)


def test_a_plan_takes_the_machine_that_keeps_the_deadline_as_surely_as_is_asked(
    tmp_path: Path,
) -> None:
    hardware = "[{gpu: a100-80gb, price: 4 USD/h}, {gpu: l4, price: 0.2 USD/h}]"
    free = planned(tmp_path, hardware)
    cheap = free.offers[free.machine]
    assert cheap.offer.device.name == "l4"
    limits = f"deadline: {cheap.duration_s.p50 * 1.02:.0f}s"  # kept at the median, not with 0.8
    found = planned(tmp_path, hardware, limits=limits)
    assert found.offers[found.machine].offer.device.name == "a100-sxm4-80gb"
    assert found.offers[found.machine].offer.label == tuned_on(tmp_path, hardware, limits=limits)
    assert exit_status(found) == 0


def test_a_plan_opens_what_only_costs_time_where_nothing_else_fits(tmp_path: Path) -> None:
    hardware = "[{gpu: h100, count: 2}, {gpu: l4}]"
    found = planned(tmp_path, hardware, LLAMA_70B)
    chosen = found.offers[found.machine]
    assert not chosen.missing
    assert chosen.offer.label == tuned_on(tmp_path, hardware, LLAMA_70B)
    row = found.runs[0].on[found.machine].row
    assert row.config.offload != "none"
    (told,) = (note for note in found.warnings if "was opened" in note)
    assert isinstance(told, Decisive)


def test_a_plan_opens_it_on_the_one_machine_that_needs_it(tmp_path: Path) -> None:
    hardware = "[{gpu: h100, count: 2, price: 1 USD/h}, {gpu: h100, count: 8, price: 90 USD/h}]"
    found = planned(tmp_path, hardware, LLAMA_70B)
    offloads = [on.row.config.offload for on in found.runs[0].on if on.row is not None]
    assert len(offloads) == 2
    assert offloads[0] != "none"
    assert offloads[1] == "none"
