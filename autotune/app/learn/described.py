"""A training that a logger saw, in the columns of the public table, or why it cannot be compared.

How many devices trained follows from the arithmetic (rows a second over steps a second, over
micro-batch and accumulation), not from what was visible. How long rows were follows from the
floating-point operations, else from the count of tokens. What ran is in `what_ran`.

A step is timed by the slope of a log's clock where it has one, else `train_runtime` over the steps
that it covers. Source: transformers, `speed_metrics` of trainer_utils.py.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.app.learn.found import whole
from autotune.app.learn.what_ran import cells_of, model_of, parallelism_of, without_place
from autotune.catalog.devices import find_device, identify
from autotune.cost.parameters import embedding_parameters, lora_parameters, parameter_count
from autotune.domain.errors import InputError
from autotune.domain.job import EVALUATION_ROWS
from autotune.domain.typed.machine import split_machine
from autotune.domain.units import HOUR_S
from autotune.evidence.cases import Refused
from autotune.evidence.learned.run import NOISE, PastRun, identity_of, is_seconds
from autotune.evidence.log.run_log import speed_of
from autotune.evidence.log.text import figure_of
from autotune.evidence.log.trainer_state import HALF_DIGIT, PART_OF_RUN
from autotune.evidence.record.machine import device_named
from autotune.evidence.record.training import model_targets
from autotune.frozen import dataclass
from autotune.trainers.registry import TRAINERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.app.learn.found import Found
    from autotune.domain.model import Model
    from autotune.evidence.cases import Grade
    from autotune.trainers.parsed import Parsed

FEWEST_STEPS, LONG_STEPS = 10, 50

UNEVEN = 0.2  # log sd of a step between parts of a run

SHORT_S = 120.0  # a run whose warm-up is part of its time


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of a step and of a save, over how many steps; `grade` says how sure that is."""

    step_s: float
    grade: Grade
    save_s: float | None
    steps: int
    notes: tuple[str, ...]
    saves: int = 0  # inside, and not timed


def timed_run(found: Found, parsed: Parsed) -> Timed:
    """[s] of a step, how sure that is, and what is inside. Raises Refused."""
    log, runtime = found.log, found.runtime_s
    steps = found.steps or (log.steps_done if log else None)
    if log is not None and log.is_timed and log.timed_by != "train_runtime":
        speed = speed_of(log, 0.0, 0.0)
        if speed is not None and speed.steps >= FEWEST_STEPS:
            inside = sum(log.saves_in(part) for part in log.stretches) if speed.save_assumed else 0
            saves = max(inside, 0 if speed.save_s else _saves(found, parsed, speed.steps))
            grade: Grade = "B" if saves or speed.log_sd > UNEVEN else "A"
            if log.dated or found.clock:
                grade = "C"
            kept = log.evaluations and not all(part.pure for part in log.stretches)
            notes = [f"slope of {log.timed_by} over {speed.steps} steps"]
            notes += _said(saves)
            notes += ["evaluations taken off as timed"] if kept else []
            told = tuple(notes)
            return Timed(speed.step_s, grade, speed.save_s, speed.steps, told, saves)
    if runtime is None and found.elapsed_s and steps and steps >= LONG_STEPS:
        saves = _saves(found, parsed, steps)
        note = f"its logger's clock over {steps} steps; it did not end"
        return Timed(found.elapsed_s / steps, "C", None, steps, (note, *_said(saves)), saves)
    if runtime is None or not steps:
        msg = "it ended before its time was written, and no progress bar has a clock"
        raise Refused(msg)
    if steps < FEWEST_STEPS:
        msg = f"fewer than {FEWEST_STEPS} steps: mostly warm-up"
        raise Refused(msg)
    return _by_runtime(found, parsed, runtime, steps)


def _by_runtime(found: Found, parsed: Parsed, runtime: float, steps: int) -> Timed:
    rate = found.results.get("train_steps_per_second")
    covered = steps
    notes = []
    if rate is not None and (rate + HALF_DIGIT) * runtime < PART_OF_RUN * steps:
        covered = max(round(rate * runtime), 1)
        notes.append(f"resumed: its runtime covers {covered} of {steps} steps")
    log = found.log
    evaluations = sum(seconds for _, seconds in log.evaluations) if log else 0.0
    own = runtime - evaluations if 0 < evaluations < 0.9 * runtime else runtime
    notes.append(f"train_runtime over {covered} steps")
    if evaluations:
        notes.append("evaluations taken off as timed")
    saves = _saves(found, parsed, covered)
    notes += _said(saves)
    short = own < SHORT_S or covered < 5 * FEWEST_STEPS
    if short:
        notes.append("short: its warm-up is inside")
    untimed = found.arguments.get("eval_strategy", found.arguments.get("evaluation_strategy")) in {
        "steps", "epoch",
    } and not evaluations  # fmt: skip
    if untimed:
        notes.append("evaluations inside")
    grade: Grade = "B" if saves or short or untimed or covered < steps else "A"
    return Timed(own / covered, grade, None, covered, tuple(notes), saves)


def _saves(found: Found, parsed: Parsed, steps: int) -> int:
    """How many checkpoints were saved while it trained."""
    strategy = str(found.arguments.get("save_strategy") or "").casefold().rpartition(".")[2]
    if strategy == "no":
        return 0
    if strategy == "epoch":
        return max(round(steps / steps_an_epoch(found)), 1)
    every = parsed.knobs.get("checkpoint_every_steps")
    return steps // int(every) if isinstance(every, int) and every else 0


def _said(saves: int) -> list[str]:
    return [f"about {saves} save{'s' * (saves != 1)} inside"] if saves else []


def steps_an_epoch(found: Found) -> float:
    """Optimizer steps that one pass over the rows takes; a very large number where untold."""
    epochs = figure_of(found.arguments.get("num_train_epochs"))
    return (found.steps or 1) / epochs if epochs and (found.steps or 0) > epochs else 1e9


def _evaluated(found: Found) -> dict[str, Any]:
    """What `PastRun` holds of the evaluations: nothing where they generated, or tell no rows."""
    log, arguments = found.log, found.arguments
    seconds = log.evaluated_s if log is not None else ()
    generates = arguments.get("predict_with_generate") in {True, "true", "True"}
    mean_s = sum(seconds) / max(len(seconds), 1)
    if log is None or not is_seconds(mean_s) or not log.evaluation_rows or generates:
        return {}
    return {
        "evaluation_s": mean_s,
        "evaluation_rows": log.evaluation_rows,
        "evaluation_batch": whole(arguments.get("per_device_eval_batch_size")) or EVALUATION_ROWS,
    }


ARITHMETIC = 0.04  # rows a step over what one device makes of them, from a whole number

MOST_DEVICES = 1024

# What a repository is called in the record, by trainer.
REPOSITORIES = {
    "hf": "huggingface/transformers", "trl": "huggingface/trl",
    "axolotl": "axolotl-ai-cloud/axolotl",
    "llamafactory": "hiyouga/LLaMA-Factory", "unsloth": "unslothai/unsloth",
    "torchtune": "pytorch/torchtune", "litgpt": "Lightning-AI/litgpt",
}  # fmt: skip

_NOT_ARGUMENTS = {"hf": ("max_length", "max_seq_length", "model_max_length", "packing")}


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that a user names for runs that do not name theirs. count None: by arithmetic."""

    device: str
    count: int | None = None


def past_run(found: Found, machine: Machine | None = None) -> PastRun:
    """The training as a past run. Raises Refused with the reason where it cannot be one."""
    device = _device(found, machine)
    parsed = _parsed(found)
    timed = timed_run(found, parsed)
    count = _devices(found, parsed, machine)
    model, shape = model_of(found)
    cells = cells_of(found, parsed, model)
    split = (
        int(parsed.meaning["micro_batch_size"]),
        int(parsed.meaning["gradient_accumulation_steps"]),
    )
    cells |= {
        "source_repo": REPOSITORIES.get(found.trainer, found.trainer),
        "source_path": "learned",
        "source_commit_or_date": found.month,
        "model_id": model.name,
        "gpu": device,
        "n_gpus": str(count),
        "parallelism": parallelism_of(found, parsed, count),
        "micro_batch": str(split[0]),
        "grad_accum": str(split[1]),
        "global_batch": str(split[0] * split[1] * count),
        "step_time_s": f"{timed.step_s:.6g}",
        "samples_per_s": f"{split[0] * split[1] * count / timed.step_s:.6g}",
    }
    length, told = _length_of(found, parsed, model, cells, timed)
    cells |= length
    runtime = found.runtime_s
    if runtime:
        cells["total_time_h"] = f"{runtime / HOUR_S:.6g}"
    notes = (*timed.notes, *found.notes, *told)
    cells["notes"] = _notes(found, timed, notes)
    return PastRun(
        id=_content(found, timed), source=found.source, trainer=found.trainer, grade=timed.grade,
        cells=cells, model=shape, versions=dict(found.versions), save_s=timed.save_s, notes=notes,
        steps=timed.steps, saves=timed.saves, **_evaluated(found),
    )  # fmt: skip


def _device(found: Found, machine: Machine | None) -> str:
    """The catalogue's name of the device. Raises Refused."""
    if found.gpu:
        known = identify(found.gpu, found.gpu_bytes) if found.gpu_bytes else None
        known = known or device_named(found.gpu)
        if known is None:
            msg = f"GPU unknown to the catalogue: {found.gpu[:60]}"
            raise Refused(msg)
        return known.name
    if machine is not None:
        return machine.device
    if found.on_cpu:
        return "cpu"
    msg = "the GPU is named nowhere: name it with --gpu"
    raise Refused(msg)


def _parsed(found: Found) -> Parsed:
    """The arguments in the words of a job file. Raises Refused."""
    trainer = TRAINERS[found.trainer if found.trainer in TRAINERS else "hf"]
    dropped = _NOT_ARGUMENTS.get(trainer.name, ())
    values = {k: v for k, v in found.arguments.items() if v is not None and k not in dropped}
    values.pop("deepspeed", None)
    try:
        parsed = trainer.read(values, found.source)
    except InputError as error:
        msg = f"an argument that no trainer takes: {without_place(error.message)}"
        raise Refused(msg) from None
    stated = parsed.knobs.keys() & {"micro_batch_size"}
    if not stated:
        msg = "its micro-batch is stated nowhere"
        raise Refused(msg)
    return parsed


def _devices(found: Found, parsed: Parsed, machine: Machine | None) -> int:
    """How many devices trained. Raises Refused where the figures contradict each other."""
    samples = found.results.get("train_samples_per_second")
    steps = found.results.get("train_steps_per_second")
    runtime, done = found.runtime_s, found.steps
    if runtime and done:
        steps = steps if steps and steps > 0.02 else done / runtime  # noqa: PLR2004 - its digits
    each = int(parsed.meaning["micro_batch_size"]) * int(
        parsed.meaning["gradient_accumulation_steps"]
    )
    stated = machine.count if machine is not None and not found.gpu else None
    counted = samples / steps / each if samples and steps else None
    if stated is not None:
        whole = max(round(counted), 1) if counted else stated
        if counted and whole != stated and abs(counted - whole) <= ARITHMETIC * whole:
            msg = (
                f"rows and steps a second make {whole} device{'s' * (whole > 1)}, and --gpu says "
                f"{stated}: leave the number out of --gpu"
            )
            raise Refused(msg)
        return stated
    if found.on_cpu and (machine is None or machine.device == "cpu"):
        return 1
    if counted is None:
        if parsed.devices or found.visible == 1:
            return parsed.devices or 1
        msg = "how many devices trained cannot be told: no rows and steps a second"
        raise Refused(msg)
    count = max(round(counted), 1)
    last = 1.0 / max(steps_an_epoch(found), 1.0)  # the last step of an epoch may be short
    if abs(counted - count) > (ARITHMETIC + last) * count or count > MOST_DEVICES:
        msg = f"rows and steps a second make {counted:.2f} devices: its figures contradict"
        raise Refused(msg)
    return count


def _notes(found: Found, timed: Timed, notes: tuple[str, ...]) -> str:
    """The last column: the grade first, as every row of the record has it; nothing private."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(found.versions.items()))
    parts = [f"Quality {timed.grade} (time). {found.source}", *notes, versions]
    return "; ".join(part for part in parts if part)


def _content(found: Found, timed: Timed) -> str:
    """The run by its figures: two loggers of one training print the same runtime and steps.

    TensorBoard keeps it in 32 bits, which moves a tie to the other side; with the four decimals
    that the Trainer gives it, it rounds as the line does that the Trainer prints.
    """
    if found.runtime_s:
        steps = found.steps or timed.steps  # a slope leaves the first ones out
        runtime_s = round(float(np.float32(found.runtime_s)), 4)
        return identity_of("runtime", steps, f"{runtime_s:.4g}")
    return identity_of("slope", found.source, timed.steps, f"{timed.step_s:.4g}", sorted(NOISE))


def named_machine(text: str) -> Machine:
    """A machine as a user types it: h100-sxm, 8xH100. Raises InputError."""
    stated = split_machine(text)
    name = "cpu" if stated.name.casefold() == "cpu" else find_device(stated.name).name
    return Machine(name, stated.count)


def _length_of(
    found: Found, parsed: Parsed, model: Model, cells: dict[str, str], timed: Timed
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The longest row and what the notes say of the mean.

    Formula: tokens = total_flos / (6 x parameters without input embeddings), padding included.
    Under FSDP the Trainer counts the parameters of one rank's shard; packing says the length.
    Source: transformers, `floating_point_ops` and `num_parameters` of modeling_utils.py.
    """
    cap = parsed.values.get("data", {}).get("max_length")
    made: dict[str, str] = {"seq_len": str(cap)} if cap else {}
    if cells["packing"] == "yes":
        return made, ()
    rows = int(cells["global_batch"]) * (found.steps or timed.steps)
    each = _tokens_a_row(found, model, cells, rows, cap)
    if each is None:
        return made, ()
    if cap and each > 0.98 * cap:
        return made, (
            f"every row {cap} tokens: avg tokens/sample incl. padding = {each:.0f} exactly",
        )
    return made, (f"avg tokens/sample incl. padding = {each:.0f}",)


def _tokens_a_row(
    found: Found, model: Model, cells: Mapping[str, str], rows: int, cap: int | None
) -> float | None:
    flos = found.results.get("total_flos")
    if flos:
        parameters = float(parameter_count(model) - embedding_parameters(model))
        if cells["lora_r"]:
            targets, _ = model_targets(model, tuple(cells["target_modules"].split()))
            parameters += lora_parameters(model, int(cells["lora_r"]), targets)
        shards = int(cells["n_gpus"]) if cells["parallelism"] == "fsdp" else 1
        if cells["parallelism"] == "zero3":
            return found.tokens / rows if found.tokens else None
        each = flos / (6.0 * parameters / shards) / rows
        if 1.0 <= each <= 1.05 * (cap or model.max_position_embeddings or math.inf):
            return each
    return found.tokens / rows if found.tokens else None
