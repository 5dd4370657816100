"""What sets a price apart, beside it in every table: old, scaled, asked, free, owned, spot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.device import OLD_DAYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NAMED = frozenset({"spot"})  # said by the machine's name already
MEANING = {
    "old": f"seen more than {OLD_DAYS} days ago",
    "scaled": "in proportion to a machine of another size",
    "asked": "an ask on a marketplace",
}


def price_marks(row: Mapping[str, Any]) -> str:
    """The marks of a row's price that its machine's name does not say: "old, scaled"; or empty."""
    return ", ".join(mark for mark in row.get("price_marks", ()) if mark not in NAMED)


def marked_name(name: str, row: Mapping[str, Any]) -> str:
    """A machine with the marks of its price: "2x rtx-6000-ada (old, asked)"."""
    marks = price_marks(row)
    return f"{name} ({marks})" if marks else name


def marks_note(rows: Iterable[Mapping[str, Any]]) -> str:
    """What the marks of these rows mean; empty where there are none to explain."""
    found = {mark for row in rows for mark in row.get("price_marks", ())}
    told = [f"{mark}: {words}" for mark, words in MEANING.items() if mark in found]
    return f"Prices: {'; '.join(told)}." if told else ""


def price_history(row: Mapping[str, Any], since_days: int) -> str:
    """What to say behind a price in a sentence, with its comma: ", a price of 145 days ago"."""
    marks, age = row.get("price_marks", ()), row.get("price_age_days") or 0
    words = [f"a price of {age} days ago"] if age > since_days else []
    if "asked" in marks:
        words.append("asked on a marketplace")
    if "scaled" in marks:
        words.append(f"scaled from a machine of {row.get('price_scaled_from') or 'another size'}")
    if "owned" in marks:
        words.append("your own machine")
    return "".join(f", {each}" for each in words)
