"""The files of a data set: one, those of a folder, or those of a data set in the hub's cache."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autotune.app.dataset.formats import COMPRESSED, SUFFIXES, WHAT
from autotune.catalog import hub
from autotune.catalog.datasets import published_datasets
from autotune.domain.errors import InputError, close_matches

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MOST_FILES, DEEPEST = 20_000, 4
# What lies beside data and is none.
_NO_DATA = re.compile(
    r"(?:config|dataset_infos?|dataset_dict|state|tokenizer.*|special_tokens_map|added_tokens|vocab|"
    r"generation_config|adapter_config|trainer_state|package(?:-lock)?|tsconfig|requirements.*|"
    r".*index|merges|readme|license|preprocessor_config|training_args|all_results|.*_results)",
    re.IGNORECASE,
)
_TRAIN = re.compile(r"(?:^|[^a-z])train(?:ing)?(?:[^a-z]|$)", re.IGNORECASE)
_OTHER_SPLIT = re.compile(
    r"(?:^|[^a-z])(?:test|tests|valid|validation|val|dev|eval|evaluation)(?:[^a-z]|$)",
    re.IGNORECASE,
)


def data_files(path: Path) -> tuple[Path, ...]:
    """The files of a data set. Raises InputError where there are none, with what might be meant."""
    if path.is_dir():
        return _of_folder(path)
    if path.is_file():
        return (path,)
    if path.exists():
        msg = f"the data set {path} is no regular file"
        raise InputError(msg, f"{WHAT}; save the rows to a file first")
    name = as_hub_id(path)
    if name is None:
        return _missing(path)
    snapshot = hub.cached_snapshot(name, kind="datasets")
    if snapshot is not None:
        return _of_folder(snapshot)
    msg = f"{name} is no file here, nor a data set in the hub's cache"
    raise InputError(
        msg,
        f"hf download {name} --repo-type dataset --local-dir data, then name that folder; or state "
        "data.rows and data.lengths: {p50: 120, p95: 400, max: 1024}; published lengths are known "
        f"of {', '.join(dict.fromkeys(each.name for each in published_datasets()))}",
    )


def as_hub_id(path: Path) -> str | None:
    """owner/name, where the last two parts of a path read so and its folder does not exist."""
    if path.suffix or path.parent.is_dir():
        return None
    text = "/".join(path.parts[-2:])
    return text if hub.is_hub_id(text) else None


def _missing(path: Path) -> tuple[Path, ...]:
    try:
        names = [item.name for item in path.parent.iterdir()]
    except OSError:
        names = []
    near = close_matches(path.name, names)
    msg = f"the data set {path} cannot be read: No such file or directory"
    hint = f"close to it: {', '.join(near)}" if near else WHAT
    raise InputError(msg, hint)


def _of_folder(folder: Path) -> tuple[Path, ...]:
    """Data files of the training split; of all splits where none is told apart."""
    found = sorted(_files(folder))
    kinds = {_suffix(path) for path in found}
    if not found:
        msg = f"the folder {folder} holds no data set"
        raise InputError(msg, f"{WHAT}; name a folder with such files, or one of them")
    train = [p for p in found if _TRAIN.search(str(p.relative_to(folder)))]
    rest = [p for p in found if not _OTHER_SPLIT.search(str(p.relative_to(folder)))]
    chosen = train or rest or found
    if len({_suffix(path) for path in chosen}) > 1:
        listed = ", ".join(path.name for path in chosen[:6])
        msg = f"the folder {folder} holds files of {len(kinds)} formats: {listed}"
        raise InputError(msg, "name the file or the folder that is the training data")
    return tuple(chosen)


def _files(folder: Path) -> Iterable[Path]:
    base = len(folder.parts)
    pending, seen = [folder], 0
    while pending:
        try:
            items = sorted(pending.pop().iterdir())
        except OSError as error:
            msg = f"the folder {folder} cannot be read: {error.strerror}"
            raise InputError(msg, WHAT) from None
        for item in items:
            seen += 1
            if seen > MOST_FILES:
                msg = f"the folder {folder} holds more than {MOST_FILES:,} files"
                raise InputError(msg, "name the folder or file that is the training data")
            if item.name.startswith((".", "cache-")):
                continue
            if item.is_dir() and len(item.parts) - base <= DEEPEST:
                pending.append(item)
            elif item.is_file() and is_data(item):
                yield item


def is_data(path: Path) -> bool:
    """Whether a file's name is that of data."""
    suffix = _suffix(path)
    stem = path.name[: path.name.find(".")] if "." in path.name else path.name
    return suffix in SUFFIXES and suffix != ".txt" and not _NO_DATA.fullmatch(stem)


def _suffix(path: Path) -> str:
    inner = path.with_suffix("") if path.suffix.casefold() in COMPRESSED else path
    return inner.suffix.casefold()
