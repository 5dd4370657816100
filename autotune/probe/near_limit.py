"""Fits and misses so close to the limit that another run may end otherwise.

One run of such a configuration is a coin thrown once: it is repeated, and the share of the runs
that fitted is what is known about it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autotune.probe.outcomes import INFEASIBLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autotune.probe.record import ProbeRecord

# Assumption: the order of allocations and the workspaces that kernels choose move a peak by up to a
# few per cent from run to run.
NARROW = 0.03
RUNS = 3
_ASKED = re.compile(r"Tried to allocate ([\d.]+) (MiB|GiB)")
_FREE = re.compile(r"of which ([\d.]+) (MiB|GiB) is free")
_UNIT = {"MiB": 2**20, "GiB": 2**30}


def is_narrow(record: ProbeRecord) -> bool:
    """Whether another run of the same may end on the other side of the limit.

    A run that fitted is narrow when less than NARROW of the device was left; one that did not, when
    no more than that was missing in the request that failed (as torch's message tells).
    """
    available = record.available_bytes
    if record.fits is None or available <= 0:
        return False
    if record.ok:
        return record.needed_bytes > (1.0 - NARROW) * available
    if record.status not in INFEASIBLE - {"oom_host"}:
        return False
    if record.status in {"thrash", "spill"}:
        return True
    asked, free = _ASKED.search(record.message), _FREE.search(record.message)
    if not (asked and free):
        return False
    missing = float(asked[1]) * _UNIT[asked[2]] - float(free[1]) * _UNIT[free[2]]
    return missing <= NARROW * available


def until_sure(
    first: ProbeRecord, again: Callable[[], ProbeRecord], runs: int = RUNS
) -> Iterator[ProbeRecord]:
    """The further runs of a narrow configuration, each handed out before the next one starts.

    Ends early when a run broke or was interrupted: that says nothing about memory.
    """
    if not is_narrow(first):
        return
    for _ in range(runs - 1):
        record = again()
        yield record
        if record.fits is None:
            return


def fit_share(records: list[ProbeRecord]) -> float | None:
    """The share of runs that fitted, of those that say anything about it."""
    told = [record.fits for record in records if record.fits is not None]
    return sum(told) / len(told) if told else None
