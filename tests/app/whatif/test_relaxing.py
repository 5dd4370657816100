"""What does not fit is explained, and what is said to make it fit does."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import numpy as np
import pytest

from autotune.app.compare.compare import compare
from autotune.app.estimate import estimate
from autotune.app.job.load import load_job
from autotune.app.tune.tune import Options, tune
from autotune.app.whatif.changes import climbing, more_devices
from autotune.app.whatif.relaxations import relaxations
from autotune.app.whatif.shortfall import shortfall_of
from autotune.catalog.prices.prices import price_for
from autotune.cost.memory.component import peak_instant
from autotune.cost.memory.instants import INSTANTS
from autotune.cost.model import CostModel
from autotune.domain.candidates import Candidates
from autotune.domain.edit import Edit
from autotune.domain.job import NamedJob
from autotune.report.payload import estimate_payload, recommendation_payload
from autotune.report.screens.tune import recommendation_screen
from autotune.report.sections.answer import ESTIMATE_REPORT, TUNE_REPORT
from autotune.space.enumerate import enumerate_candidates
from autotune.space.file import load_space

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.app.estimate import Estimate
    from autotune.domain.answer.recommendation import Relaxation
    from autotune.domain.job import Job

JOB = """\
name: eight
model: meta-llama/Llama-3.1-8B
method: {method}
data: {{rows: 2000, max_length: 1024, lengths: {{p50: 220, p95: 700, max: 900}}}}
train: {{epochs: 1, global_batch_size: 16}}
hardware: [{{gpu: {gpu}, count: 1, price: 1 USD/h}}]
lock: {lock}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs")


def written(folder: Path, *, gpu: str = "l4", lock: str = "{}", method: str = "lora") -> Path:
    path = folder / "job.yaml"
    described = "{kind: lora, rank: 16, targets: all-linear}" if method == "lora" else method
    path.write_text(JOB.format(gpu=gpu, lock=lock, method=described))
    return path


def test_a_job_on_as_many_devices_as_a_host_holds_gets_its_relaxations(folder: Path) -> None:
    path = folder / "eight_devices.yaml"
    path.write_text(
        "model: meta-llama/Llama-3.1-70B\nmethod: full\ntrain: {global_batch_size: 8}\n"
        "data: {rows: 1000, max_length: 65536}\nhardware: [{gpu: h100-sxm, count: 8}]\n"
    )
    job = load_job(path)
    assert more_devices((job, load_space())) == []
    found = relaxations(job, load_space())
    assert found
    assert all(change.quality for change in found)
    assert all(change.required_bytes <= change.available_bytes for change in found)


def test_more_of_a_device_have_the_date_of_their_own_price(folder: Path) -> None:
    question = (load_job(written(folder), gpus=["l40s"]), load_space())
    offers = [
        edit.apply(question)[0].offers[0] for ladder in more_devices(question) for edit in ladder
    ]
    assert offers
    for offer in offers:
        price = price_for(offer.device.name, offer.count)
        assert price is not None
        assert (offer.usd_per_hour, offer.price_as_of) == (price.usd_per_hour, price.as_of)


def applied(path: Path, change: Relaxation) -> Job:
    """The job with the options that a change names, as the command line would take them."""
    words = shlex.split(change.apply)
    pairs = list(zip(words[::2], words[1::2], strict=True))
    sets = dict(value.split("=", 1) for flag, value in pairs if flag == "--set")
    gpus = [value for flag, value in pairs if flag == "--gpu"]
    allow = [value for flag, value in pairs if flag == "--allow"]
    return load_job(path, gpus=gpus, price="1 USD/h", set_values=sets, allow=allow)


def fits(job: Job) -> bool:
    found = enumerate_candidates(job, load_space()).candidates
    return bool(CostModel(job).price(found).feasible.any())


@pytest.mark.parametrize(
    ("gpu", "lock", "method"),
    [
        ("l4", "{micro_batch_size: 16}", "lora"),
        ("rtx-4090", "{activation_checkpointing: none, micro_batch_size: 8}", "lora"),
        ("t4", "{}", "lora"),
        ("l4", "{}", "full"),
        ("a100-40gb", "{optimizer: adamw_torch_fused}", "full"),
    ],
)
def test_every_change_that_is_named_makes_it_fit_when_applied(
    folder: Path, gpu: str, lock: str, method: str
) -> None:
    path = written(folder, gpu=gpu, lock=lock, method=method)
    job = load_job(path)
    assert not fits(job)
    changes = relaxations(job, load_space())
    assert changes
    for change in changes:
        assert change.required_bytes <= change.available_bytes
        assert change.fits_probability >= 0.9
        assert fits(applied(path, change)), change.apply


def test_settings_are_told_before_machines_and_the_contract_last_each_by_cost(
    folder: Path,
) -> None:
    job = load_job(written(folder, lock="{micro_batch_size: 16}"))
    changes = relaxations(job, load_space())
    sorts = {"lock": 0, "setting": 0, "machine": 1, "quality": 2}
    keys = [(sorts[change.kind], change.cost_usd) for change in changes]
    assert keys == sorted(keys)
    assert [change.quality for change in changes] == [key == 2 for key, _ in keys]
    assert {change.kind for change in changes if change.quality} == {"quality"}
    assert any(change.kind == "machine" for change in changes)
    assert all(change.duration_s > 0 for change in changes)
    soonest = relaxations(job, load_space(), objective="time")
    timed = [(sorts[change.kind], change.duration_s) for change in soonest]
    assert timed == sorted(timed)


def test_an_option_is_named_once_in_what_makes_it_fit(tmp_path: Path) -> None:
    """Two changes that both open attention wrote `--allow attention` twice."""
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: meta-llama/Llama-3.1-8B\nmethod: lora\ndata: {rows: 20000, max_length: 8192}\n"
        "hardware: [{gpu: rtx-4090, price: 1 USD/h}]\nlock: {micro_batch_size: 4}\n"
    )
    typed = [change.apply for change in estimate(load_job(path)).relaxations]
    assert any("--allow attention" in each for each in typed)
    assert all(each.count("--allow attention") <= 1 for each in typed)


def test_the_lock_that_would_have_to_give_is_named(folder: Path) -> None:
    job = load_job(written(folder, gpu="rtx-4090", lock="{micro_batch_size: 16}"))
    changes = relaxations(job, load_space())
    locks = [change for change in changes if change.kind == "lock"]
    assert len(locks) == 1
    assert "not the locked 16" in locks[0].change
    assert locks[0].config["micro_batch_size"] < 16


def test_two_changes_are_named_only_where_one_is_not_enough(folder: Path) -> None:
    both = "{activation_checkpointing: none, micro_batch_size: 16}"
    job = load_job(written(folder, gpu="l4", lock=both))
    for change in (c for c in relaxations(job, load_space()) if c.kind in {"lock", "setting"}):
        assert "micro_batch_size" in change.change
        assert "activation_checkpointing full, not the locked none" in change.change


def test_a_stated_configuration_changes_in_nothing_but_what_is_named(folder: Path) -> None:
    job = load_job(written(folder, gpu="rtx-4090"), set_values={"micro_batch_size": "16"})
    found = estimate(job)
    assert found.shortfall is not None
    for change in found.relaxations:
        if change.kind not in {"lock", "setting"} or change.config is None:
            continue
        was, now = found.row.config.as_dict(), change.config
        differ = {name for name in was if was[name] != now[name]}
        derived = {"gradient_accumulation_steps", "checkpoint_every_steps", "save_total_limit"}
        assert differ - derived == {name for name in was if f"{name} " in change.change}


@pytest.fixture(scope="module")
def too_big(folder: Path) -> Estimate:
    job = load_job(written(folder, gpu="l4"), set_values={"micro_batch_size": "16"})
    return estimate(job)


def test_the_shortfall_adds_up(too_big: Estimate) -> None:
    missing = too_big.shortfall
    assert missing.resource == "memory"
    assert missing.memory_bytes["total"] == pytest.approx(missing.required_bytes)
    assert missing.over_bytes == pytest.approx(missing.required_bytes - missing.available_bytes)
    largest = [part.bytes for part in missing.largest]
    assert largest == sorted(largest, reverse=True)
    assert sum(largest) <= missing.required_bytes
    batch = missing.longest_batch
    assert (batch.rows, batch.tokens_per_row, batch.tokens) == (16, 900, 14_400)
    assert batch.origin == "the stated data.lengths.max"


def test_the_report_names_bytes_holder_instant_row_and_changes(too_big: Estimate) -> None:
    payload = estimate_payload(
        too_big.row, too_big.job, too_big.warnings,
        shortfall=too_big.shortfall, relaxations=too_big.relaxations,
    )  # fmt: skip
    shown = " ".join(ESTIMATE_REPORT.text(payload, width=100, colour=False).split())
    for words in (
        "GiB too much", "largest parts: activations", "when: in the backward pass",
        "16 rows x 900 tokens = 14,400", "With the same training (settings, then machines",
        "These change the result, so you decide", "autotune estimate JOB --",
    ):  # fmt: skip
        assert words in shown


def test_what_fits_has_nothing_to_explain(folder: Path) -> None:
    found = estimate(load_job(written(folder, gpu="h100"), set_values={"micro_batch_size": "1"}))
    assert found.shortfall is None
    assert found.relaxations == ()
    assert "shortfall" not in estimate_payload(found.row, found.job)


def test_a_disk_that_is_too_small_is_told_apart_from_memory(folder: Path) -> None:
    path = written(folder, gpu="h100, host: {disk: 200 GB}")
    sets = {"micro_batch_size": "1", "save_total_limit": "5000", "checkpoint_every_steps": "1"}
    found = estimate(load_job(path, set_values={**sets, "train.epochs": "8"}))
    assert found.shortfall.resource == "disk"
    assert found.shortfall.available_bytes == found.row.offer.host.disk_bytes
    *saves, disk = found.relaxations
    assert any("save_total_limit" in change.change for change in saves)
    assert all("save" in change.change or "checkpoint" in change.change for change in saves)
    assert disk.change.startswith("a disk of")
    for change in found.relaxations:
        assert change.short_of == "disk"
        assert change.required_bytes <= change.available_bytes
        assert not change.quality


def test_a_search_that_only_the_disk_stops_names_the_disk_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: Qwen/Qwen2.5-7B\nmethod: full\ndata: {rows: 20000, max_length: 1024}\n"
        "hardware: [{gpu: h200, count: 8, host: {disk: 40 GB}}]\n"
    )
    answer = tune(load_job(path), Options(dry_run=True, fidelity="formula", trials=1))
    assert answer.best is None
    payload = recommendation_payload(answer)["rejected"]
    assert {miss["short_of"] for miss in payload["nearest"]} == {"disk"}
    (disk,) = payload["relaxations"]
    assert disk["short_of"] == "disk"
    assert disk["required_bytes"] <= disk["available_bytes"] < 65e9
    wide = path.read_text().replace("40 GB", f"{disk['available_bytes'] / 1e9:.0f} GB")
    path.write_text(wide)
    again = tune(load_job(path), Options(dry_run=True, fidelity="formula", trials=1))
    assert again.best is not None
    found = compare([NamedJob("", load_job(written_disk(path, "40 GB")))]).parts[0].infeasible
    assert [miss.short_of for miss in found] == ["disk"]


def written_disk(path: Path, size: str) -> Path:
    path.write_text(re.sub(r"disk: \d+ GB", f"disk: {size}", path.read_text()))
    return path


def test_a_host_without_memory_for_what_is_offloaded_is_told_how_much_would_do(
    tmp_path: Path,
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: Qwen/Qwen2.5-14B\nmethod: full\ndata: {rows: 20000, max_length: 1024}\n"
        "hardware: [{gpu: a100-40gb, count: 2, price: 3 USD/h, host: {ram: 64 GB}}]\n"
        "allow: [offload]\n"
    )
    changes = relaxations(load_job(path), load_space())
    (ram,) = (change for change in changes if change.short_of == "ram")
    assert ram.change.startswith("RAM of ")
    assert 64e9 < ram.required_bytes <= ram.available_bytes
    path.write_text(path.read_text().replace("64 GB", f"{ram.available_bytes / 1e9:.0f} GB"))
    assert fits(load_job(path))


def test_a_change_that_leaves_little_on_the_host_is_told_by_what_it_leaves(
    tmp_path: Path,
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: meta-llama/Llama-3.1-8B\nmethod: {kind: lora, base: 32bit}\n"
        "data: {rows: 20000, max_length: 1024}\ntrain: {global_batch_size: 32}\n"
        "hardware: [{gpu: a100-80gb, count: 8, price: 14 USD/h, host: {ram: 200 GiB}}]\n"
    )
    found = estimate(load_job(path))
    said = [text for text in found.warnings if "as none is stated" in text]
    assert said
    assert said[0].endswith("a smaller one fits the device, but its host has too little")
    path.write_text(path.read_text() + "lock: {micro_batch_size: 1, sharding: ddp}\n")
    found = estimate(load_job(path))
    assert found.shortfall is not None
    assert found.shortfall.resource == "ram"
    (sharded,) = (change for change in found.relaxations if "zero3" in change.apply)
    assert sharded.short_of == "ram"
    assert 0 < sharded.required_bytes < 0.01 * sharded.available_bytes  # saved adapters


def test_what_a_host_cannot_buffer_is_short_of_shared_memory_or_ram(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: Qwen/Qwen2.5-7B\nmethod: lora\ndata: {rows: 20000, max_length: 1024}\n"
        "lock: {num_dataloader_workers: 4, micro_batch_size: 16}\n"
        "hardware:\n  - h100\n  - {gpu: a100-80gb, host: {shm: 1 MiB}}\n"
        "  - {gpu: l40s, host: {ram: 1 MiB, shm: 1 GiB}}\n"
    )
    found = compare([NamedJob("", load_job(path))]).parts[0].infeasible
    short = {miss.offer.device.name: miss for miss in found}
    assert short["a100-sxm4-80gb"].short_of == "shm"
    assert short["l40s"].short_of == "ram"
    for miss in short.values():
        assert miss.required_bytes is not None
        assert miss.available_bytes is not None
        assert miss.required_bytes > miss.available_bytes


def test_a_cheaper_machine_that_is_late_is_short_of_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: Qwen/Qwen2.5-7B\nmethod: lora\ndata: {rows: 20000, max_length: 1024}\n"
        "hardware: [{gpu: h100, price: 20 USD/h}, {gpu: a100-80gb, price: 0.10 USD/h}]\n"
        "limits: {deadline: 60min}\n"
    )
    answer = tune(load_job(path), Options(dry_run=True, fidelity="formula", trials=1))
    assert answer.best.offer.device.name == "h100-sxm"
    late = [miss for miss in answer.rejected.nearest if miss.short_of == "limit"]
    assert [miss.device for miss in late] == ["a100-sxm4-80gb"]


def test_a_ladder_without_rungs_is_no_obstacle(tmp_path: Path) -> None:
    """Eight devices are as many as a host holds, so there is no rung of more of them."""
    one = Edit(lambda question: question, "shorter", changes="quality")
    assert climbing((), (one,)) == (one,)
    assert climbing((one,), ()) == (one,)
    path = tmp_path / "own.yaml"
    path.write_text(
        "base_model: meta-llama/Llama-3.1-8B\ndatasets:\n  - path: own/rows\n    type: completion\n"
        "sequence_len: 500000\nmicro_batch_size: 1\ngradient_accumulation_steps: 1\n"
        "num_epochs: 1\noptimizer: adamw_torch_8bit\nlearning_rate: 2e-5\nbf16: true\n"
        "fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true\n"
    )
    job = load_job(path, gpus=["h100-sxm:8"], set_values={"data.rows": "10000"})
    answer = tune(job, Options(dry_run=True, fidelity="formula", trials=1))
    assert answer.best is None
    assert answer.rejected.shortfall is not None


def test_a_limit_above_the_saves_of_the_run_is_no_matter_of_the_disk(folder: Path) -> None:
    sets = {"micro_batch_size": "1", "save_total_limit": "1000000"}
    found = estimate(load_job(written(folder, gpu="h100"), set_values=sets))
    assert found.shortfall is None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("padding: max_length", "every row is padded to data.max_length 512"),
        ("padding: longest", "every row counts as data.max_length 512"),
        ("lengths: {p50: 10, p95: 20}", "one may reach data.max_length 512"),
        ("lengths: {p50: 10, p95: 20, max: 300}", "the stated data.lengths.max"),
    ],
)
def test_where_the_longest_row_comes_from_is_said(tmp_path: Path, data: str, words: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: meta-llama/Llama-3.1-8B\nmethod: full\n"
        f"data: {{rows: 100, max_length: 512, {data}}}\nhardware: t4\n"
    )
    job = load_job(path)
    bill = CostModel(job).price(enumerate_candidates(job, load_space("extended")).candidates)
    if not len(bill):
        job = load_job(path, set_values={"method.base": "32bit"})
        bill = CostModel(job).price(enumerate_candidates(job, load_space()).candidates)
    missing = shortfall_of(bill, 0)
    assert words in missing.longest_batch.origin


def test_the_instant_that_is_named_is_the_one_that_the_bill_counts(folder: Path) -> None:
    names = set()
    for length in ("64", "1024"):
        path = written(folder, gpu="h100", method="full")
        job = load_job(path, set_values={"data.max_length": length})
        bill = CostModel(job).price(enumerate_candidates(job, load_space("extended")).candidates)
        for index in np.linspace(0, len(bill) - 1, 15).astype(int).tolist():
            instant = peak_instant(bill, index)[0]
            names.add(instant)
            assert instant in INSTANTS  # every instant has words
            logits = bill.estimate(index).memory_bytes.logits
            assert (logits > 0) == instant.startswith("head")
    assert len(names) > 1


def test_an_evaluation_only_run_holds_no_optimizer(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: meta-llama/Llama-3.1-8B\nmethod: {kind: full}\ndata: {rows: 100, max_length: 512}\n"
        "train: none\nevaluation: {rows: 100}\nhardware: h100\n"
    )
    row = estimate(load_job(path)).row
    assert row.memory_bytes.optimizer == row.memory_bytes.gradients == 0
    assert row.memory_bytes.weights > 0


def test_more_of_the_same_device_costs_so_many_times_its_stated_price(folder: Path) -> None:
    job = load_job(written(folder, gpu="a100-40gb", method="full"))
    same = [
        change
        for change in relaxations(job, load_space())
        if change.device == job.offers[0].device.name and change.device_count > 1
    ]
    assert same
    for change in same:
        assert change.cost_usd / change.duration_s * 3600 == pytest.approx(change.device_count)


def test_one_candidate_is_enough_to_explain(folder: Path) -> None:
    job = load_job(written(folder, gpu="l4"))
    config = estimate(job).row.config.with_knobs(micro_batch_size=16, gradient_accumulation_steps=1)
    bill = CostModel(job).price(Candidates.of([(job.offers[0], config)]))
    missing = shortfall_of(bill, 0)
    assert missing.phase in {"forward", "backward"}


FULL = "model: meta-llama/Llama-3.1-8B\nmethod: full\ndata: {rows: 20000, max_length: 1024}\n"


def test_a_sharding_that_leaves_fp32_states_for_16_bit_ones_is_not_the_same_training(
    tmp_path: Path,
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(FULL + "hardware: [{gpu: a100-80gb, count: 2, price: 3 USD/h}]\n"
                    "lock: {sharding: zero2}\n")  # fmt: skip
    answer = tune(load_job(path), Options(dry_run=True, fidelity="formula", trials=1))
    found = {each.apply: each for each in answer.rejected.relaxations}
    moved = found["--set sharding=fsdp"]
    assert moved.class_ == "numeric"
    assert "16-bit weights and moments, not fp32 ones" in moved.change
    assert found["--allow offload"].class_ == "neutral"
    screen = recommendation_screen(recommendation_payload(answer))
    same, other = screen.split("What would fit, with other rounding, optimizer states or batches")
    assert "sharding fsdp" in other
    assert "sharding fsdp" not in same


def test_an_8_bit_optimizer_changes_the_numbers_of_the_training_and_is_told_so(
    tmp_path: Path,
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(FULL + "hardware: [{gpu: l40s, count: 1, price: 1 USD/h}]\n"
                    "software: {bitsandbytes: 0.48.0}\n")  # fmt: skip
    answer = tune(load_job(path), Options(dry_run=True, fidelity="formula", trials=1))
    eight = [each for each in answer.rejected.relaxations if each.apply == "--allow optimizer"]
    assert [each.class_ for each in eight] == ["numeric"]
    payload = recommendation_payload(answer)
    verbose = TUNE_REPORT.text(payload, width=100)
    told = verbose.index("With other rounding, optimizer states or batches")
    assert verbose.index("8bit (--allow optimizer)") > told


def test_the_states_of_full_fine_tuning_are_named_before_the_epochs(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(FULL + "hardware: [{gpu: h100, count: 8, price: 20 USD/h}]\n")
    answer = tune(load_job(path), Options(dry_run=True, fidelity="formula", trials=1))
    screen = recommendation_screen(recommendation_payload(answer))
    assert screen.index("method.states") < screen.index("train.epochs")


@pytest.mark.parametrize(
    ("gpu", "method", "order"),
    [
        ("rtx-3060", "{kind: lora}", ["nf4", "max_length"]),
        ("4xl40s", "{kind: full}", ["LoRA rank 16, not full", "QLoRA rank 16"]),
    ],
)
def test_the_mildest_change_of_the_contract_is_named_first_whatever_saves_most(
    tmp_path: Path, gpu: str, method: str, order: list[str]
) -> None:
    path = tmp_path / "job.yaml"
    model = "google/gemma-3-4b-it" if "lora" in method else "meta-llama/Llama-3.1-8B"
    length, mean = (1024, 300) if "lora" in method else (4096, 800)
    path.write_text(
        f"model: {model}\nmethod: {method}\ndata: {{rows: 50000, max_length: {length}, "
        f"lengths: {{mean: {mean}}}}}\ntrain: {{epochs: 2, global_batch_size: 32}}\n"
        f"hardware: [{{gpu: {gpu}, price: 1 USD/h}}]\n"
    )
    changes = relaxations(load_job(path), load_space())
    told = [each.change for each in changes if each.quality]
    places = [next(n for n, text in enumerate(told) if words in text) for words in order]
    assert places == sorted(places)
    assert places[0] == 0
