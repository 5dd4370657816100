"""Samplers by name: the calibrated one, and Optuna's own over the cost model's score."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.catalog.software import install_command
from autotune.domain.errors import InputError, unknown
from autotune.search.study.storage import quiet

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import FrozenTrial

CALIBRATED = "calibrated"
NSGA2_POPULATION = 20  # a default search of 40 trials then has a second generation
SAMPLERS = (CALIBRATED, "tpe", "gp", "nsga2", "random")


def check_sampler(name: str) -> None:
    """Raise InputError for an unknown sampler, or one whose packages are not installed."""
    if name not in SAMPLERS:
        what = "sampler"
        raise unknown(what, name, SAMPLERS, f"samplers: {', '.join(SAMPLERS)}")
    if name == "gp":
        absent = [package for package in ("scipy", "torch") if find_spec(package) is None]
        if absent:
            msg = f"--sampler gp needs {' and '.join(absent)}, which this installation lacks"
            raise InputError(msg, f"{install_command('samplers')}; or use another sampler")


def sampler_maker(name: str, seed: int) -> Callable[[int], BaseSampler]:
    """Optuna's sampler for the n-th proposal.

    Each proposal gets its own sampler, seeded by the search's seed and n: a resumed search then
    proposes what the uninterrupted one would have, since the rest of a sampler's state is in the
    study.
    """

    def make(number: int) -> BaseSampler:
        from optuna.samplers import GPSampler, RandomSampler, TPESampler

        own = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        if name == "tpe":
            return TPESampler(seed=own)
        if name == "gp":
            return GPSampler(seed=own)
        if name == "nsga2":
            return _ordered_nsga2(own)
        return RandomSampler(seed=own)

    return make


def asking_for(params: Mapping[str, Any]) -> BaseSampler:
    """One that proposes just this."""
    from optuna.samplers import PartialFixedSampler, RandomSampler

    with quiet():
        return PartialFixedSampler(dict(params), RandomSampler())


def _ordered_nsga2(seed: int) -> BaseSampler:
    """NSGA-II whose proposals do not depend on whether the parents came from the study's cache.

    Optuna returns parents in the order of their rank when it selects them and in the order of
    their trials afterwards, so that a resumed search would draw other parents than one that was
    never stopped.
    """
    from optuna.samplers import NSGAIISampler

    class OrderedNSGAIISampler(NSGAIISampler):
        """Parents in the order of their trials."""

        def get_parent_population(self, study: Study, generation: int) -> list[FrozenTrial]:
            parents = super().get_parent_population(study, generation)
            return sorted(parents, key=lambda trial: trial.number)

    return OrderedNSGAIISampler(seed=seed, population_size=NSGA2_POPULATION)
