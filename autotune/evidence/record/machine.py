"""What a measured run ran on: its device and host, what joins several, and how they share the work.

Its software is in `software`.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from autotune.catalog.devices import default_host, find_device
from autotune.catalog.networks import find_network
from autotune.domain.config import ZERO_STAGE
from autotune.domain.device import Offer
from autotune.domain.errors import InputError
from autotune.domain.outcome import Z90
from autotune.domain.software import ZeroSettings
from autotune.domain.units import GIB
from autotune.evidence.cases import Refused
from autotune.evidence.record.notes import count_in, names
from autotune.evidence.record.notes import offload_of as offloaded_by
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.domain.device import Device, Network
    from autotune.evidence.record.row import Row

UNKNOWN_GPU = "GPU unknown to the catalogue"
SAME_MEMORY = 0.12  # advertised against driver's total, and GB against GiB
_MEMORY = re.compile(r"[- ]?(\d{1,3})\s*(?:GB|GiB)\b", re.IGNORECASE)
SHARING_ASSUMED = "data parallel: which kind is not stated"
MAX_ONE_HOST = 8
UNEVEN_MACHINES = "several machines: not the same number of GPUs on each"
NETWORK_ASSUMED = "the network between machines is not stated: 100 to 3200 Gb/s each"
# What machines of eight have been joined by: from 100 Gb/s of a cloud's plain instance to a port of
# 400 Gb/s for each GPU. Taken is the middle, and half of the way as 1.28 standard deviations.
SLOWEST_NETWORK, FASTEST_NETWORK = 100e9 / 8.0, 3200e9 / 8.0  # [bytes/s]
LAYERS_SPLIT = "layers split over several GPUs without data parallelism"
HYBRID = "hybrid sharding: whole copies of the weights on each of several machines"
_HYBRID = re.compile(r"\bhsdp|\bhybrid_shard", re.IGNORECASE)
SHARING_NOT_STATED = "how the GPUs share the work is not stated"


@dataclass(frozen=True, slots=True)
class Machine:
    """What a run ran on. workers: processes that feed it; assumed: what the row does not say."""

    offer: Offer
    sharding: str
    zero: ZeroSettings
    offload: str
    workers: int
    assumed: tuple[str, ...]


def machine_of(row: Row) -> Machine:
    """The machine of a row. Raises Refused for one that is unknown or not shared as is modelled."""
    device = device_of(row.texts["gpu"], row.notes)
    if device is None:
        raise Refused(UNKNOWN_GPU)
    device = without_nvlink(device, row.notes)
    gpus = row.counts["n_gpus"] or 1
    sharding = sharding_of(row.texts["parallelism"], gpus, row.notes)
    shared = SHARING_ASSUMED if "not stated" in row.words["parallelism"] and gpus > 1 else ""
    network, joined = network_of(row, device, gpus)
    if network and _HYBRID.search(f"{row.texts['parallelism']} {row.notes}"):
        raise Refused(HYBRID)
    offload, moved = offload_of(row)
    workers = count_in(r"\bworkers (\d+)\b", row.notes) or 0
    cores = count_in(r"\bhost (\d+) cores\b", row.notes)
    assumed = tuple(text for text in (moved, shared, joined) if text)
    offer = _offer(device, gpus, network, cores)
    return Machine(offer, sharding, _zero_of(row), offload, workers, assumed)


@lru_cache(maxsize=256)
def _offer(device: Device, gpus: int, network: Network | None, cores: int | None) -> Offer:
    host = default_host(gpus // (network.nodes if network else 1), device)
    if cores:
        host = replace(host, cores=cores, assumed=tuple(x for x in host.assumed if x != "cores"))
    return Offer(device, gpus, 0.0, host, price_source="not needed", network=network)


def _spellings(text: str) -> list[str]:
    """The text and plainer forms of it, most specific first."""
    plain = re.sub(r"\(.*?\)", "", text).strip()
    forms = [text, plain]
    sxm4 = re.sub(r"(?i)\b(a100)-?sxm\b", r"\1-sxm4", plain)
    forms.append(sxm4)
    forms.extend(_MEMORY.sub("", form) for form in (sxm4, plain))
    forms.append(re.sub(r"(?i)-?(sxm\d?|pcie|nvl\d*)\b", "", forms[-1]))
    return list(dict.fromkeys(form.strip(" -") for form in forms if form.strip(" -")))


@dataclass(frozen=True, slots=True)
class _Board:
    """A board that the catalogue lacks, by the chip that it has. Rates in bytes a second."""

    chip: str
    bandwidth: float | None = None
    link: float | None = None  # one direction


# Boards for one market or customer. Source: NVIDIA's data sheets of A800 and H800 (NVLink at
# 400 GB/s both ways); torchtitan's benchmark pages (H100 with 96 GB HBM2e, 2.4 TB/s).
_BOARDS = (
    (re.compile(r"A800", re.IGNORECASE), _Board("a100-sxm4-80gb", link=200e9)),
    (re.compile(r"H800", re.IGNORECASE), _Board("h100-sxm", link=200e9)),
    (re.compile(r"H100(-SXM)?-96 ?GB", re.IGNORECASE), _Board("h100-sxm", bandwidth=2.4e12)),
)
# Of the advertised gibibytes, as on the 80 GB board: as the driver reports it, as torch sees it.
BOARD_USABLE, BOARD_TORCH = 0.995, 0.988
# The larger board where a source does not say which: a run that finished shows no more than that it
# had enough. 16 V100 in one node are a DGX-2's, with 32 GB each.
_LARGER = {"v100": "v100-sxm2-32gb", "a100": "a100-sxm4-80gb"}


def device_of(text: str, notes: str) -> Device | None:
    """The device of a row: by its name, the larger board where the notes say that none is named."""
    if re.search(r"\b(memory )?size not stated", notes):
        text = _LARGER.get(text.casefold(), text)
    return device_named(text)


@lru_cache(maxsize=512)
def device_named(text: str) -> Device | None:
    """The catalogue's device for a GPU column, or None.

    A memory size in the name must agree with the device's, or name a board of the same chip.
    """
    stated = _MEMORY.search(text)
    board = next((own for pattern, own in _BOARDS if pattern.match(text)), None)
    if board is not None:
        device = find_device(board.chip)
        size = float(stated[1]) * GIB if stated else device.memory_driver_bytes
        same = abs(size / device.memory_driver_bytes - 1) <= SAME_MEMORY
        return replace(
            device,
            memory_driver_bytes=device.memory_driver_bytes if same else size * BOARD_USABLE,
            memory_torch_bytes=device.memory_torch_bytes if same else size * BOARD_TORCH,
            memory_bandwidth_bytes_per_s=board.bandwidth or device.memory_bandwidth_bytes_per_s,
            link_bytes_per_s=board.link or device.link_bytes_per_s,
        )
    for form in _spellings(text):
        try:
            device = find_device(form)
        except InputError:
            continue
        if stated is None or _same_memory(float(stated[1]), device):
            return device
    return None


def without_nvlink(device: Device, notes: str) -> Device:
    """The device as the notes say that it is linked: over PCIe where they deny NVLink."""
    if re.search(r"\b(no|without) NVLink\b", notes):
        return replace(device, link_bytes_per_s=device.pcie_bytes_per_s, has_nvlink=False)
    return device


def _same_memory(stated_gb: float, device: Device) -> bool:
    return abs(device.memory_driver_bytes / GIB / stated_gb - 1) <= SAME_MEMORY


def sharding_of(parallelism: str, gpus: int, notes: str) -> str:
    """The sharding knob for a parallelism column. Raises Refused for what is not modelled."""
    words = _parallel_words(parallelism)
    refusal = _parallel_refusal(words, parallelism, gpus)
    if refusal:
        raise Refused(refusal)
    if gpus == 1:  # DeepSpeed runs its engine on one device too
        return next(
            (own for name, own in _SHARDINGS if own in ZERO_STAGE and name in words), "none"
        )
    if "SHARD_GRAD_OP" in notes:
        return "zero2"
    for word in words:
        for name, sharding in _SHARDINGS:
            if re.fullmatch(rf"{name}\d*", word):
                return sharding
    raise Refused(SHARING_NOT_STATED)


def _zero_of(row: Row) -> ZeroSettings:
    """Which of the ways to share gradients and states a row of ZeRO-2's kind has."""
    words = _parallel_words(row.texts["parallelism"])
    return ZeroSettings(
        overlapping="overlap_comm" in row.notes and bool(names(row.notes, ("overlap_comm",))),
        whole_gradients="zero1" in words,
        scatters="SHARD_GRAD_OP" in row.notes,
    )


_JOINED = re.compile(
    r"\b(\d{2,5}) ?(?:Gbps|Gb/s|Gbit/s) (?:node-node |inter-?node )?interconnect \((\w+)\)",
    re.IGNORECASE,
)
_NODES = re.compile(r"\bnodes (\d{1,4})\b")


def network_of(row: Row, device: Device, gpus: int) -> tuple[Network | None, str]:
    """What joins the machines of a row (None: one machine), and what was assumed of it.

    Machines hold eight unless the notes say how many there were. Raises Refused where the GPUs
    cannot be shared out evenly.
    """
    if "one node of" in row.notes:
        return None, ""
    stated = _NODES.search(row.notes)
    nodes = int(stated[1]) if stated else -(-gpus // MAX_ONE_HOST)
    if nodes <= 1:
        return None, ""
    if gpus % nodes:
        raise Refused(UNEVEN_MACHINES)
    joined = _JOINED.search(row.notes)
    if joined:
        network, _ = find_network(f"1x {joined[2]}-{joined[1]}g", nodes, device, gpus // nodes)
        return network, ""
    middle = math.sqrt(SLOWEST_NETWORK * FASTEST_NETWORK)
    log_sd = math.log(FASTEST_NETWORK / middle) / Z90
    unknown, _ = find_network("roce-100g", nodes, device, gpus // nodes)
    return replace(
        unknown, name="not stated", bytes_per_s=middle, log_sd=log_sd, source=NETWORK_ASSUMED
    ), NETWORK_ASSUMED


OFFLOADED = ("offload", "cpu-offload", "offloaded")
OFFLOAD_ASSUMED = "what is offloaded: {}, the usual part"


def offload_of(row: Row) -> tuple[str, str]:
    """(value of the knob, what was assumed) of what lies in the host's memory.

    By the columns first; a column that says that it does not know leaves it to the notes.
    """
    words = re.split(r"[+,; ()]+", row.words["parallelism"])
    if any(word in OFFLOADED for word in words) and "not stated" not in row.words["parallelism"]:
        return "all", ""
    if "offload" in row.words["grad_ckpt"]:
        return "activations", ""
    kernels = row.words["other_kernels"]
    found = (offloaded_by(kernels) if "offload" in kernels else "") or offloaded_by(row.notes)
    if not found:
        return "none", ""
    return found, OFFLOAD_ASSUMED.format(found) if "implies" in row.notes else ""


_SHARDINGS = (
    ("fsdp2", "fsdp"), ("fsdp", "fsdp"), ("hsdp", "fsdp"), ("zero3", "zero3"),
    ("zero-3", "zero3"), ("zero2", "zero2"), ("zero-2", "zero2"), ("zero1", "zero2"),
    ("zero-1", "zero2"), ("ddp", "ddp"), ("dp", "ddp"),
)  # fmt: skip
_SPLITS = {
    "tp": "tensor", "pp": "pipeline", "vp": "pipeline", "vpp": "pipeline", "ep": "expert",
    "cp": "context", "sp": "sequence",
}  # fmt: skip


def _parallel_words(parallelism: str) -> list[str]:
    """The parts of "fsdp64+tp8", without degrees of one."""
    words = re.split(r"[+,/ ()]+", parallelism.casefold())
    return [w for w in words if w and not re.fullmatch(r"(tp|pp|vp|vpp|ep|cp|sp)1", w)]


def _parallel_refusal(words: list[str], parallelism: str, gpus: int) -> str:
    if "device_map" in parallelism.casefold():
        return LAYERS_SPLIT
    if "ring-attention" in words or "asynctp" in words:
        return "tensor, pipeline, expert or context parallel"
    for word in words:
        found = re.fullmatch(r"([a-z]+)\d+", word)
        if found and found[1] in _SPLITS:
            return "tensor, pipeline, expert or context parallel"
    if gpus > 1 and words == ["none"]:
        return LAYERS_SPLIT
    return ""
