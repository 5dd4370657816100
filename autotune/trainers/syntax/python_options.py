"""What a Python script may be told by flags, and what it takes where nobody says otherwise.

Options of argparse, fields of the classes of settings that HfArgumentParser and its like fill, and
arguments of functions.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from autotune.trainers.syntax.python_settings import assigned

Function = ast.FunctionDef | ast.AsyncFunctionDef
# What makes a command line of a function's own arguments.
_OF_FUNCTIONS = {"Fire", "Typer"}


def root(node: ast.AST) -> str:
    """The name that a chain of attributes and entries begins with."""
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return str(getattr(node, "id", ""))


def given_flags(nodes: list[ast.AST], flags: dict[str, Any]) -> dict[str, Any]:
    """Those of a command's flags that the script has an option for, as the option's kind."""
    names = option_names(nodes)
    used = {str(getattr(node, "attr", getattr(node, "id", ""))) for node in nodes}
    if used & _OF_FUNCTIONS:
        names |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return {name: _typed(value) for name, value in flags.items() if name in names}


def option_names(nodes: list[ast.AST]) -> set[str]:
    """Every flag that the script takes."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            found |= {name for name, _ in _argument(node)}
        elif isinstance(node, ast.ClassDef):
            fields = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
            found |= {target.id for target in fields if isinstance(target, ast.Name)}
    return found


def _typed(value: Any) -> Any:  # noqa: ANN401 - any flag's value
    """A number or a truth that was typed as one; several words each by itself."""
    if isinstance(value, list):
        return [_typed(each) for each in value]
    if value in ("True", "False"):
        return value == "True"
    if isinstance(value, str) and re.fullmatch(r"-?\d+", value):
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"-?\d*\.?\d+([eE][-+]?\d+)?", value):
        return float(value)
    return value


def one_of_each(found: list[tuple[str, ast.expr | None]]) -> dict[str, ast.expr]:
    """What every mention of a name agrees on; None: it is something that is not known."""
    every: dict[str, list[ast.expr | None]] = {}
    for name, value in found:
        every.setdefault(name, []).append(value)
    agreed = {}
    for name, values in every.items():
        first = values[0]
        if first is not None and len({ast.dump(v) if v else "" for v in values}) == 1:
            agreed[name] = first
    return agreed


def options(nodes: list[ast.AST]) -> dict[str, ast.expr]:
    """Defaults of argparse and of classes of settings, by attribute; none that is set elsewhere."""
    found: list[tuple[str, ast.expr | None]] = []
    later: list[tuple[str, ast.expr | None]] = []  # `parser.set_defaults(bf16=True)`
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            found += _argument(node)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "set_defaults":
            later += [(keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg]
        elif isinstance(node, ast.ClassDef):
            made = [
                call for call in nodes
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") == node.name
            ]  # fmt: skip
            found += _settings(node, made)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found += [] if root(node) == "self" else [(node.attr, None)]
    anew = {name for name, _ in later}
    stored = {name for name, value in found if value is None and name in anew}
    return one_of_each([pair for pair in found if pair[0] not in anew or pair[0] in stored] + later)


def _argument(node: ast.Call) -> list[tuple[str, ast.expr | None]]:
    stated = {keyword.arg: keyword.value for keyword in node.keywords}
    flags = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
    long = [flag for flag in flags if isinstance(flag, str) and flag.startswith("--")]
    dest = stated.get("dest")
    name = dest.value if isinstance(dest, ast.Constant) else (long or [""])[0]
    action = getattr(stated.get("action"), "value", "")
    value = stated.get("default")
    if value is None and action in {"store_true", "store_false"}:
        value = ast.Constant(action == "store_false")
    return [(str(name).lstrip("-").replace("-", "_"), value)]


def _settings(
    node: ast.ClassDef, made: list[ast.Call]
) -> list[tuple[str, ast.expr | None]]:  # fmt: skip
    """A class's own values, and where it is made with others, those."""
    fields: dict[str, ast.expr | None] = {}
    for each in ast.walk(node):
        target, value = assigned(each)
        if target is None or value is None:
            continue
        name = target.id if isinstance(target, ast.Name) and each in node.body else ""
        if isinstance(target, ast.Attribute) and root(target) == "self":
            name = target.attr
        if name:
            fields[name] = None if name in fields else _default(value)
    for call in made:
        for keyword in call.keywords:
            if keyword.arg in fields or keyword.arg is None:
                once = len(made) == 1 and keyword.arg is not None
                fields[str(keyword.arg)] = keyword.value if once else None
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            fields = dict.fromkeys(fields)
    return list(fields.items())


def _default(value: ast.expr) -> ast.expr | None:
    """What `field(default=8)`, `Field(8)` and `field(default_factory=lambda: [8])` say.

    Any other value as it stands.
    """
    name = getattr(getattr(value, "func", None), "id", getattr(value, "attr", ""))
    if not isinstance(value, ast.Call) or name not in {"field", "Field"}:
        return value
    stated = {keyword.arg: keyword.value for keyword in value.keywords}
    made = stated.get("default_factory")
    if isinstance(made, ast.Lambda) and not made.args.args:
        return made.body
    return stated.get("default", value.args[0] if value.args else None)


def arguments_of(function: Function) -> list[ast.arg]:
    """The arguments of a function, all but the starred ones."""
    stated = function.args
    return [*stated.posonlyargs, *stated.args, *stated.kwonlyargs]


def _gives(call: ast.Call, name: str, place: int | None) -> bool:
    """Whether a call states an argument, by name or by its place."""
    if any(key.arg in {name, None} for key in call.keywords):
        return True
    starred = any(isinstance(arg, ast.Starred) for arg in call.args)
    return starred or (place is not None and bool(call.args) and place < len(call.args))


def parameters(nodes: list[ast.AST], functions: list[Function]) -> dict[str, ast.expr]:
    """Defaults of functions that nobody in the file calls with another value."""
    found: list[tuple[str, ast.expr | None]] = []
    calls: dict[str, list[ast.Call]] = {}
    for node in nodes:
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            calls.setdefault(str(name), []).append(node)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.append((node.id, None))
    for function in functions:
        stated = function.args
        plain = [*stated.posonlyargs, *stated.args]
        bound = 1 if plain and plain[0].arg in {"self", "cls"} else 0
        late = dict(zip([a.arg for a in plain[::-1]], stated.defaults[::-1], strict=False))
        named = zip([a.arg for a in stated.kwonlyargs], stated.kw_defaults, strict=True)
        defaults: dict[str, ast.expr | None] = {**late, **dict(named)}
        for argument in arguments_of(function):
            place = plain.index(argument) - bound if argument in plain else None
            given = any(_gives(call, argument.arg, place) for call in calls.get(function.name, []))
            found.append((argument.arg, None if given else defaults.get(argument.arg)))
    return one_of_each(found)
