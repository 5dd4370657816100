"""TRL's trainers: sft_config.json (or dpo_config.json, ...), train.py, accelerate.yaml, run.sh."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.cost.time.data import MOST_PROCESSES
from autotune.domain.config import FLASH
from autotune.domain.errors import InputError
from autotune.domain.objective import PAIRED
from autotune.trainers.contract import Export, Trainer
from autotune.trainers.hf.arguments import training_arguments
from autotune.trainers.hf.hf import HuggingFace
from autotune.trainers.hf.keys import spell_argument
from autotune.trainers.hf.notes import shared_notes
from autotune.trainers.hf.precision import weights_dtype
from autotune.trainers.hf.preferences import (
    TEMPLATE,
    TRAINERS,
    check_rows,
    pair_arguments,
    pair_notes,
    pair_words,
)
from autotune.trainers.hf.script import train_py
from autotune.trainers.versions import (
    ACTIVATION_CHECKPOINTING,
    KNOWN,
    TRL_CHUNKED_LOSS,
    check_installed,
    check_known,
    newer_note,
    show,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import KnobValue
    from autotune.domain.job import Job
    from autotune.trainers.contract import Changes, Plan, Target
    from autotune.trainers.versions import Version

LEARNING_RATE = 2e-5  # default of SFTConfig, trl 1.0 to 1.16


class Trl(HuggingFace):
    """trl.SFTTrainer; a version after @ is TRL's, transformers is the software profile's."""

    name = "trl"
    title = "SFTConfig"
    file = "sft_config.json"
    known = KNOWN["trl"]
    stand_in = "trl"
    masks_prompt = True
    objectives = frozenset({*Trainer.objectives, *PAIRED})
    software: ClassVar[Mapping[str, str]] = {"trainer": "trl"}

    def spell(self, knob: str, value: KnobValue, target: Target, /) -> Changes | str:
        """The arguments that say it."""
        if (
            knob == "attention"
            and target.syntax in {"json", "yaml"}
            and not target.has("attn_implementation")
        ):
            return {"model_init_kwargs.attn_implementation": value}
        if (knob, value) == ("kernels", "chunked_loss"):
            return "from TRL 1.9 on its loss is chunked without an argument"
        old = target.transformers < ACTIVATION_CHECKPOINTING
        if (knob, value) == ("offload", "activations") and old:
            return {"activation_offloading": True}
        return spell_argument(knob, value, target)

    def commands(self, plan: Plan, file: str, launcher: str = "") -> list[str]:  # noqa: ARG002 - one command for all
        """TRL's own command line, which starts accelerate."""
        words = launcher.replace("--config_file", "--accelerate_config")
        return [f"trl sft {words}--config {file}"]

    def plan_versions(self, job: Job, version: Version | None) -> tuple[Version, Version | None]:
        """The profile's transformers, and the stated or the profile's TRL."""
        trl = version or job.software.trl
        if trl is None:
            msg = f'the software profile "{job.software.name}" has no TRL'
            raise InputError(msg, "name the version that will run, as in trl@1.16.0")
        if version:
            check_known("trl", version, self.known)
        check_installed("trl", trl)
        check_installed("transformers", job.software.transformers)
        if job.objective in PAIRED:
            check_rows(job, trl)
        return job.software.transformers, trl

    def export(self, plan: Plan) -> Export:
        """The files, and what the trainer of the job's objective cannot say."""
        pairs, trl = plan.job.objective in PAIRED, plan.trl or KNOWN["trl"][1]
        rate = TRAINERS[plan.job.objective].learning_rate if pairs else LEARNING_RATE
        own = pair_arguments(plan, trl) if pairs else _sft(plan)
        arguments = {**training_arguments(plan, rate), **own, **_processes(plan)}
        files = self.scripts(plan, arguments, ("trl", "datasets"))
        notes = [*newer_note("trl", trl), *(pair_notes if pairs else _notes)(plan, trl)]
        return Export(files, tuple(shared_notes(plan, rate) + notes))

    def file_of(self, job: Job) -> str:
        """The file of the arguments, named after what is trained."""
        return TRAINERS[job.objective].file if job.objective in PAIRED else self.file

    def script(self, plan: Plan) -> str:
        """train.py, for the trainer of the job's objective."""
        if plan.job.objective in PAIRED:
            return train_py(plan, TEMPLATE, pair_words(plan.job))
        return super().script(plan)


def _sft(plan: Plan) -> dict[str, object]:
    """Arguments that SFTConfig adds; its own defaults truncate at 1024 and load in fp32."""
    job, packing = plan.job, plan.config.packing == "on"
    arguments: dict[str, object] = {
        "max_length": job.max_length,
        "packing": packing,
        "padding_free": False,
        "dataset_text_field": "text",
        "model_init_kwargs": {
            "dtype": weights_dtype(plan),
            "attn_implementation": plan.config.attention,
        },
    }
    if plan.config.offload == "activations" and plan.transformers < ACTIVATION_CHECKPOINTING:
        arguments["activation_offloading"] = True  # else the checkpoints say it
    if packing:
        arguments["packing_strategy"] = "bfd"
        arguments["eval_packing"] = False
    elif job.padding == "max_length":
        # rows are cut at max_length, so its first multiple is the only length a batch can have
        arguments["pad_to_multiple_of"] = job.max_length
    return arguments


def _processes(plan: Plan) -> dict[str, object]:
    """TRL tokenises in one process unless told; the bill counts on the cores."""
    processes = min(plan.offer.host.cores, MOST_PROCESSES)
    return {"dataset_num_proc": processes} if processes > 1 else {}


def _notes(plan: Plan, trl: Version) -> list[str]:
    notes = _packing_notes(plan)
    loss = plan.job.software.running(plan.config.kernels).loss
    chunked = loss in {"chunked", "fused", "liger"}
    if plan.config.kernels == "chunked_loss":
        notes.append(f"kernels chunked_loss: the loss of TRL {show(trl)} is chunked by itself")
    if trl >= TRL_CHUNKED_LOSS and not chunked:
        notes.append(
            f"TRL {show(trl)} computes the loss in chunks, but the software profile's loss holds"
            " all logits: expect less memory than predicted",
        )
    if trl < TRL_CHUNKED_LOSS and loss == "chunked":
        notes.append(
            f"TRL {show(trl)} holds all logits, but the software profile's loss does not: expect"
            " more memory than predicted",
        )
    if plan.config.sharding == "zero3" and plan.job.method.is_lora and not plan.quantized:
        notes.append("under ZeRO-3 SFTTrainer keeps adapters in the dtype of the base weights")
    return notes


def _packing_notes(plan: Plan) -> list[str]:
    if plan.config.packing != "on":
        return []
    notes = [
        (
            "with packing a batch holds packed sequences: each step sees more rows than the global"
            " batch says, and the steps of an epoch follow from the data"
        ),
    ]
    if plan.config.attention not in FLASH:
        notes.append(
            f"packing without flash attention ({plan.config.attention}): TRL warns that rows of one"
            " sequence may see each other; from transformers 4.53 on a mask keeps them apart, and"
            " attention takes longer",
        )
    return notes
