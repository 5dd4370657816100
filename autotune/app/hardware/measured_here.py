"""Offers that are this very machine take what `doctor --measure` found instead of assumptions.

A processor is always this machine's; a GPU where one of its name is here, unless the offer is
rented as a cloud's instance or on spot. What the job states itself stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.catalog.files import home_dir
from autotune.cost.time.measured_rates import as_measured
from autotune.domain.job import Assumption
from autotune.domain.units import format_bytes
from autotune.probe import device as devices
from autotune.probe.machine.kept import FOLDER, read, store_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autotune.domain.device import Host, Offer
    from autotune.domain.machine import MachineFacts
    from autotune.probe.device import LocalDevice

MOST_LOG_SD = 0.5  # a figure that may be further off says less than what is assumed without it


@dataclass(frozen=True, slots=True)
class Known:
    """What is kept of a machine, and where."""

    facts: MachineFacts
    path: Path


def as_measured_here(offers: Sequence[Offer], assumed: list[Assumption]) -> tuple[Offer, ...]:
    """The offers, those that are this machine with its measured facts; what was taken is listed."""
    if not any((home_dir() / FOLDER).glob("*.json")):
        return tuple(offers)
    gpus = any(offer.device.vendor == "nvidia" for offer in offers)
    here = devices.local_devices() if gpus else [devices.cpu()]
    return tuple(
        _taken(offer, f"hardware[{index}] ({offer.label})", here, assumed)
        for index, offer in enumerate(offers)
    )


def known_of(local: LocalDevice) -> tuple[Known | None, bool]:
    """What is kept of this machine beside that device, and whether its file is damaged."""
    path = store_of(local)
    facts, damaged = read(path)
    return (Known(facts, path) if facts and facts.facts else None), damaged


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
    offer: Offer, label: str, here: list[LocalDevice], assumed: list[Assumption]
) -> Offer:  # fmt: skip
    rented = offer.spot or bool(offer.instance)
    found = [] if rented else devices.matching(offer, here)
    if not found:
        return offer
    known, damaged = known_of(found[0])
    if damaged:
        why = f"{store_of(found[0])} is damaged"
        assumed.append(Assumption(f"{label}.measured", "left out", why))
    if known is None:
        return offer
    changed = with_facts(offer, known.facts)
    if changed == offer:
        return offer
    assumed.append(Assumption(f"{label}.measured", _words(changed, known.facts), _why(known)))
    return changed


def _words(offer: Offer, facts: MachineFacts) -> str:
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
        f"measured on this machine on {facts.measured_on}{doubt} (`autotune doctor --measure`); "
        f"delete {known.path} to forget it"
    )
