"""llamafactory.yaml written from nothing: the contract, then each knob.

Source: hparams of llamafactory 0.9.4 and 0.9.5; what it runs on: pyproject.toml of their tags.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.cost.time.data import MOST_PROCESSES
from autotune.domain.config import ZERO_STAGE
from autotune.domain.errors import InputError
from autotune.trainers.contract import Export
from autotune.trainers.hf.adapter import variant_keys
from autotune.trainers.hf.launch import accelerate_yaml
from autotune.trainers.hf.notes import trainer_notes
from autotune.trainers.launch.run_script import trainer_sh
from autotune.trainers.versions import JIT_CHECKPOINT
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
    from autotune.trainers.contract import Plan, Trainer
    from autotune.trainers.versions import Version

# The newest transformers that a release allows.
RUNS: dict[Version, Version] = {(0, 9, 4): (4, 57, 1), (0, 9, 5): (5, 6, 0)}
_LAUNCHER_FILE = "accelerate.yaml"


def write_file(plan: Plan, trainer: Trainer) -> Export:
    """The YAML, the launcher's config where it shards, run.sh, and what cannot be said."""
    refuse_wide_base(plan, trainer.name, trains_wide=True)
    if plan.config.precision == "fp8" and plan.job.method.base == "16bit":
        msg = "LLaMA-Factory trains fp32 weights beside fp8, and 16-bit ones were priced"
        raise InputError(msg, "export hf or trl, or take bf16")
    pure = (plan.config.precision, plan.config.adapter_dtype) == ("bf16", "bf16")
    beside = {"sharding", "adapter_dtype"} if pure else {"sharding"}  # pure_bf16 says both
    values, notes = with_knobs(_contract(plan), plan, trainer, beside=beside)
    _say_dtypes(plan, values)
    files, launcher = deepspeed_file(plan, values), ""
    if plan.config.sharding == "fsdp":
        files = {_LAUNCHER_FILE: accelerate_yaml(plan)}
        launcher = f"--config_file {_LAUNCHER_FILE} "
    if plan.offer.spot and plan.transformers >= JIT_CHECKPOINT:
        values["enable_jit_checkpoint"] = True
    files |= {
        trainer.file: as_yaml(values),
        "run.sh": trainer_sh(plan, trainer.commands(plan, trainer.file, launcher), [trainer.file]),
    }
    notes.append("template: default must be the one of your model")
    notes += trainer_notes(plan, trainer.name, evaluates=False, pads=False)
    return Export(files, tuple(notes))


def _say_dtypes(plan: Plan, values: dict[str, Any]) -> None:
    """Say what is trained in which dtype.

    Under bf16 LLaMA-Factory turns what is trained into fp32 unless pure_bf16 is set, which leaves
    DeepSpeed's bf16 engine off; without bf16 and fp16 it computes in the checkpoint's dtype unless
    infer_dtype is set.
    Source: llamafactory 0.9.5 model/adapter.py init_adapter, model/patcher.py patch_config.
    """
    config, method = plan.config, plan.job.method
    if config.precision in {"fp32", "tf32"}:
        values["infer_dtype"] = "float32"
    narrow = config.adapter_dtype == "bf16" if method.is_lora else method.base == "16bit"
    if config.precision != "bf16" or not narrow:
        return
    if config.sharding in ZERO_STAGE:  # its engine casts the model to bf16 and trains fp32 masters
        return
    values.pop("bf16", None)
    values["pure_bf16"] = True


def _contract(plan: Plan) -> dict[str, Any]:
    job, method = plan.job, plan.job.method
    values: dict[str, Any] = {
        "model_name_or_path": plan.model, "stage": "sft", "do_train": True,
        "finetuning_type": method.kind, "dataset": SOME, "template": "default",
        "output_dir": plan.out_dir, "cutoff_len": job.max_length,
        "preprocessing_num_workers": min(plan.offer.host.cores, MOST_PROCESSES),
    }  # fmt: skip
    if method.is_lora:
        values |= {
            "lora_rank": method.rank, "lora_alpha": plain(method.alpha),
            "lora_dropout": method.dropout, "lora_target": ",".join(method.targets),
            **variant_keys(method),
        }  # fmt: skip
    if plan.quantized:
        values |= {"quantization_bit": 4 if method.base == "nf4" else 8}
    values |= length_of_run(plan, "num_train_epochs")
    if plan.config.precision == "fp32":
        values["tf32"] = False  # torch.compile would switch it on
    return values
