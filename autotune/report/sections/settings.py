"""What is set, and why: the knobs of a configuration by what they change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.config import KNOBS
from autotune.report.layout.blocks import Paragraph, Section, Table
from autotune.report.phrases import knob_text

if TYPE_CHECKING:
    from autotune.report.schema import Row

FOLD = 3  # knobs that share a reason are listed in one line from this many on
_CLASS_HEADINGS = {
    "neutral": "neutral: the training is the same",
    "numeric": "numeric: the same mathematics with other rounding or kernels",
    "extra": "your own: extra in the search space",
}


def settings_section(row: Row, reasons: dict[str, str]) -> Section:
    """Every setting by its class, and why it is so."""
    shared: dict[str, list[str]] = {}
    for name in row["config"]:
        shared.setdefault(reasons.get(name, ""), []).append(name)
    folded = {why for why, names in shared.items() if len(names) >= FOLD and reasons}
    rows: list[tuple[str, ...]] = []
    groups: set[int] = set()
    for knob_class, heading in _CLASS_HEADINGS.items():
        names = [
            name
            for name in row["config"]
            if _class_of(name) == knob_class and reasons.get(name, "") not in folded
        ]
        if names:
            groups.add(len(rows))
            rows.append((heading, "", ""))
        rows += [(n, knob_text(row["config"][n]), reasons.get(n, "")) for n in names]
    width = 3 if reasons else 2
    table = Table(
        ("setting", "value", "why")[:width],
        tuple(cells[:width] for cells in rows),
        frozenset({1}),
        group_rows=frozenset(groups),
    )
    notes = [
        Paragraph(
            f"{_sentence(why or 'not searched')}: "
            + ", ".join(f"{name} {knob_text(row['config'][name])}" for name in shared[why])
            + "."
        )
        for why in sorted(folded)
    ]
    return Section("Settings", (table, *notes) if rows else tuple(notes))


def _class_of(name: str) -> str:
    return KNOBS[name].knob_class if name in KNOBS else "extra"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
