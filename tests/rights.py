"""The rights of an ordinary user over files, also where the tests run as root.

Source: man 2 capset, man 7 capabilities: root passes over a file's mode by these two alone.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
OVER_MODES = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Set(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


@contextmanager
def of_an_ordinary_user() -> Iterator[None]:
    """In this thread, a file's mode counts. Skips where root's rights cannot be laid down."""
    if os.geteuid() != 0:
        yield
        return
    if sys.platform != "linux":
        pytest.skip("root passes over a file's mode: run the tests as an ordinary user")
    system = ctypes.CDLL(None)
    header, held = _Header(VERSION, 0), (_Set * 2)()
    assert system.capget(ctypes.byref(header), held) == 0
    before = held[0].effective
    held[0].effective = before & ~OVER_MODES
    assert system.capset(ctypes.byref(header), held) == 0
    try:
        yield
    finally:
        held[0].effective = before
        assert system.capset(ctypes.byref(header), held) == 0
