"""The command line's changes and the one-line form give the same kind of Job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from jobfiles import MINIMAL, WHOLE, load, problem

from autotune.app.hardware.machines import priced_devices
from autotune.app.hardware.price_notes import price_notes
from autotune.app.job.file import Document
from autotune.app.job.load import jobs_of_line
from autotune.app.job.overrides import overridden
from autotune.catalog.prices.prices import sold_counts
from autotune.domain.config import KNOBS, TRAINER_NAMES
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides
from autotune.report.screens.screen import change_words

if TYPE_CHECKING:
    from pathlib import Path


def test_set_pins_knobs_and_changes_keys_of_the_job(tmp_path: Path) -> None:
    job = load(
        tmp_path,
        WHOLE,
        set_values={
            "checkpoint_every_steps": "50", "method.rank": "8", "train.steps": "100",
            "data.lengths.p50": "100", "name": "other",
        },
    )  # fmt: skip
    assert job.lock == {"precision": "bf16", "checkpoint_every_steps": 50}
    assert (job.method.rank, job.steps, job.name) == (8, 100, "other")
    assert job.lengths.quantiles[128] == pytest.approx(100)


def test_a_knob_can_be_typed_as_screens_and_the_trainer_call_it(tmp_path: Path) -> None:
    typed = {"torch_compile": "default", "gradient_checkpointing": "on", "save_steps": "50"}
    job = load(tmp_path, MINIMAL, set_values=typed, allow=["group_by_length"])
    lock = {"compile": "default", "activation_checkpointing": "full", "checkpoint_every_steps": 50}
    assert job.lock == lock
    assert job.allow == ("length_grouping",)
    locked = {**MINIMAL, "lock": {"torch_compile": "off", "gradient_checkpointing": "off"}}
    job = load(tmp_path, locked, set_values={"compile": "default"})
    assert job.lock == {"compile": "default", "activation_checkpointing": "none"}


def test_a_knob_by_both_of_its_names_is_refused(tmp_path: Path) -> None:
    both = {"compile": "off", "torch_compile": "default"}
    assert "--set gives compile twice" in problem(tmp_path, MINIMAL, set_values=both)
    as_in_a_file = {"lock.compile": "off"}
    assert load(tmp_path, MINIMAL, set_values=as_in_a_file).lock == {"compile": "off"}
    both_so = {"compile": "off", "lock.compile": "default"}
    assert "once as lock.compile" in problem(tmp_path, MINIMAL, set_values=both_so)
    assert "unknown knob" in problem(tmp_path, MINIMAL, set_values={"lock.name": "x"})
    assert "compile is stated twice" in problem(tmp_path, {**MINIMAL, "lock": both})


@pytest.mark.parametrize("name", TRAINER_NAMES)
def test_every_name_on_a_screen_is_one_that_can_be_typed(name: str) -> None:
    """Also its values, as screens show them: none is off, full is on."""
    for value in KNOBS[name].choices or ("4",) if KNOBS[name].kind != "switch" else ("yes",):
        shown = {"none": "off", "full": "on"}.get(value, value)
        typed = Overrides(set_values={change_words(name): shown})
        lock = overridden(Document({**MINIMAL}, "x"), typed).values["lock"]
        assert KNOBS[name].parse(lock[name]) == KNOBS[name].parse(value)


def test_a_shorter_max_length_cuts_the_stated_lengths(tmp_path: Path) -> None:
    job = load(tmp_path, WHOLE, set_values={"data.max_length": "512"})
    assert (job.max_length, job.lengths.maximum) == (512, 512)
    assert job.lengths.quantiles[128] == pytest.approx(220)
    typed = {"data.lengths.p95": "1000", "data.lengths.max": "1024", "data.max_length": "512"}
    job = load(tmp_path, WHOLE, set_values=typed)
    assert (job.max_length, job.lengths.maximum) == (512, 512)


def test_a_shorter_max_length_cuts_a_mean_that_stands_alone(tmp_path: Path) -> None:
    sizes = {"rows": 50_000, "max_length": 2048, "lengths": {"mean": 500}}
    values = MINIMAL | {"data": sizes}
    whole, cut = (
        load(tmp_path, values),
        load(tmp_path, values, set_values={"data.max_length": "600"}),
    )
    assert (whole.lengths.basis, whole.lengths.mean) == ("mean", pytest.approx(500))
    assert whole.tokens == 25_000_000
    assert cut.lengths.basis == "mean"
    assert 400 < cut.lengths.mean < 500
    assert {"data.lengths.max", "data.lengths.p50 and p95"} <= {a.key for a in whole.assumed}


@pytest.mark.parametrize("name", ["mean", "max"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "0", "0.4", "-5", "1e300", "abc", ""])
def test_a_length_that_is_none_is_refused_behind_a_shorter_max_length_too(
    tmp_path: Path, name: str, value: str
) -> None:
    typed = {"data.lengths.mean": "100", f"data.lengths.{name}": value, "data.max_length": "450"}
    values = MINIMAL | {"data": {"rows": 50_000}}
    assert f"data.lengths.{name}" in problem(tmp_path, values, set_values=typed)


def test_a_mean_above_its_maximum_is_not_cut_away(tmp_path: Path) -> None:
    data = {"rows": 50_000, "lengths": {"mean": 900, "max": 300}}
    says = problem(tmp_path, MINIMAL | {"data": data}, set_values={"data.max_length": "450"})
    assert "mean 900 is above max 300" in says


def test_without_a_maximum_some_row_is_four_times_the_mean(tmp_path: Path) -> None:
    job = load(tmp_path, MINIMAL | {"data": {"rows": 50_000, "lengths": {"mean": 900}}})
    assert job.max_length == job.lengths.maximum == 3600


@pytest.mark.parametrize(
    ("lengths", "says"),
    [
        ({"mean": 3000}, "have a mean of 3000 but max_length is 2048"),
        ({"mean": 300, "max": 200}, "mean 300 is above max 200"),
        ({"mean": 300, "p50": 200}, "state mean, or p50 and p95"),
        ({"max": 200}, "state mean, or p50 and p95"),
        ({"mean": 0}, "must be a number from 1"),
    ],
)
def test_a_mean_that_cannot_be_is_refused(
    tmp_path: Path, lengths: dict[str, int], says: str
) -> None:
    data = {"rows": 50_000, "max_length": 2048, "lengths": lengths}
    assert says in problem(tmp_path, MINIMAL | {"data": data})


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("rank", "did you mean method.rank"),
        ("precison", "did you mean precision"),
        ("data.row", "did you mean data.rows"),
        ("train.save_steps", "save_steps"),
        ("hardware", "unknown knob or key"),
        ("", "unknown knob or key"),
    ],
)
def test_set_of_an_unknown_name_offers_close_ones(tmp_path: Path, key: str, says: str) -> None:
    assert says in problem(tmp_path, WHOLE, set_values={key: "1"})


def test_gpu_replaces_the_hardware_and_keeps_what_the_job_says_of_the_same_machine(
    tmp_path: Path,
) -> None:
    job = load(tmp_path, WHOLE, gpus=["h100,a100-40gb:2"])
    first, second = job.offers
    assert (first.label, first.usd_per_hour, first.host.cores) == ("h100-sxm", 2.5, 16)
    assert (second.count, second.device.name) == (2, "a100-sxm4-40gb")
    assert second.price_as_of is not None
    assert job.evidence[0].facts["gpu"] == "h100-sxm"
    assert job.today is not None


def test_evidence_keeps_speaking_of_the_machine_that_gpu_replaced(tmp_path: Path) -> None:
    job = load(tmp_path, WHOLE, gpus=["a100-40gb"])
    assert job.evidence[0].facts["gpu"] == "h100-sxm"
    assert job.today_offer.device.name == "h100-sxm"
    assert job.today_offer not in job.offers
    assert job.today_here is None


def test_a_machine_without_a_price_has_no_row_of_today(tmp_path: Path) -> None:
    values = {**WHOLE, "hardware": [{"gpu": "h100-sxm"}]}
    job = load(tmp_path, values, gpus=["a100-40gb"])
    assert job.today is None
    assert any(item.key == "evidence[0].today" for item in job.assumed)


def test_gpu_all_is_every_priced_nvidia_device(tmp_path: Path) -> None:
    offers = load(tmp_path, WHOLE, gpus=["all"]).offers
    assert len(offers) >= 15
    assert {offer.device.vendor for offer in offers} == {"nvidia"}
    assert len({(offer.device.name, offer.count) for offer in offers}) == len(offers)
    batch = load(tmp_path, WHOLE).global_batch_size
    assert {offer.count for offer in offers} == {n for n in (1, 2, 4, 8) if batch % n == 0}
    alone = load(tmp_path, WHOLE, gpus=["all:1"]).offers
    assert {offer.count for offer in alone} == {1}
    sold_in_pairs = {"a100-pcie-40gb", "rtx-a5000"}
    assert {o.device.name for o in offers} - {o.device.name for o in alone} == sold_in_pairs
    assert {o.device.name for o in offers} == set(priced_devices())


def test_gpu_all_holds_no_machine_that_nobody_sells(tmp_path: Path) -> None:
    """Four g5.xlarge are no machine of four A10G, and no one sells half of two RTX 6000 Ada."""
    offers = {(o.device.name, o.count): o for o in load(tmp_path, WHOLE, gpus=["all"]).offers}
    assert not any(offer.price_scaled_from for offer in offers.values())
    assert offers["a10g", 4].usd_per_hour == pytest.approx(5.672)
    assert ("a10g", 2) not in offers
    ada = offers["rtx-6000-ada", 2]
    assert set(ada.price_marks) == {"old", "asked"}
    assert "scaled" not in ada.price_marks
    for (name, count), offer in offers.items():
        if offer.price_source != "job file":
            assert count in sold_counts(name)


def test_a_count_that_is_asked_for_by_name_is_a_share_and_says_so(tmp_path: Path) -> None:
    job = load(tmp_path, {**WHOLE, "hardware": ["a10g:2"]})
    (offer,) = job.offers
    assert offer.usd_per_hour == pytest.approx(5.672 / 2)
    assert (offer.price_marks, offer.price_scaled_from) == (("scaled",), 4)
    assert any("no known provider rents 2x a10g" in note for note in price_notes(job))


def test_a_price_that_the_user_states_counts_whatever_is_sold(tmp_path: Path) -> None:
    values = {**WHOLE, "evidence": []}
    (offer,) = load(tmp_path, values, gpus=["a100-pcie-40gb:8@9.00USD/h"]).offers
    assert (offer.usd_per_hour, offer.price_marks) == (9.0, ())
    own = {**values, "hardware": [{"gpu": "a100-pcie-40gb:8", "price": "free"}]}
    (free,) = load(tmp_path, own).offers
    assert free.price_marks == ("free",)


def test_more_cards_than_any_machine_has_are_refused_with_the_counts_that_are_sold(
    tmp_path: Path,
) -> None:
    said = problem(tmp_path, {**WHOLE, "hardware": ["a10g:16"]})
    assert "sells 16x a10g in one machine" in said
    assert "sold are 1, 4, 8" in said
    assert "a10g:16@2.50USD/h" in said


def test_a_price_may_be_given_with_each_machine(tmp_path: Path) -> None:
    gpus = ["h100-sxm", "a100-40gb:4@4.80USD/h", "h100:2@2.50USD/gpu-h"]
    offers = load(tmp_path, WHOLE, gpus=gpus).offers
    assert [(o.count, o.usd_per_hour) for o in offers] == [(1, 2.5), (4, 4.8), (2, 5.0)]
    assert "USD/h" in problem(tmp_path, WHOLE, gpus=["a100-40gb@4.80"])


def test_max_price_leaves_out_what_costs_more_and_says_so(tmp_path: Path) -> None:
    job = load(tmp_path, WHOLE, gpus=["h100", "l40s"], max_price="2.00 USD/h")
    assert [offer.device.name for offer in job.offers] == ["l40s"]
    assert any("--max-price" in item.why for item in job.assumed)
    assert "no offer costs at most" in problem(tmp_path, WHOLE, max_price="0.10 USD/h")


def test_limits_and_prices_on_the_command_line_need_units(tmp_path: Path) -> None:
    job = load(tmp_path, WHOLE, deadline="10h", budget="$5", price="1.25USD/gpu-h")
    assert (job.limits.deadline_s, job.limits.budget_usd) == (36_000.0, 5.0)
    assert job.offers[0].usd_per_hour == 1.25
    for flag in ({"deadline": "10"}, {"budget": "5"}, {"price": "1"}, {"max_price": "x"}):
        assert problem(tmp_path, WHOLE, **flag)


def test_the_one_line_form_is_the_same_job(tmp_path: Path) -> None:
    stated = {
        "model": "meta-llama/Llama-3.1-8B", "method.kind": "qlora", "data.rows": 600000,
        "data.max_length": 1024, "train.epochs": 3, "train.global_batch_size": 8,
    }  # fmt: skip
    options = jobs_of_line(Overrides(gpus=["h100-sxm"], stated=stated))[0].job
    values = {
        "name": "Llama-3.1-8B-qlora", "model": "meta-llama/Llama-3.1-8B", "method": "qlora",
        "data": {"rows": 600000, "max_length": 1024},
        "train": {"epochs": 3, "global_batch_size": 8}, "hardware": "h100-sxm",
    }  # fmt: skip
    from_file = load(tmp_path, values)
    assert options.steps == 225_000
    for name in ("name", "method", "lengths", "offers", "assumed", "steps", "rows"):
        assert getattr(options, name) == getattr(from_file, name)


def test_the_one_line_form_needs_a_device() -> None:
    with pytest.raises(InputError, match="lacks --gpu NAME"):
        jobs_of_line(Overrides(stated={"model": "gpt2", "data.rows": 10}))


def test_another_global_batch_leaves_todays_config_at_its_own(tmp_path: Path) -> None:
    job = load(tmp_path, WHOLE, set_values={"train.global_batch_size": "16"})
    assert (job.steps, len(job.evidence)) == (112_500, 1)
    assert (job.today_batch.global_batch_size, job.today_batch.steps) == (8, 225_000)


def test_a_batch_that_nobody_stated_leaves_no_today_behind_and_says_so(tmp_path: Path) -> None:
    values = {**MINIMAL, "evidence": [{"today": True, "config": {"micro_batch_size": 2}}]}
    job = load(tmp_path, values, set_values={"train.global_batch_size": "64"})
    assert job.today is None
    assert any(item.key == "today" for item in job.assumed)


def test_lists_and_the_trainers_words_are_read_as_people_type_them(tmp_path: Path) -> None:
    """`[a,b]` was taken for the names "[a" and "b]", and the Trainer's adamw_8bit was unknown."""
    typed = {"method.targets": "[q_proj, v_proj]", "optimizer": "adamw_8bit"}
    job = load(tmp_path, MINIMAL, set_values=typed)
    assert job.method.targets == ("q_proj", "v_proj")
    assert job.lock["optimizer"] == "adamw_bnb_8bit"
    quoted = load(tmp_path, MINIMAL, set_values={"method.targets": """["q_proj", 'v_proj']"""})
    assert quoted.method.targets == job.method.targets


@pytest.mark.parametrize(
    ("key", "value", "name", "found"),
    [("kbit_prepared", "true", "kbit_upcast", "all"), ("trainer", "trl", "trainer", "trl"),
     ("autocast", "false", "autocast", False), ("loss", "fused", "loss", "fused")],
)  # fmt: skip
def test_what_a_job_file_says_of_its_software_may_be_set(
    tmp_path: Path, key: str, value: str, name: str, found: object
) -> None:
    changes = {f"software.{key}": value, "method.base": "nf4"}
    job = load(tmp_path, WHOLE, set_values=changes)
    assert getattr(job.software, name) == found
