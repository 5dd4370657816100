"""Several measurements of one candidate, and what they say of two candidates together.

Other programs only ever make a measurement longer. So of several the undisturbed ones count, and
of those the ones that agree with the quickest. How far measurements of one candidate differ, and
how often one is too long without anybody having noticed, is estimated from all candidates together,
starting from what a quiet machine leaves over.
"""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING

from autotune.domain.observation import BETWEEN_RUNS_SD
from autotune.domain.outcome import Z90
from autotune.frozen import dataclass
from autotune.search.selection import TIE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

DISTURBED_SD = 0.5  # of one that others disturbed: assumption
PRIOR_RUNS = 4.0  # how many differences these two are worth
UNNOTICED = 0.02  # share of measurements that are too long and betray it by nothing: assumption
ALIKE = 0.5  # chance that two that are too long are so by the same: assumption
DOUBTFUL = 0.10  # a chance of being too long from which a measurement does not stand alone
Z999 = 3.2905  # half a 99.9 % interval
NARROW = 0.05  # an interval of a ratio that says so much
TELLING = 0.10  # a difference that must not stay hidden


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement. log_value: of what is minimised; sd: of it, within the run."""

    log_value: float
    disturbed: bool = False
    sd: float = 0.0


@dataclass(frozen=True, slots=True)
class Standing:
    """What all measurements of a candidate say of its log value.

    runs: measurements that it rests on. disturbed: all of them were. doubt: the chance that all of
    them are too long, though nothing betrays it.
    """

    mean: float
    sd: float
    runs: int
    disturbed: bool
    doubt: float = 0.0

    @property
    def stands(self) -> bool:
        """Whether it can be believed as it is."""
        return not self.disturbed and self.doubt < DOUBTFUL


@dataclass(frozen=True, slots=True)
class Ratio:
    """log(one / other) of two candidates, as a mean and its standard deviation."""

    mean: float
    sd: float

    @property
    def low(self) -> float:
        """Lower end of the 80 % interval."""
        return self.mean - Z90 * self.sd

    @property
    def high(self) -> float:
        """Upper end of the 80 % interval."""
        return self.mean + Z90 * self.sd

    @property
    def is_tie(self) -> bool:
        """Whether no difference is as likely as any, and none that matters is left."""
        return self.low <= 0.0 <= self.high and max(-self.low, self.high) <= NARROW + TIE

    @property
    def is_open(self) -> bool:
        """Whether the one may be clearly better than the other, or clearly worse than it seems."""
        return self.low < -NARROW

    @property
    def hides(self) -> bool:
        """Whether the one may be so much better that not knowing it must be said."""
        return self.low < -TELLING


def believed(runs: Sequence[Run]) -> list[Run]:
    """The undisturbed ones that agree with the quickest; of disturbed ones alone the quickest."""
    calm = [run for run in runs if not run.disturbed]
    if not calm:
        return [min(runs, key=lambda run: run.log_value)] if runs else []
    quickest = min(calm, key=lambda run: run.log_value)

    def agrees(run: Run) -> bool:
        sd = math.hypot(run.sd, quickest.sd, math.sqrt(2.0) * BETWEEN_RUNS_SD)
        return run.log_value - quickest.log_value <= Z999 * sd

    return [run for run in calm if agrees(run)]


def repeat_sd(groups: Iterable[Sequence[Run]]) -> float:
    """Sd of the log of one measurement, from those of each candidate that are believed.

    Formula: (n0 s0^2 + sum of squared deviations) / (n0 + degrees of freedom), a shrunken variance.
    Source: Gelman et al., Bayesian Data Analysis, 3rd ed., 2.6 (scaled inverse chi-squared).
    """
    total, free = PRIOR_RUNS * BETWEEN_RUNS_SD**2, PRIOR_RUNS
    for runs in groups:
        values = [run.log_value for run in believed(runs) if not run.disturbed]
        if len(values) > 1:
            centre = fmean(values)
            total += sum((value - centre) ** 2 for value in values)
            free += len(values) - 1
    return math.sqrt(total / free)


def unnoticed(groups: Iterable[Sequence[Run]], looks: int = 0, unexplained: int = 0) -> float:
    """Share of undisturbed measurements that are too long though nothing betrays it.

    Counted: those that a quicker one of the same candidate overturned, and looks at steps that were
    uneven without an explanation.
    Formula: (n0 p0 + found) / (n0 + looked at), the mean of a beta posterior.
    """
    found, of = PRIOR_RUNS * UNNOTICED + unexplained, PRIOR_RUNS + looks
    for runs in groups:
        calm = [run for run in runs if not run.disturbed]
        if len(calm) > 1:
            of += len(calm)
            found += len(calm) - len(believed(calm))
    return found / of


def standings(groups: Mapping[int, Sequence[Run]], share: float) -> dict[int, Standing]:
    """What is known of every candidate that was measured. share: of `unnoticed`."""
    sd = repeat_sd(groups.values())
    return {index: _standing(runs, sd, share) for index, runs in groups.items() if runs}


def _standing(runs: Sequence[Run], quiet_sd: float, share: float) -> Standing:
    kept = believed(runs)
    disturbed = kept[0].disturbed
    within = math.sqrt(fmean(run.sd**2 for run in kept))
    sd = math.hypot(DISTURBED_SD if disturbed else quiet_sd, within) / math.sqrt(len(kept))
    overturned = sum(not run.disturbed for run in runs) > len(kept) and not disturbed
    own = max(share, DOUBTFUL) if overturned else share  # what held it up once may do so again
    doubt = own * (ALIKE * own) ** (len(kept) - 1)
    return Standing(fmean(r.log_value for r in kept), sd, len(kept), disturbed, doubt)


def compared(one: Standing, other: Standing) -> Ratio:
    """log(one / other)."""
    return Ratio(one.mean - other.mean, math.hypot(one.sd, other.sd))
