"""This machine: its processor as a device, and itself as the host around it."""

from __future__ import annotations

import os
import platform
import re
import shutil
from functools import lru_cache
from pathlib import Path

from autotune.domain.device import Device, Host
from autotune.domain.units import GB, GIB, KIB, MB

# FLOP per cycle of one physical core (two vector units). Source: instruction sets' widths;
# AMX: Intel optimisation manual (1024 bf16 multiply-adds per cycle). Scalar fallback: SSE2.
_FP32_FLOP_PER_CYCLE = (("avx512f", 64), ("avx2", 32), ("sve", 32), ("asimd", 16), ("sse2", 8))
_BF16_FLOP_PER_CYCLE = (("amx_bf16", 2048), ("avx512_bf16", 128), ("bf16", 64))
_FP16_FLOP_PER_CYCLE = (("amx_fp16", 2048), ("avx512_fp16", 128))
ASSUMED_GHZ = 2.5
CPU_MATMUL_CEILING = 0.6  # assumption: BLAS at base clock, memory traffic included
ASSUMED_WATTS_PER_CORE = 8.0
DDR_BYTES_PER_S = 25.6e9  # one DDR4-3200 channel: 3.2e9 transfers x 8 bytes
DESKTOP_CORES, DESKTOP_CHANNELS, SERVER_CHANNELS = 16, 2, 8

# Assumptions for what is not read of this machine: a local NVMe disk, a hub over one gigabit per
# second, and what a cloud's volume writes (AWS gp3 starts at 125 MB/s; provisioned, up to 1 GB/s).
ASSUMED_DISK_BYTES = 200 * GB
ASSUMED_CHECKPOINT_WRITE_BYTES_PER_S = 250 * MB
LOCAL_READ_BYTES_PER_S = 1 * GB
DOWNLOAD_BYTES_PER_S = 125 * MB
ASSUMED_RATES = (
    "checkpoint_write_bytes_per_s", "storage_read_bytes_per_s", "download_bytes_per_s"
)  # fmt: skip


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@lru_cache(maxsize=1)
def _cpuinfo() -> str:
    # Processors repeat; the first 64 KiB hold the first one entirely.
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as stream:
            return stream.read(64 * KIB)
    except OSError:
        return ""


def _field(name: str) -> str:
    found = re.search(rf"^{name}\s*:\s*(.+)$", _cpuinfo(), re.MULTILINE)
    return found[1].strip() if found else ""


def processor_name() -> str:
    """The processor as it calls itself; its kind where it does not say."""
    return _field("model name") or platform.processor() or platform.machine()


def _logical_cores() -> int:
    """Cores this process may use: its affinity, within the cgroup's quota."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows
        cores = os.cpu_count() or 1
    quota = _read("/sys/fs/cgroup/cpu.max").split()
    expected_fields = 2
    if len(quota) == expected_fields and quota[0].isdigit():
        cores = min(cores, max(1, round(int(quota[0]) / int(quota[1]))))
    return max(1, cores)


def _physical_cores() -> float:
    siblings, cores = _field("siblings"), _field("cpu cores")
    share = int(cores) / int(siblings) if siblings.isdigit() and cores.isdigit() else 1.0
    return max(1.0, _logical_cores() * min(1.0, share))


def _ram_bytes() -> float:
    """[bytes] the memory this process may use: the machine's, within its cgroup's limit."""
    try:
        total = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):  # Windows
        total = 8.0 * GIB
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read(path).strip()
        if text.isdigit() and int(text) > 0:
            total = min(total, float(text))
    return total


def _clock_hz() -> float:
    stated = re.search(r"@\s*([\d.]+)\s*GHz", _field("model name"))
    if stated:
        return float(stated[1]) * 1e9
    mhz = _field("cpu MHz")
    return float(mhz) * 1e6 if re.fullmatch(r"[\d.]+", mhz) else ASSUMED_GHZ * 1e9


def _per_cycle(table: tuple[tuple[str, int], ...], flags: set[str], default: int) -> int:
    return next((flop for flag, flop in table if flag in flags), default)


@lru_cache(maxsize=1)
def cpu_device() -> Device:
    """This machine's processor. Peak = cores x clock x FLOP per cycle (source: formula).

    16-bit rates are 0 where the processor has no instructions for them.
    """
    cores, clock = _physical_cores(), _clock_hz()
    flags = set(f"{_field('flags')} {_field('Features')}".split())
    if platform.machine() == "arm64":  # macOS has no /proc/cpuinfo
        flags.add("asimd")
    per_second = cores * clock
    channels = DESKTOP_CHANNELS if cores <= DESKTOP_CORES else SERVER_CHANNELS
    bandwidth = channels * DDR_BYTES_PER_S
    ram = _ram_bytes()
    return Device(
        name="cpu",
        vendor="cpu",
        aliases=(),
        architecture=platform.machine() or "cpu",
        compute_capability=0.0,
        form_factor="host",
        memory_driver_bytes=ram,
        memory_torch_bytes=ram,
        memory_bandwidth_bytes_per_s=bandwidth,
        fp32_flop_per_s=per_second * _per_cycle(_FP32_FLOP_PER_CYCLE, flags, 8),
        tf32_flop_per_s=0.0,
        fp16_flop_per_s=per_second * _per_cycle(_FP16_FLOP_PER_CYCLE, flags, 0),
        bf16_flop_per_s=per_second * _per_cycle(_BF16_FLOP_PER_CYCLE, flags, 0),
        int8_op_per_s=0.0,
        fp8_flop_per_s=0.0,
        matmul_ceiling_fraction=CPU_MATMUL_CEILING,
        matmul_ceiling_measured=False,
        link_bytes_per_s=bandwidth / 2,
        has_nvlink=False,
        pcie_bytes_per_s=bandwidth / 2,
        sm_count=max(1, round(cores)),
        tdp_w=ASSUMED_WATTS_PER_CORE * cores,
        release_year=0,
        source="formula: cores x clock x FLOP per cycle, from /proc/cpuinfo",
        notes="Bandwidth assumes two DDR4-3200 channels, eight above 16 cores; watts assume 8 W "
        "a core.",
    )


def local_host() -> Host:
    """This machine as a host: what it has is read, rates that only a test would show are assumed.

    Errors: none; what cannot be read takes the value of a rented machine and is listed.
    """
    assumed = list(ASSUMED_RATES)
    try:
        disk = float(shutil.disk_usage(Path.cwd()).free)
    except OSError:
        disk = float(ASSUMED_DISK_BYTES)
        assumed.append("disk_bytes")
    ram = _ram_bytes()
    try:
        shm = float(shutil.disk_usage("/dev/shm").total)  # noqa: S108 - asked for its size only
    except OSError:
        shm = ram / 2
        assumed.append("shm_bytes")
    return Host(
        cores=_logical_cores(),
        ram_bytes=ram,
        shm_bytes=shm,
        disk_bytes=disk,
        checkpoint_write_bytes_per_s=float(ASSUMED_CHECKPOINT_WRITE_BYTES_PER_S),
        storage_read_bytes_per_s=float(LOCAL_READ_BYTES_PER_S),
        download_bytes_per_s=float(DOWNLOAD_BYTES_PER_S),
        wsl="microsoft" in platform.release().casefold(),
        assumed=tuple(assumed),
    )
