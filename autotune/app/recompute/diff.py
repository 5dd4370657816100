"""Two answers of one job side by side: what differs, why, and what stays.

And what was measured before, with what it still says of a job on other hardware or versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.app.whatif.waterfall import touched
from autotune.domain.answer.recompute import CarriedObservation, Difference, Unchanged
from autotune.domain.config import CLOSED_FORMS, DERIVED, KNOBS, Config, as_typed
from autotune.domain.outcome import COMPONENT_OF
from autotune.domain.typed.machine import recorded_label
from autotune.evidence.reference import reference_of
from autotune.report.payload import job_payload
from autotune.space.rules import violations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from autotune.domain.answer.recommendation import Recommendation
    from autotune.domain.job import Job
    from autotune.domain.observation import Observation

NEAR = 0.005  # relative: a part of the bill closer than this is as it was
LEAST_S, LEAST_BYTES, LEAST_USD = 0.5, 2.0**20, 0.005


def recommends_another(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> bool:
    """Whether another machine or configuration is recommended; closed forms follow by themselves.

    Fitting or not is a change as well.
    """
    if before is None or after is None:
        return before is not after
    names = ("device", "device_count", "spot")
    if any(before[name] != after[name] for name in names):
        return True
    if any((before.get(n) or "") != (after.get(n) or "") for n in ("instance", "nodes", "network")):
        return True
    return any(
        before["config"].get(name) != after["config"].get(name)
        for name in KNOBS
        if name not in DERIVED
    )


def differences_of(
    old: Job,
    new: Job,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
    answer: Recommendation,
) -> tuple[tuple[Difference, ...], tuple[Unchanged, ...]]:
    """All that changed, the asked for first, and all that did not."""
    found: list[Difference | Unchanged] = list(_job(old, new))
    if before is not None and after is not None:
        found += _machine(before, after, one=len(new.offers) == 1)
        found += _knobs(new, before, after, answer)
        columns = _moved_columns(before, after)
        found += _parts(before, after, columns, of_job=old_contract(old) != old_contract(new))
    else:
        word = {True: "nothing fits", False: "fits"}
        found.append(
            Difference(
                "answer", "verdict", word[before is None], word[after is None],
                "see what would make it fit" if after is None else "",
            )
            if (before is None) != (after is None)
            else Unchanged("answer", "verdict", "nothing fits")
        )  # fmt: skip
    changes = tuple(item for item in found if isinstance(item, Difference))
    return changes, tuple(item for item in found if isinstance(item, Unchanged))


def limits_changed(before: Sequence[str], after: Sequence[str]) -> tuple[Difference, ...]:
    """Limits that are missed now and were not, or the other way round."""
    if before == after:
        return ()
    old, new = (", ".join(names) or "none" for names in (before, after))
    return (Difference("limits missed", "verdict", old, new, "of the time or the price"),)


def old_contract(job: Job) -> tuple[Any, ...]:
    """What of a job moves its bill, machines and limits aside."""
    return (
        job.model, job.method, job.rows, job.lengths, job.padding, job.pretokenized, job.storage,
        job.steps, job.global_batch_size, job.evaluation, job.software,
    )  # fmt: skip


def _job(old: Job, new: Job) -> Iterator[Difference | Unchanged]:
    one, two = job_payload(old), job_payload(new)
    names = ("model", "method", "rows", "max_length", "padding", "epochs", "steps",
             "global_batch_size")  # fmt: skip
    for name in names:
        before, after = (_plain(payload[name]) for payload in (one, two))
        if before == after:
            yield Unchanged(name, "job", after)
            continue
        whose = "follows from the rows, epochs and global batch" if name == "steps" else "asked"
        if name == "global_batch_size":
            whose = "asked: your decision, because it changes what is learned"
        yield Difference(name, "job", before, after, whose)
    if old.software == new.software:
        yield Unchanged("software", "software", new.software.name)
    else:
        yield Difference(
            "software", "software", _versions(old), _versions(new), "asked, or a newer profile"
        )


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _versions(job: Job) -> str:
    software = job.software
    parts = {
        name: getattr(software, name)
        for name in ("torch", "transformers", "peft", "trl", "flash_attn", "bitsandbytes")
    }
    return ", ".join(
        f"{name} {'.'.join(map(str, version))}" for name, version in parts.items() if version
    )


def _machine(
    before: Mapping[str, Any], after: Mapping[str, Any], *, one: bool
) -> Iterator[Difference | Unchanged]:
    there, here = (recorded_label(row, counted=True) for row in (before, after))
    if there == here:
        yield Unchanged("machine", "machine", here)
    else:
        why = "the only machine named" if one else "the best of the machines named"
        yield Difference("machine", "machine", there, here, why)
    old, new = float(before["usd_per_hour"]), float(after["usd_per_hour"])
    if old == new:
        yield Unchanged("usd_per_hour", "price", new)
    else:
        why = " -> ".join(dict.fromkeys((_priced(before), _priced(after))))
        yield Difference("usd_per_hour", "price", old, new, why)


def _priced(row: Mapping[str, Any]) -> str:
    """Whose price a row has, and of when; a user's own has no date."""
    source, dated = row["price_source"], row["price_as_of"]
    return f"{source} ({dated})" if dated else "stated" if source == "job file" else f"{source}"


def _knobs(
    new: Job, before: Mapping[str, Any], after: Mapping[str, Any], answer: Recommendation
) -> Iterator[Difference | Unchanged]:
    best = answer.best
    assert best is not None  # noqa: S101 - there is a row of it
    for name in KNOBS:
        old, value = before["config"].get(name), after["config"][name]
        if old == value:
            yield Unchanged(name, "knob", as_typed(value))
            continue
        why = answer.reasons.get(name, "")
        if old is not None and name not in DERIVED:
            knobs = {k: v for k, v in best.config.as_dict().items() if k != name}
            broken = violations(new, best.offer, Config(**{**knobs, name: old}))
            own = [w for w in broken if w not in violations(new, best.offer, best.config)]
            split = name == "micro_batch_size" and "micro" in " ".join(own)
            if own and not split:
                why = f"{as_typed(old)} is not valid there: {own[0]}"
        yield Difference(name, "knob", as_typed(old), as_typed(value), why)


def _moved_columns(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Columns of the cost model that are not as they were."""
    moved = [name for name in KNOBS if before["config"].get(name) != after["config"][name]]
    if before["device"] != after["device"]:
        moved += ["offer.device", "offer.host"]
    if before["device_count"] != after["device_count"]:
        moved.append("offer.count")
    if any(before.get(key) != after.get(key) for key in ("nodes", "network")):
        moved.append("offer.network")
    if before["usd_per_hour"] != after["usd_per_hour"]:
        moved.append("offer.price")
    return moved


def _parts(
    before: Mapping[str, Any], after: Mapping[str, Any], moved: list[str], *, of_job: bool
) -> Iterator[Difference | Unchanged]:
    for name, value in after["time_s"].items():
        old = float(before["time_s"].get(name, 0.0))
        readers = [column for column in moved if COMPONENT_OF[name] in touched([column])]
        why = _why(readers, of_job=of_job)
        yield _amount(f"time_s.{name}", "bill", old, float(value), LEAST_S, why)
    totals = (("duration_s", LEAST_S), ("cost_usd", LEAST_USD))
    for name, least in totals:
        yield _amount(name, "bill", before[name]["p50"], after[name]["p50"], least, "sum")
    for name, value in after["memory_bytes"].items():
        old = float(before["memory_bytes"].get(name, 0.0))
        why = _memory_why(name, before, after, of_job=of_job)
        yield _amount(f"memory_bytes.{name}", "memory", old, float(value), LEAST_BYTES, why)
    for name in ("verdict", "bound_by", "basis"):
        if before[name] == after[name]:
            yield Unchanged(name, "verdict", after[name])
        else:
            yield Difference(name, "verdict", before[name], after[name], "")


def _amount(
    what: str, kind: Any, old: float, new: float, least: float, why: str  # noqa: ANN401
) -> Difference | Unchanged:  # fmt: skip
    if abs(new - old) <= max(least, NEAR * abs(old)):
        return Unchanged(what, kind, new)
    return Difference(what, kind, old, new, why)


def _why(readers: list[str], *, of_job: bool) -> str:
    reasons = ["the job"] if of_job else []
    reasons += [name.removeprefix("offer.") for name in readers]
    return ", ".join(dict.fromkeys(reasons)) if reasons else "evidence or catalogue"


MEMORY_KNOBS = (
    "micro_batch_size", "precision", "activation_checkpointing", "attention", "compile",
    "optimizer", "sharding", "adapter_dtype", "packing", "length_grouping", "kernels",
    "offload",
)  # fmt: skip


def _memory_why(
    name: str, before: Mapping[str, Any], after: Mapping[str, Any], *, of_job: bool
) -> str:
    if name == "usable":
        return "the device"
    knobs = [k for k in MEMORY_KNOBS if before["config"].get(k) != after["config"][k]]
    if before["device"] != after["device"]:
        knobs.append("device")
    if before["basis"] != after["basis"]:
        knobs.append(f"basis {before['basis']} -> {after['basis']}")
    return _why(knobs, of_job=of_job)


# Knobs that a measurement speaks of; closed forms decide no step.


def add_measured(spec: dict[str, Any], best: Mapping[str, Any], run: str) -> None:
    """What the run's probes measured of its pick, as evidence of the job."""
    measured = best["measured"]
    entry = {
        "measured": {
            "step_time": f"{float(measured['step_time_s']):.9f} s",
            "peak_memory": f"{float(measured['peak_allocated_bytes']):.0f} B",
            "memory_kind": "allocated",
        },
        "config": {k: v for k, v in best["config"].items() if k not in CLOSED_FORMS},
        "hardware": recorded_label({**best, "spot": False, "instance": None}, counted=True),
        "note": f"probes of {run}"[:200],
    }
    evidence = spec.get("evidence")
    spec["evidence"] = [*(evidence if isinstance(evidence, list) else []), entry]


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
            return "left out", f"measured on {where}; memory and disk differ on another machine"
        if observation.quantity == "evaluation_s":
            return "left out", f"measured on {where}; evaluations differ on another machine"
        return "carried over", f"measured on {where}: efficiency is kept, the range is wider"
    if old.software != new.software:
        return "carried over", f"measured on {where} with other versions"
    return "valid", f"measured on {where}"
