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
    instance: NotRequired[str | None]  # "aws p4d.24xlarge", where the machine was named so
    usd_per_hour: float
    price_as_of: str | None
    price_source: str
    price_age_days: NotRequired[int | None]
    price_marks: NotRequired[list[str]]  # old, scaled, asked, spot, owned, free
    price_scaled_from: NotRequired[int | None]  # devices of the machine whose share it is
    spot: bool
    config: dict[str, int | bool | str]
    basis: str
    caution: NotRequired[float]  # a step at the slow end of what nobody measured, over the step
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
    reserved_bytes: NotRequired[float]  # by torch's allocator, what it caches included
    disk_short_bytes: NotRequired[float]  # its checkpoints are too large for the disk by so much
    crowded: NotRequired[bool]  # what is allocated and cached leaves nothing of usable memory
    risk: NotRequired[str]  # why it may run out of memory though it fits; empty: it is safe
    usable_source: NotRequired[str]  # what usable memory was read from; empty: the catalogue
    measured: dict[str, Any] | None
    traced: NotRequired[dict[str, Any] | None]


class LimitsPayload(TypedDict):
    """What the answer had to respect; null where nothing was stated."""

    deadline_s: float | None
    budget_usd: float | None
    max_session_s: float | None
    confidence: NotRequired[float]  # probability with which each of them is to be kept


class LimitOddsPayload(TypedDict):
    """How likely a stated limit is kept; in seconds or USD."""

    limit: str  # deadline, max_session or budget
    value: float  # the limit
    probability: float
    kept: bool  # the probability is at least that which is asked for
    held: float  # what is kept with the asked probability


class ShortRowsPayload(TypedDict):
    """What a row takes if the rows, of unknown length, are as short as a common data set's."""

    duration_s: SpreadPayload
    cost_usd: SpreadPayload
    like: str  # the data set
    p50_tokens: float  # half of its rows are under that
    source: str
    settled: bool  # a measured time of today's run sets the scale


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
    lengths_basis: NotRequired[str]  # stated, counted, sampled, estimated, published, full, unknown
    tokens_interval: NotRequired[dict[str, float] | None]  # p10, p90, where tokens are no count
    padding: str
    offers: int
    limits: LimitsPayload
    closed_knobs: list[str]
    dataset: NotRequired[str | None]  # the rows, where the job names a file of them


class AssumedPayload(TypedDict):
    """A value that nobody stated."""

    key: str
    value: str
    why: str


class MissPayload(TypedDict):
    """A limit that is not kept: what is kept with the asked probability lies so far beyond it."""

    limit: str
    by: float


class NearestPayload(TypedDict):
    """A candidate that does not fit."""

    config: dict[str, int | bool | str]
    device: str
    device_count: int
    required_bytes: float
    available_bytes: float
    short_of: NotRequired[str]  # memory, disk, ram, shm or limit
    reason: str


class RelaxationPayload(TypedDict):
    """A change after which the job fits."""

    change: str
    required_bytes: float
    available_bytes: float
    quality: bool
    duration_s: float
    cost_usd: float
    kind: NotRequired[str]  # setting, lock, machine or quality
    apply: NotRequired[str]  # options of the command line that make the change
    short_of: NotRequired[str]  # what the job lacks without it; the bytes are of that
    fits_probability: NotRequired[float]
    device: NotRequired[str | None]
    device_count: NotRequired[int | None]
    config: NotRequired[dict[str, int | bool | str] | None]
    price_marks: NotRequired[list[str]]  # as of a row


class PartPayload(TypedDict):
    """One part of the memory."""

    name: str
    bytes: float


class LongestBatchPayload(TypedDict):
    """The batch at which memory peaks, on one device."""

    rows: int
    tokens_per_row: int
    tokens: int
    origin: str


class ShortfallPayload(TypedDict):
    """Why a configuration does not fit."""

    device: str
    device_count: int
    config: dict[str, int | bool | str]
    resource: str
    required_bytes: float
    available_bytes: float
    over_bytes: float
    fits_probability: float
    memory_bytes: dict[str, float]
    largest: list[PartPayload]
    phase: str
    instant: str
    longest_batch: LongestBatchPayload
    memory_source: str


class RejectedPayload(TypedDict):
    """What was not recommended, and why."""

    count: int
    by_reason: dict[str, int]
    nearest: list[NearestPayload]
    relaxations: list[RelaxationPayload]
    shortfall: NotRequired[ShortfallPayload | None]


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
    objective: NotRequired[str]  # what was minimised: cost or time
    probe_budget_s: NotRequired[float | None]  # as it was asked for
    probe_runs: NotRequired[int]  # `probes` are configurations; these are all runs of them
    noise: NotRequired[NoisePayload]


class NoisePayload(TypedDict):
    """What other programs did to the measurements; null where nobody counts it."""

    load: float | None  # [cores] that they used on average
    cores: float | None
    windows: int
    contaminated_windows: int
    disturbed_probes: int
    repeat_spread: float  # sd of the log between two probes of one configuration
    unnoticed: float  # share of probes that are too long and betray it by nothing
    cannot_tell: bool
    why: str


# `class` is a word of the language, so this shape is written as a call.
SensitivityPayload = TypedDict(
    "SensitivityPayload",
    {
        "change": str,  # as --set takes it
        "knob": str,  # a knob, or a key of the job file; `key` says the same
        "class": str,  # neutral, numeric or quality
        "opens": str,  # options of the command line that make the change
        "key": str,
        "value": str,
        "duration_s": float | None,  # null: does not fit, or rests on row lengths that are unknown
        "cost_usd": float | None,
        "saved_s": float | None,  # against the pick; null where there is none
        "saved_usd": float | None,
        "memory_bytes": float,
        "fits": bool,
        "unmeasured": bool,  # rests on a gain that nobody measured on this stack
        "note": str,
        "basis": str,
        "device": str | None,
        "device_count": int | None,
        "config": dict[str, int | bool | str] | None,
    },
)


class WorthProbePayload(TypedDict):
    """A change of the pick whose gain nobody measured; p10 and p90 are of the saving in USD."""

    change: str
    knob: str
    expected_saving_s: float
    expected_saving_usd: float
    p10: float
    p90: float
    why: str


class ProbedPayload(TypedDict):
    """One probe: role search or confirm; null where nothing was measured."""

    config: dict[str, int | bool | str]
    status: str
    role: str
    reused: bool
    predicted_step_s: float | None
    predicted_p10_s: NotRequired[float | None]
    predicted_p90_s: NotRequired[float | None]
    step_time_s: float | None
    memory_bytes: float | None
    wall_s: float
    disturbed: NotRequired[list[str]]  # why its time is not the machine's own pace


# `from` is a word of the language, so these two shapes are written as calls.
WaterfallStepPayload = TypedDict(
    "WaterfallStepPayload",
    {
        "change": str,
        "from": str,
        "to": str,
        "duration_s": float,  # what the change adds: negative saves
        "cost_usd": float,
        "touches": list[str],
        "yours": bool,
        "note": str,
    },
)
SideOptionPayload = TypedDict(
    "SideOptionPayload",
    {
        "change": str,
        "from": str,
        "to": str,
        "duration_s": float,
        "cost_usd": float,
        "why": str,
        "apply": str,
        "yours": bool,
    },
)


class ReadingPayload(TypedDict):
    """One reading of a measured time; null where there is nothing to say."""

    name: str
    text: str
    predicted_s: float
    efficiency: float
    peak_share: float
    verdict: str
    fixed_s: float | None
    pick_s: float | None


class CheckPayload(TypedDict):
    """What would decide between readings, and what it costs."""

    name: str
    text: str
    duration_s: float
    cost_usd: float
    decides: bool
    shows: dict[str, str]
    tells_apart: list[list[str]]
    leaves: list[list[str]]


class GapPayload(TypedDict):
    """A measured time of today's run and what it may mean."""

    observation: str
    measured_s: float
    readings: list[ReadingPayload]
    open: list[str]
    checks: list[CheckPayload]


class JourneyPayload(TypedDict):
    """What stands beside the waterfall."""

    options: list[SideOptionPayload]
    measured: list[GapPayload]


class AskedPayload(TypedDict):
    """The command line that asked, and the folder that it was typed in."""

    words: list[str]
    folder: str


class NextPayload(TypedDict):
    """A command to type next, and what it does."""

    command: str
    what: str


class RecommendationPayload(TypedDict):
    """`autotune tune --format json`."""

    schema_version: int
    job: JobPayload
    assumed: list[AssumedPayload]
    best: Row | None
    today: Row | None
    alternatives: list[Row]
    pareto: list[Row]
    lengths_known: NotRequired[bool]  # false: every figure counts each row at max_length
    short_rows: NotRequired[ShortRowsPayload | None]  # of best; null where lengths are known
    limits: NotRequired[list[LimitOddsPayload]]  # of best; empty: none stated, or nothing fits
    misses: list[MissPayload]
    tie: bool
    ties: NotRequired[list[int]]  # places among the alternatives that the tie is with
    reasons: dict[str, str]
    narrowest: str
    rejected: RejectedPayload
    search: SearchPayload
    probed: NotRequired[list[ProbedPayload]]
    contradictions: NotRequired[list[str]]  # what the job file says that does not hold
    warnings: list[str]
    decisive: NotRequired[list[str]]  # those of the warnings that may change what to do
    run_dir: str | None
    files: NotRequired[list[str]]  # what to run, below run_dir
    other_formats: NotRequired[list[str]]  # for `autotune export`
    sensitivities: NotRequired[list[SensitivityPayload]]
    worth_a_probe: NotRequired[list[WorthProbePayload]]
    machines: NotRequired[list[Row]]  # the best of each offer, or its nearest miss
    beyond: NotRequired[list[Row]]  # would beat the front, but do not fit
    waterfall: NotRequired[list[WaterfallStepPayload]]  # today + steps = best
    journey: NotRequired[JourneyPayload]
    asked: NotRequired[AskedPayload]
    writes_to: NotRequired[str]  # the folder that the user's own file names for its output
    next: NotRequired[list[NextPayload]]


class EstimatePayload(TypedDict):
    """`autotune estimate --format json`."""

    schema_version: int
    row: Row
    lengths_known: NotRequired[bool]  # false: the row counts each row of data at max_length
    short_rows: NotRequired[ShortRowsPayload | None]  # of the row; null where lengths are known
    limits: NotRequired[list[LimitOddsPayload]]  # how likely the row keeps each stated limit
    job: JobPayload
    assumed: list[AssumedPayload]
    contradictions: NotRequired[list[str]]
    warnings: list[str]
    decisive: NotRequired[list[str]]
    asked: NotRequired[AskedPayload]
    next: NotRequired[list[NextPayload]]
    claim: NotRequired[dict[str, Any]]
    shortfall: NotRequired[ShortfallPayload]  # with relaxations: where it does not fit
    relaxations: NotRequired[list[RelaxationPayload]]
