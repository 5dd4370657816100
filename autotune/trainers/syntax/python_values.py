"""What an expression of a Python file is worth, where the file itself says it: never executed.

Read are literals, names bound once, entries, sums, what a file of settings at hand says, defaults.
"""

from __future__ import annotations

import ast
import operator
from typing import TYPE_CHECKING, Any

from autotune.trainers.syntax.python_options import (
    Function,
    Options,
    arguments_of,
    asks_device,
    constants,
    given,
    given_flags,
    is_bound,
    is_stored,
    parameters,
    passed,
    split_over_processes,
)
from autotune.trainers.syntax.python_settings import (
    LOADS,
    WRAPS,
    Several,
    assigned,
    callee,
    entries_of,
    keys_of,
    loaded_by,
    loaded_names,
    module_names,
    plain,
    root,
    unique_at,
    words_of,
)
from autotune.trainers.syntax.python_text import UnknownError, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_DEEPEST = 12  # names of names
_LARGEST = 10**12
_SUMS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Div: operator.truediv,
}  # fmt: skip
_TESTS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.Gt: operator.gt, ast.Lt: operator.lt, ast.GtE: operator.ge, ast.LtE: operator.le,
    ast.In: lambda each, several: each in several, ast.NotIn: lambda each, some: each not in some,
}  # fmt: skip
_CASTS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "bool": bool, "str": str}
# What is made of a value of which kinds.
_MADE: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(_CASTS, (str, int, float)), **dict.fromkeys(("list", "tuple"), (list,)),
    **dict.fromkeys(("max", "min"), (int, float)), "dict": (dict,),
}  # fmt: skip
_WRITTEN: dict[str, Callable[[Any], Any]] = {"lower": str.lower, "upper": str.upper}
_ON_DEVICES = {"torch.cuda.is_available", "cuda.is_available"}  # a job is priced on a machine
_PARSED = {"args", "opt", "opts", "flags", "FLAGS", "cli_args", "ns", "namespace"}  # by argparse
# Objects that have attributes of their own, whatever a script calls its options.
_NO_OPTIONS = {"torch", "model", "tokenizer", "tok", "os", "np", "dataset"}
_NO_SETTINGS = {*_NO_OPTIONS, "trainer"}


class Values:
    """What the names of one file are worth."""

    def __init__(
        self,
        tree: ast.Module,
        settings: dict[str, Any] | None = None,
        flags: dict[str, Any] | None = None,
        beside: Iterable[ast.AST] = (),
    ) -> None:
        """Look once at everything that is bound.

        Args:
            tree: the file.
            settings: of the file that the script loads.
            flags: of the command that starts it.
            beside: nodes of its own modules, whose options it takes as well.
        """
        self._settings = settings
        nodes, others = list(ast.walk(tree)), list(beside)
        functions = [node for node in nodes if isinstance(node, Function)]
        theirs = [node for node in others if isinstance(node, Function)]
        self.split = split_over_processes(nodes)  # names of what one process has its share of
        main = {"__name__": ast.Constant("__main__")}  # it is started, and not imported
        own = {node.id for node in nodes if is_bound(node)}
        self._passed, handed = passed([*nodes, *others], [*functions, *theirs])
        imported = constants(others, theirs, set(), handed)
        self._modules = dict.fromkeys(module_names(nodes), imported)
        self._constants = {
            **{name: value for name, value in imported.items() if name not in own},
            **main, **constants(nodes, functions, self.split, handed),
        }  # fmt: skip
        taking = [*nodes, *others]
        taken = Options(taking)
        self._options = taken.defaults()
        self._flags = given_flags(taking, flags or {})
        self.flags_read: set[str] = set()  # of them, those that something is worth
        self.flags_tested: set[str] = set()  # those that decide which branch runs
        self._parameters = {**parameters(others, theirs), **parameters(nodes, functions)}
        self._taken = {arg.arg for function in functions for arg in arguments_of(function)}
        apart = settings is None or isinstance(settings, Several)
        self._loaded = set() if apart else loaded_names(nodes)
        self._given = self._loaded | given([*nodes, *others], [*functions, *theirs], handed) - own
        self._rebound: set[object] = set()  # keys of the settings that the script sets itself
        self.defaults: set[str] = set()  # whose default was taken, since somebody emptied it
        self._apart: tuple[dict[str, ast.expr], ...] = ({}, {})
        self._idle: set[ast.AST] = set()  # functions that nothing calls where it runs
        self._set_anew(tree, taking, taken)
        self._idle = self._uncalled(tree)
        if settings:
            self._rebound = {
                node.slice.value
                for node in self.reached(tree)
                if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
                and isinstance(node.slice, ast.Constant)
            }  # fmt: skip

    def _set_anew(self, tree: ast.Module, taking: list[ast.AST], taken: Options) -> None:
        """Options that the script sets itself, where that runs: known if it surely does, once."""
        stored = dict[str, ast.expr | None]()
        if any(is_stored(node) for node in taking):
            self._options = taken.defaults({})
            self._apart = taken.apart({})
            stored = self._stored(tree, taking)
            self._options = taken.defaults(stored)
        self._apart = taken.apart(stored)
        self.flags_read, self.flags_tested = set(), set()

    def _uncalled(self, tree: ast.Module) -> set[ast.AST]:
        """Functions of the file whose every call stands in a branch that is not taken."""
        named = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        called, runs = set[str](), set[str]()
        for calls, nodes in ((called, ast.walk(tree)), (runs, self.reached(tree))):
            calls.update(getattr(n.func, "id", "") for n in nodes if isinstance(n, ast.Call))
        return {node for node in named if node.name in called - runs}

    def _stored(self, tree: ast.Module, taking: list[ast.AST]) -> dict[str, ast.expr | None]:
        reached, surely = set(self.reached(tree)), set(self.reached(tree, surely=True))
        inside = set(ast.walk(tree))
        taking = [n for n in taking if is_stored(n) and root(n) not in _NO_OPTIONS]
        run = [str(getattr(n, "attr", "")) for n in taking if n in reached or n not in inside]
        found: dict[str, ast.expr | None] = dict.fromkeys(run)
        names = [getattr(node, "attr", "") for node in taking]
        for node in surely:
            target, value = assigned(node)
            if target is None or not is_stored(target) or root(target) in _NO_SETTINGS:
                continue
            name = str(getattr(target, "attr", ""))
            found[name] = value if names.count(name) == 1 else None
        return found

    def literal(self, node: ast.expr) -> tuple[bool, Any]:
        """Whether it is known, and its value."""
        before = set(self.defaults)
        try:
            return True, plain(self._worth(node, 0))
        except (UnknownError, ArithmeticError, TypeError, ValueError, LookupError, RecursionError):
            self.defaults = before
            return False, None

    def asks_device(self, node: ast.expr) -> bool:
        """Whether a value that is not known depends on what the device can do."""
        return asks_device(node, self._constants)

    def entries(self, node: ast.expr) -> list[tuple[str, ast.expr, ast.keyword]] | None:
        """The keys of a dict literal or of `dict(a=1)`, and where each stands; None for others."""
        held = self._apart[1].get(getattr(node, "attr", ""), node)  # of a class of settings
        return entries_of(held, self._constants)

    def reached(self, node: ast.AST, *, surely: bool = False) -> Iterator[ast.AST]:
        """Every node inside that may run: of a branch whose condition is known, the taken one.

        surely: of one whose condition is not known, none.
        """
        yield node
        inner: list[ast.AST] = list(ast.iter_child_nodes(node)) if node not in self._idle else []
        if isinstance(node, ast.If | ast.IfExp):
            read = set(self.flags_read)
            known, taken = self.literal(node.test)
            self.flags_tested |= self.flags_read - read
            self.flags_read = read
            if known:
                branch = node.body if taken else node.orelse
                inner = [node.test, *(branch if isinstance(branch, list) else [branch])]
            elif surely:
                inner = [node.test]
        for each in inner:
            yield from self.reached(each, surely=surely)

    def _worth(self, node: ast.expr, depth: int) -> Any:  # noqa: ANN401, PLR0911 - one a kind
        if depth > _DEEPEST:
            raise UnknownError
        deeper = depth + 1
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            loaded = node.id in self._loaded
            return self._settings if loaded else self._worth(self._bound(node.id), deeper)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, deeper)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _ON_DEVICES:
            return True
        if isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict | ast.ListComp):
            return self._several(node, deeper)
        if isinstance(node, ast.Subscript):
            return self._elsewhere(node, lambda: self._entry(node.value, node.slice, deeper))
        if isinstance(node, ast.IfExp):
            return self._worth(node.body if self._worth(node.test, deeper) else node.orelse, deeper)
        return self._composed(node, deeper)

    def _composed(self, node: ast.expr, depth: int) -> Any:  # noqa: ANN401
        try:
            if isinstance(node, ast.Call):
                return self._called(node, depth)
            return self._counted(node, depth)
        except (UnknownError, TypeError):
            return text_of(node, lambda each: self._worth(each, depth))

    def _key(self, node: ast.expr, depth: int) -> Any:  # noqa: ANN401
        """What an entry is called; not of one that the script sets itself."""
        key = self._worth(node, depth)
        if key in self._rebound:
            raise UnknownError
        return key

    def _entry(self, mapping: ast.expr, key: ast.expr, depth: int) -> Any:  # noqa: ANN401
        """One entry; of a mapping that stands there, whatever its others are worth."""
        name = getattr(mapping, "id", "")
        held = self._constants.get(name) if name not in self._loaded else None
        if not isinstance(held, ast.Dict) or None in held.keys:
            return self._worth(mapping, depth)[self._key(key, depth)]
        wanted = self._key(key, depth)
        found = [v for k, v in zip(held.keys, held.values, strict=True)
                 if k is not None and self._worth(k, depth) == wanted]  # fmt: skip
        return self._worth(found[-1], depth)

    def _elsewhere(self, node: ast.expr, worth: Callable[[], Any]) -> Any:  # noqa: ANN401
        """What an entry is worth; of a part of the settings, what alone stands at such keys."""
        try:
            return worth()
        except (UnknownError, LookupError, TypeError):
            keys = keys_of(node, {**self._passed, **self._constants}, self._given)
            known, value = unique_at(self._settings, keys)
            if known and not set(keys) & self._rebound:
                return value
            raise UnknownError from None

    def _several(
        self, node: ast.List | ast.Tuple | ast.Set | ast.Dict | ast.ListComp, depth: int
    ) -> list[Any] | dict[Any, Any]:
        if isinstance(node, ast.ListComp):
            return words_of(node, lambda inner: self._worth(inner, depth))
        if not isinstance(node, ast.Dict):
            return [self._worth(each, depth) for each in node.elts]
        merged: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            worth = self._worth(value, depth)
            merged |= worth if key is None else {self._worth(key, depth): worth}
        return merged

    def _bound(self, name: str) -> ast.expr:
        if name in self._constants:
            return self._constants[name]
        if name in self._flags and name in self._taken:
            self.flags_read.add(name)
            return ast.Constant(self._flags[name])
        if name in self._passed:
            return self._passed[name]
        if name not in self._parameters:
            raise UnknownError
        self.defaults.add(name)
        return self._parameters[name]

    def _attribute(self, node: ast.Attribute, depth: int) -> Any:  # noqa: ANN401
        """A dtype of torch, or an option of the script: `args.lora_r`, `self.config.lora_r`."""
        owner = getattr(node.value, "id", getattr(node.value, "attr", ""))
        section = isinstance(node.value, ast.Attribute) and root(node) != "self"
        if owner == "torch":
            return node.attr
        if node.attr in self._modules.get(getattr(node.value, "id", ""), {}):
            return self._worth(self._modules[owner][node.attr], depth)
        settings = owner and (section or owner not in _NO_SETTINGS)  # `cfg.model.name` is one
        if settings and node.attr in self._flags:
            self.flags_read.add(node.attr)
            return self._flags[node.attr]
        if self._settings is not None:
            if owner == "self" and node.attr in self._loaded:
                return self._settings
            known, held = self._inside(node.value, depth)
            if known and node.attr in held:
                return held[node.attr]
        flags, classes = self._apart
        own = flags if owner in _PARSED and node.attr in flags else classes
        value = self._options.get(node.attr, own.get(node.attr))
        if not settings or value is None:
            raise UnknownError
        self.defaults.add(node.attr)
        return self._worth(value, depth)

    def _inside(self, node: ast.expr, depth: int) -> tuple[bool, dict[str, Any]]:
        """A mapping whose entries are taken as attributes: `cfg.training.lr`."""
        try:
            held = self._worth(node, depth)
        except (UnknownError, ArithmeticError, TypeError, ValueError, LookupError):
            return False, {}
        return isinstance(held, dict), held if isinstance(held, dict) else {}

    def _called(self, node: ast.Call, depth: int) -> Any:  # noqa: ANN401
        """`int(...)`, `settings.get("key", default)`, `os.environ.get("NAME", default)`."""
        if getattr(node.func, "id", "") in _MADE or getattr(node.func, "attr", "") in _WRITTEN:
            return self._made(node, depth)
        asked = ast.unparse(node.func) if isinstance(node.func, ast.Attribute) else ""
        if asked in {"os.environ.get", "os.getenv"} and len(node.args) == 2:  # noqa: PLR2004
            self.defaults.add(str(self._worth(node.args[0], depth)))
            return self._worth(node.args[1], depth)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
            return self._elsewhere(node, lambda: self._got(node, depth))
        if callee(node) == "snapshot_download":
            named = {key.arg: key.value for key in node.keywords}  # of the hub's, or ModelScope's
            name = named.get("repo_id", named.get("model_id", node.args[0] if node.args else None))
            return self._worth(name, depth) if name is not None else self._loaded_by(node, depth)
        return self._loaded_by(node, depth)

    def _got(self, node: ast.Call, depth: int) -> Any:  # noqa: ANN401
        mapping = self._worth(getattr(node.func, "value", node), depth)
        if not isinstance(mapping, dict):
            raise UnknownError
        key = self._key(node.args[0], depth)
        if key not in mapping and len(node.args) > 1:
            return self._worth(node.args[1], depth)
        return mapping.get(key)

    def _made(self, node: ast.Call, depth: int) -> Any:  # noqa: ANN401
        """`int(...)`, `list(...)`, `max(1, ...)`, `dict(a=1)`, `text.lower()`."""
        if isinstance(node.func, ast.Attribute):
            return _WRITTEN[node.func.attr](self._worth(node.func.value, depth))
        name = str(getattr(node.func, "id", ""))
        if name == "dict":
            if (entries := self.entries(node)) is None:
                raise UnknownError
            return {key: self._worth(value, depth) for key, value, _ in entries}
        values = [self._worth(each, depth) for each in node.args]
        kinds = _MADE[name]
        several = name in {"max", "min"}
        fits = len(values) == 1 or (several and values)
        if node.keywords or not fits or not all(isinstance(value, kinds) for value in values):
            raise UnknownError
        if several:
            return max(values) if name == "max" else min(values)
        return list(values[0]) if name in {"list", "tuple"} else _CASTS[name](values[0])

    def _loaded_by(self, node: ast.Call, depth: int) -> Any:  # noqa: ANN401
        """What a call loads from the file of settings, or wraps of it."""
        if self._settings is None:
            raise UnknownError
        called = ast.unparse(node.func)
        if LOADS.fullmatch(called):
            return loaded_by(self._settings, node)
        held = [*node.args, *(each.value for each in node.keywords if each.arg is None)]
        if len(held) == 1 and len(held) == len(node.args) + len(node.keywords):
            known, inside = self._inside(held[0], depth)
            own = node.keywords and called.rpartition(".")[2][:1].isupper()  # Any(**loaded)
            if known and (own or WRAPS.fullmatch(called)):
                return inside
        raise UnknownError

    def _counted(self, node: ast.expr, depth: int) -> Any:  # noqa: ANN401
        if isinstance(node, ast.UnaryOp):
            value = self._worth(node.operand, depth)
            return not value if isinstance(node.op, ast.Not) else -value
        if isinstance(node, ast.BoolOp):
            wanted, value = isinstance(node.op, ast.Or), None
            for each in node.values:
                value = self._worth(each, depth)
                if bool(value) == wanted:
                    break
            return value
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _TESTS:
            left = self._worth(node.left, depth)
            return _TESTS[type(node.ops[0])](left, self._worth(node.comparators[0], depth))
        if isinstance(node, ast.BinOp) and type(node.op) in _SUMS:
            sides = [self._worth(side, depth) for side in (node.left, node.right)]
            if all(isinstance(side, int | float) and abs(side) < _LARGEST for side in sides):
                return _SUMS[type(node.op)](*sides)
        raise UnknownError
