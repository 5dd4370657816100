"""torchtune: what tells it from other trainers, and how it is started.

Its development stopped in July 2025: its file is read and patched, none is written.
Source: the command line of torchtune 0.6.1 (`tune run`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.trainers.contract import Trainer
from autotune.trainers.torchtune.read import read_file, spell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import KnobValue
    from autotune.trainers.contract import Changes, Plan, Target
    from autotune.trainers.parsed import Parsed


class Torchtune(Trainer):
    """A recipe's config; the model's component says what is trained and how."""

    name = "torchtune"
    title = "torchtune's YAML"
    file = ""
    known = ((0, 6, 1), (0, 6, 1))
    resumes_with = "resume_from_checkpoint: True"
    logs_state = False

    def is_file(self, values: Mapping[str, Any]) -> bool:
        """Its model is a component."""
        model = values.get("model")
        return isinstance(model, dict) and "_component_" in model

    def read(self, values: Mapping[str, Any], name: str) -> Parsed:
        """The job that the file states."""
        return read_file(values, name)

    def spell(self, knob: str, value: KnobValue, _: Target, /) -> Changes | str:
        """The keys that say it; there are few."""
        return spell(knob, value)

    def commands(self, plan: Plan, file: str, launcher: str = "") -> list[str]:  # noqa: ARG002 - it has one of its own
        """The recipe for the method and the number of devices."""
        kind, count = "lora" if plan.job.method.is_lora else "full", plan.offer.count
        recipe = f"{kind}_finetune_{'single_device' if count == 1 else 'distributed'}"
        several = f"--nproc_per_node {count} " if count > 1 else ""
        return [f"tune run {several}{recipe} --config {file}"]
