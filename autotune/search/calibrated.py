"""The calibrated sampler: an Optuna sampler whose proposals come from the priced candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optuna.samplers import BaseSampler

from autotune.search.proposal import proposal_order

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial

    from autotune.cost.model import Bill
    from autotune.search.axes import ParameterSpace
    from autotune.search.selection import Objective


class CalibratedSampler(BaseSampler):
    """Proposes candidates in the order that their bill suggests, never one that the study has.

    Every proposal is a whole candidate, so all parameters are sampled together.
    """

    def __init__(
        self,
        bill: Bill,
        space: ParameterSpace,
        distributions: Mapping[str, BaseDistribution],
        objective: Objective,
    ) -> None:
        """Keep the bill; candidates are ordered when the first proposal is asked for."""
        self._space = space
        self._distributions = dict(distributions)
        self._order = proposal_order(bill, objective)
        self._ahead: dict[int, dict[str, Any]] = {}  # trials that were promised a candidate

    def infer_relative_search_space(
        self,
        study: Study,  # noqa: ARG002 - Optuna's signature
        trial: FrozenTrial,  # noqa: ARG002 - Optuna's signature
    ) -> dict[str, BaseDistribution]:
        """All parameters: a candidate is proposed as a whole."""
        return dict(self._distributions)

    def sample_relative(
        self,
        study: Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],  # noqa: ARG002 - always all parameters
    ) -> dict[str, Any]:
        """The next candidate that no trial of the study has."""
        return self._next(study, trial)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,  # noqa: ARG002 - the space knows its values
    ) -> Any:  # noqa: ANN401 - Optuna's signature
        """One parameter of the candidate that the trial was promised."""
        return self._next(study, trial)[param_name]

    def _next(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        if trial.number in self._ahead:
            return self._ahead[trial.number]
        tried = {
            self._space.find(other.params)
            for other in study.get_trials(deepcopy=False)
            if other.number != trial.number and set(self._distributions) <= set(other.params)
        }
        for index in self._order:
            if index not in tried:
                params: dict[str, Any] = self._space.params(index)
                self._ahead[trial.number] = params
                return params
        return self._space.params(0)  # every candidate has been tried: a repeat
