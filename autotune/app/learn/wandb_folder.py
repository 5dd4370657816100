"""A W&B run folder: `files/` of an online or synced run, or the `.wandb` file of an offline one.

`wandb-metadata.json` names the machine, `config.yaml` holds the arguments, the model's config and
the adapter's, `wandb-summary.json` the figures at the end, `output.log` what was printed,
`requirements.txt` the versions. An offline run has only the last two and a file of transactions,
which is read with the installed `wandb`'s own record type. Of the machine only the GPU is taken:
names of hosts, users and folders are left where they are.

Source: wandb 0.12 to 0.31 (`WandbCallback` of transformers writes config and summary); the frames
of a `.wandb` file are LevelDB's log format, blocks of 32 KiB of [checksum 4, length 2, type 1].
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from autotune.app.learn.found import Found, adapter_in, results_in, versions_of, whole
from autotune.app.learn.walk import (
    Unreadable,
    read_bytes,
    read_log,
    read_mapping,
    read_text,
    read_yaml,
)  # fmt: skip
from autotune.evidence.log.console import Printed, read_printed
from autotune.evidence.log.text import figure_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from autotune.app.learn.walk import Folder

SOURCE = "W&B run"
METADATA, CONFIG, SUMMARY, OUTPUT, REQUIREMENTS = (
    "wandb-metadata.json", "config.yaml", "wandb-summary.json", "output.log", "requirements.txt",
)  # fmt: skip
TRANSACTIONS_BYTES = 200_000_000
INSTALL = (
    "an offline W&B run whose .wandb file needs the wandb package to be read: pip install wandb"
)
_BLOCK, _HEADER = 32768, 7


def is_run(folder: Folder) -> bool:
    """Whether a folder is a run's `files`, or an offline run's own."""
    names = folder.files
    own = METADATA in names or SUMMARY in names or (CONFIG in names and OUTPUT in names)
    return own or any(name.endswith(".wandb") for name in names)


def belongs_to(folder: Folder) -> Path:
    """The run's folder: that of its `files` is the one above."""
    return folder.path.parent if folder.path.name == "files" else folder.path


def read(run: Path, folders: list[Folder]) -> Found:
    """What a run's folders say. Raises Unreadable with the reason where they say nothing."""
    files = {name: folder.path / name for folder in folders for name in sorted(folder.files)}
    config, summary, metadata = _written(files)
    offline = next((path for name, path in files.items() if name.endswith(".wandb")), None)
    if offline is not None and not (config and summary):
        told, end, machine = _transactions(offline)
        config, summary, metadata = config or told, {**summary, **end}, {**machine, **metadata}
    printed = read_printed(read_log(files[OUTPUT])) if OUTPUT in files else Printed({}, None)
    if not config:
        msg = "a W&B run without the arguments of its training (config.yaml)"
        raise Unreadable(msg)
    listed = read_text(files[REQUIREMENTS], 2_000_000) if REQUIREMENTS in files else ""
    results = results_in(summary, printed.results)
    model = config.get("model_config")
    gpu, size = _gpu(metadata)
    return Found(
        source=SOURCE,
        place=run,
        trainer="trl" if "packing" in config or "max_seq_length" in config else "hf",
        arguments=config,
        model_name=str(config.get("_name_or_path") or config.get("model_name_or_path") or ""),
        model=model if isinstance(model, dict) else config,
        adapter=adapter_in(config),
        results=results,
        log=printed.log(str(run)),
        steps=whole(summary.get("train/global_step")) or printed.steps,
        tokens=figure_of(summary.get("train/num_tokens")),
        gpu=gpu,
        gpu_bytes=size,
        visible=whole(metadata.get("gpu_count")),
        elapsed_s=figure_of(summary.get("_runtime")),
        on_cpu=not gpu and bool(metadata),
        versions=versions_of(listed, config),
        month=_month(metadata, run),
        clock=printed.jumped,
        notes=printed.notes,
    )


def _written(files: Mapping[str, Path]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    config = _unwrapped(read_yaml(files[CONFIG])) if CONFIG in files else {}
    summary = read_mapping(files[SUMMARY]) if SUMMARY in files else {}
    metadata = read_mapping(files[METADATA]) if METADATA in files else {}
    return config, summary, metadata


def _unwrapped(config: Mapping[str, Any]) -> dict[str, Any]:
    """W&B writes `key: {desc:, value:}`."""
    found = {}
    for key, held in config.items():
        if key not in {"_wandb", "wandb_version"}:
            found[key] = held["value"] if isinstance(held, dict) and "value" in held else held
    return found


def _gpu(metadata: Mapping[str, Any]) -> tuple[str, float]:
    """The driver's name of the first GPU, and [bytes] of it."""
    several = metadata.get("gpu_nvidia") or metadata.get("gpu_devices")
    first = several[0] if isinstance(several, list) and several else {}
    first = first if isinstance(first, dict) else {}
    name = first.get("name") or metadata.get("gpu") or ""
    size = figure_of(first.get("memory_total") or first.get("memoryTotal")) or 0.0
    return (name if isinstance(name, str) else ""), size


def _month(metadata: Mapping[str, Any], run: Path) -> str:
    text = str(metadata.get("startedAt") or "")
    found = re.match(r"(20\d\d)-(\d\d)", text) or re.search(r"run-(20\d\d)(\d\d)\d\d_", run.name)
    return f"{found[1]}-{found[2]}" if found else ""


def _transactions(path: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(config, summary, metadata) of an offline run's file. Raises Unreadable."""
    try:
        from wandb.proto import wandb_internal_pb2
    except ImportError:
        raise Unreadable(INSTALL) from None
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    for frame in _frames(read_bytes(path, TRANSACTIONS_BYTES)):
        record = wandb_internal_pb2.Record()
        try:
            record.ParseFromString(frame)
        except Exception:  # noqa: BLE001 - whatever a version of protobuf raises for damage
            break
        kind = record.WhichOneof("record_type")
        if kind == "run":
            config.update(_items(record.run.config.update))
        elif kind == "config":
            config.update(_items(record.config.update))
        elif kind == "summary":
            summary.update(_items(record.summary.update))
        elif kind == "history":
            summary.update(_items(record.history.item))
        elif kind == "environment":
            metadata.update(_machine(record.environment))
    return _unwrapped(config), summary, metadata


def _machine(environment: Any) -> dict[str, Any]:  # noqa: ANN401 - wandb's own type
    """The GPU alone: this record also names the host and the user."""
    cards = [
        {"name": card.name, "memoryTotal": card.memory_total} for card in environment.gpu_nvidia
    ]
    return {"gpu": str(environment.gpu_type), "gpu_nvidia": cards, "seen": True}


def _items(items: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - wandb's own type
    for item in items:
        key = item.key or "/".join(item.nested_key)
        try:
            yield key, json.loads(item.value_json)
        except (ValueError, RecursionError):
            continue


def _frames(content: bytes) -> Iterator[bytes]:
    """Whole records of a file of frames; what a crash cut off is left out."""
    at, parts = _HEADER, b""  # the file's own header: ":W&B", a magic number, a version
    while at + _HEADER <= len(content):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER:
            at += left
            continue
        length = int.from_bytes(content[at + 4 : at + 6], "little")
        kind = content[at + 6]
        at += _HEADER
        if kind not in {1, 2, 3, 4} or at + length > len(content):
            return
        part = content[at : at + length]
        at += length
        parts = part if kind in {1, 2} else parts + part
        if kind in {1, 4}:
            yield parts
