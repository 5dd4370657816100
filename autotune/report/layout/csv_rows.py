"""Payloads as CSV: one line a candidate, nested names joined by dots, base units.

One header, quoting as RFC 4180 has it, lines that end in a line feed so that cut and awk work too.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autotune.report.schema import EstimatePayload, RecommendationPayload

SKIPPED = {"measured", "traced"}  # empty, or a record of its own
# A sheet would run text that starts like this. Source: OWASP, "CSV Injection".
_FORMULA = re.compile(r"[=+\-@\t\r]")


def recommendation_csv(payload: RecommendationPayload) -> str:
    """One line a candidate, with its role.

    best, today, alternative, pareto (the front), machine (the best of an offer), beyond (would beat
    the front, but does not fit).
    """
    roles: list[tuple[str, Mapping[str, Any]]] = []
    if payload.best:
        roles.append(("best", payload.best))
    if payload.today:
        roles.append(("today", payload.today))
    roles += [("alternative", row) for row in payload.alternatives]
    roles += [("pareto", row) for row in payload.pareto]
    roles += [("machine", row) for row in payload.machines]
    roles += [("beyond", row) for row in payload.beyond]
    return rows_csv([{"role": role, **flattened(row)} for role, row in roles])


def estimate_csv(payload: EstimatePayload) -> str:
    """The one priced configuration."""
    return rows_csv([flattened(payload.row)])


def rows_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> str:
    """Rows under a header of all their keys, in the order first seen."""
    header = list(columns) or list(dict.fromkeys(key for row in rows for key in row))
    stream = StringIO()
    writer = csv.DictWriter(stream, header, restval="", lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return stream.getvalue()


def flattened(row: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings as dotted names: duration_s.p50, config.precision."""
    return dict(_leaves(row, ""))


def _leaves(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if key in SKIPPED and not prefix:
            continue
        name = f"{prefix}{key}"
        if isinstance(item, Mapping):
            yield from _leaves(item, f"{name}.")
        else:
            yield name, item


def _cell(value: Any) -> Any:  # noqa: ANN401 - any leaf of a payload
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        value = ";".join(str(item) for item in value)
    if isinstance(value, str):
        quote = "'" if _FORMULA.match(value) else ""
        return quote + value.replace("\r\n", "\n").replace("\r", "\n")
    return value
