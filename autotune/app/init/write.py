"""The job file that `autotune init` writes: what was found as values, what was not behind a `#`.

A file that exists is never written over. What is missing is one empty key with the word FILL IN
beside it, and every command on the file names that line.

Every value has its reason beside it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from autotune.app.dataset.count import count_dataset
from autotune.app.init.folder import look_into
from autotune.app.job.load import load_jobs
from autotune.catalog.files import write_new
from autotune.catalog.models.models import find_model
from autotune.cost.parameters import parameter_count
from autotune.domain.errors import InputError
from autotune.domain.job import BYTES
from autotune.domain.objective import PAIRED
from autotune.domain.paths import near, whole
from autotune.domain.typed.job import MethodSection
from autotune.domain.typed.overrides import Overrides
from autotune.domain.units import format_count
from autotune.frozen import dataclass
from autotune.probe import device as devices

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from autotune.app.dataset.count import Count
    from autotune.app.init.folder import Folder, TrainerFile
    from autotune.domain.model import Model
    from autotune.probe.device import LocalDevice

RENTED = ("l4", "l40s", "a100-80gb", "h100-sxm")  # where no GPU is at hand
BILLIONS = 1e8  # [parameters] from here on they are said in billions
_PLAIN = re.compile(r"[A-Za-z0-9_./][\w./ +-]*[\w./+-]|[A-Za-z_./]")
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "none", "y", "n", "~"}
_TRAIN_KEYS, _METHOD_KEYS = ("epochs", "steps"), tuple(MethodSection.model_fields)
_COMMENT = 32  # column of the reasons, where the value leaves room


@dataclass(frozen=True, slots=True)
class Rows:
    """A data set that was found, and its count; or why it could not be counted."""

    path: Path
    count: Count | None
    tokenizer: str | None  # to state beside it, where the model's own is not to be had
    problem: str

    @property
    def words(self) -> str:
        """Rows and tokens."""
        if self.count is None:
            return f"{self.path.name}, not counted: {self.problem}"
        histogram = self.count.histogram
        tokens = sum(length * rows for length, rows in histogram.counts.items())
        mean = tokens / sum(histogram.counts.values())
        about = "" if histogram.basis == "counted" else "about "
        rows = format_count(histogram.rows)
        return f"{self.path.name}, {rows} rows of {about}{mean:.0f} tokens on average"


def job_text(
    found: Folder,
    stated_model: str | None,
    model: Model | None,
    rows: Rows | None,
    gpus: list[LocalDevice],
    base: Path,
) -> str:
    """The whole file; its paths start from `base`, the folder that it will lie in."""
    name = _remark(found.path.name)[2:][:100] or "job"
    parts = [
        [
            "# A job for autotune, written by `autotune init` from what lay in its folder.",
            "# Lines behind a # are choices. What is stated nowhere is assumed, and every answer",
            "# lists it. Each key may be changed on the command line: --set train.epochs=1",
        ],
        [_line("name", _text(name))],
        _model_lines(found, stated_model, model, base),
        _method_lines(found, stated_model),
        _data_lines(found, rows, base),
        _train_lines(found),
        _hardware_lines(gpus),
        [
            "# limits: {deadline: 24h, budget: 60 USD}",
            "# evaluation: {rows: 500, every_steps: 500}",
            "# allow: [packing]            # numeric choices that the search may open",
        ],
        _today_lines(found.trainer),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _line(key: str, value: str, why: str = "", indent: int = 0) -> str:
    text = f"{' ' * indent}{key}: {value}".rstrip()
    return f"{text:<{_COMMENT}}  {_remark(why)}" if why else text


def _remark(text: str) -> str:
    """A comment on one line, whatever names of files it holds."""
    return f"# {' '.join(''.join(c if c.isprintable() else ' ' for c in text).split())}"


def _text(value: str) -> str:
    """A string as YAML: quoted unless it can only be read as one."""
    plain = _PLAIN.fullmatch(value) and value.casefold() not in _WORDS
    number = re.fullmatch(r"[-+.\d][\d_.eE+-]*", value)
    return value if plain and not number else json.dumps(value, ensure_ascii=False)


def _value(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(item) for item in value)}]"
    return json.dumps(value)


def _path(path: Path, base: Path) -> str:
    """Relative where it lies below the file's folder, else whole."""
    return os.path.relpath(path, base) if path.is_relative_to(base) else str(path)


def _model_lines(found: Folder, stated: str | None, model: Model | None, base: Path) -> list[str]:
    head = "# The model: a name on the Hugging Face hub, or a folder with config.json."
    if model is None:
        named = found.trainer.values.get("model") if found.trainer else None
        named = named or (found.adapter.base if found.adapter else None)
        why = f"FILL IN; {named} was found, and is not known" if named else "FILL IN"
        return [head, _line("model", "", why), "# model: meta-llama/Llama-3.1-8B"]
    count = parameter_count(model)
    size = f"{count / 1e9:.3g} billion" if count >= BILLIONS else f"{count / 1e6:.2g} million"
    if stated is not None:
        return [head, _line("model", _text(stated), f"as named; {size} parameters")]
    if found.model is not None:
        folder = _path(found.model[0], base)
        folder = folder if folder.startswith("/") else f"./{folder}".replace("./.", ".")
        lines = [head, _line("model", _text(folder), f"{model.family}, {size} parameters")]
        more = [_remark(f"model: ./{_path(path, base)}") for path in found.passed["model"][:3]]
        return lines + more
    of_trainer = found.trainer.values.get("model") if found.trainer else None
    source = found.trainer.path if found.trainer and of_trainer else None
    source = source or (found.adapter.path if found.adapter else None)
    named = of_trainer or (found.adapter.base if found.adapter else model.name)
    why = f"by {_path(source, base)}; {size} parameters" if source else f"{size} parameters"
    return [head, _line("model", _text(str(named)), why)]


def _method_lines(found: Folder, stated_model: str | None) -> list[str]:
    head = "# How it is trained: lora, qlora (a 4-bit base) or full."
    made = found.trainer.values.get("method") if found.trainer else None
    source = found.trainer.path.name if found.trainer and made else ""
    if not made and found.adapter is not None and stated_model in {None, found.adapter.base}:
        made, source = found.adapter.stated, found.adapter.path.name
    if not isinstance(made, dict) or "kind" not in made:
        choice = "# method: {kind: lora, rank: 16, alpha: 32, dropout: 0.05, targets: all-linear}"
        return [head, _line("method", "lora", "assumed; the usual way"), choice]
    stated = ", ".join(f"{key}: {_value(made[key])}" for key in _METHOD_KEYS if key in made)
    return [head, _line("method", f"{{{stated}}}", f"by {source}")]


def _data_lines(found: Folder, rows: Rows | None, base: Path) -> list[str]:
    head = "# The rows: a file or folder, counted with the model's tokenizer; or their number."
    made = found.trainer.values.get("data") if found.trainer else None
    cut = made.get("max_length") if isinstance(made, dict) else None
    lines = [head, "data:"]
    if rows is not None and rows.count is not None:
        why = rows.words.partition(", ")[2]
        lines.append(_line("dataset", _text(_path(rows.path, base)), why, 2))
        if rows.tokenizer is not None:
            why = "none lies beside the model, and its vocabulary is that of bytes"
            lines.append(_line("tokenizer", rows.tokenizer, why, 2))
        more = found.passed["data"][:3]
        lines += [f"  {_remark(f'dataset: {_path(path, base)}')}" for path in more]
    elif found.trainer is not None and found.trainer.rows is not None:
        lines.append(_line("rows", _value(found.trainer.rows), f"by {found.trainer.path.name}", 2))
    else:
        lines += _no_rows(found, rows)
    if cut is not None and found.trainer is not None:
        lines.append(_line("max_length", _value(cut), f"by {found.trainer.path.name}", 2))
    else:
        lines.append("  # max_length: 2048          # longer rows are cut; else the longest row's")
    return lines


def _no_rows(found: Folder, rows: Rows | None) -> list[str]:
    problem = rows.problem if rows else ""
    if found.unknown_data is not None:
        path, hint = found.unknown_data
        problem = f"{path.name}: {hint}"
    lines = [_line("dataset", "", "FILL IN: a file of rows; or rows and lengths below", 2)]
    if problem:
        lines.append(f"  {_remark(problem)[:300]}")
    return [
        *lines,
        "  # rows: 50000",
        "  # lengths: {p50: 220, p95: 700, max: 1024}   # in tokens; or {mean: 280}",
    ]


def _train_lines(found: Folder) -> list[str]:
    if found.trainer is None:
        return ["# train: {epochs: 3, global_batch_size: 16}   # else one pass, and 16 rows a step"]
    train = found.trainer.values.get("train")
    stated: dict[str, Any] = {}
    if isinstance(train, dict):
        stated = {key: train[key] for key in _TRAIN_KEYS if key in train}
    if found.trainer.objective in PAIRED:
        stated["objective"] = found.trainer.objective
    stated["global_batch_size"] = found.trainer.global_batch
    text = ", ".join(f"{key}: {_value(value)}" for key, value in stated.items())
    return [_line("train", f"{{{text}}}", f"by {found.trainer.path.name}")]


def _hardware_lines(gpus: list[LocalDevice]) -> list[str]:
    head = "# Where it may run; `autotune devices` lists names, and prices are the catalogue's."
    known = [gpu.device.name for gpu in gpus if gpu.device is not None]
    rented = ", ".join(RENTED)
    if not known:
        seen = f" ({gpus[0].name} is here, and not in the catalogue)" if gpus else ""
        return [
            head,
            _line("hardware", f"[{rented}]"),
            _remark(f"no GPU that is known was found here{seen}: these are rented most. Others:"),
            "# hardware: [{gpu: h100-sxm, count: 8, price: 20 USD/h}, p4d.24xlarge]",
        ]
    name, count = known[0], known.count(known[0])
    return [
        head,
        "hardware:",
        f"  - gpu: {name}",
        _line("count", str(count), "in this machine", 4),
        _line("price", "free", "this machine is yours; or 2.50 USD/h, or owned: {...}", 4),
        f"# hardware: [{rented}]   # to rent",
    ]


def _today_lines(trainer: TrainerFile | None) -> list[str]:
    """Today's config by the trainer's file, on one machine of as many devices."""
    if trainer is None:
        return []
    return [
        _remark(f"{trainer.title} in {trainer.path.name} is read as it is, with today's settings:"),
        _remark(trainer.command),
    ]


NAME = "autotune.yaml"
COUNTED_BYTES = 20_000_000  # of the data; what is larger is sampled, a comment needs no more
BYTE_VOCABULARY = range(256, 385)  # tokens: bytes and a few marks


@dataclass(frozen=True, slots=True)
class Written:
    """The file, what it still lacks, and what to type next."""

    path: Path
    found: tuple[str, ...]  # in words, one a line
    missing: str  # what a command on it would say; empty where it is complete
    next_command: str


def init_job(
    folder: Path,
    out: Path | None = None,
    *,
    model: str | None = None,
    data: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Written:
    """Look around and write a job file.

    Args:
        folder: Where to look; the file goes there, unless `out` names another.
        out: The file to write.
        model: The model to take, instead of one that lies there.
        data: The data set to take, instead of one that lies there.
        progress: Told what is done.

    Raises:
        InputError: The file exists, the folder cannot be read or written, or what was named is bad.
    """
    place = whole(folder)
    target = whole(out) if out is not None else place / NAME
    _refuse_existing(target)
    progress(f"looking into {folder}")
    found = _as_trained(look_into(place), place)
    chosen = _model(found, model, place)
    rows = _rows(found, data, chosen, progress)
    progress("looking for a GPU")
    text = job_text(found, model, chosen, rows, devices.gpus(), target.parent)
    _write(target, text)
    return _told(target, found, chosen, rows)


def _as_trained(found: Folder, place: Path) -> Folder:
    """Without a folder's model where the trainer's file names one that is known: it trains that."""
    named = found.trainer.values.get("model") if found.trainer else None
    if found.model is None or not isinstance(named, str):
        return found
    try:
        find_model(named, place)
    except InputError:
        return found
    return replace(found, model=None)


def _refuse_existing(target: Path) -> None:
    if os.path.lexists(target):
        msg = f"{near(target)} exists, and init writes over nothing"
        raise InputError(msg, f"name another file with --out, or: autotune tune {near(target)}")


def _model(found: Folder, stated: str | None, place: Path) -> Model | None:
    """The model that the file will name, if it is one that can be priced."""
    if stated is not None:
        return find_model(stated, place)
    if found.model is not None:
        return found.model[1]
    named = found.adapter.base if found.adapter else None
    if found.trainer is not None:
        of_trainer = found.trainer.values.get("model")
        named = of_trainer if isinstance(of_trainer, str) else named
    try:
        return find_model(named, place) if named else None
    except InputError:
        return None


def _rows(
    found: Folder, stated: Path | None, model: Model | None, progress: Callable[[str], None]
) -> Rows | None:
    """The rows that the file will name, counted where that can be done."""
    path = whole(stated) if stated is not None else found.data
    if path is None:
        return None
    progress(f"counting {near(path)}")
    tokenizer = None
    own = model.vocab_size if model else None
    column = found.trainer.column if found.trainer else None
    counted = partial(count_dataset, path, column=column, most_bytes=COUNTED_BYTES)
    try:
        count = counted(base_dir=path.parent, model=model)
    except InputError as error:
        if own is not None and own in BYTE_VOCABULARY and "data.tokenizer" in error.lacking:
            tokenizer = BYTES
            count = counted(BYTES)
        elif stated is not None:
            raise
        else:
            return Rows(path, None, None, f"{error.message}; {error.hint or ''}".rstrip("; "))
    return Rows(path, count, tokenizer, "")


def _write(target: Path, text: str) -> None:
    try:
        if not write_new(target, text):
            _refuse_existing(target)
    except OSError as error:
        msg = f"{near(target)} cannot be written: {error.strerror}"
        raise InputError(msg, "name a file in a folder that you may write with --out") from None


def _told(target: Path, found: Folder, model: Model | None, rows: Rows | None) -> Written:
    """What was found in words, and what a command on the file would say of it."""
    missing = ""
    try:
        load_jobs(target, Overrides())
    except InputError as error:
        missing = error.message
    lines = [f"model: {model.name}" if model else "model: none was found"]
    said = found.trainer.rows if found.trainer else None
    known = f"none is here; {format_count(said)} rows, by the file below" if said else ""
    lines.append(f"data: {rows.words if rows else known or 'none was found'}")
    if found.trainer is not None:
        made = f"{found.trainer.title} in {near(found.trainer.path)}"
        lines.append(f"method and sizes: {made}, which is read as it is, with today's settings:")
        lines.append(f"  {found.trainer.command}")
        more = [near(path) for path in found.passed["trainer"][:3]]
        lines += [f"  so is {each}" for each in more]
    if found.refused:
        lines.append(f"not read: {found.refused}")
    if found.jobs:
        lines.append(f"a job file was here already: {', '.join(near(p) for p in found.jobs[:3])}")
    command = f"autotune tune {shlex.quote(near(target))}"
    return Written(target, tuple(lines), missing, command)
