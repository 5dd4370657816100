"""How far candidates may be off together: each cause of uncertainty, and who shares it.

    Var(log d_i)         = sum over causes of loading_i^2
    Var(log d_i / d_j)   = sum over causes of (loading_i - loading_j)^2

A loading is how many log standard deviations of a cause the candidate's duration moves with it. A
cause is shared by candidates that have the same key of it, so that what is unknown of the job, of
the device or of the fitted constants cancels between two candidates as far as both feel it alike,
and what is a candidate's own does not.

Covers: the fitted constants by their covariance, offsets of device, stack and kernels, lengths,
padding, unmeasured knobs, scatter of steps, the other components of the bill, interruptions.
Source: derived: first-order error propagation.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.bill import component_seconds, duration_log_sd
from autotune.cost.columns import Component, tabulate
from autotune.cost.constants import fitted
from autotune.cost.spread.gradient import log_gradient
from autotune.cost.spread.uncertainty import variances
from autotune.cost.spread.unsaid import LENGTHS
from autotune.cost.time import compute
from autotune.cost.time.step_terms import step_terms
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping, Sequence

    from autotune.cost.bill import Bill
    from autotune.cost.columns import Columns, FloatArray, Outputs, Table
    from autotune.domain.job import Job

# Log sd by which a configuration differs from what the others of its job on its device are off by.
# Measured: the robust scatter of predicted over measured steps within one source, model, device and
# length, median of 21 such groups with four rows or more: 0.03 to 0.12 in most, 0.07 in the middle.
OWN_SCATTER = 0.07
PROGRAM = "stack"  # one of the causes that all candidates share
SCATTER, OWN, CONSTANTS, DEVICE, COMPILE, LUCK = (
    "scatter", "own", "constants", "device", "compile", "luck"
)  # fmt: skip
FASTER = "faster"  # in the key of a cause that makes no run slower
STEP = frozenset({SCATTER, OWN, CONSTANTS, DEVICE, PROGRAM, "kernels", "variant", "layers"})
_SETTINGS = ("compile", "compile_scope", "precision", "attention", "kernels")
_SLOPE = "slope:"

Key = tuple["Hashable", ...]  # the cause's name first, then whom it is shared with


@dataclass(frozen=True, slots=True)
class Loadings:
    """One candidate's loadings by cause and sharer."""

    of: Mapping[Key, float]

    def variance(self, without: Collection[str] = ()) -> float:
        """Of the log of the duration; without: causes that are known by then."""
        return sum(value**2 for key, value in self.of.items() if key[0] not in without)

    def by_cause(self) -> dict[str, float]:
        """Variance of each cause."""
        found: dict[str, float] = {}
        for key, value in self.of.items():
            name = str(key[0])
            found[name] = found.get(name, 0.0) + value**2
        return found


def sides_of_difference(one: Loadings, other: Loadings) -> tuple[float, float]:
    """Log standard deviations of the duration of `other` over that of `one`: lower and higher.

    A cause that can only make runs faster moves the ratio to the side of whoever feels it more.
    """
    keys = one.of.keys() | other.of.keys()
    apart = [(FASTER in key, other.of.get(key, 0.0) - one.of.get(key, 0.0)) for key in keys]
    lower = math.fsum(each**2 for alone, each in apart if not (alone and each < 0))
    higher = math.fsum(each**2 for alone, each in apart if not (alone and each > 0))
    return math.sqrt(lower), math.sqrt(higher)


def difference_log_sd(one: Loadings, other: Loadings) -> float:
    """Log standard deviation of the ratio of two candidates' durations."""
    keys = one.of.keys() | other.of.keys()
    return math.sqrt(math.fsum((one.of.get(k, 0.0) - other.of.get(k, 0.0)) ** 2 for k in keys))


def loadings(bill: Bill, at: Sequence[int]) -> list[Loadings]:
    """The loadings of the candidates at `at`; each one's variance is that of its interval."""
    places = np.asarray(at, np.intp)
    if not len(places):
        return []
    seconds = component_seconds(bill, places)
    duration = np.maximum(bill.duration_s[places], 1e-9)
    total = duration_log_sd(bill, places) ** 2
    one = bill.take(places, bill.job)
    causes = tabulate(_CAUSES, bill.job, one.candidates)
    found = []
    for row, index in enumerate(at):
        own: dict[Key, float] = {}
        offer = one.candidates.offer(row)
        for name, of_component in seconds.items():
            share = float(of_component[row] / duration[row])
            sd = bill.at(name, "log_sd", int(index))
            if name == "compute":
                own |= _of_step(one, row, sd, causes, share)
            elif sd > 0:
                whom = (offer.device.name, offer.count) if name == "collectives" else (
                    offer.device.name,)  # fmt: skip
                own[name, *whom] = share * sd
        luck = float(total[row]) - sum(value**2 for value in own.values())
        if luck > 0:
            own[LUCK, offer.label, int(index)] = math.sqrt(luck)
        found.append(Loadings(own))
    return found


def _of_step(bill: Bill, row: int, sd: float, causes: Table, share: float) -> dict[Key, float]:
    """Loadings of the training step, whose log sd is given; their squares sum to it."""
    device = bill.candidates.offer(row).device.name
    step = int(bill.tables["compute"].row_of[row])
    known = {
        name: float(values[causes.row_of[row]])
        for name, values in causes.outputs.items()
        if not name.startswith(_SLOPE)
    }
    if bill.basis != "modelled":  # measured steps stand for all but the knobs that nobody measured
        kept = min(bill.at("compute", "knob_log_sd", row) ** 2, sd**2)
        known = {COMPILE: kept, SCATTER: sd**2 - kept}
    left = sd**2 - sum(known.values())
    if left > 0:  # what fused kernels gain
        known[COMPILE] = known.get(COMPILE, 0.0) + left
    scatter = known.pop(SCATTER, 0.0)
    own = min(OWN_SCATTER**2, scatter)
    settings = tuple(bill.candidates.value(name, row) for name in _SETTINGS)
    found: dict[Key, float] = {
        (SCATTER, device): math.sqrt(scatter - own),
        (OWN, device, step): math.sqrt(own),
        (COMPILE, *settings): math.sqrt(known.pop(COMPILE, 0.0)),
        (DEVICE, device): math.sqrt(known.pop(DEVICE, 0.0)),
    }
    found |= _of_constants(causes, row, known.pop(CONSTANTS, 0.0))
    alone = () if bill.job.lengths.known else (FASTER,)  # rows that nobody knows are shorter
    found |= {
        (name, *(alone if name == LENGTHS else ())): math.sqrt(value)
        for name, value in known.items()
    }
    sum_of = sum(value**2 for value in found.values())
    scale = share * (sd / math.sqrt(sum_of) if sum_of > 0 else 0.0)
    return {key: value * scale for key, value in found.items() if value}


def _of_constants(causes: Table, row: int, variance: float) -> dict[Key, float]:
    """Signed loadings of independent directions of the constants' covariance."""
    if variance <= 0:
        return {}
    model = fitted()
    slopes = np.asarray([
        float(causes.outputs[_SLOPE + name][causes.row_of[row]])
        if _SLOPE + name in causes.outputs else 0.0
        for name in model.names
    ])  # fmt: skip
    values, directions = _directions()
    parts = model.spreads.known * (slopes @ directions) * np.sqrt(np.maximum(values, 0.0))
    return {(CONSTANTS, number): float(part) for number, part in enumerate(parts) if part}


@lru_cache(maxsize=1)
def _directions() -> tuple[FloatArray, FloatArray]:
    """Variances and independent directions of the constants' covariance."""
    values, directions = np.linalg.eigh(fitted().covariance)
    return values, directions


def _price(job: Job, columns: Columns) -> Outputs:
    """[rows] variance of a step by its cause, and its slope by every fitted constant."""
    terms = step_terms(job, columns)
    own = variances(job, columns, terms)
    scatters = [value for name, value in own.items() if name.endswith(" scatter")]
    found: dict[str, FloatArray] = {
        name: value for name, value in own.items() if not name.endswith(" scatter")
    }
    found[SCATTER] = np.sum(scatters, axis=0) if scatters else np.zeros(columns.rows)
    slopes = log_gradient(terms, fitted().constants)
    return found | {_SLOPE + name: value for name, value in slopes.items()}


_CAUSES = Component("causes", compute.READS, _price)
