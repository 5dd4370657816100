"""axolotl: what tells it from other trainers, and how it is started.

Source: the command line of axolotl 0.19.0 (cli/main.py); the tags 0.12.2 to 0.18.0 and the wheels
0.19.0 to 0.21.0 (utils/schemas).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.trainers.axolotl.export import RUNS, write_file
from autotune.trainers.axolotl.keys import spell
from autotune.trainers.axolotl.read import read_file
from autotune.trainers.contract import Trainer
from autotune.trainers.launch.run_script import prepares

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import KnobValue
    from autotune.domain.job import Job
    from autotune.trainers.contract import Changes, Export, Plan, Target
    from autotune.trainers.parsed import Parsed
    from autotune.trainers.versions import Version


class Axolotl(Trainer):
    """axolotl.yml and the commands that start it; a version after @ is axolotl's."""

    name = "axolotl"
    title = "axolotl's YAML"
    file = "axolotl.yml"
    own_keys = frozenset({
        "base_model", "micro_batch_size", "sequence_len", "adapter", "sample_packing", "datasets",
        "num_epochs", "val_set_size", "lora_target_linear", "pad_to_sequence_len",
        "dataset_prepared_path", "saves_per_epoch", "evals_per_epoch", "chat_template_jinja",
    })  # fmt: skip
    known = ((0, 12), (0, 21))
    resumes_with = "auto_resume_from_checkpoints: true"
    deepspeed_by_name = True
    process_per_device = "axolotl"
    runs_on = ("transformers", "trl")

    def read(self, values: Mapping[str, Any], name: str) -> Parsed:
        """The job that the file states."""
        return read_file(values, name)

    def spell(self, knob: str, value: KnobValue, target: Target, /) -> Changes | str:
        """The keys that say it."""
        return spell(knob, value, target)

    def commands(self, plan: Plan, file: str, launcher: str = "") -> list[str]:  # noqa: ARG002 - it starts its processes itself
        """Rows are tokenised first, without a GPU."""
        before = [f'CUDA_VISIBLE_DEVICES="" axolotl preprocess {file}'] if prepares(plan) else []
        return [*before, f"axolotl train {file}"]

    def plan_versions(self, job: Job, version: Version | None) -> tuple[Version, Version | None]:
        """The transformers that axolotl pins."""
        stated = self.version_of(job, version)
        return max(runs for first, runs in RUNS.items() if first <= stated), job.software.trl

    def export(self, plan: Plan) -> Export:
        """The YAML and run.sh, and what the YAML cannot say."""
        return write_file(plan, self, plan.trainer or self.known[1])
