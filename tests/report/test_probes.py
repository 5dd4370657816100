"""What an answer says of the probes it rests on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.domain.answer.recommendation import ProbedRun
from autotune.report.payload import dumps, recommendation_payload
from autotune.report.sections.answer import TUNE_REPORT

if TYPE_CHECKING:
    from samples import Samples


def test_every_probe_has_a_line_with_what_was_predicted_and_measured(samples: Samples) -> None:
    best = samples.full.best
    assert best is not None
    slower = best.config.with_knobs(activation_checkpointing="full")
    runs = (
        ProbedRun(best.config, "ok", "search", reused=False, predicted_step_s=0.5,
                  step_time_s=1.0, memory_bytes=2.0**30, wall_s=9.0),
        ProbedRun(best.config, "ok", "confirm", reused=True, predicted_step_s=0.5,
                  step_time_s=1.0, memory_bytes=2.0**30, wall_s=9.0),
        ProbedRun(slower, "oom_device", "search", reused=False, predicted_step_s=0.5,
                  step_time_s=None, memory_bytes=None, wall_s=9.0),
    )  # fmt: skip
    payload = recommendation_payload(replace(samples.full, probed=runs))
    assert [run["status"] for run in payload["probed"]] == ["ok", "ok", "oom_device"]
    assert dumps(payload)
    text = TUNE_REPORT.text(payload, width=110)
    section = text[text.index("\nProbes\n") :].splitlines()[:7]
    assert "the pick" in section[3]
    assert "2.00" in section[3]
    assert "run again, earlier study" in section[4]
    assert "oom_device" in section[5]


def test_an_answer_without_probes_has_no_such_section(samples: Samples) -> None:
    payload = recommendation_payload(samples.full)
    assert payload["probed"] == ()
    assert "\nProbes\n" not in TUNE_REPORT.text(payload)
