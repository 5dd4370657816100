"""Offers that are this very machine: the memory its driver leaves, and what it measured of itself.

    usable = total - what the driver keeps - what other processes hold - headroom

Without an NVIDIA driver, or where the offer's devices are not here, no memory changes. What
`doctor --measure` found stands in for assumptions: a processor is always this machine's; a GPU
where one of its name is here, unless the offer is rented as a cloud's instance or on spot. What the
job states itself stays as it is.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.catalog.files import machines_dir, starts_dir
from autotune.cost.time.measured_rates import as_measured
from autotune.domain.job import Assumption
from autotune.domain.units import GIB, format_bytes, format_seconds
from autotune.frozen import dataclass
from autotune.probe import device as devices

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autotune.domain.device import Host, MachineFacts, Offer
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
    if not here and not any(offer.host.wsl for offer in offers):
        return tuple(offers)
    return tuple(
        _reduced(offer, label, here, assumed)
        for offer, label in zip(offers, _labels(offers), strict=True)
    )


def _labels(offers: Sequence[Offer]) -> list[str]:
    """Each offer as assumptions name it."""
    return [f"hardware[{index}] ({offer.label})" for index, offer in enumerate(offers)]


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
    if (
        offer.network is not None
        or len(same) < offer.count
        or (offer.count > 1 and any(local.part_of for local in same))
    ):
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


MOST_LOG_SD = 0.5  # a figure that may be further off says less than what is assumed without it


@dataclass(frozen=True, slots=True)
class Known:
    """What is kept of a machine, and where."""

    facts: MachineFacts
    path: Path


def as_measured_here(offers: Sequence[Offer], assumed: list[Assumption]) -> tuple[Offer, ...]:
    """The offers, those that are this machine with its measured facts; what was taken is listed."""
    if not any(machines_dir().glob("*.json")):
        return tuple(offers)
    return tuple(
        _taken(offer, label, local, assumed)
        for offer, label, local in zip(offers, _labels(offers), local_of(offers), strict=True)
    )


def as_started_here(
    offers: Sequence[Offer], assumed: list[Assumption], but: str = ""
) -> tuple[Offer, ...]:
    """The offers, those that are this machine with what a start takes on it; that is listed.

    but: a training whose start is left out.
    """
    if not starts_dir().is_dir():
        return tuple(offers)
    return tuple(
        _started(offer, label, local, assumed, but)
        for offer, label, local in zip(offers, _labels(offers), local_of(offers), strict=True)
    )


def local_of(offers: Sequence[Offer]) -> list[LocalDevice | None]:
    """This machine's device that each offer is of; None where it is of another machine."""
    gpus = any(offer.device.vendor == "nvidia" for offer in offers)
    here = devices.local_devices() if gpus else [devices.cpu()]
    return [
        None if offer.spot or offer.instance else next(iter(devices.matching(offer, here)), None)
        for offer in offers
    ]


def _started(
    offer: Offer, label: str, local: LocalDevice | None, assumed: list[Assumption], but: str
) -> Offer:
    from autotune.probe.machine.starts import start_from, starts_of

    if local is None:
        return offer
    known = starts_of(local)
    if known.damage:
        why = f"{known.path} is damaged: {known.damage}"
        assumed.append(Assumption(f"{label}.start", "left out", why))
    watched = known.but(but)
    start = start_from(watched)
    if start is not None:
        count = f"{len(watched)} start{'s' * (len(watched) != 1)}"
        why = (
            f"from a program's begin to its training's, as {count} on this machine took "
            f"(`autotune verify`); delete {known.path} to forget it"
        )
        assumed.append(Assumption(f"{label}.start", format_seconds(start.seconds), why))
    return replace(offer, host=replace(offer.host, start=start))


def known_of(local: LocalDevice) -> tuple[Known | None, str]:
    """What is kept of this machine beside that device, and what of its file is damaged."""
    from autotune.probe.machine.kept import read, store_of

    path = store_of(local)
    facts, damage = read(path)
    return (Known(facts, path) if facts and facts.facts else None), damage


def with_facts(offer: Offer, facts: MachineFacts) -> Offer:
    """The offer with the facts of its machine, where the job states nothing else."""
    certain = replace(facts, facts=tuple(f for f in facts.facts if f.log_sd < MOST_LOG_SD))
    device = offer.device
    if certain.rates is not None:
        device = as_measured(device, certain.rates)
    copied, sent = certain.value("copy_to_device"), certain.value("copy_peer")
    if copied is not None and not device.is_cpu:
        device = replace(device, pcie_bytes_per_s=copied)
    if sent is not None and not device.is_cpu:
        device = replace(device, link_bytes_per_s=sent)
    return replace(offer, device=device, host=_host(offer.host, certain))


def _host(host: Host, facts: MachineFacts) -> Host:
    field = "checkpoint_write_bytes_per_s"
    written = facts.value("disk_write")
    if written is not None and field in host.assumed:
        left = tuple(name for name in host.assumed if name != field)
        host = replace(host, checkpoint_write_bytes_per_s=written, assumed=left)
    return replace(host, loader=facts.loader)


def _taken(
    offer: Offer, label: str, local: LocalDevice | None, assumed: list[Assumption]
) -> Offer:  # fmt: skip
    if local is None:
        return offer
    known, damage = known_of(local)
    if damage:
        from autotune.probe.machine.kept import store_of

        why = f"{store_of(local)} is damaged: {damage}"
        assumed.append(Assumption(f"{label}.measured", "left out", why))
    if known is None:
        return offer
    changed = with_facts(offer, known.facts)
    if changed == offer:
        return offer
    assumed.append(
        Assumption(f"{label}.measured", _measured_words(changed, known.facts), _why(known))
    )
    return changed


def _measured_words(offer: Offer, facts: MachineFacts) -> str:
    """What was taken, in a few figures."""
    rates, said = offer.device.rates, []
    if rates is not None and rates.products:
        names = dict.fromkeys(product.precision for product in rates.products)
        best = (f"{name} {rates.best_flop_per_s(name) / 1e12:.3g}" for name in names)
        said.append(f"products {', '.join(best)} TFLOP/s")
    if rates is not None and rates.elementwise_bytes_per_s:
        said.append(f"memory {format_bytes(rates.elementwise_bytes_per_s)}/s")
    if rates is not None and rates.issue_forward_s:
        said.append(f"{rates.issue_forward_s * 1e6:.1f} us to launch a kernel")
    if offer.host.checkpoint_write_bytes_per_s == facts.value("disk_write"):
        said.append(f"disk {format_bytes(offer.host.checkpoint_write_bytes_per_s)}/s")
    if offer.host.loader is not None:
        said.append(f"loader {offer.host.loader.row_s * 1e6:.0f} us a row")
    return "; ".join(said)


def _why(known: Known) -> str:
    facts = known.facts
    doubt = f", while {facts.disturbed[0]}" if facts.disturbed else ""
    return (
        f"measured on this machine on {facts.measured_on}{doubt}, in a process of "
        f"{facts.threads} thread{'s' * (facts.threads != 1)} (`autotune doctor --measure`); "
        f"delete {known.path} to forget it"
    )
