"""Unsloth: what tells it from other trainers, and how it is started.

Source: unsloth 2026.10.9, models/loader.py and models/llama.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from autotune.trainers.contract import Trainer
from autotune.trainers.hf.keys import spell_argument
from autotune.trainers.unsloth.export import RUNS, write_file
from autotune.trainers.unsloth.read import read_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import KnobValue
    from autotune.domain.job import Job
    from autotune.trainers.contract import Changes, Export, Plan, Target
    from autotune.trainers.parsed import Parsed
    from autotune.trainers.versions import Version


class Unsloth(Trainer):
    """unsloth_train.py and run.sh; a version after @ is Unsloth's."""

    name = "unsloth"
    title = "Unsloth's calls"
    file = "unsloth_train.py"
    known = ((2026, 10), (2026, 10))
    resumes_with = "trainer.train(resume_from_checkpoint=True)"
    runs_on = ("transformers", "trl")
    software: ClassVar[Mapping[str, str]] = {"kernels": "unsloth"}

    def read(self, values: Mapping[str, Any], name: str) -> Parsed:
        """The job that the calls state; a base in 4 bits unless they say otherwise."""
        return read_file(values, name)

    def spell(self, knob: str, value: KnobValue, target: Target, /) -> Changes | str:
        """The arguments that say it; kernels are Unsloth's own."""
        if knob in {"kernels", "offload"} and value != "none":
            return "it has its own way"
        return spell_argument(knob, value, target)

    def commands(self, plan: Plan, file: str, launcher: str = "") -> list[str]:  # noqa: ARG002 - it runs on one device
        """The script by itself."""
        return [f"python {file}"]

    def plan_versions(self, job: Job, version: Version | None) -> tuple[Version, Version | None]:
        """The newest transformers and trl that Unsloth allows."""
        self.version_of(job, version)
        return RUNS

    def export(self, plan: Plan) -> Export:
        """The script and run.sh, and what Unsloth does otherwise."""
        return write_file(plan, self)
