"""Programs whose files are not read: which one a command starts, and what it says of the job.

Each has words of its own for what a job in one line states; these are handed back as that line.
llm-foundry's file says its duration as `8ep` or `100ba`, and refers to its variables.
Source: verl 0.6 trainer/config/sft_trainer.yaml; openrlhf 0.9 cli/train_sft.py and train_dpo.py;
ms-swift 4.6 megatron/arguments; alpaca-lora finetune.py, whose base is held in 8 bits;
llm-foundry 0.22 scripts/train/yamls/finetune.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from autotune.domain.config import YES
from autotune.domain.errors import InputError
from autotune.trainers.parsed import at_key
from autotune.trainers.scope import aim_of
from autotune.trainers.swift import TUNER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What a job in one line takes, and the words of a program for it, the first that is stated.
_Words = tuple[tuple[str, tuple[str, ...]], ...]


class Program(NamedTuple):
    """A program: what starts it, flags that are its own, and its words."""

    title: str
    starts: str
    own: frozenset[str]  # all of them stand in its command; empty: what starts it says it
    words: _Words
    rank: str  # its word for the rank of adapters
    recomputes: str  # its word for checkpointed activations, and what it does without
    by_default: bool
    adapts: bool = False  # with no word for the rank as well
    more: str = ""  # what it does whatever its flags say


_VERL: Final[_Words] = (
    ("--model", ("model.partial_pretrain", "model.path")),
    ("--max-length", ("data.max_length",)),
    ("--global-batch", ("data.train_batch_size",)),
    ("--epochs", ("trainer.total_epochs",)),
    ("--set micro_batch_size", ("data.micro_batch_size_per_gpu", "data.micro_batch_size")),
)
_OPEN: Final[_Words] = (
    ("--model", ("pretrain",)), ("--max-length", ("max_len",)),
    ("--global-batch", ("train_batch_size",)), ("--epochs", ("max_epochs",)),
    ("--set micro_batch_size", ("micro_train_batch_size",)),
)  # fmt: skip
_MEGATRON: Final[_Words] = (
    ("--model", ("model",)), ("--max-length", ("max_length",)),
    ("--global-batch", ("global_batch_size",)), ("--epochs", ("max_epochs", "num_train_epochs")),
    ("--set micro_batch_size", ("micro_batch_size",)),
)  # fmt: skip
_ALPACA: Final[_Words] = (
    ("--model", ("base_model",)), ("--max-length", ("cutoff_len",)),
    ("--global-batch", ("batch_size",)), ("--epochs", ("num_epochs",)),
    ("--set micro_batch_size", ("micro_batch_size",)),
)  # fmt: skip
_FOUNDRY: Final[_Words] = (
    ("--model", ("model.pretrained_model_name_or_path", "variables.model_name_or_path")),
    ("--max-length", ("max_seq_len", "variables.max_seq_len")),
    ("--global-batch", ("global_train_batch_size", "variables.global_train_batch_size")),
    ("--epochs", ("max_duration.ep",)), ("--set train.steps", ("max_duration.ba",)),
    ("--set micro_batch_size", ("device_train_microbatch_size",)),
    ("--set packing", ("packs",)), ("--set method.variant", ("model.peft_config.variant",)),
    ("--set method.targets", ("model.peft_config.targets",)),
)  # fmt: skip
_ANY = r".*"  # whatever starts it
_PROGRAMS: Final = (
    Program("verl", r"(?i).*\bverl\b.*", frozenset(), _VERL, "model.lora_rank",
            "model.enable_gradient_checkpointing", by_default=True),
    Program("verl", _ANY, frozenset({"model.partial_pretrain", "data.train_batch_size"}), _VERL,
            "model.lora_rank", "model.enable_gradient_checkpointing", by_default=True),
    Program("OpenRLHF", r"(?i).*openrlhf.*", frozenset(), _OPEN, "lora_rank",
            "gradient_checkpointing", by_default=False),
    Program("OpenRLHF", _ANY, frozenset({"pretrain", "micro_train_batch_size"}), _OPEN, "lora_rank",
            "gradient_checkpointing", by_default=False),
    Program("Megatron-SWIFT", r"(.*/)?megatron", frozenset(), _MEGATRON, "lora_rank",
            "recompute_granularity", by_default=False),
    Program("alpaca-lora", r"(.*/)?finetune\w*\.py",
            frozenset({"base_model", "micro_batch_size", "batch_size"}), _ALPACA, "lora_r",
            "use_gradient_checkpointing", by_default=True, adapts=True,
            more=" --set method.base=int8"),
)  # fmt: skip


def refuse_other(
    program: Sequence[str], flags: Mapping[str, Any], name: str, *, surely: bool = False
) -> None:
    """Raise InputError where a command starts one of those, with the job that its flags state.

    Args:
        program: words of the command in front of its flags.
        flags: of the command.
        name: what the error calls it.
        surely: only one that nobody's own script is taken for: its flags alone say it.
    """
    for each in _PROGRAMS:
        starts = any(re.fullmatch(each.starts, word) for word in program)
        if each.own <= set(flags) and starts and (each.starts == _ANY or not surely):
            msg = f"{name} is a command of {each.title}, whose words are not read"
            line = _in_one_line(each, flags, aim_of("", {}, program).objective)
            raise InputError(msg, f"what it says, as a job in one line: {line}")


_OF_FOUNDRY = Program(
    "llm-foundry", _ANY, frozenset({"train_loader", "max_duration", "model"}), _FOUNDRY,
    "model.peft_config.r", "fsdp_config.activation_checkpointing", by_default=False,
)  # fmt: skip


def refuse_foundry(values: Mapping[str, Any], name: str) -> None:
    """Raise InputError for a file of llm-foundry's, with the job that it states.

    Not for one that trains without weights of another: a job in one line has them.
    """
    if not _OF_FOUNDRY.own <= set(values) or _stated(values, _FOUNDRY[0][1][0]) is None:
        return
    told = re.fullmatch(r"(\d+)(ep|ba)", str(values["max_duration"]).strip())
    duration = {told.group(2): told.group(1)} if told else {}
    packs = at_key(values, "train_loader.dataset.packing_ratio") is not None
    found = {**values, "max_duration": duration, **({"packs": "on"} if packs else {})}
    adapter = at_key(values, "model.peft_config")
    if isinstance(adapter, dict):
        said = adapter.get("target_modules")
        targets = ",".join(map(str, said)) if isinstance(said, list) else said
        kind = next((k for k in ("dora", "rslora") if adapter.get(f"use_{k}") is True), None)
        own = {**adapter, "targets": targets, "variant": kind}
        found["model"] = {**values["model"], "peft_config": own}
    line = _in_one_line(_OF_FOUNDRY, found, "")
    msg = f"{name} is a file of llm-foundry, which is not read"
    raise InputError(msg, f"what it says, as a job in one line: {line}")


def _in_one_line(program: Program, flags: Mapping[str, Any], objective: str) -> str:
    """The command that prices what the flags say; rows and the machine are the user's to state."""
    said = [
        (option, next((v for word in words if _is_said(v := _stated(flags, word))), None))
        for option, words in program.words
    ]
    rank = _stated(flags, program.rank)
    told = {str(_stated(flags, word)).casefold() for word in TUNER}
    adapted = str(rank) not in {"0", "None"} or program.adapts or "lora" in told
    four = str(_stated(flags, "load_in_4bit")).casefold() == "true"
    method = ("qlora" if four else "lora") if adapted else "full"
    line = f"autotune estimate --method {method}{program.more}"
    for option, value in said:
        if value is not None:
            line += f" {option}{'=' if ' ' in option else ' '}{shlex.quote(str(value))}"
    if adapted and rank is not None:
        line += f" --set method.rank={rank}"
    kept = _stated(flags, program.recomputes)
    recomputes = program.by_default if kept is None else str(kept).casefold() in {*YES, "full"}
    line += f" --set activation_checkpointing={'full' if recomputes else 'none'}"
    line += f" --objective {objective}" if objective not in {"", "sft"} else ""
    return f"{line} --rows N --gpu NAME"


def _is_said(value: object) -> bool:
    """Whether it stands there: not by reference, nor left to the program."""
    return value is not None and "$" not in str(value) and value != "auto"


def _stated(flags: Mapping[str, Any], word: str) -> Any:  # noqa: ANN401 - any value
    """What a flag says, in whichever way it was written: dotted, or in a section."""
    return flags.get(word, at_key(flags, word))
