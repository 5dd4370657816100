"""A training loop of a script's own, what its loss makes of the logits; a training begun again.

Nothing is executed: calls and attributes are looked at as they stand.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autotune.trainers.syntax.python_values import Values

_TRAINERS = {"Trainer", "Seq2SeqTrainer", "SFTTrainer", "DPOTrainer", "KTOTrainer", "ORPOTrainer"}
_OF_TRANSFORMERS = {"Trainer", "Seq2SeqTrainer"}
_LIGHTNING = {"LightningModule", "LightningDataModule"}
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
    names = {_called(node) for node in every if isinstance(node, ast.Call)}
    of_model = any(isinstance(node, ast.Attribute) and node.attr == "loss" for node in every)
    if not names & _LOSSES or of_model or _mixed(every, stated):
        return None
    if any(_widens(node, stated) for node in every):
        return None
    autocast = _autocasts(every, stated)
    if not autocast and not any(_narrows(node, stated) for node in every):
        return None  # fp32 throughout, or a dtype that is computed
    return Logits("native", autocast)


def _called(node: ast.AST) -> str:
    function = node.func if isinstance(node, ast.Call) else None
    return str(getattr(function, "attr", getattr(function, "id", "")))


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
        if isinstance(node, ast.Call) and _called(node) == "Accelerator":
            said = [key.value for key in node.keywords if key.arg == "mixed_precision"]
            if not said or stated.literal(said[0]) != (True, "no"):
                return True
    return False


def _autocasts(nodes: Iterable[ast.AST], stated: Values) -> bool:
    for node in nodes:
        if isinstance(node, ast.Call) and _called(node) == "autocast":
            off = [key.value for key in node.keywords if key.arg == "enabled"]
            if not off or stated.literal(off[0]) != (True, False):
                return True
    return False


def _narrows(node: ast.AST, stated: Values) -> bool:
    """A model that is loaded in 16 bit, or made so: `torch_dtype=`, `.to(torch.bfloat16)`."""
    if not isinstance(node, ast.Call):
        return False
    told = [key.value for key in node.keywords if key.arg in {"dtype", "torch_dtype"}]
    called = _called(node)
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
