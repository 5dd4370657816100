"""What was measured before, and what it still says of a job on other hardware or versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.answer.recompute import CarriedObservation
from autotune.evidence.reference import reference_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from autotune.domain.job import Job
    from autotune.domain.observation import Observation

OTHER_TRAINING = {"model", "method.kind", "method.base"}
# Knobs that a measurement speaks of; closed forms decide no step.
_IGNORED = {"checkpoint_every_steps", "save_total_limit"}


def add_measured(spec: dict[str, Any], best: Mapping[str, Any], run: str) -> None:
    """What the run's probes measured of its pick, as evidence of the job."""
    measured = best["measured"]
    entry = {
        "measured": {
            "step_time": f"{float(measured['step_time_s']):.9f} s",
            "peak_memory": f"{float(measured['peak_allocated_bytes']):.0f} B",
            "memory_kind": "allocated",
        },
        "config": {k: v for k, v in best["config"].items() if k not in _IGNORED},
        "hardware": f"{best['device']}:{best['device_count']}",
        "note": f"probes of {run}"[:200],
    }
    evidence = spec.get("evidence")
    spec["evidence"] = [*(evidence if isinstance(evidence, list) else []), entry]


def forget_measured(spec: dict[str, Any], changed: Mapping[str, str]) -> bool:
    """Leave out what was measured of another model, method or base. True if anything was."""
    if not OTHER_TRAINING & set(changed):
        return False
    evidence = spec.get("evidence")
    entries = evidence if isinstance(evidence, list) else []
    found = [item for item in entries if isinstance(item, dict) and item.pop("measured", None)]
    spec["evidence"] = [item for item in entries if isinstance(item, dict) and item.get("today")]
    return bool(found)


def carried_observations(old: Job, new: Job) -> tuple[CarriedObservation, ...]:
    """Every measurement of the job, old and new: valid here, carried over, or left out."""
    return tuple(_carried(old, new))


def _carried(old: Job, new: Job) -> Iterator[CarriedObservation]:
    kept = {_key(observation) for observation in new.evidence}
    for observation in new.evidence:
        status, why = _status(observation, old, new)
        yield CarriedObservation(
            observation.id, observation.quantity, observation.value, status, why
        )
    for observation in old.evidence:
        if _key(observation) not in kept:
            why = "it speaks of another model, method or base"
            yield CarriedObservation(
                observation.id, observation.quantity, observation.value, "left out", why
            )


def _key(observation: Observation) -> tuple[str, float]:
    return observation.quantity, observation.value


def _status(observation: Observation, old: Job, new: Job) -> tuple[Any, str]:
    reference = reference_of(new, observation)
    if reference is None:
        return "left out", "its hardware or batch split is not known here"
    where = reference.offer.label
    if reference.elsewhere:
        if observation.quantity in {"memory_bytes", "oom", "checkpoint_save_s"}:
            return "left out", f"measured on {where}; another machine's memory and disk differ"
        return "carried over", f"measured on {where}: its efficiency is taken, its range widened"
    if old.software != new.software:
        return "carried over", f"measured on {where} with other versions"
    return "valid", f"measured on {where}"
