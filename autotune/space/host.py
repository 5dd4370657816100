"""What the processes that feed the devices need of a host: cores, /dev/shm and RAM.

A host's fact that nobody stated keeps the search within it, and forbids nothing that the user
locked. In here: the rules of `rules.RULES` about it, how much is kept ready at the least, and what
to type where a host lacks something.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from autotune.catalog.text_tokens import TOKENISED_BYTES
from autotune.domain.units import GB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import KnobValue
    from autotune.domain.device import Offer
    from autotune.domain.job import Job

TOO_FEW_CORES = "more data workers than the host has cores"
BUFFERS_TOO_LARGE = "prefetched batches exceed /dev/shm or RAM"
WORKERS = "num_dataloader_workers"
FEEDING = ("micro_batch_size", WORKERS, "prefetch_factor")  # what decides how much is kept ready
PREFETCHED = 2  # batches of each worker, where nothing is stated (torch's DataLoader)
HELD_IN = {"shm": "shm_bytes", "ram": "ram_bytes"}


def workers_within_cores(job: Job, offer: Offer, workers: int) -> bool:
    """A core for each worker; what the user locked may exceed cores that were only assumed."""
    return workers * offer.per_node <= offer.host.cores or _may_exceed(job, offer, "cores", WORKERS)


def batches_in_memory(job: Job, offer: Offer, micro: int, workers: int, prefetch: int) -> bool:
    """Batches kept ready lie in /dev/shm, which is a part of RAM."""
    held_bytes = buffer_bytes(job, offer, micro, workers, prefetch)
    return all(
        held_bytes <= getattr(offer.host, field) or _may_exceed(job, offer, field, *FEEDING[:2])
        for field in HELD_IN.values()
    )


def _may_exceed(job: Job, offer: Offer, field: str, *names: str) -> bool:
    """Whether nobody stated the fact, and the user locked all of what needs more of it."""
    return field in offer.host.assumed and all(name in job.lock for name in names)


def buffer_bytes(job: Job, offer: Offer, micro: int, workers: int, prefetch: int) -> float:
    """[bytes] of the batches that all workers of a host keep ready."""
    return offer.per_node * workers * prefetch * micro * job.max_length * TOKENISED_BYTES


def host_doubts(job: Job, offer: Offer, knobs: Mapping[str, KnobValue]) -> list[str]:
    """What settings need of a host beyond what was assumed of it."""
    host, found = offer.host, []
    workers = int(knobs.get(WORKERS, 0)) * offer.per_node
    if workers > host.cores and "cores" in host.assumed:
        found.append(
            f"{workers} data workers in all, and {host.cores} cores are assumed of {offer.label}: "
            f"--set host.cores=N states them"
        )
    stated = {"prefetch_factor": PREFETCHED, **knobs}
    held = buffer_bytes(job, offer, *(int(stated.get(name, 0)) for name in FEEDING))
    for key, field in HELD_IN.items():
        there = getattr(host, field)
        if held > there and field in host.assumed:
            found.append(
                f"batches kept ready take {format_bytes(held)}, and {format_bytes(there)} of {key} "
                f"are assumed of {offer.label}: --set host.{key}=SIZE states it"
            )
            break
    return found


def least_buffers(job: Job, offer: Offer) -> tuple[float, float, Literal["shm", "ram"]]:
    """[bytes] of batches kept ready at the least that the locks leave, what holds them, and of it.

    Batches lie in /dev/shm, which is a part of RAM.
    """
    held = buffer_bytes(job, offer, *(int(job.lock.get(name, 1)) for name in FEEDING))
    shm, ram = offer.host.shm_bytes, offer.host.ram_bytes
    return (held, shm, "shm") if shm <= ram else (held, ram, "ram")


def host_options(job: Job, offer: Offer, reasons: Mapping[str, object]) -> str:
    """What to type where the host is what keeps a lock from running; empty where it is not."""
    found = []
    if TOO_FEW_CORES in reasons:
        found.append(f"--set host.cores={int(job.lock.get(WORKERS, 1)) * offer.per_node}")
    if BUFFERS_TOO_LARGE in reasons:
        held, _, short = least_buffers(job, offer)
        found.append(f"--set host.{short}={math.ceil(held / GB)}GB")
    return " ".join(found)
