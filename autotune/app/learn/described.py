"""A training that a logger saw, in the columns of the public table, or why it cannot be compared.

How many devices trained follows from the arithmetic (rows a second over steps a second, over
micro-batch and accumulation), not from what was visible. How long rows were follows from the
floating-point operations, else from the count of tokens. What else a row needs: how a step was
timed (`timed`) and what ran (`what_ran`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.app.learn.timed import steps_an_epoch, timed_run
from autotune.app.learn.what_ran import cells_of, model_of, parallelism_of, without_place
from autotune.catalog.devices import find_device, identify
from autotune.cost.parameters import embedding_parameters, lora_parameters, parameter_count
from autotune.domain.errors import InputError
from autotune.domain.typed.machine import split_machine
from autotune.evidence.cases import Refused
from autotune.evidence.learned.run import NOISE, PastRun, identity_of
from autotune.evidence.record.machine import device_named
from autotune.evidence.record.training import model_targets
from autotune.trainers.registry import TRAINERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.app.learn.found import Found
    from autotune.app.learn.timed import Timed
    from autotune.domain.model import Model
    from autotune.trainers.parsed import Parsed


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
        cells["total_time_h"] = f"{runtime / 3600.0:.6g}"
    notes = (*timed.notes, *found.notes, *told)
    cells["notes"] = _notes(found, timed, notes)
    return PastRun(
        id=_content(found, timed), source=found.source, trainer=found.trainer, grade=timed.grade,
        cells=cells, model=shape, versions=dict(found.versions), save_s=timed.save_s, notes=notes,
        steps=timed.steps, saves=timed.saves,
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
    if machine is not None and machine.count is not None and not found.gpu:
        return machine.count
    if found.on_cpu:
        return 1
    if not samples or not steps:
        if parsed.devices or found.visible == 1:
            return parsed.devices or 1
        msg = "how many devices trained cannot be told: no rows and steps a second"
        raise Refused(msg)
    ratio = samples / steps / each
    count = max(round(ratio), 1)
    last = 1.0 / max(steps_an_epoch(found), 1.0)  # the last step of an epoch may be short
    if abs(ratio - count) > (ARITHMETIC + last) * count or count > MOST_DEVICES:
        msg = f"rows and steps a second make {ratio:.2f} devices: its figures contradict"
        raise Refused(msg)
    return count


def _notes(found: Found, timed: Timed, notes: tuple[str, ...]) -> str:
    """The last column: the grade first, as every row of the record has it; nothing private."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(found.versions.items()))
    parts = [f"Quality {timed.grade} (time). {found.source}", *notes, versions]
    return "; ".join(part for part in parts if part)


def _content(found: Found, timed: Timed) -> str:
    """The run by its figures: two loggers of one training print the same runtime."""
    if found.runtime_s:
        return identity_of("runtime", timed.steps, f"{found.runtime_s:.4g}")
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
