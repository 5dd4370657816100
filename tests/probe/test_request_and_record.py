"""Requests that measure the same have one key; records survive what happens to files."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from autotune.domain.errors import InputError
from autotune.domain.outcome import Failed, Infeasible, Measured
from autotune.probe.memo import Memo, Unsupported, signature
from autotune.probe.record import ProbeLog, ProbeRecord, config_of, observations, read_records
from autotune.probe.request import request_for, sampled_lengths
from autotune.probe.two_depth import KINDS, agreement, extrapolated
from bench.replay.recorded import Replay, outcome_of, replay_key

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.job import Job


def test_checkpoint_knobs_do_not_change_what_is_measured(
    job: Job, offer: Offer, config: Config
) -> None:
    other = config.with_knobs(checkpoint_every_steps=7, save_total_limit=5)
    assert request_for(job, offer, config)["key"] == request_for(job, offer, other)["key"]


@pytest.mark.parametrize(
    "changed",
    [{"micro_batch_size": 8}, {"precision": "bf16"}, {"attention": "eager"},
     {"num_dataloader_workers": 1}, {"compile": "default"}],
)  # fmt: skip
def test_every_other_knob_does(
    job: Job, offer: Offer, config: Config, changed: dict[str, Any]
) -> None:
    other = config.with_knobs(**changed)
    assert request_for(job, offer, config)["key"] != request_for(job, offer, other)["key"]


def test_accumulation_is_cut_to_what_a_measurement_needs(
    job: Job, offer: Offer, config: Config
) -> None:
    wide = replace(job, global_batch_size=1024)
    assert request_for(wide, offer, config)["gradient_accumulation_steps"] == 4
    assert request_for(job, offer, config)["gradient_accumulation_steps"] == 2


def test_sampled_rows_have_the_lengths_of_the_job_and_are_the_same_each_time(job: Job) -> None:
    found = sampled_lengths(job)
    assert found == sampled_lengths(job)
    assert statistics.fmean(found) == pytest.approx(job.lengths.mean, rel=0.01)
    assert max(found) <= job.lengths.maximum


def test_a_request_is_plain_json(request_body: dict[str, Any]) -> None:
    assert json.loads(json.dumps(request_body, allow_nan=False)) == request_body


@pytest.fixture
def good(run_fake: Callable[..., ProbeRecord]) -> ProbeRecord:
    return run_fake("good")


def test_more_accumulation_adds_micro_steps_and_no_optimizer(good: ProbeRecord) -> None:
    step = good.result["step"]
    each = (step["micro_s"] + step["data_s"]) / step["accumulation"]
    assert good.step_s(step["accumulation"]) == step["step_s"]
    assert good.step_s(10) - good.step_s(9) == pytest.approx(each)


def test_a_record_is_read_back_as_it_was_written(good: ProbeRecord, tmp_path: Path) -> None:
    log = ProbeLog(tmp_path / "probes.jsonl")
    log.append(good)
    assert read_records(log.path) == [good]


def test_a_torn_last_line_is_cut_and_the_rest_kept(good: ProbeRecord, tmp_path: Path) -> None:
    path = tmp_path / "probes.jsonl"
    path.write_bytes(good.line() + good.line()[:-20])
    log = ProbeLog(path)
    assert log.records == [good]
    log.append(good)
    assert read_records(path) == [good, good]


def test_a_damaged_line_is_an_error_with_its_number(good: ProbeRecord, tmp_path: Path) -> None:
    path = tmp_path / "probes.jsonl"
    path.write_bytes(good.line() + b"[1]\n")
    with pytest.raises(InputError, match="line 2"):
        read_records(path)


def test_a_probe_becomes_observations_of_each_quantity(good: ProbeRecord) -> None:
    found = {(o.quantity, o.kind): o.value for o in observations(good)}
    assert found["memory_bytes", "allocated"] == 1e9
    assert found["memory_bytes", "nvidia-smi"] == 1.5e9
    assert found["step_time_s", None] == pytest.approx(0.5)
    assert found["checkpoint_save_s", None] == 0.2


def test_an_outcome_follows_from_the_status(
    good: ProbeRecord, offer: Offer, config: Config
) -> None:
    def outcome(status: str) -> object:
        return outcome_of(offer, config, observations(replace(good, status=status)))

    assert isinstance(outcome("ok"), Measured)
    assert isinstance(outcome("oom_device"), Infeasible)
    assert outcome("timeout") is None
    assert observations(replace(good, status="oom_device"))[0].quantity == "oom"
    assert observations(replace(good, status="crash")) == []


def test_a_second_study_reuses_and_other_versions_or_devices_are_stale(
    good: ProbeRecord, tmp_path: Path
) -> None:
    shared = tmp_path / "shared.jsonl"
    first = Memo(None, shared, good.fingerprint)
    first.add(good)
    second = Memo(None, shared, good.fingerprint)
    found = second.find(good.key)
    assert found.reused
    assert Memo(None, shared, "another device").find(good.key) is None
    versions = {**good.result, "versions": {"torch": "0.0.1"}}
    first.add(replace(good, key="old", result=versions))
    third = Memo(None, shared, good.fingerprint)
    assert third.find("old") is None
    assert third.stale == 1


def test_probes_of_workers_elsewhere_are_of_one_device_unless_they_differ(
    good: ProbeRecord, tmp_path: Path
) -> None:
    own = tmp_path / "probes.jsonl"
    led = Memo(own, None, "")
    for key in ("one", "two"):
        led.add(replace(good, key=key))
    assert led.foreign == 0, "whoever leads has no such device, and knows none"
    led.add(replace(good, key="three", fingerprint="of another driver"))
    assert led.foreign == 1
    assert Memo(own, None, "").foreign == 1, "as after --resume"
    assert Memo(own, None, good.fingerprint).foreign == 1
    assert Memo(own, None, "of another driver").foreign == 2


def test_a_save_answers_for_every_candidate_whose_checkpoint_reads_the_same(
    good: ProbeRecord, offer: Offer, config: Config
) -> None:
    memo = Memo(None, None, good.fingerprint)
    memo.add(good)
    other = config.with_knobs(micro_batch_size=8, compile="default")
    assert memo.part("checkpoint", "checkpoint", other, offer) == 0.2
    bigger = config.with_knobs(adapter_dtype="bf16")
    assert memo.part("checkpoint", "checkpoint", bigger, offer) is None
    assert memo.part("evaluation", "evaluation", other, offer) is None


def test_a_record_from_before_a_knob_speaks_of_runs_without_it(
    offer: Offer, config: Config
) -> None:
    earlier = {n: v for n, v in config.as_dict().items() if n not in {"kernels", "offload"}}
    for component in ("compute", "memory"):
        assert signature(component, earlier, offer) == signature(component, config.as_dict(), offer)


def test_a_price_is_no_part_of_what_was_measured(offer: Offer, config: Config) -> None:
    dear = replace(offer, usd_per_hour=9.0)
    for component in ("startup", "compute", "memory"):
        assert signature(component, config.as_dict(), offer) == signature(
            component, config.as_dict(), dear
        )


def test_a_knob_value_that_broke_twice_alike_is_unsupported_and_not_slow(
    good: ProbeRecord, config: Config
) -> None:
    eager = config.with_knobs(attention="eager")
    broken = replace(
        good, status="crash", message="no kernel 0x7f12", attempts=2, config=eager.as_dict()
    )
    assert Unsupported([broken]).reason(eager) is None, "nothing has worked yet"
    found = Unsupported([good, broken]).reason(eager.with_knobs(micro_batch_size=8))
    assert found is not None
    assert "attention eager" in found
    assert Unsupported([good, broken]).reason(config) is None
    once = replace(broken, attempts=1)
    assert Unsupported([good, once]).reason(eager) is None
    assert Unsupported([good, once, replace(once, message="no kernel 0x99aa")]).reason(eager)


def test_of_several_values_that_may_have_broken_it_none_is_blamed_alone(
    good: ProbeRecord, config: Config
) -> None:
    knobs = {"attention": "eager", "activation_checkpointing": "full"}
    both = config.with_knobs(**knobs)
    broken = replace(good, status="crash", message="no", attempts=2, config=both.as_dict())
    known = Unsupported([good, broken])
    assert "attention eager, activation_checkpointing full" in (known.reason(both) or "")
    eager = config.with_knobs(attention="eager")
    checkpointing = config.with_knobs(activation_checkpointing="full")
    assert known.reason(eager) is None
    assert known.reason(checkpointing) is None
    known.learn(replace(good, config=checkpointing.as_dict()))
    assert "attention eager failed" in (known.reason(eager) or ""), "the other one works"
    assert known.reason(checkpointing) is None


@pytest.mark.parametrize(
    "knobs",
    [
        {"kernels": "chunked_loss"},
        {"offload": "activations", "activation_checkpointing": "full"},
        {"precision": "fp8"},
    ],
)
def test_what_no_probe_measures_is_passed_over_before_one_is_paid_for(
    config: Config, knobs: dict[str, str]
) -> None:
    reason = Unsupported([]).reason(config.with_knobs(**knobs))
    assert reason.startswith("unsupported: ")
    assert Unsupported([]).reason(config.with_knobs(kernels="liger")) is None


def test_levers_that_are_closed_leave_the_key_of_earlier_requests(
    job: Job, offer: Offer, config: Config
) -> None:
    plain = request_for(job, offer, config)
    assert not {"kernels", "offload"} & set(plain)
    assert request_for(job, offer, config.with_knobs(kernels="liger"))["key"] != plain["key"]


def test_two_depths_give_the_line_through_them_phase_by_phase(good: ProbeRecord) -> None:
    def at(layers: int) -> ProbeRecord:
        phases = {
            "micro": dict.fromkeys(KINDS, 5e9 + 1e8 * layers),
            "optimizer": dict.fromkeys(KINDS, 1e9 + 5e8 * layers),
        }
        memory = {**good.result["memory"], "phases": phases} | {
            f"{k}_bytes": max(p[k] for p in phases.values())
            for k in ("allocated", "reserved", "driver")
        }
        step = {**good.result["step"], "step_s": 0.3 + 0.05 * layers}
        return replace(
            good, request={**good.request, "num_layers": layers},
            result={**good.result, "memory": memory, "step": step},
        )  # fmt: skip

    found = extrapolated(at(2), at(4), 32)
    assert found.result["step"]["step_s"] == pytest.approx(0.3 + 0.05 * 32)
    assert found.result["memory"]["allocated_bytes"] == pytest.approx(1e9 + 5e8 * 32)
    assert found.result["extrapolated"] == {"depths": [2, 4], "num_layers": 32}
    assert all(abs(ratio - 1) < 1e-9 for ratio in agreement(found, at(32)).values())


def test_a_replay_answers_what_was_recorded_and_nothing_else(
    good: ProbeRecord, job: Job, offer: Offer, config: Config
) -> None:
    slower = replace(
        good, config=config.with_knobs(attention="eager").as_dict(),
        result={**good.result, "step": {**good.result["step"], "step_s": 0.75}},
    )  # fmt: skip
    replay = Replay(job, {
        (offer.label, replay_key(own)): outcome
        for record in (good, slower)
        if (outcome := outcome_of(offer, own := config_of(record), observations(record)))
    })  # fmt: skip
    answer = replay.measure(offer, config.with_knobs(checkpoint_every_steps=3))
    assert isinstance(answer, Measured)
    assert replay.best() == answer
    other = replay.measure(offer, config.with_knobs(attention="eager"))
    assert isinstance(other, Measured)
    assert replay.regret(other) == pytest.approx(0.5, rel=0.05)
    missing = replay.measure(offer, config.with_knobs(micro_batch_size=1))
    assert isinstance(missing, Failed)
