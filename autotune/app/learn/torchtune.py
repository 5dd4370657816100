"""A torchtune run: its `log_*.txt` of steps beside the YAML that it ran."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from autotune.app.learn.found import Found
from autotune.app.learn.walk import Unreadable, read_log, trainer_files
from autotune.evidence.log.console import read_printed

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.app.learn.walk import Folder

SOURCE = "torchtune log"
_LOG = re.compile(r"log_\d+\.txt")


def is_run(folder: Folder) -> bool:
    """Whether torchtune's disk logger wrote there."""
    return any(_LOG.fullmatch(name) for name in folder.files)


def read(folder: Folder) -> Found:
    """What the newest log and the YAML beside it say. Raises Unreadable."""
    newest = max(name for name in folder.files if _LOG.fullmatch(name))
    printed = read_printed(read_log(folder.path / newest))
    if printed.tokens_per_s_per_gpu is None:
        msg = "a torchtune log without tokens_per_second_per_gpu"
        raise Unreadable(msg)
    arguments = _config(folder.path)
    return Found(
        source=SOURCE,
        place=folder.path,
        trainer="torchtune",
        arguments=arguments,
        model_name=_model(arguments),
        steps=printed.steps,
        tokens_per_s_per_gpu=printed.tokens_per_s_per_gpu,
        peaks_gib=printed.peaks_gib or {},
        notes=printed.notes,
    )


def _config(folder: Path) -> dict[str, Any]:
    """The YAML that the recipe saved beside its log, or the only one of torchtune's there."""
    for _, trainer, values in trainer_files(folder, folder.parent):
        if trainer == "torchtune":
            return values
    msg = "a torchtune log without the YAML of its recipe beside it"
    raise Unreadable(msg)


def _model(arguments: dict[str, Any]) -> str:
    """What the recipe's checkpoints are of: the last part of their folder."""
    holder = arguments.get("checkpointer")
    folder = holder.get("checkpoint_dir") if isinstance(holder, dict) else None
    return str(folder).rstrip("/").rpartition("/")[2] if folder else ""
