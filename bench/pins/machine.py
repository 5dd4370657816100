"""The machine that pinned commands believe to run on: its clock, cores, memory and packages.

Nothing here names a module of the product: only the standard library is replaced, in a process that
does nothing else.
"""

from __future__ import annotations

import datetime as dt
import importlib
import os
import platform
import shutil
import sys
import time
from importlib.machinery import PathFinder
from importlib.metadata import DistributionFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

NOW = dt.datetime(2026, 11, 22, 12, tzinfo=dt.UTC)
CORES = 8
SYSTEM = {"SC_PHYS_PAGES": 2**23, "SC_PAGE_SIZE": 4096, "SC_NPROCESSORS_ONLN": CORES}  # 32 GiB
ABSENT = (
    "torch", "transformers", "trl", "peft", "accelerate", "datasets", "gpuhunt", "pynvml",
    "bitsandbytes", "flash_attn", "liger_kernel", "deepspeed", "torchao", "triton", "unsloth",
)  # fmt: skip
# Imported before the clock stops: what asks whether something is a datetime keeps the real class.
BEFORE = ("optuna", "pydantic", "ruamel.yaml", "numpy", "typer", "subprocess")
FILES = {
    "/proc/cpuinfo": "processor\t: 0\nmodel name\t: A processor @ 2.50GHz\ncpu MHz\t\t: 2500.000\n"
    "siblings\t: 16\ncpu cores\t: 8\nflags\t\t: sse2 avx avx2 fma avx512f avx512_bf16\n",
    "/proc/meminfo": "MemTotal:       33554432 kB\nMemAvailable:   25165824 kB\n",
}
UNREADABLE = ("/sys/fs/cgroup/", "/proc/driver/")
PRODUCT = "autotune"
LOOK_S = 0.25  # [s] from one look at a clock that goes to the next


class Disk(NamedTuple):
    """[bytes] of every disk."""

    total: int = 500 * 10**9
    used: int = 300 * 10**9
    free: int = 200 * 10**9


class _AsBase(type):
    """What is a datetime is one of ours."""

    def __instancecheck__(cls, found: object) -> bool:
        return isinstance(found, cls.__mro__[1])


class _Datetime(dt.datetime, metaclass=_AsBase):
    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:
        return NOW.astimezone(tz) if tz else NOW.replace(tzinfo=None)

    @classmethod
    def utcnow(cls) -> dt.datetime:
        return NOW.replace(tzinfo=None)

    @classmethod
    def today(cls) -> dt.datetime:
        return NOW.replace(tzinfo=None)


class _Date(dt.date, metaclass=_AsBase):
    @classmethod
    def today(cls) -> dt.date:
        return NOW.date()


class Clock:
    """Stands still for the product alone; threads and locks of libraries keep the real one.

    goes: each look is later than the one before, for what divides by the time that went by.
    interrupts: the next look is where the user presses Ctrl-C.
    """

    def __init__(self) -> None:
        self.goes = self.interrupts = False
        self._elapsed_s = 0.0

    def instead_of(self, real: Callable[[], float], at: float) -> Callable[[], float]:
        """The function that takes the place of `real`."""

        def read() -> float:
            caller = sys._getframe(1).f_globals.get("__name__", "")  # noqa: SLF001 - as freezegun
            if caller.partition(".")[0] != PRODUCT:
                return real()
            if self.interrupts:
                self.interrupts = False
                raise KeyboardInterrupt
            self._elapsed_s += LOOK_S if self.goes else 0.0
            return at + self._elapsed_s

        return read


class _Installed(PathFinder):
    """Finds what lies on the path, except the packages that this machine does not have."""

    @classmethod
    def find_spec(cls, fullname: str, *more: Any) -> Any:  # noqa: ANN401 - as the base
        if fullname.partition(".")[0] in ABSENT:
            return None
        return super().find_spec(fullname, *more)

    @classmethod
    def find_distributions(cls, context: Any = None) -> Any:  # noqa: ANN401 - as the base
        asked = context or DistributionFinder.Context()
        if str(asked.name).replace("-", "_").replace("nvidia_ml_py", "pynvml") in ABSENT:
            return iter(())
        return super().find_distributions(asked)


def pretend() -> Clock:
    """Take this process to that machine, for good."""
    for name in BEFORE:
        importlib.import_module(name)
    sys.meta_path[:] = [_Installed if each is PathFinder else each for each in sys.meta_path]
    clock = Clock()
    changed: dict[Any, dict[str, object]] = {
        dt: {"datetime": _Datetime, "date": _Date},
        time: {
            "time": clock.instead_of(time.time, NOW.timestamp()),
            "monotonic": clock.instead_of(time.monotonic, 1000.0),
            "perf_counter": clock.instead_of(time.perf_counter, 1000.0),
        },
        os: {
            "sysconf": lambda name, real=os.sysconf: SYSTEM.get(name) or real(name),
            "sched_getaffinity": lambda _: set(range(CORES)),
            "cpu_count": lambda: CORES,
        },
        platform: {
            "machine": lambda: "x86_64",
            "release": lambda: "6.1.0",
            "system": lambda: "Linux",
        },
        shutil: {"disk_usage": lambda _: Disk()},
        Path: {name: _of_linux(getattr(Path, name)) for name in ("open", "read_text")},
    }
    for place, functions in changed.items():
        for name, function in functions.items():
            setattr(place, name, function)
    return clock


def _of_linux(real: Callable[..., Any]) -> Callable[..., Any]:
    """Reads a file; those in which Linux describes itself describe that machine."""
    folder = Path(os.environ["TMPDIR"])
    for name, text in FILES.items():
        (folder / Path(name).name).write_text(text, encoding="utf-8")

    def read(path: Path, *args: Any, **more: Any) -> Any:  # noqa: ANN401 - as what it stands for
        if str(path).startswith(UNREADABLE):
            raise FileNotFoundError(str(path))
        return real(folder / path.name if str(path) in FILES else path, *args, **more)

    return read
