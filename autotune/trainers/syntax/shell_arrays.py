"""Arrays of a shell script, `ARGS=(--a 1)` and `ARGS+=(--b 2)`: the text of their words.

What is added under a condition is not known to be there; such an array is open.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_OPENS = re.compile(
    r"^(?P<indent>[ \t]*)(?:(?:declare|local|readonly|export)[ \t]+(?:-\w+[ \t]+)?)?"
    r"(?P<name>[A-Za-z_]\w*)(?P<more>\+?)=\(",
    re.MULTILINE,
)
_PART = re.compile(
    r"""(?P<comment>(?<!\S)\#[^\n]*)|(?P<word>"(?:[^"\\]|\\.)*"|'[^']*'|\$\((?:[^()]|\([^()]*\))*\)"""
    r"""|\\.|[^()\s])|(?P<blank>\s+)|(?P<end>\))""",
    re.DOTALL,
)
USED = re.compile(r"""\$\{(?P<name>[A-Za-z_]\w*)\[[@*]\]\}""")


class Array(NamedTuple):
    """The words of an array as they are typed, and whether the script may add others."""

    text: str
    is_open: bool


class _Part(NamedTuple):
    name: str
    text: str
    more: bool
    indented: bool
    span: tuple[int, int]


def _parts(text: str) -> list[_Part]:
    found = []
    for match in _OPENS.finditer(text):
        at, words = match.end(), ""
        while (part := _PART.match(text, at)) is not None and part["end"] is None:
            words += " " if part["word"] is None else part["word"]
            at = part.end()
        if part is None:  # a bracket of something else
            continue
        span = match.start(), part.end()
        found.append(
            _Part(match["name"], words.strip(), bool(match["more"]), bool(match["indent"]), span)
        )
    return found


def array_spans(text: str) -> list[tuple[int, int]]:
    """Where arrays are bound: no command stands there."""
    return [part.span for part in _parts(text)]


def shell_arrays(text: str) -> dict[str, Array]:
    """Arrays that a script binds once, with what it adds at the start of a line.

    One that is empty there is filled elsewhere, and one that is bound again may be any of them.
    """
    if "=(" not in text:
        return {}
    parts, found = _parts(text), dict[str, Array]()
    for name in dict.fromkeys(part.name for part in parts):
        own = [part for part in parts if part.name == name]
        if own[0].more or sum(not part.more for part in own) > 1:
            continue
        added = [part for part in own[1:] if not part.indented or own[0].indented]
        words = " ".join(part.text for part in (own[0], *added) if part.text)
        if words:
            found[name] = Array(words, len(added) < len(own) - 1)
    return found


def with_arrays(text: str, arrays: dict[str, Array]) -> str:
    """The text with the words of each array that it uses in its place."""
    if not arrays:
        return text
    return USED.sub(lambda m: arrays[m["name"]].text if m["name"] in arrays else m[0], text)
