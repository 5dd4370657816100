"""Keys and kinds of value out of Python source that is parsed, never imported.

Dataclass and pydantic fields, parameters of functions, flags of argument parsers, of one released
package that was downloaded and not installed.
"""

from __future__ import annotations

import ast
import json
import re
import tarfile
import zipfile
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

Keys = dict[str, dict[str, Any]]
KINDS = {
    "bool": "bool", "int": "int", "float": "float", "str": "str", "list": "list", "List": "list",
    "tuple": "list", "Tuple": "list", "Sequence": "list", "set": "list", "dict": "dict",
    "Dict": "dict", "Mapping": "dict", "None": "null", "NoneType": "null", "NonNegativeInt": "int",
    "PositiveInt": "int", "Path": "str", "PathLike": "str", "StrictBool": "bool",
}  # fmt: skip
_LOOSE = {"bool": "bool|null", "int": "float|int|null", "float": "float|null"}  # no annotation
_WRAPPERS = {"Annotated", "Required", "SkipJsonSchema", "ClassVar"}
_UNIONS = {"Union", "Optional"}


@dataclass(slots=True)
class Sources:
    """The Python and YAML files of one package, and every class in them by name."""

    texts: dict[str, str]
    built: str = ""
    metadata: str = ""
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    trees: dict[str, ast.Module] = field(default_factory=dict)

    def tree(self, path: str) -> ast.Module:
        """The parsed file whose path ends so."""
        if path not in self.trees:
            found = sorted(name for name in self.texts if name.endswith(path))
            if not found:
                msg = f"no file {path} in the package"
                raise KeyError(msg)
            self.trees[path] = ast.parse(self.texts[min(found, key=len)])
        return self.trees[path]

    def learn(self, part: str) -> None:
        """Know every class of the files whose path holds `part`."""
        for name in sorted(self.texts):
            if part in name and name.endswith(".py"):
                for node in ast.walk(ast.parse(self.texts[name])):
                    if isinstance(node, ast.ClassDef):
                        self.classes.setdefault(node.name, node)


def kinds_of(node: ast.expr | None, known: Sources) -> set[str]:
    """The kinds of value that an annotation admits: bool, int, float, str, list, dict, null."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return kinds_of(ast.parse(node.value, mode="eval").body, known)
    if node is None or isinstance(node, ast.Constant):
        return {"null"} if isinstance(node, ast.Constant) and node.value is None else {"any"}
    if isinstance(node, ast.BinOp):
        return kinds_of(node.left, known) | kinds_of(node.right, known)
    if isinstance(node, ast.Subscript):
        return _subscript_kinds(node, known)
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return _named_kinds(name, known)


def _named_kinds(name: str, known: Sources) -> set[str]:
    if name not in known.classes:
        return {KINDS.get(name, "any")}
    bases = {getattr(base, "id", getattr(base, "attr", "")) for base in known.classes[name].bases}
    if not any("Enum" in base for base in bases):
        return {"dict"}
    return {"int"} if bases & {"int", "IntEnum"} else {"str"}


def _subscript_kinds(node: ast.Subscript, known: Sources) -> set[str]:
    outer = getattr(node.value, "id", getattr(node.value, "attr", ""))
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if outer == "Literal":
        literals = [item.value for item in inner if isinstance(item, ast.Constant)]
        return {KINDS.get(type(value).__name__, "any") for value in literals} or {"any"}
    if outer in _UNIONS:
        found = {kind for item in inner for kind in kinds_of(item, known)}
        return found | ({"null"} if outer == "Optional" else set())
    if outer in _WRAPPERS:
        return kinds_of(inner[0], known)
    return {KINDS.get(outer, "any")}


def entry(kinds: set[str], value: ast.expr | None) -> dict[str, Any]:
    """One key: its kinds, and its default where that is a literal of JSON."""
    made: dict[str, Any] = {"type": "any" if "any" in kinds else "|".join(sorted(kinds))}
    try:
        default = ast.literal_eval(value) if value is not None else ...
        json.dumps(default if default is not ... else None, allow_nan=False)
    except (ValueError, TypeError, SyntaxError):
        return made
    if default is ...:
        return made
    made["default"] = default
    if made["type"] == "any" and default is not None:
        made["type"] = KINDS.get(type(default).__name__, "any")
    elif default is None and made["type"] != "any" and "null" not in kinds:
        made["type"] += "|null"
    return made


def fields_of(known: Sources, name: str) -> Keys:
    """The fields of a dataclass or pydantic model, with those of its bases."""
    node = known.classes.get(name)
    if node is None:
        return {}
    found: Keys = {}
    for base in node.bases:
        found |= fields_of(known, getattr(base, "id", getattr(base, "attr", "")))
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if "ClassVar" in ast.dump(statement.annotation) or statement.target.id.startswith("_"):
            continue
        default, hidden = _field_default(statement.value)
        if hidden or statement.target.id == "model_config":
            continue
        made = entry(kinds_of(statement.annotation, known), default)
        found |= dict.fromkeys((statement.target.id, *_aliases(statement.value)), made)
    return found


def _aliases(value: ast.expr | None) -> list[str]:
    """Other names of a pydantic field: `Field(alias="model_type")`, `AliasChoices("a", "b")`."""
    words = [
        k.value for k in getattr(value, "keywords", []) if k.arg in {"alias", "validation_alias"}
    ]
    nodes = [node for word in words for node in ast.walk(word)]
    return [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def _field_default(value: ast.expr | None) -> tuple[ast.expr | None, bool]:
    """What stands behind the equals sign: a literal, or the default of field(...)."""
    if not isinstance(value, ast.Call):
        return value, False
    words = {keyword.arg: keyword.value for keyword in value.keywords}
    hidden = getattr(words.get("init"), "value", True) is False
    if "default" in words:
        return words["default"], hidden
    return (value.args[0] if value.args else None), hidden


def parameters_of(known: Sources, path: str, *names: str) -> Keys:
    """The parameters of a function or method: `setup`, or `FastModel.from_pretrained`."""
    found: Keys = {}
    for name in names:
        owner, _, function = name.rpartition(".")
        body: list[ast.stmt] = known.tree(path).body
        if owner:
            body = next(n for n in body if isinstance(n, ast.ClassDef) and n.name == owner).body
        node = next(n for n in body if isinstance(n, ast.FunctionDef) and n.name == function)
        given = [*node.args.args, *node.args.kwonlyargs]
        defaults: list[ast.expr | None] = [None] * (len(node.args.args) - len(node.args.defaults))
        defaults += [*node.args.defaults, *node.args.kw_defaults]
        for each, default in zip(given, defaults, strict=True):
            if each.arg in {"self", "cls", "model"} and each.annotation is None:
                continue
            found[each.arg] = entry(kinds_of(each.annotation, known), default)
            if each.annotation is None:
                found[each.arg]["type"] = _LOOSE.get(found[each.arg]["type"], "any")
            if isinstance(default, ast.Call):
                found |= prefixed(_given(default), each.arg)
    return found


def _given(call: ast.Call) -> Keys:
    """What the default of a parameter states: `train: TrainArgs = TrainArgs(epochs=5)`."""
    return {str(each.arg): entry({"any"}, each.value) for each in call.keywords if each.arg}


def flags_of(known: Sources, path: str) -> Keys:
    """The flags that an argument parser is given."""
    found: Keys = {}
    for node in ast.walk(known.tree(path)):
        if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "add_argument":
            continue
        names = [item.value for item in node.args if isinstance(item, ast.Constant)]
        words = {keyword.arg: keyword.value for keyword in node.keywords}
        flag = next((name for name in names if str(name).startswith("--")), None)
        if flag is None:
            continue
        stored = getattr(words.get("action"), "value", None) in {"store_true", "store_false"}
        kinds = {"bool"} if stored else {KINDS.get(getattr(words.get("type"), "id", ""), "any")}
        if words.get("type") is not None and "any" in kinds:
            kinds = {"bool"} if "bool" in ast.dump(words["type"]) else kinds
        found[str(flag)[2:].replace("-", "_")] = entry(kinds, words.get("default"))
    return found


def prefixed(keys: Keys, prefix: str) -> Keys:
    """The same keys inside a mapping."""
    return {f"{prefix}.{name}": value for name, value in keys.items()}


def sources_in(folder: Path, package: str, version: str) -> Sources:
    """The texts of a downloaded release. Raises FileNotFoundError where there is none."""
    begins = f"{package.replace('-', '_')}_{version}"
    for path in sorted(folder.iterdir()):
        name = path.name.casefold().replace("-", "_")
        if not re.match(re.escape(begins) + r"(_|\.tar|\.zip)", name):
            continue
        return _from_wheel(path) if path.suffix == ".whl" else _from_archive(path)
    msg = f"{folder} holds no {package} {version}"
    raise FileNotFoundError(msg)


def runs_on(found: Sources) -> dict[str, str]:
    """The newest versions of transformers and TRL that a release allows; absent where all are."""
    bounds = {}
    for name in ("transformers", "trl"):
        line = re.search(rf"^Requires-Dist: {name}\b([^;\n]*)$", found.metadata, re.MULTILINE)
        newest = re.findall(r"(?:==|<=)\s*([\d.]+)", line.group(1)) if line else []
        if newest:
            bounds[name] = newest[-1]
    return bounds


def _from_wheel(path: Path) -> Sources:
    with zipfile.ZipFile(path) as wheel:
        items = [item for item in wheel.infolist() if item.filename.endswith((".py", ".yaml"))]
        texts = {item.filename: wheel.read(item).decode("utf-8", "replace") for item in items}
        newest = max((item.date_time[:3] for item in items), default=(1980, 1, 1))
        about = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = wheel.read(about).decode("utf-8", "replace")
    built = date(*newest).isoformat() if newest[0] > 2015 else ""  # noqa: PLR2004 - 1980: unknown
    return Sources(texts, built, metadata)


def _from_archive(path: Path) -> Sources:
    with tarfile.open(path) as archive:
        items = [
            m for m in archive.getmembers() if m.isfile() and m.name.endswith((".py", ".yaml"))
        ]
        texts = {}
        for item in items:
            stream = archive.extractfile(item)
            texts[item.name] = stream.read().decode("utf-8", "replace") if stream else ""
    newest = max((item.mtime for item in items), default=0)
    return Sources(texts, datetime.fromtimestamp(newest, UTC).date().isoformat())
