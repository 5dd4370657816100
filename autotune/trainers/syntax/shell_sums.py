"""What a shell works out before a command runs: sums, and comments between the command's lines.

`$((A / B))` and `$(expr 32 / 4)` are counted, "`# a comment`" is nothing; and nothing is run.
"""

from __future__ import annotations

import ast
import operator
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SUM = re.compile(r"\$\((?:expr\s(?P<expr>[^()\n]*)\)|\((?P<sum>[^\n]*)\)\))")
_NAME = re.compile(r"\$?\{?([A-Za-z_]\w*)\}?")
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
# How many words a list with commas has, as scripts count devices.
COUNTED_WORDS = re.compile(
    r"""\$\(\s*echo\s+["']?(?P<list>[^|"'\s]+)["']?\s*\|\s*(?:"""
    r"""tr\s+["']?,["']?\s+["']?(?:\\n|\s)["']?\s*\|\s*wc\s+-[lw]"""
    r"""|awk\s+-F\s*["']?,["']?\s+["']\{\s*print\s+NF\s*;?\s*\}["'])\s*\)"""
)

# A command in backticks that is a comment alone.
_ASIDE = re.compile(r"`(?:\s|#[^\n`]*)+`")
# Whole lines of comments inside a command that goes on, behind which its flags go on as well.
_BETWEEN = re.compile(r"(?<=\\\n)(?:[ \t]*#[^\n]*\n)+(?=[ \t]*--\w)")


def without_comments(text: str) -> str:
    """The text with comments between a command's lines blanked, as long as it was.

    A whole line of comment ends a command in the shell; what stands behind it was meant all the
    same (`cuts_off`).
    """
    blank = _ASIDE.sub(lambda match: " " * len(match[0]), text)
    return _BETWEEN.sub(lambda match: " " * len(match[0]), blank)


def cuts_off(text: str) -> int:
    """How many comments end a command whose flags go on behind them."""
    return len(_BETWEEN.findall(_ASIDE.sub(lambda match: " " * len(match[0]), text)))


def computed_text(text: str, names: Mapping[str, str] | None = None) -> str:
    """What a sum of whole numbers comes to, or how many devices there are; other text as it is.

    names: the script's variables, which a sum may call by their names alone.
    """
    if _COUNTED.fullmatch(text):
        return _ALL_DEVICES
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
