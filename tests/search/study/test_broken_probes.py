"""Probes that broke before any ran: what the sampler asks for next."""

from __future__ import annotations

from typing import Any

import optuna
import pytest

from autotune.search.study.calibrated import CalibratedSampler
from bench.search.samplers import distributions, tell
from bench.search.simulated import Grid, Machine

optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine(Grid.of(1), 4, 0.1)


def asked(machine: Machine, study: optuna.Study) -> optuna.Trial:
    space = distributions(machine)
    study.sampler = CalibratedSampler(machine, space)  # as after a restart
    return study.ask(space)


def two_broken(machine: Machine, study: optuna.Study) -> list[dict[str, Any]]:
    """The settings of two trials that were asked for and failed."""
    broken = []
    for _ in range(2):
        trial = asked(machine, study)
        broken.append(trial.params)
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
    return broken


def test_after_two_that_broke_the_next_differs_in_all_that_they_share(machine: Machine) -> None:
    study = optuna.create_study()
    broken = two_broken(machine, study)
    order = list(zip(range(2), machine.order(), strict=False))
    assert broken == [machine.params(index) for _, index in order], "one may break by chance"
    trial = asked(machine, study)
    read = {dimension.name for part in machine.parts for dimension in part.reads} - {"gpu"}
    shared = {name for name in read if broken[0][name] == broken[1][name]}
    assert len(shared) >= 6, "the model's best are much alike"
    assert all(trial.params[name] != broken[0][name] for name in shared)
    index = machine.find(trial.params)
    assert index is not None
    assert machine.predicted_memory[index] < machine.limit[index]


def test_several_workers_differ_from_what_broke_while_others_still_measure(
    machine: Machine,
) -> None:
    study = optuna.create_study()
    first = [asked(machine, study) for _ in range(8)]
    for trial in first[:2]:
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
    read = {dimension.name for part in machine.parts for dimension in part.reads} - {"gpu"}
    one, other = (trial.params for trial in first[:2])
    shared = {name for name in read if one[name] == other[name]}
    assert shared, "the two that broke have something in common"
    later = [asked(machine, study).params for _ in range(2)]
    assert all(params[name] != one[name] for params in later for name in shared)
    assert later[0] != later[1]
    assert not any(params == trial.params for params in later for trial in first)


def test_once_something_ran_what_broke_may_be_tried_in_part_again(machine: Machine) -> None:
    study = optuna.create_study()
    broken = two_broken(machine, study)
    trial = asked(machine, study)
    index = machine.find(trial.params)
    assert index is not None
    tell(study, trial, machine, index)
    later = asked(machine, study).params
    assert later not in [*broken, trial.params]
    assert any(later[name] == broken[0][name] == broken[1][name] for name in set(later) - {"gpu"})


def test_where_no_candidate_differs_in_anything_the_order_goes_on(machine: Machine) -> None:
    study, space = optuna.create_study(), distributions(machine)
    unlike = dict.fromkeys(space)
    order = machine.order()
    first = machine.params(next(order))
    opposite = next(
        params for index in order
        if sum((params := machine.params(index))[name] == first[name] for name in unlike) <= 1
    )  # fmt: skip
    for params in (first, opposite):
        study.enqueue_trial(params)
        study.tell(study.ask(space), state=optuna.trial.TrialState.FAIL)
    assert asked(machine, study).params not in (first, opposite)
