"""A cost model with a hidden truth: what a probe measures, how far a pick is from the best."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.search.priced import MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.cost.columns import FloatArray
    from autotune.search.priced import Part

Params = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ByHand:
    """How people climb: where they start, what saves memory, and which knobs they turn in order.

    grows: the knob that is raised until it does not fit, to `top` at most.
    """

    start: Params
    savings: tuple[Params, ...]
    toggles: tuple[tuple[str, tuple[Any, ...]], ...]
    grows: str
    top: int


class Hidden(ABC):
    """A `Priced` for the sampler, and the truth for the experiment.

    levels: by parameter, its values (categorical) or how many positions it has (ordinal). errs:
    what else the errors of its probes are drawn from: the same machine, measured another time.
    """

    parts: tuple[Part, ...]
    limit: FloatArray
    identity: str
    grows: Sequence[str]
    seed: int
    levels: Mapping[str, int | tuple[Any, ...]]
    by_hand: ByHand
    errs: tuple[int, ...] = ()

    @abstractmethod
    def __len__(self) -> int:
        """Candidates."""

    @abstractmethod
    def totals(self, factors: Mapping[str, FloatArray], at: NDArray[np.intp]) -> FloatArray:
        """[USD] of the whole run."""

    @abstractmethod
    def true_factor(self, name: str) -> FloatArray:
        """[n] truth over model of a part."""

    @abstractmethod
    def params(self, index: int) -> Params:
        """The parameters of a candidate."""

    @abstractmethod
    def find(self, params: Mapping[str, Any]) -> int | None:
        """The candidate with those parameters."""

    @abstractmethod
    def order(self) -> Iterator[int]:
        """Candidates in the order worth trying while nothing was measured."""

    @abstractmethod
    def neighbours(self, index: int) -> Sequence[int]:
        """One knob changed."""

    @abstractmethod
    def plainness(self, indices: Sequence[int]) -> Sequence[tuple[float, ...]]:
        """Of two that tie, the one with the smaller key is preferred."""

    @cached_property
    def _everything(self) -> NDArray[np.intp]:
        return np.arange(len(self))

    @cached_property
    def _memory(self) -> Part:
        return next(p for p in self.parts if p.name == MEMORY)

    @cached_property
    def true_cost(self) -> FloatArray:
        """[n, USD] what a run really costs."""
        return self.totals({p.name: self.true_factor(p.name) for p in self.parts}, self._everything)

    @cached_property
    def true_memory(self) -> FloatArray:
        """[n, bytes] what is really needed."""
        return self.predicted_memory * self.true_factor(MEMORY)

    @cached_property
    def truly_fits(self) -> NDArray[np.bool_]:
        """[n] whether it really fits."""
        return self.true_memory <= self.limit

    @cached_property
    def best_cost(self) -> float:
        """[USD] of the true optimum among what truly fits."""
        return float(self.true_cost[self.truly_fits].min())

    @cached_property
    def predicted_cost(self) -> FloatArray:
        """[n, USD] what the model says."""
        return self.totals({p.name: np.ones(len(self)) for p in self.parts}, self._everything)

    @cached_property
    def predicted_memory(self) -> FloatArray:
        """[n, bytes] what the model says."""
        found: FloatArray = self._memory.predicted[self._memory.row_of]
        return found

    def regret(self, index: int | None) -> float:
        """True cost of a recommendation above the true optimum, relative; infinite without one."""
        if index is None or not self.truly_fits[index]:
            return float("inf")
        return float(self.true_cost[index] / self.best_cost - 1.0)

    def noise(self, part: Part, draw: np.random.Generator) -> float:
        """The log of a measurement over the truth."""
        return float(draw.normal(0.0, part.noise))

    def probe(self, index: int) -> dict[str, float] | None:
        """What one probe measures; None when it runs out of memory. The same index, the same."""
        draw = np.random.default_rng([self.seed, 2, index, *self.errs])
        measured = {}
        for part in self.parts:
            row = int(part.row_of[index])
            value = float(part.predicted[row]) * float(self.true_factor(part.name)[index])
            value *= float(np.exp(self.noise(part, draw)))
            if value > 0:
                measured[part.name] = value
        return None if measured[MEMORY] > self.limit[index] else measured

    def measured_cost(self, index: int, measured: Mapping[str, float]) -> float:
        """[USD] the run's cost that a probe's measurements imply."""
        at = np.asarray([index])
        factors = {}
        for part in self.parts:
            predicted = float(part.predicted[part.row_of[index]])
            ratio = measured[part.name] / predicted if part.name in measured else 1.0
            factors[part.name] = np.asarray([ratio])
        return float(self.totals(factors, at)[0])
