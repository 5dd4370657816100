"""One study of one simulated machine by each method, and what it recommends after every probe."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import optuna

from autotune.search.priced import MEMORY
from autotune.search.study.calibrated import CalibratedSampler
from autotune.search.study.samplers import sampler_maker

if TYPE_CHECKING:
    from collections.abc import Generator

    from bench.simulated import Machine

WARM = 8  # predicted-best configurations that a warm-started sampler is given first
STOCK = {"random": "random", "tpe": "tpe", "tpe_warm": "tpe", "gp_warm": "gp", "nsga2": "nsga2"}
OOM_VIOLATION = 0.1  # of the memory constraint, when all that is known is that it did not fit
Measured = dict[str, float] | None


def study_curve(machine: Machine, method: str, probes: int, seed: int) -> tuple[list[float], int]:
    """The regret of the recommendation after every probe, and the probes out of memory."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if method == "ladder":
            return _climb(machine, probes)
        if method == "calibrated":
            return _calibrated(machine, probes)
        return _stock(machine, method, probes, seed)


def distributions(machine: Machine) -> dict[str, Any]:
    """Positions of ordinal knobs, words of the others."""
    return {
        name: optuna.distributions.IntDistribution(0, len(d.levels) - 1)
        if d.ordinal
        else optuna.distributions.CategoricalDistribution(d.levels)
        for name, d in machine.grid.dimensions.items()
    }


def tell(study: optuna.Study, trial: optuna.Trial, machine: Machine, index: int) -> Measured:
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


def _calibrated(machine: Machine, probes: int) -> tuple[list[float], int]:
    space = distributions(machine)
    sampler = CalibratedSampler(machine, space)
    study = optuna.create_study(sampler=sampler)
    curve, ooms = [], 0
    for _ in range(probes):
        trial = study.ask(space)
        index = machine.find(trial.params)
        if index is None:
            break
        ooms += tell(study, trial, machine, index) is None
        curve.append(machine.regret(sampler.posterior(study).pick()))
    return curve, ooms


def _stock(machine: Machine, method: str, probes: int, seed: int) -> tuple[list[float], int]:
    space = distributions(machine)
    make = sampler_maker(STOCK[method], seed)
    study = optuna.create_study(sampler=make(0))
    if method.endswith("_warm"):
        order = machine.order()
        for _ in range(WARM):
            study.enqueue_trial(machine.params(next(order)))
    curve: list[float] = []
    ooms = 0
    best: tuple[float, int | None] = (float("inf"), None)
    for number in range(probes):
        study.sampler = make(number)
        trial = study.ask(space)
        index = machine.find(trial.params)
        assert index is not None  # noqa: S101 - the product of the knobs has no holes
        measured = tell(study, trial, machine, index)
        if measured is None:
            ooms += 1
        else:
            best = min(best, (machine.measured_cost(index, measured), index), key=lambda b: b[0])
        curve.append(machine.regret(best[1]))
    return curve, ooms


def _climb(machine: Machine, probes: int) -> tuple[list[float], int]:
    """The hand-made ladder, probe by probe."""
    curve: list[float] = []
    ooms = 0
    best: tuple[float, int | None] = (float("inf"), None)
    steps = ladder(machine)
    params = next(steps)
    for _ in range(probes):
        index = machine.find(params)
        assert index is not None  # noqa: S101 - as above
        measured = machine.probe(index)
        cost = None if measured is None else machine.measured_cost(index, measured)
        ooms += cost is None
        if cost is not None:
            best = min(best, (cost, index), key=lambda b: b[0])
        curve.append(machine.regret(best[1]))
        try:
            params = steps.send(cost)
        except StopIteration:
            break
    return curve + [curve[-1]] * (probes - len(curve)), ooms


Params = dict[str, Any]


def ladder(machine: Machine) -> Generator[Params, float | None, None]:
    """What people do: raise the micro-batch until it does not fit, then one knob at a time.

    Save memory first when not even one row fits. Each knob keeps its best value before the next is
    tried; cards come last. Sends back the cost of each configuration, None for out of memory.
    """
    now: Params = {
        "gpu": machine.grid.dimensions["gpu"].levels[0], "precision": "bf16", "micro_batch": 0,
        "workers": 3, "interval": 2, "compile": "off", "checkpointing": 0, "attention": "sdpa",
        "packing": "off", "optimizer": "fused",
    }  # fmt: skip
    cost = yield now
    for saving in ({"checkpointing": 2}, {"optimizer": "adamw_8bit"}, {"optimizer": "paged_8bit"}):
        if cost is not None:
            break
        now = {**now, **saving}
        cost = yield now
    best = float("inf") if cost is None else cost
    now, best = yield from _raise(machine, now, best)
    toggles: list[tuple[str, list[Any]]] = [
        ("attention", ["flash", "eager"]), ("compile", ["on"]), ("packing", ["on"]),
        ("checkpointing", [0, 1, 2]), ("optimizer", ["fused", "adamw_8bit", "paged_8bit", "adamw"]),
        ("precision", ["fp16", "tf32"]), ("workers", [2, 4, 5, 1, 0]), ("interval", [3, 1, 4, 0]),
        ("gpu", list(machine.grid.dimensions["gpu"].levels)),
    ]  # fmt: skip
    while True:
        before = best
        for knob, values in toggles:
            start = now
            for value in values:
                if value != start[knob]:
                    cost = yield {**start, knob: value}
                    if cost is not None and cost < best:
                        now, best = {**start, knob: value}, cost
        now, best = yield from _raise(machine, now, best)
        if best == before:
            return


def _raise(
    machine: Machine, now: Params, best: float
) -> Generator[Params, float | None, tuple[Params, float]]:
    """Double the micro-batch until it does not fit or gets no better."""
    top = len(machine.grid.dimensions["micro_batch"].levels) - 1
    while now["micro_batch"] < top:
        larger = {**now, "micro_batch": now["micro_batch"] + 1}
        cost = yield larger
        if cost is None or cost >= best:
            break
        now, best = larger, cost
    return now, best
