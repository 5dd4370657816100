"""Literals of `SFTConfig(...)`, `LoraConfig(...)` and the like in a Python file, never executed.

Read are keywords whose values the file itself says. What is computed is listed as not read.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from autotune.trainers.hf.keys import BY_SCRIPT, CHECKPOINTING, OWN_LENGTH, PADS, PREPARED, WORDS
from autotune.trainers.schema import schema_of
from autotune.trainers.syntax.python_arguments import (
    ARGUMENTS,
    PAIRED,
    TRAINERS,
    Call,
    calls_of,
    first_training,
    holds_either,
    is_sized,
    made_beside,
    named_by,
    no_arguments,
)
from autotune.trainers.syntax.python_beside import (
    MAPPED,
    WIDENED,
    computing_in,
    cut_at,
    filled,
    in_branches,
    pads,
    prepares,
    recomputes,
    set_later,
    told_elsewhere,
    widens,
)
from autotune.trainers.syntax.python_loop import trains_in_full
from autotune.trainers.syntax.python_options import in_few_bits
from autotune.trainers.syntax.python_settings import (
    imported_tree,
    last_name,
    only_filled,
    own_default,
    tree_of,
)
from autotune.trainers.syntax.python_unseen import (
    Seen,
    dropped,
    needs_logits,
    other_storage,
    unseen,
)
from autotune.trainers.syntax.python_values import Values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.domain.job import Uncounted

_SAME = ("lora_alpha", "lora_dropout", "use_dora", "use_rslora", "modules_to_save")
_LORA = {"r": "lora_r", "target_modules": "lora_target_modules", **{key: key for key in _SAME}}
_PEFT = {"lora_r": "r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout"}
_TRAINER_KEYS = {"max_seq_length", "packing", "dataset_num_proc"}  # of SFTTrainer before trl 0.13
_PAIRED_KEYS = {"max_length", "max_prompt_length", "beta", "loss_type"}  # of those before trl 0.9
_LENGTHS = {"max_length", "max_seq_length", "model_max_length"}
_BITS = {"load_in_4bit", "load_in_8bit"}
_MODEL_KEYS = {
    "model_name", "pretrained_model_name_or_path", "attn_implementation", "dtype", "torch_dtype",
    "load_in_4bit", "load_in_8bit", "max_seq_length", "full_finetuning", "load_in_16bit",
    "use_flash_attention_2",
}  # fmt: skip
_RENAMED = {
    "model_name": "model_name_or_path", "pretrained_model_name_or_path": "model_name_or_path",
    "torch_dtype": "dtype",
}  # fmt: skip
_OWN_KEYS = {
    "BitsAndBytesConfig": {*_BITS, "bnb_4bit_quant_type", "bnb_4bit_use_double_quant"},
    "train_test_split": {"test_size"},
}  # fmt: skip


# A flag that only chooses a branch is read where it speaks of what is read in there.
_HOLDS = re.compile(r"lora|peft|quant|bit|checkpoint")


@dataclass(slots=True)
class Script:
    """What a script's calls state, by the names that arguments have on a command line."""

    trainer: str  # hf, trl or unsloth
    values: dict[str, Any] = field(default_factory=dict)
    computed: list[str] = field(default_factory=list)
    fallbacks: dict[str, Any] = field(default_factory=dict)  # of what is computed: its own default
    defaulted: dict[str, str] = field(default_factory=dict)  # what it leaves, and to whom
    by_default: list[str] = field(default_factory=list)  # worth what the script has as a default
    keywords: dict[str, ast.keyword] = field(default_factory=dict)
    calls: dict[str, ast.Call] = field(default_factory=dict)  # arguments, model, by_name
    flags_read: set[str] = field(default_factory=set)  # of the command, that say something of it
    sft: bool = False  # an SFTTrainer trains
    total: bool = False  # its accumulation is that of all processes together
    again: tuple[int, ...] = ()  # lines on which it begins another training
    unread: list[tuple[str, ast.keyword]] = field(default_factory=list)  # by the call's name
    unseen: list[Uncounted] = field(default_factory=list)  # what it does that nothing evaluates
    by_device: set[str] = field(default_factory=set)  # of what is computed, what the device decides


def parse_script(
    text: str,
    name: str,
    settings: dict[str, Any] | None = None,
    flags: dict[str, Any] | None = None,
    *,
    by_flags: bool = False,
    beside: Sequence[str] = (),
) -> Script:
    """The literals of a script. Raises InputError where it states no arguments.

    Args:
        text: the script.
        name: what errors call it.
        settings: what the file says that the script loads its settings from.
        flags: of the command that starts it.
        by_flags: whether its arguments may be made of flags alone: what else it calls is read.
        beside: the texts of its own modules.
    """
    tree = tree_of(text, name)
    modules = [imported_tree(each, name) for each in beside]
    stated = Values(tree, settings, flags, [n for each in modules for n in ast.walk(each)])
    theirs = made_beside(tree, modules, stated)
    nodes = [*theirs, *stated.reached(tree)]
    whole = ast.Module([*tree.body, *(b for m in modules for b in m.body)], []) if theirs else tree
    calls, several = calls_of(tree, nodes)
    either = holds_either({c.node for c in calls} - set(stated.reached(tree, surely=True)))
    splits = [call.node for call in calls if call.name == "train_test_split"]
    calls, again = first_training(calls, stated, tree)
    arguments = [call for call in calls if call.name in ARGUMENTS]
    trains = "train" in {getattr(node, "attr", "") for node in ast.walk(tree)}
    sized = bool(arguments) and (trains or any(is_sized(call) for call in arguments))
    if not sized and not by_flags:
        raise no_arguments(tree, name, made=bool(arguments))
    unsloth = any(call.unsloth for call in calls)
    kind = ARGUMENTS[arguments[0].name] if sized else ""
    made = Script("unsloth" if unsloth else kind, again=again)
    made.sft = any(call.name == "SFTTrainer" for call in calls)
    for call in calls:
        _add(made, call, stated, whole)
    _take_one_split(made, splits)
    for key, value in set_later(tree, [call.node for call in arguments]):
        _put(made, key, value, stated) if key not in _KNOBS else made.computed.append(key)
    _take_defaults(made, calls, nodes, tree)
    if several and not made.values.get("load_in_8bit"):
        made.computed.append("load_in_4bit")
    if not _BITS & {*made.values, *made.computed}:
        made.computed += ["load_in_4bit"] if either else []
        lost = told_elsewhere(made.calls.get("model"), nodes, stated) and not other_storage(nodes)
        made.computed += ["load_in_4bit"] if lost else []
    first = {call.name: call.node for call in calls[::-1]}
    if not {"bf16", "fp16", "**"} & set(made.computed):
        made.values |= computing_in(first.get("BitsAndBytesConfig"), stated)
    certain = {node for each in modules for node in stated.reached(each, surely=True)}
    open_to = {name: call for name, call in first.items() if call not in certain}
    branches, plain = in_branches(tree, stated, open_to)
    made.unseen += branches
    if plain and made.calls.get("model"):
        made.values.setdefault("use_peft", False)
    if needs_logits(made.unread):
        made.values.setdefault("compute_metrics", True)
    few = by_flags and in_few_bits(flags or {}, nodes)
    _add_beside(made, (tree, *modules), nodes, stated, set(settings or {}), few=few)
    made.unseen += _unseen(made, tree, nodes, stated, tuple(modules))
    made.flags_read = stated.flags_read | {f for f in stated.flags_tested if _HOLDS.search(f)}
    counted = made.keywords.get("gradient_accumulation_steps")
    made.total = counted is not None and getattr(counted.value, "id", "") in stated.split
    return made


# What Unsloth's own classes of TRL's arguments ask for where a script says nothing.
# Source: unsloth 2026.10.9 models/rl.py _patch_trl_rl_trainers, `replacements`.
UNSLOTHS: Final = {
    "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "optim": "adamw_8bit",
    "per_device_eval_batch_size": 4,
}  # fmt: skip


def _take_defaults(
    made: Script, calls: list[Call], nodes: list[ast.AST], tree: ast.Module
) -> None:  # fmt: skip
    """What PEFT's and Unsloth's classes are worth where the script leaves it to them.

    Unsloth's are TRL's by the time that the script makes its arguments. An adapter that trains on
    has another file's rank and modules.
    """
    said, found = {*made.values, *made.computed}, dict[str, tuple[str, Any]]()
    named = {call.name for call in calls}
    if made.trainer == "unsloth" and _patches(tree) and "**" not in said:
        theirs = any(name in ARGUMENTS and name.endswith("Config") for name in named)
        found |= {key: ("Unsloth", value) for key, value in UNSLOTHS.items() if theirs}
    if "LoraConfig" in named:
        found |= {key: ("PEFT", schema_of("peft").default(name)) for key, name in _PEFT.items()}
    elif "lora_r" not in said and any(_continues(node) for node in nodes):
        made.values.setdefault("use_peft", True)
        made.computed += ["lora_r", "lora_target_modules"]
    made.defaulted = {key: whose for key, (whose, _) in found.items() if key not in said}
    made.values |= {key: found[key][1] for key in made.defaulted}


def _patches(tree: ast.Module) -> bool:
    """Whether Unsloth is imported before TRL's arguments are: it puts its own in their place."""
    lines: dict[str, int] = {}
    for node in ast.walk(tree):
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else names
        for name in names:
            lines.setdefault(str(name).partition(".")[0], getattr(node, "lineno", 0))
    return lines.get("unsloth", sys.maxsize) < lines.get("trl", sys.maxsize)


def _continues(node: ast.AST) -> bool:
    """`PeftModel.from_pretrained(model, folder, is_trainable=True)`: an adapter trains on."""
    if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "from_pretrained":
        return False
    told = {key.arg: getattr(key.value, "value", None) for key in node.keywords}
    return "Peft" in ast.unparse(node.func) and told.get("is_trainable") is True


def _add_beside(
    made: Script, trees: Sequence[ast.Module], nodes: list[ast.AST], stated: Values,
    settings: set[str], *, few: bool,
) -> None:  # fmt: skip
    """What it does beside its calls. settings: names in what it loads; few: flags say few bits."""
    tree, quantised = trees[0], few or any(made.values.get(key) for key in _BITS)
    own = made.trainer != "unsloth" and not quantised  # few bits have their adapters elsewhere
    if own and trains_in_full(tree, settings, named="model_name_or_path" in made.values):
        made.values.setdefault("use_peft", False)
    plain = made.trainer == "hf" or (not made.trainer and not made.sft)
    if plain and not _LENGTHS & {*made.values, *made.computed}:
        cut, lost = next(filter(any, (cut_at(each, stated) for each in trees)), (None, False))
        made.values |= {"max_length": cut} if cut is not None else {}
        made.computed += [OWN_LENGTH] if lost else []
    most = next((made.values[key] for key in _LENGTHS if key in made.values), None)
    made.unseen += dropped(nodes, stated, most)
    if filled_up := next(filter(None, (pads(each, stated) for each in trees)), ""):
        made.values[PADS] = True
        made.unseen += [MAPPED] if filled_up == MAPPED.value else []
    if made.trainer != "unsloth" and recomputes(nodes, stated, quantised=quantised):
        _recompute(made)
    made.values |= {PREPARED: True} if quantised and prepares(nodes, made.trainer) else {}
    surely, model = stated.reached(tree, surely=True), made.values.get("model_name_or_path", "")
    known = not {*_BITS, "**"} & set(made.computed)
    if own and known and widens(surely, str(model)):
        made.values["dtype"] = "float32"
        made.computed = [key for key in made.computed if key != "dtype"]
        made.unseen.append(WIDENED)


def _unseen(
    made: Script, tree: ast.Module, nodes: list[ast.AST], stated: Values,
    modules: tuple[ast.Module, ...],
) -> list[Uncounted]:  # fmt: skip
    """What it does that nothing here evaluates."""
    names = {last_name(node) for node in ast.walk(tree)}
    starts = bool(names & _STARTS) or any(name.endswith("Trainer") for name in names)
    adapted = made.trainer == "unsloth" or made.values.get("use_peft") is True
    held = {"model_name_or_path", *_BITS} & {*made.values, *made.computed}
    return unseen(tree, nodes, made.unread, stated, of=Seen(
        full=not adapted, packed=made.values.get("packing") is True, once=not made.again,
        elsewhere=made.trainer in {"hf", "trl"} and "model" not in made.calls and not held,
        trains=starts or "arguments" not in made.calls, modules=modules,
    ))  # fmt: skip


def _take_one_split(made: Script, splits: list[ast.Call]) -> None:
    """Of several, which is made of the rows that are trained on is not known, where they differ."""
    sizes = {ast.unparse(k.value) for call in splits for k in call.keywords if k.arg == "test_size"}
    if len(sizes) > 1:
        made.values.pop("test_size", None)
        made.computed.append("test_size")


# What starts a training, which a file that makes a trainer may leave to another.
_STARTS = {"train", "fit", "_inner_training_loop", "training_step", "hyperparameter_search"}
# What is set on the arguments once they are made, and could not be changed where they are made.
_KNOBS = {key for words in WORDS.values() for key in (word.key for word in words)}


def _recompute(made: Script) -> None:
    """The model's own call recomputes, whatever the arguments say: they never switch it off."""
    new, old = CHECKPOINTING
    key = new if new in made.values else old
    if key not in made.computed:
        made.values[key] = BY_SCRIPT
        made.by_default = [each for each in made.by_default if each != key]


def _add(made: Script, call: Call, stated: Values, tree: ast.Module) -> None:
    is_arguments = call.name in ARGUMENTS
    if is_arguments:
        made.calls["arguments"] = call.node
    elif call.name == "from_pretrained":
        made.calls["model"] = call.node
        if call.node.args:
            _put(made, "model_name_or_path", call.node.args[0], stated)
    elif call.name in TRAINERS:
        _add_trainer(made, call, stated)
    elif call.name in {"LoraConfig", "get_peft_model"}:
        made.values.setdefault("use_peft", True)
    for keyword in call.node.keywords:
        key = _key(call, keyword.arg)
        if key is not None and _put(made, key, keyword.value, stated):
            made.keywords[key] = keyword
        elif keyword.arg is None:
            _add_unpacked(made, call, keyword.value, stated, tree)
        elif key is None:
            made.unread.append((call.name, keyword))


def _add_trainer(made: Script, call: Call, stated: Values) -> None:
    """`SFTTrainer(model="name", model_init_kwargs={...})` loads the model itself."""
    if name := named_by(call, stated):
        made.values.setdefault("model_name_or_path", name)
        made.calls["by_name"] = call.node
    loading = [key.value for key in call.node.keywords if key.arg == "model_init_kwargs"]
    for key, value, _ in (stated.entries(loading[0]) or []) if loading else []:
        if _RENAMED.get(key, key) in _MODEL_KEYS | _BITS:
            _put(made, _RENAMED.get(key, key), value, stated)


def _add_unpacked(
    made: Script, call: Call, node: ast.expr, stated: Values, tree: ast.Module
) -> None:
    """`**{...}`: read where it is a literal; otherwise anything may be in it."""
    entries = stated.entries(node)
    put = filled(stated.reached(tree), node) if entries is None else []
    if (
        entries is None
        and call.name in ARGUMENTS
        and not (put and only_filled(ast.walk(tree), node))
    ):
        made.computed.append("**")
        put = []
    surely = {value for _, value in filled(stated.reached(tree, surely=True), node)} if put else ()
    for name, value in put:
        key = _key(call, name)
        known, worth = stated.literal(value)
        if key is not None and not (known and made.values.get(key) == worth):
            # two values of one key, or a condition that is not known: the script decides
            decided = key in made.values or value not in surely
            made.computed.append(key) if decided else _put(made, key, value, stated)
        elif key is None:
            made.unread.append((call.name, ast.keyword(name, value)))
    for name, value, place in entries or []:
        key = _key(call, name)
        if key is None:
            made.unread.append((call.name, ast.keyword(name, value)))
        elif _put(made, key, value, stated):
            made.keywords[key] = place


def _key(call: Call, name: str | None) -> str | None:
    """What a call's keyword is on a command line; None where it decides nothing here."""
    if name is None or call.name in ARGUMENTS:
        return name
    if call.name in {"LoraConfig", "get_peft_model"}:
        return name if name == "use_gradient_checkpointing" else _LORA.get(name)
    if name in _RENAMED:
        return _RENAMED[name]
    kept = _OWN_KEYS.get(call.name, _MODEL_KEYS)
    if call.name in TRAINERS:
        kept = _PAIRED_KEYS if call.name in PAIRED else _TRAINER_KEYS
    return name if name in kept else None


def _put(made: Script, key: str, node: ast.expr, stated: Values) -> bool:
    stated.defaults.clear()
    literal, value = stated.literal(node)
    if literal:
        made.values[key] = value
        made.by_default += [key] if stated.defaults else []
    else:
        made.computed.append(key)
        known, own = stated.literal(own_default(node))
        made.fallbacks |= {key: own} if known and isinstance(own, int | float) else {}
        made.by_device |= {key} if stated.asks_device(node) else set()
    return literal
