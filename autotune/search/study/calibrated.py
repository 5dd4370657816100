"""The calibrated sampler: an Optuna sampler whose proposals come from a priced set of candidates.

Without a measurement or a prior it follows the order that the cost model suggests. With
measurements (`measurements` has their form) it fits one residual for each part of the cost and
asks for the candidate of the largest expected saving x probability of fitting. While others measure
the first, it asks for what adds most to theirs. It needs a `Priced`,
no more: any cost model whose components declare what they read.
"""

from __future__ import annotations

import warnings
from itertools import islice
from typing import TYPE_CHECKING, Any

from optuna.samplers import BaseSampler

from autotune.search.posterior.acquisition import Posterior, Proposal
from autotune.search.posterior.costs import SHORTLIST
from autotune.search.posterior.lookahead import next_probe, only_broke
from autotune.search.posterior.measurements import history_of
from autotune.search.posterior.together import next_of_several
from autotune.search.study.journal import claim

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial

    from autotune.search.posterior.kernel import Observed
    from autotune.search.posterior.measurements import History
    from autotune.search.priced import Priced


class OutsideSpaceWarning(UserWarning):
    """Trials of the study are of no candidate and teach nothing."""


class CalibratedSampler(BaseSampler):
    """Proposes whole candidates, never one that the study has."""

    def __init__(
        self,
        priced: Priced,
        distributions: Mapping[str, BaseDistribution],
        *,
        prior: Mapping[str, Sequence[Observed]] | None = None,
        shortlist: int = SHORTLIST,
    ) -> None:
        """Keep the candidates; they are ordered when the first proposal is asked for.

        prior: what earlier runs observed (`past`). shortlist: candidates whose uncertainty is
        worked out for a proposal; all are ranked by their calibrated cost.
        """
        self._priced = priced
        self._distributions = dict(distributions)
        self._prior = dict(prior or {})
        self._shortlist = shortlist
        self._order = priced.order()
        self._waiting: list[int] = []  # taken off the order, and not tried since
        self._ahead: dict[int, dict[str, Any]] = {}  # trials that were promised a candidate
        self._agreed = False
        self._known: Posterior | None = None
        self._proposed: tuple[Posterior, Proposal | None] | None = None
        self.last: Proposal | None = None

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

    def modelled(self, study: Study, most: int) -> list[int]:
        """At most so many candidates that it proposes next while nothing is measured.

        They follow the order of the cost model, whatever is told of them. Empty where measurements
        or a prior decide, or every candidate has been tried.
        """
        history = self.history(study)
        if history.probes or any(self._prior.values()):
            return []
        return list(islice((i for i in self._order if i not in history.tried), most))

    def posterior(self, study: Study, trials: Sequence[FrozenTrial] | None = None) -> Posterior:
        """What the study's measurements say: the pick, ties, what another probe may save."""
        return self._posterior(self.history(study, trials))

    def _posterior(self, history: History) -> Posterior:
        """Worked out once for a state of the study."""
        if self._known is None or self._known.history != history:
            self._known = Posterior(self._priced, history, self._prior, shortlist=self._shortlist)
        return self._known

    def proposal(self, posterior: Posterior) -> Proposal | None:
        """The next probe in that state, worked out once: whether to stop is judged by it too."""
        if self._proposed is None or self._proposed[0] is not posterior:
            first = posterior.incumbent is None and posterior.history.pending
            found = next_of_several(posterior) if first else next_probe(posterior)
            self._proposed = (posterior, found)
        return self._proposed[1]

    def history(self, study: Study, trials: Sequence[FrozenTrial] | None = None) -> History:
        """The study's trials as candidates. Raises InputError for a study of something else."""
        if not self._agreed:
            claim(study, self._priced.identity)
            self._agreed = True
        if trials is None:
            trials = study.get_trials(deepcopy=False)
        history = history_of(trials, self._priced, set(self._distributions))
        if history.outside:
            text = f"{history.outside} trials of the study are not candidates of this space"
            warnings.warn(text, OutsideSpaceWarning, stacklevel=2)
        return history

    def _next(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        if trial.number in self._ahead:
            return self._ahead[trial.number]
        trials = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        index = self._propose(study, trials)
        if index is None:
            return self._priced.params(0)  # every candidate has been tried: a repeat
        params = self._priced.params(index)
        self._ahead[trial.number] = params
        return params

    def _propose(self, study: Study, trials: Sequence[FrozenTrial]) -> int | None:
        history = self.history(study, trials)
        self.last = None
        known = history.probes or history.pending or any(self._prior.values())
        if known or only_broke(history):
            self.last = self.proposal(self._posterior(history))
            if self.last is not None:
                return self.last.index
        return self._in_order(history.tried)

    def _in_order(self, tried: set[int]) -> int | None:
        """The first of the order that no trial has."""
        for index in self._waiting:
            if index not in tried:
                return index
        self._waiting.clear()
        for index in self._order:
            if index not in tried:
                self._waiting.append(index)
                return index
        return None
