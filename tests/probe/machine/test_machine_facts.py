"""`doctor --measure`: what is measured, what is kept of it, and what a price makes of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from builders import BRIEF

from autotune.app import doctor
from autotune.app.hardware.measuring import Measured, too_doubtful
from autotune.app.hardware.this_machine import with_facts
from autotune.app.job.load import load_job
from autotune.catalog.devices import cpu_device
from autotune.cli.application import run
from autotune.cost.time import compute, measured_rates
from autotune.domain.config import Config
from autotune.domain.device import Fact, MachineFacts
from autotune.domain.observation import MachineEffect
from autotune.domain.outcome import Z90
from autotune.evidence.learned import residuals as past
from autotune.pricing import Pricing
from autotune.probe.device import cpu
from autotune.probe.machine import measure as measuring
from autotune.probe.machine.kept import merged_facts, read, remember, store_of
from autotune.probe.machine.measure import disk_write, measure
from autotune.probe.request import Effort, request_for
from autotune.probe.runner import Place, Runner

if TYPE_CHECKING:
    from autotune.domain.job import Job

ROOT = Path(__file__).parents[3]
BUSY = ("other programs used 1.5 of 2 cores",)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "WRITTEN_BYTES", 4 * 2**20)
    monkeypatch.setattr(measuring, "SECONDS", 4.0)


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "installed_versions", dict)


def facts_of(*facts: Fact, on: str = "2026-11-20") -> MachineFacts:
    return MachineFacts(facts, on, (("torch", "2.13.0"),), 2, "/data")


def product(value: float, precision: str = "fp32", side: int = 1024, **more: Any) -> Fact:
    return Fact("matmul", value, 0.02, 10, precision, (1024, side, side), **more)


def of_the_processor(share: float = 0.5) -> MachineFacts:
    """A calm machine whose products run at a share of what the model assumes."""
    device = cpu_device()
    rate = share * device.fp32_flop_per_s * device.matmul_ceiling_fraction
    return facts_of(
        product(rate), Fact("elementwise", 20e9, 0.02, 10), Fact("issue_forward", 7e-6, 0.02, 10),
        Fact("issue_backward", 8e-6, 0.02, 10), Fact("disk_write", 300e6, 0.05, 3),
        Fact("loader_row", 20e-6, 0.02, 10), Fact("loader_token", 0.4e-6, 0.02, 10),
    )  # fmt: skip


def tiny() -> Job:
    return load_job(ROOT / "jobs" / "tiny_cpu.yaml")


def config(precision: str = "fp32") -> Config:
    return Config(
        micro_batch_size=8, gradient_accumulation_steps=1, checkpoint_every_steps=50,
        precision=precision, pin_memory=False,
    )  # fmt: skip


def step(job: Job, precision: str = "fp32") -> tuple[float, float]:
    """[s] of an optimizer step, and the factor of its 80 % range each way."""
    bill = Pricing(job).of([(job.offers[0], config(precision))])
    return float(bill.step_s[0]), math.exp(Z90 * bill.at("compute", "log_sd", 0))


@pytest.mark.slow
def test_measured_facts_bring_the_tiny_job_s_step_within_its_own_interval(tmp_path: Path) -> None:
    """All by really running. What a busy machine makes of it is said and not compared."""
    before = tiny()
    done = measure(cpu(), tmp_path)
    assert done.found.rates is not None, done.missing
    assert done.seconds > 0
    remember(cpu(), done.found)
    after = tiny()
    if set(too_doubtful(done)) - {"disk_write"}:  # a host may share its cores without a trace here
        return
    assert step(after)[1] < step(before)[1]
    effort = Effort(**BRIEF, longest=1, most=8, measured=6, least=3, seconds=4.0, patience_s=4.0,
                    loader=False, evaluation=False)  # fmt: skip
    native = ("fp32", "bf16") if cpu_device().bf16_flop_per_s else ("fp32",)
    for precision in native:
        asked = request_for(after, after.offers[0], config(precision), effort=effort)
        place = Place(cpu(), tmp_path / "probing", 240.0)
        record = Runner(place).run(asked, config(precision).as_dict())
        assert record.ok, record.message
        seconds, factor = step(after, precision)
        # One thread: its own seconds are what a step takes where nobody else wants the core.
        found = record.result["step"]
        own = float(found["cpu_s"] if record.disturbed else found["step_s"])
        if record.disturbed or done.disturbed:
            factor *= 1.5  # caches and cores that others shared while either was measured
        assert seconds / factor <= own <= seconds * factor, precision


def test_facts_of_this_processor_replace_what_was_assumed_and_are_named() -> None:
    before = tiny()
    path, _ = remember(cpu(), of_the_processor())
    after = tiny()
    assert step(after)[0] != step(before)[0]
    assert step(after)[1] < step(before)[1]
    (told,) = (item for item in after.assumed if item.key.endswith(".measured"))
    assert "2026-11-20" in told.why
    assert str(path) in told.why
    host = after.offers[0].host
    assert host.checkpoint_write_bytes_per_s == 300e6
    assert "checkpoint_write_bytes_per_s" not in host.assumed
    path.unlink()
    assert tiny().offers[0].device == before.offers[0].device


def test_past_runs_of_the_machine_and_its_rates_are_not_counted_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What past runs are off by holds against the catalogue's device, not the measured one."""

    def kept() -> Any:
        return SimpleNamespace(damage="", runs=["one"])

    def half_as_fast(*_: object) -> tuple[MachineEffect, ...]:
        return (MachineEffect("cpu", 1, "compute", 2.0, 0.5, 1, here=True),)

    bare = tiny()
    monkeypatch.setattr(past, "known_runs", kept)
    monkeypatch.setattr(past, "residuals", lambda *_: [])
    monkeypatch.setattr(past, "effects_on", half_as_fast)
    of_runs = learned_step(past.with_learned(bare, None))
    remember(cpu(), of_the_processor())
    assert of_runs != learned_step(bare)
    both = past.with_learned(load_job(ROOT / "jobs" / "tiny_cpu.yaml"), None)
    assert both.offers[0].device.rates is None
    assert learned_step(both) == pytest.approx(of_runs)
    assert any(item.key.endswith(".rates") for item in both.assumed)


def learned_step(job: Job) -> float:
    bill = Pricing.learned(job).of([(job.offers[0], config())])
    return bill.at("compute", "micro_step_s", 0)


def test_a_host_that_the_job_states_is_not_replaced() -> None:
    remember(cpu(), of_the_processor())
    job = load_job(
        ROOT / "jobs" / "tiny_cpu.yaml",
        set_values={"host.checkpoint_write": "25 MB/s"},
    )
    assert job.offers[0].host.checkpoint_write_bytes_per_s == 25e6


def test_a_rented_machine_of_another_device_takes_nothing() -> None:
    bare = load_job(ROOT / "jobs" / "h100_38h.yaml")
    remember(cpu(), of_the_processor())
    assert load_job(ROOT / "jobs" / "h100_38h.yaml").offers == bare.offers


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0, 2.0])
def test_a_step_follows_the_measured_products(share: float, lab_terms: Any) -> None:
    """Twice the measured rate halves the products' seconds, and no step beats what was measured."""
    one, other = lab_terms(share), lab_terms(2.0 * share)
    assert one["compute_s"] == pytest.approx(2.0 * other["compute_s"], rel=0.02)
    assert other["roofline_s"] <= one["roofline_s"] * 1.001


@pytest.fixture
def lab_terms() -> Any:
    job = tiny()

    def terms(share: float) -> dict[str, float]:
        own = Fact("attention", share * 1e11, 0.02, 5, "fp32", (8, 256, 16))
        offer = with_facts(job.offers[0], facts_of(*of_the_processor(share).facts, own))
        bill = Pricing(job).of([(offer, config())])
        return {name: bill.at("compute", name, 0) for name in ("compute_s", "micro_step_s")} | {
            "roofline_s": bill.at("compute", "roofline_s", 0)
        }

    return terms


def test_between_measured_sizes_the_gain_is_between_theirs() -> None:
    device = cpu_device()
    modelled = device.fp32_flop_per_s * device.matmul_ceiling_fraction
    rates = facts_of(
        product(0.25 * modelled, side=64), product(modelled, side=1024)
    ).rates  # fmt: skip
    assert rates is not None
    own = measured_rates.as_measured(device, rates)
    small, middle, large = (
        measured_rates.gain_of(own, "fp32", width) for width in (64.0, 256.0, 4096.0)
    )
    assert small == pytest.approx(0.25)
    assert middle == pytest.approx(0.5)
    assert large == pytest.approx(1.0)


def test_what_was_not_measured_stays_as_it_was() -> None:
    job = tiny()
    offer = with_facts(job.offers[0], facts_of(Fact("disk_write", 1e8, 0.05, 3)))
    assert offer.device == job.offers[0].device
    assert offer.host.loader is None


def test_a_doubtful_figure_is_kept_and_not_used() -> None:
    wild = replace(product(1e9), log_sd=1.5, disturbed=BUSY)
    remember(cpu(), facts_of(wild))
    assert tiny().offers[0].device.rates is None
    known, damage = read(store_of(cpu()))
    assert known.facts == (wild,)
    assert damage == ""


@pytest.mark.parametrize("disturbed", [(), BUSY])
def test_figures_that_prices_leave_out_are_named_whether_or_not_a_cause_was_seen(
    disturbed: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wild = replace(product(1e9), log_sd=1.5, disturbed=disturbed)
    done = measuring.Measurement(facts_of(wild, product(2e9)), (), disturbed, 1.0)
    monkeypatch.setattr(doctor, "measure_here", lambda *_: Measured("cpu", done, None, "", None))
    told = {each.name: each for each in doctor.examine_and_measure(tmp_path).findings}
    named = told["busy machine" if disturbed else "uneven figures"]
    assert "matrix products" in f"{named.value} {named.meaning}"
    assert "leave out the least certain" in named.meaning
    assert "measure again" in named.meaning
    calm = replace(done, found=facts_of(product(2e9)), disturbed=())
    monkeypatch.setattr(doctor, "measure_here", lambda *_: Measured("cpu", calm, None, "", None))
    told = {each.name: each for each in doctor.examine_and_measure(tmp_path).findings}
    assert not {"busy machine", "uneven figures"} & set(told)


def test_a_disk_that_is_too_uneven_is_in_no_block_for_a_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for spread, there in ((0.05, True), (2.0, False)):
        disk = Fact("disk_write", 3e8, spread, 3)
        done = measuring.Measurement(facts_of(disk), (), (), 1.0)
        told = Measured("cpu", done, None, "", None)
        monkeypatch.setattr(doctor, "measure_here", lambda *_, told=told: told)
        found = doctor.examine_and_measure(tmp_path)
        assert ("checkpoint_write: 300 MB/s" in found.job_blocks) is there
        assert any(each.name == "measured disk" for each in found.findings)


def test_a_calm_figure_is_not_replaced_by_a_disturbed_one() -> None:
    calm, loud = product(2e11), product(1e11, disturbed=BUSY)
    assert merged_facts([calm], [loud]) == (calm,)
    assert merged_facts([loud], [calm]) == (calm,)
    later = product(3e11)
    assert merged_facts([calm], [later]) == (later,)
    other = product(1e11, side=64)
    assert merged_facts([calm], [other]) == (calm, other)


def kept_with(**changes: object) -> str:
    entry = {"name": "matmul", "value": 1e9, "log_sd": 0.0, "samples": 1, "precision": "fp32",
             "shape": [1, 2, 3], "disturbed": []}  # fmt: skip
    return json.dumps({
        "facts": [{**entry, **changes}], "measured_on": "2026-11-20", "software": [], "threads": 1,
        "folder": "",
    })  # fmt: skip


DAMAGED = ["", "{", "[]", '{"facts": 3}', "null", kept_with(value=-1), kept_with(value="1e400"),
           kept_with(shape=[]), kept_with(name="rm"), kept_with(log_sd=-1)]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_facts_are_left_out_and_said(damage: str) -> None:
    path, _ = remember(cpu(), of_the_processor())
    path.write_text(damage)
    job = tiny()
    assert job.offers[0].device.rates is None
    assert any(i.value == "left out" and "is damaged" in i.why for i in job.assumed)


def test_one_damaged_fact_costs_no_other_and_is_counted_and_said() -> None:
    path, note = remember(cpu(), of_the_processor())
    assert note == ""
    content = json.loads(path.read_text())
    content["facts"][4]["value"] = "fast"  # the disk's
    path.write_text(json.dumps(content))
    job = tiny()
    assert job.offers[0].device.rates is not None
    assert "checkpoint_write_bytes_per_s" in job.offers[0].host.assumed
    assert any("1 of 7 facts cannot be read" in item.why for item in job.assumed)
    path, note = remember(cpu(), facts_of(product(1e9, side=64)))
    assert "1 of 7 facts cannot be read" in note
    assert "the 6 that can be read are used on" in note
    assert len(list(path.parent.glob(f"{path.name}.damaged-*"))) == 1
    known, damage = read(path)
    assert len(known.facts) == 7
    assert damage == ""


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.99])
def test_of_facts_whose_file_breaks_off_those_before_are_used(keep: float) -> None:
    path, _ = remember(cpu(), of_the_processor())
    content = path.read_text()
    path.write_text(content[: int(keep * len(content))])
    known, damage = read(path)
    assert known.facts
    assert "breaks off" in damage
    assert any("breaks off" in item.why for item in tiny().assumed)


def test_doctor_says_which_facts_are_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.app.doctor.WRITTEN_BYTES", 4 * 2**20)
    path, _ = remember(cpu(), of_the_processor())
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"facts": [*content["facts"], {"name": "rm"}]}))
    assert run(["doctor", "--folder", str(tmp_path)]) == 0
    assert "measured facts: damaged: 1 of 8 facts cannot be read" in capsys.readouterr().out
    path.write_text(json.dumps(content | {"measured_on": None, "software": 3}))
    assert run(["doctor", "--folder", str(tmp_path)]) == 0
    assert "when and how it was measured cannot be read" in capsys.readouterr().out


def test_no_fact_is_dropped_for_being_one_of_many() -> None:
    many = [product(1e9 + side, side=side) for side in range(1, 301)]
    path, _ = remember(cpu(), facts_of(*many))
    known, damage = read(path)
    assert (len(known.facts), damage) == (300, "")


@pytest.mark.usefixtures("without_torch")
def test_without_torch_the_disk_is_measured_and_the_exit_code_says_no_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "disk"
    assert run(["doctor", "--measure", "--folder", str(folder), "--format", "json"]) == 5
    printed = capsys.readouterr()
    found = json.loads(printed.out)["measured"]
    assert [fact["name"] for fact in found["facts"]] == ["disk_write"]
    assert {each["part"] for each in found["not_measured"]} >= {"matmul", "issue", "loader"}
    assert "torch is not installed" in printed.err
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("without_torch")
def test_a_folder_that_cannot_be_written_loses_the_disk_alone(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    done = measure(cpu(), file / "below")
    assert not done.found.facts
    assert any(m.part == "disk" and "cannot be written" in m.why for m in done.missing)


def test_no_room_on_the_disk_is_said_and_nothing_is_written(tmp_path: Path) -> None:
    found = disk_write(tmp_path, size=10**18)
    assert isinstance(found, str)
    assert "free" in found
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("without_torch")
def test_a_home_that_cannot_be_written_costs_the_keeping_and_not_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    file = tmp_path / "home-is-a-file"
    file.write_text("")
    monkeypatch.setenv("AUTOTUNE_HOME", str(file))
    code = run(["doctor", "--measure", "--folder", str(tmp_path / "f"), "--format", "json"])
    printed = capsys.readouterr()
    found = json.loads(printed.out)["measured"]
    assert code == 5
    assert found["kept"] is None
    assert [fact["name"] for fact in found["facts"]] == ["disk_write"]


def test_a_worker_that_breaks_keeps_what_it_had_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "worker.py"
    script.write_text(
        "import json, sys\n"
        "asked = json.load(open(sys.argv[1]))\n"
        "fact = dict(name='elementwise', value=2e10, log_sd=0.1, samples=3, precision='',\n"
        "            shape=[], disturbed=[])\n"
        "bad = {**fact, 'value': -1.0}\n"
        "json.dump(dict(schema_version=1, key=asked['key'], facts=[fact, bad],\n"
        "               not_measured=[dict(name='matmul', why='no room')],\n"
        "               parts=['elementwise'], threads=1), open(sys.argv[2], 'w'))\n"
        "raise SystemExit('the driver fell over')\n"
    )
    monkeypatch.setattr(measuring, "WORKER", (str(script),))
    done = measure(cpu(), tmp_path / "disk", seconds=1.0)
    assert [fact.name for fact in done.found.facts] == ["disk_write", "elementwise"]
    why = {each.part: each.why for each in done.missing}
    assert why["matmul"] == "no room"
    assert "the driver fell over" in why["loader"]


def test_throttling_and_foreign_work_on_a_gpu_make_every_figure_doubtful() -> None:
    told = measuring._throttling({"throttled_by": ["thermal (hardware)"], "busy_before": 0.4})
    assert any("slowed down" in why for why in told)
    assert any("busy 40%" in why for why in told)
    entry = {"name": "elementwise", "value": 1e12, "log_sd": 0.01, "samples": 9, "precision": "",
             "shape": [], "disturbed": []}  # fmt: skip
    (fact,), _ = measuring._read({"facts": [entry]}, told)
    assert fact.disturbed == told
    assert fact.log_sd > measuring.SLOWED_SD
    (calm,), _ = measuring._read({"facts": [entry]}, ())
    assert calm.log_sd == pytest.approx(0.01)


def test_doctor_says_whether_the_machine_was_measured_and_how_old_that_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.app.doctor.WRITTEN_BYTES", 4 * 2**20)
    assert run(["doctor", "--folder", str(tmp_path)]) == 0
    assert "measured facts: none" in capsys.readouterr().out
    remember(cpu(), replace(of_the_processor(), measured_on="2020-01-01"))
    assert run(["doctor", "--folder", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "measured facts: of 2020-01-01" in said
    assert "older than 180 days" in said


def test_compute_reads_the_rates_that_a_device_has() -> None:
    assert "offer.device" in compute.READS
