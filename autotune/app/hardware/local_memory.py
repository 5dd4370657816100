"""Offers that are this very machine take the memory that its driver leaves, as it is now.

    usable = total - what the driver keeps - what other processes hold - headroom

Without an NVIDIA driver, or where the offer's devices are not here, nothing changes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.domain.job import Assumption
from autotune.domain.units import GIB, format_bytes
from autotune.probe import device as devices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.domain.device import Offer
    from autotune.probe.device import LocalDevice

# Under WSL2 the Windows driver hands out less than it reports and moves the rest to the host
# instead of failing, at a fraction of the speed. Assumption: 0.5 GiB less is what one user measured
# on an RTX 3090, 0.5 to 1 GiB what others advise.
WSL_BYTES = 0.75 * GIB


@dataclass(frozen=True, slots=True)
class _Left:
    """What one reading says: which bytes a new process can get, and in words where they come of."""

    total_bytes: float
    usable_bytes: float
    why: str


def as_the_driver_leaves(offers: Sequence[Offer], assumed: list[Assumption]) -> tuple[Offer, ...]:
    """The offers, those at hand with the memory that is free on them; what was read is listed."""
    here = _here(offers)
    return tuple(
        _reduced(offer, f"hardware[{index}] ({offer.label})", here, assumed)
        for index, offer in enumerate(offers)
    )


def _here(offers: Sequence[Offer]) -> list[LocalDevice]:
    """This machine's GPUs that a program sees; the driver is asked only when it could matter."""
    if not any(_may_be_here(offer) for offer in offers):
        return []
    found = devices.gpus()
    return devices.visible(found, os.environ.get("CUDA_VISIBLE_DEVICES")) if found else []


def _may_be_here(offer: Offer) -> bool:
    """A spot machine is rented by definition; a processor's memory is read by the catalogue."""
    return offer.device.vendor == "nvidia" and not offer.spot


def _reduced(
    offer: Offer, label: str, here: Sequence[LocalDevice], assumed: list[Assumption]
) -> Offer:
    left = _left(offer, here) if _may_be_here(offer) else None
    if left is None:
        return _under_wsl(offer, label, assumed) if offer.host.wsl else offer
    assumed.append(
        Assumption(
            f"{label}.memory",
            f"{format_bytes(left.usable_bytes)} of {format_bytes(left.total_bytes)}",
            left.why,
        )
    )
    device = replace(
        offer.device,
        memory_driver_bytes=left.total_bytes,
        memory_torch_bytes=max(left.usable_bytes, 1.0),
    )
    return replace(offer, device=device, memory_source=left.why)


def _under_wsl(offer: Offer, label: str, assumed: list[Assumption]) -> Offer:
    usable = max(offer.device.memory_torch_bytes - WSL_BYTES, 1.0)
    why = "under WSL2 Windows keeps a part, and what is beyond it is slow, not out of memory"
    assumed.append(Assumption(f"{label}.memory", f"{format_bytes(WSL_BYTES)} less", why))
    device = replace(offer.device, memory_torch_bytes=usable)
    return replace(offer, device=device, memory_source=why)


def _left(offer: Offer, here: Sequence[LocalDevice]) -> _Left | None:
    """The least that is free on any of the offer's devices; None where it is not at hand.

    The first devices of the kind are the ones that run.sh takes.
    """
    same = [
        local
        for local in here
        if not local.refused and offer.device.name in {_name(local.device), _name(local.part_of)}
    ]
    if len(same) < offer.count or (offer.count > 1 and any(local.part_of for local in same)):
        return None
    local = min(same[: offer.count], key=lambda own: own.free_bytes)
    usable = local.free_bytes - (WSL_BYTES if offer.host.wsl or _is_wsl() else 0.0)
    return _Left(local.total_bytes, usable, _words(offer, local))


def _name(device: object) -> str:
    return str(getattr(device, "name", ""))


def _is_wsl() -> bool:
    from autotune.catalog.devices import local_host

    return local_host().wsl


def _words(offer: Offer, local: LocalDevice) -> str:
    """What the reading took off, as a reason."""
    parts = []
    if local.reserved_bytes > 0:
        parts.append(f"{format_bytes(local.reserved_bytes)} kept by the driver")
    if local.used_bytes > 0:
        count = len(local.processes)
        whom = f"{count} other process{'' if count == 1 else 'es'}" if count else "others"
        parts.append(f"{format_bytes(local.used_bytes)} held by {whom}")
    if offer.host.wsl or _is_wsl():
        parts.append(f"{format_bytes(WSL_BYTES)} that Windows keeps under WSL2")
    taken = ", ".join(parts) or "nothing is taken"
    which = f"{local.name}, " if local.part_of else ""
    times = "; times are of the whole board" if local.part_of else ""
    return f"read from this machine's driver now: {which}{taken}{times}"
