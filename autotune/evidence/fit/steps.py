"""Measured steps as the physical terms of the time model, ready to be fitted.

The same functions price a candidate and a measured step, so what is fitted is what is used.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.cost.columns import Component, tabulate
from autotune.cost.spread.uncertainty import residual_features
from autotune.cost.time import collectives, compute, data
from autotune.cost.time.optimizer import OptimizerTerms, optimizer_terms
from autotune.cost.time.step_terms import StepTerms, step_terms
from autotune.domain.candidates import Candidates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.cost.columns import Columns, FloatArray, Outputs
    from autotune.cost.constants import Constants
    from autotune.cost.time.collectives import Communication
    from autotune.domain.job import Job
    from autotune.evidence.record.case import MeasuredCase


def measured_once(cases: Sequence[MeasuredCase]) -> list[MeasuredCase]:
    """Cases with a step time, each configuration once: the newest snapshot of a source."""
    kept: dict[str, MeasuredCase] = {}
    for case in cases:
        if case.step_time_s is None or case.oom:
            continue
        own = kept.get(case.replicate_key)
        if own is None or (own.older and not case.older):
            kept[case.replicate_key] = case
    return list(kept.values())


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """What each fitted spread of `cost.constants.Spreads` is multiplied by. Shapes: [n]."""

    residual: FloatArray
    issuing: FloatArray  # 1 here: the share depends on the constants
    quantised: FloatArray
    mixture: FloatArray
    ragged: FloatArray
    sharded: FloatArray


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
    batch_s: FloatArray  # one loader's work for a micro-batch
    workers: FloatArray
    accumulation: FloatArray
    seconds: FloatArray  # measured

    def __len__(self) -> int:
        return len(self.cases)

    def predict(self, c: Constants, factor: FloatArray) -> FloatArray:
        """[n, s] one optimizer step under the constants. factor: of every step's offsets."""
        per_micro, per_step = self.links.exposed(c)
        seconds = self.terms.seconds(c)
        micro = np.maximum(seconds["micro_step_s"] * factor, seconds["roofline_s"])
        busy = micro + per_micro * factor
        wait = data.wait_s(busy_s=busy, batch_s=self.batch_s, workers=self.workers)
        once = (self.optimizer.seconds(c) + per_step) * factor
        total: FloatArray = self.accumulation * (busy + wait) + once
        return total

    def take(self, where: np.ndarray) -> MeasuredSteps:
        """The steps at the places `where` (indices or a mask)."""
        index = np.flatnonzero(where) if where.dtype == np.bool_ else where
        return MeasuredSteps(
            tuple(self.cases[i] for i in index),
            _taken(self.terms, index),
            _taken(self.optimizer, index),
            _taken(self.links, index),
            _taken(self.features, index),
            self.batch_s[index],
            self.workers[index],
            self.accumulation[index],
            self.seconds[index],
        )


def _taken(block: Any, index: np.ndarray) -> Any:  # noqa: ANN401 - any block of equal arrays
    return type(block)(**{f.name: getattr(block, f.name)[index] for f in fields(block)})


def _joined(blocks: list[Any]) -> Any:  # noqa: ANN401 - any block of equal arrays
    names = [f.name for f in fields(blocks[0])]
    return type(blocks[0])(
        **{name: np.concatenate([getattr(block, name) for block in blocks]) for name in names}
    )


def measured_steps(cases: Sequence[MeasuredCase]) -> MeasuredSteps:
    """Terms of the cases' steps, in the order of the cases. Raises ValueError without cases."""
    if not cases:
        msg = "no measured step to take terms of"
        raise ValueError(msg)
    by_job: dict[int, list[int]] = {}
    for i, case in enumerate(cases):
        by_job.setdefault(id(case.job), []).append(i)
    order: list[int] = []
    terms: list[StepTerms] = []
    steps: list[OptimizerTerms] = []
    links: list[Communication] = []
    features: list[Features] = []
    batches: list[FloatArray] = []
    for places in by_job.values():
        job = cases[places[0]].job
        candidates = Candidates.of([(cases[i].offer, cases[i].config) for i in places])
        order.extend(places)
        terms.append(_of_rows(step_terms, job, candidates))
        steps.append(_of_rows(optimizer_terms, job, candidates))
        links.append(_of_rows(collectives.communication, job, candidates))
        features.append(_of_rows(_features, job, candidates))
        batches.append(tabulate(data.COMPONENT, job, candidates).gather("batch_s"))
    back = np.argsort(np.asarray(order))
    return MeasuredSteps(
        tuple(cases),
        _taken(_joined(terms), back),
        _taken(_joined(steps), back),
        _taken(_joined(links), back),
        _taken(_joined(features), back),
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
