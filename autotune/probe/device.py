"""The devices of this machine, without torch: NVIDIA's through its management library, and the CPU.

Every reading may be refused (consumer cards, containers); what is refused is left out.

One probe at a time measures on a device (`lease`).
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import platform
import re
import sys
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from autotune.catalog.devices import cpu_device, identify, local_host
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autotune.domain.device import Device, Offer


NVML = "libnvidia-ml.so.1"  # the driver's own, which pynvml wraps
THROTTLED = {  # bits of nvmlDeviceGetCurrentClocksEventReasons; Source: nvml.h
    0x04: "power cap", 0x08: "hardware slowdown", 0x20: "thermal (software)",
    0x40: "thermal (hardware)", 0x80: "power brake",
}  # fmt: skip


class OtherMachines(Protocol):
    """Those that take part in each probe, beside this one."""

    @property
    def per_node(self) -> int:
        """Processes on each machine."""

    def begin(self, folder: Path) -> None:
        """The request in that folder is whole."""

    def launcher(self, name: str) -> tuple[str, ...]:
        """Arguments of python before the worker's; name: of the one probe."""


@dataclass(frozen=True, slots=True)
class LocalDevice:
    """A device that is here. `device` is None when the catalogue does not know it.

    A MIG slice is no device of the catalogue either: `part_of` is the board that it is cut from.
    """

    index: int
    name: str
    total_bytes: float
    used_bytes: float  # held by processes; beside what the driver keeps, where it tells them apart
    driver: str
    device: Device | None
    processes: tuple[int, ...] = field(default=(), compare=False)
    reserved_bytes: float = 0.0  # what the driver keeps for itself
    uuid: str = field(default="", compare=False)
    part_of: Device | None = None
    unified: bool = False  # it has no memory of its own: the host's is counted
    refused: str = ""  # why its memory could not be read; the bytes are 0 then
    elsewhere: bool = False  # workers have it: what is known here is its kind

    @property
    def is_cpu(self) -> bool:
        """Whether it is the processor."""
        return self.device is not None and self.device.is_cpu

    @property
    def free_bytes(self) -> float:
        """[bytes] that a new process can get."""
        return max(self.total_bytes - self.reserved_bytes - self.used_bytes, 0.0)


def _driver_loads() -> bool:
    """Whether the driver's library is here: the wrapper around it is large, and alone of no use."""
    if sys.platform == "win32" or "pynvml" in sys.modules:
        return True
    try:
        ctypes.CDLL(NVML)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """The management library, or None where there is none."""
    if not _driver_loads():
        yield None
        return
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - absent, too old, or no permission: no NVIDIA device
        yield None
        return
    try:
        yield pynvml
    finally:
        with contextlib.suppress(Exception):
            pynvml.nvmlShutdown()


def gpus() -> list[LocalDevice]:
    """NVIDIA devices by index, each MIG slice in the place of its board; none without driver.

    A device that cannot be read (fallen off the bus, no permission) does not hide the others.
    """
    found: list[LocalDevice] = []
    with _nvml() as nvml:
        if nvml is None:
            return found
        driver = _text(_asked(nvml.nvmlSystemGetDriverVersion, default="unknown"))
        for index in range(_asked(nvml.nvmlDeviceGetCount, default=0)):
            with contextlib.suppress(Exception):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                found += _board(nvml, handle, index, driver)
    return found


def _asked(call: Callable[..., Any], *arguments: Any, default: Any) -> Any:  # noqa: ANN401 - the library is not typed
    """The library's answer, or the default where it refuses or is too old to have the call."""
    try:
        return call(*arguments)
    except Exception:  # noqa: BLE001 - every version of the library has its own errors
        return default


def _board(nvml: Any, handle: Any, index: int, driver: str) -> list[LocalDevice]:  # noqa: ANN401
    """One board, or its MIG slices where it is cut: programs see the slices only."""
    name = _text(nvml.nvmlDeviceGetName(handle))
    board = replace(
        LocalDevice(
            index, name, 0.0, 0.0, driver, None, _running(nvml, handle), uuid=_uuid(nvml, handle)
        ),
        **_memory(nvml, handle),
    )
    device = identify(name, board.total_bytes) if board.total_bytes else None
    if not _is_cut(nvml, handle):
        return [replace(board, device=device)]
    slices = [
        replace(
            board,
            name=_text(_asked(nvml.nvmlDeviceGetName, part, default=f"{name} MIG")),
            processes=_running(nvml, part),
            uuid=_uuid(nvml, part),
            part_of=device,
            **_memory(nvml, part),
        )
        for part in _slices(nvml, handle)
    ]
    return slices or [replace(board, refused="MIG is on, and it has no slice to run on")]


def _is_cut(nvml: Any, handle: Any) -> bool:  # noqa: ANN401
    """Whether MIG is on; boards without MIG refuse the question."""
    current = _asked(lambda: nvml.nvmlDeviceGetMigMode(handle)[0], default=0)
    return bool(current == 1)


def _slices(nvml: Any, handle: Any) -> Iterator[Any]:  # noqa: ANN401
    for number in range(_asked(nvml.nvmlDeviceGetMaxMigDeviceCount, handle, default=0)):
        part = _asked(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number, default=None)
        if part is not None:
            yield part


def _memory(nvml: Any, handle: Any) -> dict[str, Any]:  # noqa: ANN401
    """Total, reserved and held bytes as fields of a LocalDevice, or why they cannot be read.

    Source: nvml.h: nvmlMemory_v2_t tells the driver's own share (reserved) from used; the first
    version counts it as used. Devices on the host's memory (GB10, Jetson) answer "not supported".
    """
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        reserved = float(memory.reserved)
    except Exception:  # noqa: BLE001 - drivers before 510 and bindings before 11.510 lack it
        try:
            memory, reserved = nvml.nvmlDeviceGetMemoryInfo(handle), 0.0
        except Exception as error:  # noqa: BLE001 - refused in its own way
            if getattr(error, "value", None) == nvml.NVML_ERROR_NOT_SUPPORTED:
                return _host_memory()
            return {"refused": str(error) or type(error).__name__}
    return {
        "total_bytes": float(memory.total),
        "used_bytes": float(memory.used),
        "reserved_bytes": reserved,
    }


def _host_memory() -> dict[str, Any]:
    """The host's memory within the cgroup's limit, and what is in use of it."""
    total = local_host().ram_bytes
    found = re.search(r"^MemAvailable:\s*(\d+) kB", _meminfo(), re.MULTILINE)
    available = min(float(found[1]) * 1024.0, total) if found else total
    return {"total_bytes": total, "used_bytes": total - available, "unified": True}


def _meminfo() -> str:
    text: str = _asked(Path("/proc/meminfo").read_text, default="")
    return text


def _running(nvml: Any, handle: Any) -> tuple[int, ...]:  # noqa: ANN401
    listed = _asked(nvml.nvmlDeviceGetComputeRunningProcesses, handle, default=())
    return tuple(int(process.pid) for process in listed)


def _uuid(nvml: Any, handle: Any) -> str:  # noqa: ANN401
    return _text(_asked(lambda: nvml.nvmlDeviceGetUUID(handle), default=""))


def visible(found: list[LocalDevice], listed: str | None) -> list[LocalDevice]:
    """Those that CUDA_VISIBLE_DEVICES lets a program see, in its order; all where it is unset.

    Numbers count boards, names are beginnings of UUIDs; what stands behind an invalid entry is
    invisible. Source: CUDA C++ programming guide, CUDA environment variables.
    """
    if listed is None:
        return found
    chosen: list[LocalDevice] = []
    for entry in (part.strip() for part in listed.split(",")):
        if entry.isdecimal():
            match = next((own for own in found if own.index == int(entry)), None)
        else:
            match = next((own for own in found if entry and own.uuid.startswith(entry)), None)
        if match is None:
            break
        chosen.append(match)
    return chosen


def cpu() -> LocalDevice:
    """This machine's processor."""
    device = cpu_device()
    return LocalDevice(0, "cpu", device.memory_driver_bytes, 0.0, platform.release(), device)


def local_devices() -> list[LocalDevice]:
    """Everything that a probe could run on: GPUs that a program may see first."""
    return [*visible(gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")), cpu()]


def matching(offer: Offer, here: list[LocalDevice] | None = None) -> list[LocalDevice]:
    """The local devices that are the offer's; empty where it has more, or several machines."""
    if offer.network is not None:
        return []
    found = [
        local
        for local in (local_devices() if here is None else here)
        if local.device is not None and local.device.name == offer.device.name
    ]
    return found[: offer.count] if len(found) >= offer.count else []


def used_bytes(index: int = 0) -> float | None:
    """[bytes] in use on a GPU by everybody, or None without one."""
    with _nvml() as nvml:
        if nvml is None:
            return None
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        return float(nvml.nvmlDeviceGetMemoryInfo(handle).used)


def reading(index: int = 0) -> dict[str, float] | None:
    """Watts, clock, temperature, utilisation and throttle bits now; None without a GPU."""
    with _nvml() as nvml:
        if nvml is None:
            return None
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        calls: dict[str, Any] = {
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0,
            "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "busy": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100.0,
            "reasons": lambda: _reasons(nvml, handle),
            "used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "total_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total,
        }
        found: dict[str, float] = {}
        for name, call in calls.items():
            with contextlib.suppress(Exception):
                found[name] = float(call())
        return found


def _reasons(nvml: Any, handle: Any) -> float:  # noqa: ANN401 - the library is not typed
    """The bits, by the newer or the older name of the call."""
    newer = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    call: Any = newer or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    return float(call(handle))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def throttle_words(bits: int) -> list[str]:
    """What slowed the device down, in words."""
    return [word for bit, word in THROTTLED.items() if bits & bit]


def fingerprint(local: LocalDevice) -> str:
    """A digest of what a measurement depends on: device, memory, driver; for a CPU its kind."""
    facts = {"name": local.name, "total": round(local.total_bytes / 1e8), "driver": local.driver}
    if local.is_cpu and local.device is not None:
        known = asdict(local.device)
        facts |= {name: known[name] for name in ("architecture", "fp32_flop_per_s", "sm_count")}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
