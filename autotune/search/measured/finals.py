"""Which is the pick, who is measured again before there is an answer, and whether there can be one.

The pick and its rivals take turns, so that what drifts meanwhile touches all alike; several workers
measure a few of one turn at the same time (`python -m bench.search.finals`: what that saves).
Everything follows from the records, so that a search that was killed goes on with the same
measurements.
"""

from __future__ import annotations

import math
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from autotune.domain.outcome import Z90
from autotune.frozen import dataclass
from autotune.search.posterior.repeats import (
    NARROW,
    TELLING,
    UNNOTICED,
    Run,
    compared,
    standings,
    unnoticed,
)
from autotune.search.selection import TIE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from autotune.cost.columns import FloatArray
    from autotune.domain.candidates import Candidates
    from autotune.search.axes import ParameterSpace
    from autotune.search.posterior.acquisition import Posterior
    from autotune.search.posterior.repeats import Standing
    from autotune.search.study.record import TrialRecord

CLOSE = 0.03  # a rival this near to the pick is measured again as well
MOST_RUNS = 4  # of one candidate
MOST_AGAIN = 10  # measurements made again, in all
MOST_AT_ONCE = 3  # of them; with more, rivals are measured that the others' figures would rule out
IN_VAIN = 3  # measurements made again that all were disturbed: no more of them
ODD = 1.25  # times what is usual of a candidate's distance from the calibrated model
LEAST_USUAL, UNKNOWN_USUAL, ENOUGH = 0.05, 0.25, 4  # of that; where fewer than so many are known


@dataclass(frozen=True)
class Finals:
    """The measured candidates that fit, and what is known of each.

    standing: by candidate. pick: None when none fits. share: of undisturbed measurements that were
    too long. again: measurements made again so far, the oldest first, as candidates; probes: the
    probe of each; in_vain: the last ones all were disturbed.
    """

    posterior: Posterior
    standing: dict[int, Standing]
    runs: dict[int, list[Run]]
    again: tuple[int, ...]
    probes: tuple[str, ...]
    pick: int | None
    share: float
    modelled: FloatArray
    in_vain: bool

    def next(self, running: Collection[int] = ()) -> int | None:
        """The candidate to measure again now; None when nothing more is to be gained.

        running: those that peers measure again now. None as well where the turn has no other.
        """
        if self.pick is None or len(self.again) + len(running) >= MOST_AGAIN or self.in_vain:
            return None
        if len(running) >= MOST_AT_ONCE:
            return None
        wanting = self._wanting()
        fewest = min((len(self.runs[index]) for index in wanting), default=0)
        turn = [i for i in wanting if len(self.runs[i]) == fewest and i not in running]
        if not turn:
            return None
        return turn[0] if fewest % 2 else turn[-1]  # A B, then B A: what drifts cancels

    def told(self, index: int) -> tuple[str, ...]:
        """The probes by which a candidate was measured again."""
        return tuple(p for i, p in zip(self.again, self.probes, strict=True) if i == index)

    def _wanting(self) -> list[int]:
        """The pick and the rivals that it has to be told from, the nearest first."""
        pick = self.pick
        if pick is None:
            return []
        others = sorted((i for i in self.standing if i != pick), key=self._mean)
        open_to = [i for i in others if self._is_open(i)]
        found = [i for i in open_to if len(self.runs[i]) < MOST_RUNS]
        near = others[:1] if others and self._gap(others[0]) <= CLOSE else []
        found += [i for i in near if len(self.runs[i]) < 2 and i not in found]  # noqa: PLR2004
        own = len(self.runs[pick])
        doubted = bool(open_to) or not self.standing[pick].stands
        if own < 2 or (doubted and own < MOST_RUNS):  # noqa: PLR2004 - once is no confirmation
            found.insert(0, pick)
        return found

    def _mean(self, index: int) -> tuple[float, int]:
        return self.standing[index].mean, index

    def _gap(self, index: int) -> float:
        return 0.0 if self.pick is None else self._mean(index)[0] - self._mean(self.pick)[0]

    def _is_open(self, index: int) -> bool:
        """Whether a rival may be clearly better than the pick."""
        if self.pick is None:
            return False
        found = self.standing[index]
        if not found.stands or (found.runs == 1 and (self._beyond[index] > ODD * self._usual)):
            return self._promises(index) < -NARROW
        return compared(found, self.standing[self.pick]).is_open

    @cached_property
    def _beyond(self) -> dict[int, float]:
        """How much longer each took than the model says, as all of them together scale it."""
        logs = np.log(np.maximum(self.modelled, 1e-300))
        beyond = {i: found.mean - float(logs[i]) for i, found in self.standing.items()}
        scale = median([beyond[i] for i in self._known])
        return {i: value - scale for i, value in beyond.items()}

    @property
    def _known(self) -> list[int]:
        return [i for i, found in self.standing.items() if found.stands] or list(self.standing)

    @cached_property
    def _usual(self) -> float:
        """How far candidates are from the calibrated model: a robust sd."""
        known = [abs(self._beyond[i]) for i in self._known]
        if len(known) < ENOUGH:
            return UNKNOWN_USUAL
        return max(1.4826 * median(known), LEAST_USUAL)

    def _promises(self, index: int) -> float:
        """Log of how a rival whose measurement is in doubt may compare with the pick, by the model.

        The lower end of an 80 % interval around what the calibrated model expects.
        """
        if self.pick is None:
            return 0.0
        expected = self.standing[index].mean - max(self._beyond[index], 0.0)
        return expected - Z90 * self._usual - self.standing[self.pick].mean

    @property
    def ties(self) -> tuple[int, ...]:
        """Rivals that cannot be told from the pick, and differ from it by little at most."""
        if self.pick is None or not self.standing[self.pick].stands:
            return ()
        mine = self.standing[self.pick]
        others = [
            i
            for i, found in self.standing.items()
            if i != self.pick and found.stands and compared(found, mine).is_tie
        ]
        return tuple(sorted(others, key=self._mean))

    def undecided(self, bound: float) -> str:
        """Why the pick cannot be told from the rest; empty when it can.

        bound: share by which one that was not measured may be better, judged by itself: the best
        of all of them together may be so on the quietest machine, and that is no noise.
        """
        if self.pick is None:
            return ""
        mine = self.standing[self.pick]
        if mine.disturbed:
            return "others disturbed each run of the pick"
        if not mine.stands:
            return _doubted(mine)
        hidden = [
            i
            for i, found in self.standing.items()
            if i != self.pick
            and (compared(found, mine).hides if found.stands else self._promises(i) < -TELLING)
        ]
        if hidden:
            better = f"{len(hidden)} more may be over {TELLING:.0%} better"
            return f"{better}, because runs differ that much"
        noisy = self.share > UNNOTICED or any(found.disturbed for found in self.standing.values())
        if noisy and bound > TELLING:
            return f"others may be {bound:.0%} better, because runs differ that much"
        return ""


def finals_of(
    posterior: Posterior, records: Sequence[TrialRecord], candidate: Callable[[TrialRecord], int],
    posterior_pick: int | None, modelled: FloatArray,
) -> Finals:  # fmt: skip
    """The finals as the records have them.

    posterior_pick: the pick by what all measurements say together. modelled: [n] what the cost
    model says of what is minimised.
    """
    every = runs_of(records, candidate)
    runs = {i: every[i] for i in posterior.fitting if i in every}
    measured = [r for r in records if is_measured(r)]
    share = unnoticed(
        every.values(), sum(r.looks for r in measured), sum(r.unexplained for r in measured)
    )
    found = standings(runs, share)
    repeats = [r for r in records if r.kind == "repeat" and is_measured(r)]
    last = repeats[-IN_VAIN:]
    return Finals(
        posterior, found, runs, tuple(candidate(r) for r in repeats),
        tuple(r.probe for r in repeats), chosen(posterior, found, posterior_pick), share, modelled,
        in_vain=len(last) == IN_VAIN and all(r.disturbed for r in last),
    )  # fmt: skip


def _doubted(pick: Standing) -> str:
    """Of one that nothing disturbed, how likely it is too long all the same."""
    chance = f"{pick.doubt:.0%}"
    if pick.runs == 1:
        return f"the pick rests on one run, and {chance} may be too slow without anybody noticing"
    return f"the pick rests on {pick.runs} runs, and with a chance of {chance} all are too long"


def chosen(
    posterior: Posterior, found: dict[int, Standing], posterior_pick: int | None
) -> int | None:
    """The pick by all measurements together, unless another was measured to be better.

    Of those that differ by nothing that counts, the plainest. Where the job's limits are not likely
    to be kept, what comes nearest to them is not to be overruled by what is cheapest.
    """
    unknown = posterior_pick is None or posterior_pick not in found
    if unknown or posterior.missed or posterior.incumbent is None:
        return posterior_pick
    standing = [i for i in found if found[i].stands] or [
        i for i in found if not found[i].disturbed
    ]  # fmt: skip
    among = standing or list(found)
    least = min(among, key=lambda i: (found[i].mean, i))
    if posterior_pick in among and found[posterior_pick].mean <= found[least].mean + TIE:
        return posterior_pick
    near = [i for i in among if found[i].mean <= found[least].mean + TIE / 3.0]
    keys = posterior.priced.plainness(near)
    return near[min(range(len(near)), key=lambda k: (keys[k], found[near[k]].mean))]


def measured_as_today(
    posterior: Posterior, space: ParameterSpace, candidates: Candidates, pick: int
) -> int:
    """The pick with own knobs as today, as far as that was measured and is as good.

    What a level of one's own does, no formula knows, and nobody should change one for nothing.
    """
    plainest = _as_today(posterior, space, candidates, pick)
    if plainest in posterior.fitting:
        return plainest
    return _as_today(posterior, space, candidates, pick, posterior.fitting)


def untried_as_today(
    posterior: Posterior, space: ParameterSpace, candidates: Candidates, pick: int
) -> int | None:
    """The same where it was not measured and may be as good; None where there is no such."""
    plainest = _as_today(posterior, space, candidates, pick)
    return plainest if posterior.allows(np.asarray([plainest], np.intp))[0] else None


def _as_today(
    posterior: Posterior, space: ParameterSpace, candidates: Candidates, pick: int,
    among: Collection[int] | None = None,
) -> int:  # fmt: skip
    """The pick with each own knob as today where that is expected to be as good.

    among: what may be chosen on the way; None: any candidate.
    """
    found = pick
    for name in candidates.extra:
        present = candidates.levels[name][0]
        plain = space.find({**space.params(found), name: present})
        if plain is None or plain == found or (among is not None and plain not in among):
            continue
        mean, _ = posterior.difference(np.asarray([plain], np.intp), pick)
        if mean[0] <= TIE:
            found = plain
    return found


def runs_of(
    records: Iterable[TrialRecord], candidate: Callable[[TrialRecord], int]
) -> dict[int, list[Run]]:
    """Every measurement of each candidate, the oldest first."""
    found: dict[int, list[Run]] = {}
    for record in records:
        if not is_measured(record) or record.value is None or record.value <= 0 or record.oom:
            continue
        run = Run(math.log(record.value), record.disturbed, record.noise.get("compute", 0.0))
        found.setdefault(candidate(record), []).append(run)
    return found


def overturned(records: Sequence[TrialRecord], candidate: Callable[[TrialRecord], int]) -> bool:
    """Whether what was measured since the last trial changes what was believed of a candidate."""
    last = max((n for n, r in enumerate(records) if r.kind == "trial"), default=-1)
    before = standings(runs_of(records[: last + 1], candidate), 0.0)
    after = standings(runs_of(records, candidate), 0.0)
    return any(
        abs(after[i].mean - found.mean) > max(NARROW, Z90 * found.sd)
        or (found.disturbed and not after[i].disturbed)
        for i, found in before.items()
    )


def is_final(record: TrialRecord, allowed: Mapping[str, float]) -> bool:
    """Whether the search is over behind this record: its best were already measured again.

    allowed: what may be measured now. More than what had ended the search lets it go on.
    """
    more = any(allowed.get(name, value) > value for name, value in record.allowed.items())
    return record.kind == "repeat" and is_measured(record) and not more


def is_measured(record: TrialRecord) -> bool:
    """Whether a record is of a measurement: a repeat may merely have been proposed again."""
    return bool(record.measured) or record.oom or record.withdrawn
