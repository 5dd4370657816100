"""Data sets: which files, which columns, how many rows, and how many tokens each row has.

In here: who is told of a long count. A job is read in many places, and none of them has a person to
tell; most jobs state their rows, and for those nothing that counts is loaded.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

TOLD: ContextVar[Callable[[str], None]] = ContextVar("told", default=lambda _: None)
