"""What a plan may state of its run: one row a fact, with its kind and what checks it.

A row is a fact's key in a job file's `stated:`, its kind (how it is typed, and read in base units),
where a `Statement` holds it, and its check. A new fact is one row here and its check, in the file
of its like: `speed` or `counts`; memory tables and rates of devices are checked here.

Not here: what is found between measurements (`contradictions`), and a claim in one line
(`feasibility`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, create_model, model_validator

from autotune.catalog.devices import find_device
from autotune.claims.counts import (
    backward_findings,
    checkpoint_findings,
    learning_rate_findings,
    parameter_findings,
    saving_findings,
    step_findings,
    warmup_findings,
)
from autotune.claims.run import ALIKE, figures_text
from autotune.claims.speed import machine_findings, several_findings, speed_findings
from autotune.cost.memory.states import quantised
from autotune.domain.statement import About, Span, StatedDuration, Statement
from autotune.domain.typed.job import JobFile
from autotune.domain.typed.stated import (
    MOST_ENTRIES,
    Circumstances,
    Durations,
    Figures,
    Savings,
    StatedLearningRate,
    StatedMemory,
    StatedRuns,
    StepTimes,
    entries,
)
from autotune.domain.typed.values import Knobs, Text, parse_step_time, refuse
from autotune.domain.units import (
    TERA,
    format_bytes,
    format_count,
    parse_bytes,
    parse_figure,
    parse_seconds,
    parse_span,
)
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from autotune.claims.run import Checked, PricedRun
    from autotune.domain.device import Device
    from autotune.domain.job import Job

    Check = Callable[[Checked], Iterator[str]]
    Machine = tuple[str | None, int]  # a device by name, none where it is the job's; how many

MATTERS = 0.05  # share of the total below which a part is not missed
UNLIKE = 1.5  # times more or less than the model before a part is named
FP32_BYTES = 4
_RATES = {
    "fp32_flop_per_s": "its fp32 rate, outside the tensor cores",
    "tf32_flop_per_s": "its tf32 tensor rate",
    "fp16_flop_per_s": "its fp16 tensor rate",
    "bf16_flop_per_s": "its bf16 tensor rate",
    "int8_op_per_s": "its int8 rate",
    "fp8_flop_per_s": "its fp8 rate",
}
_NEAR = 0.03  # relative: data sheets round
_NAMES = {"weights": "weights", "adapters": "adapters", "gradients": "gradients",
          "optimizer": "optimizer states", "activations": "activations",
          "logits": "logits and loss", "total": "total"}  # fmt: skip


def memory_findings(checked: Checked) -> Iterator[str]:
    """A memory table: what it leaves out, and which of its parts cannot be."""
    stated, run = checked.statement.memory_bytes, checked.run
    if not stated or run is None:
        return
    modelled = {**run.row.memory_bytes.as_dict(), "total": run.row.memory_bytes.total}
    weights = stated.get("weights")
    if weights is not None and weights * ALIKE < modelled["weights"]:
        yield _weights_text(run.job, weights, modelled["weights"])
    if "logits" not in stated and len(stated) > 1 and (
        modelled["logits"] > MATTERS * modelled["total"]
    ):  # fmt: skip
        yield _logits_text(run, modelled)
    off = [
        f"{_NAMES[name]} {format_bytes(modelled[name])}, not {format_bytes(size)}"
        for name, size in stated.items()
        if name != "weights"
        and max(size, modelled[name]) > MATTERS * modelled["total"]
        and not 1 / UNLIKE < size / max(modelled[name], 1.0) < UNLIKE
    ]
    if off:
        usable = run.row.usable_bytes
        lack = f", where {format_bytes(usable)} are usable" if modelled["total"] > usable else ""
        yield (
            f"memory on {run.machine} with micro-batch {run.config.micro_batch_size} and "
            f"activation checkpointing {run.config.activation_checkpointing} is otherwise: "
            + "; ".join(off)
            + lack
        )
    parts = sum(size for name, size in stated.items() if name != "total")
    total = stated.get("total")
    if total is not None and len(stated) > 2 and not 1 / 1.1 < parts / total < 1.1:  # noqa: PLR2004
        yield f"the parts add up to {format_bytes(parts)}, not {format_bytes(total)}"


def _weights_text(job: Job, stated: float, modelled: float) -> str:
    """Weights that are too small; a quantised base keeps its embedding in 16 bit."""
    model = job.model
    embedding = 2.0 * model.vocab_size * model.hidden_size
    why = ""
    if quantised(job):
        why = (
            f": its embedding stays in 16 bit and is {embedding / 1e9:.2f} GB alone "
            f"({format_count(model.vocab_size)} x {format_count(model.hidden_size)})"
        )
    return (
        f"weights of {model.name} with base {job.method.base} are {modelled / 1e9:.1f} GB, not "
        f"{stated / 1e9:.1f}{why}"
    )


def _logits_text(run: PricedRun, modelled: dict[str, float]) -> str:
    micro, length, vocab = (
        run.config.micro_batch_size, run.job.max_length, run.job.model.vocab_size,
    )  # fmt: skip
    alone = float(micro * length * vocab * FP32_BYTES)
    text = (
        f"the memory table leaves out the logits: {micro} x {length} x {format_count(vocab)} in "
        f"fp32 are {format_bytes(alone)}"
    )
    weights = modelled["weights"]
    more = f", more than the {format_bytes(weights)} of weights" if alone > weights else ""
    return text + more


def rate_findings(checked: Checked) -> Iterator[str]:
    """A stated rate of a device that is not the one that training uses."""
    job, stated = checked.job, checked.statement.figures.get("flop_per_s")
    if stated is None:
        return
    name = checked.statement.about.gpu or (job.today_offer or job.offers[0]).device.name
    device = find_device(name)
    used, precision = _training_rate(device)
    if used <= 0 or _is(stated, used):
        return
    comparable = f"{precision} training uses {used / TERA:.3g}"
    if _is(stated, 2.0 * used):
        yield f"{_tera(stated)} of {device.name} is with sparsity, or in 8 bit: {comparable}"
        return
    for field, words in _RATES.items():
        if _is(stated, getattr(device, field)):
            yield f"{_tera(stated)} of {device.name} is {words}: {comparable}"
            return
    yield f"{_tera(stated)} is no dense rate of {device.name}: {comparable}"


def _is(stated: Span, rate: float) -> bool:
    return rate > 0 and stated.low * (1 - _NEAR) <= rate <= stated.high * (1 + _NEAR)


def _training_rate(device: Device) -> tuple[float, str]:
    """[FLOP/s] of the 16-bit format that the device has natively."""
    if device.bf16_flop_per_s:
        return device.bf16_flop_per_s, "bf16"
    return device.fp16_flop_per_s, "fp16"


def _tera(span: Span) -> str:
    return f"{figures_text(span.scaled(1.0 / TERA))} TFLOP/s"


@dataclass(frozen=True, slots=True)
class Kind:
    """How a fact is typed and read. typed: its pydantic type; read: typed -> base units."""

    typed: Any
    read: Callable[[Any], Any]


def span_of(parse: Callable[[str], float], unit: float = 1.0) -> Callable[[str], Span]:
    """A figure or a range as its two ends, in base units."""
    return lambda text: Span(*parse_span(text, parse)).scaled(unit)


def _learning_rate(stated: StatedLearningRate) -> tuple[float, float, int]:
    return stated.before, stated.after, stated.batch_before


def _memory(stated: StatedMemory) -> dict[str, float]:
    sizes = {name: getattr(stated, name) for name in type(stated).model_fields}
    return {name: parse_bytes(size) for name, size in sizes.items() if size is not None}


def _savings(stated: dict[str, str]) -> dict[str, Span]:
    return {name: span_of(parse_seconds)(text) for name, text in stated.items()}


FIGURE = Kind(Figures, span_of(parse_figure))
TERA_FLOP = Kind(Figures, span_of(parse_figure, TERA))
DURATION = Kind(Durations, span_of(parse_seconds))
STEP_TIME = Kind(StepTimes, span_of(parse_step_time))
LEARNING_RATE = Kind(StatedLearningRate, _learning_rate)
MEMORY = Kind(StatedMemory, _memory)
SAVINGS = Kind(Savings, _savings)
RUNS = Kind(StatedRuns, tuple)  # each with its circumstances, which `statements_of` reads


SPEEDS, STEPS, FOLLOWS, DEVICE, ELSEWHERE = range(5)  # turns: whose findings come first


@dataclass(frozen=True, slots=True)
class Fact:
    """One row.

    held: the field of a `Statement`; name: there, in base units, empty where the fact is all of
    that field. check: yields a sentence for what does not hold; None: that of another row reads it.
    needs: another fact without which it says nothing.
    """

    key: str
    kind: Kind
    held: Literal["speeds", "figures", "runs", "savings_s", "memory_bytes", "learning_rate"]
    name: str = ""
    check: Check | None = None
    turn: int = FOLLOWS
    needs: str = ""


FACTS: tuple[Fact, ...] = (
    Fact("steps", FIGURE, "figures", "steps", step_findings, STEPS),
    # Of one run, against those measured on another machine; with `runs`: of all of them.
    Fact("duration", DURATION, "speeds", "duration_s", machine_findings, ELSEWHERE),
    Fact("step_time", STEP_TIME, "speeds", "step_time_s", speed_findings, SPEEDS),
    Fact("tokens_per_s", FIGURE, "speeds", "tokens_per_s"),
    Fact("rows_per_s", FIGURE, "speeds", "rows_per_s"),
    Fact("steps_per_hour", FIGURE, "speeds", "steps_per_hour"),
    Fact("runs", RUNS, "runs", check=several_findings, turn=SPEEDS),
    Fact("checkpoints", FIGURE, "figures", "checkpoints", checkpoint_findings),
    Fact("checkpoint_save", DURATION, "figures", "checkpoint_save_s"),  # of one
    Fact("checkpoint_time", DURATION, "figures", "checkpoint_time_s"),  # of all
    Fact("trainable_parameters", FIGURE, "figures", "trainable_parameters", parameter_findings),
    Fact("backward_passes", FIGURE, "figures", "backward_passes", backward_findings, STEPS),
    Fact("warmup_steps", FIGURE, "figures", "warmup_steps", warmup_findings),
    Fact("warmup_rows", FIGURE, "figures", "warmup_rows", needs="warmup_steps"),
    Fact("learning_rate", LEARNING_RATE, "learning_rate", check=learning_rate_findings),
    Fact("memory", MEMORY, "memory_bytes", check=memory_findings),
    Fact("tflops", TERA_FLOP, "figures", "flop_per_s", rate_findings, DEVICE),  # of one device
    Fact("savings", SAVINGS, "savings_s", check=saving_findings),
    Fact("saved", DURATION, "figures", "saved_s", needs="savings"),  # by all of them
)


class _Entry(Circumstances):
    """Figures that a plan states together: the facts of the table are its further keys."""

    hardware: Text | None = None  # NAME or NAME:N
    config: Knobs | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        given = {fact.key for fact in FACTS if getattr(self, fact.key)}
        if not given and not self.config:
            keys = ", ".join(("config", *(fact.key for fact in FACTS)))
            refuse(f"an entry states nothing; it takes {keys}")
        for fact in FACTS:
            if fact.needs and fact.key in given and fact.needs not in given:
                refuse(f"{fact.key} is what {fact.needs} come to, and none are stated")
        return self


@cache
def file_with_statements() -> type[JobFile]:
    """The schema of a job file that states something."""
    facts: dict[str, Any] = {fact.key: (fact.kind.typed | None, None) for fact in FACTS}
    entry = create_model("StatedEntry", __base__=_Entry, **facts, note=(Text | None, None))
    listed = Annotated[
        tuple[entry, ...],  # type: ignore[valid-type]  # made of the table
        BeforeValidator(entries),
        Field(max_length=MOST_ENTRIES),
    ]
    return create_model("JobFile", __base__=JobFile, stated=(listed, ()))


def values_of(entry: Any) -> dict[str, Any]:  # noqa: ANN401 - a model made of the table
    """The stated facts of an entry in base units, by the fields of a `Statement`.

    A duration comes last of the speeds: it is worked out from the others.
    """
    found: dict[str, Any] = {}
    for fact in sorted(FACTS, key=lambda fact: fact.key == "duration"):
        typed = getattr(entry, fact.key)
        if not typed:
            continue
        held, name = fact.held, fact.name
        if fact.key == "duration" and entry.runs:
            held, name = "figures", "total_s"
        value = fact.kind.read(typed)
        if name:
            found.setdefault(held, {})[name] = value
        else:
            found[held] = value
    return found


def statements_of(
    entries: Sequence[Any], machines: Mapping[str | None, Machine]
) -> tuple[Statement, ...]:
    """Statements of the entries. machines: device and count of each name that one speaks of."""
    found = []
    for index, entry in enumerate(entries):
        values = values_of(entry)
        about = _about(entry, machines[entry.hardware])
        runs = tuple(
            StatedDuration(
                run.name or _named(run),
                _about(run, (about.gpu, about.count), about),
                span_of(parse_seconds)(run.duration),
            )
            for run in values.pop("runs", ())
        )
        found.append(Statement(where=f"stated[{index}]", about=about, runs=runs, **values))
    return tuple(found)


def _about(part: Circumstances, machine: Machine, within: About | None = None) -> About:
    """The circumstances of an entry, or of one run within an entry."""
    of = within or About()
    knobs = getattr(part, "config", None)
    return About(
        machine[0],
        machine[1],
        part.kind or of.kind,
        part.rank or of.rank,
        part.rows or of.rows,
        part.max_length or of.max_length,
        dict(knobs) if knobs else dict(of.knobs),
    )


def _named(part: Circumstances) -> str:
    """A run by what sets it apart: "qlora, rank 16"."""
    words: list[str] = [part.kind or ""]
    words += [f"{name} {value:,}" for name in ("rank", "rows", "max_length")
              if (value := getattr(part, name)) is not None]  # fmt: skip
    return ", ".join(word for word in words if word) or "a run"


def findings(checked: Checked) -> Iterator[str]:
    """What each check of the table finds in a statement."""
    for fact in sorted(FACTS, key=lambda fact: fact.turn):
        if fact.check is not None:
            yield from fact.check(checked)
