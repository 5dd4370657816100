"""litgpt: what tells it from other trainers, and how it is started.

Source: litgpt 0.5.13; the tags 0.5.0, 0.5.3, 0.5.9 and 0.5.13 (args.py and finetune/lora.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.trainers.contract import JOB_KEYS, Trainer
from autotune.trainers.litgpt.export import refuse_method, write_file
from autotune.trainers.litgpt.read import read_file, spell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import KnobValue
    from autotune.domain.job import Job
    from autotune.trainers.contract import Changes, Export, Plan, Target
    from autotune.trainers.parsed import Parsed
    from autotune.trainers.versions import Version


class LitGpt(Trainer):
    """litgpt.yaml and the command that starts it; a version after @ is litgpt's."""

    name = "litgpt"
    title = "litgpt's YAML"
    file = "litgpt.yaml"
    known = ((0, 5), (0, 5, 13))
    resumes_with = "resume: auto"
    logs_state = False

    def is_file(self, values: Mapping[str, Any]) -> bool:
        """A folder of converted weights, or the batch and the length inside `train`."""
        train = values.get("train")
        inside = isinstance(train, dict) and {"micro_batch_size", "max_seq_length"} & set(train)
        return not set(values) & JOB_KEYS and ("checkpoint_dir" in values or bool(inside))

    def read(self, values: Mapping[str, Any], name: str) -> Parsed:
        """The job that the file states."""
        return read_file(values, name)

    def spell(self, knob: str, value: KnobValue, target: Target, /) -> Changes | str:
        """The keys that say it; the accumulation follows from the total batch."""
        return spell(knob, value, target)

    def commands(self, plan: Plan, file: str, launcher: str = "") -> list[str]:  # noqa: ARG002 - it has one of its own
        """One command a method."""
        return [f"litgpt finetune_{'lora' if plan.job.method.is_lora else 'full'} --config {file}"]

    def plan_versions(self, job: Job, version: Version | None) -> tuple[Version, Version | None]:
        """The profile's, which litgpt does not use: it has model code of its own."""
        self.version_of(job, version)
        refuse_method(job)
        return job.software.transformers, job.software.trl

    def export(self, plan: Plan) -> Export:
        """The YAML and run.sh, and what the YAML cannot say."""
        return write_file(plan, self)
