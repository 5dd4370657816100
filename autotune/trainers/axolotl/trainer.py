"""axolotl: what tells it from other trainers, how it is started, and axolotl.yml from nothing.

Source: the command line of axolotl 0.19.0 (cli/main.py); the tags 0.12.2 to 0.18.0 and the wheels
0.19.0 to 0.21.0 (utils/schemas); what it runs on: requirements.txt and pyproject.toml of its tags,
from 0.19.0 on the wheels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.config import ZERO_STAGE
from autotune.domain.errors import InputError
from autotune.trainers.axolotl.keys import OLD_ATTENTION, spell
from autotune.trainers.axolotl.read import read_file
from autotune.trainers.contract import Export, Trainer
from autotune.trainers.hf.adapter import is_pure_16bit, variant_keys
from autotune.trainers.hf.notes import trainer_notes
from autotune.trainers.hf.trl import LEARNING_RATE
from autotune.trainers.launch.run_script import prepares, trainer_sh
from autotune.trainers.versions import show
from autotune.trainers.yaml_file import (
    SOME,
    as_yaml,
    deepspeed_file,
    length_of_run,
    plain,
    refuse_wide_base,
    with_knobs,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import KnobValue
    from autotune.domain.job import Job
    from autotune.trainers.contract import Changes, Plan, Target
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


# The transformers that a release pins.
RUNS: dict[Version, Version] = {
    (0, 12): (4, 55, 2), (0, 13): (4, 57, 1), (0, 14): (5, 0, 0), (0, 15): (5, 3, 0),
    (0, 16): (5, 5, 0), (0, 17): (5, 9, 0), (0, 18): (5, 14, 1), (0, 19): (5, 16, 1),
    (0, 20): (5, 17, 0), (0, 21): (5, 20, 1),
}  # fmt: skip
ONE_ATTENTION: Version = (0, 17)  # attn_implementation rules; before, one switch a kernel


def write_file(plan: Plan, trainer: Trainer, version: Version) -> Export:
    """The YAML in the words of `version` and run.sh, and what the YAML cannot say."""
    refuse_wide_base(plan, trainer.name, trains_wide=plan.config.sharding == "fsdp")
    _refuse_sharded_states(plan)
    beside = {"sharding"} if plan.config.sharding in {"none", "ddp", *ZERO_STAGE} else set[str]()
    values, notes = with_knobs(_contract(plan), plan, trainer, beside=beside)
    if is_pure_16bit(plan):  # mixed precision would make fp32 of what is trained
        values |= {"bf16": False, "bfloat16": True}
    notes.append(
        f"learning_rate {LEARNING_RATE:g} is TRL's default: axolotl has none, and refuses to "
        "start without one"
    )
    _say_attention(values, plan, version)
    files = deepspeed_file(plan, values)
    if plan.may_be_interrupted:
        values["auto_resume_from_checkpoints"] = True
    files |= {
        trainer.file: as_yaml(values),
        "run.sh": trainer_sh(plan, trainer.commands(plan, trainer.file), [trainer.file]),
    }
    notes += trainer_notes(plan, trainer.name, evaluates=False, pads=True)
    return Export(files, tuple(notes))


def _refuse_sharded_states(plan: Plan) -> None:
    """Source: utils/schemas/validation.py of axolotl 0.19.0 and 0.21.0."""
    if plan.config.sharding == "fsdp" and plan.config.optimizer == "adamw_bnb_8bit":
        msg = "axolotl refuses adamw_bnb_8bit under FSDP2"
        raise InputError(msg, "--set optimizer=adamw_torch_fused, or --set sharding=zero2")


def _say_attention(values: dict[str, Any], plan: Plan, version: Version) -> None:
    """One switch a kernel, where the version has no key for it."""
    if version >= ONE_ATTENTION:
        return
    switches = {kernel: switch for switch, kernel in OLD_ATTENTION.items()}
    if plan.config.attention not in switches:
        msg = f"axolotl {show(version)} cannot say attention {plan.config.attention}"
        raise InputError(msg, f"{show(ONE_ATTENTION)} can, or take flash_attention_2")
    values[switches[values.pop("attn_implementation")]] = True


def _contract(plan: Plan) -> dict[str, Any]:
    job, method = plan.job, plan.job.method
    values: dict[str, Any] = {
        "base_model": plan.model,
        "datasets": [{"path": job.dataset_path or SOME, "type": "completion"}],
        "dataset_prepared_path": "last_run_prepared",
        "output_dir": plan.out_dir,
        "sequence_len": job.max_length,
        "pad_to_sequence_len": job.padding == "max_length",
        "learning_rate": LEARNING_RATE,
    }
    if method.is_lora:
        values |= {
            "adapter": "qlora" if method.base == "nf4" else "lora",
            "load_in_4bit": method.base == "nf4",
            "load_in_8bit": method.base == "int8",
            "lora_r": method.rank, "lora_alpha": plain(method.alpha),
            "lora_dropout": method.dropout, "lora_target_modules": list(method.targets),
            **variant_keys(method, "peft_"),
        }  # fmt: skip
    values |= length_of_run(plan, "num_epochs")
    if plan.config.precision == "fp32":
        values["tf32"] = False  # torch.compile would switch it on
    return values
