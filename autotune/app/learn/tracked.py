"""What trackers keep of a run: TensorBoard's event files, and MLflow's store of files.

Event files are read by the tensorboard library where it is installed; the Trainer writes its
arguments and the model's config into them as text. MLflow's store is text: a file for each
parameter and each metric.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from autotune.app.learn.found import Found, adapter_in, month_of, results_in, versions_of
from autotune.app.learn.walk import Unreadable, read_text, read_yaml
from autotune.evidence.log.text import figure_of

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.app.learn.walk import Folder

TENSORBOARD, MLFLOW = "TensorBoard log", "MLflow run"
EVENTS = "events.out.tfevents."
EVENT_BYTES = 200_000_000
INSTALL = (
    "a TensorBoard log, which needs the tensorboard package to be read: pip install tensorboard"
)
_ARGUMENTS, _MODEL = "args/text_summary", "model_config/text_summary"
MOST_METRICS = 2_000


def is_events(folder: Folder) -> bool:
    """Whether a folder holds event files."""
    return any(name.startswith(EVENTS) for name in folder.files)


def read_events(folder: Folder) -> Found:
    """What a folder's event files say. Raises Unreadable."""
    paths = [folder.path / name for name in sorted(folder.files) if name.startswith(EVENTS)]
    if sum(path.lstat().st_size for path in paths) > EVENT_BYTES:
        msg = f"event files larger than {EVENT_BYTES // 1_000_000} MB"
        raise Unreadable(msg)
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise Unreadable(INSTALL) from None
    try:
        held = EventAccumulator(str(folder.path), size_guidance={"scalars": 1, "tensors": 1})
        held.Reload()
        tags = held.Tags()
        scalars = {tag: held.Scalars(tag)[-1] for tag in tags["scalars"]}
        texts = {tag: held.Tensors(tag)[-1].tensor_proto.string_val[0] for tag in tags["tensors"]
                 if tag in {_ARGUMENTS, _MODEL}}  # fmt: skip
    except Exception as error:  # noqa: BLE001 - whatever its reader raises for damage
        msg = f"event files that cannot be read: {type(error).__name__}"
        raise Unreadable(msg) from None
    results = results_in({tag: event.value for tag, event in scalars.items()})
    if not results:
        msg = "a TensorBoard log without the Trainer's runtime"
        raise Unreadable(msg)
    arguments, model = _parsed(texts.get(_ARGUMENTS)), _parsed(texts.get(_MODEL))
    last = max(event.step for event in scalars.values())
    month = month_of(max(event.wall_time for event in scalars.values()))
    return _found(TENSORBOARD, folder, arguments, model, results, int(last), month)


def _found(
    source: str, folder: Folder, arguments: dict[str, Any], model: dict[str, Any],
    results: dict[str, float], steps: int, month: str,
) -> Found:  # fmt: skip
    """The Trainer's run as any tracker keeps it. steps: 0 where none are told."""
    return Found(
        source=source,
        place=folder.path,
        trainer="trl" if "packing" in arguments else "hf",
        arguments=arguments,
        model_name=str(model.get("_name_or_path") or ""),
        model=model,
        results=results,
        steps=steps or None,
        on_cpu=arguments.get("use_cpu") is True,
        versions=versions_of("", model),
        month=month,
        adapter=adapter_in(model),
    )


def _parsed(text: bytes | None) -> dict[str, Any]:
    """The JSON that TensorBoard's text holds."""
    try:
        found = json.loads((text or b"{}").decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def is_mlflow(folder: Folder) -> bool:
    """Whether a folder is a run of MLflow's store."""
    return "meta.yaml" in folder.files and {"params", "metrics"} <= set(folder.folders)


def read_mlflow(folder: Folder) -> Found:
    """What a run of MLflow's store says. Raises Unreadable."""
    meta = read_yaml(folder.path / "meta.yaml")
    arguments = {name: _value(text) for name, text in _files(folder.path / "params").items()}
    metrics = {name: _last(text) for name, text in _files(folder.path / "metrics").items()}
    results = results_in(metrics)
    if not results:
        msg = "an MLflow run without the Trainer's runtime"
        raise Unreadable(msg)
    steps = [
        step for text in _files(folder.path / "metrics").values() if (step := _last_step(text))
    ]
    started = figure_of(meta.get("start_time"))
    month = month_of(started / 1000.0) if started else ""
    return _found(MLFLOW, folder, arguments, arguments, results, max(steps, default=0), month)


def _files(folder: Path) -> dict[str, str]:
    """Text by name; MLflow makes folders of names with a slash."""
    found: dict[str, str] = {}
    try:
        paths = sorted(folder.rglob("*"))[:MOST_METRICS]
    except OSError:
        return found
    for path in paths:
        if path.is_file() and not path.is_symlink():
            try:
                found[path.relative_to(folder).as_posix()] = read_text(path, 1_000_000)
            except Unreadable:
                continue
    return found


def _value(text: str) -> Any:  # noqa: ANN401 - a parameter's value
    """A parameter as Python wrote it: True, None, 4, or text."""
    import ast

    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text.strip()


def _last(text: str) -> float | None:
    """The last value of a metric: lines of [time value step]."""
    parts = text.strip().splitlines()[-1].split() if text.strip() else []
    return figure_of(parts[1]) if len(parts) > 1 else None


def _last_step(text: str) -> int:
    found = re.findall(r"(\d{1,9})\s*$", text.strip())
    return int(found[0]) if found else 0
