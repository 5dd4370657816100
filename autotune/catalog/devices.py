"""Devices: facts of `data/devices.csv` and `data/achievable.csv`, and how a name finds one.

With a device comes the host that is assumed around it where nobody describes the machine.

Rates are dense with fp32 accumulation. A driver's name alone does not identify a board (an A100
has 40 or 80 GB, modified RTX 4090s have 48), so `identify` also compares the reported memory.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from statistics import median
from typing import TYPE_CHECKING

from autotune.catalog.local import (
    ASSUMED_CHECKPOINT_WRITE_BYTES_PER_S,
    ASSUMED_DISK_BYTES,
    ASSUMED_RATES,
    DOWNLOAD_BYTES_PER_S,
    LOCAL_READ_BYTES_PER_S,
    cpu_device,
    local_host,
)
from autotune.catalog.tables import DATA, CatalogDataError, names, number, read_rows
from autotune.domain.device import BF16_CAPABILITY, Device, Host
from autotune.domain.errors import InputError, unknown
from autotune.domain.units import GIB, MB, MIB

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "cpu_device",
    "default_host",
    "find_device",
    "find_machine",
    "identify",
    "load_devices",
    "local_host",
    "of_ram",
]

HOW_TO_ADD = (
    "`autotune devices` lists all; what to do about one that is missing: `autotune help machines`"
)
SAME_MEMORY = 0.07  # boards of one name whose totals differ by less are the same (ECC, drivers)

# [bytes/s] to the host, one direction, 16 lanes. Raw rates are 15.75, 31.5 and 63 GB/s (PCI-SIG);
# large pinned copies reach about 83 % of them. Derived; generation 6 doubles 5.
PCIE_BYTES_PER_S = {3: 13e9, 4: 26e9, 5: 52e9, 6: 104e9}
SWITCHED_LINK_FORMS = ("sxm", "superchip", "oam")  # a fast link without buying a bridge

# Share of the advertised memory that a driver shows, where nobody has reported the total:
# 81559 MiB of 80 GiB on H100 (0.9956). AMD and Apple report all of it.
NVIDIA_VISIBLE_SHARE = 0.9956

METAL_SHARE = 0.75  # of unified memory, that Metal recommends using
_APPLES = re.compile(r"(?:apple|mac|mps|metal)[a-z0-9]*|m[1-9](?:pro|max|ultra)?")

# Share of the dense peak that the best matrix product reaches, where this board was not measured.
# Source: classes of the measurements in achievable.csv (SXM 0.75-0.87, boards of 75 W or 350 W
# PCIe 0.59-0.66, other PCIe 0.74-0.83, GeForce 0.91-1.13, CDNA 0.51-0.62, Apple 0.73-0.90). An A10
# is an A6000's chip at half its power: with the T4 and the L4, assumption.
_CEILINGS = {
    "amd": 0.60, "apple": 0.80, "pascal": 0.45, "geforce": 0.95, "switched": 0.80,
    "power_limited": 0.65, "pcie": 0.75,
}  # fmt: skip

# Share of the peak at the clock it keeps that a board's best matrix product reaches. A T4 held at
# 585 MHz kept its units 84 to 96 % busy (winterstar67/AI-Experiments, Batch Size vs Inference
# Speed). At the clocks of a training that makes 29 TFLOP/s in fp16, between the 19 to 24 of
# products without a pause, which draw more, and the 43 of the first second; and 3.6 in fp32.
KEPT_CLOCK_SHARE = 0.9

# Assumptions for a machine nobody described. Cores and RAM per GPU are at the low end of what
# clouds list per board (Nebius 16 vCPU and 200 GB per H100, Verda 22-32 vCPU; AWS g4dn/g5/g6.xlarge
# 4 vCPU and 16 GB per T4, A10G or L4, RunPod 4090 pods about 8 and 32). A file system over the
# network reads more slowly than a disk.
LARGE_BOARD_BYTES = 38 * GIB
RENTED_CORES, RENTED_RAM_BYTES = 16, 128 * GIB
SMALL_CORES, SMALL_RAM_BYTES = 8, 32 * GIB
NETWORK_READ_BYTES_PER_S = 150 * MB
_SIZES = ("cores", "ram_bytes", "shm_bytes", "disk_bytes")


@lru_cache(maxsize=1)
def load_devices() -> dict[str, Device]:
    """Every device of the catalogue by name, and this machine's own processor as `cpu`."""
    measured = _measured_ceilings()
    found = [_device(row, measured) for row in read_rows(DATA / "devices.csv")]
    devices = {device.name: device for device in found}
    devices["cpu"] = cpu_device()
    return devices


@lru_cache(maxsize=1)
def _measured_ceilings() -> dict[tuple[str, str], float]:
    """[FLOP/s] best measured matrix product by (device, precision)."""
    best: dict[tuple[str, str], float] = {}
    for row in read_rows(DATA / "achievable.csv"):
        if row["quantity"] == "matmul":
            key = (row["device"], row["precision"])
            best[key] = max(best.get(key, 0.0), number(row, "measured") * 1e12)
    return best


@lru_cache(maxsize=1)
def _kept_clocks() -> dict[str, float]:
    """[Hz] median of the clocks that a board was seen to keep for minutes, by device.

    A benchmark of products lasts a second, and a board with little power to spare runs it at a
    clock that it lowers afterwards.
    """
    seen: dict[str, list[float]] = {}
    for row in read_rows(DATA / "achievable.csv"):
        if row["quantity"] == "training_clock":
            seen.setdefault(row["device"], []).append(number(row, "measured") * 1e6)
    return {name: median(clocks) for name, clocks in seen.items()}


def _device(row: Mapping[str, str], measured: Mapping[tuple[str, str], float]) -> Device:
    rates = {
        precision: number(row, f"{precision}_tflop_per_s", 0.0) * 1e12
        for precision in ("fp32", "tf32", "fp16", "bf16", "fp8")
    }
    capability = number(row, "compute_capability")
    if row["vendor"] == "nvidia" and (rates["bf16"] > 0) != (capability >= BF16_CAPABILITY):
        msg = f"bf16 rate of {row['name']} and compute capability {capability} do not go together"
        raise CatalogDataError(msg)
    fraction = _measured_fraction(row["name"], rates, measured)
    if fraction is not None and row["name"] in _kept_clocks():
        kept = _kept_clocks()[row["name"]] / (number(row, "clock_mhz") * 1e6)
        fraction = min(fraction, KEPT_CLOCK_SHARE * kept)
    bandwidth = number(row, "memory_bandwidth_gb_per_s") * 1e9
    generation = int(number(row, "pcie_generation", 0.0))
    # Copies to unified memory read and write the same chips.
    pcie = PCIE_BYTES_PER_S[generation] if generation else bandwidth / 2
    has_nvlink = row["form_factor"].startswith(SWITCHED_LINK_FORMS)
    link = number(row, "nvlink_gb_per_s_bidirectional", 0.0) / 2 * 1e9 if has_nvlink else pcie
    driver_bytes, torch_bytes = _memory(row)
    return Device(
        name=row["name"],
        vendor=row["vendor"],
        aliases=names(row, "driver_names", "short_names"),
        architecture=row["architecture"],
        compute_capability=capability,
        form_factor=row["form_factor"],
        memory_driver_bytes=driver_bytes,
        memory_torch_bytes=torch_bytes,
        memory_bandwidth_bytes_per_s=bandwidth,
        fp32_flop_per_s=rates["fp32"],
        tf32_flop_per_s=rates["tf32"],
        fp16_flop_per_s=rates["fp16"],
        bf16_flop_per_s=rates["bf16"],
        int8_op_per_s=number(row, "int8_top_per_s", 0.0) * 1e12,
        fp8_flop_per_s=rates["fp8"],
        matmul_ceiling_fraction=_class_ceiling(row) if fraction is None else fraction,
        matmul_ceiling_measured=fraction is not None,
        link_bytes_per_s=link,
        has_nvlink=has_nvlink,
        pcie_bytes_per_s=pcie,
        sm_count=int(number(row, "units")),
        tdp_w=number(row, "tdp_w"),
        release_year=int(number(row, "release_year")),
        source=f"{row['sources']}; retrieved {row['retrieved']}",
        notes=_notes(row),
    )


def _notes(row: Mapping[str, str]) -> str:
    doubts = f"Not confirmed by a second source: {row['unverified']}." if row["unverified"] else ""
    return " ".join(part for part in (row["notes"], doubts) if part)


def _memory(row: Mapping[str, str]) -> tuple[float, float]:
    """[bytes] totals as the driver and as torch report them; deduced where nobody reported one.

    Source of the deduction: torch totals against driver totals of T4 (2.9 % below), A30 (2.0 %),
    RTX 5090 (1.5 %), A4000 (2.4 %), B200 (0.4 %).
    """
    advertised = number(row, "memory_advertised_gb") * GIB
    share = NVIDIA_VISIBLE_SHARE if row["vendor"] == "nvidia" else 1.0
    driver = number(row, "memory_driver_mib", 0.0) * MIB or advertised * share
    if row["vendor"] == "apple":
        return driver, METAL_SHARE * driver
    gib = advertised / GIB
    small, middle = 24, 64
    missing = 0.03 if gib <= small else 0.02 if gib <= middle else 0.008
    return driver, number(row, "memory_torch_gib", 0.0) * GIB or driver * (1 - missing)


def _measured_fraction(
    name: str, rates: Mapping[str, float], measured: Mapping[tuple[str, str], float]
) -> float | None:
    """Best measured product over the data sheet's peak: in bf16, or in fp16 where that is absent.

    GeForce boards may exceed 1: their boost clocks lie above the reference clock of the peak.
    """
    for precision in ("bf16", "fp16"):
        if rates[precision] and (name, precision) in measured:
            return measured[name, precision] / rates[precision]
    return None


# [FLOP] of a unit in a clock with fp32 sums, on the boards that a maker holds back: 1024 on other
# boards of Ampere and Ada, 4096 on those of Hopper (an H20 has a quarter).
HALF_RATE, HELD_BACK_HOPPER = 512.0, 1024.0
FED_W = 250.0  # boards below it are limited by power all the same


def _class_ceiling(row: Mapping[str, str]) -> float:
    watts, pcie = number(row, "tdp_w"), row["form_factor"] == "pcie"
    if row["vendor"] in _CEILINGS:
        return _CEILINGS[row["vendor"]]
    if row["architecture"] == "pascal":
        return _CEILINGS["pascal"]
    if "GeForce" in row["driver_names"] or _half_rate(row):
        return _CEILINGS["geforce"]
    if not pcie:
        return _CEILINGS["switched"]
    small_board, hopper_limit = 75, 400
    limited = watts <= small_board or (row["architecture"] == "hopper" and watts <= hopper_limit)
    if limited or row["name"] == "a10" or "Max-Q" in row["driver_names"]:
        return _CEILINGS["power_limited"]
    return _CEILINGS["pcie"]


def _half_rate(row: Mapping[str, str]) -> bool:
    """Whether 16-bit products with fp32 sums run at half the chip's rate or less: power suffices.

    As on GeForce boards of the same chips, which were measured: an RTX 3090, 4090 or 5090 reaches
    its peak, an A6000 or L40S of the full rate three quarters of theirs.
    """
    rate = number(row, "fp16_flop_per_unit_clock", 0.0)
    held = HELD_BACK_HOPPER if row["architecture"] == "hopper" else HALF_RATE
    return rate == held and number(row, "tdp_w") >= FED_W


_MAKERS = re.compile(r"\b(nvidia|geforce|tesla|amd|instinct|quadro)\b")
_NOT_WORD = re.compile(r"[^a-z0-9]")


def _plain(text: str) -> str:
    """A name without the maker's words, case, blanks and hyphens: "RTX 4090" is "rtx4090"."""
    lower = text.casefold().replace("_", " ").replace("-", " ")
    return _NOT_WORD.sub("", _MAKERS.sub("", lower))


# What a cloud calls one board although the words alone would be another's. Source: Google Cloud,
# "GPU machine types": nvidia-tesla-a100 has 40 GB (A2 standard), nvidia-a100-80gb has 80.
_CLOUD_NAMES = {"nvidia-tesla-a100": "a100-sxm4-40gb"}


@lru_cache(maxsize=1)
def _by_plain_name() -> dict[str, Device]:
    """Every way to write a device; its own name wins over another's short or driver name."""
    table: dict[str, Device] = {}
    devices = load_devices().values()
    for device in devices:
        table[_plain(device.name)] = device
    for device in devices:
        for alias in device.aliases:
            table.setdefault(_plain(alias), device)
    return table


def find_device(text: str) -> Device:
    """The device a person means. Raises InputError with the closest names.

    Short names stand for the board that clouds rent most: h100 is h100-sxm, h200 is h200-sxm,
    a100 and a100-80gb are a100-sxm4-80gb, a100-40gb is a100-sxm4-40gb, v100 is v100-sxm2-16gb,
    p100 is p100-pcie-16gb, gh200 is gh200-96gb, rtx-pro-6000 is the workstation edition.
    """
    named = _CLOUD_NAMES.get(text.strip().casefold(), text)
    found = _by_plain_name().get(_plain(named))
    if found is None:
        devices = load_devices()
        known = list(devices) + [
            alias for device in devices.values() for alias in device.aliases if " " not in alias
        ]
        if _APPLES.fullmatch(_plain(text)):
            own = [name for name, device in devices.items() if device.vendor == "apple"]
            msg = f'"{text[:80]}" is not in the table of devices, which has {", ".join(own)}'
            raise InputError(msg, f"take the nearest, as yours: --gpu {own[0]}@0USD/h --set "
                             "host.ram=36GB")  # fmt: skip
        raise unknown(kind="device", value=text, known=known, hint=HOW_TO_ADD)
    return found


def known_device(text: str) -> str | None:
    """The catalogue's name of a device; None where nobody knows it."""
    try:
        return find_device(text).name
    except InputError:
        return None


def find_machine(text: str, count: int, storage: str = "local") -> tuple[Device, Host]:
    """The device a person means, and the host assumed around `count` of it.

    Raises InputError as `find_device` does.
    """
    device = cpu_device() if text.casefold() == "cpu" else find_device(text)
    return device, default_host(count, device, storage)


def default_host(offer_count: int, device: Device, storage: str = "local") -> Host:
    """The host assumed around rented devices; every field is listed in `assumed`.

    Per device: 16 cores and 128 GiB beside a board of 40 GB or more, 8 cores and 32 GiB beside a
    smaller one; 200 GB of disk; /dev/shm holds half of the RAM (the Linux default). storage: local
    or network.
    """
    if device.is_cpu:
        return local_host()
    large = device.memory_driver_bytes >= LARGE_BOARD_BYTES
    cores, ram = (RENTED_CORES, RENTED_RAM_BYTES) if large else (SMALL_CORES, SMALL_RAM_BYTES)
    read = NETWORK_READ_BYTES_PER_S if storage == "network" else LOCAL_READ_BYTES_PER_S
    return Host(
        cores=cores * offer_count,
        ram_bytes=float(ram * offer_count),
        shm_bytes=ram * offer_count / 2,
        disk_bytes=float(ASSUMED_DISK_BYTES * offer_count),
        checkpoint_write_bytes_per_s=float(ASSUMED_CHECKPOINT_WRITE_BYTES_PER_S),
        storage_read_bytes_per_s=float(read),
        download_bytes_per_s=float(DOWNLOAD_BYTES_PER_S),
        assumed=(*_SIZES, *ASSUMED_RATES),
    )


def of_ram(device: Device, ram_bytes: float) -> Device:
    """An Apple chip in a machine with so much memory, which processor and GPU share."""
    usable = METAL_SHARE * ram_bytes
    return replace(device, memory_driver_bytes=ram_bytes, memory_torch_bytes=usable)


def identify(driver_name: str, reported_bytes: float) -> Device | None:
    """The catalogue's device for what a driver reports, or None.

    The name must be one that a driver prints for the device, and the reported total (the driver's
    or torch's) must lie within 7 % of the catalogue's. Apple chips come with several memory sizes:
    they are matched by name and take the reported memory.
    """
    wanted = _plain(driver_name)
    best: tuple[float, Device] | None = None
    for device in load_devices().values():
        if wanted not in {_plain(alias) for alias in device.aliases if alias != device.name}:
            continue
        if device.vendor == "apple" and reported_bytes > 0:
            return of_ram(device, reported_bytes)
        totals = (device.memory_driver_bytes, device.memory_torch_bytes)
        gap = min(abs(reported_bytes - total) / total for total in totals)
        if gap <= SAME_MEMORY and (best is None or gap < best[0]):
            best = (gap, device)
    return best[1] if best else None
