"""The shapes of the JSON that the command line prints and run folders keep.

Numbers are in base units (seconds, bytes, US dollars), shares are fractions, and the unit is the
suffix of the name. Keys are only ever added; a change of meaning raises `SCHEMA_VERSION`.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

SCHEMA_VERSION = 1


class SpreadPayload(TypedDict):
    """A quantity with its 80 % interval."""

    p10: float
    p50: float
    p90: float


class Row(TypedDict):
    """One candidate's bill."""

    device: str
    device_count: int
    usd_per_hour: float
    price_as_of: str | None
    price_source: str
    spot: bool
    config: dict[str, int | bool | str]
    basis: str
    checkpoints: int
    checkpoint_bytes: float
    duration_s: SpreadPayload
    cost_usd: SpreadPayload
    step_time_s: float
    tokens_per_s: float
    mfu: float
    bound_by: str
    time_s: dict[str, float]
    memory_bytes: dict[str, float]
    fits_probability: float
    verdict: str
    measured: dict[str, Any] | None


class LimitsPayload(TypedDict):
    """What the answer had to respect; null where nothing was stated."""

    deadline_s: float | None
    budget_usd: float | None
    max_session_s: float | None


class JobPayload(TypedDict):
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
    padding: str
    offers: int
    limits: LimitsPayload
    closed_knobs: list[str]


class AssumedPayload(TypedDict):
    """A value that nobody stated."""

    key: str
    value: str
    why: str


class MissPayload(TypedDict):
    """A limit that is missed, in its own unit."""

    limit: str
    by: float


class NearestPayload(TypedDict):
    """A candidate that does not fit."""

    config: dict[str, int | bool | str]
    device: str
    device_count: int
    required_bytes: float
    available_bytes: float
    reason: str


class RelaxationPayload(TypedDict):
    """A change after which the job fits."""

    change: str
    required_bytes: float
    available_bytes: float
    quality: bool
    duration_s: float
    cost_usd: float


class RejectedPayload(TypedDict):
    """What was not recommended, and why."""

    count: int
    by_reason: dict[str, int]
    nearest: list[NearestPayload]
    relaxations: list[RelaxationPayload]


class SearchPayload(TypedDict):
    """How the answer was found."""

    score: str
    sampler: str
    fidelity: str
    space_size: int
    priced: int
    traced: int
    probes: int
    probe_seconds: float
    wall_seconds: float
    stopped_because: str


class RecommendationPayload(TypedDict):
    """`autotune tune --format json`."""

    schema_version: int
    job: JobPayload
    assumed: list[AssumedPayload]
    best: Row | None
    today: Row | None
    alternatives: list[Row]
    pareto: list[Row]
    misses: list[MissPayload]
    tie: bool
    reasons: dict[str, str]
    narrowest: str
    rejected: RejectedPayload
    search: SearchPayload
    warnings: list[str]
    run_dir: str | None


class EstimatePayload(TypedDict):
    """`autotune estimate --format json`."""

    schema_version: int
    row: Row
    job: JobPayload
    assumed: list[AssumedPayload]
    warnings: list[str]
    claim: NotRequired[dict[str, Any]]
