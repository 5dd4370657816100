"""Who does a piece of work, so that others can tell whether he still lives.

A process is its number and the moment it was started, on one machine and in one space of process
numbers. On another machine nobody can look: there silence tells (`turns`).
"""

from __future__ import annotations

import os
import platform
import secrets
import sys
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Self

from autotune.frozen import dataclass

OWNER = "autotune:owner"  # of a trial: who measures it
STARTED = 19  # of /proc/pid/stat behind the name, from 0. Source: man 5 proc, field 22: starttime


@dataclass(frozen=True, slots=True)
class Owner:
    """A process. name: of the worker, unlike every other; place: what its number counts in."""

    name: str
    pid: int
    started: str
    place: str
    host: str

    @classmethod
    def here(cls, name: str = "") -> Self:
        """This process."""
        own = name or f"{platform.node() or 'host'}-{os.getpid()}-{secrets.token_hex(3)}"
        return cls(own, os.getpid(), started(os.getpid()), place(), platform.node())

    @classmethod
    def of(cls, data: Any) -> Self | None:  # noqa: ANN401 - parsed JSON
        """The owner that a trial names; None where it names none."""
        try:
            return cls(
                str(data["name"]), int(data["pid"]), str(data["started"]), str(data["place"]),
                str(data["host"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError):
            return None

    def as_dict(self) -> dict[str, Any]:
        """As a trial names it."""
        return asdict(self)

    @property
    def is_dead(self) -> bool:
        """Whether it surely has ended: it was here, and is not any more."""
        return bool(self.started) and self.place == place() and started(self.pid) != self.started


def started(pid: int) -> str:
    """When a process of this machine was started; empty where there is none, or nobody can tell."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    return "" if len(fields) <= STARTED or fields[0] in "ZX" else fields[STARTED]


@cache
def place() -> str:
    """This machine since it was started, and the container in which processes are counted."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - no path: pid:[402...]
    except OSError:
        return f"{platform.node()} {sys.platform}"
