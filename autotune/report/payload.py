"""Priced candidates, jobs and whole answers as the records that are JSON: base units, finite."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from autotune.domain.answer.contract import copied, plain
from autotune.domain.answer.limits import odds
from autotune.domain.answer.recommendation import Decisive
from autotune.domain.config import KNOBS
from autotune.domain.outcome import Z90
from autotune.domain.typed.machine import machine_label
from autotune.report.schema import (
    SCHEMA_VERSION,
    EstimatePayload,
    JobPayload,
    LimitsPayload,
    RecommendationPayload,
    Row,
    WhatIfPayload,
)
from autotune.report.sections.how_to_run import next_steps
from autotune.report.sections.memory import traced_payload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.claims.feasibility import Claim
    from autotune.domain.answer.recommendation import Recommendation, Relaxation, Shortfall
    from autotune.domain.device import Offer
    from autotune.domain.job import Job, Method
    from autotune.domain.observation import MachineEffect
    from autotune.domain.outcome import Estimated, Measured


def dumps(payload: object) -> str:
    """A payload as JSON text. Raises ValueError on NaN or infinity, which JSON cannot hold."""
    return json.dumps(plain(payload), indent=2, ensure_ascii=False, allow_nan=False)


def recommendation_payload(rec: Recommendation) -> RecommendationPayload:
    """The whole answer, with what to type next."""
    journey = rec.journey
    fall = journey.waterfall if journey else None
    payload = copied(
        RecommendationPayload,
        rec,
        schema_version=SCHEMA_VERSION,
        job=job_payload(rec.job),
        assumed=rec.job.assumed,
        best=row_payload(rec.best) if rec.best else None,
        today=row_payload(rec.today) if rec.today else None,
        alternatives=_rows(rec.alternatives),
        pareto=_rows(rec.pareto),
        lengths_known=rec.job.lengths.known,
        tie=bool(rec.tie),
        reasons=_reasons(rec),
        decisive=decisive(rec.warnings),
        other_formats=rec.other_formats if rec.files else None,
        machines=_rows(rec.machines),
        beyond=_rows(rec.beyond),
        waterfall=(fall.steps if fall else ()) if journey else None,
        journey=WhatIfPayload(options=journey.options, measured=journey.gaps) if journey else None,
    )
    return replace(payload, next=next_steps(payload))


def _rows(rows: Sequence[Estimated]) -> tuple[Row, ...]:
    return tuple(row_payload(row) for row in rows)


def decisive(warnings: Sequence[str]) -> tuple[str, ...]:
    """Those of the warnings that may change what the reader does, each once."""
    return tuple(dict.fromkeys(str(text) for text in warnings if isinstance(text, Decisive)))


def _reasons(rec: Recommendation) -> dict[str, str]:
    """In the order of the knobs, the user's own behind them."""
    names = (*KNOBS, *(rec.best.config.as_record() if rec.best else ()))
    return {name: rec.reasons[name] for name in dict.fromkeys(names) if name in rec.reasons}


def estimate_payload(
    row: Estimated,
    job: Job,
    warnings: Sequence[str] = (),
    claim: Claim | None = None,
    *,
    shortfall: Shortfall | None = None,
    relaxations: Sequence[Relaxation] = (),
    contradictions: Sequence[str] = (),
) -> EstimatePayload:
    """One priced configuration and the job it is for. `short_rows` is for the caller to add.

    A checked claim where one was stated; why it does not fit, and what would, where it does not.
    """
    return EstimatePayload(
        schema_version=SCHEMA_VERSION,
        row=row_payload(row),
        lengths_known=job.lengths.known,
        limits=odds(job.limits, row.duration_s, row.cost_usd),
        job=job_payload(job),
        assumed=job.assumed,
        contradictions=tuple(contradictions),
        warnings=tuple(warnings),
        decisive=decisive(warnings),
        claim=asdict(claim) if claim is not None else None,
        shortfall=shortfall,
        relaxations=tuple(relaxations) if shortfall else None,
    )


def job_payload(job: Job) -> JobPayload:
    """The contract, with the numbers that its arithmetic needs."""
    return copied(
        JobPayload,
        job,
        model=job.model.name,
        method=describe_method(job.method),
        mean_length=job.lengths.mean,
        lengths_known=bool(job.lengths.known),
        lengths_basis=job.lengths.basis,
        tokens_interval=_tokens_interval(job),
        offers=len(job.offers),
        limits=copied(LimitsPayload, job.limits),
        closed_knobs=tuple(
            name
            for name, knob in KNOBS.items()
            if knob.opt_in and name not in job.allow and name not in job.lock
        ),
        dataset=job.dataset_path,
        learned=tuple(_machine_said(own) for own in job.learned if own.component == "compute"),
    )


def _machine_said(own: MachineEffect) -> str:
    """What past runs say of a machine: "2x h100-nvl: 1.20 times slower, by 43 past runs"."""
    machine = machine_label(own.device, own.count, spot=False, instance=None, counted=True)
    factor = max(own.factor, 1.0 / own.factor)
    way = "faster" if own.factor < 1.0 else "slower"
    whose = "" if own.here else " of other machines"
    runs = f"{own.runs} past run{'s' * (own.runs != 1)}{whose}"
    return f"{machine}: {factor:.2f} times {way} than modelled, by {runs}"


def _tokens_interval(job: Job) -> dict[str, float] | None:
    """[tokens] of the run where they are a sample's or an estimate; None where they were counted.

    Formula: tokens x exp(-+ z90 x log_sd): a log-normal's 10th and 90th percentile.
    """
    if job.lengths.log_sd <= 0:
        return None
    spread = math.exp(Z90 * job.lengths.log_sd)
    return {"p10": job.tokens / spread, "p90": job.tokens * spread}


def describe_method(method: Method) -> str:
    """How the model is trained, in a few words: "LoRA rank 16 on q_proj, v_proj; base int8".

    DoRA is "DoRA", on an nf4 base "QDoRA"; rsLoRA is LoRA of the same name with its scale.
    """
    if not method.is_lora:
        return f"full fine-tuning; weights {method.base}"
    name = {"dora": "DoRA", "rslora": "rsLoRA"}.get(method.variant, "LoRA")
    name = "Q" + name if method.base == "nf4" else name
    whole = f" and all of {', '.join(method.modules_to_save)}" if method.modules_to_save else ""
    return f"{name} rank {method.rank} on {', '.join(method.targets)}{whole}; base {method.base}"


def row_payload(row: Estimated) -> Row:
    """One candidate's bill; the parts of time and memory sum to their totals."""
    parts = row.memory_bytes
    found = copied(
        Row,
        row,
        row.offer,
        **machine_of(row.offer),
        config=row.config.as_record(),
        time_s=row.time_s.as_dict(),
        memory_bytes={**parts.as_dict(), "total": parts.total, "usable": row.usable_bytes},
        crowded=bool(row.crowded),
        usable_source=row.offer.memory_source,
        measured=_measured(row.measured),
        traced=traced_payload(row.traced),
    )
    plain(found)  # raises where the model gave what is no number
    return found


def machine_of(offer: Offer) -> dict[str, Any]:
    """Which machine it is, as every payload has it."""
    return {
        "device": offer.device.name,
        "device_count": offer.count,
        "instance": offer.instance or None,
        "price_scaled_from": offer.price_scaled_from or None,
        "spot": bool(offer.spot),
        **network_of(offer),
    }


def network_of(offer: Offer) -> dict[str, Any]:
    """How many machines, and what joins them; nothing of a single one."""
    network = offer.network
    return {} if network is None else {"nodes": network.nodes, "network": network.name}


def _measured(measured: Measured | None) -> dict[str, Any] | None:
    """What a probe or a run measured of the row; None when nothing was."""
    return None if measured is None else facts_of(
        measured, "step_time_s", "peak_allocated_bytes", "peak_reserved_bytes", "provenance",
        "predicted_step_s", "disturbed",
    )  # fmt: skip


def facts_of(source: object, *names: str) -> dict[str, Any]:
    """Attributes by their names."""
    return {name: getattr(source, name) for name in names}
