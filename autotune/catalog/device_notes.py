"""What to say of a device before somebody starts on it: its torch, its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.answer.recommendation import Decisive
from autotune.domain.units import format_bytes

if TYPE_CHECKING:
    from autotune.domain.device import Device, Offer

# Releases of torch whose wheel on the package index has no kernels for chips below a compute
# capability; the build for CUDA 12.6 has them. Source: pytorch RELEASE.md, "CUDA Support Matrix":
# Maxwell and Pascal left the builds for CUDA 12.8 and later in 2.8, Volta in 2.11 (issue 172352).
LEFT_BEHIND = ((7.0, (2, 8)), (7.5, (2, 11)))
OLD_CHIPS_BUILD = "https://download.pytorch.org/whl/cu126"


def device_notes(offer: Offer, torch: tuple[int, ...]) -> tuple[str, ...]:
    """What to know of an offer's device. torch: the release that the job counts on."""
    found = (wheel_note(offer.device, torch), memory_note(offer))
    return tuple(note for note in found if note)


def wheel_note(device: Device, torch: tuple[int, ...]) -> str | None:
    """What to say where the torch that pip installs does not run on a device; None elsewhere."""
    capability = device.compute_capability
    if device.vendor != "nvidia" or not any(
        capability < first and torch >= release for first, release in LEFT_BEHIND
    ):
        return None
    version = ".".join(map(str, torch[:2]))
    return Decisive(
        f"install torch for CUDA 12.6 on {device.name}: torch {version} as pip installs it has no "
        f"kernels for compute capability {capability} (--index-url {OLD_CHIPS_BUILD})"
    )


def memory_note(offer: Offer) -> str | None:
    """What to say of a chip that is sold with several sizes of memory; None where it is stated."""
    device, host = offer.device, offer.host
    if device.vendor != "apple" or "ram_bytes" not in host.assumed:
        return None
    counted = format_bytes(device.memory_driver_bytes)
    return Decisive(
        f"without `--set host.ram=36GB` the Mac counts as one with {counted} (chips named "
        f"{device.name} are sold with several sizes of memory)"
    )
