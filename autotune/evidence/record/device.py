"""Which device a table's GPU column names, and how several of them share the work."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from autotune.catalog.devices import find_device
from autotune.domain.errors import InputError
from autotune.domain.units import GIB
from autotune.evidence.record.case import Refused

if TYPE_CHECKING:
    from autotune.domain.device import Device

SAME_MEMORY = 0.12  # advertised against driver's total, and GB against GiB
_MEMORY = re.compile(r"[- ]?(\d{1,3})\s*(?:GB|GiB)\b", re.IGNORECASE)
MAX_ONE_HOST = 8
SEVERAL_MACHINES = "several machines: the network between them is not modelled"
SHARING_NOT_STATED = "how the GPUs share the work is not stated"


def _spellings(text: str) -> list[str]:
    """The text and plainer forms of it, most specific first."""
    plain = re.sub(r"\(.*?\)", "", text).strip()
    forms = [text, plain]
    sxm4 = re.sub(r"(?i)\b(a100)-?sxm\b", r"\1-sxm4", plain)
    forms.append(sxm4)
    forms.extend(_MEMORY.sub("", form) for form in (sxm4, plain))
    forms.append(re.sub(r"(?i)-?(sxm\d?|pcie|nvl\d*)\b", "", forms[-1]))
    return list(dict.fromkeys(form.strip(" -") for form in forms if form.strip(" -")))


@lru_cache(maxsize=512)
def device_named(text: str) -> Device | None:
    """The catalogue's device for a GPU column, or None.

    A memory size in the name must agree with the device's: "H100-SXM-96GB" is not an 80 GB board.
    """
    stated = _MEMORY.search(text)
    for form in _spellings(text):
        try:
            device = find_device(form)
        except InputError:
            continue
        if stated is None or _same_memory(float(stated[1]), device):
            return device
    return None


def _same_memory(stated_gb: float, device: Device) -> bool:
    return abs(device.memory_driver_bytes / GIB / stated_gb - 1) <= SAME_MEMORY


def sharding_of(parallelism: str, gpus: int, notes: str) -> str:
    """The sharding knob for a parallelism column. Raises Refused for what is not modelled."""
    words = _parallel_words(parallelism)
    refusal = _parallel_refusal(words, parallelism, gpus)
    if refusal:
        raise Refused(refusal)
    if gpus == 1:
        return "none"
    if gpus > MAX_ONE_HOST:
        raise Refused(SEVERAL_MACHINES)
    if "SHARD_GRAD_OP" in notes:
        return "zero2"
    for word in words:
        for name, sharding in _SHARDINGS:
            if re.fullmatch(rf"{name}\d*", word):
                return sharding
    raise Refused(SHARING_NOT_STATED)


_SHARDINGS = (
    ("fsdp2", "fsdp"), ("fsdp", "fsdp"), ("hsdp", "fsdp"), ("zero3", "zero3"),
    ("zero-3", "zero3"), ("zero2", "zero2"), ("zero-2", "zero2"), ("ddp", "ddp"), ("dp", "ddp"),
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
    if "offload" in parallelism.casefold():
        return "weights or states offloaded to the host"
    if "ring" in parallelism.casefold() or "asynctp" in words:
        return "tensor, pipeline, expert or context parallel"
    for word in words:
        found = re.fullmatch(r"([a-z]+)\d+", word)
        if found and found[1] in _SPLITS:
            return "tensor, pipeline, expert or context parallel"
    if gpus > 1 and words == ["none"]:
        return "layers split over several GPUs without data parallelism"
    return ""
