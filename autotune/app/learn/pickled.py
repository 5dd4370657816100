"""Plain values of a `training_args.bin`, without unpickling it.

The file is a zip archive with a pickle inside. Its opcodes are listed by `pickletools`, which runs
nothing, and followed on a stack of inert values: whatever a class or a call would have made is a
mark here, except an enumeration's member: a call with one text is that text, and where Python wrote
it by name (getattr of its class; 3.11.0 to 3.11.3), its value by that name. No module is imported,
nothing is called.

Source: pickletools and enum of the standard library; torch 2.x serialization.py, which writes
`data.pkl`; transformers 5.23 training_args.py, OptimizerNames.
"""

from __future__ import annotations

import pickletools
import zipfile
from typing import Any

from autotune.app.learn.walk import Unreadable

FILE = "training_args.bin"
MOST_BYTES, MOST_OPCODES = 2_000_000, 200_000
# Members whose value is not their name in lower case.
BY_NAME = {
    "ADAMW_BNB": "adamw_bnb_8bit", "LION": "lion_32bit", "PAGED_ADAMW": "paged_adamw_32bit",
    "PAGED_ADEMAMIX": "paged_ademamix_32bit", "PAGED_LION": "paged_lion_32bit",
    "RMSPROP_8BIT": "rmsprop_bnb_8bit", "RMSPROP_32BIT": "rmsprop_bnb_32bit",
    "REDUCE_ON_PLATEAU": "reduce_lr_on_plateau",
}  # fmt: skip


class _Made:
    """What a class or a call would have made, and the state given to it."""

    def __init__(self) -> None:
        self.state: Any = None


_MARK = object()
DEEPEST, LONGEST = 3, 64


def arguments_of(path: Any) -> dict[str, Any]:  # noqa: ANN401 - a path or an open file
    """Arguments by name whose values are plain. Raises Unreadable where there are none."""
    try:
        with zipfile.ZipFile(path) as archive:
            inside = next(i for i in archive.infolist() if i.filename.endswith("data.pkl"))
            content = archive.read(inside) if inside.file_size <= MOST_BYTES else b""
        made = _followed(content)
    except (OSError, zipfile.BadZipFile, StopIteration, ValueError, IndexError, KeyError,
            TypeError, NotImplementedError, RuntimeError):  # fmt: skip
        msg = f"{FILE} is damaged"
        raise Unreadable(msg) from None
    state = made.state if isinstance(made, _Made) else made
    if not isinstance(state, dict):
        msg = f"{FILE} holds no arguments"
        raise Unreadable(msg)
    return {key: _plain(value) for key, value in state.items() if isinstance(key, str)}


def _plain(value: Any, depth: int = 0) -> Any:  # noqa: ANN401 - a pickled value
    """The value without marks; what is nested deeper, or longer, than arguments are is cut off."""
    if isinstance(value, list | tuple | dict) and depth == DEEPEST:
        return None
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value[:LONGEST]]
    if isinstance(value, dict):
        pairs = list(value.items())[:LONGEST]
        return {str(key): _plain(item, depth + 1) for key, item in pairs}
    return None if isinstance(value, _Made | set) or value is _MARK else value


def _followed(content: bytes) -> Any:  # noqa: ANN401 - whatever was pickled
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    for number, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if number > MOST_OPCODES:
            msg = f"{FILE} has more opcodes than any"
            raise Unreadable(msg)
        if opcode.name == "STOP":
            return stack[-1]
        _step(opcode.name, argument, stack, memo)
    raise ValueError


def _member(given: Any) -> Any:  # noqa: ANN401 - what a call was given
    """The value of an enumeration's member that a call would have made; else a mark."""
    match given:
        case (str(value),):
            return value
        case (_Made(), str(name)) if name.isupper():
            return BY_NAME.get(name, name.lower())
    return _Made()


def _since_mark(stack: list[Any]) -> list[Any]:
    at = len(stack) - 1 - stack[::-1].index(_MARK)
    items = stack[at + 1 :]
    del stack[at:]
    return items


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": set}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def _step(name: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:  # noqa: ANN401, C901, PLR0912
    if name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name in _EMPTY:
        stack.append(_EMPTY[name]())
    elif name == "MARK":
        stack.append(_MARK)
    elif name in _TUPLES:
        held = tuple(stack[-_TUPLES[name] :])
        del stack[-_TUPLES[name] :]
        stack.append(held)
    elif name == "TUPLE":
        stack.append(tuple(_since_mark(stack)))
    elif name in {"APPENDS", "ADDITEMS", "APPEND"}:
        items = [stack.pop()] if name == "APPEND" else _since_mark(stack)
        if isinstance(stack[-1], list):
            stack[-1].extend(items)
    elif name in {"SETITEMS", "SETITEM"}:
        pairs = _since_mark(stack) if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
        if isinstance(stack[-1], dict):
            keys = (key if isinstance(key, str | int) else str(key) for key in pairs[::2])
            stack[-1].update(zip(keys, pairs[1::2], strict=True))
    elif name in {"MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT"}:
        memo[len(memo) if argument is None else argument] = stack[-1]
    elif name in {"BINGET", "LONG_BINGET", "GET"}:
        stack.append(memo[argument])
    elif name == "GLOBAL":
        stack.append(_Made())
    elif name in {"STACK_GLOBAL", "REDUCE", "NEWOBJ"}:
        given = stack.pop()
        stack.pop()
        stack.append(_member(given) if name == "REDUCE" else _Made())
    elif name == "BUILD":
        state = stack.pop()
        if isinstance(stack[-1], _Made):
            stack[-1].state = state
    elif name in {"BINPERSID", "POP"}:
        stack.pop()
        if name == "BINPERSID":
            stack.append(_Made())
    elif name in {"PROTO", "FRAME"}:
        return
    elif isinstance(argument, str | int | float | bytes):
        stack.append(argument)
    else:
        raise ValueError(name)
