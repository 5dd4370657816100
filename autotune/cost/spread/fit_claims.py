"""How sure a claim that a run fits may be: no surer than the claims of its kind that were tested.

    P(fits) = min(Phi(margin / spread), (n - failures + 1) / (n + 2))

n: configurations with a known outcome that predictions without their group called a fit. Kinds:
what the allocator is expected to hold, its cache included, stays within usable memory (roomy), or
does not (crowded): such a run lives on segments being given back, and fewer of them were seen.

Covers: predicted peaks, by formula or trace. Does not cover: allocators whose segments grow, which
leave fewer pieces: no run with a known outcome tells them apart.

Source: Laplace's rule of succession: the mean of a binomial share under a flat prior; Gelman et
al., "Bayesian Data Analysis" (2013), section 2.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.cost.columns import BoolArray, FloatArray

ROOMY, CROWDED = "roomy", "crowded"
CLAIM_KINDS = (ROOMY, CROWDED)
SAME = 1e-9  # relative
HOPELESS = 0.01  # probability of fitting under which a run is said to fail for certain


@dataclass(frozen=True, slots=True)
class Claims:
    """Tested claims of one kind: how many, and how many of those runs ran out of memory."""

    n: int
    failures: int

    @property
    def bears(self) -> float:
        """The probability that a further claim of the kind holds."""
        return (self.n - self.failures + 1) / (self.n + 2)


def is_certain_oom(
    needed_bytes: FloatArray, capacity_bytes: FloatArray, probability: FloatArray
) -> BoolArray:
    """[n] whether a run fails for sure: it needs more than there is, and no spread makes up for it.

    needed: allocated at the peak, with the context.
    """
    certain: BoolArray = (needed_bytes > capacity_bytes) & (probability < HOPELESS)
    return certain


def is_crowded(held_bytes: FloatArray, usable_bytes: FloatArray) -> BoolArray:
    """[n] whether what the allocator is expected to hold, context included, leaves nothing."""
    crowded: BoolArray = held_bytes >= usable_bytes * (1.0 - SAME)
    return crowded


def surest(*, crowded: bool, claims: Mapping[str, Claims]) -> float:
    """The highest probability that a claim of the kind may have."""
    kind = CROWDED if crowded else ROOMY
    return claims[kind].bears if claims else 1.0


def borne(probability: FloatArray, crowded: BoolArray, claims: Mapping[str, Claims]) -> FloatArray:
    """[n] the probability, no surer than tested claims of its kind; without any: as it is."""
    most = np.where(crowded, surest(crowded=True, claims=claims),
                    surest(crowded=False, claims=claims))  # fmt: skip
    return np.minimum(probability, most)
