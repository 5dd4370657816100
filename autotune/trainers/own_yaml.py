"""axolotl's and LLaMA-Factory's YAML written from nothing: the contract, then every knob.

Knobs are spelled as in `autotune.trainers.axolotl` and `llamafactory`, so that what is written is
read back as the same job and config.
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from autotune.domain.config import KNOBS
from autotune.domain.errors import InputError
from autotune.trainers.detect import DIALECTS
from autotune.trainers.dialect import Target
from autotune.trainers.format import Export
from autotune.trainers.rewrite import changed_values
from autotune.trainers.versions import check_range, show

if TYPE_CHECKING:
    from autotune.domain.job import Job
    from autotune.trainers.format import Plan
    from autotune.trainers.versions import Version

AXOLOTL: Version = (0, 19)
AXOLOTL_RUNS: Version = (5, 16, 1)  # transformers that axolotl 0.19.0 pins
LLAMAFACTORY: Version = (0, 9, 5)
LLAMAFACTORY_RUNS: Version = (5, 6, 0)  # newest transformers that llamafactory 0.9.5 allows
_SOME = "path/or/hub-name"


class AxolotlFile:
    """axolotl.yml and the command that starts it; a version after @ is axolotl's."""

    name = "axolotl"

    def plan_versions(self, job: Job, version: Version | None) -> tuple[Version, Version | None]:
        """The transformers that axolotl pins."""
        check_range(self.name, version or AXOLOTL, AXOLOTL)
        _refuse_evaluation_only(job, self.name)
        return AXOLOTL_RUNS, job.software.trl

    def write(self, plan: Plan) -> Export:
        """The YAML and run.sh, and what the YAML cannot say."""
        values, notes = _with_knobs(_axolotl_contract(plan), plan, self.name)
        command = "axolotl train axolotl.yml"
        return _exported(plan, "axolotl.yml", values, command, notes)


class LlamaFactoryFile:
    """llamafactory.yaml and the command that starts it; a version after @ is LLaMA-Factory's."""

    name = "llamafactory"

    def plan_versions(self, job: Job, version: Version | None) -> tuple[Version, Version | None]:
        """The newest transformers that LLaMA-Factory allows."""
        check_range(self.name, version or LLAMAFACTORY, LLAMAFACTORY)
        _refuse_evaluation_only(job, self.name)
        return LLAMAFACTORY_RUNS, job.software.trl

    def write(self, plan: Plan) -> Export:
        """The YAML and run.sh, and what the YAML cannot say."""
        values, notes = _with_knobs(_llamafactory_contract(plan), plan, self.name)
        notes.append("template: default must be the one of your model")
        command = "llamafactory-cli train llamafactory.yaml"
        return _exported(plan, "llamafactory.yaml", values, command, notes)


def _refuse_evaluation_only(job: Job, name: str) -> None:
    if job.steps == 0:
        msg = f"{name} has no run that only evaluates"
        raise InputError(msg, "export hf or trl")


def _length_of_run(plan: Plan, epochs: str) -> dict[str, Any]:
    """Epochs where they are whole steps of the job; max_steps where the job is stated in steps."""
    from autotune.trainers.arguments import counts_by_epochs

    if counts_by_epochs(plan):
        return {epochs: plan.job.epochs}
    return {"max_steps": plan.job.steps}


def _axolotl_contract(plan: Plan) -> dict[str, Any]:
    job, method = plan.job, plan.job.method
    values: dict[str, Any] = {
        "base_model": job.model.name,
        "datasets": [{"path": job.dataset_path or _SOME, "type": "completion"}],
        "output_dir": plan.out_dir,
        "sequence_len": job.max_length,
        "pad_to_sequence_len": job.padding == "max_length",
    }
    if method.is_lora:
        values |= {
            "adapter": "qlora" if method.base == "nf4" else "lora",
            "load_in_4bit": method.base == "nf4",
            "load_in_8bit": method.base == "int8",
            "lora_r": method.rank, "lora_alpha": _plain(method.alpha),
            "lora_dropout": method.dropout, "lora_target_modules": list(method.targets),
        }  # fmt: skip
    return {**values, **_length_of_run(plan, "num_epochs")}


def _llamafactory_contract(plan: Plan) -> dict[str, Any]:
    job, method = plan.job, plan.job.method
    values: dict[str, Any] = {
        "model_name_or_path": job.model.name, "stage": "sft", "do_train": True,
        "finetuning_type": method.kind, "dataset": _SOME, "template": "default",
        "output_dir": plan.out_dir, "cutoff_len": job.max_length,
    }  # fmt: skip
    if method.is_lora:
        values |= {
            "lora_rank": method.rank, "lora_alpha": _plain(method.alpha),
            "lora_dropout": method.dropout, "lora_target": ",".join(method.targets),
        }  # fmt: skip
    if plan.quantized:
        values |= {"quantization_bit": 4 if method.base == "nf4" else 8}
    return {**values, **_length_of_run(plan, "num_train_epochs")}


def _plain(number: float) -> float:
    return int(number) if number == int(number) else number


def _with_knobs(
    values: dict[str, Any], plan: Plan, trainer: str
) -> tuple[dict[str, Any], list[str]]:
    """The contract with every knob in it, and what the format has no word for."""
    dialect, notes = DIALECTS[trainer], []
    defaults = dialect.read(values, trainer).defaults
    for knob in KNOBS:
        value = getattr(plan.config, knob)
        target = Target(values, plan.config, plan.transformers, "yaml", plan.offer.count)
        if knob == "sharding" and value in {"none", "ddp"}:
            continue
        if knob == "adapter_dtype" and defaults.get(knob) == value:
            continue
        spelled = dialect.spell(knob, value, target)
        if isinstance(spelled, str):
            notes.append(f"{dialect.title} cannot say {knob} {value}: {spelled}")
        else:
            values = changed_values(values, spelled)
    return values, notes


def _exported(
    plan: Plan, name: str, values: dict[str, Any], command: str, notes: list[str]
) -> Export:
    job = plan.job
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items())
    visible = ",".join(str(index) for index in range(plan.offer.count))
    script = (
        "#!/usr/bin/env bash\n"
        f"# global batch {job.global_batch_size} = micro {plan.config.micro_batch_size} x "
        f"accumulation {plan.config.gradient_accumulation_steps} x {plan.offer.count} device(s)\n"
        "set -euo pipefail\n"
        'cd "$(dirname "${BASH_SOURCE[0]}")"\n'
        f"export CUDA_VISIBLE_DEVICES=${{CUDA_VISIBLE_DEVICES:-{visible}}}\n"
        f"exec {shlex.join(command.split())}\n"
    )
    said = [
        f"the spelling is that of transformers {show(plan.transformers)}",
        "learning rate, schedule and the format of the data are yours to add",
    ]
    return Export({name: text, "run.sh": script}, tuple(said + notes))
