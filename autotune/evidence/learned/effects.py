"""What past runs say of a machine: how far the model is off there, as far as they can tell.

Each run has a residual, the logarithm of measured over predicted. Residuals of runs that share a
training stack, a device, a machine (device and count), a method or a model's shape move together,
so a run says much of the same machine and little of another. How sure that makes later answers
follows from the same arithmetic:

    K_ij = common_i x common_j x (sum of SHARES that runs i and j have in common)
    effect = k' (K + N)^-1 residuals;  what it settles of the variance = k' (K + N)^-1 k

k: the same between a later job on the machine and each run. common: the model's own spread of a
run without OWN, what a configuration is off by alone; N: OWN, what a run's grade leaves open, and
what two runs of one configuration differ by, squared and added. Source: best linear prediction
under correlated normal errors (kriging). SHARES and OWN: likelihood of each run given the others,
over twelve sources of the record with several runs of one machine (`bench.learn` prints what they
do).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.domain.observation import BETWEEN_RUNS_SD, MachineEffect
from autotune.evidence.calibrate import LARGEST_FACTOR, SURPRISE
from autotune.evidence.cases import Refused
from autotune.evidence.learned.run import NOISE, case_of_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autotune.cost.bill import Bill
    from autotune.cost.columns import FloatArray
    from autotune.domain.job import Job
    from autotune.evidence.cases import MeasuredCase, Price
    from autotune.evidence.learned.run import PastRun

# Shares of the model's variance that runs have in common, by what they have in common.
SHARES = {"stack": 0.10, "device": 0.15, "machine": 0.25, "method": 0.30, "shape": 0.20}
OWN, MOST_OWN = 0.12, 0.60  # [log], and as a share of the model's variance at most
AGREEING, AGREEMENT = 3, 0.25  # runs of one machine, and [log] how far from each other at most
MOST = math.log(6.0)  # beyond it even several runs that agree are something else than efficiency
MOST_SAVING = 0.5  # of a step's seconds that untimed saves may take
MOSTLY_SAVES = "untimed saves may take more than half of its time"
WIDEST = 2.0  # of the model's own spread, where a user's runs differ more than it says
SAVES_SPREAD = 0.15  # of the checkpoint's own spread that is left where saves were timed


@dataclass(frozen=True, slots=True)
class Residual:
    """How far a run is from its prediction, and what it has in common with others."""

    id: str
    device: str
    count: int
    stack: str
    method: str
    shape: str
    log: float  # ln(measured / predicted) of a step without its wait for data
    sd: float  # the model's own
    noise: float
    save_log: float | None = None
    save_bytes_per_s: float | None = None

    @property
    def own(self) -> float:
        """[log^2] variance that no other run shares."""
        return min(OWN**2, MOST_OWN * self.sd**2)

    @property
    def common(self) -> float:
        """[log] spread of what other runs may share."""
        return math.sqrt(self.sd**2 - self.own)

    @property
    def machine(self) -> str:
        """Such as "2x h100-nvl"."""
        return f"{self.count}x {self.device}"


def residual_of(
    name: str, case: MeasuredCase, noise: float, price: Price, saves_a_step: float = 0.0
) -> Residual:
    """The residual of a measured run. Raises Refused where the model has no time for it.

    saves_a_step: checkpoints inside a measured step that nobody timed, on average. They are taken
    off as predicted, and leave open by how much those may be off.
    """
    bill = price(case.job, case.candidates)
    step_s, wait = float(bill.step_s[0]), _wait_s(bill)
    measured = case.step_time_s
    if measured is not None and saves_a_step:
        each = saves_a_step * float(bill.tables["checkpoint"].gather("save_s")[0])
        sd = float(bill.tables["checkpoint"].gather("log_sd")[0])
        if each * math.exp(sd) > MOST_SAVING * measured:
            raise Refused(MOSTLY_SAVES)
        noise = math.hypot(noise, each * math.expm1(sd) / measured)
        measured -= each
    if measured is None or not step_s > wait or not measured > 0:
        msg = "nothing timed"
        raise Refused(msg)
    log = math.log(max((measured - wait) / (step_s - wait), 1e-3))
    job = case.job
    saved = next((o.value for o in case.observations if o.quantity == "checkpoint_save_s"), None)
    expected = float(bill.tables["checkpoint"].gather("save_s")[0])
    size = float(bill.tables["checkpoint"].gather("bytes")[0])
    known = saved is not None and saved > 0 and expected > 0
    return Residual(
        id=name,
        device=case.offer.device.name,
        count=case.offer.count,
        stack=job.software.stack,
        method=method_of(job, case.config.sharding),
        shape=f"{job.model.num_layers}x{job.model.hidden_size}",
        log=log,
        sd=max(float(bill.tables["compute"].gather("log_sd")[0]), NOISE["A"]),
        noise=math.hypot(noise, BETWEEN_RUNS_SD),
        save_log=math.log(saved / expected) if saved and known else None,
        save_bytes_per_s=size / saved if saved and known else None,
    )


def method_of(job: Job, sharding: str) -> str:
    """What runs of one method have in common: "full-16bit, fsdp"."""
    return f"{job.method.kind}-{job.method.base}, {sharding}"


def _wait_s(bill: Bill) -> float:
    return bill.time_parts(0).data_wait / max(float(bill.steps[0]), 1.0)


def believed(found: Sequence[Residual]) -> tuple[list[Residual], dict[str, str]]:
    """Residuals that efficiency explains, and why the others are left out, by run.

    A residual beyond a factor of two and beyond what the model itself calls likely is something
    else (another length, a busy machine), unless several runs of the machine agree on it.
    """
    kept, doubted = [], {}
    for own in found:
        alike = sum(
            other.machine == own.machine and abs(other.log - own.log) <= AGREEMENT
            for other in found
        )
        usual = max(math.log(LARGEST_FACTOR), SURPRISE * own.sd)
        if abs(own.log) <= usual or (alike >= AGREEING and abs(own.log) <= MOST):
            kept.append(own)
        else:
            way = "slower" if own.log > 0 else "faster"
            doubted[own.id] = f"more than {math.exp(usual):.2g} times {way} than modelled"
    return kept, doubted


def effects_on(
    machines: Iterable[tuple[str, int]],
    stack: str,
    method: str,
    shape: str,
    found: Sequence[Residual],
) -> tuple[MachineEffect, ...]:
    """What the residuals say of a job on each machine, as factors of its seconds."""
    made: list[MachineEffect] = []
    for device, count in dict.fromkeys(machines):
        job = Residual("", device, count, stack, method, shape, 0.0, 0.0, 0.0)
        step = effect_of(job, found)
        if step is not None:
            made += [replace(step, component=name) for name in ("compute", "collectives")]
        saves = [own.save_log for own in found if own.machine == job.machine and own.save_log]
        if saves:
            factor = math.exp(float(np.median(saves)))
            made.append(
                MachineEffect(
                    device, count, "checkpoint", factor, SAVES_SPREAD, len(saves), here=True
                )
            )
    return tuple(made)


def effect_of(job: Residual, found: Sequence[Residual]) -> MachineEffect | None:
    """The effect on the step of such a job; None where no run has anything in common with it."""
    alike = np.asarray([_in_common(job, own) for own in found])
    if not len(found) or not alike.any():
        return None
    common = np.asarray([own.common for own in found])
    covariance = np.asarray([[_in_common(a, b) for b in found] for a in found])
    covariance *= np.outer(common, common)
    apart = _scatter(found)
    covariance += np.diag([max(own.own, apart[own.machine]) + own.noise**2 for own in found])
    on_device = sum(own.device == job.device for own in found)
    nearest = alike >= alike.max()
    sd = float(np.mean([own.sd for own, near in zip(found, nearest, strict=True) if near]))
    job = replace(job, sd=sd)
    shared = alike * common * job.common
    weights: FloatArray = np.linalg.solve(covariance, shared)
    log = float(weights @ np.asarray([own.log for own in found]))
    settled = min(max(float(weights @ shared) / sd**2, 0.0), 1.0)
    beyond = max(apart.get(job.machine, 0.0) - job.own, 0.0) / sd**2
    spread = min(math.sqrt(1.0 - settled + beyond), WIDEST)
    return MachineEffect(
        job.device, job.count, "compute", math.exp(log), spread,
        on_device or len(found), here=bool(on_device),
    )  # fmt: skip


def _scatter(found: Sequence[Residual]) -> dict[str, float]:
    """[log^2] by machine, how far its runs are from each other: what they do not have in common.

    Formula: (1.48 x median distance from the median)^2, the variance of a normal sample without
    its outliers. Few runs show none.
    """
    shown: dict[str, float] = {}
    for machine in {own.machine for own in found}:
        logs = np.asarray([own.log for own in found if own.machine == machine])
        apart = float(np.median(np.abs(logs - np.median(logs))))
        shown[machine] = (1.48 * apart) ** 2 if len(logs) >= AGREEING else 0.0
    return shown


def _in_common(one: Residual, other: Residual) -> float:
    """Share of the variance that both have. Runs of another training code have nothing."""
    if one.stack != other.stack:
        return 0.0
    same = {
        "stack": True,
        "device": one.device == other.device,
        "machine": one.machine == other.machine,
        "method": one.device == other.device and one.method == other.method,
        "shape": one.device == other.device and one.shape == other.shape,
    }
    return sum(share for name, share in SHARES.items() if same[name])


def residual_of_run(run: PastRun, price: Price) -> Residual:
    """The residual of a past run. Raises Refused."""
    inside = run.saves / run.steps if run.steps else 0.0
    return residual_of(run.id, case_of_run(run), NOISE[run.grade], price, inside)


def pace(factor: float) -> str:
    """A factor of seconds in words: "1.31 times faster than modelled"."""
    if abs(math.log(factor)) < math.log(1.01):
        return "as fast as modelled"
    return (
        f"{max(factor, 1 / factor):.2f} times {'faster' if factor < 1 else 'slower'} than modelled"
    )
