"""Elements of a page as text. What is not markup already is escaped, always."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_VOID = frozenset({"meta", "link", "br", "col", "hr", "wbr"})


class Markup(str):
    """Text that is markup already and is taken as it is."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | float | None) -> Markup:
    """An element. Children and attributes that are no `Markup` are escaped.

    Attributes: `_` stands for `-`, a `_` at the end is dropped (class_, for_); None is left out.
    """
    stated = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_number(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{stated}/>")
    return Markup(f"<{name}{stated}>{joined(children)}</{name}>")


def joined(children: Sequence[str]) -> Markup:
    """Children one after the other."""
    return Markup("".join(c if isinstance(c, Markup) else escape(c) for c in children))


def breakable(text: str) -> Markup:
    """A name that may go on in the next line behind each of its underscores."""
    first, *others = text.split("_")
    return joined([first, *(part for each in others for part in ("_", tag("wbr"), each))])


def share(fraction: float) -> str:
    """A fraction of the width of a drawing."""
    return f"{100 * fraction:.3f}%"


def _number(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else f"{value:g}"


def ascii_only(page: str) -> str:
    """The same page in ASCII, whatever the encoding of the stream that it is printed to."""
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")
