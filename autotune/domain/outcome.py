"""What evaluating a candidate yields: Estimated | Measured | Infeasible | Failed; its trace.

Infeasible is data (by how much it misses). Failed is retried or reported, never taught to a model.
"""

from __future__ import annotations

from dataclasses import field, fields
from typing import TYPE_CHECKING, Literal

from autotune.domain.answer.contract import Answer
from autotune.domain.units import format_bytes, format_count
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.domain.config import Config
    from autotune.domain.device import Offer

Basis = Literal["modelled", "traced", "calibrated", "measured"]
Bound = Literal[
    "compute", "bandwidth", "launch", "data", "communication", "checkpoint", "evaluation", "startup"
]
# Out-of-memory classes: fits; may run out of memory; runs out of memory whatever the spread.
Verdict = Literal["fits", "at_risk", "certain_oom"]
# What a machine has too little of; limit: the deadline, the longest session or the budget.
ShortOf = Literal["memory", "disk", "ram", "shm", "limit"]
Z90 = 1.2815515655446004  # 90th percentile of the standard normal: p90 = p50 exp(Z90 x log sd)


@dataclass(frozen=True, slots=True)
class Spread(Answer):
    """A quantity with its 80 % interval."""

    p10: float
    p50: float
    p90: float

    def times(self, factor: float) -> Spread:
        """So many times it, such as a time at a price."""
        return Spread(self.p10 * factor, self.p50 * factor, self.p90 * factor)


@dataclass(frozen=True, slots=True)
class DiskUse(Answer):
    """What a run writes, when the disk of its results is fullest.

    checkpoints: how many lie there at once. final_model_bytes: 0 where the disk is fullest before
    that is written. Beside the total, because they may lie on another disk: the files of the model
    that a rented machine fetches ($HF_HOME), and the rows once tokenised.
    """

    checkpoints: int = 0
    checkpoint_bytes: float = 0.0
    final_model_bytes: float = 0.0
    total_bytes: float = field(init=False)
    fetched_bytes: float = 0.0
    tokenised_bytes: float = 0.0

    def __post_init__(self) -> None:
        """The total follows."""
        total = self.checkpoints * self.checkpoint_bytes + self.final_model_bytes
        object.__setattr__(self, "total_bytes", total)

    @property
    def words(self) -> str:
        """What fills the disk: 3 checkpoints of 89.0 GiB and the final model of 15.0 GiB."""
        number, size = self.checkpoints, format_bytes(self.checkpoint_bytes)
        plural = "" if number == 1 else "s"
        saved = [f"{format_count(number)} checkpoint{plural} of {size}"] if number else []
        if self.final_model_bytes > 0:
            saved.append(f"the final model of {format_bytes(self.final_model_bytes)}")
        return " and ".join(saved)

    @property
    def beside(self) -> str:
        """What else a run writes to a disk, in words; empty where that is nothing."""
        other = []
        if self.fetched_bytes > 0:
            other.append(f"{format_bytes(self.fetched_bytes)} of the model's files in $HF_HOME")
        if self.tokenised_bytes > 0:
            other.append(f"up to {format_bytes(self.tokenised_bytes)} of tokenised rows")
        return " and ".join(other)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a whole is the sum of: seconds of a bill, bytes of a peak."""

    def as_dict(self) -> dict[str, float]:
        """Every part by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @property
    def total(self) -> float:
        """Sum of the parts, in their unit."""
        return sum(self.as_dict().values())


@dataclass(frozen=True, slots=True)
class TimeParts(Parts):
    """[s] the parts of the bill; they sum to duration p50."""

    load: float
    prepare: float
    compile: float
    train: float
    data_wait: float
    evaluation: float
    checkpoint: float
    final_save: float
    lost_work: float

    @property
    def once(self) -> float:
        """[s] what happens once, however many steps there are."""
        return self.load + self.prepare + self.compile + self.final_save


# The component of the cost model that decides each part of the bill.
COMPONENT_OF = {
    "load": "startup", "prepare": "data", "compile": "startup", "train": "compute",
    "data_wait": "data", "evaluation": "evaluation", "checkpoint": "checkpoint",
    "final_save": "checkpoint", "lost_work": "checkpoint",
}  # fmt: skip


def bound_of(parts: TimeParts, in_training: Bound) -> Bound:
    """What bounds a run: the largest share of its bill; of training, what bounds a step.

    in_training: what bounds a step whose batches wait for nothing.
    """
    shares: dict[Bound, float] = {
        "data": parts.data_wait,
        "checkpoint": parts.checkpoint + parts.lost_work + parts.final_save,
        "evaluation": parts.evaluation,
        "startup": parts.load + parts.prepare + parts.compile,
        in_training: parts.train,
    }
    return max(shares, key=lambda name: shares[name])


@dataclass(frozen=True, slots=True)
class MemoryParts(Parts):
    """[bytes] on one device at the instant of peak at the longest batch; parts sum to `total`."""

    weights: float
    adapters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    workspace: float
    context: float
    fragmentation: float


@dataclass(frozen=True, slots=True)
class Estimated:
    """The bill of the finished run for one candidate, and whether it fits."""

    offer: Offer
    config: Config
    basis: Basis
    steps: int
    duration_s: Spread
    cost_usd: Spread
    step_time_s: float
    tokens_per_s: float
    mfu: float
    bound_by: Bound
    time_s: TimeParts
    memory_bytes: MemoryParts
    usable_bytes: float
    fits_probability: float
    verdict: Verdict
    checkpoints: int
    checkpoint_bytes: float
    reserved_bytes: float = 0.0  # by torch's allocator at the peak: allocated and cached
    disk: DiskUse = DiskUse()
    disk_short_bytes: float = 0.0  # by so much what it writes is too large for the disk
    caution: float = 1.0  # a step at the pessimistic end of what nobody measured, over the step
    step_bound: Bound = "compute"  # what bounds a training step by the model, data aside
    measured: Measured | None = None  # what the row rests on, when its basis is measured
    traced: MemoryTrace | None = None  # what its memory rests on, where it was traced

    @property
    def feasible(self) -> bool:
        """Total within usable memory, and at least nine chances in ten that it fits."""
        return (
            self.memory_bytes.total <= self.usable_bytes
            and self.fits_probability >= FEASIBLE_PROBABILITY
        )

    @property
    def risk(self) -> str:
        """Why memory may run short though it fits, in a clause; empty outside the risk band.

        In the band: what the allocator is expected to reserve (simulated, measured or modelled)
        does not stay within usable memory though what it hands out does, or the probability of
        fitting is under `SAFE_PROBABILITY`.
        """
        if self.crowded:
            held, whose = self._reserved()
            return (
                f"with what it caches, the allocator is {whose} to hold {format_bytes(held)}, "
                f"where {format_bytes(self.usable_bytes)} are usable"
            )
        if self.fits_probability < SAFE_PROBABILITY:
            return f"the probability that it fits is {self.fits_probability:.2f}"
        return ""

    @property
    def crowded(self) -> bool:
        """Whether what the allocator holds, its cache included, leaves nothing of usable memory."""
        return self._reserved()[0] >= self.usable_bytes * (1.0 - SAME)

    def _reserved(self) -> tuple[float, str]:
        """[bytes] reserved at most, with the context beside it, and how that is known."""
        context = self.memory_bytes.context
        if self.measured is not None:
            return self.measured.peak_reserved_bytes + context, "measured"
        if self.traced is not None and self.traced.allocator is not None:
            return self.traced.allocator.reserved_bytes + context, "simulated"
        return self.reserved_bytes + context, "expected"


SAME = 1e-9  # relative: two sizes in bytes
FEASIBLE_PROBABILITY = 0.9
SAFE_PROBABILITY = 0.95  # from here on nothing is done about fragmentation


@dataclass(frozen=True, slots=True)
class Measured:
    """What a probe or a finished run measured for one candidate.

    disturbed: why its time is not the machine's own pace; empty where nothing speaks so.
    """

    offer: Offer
    config: Config
    step_time_s: float
    peak_allocated_bytes: float
    peak_reserved_bytes: float
    provenance: str
    predicted_step_s: float | None = None  # by the model, before anything was measured
    disturbed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Infeasible:
    """A candidate that does not do: what was short, and by how much. reason: as it was found."""

    offer: Offer
    config: Config
    required_bytes: float
    available_bytes: float
    reason: str
    short_of: ShortOf = "memory"


@dataclass(frozen=True, slots=True)
class Failed:
    """An evaluation that broke for a reason other than memory."""

    offer: Offer
    config: Config
    stage: str
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class AtOp:
    """An allocation of so many bytes, and when it happened. step 0: before the first."""

    step: int
    phase: str
    op: str
    size_bytes: float


@dataclass(frozen=True, slots=True)
class AllocatorRun:
    """[bytes] torch's caching allocator over the first steps of the run, simulated.

    reserved: held at most on a device without end, `largest` being what made it so; in_use: handed
    out at most, parts of blocks that were too small to split included. needed: the smallest
    capacity on which the run ends well. out_of_memory: the allocation that fails within
    `capacity_bytes`; flushes: how often the cache had to be given back until then.
    """

    capacity_bytes: float
    reserved_bytes: float
    in_use_bytes: float
    needed_bytes: float
    largest: AtOp
    flushes: int
    out_of_memory: AtOp | None
    expandable_needed_bytes: float
    expandable_out_of_memory: AtOp | None


@dataclass(frozen=True, slots=True)
class MemoryTrace:
    """[bytes] allocated at most, by the op and in the phase that is named, and in every phase.

    formula_bytes: what the formula says of the same. layers: the depths that were traced.
    """

    allocated_bytes: float
    formula_bytes: float
    phase: str
    op: str
    phases: dict[str, float]
    layers: tuple[int, ...]
    versions: dict[str, str]
    same_software: bool
    allocator: AllocatorRun | None = None
