"""One probe at a time on a device: two at once would each measure the other.

A lock file for each device below $AUTOTUNE_HOME. The kernel takes the lock back when its holder
ends, however that happens, so that there is no lease that has to run out.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from autotune.catalog.home import home_dir
from autotune.probe.worker.phase import Doing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from autotune.probe.device import LocalDevice

FOLDER = "devices"
LOOK_S = 0.25
WAITING = "waiting for another search that measures on this device"


@contextlib.contextmanager
def leased(
    local: LocalDevice, hear: Callable[[Doing, float], None] | None = None
) -> Iterator[None]:
    """Hold the device; wait while another process of this user does. hear: is told of waiting.

    A home that cannot be written, or a system without such locks, is no reason not to measure.
    """
    try:
        stream = _opened(local)
    except (OSError, ImportError):
        yield
        return
    with stream:
        begun = time.monotonic()
        while not _taken(stream):
            if hear is not None:
                hear(Doing(WAITING), time.monotonic() - begun)
            time.sleep(LOOK_S)
        yield


def _opened(local: LocalDevice) -> BinaryIO:
    import fcntl  # noqa: F401 - Windows has none: the caller goes on without

    folder = home_dir() / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    name = local.uuid or f"{local.name}-{local.index}"
    safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in name)
    return (folder / f"{safe}.lock").open("ab")


def _taken(stream: BinaryIO) -> bool:
    """Whether the lock is ours now."""
    import fcntl

    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
