"""What a folder holds of a training job: a model, an adapter, rows, a trainer's own file.

A file that cannot be read, or is something else, is no find; it is never an error here. Nothing is
executed, and models and rows are read as the commands read them that use them later.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.dataset.columns import column_for, row_of
from autotune.app.dataset.files import Reading
from autotune.app.dataset.folder import is_data, rows_named
from autotune.app.job.file import CODE, PAGES, SHELL, document_of, read_text
from autotune.app.job.load import load_jobs
from autotune.catalog.models.models import find_model
from autotune.domain.errors import InputError, NoTraining
from autotune.domain.paths import near
from autotune.domain.typed.overrides import Overrides
from autotune.frozen import dataclass
from autotune.trainers.registry import TRAINERS, detect

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from autotune.domain.job import Job
    from autotune.domain.model import Model
    from autotune.domain.objective import Objective

DEEPEST, MOST_ENTRIES, MOST_TRIED = 3, 5_000, 30
MOST_CONFIG_BYTES = 1_000_000
MOST_SCRIPTS = 12
CONFIGS = frozenset({".yml", ".yaml", ".json"})
TRAINS = re.compile(r"Trainer\(|\.train\(|launch |torchrun|deepspeed|train\S*\.py|(sft|dpo)\b")
# What stands in the place of what a trainer's file lacks, by the key of a job, while it is read.
IN_PLACE: dict[str, Any] = {"method.kind": "lora", "data.rows": 1000}
ANY_MODEL = "Qwen/Qwen2.5-0.5B"
ANY_DEVICE = "h100-sxm"  # what a script states is the same on all
_SKIPPED = {
    "node_modules", "__pycache__", "site-packages", "venv", "env", "wandb", "mlruns", "runs",
    "outputs", "build", "dist",
}  # fmt: skip
_JOB_KEYS = {"model", "hardware"}


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter_config.json: the base that it belongs to, and its shape."""

    path: Path
    base: str | None
    stated: dict[str, Any]  # keys of a job's method


@dataclass(frozen=True, slots=True)
class TrainerFile:
    """A trainer's own config, or a script that trains: which trainer's, and what it says."""

    path: Path
    title: str
    values: dict[str, Any]  # parts of a job file
    global_batch: int
    objective: Objective
    needs: str = ""  # what a command on it needs beside a machine

    @property
    def column(self) -> str | None:
        """What stands for the rows that it takes, where it does not take any."""
        return column_for(self.objective)

    @property
    def rows(self) -> int | None:
        """[rows] that it says, or that are published of the data set that it names."""
        data = self.values.get("data")
        return data.get("rows") if isinstance(data, dict) else None

    @property
    def command(self) -> str:
        """What prices the file itself."""
        return f"autotune tune {shlex.quote(near(self.path))} --gpu NAME{self.needs}"


@dataclass(frozen=True, slots=True)
class Folder:
    """What was found, each the likeliest of its kind; `passed` names what was found beside it."""

    path: Path
    model: tuple[Path, Model] | None = None
    adapter: Adapter | None = None
    data: Path | None = None
    trainer: TrainerFile | None = None
    jobs: tuple[Path, ...] = ()  # job files that lie here already
    refused: str = ""  # why a trainer's file is none that is priced
    unknown_data: tuple[Path, str] | None = None  # rows of no form that is known, and what they are
    passed: dict[str, tuple[Path, ...]] = field(default_factory=dict)


def look_into(folder: Path) -> Folder:
    """What the folder and those below it hold. Raises InputError where it cannot be read."""
    if not folder.is_dir():
        msg = f"{folder} is no folder" if folder.exists() else f"the folder {folder} does not exist"
        raise InputError(msg, "name the folder of your project, or none for the one you are in")
    try:
        files = sorted(_files(folder), key=lambda path: (len(path.parts), str(path)))
    except OSError as error:
        msg = f"the folder {folder} cannot be read: {error.strerror}"
        raise InputError(msg, "name a folder that you may read") from None
    models = list(_models(files))
    trainers, refused = _own_files(files)
    data = sorted((path for path in files if is_data(path)), key=_likely_training)
    named = _named_data(trainers[0]) if trainers else None
    first = [named] if named is not None else []
    column = trainers[0].column if trainers else None
    rows, unknown = _rows([*first, *(path for path in data if path != named)], column)
    adapters = [found for path in files if (found := _adapter(path)) is not None]
    return Folder(
        folder,
        models[0] if models else None,
        adapters[0] if adapters else None,
        rows[0] if rows else None,
        trainers[0] if trainers else None,
        tuple(_jobs(files)),
        refused,
        None if rows else unknown,
        {
            "model": tuple(path for path, _ in models[1:]),
            "data": tuple(rows[1:]),
            "trainer": tuple(found.path for found in trainers[1:]),
        },
    )


def _files(folder: Path) -> Iterator[Path]:
    pending, seen, base = [folder], 0, len(folder.parts)
    while pending:
        here = pending.pop()
        for item in sorted(here.iterdir()) if here == folder else _listed(here):
            seen += 1
            if seen > MOST_ENTRIES:
                return
            if item.name.startswith((".", "checkpoint-")) or item.name in _SKIPPED:
                continue
            if item.is_dir() and len(item.parts) - base < DEEPEST:
                pending.append(item)
            elif item.is_file():
                yield item


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _models(files: list[Path]) -> Iterator[tuple[Path, Model]]:
    """Folders with a config.json of a model that is known how to price."""
    for path in [path for path in files if path.name == "config.json"][:MOST_TRIED]:
        try:
            yield path.parent, find_model(str(path.parent))
        except InputError:
            continue


def _named_data(trainer: TrainerFile) -> Path | None:
    """The rows that a trainer's file names, by a path from it."""

    def there(name: str) -> Path | None:
        path = Path(os.path.normpath(trainer.path.parent / name))
        return path if path.is_file() else None

    try:
        return rows_named(trainer.path.read_text(encoding="utf-8-sig"), there)
    except (OSError, ValueError):
        return None


def _likely_training(path: Path) -> tuple[bool, bool, int, str]:
    """Training rows before others, shallow before deep."""
    name = path.name.casefold()
    other = any(word in name for word in ("test", "valid", "eval", "dev"))
    return other, "train" not in name, len(path.parts), str(path)


def _likely_launch(path: Path) -> tuple[bool, bool, bool, int, str]:
    """As `_likely_training`, and what starts a script, with flags of its own, before a script."""
    other, unnamed, depth, text = _likely_training(path)
    return other, path.suffix.casefold() not in SHELL, unnamed, depth, text


def _rows(files: list[Path], column: str | None) -> tuple[list[Path], tuple[Path, str] | None]:
    """Files whose first row is of a form that trainers read; else the first one, and what it is."""
    found: list[Path] = []
    unknown: tuple[Path, str] | None = None
    for path in files[:MOST_TRIED]:
        try:
            first = next(iter(Reading((path,), most_bytes=1_000_000).records()), None)
            if first is None:
                continue
            row_of(first.content, path.name, column)
            found.append(path)
        except InputError as error:
            # a config or a list of settings is no data; a table of other columns may be
            if path.suffix != ".json" or "look like text" in (error.hint or ""):
                unknown = unknown or (path, error.hint or error.message)
    return found, unknown


def _own_files(files: list[Path]) -> tuple[list[TrainerFile], str]:
    """Trainers' configs, else scripts that train; and why the first that trains is not priced."""
    named = [path for path in files if path.suffix.casefold() in CONFIGS]
    configs = [path for path in named if path.name != "config.json"][:MOST_TRIED]
    packages = {path.parent for path in files if path.name == "__init__.py"}  # modules to import
    kinds = CODE - PAGES
    scripts = [p for p in files if p.suffix.casefold() in kinds and p.parent not in packages]
    scripts = sorted(scripts, key=_likely_launch)[:MOST_SCRIPTS]
    found, refused = list[TrainerFile](), ""
    for paths, may_train in ((configs, _is_a_trainers), (scripts, _may_train)):
        for path in [] if found else [path for path in paths if may_train(path)]:
            try:
                found.append(_own_file(path))
            except InputError as error:
                refused = refused or ("" if isinstance(error, NoTraining) else error.message)
    return found, "" if found else refused


def _jobs(files: list[Path]) -> list[Path]:
    """Job files among the YAML and JSON files."""
    named = [path for path in files if path.suffix.casefold() in CONFIGS][:MOST_TRIED]
    return [path for path in named if (_mapping(path) or {}).keys() >= _JOB_KEYS]


def _is_a_trainers(path: Path) -> bool:
    """Whether a mapping is a trainer's: no job file, and no launcher's config."""
    values = _mapping(path)
    try:
        return values is not None and detect(values, path.name) is not None
    except InputError:
        return False


def _may_train(path: Path) -> bool:
    """Whether a script calls a trainer or starts one."""
    try:
        return bool(TRAINS.search(read_text(path)))
    except InputError:
        return False


def _own_file(path: Path) -> TrainerFile:
    """What a trainer's file states, as `tune` reads it. Raises InputError as that does.

    What it asks for is stated in its place, and is no part of what is found.
    """
    needs: dict[str, str] = {}
    try:
        job = _with(path, needs)
    except InputError as error:
        if not error.lacking.keys() <= {"model", *IN_PLACE} or not error.lacking:
            raise
        needs = error.lacking
        job = _with(path, needs)
    if job.origin is None:
        msg = f"{path} is a job file"
        raise InputError(msg)
    given = {key.partition(".")[0] for key in needs}
    values = {key: value for key, value in job.stated_file.items() if key not in given - {"data"}}
    if "data.rows" in needs and isinstance(values.get("data"), dict):
        values["data"] = {key: own for key, own in values["data"].items() if key != "rows"}
    words = "".join(f" {flag}" for flag in needs.values())
    title = TRAINERS[job.origin.trainer].title
    return TrainerFile(path, title, values, job.global_batch_size, job.objective, words)


def _with(path: Path, needs: Iterable[str]) -> Job:
    stated = {key: IN_PLACE[key] for key in needs if key in IN_PLACE}
    model = {"model": ANY_MODEL} if "model" in needs else {}
    asked = Overrides(gpus=(ANY_DEVICE,), stated=stated, set_values=model)
    return load_jobs(Path(near(path)), asked)[0].job


def _mapping(path: Path) -> dict[str, Any] | None:
    try:
        if path.stat().st_size > MOST_CONFIG_BYTES:
            return None
        text = path.read_text(encoding="utf-8-sig")
        return document_of(text, path.name, json=path.suffix.casefold() == ".json").values
    except (OSError, ValueError, InputError):
        return None


def _adapter(path: Path) -> Adapter | None:
    """PEFT's adapter_config.json of a LoRA."""
    if path.name != "adapter_config.json":
        return None
    try:
        content = json.loads(path.read_bytes()[:MOST_CONFIG_BYTES])
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or content.get("peft_type") != "LORA":
        return None
    base, targets = content.get("base_model_name_or_path"), content.get("target_modules")
    names = _named(targets)
    stated = {
        "kind": "lora",
        "rank": _number(content.get("r"), whole=True),
        "alpha": _number(content.get("lora_alpha")),
        "dropout": _number(content.get("lora_dropout")),
        "targets": sorted(names) or ("all-linear" if targets == "all-linear" else None),
        "variant": next((n for n in ("dora", "rslora") if content.get(f"use_{n}") is True), None),
        "modules_to_save": _named(content.get("modules_to_save")) or None,
    }
    return Adapter(
        path,
        base if isinstance(base, str) and base else None,
        {key: value for key, value in stated.items() if value is not None},
    )


def _named(value: object) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _number(value: object, *, whole: bool = False) -> float | int | None:
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        return None
    return value
