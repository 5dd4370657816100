"""Optuna's NSGA-II with parents in a fixed order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optuna.samplers import NSGAIISampler

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial


class OrderedNSGAIISampler(NSGAIISampler):
    """NSGA-II whose proposals do not depend on whether the parents came from the study's cache.

    Optuna returns parents in the order of their rank when it selects them and in the order of
    their trials afterwards, so that a resumed search would draw other parents than one that was
    never stopped.
    """

    def get_parent_population(self, study: Study, generation: int) -> list[FrozenTrial]:
        """Parents in the order of their trials."""
        parents = super().get_parent_population(study, generation)
        return sorted(parents, key=lambda trial: trial.number)
