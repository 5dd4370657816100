"""What a shell makes of its words before a command runs: arrays, sums, comments between its lines.

Files of settings that it writes out of its own lines (`cat > FILE <<EOF`) are read there as well.

`ARGS=(--a 1)` and `ARGS+=(--b 2)` are the text of their words; what is added under a condition is
not known to be there, and such an array is open. `$((A / B))` and `$(expr 32 / 4)` are counted,
"`# a comment`" is nothing; and nothing is run.
"""

from __future__ import annotations

import ast
import operator
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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


_WRITES = re.compile(
    r"""^(?P<head>[^\n#]*\b(?:cat|tee)\b[^\n]*?<<-?[ \t]*(?P<quote>['"]?)(?P<end>\w+)(?P=quote)"""
    r"""(?P<tail>[^\n]*))\n(?P<lines>.*?)^[ \t]*(?P=end)[ \t]*$""",
    re.MULTILINE | re.DOTALL,
)
_INTO = re.compile(r"""(?:>{1,2}|\btee(?:[ \t]+-a)?)[ \t]*["']?([^\s"'<>|;&]+)""")
_SETTINGS = re.compile(r".*\.(ya?ml|json|conf)")


def written_files(text: str, names: Mapping[str, str]) -> dict[str, str]:
    """Files of settings that a script writes out of its own lines, by their names alone.

    One that is written twice may hold either, and is left out. names: the script's variables, put
    in where the mark of the end has no quotes.
    """
    found: dict[str, list[str]] = {}
    for match in _WRITES.finditer(text):
        into = _INTO.search(match["head"])
        name = into[1].rpartition("/")[2] if into else ""
        if not _SETTINGS.fullmatch(name):
            continue
        lines = match["lines"]
        if not match["quote"]:
            lines = _NAME_OF.sub(lambda m: names.get(m[1] or m[2], m[0]), lines)
        found.setdefault(name, []).append(lines)
    return {name: lines[0] for name, lines in found.items() if len(lines) == 1}


def with_arrays(text: str, arrays: dict[str, Array]) -> str:
    """The text with the words of each array that it uses in its place."""
    if not arrays:
        return text
    return USED.sub(lambda m: arrays[m["name"]].text if m["name"] in arrays else m[0], text)


_SUM = re.compile(r"\$\((?:expr\s(?P<expr>[^()\n]*)\)|\((?P<sum>[^\n]*)\)\))")
_NAME = re.compile(r"\$?\{?([A-Za-z_]\w*)\}?")
_NAME_OF = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_LONGEST = 200
_LARGEST = 10**12
# Of numbers from 0 on, which sizes are, the shell divides as Python's // does.
_SIGNS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
# How many devices there are, as scripts ask for it; torchrun's own word for all of them.
_COUNTED = re.compile(r"\$\(.*\b(nvidia-smi\b.*\bwc -l|device_count\(\)).*\)", re.DOTALL)
_ALL_DEVICES = "gpu"
# The path of a program, which is started by its name as well.
_WHICH = re.compile(r"\$\(\s*(?:which|command -v)\s+(\w[\w.-]*)\s*\)")
# How many words a list with commas has, as scripts count devices.
COUNTED_WORDS = re.compile(
    r"""\$\(\s*echo\s+["']?(?P<list>[^|"'\s]+)["']?\s*\|\s*(?:"""
    r"""tr\s+["']?,["']?\s+["']?(?:\\n|\s)["']?\s*\|\s*wc\s+-[lw]"""
    r"""|awk\s+-F\s*["']?,["']?\s+["']\{\s*print\s+NF\s*;?\s*\}["'])\s*\)"""
)

# A command in backticks that is a comment alone.
_ASIDE = re.compile(r"`(?:\s|#[^\n`]*)+`")
# A comment behind the backslash that was to go on with the command.
_BEHIND = re.compile(r"(?<=\\)[ \t]+#[^\n]*(?=\n[ \t]*--\w)")
# Whole lines of comments inside a command that goes on, behind which its flags go on as well.
_BETWEEN = re.compile(r"(?<=\\\n)(?:[ \t]*#[^\n]*\n)+(?=[ \t]*--\w)")


def without_comments(text: str) -> str:
    """The text with comments between and behind a command's lines blanked, as long as it was.

    A whole line of comment ends a command in the shell; what stands behind it was meant all the
    same (`cuts_off`).
    """
    for pattern in (_ASIDE, _BEHIND, _BETWEEN):
        text = pattern.sub(lambda match: " " * len(match[0]), text)
    return text


def cuts_off(text: str) -> int:
    """How many comments end a command whose flags go on behind them."""
    return len(_BETWEEN.findall(_ASIDE.sub(lambda match: " " * len(match[0]), text)))


def computed_text(text: str, names: Mapping[str, str] | None = None) -> str:
    """What a sum of whole numbers comes to, or how many devices there are; other text as it is.

    But for `$(which python)`, which is `python`.

    names: the script's variables, which a sum may call by their names alone.
    """
    if _COUNTED.fullmatch(text):
        return _ALL_DEVICES
    text = _WHICH.sub(r"\1", text)
    words = COUNTED_WORDS.fullmatch(text)
    if words is not None and "$" not in words["list"]:
        return str(len(words["list"].split(",")))
    found = _SUM.fullmatch(text)
    if found is None or len(text) > _LONGEST:
        return text
    known = names or {}
    stated = (found["expr"] or found["sum"] or "").replace("\\*", "*")
    stated = _NAME.sub(lambda match: known.get(match[1], match[0]), stated)
    if not re.fullmatch(r"[\d\s+*/%()-]+", stated):
        return text
    try:
        return str(_counted(ast.parse(stated.strip().replace("/", "//"), mode="eval").body))
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return text


def _counted(node: ast.expr) -> int:
    """The sum's value. Raises ValueError for all but whole numbers from 0 on."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        found = node.value
    elif isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
        found = _SIGNS[type(node.op)](_counted(node.left), _counted(node.right))
    else:
        raise ValueError
    if not 0 <= found <= _LARGEST:
        raise ValueError
    return found
