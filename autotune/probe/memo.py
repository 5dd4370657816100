"""What earlier probes answer: whole configurations, and parts of others that read the same.

A record answers again where the request, the device and the versions are the same. A part of it (a
save, an evaluation batch) answers for every candidate that agrees in the columns that the cost
component of that part declares to read.

Also what probes have shown not to work here, so that it is not tried again; what a single probe's
failure was is in `outcomes`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from autotune.catalog.software import installed_versions
from autotune.cost.model import COMPONENTS
from autotune.domain.config import LATER, is_extra
from autotune.frozen import dataclass
from autotune.probe.outcomes import BROKEN, OK
from autotune.probe.record import ProbeLog, SharedProbeLog
from autotune.probe.worker.contract import beyond_probes

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.probe.record import ProbeRecord

READS = {component.name: component.reads for component in COMPONENTS}
FREE_OF_HARDWARE = ("offer.price", "offer.spot")  # they price a measurement, they do not change it

Signature = tuple[tuple[str, Any], ...]


def signature(component: str, config: dict[str, Any], offer: Offer) -> Signature:
    """The values of the columns that a component reads, and of the user's own knobs.

    Nobody declares what those touch, so everything may depend on them.
    """
    host = offer.host
    fields = {
        "offer.device": offer.device.name, "offer.count": offer.count,
        "offer.host": (host.cores, round(host.ram_bytes / 2**30)),
        "offer.network": offer.network and (offer.network.name, offer.nodes),
    }  # fmt: skip
    return tuple(
        (name, fields.get(name, config.get(name, LATER.get(name))))
        for name in (*READS[component], *sorted(filter(is_extra, config)))
        if name not in FREE_OF_HARDWARE
    )


def _is_told(record: ProbeRecord) -> bool:
    """Whether later runs may learn from it: what others disturbed answers for its own run."""
    return record.fits is not None and not record.disturbed and not record.reused


class Memo:
    """Records of this and earlier studies on one device with one set of versions."""

    def __init__(self, own: Path | None, shared: Path | None, fingerprint: str) -> None:
        """own: this run's record; shared: of all runs of this user. None: kept in memory only.

        fingerprint: of the device; empty where workers elsewhere have it, so that the first of
        their probes says which it is.
        """
        self.fingerprint = fingerprint
        self.versions = installed_versions()
        self._own = ProbeLog(own) if own else None
        self._shared = SharedProbeLog(shared) if shared else None
        self.records: list[ProbeRecord] = list(self._own.records) if self._own else []
        mine = {(r.key, r.when) for r in self.records}
        others = self._shared.records if self._shared and fingerprint else []
        self.earlier = [r for r in others if (r.key, r.when) not in mine and self._current(r)]
        self.stale = sum(not self._current(r) for r in others)
        self.bad = len(self._shared.bad) if self._shared else 0  # lines of others that hold none
        self.not_shared = ""  # why later runs will not find a probe of this one
        self._signatures: dict[tuple[str, int], tuple[Offer, Signature]] = {}
        if self._shared:  # what this run could not share before it was killed, or for a full disk
            for record in self._shared.lacks(filter(_is_told, self.records)):
                self._share(record)

    def _current(self, record: ProbeRecord) -> bool:
        """Same device with as much room, same versions of what was measured."""
        if record.fits is False and record.readings.get("held_by_others_bytes"):
            return False  # a fuller device than the next study's: it may fit there
        return self._same(record)

    def _same(self, record: ProbeRecord) -> bool:
        measured = record.result.get("versions", {})
        same = all(measured.get(name, value) == value for name, value in self.versions.items())
        first = next((r.fingerprint for r in self.records if r.fingerprint), "")
        return record.fingerprint == (self.fingerprint or first) and same

    @property
    def foreign(self) -> int:
        """Probes of this run that were made on another device or driver, or with other versions."""
        return sum(bool(r.fingerprint) and not self._same(r) for r in self.records)

    def add(self, record: ProbeRecord) -> None:
        """Keep a finished probe: on the disk, if there is a place for it, before returning."""
        if self._own:
            self._own.append(record)
        if _is_told(record):
            self._share(record)
        self.records.append(record)

    def _share(self, record: ProbeRecord) -> None:
        """Keep it for later runs; where that fails it costs them their start, this one nothing."""
        if self._shared is None:
            return
        try:
            self._shared.append(record)
        except OSError as error:
            self.not_shared = f"{error.strerror or error}"

    def adopt(self, record: ProbeRecord, *, keep: bool) -> bool:
        """Take over what another worker of this run measured; whether it was new.

        keep: in this run's record as well.
        """
        if any(r.key == record.key and r.line() == record.line() for r in self.records):
            return False
        if keep and self._own:
            self._own.append(record)
        self.records.append(record)
        return True

    def of_this_run(self, key: str) -> list[ProbeRecord]:
        """This study's records of a request, the oldest first."""
        return [record for record in self.records if record.key == key]

    def find(self, key: str) -> ProbeRecord | None:
        """An earlier study's answer to a request, marked as reused."""
        found = [r for r in self.earlier if r.key == key and r.fits is not None and not r.disturbed]
        return replace(found[-1], reused=True, role="search") if found else None

    def part(self, component: str, name: str, config: Config, offer: Offer) -> float | None:
        """[s] median of a part's measurements over records whose component reads the same.

        component: of the cost model; name: where the worker puts the part, such as checkpoint.
        Records that others disturbed count only where there are no others.
        """
        wanted = signature(component, config.as_record(), offer)
        field = {"checkpoint": "save_s", "evaluation": "batch_s"}[name]
        alike = [
            (not record.disturbed, float(found[field]))
            for record in (*self.earlier, *self.records)
            if record.ok
            and (found := record.result.get(name) or {}).get(field)
            and self._signature(component, record, offer) == wanted
        ]
        calm = [value for undisturbed, value in alike if undisturbed]
        values = calm or [value for _, value in alike]
        return median(values) if values else None

    def _signature(self, component: str, record: ProbeRecord, offer: Offer) -> Signature:
        """The signature of a record that is kept here, found once for each component."""
        key = (component, id(record))
        known = self._signatures.get(key)
        if known is None or known[0] is not offer:
            known = self._signatures[key] = offer, signature(component, record.config, offer)
        return known[1]


SUSPECTS = ("compile", "precision", "attention", "optimizer", "sharding", "adapter_dtype",
            "activation_checkpointing", "packing", "length_grouping", "kernels",
            "offload")  # fmt: skip
LEAST_FAILURES = 2


def reason_of(record: ProbeRecord) -> str:
    """Status and the message without numbers and addresses: equal for the same breakage."""
    line = record.message.strip().partition("\n")[0]
    return f"{record.status}: {re.sub(r'0x[0-9a-f]+|[0-9]+', '#', line)[:200]}"


@dataclass(frozen=True, slots=True)
class _Breakage:
    """How a probe broke, and with which values; attempts: how often it did so."""

    values: dict[str, object]
    why: str
    attempts: int


class Unsupported:
    """What probes have shown not to work here."""

    def __init__(self, records: Iterable[ProbeRecord]) -> None:
        """Learn from what is recorded already."""
        self._worked: dict[str, set[object]] = defaultdict(set)
        self._broken: list[_Breakage] = []
        for record in records:
            self.learn(record)

    def learn(self, record: ProbeRecord) -> None:
        """One more record. A retry that failed alike counts as a second failure."""
        names = (*SUSPECTS, *filter(is_extra, record.config))
        values = {name: record.config.get(name) for name in names}
        if record.status == OK or record.fits is False:
            for name, value in values.items():
                self._worked[name].add(value)
        elif record.status in BROKEN:
            self._broken.append(_Breakage(values, reason_of(record), record.attempts))

    def reason(self, config: Config) -> str | None:
        """Why a configuration need not be tried: what failed twice and never worked is in it.

        Of a probe that broke, every value that has not worked since may be the cause, and which it
        is nobody knows. So only what has all of them is passed over. Nothing is before something
        worked: else it need not be the knobs' fault.
        """
        beyond = beyond_probes(config.kernels, config.offload, config.precision)
        if beyond:
            return f"unsupported: {beyond}"
        own, known = tuple(dict(config.extra)), config.as_record()
        values = {name: known[name] for name in (*SUSPECTS, *own)}
        for breakage in self._broken if self._worked else ():
            causes = self._causes(breakage)
            if not causes or not causes.items() <= values.items():
                continue
            alike = [b for b in self._broken if b.why == breakage.why]
            count = sum(b.attempts for b in alike if causes.items() <= b.values.items())
            if count >= LEAST_FAILURES:
                what = ", ".join(f"{name} {value}" for name, value in causes.items())
                return f"unsupported: {what} failed before ({breakage.why})"
        return None

    def _causes(self, breakage: _Breakage) -> dict[str, object]:
        """Its values that have not worked, of knobs of which another value has."""
        return {
            name: value
            for name, value in breakage.values.items()
            if (worked := self._worked.get(name)) and value not in worked
        }
