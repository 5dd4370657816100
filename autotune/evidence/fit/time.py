"""The time model's constants, fitted on measured steps in one go.

    log(measured) = log(model(constants))
                    + offset of generation + of device + of stack + of kernels + source + error

A measured step is held as the physical terms that price a candidate, so what is fitted is what is
used. Every constant has a weak prior at a hand estimate, every offset one at zero (so few rows move
it little); doubtful rows are bounded by a robust loss instead of being picked out by hand. A group
(source, model, GPU, task, with or without partners, kernels) weighs one row, however many it has.

What a source adds (its machines and habits) is an effect of its own, wider than a device's: where
one source alone speaks of a device, most of what its rows differ by stays with the source.

No measured row has torch.compile on. How far steps scatter beyond this: `spreads`.
Source: `least_squares` for the method; Gelman & Hill, "Data Analysis Using Regression" (2007),
chapter 12, for shrinkage by priors.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.cost.columns import Component, tabulate
from autotune.cost.constants import Constants, Fitted, Offset, Offsets, Spreads, levels_of
from autotune.cost.spread.uncertainty import residual_features
from autotune.cost.spread.unsaid import Sides, total
from autotune.cost.time import collectives, compute, data
from autotune.cost.time.optimizer import OptimizerTerms, optimizer_terms
from autotune.cost.time.step_terms import StepTerms, step_terms
from autotune.domain.candidates import by_job
from autotune.evidence.fit.least_squares import Effects, minimise
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from autotune.cost.columns import Columns, FloatArray, Outputs
    from autotune.cost.time.collectives import Communication
    from autotune.domain.candidates import Candidates
    from autotune.domain.job import Job
    from autotune.evidence.cases import MeasuredCase


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """What each fitted spread of `cost.constants.Spreads` is multiplied by. Shapes: [n]."""

    residual: FloatArray
    issuing: FloatArray  # 1 here: the share depends on the constants
    quantised: FloatArray
    mixture: FloatArray
    ragged: FloatArray
    sharded: FloatArray
    source: FloatArray  # of several GPUs
    alone_fast: FloatArray  # of one


def _features(job: Job, columns: Columns) -> Features:
    return Features(**residual_features(job, columns, np.ones(columns.rows)))


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredSteps:
    """Terms of measured optimizer steps before the fitted constants. Arrays: [n]."""

    cases: tuple[MeasuredCase, ...]
    terms: StepTerms
    optimizer: OptimizerTerms
    links: Communication
    features: Features
    unsaid: Sides  # what nobody says of the run
    batch_s: FloatArray  # one loader's work for a micro-batch
    workers: FloatArray
    accumulation: FloatArray
    seconds: FloatArray  # measured

    def __len__(self) -> int:
        return len(self.cases)

    def under(self, c: Constants) -> PlainSteps:
        """The steps' parts under the constants, before any offset: most of what pricing takes."""
        seconds = self.terms.seconds(c)
        per_micro, per_step = self.links.exposed(c, seconds["micro_step_s"])
        once = self.optimizer.seconds(c) + per_step
        return PlainSteps(self, seconds["micro_step_s"], seconds["roofline_s"], per_micro, once)

    def predict(self, c: Constants, factor: FloatArray) -> FloatArray:
        """[n, s] one optimizer step under the constants. factor: of every step's offsets."""
        return self.under(c).times(factor)

    def of(self, cases: Sequence[MeasuredCase]) -> MeasuredSteps:
        """The steps of these cases, in their order; of those that are not here taken anew."""
        here = {id(case): place for place, case in enumerate(self.cases)}
        more = [case for case in cases if id(case) not in here]
        every = _together([self, measured_steps(more)]) if more else self
        here |= {id(case): place for place, case in enumerate(every.cases)}
        return every.take(np.asarray([here[id(case)] for case in cases], np.intp))

    def take(self, where: np.ndarray) -> MeasuredSteps:
        """The steps at the places `where` (indices or a mask)."""
        index = np.flatnonzero(where) if where.dtype == np.bool_ else where
        return MeasuredSteps(
            tuple(self.cases[i] for i in index),
            _taken(self.terms, index),
            _taken(self.optimizer, index),
            _taken(self.links, index),
            _taken(self.features, index),
            _taken(self.unsaid, index),
            self.batch_s[index],
            self.workers[index],
            self.accumulation[index],
            self.seconds[index],
        )


@dataclass(frozen=True, slots=True, eq=False)
class PlainSteps:
    """Parts of measured steps under some constants, in seconds. Arrays: [n]."""

    steps: MeasuredSteps
    micro_s: FloatArray  # of a micro-step by itself
    roofline_s: FloatArray
    exposed_s: FloatArray  # of communication, a micro-step
    once_s: FloatArray  # a step: the optimizer, and communication

    def times(self, factor: FloatArray) -> FloatArray:
        """[n, s] one optimizer step, with each step's offsets."""
        own = self.steps
        micro = np.maximum(self.micro_s * factor, self.roofline_s)
        busy = micro + self.exposed_s * factor
        wait = data.wait_s(busy_s=busy, batch_s=own.batch_s, workers=own.workers)
        total: FloatArray = own.accumulation * (busy + wait) + self.once_s * factor
        return total


def _taken(block: Any, index: np.ndarray) -> Any:  # noqa: ANN401 - any block of equal arrays
    return type(block)(**{f.name: getattr(block, f.name)[index] for f in fields(block)})


def _joined(blocks: list[Any]) -> Any:  # noqa: ANN401 - any block of equal arrays
    names = [f.name for f in fields(blocks[0])]
    return type(blocks[0])(
        **{name: np.concatenate([getattr(block, name) for block in blocks]) for name in names}
    )


def _together(parts: list[MeasuredSteps]) -> MeasuredSteps:
    """The steps of all parts, one part after the other."""
    made: dict[str, Any] = {"cases": tuple(case for part in parts for case in part.cases)}
    for name in (f.name for f in fields(MeasuredSteps) if f.name not in made):
        blocks = [getattr(part, name) for part in parts]
        plain = isinstance(blocks[0], np.ndarray)
        made[name] = np.concatenate(blocks) if plain else _joined(blocks)
    return MeasuredSteps(**made)


def measured_steps(cases: Sequence[MeasuredCase]) -> MeasuredSteps:
    """Terms of the cases' steps, in the order of the cases. Raises ValueError without cases."""
    if not cases:
        msg = "no measured step to take terms of"
        raise ValueError(msg)
    order: list[int] = []
    terms: list[StepTerms] = []
    steps: list[OptimizerTerms] = []
    links: list[Communication] = []
    features: list[Features] = []
    unsaid: list[Sides] = []
    batches: list[FloatArray] = []
    for places, candidates in by_job(cases):
        job = cases[places[0]].job
        order.extend(places)
        terms.append(_of_rows(step_terms, job, candidates))
        steps.append(_of_rows(optimizer_terms, job, candidates))
        links.append(_of_rows(collectives.communication, job, candidates))
        features.append(_of_rows(_features, job, candidates))
        unsaid.append(_of_rows(total, job, candidates))
        batches.append(tabulate(data.COMPONENT, job, candidates).gather("batch_s"))
    back = np.argsort(np.asarray(order))
    return MeasuredSteps(
        tuple(cases),
        _taken(_joined(terms), back),
        _taken(_joined(steps), back),
        _taken(_joined(links), back),
        _taken(_joined(features), back),
        _taken(_joined(unsaid), back),
        np.concatenate(batches)[back],
        np.asarray([float(case.config.num_dataloader_workers) for case in cases]),
        np.asarray([_accumulation(case) for case in cases]),
        np.asarray([case.step_time_s or np.nan for case in cases]),
    )


def _accumulation(case: MeasuredCase) -> float:
    return case.job.global_batch_size / (case.config.micro_batch_size * case.offer.count)


_READS = tuple(dict.fromkeys((*compute.READS, *collectives.READS)))


def _of_rows(function: Callable[[Job, Columns], Any], job: Job, candidates: Candidates) -> Any:  # noqa: ANN401 - whichever block of terms the function makes
    """What a function of (job, columns) makes, one entry a candidate."""
    held: list[Any] = []

    def hold(own: Job, columns: Columns) -> Outputs:
        held.append(function(own, columns))
        return {}

    table = tabulate(Component("terms", _READS, hold), job, candidates)
    return _taken(held[0], table.row_of)


# Priors: hand estimate and standard deviation on the fitting scale (logit of shares, else log).
# Shares: what kernels reach inside a step of the rates measured alone. Launches: 5 ms a layer of a
# checkpointed eager LoRA step. The Trainer's own work: 10 ms a micro-step on servers of 2020.
SHARES = {
    "gemm_share": (0.92, 0.5), "attention_share": (0.85, 0.5),
    "attention_backward_share": (0.85, 0.3), "bandwidth_share": (0.8, 0.5),
}  # fmt: skip
OVERHEADS = {
    "launch_forward_s": (30e-6, 0.3), "launch_backward_s": (30e-6, 0.3),
    "micro_step_overhead_s": (12e-3, 0.3), "fsdp_unit_s": (1.7e-3, 0.7),
    "zero3_module_s": (0.2e-3, 0.3), "dequantise_instructions": (60.0, 0.5),
    "overlap_power": (1.6, 0.2), "exchange_overlap": (2.0, 0.3),
}  # fmt: skip
NAMES = (*SHARES, *OVERHEADS)
OPTIMIZER_OVERHEAD_S = 5e-3  # set: no row separates it from a micro-step's overhead
REFERENCE = {
    "generation": "ampere", "device": "a100-sxm4-80gb", "stack": "hf", "kernels": "eager",
}  # fmt: skip
# Priors of the effects: how far generations, devices and stacks differ beyond their terms, and how
# far sources do: the rms of means of sources left out is 0.17.
OFFSET_SD, SOURCE_SD = 0.10, 0.20
SOURCE = "source"
ROW_SD = 0.08  # error of one group, beyond which the loss turns linear
RAGGED_WEIGHT = 0.6  # of rows whose lengths are a distribution: their tokens are inferred


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Constants and offsets with their covariance on the fitting scale."""

    constants: Constants
    offsets: Offsets
    names: tuple[str, ...]
    covariance: FloatArray
    x: FloatArray  # of `names`, on the fitting scale
    programs: dict[str, int]  # sources with steps, by training stack
    devices: dict[str, int]  # the same, by device

    def log_offset(self, case: MeasuredCase) -> float:
        """Sum of the case's offsets; those of levels without rows are zero."""
        found = (self.offsets[e].get(level) for e, level in levels_of_case(case).items())
        return sum(offset.log_factor for offset in found if offset)

    def predict(self, steps: MeasuredSteps) -> FloatArray:
        """[n, s] the steps as predicted."""
        factor = np.exp([self.log_offset(case) for case in steps.cases])
        return steps.predict(self.constants, factor)

    def fitted(self, spreads: Spreads) -> Fitted:
        """As the cost model reads it."""
        return Fitted(
            self.constants,
            spreads,
            self.offsets,
            self.names,
            self.covariance,
            observed={},
            programs=self.programs,
            devices=self.devices,
        )


def levels_of_case(case: MeasuredCase) -> dict[str, str]:
    """The level of every effect that the case has."""
    device = case.offer.device
    return levels_of(device.name, case.job.software, device.architecture)


def fit_key(case: MeasuredCase) -> Hashable:
    """The group whose rows weigh one row together."""
    return (case.group, case.offer.count > 1, case.job.software.kernels)


def _weights(steps: MeasuredSteps) -> FloatArray:
    """[n] weights of the residuals: one over the root of the group's rows."""
    sizes: dict[Hashable, int] = {}
    for case in steps.cases:
        sizes[fit_key(case)] = sizes.get(fit_key(case), 0) + 1
    own = np.asarray([1.0 / math.sqrt(sizes[fit_key(case)]) for case in steps.cases])
    return own * np.where(steps.features.ragged > 0, RAGGED_WEIGHT, 1.0)


def _decode(x: FloatArray) -> Constants:
    values = {}
    for name, value in zip(NAMES, x, strict=True):
        own = 1.0 / (1.0 + math.exp(-value)) if name in SHARES else math.exp(value)
        values[name] = own
    return Constants(optimizer_overhead_s=OPTIMIZER_OVERHEAD_S, **values)


def settled(found: Fit) -> dict[str, float]:
    """By constant, the share of its prior's spread that the rows took away: 0 is the prior."""
    spread = np.sqrt(np.diag(found.covariance))
    before = {name: sd for name, (_, sd) in (*SHARES.items(), *OVERHEADS.items())}
    own = dict(zip(found.names, spread, strict=True))
    return {name: 1.0 - float(own[name]) / sd for name, sd in before.items()}


def _prior() -> tuple[FloatArray, FloatArray]:
    mean = [math.log(v / (1.0 - v)) for v, _ in SHARES.values()]
    mean += [math.log(v) for v, _ in OVERHEADS.values()]
    return np.asarray(mean), np.asarray([sd for _, sd in (*SHARES.values(), *OVERHEADS.values())])


def _design(cases: Sequence[MeasuredCase]) -> tuple[list[tuple[str, str]], FloatArray]:
    """Levels that have an effect, and [n, levels] which of them each case has."""
    pairs = [
        {p for p in levels_of_case(case).items() if REFERENCE[p[0]] != p[1]}
        | {(SOURCE, case.group[0])}
        for case in cases
    ]
    levels = sorted(set().union(*pairs))
    design = np.asarray([[float(level in own) for level in levels] for own in pairs])
    return levels, design.reshape(len(cases), len(levels))


def fit(steps: MeasuredSteps, near: Fit | None = None) -> Fit:
    """Constants and offsets at the least robust squares of log(predicted / measured).

    near: a fit of nearly the same steps, to begin at.
    """
    levels, design = _design(steps.cases)
    weights, measured = _weights(steps) / ROW_SD, np.log(steps.seconds)
    mean, sd = _prior()
    p = len(NAMES)

    @lru_cache(maxsize=1)  # most derivatives are those of offsets, under the same constants
    def under(constants: bytes) -> PlainSteps:
        return steps.under(_decode(np.frombuffer(constants)))

    def residuals(constants: FloatArray, offset: FloatArray) -> FloatArray:
        predicted = under(constants.tobytes()).times(np.exp(offset))
        own: FloatArray = weights * (np.log(predicted) - measured)
        return own

    every = (*NAMES, *(f"{effect}:{level}" for effect, level in levels))
    prior = np.concatenate((mean, np.zeros(len(levels))))
    spreads = np.concatenate((sd, [SOURCE_SD if e == SOURCE else OFFSET_SD for e, _ in levels]))
    known = {} if near is None else dict(zip(near.names, near.x, strict=True))
    start = np.asarray([known.get(name, own) for name, own in zip(every, prior, strict=True)])
    found = minimise(Effects(residuals, design, p), prior, spreads, start)
    offsets: Offsets = {e: {level: Offset(0.0, 0.0)} for e, level in REFERENCE.items()}
    spread = np.sqrt(np.diag(found.covariance))
    kept = [i for i, (effect, _) in enumerate(levels) if effect != SOURCE]
    for i in kept:
        effect, level = levels[i]
        offsets[effect][level] = Offset(float(found.x[p + i]), float(spread[p + i]))
    places = [*range(p), *(p + i for i in kept)]
    names, own = tuple(every[i] for i in places), np.ix_(places, places)
    return Fit(
        _decode(found.x[:p]), offsets, names, found.covariance[own], found.x[places],
        _sources_by(steps.cases, lambda case: case.job.software.stack),
        _sources_by(steps.cases, lambda case: case.offer.device.name),
    )  # fmt: skip


def _sources_by(
    cases: Sequence[MeasuredCase], name: Callable[[MeasuredCase], str]
) -> dict[str, int]:
    """How many sources have cases of each name."""
    pairs = {(name(case), case.group[0]) for case in cases}
    return dict(sorted(Counter(own for own, _ in pairs).items()))
