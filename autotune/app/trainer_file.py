"""A trainer's own file, or a launch command, as a job: what it states, completed by flags.

The file's own config becomes today's; what it lacks (rows, device, at times model and method) is
asked for by flag. Numeric knobs that it opens itself are locked as it has them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.observed import named_machine
from autotune.app.read_jobfile import Document, document_of, read_document, read_text
from autotune.domain.config import KNOBS
from autotune.domain.errors import InputError
from autotune.domain.job import Assumption, Origin
from autotune.domain.jobvalues import shown
from autotune.trainers.beside import add_beside
from autotune.trainers.command_line import parse_command, parse_shell, processes_of
from autotune.trainers.detect import DIALECTS, detect
from autotune.trainers.python_source import parse_script, refuse_computed

if TYPE_CHECKING:
    from autotune.app.overrides import Overrides
    from autotune.domain.jobfile import JobFile
    from autotune.trainers.imported import Imported

_FLAGS = {
    "model": "--model NAME", "method.kind": "--method lora|qlora|full", "data.rows": "--rows N",
    "hardware": "--gpu NAME",
}  # fmt: skip
_LOCKED = ("packing", "length_grouping", "optimizer", "adapter_dtype")  # opt-in, where stated
_BESIDE = ("accelerate.yaml", "accelerate_config.yaml", "default_config.yaml")
COMMAND = "the command"
# What each trainer runs on. Source: metadata of axolotl 0.19.0, llamafactory 0.9.5 and unsloth
# 2026.10.9 on PyPI: the newest versions that they allow.
_SOFTWARE = {
    "trl": {"trainer": "trl"},
    "axolotl": {"transformers": "5.16.1", "trl": "1.9.0"},
    "llamafactory": {"transformers": "5.6.0"},
    "unsloth": {"transformers": "5.17.0", "trl": "1.15.0", "kernels": "unsloth"},
}
FLASH_ATTENTION = "2.8.0"  # where the file asks for it: any release of 2.x counts the same


def read_any(path: Path, overrides: Overrides) -> tuple[Document, Overrides]:
    """The job file at `path`, or the job of a trainer's file there.

    Raises:
        InputError: The file cannot be read, mixes formats, or lacks what no flag gave.
    """
    if path.suffix.casefold() in {".py", ".sh"}:
        text = read_text(path)
        if path.suffix.casefold() == ".sh":
            return command_document(text, overrides, path)
        return _script_document(text, path, overrides)
    document = read_document(path)
    dialect = detect(document.values, str(path))
    if dialect is None:
        refuse_flags(overrides, document.name)
        return document, overrides
    text = read_text(path)
    syntax = "json" if path.suffix.casefold() == ".json" else "yaml"
    made = dialect.read(document.values, path.name)
    _read_beside(made, document.values, path, overrides)
    return _document(made, Origin(dialect.name, syntax, str(path), text), overrides)


def command_document(
    command: str, overrides: Overrides, path: Path | None = None
) -> tuple[Document, Overrides]:
    """The job of a launch command. Raises InputError as `read_any` does."""
    name = str(path) if path else COMMAND
    parsed = parse_shell(command, name) if path else parse_command(command)
    dialect = detect(parsed.values, name)
    if dialect is None:
        known = "TrainingArguments, SFTConfig or LLaMA-Factory"
        msg = f"{name} holds no flags of {known}: {', '.join(list(parsed.values)[:6])}"
        raise InputError(msg, 'such as "python train.py --per_device_train_batch_size 4"')
    made = dialect.read(parsed.values, name)
    made.devices = processes_of(parsed)
    config = parsed.launcher.get("config_file")
    more = (*overrides.beside, *([config] if isinstance(config, str) else ()))
    _read_beside(made, parsed.values, path or Path("command"), replace(overrides, beside=more))
    return _document(
        made, Origin(dialect.name, "shell" if path else "args", str(path or ""), command), overrides
    )


def _script_document(text: str, path: Path, overrides: Overrides) -> tuple[Document, Overrides]:
    script = parse_script(text, str(path))
    refuse_computed(script, str(path))
    made = DIALECTS[script.trainer].read(script.values, path.name)
    for key in script.computed:
        made.note(f"{path.name}: {key}", "not read", "it is computed, and the file is not executed")
    _read_beside(made, script.values, path, overrides)
    return _document(made, Origin(script.trainer, "python", str(path), text), overrides)


def refuse_flags(overrides: Overrides, name: str) -> None:
    """Flags of a trainer's file beside a job file, which states these itself."""
    given = [_flag_of(key) for key in overrides.stated]
    given += ["--beside"] if overrides.beside else []
    if given:
        msg = f"the job file {name} and {', '.join(given)} are both given"
        raise InputError(msg, "change the file, or leave it out for the one-line form")


def origin_of(jobfile: JobFile) -> Origin | None:
    """The trainer's file that a job file was made of."""
    section = jobfile.origin
    if section is None:
        return None
    return Origin(
        section.trainer, section.syntax, section.path, section.text,
        dict(section.knobs), section.devices,
    )  # fmt: skip


def notes_of(jobfile: JobFile) -> list[Assumption]:
    """What was guessed or left alone when the trainer's file was read."""
    section = jobfile.origin
    return [Assumption(*note) for note in section.notes] if section else []


def imported_again(origin: Origin) -> tuple[Imported, dict[str, Any]]:
    """What the recorded text of a trainer's file says, read as safely as the first time."""
    name = Path(origin.path).name or COMMAND
    if origin.trainer not in DIALECTS:
        msg = f"the recorded file is of an unknown trainer, {shown(origin.trainer)}"
        raise InputError(msg, "tune again from your file")
    values: dict[str, Any]
    if origin.syntax == "python":
        values = parse_script(origin.text, name).values
    elif origin.syntax == "shell":
        values = parse_shell(origin.text, name).values
    elif origin.syntax == "args":
        values = parse_command(origin.text).values
    else:
        values = document_of(origin.text, name, json=origin.syntax == "json").values
    made = DIALECTS[origin.trainer].read(values, name)
    made.knobs.update(origin.knobs)
    made.devices = origin.devices
    return made, values


def _read_beside(made: Imported, values: dict[str, Any], path: Path, overrides: Overrides) -> None:
    """Read configs of accelerate and DeepSpeed: named by flag or file, or lying beside it."""
    names = [Path(name) for name in overrides.beside]
    deepspeed = values.get("deepspeed")
    if isinstance(deepspeed, str) and deepspeed:
        near = next((p for p in (path.parent / deepspeed, Path(deepspeed)) if p.is_file()), None)
        if near is not None:
            names.append(near)
        elif made.trainer != "axolotl":
            msg = f"{path.name}: deepspeed is {shown(deepspeed)}, and no such file is found"
            raise InputError(msg, "run from the folder it is relative to, or give --beside FILE")
    if not overrides.beside and made.trainer in {"hf", "trl"}:
        names += [path.parent / name for name in _BESIDE if (path.parent / name).is_file()][:1]
    for name in names:
        add_beside(made, read_document(name).values, str(name))
        made.note("read beside the file", name, "what both state agrees")


def _document(made: Imported, origin: Origin, overrides: Overrides) -> tuple[Document, Overrides]:
    """The mapping of a job file, and the overrides with the file's device count."""
    name = origin.path or COMMAND
    values = made.values
    _add_stated(values, overrides, name)
    overrides = _with_counts(made, overrides)
    _ask_for(values, overrides, name)
    first, counted = _first_machine(overrides)
    devices = made.devices or counted
    batch = made.batch_on(devices)
    values.setdefault("train", {})["global_batch_size"] = batch
    _place_saves(made, values, overrides, batch)
    _complete_evaluation(made, values, overrides)
    today: dict[str, Any] = {"today": True, "config": _possible(made, devices)}
    if first is not None:
        today["hardware"] = f"{first}:{devices}"
    if first is not None or devices == 1:
        values["evidence"] = [today]
    locked = _locked(made, overrides)
    if locked:
        values["lock"] = locked
        listed = ", ".join(f"{knob} {value}" for knob, value in locked.items())
        made.note("lock", listed, "as the file has it; --allow or --set opens it")
    _hint_software(made, values)
    values["hardware"] = []
    values.setdefault("name", _job_name(values, origin))
    values["origin"] = {
        "trainer": origin.trainer, "syntax": origin.syntax, "path": origin.path,
        "text": origin.text, "knobs": dict(made.knobs), "devices": made.devices,
        "notes": [[note.key, note.value, note.why] for note in made.notes],
    }  # fmt: skip
    return Document(values, name), overrides


def _job_name(values: dict[str, Any], origin: Origin) -> str:
    stem = Path(origin.path).stem if origin.path else Path(str(values.get("model"))).name
    return stem[:100] or "job"


def _hint_software(made: Imported, values: dict[str, Any]) -> None:
    """Versions and kernels that the trainer's package or the file's own keys imply."""
    hints = dict(_SOFTWARE.get(made.trainer, {}))
    if made.liger:
        hints["kernels"] = "liger"
    if made.knobs.get("attention") == "flash_attention_2":
        hints["flash_attn"] = FLASH_ATTENTION
    if hints:
        values["software"] = hints
        listed = ", ".join(f"{key} {value}" for key, value in hints.items())
        why = "implied by the trainer and the file; --set software=NAME takes a profile instead"
        made.note("software", listed, why)


def _possible(made: Imported, devices: int) -> dict[str, Any]:
    """Today's knobs; a sharding of several devices means nothing on one."""
    knobs = dict(made.meaning)
    if devices == 1 or knobs.get("sharding") == "none":
        knobs.pop("sharding", None)
    return knobs


def _add_stated(values: dict[str, Any], overrides: Overrides, name: str) -> None:
    """What flags state of the job; a flag never changes what the file says."""
    for key, value in overrides.stated.items():
        section, _, last = key.rpartition(".")
        mapping = values.setdefault(section, {}) if section else values
        if key == "method.kind" and value == "qlora":
            _as_qlora(mapping)
            continue
        found = mapping.get(last)
        if key == "train.global_batch_size" or (found is not None and found != value):
            says = f"{name} says {shown(found)}" if found is not None else f"{name} states it"
            msg = f"{_flag_of(key)} is {shown(value)}, but {says}"
            raise InputError(msg, f"to change the job, use --set {key}={value}")
        if key == "train.epochs":
            mapping.pop("steps", None)
        mapping[last] = value


def _as_qlora(method: dict[str, Any]) -> None:
    if method.get("kind", "lora") != "lora" or method.get("base") in {"int8", "32bit"}:
        stated = method.get("base") or method.get("kind")
        msg = f"--method is qlora, but the file says {shown(stated)}"
        raise InputError(msg, "leave --method out, or change the file")
    method.update(kind="lora", base="nf4")


def _flag_of(key: str) -> str:
    return {
        "model": "--model", "method.kind": "--method", "data.rows": "--rows",
        "data.max_length": "--max-length", "train.epochs": "--epochs",
        "train.global_batch_size": "--global-batch",
    }.get(key, key)  # fmt: skip


def _ask_for(values: dict[str, Any], overrides: Overrides, name: str) -> None:
    """Raise one InputError that names the flag of everything that is missing."""
    given = overrides.set_values
    data, train = values.get("data", {}), values.get("train", {})
    missing = []
    if "model" not in values and "model" not in given:
        missing.append("model")
    if "kind" not in values.get("method", {}) and "method.kind" not in given:
        missing.append("method.kind")
    sized = "rows" in data or {"data.rows", "data.dataset", "data.lengths.histogram"} & set(given)
    if not sized and "steps" not in train:
        missing.append("data.rows")
    if not overrides.gpus:
        missing.append("hardware")
    if missing:
        what = {"model": "the model", "method.kind": "how it is trained", "data.rows": "how many "
                "rows there are", "hardware": "on which device it is to run"}  # fmt: skip
        msg = f"{name} does not say {', '.join(what[key] for key in missing)}"
        raise InputError(msg, "add " + " ".join(_FLAGS[key] for key in missing))


def _with_counts(made: Imported, overrides: Overrides) -> Overrides:
    """A device named without a count stands for as many as the file runs on."""
    count = made.devices
    if not count or count == 1:
        return overrides
    gpus = []
    for text in (part.strip() for gpu in overrides.gpus for part in gpu.split(",")):
        name, at, price = text.partition("@")
        if ":" not in name and name.casefold() != "all":
            name = f"{name}:{count}"
            made.note("hardware", f"{name}", "as many as the file runs on; NAME:1 stands for one")
        gpus.append(f"{name}{at}{price}")
    return replace(overrides, gpus=tuple(gpus))


def _first_machine(overrides: Overrides) -> tuple[str | None, int]:
    """Name and count of the first device named; no name for `all`."""
    text = overrides.gpus[0].split(",")[0].partition("@")[0].strip()
    name, count = named_machine(text)
    return (None, 1) if name.casefold() == "all" else (name, count)


def _place_saves(made: Imported, values: dict[str, Any], overrides: Overrides, batch: int) -> None:
    """Saves stated per epoch as steps, where the rows are known."""
    often = made.saves_per_epoch
    if often is None:
        return
    rows = overrides.set_values.get("data.rows", values.get("data", {}).get("rows"))
    text = str(rows).replace(",", "").replace("_", "")
    if rows is None or not text.isdecimal() or len(text) > 12:  # noqa: PLR2004
        made.note("checkpoint_every_steps", 500, "saved by the epoch, and the rows are not stated")
        return
    made.knobs["checkpoint_every_steps"] = max(1, int(math.ceil(int(text) / batch) / often))


def _complete_evaluation(made: Imported, values: dict[str, Any], overrides: Overrides) -> None:
    """How many rows an evaluation reads is in no trainer's file; without them it is left out."""
    found = values.get("evaluation")
    if found is None or "rows" in found or "evaluation.rows" in overrides.set_values:
        return
    del values["evaluation"]
    why = "the file evaluates, but not on how many rows: --set evaluation.rows=N counts it"
    made.note("evaluation", "left out", why)


def _locked(made: Imported, overrides: Overrides) -> dict[str, Any]:
    """Opt-in knobs as the file has them, and what cannot be written back."""
    opened = {n.strip() for text in overrides.allow for n in text.split(",")}
    opened |= set(overrides.set_values)
    meaning = made.meaning
    locked = {
        knob: made.knobs[knob]
        for knob in _LOCKED
        if knob in made.knobs and made.knobs[knob] != made_default(knob)
    }
    locked |= {knob: meaning[knob] for knob in sorted(made.kept) if knob in meaning}
    return {knob: value for knob, value in locked.items() if knob not in opened}


def made_default(knob: str) -> object:
    """What the search leaves an opt-in knob at."""
    return {
        "packing": "off", "length_grouping": "off", "optimizer": "adamw_torch_fused",
        "adapter_dtype": "fp32",
    }.get(knob, KNOBS[knob].choices[:1])  # fmt: skip
