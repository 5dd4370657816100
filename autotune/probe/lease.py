"""Who measures on a device now: one probe at a time, since two at once would measure each other.

A lock file for each device below $AUTOTUNE_HOME, which the kernel takes back when its holder ends,
however that happens. What it holds says who that is and when his time is over at the latest. A GPU
is known by its UUID, a processor by its machine and the share of it that this container has. A
search also takes a seat at a device for as long as it lasts, so that the next one takes another.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.catalog.files import home_dir
from autotune.probe.worker.contract import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import BinaryIO

    from autotune.probe.device import LocalDevice

LOCKS_FOLDER = "devices"
LOCK_POLL_S = 0.25
WAITING = "waiting for another search that measures on this device"
MOST_BYTES = 4096  # of what a lock file says


@contextlib.contextmanager
def leased(
    found: Sequence[LocalDevice], on_phase: Callable[[Phase, float], None] | None = None, *,
    most_s: float = 0.0, what: str = "",
) -> Iterator[None]:  # fmt: skip
    """Hold devices; wait while another process of this user does.

    on_phase: is told of waiting, and for whom. most_s: after which they are surely given back;
    what: they are held for, such as a run folder. A home that cannot be written, or a system
    without such locks, is no reason not to measure.
    """
    with contextlib.ExitStack() as stack:
        for local in sorted(found, key=_name):  # all in one order: nobody waits in a circle
            with contextlib.suppress(OSError, ImportError):
                stream = stack.enter_context(_lock_file(f"{_name(local)}.lock"))
                begun = time.monotonic()
                while not _takes(stream):
                    if on_phase is not None:
                        on_phase(Phase(_waiting_for(stream)), time.monotonic() - begun)
                    time.sleep(LOCK_POLL_S)
                _sign(stream, most_s, what)
        yield


@contextlib.contextmanager
def seated(
    groups: Sequence[Sequence[LocalDevice]], tell: Callable[[str], None], what: str = ""
) -> Iterator[Sequence[LocalDevice]]:
    """The first of some groups of devices at which no other search sits; it is told where that is.

    Where all are taken, the first: its probes and those of its holder take turns.
    """
    first, words = groups[0], ""
    with contextlib.ExitStack() as stack:
        for number, group in enumerate(groups):
            taken, said = _sits(stack, group, what)
            words = words or said
            if taken:
                if number:
                    tell(f"{_label(first)} is taken ({words}); probes run on {_label(group)}")
                yield group
                return
        tell(f"every {first[0].name} here is taken ({words}); probes take turns on {_label(first)}")
        yield first


def _sits(
    stack: contextlib.ExitStack, group: Sequence[LocalDevice], what: str
) -> tuple[bool, str]:  # fmt: skip
    """Whether all of a group are ours now, and by whom not."""
    with contextlib.ExitStack() as trial:
        for local in group:
            try:
                stream = trial.enter_context(_lock_file(f"{_name(local)}.seat"))
            except (OSError, ImportError):
                continue
            if not _takes(stream):
                return False, _owner(stream)
            _sign(stream, 0.0, what)
        stack.push(trial.pop_all())
    return True, ""


def _label(group: Sequence[LocalDevice]) -> str:
    names = ", ".join(local.uuid[:12] or f"{local.name} {local.index}" for local in group)
    return f"{group[0].name} ({names})"


def _name(local: LocalDevice) -> str:
    """By which every process of this machine knows a device."""
    name = local.uuid or f"{local.name}-{local.index}-{_share_of_machine()}"
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in name)


def _share_of_machine() -> str:
    """This machine and the cgroup that limits us, in a few characters."""
    with contextlib.suppress(OSError):
        text = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace")
        within = sorted(line.rpartition(":")[2] for line in text.splitlines()[-1:])
        facts = f"{platform.node()} {_container()} {within if _is_container() else ''}"
        return hashlib.sha256(facts.encode()).hexdigest()[:8]
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def _container() -> str:
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/cgroup")  # noqa: PTH115 - no path: cgroup:[402...]
    return ""


def _is_container() -> bool:
    return Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()


def _lock_file(name: str) -> BinaryIO:
    import fcntl  # noqa: F401 - Windows has none: the caller goes on without

    folder = home_dir() / LOCKS_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    return os.fdopen(handle, "rb+", buffering=0)


def _takes(stream: BinaryIO) -> bool:
    """Whether the lock is ours now."""
    import fcntl

    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _sign(stream: BinaryIO, most_s: float, what: str) -> None:
    """Say who holds it, and until when at the latest."""
    now = datetime.now(UTC)
    told: dict[str, Any] = {
        "pid": os.getpid(), "host": platform.node(), "what": what,
        "since": now.isoformat(timespec="seconds"),
    }  # fmt: skip
    if most_s:
        told["until"] = (now + timedelta(seconds=most_s)).isoformat(timespec="seconds")
    with contextlib.suppress(OSError):
        stream.truncate(0)
        stream.seek(0)
        stream.write(json.dumps(told).encode())


def _waiting_for(stream: BinaryIO) -> str:
    owner = _owner(stream)
    return f"{WAITING}: {owner}" if owner else WAITING


def _owner(stream: BinaryIO) -> str:
    """Who holds it, in words; empty where that cannot be read."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        stream.seek(0)
        told = json.loads(stream.read(MOST_BYTES))
        until = f", at most until {told['until']}" if told.get("until") else ""
        return f"process {told['pid']} {told.get('what') or ''}".strip() + until
    return ""
