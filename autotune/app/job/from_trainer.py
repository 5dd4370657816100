"""A trainer's file as it was read -> the mapping of a job file, completed by flags.

The file's own config becomes today's; what it lacks (rows, device, at times model and method) is
asked for by flag. Numeric knobs that it opens itself are locked as it has them.
"""

from __future__ import annotations

import math
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.dataset.named_rows import load_rows, name_rows
from autotune.app.hardware.machines import ALL, as_devices
from autotune.app.job.beside import near_file
from autotune.app.job.computed import ask_for
from autotune.app.job.defaults import held_out_of
from autotune.app.job.file import COMMAND, Document
from autotune.app.job.method import widen_masters
from autotune.app.job.overrides import add_stated, stated_rows, trained_rows
from autotune.app.job.targets import fill_saved, fill_targets, say_folder
from autotune.catalog.models.derived import stored_by_name
from autotune.catalog.software import SWITCHES, find_software
from autotune.domain.config import KNOBS, NEVER_STEPS, PLAIN, ZERO_STAGE
from autotune.domain.paths import whole
from autotune.domain.software import asks_cudnn
from autotune.domain.typed.machine import split_machine, split_machines
from autotune.trainers.hf.adapter import as_released, as_trained, fill_base
from autotune.trainers.registry import TRAINERS
from autotune.trainers.schema import schema_of
from autotune.trainers.unread import leave_uncounted, together

if TYPE_CHECKING:
    from autotune.domain.job import Origin
    from autotune.domain.software import Software
    from autotune.domain.typed.overrides import Overrides
    from autotune.trainers.parsed import Parsed

_LOCKED = (  # opt-in, where stated
    "packing", "length_grouping", "optimizer", "adapter_dtype", "kernels",
)  # fmt: skip
OFFLOAD = "offload"  # neutral: what it saves is memory, and it costs time
FLASH_ATTENTION_3 = "3.0.0"
HUB_KERNELS = "0.18.2"  # the oldest that transformers 5.23 takes
FLASH_ATTENTION = "2.8.0"  # where the file asks for it: any release of 2.x counts the same


def completed(
    parsed: Parsed, origin: Origin, overrides: Overrides, called: str = ""
) -> tuple[Document, Overrides]:
    """The mapping of a job file, and the overrides with the file's device count.

    called: what errors call it, where it is given back as another file: a notebook, a page.
    """
    name = called or origin.path or COMMAND
    values = parsed.values
    add_stated(values, overrides, name)
    name_rows(parsed, values, overrides)
    load_rows(parsed, values, overrides, origin, lambda named: near_file(named, Path(origin.path)))
    _cap_rows(parsed, values, overrides)
    _cap_steps(parsed, values, overrides)
    overrides = _with_counts(parsed, overrides)
    ask_for(parsed, overrides, origin, name)
    _name_base(parsed, overrides, name)
    base = fill_base(parsed, origin.syntax, origin.text, _release("transformers", overrides))
    as_released(parsed, _release("trl", overrides))
    as_trained(parsed, _stated_software(overrides, "torch", "transformers"))
    model = str(overrides.set_values.get("model", values.get("model")))
    say_folder(parsed, model, Path(origin.path).parent)
    fill_targets(parsed, model, Path(origin.path).parent)
    fill_saved(parsed, model, Path(origin.path).parent)
    first, counted = _first_machine(overrides)
    devices = parsed.devices or counted
    batch = parsed.batch_on(devices)
    leave_uncounted(parsed, devices, set(overrides.set_values))
    parsed.uncounted = together(parsed.uncounted)
    _split_total(parsed, devices)
    _cap_steps(parsed, values, overrides, batch)
    values.setdefault("train", {})["global_batch_size"] = batch
    _place_saves(parsed, values, overrides, batch)
    if int(parsed.knobs.get("checkpoint_every_steps", 0)) > NEVER_STEPS:
        parsed.knobs["checkpoint_every_steps"] = NEVER_STEPS - 1  # and once at the end
    widen_masters(parsed, values, devices, _release("accelerate", overrides))
    _complete_evaluation(parsed, values, overrides)
    _place_evaluations(parsed, values, overrides, batch)
    if first is not None:  # else today's machine is not known
        config, machine = _possible(parsed, devices), f"{first}:{devices}"
        values["evidence"] = [{"today": True, "config": config, "hardware": machine}]
    locked = _locked(parsed, overrides, devices)
    if locked:
        values["lock"] = locked
        listed = ", ".join(f"{knob} {value}" for knob, value in locked.items())
        parsed.note("lock", listed, "as the file has it; --allow or --set opens it")
    if OFFLOAD in parsed.knobs and OFFLOAD not in {*locked, *overrides.set_values}:
        parsed.note(
            OFFLOAD, parsed.knobs[OFFLOAD], "as the file has it; left where it fits without"
        )
    parsed.no_moments = parsed.no_moments and "optimizer" in locked  # else another was asked for
    _hint_software(parsed, values, origin.text)
    values["hardware"] = []
    values.setdefault("name", _job_name(values, origin))
    values["origin"] = {
        "trainer": origin.trainer, "syntax": origin.syntax, "typed_in": str(whole(".")),
        "path": str(whole(origin.path)) if origin.path else "",
        **({"launch": origin.launch} if origin.launch else {}),
        **({"kept": list(origin.kept)} if origin.kept else {}),
        **({"flags": list(origin.flags)} if origin.flags else {}),
        **({"told": sorted(parsed.told)} if parsed.told else {}),
        **({"evaluation_rows": parsed.evaluation_rows} if parsed.evaluation_rows else {}),
        **({"base": base} if base else {}),
        **({"by_name": True} if parsed.by_name else {}),
        **({"silent": True} if parsed.silent and not parsed.by_name else {}),
        **({"lacking": lacking} if (lacking := _lacking(parsed, origin)) else {}),
        "text": origin.text, "knobs": dict(parsed.knobs), "devices": parsed.devices,
        "notes": [[note.key, note.value, note.why] for note in parsed.notes],
        "beside": [asdict(each) | {"path": str(whole(each.path))} for each in parsed.beside],
        "objective": parsed.objective, "uncounted": [astuple(each) for each in parsed.uncounted],
    }  # fmt: skip
    return Document(values, name), overrides


def _split_total(parsed: Parsed, devices: int) -> None:
    """The accumulation that a stated total leaves, on as many devices as there are."""
    micro = int(parsed.meaning["micro_batch_size"]) * devices
    if parsed.global_batch is not None and parsed.global_batch % micro == 0:
        parsed.knobs["gradient_accumulation_steps"] = parsed.global_batch // micro


# Of TRL, the newest release without SFTConfig among those that were read. Source: its wheels.
_WITHOUT_SFT_CONFIG = "0.8.6"


def _lacking(parsed: Parsed, origin: Origin) -> dict[str, str]:
    """By package the newest release that does not take the file's arguments yet."""
    made = "SFTConfig" in origin.text and parsed.trainer == "trl"
    known = {name: own for name, own in parsed.lacking.items() if name in {"transformers", "trl"}}
    return {**({"trl": _WITHOUT_SFT_CONFIG} if made else {}), **known}


def _job_name(values: dict[str, Any], origin: Origin) -> str:
    stem = Path(origin.path).stem if origin.path else Path(str(values.get("model"))).name
    return stem[:100] or "job"


def _release(package: str, overrides: Overrides) -> tuple[int, ...] | None:
    """The version of a package that the user states beside the file; None where nobody does."""
    stated = _stated_software(overrides, package)
    return None if stated is None else getattr(stated, package)


def _stated_software(overrides: Overrides, *packages: str) -> Software | None:
    """With what the user states of the packages, or of a profile; None where nobody does."""
    profile = overrides.set_values.get("software")
    named = {name: overrides.set_values.get(f"software.{name}") for name in packages}
    stated = {name: version for name, version in named.items() if version is not None}
    if profile is not None:
        stated["profile"] = profile
    return find_software(stated) if stated else None


def _hint_software(parsed: Parsed, values: dict[str, Any], text: str) -> None:
    """Versions and kernels that the trainer's package, the file's own keys or its text imply."""
    trainer, runs_on = TRAINERS[parsed.trainer], schema_of(parsed.trainer).runs_on
    hints: dict[str, Any] = {**{k: runs_on[k] for k in trainer.runs_on}, **trainer.software}
    hints |= {name: "true" for name in SWITCHES if getattr(parsed, name, False)}
    hints |= {"reentrant": "false"} if parsed.reentrant is False else {}
    hints |= {"autocast": "false"} if parsed.plain else {}
    hints |= {"loss": parsed.loss} if parsed.loss else {}
    if _mixes_halves(parsed):
        hints["base_dtype"] = parsed.base_dtype
        parsed.note("software.base_dtype", parsed.base_dtype, _MIXED_HALVES)
    hints |= {"cudnn_attention": "true"} if asks_cudnn(text) else {}
    if parsed.hub_kernels:
        hints["hub_kernels"] = HUB_KERNELS
    elif parsed.knobs.get("attention") == "flash_attention_3":
        hints["flash_attn_3"] = FLASH_ATTENTION_3
    elif parsed.knobs.get("attention") == "flash_attention_2":
        hints["flash_attn"] = FLASH_ATTENTION
    values["software"] = {**hints, **values.get("software", {})}  # what is stated goes before
    if hints:
        listed = ", ".join(f"{key} {value}" for key, value in hints.items())
        why = "implied by the trainer and the file; --set software=NAME takes a profile instead"
        parsed.note("software", listed, why)


_MIXED_HALVES = (
    "the file loads weights in one 16-bit dtype and computes in the other: autocast copies each "
    "matrix, and the backward keeps the copies; loaded in the same, they are not made"
)


def _mixes_halves(parsed: Parsed) -> bool:
    """Whether the file loads weights in one 16-bit dtype and computes in the other."""
    return parsed.base_dtype not in {"", parsed.knobs.get("precision", parsed.base_dtype)}


def _possible(parsed: Parsed, devices: int) -> dict[str, Any]:
    """Today's knobs; on one device a sharding only says what offloads the optimizer."""
    knobs = dict(parsed.meaning)
    offloads = knobs.get(OFFLOAD) == "optimizer" and knobs.get("sharding") in ZERO_STAGE
    if devices == 1 and offloads:
        knobs["sharding"] = "zero2"  # one device has nothing to gather, whatever the stage
    elif devices == 1 or knobs.get("sharding") == "none":
        knobs.pop("sharding", None)
    return knobs


def _cap_rows(parsed: Parsed, values: dict[str, Any], overrides: Overrides) -> None:
    """No more rows than the file takes of each data set; `--set data.rows=N` is left as it is.

    Rows that are counted out of a file stay: how long those are that it takes is not known.
    """
    most, data = parsed.rows_at_most, values.get("data", {})
    if most is None or "rows" not in data or "data.rows" in overrides.set_values:
        return
    rows, sets = stated_rows(values, overrides), max(len(parsed.datasets), 1)
    if rows > most * sets:
        data["rows"] = most * sets
        of = f"{most} of each of {sets} data sets" if sets > 1 else f"{most}"
        parsed.note("data.rows", most * sets, f"the file takes {of} at most, of {rows}")


def _cap_steps(
    parsed: Parsed, values: dict[str, Any], overrides: Overrides, batch: int = 0
) -> None:
    """No more steps an epoch than the file has: a number of steps in place of the epochs.

    batch: rows of a step; 0 where it is not known yet, and only a run without rows is cut.
    """
    most, train = parsed.steps_an_epoch, values.get("train", {})
    given = {"train.steps", "train.epochs"} & set(overrides.set_values)
    epochs = train.get("epochs")
    if most is None or given or not isinstance(epochs, int | float):
        return
    rows = trained_rows(values, overrides)
    if (rows and not batch) or (rows and math.ceil(rows / batch) <= most):
        return
    train["steps"] = max(1, int(epochs * most))
    del train["epochs"]
    parsed.note("train.steps", train["steps"], f"{most} an epoch at most, as the file says")
    if parsed.saves_per_epoch:  # an epoch is that many steps
        parsed.knobs["checkpoint_every_steps"] = max(1, int(most / parsed.saves_per_epoch))
        parsed.knobs.setdefault("save_total_limit", max(1, math.ceil(epochs)))
        parsed.saves_per_epoch = None


def _with_counts(parsed: Parsed, overrides: Overrides) -> Overrides:
    """A device named without a count stands for as many as the file runs on."""
    count = parsed.devices
    if not count or count == 1:
        return overrides
    gpus = []
    for text in split_machines(tuple(overrides.gpus)):
        said = split_machine(text)
        counted = said.count or as_devices({"gpu": said.name}).get("count")
        if counted is None and said.name.casefold() != ALL:
            text = f"{count}x {text}"  # noqa: PLW2901 - the same machine, counted
            why = "as many as the file runs on; NAME:1 stands for one"
            parsed.note("hardware", f"{said.name}:{count}", why)
        gpus.append(text)
    return replace(overrides, gpus=tuple(gpus))


def _first_machine(overrides: Overrides) -> tuple[str | None, int]:
    """Name and count of the first device named; no name for `all`."""
    said = split_machine(split_machines(tuple(overrides.gpus))[0])
    if said.name.casefold() == ALL:
        return None, 1
    entry = as_devices({"gpu": said.name, "count": said.count})
    return str(entry["gpu"]), int(entry.get("count") or 1)


def _place_saves(parsed: Parsed, values: dict[str, Any], overrides: Overrides, batch: int) -> None:
    """Saves stated per epoch as steps, where the rows are known."""
    often = parsed.saves_per_epoch
    if often is None:
        return
    count = trained_rows(values, overrides)
    if not count:
        parsed.note(
            "checkpoint_every_steps", 500, "saved by the epoch, and the rows are not stated"
        )
        return
    parsed.knobs["checkpoint_every_steps"] = _steps_apart(count, batch, often)
    epochs = values.get("train", {}).get("epochs")
    if "save_total_limit" not in parsed.knobs and isinstance(epochs, int | float):
        every = math.ceil(min(epochs * often, NEVER_STEPS))
        parsed.knobs["save_total_limit"] = max(1, every)  # all, to choose among
        parsed.kept.add("save_total_limit")


def _name_base(parsed: Parsed, overrides: Overrides, name: str) -> None:
    """QLoRA by the file's name alone: what loads the model in 4 bits is then its program."""
    method = parsed.values.get("method", {})
    stated = method.get("base") or {"method.base", "method.kind"} & set(overrides.set_values)
    stored = stored_by_name(str(parsed.values.get("model", "")))
    named = parsed.trainer in {"hf", "trl"} and "qlora" in Path(name).stem.casefold()
    if named and method.get("kind") == "lora" and not stated and not stored:
        method["base"] = "nf4"
        why = "the file's name says QLoRA and no key how the base is held: --set method.base=16bit"
        parsed.note("method.base", "nf4", why)


def _complete_evaluation(parsed: Parsed, values: dict[str, Any], overrides: Overrides) -> None:
    """An evaluation reads what the file holds out; without it, and without rows, it has no time."""
    found, held_out = values.get("evaluation"), values.get("data", {}).get("held_out")
    if found is not None and held_out and parsed.evaluated_rows:
        every = stated_rows(values, overrides)
        if parsed.evaluated_rows < held_out_of(held_out, every):
            found.setdefault("rows", parsed.evaluated_rows)
    if found is None or "rows" in found or held_out or "evaluation.rows" in overrides.set_values:
        return
    why = "the file evaluates, but not on how many rows: --set evaluation.rows=N counts their time"
    parsed.note("evaluation", "memory of a batch only", why)


def _place_evaluations(
    parsed: Parsed, values: dict[str, Any], overrides: Overrides, batch: int
) -> None:
    """Evaluations stated per epoch as steps, where the rows are known."""
    often, found = parsed.evaluations_per_epoch, values.get("evaluation")
    if not often or found is None or "evaluation.every_steps" in overrides.set_values:
        return
    if count := trained_rows(values, overrides):
        found["every_steps"] = _steps_apart(count, batch, often)


def _steps_apart(rows: int, batch: int, often: float) -> int:
    """Steps from one to the next of what happens so often an epoch."""
    return max(1, int(min(math.ceil(rows / batch) / often, NEVER_STEPS)))


def _locked(parsed: Parsed, overrides: Overrides, devices: int) -> dict[str, Any]:
    """Opt-in knobs as the file has them, and what cannot be written back."""
    opened = {n.strip() for text in overrides.allow for n in text.split(",")}
    opened |= set(overrides.set_values)
    meaning = parsed.meaning
    locked = {
        knob: parsed.knobs[knob]
        for knob in _LOCKED
        if knob in parsed.knobs and parsed.knobs[knob] != PLAIN[knob]
    }
    locked |= {knob: meaning[knob] for knob in sorted(parsed.kept) if knob in meaning}
    locked |= {knob: parsed.knobs[knob] for knob in _placed_saves(parsed) if knob in parsed.knobs}
    locked |= {knob: v for knob, v in parsed.knobs.items() if v in KNOBS[knob].closed}
    fp32 = devices > 1 and parsed.meaning.get("sharding") in ZERO_STAGE  # on the device as well
    if OFFLOAD in parsed.knobs and _trains_all(parsed, overrides) and not fp32:
        locked[OFFLOAD] = parsed.knobs[OFFLOAD]
    if "attention" in parsed.knobs:  # another kernel rounds otherwise
        locked["attention"] = parsed.knobs["attention"]
    return {knob: value for knob, value in locked.items() if knob not in opened}


def _trains_all(parsed: Parsed, overrides: Overrides) -> bool:
    """Whether every weight is trained, so that where the states lie decides what they are in."""
    stated = parsed.values.get("method", {}).get("kind")
    return bool(overrides.set_values.get("method.kind", stated) == "full")


def _placed_saves(parsed: Parsed) -> tuple[str, ...]:
    """What the file says of saves that is the user's: a limit, and a schedule by the epoch."""
    by_epoch = parsed.saves_per_epoch is not None
    return ("save_total_limit", *(("checkpoint_every_steps",) if by_epoch else ()))
