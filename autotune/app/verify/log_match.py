"""Is a log of this job's run, and of which of its configurations? What does not match is named."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from autotune.domain.config import Config
from autotune.domain.errors import InputError
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.domain.job import Job
    from autotune.domain.model import Model
    from autotune.evidence.log.run_log import RunLog

SAME_BATCH = 0.03  # rates and epochs are rounded, and an epoch's last batch may be short
SAME_VOCABULARY, PADDED_VOCABULARY = 0.01, 64
# How far the optimizer steps of packed rows may be from those that are counted, which follow from a
# mean length and from how full sequences are (`cost.batches.PACKING_FILL`). Assumption.
PACKED_STEPS = 0.25
_BYTES = {"32bit": 4.0, "16bit": 2.0, "int8": 1.0, "nf4": 0.5}  # of a weight, about


@dataclass(frozen=True, slots=True)
class Plan:
    """A configuration of a run's answer, and what it is there."""

    role: str  # pick, or the config in use today
    row: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Smoke:
    """A run of the job that was told to stop after another number of steps than the job has."""

    steps: int
    job_steps: int

    @property
    def note(self) -> str:
        """What such a run can tell and what it cannot."""
        share = self.steps / self.job_steps
        counts = f"{self.steps:,} steps, where the job has {self.job_steps:,}"
        if share >= 1.0:
            return f"a run of another length: {counts}. It shows how long a step takes"
        return (
            f"a short test: {counts} ({100 * share:.3g} %). It shows how long a step takes, not "
            "whether the job stays as fast, or needs more memory when its longest rows come"
        )


@dataclass(frozen=True, slots=True)
class Counted:
    """The optimizer steps that a configuration of a job has. packed: of rows laid end to end."""

    job: Job
    steps: int
    packed: bool = False

    @property
    def per_epoch(self) -> int:
        """Steps in which every row is seen once."""
        if self.packed:
            return max(1, round(self.steps / math.ceil(self.job.epochs)))
        return math.ceil(self.job.rows / self.job.global_batch_size)

    @property
    def slack(self) -> int:
        """The Trainer rounds an epoch's last step up; before 4.46 it rounded down."""
        rounded = math.ceil(self.job.epochs)
        return max(rounded, math.ceil(PACKED_STEPS * self.steps)) if self.packed else rounded


def check_same_job(counted: Counted, log: RunLog) -> Smoke | None:
    """Refuse a log of another job; what kind of smoke run it is, if it is one.

    Raises InputError that lists all that differs, and by how much.
    """
    job, smoke = counted.job, _smoke(counted, log)
    found = [
        *_model(job, log),
        *_method(job, log),
        *([] if smoke else _steps(counted, log)),
        *([] if smoke else _epochs(job, log)),
        *_batch(counted, log),
    ]
    if found:
        msg = f"{log.path} is of another job than {job.name}: {'; '.join(found)}"
        hint = "name the run that it belongs to: `autotune runs` lists them"
        raise InputError(msg, hint)
    return smoke


def _smoke(counted: Counted, log: RunLog) -> Smoke | None:
    """Whether `max_steps` cut the job's own data short, or went on with it."""
    steps = counted.steps
    told = told_to_stop(log, steps, counted.per_epoch, counted.slack)
    if told is None:
        return Smoke(log.max_steps or steps, steps) if _is_ours(counted.job, log) else None
    return Smoke(log.max_steps or steps, steps) if told else None


def told_to_stop(log: RunLog, steps: int, each: int, slack: int) -> bool | None:
    """Whether a run of other steps is of data with `each` steps an epoch; None: it does not say.

    False where it has as many steps as planned, give or take `slack`.
    """
    most = log.max_steps
    if most is None or abs(most - steps) <= slack:
        return False
    found = []
    if log.epochs is not None:
        found.append(abs(log.epochs - math.ceil(most / each)) <= (0 if most < each else 1))
    if log.epoch and log.steps_done:
        found.append(abs(log.steps_done / log.epoch - each) <= max(1.0, SAME_BATCH * each))
    return all(found) if found else None


def _is_ours(job: Job, log: RunLog) -> bool:
    """Whether a log without epochs says its model and its whole batch, both the job's."""
    micro, accumulation = log.micro_batch_size, log.gradient_accumulation_steps
    if not (log.model and micro and accumulation):
        return False
    return micro * accumulation * (log.gpus or 1) == job.global_batch_size


def _times(found: float, wanted: float) -> str:
    """By how much two sizes differ, such as " (0.5 times)"."""
    return f" ({found / wanted:.3g} times)" if wanted > 0 else ""


def _model(job: Job, log: RunLog) -> list[str]:
    model = job.model
    return [
        f"its model has {what} {found:,}, and {model.name} has {wanted:,}{_times(found, wanted)}"
        for what, found in log.model.items()
        if (wanted := getattr(model, what)) and abs(found - wanted) > _slack(what, model)
    ]


def _slack(what: str, model: Model) -> float:
    """Vocabularies are padded or grow by a few words; experts have widths of several kinds."""
    if what == "vocab_size":
        return max(SAME_VOCABULARY * model.vocab_size, PADDED_VOCABULARY)
    return math.inf if what == "intermediate_size" and model.is_moe else 0.0


def _method(job: Job, log: RunLog) -> list[str]:
    """Full or LoRA, its rank, and how the base is stored."""
    method, said = job.method, log.method
    kind = said.get("kind")
    if kind is not None and kind != method.kind:
        ours = f"LoRA of rank {method.rank}" if method.is_lora else "full"
        theirs = "full" if kind == "full" else f"LoRA of rank {said.get('rank', 'unknown')}"
        return [f"its method is {theirs}, and the job's is {ours}"]
    found = []
    rank = said.get("rank")
    if method.is_lora and rank is not None and rank != method.rank:
        much = _times(rank, method.rank)
        found.append(f"its LoRA rank is {rank}, and the job's is {method.rank}{much}")
    variant = said.get("variant")
    if method.is_lora and variant is not None and (variant == "dora") != method.is_dora:
        found.append(f"its adapters are {_named(variant)}, and the job's {_named(method.variant)}")
    base = said.get("base")
    if base is not None and base != method.base and not _on_another_machine(job, log):
        much = _times(_BYTES[base], _BYTES[method.base])
        found.append(
            f"its base is stored as {base}, and the job's as {method.base}{much[:-1]} the bytes)"
        )
    return found


def _named(variant: str) -> str:
    return {"dora": "DoRA", "rslora": "rsLoRA"}.get(variant, "plain LoRA")


def _on_another_machine(job: Job, log: RunLog) -> bool:
    """A smoke run on a processor, of a job for a card, stores its base as that processor can."""
    return log.gpu == "cpu" and all(offer.device.name != "cpu" for offer in job.offers)


def _steps(counted: Counted, log: RunLog) -> list[str]:
    steps, slack, most = counted.steps, counted.slack, log.max_steps
    if most is not None and abs(most - steps) > slack:
        much = _times(most, steps)
        return [f"max_steps is {most:,}, and the job has {steps:,} steps{much}{_per(counted, log)}"]
    if log.steps_done > steps + slack:
        return [f"it reaches step {log.steps_done:,}, and the job has {steps:,} steps"]
    return []


def _per(counted: Counted, log: RunLog) -> str:
    """The steps of an epoch, where the log says them and they are not the job's."""
    if not (log.epoch and log.steps_done):
        return ""
    seen, each = log.steps_done / log.epoch, counted.per_epoch
    if abs(seen - each) <= max(1.0, SAME_BATCH * each):
        return ""
    return f"; an epoch of it has {seen:,.4g} steps, and of the job {each:,}"


def _epochs(job: Job, log: RunLog) -> list[str]:
    if log.epochs is None or log.epochs == math.ceil(job.epochs - 1e-9):
        return []
    return [f"num_train_epochs is {log.epochs:,}, and the job has {job.epochs:g}"]


def _batch(counted: Counted, log: RunLog) -> list[str]:
    """The global batch, from the rates at the end or from how far the epochs have come.

    Of packed rows the epochs tell nothing: nobody counts how many are in a step.
    """
    job, batch = counted.job, counted.job.global_batch_size
    micro, accumulation = log.micro_batch_size, log.gradient_accumulation_steps
    if micro is not None and batch % micro and not (micro and accumulation):
        return [f"train_batch_size is {micro:,}, which does not divide the job's {batch:,}"]
    seen = log.samples_per_step
    if seen is None and log.epoch and log.steps_done and not counted.packed:
        seen = job.rows * log.epoch / log.steps_done
        per_epoch = log.steps_done / log.epoch
        if abs(per_epoch - counted.per_epoch) <= 1.0:
            return []
    if micro and accumulation:
        seen = float(micro * accumulation * (log.gpus or 1))
    if seen is not None and abs(seen / batch - 1.0) > SAME_BATCH:
        much = _times(seen, batch)
        return [f"its global batch is {seen:,.4g}, and the job's is {batch:,}{much}"]
    return []


def plan_of(plans: Sequence[Plan], log: RunLog) -> tuple[Plan, Config]:
    """The configuration that a log is of: the first whose knobs agree with it.

    Where none does, the first one at the log's own micro-batch and saves. Raises InputError when
    that micro-batch cannot make the global batch.
    """
    for plan in plans:
        config = Config.of(plan.row["config"])
        if differences(config, log) == {}:
            return plan, config
    config = Config.of(plans[0].row["config"])
    changed = differences(config, log)
    micro = changed.get("micro_batch_size")
    if micro is not None:
        whole = config.micro_batch_size * config.gradient_accumulation_steps
        if whole % micro:
            split = f"the {whole} rows of a step on each device"
            msg = f"{log.path} ran a micro-batch of {micro}, which does not divide {split}"
            raise InputError(msg, "name the run that it belongs to: `autotune runs` lists them")
        changed["gradient_accumulation_steps"] = whole // micro
    return plans[0], config.with_knobs(**changed)


def differences(config: Config, log: RunLog) -> dict[str, Any]:
    """Knobs that the log says otherwise."""
    stated = {
        **log.knobs,
        "micro_batch_size": log.micro_batch_size,
        "gradient_accumulation_steps": log.gradient_accumulation_steps,
        "checkpoint_every_steps": log.save_every_steps,
    }
    return {
        name: value
        for name, value in stated.items()
        if value is not None and getattr(config, name) != value
    }
