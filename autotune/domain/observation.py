"""One measured fact about one candidate, whoever measured it, and what such facts taught the model.

A row of a public table, a probe, an `evidence:` entry of a job file, a log and a verified run all
become Observations, each where it is read: `evidence/record/table`, `probe/record`,
`app/job/evidence`, `evidence/log/run_log`, `evidence/runs_seen`. Fits, calibration, validation,
verification, replay and the sampler read these.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable

Quantity = Literal[
    "step_time_s", "duration_s", "memory_bytes", "tokens_per_s", "oom", "checkpoint_save_s",
    "data_wait_s", "batch_s", "compile_s", "evaluation_s",
]  # fmt: skip
TIMES = ("duration_s", "step_time_s", "tokens_per_s")  # quantities that say how fast it trains
MemoryKind = Literal["allocated", "reserved", "nvidia-smi", "unknown"]
MEMORY_KINDS: tuple[MemoryKind, ...] = get_args(MemoryKind)  # what says most of a peak first
# Log sd of a measured time between two runs of one configuration on one machine: clocks,
# temperature, placement.
BETWEEN_RUNS_SD = 0.03
# Facts beside those that a source states.
MARKED = "marked"  # a busy machine spoiled it: why
LOG_SD = "log_sd"  # of another such run, by the scatter of this one
VERIFIED = "verified"  # a verified run measured it
EVALUATED = "evaluation_rows"  # of each evaluation of the run


@dataclass(frozen=True, slots=True)
class Observation:
    """A value with what it speaks of and where it comes from.

    data_wait_s: of an optimizer step; batch_s: what one worker needs for a micro-batch; compile_s:
    of torch.compile, before the first step; evaluation_s: of one evaluation over all of its rows.

    `knobs` holds only what is known of the configuration; `facts` holds whatever else the source
    states (model, gpu, sequence length, ...), by the column names of the source's table.
    """

    id: str
    quantity: Quantity
    value: float  # seconds, bytes, tokens per second; 1.0 for an out-of-memory
    provenance: str
    kind: MemoryKind | None = None
    knobs: dict[str, object] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    today: bool = False  # whether this is how the user runs the job now


def value_of(
    seen: Iterable[Observation], quantity: Quantity, kind: MemoryKind | None = None
) -> float | None:
    """What the first Observation of a quantity says; of memory, of that kind. None: none does."""
    found = (o.value for o in seen if o.quantity == quantity and kind in {None, o.kind})
    return next(found, None)


@dataclass(frozen=True, slots=True)
class StepError:
    """How far steps are from the model, by what they are made of (`cost.learned`).

    mean, covariance: of a constant, of the products of a step's shares and of its size, in
    logarithms; variance: of a step beside them, which nothing shares.
    """

    mean: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    variance: float

    @classmethod
    def told(cls, mean: Any, covariance: Any, variance: float) -> Self:  # noqa: ANN401 - JSON
        """From lists."""
        return cls(tuple(mean), tuple(tuple(row) for row in covariance), variance)


@dataclass(frozen=True, slots=True)
class MachineEffect:
    """What a user's past runs say of one kind of machine, for every job on it.

    factor multiplies the predicted seconds of a component, spread its relative spread: what past
    runs settle is no longer uncertain. here: runs on such a device were among them. step: the same
    for every step by what it is made of; factor and spread are then those of the runs' own steps.
    """

    device: str
    count: int
    component: str
    factor: float
    spread: float
    runs: int
    here: bool
    step: StepError | None = None


@dataclass(frozen=True, slots=True)
class Calibration:
    """Multiplies predicted seconds (or bytes) of a component; replaces its relative spread.

    Keys are component names of the cost model: compute, collectives, data, checkpoint, evaluation,
    startup, memory. Absent: factor 1 and the model's own spread, unless past runs on a machine
    speak of the component: a measurement of the job itself outranks them.
    """

    factors: dict[str, float] = field(default_factory=dict)
    log_sds: dict[str, float] = field(default_factory=dict)
    provenance: tuple[str, ...] = ()
    machines: tuple[MachineEffect, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is scaled; evidence that explains nothing only widens intervals."""
        return not self.factors and not self.machines

    def on_machines(self, component: str) -> dict[tuple[str, int], MachineEffect]:
        """Effects on a component by device and count; none where the job's own were measured."""
        if component in self.factors:
            return {}
        return {(o.device, o.count): o for o in self.machines if o.component == component}
