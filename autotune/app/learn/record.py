"""Our own record of a training, `observations.jsonl`, as a past run.

It times every step and save, and names the machine; how long rows were is said by the Trainer's
`total_flos`, where the training ran to its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.app.learn.found import Found
from autotune.app.learn.walk import Unreadable
from autotune.catalog.models.models import load_models
from autotune.domain.errors import InputError
from autotune.evidence.log.step_times import RECORD_FILE, read_record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.app.learn.walk import Folder
    from autotune.evidence.log.run_log import RunLog

SOURCE = "autotune record"


def is_record(folder: Folder) -> bool:
    """Whether the folder holds a record."""
    return RECORD_FILE in folder.files


def read(folder: Folder) -> Found:
    """What the record says. Raises Unreadable."""
    try:
        log = read_record(folder.path / RECORD_FILE)
    except InputError as error:
        msg = f"{RECORD_FILE} is damaged: {error.message.rpartition(RECORD_FILE)[2][2:80]}"
        raise Unreadable(msg) from None
    return Found(
        source=SOURCE,
        place=folder.path,
        arguments=arguments_of(log),
        model_name=name_of(log.model),
        adapter={"r": log.method["rank"], "peft_type": "LORA"} if "rank" in log.method else {},
        log=log,
        steps=log.steps_done,
        gpu=log.gpu or "",
        on_cpu=log.gpu == "cpu",
    )


def arguments_of(log: RunLog) -> dict[str, Any]:
    """What the record says of the training, in the words of TrainingArguments."""
    knobs = log.knobs
    found: dict[str, Any] = {
        "per_device_train_batch_size": log.micro_batch_size,
        "gradient_accumulation_steps": log.gradient_accumulation_steps or 1,
        "save_steps": log.save_every_steps,
        "bf16": knobs.get("precision") == "bf16",
        "fp16": knobs.get("precision") == "fp16",
        "optim": knobs.get("optimizer"),
        "dataloader_num_workers": knobs.get("num_dataloader_workers"),
        "attn_implementation": knobs.get("attention"),
        "load_in_4bit": log.method.get("base") == "nf4" or None,
        "load_in_8bit": log.method.get("base") == "int8" or None,
    }
    if "activation_checkpointing" in knobs:
        found["gradient_checkpointing"] = knobs["activation_checkpointing"] == "full"
    return {name: value for name, value in found.items() if value is not None}


def name_of(sizes: Mapping[str, int]) -> str:
    """The catalogue's model of these sizes; empty where none or several have them."""
    if not sizes:
        return ""
    alike = [
        name for name, model in load_models().items()
        if all(getattr(model, key, None) == value for key, value in sizes.items())
    ]  # fmt: skip
    return alike[0] if len(alike) == 1 else ""
