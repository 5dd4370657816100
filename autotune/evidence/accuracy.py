"""Predicted against measured, run by run, and how far off that is: by scope, by device, in sweeps.

Like with like: torch's allocated bytes against the model's allocated bytes, reserved against
reserved, the driver's reading against the total with context. A step is the steady training step:
no loading, no saves, no evaluation.

A sweep: runs of one source and snapshot that train the same model with the same method, lengths,
kernels and devices, and differ in knobs that a search turns. At least three of them, the slowest
at least a tenth slower than the fastest. What is compared is seconds per row, because sources that
raise the micro-batch often raise the global batch with it.

Not here: weights of groups and the table that is printed (`validation/validate`), and whether a run
fitted (`validation/verdicts`).
"""

from __future__ import annotations

from dataclasses import field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Literal

import numpy as np

from autotune.cost.constants import KINDS, RESERVED_KINDS
from autotune.cost.run_time import links_s, micro_steps
from autotune.cost.spread.memory import SIDES
from autotune.domain.candidates import by_job
from autotune.domain.outcome import FEASIBLE_PROBABILITY, Z90
from autotune.evidence.cases import READ_AS, left_out_key
from autotune.evidence.fit.time import REFERENCE
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from autotune.cost.bill import Bill
    from autotune.cost.columns import FloatArray
    from autotune.domain.observation import Observation
    from autotune.evidence.cases import MeasuredCase, Price


Kind = Literal["allocated", "reserved", "nvidia-smi", "unknown", "time"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the cost model says of one case. Bytes are of one device; log_sd: relative spread."""

    step_s: float
    step_log_sd: float
    step_slow_log_sd: float | None = None  # on the side of slower, where it differs
    memory: dict[str, float] = field(default_factory=dict)
    memory_log_sd: float = 0.0  # of allocated bytes, on the side of less
    memory_more_log_sd: float | None = None  # and of more, where it differs
    reserved_log_sd: float = 0.0  # of reserved bytes and of the driver's reading
    reserved_more_log_sd: float | None = None
    listed_log_sd: tuple[float, float] = (0.0, 0.0)  # both, of the settings as listed
    fits_as_listed: float = 0.0  # P(fits) of them
    slack_log_sd: float = 0.0  # of what a run needs beside its tensors
    usable_bytes: float = 0.0
    fits_probability: float = 0.0
    certain_oom: bool = False
    accepted: bool = False  # tune would offer this configuration
    band: str = ""  # the kind of run whose spread the allocated peak has
    reserved_band: str = ""  # the same of what the allocator holds

    @property
    def over(self) -> bool:
        """Whether the predicted total is more than the device has."""
        return self.certain_oom or self.memory["total"] > self.usable_bytes

    def memory_sides(self, read: str) -> tuple[float, float]:
        """Log sd of less and of more than predicted: of allocated bytes, or of what is held."""
        own = (self.memory_log_sd, self.memory_more_log_sd)
        less, more = (
            own if read == "allocated" else (self.reserved_log_sd, self.reserved_more_log_sd)
        )
        return less, less if more is None else more

    def listed_sd(self, read: str) -> float:
        """Log sd with the settings as listed, whatever of them nobody said."""
        return self.listed_log_sd[0 if read == "allocated" else 1]


@dataclass(frozen=True, slots=True)
class Residual:
    """One predicted figure beside its measurement, in seconds or bytes."""

    case: MeasuredCase
    observation: Observation
    predicted: float
    log_sd: float
    band: str = ""  # the kind of run whose spread this is
    slow_log_sd: float | None = None  # on the side of more than predicted, where it differs

    @property
    def sides(self) -> tuple[float, float]:
        """Log sd on the side of less than predicted, and of more."""
        return self.log_sd, self.log_sd if self.slow_log_sd is None else self.slow_log_sd

    @property
    def inside(self) -> bool:
        """Whether the measured value is in the 80 % interval."""
        less, more = self.sides
        return bool(-Z90 * more <= np.log(self.ratio) <= Z90 * less)

    @property
    def kind(self) -> Kind:
        """Of which kind a reading of memory is; else time."""
        return self.observation.kind or "time"

    @property
    def actual(self) -> float:
        """The measured value."""
        return self.observation.value

    @property
    def ratio(self) -> float:
        """Predicted over actual."""
        return self.predicted / self.actual

    @property
    def error(self) -> float:
        """Absolute error as a fraction of the actual value."""
        return abs(self.ratio - 1.0)


def predict(cases: Iterable[MeasuredCase], price: Price) -> dict[str, Prediction]:
    """The cost model's answer for every case by id; cases of one job are priced together."""
    every = list(cases)
    found: dict[str, Prediction] = {}
    for places, candidates in by_job(every):
        group = [every[i] for i in places]
        found.update(_predictions(group, price(group[0].job, candidates)))
    return found


def _predictions(cases: Sequence[MeasuredCase], bill: Bill) -> dict[str, Prediction]:
    table = bill.tables["memory"]
    memory = {name: table.gather(name) for name in OUTPUTS}
    memory["usable"], memory["fits_probability"] = bill.usable_bytes, bill.fits_probability
    spread, slow = _step_spread(bill)
    found = {}
    for i, case in enumerate(cases):
        own = {name: float(values[i]) for name, values in memory.items()}
        found[case.id] = with_memory(
            Prediction(float(bill.step_s[i]), float(spread[i]), float(slow[i])), own
        )
    return found


OUTPUTS = (
    "allocated", "reserved", "driver", "total", "log_sd", "reserved_log_sd", "certain_oom", "kind",
    "reserved_kind", "slack_log_sd", "fits_as_listed", *SIDES,
)  # fmt: skip


def with_memory(found: Prediction, own: Mapping[str, float]) -> Prediction:
    """The prediction with other outputs of the memory component."""
    certain = own["certain_oom"] > 0
    fits = own["total"] <= own["usable"] and own["fits_probability"] >= FEASIBLE_PROBABILITY
    return replace(
        found,
        memory={name: own[name] for name in ("allocated", "reserved", "driver", "total")},
        memory_log_sd=own["less_sd"],
        memory_more_log_sd=own["more_sd"],
        reserved_log_sd=own["reserved_less_sd"],
        reserved_more_log_sd=own["reserved_more_sd"],
        listed_log_sd=(own["log_sd"], own["reserved_log_sd"]),
        fits_as_listed=own["fits_as_listed"],
        slack_log_sd=own["slack_log_sd"],
        usable_bytes=own["usable"],
        fits_probability=own["fits_probability"],
        certain_oom=certain,
        accepted=fits and not certain,
        band=KINDS[int(own["kind"])],
        reserved_band=RESERVED_KINDS[int(own["reserved_kind"])],
    )


def _step_spread(bill: Bill) -> tuple[FloatArray, FloatArray]:
    """([n], [n]) log sd of a step on both sides: compute and communication err independently."""
    compute, links = bill.tables["compute"], bill.tables["collectives"]
    link_s = links_s(bill.tables, micro_steps(bill.job, bill.candidates))
    share = np.clip(link_s / np.maximum(bill.step_s, 1e-12), 0.0, 1.0)
    spread: FloatArray = np.hypot(
        (1 - share) * compute.gather("log_sd"), share * links.gather("log_sd")
    )
    more = (1 - share) ** 2 * compute.gather("slow_variance")
    return spread, np.sqrt(np.maximum(spread**2 + more, 0.0))


def residuals(cases: Iterable[MeasuredCase], predictions: dict[str, Prediction]) -> list[Residual]:
    """Every Observation of the cases beside its prediction; out of memory has none."""
    return [
        _residual(case, observation, predictions[case.id])
        for case in cases
        for observation in case.observations
        if observation.quantity != "oom"
    ]


def _residual(case: MeasuredCase, seen: Observation, found: Prediction) -> Residual:
    if seen.kind is None:
        slow = found.step_slow_log_sd
        return Residual(case, seen, found.step_s, found.step_log_sd, slow_log_sd=slow)
    read = READ_AS[seen.kind]
    predicted = found.memory[read]
    less, more = found.memory_sides(read)
    band = found.band if read == "allocated" else found.reserved_band
    return Residual(case, seen, predicted, less, band, more)


LEAST_ROWS = 8  # a device with fewer rows has a figure, but counts for no median over devices


@dataclass(frozen=True, slots=True)
class Scope:
    """Errors of some rows; rows count the same. coverage: of the 80 % interval."""

    n: int
    groups: int
    median_ape: float
    p90_ape: float
    bias: float
    coverage: float


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors by scope and by device, and the order of sweeps."""

    scopes: dict[str, Scope]
    devices: dict[str, Scope]
    median_over_devices: float | None  # of the medians of devices with `LEAST_ROWS` rows
    sweeps: Sweeps


def _one_trainer(case: MeasuredCase) -> bool:
    offer, stack = case.offer, case.job.software.stack
    return (offer.count, offer.device.name, stack) == (1, REFERENCE["device"], REFERENCE["stack"])


ALL_ROWS = "all rows"
SCOPES: dict[str, Callable[[MeasuredCase], bool]] = {
    ALL_ROWS: lambda _: True,
    "one A100 80 GB, Hugging Face's Trainer": _one_trainer,
    "2 to 8 GPUs": lambda case: case.offer.count > 1,
}


def accuracy_of(steps: Sequence[Residual]) -> Accuracy:
    """Errors of predicted steps in the scopes above and for every device."""
    scopes = {name: [s for s in steps if rule(s.case)] for name, rule in SCOPES.items()}
    devices: dict[str, list[Residual]] = {}
    for step in steps:
        devices.setdefault(step.case.offer.device.name, []).append(step)
    of_devices = {name: _scope(own) for name, own in sorted(devices.items())}
    medians = [own.median_ape for own in of_devices.values() if own.n >= LEAST_ROWS]
    return Accuracy(
        {name: _scope(own) for name, own in scopes.items() if own},
        of_devices,
        float(np.median(medians)) if medians else None,
        sweeps_of([s.case for s in steps], [s.predicted for s in steps]),
    )


def _scope(steps: Sequence[Residual]) -> Scope:
    error = np.asarray([step.error for step in steps])
    log_ratio = np.log([step.ratio for step in steps])
    inside = np.asarray([step.inside for step in steps])
    return Scope(
        n=len(steps),
        groups=len({left_out_key(step.case) for step in steps}),
        median_ape=float(np.median(error)),
        p90_ape=float(np.quantile(error, 0.9)),
        bias=float(np.expm1(np.median(log_ratio))),
        coverage=float(inside.mean()),
    )


LEAST_POINTS, LEAST_SPREAD = 3, 0.10
APART = 0.05  # pairs closer than this measure the same


@dataclass(frozen=True, slots=True)
class Sweeps:
    """Order and regret over all sweeps. None where there is no sweep."""

    sweeps: int
    points: int
    pairs: int
    right_order: float | None  # share of the pairs
    mean_regret: float | None  # seconds of the predicted best over the measured best, minus 1
    worst_regret: float | None


def sweeps_of(cases: Sequence[MeasuredCase], predicted_s: Sequence[float]) -> Sweeps:
    """Order and regret of predicted step times against the cases' own."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for case, seconds in zip(cases, predicted_s, strict=True):
        if case.step is None:
            continue
        rows = case.job.global_batch_size
        pair = (case.step.value / rows, float(seconds) / rows)
        groups.setdefault(case.sweep_key or case.id, []).append(pair)
    kept = [np.asarray(points) for points in groups.values() if _is_sweep(points)]
    right = [_right(a, b) for points in kept for a, b in combinations(points, 2) if _apart(a, b)]
    regrets = [_regret(points) for points in kept]
    return Sweeps(
        sweeps=len(kept),
        points=sum(len(points) for points in kept),
        pairs=len(right),
        right_order=float(np.mean(right)) if right else None,
        mean_regret=float(np.mean(regrets)) if regrets else None,
        worst_regret=max(regrets, default=None),
    )


def _is_sweep(points: list[tuple[float, float]]) -> bool:
    measured = [point[0] for point in points]
    return len(points) >= LEAST_POINTS and max(measured) >= (1 + LEAST_SPREAD) * min(measured)


def _apart(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(abs(np.log(a[0] / b[0])) > np.log1p(APART))


def _right(a: np.ndarray, b: np.ndarray) -> bool:
    return bool((a[0] - b[0]) * (a[1] - b[1]) > 0)


def _regret(points: np.ndarray) -> float:
    pick = int(np.argmin(points[:, 1]))
    return float(points[pick, 0] / points[:, 0].min() - 1.0)
