"""Waiting for what another process or thread does, however busy the machine is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def until(found: Callable[[], bool], seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def text_of(path: Path) -> str:
    """What another process writes into a file, once it is there."""
    until(lambda: path.exists() and bool(path.read_text()))
    return path.read_text()
