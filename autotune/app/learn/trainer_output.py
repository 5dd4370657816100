"""The output folder of a Hugging Face Trainer, and of what drives it: TRL, LLaMA-Factory, axolotl.

`trainer_state.json` (its newest, checkpoints' included), `all_results.json`, `train_results.json`
and LLaMA-Factory's `trainer_log.jsonl` hold the time; the arguments are in a YAML beside it, in
`training_args.bin` (whose plain values are read without unpickling it), or in part in the model
card; `adapter_config.json` and `config.json` say what was trained. None of them names the GPU.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.learn.found import (
    Found,
    month_of,
    results_in,
    versions_of,
    versions_of_card,
    whole,
)
from autotune.app.learn.pickled import FILE as PICKLED
from autotune.app.learn.pickled import arguments_of
from autotune.app.learn.walk import Unreadable, read_log, read_mapping, read_text, trainer_files
from autotune.domain.errors import InputError
from autotune.domain.units import DAY_S, HOUR_S, MINUTE_S
from autotune.evidence.log.run_log import RunLog, Stretch
from autotune.evidence.log.text import figure_of
from autotune.evidence.log.trainer_state import CHECKPOINT, STATE_FILE, read_trainer_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.app.learn.walk import Folder

SOURCE, LLAMA_FACTORY = "Trainer output", "LLaMA-Factory output"
RESULTS, TRAIN_RESULTS, FACTORY_LOG = "all_results.json", "train_results.json", "trainer_log.jsonl"
ADAPTER, MODEL, CARD = "adapter_config.json", "config.json", "README.md"
_MARKS = (STATE_FILE, RESULTS, TRAIN_RESULTS, FACTORY_LOG)
_CARD_LINE = re.compile(r"^- (\w+): ([\d.]+)\s*$", re.MULTILINE)
_CARD_WORDS = {
    "train_batch_size": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}
_CLOCK = re.compile(r"(?:(\d+) days?, )?(\d+):(\d\d):(\d\d)")


def is_run(folder: Folder) -> bool:
    """Whether a Trainer wrote there."""
    return any(name in folder.files for name in _MARKS)


def belongs_to(folder: Folder) -> Path:
    """The output folder: that of a checkpoint is the one above."""
    return folder.path.parent if CHECKPOINT.fullmatch(folder.path.name) else folder.path


def read(run: Path, folders: list[Folder]) -> Found:
    """What the output folder and its checkpoints say. Raises Unreadable."""
    steps = {f.path: _step_of(f.path) for f in folders}
    newest = sorted(folders, key=lambda f: (f.path == run, steps[f.path]), reverse=True)
    notes: list[str] = []
    state, log = _state(newest, notes)
    results = results_in(*_results(run, state))
    factory = _factory_log(run / FACTORY_LOG) if (run / FACTORY_LOG).is_file() else None
    if log is None and factory is None and not results:
        raise Unreadable(notes[0] if notes else "a Trainer's folder without a figure of time")
    holders = [folder.path for folder in newest]
    trainer, arguments = _arguments(run, holders, state, notes)
    card = _card(holders)
    adapter = _first(holders, ADAPTER)
    model = _first([*holders, *_base_folder(adapter)], MODEL)
    if factory is not None:
        trainer = "llamafactory"
    timed = log if log is not None and log.is_timed else factory or log
    return Found(
        source=LLAMA_FACTORY if factory is not None else SOURCE,
        place=run,
        trainer=trainer,
        arguments=arguments,
        model_name=_name(adapter, model, arguments),
        model=model,
        adapter=adapter,
        results=results,
        log=timed,
        steps=whole(state.get("global_step")) or (factory.steps_done if factory else None),
        tokens=figure_of(state.get("num_input_tokens_seen")),
        on_cpu=arguments.get("use_cpu") is True or arguments.get("no_cuda") is True,
        versions={**versions_of("", model), **versions_of_card(card)},
        month=_month(holders),
        notes=tuple(notes),
    )


def _step_of(path: Path) -> int:
    match = CHECKPOINT.fullmatch(path.name)
    return int(match[1]) if match else 0


def _state(newest: list[Folder], notes: list[str]) -> tuple[dict[str, Any], RunLog | None]:
    """The state that went furthest, as it is and as a log; a damaged one is passed over."""
    for folder in newest:
        if STATE_FILE not in folder.files:
            continue
        path = folder.path / STATE_FILE
        try:
            return read_mapping(path), read_trainer_state(path)
        except (Unreadable, InputError) as error:
            notes.append(f"{STATE_FILE} is damaged: {_short(error)}")
    return {}, None


def _short(error: Exception) -> str:
    """An error without the path that it names."""
    text = getattr(error, "message", None) or str(error)
    said = str(text).rpartition(STATE_FILE)[2].lstrip(": ").removeprefix("is damaged or ")
    return said[:120] or "cut short"


def _results(run: Path, state: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name in (RESULTS, TRAIN_RESULTS):
        try:
            found.append(read_mapping(run / name))
        except Unreadable:
            continue
    history = state.get("log_history")
    lines = history if isinstance(history, list) else []
    found += [
        line for line in reversed(lines) if isinstance(line, dict) and "train_runtime" in line
    ]
    return [*found, {"total_flos": state.get("total_flos")}]


def _factory_log(path: Path) -> RunLog | None:
    """LLaMA-Factory's own log: steps and the time since the start. A torn last line is left out."""
    points: list[tuple[int, float]] = []
    total = None
    for line in read_log(path).splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(entry, dict):
            continue
        step, clock = whole(entry.get("current_steps")), _CLOCK.fullmatch(
            str(entry.get("elapsed_time") or "")
        )  # fmt: skip
        total = whole(entry.get("total_steps")) or total
        if step and clock:
            days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
            points.append((step, DAY_S * days + HOUR_S * hours + MINUTE_S * minutes + seconds))
    if not points:
        return None
    last: tuple[int, float] = (0, 0.0)
    found = []
    for step, since in points:
        if step > last[0] and since > last[1]:
            found.append(Stretch(last[0], step, since - last[1], warm_up=last[0] == 0))
            last = (step, since)
    if not found:
        return None
    return RunLog(str(path), "csv", last[0], max_steps=total, stretches=tuple(found),
                  timed_by="its elapsed_time")  # fmt: skip


def _arguments(
    run: Path, holders: list[Path], state: Mapping[str, Any], notes: list[str]
) -> tuple[str, dict[str, Any]]:
    """The trainer and its arguments: a YAML, the plain values of the pickle, the model card."""
    beside = _yaml_of(run)
    pickled: dict[str, Any] = {}
    for holder in holders:
        if (holder / PICKLED).is_file() and not (holder / PICKLED).is_symlink():
            try:
                pickled = arguments_of(holder / PICKLED)
                break
            except Unreadable as error:
                notes.append(str(error))
    trainer = "trl" if "packing" in pickled or "max_length" in pickled else "hf"
    if beside is not None:
        trainer, values = beside
        return trainer, {**pickled, **values} if trainer in {"hf", "trl"} else values
    if pickled:
        return trainer, pickled
    told = dict(_CARD_LINE.findall(_card(holders)))
    card = {
        ours: int(told[key]) for key, ours in _CARD_WORDS.items() if told.get(key, "").isdigit()
    }
    if not card and whole(state.get("train_batch_size")):
        card["per_device_train_batch_size"] = int(state["train_batch_size"])
    return trainer, card


def _yaml_of(run: Path) -> tuple[str, dict[str, Any]] | None:
    """A trainer's YAML in the folder, or above it where its output_dir names the folder."""
    for place, trainer, values in trainer_files(run, run.parent):
        out = str(values.get("output_dir") or "").rstrip("/").rpartition("/")[2]
        if run.name == out or place == run:
            return trainer, values
    return None


def _first(holders: list[Path], name: str) -> dict[str, Any]:
    for holder in holders:
        try:
            found = read_mapping(holder / name)
        except Unreadable:
            continue
        if found:
            return found
    return {}


def _card(holders: list[Path]) -> str:
    """The model card of the newest folder that has one."""
    for holder in holders:
        path = holder / CARD
        if path.is_file() and not path.is_symlink():
            try:
                return read_text(path, 2_000_000)
            except Unreadable:
                continue
    return ""


def _base_folder(adapter: Mapping[str, Any]) -> list[Path]:
    """The folder of the model that an adapter is of, where it still lies on this machine."""
    name = adapter.get("base_model_name_or_path")
    return [Path(name)] if isinstance(name, str) and Path(name).is_absolute() else []


def _name(
    adapter: Mapping[str, Any], model: Mapping[str, Any], arguments: Mapping[str, Any]
) -> str:
    names = (
        adapter.get("base_model_name_or_path"), model.get("_name_or_path"),
        arguments.get("model_name_or_path"), arguments.get("base_model"),
    )  # fmt: skip
    return next((name for name in names if isinstance(name, str) and name), "")


def _month(holders: list[Path]) -> str:
    """The month that the newest state was written in."""
    for holder in holders:
        for name in _MARKS:
            try:
                return month_of((holder / name).stat().st_mtime)
            except OSError:
                continue
    return ""
