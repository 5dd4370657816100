"""Text that a Python file puts together: folders joined to a name, f-strings, sums of text.

A folder that the file does not say stands as a variable in it, `$ROOT/models/gemma-2-2b-it`, as it
would in a shell: what lies there is called by the last part, which is known.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from autotune.trainers.syntax.python_settings import callee

if TYPE_CHECKING:
    from collections.abc import Callable

_PATHS = {"Path", "PurePath", "PosixPath"}
_SAME = {"as_posix", "resolve", "absolute", "expanduser"}  # of a path: the same place


class UnknownError(ValueError):
    """The file does not say what it is."""


def text_of(node: ast.expr, worth: Callable[[ast.expr], Any]) -> str:
    """A text that is put together of others.

    Args:
        node: the expression.
        worth: what a part is worth; raises UnknownError.

    Raises UnknownError where it is none, or its last part is not known.
    """
    if isinstance(node, ast.JoinedStr):
        parts, between = [_inner(each) for each in node.values], ""
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts, between = [node.left, node.right], ""
    else:
        parts, between = _joined(node), "/"
    found = [_said(part, worth) for part in parts]
    whole = isinstance(node, ast.JoinedStr) or (found and isinstance(found[-1], str))
    if not whole or not all(isinstance(each, str | int | None) for each in found):
        raise UnknownError  # a sum of numbers, a quotient
    written = [
        f"${_called(part)}" if said is None else str(said)
        for part, said in zip(parts, found, strict=True)
    ]
    if between:
        written = [*(each.rstrip("/") for each in written[:-1]), *written[-1:]]
    text = between.join(written)
    if None in found and (found[-1] is None or "/" not in text or "$" in text.rpartition("/")[2]):
        raise UnknownError
    return text


def _joined(node: ast.expr) -> list[ast.expr]:
    """The parts of a path: `ROOT / "models"`, `os.path.join(ROOT, "models")`, `Path(ROOT, "a")`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return [node.left, node.right]
    if not isinstance(node, ast.Call) or node.keywords:
        return []
    name = callee(node)
    if name in _PATHS or ast.unparse(node.func).endswith("path.join"):
        return node.args
    place = name in _SAME and isinstance(node.func, ast.Attribute) and not node.args
    return [node.func.value] if place and isinstance(node.func, ast.Attribute) else []


def _inner(node: ast.expr) -> ast.expr:
    """What stands in the braces of an f-string; one that says how it is written is not known."""
    if isinstance(node, ast.FormattedValue) and node.format_spec is None and node.conversion == -1:
        return node.value
    return node


def _said(node: ast.expr, worth: Callable[[ast.expr], Any]) -> object:
    """What a part is worth, or None."""
    try:
        return worth(node)
    except (UnknownError, ArithmeticError, TypeError, ValueError, LookupError):
        return None


def _called(node: ast.expr) -> str:
    """What a folder that is not known is called in the path."""
    return str(getattr(node, "id", getattr(node, "attr", "FOLDER"))).upper()
