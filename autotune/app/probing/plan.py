"""What is probed: the candidates of one device, each at which depth, and for how long."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from autotune.catalog.devices import default_host, find_device
from autotune.catalog.software import install_command, installed_versions
from autotune.domain.candidates import OFFER
from autotune.domain.config import CLOSED_FORMS, KNOBS, Config
from autotune.domain.device import Offer
from autotune.domain.errors import InputError, NoLocalDevice
from autotune.domain.objective import PAIRED
from autotune.frozen import dataclass
from autotune.pricing import Pricing
from autotune.probe import device as devices
from autotune.probe.device import LocalDevice
from autotune.probe.request import Effort, request_for
from autotune.probe.session import alone
from autotune.probe.two_depth import requests_at_depths
from autotune.space.file import at_every_level

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autotune.cost.bill import Bill
    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated
    from autotune.probe.record import ProbeRecord
    from autotune.probe.runner import Place
    from autotune.probe.together import Meeting
    from autotune.probe.worker.contract import Phase

    Request = dict[str, Any]
    from autotune.domain.candidates import Candidates, SearchSpace
    from autotune.domain.observation import Calibration

DEFAULT_PROBES, DEFAULT_BUDGET_S = 12, 600.0
# Importing torch, transformers and peft, once for all probes that a server forks; what surrounds
# the steps. Source: `bench.probe --beside` on two idle cores, 6.0 s and, of a small model, 0.8 s.
IMPORT_S, TRAINER_S = 6.0, 2.0
WARM_STEPS = 6  # until steps are steady
QUICKER = 0.7  # of the seconds at full depth: from there on two small depths are worth their error


class AnyRunner(Protocol):
    """What answers a probe's request: a `Runner`, or what keeps the answers of earlier ones.

    on_phase: is told a running probe's phase and how long it has run [s].
    """

    on_phase: Callable[[Phase, float], None] | None = None

    @property
    def serving(self) -> bool:
        """Whether the next probe finds its imports made."""
        return False

    def close(self) -> None:
        """End what probes ran in, where that stays between them."""

    def run(
        self, request: dict[str, Any], config: dict[str, Any], *,
        predicted: dict[str, float] | None = None, role: str = "search",
        timeout_s: float | None = None,
    ) -> ProbeRecord:  # fmt: skip
        """The record of one probe."""


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """How much may be probed, and where."""

    probes: int | None = None
    budget_s: float | None = None
    on: str | None = None
    effort: Effort = field(default_factory=Effort)
    timeout_s: float = 300.0
    worker: tuple[str, ...] | None = None  # tests put a fake one here
    runner: Callable[[Place], AnyRunner] | None = None  # records answer instead of a device
    held_bytes: float | None = None  # by the device, where the bill's limits are another machine's
    reuse: bool = True  # what earlier studies on this machine measured and learned
    workers: int | None = None  # that the search starts; 0: it waits for some; None: it is alone
    executor: str = "local"  # who starts them
    ray_address: str | None = None
    rendezvous: str | None = None  # HOST:PORT where the launchers of several machines meet
    meeting: Meeting | None = None  # there, of the offer's machines
    status: Callable[[str], None] | None = None  # hears every moment what a probe does just now

    @property
    def most(self) -> int:
        """Configurations to probe at most."""
        return self.probes or DEFAULT_PROBES

    @property
    def seconds(self) -> float:
        """[s] of probing, after which no further probe starts."""
        return DEFAULT_BUDGET_S if self.budget_s is None else self.budget_s

    @property
    def allowed(self) -> dict[str, float]:
        """Configurations, and [s] of probing, as a search that they ended records them."""
        return {"probes": float(self.most), "seconds": self.seconds}

    @property
    def limits(self) -> dict[str, float]:
        """What was stated of how much may be probed, as a run folder keeps it."""
        stated = {"probes": self.probes, "budget_s": self.budget_s}
        return {name: value for name, value in stated.items() if value is not None}

    def within(self, kept: Mapping[str, float]) -> Self:
        """The same, with a run's limits where none are stated now."""
        probes, budget_s = self.probes, self.budget_s
        if probes is None and "probes" in kept:
            probes = max(int(kept["probes"]), 1)
        if budget_s is None:
            budget_s = kept.get("budget_s")
        return replace(self, probes=probes, budget_s=budget_s)


@dataclass(frozen=True, slots=True)
class Plan:
    """The requests of one probe: one at full depth, or two. key: what the record is found by.

    expected_s: without imports, which one process makes for all probes that it forks.
    """

    key: str
    requests: tuple[Request, ...]
    expected_s: float

    def seconds(self, *, first: bool = True) -> float:
        """[s] expected with the imports. first: of a search; later probes find them made."""
        apart = sum(alone(request) for request in self.requests)
        return self.expected_s + IMPORT_S * (apart or int(first))

    @property
    def two_depths(self) -> bool:
        """Whether the model is measured at two small depths."""
        return len(self.requests) > 1


def expected_seconds(row: Estimated, effort: Effort, share: float = 1.0) -> float:
    """[s] a probe of that candidate is expected to take beyond imports; share: of its layers."""
    steps = effort.longest + WARM_STEPS + effort.measured
    training = min(steps * row.step_time_s * share, effort.patience_s + effort.seconds)
    once = row.time_s.compile + 2 * row.time_s.checkpoint / max(row.checkpoints, 1)
    return TRAINER_S + training + once * share


def plan_probe(
    job: Job, row: Estimated, effort: Effort, *, full: bool = False, known_to_fit: bool = False
) -> Plan:
    """How to probe a candidate.

    Two small depths where the model is too large to be held, or so deep that they take clearly
    less time even where each imports for itself. full: at full depth if it can be held at all;
    known_to_fit: a probe has shown that it can.
    """
    whole = request_for(job, row.offer, row.config, effort=effort)
    expected = expected_seconds(row, effort)
    pair = requests_at_depths(job, row.offer, row.config, effort)
    held = known_to_fit or row.memory_bytes.total <= row.usable_bytes
    if pair is None or (full and held):
        return Plan(whole["key"], (whole,), expected)
    shares = [request["num_layers"] / job.model.num_layers for request in pair]
    quick = sum(expected_seconds(row, effort, share) for share in shares)
    if held and quick + 2 * IMPORT_S > QUICKER * (expected + IMPORT_S):
        return Plan(whole["key"], (whole,), expected)
    return Plan(f"{pair[1]['key']}@{job.model.num_layers}", pair, quick)


def without_checkpoint(plan: Plan) -> Plan:
    """The same probe without a save: another probe has measured it."""
    requests = tuple({**request, "checkpoint_max_bytes": 0.0} for request in plan.requests)
    return replace(plan, requests=requests)


def depths_of(record: ProbeRecord) -> list[int]:
    """The small depths that a record was made from; none when it ran at full depth."""
    return list((record.result.get("extrapolated") or {}).get("depths", ()))


def candidates_of(bill: Bill, record: ProbeRecord) -> list[int]:
    """The candidates that a record is of: one for each offer that differs in price alone."""
    candidates = bill.candidates
    alike = [o.count == record.request.get("count", 1) for o in candidates.levels[OFFER]]
    same = np.asarray(alike)[candidates.codes[OFFER]]
    ran = Config.of(record.config).as_record()
    for name in (*KNOBS, *candidates.extra):
        if name in CLOSED_FORMS:
            continue
        levels, value = candidates.levels[name], ran.get(name)
        if value not in levels:
            return []
        same &= candidates.codes[name] == levels.index(value)
    found, offers = np.flatnonzero(same), candidates.codes[OFFER]
    _, first = np.unique(offers[found], return_index=True)
    return [int(index) for index in found[first]]


def local_for(job: Job, on: str | None, *, together: bool = False) -> tuple[LocalDevice, Offer]:
    """The device to probe on and the offer that it is. Raises NoLocalDevice (exit 5).

    together: with other machines, of which this is one.
    """
    if job.objective in PAIRED:
        msg = f"--score probe runs supervised steps, and the job trains {job.objective}"
        raise InputError(msg, "leave --score probe out: the model prices it, with a wide range")
    absent = [name for name in ("torch", "transformers", "peft") if name not in
              installed_versions()]  # fmt: skip
    if absent:
        msg = f"--score probe trains for a minute, and {', '.join(absent)} are not installed"
        raise NoLocalDevice(msg, install_command("probe"))
    here = devices.local_devices()
    if on is not None and not together:
        return _named(job, on, here)
    for offer in job.offers:
        if together == (offer.network is not None):
            found = share_of(offer, here)
            if found:
                return found[0], offer
    names = ", ".join(sorted({local.name for local in here}))
    wanted = ", ".join(dict.fromkeys(offer.label for offer in job.offers))
    msg = f"--score probe needs one of the job's machines ({wanted}), and here is only {names}"
    if together:
        msg = f"--rendezvous needs a job on several machines, not {wanted}; here is {names}"
        raise NoLocalDevice(msg, 'name one, such as --gpu "2x8xh100-sxm over efa", and start there')
    several = next((offer for offer in job.offers if offer.network and share_of(offer, here)), None)
    if several is not None:
        msg = f"--score probe of {several.label} runs on its {several.nodes} machines together"
        raise NoLocalDevice(msg, TOGETHER)
    raise NoLocalDevice(
        msg, "--probe-on NAME probes on the device at hand and transfers what it learns; "
        "without --score probe no device is needed"
    )  # fmt: skip


TOGETHER = (
    "add --rendezvous HOST:PORT, this machine as the others reach it, and --run FOLDER, which all "
    "of them see; on each other one: autotune worker FOLDER. Or --probe-on NAME probes one device "
    "and transfers what it learns"
)


def share_of(offer: Offer, here: list[LocalDevice]) -> list[LocalDevice]:
    """The local devices that are one machine's of an offer; empty where it has more."""
    return devices.matching(replace(offer, count=offer.per_node, network=None), here)


def offers_here(job: Job, offer: Offer) -> tuple[Offer, ...]:
    """The job's offers of the device at hand, whatever their count and price; at least `offer`."""
    here = devices.local_devices()
    found = (
        other
        for other in job.offers
        if other.device.name == offer.device.name and devices.matching(other, here)
    )
    return tuple(found) if offer in job.offers else (offer,)


def groups_here(offer: Offer, local: LocalDevice, count: int) -> list[tuple[LocalDevice, ...]]:
    """The devices of that kind here, as many together as a probe occupies; `local` at the least."""
    found = [
        other
        for other in devices.local_devices()
        if other.device is not None and other.device.name == offer.device.name
    ]
    groups = [tuple(found[at : at + count]) for at in range(0, len(found) - count + 1, count)]
    return groups or [(local,)]


def remote_for(job: Job, on: str | None) -> tuple[LocalDevice, Offer]:
    """The device that workers elsewhere probe on: the first offer's, or the one that is named.

    Raises NoLocalDevice where the job is on several machines alone: a worker is one.
    """
    alone = [offer for offer in job.offers if offer.network is None]
    if on is not None:
        offer = next((o for o in alone if o.device.name == on.casefold()), None)
        offer = offer or lent_offer(job, on.casefold())
    elif not alone:
        msg = f"a worker probes one machine, and the job is on {job.offers[0].label} alone"
        raise NoLocalDevice(
            msg, f"--probe-on {job.offers[0].device.name} probes one device and transfers what it "
            "learns; or name one machine beside it with --gpu; or, without workers, begin on one "
            "of the machines with --rendezvous HOST:PORT, and `autotune worker RUN` on the others"
        )  # fmt: skip
    else:
        offer = alone[0]
    device, total = offer.device, offer.device.memory_driver_bytes
    return LocalDevice(0, device.name, total, 0.0, "", device, elsewhere=True), offer


def lent_offer(job: Job, name: str) -> Offer:
    """A device of this machine that the job does not offer: it only lends its speed."""
    device = devices.cpu().device if name == "cpu" else find_device(name)
    if device is None:
        msg = f"{name} is no device of the catalogue"
        raise NoLocalDevice(msg, "`autotune devices` lists them")
    return Offer(device, 1, 0.0, default_host(1, device, job.storage), "this machine")


def _named(job: Job, on: str, here: list[LocalDevice]) -> tuple[LocalDevice, Offer]:
    wanted = devices.cpu().device if on.casefold() == "cpu" else find_device(on)
    for local in here:
        if local.device is not None and wanted is not None and local.device.name == wanted.name:
            for offer in job.offers:
                if offer.device.name == wanted.name and offer.count == 1:
                    return local, offer
            return local, lent_offer(job, local.device.name)
    names = ", ".join(sorted({local.name for local in here}))
    msg = f"--probe-on {on}: that device is not here; here: {names}"
    raise NoLocalDevice(msg, "name a device of this machine, or leave --score probe out")


ROOMY_BYTES = 1e18  # more than any model: nothing is refused for memory


@dataclass(frozen=True, slots=True)
class Ground:
    """A search as all of its workers have it.

    job: the one that is probed, with its offers. offer: that the device is. offers: those of them
    that can run there; bill: of their candidates. exact: the offer is one of the user's job.
    """

    job: Job
    space: SearchSpace
    calibration: Calibration
    offer: Offer
    offers: tuple[Offer, ...]
    exact: bool
    bill: Bill
    held_bytes: float | None = None


def local_bill(
    job: Job, candidates: Candidates, space: SearchSpace, calibration: Calibration,
    offers: tuple[Offer, ...],
) -> Bill:  # fmt: skip
    """Every candidate of these offers, the user's own knobs at all levels."""
    levels = [candidates.levels[OFFER].index(offer) for offer in offers]
    here = candidates.take(np.flatnonzero(np.isin(candidates.codes[OFFER], levels)))
    return Pricing(job, calibration).bill(at_every_level(here, space.extra))


def without_limits(bill: Bill) -> Bill:
    """The bill for a device that only lends its speed: what fits it decides nothing."""
    roomy = np.full(len(bill), ROOMY_BYTES)
    return bill.with_memory(usable_bytes=roomy, fits_probability=np.ones(len(bill)))
