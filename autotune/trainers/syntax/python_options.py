"""What a Python script may be told by flags, and what it takes where nobody says otherwise.

Options of argparse, fields of the classes of settings that HfArgumentParser and its like fill, and
arguments of functions.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeGuard

from autotune.trainers.syntax.python_settings import (
    CHANGES,
    assigned,
    callee,
    last_name,
    root,
    typed_as,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

Function = ast.FunctionDef | ast.AsyncFunctionDef
# What makes a command line of a function's own arguments.
_OF_FUNCTIONS = {"Fire", "Typer"}
_OF_CLASSES = {"HfArgumentParser", "TrlParser", "H4ArgumentParser"}  # and refuse all else


def given_flags(nodes: list[ast.AST], flags: dict[str, Any]) -> dict[str, Any]:
    """Those of a command's flags that the script has an option for, as the option's kind."""
    names = option_names(nodes)
    used = {last_name(node) for node in nodes}
    if used & _OF_FUNCTIONS:
        names |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    names |= set(flags) if used & _OF_CLASSES else set()
    return {name: typed_as(value) for name, value in flags.items() if name in names}


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


def one_of_each(found: list[tuple[str, ast.expr | None]]) -> dict[str, ast.expr]:
    """What every mention of a name agrees on; None: it is something that is not known."""
    every: dict[str, list[ast.expr | None]] = {}
    for name, value in found:
        every.setdefault(name, []).append(value)
    agreed = {}
    for name, values in every.items():
        first, alone = values[0], len(values) == 1
        if first is not None and (alone or len({ast.dump(v) if v else "" for v in values}) == 1):
            agreed[name] = first
    return agreed


def calls_by_name(nodes: Iterable[ast.AST]) -> dict[str, list[ast.Call]]:
    """Every call, by the last name of what it calls."""
    calls: dict[str, list[ast.Call]] = {}
    for node in nodes:
        if isinstance(node, ast.Call):
            calls.setdefault(callee(node), []).append(node)
    return calls


FLAGS, CLASSES, STORED = ast.Call, ast.ClassDef, ast.Attribute  # what makes an option, or sets it


class Options:
    """What argparse and classes of settings default to, by attribute; a file is looked at once."""

    def __init__(self, nodes: Sequence[ast.AST]) -> None:
        """Look at everything that makes an option, or sets one.

        nodes: of the script and of its own modules.
        """
        self._found: list[tuple[type[ast.AST], str, ast.expr | None]] = []  # by what makes it
        self._later: list[tuple[str, ast.expr | None]] = []  # `parser.set_defaults(bf16=True)`
        calls = calls_by_name(nodes)
        for node in nodes:
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                self._found += [(FLAGS, *each) for each in _argument(node)]
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "set_defaults":
                self._later += [(each.arg, each.value) for each in node.keywords if each.arg]
            elif isinstance(node, ast.ClassDef):
                made = [c for c in calls.get(node.name, []) if isinstance(c.func, ast.Name)]
                self._found += [(CLASSES, *each) for each in _settings(node, made)]
            elif isinstance(node, ast.Attribute) and is_stored(node):
                self._found.append((STORED, node.attr, None))

    def defaults(
        self,
        stored: Mapping[str, ast.expr | None] | None = None,
        of: tuple[type[ast.AST], ...] = (FLAGS, CLASSES),
    ) -> dict[str, ast.expr]:
        """What they are, but for those that are set elsewhere.

        Args:
            stored: what attributes are set to where that runs, None for what is not known; where it
                is not given, whatever is set anywhere is not known.
            of: options of argparse alone, or of classes alone.
        """
        kinds = of if stored is not None else (*of, STORED)
        found = [(name, value) for kind, name, value in self._found if kind in kinds]
        later = [*(self._later if FLAGS in of else []), *(stored or {}).items()]
        anew = {name for name, _ in later}
        lost = {name for name, value in found if value is None and stored is None}
        return one_of_each(
            [pair for pair in found if pair[0] not in anew or pair[0] in lost] + later
        )

    def apart(self, stored: Mapping[str, ast.expr | None]) -> tuple[dict[str, ast.expr], ...]:
        """Those of the command line and those of classes, each by itself: some have one name."""
        return self.defaults(stored, (FLAGS,)), self.defaults(stored, (CLASSES,))


_BITS = re.compile(
    r"((load|use|is)_)?(in_)?([48]_?bits?|q_?lora)(_quantization)?|(quant\w*_)?bits?"
)
_WIDE = {"0", "16", "32", "none", "false", "no", ""}


def in_few_bits(flags: Mapping[str, Any], nodes: list[ast.AST]) -> bool:
    """Whether flags of a command hold the base in few bits, or the script's own defaults do."""
    own = {name: getattr(node, "value", "") for name, node in Options(nodes).defaults().items()}
    found = {name: value for name, value in {**own, **flags}.items() if _BITS.fullmatch(name)}
    return any(str(value).casefold() not in _WIDE for value in found.values())


def is_stored(node: ast.AST) -> bool:
    """`args.rank = 8`: an option that the script itself sets, and not one of a class's own."""
    stores = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    return stores and root(node) != "self"


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
    handed = _handed(node, fields)  # what calls say is found by their arguments
    for call in made:
        for keyword in call.keywords:
            if keyword.arg in fields or keyword.arg is None:
                once = len(made) == 1 and keyword.arg is not None
                fields[str(keyword.arg)] = keyword.value if once else None
                if once and getattr(keyword.value, "attr", "") == keyword.arg:
                    del fields[str(keyword.arg)]  # `Settings(rank=args.rank)`: the option's value
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            fields = dict.fromkeys(fields)
    fields |= {name: value for name, value in handed.items() if fields.get(name, value) is None}
    return list(fields.items())


def _handed(node: ast.ClassDef, fields: Mapping[str, ast.expr | None]) -> dict[str, ast.expr]:
    """`self.length = length`: the fields that are arguments of a class's own `__init__`."""
    own = (each for each in node.body if isinstance(each, Function) and each.name == "__init__")
    taken = {arg.arg for function in own for arg in arguments_of(function)}
    return {name: value for name, value in fields.items()
            if isinstance(value, ast.Name) and value.id in taken}  # fmt: skip


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
    named = any(key.arg in {name, None} for key in call.keywords)
    starred = any(isinstance(arg, ast.Starred) for arg in call.args)
    return named or starred or (place is not None and place < len(call.args))


def parameters(nodes: list[ast.AST], functions: list[Function]) -> dict[str, ast.expr]:
    """Defaults of functions that nobody in the file calls with another value."""
    found: list[tuple[str, ast.expr | None]]
    found = [(node.id, None) for node in nodes if is_bound(node)]
    calls = calls_by_name(nodes)
    for function in functions:
        stated = function.args
        plain = [*stated.posonlyargs, *stated.args]
        first = 1 if _is_method(function) else 0
        late = dict(zip([a.arg for a in plain[::-1]], stated.defaults[::-1], strict=False))
        named = zip([a.arg for a in stated.kwonlyargs], stated.kw_defaults, strict=True)
        defaults: dict[str, ast.expr | None] = {**late, **dict(named)}
        for argument in arguments_of(function):
            place = plain.index(argument) - first if argument in plain else None
            given = any(_gives(call, argument.arg, place) for call in calls.get(function.name, []))
            found.append((argument.arg, None if given else defaults.get(argument.arg)))
    return one_of_each(found)


def passed(nodes: list[ast.AST], functions: list[Function]) -> tuple[dict[str, ast.expr], set[str]]:
    """What functions are called with, by their arguments, where every call says the same.

    Also the arguments that are only handed on, under the name that the caller has for them. A call
    inside a function that nobody names counts where there is no other: another file may start it.
    """
    calls = calls_by_name(nodes)
    named = {last_name(node) for node in nodes}
    dead = {inner for each in functions if _is_dead(each, named) for inner in ast.walk(each)}
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    fields = {assigned(inner)[0] for each in classes for inner in each.body}  # no names of the file
    found: list[tuple[str, ast.expr | None]]
    found = [(node.id, None) for node in nodes if is_bound(node) and node not in fields]
    imports = (node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))
    aliases = (each.asname or each.name for node in imports for each in node.names)
    modules = {alias.partition(".")[0] for alias in aliases}
    makers = {  # a class is called by its own name
        inner: node.name for node in classes for inner in node.body
        if isinstance(inner, Function) and inner.name == "__init__"
    }  # fmt: skip
    names = [makers.get(function, function.name) for function in functions]
    same, other = set[str](), set[str]()
    for function in (each for each in functions if each not in dead):
        called = makers.get(function, function.name)
        every = calls.get(called, [])
        if not _is_method(function):  # `trainer.train()` is no call of a function `train`
            every = [c for c in every if isinstance(c.func, ast.Name) or root(c.func) in modules]
        every = [call for call in every if call not in dead] or every
        for name, value in _given(function, every if names.count(called) == 1 else []):
            (same if getattr(value, "id", "") == name else other).add(name)
            found += [] if getattr(value, "id", "") == name else [(name, value)]
    return one_of_each(found), same - other


def given(nodes: list[ast.AST], functions: list[Function], handed: set[str]) -> set[str]:
    """Arguments whose callers are not here, or only hand on what they have under that name."""
    called = calls_by_name(nodes)
    alone = [function for function in functions if function.name not in called]
    return handed | {arg.arg for function in alone for arg in arguments_of(function)}


def _is_dead(function: Function, named: Collection[str]) -> bool:
    """Whether nothing names a function, nor may call it: no method, and none that is decorated."""
    if function.decorator_list or _is_method(function):
        return False
    return function.name not in named


def _is_method(function: Function) -> bool:
    first = next(iter(arguments_of(function)), None)
    return first is not None and first.arg in {"self", "cls"}


def _given(function: Function, calls: Sequence[ast.Call]) -> Iterator[tuple[str, ast.expr | None]]:
    """The arguments that all calls state alike, and what they are; None where that is not known."""
    plain = [*function.args.posonlyargs, *function.args.args]
    bound = 1 if _is_method(function) else 0
    every = [_stated(call, [arg.arg for arg in plain[bound:]]) for call in calls]
    for argument in arguments_of(function)[bound:]:
        values = [stated.get(argument.arg) for stated in every if stated is not None]
        if None in every or not every or len({value and ast.dump(value) for value in values}) > 1:
            yield argument.arg, None
        elif values[0] is not None:  # else its default
            yield argument.arg, values[0]


def _stated(call: ast.Call, places: list[str]) -> dict[str, ast.expr] | None:
    """The arguments of a call by name; None where some are unpacked."""
    named = {str(key.arg): key.value for key in call.keywords if key.arg is not None}
    unpacked = len(named) < len(call.keywords)
    if unpacked or any(isinstance(arg, ast.Starred) for arg in call.args):
        return None
    return dict(zip(places, call.args, strict=False)) | named


def is_bound(node: ast.AST) -> TypeGuard[ast.Name]:
    """Whether a name is bound there, and not read."""
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def split_over_processes(nodes: list[ast.AST]) -> set[str]:
    """`steps = steps // world_size`: names of a total that is split once there are processes."""
    found = set()
    for node in nodes:
        target, value = assigned(node)
        if isinstance(node, ast.AugAssign):
            target, value = node.target, ast.BinOp(node.target, node.op, node.value)
        if isinstance(target, ast.Name) and _is_split(target.id, value):
            found.add(target.id)
    return found


def _is_split(name: str, value: ast.expr | None) -> bool:
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.FloorDiv | ast.Div):
        return False
    by = ast.unparse(value.right).casefold()
    return getattr(value.left, "id", "") == name and "world_size" in by


def constants(
    nodes: list[ast.AST], functions: list[Function], split: set[str], handed: set[str]
) -> dict[str, ast.expr]:
    """Names bound to one thing in the whole file, and that; no mapping that is changed later.

    Args:
        nodes: of the file.
        functions: of it.
        split: names that are bound once more, to one process's share of what they are.
        handed: arguments that functions are only handed under the caller's own name.
    """
    bound = Counter(node.id for node in nodes if is_bound(node))
    bound.subtract(split)
    taken = {argument.arg for function in functions for argument in arguments_of(function)}
    taken -= handed
    changed = set()
    for node in nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            changed.add(root(node))
        if isinstance(node, ast.Attribute) and node.attr in CHANGES:
            changed.add(root(node))
    every: dict[str, list[ast.expr]] = {}
    for target, value in (each for node in nodes for each in _bindings(node)):
        if isinstance(target, ast.Name) and not _is_split(target.id, value):
            every.setdefault(target.id, []).append(value)
    found = {
        name: values[0]
        for name, values in every.items()
        if len(values) == bound[name] and len({ast.dump(value) for value in values}) == 1
    }
    return {name: value for name, value in found.items() if name not in taken | changed}


def _bindings(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """The target of an assignment and its value; each of several: `a, b = 1, 2`."""
    target, value = assigned(node)
    if target is None or value is None:
        return []
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        same = len(target.elts) == len(value.elts)
        return list(zip(target.elts, value.elts, strict=True)) if same else []
    return [(target, value)]


_OF_DEVICE = re.compile(r"\w*(is_(torch_)?(bf16|bfloat16)\w*|get_device_capability|supports_bf\w*)")
_DEEPEST = 12  # names of names


def asks_device(node: ast.expr, bound: Mapping[str, ast.expr], depth: int = 0) -> bool:
    """Whether a value that is not known depends on what the device can do.

    bound: names that are bound to one thing, and that.
    """
    if isinstance(node, ast.Name):
        value = bound.get(node.id)
        return value is not None and depth < _DEEPEST and asks_device(value, bound, depth + 1)
    if any(_OF_DEVICE.fullmatch(callee(each)) for each in ast.walk(node)):
        return True
    inner = [] if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
    return any(asks_device(each, bound, depth + 1) for each in inner if isinstance(each, ast.expr))
