"""A Python script parsed; its mappings of settings, those that it loads and those that it makes."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from copy import deepcopy
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# What loads a file of settings, what only wraps it, and what scripts call what was loaded.
LOADS = re.compile(
    r"(yaml\.(safe_|full_|unsafe_)?load|json\.loads?|OmegaConf\.load|toml(lib)?\.loads?|tomli\.loads?)"
    r"|(\w+\.)?_?(load|read|get|parse)_?\w*(config|cfg|settings|yaml|json)\w*"
    r"|(\w+\.)?from_(yaml|json|file)"
)
WRAPS = re.compile(r"(\w+\.)*(\w*(Config|Namespace|Dict|Settings|Box)|create|Munch|deepcopy|copy)")
# What puts words of the command over what was loaded.
_OVERRIDES = re.compile(r"(\w+\.)?_?\w*(overrid|merge|apply|update|with)\w*")
_OF_NOTEBOOKS = re.compile(r"^([ \t]*)[%!].*$", re.MULTILINE)
_LOADED = {
    "cfg", "cfgs", "config", "conf", "configs", "settings", "hparams", "params", "yaml_config",
}  # fmt: skip
_DEEPEST = 12  # names of names
THEIRS = {"transformers", "trl", "unsloth", "peft"}  # packages of the classes that are read
CHANGES = {"update", "setdefault", "pop", "clear", "append", "extend", "insert"}  # what was made


class Several(dict[str, Any]):
    """Settings of several files by the files' names: no name of a script stands for them all."""


def loaded_by(settings: Any, call: ast.Call) -> Any:  # noqa: ANN401 - of a file
    """What a call loads: of several files the one that it names. Raises LookupError for none."""
    if not isinstance(settings, Several):
        return settings
    words = [n.value for n in ast.walk(call) if isinstance(n, ast.Constant)]
    named = {str(word).rpartition("/")[2] for word in words} & set(settings)
    if len(named) != 1:
        raise LookupError
    return settings[named.pop()]


def settings_files(tree: ast.Module) -> tuple[list[str], bool]:
    """Names of files of settings that stand in a script, and whether it loads such a file."""
    nodes = list(ast.walk(tree))
    calls = (ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call))
    if not any(LOADS.fullmatch(call) for call in calls):
        return [], False
    words = (node.value for node in nodes if isinstance(node, ast.Constant))
    named = (word for word in words if isinstance(word, str))
    found = (word for word in named if re.fullmatch(r"[\w./-]+\.(ya?ml|json|toml)", word))
    return list(dict.fromkeys(found)), True


def told_over(
    settings: dict[str, Any] | None, words: Iterable[Any]
) -> tuple[dict[str, Any] | None, set[str]]:
    """Settings with what `a.b=c` among a command's words, or lists of them, says, and those words.

    A word whose dotted name is not in the file is left: what the program makes of it is not known.
    """
    made, used = deepcopy(settings), set[str]()
    for word in chain.from_iterable(w if isinstance(w, list) else [w] for w in words):
        dotted, equals, value = str(word).partition("=")
        *sections, last = dotted.split(".")
        inside: Any = made
        for section in sections:
            inside = inside.get(section) if isinstance(inside, dict) else None
        if equals and isinstance(inside, dict) and last in inside:
            inside[last] = typed_as(value.capitalize() if value in ("true", "false") else value)
            used.add(str(word))
    return made, used


def typed_as(value: Any) -> Any:  # noqa: ANN401 - any flag's value
    """A number or a truth that was typed as one; several words each by itself."""
    if isinstance(value, list):
        return [typed_as(each) for each in value]
    if value in ("True", "False"):
        return value == "True"
    if isinstance(value, str) and re.fullmatch(r"-?\d+", value):
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"-?\d*\.?\d+([eE][-+]?\d+)?", value):
        return float(value)
    return value


def loaded_names(nodes: list[ast.AST]) -> set[str]:
    """Names of the settings that were loaded: bound to that alone, or only handed on.

    Where the other way is a class of settings as it is, the file that is at hand was loaded.
    """
    loading, plain, other = set[str](), set[str](), set[str]()
    for node in nodes:
        target, value = assigned(node)
        name = getattr(target, "id", getattr(target, "attr", ""))
        if name not in _LOADED or value is None:
            continue
        if _is_loaded(value):
            loading.add(name)
        elif isinstance(value, ast.Call) and _as_it_is(value):
            plain.add(name)
        else:
            other.add(name)
    return _LOADED - other - (plain - loading)


def _is_loaded(value: ast.expr) -> bool:
    """What was loaded, or nothing: `yaml.safe_load(f) or {}`, `load(path) if path else None`."""
    if isinstance(value, ast.BoolOp):
        return _is_loaded(value.values[0]) and all(map(_is_nothing, value.values[1:]))
    if isinstance(value, ast.IfExp):
        ways = [value.body, value.orelse]
        return any(map(_is_loaded, ways)) and all(_is_loaded(w) or _is_nothing(w) for w in ways)
    return _is_handed_on(value) or (isinstance(value, ast.Call) and _loads(value))


def _as_it_is(call: ast.Call) -> bool:
    """A class of settings without a word: `TrainConfig()`."""
    return not call.args and not call.keywords and bool(WRAPS.fullmatch(ast.unparse(call.func)))


def _is_nothing(value: ast.expr) -> bool:
    return ast.unparse(value) in {"{}", "None", "dict()"}


def _loads(call: ast.Call) -> bool:
    """Whether it loads a file of settings, or puts something over what is loaded inside it."""
    called = ast.unparse(call.func)
    inner = [each for each in call.args if isinstance(each, ast.Call)]
    over = _OVERRIDES.fullmatch(called) and any(_loads(each) for each in inner)
    return bool(LOADS.fullmatch(called) or over)


def _is_handed_on(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in _LOADED


def imported(tree: ast.Module) -> list[str]:
    """Names of modules that a script imports, as they are looked for below its folder."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
        elif isinstance(node, ast.Import):
            found += [each.name for each in node.names]
    return list(dict.fromkeys(found))


def keys_of(node: ast.expr, bound: Mapping[str, ast.expr], given: set[str]) -> list[str]:
    """The keys of `x["a"]["b"]` and of `x.get("b")` where a function is given `x`; else none.

    bound: names that stand for one thing, and that. given: names that a mapping is given by.
    """
    keys: list[str] = []
    for _ in range(_DEEPEST):
        held, key = None, None
        if isinstance(node, ast.Name) and (node.id in given or node.id not in bound):
            return keys if node.id in given else []
        if isinstance(node, ast.Name):
            node = bound[node.id]
            continue
        if isinstance(node, ast.Subscript):
            held, key = node.value, node.slice
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "get":
            held, key = getattr(node.func, "value", None), next(iter(node.args), None)
        if held is None or not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            return []
        node, keys = held, [key.value, *keys]
    return []


def words_of(node: ast.ListComp, worth: Callable[[ast.expr], Any]) -> list[str]:
    """`[word.strip() for word in text.split(",")]`: the words of a text. Raises ValueError."""
    loop = node.generators[0]
    split, name = loop.iter, getattr(loop.target, "id", "")
    plain = len(node.generators) == 1 and ast.unparse(node.elt) in {name, f"{name}.strip()"}
    plain = plain and {ast.unparse(test) for test in loop.ifs} <= {name, f"{name}.strip()"}
    if not (plain and isinstance(split, ast.Call) and isinstance(split.func, ast.Attribute)):
        raise ValueError
    text = worth(split.func.value)
    known = split.func.attr == "split" and isinstance(text, str) and not split.keywords
    if not known or len(split.args) > 1:
        raise ValueError
    by = worth(split.args[0]) if split.args else None
    return [word.strip() for word in text.split(by) if word.strip()]


def unique_at(settings: Any, keys: list[str]) -> tuple[bool, Any]:  # noqa: ANN401 - of a file
    """Whether just one place of loaded settings ends in these keys, and what stands there."""
    found: list[Any] = []

    def walk(inside: Any, way: tuple[str, ...]) -> None:  # noqa: ANN401
        if way and list(way[-len(keys) :]) == keys:
            found.append(inside)
        for key, value in inside.items() if isinstance(inside, dict) else ():
            walk(value, (*way, str(key)))

    walk(settings if keys else None, ())
    return len(found) == 1, found[0] if len(found) == 1 else None


def module_names(nodes: Iterable[ast.AST]) -> set[str]:
    """What a script calls the modules that it imports whole: `import config as c`."""
    named = [each for node in nodes if isinstance(node, ast.Import) for each in node.names]
    return {each.asname or each.name for each in named}


def assigned(node: ast.AST) -> tuple[ast.expr | None, ast.expr | None]:
    """The one target of an assignment, and its value; nothing for all else."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        return node.targets[0], node.value
    if isinstance(node, ast.AnnAssign):
        return node.target, node.value
    return None, None


def imported_tree(text: str, name: str) -> ast.Module:
    """A module of a script's own, without what runs only where it is started itself.

    Raises InputError as `tree_of` does.
    """
    body = tree_of(text, name).body
    alone = [n for n in body if isinstance(n, ast.If) and not n.orelse]
    started = [node for node in alone if "__name__" in ast.unparse(node.test)]
    return ast.Module([node for node in body if node not in started], [])


def own_default(node: ast.expr) -> ast.expr:
    """What a script takes where its settings say nothing; the expression itself where none stands.

    `config.get("epochs", 3)`, `getattr(args, "epochs", 3)`, `config["epochs"] or 3`.
    """
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
        return node.values[-1]
    if not isinstance(node, ast.Call):
        return node
    if getattr(node.func, "id", "") in {"int", "float"} and len(node.args) == 1:
        return own_default(node.args[0])
    place = {"get": 1, "getattr": 2}.get(callee(node), 0)
    return node.args[place] if place and len(node.args) == place + 1 else node


def tree_of(text: str, name: str) -> ast.Module:
    """A script, parsed and never executed. Raises InputError where it is no Python.

    What asks again has the same tree, which is not to be changed.
    """
    try:
        return _parsed(text)
    except SyntaxError as error:
        here = ".".join(map(str, sys.version_info[:2]))
        msg = f"{name} line {error.lineno}: not valid Python {here}: {error.msg}"
        hint = "fix the file; a notebook's cells have to be saved as a script"
        if "f-string" in str(error.msg) and sys.version_info < (3, 12):  # PEP 701
            hint = f"from Python 3.12 on it may be: run autotune with that; in {here}, {hint}"
        raise InputError(msg, hint) from None
    except (ValueError, RecursionError, MemoryError):
        msg = f"{name}: not valid Python: null bytes, or nested too deeply"
        raise InputError(msg) from None


@lru_cache(maxsize=32)  # a script and its own modules, each asked for by several readers
def _parsed(text: str) -> ast.Module:
    """Lines that a notebook hands to its shell, which a script saved of it has, do nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the user's file, such as invalid escapes
        try:
            return _by_own_names(ast.parse(text))
        except SyntaxError:
            if not _OF_NOTEBOOKS.search(text):
                raise
            return _by_own_names(ast.parse(_OF_NOTEBOOKS.sub(r"\1pass", text)))


def _by_own_names(tree: ast.Module) -> ast.Module:
    """The file with classes of these packages by their own names, whatever it imports them as.

    `from trl import GRPOTrainer as TRLTrainer`; not where the file calls something else so.
    """
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    others = {
        each.asname: each for node in imports
        if not node.level and str(node.module).partition(".")[0] in THEIRS
        for each in node.names if each.asname not in (None, each.name)
    }  # fmt: skip
    if not others:
        return tree
    taken = {each.name for node in imports for each in node.names if each.asname is None}
    kinds = ast.ClassDef | ast.FunctionDef
    taken |= {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
    names = {alias: each.name for alias, each in others.items() if each.name not in taken}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in names:
            node.id = names[node.id]
    for alias in names:
        others[alias].asname = None
    return tree


def root(node: ast.AST) -> str:
    """The name that a chain of attributes and entries begins with."""
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return str(getattr(node, "id", ""))


def last_name(node: ast.AST | None) -> str:
    """What a name or an attribute ends in: SFTConfig of `trl.SFTConfig`; empty for all else."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def callee(node: ast.AST | None) -> str:
    """The last name of what a call calls; empty for all else."""
    return last_name(node.func) if isinstance(node, ast.Call) else ""


def only_filled(nodes: Iterable[ast.AST], mapping: ast.expr) -> bool:
    """Whether a mapping is a literal of known keys, and what is put into it stands there by key."""
    name, bound = getattr(mapping, "id", ""), list[ast.expr | None]()
    for node in nodes:
        target, value = assigned(node)
        bound += [value] if getattr(target, "id", "") == name else []
        anew = isinstance(node, ast.AugAssign) or getattr(node, "attr", "") in CHANGES
        if anew and root(getattr(node, "target", node)) == name:
            return False
    made = bound[0] if len(bound) == 1 else None
    return isinstance(made, ast.Dict) and all(isinstance(key, ast.Constant) for key in made.keys)


def entries_of(
    node: ast.expr, bound: Mapping[str, ast.expr]
) -> list[tuple[str, ast.expr, ast.keyword]] | None:
    """The keys of a dict literal or of `dict(a=1)`, and where each stands; None for others.

    bound: names that are bound to one thing, and that.
    """
    if isinstance(node, ast.Name) and node.id in bound:
        held = bound[node.id]
        return None if isinstance(held, ast.Name) else entries_of(held, bound)
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dict" and not node.args:
        plain = [keyword for keyword in node.keywords if keyword.arg is not None]
        found = [(str(keyword.arg), keyword.value, keyword) for keyword in plain]
        return found if len(plain) == len(node.keywords) else None
    if isinstance(node, ast.DictComp):
        return _kept_of(node, bound)
    if not isinstance(node, ast.Dict):
        return None
    found = []
    for key, value in zip(node.keys, node.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            return None
        place = ast.keyword(key.value, value, lineno=key.lineno, col_offset=key.col_offset)
        found.append((key.value, value, place))
    return found


def _kept_of(
    node: ast.DictComp, bound: Mapping[str, ast.expr]
) -> list[tuple[str, ast.expr, ast.keyword]] | None:
    """`{k: v for k, v in config.items() if k != "lora"}`: the others; None for all else."""
    of, only = node.generators[0], len(node.generators) == 1
    names = [getattr(each, "id", "") for each in getattr(of.target, "elts", ())]
    same = names == [getattr(node.key, "id", ""), getattr(node.value, "id", "")]
    whose = of.iter.func if isinstance(of.iter, ast.Call) else None
    if not (only and same and isinstance(whose, ast.Attribute) and whose.attr == "items"):
        return None
    without = set[object]()
    for test in of.ifs:
        kind = test.ops[0] if isinstance(test, ast.Compare) and len(test.ops) == 1 else None
        if not isinstance(test, ast.Compare) or getattr(test.left, "id", "") != names[0]:
            return None
        right = test.comparators[0]
        several = right.elts if isinstance(right, ast.List | ast.Tuple | ast.Set) else [right]
        fits = isinstance(kind, ast.NotIn) != (several == [right])
        if not isinstance(kind, ast.NotEq | ast.NotIn) or not fits:
            return None
        if not all(isinstance(each, ast.Constant) for each in several):
            return None
        without |= {getattr(each, "value", None) for each in several}
    every = entries_of(whose.value, bound)
    return None if every is None else [each for each in every if each[0] not in without]


def plain(value: Any) -> Any:  # noqa: ANN401 - any value
    """Made of what JSON has alone."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
