"""What today's run states of a numeric knob and the pick has otherwise: said in words.

The search may move a precision: the same mathematics, other rounding. Whoever chose it should hear
so, with what to type to keep it. So should whoever allowed packing: a step learns from more rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.answer.recommendation import Decisive
from autotune.domain.config import KNOBS, ZERO_STAGE
from autotune.domain.job import NOT_KEPT
from autotune.domain.objective import PAIRED
from autotune.domain.software import ZeroSettings
from autotune.domain.units import format_count

if TYPE_CHECKING:
    from autotune.domain.config import Config, KnobClass, KnobValue
    from autotune.domain.job import Assumption, Job
    from autotune.domain.outcome import Estimated

# AdamW in one kernel or in one for each operation: no optimizer's states or formula differ.
SAME = {"optimizer": frozenset({"adamw_torch", "adamw_torch_fused"})}


def class_of(name: str, before: object, after: object) -> KnobClass:
    """What moving a knob from one value to another does to the training."""
    if {before, after} <= SAME.get(name, frozenset()):
        return "neutral"
    return KNOBS[name].knob_class


def other_states(job: Job, before: object, after: object) -> str:
    """What another sharding trains its weights in, where that differs; empty where it does not.

    DeepSpeed keeps fp32 masters and moments of 16-bit weights that are trained; others do not.
    """
    method, zero = job.method, job.zero
    moved = before is not None and (before in ZERO_STAGE) != (after in ZERO_STAGE)
    narrow = max(zero.master_bytes, zero.moment_bytes) < ZeroSettings().master_bytes
    if not moved or method.is_lora or method.base != "16bit" or narrow:
        return ""
    wide = after in ZERO_STAGE
    return "fp32 masters and moments" if wide else "16-bit weights and moments, not fp32 ones"


def states_opened(job: Job, best: Estimated) -> str:
    """The same where `offload` brought DeepSpeed to a single device, which runs without it else."""
    alone = best.offer.count == 1
    return other_states(job, "none", best.config.sharding) if alone else ""


def opened_means(job: Job, best: Estimated) -> str:
    """What a knob does that is opened where nothing else fits: other states, or slower alone."""
    states = states_opened(job, best)
    return f"slower, with {states}" if states else "the same training, slower"


def packed_note(job: Job, best: Estimated) -> tuple[str, ...]:
    """Of a pick that packs rows as today's run does not: how few optimizer steps that leaves.

    And the global batch [rows] that keeps about as many, where the devices can split it.
    """
    packs = best.config.packing == "on" and (job.today is None or job.today.packing != "on")
    if not packs or not best.steps < job.steps:
        return ()
    told = f"packing: {format_count(best.steps)} steps, not {format_count(job.steps)}"
    batch = max(1, round(job.global_batch_size * best.steps / job.steps))
    batch -= batch % best.offer.count
    if 0 < batch < job.global_batch_size:
        steps = format_count(round(best.steps * job.global_batch_size / batch))
        told += f"; `--set train.global_batch_size={batch}`: about {steps}"
    return (Decisive(told),)


def stated_today(job: Job) -> dict[str, KnobValue]:
    """The knobs that today's run states, in a job file's evidence or in the trainer's own file."""
    if job.today is None:
        return {}
    names: set[str] = set(job.origin.knobs) if job.origin is not None else set()
    if job.origin is None:
        entries = job.stated_file.get("evidence") or []
        names = {name for entry in entries if entry.get("today") for name in entry["config"]}
    today = job.today.as_dict()
    return {name: today[name] for name in KNOBS if name in names}


def moved_by(job: Job, pick: Config) -> dict[str, KnobValue]:
    """Numeric knobs that today's run states and the pick has otherwise, as today has them."""
    after, spoken_for = pick.as_dict(), {*_asked(job), *_not_kept(job)}
    return {
        name: value
        for name, value in stated_today(job).items()
        if value != after[name]
        and class_of(name, value, after[name]) == "numeric"
        and name not in spoken_for
    }


def _asked(job: Job) -> set[str]:
    """Knobs that the user locks or opens otherwise than today's run has them."""
    return {*job.stated_lock, *job.allow}


def _not_kept(job: Job) -> dict[str, Assumption]:
    """What today's run states and no offer can run, by knob."""
    return {
        item.key.removeprefix("lock."): item for item in job.assumed
        if item.key.startswith("lock.") and item.value.endswith(NOT_KEPT)
    }  # fmt: skip


def uncounted_notes(job: Job) -> list[str]:
    """What the trainer's own file does and no formula here prices, the widest first."""
    found = job.origin.uncounted if job.origin is not None else ()
    widest = sorted(found, key=lambda each: -max(each.time_sd, each.memory_sd))
    notes: list[str] = [Decisive(f"{x.key} {x.value}: {x.why}") for x in widest]
    if job.objective in PAIRED:
        why = "no run of it was measured, and its range says so"
        notes.append(Decisive(f"priced as {job.objective}: {PAIRED[job.objective]}; {why}"))
    return notes + [
        Decisive(f"{item.key.rpartition(': ')[2]} {item.value} is {item.why}")
        for item in job.assumed
        if "offload_param" in item.key
    ]


def moved_notes(job: Job, pick: Config) -> list[str]:
    """A sentence for each: what changes, and how to keep it."""
    after = pick.as_dict()
    gone: list[str] = uncounted_notes(job) + [
        Decisive(f"today's {name} {item.value} ({item.why}); the pick has {after[name]}")
        for name, item in _not_kept(job).items()
    ]
    return gone + [
        Decisive(
            f"{name} {value} -> {after[name]}, rounded otherwise: `--set {name}={value}` keeps it"
        )
        for name, value in moved_by(job, pick).items()
    ]
