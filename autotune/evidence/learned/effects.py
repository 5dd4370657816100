"""What past runs say of a machine: how far the model is off there, as far as they can tell.

Each run has a residual, the logarithm of measured over predicted. What a machine or a training code
adds to every step moves the residuals of its runs together; what it does to a part of a step (its
products, memory, issuing, links, optimizer) moves those that spend their time alike; and what the
model misses of matrices of one size, in general or of one model and method, moves those of that
size. How sure that makes later answers follows from the same arithmetic:

    K_ij = stack^2 + machine^2 + method^2 + shape^2, each where i and j have it in common
           + parts^2 (shares_i' shares_j)^2 on one device
           + (size^2 + own_size^2 where method and shape are the same)
             exp(-(log tokens_i - log tokens_j)^2 / 2) on one device
    effect = k' (K + N)^-1 r;  what stays open = s (prior - k' (K + N)^-1 k)
    s = (v + r' (K + N)^-1 r) / (v + n): n runs that differ more than K + N expects widen it

N: what a run alone is off by (`OWN`), what its grade leaves open, and what two runs of one
configuration differ by, squared and added. Source: best linear prediction under correlated normal
errors whose scale is unknown (Shah, Wilson & Ghahramani, "Student-t Processes as Alternatives to
Gaussian Processes" (2014)). The spreads: most likely ones over ten sources of the record with
several runs of one machine; `python -m bench.learn` chooses them anew without each source that it
judges.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.learned import (
    STEP,
    WIDEST,
    bumps_of,
    log_error,
    pairs_of,
    step_shares,
    tokens_of,
    unsettled,
)
from autotune.cost.run_time import micro_steps
from autotune.cost.time.evaluation import ONCE_S
from autotune.domain.observation import BETWEEN_RUNS_SD, MachineEffect, StepError, value_of
from autotune.evidence.calibrate import LARGEST_FACTOR, SURPRISE
from autotune.evidence.cases import Refused
from autotune.evidence.learned.run import NOISE, case_of_run
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from autotune.cost.bill import Bill
    from autotune.cost.columns import FloatArray
    from autotune.domain.job import Job
    from autotune.evidence.cases import MeasuredCase, Price
    from autotune.evidence.learned.run import PastRun

SCALE_RUNS = 5.0  # v: runs that the scale's prior counts as


@dataclass(frozen=True, slots=True)
class Prior:
    """Log spreads of what runs have in common, and of what a run alone is off by."""

    stack: float = 0.07
    machine: float = 0.07
    method: float = 0.07
    shape: float = 0.05
    parts: float = 0.55
    size: float = 0.06
    own_size: float = 0.04
    own: float = 0.03


PRIOR = Prior()
AGREEING, AGREEMENT = 3, 0.25  # runs of one machine, and [log] how far from each other at most
MOST = math.log(6.0)  # beyond it even several runs that agree are something else than efficiency
MOST_SAVING = 0.5  # of a step's seconds that untimed saves may take
MOSTLY_SAVES = "untimed saves may take more than half of its time"
SAVES_SPREAD = 0.15  # of the checkpoint's own spread that is left where saves were timed
# Assumption: of the evaluation's own spread, where a run of such a model timed its evaluations.
EVALUATIONS_SPREAD = 0.5
LEAST_EVALUATION = 5.0  # times what any evaluation takes beside its rows: less says little of them


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
    shares: tuple[float, ...]  # of the step's seconds: `cost.learned.step_shares`
    tokens: float  # that a device computes at a time: `cost.learned.tokens_of`
    unsettled: float = 0.0  # of `sd`, what no run settles
    save_log: float | None = None
    save_bytes_per_s: float | None = None
    evaluation_log: float | None = None

    @property
    def machine(self) -> str:
        """Such as "2x h100-nvl"."""
        return f"{self.count}x {self.device}"


@dataclass(frozen=True, slots=True)
class Usable:
    """A run that teaches, where it lies, and how far it is from its prediction."""

    run: PastRun
    place: Path
    residual: Residual


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
    shares, tokens, open_still = step_of(bill, case.offer.count)
    return Residual(
        id=name,
        device=case.offer.device.name,
        count=case.offer.count,
        stack=job.software.stack,
        method=method_of(job),
        shape=shape_of(job),
        log=log,
        sd=max(float(bill.tables["compute"].gather("log_sd")[0]), NOISE["A"]),
        noise=math.hypot(noise, BETWEEN_RUNS_SD),
        shares=shares,
        tokens=tokens,
        unsettled=open_still,
        save_log=math.log(saved / expected) if saved and known else None,
        save_bytes_per_s=size / saved if saved and known else None,
        evaluation_log=_evaluation_log(case, bill),
    )


def _evaluation_log(case: MeasuredCase, bill: Bill) -> float | None:
    """ln(measured / predicted) of an evaluation; None where none was timed that tells of rows."""
    seconds = value_of(case.observations, "evaluation_s")
    expected = float(bill.tables["evaluation"].gather("once_s")[0])
    if not seconds or expected < LEAST_EVALUATION * ONCE_S:
        return None
    log = math.log(seconds / expected)
    return log if abs(log) <= MOST else None


def step_of(bill: Bill, count: int) -> tuple[tuple[float, ...], float, float]:
    """What the step of a bill's first candidate is made of, its size, and what no run settles.

    count: of its devices.
    """
    compute, links = (
        {n: a[bill.tables[name].row_of[:1]] for n, a in bill.tables[name].outputs.items()}
        for name in STEP
    )
    accumulation = micro_steps(bill.job, bill.candidates)[:1]
    shares = step_shares(compute, links, accumulation)[0]
    tokens = float(tokens_of(compute, accumulation, count)[0])
    return tuple(shares.tolist()), tokens, float(unsettled(compute)[0])


def shape_of(job: Job) -> str:
    """The network's layers and width, by which past runs are told to be of one like it."""
    return f"{job.model.num_layers}x{job.model.hidden_size}"


def method_of(job: Job) -> str:
    """What runs of one method have in common: "full-16bit"."""
    return f"{job.method.kind}-{job.method.base}"


def _wait_s(bill: Bill) -> float:
    return bill.time_parts(0).data_wait / max(float(bill.steps[0]), 1.0)


def believed(found: Sequence[Residual]) -> tuple[list[Residual], dict[str, str]]:
    """Residuals that efficiency explains, and why the others are left out, by run.

    A residual beyond a factor of two and beyond what the model itself calls likely is something
    else (another length, a busy machine), unless several runs of the machine agree on it.
    """
    kept, doubted = [], {}
    for own in found:
        usual = max(math.log(LARGEST_FACTOR), SURPRISE * own.sd)
        if abs(own.log) <= usual or (
            abs(own.log) <= MOST
            and sum(
                abs(other.log - own.log) <= AGREEMENT and other.machine == own.machine
                for other in found
            )
            >= AGREEING
        ):
            kept.append(own)
        else:
            way = "slower" if own.log > 0 else "faster"
            why = f"more than {math.exp(usual):.2g} times {way} than modelled"
            doubted[own.id] = f"{why}: other lengths, or a busy machine"
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
        near = [own for own in found if own.device == device] or found
        if not near:
            continue
        shares = tuple(np.mean([own.shares for own in near], axis=0).tolist())
        tokens = math.exp(float(np.mean([math.log(own.tokens) for own in near])))
        sd = float(np.mean([own.sd for own in near]))
        job = Residual("", device, count, stack, method, shape, 0.0, sd, 0.0, shares, tokens)
        step = effect_of(job, found)
        if step is not None:
            made += [replace(step, component=name) for name in STEP]
        own_runs = [own for own in found if own.machine == job.machine]
        alike = [o for o in own_runs if (o.stack, o.method, o.shape) == (stack, method, shape)]
        for name, spread, logs in (
            ("checkpoint", SAVES_SPREAD, [own.save_log for own in own_runs if own.save_log]),
            (
                "evaluation",
                EVALUATIONS_SPREAD,
                [own.evaluation_log for own in alike if own.evaluation_log],
            ),
        ):
            if logs:
                factor = math.exp(float(np.median(logs)))
                made.append(
                    MachineEffect(device, count, name, factor, spread, len(logs), here=True)
                )
    return tuple(made)


def effect_of(
    job: Residual, found: Sequence[Residual], prior: Prior = PRIOR
) -> MachineEffect | None:
    """The effect on steps of such a job; None where no run has anything in common with it.

    Its factor and spread are of a step of the job's shares. Runs of another training code have
    nothing in common with it.
    """
    runs = [own for own in found if own.stack == job.stack]
    if not runs:
        return None
    shares = np.asarray([own.shares for own in runs])
    covariance = covariance_of(runs, prior)
    on_device = np.asarray([[float(own.device == job.device)] for own in runs])
    parts = prior.parts**2 * on_device * pairs_of(shares)
    sizes = on_device * _sized(runs, [job], prior) * bumps_of(_tokens(runs))
    shared = np.column_stack((_levels(runs, [job], prior), parts, sizes))
    weights = np.linalg.solve(covariance, shared)
    logs = np.asarray([own.log for own in runs])
    beyond = float(logs @ np.linalg.solve(covariance, logs))
    scale = (SCALE_RUNS + beyond) / (SCALE_RUNS + len(runs))
    before = np.diag(
        [
            _levels([job], [job], prior)[0, 0],
            *[prior.parts**2] * parts.shape[1],
            *[_sized([job], [job], prior)[0, 0]] * sizes.shape[1],
        ]
    )
    step = StepError(
        tuple((logs @ weights).tolist()),
        tuple(tuple(row) for row in (scale * (before - shared.T @ weights)).tolist()),
        scale * prior.own**2 + max(scale - 1.0, 0.0) * min(own.noise for own in runs) ** 2,
    )
    log, variance = log_error(step, np.asarray([job.shares]), _tokens([job]))
    here = bool(on_device.any())
    if here:
        left = math.hypot(min(math.sqrt(variance[0]), WIDEST * job.sd), job.unsettled) / job.sd
    else:
        usual = _in_common([job], [job], prior)[0, 0] + prior.own**2
        left = min(math.sqrt(variance[0] / scale / usual), 1.0)
    return MachineEffect(
        job.device, job.count, "compute", math.exp(float(log[0])), left,
        int(on_device.sum()) or len(runs), here=here, step=step,
    )  # fmt: skip


def covariance_of(runs: Sequence[Residual], prior: Prior) -> FloatArray:
    """[runs, runs] covariance of the residuals of runs of one training code."""
    own = np.diag([prior.own**2 + each.noise**2 for each in runs])
    total: FloatArray = _in_common(runs, runs, prior) + own
    return total


def _in_common(some: Sequence[Residual], others: Sequence[Residual], prior: Prior) -> FloatArray:
    """[some, others] covariance of residuals."""
    device = _same(some, others, "device")
    alike = np.asarray([own.shares for own in some]) @ np.asarray([o.shares for o in others]).T
    sizes = bumps_of(_tokens(some)) @ bumps_of(_tokens(others)).T
    own = prior.parts**2 * alike**2 + _sized(some, others, prior) * sizes
    total: FloatArray = _levels(some, others, prior) + device * own
    return total


def _tokens(runs: Sequence[Residual]) -> FloatArray:
    return np.asarray([own.tokens for own in runs])


def _sized(some: Sequence[Residual], others: Sequence[Residual], prior: Prior) -> FloatArray:
    """[some, others] variance that runs of one size on a device have in common."""
    same = _same(some, others, "method") * _same(some, others, "shape")
    total: FloatArray = prior.size**2 + prior.own_size**2 * same
    return total


def _levels(some: Sequence[Residual], others: Sequence[Residual], prior: Prior) -> FloatArray:
    """[some, others] of it, what does not go by what a step is made of."""
    device = _same(some, others, "device")
    total: FloatArray = _same(some, others, "stack") * (
        prior.stack**2
        + prior.machine**2 * _same(some, others, "machine")
        + prior.method**2 * device * _same(some, others, "method")
        + prior.shape**2 * device * _same(some, others, "shape")
    )
    return total


def _same(some: Sequence[Residual], others: Sequence[Residual], name: str) -> FloatArray:
    one = np.asarray([getattr(own, name) for own in some])
    other = np.asarray([getattr(own, name) for own in others])
    same: FloatArray = (one[:, None] == other[None, :]).astype(np.float64)
    return same


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
