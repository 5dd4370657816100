"""A job file becomes a Job: every key, every default, every form of price."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
from jobfiles import MINIMAL, WHOLE, load, problem, write

from autotune.app.job.file import Document
from autotune.app.job.load import load_job, resolve_spec
from autotune.app.job.variants import checked

if TYPE_CHECKING:
    from pathlib import Path


def test_every_key_of_the_whole_job_file_is_understood(tmp_path: Path) -> None:
    job = load(tmp_path, WHOLE)
    assert (job.steps, job.epochs, job.global_batch_size) == (225_000, 3.0, 8)
    assert (job.method.rank, job.method.alpha, job.method.base) == (64, 128.0, "16bit")
    assert set(job.method.targets) >= {"q_proj", "down_proj"}
    assert job.lengths.known
    assert job.lengths.maximum == 1024
    assert (job.storage, job.padding, job.pretokenized) == ("network", "longest", False)
    assert (job.evaluation.rows, job.evaluation.every_steps) == (500, 2000)
    offer = job.offers[0]
    assert (offer.device.name, offer.count, offer.usd_per_hour) == ("h100-sxm", 1, 2.50)
    assert offer.price_source == "job file"
    assert (offer.host.cores, offer.host.ram_bytes) == (16, 128 * 2**30)
    assert offer.host.checkpoint_write_bytes_per_s == 25e6
    assert (job.limits.deadline_s, job.limits.budget_usd) == (86_400.0, 60.0)
    assert job.limits.max_lost_work_s == 1800.0
    assert job.lock == {"precision": "bf16"}
    assert job.allow == ("length_grouping",)
    assert (job.today.micro_batch_size, job.today.gradient_accumulation_steps) == (4, 2)
    assert job.today.checkpoint_every_steps == 1000
    (seen,) = job.evidence
    assert (seen.quantity, seen.value, seen.today) == ("duration_s", 136_800.0, True)
    assert seen.facts["gpu"] == "h100-sxm"


def test_yaml_and_json_of_the_same_job_give_the_same_job(tmp_path: Path) -> None:
    text = """
name: whole
model: meta-llama/Llama-3.1-8B
method: {kind: lora, rank: 8}
data: {rows: 600_000, max_length: 1024}
hardware: [h100-sxm]
lock: {compile: off, pin_memory: true}
evidence:
allow:
"""
    values = {
        "name": "whole", "model": "meta-llama/Llama-3.1-8B", "method": {"kind": "lora", "rank": 8},
        "data": {"rows": 600000, "max_length": 1024}, "hardware": "h100-sxm",
        "lock": {"compile": "off", "pin_memory": True},
    }  # fmt: skip
    one, two = load_job(write(tmp_path, text, "a.yaml")), load(tmp_path, values)
    assert (one.rows, one.lock, one.offers) == (two.rows, two.lock, two.offers)
    assert one.lock == {"compile": "off", "pin_memory": True}


def test_only_model_method_rows_and_a_device_are_needed_and_the_rest_is_listed(
    tmp_path: Path,
) -> None:
    job = load(tmp_path, MINIMAL)
    assert (job.name, job.method.rank, job.method.alpha, job.max_length) == ("job", 16, 32.0, 1024)
    assert (job.epochs, job.global_batch_size, job.steps) == (1.0, 16, 63)
    assert not job.lengths.known
    listed = {assumption.key for assumption in job.assumed}
    assert listed >= {
        "method.rank", "method.alpha", "method.dropout", "method.targets", "method.base",
        "data.max_length", "data.lengths", "data.padding", "data.pretokenized", "data.storage",
        "data.row_bytes", "train.epochs", "train.global_batch_size", "software",
        "limits.vram_headroom", "limits.max_lost_work", "hardware[0] (h100-sxm).price",
        "hardware[0] (h100-sxm).host",
    }  # fmt: skip
    assert all(assumption.value and assumption.why for assumption in job.assumed)


def test_an_assumed_global_batch_is_one_that_the_locked_batches_make(tmp_path: Path) -> None:
    own = tmp_path / "job.yaml"
    own.write_text(
        "model: Qwen/Qwen2-0.5B\ndata: {rows: 1000, max_length: 64}\nhardware: [{gpu: 8xh100}]\n"
        "lock: {micro_batch_size: 3}\n"
    )
    assert load_job(own).global_batch_size == 24
    assert load_job(own, set_values={"micro_batch_size": "1"}).global_batch_size == 16
    assert load_job(own, set_values={"gradient_accumulation_steps": "2"}).global_batch_size == 48


def test_what_is_stated_is_not_listed_as_assumed(tmp_path: Path) -> None:
    keys = {assumption.key for assumption in load(tmp_path, WHOLE).assumed}
    assert not keys & {"method.rank", "data.lengths", "data.padding", "train.epochs",
                       "limits.max_lost_work", "hardware[0] (h100-sxm).price"}  # fmt: skip


def test_the_recorded_spec_gives_the_same_job_again(tmp_path: Path) -> None:
    job = load(
        tmp_path, WHOLE, gpus=["h100:2"], set_values={"method.rank": "8"}, allow=["adapter_dtype"]
    )
    assert resolve_spec(json.loads(job.spec), tmp_path) == job


@pytest.mark.parametrize("values", [WHOLE, MINIMAL])
def test_a_checked_job_file_reads_back_as_itself(values: dict[str, Any]) -> None:
    jobfile = checked(Document(copy.deepcopy(values), "job"))
    assert type(jobfile).model_validate_json(jobfile.model_dump_json(exclude_unset=True)) == jobfile


def test_steps_are_epochs_times_full_and_short_batches(tmp_path: Path) -> None:
    data = {"rows": 100, "max_length": 64}
    for epochs, batch, steps in ((3, 8, 39), (1, 100, 1), (0.5, 8, 7), (2.5, 16, 18), (1, 128, 1)):
        values = {**MINIMAL, "data": data, "train": {"epochs": epochs, "global_batch_size": batch}}
        assert load(tmp_path, values).steps == steps


def test_stated_steps_give_rows_and_epochs(tmp_path: Path) -> None:
    values = {**MINIMAL, "data": {"max_length": 128}}
    values["train"] = {"steps": 10_000, "global_batch_size": 8}
    job = load(tmp_path, values)
    assert (job.steps, job.rows, job.epochs) == (10_000, 80_000, 1.0)
    values["train"]["epochs"] = 1
    assert "epochs or steps, not both" in problem(tmp_path, values)


def test_an_evaluation_only_run_has_no_steps(tmp_path: Path) -> None:
    values = {**MINIMAL, "train": "none"}
    assert "evaluation is not stated" in problem(tmp_path, values)
    values |= {"data": {"max_length": 128}, "evaluation": {"rows": 200}}
    job = load(tmp_path, values)
    assert (job.steps, job.epochs, job.rows) == (0, 0.0, 200)


@pytest.mark.parametrize(
    ("entry", "usd_per_hour", "source"),
    [
        ({"price": "1.99 USD/gpu-h", "count": 2}, 3.98, "job file"),
        ({"price": "3.98 USD/h", "count": 2}, 3.98, "job file"),
        ({"price": "free"}, 0.0, "free"),
        ({"price": {"per_month": "10 USD", "hours": 100}}, 0.10, "job file: 10 USD a month"),
        ({"owned": {"watts": 450, "electricity": "0.15 USD/kWh"}}, 0.0675, "owned, electricity"),
        (
            {"owned": {"watts": 450, "electricity": "0.15 USD/kWh"}, "count": 2},
            0.135,
            "owned, electricity",
        ),
    ],
)
def test_every_form_of_price_is_per_hour_of_the_whole_offer(
    tmp_path: Path, entry: dict[str, Any], usd_per_hour: float, source: str
) -> None:
    job = load(tmp_path, {**MINIMAL, "hardware": [{"gpu": "rtx4090", **entry}]})
    assert job.offers[0].usd_per_hour == pytest.approx(usd_per_hour)
    assert job.offers[0].price_source.startswith(source)


def test_an_unstated_price_is_the_catalogues_with_date_and_source(tmp_path: Path) -> None:
    job = load(tmp_path, MINIMAL)
    offer = job.offers[0]
    assert offer.usd_per_hour > 0
    assert offer.price_as_of is not None
    (assumption,) = [item for item in job.assumed if item.key.endswith(".price")]
    assert offer.price_as_of in assumption.why


def test_a_device_without_any_known_price_asks_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.app.hardware.offers.price_for", lambda *_args, **_more: None)
    assert "price: 2.50 USD/h" in problem(tmp_path, MINIMAL)
    assert load(tmp_path, MINIMAL, price="2 USD/h").offers[0].usd_per_hour == 2.0


def test_a_spot_offer_has_a_rate_of_interruptions_and_others_do_not(tmp_path: Path) -> None:
    spot = {"gpu": "h100-sxm", "price": "1 USD/h", "spot": True}
    job = load(tmp_path, {**MINIMAL, "hardware": [spot]})
    assert job.offers[0].interruptions_per_hour == pytest.approx(0.1 / 24)
    assert any(item.key.endswith("interruptions_per_day") for item in job.assumed)
    stated = load(tmp_path, {**MINIMAL, "hardware": [{**spot, "interruptions_per_day": 12}]})
    assert stated.offers[0].interruptions_per_hour == 0.5
    hourly = {**spot, "interruptions_per_hour": 0.25}
    assert (
        load(tmp_path, {**MINIMAL, "hardware": [hourly]}).offers[0].interruptions_per_hour == 0.25
    )
    assert load(tmp_path, WHOLE).offers[0].interruptions_per_hour == 0.0
    calm = {**hourly, "spot": False}
    assert "only spot offers" in problem(tmp_path, {**MINIMAL, "hardware": [calm]})


def test_the_cpu_is_this_machine_and_costs_nothing(tmp_path: Path) -> None:
    offer = load(tmp_path, {**MINIMAL, "hardware": "cpu"}).offers[0]
    assert offer.device.is_cpu
    assert (offer.usd_per_hour, offer.count) == (0.0, 1)
    two = {**MINIMAL, "hardware": [{"gpu": "cpu", "count": 2}]}
    assert "count is 1" in problem(tmp_path, two)


def test_what_a_host_does_not_state_is_marked_assumed(tmp_path: Path) -> None:
    host = load(tmp_path, WHOLE).offers[0].host
    assert set(host.assumed) == {"storage_read_bytes_per_s", "download_bytes_per_s"}


def test_qlora_is_lora_on_an_nf4_base(tmp_path: Path) -> None:
    job = load(tmp_path, {**MINIMAL, "method": "qlora"})
    assert (job.method.kind, job.method.base) == ("lora", "nf4")
    other = {**MINIMAL, "method": {"kind": "qlora", "base": "int8"}}
    assert "qlora means base nf4" in problem(tmp_path, other)


def test_full_training_has_no_adapters(tmp_path: Path) -> None:
    method = load(tmp_path, {**MINIMAL, "method": "full"}).method
    assert (method.kind, method.rank, method.targets) == ("full", 0, ())
    quantised = {**MINIMAL, "method": {"kind": "full", "base": "nf4"}}
    assert "cannot be trained in full" in problem(tmp_path, quantised)


def test_a_batch_that_no_offer_can_split_is_an_error_and_one_that_some_can_is_not(
    tmp_path: Path,
) -> None:
    three = {"gpu": "h100-sxm", "count": 3}
    assert "cannot be split evenly over 3" in problem(tmp_path, {**WHOLE, "hardware": [three]})
    both = load(tmp_path, {**WHOLE, "hardware": ["h100-sxm", three]})
    assert len(both.offers) == 2


def test_a_lock_that_no_device_can_do_is_an_error_and_one_that_some_can_is_not(
    tmp_path: Path,
) -> None:
    values = {**MINIMAL, "lock": {"precision": "bf16"}, "hardware": ["t4"]}
    assert "bf16 is not native on t4" in problem(tmp_path, values)
    assert load(tmp_path, {**values, "hardware": ["t4", "a100-40gb"]}).lock["precision"] == "bf16"
    flash = {**MINIMAL, "lock": {"attention": "flash_attention_2"}, "hardware": ["t4"]}
    assert "needs compute capability 8.0" in problem(tmp_path, flash)
    missing = problem(tmp_path, {**flash, "hardware": ["a100-40gb"]})
    assert "is not in the software profile" in missing
    assert "--set software.flash_attn=2" in missing
    fp8 = {**MINIMAL, "lock": {"precision": "fp8"}, "hardware": ["mi300x"]}
    assert "fp8 is priced on NVIDIA GPUs from 8.9 on" in problem(tmp_path, fp8)


def test_learned_positions_bound_the_length_and_rotary_ones_only_warn(tmp_path: Path) -> None:
    learned = {**MINIMAL, "model": "gpt2", "data": {"rows": 10, "max_length": 2048}}
    assert "above the 1024 positions" in problem(tmp_path, learned)
    rotary = {**MINIMAL, "data": {"rows": 10, "max_length": 200_000}}
    assert any("131072 positions" in item.why for item in load(tmp_path, rotary).assumed)


def test_evidence_of_several_quantities_gives_one_observation_each(tmp_path: Path) -> None:
    entry = {
        "measured": {
            "step_time": "1.5 s/step", "tokens_per_s": 5000, "checkpoint_save": "90 s",
            "peak_memory": "20 GiB", "memory_kind": "reserved",
        },
        "hardware": "a10:2", "rows": 100_000,
        "config": {"micro_batch_size": 2, "gradient_accumulation_steps": 4},
    }  # fmt: skip
    seen = load(tmp_path, {**WHOLE, "evidence": [entry]}).evidence
    assert {item.quantity: item.value for item in seen} == {
        "step_time_s": 1.5, "tokens_per_s": 5000.0, "checkpoint_save_s": 90.0,
        "memory_bytes": 20 * 2**30,
    }  # fmt: skip
    facts = seen[0].facts
    assert (facts["gpu"], facts["n_gpus"], facts["rows"], facts["global_batch"]) == (
        "a10", 2, 100_000, 16,
    )  # fmt: skip
    assert facts["same_as_job"] == ("epochs", "max_length")
    assert {item.kind for item in seen} == {None, "reserved"}


def test_a_histogram_file_gives_rows_lengths_and_what_was_cut(tmp_path: Path) -> None:
    content = {
        "schema_version": 1, "kind": "autotune.lengths", "row_bytes": 123.0,
        "lengths": [10, 100, 3000], "counts": [60, 30, 10],
    }  # fmt: skip
    (tmp_path / "h.json").write_text(json.dumps(content))
    data: dict[str, Any] = {"lengths": {"histogram": "h.json"}, "max_length": 1024}
    job = load(tmp_path, {**MINIMAL, "data": data})
    assert (job.rows, job.row_bytes) == (100, 123.0)
    assert (job.lengths.mean, job.lengths.truncated_rows) == (6 + 30 + 102.4, 10)
    scaled = load(tmp_path, {**MINIMAL, "data": {**data, "rows": 5000}})
    assert (scaled.rows, scaled.lengths) == (5000, job.lengths)
    assert any(item.key == "data.lengths" for item in scaled.assumed)


def test_a_data_set_needs_a_tokenizer_and_max_length_defaults_to_its_longest_row(
    tmp_path: Path,
) -> None:
    (tmp_path / "d.jsonl").write_text('{"text": "abc"}\n{"text": "abcdef"}\n')
    data = {"dataset": "d.jsonl"}
    job = load(tmp_path, {**MINIMAL, "data": {**data, "tokenizer": "bytes"}})
    assert (job.rows, job.max_length, job.lengths.mean) == (2, 6, 4.5)
    assert job.dataset_path == str(tmp_path / "d.jsonl")
    both = {**data, "tokenizer": "bytes", "lengths": {"p50": 1, "p95": 2}}
    assert "state one of dataset and lengths" in problem(tmp_path, {**MINIMAL, "data": both})


@pytest.mark.parametrize(
    ("changed", "base"),
    [
        ({"hardware": ["t4"], "model": "Qwen2.5-0.5B"}, "32bit"),
        ({"hardware": ["t4", "v100-sxm2-16gb"], "model": "Qwen2.5-0.5B"}, "32bit"),
        ({"hardware": ["t4", "a100-40gb"]}, "16bit"),
        ({"hardware": ["cpu"]}, "16bit"),
        ({"hardware": ["t4"]}, "16bit"),
        ({"hardware": ["8xt4"]}, "32bit"),
        ({"hardware": ["a100-40gb"], "lock": {"precision": "fp16"}}, "32bit"),
        ({"hardware": ["a100-40gb"], "lock": {"precision": "tf32"}}, "32bit"),
        ({"hardware": ["a100-40gb"], "method": {"kind": "lora"}}, "16bit"),
        ({"hardware": ["t4"], "method": {"kind": "lora"}}, "16bit"),
        ({"method": {"kind": "lora"}, "lock": {"precision": "fp32"}}, "32bit"),
        ({"hardware": ["t4"], "method": {"kind": "full", "base": "16bit"}}, "16bit"),
    ],
)  # fmt: skip
def test_weights_are_fp32_where_nothing_narrower_trains(
    tmp_path: Path, changed: dict[str, object], base: str
) -> None:
    """A base that nobody stated follows what the machines or the locked precision need."""
    job = load(
        tmp_path, {**MINIMAL, "hardware": ["a100-40gb"], "method": {"kind": "full"}, **changed}
    )
    assert job.method.base == base
    stated = [each for each in job.assumed if each.key == "method.base"]
    assert [each.value for each in stated] == ([] if "base" in str(changed) else [base])
