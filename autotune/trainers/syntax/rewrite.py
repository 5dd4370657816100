"""Change keys of a YAML, JSON, Python or command-line text, and leave every other byte alone.

Values are replaced where they stand, by the positions that a parser reports; nothing is dumped
anew, so comments, order, quotes and layout stay. Only for texts that were read safely before.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.frozen import dataclass
from autotune.trainers.contract import GONE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.trainers.contract import Changes

_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./-]*")
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


def rewrite_yaml(text: str, changes: Changes) -> str:
    """The YAML with those keys changed, added at the end of their mapping, or taken out."""
    for dotted, value in changes.items():
        text = _yaml_one(text, dotted.split("."), value)
    return text


def renamed_yaml(text: str, names: Mapping[str, str]) -> str:
    """The YAML with top-level keys renamed (old -> new) on their lines, values untouched."""
    for old, new in names.items():
        node = _compose(text)
        for key, _ in node.value:
            if key.value == old:
                text = text[: key.start_mark.index] + new + text[key.end_mark.index :]
    return text


def rewrite_json(text: str, changes: Changes) -> str:
    """The JSON with those keys changed; indentation as the file has it."""
    for dotted, value in changes.items():
        text = _json_one(text, dotted.split("."), value)
    return text


def _yaml_one(text: str, path: list[str], value: object) -> str:
    node = _compose(text)
    for depth, part in enumerate(path):
        pairs = {key.value: (key, inner) for key, inner in node.value}
        last = depth == len(path) - 1
        if part not in pairs:
            return text if value is GONE else _yaml_add(text, node, path[depth:], value)
        key, inner = pairs[part]
        if last:
            return _yaml_set(text, node, key, inner, value)
        if type(inner).__name__ != "MappingNode":
            return _yaml_set(text, node, key, inner, _nested(path[depth + 1 :], value))
        if not inner.value:
            return _yaml_set(text, node, key, inner, _nested(path[depth + 1 :], value))
        node = inner
    return text  # pragma: no cover - a path is never empty


def safe_yaml() -> Any:  # noqa: ANN401 - ruamel's YAML
    """The reader of trainers' YAML: a key that stands there twice with one value is that value.

    PyYAML, with which trainers read theirs, takes the last without a word.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import SafeConstructor

    class Same(SafeConstructor):
        """Refuses a key that is stated twice where the two values differ."""

        def check_mapping_key(self, *args: Any) -> bool:  # noqa: ANN401 - as ruamel hands them
            *_, mapping, key, value = args
            if key in mapping and mapping[key] == value and type(mapping[key]) is type(value):
                return False
            return bool(super().check_mapping_key(*args))

    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = Same
    return yaml


def _compose(text: str) -> Any:  # noqa: ANN401
    return safe_yaml().compose(text)


def _nested(path: list[str], value: object) -> object:
    for part in reversed(path):
        value = {part: value}
    return value


def _yaml_set(text: str, node: Any, key: Any, inner: Any, value: object) -> str:  # noqa: ANN401
    if value is GONE:
        return _yaml_remove(text, node, key, inner)
    end = _end(text, key, inner)
    begin = min(inner.start_mark.index, end)
    lead = "" if text[begin - 1 : begin].isspace() else " "
    return text[:begin] + lead + _styled_as(inner, value) + text[end:]


def _styled_as(inner: Any, value: object) -> str:  # noqa: ANN401
    """A new text in the quotes of the old one, a new True as True."""
    style = getattr(inner, "style", None)
    if isinstance(value, bool) and inner.value in {"True", "False"}:
        return str(value)
    if not isinstance(value, str) or style not in {"'", '"'}:
        return _scalar(value)
    return json.dumps(value) if style == '"' else "'" + value.replace("'", "''") + "'"


def _end(text: str, key: Any, inner: Any) -> int:  # noqa: ANN401
    """Where a value's last character stands; after the colon for a key with nothing behind it."""
    begin, end = inner.start_mark.index, inner.end_mark.index
    if type(inner).__name__ == "ScalarNode":
        if begin == end and key is not None:
            return int(text.index(":", key.end_mark.index) + 1)
        return int(begin + len(text[begin:end].rstrip()))
    if inner.flow_style or not inner.value:
        return int(end)
    last = inner.value[-1]
    return _end(text, *last) if isinstance(last, tuple) else _end(text, None, last)


def _yaml_remove(text: str, node: Any, key: Any, inner: Any) -> str:  # noqa: ANN401
    begin, end = key.start_mark.index, _end(text, key, inner)
    if node.flow_style:
        comma = re.match(r"\s*,\s*", text[end:])
        if comma:
            return text[:begin] + text[end + comma.end() :]
        return re.sub(r",\s*$", "", text[:begin]) + text[end:]
    if len(node.value) == 1:
        return text[:begin] + "{}" + text[end:]
    line = text.rfind("\n", 0, begin) + 1
    line_end = text.find("\n", end)
    return text[:line] + ("" if line_end < 0 else text[line_end + 1 :])


def _yaml_add(text: str, node: Any, path: list[str], value: object) -> str:  # noqa: ANN401
    entry = f"{path[0]}: {_scalar(_nested(path[1:], value))}"
    if node.flow_style:
        at = node.end_mark.index - 1
        lead = ", " if node.value else ""
        return text[:at].rstrip() + lead + entry + text[at:]
    column = node.value[0][0].start_mark.column
    line_end = text.find("\n", _end(text, *node.value[-1]))
    head, tail = (text, "") if line_end < 0 else (text[:line_end], text[line_end:])
    return f"{head}\n{' ' * column}{entry}{tail or chr(10)}"


def _scalar(value: object) -> str:
    """One value as YAML 1.1 and 1.2 both read it."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.casefold() not in _WORDS:
        return value
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_scalar(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_scalar(item) for item in value) + "]"
    if isinstance(value, float):  # YAML 1.1 takes 1e-05 for a text, and 1.0e-05 for a number
        return re.sub(r"^(-?\d+)e", r"\1.0e", json.dumps(value))
    return json.dumps(value)


@dataclass(frozen=True, slots=True)
class _Member:
    key: str
    begin: int  # of the key's quote
    value: int
    end: int


def _json_one(text: str, path: list[str], value: object) -> str:
    begin = text.index("{")
    for depth, part in enumerate(path):
        members = {member.key: member for member in _members(text, begin)}
        rest = path[depth + 1 :]
        if part not in members:
            return text if value is GONE else _json_add(text, begin, part, _nested(rest, value))
        member = members[part]
        if rest and text[member.value] == "{":
            begin = member.value
            continue
        if value is GONE:
            return _json_remove(text, begin, member) if not rest else text
        return text[: member.value] + json.dumps(_nested(rest, value)) + text[member.end :]
    return text  # pragma: no cover - path is never empty


def _members(text: str, begin: int) -> list[_Member]:
    """The members of the object that starts at `begin`."""
    decoder, found = json.JSONDecoder(), []
    at = _skip(text, begin + 1)
    while text[at] != "}":
        key, after = decoder.raw_decode(text, at)
        value_at = _skip(text, _skip(text, after) + 1)
        _, end = decoder.raw_decode(text, value_at)
        found.append(_Member(key, at, value_at, end))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _skip(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at


def _json_add(text: str, begin: int, key: str, value: object) -> str:
    members = _members(text, begin)
    entry = f"{json.dumps(key)}: {json.dumps(value)}"
    if not members:
        return text[: begin + 1] + entry + text[begin + 1 :]
    last = members[-1]
    before = text[begin + 1 : members[0].begin]  # the layout between two members
    return text[: last.end] + "," + (before or " ") + entry + text[last.end :]


def _json_remove(text: str, begin: int, member: _Member) -> str:
    members = _members(text, begin)
    index = next(i for i, other in enumerate(members) if other.begin == member.begin)
    if index + 1 < len(members):
        return text[: member.begin] + text[members[index + 1].begin :]
    start = members[index - 1].end if index else begin + 1
    return text[:start] + text[member.end :]


def changed_values(values: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """The mapping with the changes made: what the rewritten text must read as."""
    found: dict[str, Any] = json.loads(json.dumps(values, default=str))
    for dotted, value in changes.items():
        *outer, last = dotted.split(".")
        inner = found
        for part in outer:
            if not isinstance(inner.get(part), dict):
                inner[part] = {}
            inner = inner[part]
        if value is GONE:
            inner.pop(last, None)
        else:
            inner[last] = value
    return found


def flat(flags: Mapping[str, Any], outer: str = "") -> dict[str, Any]:
    """The flags by dotted names: `--train.epochs 3` is read as a mapping inside `train`."""
    found: dict[str, Any] = {}
    for key, value in flags.items():
        inner = isinstance(value, dict) and value
        found |= flat(value, f"{outer}{key}.") if inner else {outer + key: value}
    return found


def stated_in(
    text: str, syntax: str, values: Mapping[str, Any], flags: Mapping[str, Any], name: str
) -> tuple[str, dict[str, Any]]:
    """A file's text and mapping with a command's flags in them, which its trainer reads after it.

    Args:
        text: the file's.
        syntax: yaml or json.
        values: its mapping.
        flags: of the command, by dotted names; a text is what YAML makes of it, as trainers read.
        name: what an error calls the file.

    Raises:
        InputError: The text cannot be changed where it stands.
    """
    changes: Changes = {key: _typed(value) for key, value in flags.items()}
    if not changes:
        return text, dict(values)
    wanted = changed_values(values, changes)
    rewrite = rewrite_json if syntax == "json" else rewrite_yaml
    text = text.replace("\r\n", "\n")
    try:
        made = rewrite(text, changes)
        again = json.loads(made) if syntax == "json" else safe_yaml().load(made)
        same = json.dumps(again, default=str) == json.dumps(wanted, default=str)
    except Exception as error:  # a layout that the parser's positions do not describe
        msg = f"{name} cannot take {', '.join(flags)} where it stands: {type(error).__name__}"
        raise InputError(msg, "write them into the file, and give that as JOB") from error
    if not same:
        msg = f"{name} cannot take {', '.join(flags)} without changing something else"
        raise InputError(msg, "write them into the file, and give that as JOB")
    return made, wanted


def _typed(value: object) -> object:
    """A flag's word as the value that the same word is in a file."""
    if isinstance(value, list):
        return [_typed(each) for each in value]
    if not isinstance(value, str):
        return value
    try:
        found = safe_yaml().load(value)
    except Exception:  # noqa: BLE001 - whatever the parser raises: it is a text
        return value
    return found if isinstance(found, bool | int | float | list) else value
