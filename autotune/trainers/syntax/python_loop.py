"""A training loop of a script's own, what its loss makes of the logits; a training begun again.

Also whether it trains all weights, as nothing in it speaks of adapters or TRL puts none on.

Nothing is executed: calls and attributes are looked at as they stand.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from autotune.trainers.syntax.python_settings import callee, last_name, tree_of
from autotune.trainers.syntax.python_values import Values

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_TRAINERS = {"Trainer", "Seq2SeqTrainer", "SFTTrainer", "DPOTrainer", "KTOTrainer", "ORPOTrainer"}
_OF_TRANSFORMERS = {"Trainer", "Seq2SeqTrainer"}
_LIGHTNING = {"LightningModule", "LightningDataModule"}
# TRL's own way: its function makes the adapter of its arguments, whose use_peft is off unless said.
# Source: trl 1.16 trainer/model_config.py (use_peft), trainer/utils.py get_peft_config.
_BY_TRL = {"ModelConfig", "get_peft_config"}
_OF_TRL = {"get_peft_config", "peft_config", "use_peft"}
_LOSSES = {"cross_entropy", "CrossEntropyLoss", "log_softmax"}
_WIDENS = {"float", "double"}
_NARROW = {"bfloat16", "float16", "half"}
_LOGITS = re.compile(r"logits?\b|\bout(put)?s?\.logits", re.IGNORECASE)


class Logits(NamedTuple):
    """The loss in the words of `Software.loss`, and whether 16-bit compute runs under autocast."""

    loss: str
    autocast: bool


def without_arguments(tree: ast.Module) -> str:
    """A trainer of TRL's that is told no `args`; empty where there is none."""
    own = {name for name in _TRAINERS if name not in _OF_TRANSFORMERS}
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or len(call.args) > 1:
            continue
        name = str(getattr(call.func, "id", ""))
        if name in own and not {key.arg for key in call.keywords} & {"args", None}:
            return name
    return ""


def own_loop(calls: set[str]) -> str:
    """How a file that uses these names trains without any trainer that is read; empty: it has one.

    Lightning's trainer is nobody's here: its loop is Lightning's, and its step the script's.
    """
    if lightning := calls & _LIGHTNING:
        return min(lightning)
    return "backward()" if "backward" in calls and not calls & _TRAINERS else ""


def logits_of(nodes: Iterable[ast.AST], stated: Values) -> Logits | None:
    """What the loss of a loop holds of the logits; None where the script does not show it.

    A loss that the model makes itself (`outputs.loss`) widens the logits, as the price has it. So
    does accelerate's mixed precision, whose models answer in fp32: accelerate 1.15 accelerator.py,
    prepare_model, convert_outputs_to_fp32.
    """
    every = list(nodes)
    names = {callee(node) for node in every if isinstance(node, ast.Call)}
    of_model = any(isinstance(node, ast.Attribute) and node.attr == "loss" for node in every)
    if not names & _LOSSES or of_model or _mixed(every, stated):
        return None
    if any(_widens(node, stated) for node in every):
        return None
    autocast = _autocasts(every, stated)
    if not autocast and not any(_narrows(node, stated) for node in every):
        return None  # fp32 throughout, or a dtype that is computed
    return Logits("native", autocast)


def _dtype(node: ast.expr, stated: Values) -> str:
    known, value = stated.literal(node)
    return str(value).removeprefix("torch.") if known else ""


def _widens(node: ast.AST, stated: Values) -> bool:
    """`logits.float()`, `outputs.logits.to(torch.float32)`."""
    function = node.func if isinstance(node, ast.Call) else None
    if not isinstance(function, ast.Attribute) or not isinstance(node, ast.Call):
        return False
    if not _LOGITS.search(ast.unparse(function.value)):
        return False
    to = [*node.args, *(key.value for key in node.keywords if key.arg == "dtype")]
    wide = any(_dtype(each, stated) in {"float32", "float"} for each in to)
    return function.attr in _WIDENS or (function.attr == "to" and wide)


def _mixed(nodes: Iterable[ast.AST], stated: Values) -> bool:
    """`Accelerator(...)` in mixed precision, or in what the launcher says."""
    for node in nodes:
        if isinstance(node, ast.Call) and callee(node) == "Accelerator":
            said = [key.value for key in node.keywords if key.arg == "mixed_precision"]
            if not said or stated.literal(said[0]) != (True, "no"):
                return True
    return False


def _autocasts(nodes: Iterable[ast.AST], stated: Values) -> bool:
    for node in nodes:
        if isinstance(node, ast.Call) and callee(node) == "autocast":
            off = [key.value for key in node.keywords if key.arg == "enabled"]
            if not off or stated.literal(off[0]) != (True, False):
                return True
    return False


def _narrows(node: ast.AST, stated: Values) -> bool:
    """A model that is loaded in 16 bit, or made so: `torch_dtype=`, `.to(torch.bfloat16)`."""
    if not isinstance(node, ast.Call):
        return False
    told = [key.value for key in node.keywords if key.arg in {"dtype", "torch_dtype"}]
    called = callee(node)
    if called in {"bfloat16", "half"} and isinstance(node.func, ast.Attribute):
        return "model" in ast.unparse(node.func.value).casefold()
    if called == "to" and isinstance(node.func, ast.Attribute):
        of_model = "model" in ast.unparse(node.func.value).casefold()
        told = [*told, *node.args] if of_model else []
    elif called not in {"from_pretrained", "from_config"}:
        return False
    return any(_dtype(each, stated) in _NARROW for each in told)


_DEEPEST = 4  # functions that call each other


def repeats(tree: ast.Module) -> int:
    """The line of a training that the script begins several times; 0 where it begins one once."""
    around = _around(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and is_training(node) and _several(node, around, tree, 0):
            return node.lineno
    return 0


def loops_beside(tree: ast.Module) -> str:
    """The lines on which a script steps back by itself, outside every class: beside a trainer."""
    inside = {
        n for each in ast.walk(tree) if isinstance(each, ast.ClassDef) for n in ast.walk(each)
    }
    lines = {
        node.lineno for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node not in inside
        and getattr(node.func, "attr", "") == "backward"
    }  # fmt: skip
    return ", ".join(map(str, sorted(lines)))


def bound_last(tree: ast.Module, trainer: ast.Call, loads: list[ast.Call]) -> ast.Call | None:
    """Of several loads that are bound to the name that a trainer is handed, the last before it.

    Only where they stand one after the other in one block: a branch may not be taken. None: one.
    """
    told = [*(key.value for key in trainer.keywords if key.arg == "model"), *trainer.args[:1]]
    name = next((each.id for each in told if isinstance(each, ast.Name)), "")
    for block in ast.walk(tree):
        if isinstance(block, ast.Module | ast.FunctionDef):
            found = [
                node.value for node in block.body
                if isinstance(node, ast.Assign) and node.value in loads
                and node.lineno < trainer.lineno and name in _bound_by(node)
            ]  # fmt: skip
            if len(found) > 1:
                return next(each for each in loads if each is found[-1])
    return None


def _bound_by(node: ast.Assign) -> set[str]:
    return {getattr(each, "id", "") for target in node.targets for each in ast.walk(target)}


def switched_off(text: str, name: str, flags: Mapping[str, Any], beside: Iterable[str] = ()) -> str:
    """The condition that keeps a script from training with a command's flags; empty: none does.

    Looked at is where the function that trains is called, as scripts of several tasks call it.

    Args:
        text: the script.
        name: what errors call it.
        flags: of the command.
        beside: the texts of its own modules, which may describe its options.
    """
    tree = tree_of(text, name)
    others = [node for each in beside for node in ast.walk(tree_of(each, name))]
    stated = Values(tree, flags={**flags}, beside=others)
    runs = set(stated.reached(tree))
    within = {
        function.name for function in ast.walk(tree) if isinstance(function, ast.FunctionDef)
        if any(isinstance(node, ast.Call) and is_training(node) for node in ast.walk(function))
    }  # fmt: skip
    starts = [
        node for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in within
    ]  # fmt: skip
    if not starts or any(node in runs for node in starts):
        return ""
    asks = [node for node in runs if isinstance(node, ast.If) and starts[0] in ast.walk(node)]
    near = min(asks, key=lambda node: sum(1 for _ in ast.walk(node)), default=None)
    return ast.unparse(near.test)[:60] if near is not None else ""


def is_training(node: ast.Call) -> bool:
    """Whether it is `trainer.train()`."""
    function = node.func
    if not isinstance(function, ast.Attribute) or function.attr != "train":
        return False
    owner = function.value
    name = getattr(owner, "id", getattr(owner, "attr", ""))
    made = str(
        getattr(
            getattr(owner, "func", None), "attr", getattr(getattr(owner, "func", None), "id", "")
        )
    )
    return bool(re.search("trainer", f"{name}{made}", re.IGNORECASE))


def _around(tree: ast.Module) -> dict[ast.AST, ast.AST]:
    return {inner: node for node in ast.walk(tree) for inner in ast.iter_child_nodes(node)}


def _several(
    node: ast.AST, around: dict[ast.AST, ast.AST], tree: ast.Module, depth: int
) -> bool:  # fmt: skip
    """Whether a loop is around it, or its function is called several times or in a loop."""
    inside: ast.AST | None = node
    while inside is not None and not isinstance(inside, ast.FunctionDef | ast.AsyncFunctionDef):
        if isinstance(inside, ast.For) and len(getattr(inside.iter, "elts", [0, 0])) > 1:
            return True
        inside = around.get(inside)
    if inside is None or depth > _DEEPEST:
        return False
    name = inside.name
    starts = [
        each for each in ast.walk(tree)
        if isinstance(each, ast.Call) and name in (getattr(each.func, "id", ""), _of_self(each))
    ]  # fmt: skip
    apart = {_branch(each, around) for each in starts}
    if len(starts) > 1 and len(apart) < len(starts):
        return True
    return any(_several(each, around, tree, depth + 1) for each in starts)


def _branch(node: ast.AST, around: dict[ast.AST, ast.AST]) -> tuple[ast.AST | None, bool]:
    """The nearest condition or function around a call, and which way: of two one runs."""
    child, inside = node, around.get(node)
    while inside is not None and not isinstance(inside, ast.If | ast.FunctionDef | ast.Try):
        child, inside = inside, around.get(inside)
    return inside, child in getattr(inside, "orelse", [])


def _of_self(node: ast.Call) -> str:
    owned = isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "self"
    return str(getattr(node.func, "attr", "")) if owned else ""


def trains_in_full(tree: ast.Module, settings: Collection[str], *, named: bool) -> bool:
    """Whether it hands a model to a trainer, and no name in it or its settings is of adapters.

    What TRL's arguments make of adapters is the flags' to say, and off where none does.
    named: whether the trainer is told the model by its name.
    """
    names = {last_name(node) for node in ast.walk(tree)}
    names |= {str(node.arg) for node in ast.walk(tree) if isinstance(node, ast.keyword)}
    names |= {str(node.arg) for node in ast.walk(tree) if isinstance(node, ast.arg)}
    names |= {str(key) for key in settings}
    by_trl = _imports(tree, "trl") >= _BY_TRL
    names -= _OF_TRL if by_trl else set()
    trains = "train" in names and any(name.endswith("Trainer") for name in names)
    trains = trains and (named or by_trl or (_loads_model(tree) and not _is_handed(tree)))
    return trains and not any(re.search("lora|peft|adapter", name.casefold()) for name in names)


def _imports(tree: ast.Module, package: str) -> set[str]:
    """Names that a file imports from a package, under those names."""
    return {
        each.name for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == package
        for each in node.names if each.asname in {None, each.name}
    }  # fmt: skip


def _is_handed(tree: ast.Module) -> bool:
    """Whether a trainer's model is an argument of the function that makes it, which others call."""
    called = {getattr(node.func, "id", "") for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or function.name in called:
            continue
        taken = {arg.arg for arg in function.args.args}
        for node in ast.walk(function):
            name = str(getattr(getattr(node, "func", None), "id", ""))
            if isinstance(node, ast.Call) and name.endswith("Trainer"):
                told = [*node.args[:1], *(key.value for key in node.keywords if key.arg == "model")]
                if any(getattr(each, "id", "") in taken for each in told):
                    return True
    return False


def _loads_model(tree: ast.Module) -> bool:
    """Whether the file itself makes a model; what another of its files makes may have adapters."""
    for node in ast.walk(tree):
        function = node.func if isinstance(node, ast.Call) else None
        if getattr(function, "attr", "") in {"from_pretrained", "from_config"}:
            owner = getattr(function, "value", None)
            name = last_name(owner)
            if re.search("Model|LM", name):
                return True
    return False
