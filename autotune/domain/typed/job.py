"""The job file as a person types it: every section, its keys, and what must agree.

Text keeps its unit here ("24h", "2.50 USD/h"): a checked `JobFile` can be written back and read
again unchanged. `autotune.app.job.load` turns it into a `Job` in base units.

Annotations are values in here, not text that pydantic would have to parse and evaluate.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, Tag, model_validator

from autotune.domain.job import QUANTISED, Assumption, Beside, Origin, Uncounted, Variant
from autotune.domain.objective import REINFORCED, Objective, Stated
from autotune.domain.typed.hardware import HardwareSection
from autotune.domain.typed.values import (
    MAPPING,
    MAX_DEVICES,
    MAX_EPOCHS,
    MAX_LENGTH,
    MAX_RANK,
    MAX_ROWS,
    MAX_STEPS,
    TEXT,
    Batch,
    Confidence,
    Duration,
    Knobs,
    Length,
    Money,
    Names,
    NamesOrNone,
    Rows,
    Section,
    Size,
    Steps,
    StepTime,
    Text,
    Tokens,
    empty_list,
    machine_list,
    machine_word,
    method_word,
    numeric_knobs,
    real,
    refuse,
    text_or_mapping,
    version_text,
    whole,
)

MOST_ELEMENTS = 10**12
Elements = Annotated[int, whole(1, MOST_ELEMENTS, scaled=True)]


class DeepSpeedSection(Section):
    """The keys that move memory and time; the others stay in the user's file.

    reduce_bucket_size auto: as transformers fills it in, the square of the hidden size.
    stage 1: what `sharding: zero2` stands for leaves the gradients whole on every device.
    """

    bf16_master_weights_and_grads: bool = False
    bf16_optimizer_states: bool = False
    reduce_bucket_size: Elements | Literal["auto"] | None = None
    overlap_comm: bool | None = None
    stage: Literal[1, 2, 3] | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.bf16_optimizer_states and not self.bf16_master_weights_and_grads:
            refuse(
                "bf16_optimizer_states holds only where bf16_master_weights_and_grads is true too"
            )
        return self


# Of lora alone.
ADAPTER_KEYS = ("rank", "alpha", "dropout", "targets", "variant", "modules_to_save")
# Keys of a method that a more specific kind takes back.
OF_ANOTHER_KIND = {"full": ADAPTER_KEYS, "qlora": ("base",)}


class MethodSection(Section):
    """How to train. `qlora` is `lora` on an nf4 base."""

    kind: Literal["full", "lora", "qlora"] = "lora"
    rank: Annotated[int, whole(1, MAX_RANK)] | None = None
    alpha: Annotated[float, real(0.0, 1e9, open_low=True)] | None = None
    dropout: Annotated[float, real(0.0, 0.99)] | None = None
    targets: Names | None = None
    base: Literal["16bit", "32bit", "int8", "nf4"] | None = None
    variant: Variant | None = None
    double_quant: bool | None = None  # of an nf4 base; else as QLoRA has it
    modules_to_save: NamesOrNone | None = None  # trained whole: the embedding, the output head

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.kind == "full":
            stated = [k for k in ADAPTER_KEYS if getattr(self, k) not in {None, "none"}]
            if stated:
                belong = "belong" if len(stated) > 1 else "belongs"
                refuse(f"{', '.join(stated)} {belong} to lora, but kind is full")
            if self.base in QUANTISED:
                refuse(f"base {self.base} cannot be trained in full; take 16bit or 32bit, or lora")
        if self.kind == "qlora" and self.base not in {None, "nf4"}:
            refuse(f"qlora means base nf4, but base is {self.base}; write kind: lora")
        return self


class LengthsSection(Section):
    """Row lengths in tokens after truncation: quantiles, a mean, or a histogram file."""

    p50: Length | None = None
    p95: Length | None = None
    max: Tokens | None = None
    mean: Length | None = None
    histogram: Text | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.histogram is not None:
            if any(value is not None for value in (self.p50, self.p95, self.max, self.mean)):
                refuse("state either histogram or p50, p95 and max, not both")
            return self
        if self.p50 is None and self.p95 is None and self.mean is not None:
            if self.max is not None and self.mean > self.max:
                refuse(f"mean {self.mean:g} is above max {self.max}")
            return self
        if self.p50 is None or self.p95 is None:
            refuse(
                "state mean, or p50 and p95 (and max, or max_length is taken), or histogram: FILE"
            )
        top = self.max if self.max is not None else self.p95
        if not self.p50 <= self.p95 <= top:
            refuse(f"out of order: p50 {self.p50:g} <= p95 {self.p95:g} <= max {top:g} must hold")
        return self


class DataSection(Section):
    """How much there is to train on, and where it lies."""

    rows: Rows | None = None
    max_length: Tokens | None = None
    lengths: LengthsSection | None = None
    padding: Literal["longest", "max_length"] | None = None
    pretokenized: bool | None = None
    storage: Literal["local", "network"] | None = None
    dataset: Text | None = None
    tokenizer: Text | None = None
    column: Text | None = None  # of the dataset, where trainers would not know it by its name
    held_out: Annotated[float, real(0.0, MAX_ROWS)] | None = None  # of the rows; below 1 a share

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        lengths = self.lengths
        if self.dataset is not None and lengths is not None and lengths.histogram is not None:
            refuse("lengths come from the dataset; state one of dataset and lengths.histogram")
        if self.tokenizer is not None and self.dataset is None:
            refuse("tokenizer is for counting the tokens of a dataset, and none is stated")
        if self.column is not None and self.dataset is None:
            refuse("column is one of a dataset's, and none is stated")
        top = lengths and (lengths.max or lengths.p95 or lengths.mean)
        if lengths and top and self.max_length and top > self.max_length:
            reach = "reach" if lengths.max or lengths.p95 else "have a mean of"
            refuse(
                f"lengths {reach} {top:g} but max_length is {self.max_length}: "
                "lengths are after truncation, so none can be above it"
            )
        return self


def _priced_objective(value: object) -> object:
    if isinstance(value, str) and value.casefold() in REINFORCED:
        refuse(
            f"{value} is reinforcement learning, which is not priced: most of its time goes into "
            "generating answers; sft prices the training of the answers alone"
        )
    return value


class TrainSection(Section):
    """How long to train: epochs or steps, and the rows of one optimizer step."""

    epochs: Annotated[float, real(0.0, MAX_EPOCHS, open_low=True)] | None = None
    steps: Steps | None = None
    global_batch_size: Batch | None = None
    objective: Annotated[Stated, BeforeValidator(_priced_objective)] | None = None  # else sft

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.epochs is not None and self.steps is not None:
            refuse("state epochs or steps, not both")
        return self


class EvaluationSection(Section):
    """Evaluations; without `every_steps` there is one, at the end. rows: else what is held out.

    Of a trainer's file nobody may know: then its batches take memory, and no time is counted.
    keeps_logits: those of all rows wait for the metrics, so many batches of them on the device.

    at_start: one more, before the first step.
    """

    rows: Rows | None = None
    every_steps: Annotated[int, whole(0, MAX_STEPS, scaled=True)] | None = None
    generate_tokens: Annotated[int, whole(0, MAX_LENGTH)] | None = None
    batch_size: Batch | None = None
    at_start: bool | None = None
    keeps_logits: bool | None = None
    accumulation_steps: Annotated[int, whole(1, MAX_STEPS)] | None = None


class LimitsSection(Section):
    """What the answer must respect."""

    deadline: Duration | None = None
    budget: Money | None = None
    confidence: Confidence | None = None
    max_lost_work: Duration | None = None
    max_session: Duration | None = None
    vram_headroom: Annotated[float, real(0.0, 0.9)] | None = None


class MeasuredSection(Section):
    """What was seen: one or more quantities of one run."""

    duration: Duration | None = None
    step_time: StepTime | None = None
    tokens_per_s: Annotated[float, real(0.0, 1e12, open_low=True)] | None = None
    checkpoint_save: Duration | None = None
    peak_memory: Size | None = None
    memory_kind: Literal["allocated", "reserved", "nvidia-smi", "unknown"] | None = None
    out_of_memory: Literal[True] | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        quantities = set(type(self).model_fields) - {"memory_kind"}
        if all(getattr(self, name) is None for name in quantities):
            refuse(f"state at least one of {', '.join(sorted(quantities))}")
        if self.memory_kind is not None and self.peak_memory is None:
            refuse("memory_kind says what peak_memory is, and none is stated")
        return self


class EvidenceSection(Section):
    """A run already seen, on this or other hardware or sizes. `today`: how the job runs now."""

    measured: MeasuredSection | None = None
    config: Knobs = Field(default_factory=dict)
    or_config: Knobs = Field(default_factory=dict)  # where it is not known which of two ran
    # NAME, NAME:N, or a whole machine with its host (and price, where `today` is of it)
    hardware: Annotated[HardwareSection, BeforeValidator(machine_word)] | None = None
    global_batch_size: Batch | None = None  # where it is not the job's
    rows: Rows | None = None
    epochs: Annotated[float, real(0.0, MAX_EPOCHS, open_low=True)] | None = None
    steps: Steps | None = None
    max_length: Tokens | None = None
    today: bool = False
    note: Text | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.measured is None and not self.today:
            refuse("state what was measured, or today: true for the config in use now")
        return self


class BesideSection(Section):
    """A config of accelerate or DeepSpeed beside that file."""

    path: Annotated[str, Field(max_length=4096)]
    syntax: Literal["yaml", "json", "toml"]
    text: Annotated[str, Field(max_length=5_000_000)]


class OriginSection(Section):
    """The trainer's own file that the job was read from, as it was, and what was guessed of it."""

    trainer: Text
    syntax: Literal["yaml", "json", "args", "shell", "python"]
    path: Annotated[str, Field(max_length=4096)] = ""
    typed_in: Annotated[str, Field(max_length=4096)] = ""  # the folder that we were called in
    text: Annotated[str, Field(max_length=5_000_000)]
    knobs: Knobs = Field(default_factory=dict)  # as the file and those beside it state them
    devices: Annotated[int, whole(1, MAX_DEVICES)] | None = None
    notes: tuple[tuple[str, str, str], ...] = ()  # key, value, why
    beside: tuple[BesideSection, ...] = ()
    objective: Objective = "sft"  # what the file trains
    uncounted: tuple[tuple[str, str, str, float, float], ...] = ()  # and its two spreads
    launch: Annotated[int, whole(0, 10**6)] = 0  # of a script with several
    kept: tuple[Text, ...] = ()  # knobs that it cannot be told
    told: tuple[Text, ...] = ()  # knobs that the user states because the file computes them
    flags: tuple[Text, ...] = ()  # keys that a command said beside the file
    evaluation_rows: Annotated[int, whole(0, MAX_ROWS)] = 0  # of a batch that it does not size
    base: Literal["", "32bit"] = ""  # that it loads without saying so
    by_name: bool = False  # TRL loads the model
    silent: bool = False  # its script gives the weights no dtype
    lacking: dict[Text, Text] = Field(default_factory=dict)  # releases that are too old for it

    def as_read(self, software: str | dict[str, str | None]) -> Origin:
        """The file as a job carries it; a version that the job states is not uncounted any more."""
        stated = {f"software.{name}" for name in ([] if isinstance(software, str) else software)}
        return Origin(
            self.trainer, self.syntax, self.path, self.text, dict(self.knobs), self.devices,
            tuple(Beside(each.path, each.syntax, each.text) for each in self.beside),
            self.typed_in, self.objective,
            tuple(Uncounted(*each) for each in self.uncounted if each[0] not in stated),
            self.launch, self.kept, self.told, self.flags, self.evaluation_rows, self.base,
            self.by_name, self.silent, dict(self.lacking),
        )  # fmt: skip

    def assumed(self) -> list[Assumption]:
        """What was guessed or left alone when the file was read."""
        return [Assumption(*note) for note in self.notes]


class JobFile(Section):
    """A whole job file. Needed: model, data size and hardware; the rest is assumed."""

    model: Text
    variants: Annotated[tuple[dict[Text, Any], ...], BeforeValidator(empty_list)] = ()
    hardware: Annotated[
        tuple[Annotated[HardwareSection, BeforeValidator(machine_word)], ...],
        BeforeValidator(machine_list),
        Field(min_length=1, max_length=1000),
    ]
    name: Text | None = None
    method: Annotated[MethodSection, BeforeValidator(method_word)] = Field(
        default_factory=MethodSection
    )
    data: DataSection = Field(default_factory=DataSection)
    train: Annotated[
        Annotated[Literal["none"], Tag(TEXT)] | Annotated[TrainSection, Tag(MAPPING)],
        text_or_mapping("train must be {epochs: N} or {steps: N}, or none for evaluation only"),
    ] = Field(default_factory=TrainSection)
    evaluation: EvaluationSection | None = None
    limits: LimitsSection = Field(default_factory=LimitsSection)
    deepspeed: DeepSpeedSection | None = None
    lock: Knobs = Field(default_factory=dict)
    allow: Annotated[Names, BeforeValidator(empty_list), AfterValidator(numeric_knobs)] = ()
    software: Annotated[
        Annotated[Text, Tag(TEXT)]
        | Annotated[
            dict[Text, Annotated[Text | None, BeforeValidator(version_text)]], Tag(MAPPING)
        ],
        text_or_mapping("software must be a profile's name or {package: version}"),
    ] = "default"
    evidence: Annotated[
        tuple[EvidenceSection, ...], BeforeValidator(empty_list), Field(max_length=1000)
    ] = ()
    stated: tuple[Section, ...] = ()  # what a plan says of the run: `claims/table`
    origin: OriginSection | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.variants:
            refuse("variants is a list of several jobs, and one is needed here; choose one of them")
        if self.train == "none" and self.evaluation is None:
            refuse("train: none is an evaluation-only run, and evaluation is not stated")
        if sum(entry.today for entry in self.evidence) > 1:
            refuse("only one entry of evidence can be today's")
        steps = self.train.steps if isinstance(self.train, TrainSection) else None
        sized = (self.data.rows, self.data.dataset, steps)
        histogram = self.data.lengths and self.data.lengths.histogram
        if self.train != "none" and not histogram and all(value is None for value in sized):
            refuse("data.rows is missing: how many rows there are, or dataset: FILE")
        held_out = None if self.train == "none" else self.data.held_out
        unsized = self.evaluation is not None and self.evaluation.rows is None
        if unsized and held_out is None and self.origin is None:
            refuse("evaluation.rows is missing: how many rows an evaluation reads")
        return self


def has_job_keys_alone(values: dict[str, Any]) -> bool:
    """Whether every key of a mapping is a job file's, and its model no component of torchtune's."""
    return set(values) <= set(JobFile.model_fields) and not isinstance(values.get("model"), dict)
