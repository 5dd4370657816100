"""A job on the command line: the one-line form, and what options change in a job file.

Both are mappings of a job file before it is checked, so there is one check for all.

`--gpu` replaces the hardware, `--price` its prices, `--set` pins a knob or changes a key of the
job, `--allow` opens a knob, `--deadline` and `--budget` are limits.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.hardware.machines import (
    add_spot,
    replace_hardware,
    set_host,
    set_prices,
)
from autotune.app.job.defaults import held_out_of
from autotune.app.job.file import Document
from autotune.catalog.software import OPTIONAL, REQUIRED, SWITCHES
from autotune.domain.config import KNOBS, SPLIT, TRAINER_NAMES, own_name
from autotune.domain.errors import InputError, close_matches, unknown
from autotune.domain.paths import whole
from autotune.domain.typed.hardware import HostSection
from autotune.domain.typed.job import OF_ANOTHER_KIND
from autotune.domain.typed.other_words import LEFT_OUT, UNPRICED, typed_here
from autotune.domain.typed.values import MAX_LENGTH, QUALITY_WORDS, shown, whole_or_zero

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.typed.overrides import Overrides

Values = dict[str, Any]

SETTABLE = {
    "method": (
        "kind", "rank", "alpha", "dropout", "targets", "base", "variant", "double_quant",
        "modules_to_save",
    ),
    "data": (
        "rows", "max_length", "padding", "pretokenized", "storage", "dataset", "tokenizer",
        "column", "held_out",
    ),
    "data.lengths": ("p50", "p95", "max", "mean", "histogram"),
    "train": ("epochs", "steps", "global_batch_size"),
    "evaluation": ("rows", "every_steps", "generate_tokens", "batch_size", "at_start"),
    "limits": (
        "deadline", "budget", "confidence", "max_lost_work", "max_session", "vram_headroom",
    ),
    "software": (*REQUIRED, *OPTIONAL, "kernels", "trainer", "loss", "base_dtype", *SWITCHES),
    "host": tuple(HostSection.model_fields),  # of every machine of the job
}  # fmt: skip
_HOST = "host"
_TOP = ("name", "model", "software")
_WORD = {"method": "kind", "software": "profile"}  # what one word in place of a mapping states


def settable_keys() -> list[str]:
    """Keys of the job that `--set` changes, besides the knobs."""
    nested = (f"{section}.{key}" for section, keys in SETTABLE.items() for key in keys)
    return [*nested, *_TOP]


def overridden(document: Document, overrides: Overrides) -> Document:
    """The document with the command line's changes; lines of changed keys are forgotten.

    Its machines are named by their devices (`machines.name_devices`).
    """
    values = copy.deepcopy(document.values)
    changed: set[str] = set()
    if overrides.gpus:
        replace_hardware(values, overrides.gpus, _batch(values, overrides.set_values))
        changed.add("hardware")
    if overrides.price is not None:
        set_prices(values, overrides.price)
        changed.add("hardware")
    if overrides.spot:
        add_spot(values)
        changed.add("hardware")
    for key, value in overrides.set_values.items():
        set_key(values, key, value)
        _no_guess(values, key)
        section = key.split(".")[0]
        changed.add("hardware" if section == _HOST else section)
    if overrides.allow:
        changed.add("allow")
        names = [n.strip() for text in overrides.allow for n in text.split(",") if n.strip()]
        known = values.get("allow")
        values["allow"] = [*(known if isinstance(known, list) else []), *names]
    for key, limit in (("deadline", overrides.deadline), ("budget", overrides.budget)):
        if limit is not None:
            _section(values, "limits")[key] = limit
            changed.add("limits")
    lines = {path: line for path, line in document.lines.items() if not changed & set(path[:1])}
    return Document(values, document.name, lines)


def on_machine(document: Document, gpu: str) -> Values:
    """The document's mapping on one machine, as `--gpu` names it. Raises InputError."""
    values = copy.deepcopy(document.values)
    replace_hardware(values, (gpu,), _batch(values, {}))
    return values


def _section(values: Values, dotted: str) -> Values:
    """The mapping at a dotted path, made where it is absent."""
    for part in dotted.split("."):
        inner = values.get(part)
        if not isinstance(inner, dict):
            word = _WORD.get(part) if isinstance(inner, str) else None
            inner = {word: inner} if word else {}
            values[part] = inner
        values = inner
    return values


def set_stated(values: Values, key: str, value: object) -> None:
    """Put a value at a dotted key of a job that does not state it."""
    section, _, name = key.rpartition(".")
    (_section(values, section) if section else values)[name] = value


def _batch(values: Values, set_values: Mapping[str, str]) -> int:
    """The global batch as far as it is stated in whole numbers; 0 where it is not."""
    train = values.get("train")
    stated = train.get("global_batch_size") if isinstance(train, dict) else None
    return whole_or_zero(set_values.get("train.global_batch_size", stated))


def set_key(values: Values, key: str, value: str) -> None:
    """Pin a knob or change a key of the job, as `--set` does. Raises InputError."""
    if key in KNOBS:
        lock = values.get("lock")
        locked = lock.items() if isinstance(lock, dict) else ()
        values["lock"] = {**{own_name(str(name)): kept for name, kept in locked}, key: value}
        return
    section, _, name = key.rpartition(".")
    if not (name in SETTABLE.get(section, ()) if section else key in _TOP):
        known = [*KNOBS, *TRAINER_NAMES.values(), *settable_keys()]
        hint = f"knobs: {', '.join(KNOBS)}; keys of the job: {', '.join(settable_keys())}"
        if close_matches(key[:80], known):
            hint = "a knob, such as precision, or a key of the job file, such as train.epochs"
        hint = typed_here(key, value) or hint
        if key.rpartition(".")[2].casefold() in UNPRICED:
            hint = LEFT_OUT
        elif QUALITY_WORDS.get(key):
            hint = f"write {QUALITY_WORDS[key]}={value[:60]}"
        kind = "knob or key"
        raise unknown(kind, key[:80], known, hint, "--set")
    if key == "software" and isinstance(values.get(key), dict):
        # what its file implies beside versions stays: the trainer, its loss, kernels it asks for
        kept = {name: own for name, own in values[key].items() if name not in (*REQUIRED, "trl")}
        values[key] = {**kept, "profile": value} if kept else value
        return
    if not section:
        values[key] = value
        return
    if section == _HOST:
        set_host(values, name, value)
        return
    mapping = _section(values, section)
    if key == "train.global_batch_size":
        _at_the_old_batch(values, mapping)
    mapping[name] = value
    _drop_rivals(values, key, value)


def _no_guess(values: Values, key: str) -> None:
    """What was guessed of a key when a trainer's file was read is no assumption any more."""
    origin = values.get("origin")
    if isinstance(origin, dict) and isinstance(notes := origin.get("notes"), list):
        origin["notes"] = [note for note in notes if list(note)[:1] != [key]]


def _drop_rivals(values: Values, key: str, value: str) -> None:
    """Keys that would contradict the one just set and that the user has thereby taken back."""
    if key in {"train.steps", "train.epochs"}:
        _section(values, "train").pop("epochs" if key.endswith("steps") else "steps", None)
    if key == "method.kind":
        for name in OF_ANOTHER_KIND.get(value, ()):
            _section(values, "method").pop(name, None)
    if key == "data.dataset":
        _section(values, "data").pop("lengths", None)
    if key.startswith("data.lengths."):
        for name in ("dataset", "tokenizer", "column"):
            _section(values, "data").pop(name, None)
    if key == "data.max_length":
        shorten_lengths(_section(values, "data"), value)


def _at_the_old_batch(values: Values, train: Values) -> None:
    """What was seen was seen at the batch (and steps) that the file states, and keeps saying so.

    Where the file states none, today's config is dropped: its split would be the new batch's.
    """
    evidence = values.get("evidence")
    items = evidence if isinstance(evidence, list) else []
    entries = [item for item in items if isinstance(item, dict)]
    old = train.get("global_batch_size")
    for item in entries:
        if old is None:
            item["today"] = False
        elif item.get("today") is True or not _states_split(item.get("config")):
            item.setdefault("global_batch_size", old)
            if train.get("steps") is not None:
                item.setdefault("steps", train["steps"])
    if old is None and items:
        values["evidence"] = [item for item in entries if "measured" in item]


def _states_split(config: object) -> bool:
    return isinstance(config, dict) and config.keys() >= set(SPLIT)


def shorten_lengths(data: Values, value: str) -> None:
    """Stated lengths are those after truncation: a smaller max_length truncates them further."""
    lengths = data.get("lengths")
    limit = whole_or_zero(value)
    if not isinstance(lengths, dict) or not limit:
        return
    known = {name: number for name, own in lengths.items() if (number := _number(own)) is not None}
    longer = {name for name in ("p50", "p95", "max") if known.get(name, 0) > limit}
    kept = {name: limit if name in longer else own for name, own in lengths.items()}
    if "mean" in known and known.keys() & {"p50", "p95"}:
        if longer:
            kept.pop("mean")
    elif "mean" in known and known["mean"] <= known.get("max", MAX_LENGTH):
        kept["mean"] = _cut_mean(known["mean"], known.get("max"), limit)
    data["lengths"] = kept


def _number(value: object) -> float | None:
    """A length as a file or `--set` states it; None where it is none, which is refused later."""
    try:
        length = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return length if 1.0 <= length <= MAX_LENGTH else None


def _cut_mean(mean: float, longest: float | None, limit: int) -> float:
    """[tokens] the mean of rows that are cut to `limit`, of which the mean alone was known."""
    from autotune.cost.row_lengths import REACHED_MEANS, lengths_below

    whole = lengths_below(mean, int(longest or max(REACHED_MEANS * mean, limit)))
    return float(sum(min(length, limit) for length in whole.quantiles) / len(whole.quantiles))


WHICH = "`autotune devices` lists the devices, `--gpu all` compares all of them"
SIZE = "--rows N or --data FILE"
FITS = "what fits is the same whatever N is"
FORM = "--model NAME --rows N (or --data FILE) --gpu NAME"
_SIZES = {"data.rows", "data.dataset", "data.lengths.histogram", "train.steps"}


def line_document(overrides: Overrides) -> Document:
    """What `overrides.stated` says of a job, by the keys of a job file; still without hardware.

    Raises InputError where the model, the size of the data or the machine is missing.
    """
    stated, given = dict(overrides.stated), overrides.set_values
    if overrides.beside or overrides.priced_as:
        flag = "--beside" if overrides.beside else "--as"
        msg = f"{flag} is of a trainer's own file, and there is none"
        raise InputError(msg, "name the trainer's file as JOB, or give --from-args")
    known = {*stated, *given}
    lengths = [key for key in given if key.startswith("data.lengths.")]
    if lengths and "data.dataset" in stated:
        listed = ", ".join(f"{key} {given[key]}" for key in lengths)
        msg = f"--set states {listed}, and --data {stated['data.dataset']} has lengths of its own"
        raise InputError(msg, "leave --set data.lengths out, or give --rows N instead of --data")
    missing = [] if "model" in known else ["--model NAME"]
    missing += [] if _SIZES & known else [SIZE]
    missing += [] if overrides.gpus or overrides.any_machine else ["--gpu NAME"]
    if missing and not stated:
        msg = "JOB is missing"
        raise InputError(msg, f"name a job file (`autotune init` writes one), or give {FORM}")
    if missing:
        msg = f"no job file is given, and the command lacks {', '.join(missing)}"
        fits = f"; {FITS}" if missing == [SIZE] else ""
        raise InputError(msg, f"give {FORM}, or a job file; {WHICH}{fits}")
    values: dict[str, Any] = {}
    for key, value in stated.items():
        set_stated(values, key, value)
    model = str(given.get("model", stated.get("model")))
    kind = str(given.get("method.kind", stated.get("method.kind", "lora")))
    variant = str(given.get("method.variant", stated.get("method.variant", "none")))
    if variant != "none":
        kind = f"q{variant}" if kind == "qlora" else variant
    values["name"] = f"{Path(model).name or 'model'}-{kind}"[:100]
    return Document(values, "command line")


def add_stated(values: dict[str, Any], overrides: Overrides, name: str) -> None:
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
            msg = f"{flag_of(key)} is {shown(value)}, but {says}"
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


def trained_rows(values: Mapping[str, Any], overrides: Overrides) -> int:
    """Rows that are stated or lie in the data, without those held out; 0 where nothing says.

    Raises InputError where the data cannot be read.
    """
    rows = stated_rows(values, overrides)
    return max(rows - held_out_of(values.get("data", {}).get("held_out", 0.0), rows), 0)


def stated_rows(values: Mapping[str, Any], overrides: Overrides) -> int:
    """All rows that are stated or lie in the data. Raises as `trained_rows` does."""
    data, given = values.get("data", {}), overrides.set_values
    rows = whole_or_zero(given.get("data.rows", data.get("rows")), scaled=True)
    named = given.get("data.dataset", data.get("dataset"))
    if not rows and isinstance(named, str) and whole(named).exists():
        from autotune.app.dataset.count import rows_of

        rows = rows_of(whole(named))
    return rows


def flag_of(key: str) -> str:
    """The flag that states a key of the job."""
    return {
        "model": "--model", "method.kind": "--method", "data.rows": "--rows",
        "data.dataset": "--data",
        "data.max_length": "--max-length", "train.epochs": "--epochs",
        "train.global_batch_size": "--global-batch",
    }.get(key, key)  # fmt: skip
