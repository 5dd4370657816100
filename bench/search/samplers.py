"""One study of one simulated machine by each method, and what it recommends after every probe."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import optuna

from autotune.search.posterior.stopping import ProbeBudget, judged, remaining
from autotune.search.priced import MEMORY
from autotune.search.study.calibrated import CalibratedSampler
from autotune.search.study.samplers import sampler_maker
from bench.search.rivals import RIVALS

if TYPE_CHECKING:
    from bench.search.hidden import Hidden

WARM = 8  # predicted-best configurations that a warm-started sampler is given first
STOCK = {"random": "random", "tpe": "tpe", "tpe_warm": "tpe", "gp_warm": "gp", "nsga2": "nsga2"}
OOM_VIOLATION = 0.1  # of the memory constraint, when all that is known is that it did not fit
HOLE = 2.0  # times the dearest: the value of parameters that are no candidate
MOST_ASKED = 30  # such parameters for each probe, before they count as one
FREE = ProbeBudget(0.0, free=True)
Measured = dict[str, float] | None


@dataclass(frozen=True, slots=True)
class Ran:
    """One study. curve: regret of the recommendation after every probe. ooms: out of memory.

    bounds: what it said after every probe, of how much better any candidate may be, as a share;
    None before it could say anything. stop: the probe after which it would have ended by itself;
    None where it went on. seconds: of computing that the study took.
    """

    curve: list[float]
    ooms: int
    bounds: list[float | None] = field(default_factory=list)
    stop: int | None = None
    seconds: float = field(default=0.0, compare=False)

    def holds(self, after: int) -> bool:
        """Whether nothing was better than the recommendation by more than the bound."""
        bound, regret = self.bounds[after - 1], self.curve[after - 1]
        return bound is not None and 1.0 - 1.0 / (1.0 + regret) <= bound + 1e-9


def study_of(machine: Hidden, method: str, probes: int, seed: int) -> Ran:
    """What a method recommends after every probe of a machine."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if method in RIVALS:
            return _rival(machine, method, probes, seed)
        if method == "calibrated":
            return _calibrated(machine, probes)
        return _stock(machine, method, probes, seed)


def distributions(machine: Hidden) -> dict[str, Any]:
    """Positions of ordinal knobs, words of the others."""
    return {
        name: optuna.distributions.IntDistribution(0, levels - 1)
        if isinstance(levels, int)
        else optuna.distributions.CategoricalDistribution(levels)
        for name, levels in machine.levels.items()
    }


def tell(study: optuna.Study, trial: optuna.Trial, machine: Hidden, index: int) -> Measured:
    """Probe a candidate and tell the study, in the form that every sampler understands.

    Out of memory: infeasible, with the predicted cost as value, since a penalty far above the rest
    would spoil the scale that a Gaussian process of the objective fits.
    """
    measured = machine.probe(index)
    if measured is None:
        trial.set_user_attr("oom", value=True)
        trial.set_constraint("memory", OOM_VIOLATION)
        study.tell(trial, float(machine.predicted_cost[index]))
        return None
    trial.set_user_attr("measured", measured)
    trial.set_constraint("memory", measured[MEMORY] / float(machine.limit[index]) - 1.0)
    study.tell(trial, machine.measured_cost(index, measured))
    return measured


def _calibrated(machine: Hidden, probes: int) -> Ran:
    space = distributions(machine)
    sampler = CalibratedSampler(machine, space)
    study = optuna.create_study(sampler=sampler)
    curve: list[float] = []
    bounds: list[float | None] = []
    ooms, stop = 0, None
    for number in range(1, probes + 1):
        trial = study.ask(space)
        index = machine.find(trial.params)
        if index is None:
            break
        ooms += tell(study, trial, machine, index) is None
        posterior = sampler.posterior(study)
        curve.append(machine.regret(posterior.pick()))
        known = posterior.incumbent is not None
        left = remaining(posterior)
        bounds.append(left.bound if known else None)
        proposal = sampler.proposal(posterior)
        if stop is None and known and judged(posterior, proposal, FREE, left=left):
            stop = number
    return Ran(curve, ooms, bounds, stop)


def _stock(machine: Hidden, method: str, probes: int, seed: int) -> Ran:
    space = distributions(machine)
    make = sampler_maker(STOCK[method], seed)
    study = optuna.create_study(sampler=make(0))
    if method.endswith("_warm"):
        order = machine.order()
        for _ in range(WARM):
            study.enqueue_trial(machine.params(next(order)))
    curve: list[float] = []
    ooms = asked = 0
    best: tuple[float, int | None] = (float("inf"), None)
    while len(curve) < probes:
        study.sampler = make(asked)
        trial = study.ask(space)
        index = machine.find(trial.params)
        asked += 1
        if index is None and asked < MOST_ASKED * probes:  # a hole of the product: no probe
            trial.set_constraint("memory", 1.0)
            study.tell(trial, HOLE * float(machine.predicted_cost.max()))
            continue
        measured = None if index is None else tell(study, trial, machine, index)
        if index is None or measured is None:
            ooms += 1
        else:
            best = min(best, (machine.measured_cost(index, measured), index), key=lambda b: b[0])
        curve.append(machine.regret(best[1]))
    return Ran(curve, ooms)


def _rival(machine: Hidden, method: str, probes: int, seed: int) -> Ran:
    curve: list[float] = []
    ooms = 0
    best: tuple[float, int | None] = (float("inf"), None)
    asked = RIVALS[method](machine, seed)
    index = next(asked)
    while len(curve) < probes:
        measured = machine.probe(index)
        if measured is None:
            ooms += 1
        else:
            best = min(best, (machine.measured_cost(index, measured), index), key=lambda b: b[0])
        curve.append(machine.regret(best[1]))
        try:
            index = asked.send(measured)
        except StopIteration:
            break
    return Ran(curve + [curve[-1]] * (probes - len(curve)), ooms)
