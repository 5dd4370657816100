"""What an answer says of the probes it rests on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.report.payload import dumps, recommendation_payload
from autotune.report.sections.answer import TUNE_REPORT
from tests.report.page_tree import run

if TYPE_CHECKING:
    from samples import Samples


def test_every_probe_has_a_line_with_what_was_predicted_and_measured(samples: Samples) -> None:
    best = samples.full.best
    slower = best.config.with_knobs(activation_checkpointing="full")
    runs = (
        run(best.config, 0.5, 1.0, wall_s=9.0),
        run(best.config, 0.5, 1.0, role="confirm", reused=True),
        run(slower, 0.5, None, status="oom_device", memory_bytes=None),
    )
    payload = recommendation_payload(replace(samples.full, probed=runs))
    assert [each["status"] for each in payload["probed"]] == ["ok", "ok", "oom_device"]
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
