"""Domain objects as JSON payloads: plain values, base units, finite numbers, stable key order."""

from __future__ import annotations

import json
import math
import operator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from autotune.domain.answer.limits import odds
from autotune.domain.answer.recommendation import Decisive
from autotune.domain.config import KNOBS
from autotune.domain.outcome import Z90
from autotune.report.schema import (
    SCHEMA_VERSION,
    AssumedPayload,
    EstimatePayload,
    JobPayload,
    NearestPayload,
    NoisePayload,
    RecommendationPayload,
    Row,
    SearchPayload,
    SensitivityPayload,
    SpreadPayload,
    WorthProbePayload,
)
from autotune.report.sections.how_to_run import next_steps
from autotune.report.sections.limits import limits_payload, misses_payload
from autotune.report.sections.memory import relaxation_payload, shortfall_payload, traced_payload
from autotune.report.sections.probes import probed_payload
from autotune.report.sections.unknown_lengths import short_rows_payload
from autotune.report.sections.waterfall import journey_payload, waterfall_payload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.claims.feasibility import Claim
    from autotune.domain.answer.recommendation import (
        NoiseSeen,
        Recommendation,
        Relaxation,
        SearchRecord,
        Sensitivity,
        WorthProbe,
    )
    from autotune.domain.answer.shortfall import Shortfall
    from autotune.domain.config import Config
    from autotune.domain.job import Assumption, Job, Method
    from autotune.domain.outcome import Estimated, Infeasible, Measured, Spread


def dumps(payload: object) -> str:
    """A payload as JSON text. Raises ValueError on NaN or infinity, which JSON cannot hold."""
    return json.dumps(payload, indent=2, ensure_ascii=False, allow_nan=False)


def recommendation_payload(rec: Recommendation) -> RecommendationPayload:
    """The whole answer. Raises ValueError when a number in it is not finite."""
    payload: RecommendationPayload = {
        "schema_version": SCHEMA_VERSION,
        "job": job_payload(rec.job),
        "assumed": assumed_payload(rec.job.assumed),
        "best": row_payload(rec.best) if rec.best else None,
        "today": row_payload(rec.today) if rec.today else None,
        "alternatives": [row_payload(row) for row in rec.alternatives],
        "pareto": [row_payload(row) for row in rec.pareto],
        "lengths_known": bool(rec.job.lengths.known),
        "short_rows": short_rows_payload(rec.short_rows),
        "limits": limits_payload(rec.limits),
        "misses": misses_payload(rec.misses),
        "tie": bool(rec.tie),
        "ties": [_whole(place) for place in rec.ties],
        "narrowest": rec.narrowest,
        "reasons": _reasons(rec),
        "rejected": {
            "count": _whole(rec.rejected.count),
            "by_reason": {why: _whole(n) for why, n in rec.rejected.by_reason.items()},
            "nearest": [_nearest(miss) for miss in rec.rejected.nearest],
            "relaxations": [relaxation_payload(each) for each in rec.rejected.relaxations],
            "shortfall": shortfall_payload(rec.rejected.shortfall),
        },
        "search": _search(rec.search),
        "probed": probed_payload(rec.probed),
        "contradictions": list(rec.contradictions),
        "warnings": list(rec.warnings),
        "decisive": decisive(rec.warnings),
        "run_dir": rec.run_dir,
        "sensitivities": [_sensitivity(each) for each in rec.sensitivities],
        "worth_a_probe": [worth_a_probe_payload(each) for each in rec.worth_a_probe],
    }
    if rec.files:
        payload["files"] = list(rec.files)
        payload["other_formats"] = list(rec.other_formats)
    if rec.machines:
        payload["machines"] = [row_payload(row) for row in rec.machines]
    if rec.beyond:
        payload["beyond"] = [row_payload(row) for row in rec.beyond]
    if rec.journey is not None:
        payload["waterfall"] = waterfall_payload(rec.journey.waterfall)
        payload["journey"] = journey_payload(rec.journey)
    if rec.asked is not None:
        payload["asked"] = {"words": list(rec.asked.words), "folder": rec.asked.folder}
    if rec.writes_to is not None:
        payload["writes_to"] = rec.writes_to
    payload["next"] = next_steps(payload)
    return payload


def decisive(warnings: Sequence[str]) -> list[str]:
    """Those of the warnings that may change what the reader does, each once."""
    return list(dict.fromkeys(str(text) for text in warnings if isinstance(text, Decisive)))


def _reasons(rec: Recommendation) -> dict[str, str]:
    """In the order of the knobs, the user's own behind them."""
    names = (*KNOBS, *(rec.best.config.as_record() if rec.best else ()))
    return {name: rec.reasons[name] for name in dict.fromkeys(names) if name in rec.reasons}


def _sensitivity(each: Sensitivity) -> SensitivityPayload:
    return {
        "change": f"{each.key}={each.value}",
        "knob": each.key,
        "class": each.knob_class,
        "opens": each.opens,
        "key": each.key,
        "value": each.value,
        "duration_s": _maybe(each.duration_s, "sensitivities.duration_s"),
        "cost_usd": _maybe(each.cost_usd, "sensitivities.cost_usd"),
        "saved_s": _maybe(each.saved_s, "sensitivities.saved_s"),
        "saved_usd": _maybe(each.saved_usd, "sensitivities.saved_usd"),
        "memory_bytes": _real(each.memory_bytes, "sensitivities.memory_bytes"),
        "fits": bool(each.fits),
        "unmeasured": bool(each.unmeasured),
        "note": each.note,
        "basis": each.basis,
        "device": each.offer.device.name if each.offer else None,
        "device_count": _whole(each.offer.count) if each.offer else None,
        "config": _config(each.config) if each.config else None,
    }


def worth_a_probe_payload(each: WorthProbe) -> WorthProbePayload:
    """What may be better and nobody measured."""
    return {
        "change": each.change,
        "knob": each.knob,
        "expected_saving_s": _real(each.expected_saving_s, "worth_a_probe.expected_saving_s"),
        "expected_saving_usd": _real(each.expected_saving_usd, "worth_a_probe.expected_saving_usd"),
        "p10": _real(each.p10, "worth_a_probe.p10"),
        "p90": _real(each.p90, "worth_a_probe.p90"),
        "why": each.why,
    }


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
    payload: EstimatePayload = {
        "schema_version": SCHEMA_VERSION,
        "row": row_payload(row),
        "lengths_known": bool(job.lengths.known),
        "short_rows": None,
        "limits": limits_payload(odds(job.limits, row.duration_s, row.cost_usd)),
        "job": job_payload(job),
        "assumed": assumed_payload(job.assumed),
        "contradictions": list(contradictions),
        "warnings": list(warnings),
        "decisive": decisive(warnings),
    }
    if claim is not None:
        payload["claim"] = asdict(claim)
    missing = shortfall_payload(shortfall)
    if missing is not None:
        payload["shortfall"] = missing
        payload["relaxations"] = [relaxation_payload(each) for each in relaxations]
    return payload


def job_payload(job: Job) -> JobPayload:
    """The contract, with the numbers that its arithmetic needs."""
    return {
        "name": job.name,
        "steps": _whole(job.steps),
        "epochs": _real(job.epochs, "job.epochs"),
        "tokens": _whole(job.tokens),
        "global_batch_size": _whole(job.global_batch_size),
        "model": job.model.name,
        "method": describe_method(job.method),
        "rows": _whole(job.rows),
        "max_length": _whole(job.max_length),
        "mean_length": _real(job.lengths.mean, "job.mean_length"),
        "lengths_known": bool(job.lengths.known),
        "lengths_basis": job.lengths.basis,
        "tokens_interval": _tokens_interval(job),
        "padding": job.padding,
        "offers": len(job.offers),
        "limits": {
            "deadline_s": _maybe(job.limits.deadline_s, "job.limits.deadline_s"),
            "budget_usd": _maybe(job.limits.budget_usd, "job.limits.budget_usd"),
            "max_session_s": _maybe(job.limits.max_session_s, "job.limits.max_session_s"),
            "confidence": _real(job.limits.confidence, "job.limits.confidence"),
        },
        "closed_knobs": [
            name
            for name, knob in KNOBS.items()
            if knob.opt_in and name not in job.allow and name not in job.lock
        ],
        "dataset": job.dataset_path,
    }


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
    return f"{name} rank {method.rank} on {', '.join(method.targets)}; base {method.base}"


def assumed_payload(assumed: Sequence[Assumption]) -> list[AssumedPayload]:
    """What nobody stated."""
    return [{"key": item.key, "value": item.value, "why": item.why} for item in assumed]


def row_payload(row: Estimated) -> Row:
    """One candidate's bill; the parts of time and memory sum to their totals."""
    memory = {name: _real(v, f"memory_bytes.{name}") for name, v in _memory(row).items()}
    return {
        "device": row.offer.device.name,
        "device_count": _whole(row.offer.count),
        "instance": row.offer.instance or None,
        "usd_per_hour": _real(row.offer.usd_per_hour, "usd_per_hour"),
        "price_as_of": row.offer.price_as_of,
        "price_source": row.offer.price_source,
        "price_age_days": row.offer.price_age_days,
        "price_marks": list(row.offer.price_marks),
        "price_scaled_from": row.offer.price_scaled_from or None,
        "spot": bool(row.offer.spot),
        "config": _config(row.config),
        "basis": row.basis,
        "caution": _real(row.caution, "caution"),
        "checkpoints": _whole(row.checkpoints),
        "checkpoint_bytes": _real(row.checkpoint_bytes, "checkpoint_bytes"),
        "duration_s": _spread(row.duration_s, "duration_s"),
        "cost_usd": _spread(row.cost_usd, "cost_usd"),
        "step_time_s": _real(row.step_time_s, "step_time_s"),
        "tokens_per_s": _real(row.tokens_per_s, "tokens_per_s"),
        "mfu": _real(row.mfu, "mfu"),
        "bound_by": row.bound_by,
        "time_s": {name: _real(v, f"time_s.{name}") for name, v in row.time_s.as_dict().items()},
        "memory_bytes": memory,
        "fits_probability": _real(row.fits_probability, "fits_probability"),
        "verdict": row.verdict,
        "reserved_bytes": _real(row.reserved_bytes, "reserved_bytes"),
        "crowded": bool(row.crowded),
        "disk_short_bytes": _real(row.disk_short_bytes, "disk_short_bytes"),
        "risk": row.risk,
        "usable_source": row.offer.memory_source,
        "measured": _measured(row.measured),
        "traced": traced_payload(row.traced),
    }


def _measured(measured: Measured | None) -> dict[str, Any] | None:
    """What a probe or a run measured of the row; None when nothing was."""
    if measured is None:
        return None
    names = ("step_time_s", "peak_allocated_bytes", "peak_reserved_bytes")
    figures = {name: _real(getattr(measured, name), f"measured.{name}") for name in names}
    predicted = _maybe(measured.predicted_step_s, "measured.predicted_step_s")
    return {
        **figures, "provenance": measured.provenance, "predicted_step_s": predicted,
        "disturbed": list(measured.disturbed),
    }  # fmt: skip


def _memory(row: Estimated) -> dict[str, float]:
    parts = row.memory_bytes
    return {**parts.as_dict(), "total": parts.total, "usable": row.usable_bytes}


def _nearest(miss: Infeasible) -> NearestPayload:
    return {
        "config": _config(miss.config),
        "device": miss.offer.device.name,
        "device_count": _whole(miss.offer.count),
        "required_bytes": _real(miss.required_bytes, "nearest.required_bytes"),
        "available_bytes": _real(miss.available_bytes, "nearest.available_bytes"),
        "short_of": miss.short_of,
        "reason": miss.reason,
    }


def _noise(noise: NoiseSeen) -> NoisePayload:
    """What other programs did to the measurements."""
    return {
        "load": None if noise.load is None else _real(noise.load, "search.noise.load"),
        "cores": None if noise.cores is None else _real(noise.cores, "search.noise.cores"),
        "windows": _whole(noise.windows),
        "contaminated_windows": _whole(noise.contaminated_windows),
        "disturbed_probes": _whole(noise.disturbed_probes),
        "repeat_spread": _real(noise.repeat_spread, "search.noise.repeat_spread"),
        "unnoticed": _real(noise.unnoticed, "search.noise.unnoticed"),
        "cannot_tell": noise.cannot_tell,
        "why": noise.why,
    }


def _search(search: SearchRecord) -> SearchPayload:
    found: SearchPayload = {
        "score": search.score,
        "sampler": search.sampler,
        "fidelity": search.fidelity,
        "space_size": _whole(search.space_size),
        "priced": _whole(search.priced),
        "traced": _whole(search.traced),
        "probes": _whole(search.probes),
        "probe_seconds": _real(search.probe_seconds, "search.probe_seconds"),
        "wall_seconds": _real(search.wall_seconds, "search.wall_seconds"),
        "stopped_because": search.stopped_because,
        "objective": search.objective,
        "probe_budget_s": _maybe(search.probe_budget_s, "search.probe_budget_s"),
    }
    if search.noise is not None:
        found["probe_runs"] = _whole(search.probe_runs)
        found["noise"] = _noise(search.noise)
    return found


def _config(config: Config) -> dict[str, int | bool | str]:
    """Every knob and the user's own; counts that came out of an array become plain integers."""
    return {name: _knob_value(value) for name, value in config.as_record().items()}


def _knob_value(value: Any) -> int | bool | str:  # noqa: ANN401 - arrays hand out their own scalars
    if isinstance(value, bool | str):
        return value
    return _whole(value)


def _spread(spread: Spread, what: str) -> SpreadPayload:
    return {
        "p10": _real(spread.p10, f"{what}.p10"),
        "p50": _real(spread.p50, f"{what}.p50"),
        "p90": _real(spread.p90, f"{what}.p90"),
    }


def _whole(value: Any) -> int:  # noqa: ANN401 - arrays hand out their own integers
    return operator.index(value)


def _maybe(value: float | None, what: str) -> float | None:
    return None if value is None else _real(value, what)


def _real(value: float, what: str) -> float:
    """A finite float. Anything else is a defect of the model and must not reach a reader."""
    number = float(value)
    if not math.isfinite(number):
        msg = f"{what} is {number}: every number of an answer must be finite"
        raise ValueError(msg)
    return number
