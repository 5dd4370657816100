"""What every answer is: a frozen record whose fields are the keys of its JSON, in their order.

The one declaration of an answer is its dataclass: `plain` writes it as JSON has it, `read` checks
and loads what was written, and reports read its attributes (or its keys, as of any mapping).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from autotune.frozen import dataclass

if TYPE_CHECKING:
    from pydantic import TypeAdapter

ABSENT = {"absent": True}  # metadata of a field that the JSON lacks while it is as by default


def json_name(field: str) -> str:
    """The key of a field: `from_` is `from`, because the language has a word `from`."""
    return field.rstrip("_")


class Answer(Mapping[str, Any]):
    """Base of the frozen dataclasses that are JSON."""

    __slots__ = ()
    __pydantic_config__ = {"alias_generator": json_name}  # noqa: RUF012 - read by pydantic alone

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401 - whatever the field is
        """What stands under a key of the JSON. Raises KeyError where there is none."""
        name = _layout(type(self)).names.get(key)
        if name is None or not _stands(self, key):
            raise KeyError(key)
        return getattr(self, name)

    def __contains__(self, key: object) -> bool:
        """Whether the JSON has the key."""
        return key in _layout(type(self)).names and _stands(self, str(key))

    def __iter__(self) -> Iterator[str]:
        """The keys of the JSON, in order."""
        return (key for key in _layout(type(self)).names if _stands(self, key))

    def __len__(self) -> int:
        """How many keys the JSON has."""
        return sum(1 for _ in self)


Kind = TypeVar("Kind", bound=Answer)


@dataclass(frozen=True, slots=True)
class _Layout:
    """The field of each key, the defaults of what may be absent, and what is a float."""

    names: dict[str, str]
    absent: dict[str, Any]
    floats: frozenset[str]


@functools.cache
def _layout(kind: Any) -> _Layout:  # noqa: ANN401 - any kind of answer
    fields = dataclasses.fields(kind)
    return _Layout(
        {json_name(each.name): each.name for each in fields},
        {json_name(each.name): each.default for each in fields if "absent" in each.metadata},
        frozenset(json_name(each.name) for each in fields if "float" in str(each.type)),
    )


def _stands(answer: Answer, key: str) -> bool:
    layout = _layout(type(answer))
    return key not in layout.absent or getattr(answer, layout.names[key]) != layout.absent[key]


def copied(kind: type[Kind], *sources: object, **own: Any) -> Kind:  # noqa: ANN401 - any field
    """An answer whose fields are its sources' of the same name, but for those said here.

    The first source that has a name says it. Raises TypeError for a field that nobody says.
    """
    found = dict(own)
    for name in _layout(kind).names.values():
        for source in sources if name not in own else ():
            value = getattr(source, name, _NOBODY)
            if value is not _NOBODY:
                found[name] = value
                break
    return kind(**found)


_NOBODY = object()


def plain(value: Any, where: str = "") -> Any:  # noqa: ANN401 - any part of an answer
    """An answer as JSON has it: mappings, lists, text and finite numbers.

    Numbers of arrays become numbers. Raises ValueError for one that is not finite, with its place.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return _finite(value, where)
    if isinstance(value, Mapping):
        return _plain_mapping(value, where)
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{number}]") for number, item in enumerate(value)]
    return plain(value.item(), where)  # a number of an array


def _plain_mapping(value: Mapping[str, Any], where: str) -> dict[str, Any]:
    floats = _layout(type(value)).floats if isinstance(value, Answer) else frozenset()
    found = {key: plain(item, f"{where}.{key}" if where else key) for key, item in value.items()}
    for key in floats.intersection(found):
        found[key] = _as_floats(found[key])
    return found


def _as_floats(value: Any) -> Any:  # noqa: ANN401 - a number, or numbers by name
    """A whole number where a float is declared: 3 is 3.0."""
    if isinstance(value, dict):
        return {key: _as_floats(item) for key, item in value.items()}
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _finite(value: float, where: str) -> float:
    """Anything else is a defect of the model and must not reach a reader."""
    number = float(value)
    if not math.isfinite(number):
        msg = f"{where} is {number}: every number of an answer must be finite"
        raise ValueError(msg)
    return number


def read(kind: type[Kind], content: Mapping[str, Any]) -> Kind:
    """An answer from its JSON. Raises ValueError for the first key that is wrong: `a.b[0]: why`."""
    from pydantic import ValidationError

    try:
        text = json.dumps(content, allow_nan=False)
    except ValueError:
        raise ValueError(_not_finite(content)) from None
    try:
        found: Kind = _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
        place = "".join(steps).lstrip(".") or "the top"
        msg = f"{place}: {first['msg'].lower()}"
        raise ValueError(msg) from None
    return found


def _not_finite(content: Any, where: str = "") -> str:  # noqa: ANN401 - parsed JSON
    """Which number of it is infinite or none, in words; empty where each is finite."""
    if isinstance(content, float) and not math.isfinite(content):
        return f"{where}: it is {content}"
    inner = dict(enumerate(content)) if isinstance(content, list) else content
    inner = inner.items() if isinstance(inner, dict) else ()
    found = (_not_finite(own, f"{where}.{key}".lstrip(".")) for key, own in inner)
    return next(filter(None, found), "")


@functools.cache
def _adapter(kind: type[Kind]) -> TypeAdapter[Kind]:
    """Made when something is read: its making takes milliseconds that most commands never need."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
