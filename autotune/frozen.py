"""`dataclass` as the language has it, with frozen records made in less than half of the time.

Answering one command declares about 250 records, and on Python 3.11 the language's decorator
compiles six functions for each: a sixth of the processor time. Here a constructor is compiled for
each number of fields, and takes the names of a record's own once the first is made; the other
methods of a frozen record are written once. Fields, defaults and slots stay the language's, so
`fields`, `replace`, `asdict` and `is_dataclass` are as ever. Type checkers see its own decorator.

`identity` and `content` are what a kept record is found again by, also by a later version.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import MISSING, Field, FrozenInstanceError, fields, is_dataclass
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - public here
else:

    def dataclass(**options: Any) -> Callable[[type], type]:  # noqa: ANN401 - its own
        """`dataclasses.dataclass`, with its options."""
        if options.get("frozen"):
            return lambda kind: _frozen(kind, **options)
        return dataclasses.dataclass(**options)


_MARKS = ("ClassVar", "InitVar", "KW_ONLY")  # of what is no field
_LATER = "later"
LATER = {_LATER: True}  # metadata of a field that came when things were already kept without it


def _frozen(kind: type, *, eq: bool = True, **options: Any) -> type:  # noqa: ANN401 - as they are
    """A frozen record; what its class defines itself stays."""
    own = set(vars(kind))
    if "__eq__" in own and vars(kind).get("__hash__") is None:
        own.discard("__hash__")  # the language's mark for a class with an equality of its own
    options["frozen"] = False  # what refuses a change is added below
    kind.__doc__ = kind.__doc__ or kind.__name__  # the language would parse a signature for it
    made, fields = _with_fields(kind, **options)
    names = tuple(field.name for field in fields)
    methods: dict[str, Any] = {"__init__": _Unmade(made, fields), **_fixed(made, names)}
    methods["__repr__"] = _text(tuple(field.name for field in fields if field.repr))
    if options.get("slots"):
        methods |= _pickled(names)
    if eq:
        methods |= _compared(fields)
    for name, method in methods.items():
        if name not in own:
            method.__qualname__ = f"{made.__qualname__}.{name}"
            setattr(made, name, method)
    return made


def _with_fields(kind: type, **options: Any) -> tuple[type[Any], tuple[Field[Any], ...]]:  # noqa: ANN401 - as they are
    """The record with its fields and slots; where it has a mark, by the language's own decorator.

    That would look through the text of every annotation for marks that few have.
    """
    told = vars(kind).get("__annotations__", {})
    every = "\n".join(told.values())
    marked = any(mark in every for mark in _MARKS)
    if not marked and options == _SLOTTED:
        made = _slotted(kind, told)
        return made, tuple(vars(made)[_FIELDS].values())
    kind.__annotations__ = {
        name: text if marked and any(mark in text for mark in _MARKS) else object
        for name, text in told.items()
    }
    made = dataclasses.dataclass(init=False, repr=False, eq=False, **options)(kind)
    made.__annotations__ = told
    fields = dataclasses.fields(made)
    for field in fields:
        field.type = told.get(field.name, field.type)
    return made, fields


_SLOTTED = {"slots": True, "frozen": False}  # what nearly all records are
_FIELDS, _PARAMETERS = "__dataclass_fields__", "__dataclass_params__"


@dataclasses.dataclass(init=False, repr=False, eq=False)
class _Plain:
    """What the language notes of a record and of its field."""

    field: object = None


def _slotted(kind: type, told: dict[str, str]) -> type[Any]:
    """The record as the language makes one: its class anew, with slots in the place of defaults."""
    body = {name: own for name, own in vars(kind).items() if name not in _OF_A_DICT}
    fields: dict[str, Field[Any]] = {}
    held: set[str] = set()
    for base in reversed(kind.__mro__[1:-1]):
        fields |= vars(base).get(_FIELDS, {})
        held |= set(vars(base).get("__slots__", ()))
    fields |= {name: _field(name, text, body.pop(name, MISSING)) for name, text in told.items()}
    body |= {
        "__slots__": tuple(name for name in fields if name not in held),
        "__match_args__": tuple(n for n, own in fields.items() if own.init and not own.kw_only),
        _FIELDS: fields,
        _PARAMETERS: vars(_Plain)[_PARAMETERS],
    }
    made = type(kind)(kind.__name__, kind.__bases__, body)
    made.__qualname__ = kind.__qualname__
    return made


_OF_A_DICT = frozenset({"__dict__", "__weakref__"})  # that a class with slots has not


def _field(name: str, text: str, stated: object) -> Any:  # noqa: ANN401 - more than its type tells
    """A field as the language notes it, from what its class states: a default, or `field(...)`."""
    made: Any = stated if isinstance(stated, Field) else dataclasses.field(default=stated)
    if type(made.default).__hash__ is None:
        msg = f"mutable default {type(made.default)} for field {name} is not allowed"
        raise ValueError(msg)
    made.name, made.type, made.kw_only = name, text, made.kw_only is True
    made._field_type = vars(_Plain)[_FIELDS]["field"]._field_type  # noqa: SLF001 - what tells `fields` so
    return made


class _Unmade:
    """A record's constructor until it is asked for: a command makes two of three records."""

    def __init__(self, made: type[Any], fields: Sequence[Field[Any]]) -> None:
        self._made, self._fields = made, fields
        self.__qualname__ = "__init__"

    def __get__(self, record: object, kind: type | None = None) -> Any:  # noqa: ANN401 - bound or not
        method = _constructor(self._made, self._fields)
        method.__qualname__ = self.__qualname__
        self._made.__init__ = method
        return method.__get__(record, kind)


def _constructor(made: type[Any], fields: Sequence[Field[Any]]) -> Any:  # noqa: ANN401 - its own signature
    """`__init__` for its fields: called for every record that is made."""
    simple = all(field.init and field.default_factory is MISSING for field in fields)
    method = _renamed(made, fields) if simple else _compiled(made, fields)
    method.__annotations__ = {field.name: field.type for field in fields if field.init}
    method.__annotations__["return"] = None
    return method


def _renamed(made: type[Any], fields: Sequence[Field[Any]]) -> FunctionType:
    """The constructor of so many fields, under the names and defaults of these."""
    named = sum(bool(field.kw_only) for field in fields)
    ordered = sorted(fields, key=lambda field: bool(field.kw_only))
    template = _template(len(fields) - named, named, hasattr(made, "__post_init__"))
    code = template.__code__
    names = {_placeholder(n): field.name for n, field in enumerate(ordered)}
    own = code.replace(
        co_varnames=tuple(names.get(name, name) for name in code.co_varnames),
        co_consts=tuple(names.get(c, c) if isinstance(c, str) else c for c in code.co_consts),
    )
    given = [field for field in ordered if not field.kw_only and field.default is not MISSING]
    defaults = tuple(field.default for field in given) or None
    within = vars(sys.modules[made.__module__])
    method = FunctionType(own, within, "__init__", defaults, template.__closure__)
    method.__kwdefaults__ = {
        field.name: field.default
        for field in ordered
        if field.kw_only and field.default is not MISSING
    }
    return method


def _placeholder(number: int) -> str:
    """The name of a field in a template."""
    return f"__field_{number}"


@cache
def _template(listed: int, named: int, then: bool) -> FunctionType:  # noqa: FBT001 - a key
    """Sets so many fields, those given by name alone last; then asks the record itself."""
    fields = [_placeholder(number) for number in range(listed + named)]
    taken = ", ".join(["__self", *fields[:listed], *(["*"] if named else []), *fields[listed:]])
    body = [f"  __set(__self, {name!r}, {name})" for name in fields]
    body += ["  __self.__post_init__()"] if then else []
    text = f"def make(__set):\n def __init__({taken}):\n"
    text += "\n".join(body or ["  pass"]) + "\n return __init__"
    found: dict[str, Any] = {}
    exec(text, found)  # noqa: S102 - as the language does
    made: FunctionType = found["make"](object.__setattr__)
    return made


def _compiled(made: type[Any], fields: Sequence[Field[Any]]) -> Any:  # noqa: ANN401 - its own signature
    """The constructor where fields are made anew for each record, or not given to it."""
    known: dict[str, Any] = {"__set": object.__setattr__, "__lacking": MISSING}
    listed: list[str] = ["__self"]
    named: list[str] = []  # given by name alone
    body: list[str] = []
    for field in fields:
        name = value = field.name
        default = ""
        if field.default_factory is not MISSING:
            known[f"__make_{name}"] = field.default_factory
            value = f"__make_{name}()"
            if field.init:
                value += f" if {name} is __lacking else {name}"
            default = "=__lacking"
        elif field.default is not MISSING:
            known[f"__default_{name}"] = field.default
            value = name if field.init else f"__default_{name}"
            default = f"=__default_{name}"
        elif not field.init:
            continue
        if field.init:
            (named if field.kw_only else listed).append(name + default)
        body.append(f"  __set(__self, {name!r}, {value})")
    if hasattr(made, "__post_init__"):
        body.append("  __self.__post_init__()")
    taken = ", ".join([*listed, *(["*", *named] if named else [])])
    text = f"def make({', '.join(known)}):\n def __init__({taken}):\n"
    text += "\n".join(body or ["  pass"]) + "\n return __init__"
    found: dict[str, Any] = {}
    exec(text, vars(sys.modules[made.__module__]), found)  # noqa: S102 - as the language does
    return found["make"](**known)


def _fixed(made: type[Any], names: Sequence[str]) -> dict[str, Any]:
    """What refuses a change."""
    fixed = frozenset(names)

    def __setattr__(self: object, name: str, value: object) -> None:  # noqa: N807
        if type(self) is made or name in fixed:
            msg = f"cannot assign to field {name!r}"
            raise FrozenInstanceError(msg)
        super(made, self).__setattr__(name, value)

    def __delattr__(self: object, name: str) -> None:  # noqa: N807
        if type(self) is made or name in fixed:
            msg = f"cannot delete field {name!r}"
            raise FrozenInstanceError(msg)
        super(made, self).__delattr__(name)

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}


def _pickled(names: Sequence[str]) -> dict[str, Any]:
    """How a record with slots travels between processes."""

    def __getstate__(self: object) -> list[Any]:  # noqa: N807
        return [getattr(self, name) for name in names]

    def __setstate__(self: object, state: Sequence[Any]) -> None:  # noqa: N807
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    return {"__getstate__": __getstate__, "__setstate__": __setstate__}


def _text(names: Sequence[str]) -> Callable[[object], str]:
    @recursive_repr()
    def __repr__(self: object) -> str:  # noqa: N807
        told = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({told})"

    return __repr__


def _compared(fields: Sequence[Field[Any]]) -> dict[str, Any]:
    """Equal are records of one class whose compared fields are."""
    equal = _values_of([field.name for field in fields if field.compare])
    counts = [field.compare if field.hash is None else field.hash for field in fields]
    hashed = _values_of([field.name for field, own in zip(fields, counts, strict=True) if own])

    def __eq__(self: object, other: object) -> bool:  # noqa: N807
        if type(other) is type(self):
            return equal(self) == equal(other)
        return NotImplemented

    def __hash__(self: object) -> int:  # noqa: N807
        return hash(hashed(self))

    return {"__eq__": __eq__, "__hash__": __hash__}


def _values_of(names: Sequence[str]) -> Callable[[object], tuple[Any, ...]]:
    """A record's values, in a tuple: one that is not equal to itself (nan) is the same there."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: tuple(getattr(record, name) for name in names)


def content(value: object) -> object:
    """A dataclass as its facts that are not the default: it may gain fields and stay the same."""
    if is_dataclass(value) and not isinstance(value, type):
        held = {field.name: (getattr(value, field.name), field.default) for field in fields(value)}
        return {name: content(own) for name, (own, usual) in held.items() if own != usual}
    return [content(item) for item in value] if isinstance(value, tuple) else value


def identity(value: object) -> str:
    """What two equal things have in common: `repr`, but fields marked LATER only count when set.

    A dataclass that gains a marked field with a default keeps the keys of what was kept before.
    """
    if is_dataclass(value) and not isinstance(value, type):
        facts = [
            f"{field.name}={identity(getattr(value, field.name))}"
            for field in fields(value)
            if _LATER not in field.metadata or getattr(value, field.name) != field.default
        ]
        return f"{type(value).__name__}({', '.join(facts)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(identity, value))}{',' * (len(value) == 1)})"
    return repr(value)
