"""The plain Hugging Face Trainer: training_args.json, train.py, accelerate.yaml, run.sh."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from autotune.domain.answer.recommendation import Decisive
from autotune.domain.config import KNOBS
from autotune.trainers.contract import Export, Trainer
from autotune.trainers.hf.arguments import training_arguments
from autotune.trainers.hf.keys import spell_argument, spell_base
from autotune.trainers.hf.launch import accelerate_yaml
from autotune.trainers.hf.notes import shared_notes
from autotune.trainers.hf.read import read_arguments
from autotune.trainers.hf.recipes import (
    as_arguments,
    in_sections,
    is_recipe,
    said_by_default,
    unfolded,
)
from autotune.trainers.hf.script import prepare_py, train_py
from autotune.trainers.launch.run_script import input_files, prepares, run_sh
from autotune.trainers.versions import (
    ACTIVATION_CHECKPOINTING,
    KNOWN,
    check_installed,
    check_known,
    show,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import KnobValue
    from autotune.domain.job import Job
    from autotune.trainers.contract import Changes, Plan, Target
    from autotune.trainers.parsed import Parsed
    from autotune.trainers.versions import Version

_SCRIPT = "${SCRIPT:?set SCRIPT to your training script, which reads this file}"
LEARNING_RATE = 5e-5  # default of TrainingArguments, transformers 4.57 to 5.23


class HuggingFace(Trainer):
    """transformers.Trainer; a version after @ is the version of transformers."""

    name = "hf"
    title = "TrainingArguments"
    file = "training_args.json"
    known = KNOWN["transformers"]
    resumes_with = "resume_from_checkpoint"
    launched = True
    several_machines = True
    config_nearby = True
    stand_in = "hf"
    masks_prompt: ClassVar[bool] = False  # in rows of a prompt and a completion

    def is_file(self, values: Mapping[str, Any]) -> bool:
        """llama-recipes' flags, and arguments in a section, are read as the Trainer's as well."""
        return self.name == "hf" and (is_recipe(values) or in_sections(values))

    def read(self, values: Mapping[str, Any], name: str) -> Parsed:
        """The job that the arguments state, alone or beside those of TRL's ModelConfig."""
        if in_sections(values):
            parsed = read_arguments(unfolded(values), name, self.name)
            parsed.kept |= set(KNOBS)
            return parsed
        if not is_recipe(values) or self.name != "hf":
            return read_arguments(values, name, self.name)
        parsed = read_arguments(as_arguments(values), name, self.name)
        parsed.kept |= set(KNOBS)
        if said := said_by_default(values):
            parsed.note("no flag says", said, "llama-recipes' own defaults (llama-cookbook 0.0.5)")
        return parsed

    def spell(self, knob: str, value: KnobValue, target: Target, /) -> Changes | str:
        """The arguments that say it; Trainer has no packing."""
        if knob == "packing":
            return target.gone("packing") or "Trainer has no packing"
        return spell_argument(knob, value, target)

    def spell_base(self, target: Target, /) -> Changes | str:
        """The dtype of the arguments; a script that loads the model itself has to be changed."""
        return spell_base(target)

    def commands(self, plan: Plan, file: str, launcher: str = "") -> list[str]:  # noqa: ARG002 - the script is the user's
        """The user's script, which reads the file."""
        return [f'accelerate launch {launcher}"{_SCRIPT}" {file}']

    def plan_versions(self, job: Job, version: Version | None) -> tuple[Version, Version | None]:
        """The stated transformers version, or the software profile's."""
        if version:
            check_known("transformers", version, self.known)
        check_installed("transformers", version or job.software.transformers)
        return version or job.software.transformers, job.software.trl

    def export(self, plan: Plan) -> Export:
        """The files, and what Trainer cannot say."""
        files = self.scripts(plan, training_arguments(plan, LEARNING_RATE))
        return Export(files, tuple(shared_notes(plan, LEARNING_RATE) + _notes(plan)))

    def scripts(
        self, plan: Plan, arguments: dict[str, object], needs: tuple[str, ...] = ()
    ) -> dict[str, str]:
        """The arguments in their file, and the scripts around it. needs: packages of train.py."""
        files = {
            self.file_of(plan.job): json.dumps(arguments, indent=2) + "\n",
            "train.py": self.script(plan),
            "accelerate.yaml": accelerate_yaml(plan),
        }
        if prepares(plan):
            files["prepare.py"] = prepare_py(plan, mask_prompt=self.masks_prompt)
        return {**files, "run.sh": run_sh(plan, files, needs), **input_files(plan)}

    def file_of(self, _job: Job, /) -> str:
        """The file of the arguments."""
        return self.file

    def script(self, plan: Plan) -> str:
        """train.py."""
        return train_py(plan, f"{self.name}.py.txt")


def _notes(plan: Plan) -> list[str]:
    notes: list[str] = []
    if plan.config.packing == "on":
        notes.append(
            Decisive(
                "Trainer has no packing: exported without it, so steps, time and memory will"
                " differ; export to trl instead"
            )
        )
    if plan.config.offload == "activations" and plan.transformers < ACTIVATION_CHECKPOINTING:
        notes.append(
            Decisive(
                f"transformers {show(plan.transformers)} does not offload activations:"
                f" {show(ACTIVATION_CHECKPOINTING)} does, or export to trl"
            )
        )
    if plan.config.kernels == "chunked_loss":
        notes.append(
            Decisive(
                "Trainer's loss holds all logits, and kernels chunked_loss was priced without"
                " them: export to trl instead"
            )
        )
    if plan.job.software.loss == "chunked":
        notes.append(
            "the software profile's loss never holds all logits, but Trainer's does: expect more"
            " memory than predicted; export to trl instead",
        )
    return notes
