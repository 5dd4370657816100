"""What must be trained: the contract. Computed from the user's file; nothing here is searched."""

from __future__ import annotations

import json
import math
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from autotune.domain.answer.contract import Answer
from autotune.domain.model import Mamba2
from autotune.domain.objective import WORK, Objective, Work
from autotune.domain.paths import stated_in
from autotune.domain.software import WITHOUT_CUDNN, ZeroSettings
from autotune.frozen import LATER, dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import Config, KnobValue
    from autotune.domain.device import Offer
    from autotune.domain.model import Model
    from autotune.domain.observation import MachineEffect, Observation
    from autotune.domain.software import Software
    from autotune.domain.statement import Statement

NOT_KEPT = "is not kept"  # how the value of an assumption ends that gives up what today's run has
CONFIDENCE = 0.8  # eight chances in ten, unless the user asks for another
LEAST_CONFIDENCE, MOST_CONFIDENCE = 0.5, 1.0  # both excluded: a coin's toss, and certainty
DEADLINE, SESSION, BUDGET = "deadline", "max_session", "budget"
EVALUATION_ROWS = 8  # per_device_eval_batch_size of transformers' Trainer
BYTES = "bytes"  # the tokenizer that needs no files: one token per UTF-8 byte
Base = Literal["16bit", "32bit", "int8", "nf4"]
QUANTISED = frozenset({"nf4", "int8"})  # bases whose weights are stored in 4 or 8 bits
Variant = Literal["none", "dora", "rslora"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)


@dataclass(frozen=True, slots=True)
class Method:
    """How the model is trained. For `full`, rank, targets and adapters do not apply.

    variant: dora trains a magnitude of every adapted output beside its adapter; rslora divides
    `alpha` by the square root of the rank and changes no bytes and no work. double_quant: whether
    the scales of 4-bit blocks are quantised themselves. modules_to_save: the embedding and the
    output head, by the model's own names, of which PEFT trains copies beside the adapters.
    """

    kind: Literal["full", "lora"]
    base: Base = "16bit"
    rank: int = 0
    alpha: float = 0.0
    dropout: float = 0.0
    targets: tuple[str, ...] = ()  # names of Model.linears that carry an adapter
    variant: Variant = field(default="none", metadata=LATER)
    double_quant: bool = field(default=True, metadata=LATER)
    modules_to_save: tuple[str, ...] = field(default=(), metadata=LATER)

    @property
    def is_dora(self) -> bool:
        """Whether every adapted matrix trains a magnitude of its outputs as well."""
        return self.is_lora and self.variant == "dora"

    @property
    def plain_bytes(self) -> float:
        """[bytes] of a weight of the base that is not quantised."""
        return 4.0 if self.base == "32bit" else 2.0

    @property
    def is_quantised(self) -> bool:
        """Whether the base is to be stored in 4 or 8 bits."""
        return self.base in QUANTISED

    @property
    def is_lora(self) -> bool:
        """Whether the base weights are frozen."""
        return self.kind == "lora"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Distribution of row lengths in tokens after truncation, as a quantile function.

    `quantiles[i]` is the length at probability i / (len - 1), linear in between. `known` is False
    when nothing was stated and every row is counted at the maximum. `log_sd` is how far the mean
    may be off: of an estimate from characters, of a sample of the rows, or of what was published
    for a data set under another tokenizer. `basis` full: every row fills `maximum`, as padded or
    packed rows do; mean: of the shape nothing is known.
    """

    quantiles: tuple[float, ...]
    mean: float
    maximum: int
    known: bool
    truncated_rows: int = 0
    basis: Literal[
        "stated", "mean", "counted", "sampled", "estimated", "published", "full", "unknown"
    ] = "stated"
    log_sd: float = 0.0

    def __hash__(self) -> int:
        """Of what tells nearly all of them apart: each batch's padding is looked up by them."""
        return hash((self.mean, self.maximum))


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Evaluations during (or instead of) training. every_steps 0: once, at the end.

    at_start: one more, before the first step. batch_size 0: as many rows as the micro-batch, at
    most `at_most`, which is written down, so that an evaluation nobody sized never decides what
    fits. rows 0: nobody knows how many, so that its batches take memory, and its time is left out.
    accumulation_steps 0: logits that are kept stay on the device until the end.
    """

    rows: int
    every_steps: int
    generate_tokens: int = 0
    batch_size: int = 0
    at_start: bool = field(default=False, metadata=LATER)
    at_most: int = field(default=EVALUATION_ROWS, metadata=LATER)
    keeps_logits: bool = field(default=False, metadata=LATER)  # for metrics made of all at once
    accumulation_steps: int = field(default=0, metadata=LATER)  # batches of them on the device

    def times(self, steps: int) -> int:
        """Evaluations of so many optimizer steps."""
        if steps <= 0:
            return 1
        return (steps // self.every_steps if self.every_steps > 0 else 1) + self.at_start

    def rows_at_once(self, micro_batch_size: int) -> int:
        """Rows of one evaluation batch on one device."""
        return self.batch_size or min(micro_batch_size, self.at_most)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the answer must respect. None: no limit that somebody stated."""

    vram_headroom: float  # fraction of the driver's total kept free
    max_lost_work_s: float | None  # None: nobody stated it
    deadline_s: float | None = None
    budget_usd: float | None = None
    max_session_s: float | None = None
    confidence: float = CONFIDENCE  # probability with which each of the three must be kept

    @property
    def stated(self) -> tuple[tuple[str, float], ...]:
        """The limits of time and money that somebody stated, by name, in seconds or USD."""
        pairs = (
            (DEADLINE, self.deadline_s), (SESSION, self.max_session_s), (BUDGET, self.budget_usd),
        )  # fmt: skip
        return tuple((name, value) for name, value in pairs if value is not None)


@dataclass(frozen=True, slots=True)
class Assumption(Answer):
    """A value that nobody stated, and why this one."""

    key: str
    value: str
    why: str

    @property
    def is_damage(self) -> bool:
        """Whether something that was kept of the user's machine or runs cannot be read."""
        return " is damaged: " in self.why


@dataclass(frozen=True, slots=True)
class Beside:
    """A config of accelerate or DeepSpeed that was read beside a trainer's file."""

    path: str
    syntax: str  # yaml, json or toml
    text: str


@dataclass(frozen=True, slots=True)
class Uncounted:
    """What a trainer's file says that changes time or memory, and that no formula here prices.

    time_sd, memory_sd: by how much it widens the log of a step and of the peak, as an assumption.
    """

    key: str
    value: str
    why: str
    time_sd: float
    memory_sd: float


@dataclass(frozen=True, slots=True)
class Origin:
    """The trainer's own file that a job was read from: what `--export same` gives back."""

    trainer: str  # hf, trl, ...
    syntax: str  # yaml, json, args, shell or python
    path: str  # where the user's file lies; empty for a command line
    text: str
    knobs: dict[str, KnobValue] = field(default_factory=dict)  # stated there or beside it
    devices: int | None = None  # that it runs on, if that is stated
    beside: tuple[Beside, ...] = ()
    typed_in: str = ""  # the folder that autotune was called in
    objective: Objective = "sft"  # what the file trains; the job says as what it is priced
    uncounted: tuple[Uncounted, ...] = ()
    launch: int = field(default=0, metadata=LATER)  # of a script with several, from 0 on
    kept: tuple[str, ...] = field(default=(), metadata=LATER)  # knobs that it cannot be told
    # knobs that the user states because the file computes them
    told: tuple[str, ...] = field(default=(), metadata=LATER)
    # keys of the text that a command said beside the file, which does not have them
    flags: tuple[str, ...] = field(default=(), metadata=LATER)
    # of an evaluation batch, which the file does not size: the trainer's default; 0: it sizes it
    evaluation_rows: int = field(default=0, metadata=LATER)
    # the base that it loads without saying so ("32bit"); empty: it says, or nobody knows
    base: str = field(default="", metadata=LATER)
    by_name: bool = field(default=False, metadata=LATER)  # TRL loads the model, not the script
    # a script that loads the weights without a word of their dtype, under a release nobody states
    silent: bool = field(default=False, metadata=LATER)
    # by package the newest release that does not take all of its arguments yet
    lacking: dict[str, str] = field(default_factory=dict, metadata=LATER)


@dataclass(frozen=True, slots=True)
class Batch:
    """A global batch that is not the job's, and the optimizer steps of the run at it."""

    global_batch_size: int
    steps: int


@dataclass(frozen=True, slots=True)
class Job:
    """The contract: model, method, data, epochs, global batch, and what limits the answer."""

    name: str
    model: Model
    method: Method
    rows: int
    max_length: int
    lengths: Lengths
    padding: Literal["longest", "max_length"]
    pretokenized: bool
    storage: Literal["local", "network"]
    epochs: float
    steps: int  # optimizer steps without packing; 0 for an evaluation-only run
    global_batch_size: int
    evaluation: Evaluation | None
    limits: Limits
    software: Software
    offers: tuple[Offer, ...]
    lock: dict[str, KnobValue] = field(default_factory=dict)
    allow: tuple[str, ...] = ()
    today: Config | None = None
    today_offer: Offer | None = None  # that `today` runs on, offered or not; None: the first
    today_batch: Batch | None = None  # that `today` makes; None: the job's
    evidence: tuple[Observation, ...] = ()
    stated: tuple[Statement, ...] = ()  # what a plan says of the run: checked, never used
    seen_on: tuple[Offer, ...] = ()  # machines that evidence speaks of and that are not offered
    learned: tuple[MachineEffect, ...] = ()  # what the user's past runs say of the machines
    assumed: tuple[Assumption, ...] = ()
    dataset_path: str | None = None
    row_bytes: float = 0.0  # [bytes] of one row on storage, mean
    spec: str = ""  # the job file this was resolved from, overrides applied, as JSON
    origin: Origin | None = None
    base_dir: str = "."  # folder that relative paths of the job file start from
    zero: ZeroSettings = ZeroSettings()  # read by runs under DeepSpeed alone
    objective: Objective = field(default="sft", metadata=LATER)  # as which it is priced
    held_out: int = field(default=0, metadata=LATER)  # rows of the data that are not trained on
    # settings of a run that stands as it is which nobody stated: by knob, or by key of the job file
    unsaid: tuple[str, ...] = field(default=(), metadata=LATER)

    @property
    def trainer(self) -> str:
        """The trainer whose own file it was read from; empty where there is none."""
        return self.origin.trainer if self.origin else ""

    @property
    def stated_file(self) -> dict[str, Any]:
        """The mapping of the job file that this was resolved from; empty where there is none."""
        found: dict[str, Any] = json.loads(self.spec or "{}")
        return found

    @property
    def stated_releases(self) -> frozenset[str]:
        """Of transformers and trl those whose release is stated, by itself or by a profile."""
        said, both = self.stated_file.get("software") or {}, {"transformers", "trl"}
        named = isinstance(said, str) or "profile" in said
        return frozenset(both if named else both & set(said))

    @property
    def stated_lock(self) -> dict[str, Any]:
        """What that file locks."""
        return self.stated_file.get("lock") or {}

    @property
    def mixer_kernels(self) -> str:
        """The package whose kernels can run what mixes its tokens; empty where there is none.

        Mamba's read the weight of out_proj themselves, and fail where bitsandbytes packed it
        (axolotl-ai-cloud/axolotl issue 3951).
        """
        package = self.model.kernel_package
        return "" if package == Mamba2.package and self.method.is_quantised else package

    @property
    def fuses_mixers(self) -> bool:
        """Whether kernels of an optional package run what mixes its tokens."""
        return self.software.has_kernels(self.mixer_kernels)

    @property
    def work(self) -> Work:
        """What one row takes; of what is priced as supervised, as such."""
        return WORK.get(self.objective, WORK["sft"])

    @property
    def uncounted_sd(self) -> tuple[float, float]:
        """Log standard deviations of a step and of the peak by what nothing here prices."""
        found = self.origin.uncounted if self.origin is not None else ()
        return math.hypot(*(x.time_sd for x in found)), math.hypot(*(x.memory_sd for x in found))

    @property
    def one_length(self) -> bool:
        """Whether every unpacked batch has the same length: full padding, or equal rows."""
        return self.padding == "max_length" or self.lengths.maximum == self.lengths.quantiles[0]

    @property
    def today_here(self) -> Config | None:
        """Today's config where it is one of this job: on an offered machine, at its batch."""
        elsewhere = self.today_offer is not None and self.today_offer not in self.offers
        return None if elsewhere or self.today_batch is not None else self.today

    def offer_of(self, row: Mapping[str, Any]) -> Offer | None:
        """The machine that a recorded row is on, today's among them; of several, that of its price.

        None where the job no longer has it.
        """
        known = (*self.offers, self.today_offer) if self.today_offer else self.offers
        same = [offer for offer in known if offer.is_of(row)]
        paid = [offer for offer in same if offer.usd_per_hour == row.get("usd_per_hour")]
        return next(iter((*paid, *same)), None)  # prices may have moved

    @property
    def as_today(self) -> Job:
        """The job at the global batch that today's config makes, and as its file stands."""
        job = self.as_it_stands
        if (own := self.today_batch) is None:
            return job
        batch, steps = own.global_batch_size, own.steps
        return replace(job, global_batch_size=batch, steps=steps, today_batch=None)

    @property
    def as_it_stands(self) -> Job:
        """The job whose trainer's file nobody changes: what it does not say is its trainer's.

        It is not run.sh that starts it, so nothing leaves cuDNN's attention out but its own text.
        """
        job, plan, origin = self, self.evaluation, self.origin
        if origin is None:
            return job
        if job.software.cudnn_attention is None:
            asks = WITHOUT_CUDNN not in origin.text
            job = replace(job, software=replace(job.software, cudnn_attention=asks))
        if plan is not None and not plan.batch_size and origin.evaluation_rows:
            job = replace(job, evaluation=replace(plan, batch_size=origin.evaluation_rows))
        return job

    @property
    def timed_evaluation(self) -> Evaluation | None:
        """Evaluations whose rows are known; of others only the memory of a batch is."""
        return self.evaluation if self.evaluation is not None and self.evaluation.rows else None

    @property
    def tokenizer(self) -> str | None:
        """What the job says that rows are tokenised with: `bytes`, a whole path, or a hub id."""
        name = (self.stated_file.get("data") or {}).get("tokenizer")
        if name is None or name == BYTES:
            return name
        path = stated_in(self.base_dir, name)
        return str(path) if path.exists() else name

    @property
    def column(self) -> str | None:
        """The columns of the data set that the job names, where their names do not tell."""
        return (self.stated_file.get("data") or {}).get("column")

    @property
    def tokens(self) -> int:
        """[tokens] of the run without padding: steps x global batch x sequences x mean length."""
        return round(self.steps * self.global_batch_size * self.work.sequences * self.lengths.mean)


@dataclass(frozen=True, slots=True)
class NamedJob:
    """A job and the variant of the file that it is; empty where there is just one."""

    variant: str
    job: Job
