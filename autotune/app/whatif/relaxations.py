"""What would make a job fit that does not: one change at a time, each answered by the cost model.

Everything the space holds was tried already, so a change opens something that was closed: a lock,
a knob, another machine, or the contract itself (quality: the user's call, never applied). Where no
single one suffices, two at a time.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from autotune.app.hardware.machines import COUNTS
from autotune.app.whatif.changes import (
    HOST_PARTS,
    Rungs,
    climbing,
    contract_changes,
    harm,
    host_lacks,
    larger_host,
    more_devices,
    other_machines,
)
from autotune.app.whatif.levers import all_settings, setting_changes
from autotune.app.whatif.moved import class_of, other_states, states_opened
from autotune.domain.answer.limits import odds
from autotune.domain.answer.recommendation import Relaxation
from autotune.domain.candidates import OFFER
from autotune.domain.config import ACCUMULATION, CLOSED_FORMS, PLAIN
from autotune.domain.edit import Edit, most_of
from autotune.pricing import bills_of, bills_under
from autotune.search.alternatives import nearest_misses, short_of
from autotune.search.selection import best_index, choosable, excess, figures
from autotune.space.file import load_space

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autotune.cost.bill import Bill
    from autotune.domain.candidates import SearchSpace
    from autotune.domain.config import Config, KnobValue
    from autotune.domain.job import Job
    from autotune.domain.observation import Calibration
    from autotune.domain.outcome import Estimated, ShortOf
    from autotune.pricing import Question, QuestionEdit
    from autotune.search.selection import Objective

SHOWN = {"setting": 6, "machine": 4, "quality": 5}  # of each sort, in this order
SORTS = tuple(SHOWN)
PAIRS = 3  # shown of each sort
MACHINES = 3
OFFLOAD = "offload"


def relaxations(
    job: Job, space: SearchSpace, calibration: Calibration | None = None,
    objective: Objective = "cost",
) -> tuple[Relaxation, ...]:  # fmt: skip
    """Changes after which some candidate of the job fits, the best of each sort first.

    The best is the cheapest or the soonest, as the objective says. What keeps the limits is first.

    First settings on the job's own machines, closed knobs among them, then other machines, then
    changes of the contract. When no setting suffices alone, pairs of them, then all of them
    together; the same for changes of the contract.
    """
    asked = Tries((job, space), calibration, set(job.lock), dict(job.lock), objective)
    return asked.answers()


def relaxations_of(
    job: Job, config: Config, calibration: Calibration | None = None, *, disk: bool = False,
    assumed: tuple[str, ...] = (),
) -> tuple[Relaxation, ...]:  # fmt: skip
    """Changes after which exactly this configuration fits on the job's first offer.

    disk: it is the disk that does not hold its checkpoints, not the device its step.
    assumed: knobs that nobody stated, and that a change may therefore set as it needs.
    """
    kept = {name: value for name, value in config.as_dict().items() if name not in assumed}
    if not disk:  # of no consequence for what fits
        kept = {k: v for k, v in kept.items() if k not in CLOSED_FORMS or k in job.lock}
    stated = replace(job, lock=kept, offers=job.offers[:1])
    pinned = set(job.lock) | (set(CLOSED_FORMS) if disk else set())
    asked = Tries((stated, load_space()), calibration, pinned, config.as_dict(), assumed=assumed)
    return asked.answers()


class Tries:
    """One question: the job and space that do not fit, what is known of them, and what is tried."""

    sure = False  # whether only what keeps all limits of the job counts

    def __init__(
        self,
        question: Question,
        calibration: Calibration | None,
        pinned: set[str],
        before: dict[str, KnobValue],
        objective: Objective = "cost",
        assumed: tuple[str, ...] = (),
    ) -> None:
        self.question = question
        self.assumed = assumed
        self.objective = objective
        self.calibration = calibration
        self.before = before
        self.pinned = pinned

    @cached_property
    def settings(self) -> list[QuestionEdit]:
        """Each closed setting opened alone."""
        return setting_changes(self.question, load_space("extended"), self.pinned)

    @cached_property
    def bill(self) -> Bill | None:
        """Of the question as it is; None where nothing of it is valid."""
        (found,) = bills_of([self.question], self.calibration)
        return found

    @cached_property
    def short_of(self) -> ShortOf | None:
        """What the nearest candidate is short of; None where that is a limit or nothing."""
        near = nearest_misses(self.bill, 1) if self.bill is not None else []
        return short_of(self.bill, near[0]) if self.bill is not None and near else None

    def answers(self) -> tuple[Relaxation, ...]:
        """All of them, in the order in which they are told."""
        if self.short_of == "disk":
            return self.of_the_disk()
        if self.assumed and (unchanged := self.first_of([(Edit(lambda question: question),)])):
            return tuple(unchanged)
        found = self._same_training() + self._machines() + self._contract()
        distinct = {(each.change, each.duration_s): each for each in found}.values()
        ordered = sorted(distinct, key=lambda each: (SORTS.index(sort_of(each)), self.rank(each)))
        left = dict(SHOWN)
        kept = []
        for each in ordered:
            host = each.short_of in HOST_PARTS  # a few at most, and of the job's own machines
            left[sort_of(each)] -= not host
            if host or left[sort_of(each)] >= 0:
                kept.append(each)
        return tuple(kept)

    def rank(self, each: Relaxation) -> tuple[bool, int, float, float]:
        """Sorts changes of one sort: limits kept, then the mildest, then by what is minimised."""
        limits = self.question[0].limits
        late = each.duration_s > min(limits.deadline_s or np.inf, limits.max_session_s or np.inf)
        late |= each.cost_usd > (limits.budget_usd or np.inf)
        figures = each.cost_usd, each.duration_s
        return late, harm(each), *(figures if self.objective == "cost" else figures[::-1])

    def of_the_disk(self) -> tuple[Relaxation, ...]:
        """Fewer checkpoints, or a larger disk: what trains is not what is in the way."""
        saves = [change for change in self.settings if set(change.columns) & set(CLOSED_FORMS)]
        return (*self.first_of((change,) for change in saves), *self._larger_host())

    def _larger_host(self) -> list[Relaxation]:
        """The same machines with more of what their hosts lack, where a device holds the job.

        What is offloaded lies in the host's memory: where only that is short, both are opened.
        """
        if self.bill is None:
            return []
        own = [larger_host(self.bill, name) for name in host_lacks(self.bill)]
        if own:
            return self.first_of((change,) for change in own)
        levers = [change for change in self.settings if change.key == OFFLOAD]
        opened = zip(levers, self._priced(levers), strict=True)
        found = [
            (larger_host(bill, name).then(lever),)
            for lever, bill in opened
            if bill is not None and not choosable(bill).any()
            for name in host_lacks(bill)
        ]
        return self.first_of(found)

    def _same_training(self) -> list[Relaxation]:
        found = self.first_of((change,) for change in self.settings)
        if not found:
            pairs = ((one.then(two),) for one, two in combinations(self.settings, 2))
            found = _soonest_of(self.first_of(pairs))
        if not found and len(self.settings) > 2:  # noqa: PLR2004 - more than a pair
            found = self.fewest()
        return found

    def fewest(self) -> list[Relaxation]:
        """All settings opened at once, less those that it fits without."""
        needed = list(self.settings)
        (best,) = self._tried([all_settings(needed)])
        for change in self.settings if best else ():
            rest = [own for own in needed if own is not change]
            (without,) = self._tried([all_settings(rest)]) if rest else (None,)
            if without is not None:
                best, needed = without, rest
        return [best] if best else []

    def _machines(self) -> list[Relaxation]:
        more = self.first_of(more_devices(self.question))
        return self._larger_host() + more + self.elsewhere()

    def _contract(self) -> list[Relaxation]:
        ladders = contract_changes(self.question[0])
        found = self.first_of(ladders)
        if found:
            return found
        others = [*more_devices(self.question), *((change,) for change in self.settings)]
        pairs = [*combinations(ladders, 2), *((own, other) for own in ladders for other in others)]
        found = self.first_of(climbing(*pair) for pair in pairs)
        if not found and self.settings:
            together = (all_settings(self.settings),)
            found = self.first_of(climbing(own, together) for own in ladders)
        return _soonest_of(found)

    def first_of(self, ladders: Iterable[Rungs]) -> list[Relaxation]:
        """Of each ladder the mildest change that fits: all first rungs together, then the next."""
        climbed = [rungs for rungs in ladders if rungs]
        found: dict[int, Relaxation] = {}
        for rung in range(max(map(len, climbed), default=0)):
            trying = [
                (number, rungs[rung])
                for number, rungs in enumerate(climbed)
                if number not in found and rung < len(rungs)
            ]
            tried = self._tried([change for _, change in trying])
            found |= {n: told for (n, _), told in zip(trying, tried, strict=True) if told}
        return [found[number] for number in sorted(found)]

    def _tried(self, changes: Sequence[QuestionEdit]) -> list[Relaxation | None]:
        """Each change with the best that fits under it; None where nothing does."""
        told: list[Relaxation | None] = []
        for change, bill in zip(changes, self._priced(changes, late=not self.sure), strict=True):
            if bill is None or (self.sure and bill.mostly_missed.all()):
                told.append(None)
                continue
            index = best_index(bill, self.objective, bill.job.limits).index
            if index is None:
                told.append(None)
                continue
            over = bill.ram_short_bytes if self._short(change) == "ram" else bill.disk_short_bytes
            best = bill.estimate(index, spread=self.sure)
            if self.sure and is_late(bill.job, best):
                told.append(None)
                continue
            found = self._told(change, best, float(over[index]))
            told.append(found if found.change else None)
        return told

    def elsewhere(self, *, late: bool = True) -> list[Relaxation]:
        """The cheapest priced machines on which the same job fits, one a device.

        late: also those on which it misses a limit.
        """
        job = self.question[0]
        own = {(offer.device.name, offer.count) for offer in job.offers}
        counts = (count for count in COUNTS if job.global_batch_size % count == 0)
        changes = [change for count in counts if (change := other_machines(count)) is not None]
        rows: list[tuple[QuestionEdit, Estimated]] = []
        for change, bill in zip(changes, self._priced(changes, late=late), strict=True):
            found = _cheapest(bill, self.objective, late=late) if bill is not None else []
            found = [row for row in found if late or not is_late(job, row)]
            rows += [(change, row) for row in found if _machine(row) not in own]
        rows.sort(key=lambda pair: (is_late(job, pair[1]), pair[1].cost_usd.p50))
        first = {row.offer.device.name: (change, row) for change, row in reversed(rows)}
        chosen = sorted(first.values(), key=rows.index)[:MACHINES]
        return [self._told(change, row) for change, row in chosen]

    def _priced(self, changes: Sequence[QuestionEdit], *, late: bool = True) -> list[Bill | None]:
        """The bill of each changed question; None where no device holds anything of it.

        late: also of machines that surely miss a limit.
        """
        return bills_under(self.question, changes, self.calibration, fitting=True, late=late)

    def _short(self, change: QuestionEdit) -> ShortOf:
        """What is short without a change, as far as this change is concerned."""
        if change.key in HOST_PARTS:
            return "ram" if change.key == "ram" else "disk"
        return self.short_of or "memory"

    def _told(self, change: QuestionEdit, best: Estimated, over_host: float = 0.0) -> Relaxation:
        """over_host: [bytes] by which it misses what its host lacks; below 0, what is left."""
        moved = dict.fromkeys((*change.columns, *self.assumed))
        knobs = [name for name in moved if self._differs(name, best)]
        elsewhere = change.sort == "machine" and not change.label
        label = [f"on {best.offer.label}"] if elsewhere else []
        own = [change.label] if change.label else []
        named = [name for name in knobs if name in change.columns]
        if not named and not own and not label:
            named = knobs
        settings = [self._knob_words(name, best) for name in named if name != ACCUMULATION]
        label += [*settings, *own] if change.sort == "setting" else [*own, *settings]
        flags = [f"--gpu {best.offer.device.name}:{best.offer.count}"] if elsewhere else []
        flags += _options(change.typed)
        for name in knobs:
            if name in PLAIN and name not in self.before:
                flags += [] if f"--allow {name}" in flags else [f"--allow {name}"]
            elif name != ACCUMULATION or name in self.before:
                flags.append(f"--set {name}={best.config.as_dict()[name]}")
        short = "memory" if elsewhere else self._short(change)  # another host's was only assumed
        values = best.config.as_dict()
        classes = [class_of(name, self.before.get(name, PLAIN.get(name)), values[name])
                   for name in knobs]  # fmt: skip
        opens = "sharding" in knobs or (OFFLOAD in knobs and not self.before.get("sharding"))
        classes += ["numeric"] if opens and self._states(best) else []
        needed, available = best.memory_bytes.total, best.usable_bytes
        if short in HOST_PARTS:
            available = getattr(best.offer.host, HOST_PARTS[short])
            needed = available + over_host
        return Relaxation(
            change=", ".join(label),
            required_bytes=needed,
            available_bytes=available,
            quality=change.sort == "quality",
            short_of=short,
            duration_s=best.duration_s.p50,
            cost_usd=best.cost_usd.p50,
            kind=change.sort,
            apply=" ".join(dict.fromkeys(flags)),
            fits_probability=best.fits_probability,
            device=best.offer.device.name,
            device_count=best.offer.count,
            config=values,
            price_marks=best.offer.price_marks,
            class_="quality" if change.changes_training else most_of(*classes),
        )

    def _states(self, best: Estimated) -> str:
        """What the weights are trained in, where the sharding that is found moves it."""
        job, before = self.question[0], self.before.get("sharding")
        return other_states(job, before, best.config.sharding) or (
            states_opened(job, best) if before is None else ""
        )

    def _differs(self, name: str, best: Estimated) -> bool:
        value = best.config.as_dict()[name]
        return value != self.before.get(name, PLAIN.get(name))

    def _knob_words(self, name: str, best: Estimated) -> str:
        value = best.config.as_dict()[name]
        if name not in self.before:
            states = states_opened(self.question[0], best) if name == OFFLOAD else ""
            opened = f" (--allow {name}{states and '; ' + states})" if name in PLAIN else ""
            return f"{name} {value}{opened}"
        locked = "the locked " if name in self.pinned else ""
        states = self._states(best) if name == "sharding" else ""
        return f"{name} {value}, not {locked}{self.before[name]}" + (states and f" ({states})")


def sort_of(each: Relaxation) -> str:
    """A lock and a setting are of one sort."""
    return "setting" if each.kind == "lock" else each.kind


def _soonest_of(found: Sequence[Relaxation]) -> list[Relaxation]:
    return sorted(found, key=lambda each: each.duration_s)[:PAIRS]


def _options(apply: str) -> list[str]:
    """Options as they are typed, each with its value."""
    words = apply.split()
    return [f"{flag} {value}" for flag, value in zip(words[::2], words[1::2], strict=True)]


def _machine(row: Estimated) -> tuple[str, int]:
    return row.offer.device.name, row.offer.count


def is_late(job: Job, row: Estimated) -> bool:
    """Whether it does not keep the deadline, the session or the budget as surely as is asked."""
    return not all(each.kept for each in odds(job.limits, row.duration_s, row.cost_usd))


def _cheapest(bill: Bill, objective: Objective, *, late: bool) -> list[Estimated]:
    """What `tune` would pick on every offer that holds it, the best offers first.

    late: also offers on which every candidate is expected to miss a limit.
    """
    over = excess(bill, bill.job.limits) > 0
    first, second = figures(bill, objective)
    fits = np.flatnonzero(choosable(bill))
    order = np.lexsort((second[fits], first[fits], over[fits]))
    offers = bill.candidates.codes[OFFER]
    missed = bill.mostly_missed & (not late)
    found = []
    for code in list(dict.fromkeys(offers[fits[order]].tolist()))[: 2 * MACHINES]:
        rows = fits[offers[fits] == code]
        if missed[rows].all():
            continue
        own = bill.take(rows, bill.job)
        index = best_index(own, objective, bill.job.limits).index
        asked = bool(bill.job.limits.stated)
        found += [] if index is None else [own.estimate(index, spread=asked)]
    return found
