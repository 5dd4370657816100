"""Which device of this machine a job can be probed on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.catalog.devices import default_host, find_device
from autotune.catalog.software import install_command
from autotune.domain.device import Offer
from autotune.domain.errors import NoLocalDevice
from autotune.probe import device as devices
from autotune.probe.memo import installed_versions

if TYPE_CHECKING:
    from autotune.domain.job import Job
    from autotune.probe.device import LocalDevice


def local_for(job: Job, on: str | None) -> tuple[LocalDevice, Offer]:
    """The device to probe on and the offer that it is. Raises NoLocalDevice (exit 5)."""
    absent = [name for name in ("torch", "transformers", "peft") if name not in
              installed_versions()]  # fmt: skip
    if absent:
        msg = f"--score probe trains for a minute, and {', '.join(absent)} are not installed"
        raise NoLocalDevice(msg, install_command("probe"))
    here = devices.local_devices()
    if on is not None:
        return _named(job, on, here)
    for offer in job.offers:
        found = devices.matching(offer, here)
        if found:
            return found[0], offer
    names = ", ".join(sorted({local.name for local in here}))
    wanted = ", ".join(dict.fromkeys(offer.label for offer in job.offers))
    msg = f"--score probe needs one of the job's machines ({wanted}), and here is only {names}"
    raise NoLocalDevice(
        msg, "--probe-on NAME probes on the device at hand and transfers what it learns; "
        "without --score probe no device is needed"
    )  # fmt: skip


def offers_here(job: Job, offer: Offer) -> tuple[Offer, ...]:
    """The job's offers of the device at hand, whatever their count and price; at least `offer`."""
    here = devices.local_devices()
    found = (
        other
        for other in job.offers
        if other.device.name == offer.device.name and devices.matching(other, here)
    )
    return tuple(found) if offer in job.offers else (offer,)


def _named(job: Job, on: str, here: list[LocalDevice]) -> tuple[LocalDevice, Offer]:
    wanted = devices.cpu().device if on.casefold() == "cpu" else find_device(on)
    for local in here:
        if local.device is not None and wanted is not None and local.device.name == wanted.name:
            for offer in job.offers:
                if offer.device.name == wanted.name and offer.count == 1:
                    return local, offer
            host = default_host(1, local.device, job.storage)
            return local, Offer(local.device, 1, 0.0, host, "this machine")
    names = ", ".join(sorted({local.name for local in here}))
    msg = f"--probe-on {on}: that device is not here; here: {names}"
    raise NoLocalDevice(msg, "name a device of this machine, or leave --score probe out")
