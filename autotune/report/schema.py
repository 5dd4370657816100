"""The shapes of the JSON that the command line prints and run folders keep.

Numbers are in base units (seconds, bytes, US dollars), shares are fractions, and the unit is the
suffix of the name. Keys are only ever added; a change of meaning raises `SCHEMA_VERSION`.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from autotune.domain.answer.contract import ABSENT, Answer
from autotune.domain.answer.limits import LimitOdds, Miss, ShortRows
from autotune.domain.answer.recommendation import (
    Asked,
    Difference,
    FitsIf,
    Narrowing,
    NextStep,
    ProbedRun,
    Rejected,
    Relaxation,
    SearchRecord,
    Sensitivity,
    Shortfall,
    WorthProbe,
)
from autotune.domain.answer.tiebreak import Tiebreak
from autotune.domain.answer.waterfall import MeasuredGap, SideOption, WaterfallStep
from autotune.domain.job import CONFIDENCE, Assumption
from autotune.domain.objective import Objective
from autotune.domain.outcome import DiskUse, Spread
from autotune.frozen import dataclass

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Answer):
    """One candidate's bill."""

    device: str
    device_count: int
    nodes: int = field(default=1, metadata=ABSENT)  # machines, where there are several
    network: str | None = field(default=None, metadata=ABSENT)  # what joins them
    instance: str | None = None  # "aws p4d.24xlarge", where the machine was named so
    usd_per_hour: float
    price_as_of: str | None
    price_source: str
    price_age_days: int | None = None
    price_marks: tuple[str, ...] = ()  # old, scaled, asked, spot, owned, free
    price_scaled_from: int | None = None  # devices of the machine whose share it is
    spot: bool
    config: dict[str, int | bool | str]
    basis: str
    caution: float = 1.0  # a step at the slow end of what nobody measured, over the step
    checkpoints: int
    checkpoint_bytes: float
    duration_s: Spread
    cost_usd: Spread
    step_time_s: float
    tokens_per_s: float
    mfu: float
    bound_by: str
    time_s: dict[str, float]
    memory_bytes: dict[str, float]
    fits_probability: float
    verdict: str
    reserved_bytes: float = 0.0  # by torch's allocator, what it caches included
    crowded: bool = False  # what is allocated and cached leaves nothing of usable memory
    disk: DiskUse | None = field(default=None, metadata=ABSENT)  # what the run writes to it
    disk_short_bytes: float = 0.0  # what it writes is too large for the disk by so much
    risk: str = ""  # why it may run out of memory though it fits; empty: it is safe
    usable_source: str = ""  # what usable memory was read from; empty: the catalogue
    measured: dict[str, Any] | None
    traced: dict[str, Any] | None = None

    @property
    def packed(self) -> bool:
        """Whether rows are laid end to end."""
        return self.config.get("packing") == "on"

    def steps_of(self, steps: int) -> int:
        """Optimizer steps of a job of so many: of packed rows as many as their seconds hold."""
        if not self.packed or self.step_time_s <= 0:
            return steps
        return min(steps, round(self.time_s["train"] / self.step_time_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsPayload(Answer):
    """What the answer had to respect; null where nothing was stated."""

    deadline_s: float | None
    budget_usd: float | None
    max_session_s: float | None
    confidence: float = CONFIDENCE  # probability with which each of them is to be kept


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPayload(Answer):
    """The contract and its arithmetic."""

    name: str
    steps: int
    epochs: float
    tokens: int
    global_batch_size: int
    model: str
    method: str
    rows: int
    max_length: int
    mean_length: float
    lengths_known: bool
    lengths_basis: str = ""  # stated, mean, counted, sampled, estimated, published, full, unknown
    tokens_interval: dict[str, float] | None = None  # p10, p90, where tokens are no count
    padding: str
    offers: int
    limits: LimitsPayload
    closed_knobs: tuple[str, ...]
    dataset: str | None = None  # the rows, where the job names a file of them
    learned: tuple[str, ...] = ()  # what past runs say of its machines, in words
    objective: Objective = field(default="sft", metadata=ABSENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfPayload(Answer):
    """What stands beside the waterfall."""

    options: tuple[SideOption, ...]
    measured: tuple[MeasuredGap, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationPayload(Answer):
    """`autotune tune --format json`."""

    schema_version: int
    job: JobPayload
    assumed: tuple[Assumption, ...]
    best: Row | None
    today: Row | None
    alternatives: tuple[Row, ...]
    pareto: tuple[Row, ...]
    lengths_known: bool = True  # false: every figure counts each row at max_length
    short_rows: ShortRows | None = None  # of best; null where lengths are known
    limits: tuple[LimitOdds, ...] = ()  # of best; empty: none stated, or nothing fits
    misses: tuple[Miss, ...]
    tie: bool
    ties: tuple[int, ...] = ()  # places among the alternatives that the tie is with
    narrowest: str
    # by how much each alternative may be worse; none where steps were measured
    differences: tuple[Difference, ...] = ()
    narrowings: tuple[Narrowing, ...] = ()  # what each single fact would make of best's range
    reasons: dict[str, str]
    # what would keep the limits that best misses
    keeping: tuple[Relaxation, ...] = field(default=(), metadata=ABSENT)
    rejected: Rejected
    search: SearchRecord
    probed: tuple[ProbedRun, ...] = ()
    contradictions: tuple[str, ...] = ()  # what the job file says that does not hold
    warnings: tuple[str, ...]
    decisive: tuple[str, ...] = ()  # those of the warnings that may change what to do
    run_dir: str | None
    sensitivities: tuple[Sensitivity, ...] = ()
    worth_a_probe: tuple[WorthProbe, ...] = ()
    # what to run, below run_dir
    files: tuple[str, ...] = field(default=(), metadata=ABSENT)
    # for `autotune export`
    other_formats: tuple[str, ...] | None = field(default=None, metadata=ABSENT)
    # the best of each offer, or its nearest miss
    machines: tuple[Row, ...] = field(default=(), metadata=ABSENT)
    # why the machine was taken, where another one costs the same
    tiebreak: Tiebreak | None = field(default=None, metadata=ABSENT)
    # would beat the front, but do not fit
    beyond: tuple[Row, ...] = field(default=(), metadata=ABSENT)
    # today + steps = best
    waterfall: tuple[WaterfallStep, ...] | None = field(default=None, metadata=ABSENT)
    journey: WhatIfPayload | None = field(default=None, metadata=ABSENT)
    asked: Asked | None = field(default=None, metadata=ABSENT)
    # the folder that the user's own file names for its output
    writes_to: str | None = field(default=None, metadata=ABSENT)
    next: tuple[NextStep, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatePayload(Answer):
    """`autotune estimate --format json`."""

    schema_version: int
    row: Row
    lengths_known: bool = True  # false: the row counts each row of data at max_length
    short_rows: ShortRows | None = None  # of the row; null where lengths are known
    limits: tuple[LimitOdds, ...] = ()  # how likely the row keeps each stated limit
    job: JobPayload
    assumed: tuple[Assumption, ...]
    contradictions: tuple[str, ...] = ()
    warnings: tuple[str, ...]
    decisive: tuple[str, ...] = ()
    # how the row's P(fits) turns on what nobody said of the run, and what it is as listed
    fits_if: tuple[FitsIf, ...] = field(default=(), metadata=ABSENT)
    fits_as_listed: float | None = field(default=None, metadata=ABSENT)
    claim: dict[str, Any] | None = field(default=None, metadata=ABSENT)
    # with relaxations: where it does not fit
    shortfall: Shortfall | None = field(default=None, metadata=ABSENT)
    relaxations: tuple[Relaxation, ...] | None = field(default=None, metadata=ABSENT)
    asked: Asked | None = field(default=None, metadata=ABSENT)
    next: tuple[NextStep, ...] = ()
