"""What probes have shown not to work here, so that it is not tried again.

What a single probe's failure was is not here (`outcomes`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from autotune.domain.config import is_extra
from autotune.probe.outcomes import BROKEN, OK
from autotune.probe.worker.contract import beyond_probes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autotune.domain.config import Config
    from autotune.probe.record import ProbeRecord

SUSPECTS = ("compile", "precision", "attention", "optimizer", "sharding", "adapter_dtype",
            "activation_checkpointing", "packing", "length_grouping", "kernels",
            "offload")  # fmt: skip
LEAST_FAILURES = 2


def reason_of(record: ProbeRecord) -> str:
    """Status and the message without numbers and addresses: equal for the same breakage."""
    line = record.message.strip().partition("\n")[0]
    return f"{record.status}: {re.sub(r'0x[0-9a-f]+|[0-9]+', '#', line)[:200]}"


class Unsupported:
    """What probes have shown not to work here."""

    def __init__(self, records: Iterable[ProbeRecord]) -> None:
        """Learn from what is recorded already."""
        self._worked: dict[str, set[object]] = defaultdict(set)
        self._broken: dict[tuple[str, object, str], int] = defaultdict(int)
        for record in records:
            self.learn(record)

    def learn(self, record: ProbeRecord) -> None:
        """One more record. A retry that failed alike counts as a second failure."""
        for name in (*SUSPECTS, *filter(is_extra, record.config)):
            value = record.config.get(name)
            if record.status == OK or record.fits is False:
                self._worked[name].add(value)
            elif record.status in BROKEN:
                self._broken[name, value, reason_of(record)] += record.attempts

    def reason(self, config: Config) -> str | None:
        """Why a configuration need not be tried: a value of it failed twice and never worked.

        Only where another value of that knob has worked: else it need not be the knob's fault.
        """
        beyond = beyond_probes(config.kernels, config.offload, config.precision)
        if beyond:
            return f"unsupported: {beyond}"
        own, values = tuple(dict(config.extra)), config.as_record()
        for name in (*SUSPECTS, *own):
            value = values[name]
            worked = self._worked[name]
            if value in worked or not worked:
                continue
            for (knob, broken, why), count in self._broken.items():
                if knob == name and broken == value and count >= LEAST_FAILURES:
                    return f"unsupported: {name} {value} failed before ({why})"
        return None
