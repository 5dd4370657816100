"""Data sets: which files, which columns, how many rows, and how many tokens each row has.

In here: who is told of a long count. A job is read in many places, and none of them has a person to
tell; most jobs state their rows, and for those nothing that counts is loaded.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOLD: ContextVar[Callable[[str], None]] = ContextVar("told", default=lambda _: None)


@contextlib.contextmanager
def counting_told_to(progress: Callable[[str], None]) -> Iterator[None]:
    """Within it, every count of rows says how far it is."""
    token = TOLD.set(progress)
    try:
        yield
    finally:
        TOLD.reset(token)
