"""A Python script with some keywords of its calls changed, added or taken out; the rest stays."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from autotune.trainers.contract import GONE
from autotune.trainers.syntax.python_source import parse_script

if TYPE_CHECKING:
    import ast

    from autotune.trainers.contract import Changes
    from autotune.trainers.syntax.python_source import Script


def rewrite_script(
    text: str, changes: Changes, name: str, settings: dict[str, Any] | None = None
) -> str:
    """The script with those keywords changed, added at the end of their call, or taken out.

    settings: see `parse_script`.
    """
    for dotted, value in changes.items():
        key, _, inner = dotted.partition(".")
        made = parse_script(text, name, settings)
        if inner:
            outer = made.values.get(key)
            whole = {**(outer if isinstance(outer, dict) else {}), inner: value}
            text = _replace(text, made, key, whole)
            continue
        text = _replace(text, made, key, value)
    return text


def _replace(text: str, made: Script, key: str, value: object) -> str:
    keyword = made.keywords.get(key)
    if keyword is None:
        return text if value is GONE else _insert(text, made, key, value)
    begin, end = _span(text, keyword.value)
    if value is not GONE:
        return text[:begin] + _source(value) + text[end:]
    start = _offset(text, keyword.lineno, keyword.col_offset)
    tail = text[end:]
    trimmed = tail.lstrip(" ")
    if trimmed.startswith(","):
        rest = trimmed[1:]
        line = text.rfind("\n", 0, start) + 1
        if not text[line:start].strip() and rest.lstrip(" ").startswith("\n"):
            return text[:line] + rest.lstrip(" ")[1:]
        return text[:start] + rest.lstrip(" ")
    return text[:start].rstrip().removesuffix(",") + tail


def _insert(text: str, made: Script, key: str, value: object) -> str:
    home = "model" if key == "attn_implementation" and "model" in made.calls else "arguments"
    node = made.calls[home]
    spaced = any(_is_spaced(text, keyword) for keyword in node.keywords[:1])
    entry = f"{key} = {_source(value)}" if spaced else f"{key}={_source(value)}"
    parts: list[ast.expr] = [*node.args, *(keyword.value for keyword in node.keywords)]
    if not parts:
        at = _span(text, node)[1] - 1
        return text[:at] + entry + text[at:]
    last = max(parts, key=lambda part: (part.end_lineno or 0, part.end_col_offset or 0))
    at = _span(text, last)[1]
    anchor = node.keywords[-1] if node.keywords else last
    several = node.lineno != anchor.lineno
    row = [part.col_offset for part in node.keywords if part.lineno == anchor.lineno]
    lead = ",\n" + " " * min(row, default=anchor.col_offset) if several else ", "
    return text[:at] + lead + entry + text[at:]


def _is_spaced(text: str, keyword: ast.keyword) -> bool:
    """Whether the call is typed as `name = value`."""
    begin = _span(text, keyword.value)[0]
    return text[:begin].endswith("= ")


def _source(value: object) -> str:
    """A literal with double quotes."""
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _span(text: str, node: ast.expr) -> tuple[int, int]:
    begin = _offset(text, node.lineno, node.col_offset)
    return begin, _offset(text, node.end_lineno or node.lineno, node.end_col_offset or 0)


def _offset(text: str, line: int, column: int) -> int:
    """Characters before a place that Python's parser names in lines and UTF-8 bytes."""
    at = 0
    for _ in range(line - 1):
        at = text.index("\n", at) + 1
    end = text.find("\n", at)
    row = text[at:] if end < 0 else text[at:end]
    return at + len(row.encode()[:column].decode(errors="ignore"))
