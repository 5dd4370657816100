"""Tables of components priced before, kept for as long as one answer is worked out.

An answer prices many nearly equal questions: today's run under each reading of its time, mixtures
of old and new, single changes of the pick. A component whose columns and whose job are those of an
earlier question has the same outputs, so it is priced once.

What is kept belongs to one `with reusing_tables():` and ends with it: nothing outlives an answer.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from autotune.domain.job import Job

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.cost.columns import Columns, Component, Outputs

JOBS = 64  # with tables of their own, the latest; bisections leave many behind
ROWS = 512  # of a table that is kept; larger ones are of whole search spaces, asked once
_BY_IDENTITY = ("offer.device", "offer.host")  # compared as objects: their equality is slow
# What is locked or opened decides which candidates there are and never what one costs.
_facts = attrgetter(*(name for name in Job.__slots__ if name not in {"lock", "allow"}))

_Tables = dict[tuple[Any, ...], tuple["Outputs", "Columns"]]


class KeptTables:
    """Outputs by job, component and columns."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._jobs: list[tuple[Job, _Tables]] = []

    def outputs(self, component: Component, job: Job, columns: Columns) -> Outputs:
        """The component's outputs, from before where they are known. Arrays are read-only."""
        if columns.rows > ROWS:
            return component.price(job, columns)
        tables = self._of(job)
        key = (component.price, columns.signature(_BY_IDENTITY))
        if key not in tables:
            made = component.price(job, columns)
            for array in made.values():
                array.flags.writeable = False
            tables[key] = made, columns  # the columns keep alive what the key names by identity
        return dict(tables[key][0])

    def _of(self, job: Job) -> _Tables:
        for known, tables in reversed(self._jobs):
            if known is job:
                return tables
        facts = _facts(job)
        same = [n for n, (known, _) in enumerate(self._jobs) if _facts(known) == facts]
        tables = self._jobs.pop(same[0])[1] if same else {}
        self._jobs = [*self._jobs[1 - JOBS :], (job, tables)]
        return tables


_KEPT: ContextVar[KeptTables | None] = ContextVar("kept_tables", default=None)


@contextmanager
def reusing_tables() -> Iterator[None]:
    """Within it no table is priced twice; one inside another goes on with the outer one's."""
    token = _KEPT.set(_KEPT.get() or KeptTables())
    try:
        yield
    finally:
        _KEPT.reset(token)


def outputs_of(component: Component, job: Job, columns: Columns) -> Outputs:
    """The component priced, or what is kept of it."""
    kept = _KEPT.get()
    return component.price(job, columns) if kept is None else kept.outputs(component, job, columns)
