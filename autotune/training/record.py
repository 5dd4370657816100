"""The file that a training leaves, one JSON object a line: see autotune/evidence/log/step_times.py.

Lines are appended a batch at a time, each batch with one write, so a reader finds whole lines and
at most a last one cut off. A training that goes on from a checkpoint goes on in its file; one that
starts anew moves the file of an earlier one aside.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

FLUSH_S = 10.0
SHARE = 0.005  # of the time, that writing may take on a slow disk
DENSE_STEPS = 100_000  # beyond them every tenth step is kept: logs have at most a million lines


class Record:
    """Lines on their way into a file."""

    def __init__(self, path: Path, *, resumed: bool) -> None:
        """Raises OSError where the file cannot be written."""
        self.path = path
        self._lines: list[str] = []
        self._due = 0.0
        self._steps = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size:
            if resumed:
                _mend(path)
            else:
                path.rename(_aside(path))

    def add(self, event: str, **values: Any) -> None:
        """One line. Raises ValueError for a number that is not finite."""
        if event == "step":
            self._steps += 1
            if self._steps > DENSE_STEPS and self._steps % 10:
                return
        self._lines.append(json.dumps({"event": event, **values}, allow_nan=False) + "\n")

    @property
    def is_due(self) -> bool:
        """Whether what has gathered should be written."""
        return time.monotonic() >= self._due

    def flush(self) -> None:
        """Write what has gathered. Raises OSError."""
        begun = time.monotonic()
        if self._lines:
            content = "".join(self._lines).encode()
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                while content:
                    content = content[os.write(handle, content) :]
            finally:
                os.close(handle)
            self._lines = []
        now = time.monotonic()
        self._due = now + max(FLUSH_S, (now - begun) / SHARE)


def _mend(path: Path) -> None:
    """Take off a last line that was cut off in mid-writing."""
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)


def _aside(path: Path) -> Path:
    """A free name for an earlier record: observations-1.jsonl."""
    number = 1
    while (free := path.with_name(f"{path.stem}-{number}{path.suffix}")).exists():
        number += 1
    return free
