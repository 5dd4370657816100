"""The data sets that a trainer's file names, and how many rows a script of one loads.

It is read, and never executed. Of a script one call of `load_dataset` for what is trained on, of a
file that is here or of a data set whose rows are published, with nothing behind it that leaves rows
out otherwise than by a slice that is written there.
"""

from __future__ import annotations

import ast
import re
import shlex
from typing import TYPE_CHECKING, Any

from autotune.app.dataset.columns import row_of
from autotune.app.dataset.files import Reading
from autotune.app.dataset.folder import rows_named
from autotune.catalog.datasets import counted, published, published_names
from autotune.domain.errors import InputError
from autotune.frozen import dataclass
from autotune.trainers.syntax.python_settings import assigned, callee, last_name, tree_of
from autotune.trainers.syntax.python_unseen import joins_rows
from autotune.trainers.syntax.python_values import Values

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from autotune.app.dataset.files import Record
    from autotune.catalog.datasets import PublishedDataset
    from autotune.domain.job import Origin
    from autotune.domain.typed.overrides import Overrides
    from autotune.trainers.parsed import Parsed

_NAMED = 6  # data sets of a file, in one note
_MAX_LENGTH = "data.max_length"

_OF_FILES = {"json", "csv", "parquet"}  # builders of `datasets` of a file's rows
_OTHERS = {  # what joins, makes or leaves out rows otherwise
    "concatenate_datasets", "interleave_datasets", "load_from_disk", "filter", "shard", "take",
    "skip", "from_list", "from_dict", "from_pandas", "from_generator", "from_json", "from_csv",
    "sample", "drop_duplicates", "dropna", "extend", "append", "add_item",
}  # fmt: skip
_SPLIT = re.compile(r"(\w+)(?:\[:(\d{1,9})(%?)\])?")
_TRAINED = re.compile(r"train\w*")
_HELD = re.compile(
    r"(^|_)(test|tests|val|valid|validation|dev|eval|evaluation)(_|$)", re.IGNORECASE
)
_ROWS = re.compile(r"data|train|rows|examples|samples", re.IGNORECASE)
_ALL_PERCENT = 100


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a script loads: rows by their number, or a file that is here; and where that is from."""

    rows: int | None
    file: Path | None
    said: str
    why: str


def name_rows(parsed: Parsed, values: dict[str, Any], overrides: Overrides) -> None:
    """The data sets that the file names, where their lengths are published and no others stated."""
    data = values.setdefault("data", {})
    stated = {"dataset", "lengths"} & set(data)
    stated |= {key for key in overrides.set_values if key.startswith(("data.lengths", "data.data"))}
    names = published_names(",".join(parsed.datasets)) if parsed.datasets else ()
    if not stated and names:
        data["dataset"] = ",".join(names)
        data.setdefault("rows", sum(each.rows for each in map(_found, names)))
    elif not stated and parsed.datasets:
        listed = ", ".join(parsed.datasets[:_NAMED])
        why = "named in the file; how long its rows are is published nowhere that is known here"
        parsed.note("data.dataset", f"{listed}, not counted", f"{why}: --data FILE counts them")
    if not data:
        del values["data"]


def load_rows(
    parsed: Parsed, values: dict[str, Any], overrides: Overrides, origin: Origin,
    find: Callable[[str], Path | None],
) -> None:  # fmt: skip
    """What a script itself loads, where nothing else says how many rows there are.

    find: the file of a name that stands in the script; None: none is here.
    """
    given = [key for key in overrides.set_values if key.startswith("data.")]
    data = values.get("data", {})
    if origin.syntax != "python" or {"rows", "dataset"} & {*data} or set(given) - {_MAX_LENGTH}:
        return
    if "steps" in values.get("train", {}):
        return
    found = rows_loaded(origin.text, origin.path, find)
    if found is None:
        return
    data = values.setdefault("data", {})
    if found.file is not None:
        data["dataset"] = str(found.file.absolute())
        parsed.note("data.dataset", found.said, found.why)
    if found.rows is not None:
        data["rows"] = found.rows
        parsed.note("data.rows", found.rows, f"{found.said}, which the script loads; {found.why}")


# A script's slice of its data: load_dataset(..., split="train[:500]"), dataset.select(range(500)).
_SLICE = re.compile(r"[\"']train\[:(\d{1,9})\][\"']|\.select\(\s*range\(\s*(\d[\d_]{0,9})\s*\)")


def rows_flag(text: str, find: Callable[[str], Path | None]) -> str:
    """The flag of how many rows there are: a file's own slice, or data that it names here.

    text: of a trainer's file or command. Empty where it says neither.
    """
    slices = {int(first or other) for first, other in _SLICE.findall(text)}
    if len(slices) == 1:
        return f"--rows {slices.pop()}"
    found = rows_named(text, find)
    return f"--data {shlex.quote(str(found))}" if found else ""


def rows_loaded(text: str, name: str, find: Callable[[str], Path | None]) -> Loaded | None:
    """The rows that a script trains on; None where it does not say how many there are.

    Args:
        text: the script.
        name: what errors call it.
        find: the file of a name, relative to whatever names may be relative to; None: none.
    """
    tree = tree_of(text, name)
    stated = Values(tree)
    nodes = list(stated.reached(tree))
    calls = {ast.unparse(call): call for call in _calls(nodes)}
    if len(calls) != 1 or _leaves_out(nodes) or joins_rows(nodes):
        return None
    told = _told(next(iter(calls.values())), stated)
    split = told and _split_of(told, nodes)
    most = _selected(nodes, stated)
    if not told or not split or most is None:
        return None
    kind, given = str(told["path"]), told.get("data_files")
    if kind in _OF_FILES or given is not None:
        return _of_file(kind, given, split, most, find)
    known = counted(kind, str(told.get("name") or ""), split.group(1))
    if known is None:
        return None
    rows = min(_part(known.rows, split), most)
    said = f"{kind} {split.group()}"
    return Loaded(
        rows, None, said, f"{known.rows} rows as published, {known.as_of} ({known.source})"
    )


def _calls(nodes: list[ast.AST]) -> list[ast.Call]:
    """Calls of `load_dataset`, without those of rows that are held out by their name or split."""
    held = {
        id(each) for node in nodes if _HELD.search(str(getattr(assigned(node)[0], "id", "")))
        for each in ast.walk(node)
    }  # fmt: skip
    found = []
    for node in nodes:
        called = node.func if isinstance(node, ast.Call) else None
        loads = last_name(called) == "load_dataset"
        if isinstance(node, ast.Call) and loads and id(node) not in held:
            split = [k.value for k in node.keywords if k.arg == "split"]
            said = str(getattr(split[0], "value", "")) if split else ""
            if not _HELD.search(said.partition("[")[0]):
                found.append(node)
    return found


def _leaves_out(nodes: list[ast.AST]) -> bool:
    """Whether anything but a slice that is written there changes which rows there are."""
    for node in nodes:
        if isinstance(node, ast.Call):
            called = callee(node)
            if called in _OTHERS and (called != "append" or _ROWS.search(_owner(node.func))):
                return True
        if isinstance(node, ast.keyword) and node.arg == "return_overflowing_tokens":
            return True
        sliced = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)
        if sliced and _ROWS.search(ast.unparse(node).partition("[")[0]):
            return True
    return False


def _owner(function: ast.expr) -> str:
    return ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""


def _told(call: ast.Call, stated: Values) -> dict[str, Any] | None:
    """What the call is told by literals; None where something that decides is not known."""
    given = dict(zip(("path", "name"), call.args, strict=False))
    if len(call.args) > len(given) or any(key.arg is None for key in call.keywords):
        return None
    given |= {str(key.arg): key.value for key in call.keywords}
    found: dict[str, Any] = {}
    for key in {"path", "name", "data_files", "data_dir", "split", "streaming"} & set(given):
        known, found[key] = stated.literal(given[key])
        if not known:
            return None
    plain = isinstance(found.get("path"), str) and found.get("data_dir") is None
    return found if plain and isinstance(found.get("split", ""), str | None) else None


def _split_of(told: dict[str, Any], nodes: list[ast.AST]) -> re.Match[str] | None:
    """The split that is trained on, as the call says it, or the one that is taken out after it."""
    if told.get("split"):
        return _SPLIT.fullmatch(str(told["split"]))
    keys = [node.slice for node in nodes if isinstance(node, ast.Subscript)]
    taken = {str(key.value) for key in keys if isinstance(key, ast.Constant)}
    taken = {word for word in taken if _TRAINED.fullmatch(word)}
    return _SPLIT.fullmatch(taken.pop()) if len(taken) == 1 else None


def _selected(nodes: list[ast.AST], stated: Values) -> int | None:
    """Rows at most by `.select(range(N))`; None where what it selects is not known."""
    most = set[int]()
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "select":
            asked = node.args[0] if node.args else None
            ends = getattr(asked, "args", []) if getattr(
                getattr(asked, "func", None), "id", "") == "range" else []  # fmt: skip
            known, end = stated.literal(ends[0]) if len(ends) == 1 else (False, None)
            if not known or not isinstance(end, int):
                return None
            most.add(end)
    return 1 << 62 if not most else (most.pop() if len(most) == 1 else None)


def _part(rows: int, split: re.Match[str]) -> int:
    """Of so many rows those of `train[:500]` or `train[:10%]`."""
    if not split.group(2):
        return rows
    count = int(split.group(2))
    return min(rows, round(rows * count / _ALL_PERCENT) if split.group(3) else count)


def _of_file(
    kind: str, given: object, split: re.Match[str], most: int, find: Callable[[str], Path | None]
) -> Loaded | None:
    """The file that it names, where that is here and its rows can be counted."""
    by_split = given if isinstance(given, dict) else {"train": given}
    named = by_split.get(split.group(1))
    file = find(named) if isinstance(named, str) and kind in _OF_FILES else None
    if file is None:
        return None
    reading, readable = Reading((file,)), True
    try:
        for record in reading.records():
            readable = readable and _is_readable(record)
    except InputError:
        return None
    rows = reading.all_rows
    if not rows:
        return None
    part = min(_part(rows, split), most)
    why = "the file that the script loads, counted"
    return Loaded(part if part < rows or not readable else None, file if readable else None,
                  str(named), why)  # fmt: skip


def _is_readable(record: Record) -> bool:
    """Whether a row holds what a trainer takes; of any other a script's own code makes that."""
    try:
        row = row_of(record.content, record.place)
    except InputError:
        return False
    return bool(row.content.strip() or row.tokens)


def _found(name: str) -> PublishedDataset:
    found = published(name, 0)
    assert found is not None  # noqa: S101 - a name of `published_names`
    return found
