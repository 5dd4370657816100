"""A measured run in the cost model's terms, and how runs are counted.

What is here: the type that fits, validation and replay read; which runs are the same configuration
measured again; which are left out together; weights and quantiles under which a source with many
rows does not outvote the others. How a table's row becomes one: `record/`. What a user's own
evidence speaks of: `reference`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import numpy as np

from autotune.cost.bill import Bill
from autotune.domain.candidates import Candidate, Candidates
from autotune.domain.job import Job
from autotune.domain.observation import value_of
from autotune.domain.outcome import Z90
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autotune.cost.columns import FloatArray
    from autotune.domain.observation import MemoryKind, Observation

Grade = Literal["A", "B", "C"]
Group = tuple[str, str, str, str]  # source repository, model, GPU, task: as the table spells them
LeftOutGroup = tuple[str, str, str]  # source, shape of the model, device
Price = Callable[[Job, Candidates], Bill]


# The output of the memory component that a kind of reading is compared with. A driver's reading
# holds the context, which no measurement scales, and the allocator's cache; so does torch's
# reserved peak, without the context.
READ_AS: dict[MemoryKind, str] = {
    "allocated": "allocated", "reserved": "reserved", "nvidia-smi": "driver",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Grades:
    """How exact a row's figures are: A exact, B usable, C for orientation; None: not graded."""

    time: Grade | None = None
    memory: Grade | None = None


UNGRADED = Grades()


@dataclass(frozen=True, slots=True)
class MeasuredCase(Candidate):
    """A measured run with what reproduces it in the cost model, and its Observations.

    Cases that share a job hold the same Job object, so that they can be priced together.
    observations: the seconds of a step in steady state, peaks of memory (the source's own reading
    first, then the driver's where it is given beside that), or that the run ran out of memory.
    """

    id: str
    group: Group
    observations: tuple[Observation, ...]
    replicate_key: str
    longest_known: bool = True  # the longest row is stated, so the peak of memory can be predicted
    older: bool = False  # an earlier snapshot of a run that the table also has in a newer one
    assumed: tuple[str, ...] = ()
    sweep_key: str = ""  # equal where only knobs of a search differ
    partial: tuple[str, ...] = ()  # measured values of the row that cannot be compared, and why
    grades: Grades = UNGRADED
    logged: bool = False  # somebody's own log of the run was read, not a table
    guessed: bool = False  # a setting that decides the figures is a trainer's default, not stated
    bounded: tuple[Observation, ...] = ()  # readings that a prediction can only bound: no errors
    capped: bool = True  # the prediction is the most that those can be; else, at a mean, the least

    @property
    def teaches_time(self) -> bool:
        """Whether its seconds may go into a fit: nothing that decides them is a guess.

        What joins several machines is known by its name at best, so those rows are compared alone;
        so are the few of one source that train modules whole: they judge how those are priced.
        """
        alone = self.offer.network is not None or self.job.method.modules_to_save
        return self.grades.time != "C" and not self.guessed and not alone

    @property
    def teaches_memory(self) -> bool:
        """The same of its bytes and of whether it fitted."""
        return self.grades.memory != "C" and not self.guessed and self.offer.network is None

    @property
    def step(self) -> Observation | None:
        """The seconds of one optimizer step."""
        return next((o for o in self.observations if o.quantity == "step_time_s"), None)

    @property
    def step_time_s(self) -> float | None:
        """[s] of one optimizer step; None where none was measured."""
        return self.step.value if self.step else None

    @property
    def peak(self) -> Observation | None:
        """The source's own reading of memory."""
        return next((o for o in self.observations if o.quantity == "memory_bytes"), None)

    def peak_bytes(self, kind: MemoryKind) -> float | None:
        """[bytes] peak of that kind; None where nobody read it."""
        return value_of(self.observations, "memory_bytes", kind)

    @property
    def oom(self) -> bool:
        """Whether it ran out of memory."""
        return any(o.quantity == "oom" for o in self.observations)


class Refused(Exception):  # noqa: N818 - not an error: the row is outside the cost model
    """A row that the cost model does not cover; the message is the reason to skip it."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that is not compared with the cost model, and the reason."""

    id: str
    reason: str


def newest(cases: Iterable[MeasuredCase]) -> list[MeasuredCase]:
    """Each configuration of a source once: its newest snapshot."""
    kept: dict[str, MeasuredCase] = {}
    for case in cases:
        own = kept.get(case.replicate_key)
        if own is None or (own.older and not case.older):
            kept[case.replicate_key] = case
    return list(kept.values())


def memory_cases(cases: Iterable[MeasuredCase]) -> list[MeasuredCase]:
    """Runs whose memory can be compared, each configuration once.

    Not those of which a setting is guessed: whether they fit is a question to the guess.
    """
    return newest(case for case in cases if case.longest_known and not case.guessed)


def timed_cases(cases: Iterable[MeasuredCase]) -> list[MeasuredCase]:
    """Runs with a step time, each configuration once."""
    return newest(case for case in cases if case.step)


def both_outcomes(cases: Iterable[MeasuredCase]) -> set[str]:
    """Sources that report runs that ran out of memory beside runs that finished."""
    ended: dict[str, set[bool]] = {}
    for case in cases:
        ended.setdefault(case.group[0], set()).add(case.oom)
    return {source for source, found in ended.items() if len(found) > 1}


def left_out_key(case: MeasuredCase) -> LeftOutGroup:
    """What a run is left out with: repackaged copies of one model belong together."""
    model = case.job.model
    shape = (model.num_layers, model.hidden_size, model.kv_size, model.num_experts)
    return case.group[0], "x".join(map(str, shape)), case.offer.device.name


Unit = tuple[str, ...]  # what is left out together: one of `UNITS` says it of a run


def source_of(case: MeasuredCase) -> Unit:
    """The source that a run is left out with."""
    return case.group[:1]


def device_of(case: MeasuredCase) -> Unit:
    """The device that a run is left out with, whatever its source."""
    return (case.offer.device.name,)


def program_of(case: MeasuredCase) -> Unit:
    """The training program that a run is left out with, whatever its source."""
    return (case.job.software.stack,)


UNITS: dict[str, Callable[[MeasuredCase], Unit]] = {
    "source": source_of, "program": program_of, "device": device_of, "group": left_out_key,
}  # fmt: skip


def student_90(freedom: float) -> float:
    """The 90 % quantile of Student's t; of one degree of freedom where there is less.

    Source: Abramowitz and Stegun 1964, formula 26.7.5, two terms: within 0.3 % from four on.
    """
    n, z = max(freedom, 1.0), Z90
    return z + (z**3 + z) / (4.0 * n) + (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / (96.0 * n**2)


def equal_weights(groups: Sequence[LeftOutGroup]) -> FloatArray:
    """[n] weights that give every group the same share."""
    sizes = Counter(groups)
    return np.asarray([1.0 / sizes[group] for group in groups])


def weighted_quantile(values: FloatArray, weights: FloatArray, share: float) -> float:
    """The value at a share of the total weight, linear between the middles of the steps."""
    order = np.argsort(values, kind="stable")
    ordered, own = values[order], weights[order]
    middle = np.cumsum(own) - own / 2.0
    return float(np.interp(share * own.sum(), middle, ordered))


WANTED = 0.80
HALVINGS = 40  # of the bracket
SMALLEST, LARGEST = 0.005, 2.0  # [log] no spread is below, none above


def covering_spread(
    error: FloatArray,
    weights: FloatArray,
    known_sd: FloatArray | float = 0.0,
    scale: FloatArray | float = 1.0,
) -> float:
    """The smallest spread under which the 80 % interval holds `WANTED` of the weight.

    error: [n] absolute log errors. known_sd: spread that is there anyway; scale: on the sum.
    """
    low, high = 0.0, LARGEST
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        inside = error <= Z90 * scale * np.hypot(known_sd, middle)
        if float(np.average(inside, weights=weights)) < WANTED:
            low = middle
        else:
            high = middle
    return high
