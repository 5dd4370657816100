"""The calibrated sampler against simulated machines, seeded."""

from __future__ import annotations

import math
import warnings
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
import pytest

from autotune.domain.errors import InputError
from autotune.search.measured.prior import PriorKey, load_residuals, save_residuals
from autotune.search.posterior.acquisition import Posterior
from autotune.search.posterior.lookahead import next_probe
from autotune.search.posterior.measurements import History, checked
from autotune.search.posterior.residuals import dominated
from autotune.search.posterior.stopping import ProbeBudget, check_budget, judged, remaining
from autotune.search.posterior.together import next_of_several
from autotune.search.priced import MEMORY
from autotune.search.study.calibrated import CalibratedSampler, OutsideSpaceWarning
from autotune.search.study.samplers import sampler_maker
from bench.search.simulated import SCENARIOS, Grid, Machine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

MACHINES, PROBES = 12, 12
WARM, FEW = 8, 6


@pytest.fixture(scope="module")
def grid() -> Grid:
    return Grid.of(1)


@pytest.fixture(scope="module")
def machines(grid: Grid) -> list[Machine]:
    bias = SCENARIOS["one_card_b10"].bias
    return [Machine(grid, seed, bias) for seed in range(MACHINES)]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def space_of(machine: Machine) -> dict[str, Any]:
    return {
        name: optuna.distributions.IntDistribution(0, len(d.levels) - 1)
        if d.ordinal
        else optuna.distributions.CategoricalDistribution(d.levels)
        for name, d in machine.grid.dimensions.items()
    }


def probe(study: optuna.Study, machine: Machine) -> tuple[int, bool]:
    """Ask, measure and tell; the candidate and whether it fitted."""
    trial = study.ask(space_of(machine))
    index = machine.find(trial.params)
    assert index is not None
    measured = machine.probe(index)
    if measured is None:
        trial.set_user_attr("oom", True)
        trial.set_constraint("memory", 0.1)
        study.tell(trial, float(machine.predicted_cost.max()))
        return index, False
    trial.set_user_attr("measured", measured)
    trial.set_constraint("memory", measured[MEMORY] / float(machine.limit[index]) - 1.0)
    study.tell(trial, machine.measured_cost(index, measured))
    return index, True


def regrets(machine: Machine) -> list[float]:
    sampler = CalibratedSampler(machine, space_of(machine))
    study = optuna.create_study(sampler=sampler)
    found = []
    for _ in range(PROBES):
        probe(study, machine)
        found.append(machine.regret(sampler.posterior(study).pick()))
    return found


def warm_tpe_regret(machine: Machine, seed: int, probes: int) -> float:
    make = sampler_maker("tpe", seed)
    study = optuna.create_study(sampler=make(0))
    order = machine.order()
    for _ in range(WARM):
        study.enqueue_trial(machine.params(next(order)))
    best: tuple[float, int | None] = (math.inf, None)
    for number in range(probes):
        study.sampler = make(number)
        index, fits = probe(study, machine)
        if fits:
            measured = machine.probe(index)
            assert measured is not None
            best = min(best, (machine.measured_cost(index, measured), index), key=lambda b: b[0])
    return machine.regret(best[1])


def to_within(curve: list[float], fraction: float) -> float:
    return next((k for k, regret in enumerate(curve, 1) if regret <= fraction), math.inf)


@pytest.mark.slow
def test_a_handful_of_probes_finds_the_optimum_and_beats_warm_started_tpe_with_five_times_as_many(
    machines: list[Machine],
) -> None:
    """With margins: over many machines the medians are 5 probes to 3 % and 5 to 6 to 1 %."""
    curves = [regrets(machine) for machine in machines]
    assert np.median([to_within(curve, 0.03) for curve in curves]) <= 7
    assert np.median([to_within(curve, 0.01) for curve in curves]) <= 9
    assert np.median([curve[-1] for curve in curves]) <= 0.01
    few = [curve[FEW - 1] for curve in curves]
    tpe = [warm_tpe_regret(machine, seed, 5 * FEW) for seed, machine in enumerate(machines)]
    assert np.median(few) < np.median(tpe)
    wins = sum(a < b for a, b in zip(few, tpe, strict=True))
    assert wins >= 0.75 * len(machines)


def test_no_probe_is_made_twice_and_none_that_a_known_oom_dominates(
    machines: list[Machine],
) -> None:
    ooms = 0
    for machine in machines[:5]:
        memory = machine.parts[-1]
        study = optuna.create_study(sampler=CalibratedSampler(machine, space_of(machine)))
        history = History()
        for _ in range(PROBES):
            before, _ = dominated(machine, history)
            index, fits = probe(study, machine)
            assert index not in history.tried
            assert not before[memory.row_of[index]]
            if fits:
                history.learn(machine, index, machine.probe(index) or {})
            else:
                history.learn_oom(machine, index)
                ooms += 1
    assert ooms > 0, "the machines never ran out of memory, so nothing was tested"


def test_an_oom_excludes_its_signature_at_every_larger_micro_batch_only(grid: Grid) -> None:
    machine = Machine(grid, 0, 0.1)
    memory = machine.parts[-1]
    micro = [d.name for d in memory.reads].index("micro_batch")
    history = History()
    index = int(np.flatnonzero(memory.codes[memory.row_of][:, micro] == 3)[0])
    history.learn_oom(machine, index)
    excluded, _ = dominated(machine, history)
    own = memory.codes[memory.row_of[index]]
    assert excluded.sum() == 3
    for row in np.flatnonzero(excluded):
        assert memory.codes[row][micro] >= 3
        assert (np.delete(memory.codes[row], micro) == np.delete(own, micro)).all()


def test_resuming_at_any_probe_boundary_makes_the_same_next_proposal(
    machines: list[Machine], tmp_path: Path
) -> None:
    machine = machines[1]
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    study = optuna.create_study(
        storage=storage, study_name="s", sampler=CalibratedSampler(machine, space_of(machine))
    )
    straight = [probe(study, machine)[0] for _ in range(8)]
    resumed: list[int] = []
    other = f"sqlite:///{tmp_path / 'other.db'}"
    for _ in range(8):
        again = optuna.create_study(
            storage=other, study_name="s", load_if_exists=True,
            sampler=CalibratedSampler(machine, space_of(machine)),
        )  # fmt: skip
        resumed.append(probe(again, machine)[0])
    assert resumed == straight


def test_pending_probes_are_believed_and_not_proposed_again(machines: list[Machine]) -> None:
    machine = machines[2]
    space = space_of(machine)
    study = optuna.create_study(sampler=CalibratedSampler(machine, space))
    for _ in range(3):
        probe(study, machine)
    pending = [machine.find(study.ask(space).params) for _ in range(4)]
    assert len(set(pending)) == 4
    rows = [machine.parts[0].row_of[index] for index in pending if index is not None]
    assert len(set(rows)) > 1


def test_the_first_probes_of_several_workers_are_no_copies_of_the_models_best(
    machines: list[Machine],
) -> None:
    for machine in machines[:3]:
        space = space_of(machine)
        study = optuna.create_study(sampler=CalibratedSampler(machine, space))
        asked = [machine.find(study.ask(space).params) for _ in range(8)]
        order = list(islice(machine.order(), 8))
        assert asked[0] == order[0], "the first worker tries what the model thinks best"
        rows = machine.parts[0].row_of
        assert len({int(rows[i]) for i in order}) < 4, "the order holds nearly the same many times"
        assert len({int(rows[i]) for i in asked if i is not None}) == 8

        def best(among: Iterable[int | None], machine: Machine = machine) -> float:
            return min((machine.regret(i) for i in among if i is not None), default=math.inf)

        assert best(asked) < best(order), "one of eight is better than the model's best"


def test_what_ran_out_of_memory_and_what_is_pending_are_not_tried_again_by_the_next_worker(
    machines: list[Machine],
) -> None:
    machine, history = machines[0], History()
    pending, too_large = islice(machine.order(), 2)
    history.learn_oom(machine, too_large)
    assert next_of_several(Posterior(machine, history)) is None, "nobody is measuring"
    history.tried.add(pending)
    history.pending.append(pending)
    posterior = Posterior(machine, history)
    found = next_of_several(posterior)
    assert found.index not in {pending, too_large}
    assert found.index not in posterior.twins(pending)
    assert found.fits_probability == posterior.unsettled().fits_probability[found.index]


def test_trials_of_other_samplers_teach_the_residuals(machines: list[Machine]) -> None:
    machine = machines[3]
    sampler = CalibratedSampler(machine, space_of(machine))
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    for _ in range(6):
        probe(study, machine)
    study.sampler = sampler
    index, _ = probe(study, machine)
    assert sampler.last.index == index
    assert len(sampler.posterior(study).history.tried) == 7


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, "quick", True])
def test_a_measurement_that_no_probe_can_make_is_refused(grid: Grid, value: object) -> None:
    machine = Machine(grid, 0, 0.1)
    with pytest.raises(InputError, match="trial 3: measured compute"):
        checked({"compute": value}, machine, "trial 3")


def test_an_unknown_part_is_refused_with_close_matches(grid: Grid) -> None:
    with pytest.raises(InputError, match="comput"):
        checked({"comput": 1.0}, Machine(grid, 0, 0.1), "trial 3")


def test_a_bad_measurement_in_a_study_stops_the_search_by_name(machines: list[Machine]) -> None:
    machine = machines[0]
    study = optuna.create_study(sampler=CalibratedSampler(machine, space_of(machine)))
    trial = study.ask(space_of(machine))
    trial.set_user_attr("measured", {"compute": -2.0})
    study.tell(trial, 1.0)
    with pytest.raises(InputError, match="trial 0: measured compute is -2"):
        study.ask(space_of(machine))


def test_a_study_of_another_job_is_refused(machines: list[Machine]) -> None:
    first, second = machines[:2]
    study = optuna.create_study(sampler=CalibratedSampler(first, space_of(first)))
    probe(study, first)
    study.sampler = CalibratedSampler(second, space_of(second))
    with pytest.raises(InputError, match="another job or space"):
        study.ask(space_of(second))


def test_trials_outside_the_space_are_named_in_a_warning(machines: list[Machine]) -> None:
    machine = machines[0]
    study = optuna.create_study(sampler=CalibratedSampler(machine, space_of(machine)))
    study.add_trial(
        optuna.trial.create_trial(
            value=1.0,
            params={"x": 1},
            distributions={"x": optuna.distributions.IntDistribution(0, 3)},
        )
    )
    with pytest.warns(OutsideSpaceWarning, match="1 trials"):
        study.ask(space_of(machine))


@pytest.mark.parametrize("state", [optuna.trial.TrialState.RUNNING, optuna.trial.TrialState.FAIL])
def test_a_trial_that_another_process_is_telling_is_not_outside(
    state: optuna.trial.TrialState, machines: list[Machine]
) -> None:
    """A database holds its parameters one after another; one may die between two of them."""
    machine = machines[0]
    space = space_of(machine)
    study = optuna.create_study(sampler=CalibratedSampler(machine, space))
    name = next(iter(space))
    half = {name: space[name].to_external_repr(0.0)}
    study.add_trial(
        optuna.trial.create_trial(state=state, params=half, distributions={name: space[name]})
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", OutsideSpaceWarning)
        study.ask(space)


def test_trials_scored_by_the_model_are_no_probes(machines: list[Machine]) -> None:
    machine = machines[0]
    space = space_of(machine)
    study = optuna.create_study(sampler=CalibratedSampler(machine, space))
    trial = study.ask(space)
    trial.set_user_attr("basis", "modelled")
    study.tell(trial, 1.0)
    assert study.ask(space).params == trial.params


def test_stopping_names_its_reason_and_what_stays_uncertain(machines: list[Machine]) -> None:
    machine = machines[4]
    sampler = CalibratedSampler(machine, space_of(machine))
    study = optuna.create_study(sampler=sampler)
    while not probe(study, machine)[1]:
        pass
    posterior = sampler.posterior(study)
    proposal = next_probe(posterior)
    left = remaining(posterior)
    value = posterior.value(posterior.incumbent or 0)
    assert left.saving == pytest.approx(left.fraction * value)
    assert judged(posterior, proposal, ProbeBudget(next_cost=left.saving / 2)) is None
    dear = judged(posterior, proposal, ProbeBudget(next_cost=left.saving * 2))
    assert dear.rule == "saving"
    spent = judged(posterior, proposal, ProbeBudget(next_cost=0.02, spent=0.99, limit=1.0))
    assert spent.rule == "budget"
    assert 0 < spent.remaining.bound < 1
    for stop in (dear, spent):
        assert "optimal" not in stop.reason
        assert "$" in stop.reason
    with pytest.raises(InputError, match="smaller than one probe"):
        check_budget(ProbeBudget(next_cost=0.02, limit=0.01))


def test_the_remaining_uncertainty_shrinks_until_the_search_ends_by_itself(
    machines: list[Machine],
) -> None:
    machine = machines[4]
    sampler = CalibratedSampler(machine, space_of(machine))
    study = optuna.create_study(sampler=sampler)
    ended, first = None, None
    for _ in range(60):
        probe(study, machine)
        posterior = sampler.posterior(study)
        if posterior.incumbent is not None and first is None:
            first = remaining(posterior).fraction
        ended = judged(posterior, next_probe(posterior), ProbeBudget(next_cost=0.0))
        if ended is not None:
            break
    assert ended.rule == "regret"
    assert first is not None
    assert ended.remaining.fraction < min(0.003, first)


@pytest.mark.slow
def test_what_one_run_learned_saves_probes_in_the_next(grid: Grid, tmp_path: Path) -> None:
    key = PriorKey("24gb", "llama", "shape", "software")
    saved = 0.0
    for seed in (1, 5, 6):
        machine = Machine(grid, seed, 0.1)
        cold = regrets(machine)
        sampler = CalibratedSampler(machine, space_of(machine))
        study = optuna.create_study(sampler=sampler)
        for _ in range(PROBES):
            probe(study, machine)
        home = tmp_path / str(seed)
        save_residuals(machine, sampler.posterior(study).history, key, home)
        prior = load_residuals(machine, key, home)
        assert prior.count > 0
        assert not prior.warnings
        history = History()
        warm: list[float] = []
        for _ in range(4):
            proposal = next_probe(Posterior(machine, history, prior.observed))
            measured = machine.probe(proposal.index)
            if measured is None:
                history.learn_oom(machine, proposal.index)
            else:
                history.learn(machine, proposal.index, measured)
            warm.append(machine.regret(Posterior(machine, history, prior.observed).pick()))
        saved += min(to_within(cold, 0.1), PROBES) - min(to_within(warm, 0.1), PROBES)
    assert saved > 0
