"""The script that a command starts, where it is at hand: what it makes of the command's flags.

A program's own options have its own defaults, and some of what decides a run stands in the script
alone: the adapter, how the base is held, where rows are cut. The command stays what is given back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.job.beside import modules_of, near_file
from autotune.app.job.computed import BITS, DECIDES, answer, of_adapters, refuse_computed, stand_in
from autotune.app.job.file import read_text
from autotune.domain.errors import InputError, NoTraining
from autotune.domain.job import Uncounted
from autotune.domain.typed.values import shown
from autotune.trainers.hf.adapter import OWN_FLAGS, loads_silently
from autotune.trainers.hf.evaluation import HELD_OUT
from autotune.trainers.hf.keys import MODEL, OWN_LENGTH, WORDS
from autotune.trainers.hf.read import MAX_LENGTH
from autotune.trainers.hf.recipes import OWN_BATCH

if TYPE_CHECKING:
    from autotune.domain.typed.overrides import Overrides
    from autotune.trainers.parsed import Parsed
    from autotune.trainers.syntax.command_line import Command
    from autotune.trainers.syntax.python_loop import Logits
    from autotune.trainers.syntax.python_source import Script

# How far what a script computes may move its run: an assumption, and wide.
COMPUTED_SD = (0.25, 0.35)
_OWN_LOOP_SD = (0.30, 0.30)  # and how far a loop of its own may lie from the Trainer's
_HIDDEN_SD = (1.0, 0.7)  # and one on the processor from one on a device: as far as any
# Of what a script computes, what moves time or memory far.
FAR = {
    "gradient_checkpointing", "load_in_4bit", "load_in_8bit", "attn_implementation", "packing",
    "optim", "lora_target_modules", "use_gradient_checkpointing", "deepspeed", "fsdp", OWN_LENGTH,
    "dtype",
}  # fmt: skip
# And what a shell may decide of it beside.
_SHELLS = {
    "zero_stage", "offload", "bf16", "fp16", "use_peft", "finetuning_type", "train_type",
    "tuner_type", "fsdp", "lora_target", "quantization_bit",
}  # fmt: skip
# How much longer gradients may take between machines than inside one: as its network is.
_SEVERAL_SD = (0.70, 0.0)
_UNSET = re.compile(r".*\$\{?\w.*\.(py|ya?ml|json)")  # a file that a variable names
_NAMED = re.compile(r"[\w./][\w./-]*\.(?:ya?ml|json)\b")  # files that a script names
_MODEL = re.compile(r"model\w*(path|name)|^model$")
# Options that a loop of its own is told, beside the Trainer's.
_OF_LOOPS = {
    "lora_r", "lora_alpha", "lora_dropout", "load_in_4bit", "load_in_8bit",
    *(name for names in OWN_BATCH.values() for name in names),
    *(name for key in ("epochs", "max_steps", "max_length", "use_peft", "load_in_4bit")
      for name in OWN_FLAGS[key]),
}  # fmt: skip
_DECODER = re.compile(r"\w*(ForCausalLM|LMHeadModel)")
# Names of one setting.
_SAME = (
    set(MAX_LENGTH),
    set(HELD_OUT),
    {"max_steps", *OWN_FLAGS["max_steps"]},
    {"num_train_epochs", "num_epochs", *OWN_FLAGS["epochs"]},
    set(MODEL),
    {"use_peft", "use_lora", *OWN_FLAGS["use_peft"]},
    {"lora_r", "lora_rank", "r", *OWN_FLAGS["lora_r"]},
    {"lora_alpha", *OWN_FLAGS["lora_alpha"]},
    {"lora_target_modules", "lora_target", *OWN_FLAGS["lora_target_modules"]},
    {*BITS, *(flag for name in BITS for flag in OWN_FLAGS[name])},
    {"per_device_train_batch_size", *OWN_BATCH["micro_batch_size"]},
    {"gradient_accumulation_steps", *OWN_BATCH["gradient_accumulation_steps"]},
)
_ADAPTERS = re.compile("lora|peft|adapter", re.IGNORECASE)
_SAID_BY_FLAG = {
    "dtype": ("bf16", "fp16", "torch_dtype"),
    "attn_implementation": ("flash_attn", *OWN_FLAGS["attention"]),
}
# Arguments that say a knob, beside the words of `WORDS`.
_SAID_BY = {
    "compile": ("torch_compile",), "precision": ("bf16", "fp16"),
    "attention": ("attn_implementation",), "offload": ("activation_offloading",),
    "adapter_dtype": (), "compile_scope": (),
}  # fmt: skip


@dataclass(slots=True)
class Started:
    """What a started script says. `values` are arguments; `read` the flags in them."""

    name: str
    trainer: str = ""  # empty: as the flags have it
    values: dict[str, Any] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    total: bool = False  # its accumulation is that of all devices together
    calls: set[str] = field(default_factory=set)
    options: set[str] | None = None  # flags that it takes; None: every argument of its trainer
    uncounted: list[Uncounted] = field(default_factory=list)
    alone: tuple[Script, str] | None = None  # it and its path, where no flag says a size
    lost: set[str] = field(default_factory=set)  # arguments that it computes
    loop: bool = False  # it trains in a loop of its own
    silent: bool = False  # it loads the weights without a word of their dtype
    logits: Logits | None = None  # what the loss of a loop of its own makes of them


def script_of(parsed: Command, path: Path | None) -> Path | None:
    """The Python file that a command starts, if it lies beside the shell script or here."""
    named = next((word for word in parsed.program if word.endswith(".py")), "")
    if not named:
        words = parsed.program  # `python -m src.train`: in front of the flags
        module = words[-1] if len(words) > 1 and words[-2] in {"-m", "--module"} else ""
        named = f"{module.replace('.', '/')}.py" if module else ""
    near = path or Path("command")
    named = re.sub(r"^(\$\{?\w+\}?/)+", "", named)  # a folder of the script's own
    found = near_file(named, near) or near_file(f"src/{named}", near) if named else None
    if named.startswith("/"):  # of a container or another machine, whose folder is this one
        parts = Path(named).parts[1:]
        ends = ("/".join(parts[at:]) for at in range(len(parts)))
        found = found or next((f for end in ends if (f := near_file(end, near))), None)
    return found


def _states_size(parsed: Command) -> bool:
    """Whether a flag of the command says a batch, a length of the run or the like."""
    from autotune.trainers.syntax.command_line import SIZED

    return any(re.match(SIZED, f"--{flag}") for flag in parsed.values)


def started(parsed: Command, path: Path | None, overrides: Overrides) -> Started | None:
    """What the command's script says; None where it is not at hand, or says nothing readable."""
    from autotune.trainers.syntax.python_arguments import called
    from autotune.trainers.syntax.python_beside import option_defaults, takes_flags
    from autotune.trainers.syntax.python_source import parse_script

    found = script_of(parsed, path)
    if found is None:
        return None
    try:
        text = read_text(found)
        own = modules_of(text, found)
        calls = called(text, str(found), parsed.values, list(own.values()))
    except InputError:
        return None
    _refuse_off(found, text, parsed.values, own)
    made = Started(found.name, calls=calls, silent=loads_silently(text))
    by_flags, options = takes_flags(text, str(found))
    made.options = options
    try:
        script = parse_script(text, str(found), flags=parsed.values, by_flags=True,
                              beside=list(own.values()))  # fmt: skip
    except InputError:
        made.uncounted = _own_loop(made, text, parsed.values)
        return made
    whole = bool(script.trainer) and "**" not in script.computed
    if whole:
        made.lost = set(script.computed)
        answer(script, overrides)
    made.alone = (script, str(found)) if whole and not _states_size(parsed) else None
    far = (DECIDES | FAR) - {"**"}
    lost = [key for key in dict.fromkeys(script.computed) if key in far - script.by_device]
    made.trainer = script.trainer if whole else ""
    made.values = {key: value for key, value in script.values.items() if value not in ("", None)}
    if not made.trainer and by_flags:
        made.options = None
    if not made.trainer:  # its arguments are made of flags: its own defaults of them count
        more = () if by_flags else _OF_LOOPS
        made.values = {**option_defaults(text, str(found), more), **made.values}
        away = "get_peft_config" not in calls and any(map(_ADAPTERS.search, own.values()))
        if away and made.values.get("use_peft") is False:
            del made.values["use_peft"]  # its adapters may be another file's
    if len([flag for flag in parsed.values if _MODEL.search(flag)]) > 1:
        made.values.pop("model_name_or_path", None)  # of several models it trains one
    made.read, made.total = script.flags_read, script.total
    made.uncounted = [
        Uncounted(f"{found.name}: {key}", "computed", "not read, as nothing is executed",
                  *COMPUTED_SD)
        for key in lost if not _names_of(key) & set(parsed.values)
    ]  # fmt: skip
    told = options | set(parsed.values)  # of what a flag says, the flag is read
    unseen = [each for each in script.unseen if each.value != "computed" or each.key not in told]
    made.uncounted += unseen if script.trainer or by_flags else _own_loop(made, text, parsed.values)
    made.uncounted += _set_anew(text, found.name, parsed.values) if by_flags else []
    made.uncounted += [] if script.trainer or by_flags else _made_elsewhere(made, own)
    return made


def _refuse_off(found: Path, text: str, flags: dict[str, Any], modules: dict[str, str]) -> None:
    """Raise InputError for a script of several tasks that the flags do not ask to train."""
    from autotune.trainers.syntax.python_loop import switched_off

    if off := switched_off(text, str(found), flags, list(modules.values())):
        msg = f"{found.name} trains only where {off}, which the command does not say"
        raise InputError(msg, "add the flag that switches it on, or name the command that trains")


def _made_elsewhere(made: Started, modules: dict[str, str]) -> list[Uncounted]:
    """Which of a script's own modules makes the arguments, where the script itself makes none."""
    from autotune.trainers.syntax.python_arguments import ARGUMENTS, called

    maker = next((own for own, text in modules.items() if called(text, own) & set(ARGUMENTS)), "")
    why = (
        "what that file makes of the flags is not read: adapters, bits, lengths; --set states them"
    )
    away = maker and not made.loop
    return [Uncounted(made.name, f"trains in {maker}", why, *COMPUTED_SD)] if away else []


def _names_of(key: str) -> set[str]:
    """Every name of a setting: what is computed and has a flag is taken from that."""
    if key == OWN_LENGTH:
        return {*MAX_LENGTH, *OWN_FLAGS["length"]}
    if key in _SAID_BY_FLAG:
        return {key, *_SAID_BY_FLAG[key]}
    return {key} | next((names for names in _SAME if key in names), set())


def _own_loop(made: Started, text: str, flags: dict[str, Any]) -> list[Uncounted]:
    """A script that makes no arguments and hands nothing to a trainer, but trains."""
    from autotune.trainers.syntax.python_loop import logits_of, own_loop
    from autotune.trainers.syntax.python_settings import tree_of
    from autotune.trainers.syntax.python_values import Values

    how = own_loop(made.calls)
    if not how:
        return []
    tree = tree_of(text, made.name)
    stated = Values(tree, flags=flags)
    made.loop, made.logits = True, logits_of(stated.reached(tree), stated)
    why = "a training loop of its own: priced as if the Trainer ran it with these flags"
    return [Uncounted(made.name, how, why, *_OWN_LOOP_SD)]


def _set_anew(text: str, name: str, flags: dict[str, Any]) -> list[Uncounted]:
    """What it sets on the arguments after it has read the flags, where these say otherwise."""
    from autotune.trainers.syntax.python_arguments import set_anew
    from autotune.trainers.syntax.python_settings import tree_of
    from autotune.trainers.syntax.python_values import Values

    tree = tree_of(text, name)
    why = "set by the script after it has read the flags, which are what is priced"
    return [
        Uncounted(f"{name}: {key}", "computed" if value is None else shown(value), why,
                  *COMPUTED_SD)
        for key, value in set_anew(tree, Values(tree)).items()
        if value is None or str(flags.get(key, False)).casefold() != str(value).casefold()
    ]  # fmt: skip


def read_as(script: Started, trainer: str, flags: dict[str, Any]) -> str:
    """The trainer in whose words the flags are read; empty: none.

    A loop of its own has the Trainer's defaults, and none of TRL's, whatever its flags are called.

    Args:
        script: what the command starts.
        trainer: whose flags they look like; empty: nobody's.
        flags: of the command.
    """
    if script.trainer or not script.loop:
        return script.trainer or trainer
    said = {*flags, *script.values}
    rows = {"per_device_train_batch_size", *OWN_BATCH["micro_batch_size"]}
    decoder = any(_DECODER.fullmatch(name) for name in script.calls)
    return "hf" if trainer or (decoder and rows & said) else ""


def joined(flags: dict[str, Any], script: Started, overrides: Overrides) -> dict[str, Any]:
    """The command's flags with what its script makes of them.

    Where both state one setting under two names, the script's word counts if it makes the
    arguments itself, and else the flag's.

    Raises InputError where the script alone decides the run, and computes what decides it.
    """
    if script.alone is not None:
        refuse_computed(*script.alone, overrides, loads=False, started=True)
    left, more = dict(flags), dict(script.values)
    if more.get("dtype") == "float32":  # whatever a flag says: the script's own word comes later
        left = {key: value for key, value in left.items() if key not in {"dtype", "torch_dtype"}}
    if "full" in {str(flags.get(name)).casefold() for name in OWN_FLAGS["method"]}:
        # What the script does of an adapter it does where the flag says another way.
        more = {k: v for k, v in more.items() if not of_adapters(k)}
    for names in _SAME:
        stated, own = names & set(left), names & set(more)
        if stated and own and script.trainer:
            left = {key: value for key, value in left.items() if key not in stated}
        elif stated:
            more = {key: value for key, value in more.items() if key not in own}
    return {**left, **more} if script.trainer else {**more, **left}


def keep_unsaid(made: Parsed, script: Started, flags: dict[str, Any]) -> None:
    """Knobs that no flag of the script says: they stay as they are, and are not written."""
    if script.options is None:
        return
    words = {knob: tuple(word.key for word in WORDS.get(knob, ())) for knob in WORDS} | _SAID_BY
    for knob, names in words.items():  # the first is the one that is written where none stands
        if not set(names) & set(flags) and not set(names[:1]) & script.options:
            made.kept.add(knob)


def note_script(made: Parsed, script: Started, flags: dict[str, Any], overrides: Overrides) -> None:
    """Say what the script added, and take what the user states of what it computes."""
    stand_in(made, overrides, script.lost)
    made.silent = script.silent and not {"dtype", "torch_dtype"} & set(flags)
    if script.total:
        made.global_batch = made.batch_on(1)
    if script.logits is not None:
        made.loss, made.plain = script.logits.loss, not script.logits.autocast
    read = script.read - set(script.values)
    made.uncounted = [each for each in made.uncounted if each.key not in read]
    more = {key: value for key, value in script.values.items() if key not in flags}
    if more:
        listed = ", ".join(f"{key} {shown(value)}" for key, value in more.items())
        made.note(script.name, listed[:300], "what the script that is started says itself")
    full = made.values.get("method", {}).get("kind") == "full"
    made.uncounted += [each for each in script.uncounted if not (full and of_adapters(each.key))]


def left_open(parsed: Command) -> list[Uncounted]:
    """Flags that decide a run, and whose values the shell decides where the script is started."""
    why = "decided where the script is started: not in the price; write it there"
    names = {name for key in FAR | _SHELLS for name in _names_of(key)}
    return [
        Uncounted(flag, value[:60], why, *COMPUTED_SD)
        for flag, value in parsed.values.items()
        if isinstance(value, str) and "$" in value and flag in names
    ]


def no_flags(parsed: Command, name: str, path: Path | None) -> InputError:
    """What a command lacks; where it only starts a script, what that script is."""
    words = (*parsed.program, *(str(value) for value in parsed.values.values()))
    unset = next((word for word in words if _UNSET.fullmatch(word)), "")
    if unset and path is not None:
        hint = "it is decided where the script is started: give the file it stands for as JOB"
        return InputError(f"{name} starts {unset}, and does not say what that is", hint)
    if path is None and not parsed.values:
        msg = f"{name} has no --flags of a trainer"
        if (near := script_of(parsed, path)) is not None:
            return InputError(msg, f"give {near.name} as JOB: it may hold the trainer's arguments")
        hint = 'such as "python train.py --per_device_train_batch_size 4"'
        return InputError(f"{msg}, and the script that it starts is not here", hint)
    if path is None or _states_size(parsed):
        known = "TrainingArguments, SFTConfig, LLaMA-Factory or ms-swift"
        msg = f"{name} holds no flags of {known}: {', '.join(list(parsed.values)[:6])}"
        hint = 'such as "python train.py --per_device_train_batch_size 4"'
        return NoTraining(msg, f"give the trainer's own file as JOB; or flags, {hint}")
    msg = f"{name} holds 0 launch commands with a batch size, epochs or steps"
    near = script_of(parsed, path)
    if near is None:
        return NoTraining(msg, 'give the command itself: --from-args "python train.py --..."')
    return NoTraining(msg, f"it starts {near.name}: give that script as JOB, or its settings")


def refuse_filled(parsed: Command, text: str, name: str, path: Path | None) -> None:
    """Raise InputError where every flag is in a variable that the script fills by a program."""
    filled = [each for each in parsed.unknown if each not in {"$@", "$*"}]
    known = parsed.values or set(parsed.words) - set(parsed.unknown)
    if path is None or known or not filled or script_of(parsed, path) is not None:
        return
    near = (near_file(found, path) for found in dict.fromkeys(_NAMED.findall(text)))
    file = next((each for each in near if each is not None), None)
    msg = f"{name} starts {' '.join(parsed.program)} with {filled[0]}, which it computes"
    hint = f"it names {file}: give that as JOB" if file else "give the flags: --from-args"
    raise InputError(msg, hint)


def note_away(made: Parsed, parsed: Command, path: Path) -> None:
    """That a program of people's own is not here, which decides what no flag says."""
    named = next((word for word in parsed.program if word.endswith(".py")), "")
    if made.trainer in {"hf", "trl"} and named and script_of(parsed, path) is None:
        why = "its own defaults, its adapters and its code are not in the price"
        made.note(named, "not found", why)


def launch_unsaid(parsed: Command) -> list[Uncounted]:
    """What of the machines and devices nothing here says: how many, or that there is none."""
    from autotune.trainers.launch.processes import nodes_of, unknown_nodes, visible_devices

    found = []
    if nodes := unknown_nodes(parsed):
        why = "nothing here says how many machines: one is counted, and its batch; write the number"
        found.append(Uncounted("machines", nodes, why, 0.0, 0.0))
    elif (several := nodes_of(parsed)) > 1:
        why = "counted as one with all of their devices: a job file states nodes and their network"
        found.append(Uncounted("machines", str(several), why, *_SEVERAL_SD))
    stated = [str(parsed.launcher.get(name, "")) for name in ("nproc_per_node", "num_processes")]
    computed = next((value for value in stated if value.startswith("$")), "")
    if computed and visible_devices(parsed):
        why = "not computed: as many as CUDA_VISIBLE_DEVICES names are counted"
        found.append(Uncounted("processes", computed, why, 0.0, 0.0))
    visible = parsed.environment.get("CUDA_VISIBLE_DEVICES", "all")
    if visible.strip("'\" ") in {"-1", ""}:
        why = "hides every device: such a run is on the processor, and is priced on a device"
        found.append(Uncounted("CUDA_VISIBLE_DEVICES", "-1", why, *_HIDDEN_SD))
    return found
