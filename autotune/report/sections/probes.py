"""The probes of an answer: what ran, what was predicted of it and what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.answer.contract import copied
from autotune.domain.units import format_bytes, format_seconds
from autotune.report.layout.blocks import Paragraph, Section, section, table
from autotune.report.phrases import differences
from autotune.report.schema import ProbedPayload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.domain.answer.recommendation import ProbedRun
    from autotune.report.schema import RecommendationPayload

NOT_MEASURED = "-"


def probed_payload(runs: Sequence[ProbedRun]) -> tuple[ProbedPayload, ...]:
    """Probes in the order in which they were made."""
    return tuple(copied(ProbedPayload, run, config=run.config.as_record()) for run in runs)


def probes_section(payload: RecommendationPayload) -> Section:
    """One line a probe; nothing for an answer without probes."""
    runs = payload.probed
    if not runs:
        return Section("Probes", ())
    best = payload.best
    pick = best.config if best else runs[0].config
    rows = (_row(run, pick) for run in runs)
    titles = ("config", ">predicted", ">measured", ">ratio", ">memory", "outcome")
    note = Paragraph("Seconds of an optimizer step; configs are told by what the pick does not.",
                     "quiet")  # fmt: skip
    return section("Probes", table(rows, *titles), note)


def _row(run: ProbedPayload, pick: dict[str, int | bool | str]) -> tuple[str, ...]:
    predicted, measured = run.predicted_step_s, run.step_time_s
    words = {"same settings": "the pick"}
    config = differences(run.config, pick)
    ratio = f"{measured / predicted:.2f}" if measured and predicted else NOT_MEASURED
    outcome = "run again" if run.role in {"confirm", "repeat"} else "ran"
    if run.status != "ok":
        outcome = run.status
    if run.disturbed:
        outcome += ", disturbed"
    if run.reused:
        outcome += ", earlier study"
    return (
        words.get(config, config),
        format_seconds(predicted) if predicted else NOT_MEASURED,
        format_seconds(measured) if measured else NOT_MEASURED,
        ratio,
        format_bytes(run.memory_bytes) if run.memory_bytes else NOT_MEASURED,
        outcome,
    )
