"""The devices of this machine, without torch: NVIDIA's through its management library, and the CPU.

Every reading may be refused (consumer cards, containers); what is refused is left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from autotune.catalog.devices import cpu_device, identify

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.domain.device import Device, Offer

THROTTLED = {  # bits of nvmlDeviceGetCurrentClocksEventReasons; Source: nvml.h
    0x04: "power cap", 0x08: "hardware slowdown", 0x20: "thermal (software)",
    0x40: "thermal (hardware)", 0x80: "power brake",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LocalDevice:
    """A device that is here. `device` is None when the catalogue does not know it."""

    index: int
    name: str
    total_bytes: float
    used_bytes: float
    driver: str
    device: Device | None
    processes: tuple[int, ...] = field(default=(), compare=False)

    @property
    def is_cpu(self) -> bool:
        """Whether it is the processor."""
        return self.device is not None and self.device.is_cpu


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """The management library, or None where there is none."""
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
    """NVIDIA devices by index; none without driver or device."""
    found: list[LocalDevice] = []
    with _nvml() as nvml:
        if nvml is None:
            return found
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            name = _text(nvml.nvmlDeviceGetName(handle))
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            running: tuple[int, ...] = ()
            with contextlib.suppress(Exception):
                listed = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                running = tuple(int(process.pid) for process in listed)
            found.append(
                LocalDevice(
                    index,
                    name,
                    float(memory.total),
                    float(memory.used),
                    driver,
                    identify(name, float(memory.total)),
                    running,
                )
            )
    return found


def cpu() -> LocalDevice:
    """This machine's processor."""
    device = cpu_device()
    return LocalDevice(0, "cpu", device.memory_driver_bytes, 0.0, platform.release(), device)


def local_devices() -> list[LocalDevice]:
    """Everything that a probe could run on: GPUs first."""
    return [*gpus(), cpu()]


def matching(offer: Offer, here: list[LocalDevice] | None = None) -> list[LocalDevice]:
    """The local devices that are the offer's; empty when there are fewer than it has."""
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
