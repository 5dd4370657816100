"""A trainer's YAML written from nothing: the job's contract, then each knob in its words.

What is written is read back as the same job and config.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from autotune.domain.config import KNOBS, ZERO_STAGE
from autotune.domain.errors import InputError
from autotune.trainers.contract import Target
from autotune.trainers.hf.arguments import counts_by_epochs
from autotune.trainers.hf.launch import deepspeed_json
from autotune.trainers.syntax.rewrite import changed_values

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from autotune.domain.config import KnobValue
    from autotune.trainers.contract import Plan, Trainer

SOME = "path/or/hub-name"


def with_knobs(
    values: dict[str, Any],
    plan: Plan,
    trainer: Trainer,
    done: Mapping[str, KnobValue] | None = None,
    beside: Collection[str] = (),
) -> tuple[dict[str, Any], list[str]]:
    """The contract with every knob in it, and what the format has no word for.

    Args:
        values: the contract.
        plan: what will run.
        trainer: whose words they are.
        done: what the contract says already, or the trainer does unasked.
        beside: knobs that files beside the YAML say, or the number of processes.
    """
    as_is = {**trainer.read(values, trainer.name).defaults, **(done or {})}
    unsaid: dict[str, list[str]] = {}
    for knob in KNOBS:
        if knob in beside:
            continue
        value = getattr(plan.config, knob)
        target = Target(values, plan.config, plan.transformers, "yaml", plan.offer.count)
        spelled = trainer.spell(knob, value, target)
        if not isinstance(spelled, str):
            values = changed_values(values, spelled)
        elif as_is.get(knob) != value:
            unsaid.setdefault(spelled, []).append(f"{knob} {value}")
    notes = [
        f"{trainer.title} cannot say {', '.join(knobs)}: {why}" for why, knobs in unsaid.items()
    ]
    notes += [
        f"{trainer.title} was given no args.{name} {value}: add it if the trainer has it"
        for name, value in plan.config.arguments.items()
    ]
    return values, notes


def length_of_run(plan: Plan, epochs: str) -> dict[str, Any]:
    """Epochs where they are whole steps of the job; max_steps where the job is stated in steps."""
    if counts_by_epochs(plan):
        return {epochs: plan.job.epochs}
    return {"max_steps": plan.job.steps}


def deepspeed_file(plan: Plan, values: dict[str, Any]) -> dict[str, str]:
    """DeepSpeed's config beside the YAML, which names it; nothing where DeepSpeed does not run."""
    if plan.config.sharding not in ZERO_STAGE:
        return {}
    name = f"deepspeed_{plan.config.sharding}.json"
    values["deepspeed"] = name
    return {name: deepspeed_json(plan)}


def refuse_wide_base(plan: Plan, name: str, *, trains_wide: bool) -> None:
    """Raise InputError for 32-bit weights under 16-bit arithmetic, which the trainer cannot load.

    trains_wide: whether it keeps trained weights in fp32 by itself.
    """
    half = plan.config.precision in {"bf16", "fp16"}
    if plan.job.method.base != "32bit" or not half or (trains_wide and not plan.job.method.is_lora):
        return
    msg = f"{name} loads the base in the compute dtype, {plan.config.precision}: it cannot be 32bit"
    raise InputError(msg, "export hf or trl: how the base is stored is part of the job")


def plain(number: float) -> float:
    """16 instead of 16.0."""
    return int(number) if number == int(number) else number


def as_yaml(values: dict[str, Any]) -> str:
    """A key a line; values as JSON, which YAML 1.1 and 1.2 both read."""
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items())
