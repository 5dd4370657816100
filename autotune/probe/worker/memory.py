"""Peak memory by phase: the allocator's counters on CUDA; live tensors and the process on a CPU.

A processor has no allocator that counts tensors, and resident memory is no substitute: the C
library keeps what was freed, by up to a few per cent and differently each time. A dispatch mode
sees the outputs of every operation; a storage counts once and leaves when nothing holds it any
more. It costs microseconds an operation, so it is active only in the steps that are not timed.

Does not cover: memory that a kernel takes and gives back inside one operation; torch.compile, which
a dispatch mode would switch off; several processes, whose sharded tensors hide their storages.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Iterable

RESET_PEAK = "5"  # man 5 proc: resets VmHWM, the peak of resident memory
SPILL_SHARE = 0.98
CGROUP_LIMITS = (
    "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)  # fmt: skip


def resident_bytes(field: str = "VmRSS") -> int:
    """[bytes] a field of this process's status: VmRSS now, VmHWM its peak, VmData its data."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return 0


@dataclass(frozen=True)
class Before:
    """[bytes] of a server that forks. resident: after importing torch and the Trainer; of_files.

    A fork inherits what is in memory, but maps the pages of a file only when it uses them.
    """

    resident: int = 0
    of_files: int = 0


_before = Before()


def note_before(**held: int) -> None:
    """What this process holds, for the forks that it is about to make: fields of `Before`."""
    global _before  # noqa: PLW0603 - of the process
    _before = replace(_before, **held)


class Meter:
    """Peaks of a device since the last reset, and what was there before the model."""

    def __init__(self, device: torch.device) -> None:
        """Call before the model is built: what is in use now is the context."""
        self.device = device
        self.cuda = device.type == "cuda"
        self.peaks: dict[str, dict[str, int]] = {}
        self.counter: LiveBytes | None = None
        self._counting = False
        self._forked = _before
        if self.cuda:
            torch.zeros(1, device=device)
            self.context = self._driver_used() - torch.cuda.memory_reserved(device)
        else:
            self.context = self._forked.resident or resident_bytes()

    def count(self) -> None:
        """Count live tensors from now until `uncount`, for the phases noted meanwhile (CPU)."""
        if not self.cuda and not self._counting:
            self.counter = self.counter or LiveBytes()
            self.counter.__enter__()
            self._counting = True

    def uncount(self) -> None:
        """Stop counting: what follows is timed."""
        if self._counting and self.counter is not None:
            self.counter.__exit__(None, None, None)
            self._counting = False

    def _driver_used(self) -> int:
        free, total = torch.cuda.mem_get_info(self.device)
        return int(total - free)

    def reset(self) -> None:
        """Peaks count from now."""
        if self.cuda:
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        if self.counter is not None:
            self.counter.reset()
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text(RESET_PEAK, encoding="ascii")

    def note(self, phase: str) -> None:
        """The peak since the reset belongs to this phase; the next one starts."""
        found = self.read()
        known = self.peaks.get(phase, {})
        self.peaks[phase] = {n: max(value, known.get(n, 0)) for n, value in found.items()}
        self.reset()

    def read(self) -> dict[str, int]:
        """[bytes] allocated: tensors; reserved: what the allocator holds; driver: the device.

        Where tensors have to be counted, phases in which they were not have no `allocated`.
        """
        if self.cuda:
            return {
                "allocated": torch.cuda.max_memory_allocated(self.device),
                "reserved": torch.cuda.max_memory_reserved(self.device),
                "driver": self._driver_used(),
            }
        unmapped = max(self._forked.of_files - resident_bytes("RssFile"), 0)
        peak = resident_bytes("VmHWM") + unmapped
        own = max(peak - self.context, 0)
        found = {"reserved": own, "driver": peak}
        if self.counter is None:
            return {"allocated": own, **found}
        return {"allocated": self.counter.peak, **found} if self._counting else found

    def retries(self) -> int:
        """Times the allocator had to give blocks back before it could serve a request."""
        if not self.cuda:
            return 0
        return int(torch.cuda.memory_stats(self.device).get("num_alloc_retries", 0))

    def report(self) -> dict[str, Any]:
        """All peaks, and the largest of each kind."""
        total = self.total_bytes()
        kinds = ("allocated", "reserved", "driver")
        largest = {
            f"{kind}_bytes": max((p.get(kind, 0) for p in self.peaks.values()), default=0)
            for kind in kinds
        }
        return {
            **largest,
            "context_bytes": self.context,
            "total_bytes": total,
            "retries": self.retries(),
            "near_full": largest["driver_bytes"] > SPILL_SHARE * total,
            "phases": self.peaks,
        }

    def total_bytes(self) -> int:
        """[bytes] of the device."""
        if self.cuda:
            return int(torch.cuda.mem_get_info(self.device)[1])
        total = int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        for name in CGROUP_LIMITS:
            with contextlib.suppress(OSError, ValueError):
                total = min(total, int(Path(name).read_text(encoding="ascii")))
        return total


def limit(device: torch.device, bytes_: int) -> None:
    """Let this process have so much and no more: a smaller card, emulated. Speed is not."""
    if device.type == "cuda":
        total = torch.cuda.mem_get_info(device)[1]
        torch.cuda.set_per_process_memory_fraction(min(bytes_ / total, 1.0), device)
        return
    import resource

    allowed = resident_bytes("VmData") + bytes_
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))


class LiveBytes(TorchDispatchMode):
    """Counts storages while it is entered; `peak` is the most since the last reset."""

    def __init__(self) -> None:
        """Nothing is known yet: `know` what exists before entering."""
        super().__init__()
        self.live = 0
        self.peak = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None  # noqa: ANN401
    ) -> Any:  # fmt: skip  # noqa: ANN401
        """Run the operation and count what it made."""
        result = func(*args, **(kwargs or {}))
        self.know(leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
        return result

    def know(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count the storages of tensors, unless they are counted already."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = storage._cdata  # noqa: SLF001 - the storage's identity; torch's tracker uses it
            if key in self._known:
                continue
            size = storage.nbytes()
            self._known[key] = size
            self.live += size
            weakref.finalize(storage, self._forget, key)
        self.peak = max(self.peak, self.live)

    def _forget(self, key: int) -> None:
        self.live -= self._known.pop(key, 0)

    def reset(self) -> None:
        """The peak counts from now."""
        self.peak = self.live
