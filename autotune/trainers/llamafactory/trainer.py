"""LLaMA-Factory: what tells it from other trainers, and how it is started.

Source: the command line of llamafactory 0.9.5 (launcher.py); hparams of the tags 0.9.4 and 0.9.5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.trainers.contract import Trainer
from autotune.trainers.llamafactory.export import RUNS, write_file
from autotune.trainers.llamafactory.keys import spell
from autotune.trainers.llamafactory.read import read_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import KnobValue
    from autotune.domain.job import Job
    from autotune.trainers.contract import Changes, Export, Plan, Target
    from autotune.trainers.parsed import Parsed
    from autotune.trainers.versions import Version


class LlamaFactory(Trainer):
    """llamafactory.yaml and the command that starts it; a version after @ is LLaMA-Factory's."""

    name = "llamafactory"
    title = "LLaMA-Factory's YAML"
    file = "llamafactory.yaml"
    own_keys = frozenset({
        "finetuning_type", "cutoff_len", "stage", "template", "lora_rank", "lora_target",
        "quantization_bit", "dataset_dir", "flash_attn", "overwrite_cache", "pure_bf16",
        "disable_gradient_checkpointing", "neat_packing",
    })  # fmt: skip
    known = ((0, 9, 4), (0, 9, 5))
    launched = True
    process_per_device = "llamafactory-cli"
    runs_on = ("transformers",)  # it has a loss of its own, whatever its TRL

    def read(self, values: Mapping[str, Any], name: str) -> Parsed:
        """The job that the file states."""
        return read_file(values, name)

    def spell(self, knob: str, value: KnobValue, target: Target, /) -> Changes | str:
        """The keys that say it."""
        return spell(knob, value, target)

    def commands(self, plan: Plan, file: str, launcher: str = "") -> list[str]:
        """Its own launcher, or accelerate's where it shards by FSDP."""
        if plan.config.sharding == "fsdp":
            return [f"accelerate launch {launcher}-m llamafactory.launcher {file}"]
        return [f"llamafactory-cli train {file}"]

    def plan_versions(self, job: Job, version: Version | None) -> tuple[Version, Version | None]:
        """The newest transformers that LLaMA-Factory allows."""
        return RUNS[self.version_of(job, version)[:3]], job.software.trl

    def export(self, plan: Plan) -> Export:
        """The YAML and run.sh, and what the YAML cannot say."""
        return write_file(plan, self)
