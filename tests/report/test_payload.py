from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autotune.domain.answer.recommendation import LongestBatch, Shortfall
from autotune.domain.config import KNOBS
from autotune.domain.errors import InputError
from autotune.domain.outcome import Spread
from autotune.report.payload import (
    dumps,
    estimate_payload,
    recommendation_payload,
    row_payload,
)
from autotune.report.recorded import recorded_payload

if TYPE_CHECKING:
    from samples import Samples

PROMISED = {
    "": "schema_version job assumed best today alternatives pareto misses tie rejected search "
    "warnings run_dir",
    "job": "name steps epochs tokens global_batch_size",
    "rejected": "count by_reason nearest",
    "search": "score sampler fidelity space_size priced traced probes probe_seconds wall_seconds "
    "stopped_because",
    "best": "device device_count usd_per_hour price_as_of price_source config basis checkpoints "
    "duration_s cost_usd step_time_s tokens_per_s mfu bound_by time_s memory_bytes "
    "fits_probability verdict measured",
}
TIME_PARTS = [
    "load", "prepare", "compile", "train", "data_wait", "evaluation", "checkpoint", "final_save",
    "lost_work",
]  # fmt: skip
MEMORY_PARTS = [
    "weights", "adapters", "gradients", "optimizer", "activations", "logits", "workspace",
    "context", "fragmentation",
]  # fmt: skip


@pytest.mark.parametrize("part", PROMISED)
def test_every_promised_key_is_there(samples: Samples, part: str) -> None:
    payload: dict[str, Any] = dict(recommendation_payload(samples.full))
    found = payload[part] if part else payload
    assert set(PROMISED[part].split()) <= set(found)


def test_the_parts_of_a_row_add_up(samples: Samples) -> None:
    best = recommendation_payload(samples.full)["best"]
    assert list(best["time_s"]) == TIME_PARTS
    assert sum(best["time_s"].values()) == pytest.approx(best["duration_s"]["p50"], rel=1e-12)
    assert list(best["memory_bytes"]) == [*MEMORY_PARTS, "total", "usable"]
    parts = sum(best["memory_bytes"][name] for name in MEMORY_PARTS)
    assert parts == pytest.approx(best["memory_bytes"]["total"], rel=1e-12)


def test_a_row_holds_every_knob_by_its_exact_name(samples: Samples) -> None:
    best = recommendation_payload(samples.full)["best"]
    assert list(best["config"]) == list(KNOBS)


def test_the_json_reads_back_as_what_was_written(samples: Samples) -> None:
    payload = recommendation_payload(samples.full)
    assert recorded_payload(json.loads(dumps(payload)), "here") == payload
    assert dumps(payload) == dumps(recommendation_payload(samples.full))


def test_nothing_feasible_is_a_null_best_with_misses_and_relaxations(samples: Samples) -> None:
    payload = recommendation_payload(samples.infeasible)
    assert payload["best"] is None
    assert [set(miss) for miss in payload["rejected"]["nearest"]] == [
        {"config", "device", "device_count", "short_of", "required_bytes", "available_bytes",
         "reason"}
    ] * 3  # fmt: skip
    assert [change["quality"] for change in payload["rejected"]["relaxations"]] == [False, True]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_never_reaches_a_reader(samples: Samples, bad: float) -> None:
    assert samples.full.best is not None
    broken = replace(samples.full.best, cost_usd=Spread(1.0, 2.0, bad))
    with pytest.raises(ValueError, match=r"cost_usd\.p90"):
        row_payload(broken)


def test_scalars_of_arrays_become_plain_numbers(samples: Samples) -> None:
    best = samples.full.best
    config = best.config.with_knobs(checkpoint_every_steps=np.int64(500))  # type: ignore[arg-type]
    row = row_payload(replace(best, config=config, checkpoints=np.int64(7)))  # type: ignore[arg-type]
    written = json.loads(dumps(row))
    assert written["config"]["checkpoint_every_steps"] == 500
    assert type(written["checkpoints"]) is int


def test_an_estimate_holds_row_job_assumed_and_warnings(samples: Samples) -> None:
    assert samples.full.best is not None
    payload = estimate_payload(samples.full.best, samples.full.job, ["one"])
    assert list(payload) == [
        "schema_version", "row", "lengths_known", "short_rows", "limits", "job", "assumed",
        "contradictions", "warnings", "decisive", "next",
    ]  # fmt: skip
    assert payload["warnings"] == ("one",)
    assert payload["job"]["steps"] == 225_000


def test_only_opt_in_knobs_that_nobody_opened_or_pinned_are_closed(samples: Samples) -> None:
    job = replace(samples.full.job, allow=("packing",), lock={"length_grouping": "off"})
    payload = recommendation_payload(replace(samples.full, job=job))
    closed = {name for name, knob in KNOBS.items() if knob.opt_in}
    assert {*payload["job"]["closed_knobs"]} == closed - {"packing", "length_grouping"}


def test_a_recorded_answer_is_taken_as_it_was(samples: Samples) -> None:
    for rec in (samples.full, samples.infeasible):
        payload = recommendation_payload(rec)
        assert recorded_payload(json.loads(dumps(payload)), "here") == payload


def test_a_record_from_before_the_odds_were_told_gets_them(samples: Samples) -> None:
    payload = recommendation_payload(samples.late)
    older = json.loads(dumps(payload))
    del older["limits"], older["job"]["limits"]["confidence"]
    assert recorded_payload(older, "here")["limits"] == payload["limits"]


def test_the_limits_are_told_with_their_odds(samples: Samples) -> None:
    deadline, budget = recommendation_payload(samples.late)["limits"]
    assert list(deadline) == ["limit", "value", "probability", "kept", "held"]
    assert (deadline["limit"], deadline["value"], deadline["kept"]) == ("deadline", 36_000.0, False)
    assert (budget["limit"], budget["value"]) == ("budget", 29.0)
    assert deadline["probability"] == pytest.approx(0.136, abs=0.001)
    assert recommendation_payload(samples.infeasible)["limits"] == ()


def test_why_nothing_fits_is_recorded_and_may_be_absent_in_older_records(samples: Samples) -> None:
    best, rejected = samples.full.best, samples.infeasible.rejected
    batch = LongestBatch(8, 1024, "stated")
    missing = Shortfall(
        device="h100-sxm", device_count=1, config=best.config.as_dict(), resource="memory",
        required_bytes=80e9, available_bytes=70e9, fits_probability=0.0,
        memory_bytes=best.memory_bytes.as_dict(), phase="backward",
        instant="the backward pass of the loss and its logits", longest_batch=batch,
        memory_source="",
    )  # fmt: skip
    rec = replace(samples.infeasible, rejected=replace(rejected, shortfall=missing))
    payload = json.loads(dumps(recommendation_payload(rec)))
    found = payload["rejected"]["shortfall"]
    assert found["over_bytes"] == 10e9
    assert found["longest_batch"]["tokens"] == 8192
    assert recorded_payload(payload, "here") == recommendation_payload(rec)
    del payload["rejected"]["shortfall"]
    assert recorded_payload(payload, "here").rejected.shortfall is None
    payload["rejected"]["shortfall"] = {"device": 3}
    with pytest.raises(InputError, match="shortfall"):
        recorded_payload(payload, "here")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("job", "steps"), "many"),
        (("best", "duration_s"), {"p10": 1.0, "p50": 2.0}),
        (("best", "config"), []),
        (("warnings",), [3]),
        (("rejected", "nearest"), {}),
    ],
)
def test_a_damaged_record_is_refused_with_the_place(
    samples: Samples, path: tuple[str, ...], value: object
) -> None:
    content = json.loads(dumps(recommendation_payload(samples.full)))
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(InputError, match=r"\.".join(path)):
        recorded_payload(content, "here")


def test_a_record_of_another_version_is_refused(samples: Samples) -> None:
    content = json.loads(dumps(recommendation_payload(samples.full)))
    content["schema_version"] = 99
    with pytest.raises(InputError, match="schema version 99"):
        recorded_payload(content, "here")
