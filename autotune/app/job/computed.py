"""What a file leaves open: asked for all at once, or what the user states in its place.

A script computes what no reader evaluates, and a file may lack its model, its rows or a device.

`--set micro_batch=4`, `--epochs 3` and the like stand for it, in today's config as in every other.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from autotune.app.dataset.named_rows import rows_flag
from autotune.app.job.beside import near_file
from autotune.app.job.overrides import add_stated
from autotune.catalog.models.models import find_model
from autotune.domain.config import KNOBS, SPLIT
from autotune.domain.errors import InputError
from autotune.domain.job import Uncounted
from autotune.domain.typed.values import shown
from autotune.trainers.hf.adapter import OWN_FLAGS
from autotune.trainers.hf.keys import CHECKPOINTING, OWN_LENGTH
from autotune.trainers.hf.read import MAX_LENGTH
from autotune.trainers.hf.recipes import OWN_BATCH
from autotune.trainers.llamafactory.trainer import KIND
from autotune.trainers.registry import TRAINERS
from autotune.trainers.syntax.rewrite import flat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.job import Origin
    from autotune.domain.typed.overrides import Overrides
    from autotune.trainers.parsed import Parsed
    from autotune.trainers.syntax.python_source import Script

_FLAGS = {
    "model": "--model NAME", "method.kind": "--method lora|qlora|full",
    "data.rows": "--rows N or --data FILE",
    "hardware": "--gpu NAME",
}  # fmt: skip
_ONE_FLAG = {**_FLAGS, "method.kind": "--method lora", "data.rows": "--data FILE"}
_ANYTHING = "**"  # a mapping that the arguments are made of: anything may be in it
_BATCH = "train.global_batch_size"
_MICRO, _ACCUMULATION = SPLIT
_EPOCHS, _STEPS, _LENGTH = "train.epochs", "train.steps", "data.max_length"
_ALL = "takes its arguments from a mapping that is computed: priced with the defaults of all others"
# How far what such a mapping may hold can move a run: an assumption, and wide.
_ALL_SD = (0.25, 0.35)


class _Answer(NamedTuple):
    """Keys of `--set` any of which says it, and what is typed as an example."""

    keys: tuple[str, ...]
    example: str


_RUN = _Answer((_EPOCHS, _STEPS), f"{_EPOCHS}=3")
_LONG = _Answer((_LENGTH,), f"{_LENGTH}=2048")
# What must be known, by the argument that the script computes.
_NEEDED = {
    "per_device_train_batch_size": _Answer((_MICRO,), f"{_MICRO}=4"),
    "gradient_accumulation_steps": _Answer((_ACCUMULATION, _BATCH), f"{_ACCUMULATION}=4"),
    "num_train_epochs": _RUN, "max_steps": _RUN,
    "max_length": _LONG, "max_seq_length": _LONG,
    "lora_r": _Answer(("method.rank",), "method.rank=16"),
}  # fmt: skip
_OF_ANYTHING = ("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs")
DECIDES = {*_NEEDED, _ANYTHING}
# What is priced without, and said; a word of the user's ends that.
_MORE = {
    **dict.fromkeys(CHECKPOINTING, "activation_checkpointing"),
    "use_gradient_checkpointing": "activation_checkpointing", "packing": "packing",
    "attn_implementation": "attention", "optim": "optimizer", "load_in_4bit": "method.base",
    "load_in_8bit": "method.base", "lora_target_modules": "method.targets", OWN_LENGTH: _LENGTH,
    "group_by_length": "length_grouping", "bf16": "precision", "fp16": "precision",
    "torch_compile": "compile", "model_name_or_path": "model",
}  # fmt: skip

# Flags that say the same, of any trainer or program: what `--set` answers where a shell decides it.
_BY_FLAG = {
    name: _NEEDED[key]
    for key, names in {
        "per_device_train_batch_size": (
            "per_gpu_train_batch_size", "micro_batch_size", "train.micro_batch_size",
            *OWN_BATCH["micro_batch_size"],
        ),
        "gradient_accumulation_steps": OWN_BATCH["gradient_accumulation_steps"],
        "num_train_epochs": ("num_epochs", "train.epochs", *OWN_FLAGS["epochs"]),
        "max_steps": ("train.max_steps", *OWN_FLAGS["max_steps"]),
        "max_length": (
            *MAX_LENGTH, "cutoff_len", "sequence_len", "train.max_seq_length",
            "tokenizer.max_seq_len",
        ),
        "lora_r": ("lora_rank", "model.lora_rank", *OWN_FLAGS["lora_r"]),
    }.items()
    for name in (key, *names)
} | {
    "save_steps": _Answer(("checkpoint_every_steps",), "checkpoint_every_steps=500"),
    "eval_steps": _Answer(("evaluation.every_steps",), "evaluation.every_steps=500"),
}  # fmt: skip


BITS = ("load_in_4bit", "load_in_8bit", "quantization_bit")
_OF_ADAPTERS = re.compile(r"lora|peft|modules_to_save|layers_to_transform|_pattern", re.IGNORECASE)


def of_adapters(key: str) -> bool:
    """Whether an argument speaks of adapters, or of the few bits below them."""
    return bool(_OF_ADAPTERS.search(key)) or key in BITS


def cut(listed: str, most: int = 160) -> str:
    """A list of settings, cut short behind a comma."""
    return listed if len(listed) <= most else f"{listed[:most].rpartition(', ')[0]}, ..."


def answered(flags: Mapping[str, Any], name: str, overrides: Overrides) -> dict[str, Any]:
    """Flags that a shell decides where the command is started, with what the user states for them.

    Raises InputError for those that nobody states, all at once.
    """
    said = {**overrides.stated, **overrides.set_values}
    flags = flat(dict(flags))
    open_ = {key: _BY_FLAG[_flag(key)] for key, value in flags.items() if _is_open(key, value)}
    found: dict[str, Any] = {}
    lost: list[str] = []
    for key, known in open_.items():
        mine = next((each for each in known.keys if each in said), None)
        if known is _RUN and mine is not None:  # of the two lengths of a run one is enough
            mine = _STEPS if "step" in key else _EPOCHS
            written = _written(key, said.get(mine, -1 if mine == _STEPS else 1))
        else:
            written = _written(key, said[mine]) if mine else {}
        found |= written
        lost += [] if mine else [key]
    if lost:
        listed = ", ".join(f"--{key} {flags[key]}" for key in lost)
        msg = f"{name} leaves open {listed}: that is decided where it is started"
        asked = " --set ".join(dict.fromkeys(open_[key].example for key in lost))
        raise InputError(msg, f"state it, such as --set {asked}; or write it there")
    return found


def _is_open(flag: str, value: object) -> bool:
    return _flag(flag) in _BY_FLAG and isinstance(value, str) and "$" in value


def _flag(name: str) -> str:
    """The flag as it is known: programs of people's own write some in capitals."""
    return name if name in _BY_FLAG else name.casefold()


def answer(script: Script, overrides: Overrides) -> None:
    """Take out of what is computed what the user states, and put it where the script would.

    A value that is no number is left to the check of `--set`, which says what must hold.
    """
    said: dict[str, Any] = {**overrides.stated, **overrides.set_values}
    if said.get("method.kind") == "full":  # what it does of adapters it does another way
        script.computed = [key for key in script.computed if not of_adapters(key)]
        script.values = {k: v for k, v in script.values.items() if not of_adapters(k)}
        script.defaulted = {k: v for k, v in script.defaulted.items() if not of_adapters(k)}
        script.by_default = [key for key in script.by_default if not of_adapters(key)]
    computed = set(script.computed)
    told = {key for key in computed & set(_NEEDED) if set(_NEEDED[key].keys) & set(said)}
    told |= {key for key in computed & set(_MORE) if _MORE[key] in said}
    if _ANYTHING in computed and not _missing(_OF_ANYTHING, said):
        told.add(_ANYTHING)
        script.unseen.append(Uncounted("arguments", "computed", _ALL, *_ALL_SD))
    run = told & {"num_train_epochs", "max_steps", _ANYTHING}
    if run:  # of the two lengths of a run the user gives one
        told |= {"num_train_epochs", "max_steps"} & computed
        script.values |= _written("num_train_epochs", said.get(_EPOCHS))
        script.values |= {"max_steps": -1} if _EPOCHS in said else {}
        script.values |= _written("max_steps", said.get(_STEPS))
    if told & {"max_length", "max_seq_length", OWN_LENGTH}:
        script.values |= _written("max_length", said[_LENGTH])
    if "lora_r" in told:
        script.values |= _written("lora_r", said["method.rank"])
    script.computed = [key for key in script.computed if key not in told]


def _written(key: str, value: object) -> dict[str, Any]:
    """The argument with a number that the user typed; nothing for what is no number."""
    try:
        number = float(str(value).replace("_", ""))
    except ValueError:
        return {}
    return {key: int(number) if number.is_integer() else number}


def stand_in(made: Parsed, overrides: Overrides, lost: set[str]) -> None:
    """Today's knobs as the user states them, where the script computes them.

    lost: arguments that it computes. Raises InputError for a value that the knob does not take.
    """
    given = overrides.set_values
    whole = _ANYTHING in lost
    for key in lost | (set(_OF_ANYTHING) if whole else set()):
        for name in (*_NEEDED.get(key, _Answer((), "")).keys, _MORE.get(key, "")):
            if name in KNOBS and name in given:
                made.knobs[name] = KNOBS[name].parse(given[name], "--set")
                made.told.add(name)
    _settle_precision(made, lost)
    batch = given.get(_BATCH, "")
    split = {"gradient_accumulation_steps", _ANYTHING} & lost and _ACCUMULATION not in given
    if split and batch.isdigit():
        made.global_batch = int(batch)


def _settle_precision(made: Parsed, lost: set[str]) -> None:
    """Arithmetic in fp32 where weights are, and nothing switches mixed precision on.

    lost: arguments that a script computes. Source: transformers 5.23 training_args.py, whose bf16
    and fp16 are off by default.
    """
    fp32 = made.values.get("method", {}).get("base") == "32bit"
    told = {"precision"} & {*made.knobs, *made.defaults} or {"bf16", "fp16", _ANYTHING} & lost
    if made.trainer == "hf" and fp32 and not told:
        made.defaults["precision"] = "fp32"
        why = "weights are loaded in fp32, and neither bf16 nor fp16 is on; bf16=True is faster"
        made.note("precision", "fp32", why)


def _missing(keys: tuple[str, ...], said: Mapping[str, object]) -> list[str]:
    """What to type for those of them that nobody states."""
    found = [_NEEDED[key] for key in keys if not set(_NEEDED[key].keys) & set(said)]
    return list(dict.fromkeys(each.example for each in found))


def lacking(parsed: Parsed, overrides: Overrides) -> list[str]:
    """What a job cannot do without and neither the file nor a flag states, as keys of a job."""
    values, given = parsed.values, overrides.set_values
    data, train = values.get("data", {}), values.get("train", {})
    counts = {"data.rows", "data.dataset", "data.lengths.histogram"}
    said = {
        "model": "model" in {*values, *given},
        "method.kind": "kind" in values.get("method", {}) or "method.kind" in given,
        "data.rows": {"rows", "dataset"} & {*data} or counts & {*given} or "steps" in train,
        "hardware": overrides.gpus,
    }
    return [key for key, stated in said.items() if not stated]


def ask_for(parsed: Parsed, overrides: Overrides, origin: Origin, name: str) -> None:
    """Raise one InputError that names the flag of everything that is missing."""
    missing = lacking(parsed, overrides)
    if not missing:
        return
    what = {"model": "the model", "method.kind": "how it is trained", "data.rows": "how many "
            "rows there are", "hardware": "on which device it is to run"}  # fmt: skip
    for each in parsed.uncounted:  # the file says how, and that is priced as another way
        if each.key == KIND and "method.kind" in missing:
            what["method.kind"] = f"what its {KIND} {each.value} is counted as: it {each.why}"
    msg = f"{name} does not say {' or '.join(what[key] for key in missing)}"
    found = {}
    if "data.rows" in missing:
        rows = rows_flag(origin.text, lambda named: near_file(named, Path(origin.path)))
        found = {"data.rows": rows} if rows else {}
    asked = [{**_FLAGS, **found}[key] for key in missing]
    lacks = {key: {**_ONE_FLAG, **found}[key] for key in missing}
    stated = str(overrides.set_values.get("model", parsed.values.get("model", "")))
    if stated and not _is_model(stated, origin):
        msg += f", and its model {shown(stated)} is not known here"
        asked.append("--set model=NAME")
        lacks["model"] = "--set model=NAME"
    raise InputError(msg, "add " + " ".join(asked), lacking=lacks)


def _is_model(text: str, origin: Origin) -> bool:
    """Whether it is a model that is known here; refused with what is meant where it is all."""
    try:
        find_model(text, Path(origin.path).parent)
    except InputError:
        return False
    return True


def _lacking_too(script: Script, lost: list[str], overrides: Overrides) -> list[str]:
    """The flags of what a script lacks beside what it computes; none where that is refused."""
    with suppress(InputError):
        made = TRAINERS[script.trainer].read(dict(script.values), "")
        add_stated(made.values, overrides, "")
        own = {"method.kind"} if any(map(of_adapters, lost)) else set()
        return [_FLAGS[key] for key in lacking(made, overrides) if key not in own]
    return []


def _with_own(example: str, own: Mapping[str, object]) -> str:
    """An example of `--set` with the script's own default in it, where it has one."""
    return f"{example.partition('=')[0]}={own[example]}" if example in own else example


def refuse_computed(
    script: Script, name: str, overrides: Overrides, *, loads: bool, started: bool = False
) -> None:
    """Raise InputError where what the job is made of is computed, and so cannot be read.

    What the script lacks altogether is named with it, so that one more command is enough.

    loads: whether the script loads settings from a file, which may say it.
    started: whether it is read for the command that starts it.
    """
    lost = [key for key in dict.fromkeys(script.computed) if key in DECIDES]
    if not lost:
        return
    listed = ", ".join(lost)
    msg = f"{name}: {listed} must be written out: the file is read, never executed"
    needed = (*lost, *_OF_ANYTHING) if _ANYTHING in lost else tuple(lost)
    said = {**overrides.stated, **overrides.set_values}
    asked = _missing(tuple(key for key in needed if key != _ANYTHING), said)
    own = {_NEEDED[k].example: value for k, value in script.fallbacks.items() if k in _NEEDED}
    sets = [f"--set {_with_own(each, own)}" for each in asked]
    lacks = [] if started else _lacking_too(script, lost, overrides)
    rest = "or write a number there"
    rest += "" if started else ", or give the launch command with --from-args"
    if lost == ["lora_r"]:
        rest = "or --method full, where it puts none on"
    such = "such as"
    such += " (its own defaults)" if asked and set(asked) <= set(own) else ""
    hint = f"state it, {such} {' '.join([*lacks, *sets])}; {rest}"
    if loads and not overrides.beside:
        hint = f"--beside FILE names the settings that it loads; or {hint.partition(';')[0]}"
    raise InputError(msg, hint)
