"""The files of a data set: one, those of a folder, or those of a data set in the hub's cache.

And what kind of file each is, by its name and its first bytes, and how it is opened.
"""

from __future__ import annotations

import io
import json
import re
import zlib
from typing import IO, TYPE_CHECKING, Any, cast

from autotune.app.dataset.columns import FORMS
from autotune.catalog import hub
from autotune.catalog.datasets import SHORT_ROWS, dataset_names
from autotune.domain.errors import InputError, close_matches, did_you_mean
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    Group = tuple[int, Callable[[int], Iterator[dict[str, Any]]]]  # rows, and how to read the first

MOST_FILES, DEEPEST = 20_000, 4
_ROWS_NAME = re.compile(r"[\w./~+-]+\.(?:jsonl|ndjson|json|csv|tsv|parquet|arrow)\b")
_MOST_NAMES, _LONGEST_ROW = 100, 1 << 20  # names of a text that are looked for; [bytes]
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
    try:
        there = path.exists()
    except OSError as error:  # a name too long for the file system
        msg = f"the data set {path} cannot be read: {error.strerror}"
        raise InputError(msg, WHAT) from None
    if path.is_dir():
        return _of_folder(path)
    if path.is_file():
        return (path,)
    if there:
        msg = f"the data set {path} is not a regular file"
        raise InputError(msg, f"{WHAT}; save the rows to a file first")
    name = as_hub_id(path)
    if name is None:
        return _missing(path)
    snapshot = hub.cached_dataset(name)
    if snapshot is not None:
        return _of_folder(snapshot)
    msg = f"{name} is no file here, nor a data set in the hub's cache"
    raise InputError(
        msg,
        f"hf download {name} --repo-type dataset --local-dir data, then name that folder; or state "
        "data.rows and data.lengths: {p50: 120, p95: 400, max: 1024}; rows are known of "
        f"{', '.join(close_matches(name, dataset_names())) or SHORT_ROWS} and others",
    )


def as_hub_id(path: Path) -> str | None:
    """owner/name, where the last two parts of a path read so and its folder does not exist."""
    if path.suffix[1:].isalpha() or path.parent.is_dir():
        return None
    text = "/".join(path.parts[-2:])
    return text if hub.is_hub_id(text) else None


def _missing(path: Path) -> tuple[Path, ...]:
    try:
        names = [item.name for item in path.parent.iterdir()]
    except OSError:
        names = []
    msg = f"the data set {path} cannot be read: No such file or directory"
    named = [] if path.suffix[1:].isalpha() else close_matches(path.name, dataset_names())
    raise InputError(msg + did_you_mean(close_matches(path.name, names) or named), WHAT)


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
        listed = ", ".join(str(path.relative_to(folder)) for path in chosen[:6])
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


def rows_named(text: str, find: Callable[[str], Path | None]) -> Path | None:
    """The first file of rows that a trainer's file or command names and that is there.

    find: the file of a name, relative to whatever names may be relative to; None where none is.
    """
    for name in list(dict.fromkeys(_ROWS_NAME.findall(text)))[:_MOST_NAMES]:
        path = find(name)
        if path is not None and is_data(path) and _holds_rows(path):
            return path
    return None


def _holds_rows(path: Path) -> bool:
    """Whether a file has more than a name: a .json may as well be a config."""
    try:
        kind = kind_of(path)
        if kind.name != "lines" or kind.compression:
            return True
        with path.open("rb") as stream:
            return isinstance(json.loads(stream.readline(_LONGEST_ROW)), dict)
    except (InputError, ValueError, RecursionError, *UNREADABLE):
        return False


def _suffix(path: Path) -> str:
    inner = path.with_suffix("") if path.suffix.casefold() in COMPRESSED else path
    return inner.suffix.casefold()


try:
    from lzma import LZMAError
except ImportError:  # a Python that was built without it cannot meet its error

    class LZMAError(Exception):  # type: ignore[no-redef]
        """Never raised."""


UNREADABLE = (OSError, EOFError, zlib.error, LZMAError)  # what a file cut short or damaged raises
COMPRESSED = {".gz": "gz", ".bz2": "bz2", ".xz": "xz", ".zst": "zst"}
_MAGIC = ((b"\x1f\x8b", "gz"), (b"BZh", "bz2"), (b"\xfd7zXZ", "xz"), (b"\x28\xb5\x2f\xfd", "zst"))
_NAMES = {
    ".jsonl": "lines", ".ndjson": "lines", ".json": "lines", ".csv": "csv", ".tsv": "tsv",
    ".txt": "text", ".parquet": "parquet", ".arrow": "arrow",
}  # fmt: skip
SUFFIXES = tuple(_NAMES)
_OTHER = {
    b"PK\x03\x04": "a zip archive (or a spreadsheet)", b"\x7fELF": "a program",
    b"%PDF": "a PDF file", b"\x89PNG": "a picture", b"SQLite format": "an SQLite data base",
    b"\xff\xfe": "UTF-16 text", b"\xfe\xff": "UTF-16 text", b"ORC": "an ORC file",
}  # fmt: skip
_PEEK = 4096
WHAT = "rows are read from JSON lines, a JSON array, CSV, TSV, text, Parquet and Arrow"


@dataclass(frozen=True, slots=True)
class Kind:
    """A format: lines, array, csv, tsv, text, parquet or arrow; and how it is compressed."""

    name: str
    compression: str = ""


def kind_of(path: Path) -> Kind:
    """The format of a file. Raises InputError for what holds no rows, OSError if unreadable."""
    with path.open("rb") as stream:
        first = stream.read(_PEEK)
        compression = next((name for magic, name in _MAGIC if first.startswith(magic)), "")
        named = _NAMES.get(_suffix(path), "")
        if compression:
            stream.seek(0)
            with opened(stream, compression, path) as inner:
                first = inner.read(_PEEK)
    return Kind(_by_content(first, named, path), compression)


def _by_content(first: bytes, named: str, path: Path) -> str:
    if first.startswith(b"PAR1"):
        return "parquet"
    if named == "arrow" or first.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return "arrow"
    other = next((what for magic, what in _OTHER.items() if first.startswith(magic)), None)
    if other is None and b"\0" in first:
        other = "binary"
    if other is not None:
        msg = f"{path} is {other}, and no data set that is read"
        utf16 = other == "UTF-16 text"
        raise InputError(msg, "save it as UTF-8: iconv -f UTF-16 -t UTF-8" if utf16 else WHAT)
    text = first.lstrip(b"\xef\xbb\xbf \t\r\n")
    if named in {"csv", "tsv", "text"}:
        return named
    if text.startswith(b"["):
        # `[1, 2]` on a line of its own is a broken row of JSON lines, and says so there.
        return "array" if text[1:].lstrip()[:1] in {b"{", b"]", b""} else "lines"
    return "lines"


def opened(raw: IO[bytes], compression: str, path: Path) -> IO[bytes]:
    """The bytes of a file, decompressed. Raises InputError for a codec this Python lacks."""
    if not compression:
        return raw
    if compression == "gz":
        import gzip

        return cast("IO[bytes]", gzip.GzipFile(fileobj=raw))
    if compression == "bz2":
        import bz2

        return bz2.BZ2File(raw)
    if compression == "xz":
        import lzma

        return lzma.LZMAFile(raw)
    arrow = _pyarrow(path, "is compressed with zstd")
    return io.BufferedReader(arrow.CompressedInputStream(arrow.PythonFile(raw, "r"), "zstd"))


def _pyarrow(path: Path, why: str) -> Any:  # noqa: ANN401 - pyarrow is not typed
    try:
        import pyarrow as pa
    except ImportError:
        msg = f"{path} {why}, and the package pyarrow, which reads that, is not installed"
        raise InputError(msg, "pip install pyarrow, or save the rows as JSON lines") from None
    return pa


def columnar_groups(path: Path, kind: str) -> list[Group]:
    """Groups of rows of a Parquet or Arrow file: how many, and what reads the first of them."""
    arrow = _pyarrow(path, f"is {kind.title()}")
    try:
        return _parquet(path) if kind == "parquet" else _arrow(path, arrow)
    except arrow.ArrowException as error:
        reason = str(error).splitlines()[0][:200] if str(error) else "it cannot be read"
        msg = f"{path} is no {kind.title()} file that can be read: {reason}"
        raise InputError(msg, "the file may be cut short; save or download it again") from None


def _parquet(path: Path) -> list[Group]:
    from pyarrow import parquet

    file = parquet.ParquetFile(path)

    def reader(index: int) -> Callable[[int], Iterator[dict[str, Any]]]:
        def read(most: int) -> Iterator[dict[str, Any]]:
            left = most
            for batch in file.iter_batches(batch_size=min(most, 1000) or 1, row_groups=[index]):
                yield from batch.slice(0, left).to_pylist()
                left -= batch.num_rows
                if left <= 0:
                    return

        return read

    counts = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
    return [(count, reader(index)) for index, count in enumerate(counts)]


def _arrow(path: Path, arrow: Any) -> list[Group]:  # noqa: ANN401 - pyarrow is not typed
    source = arrow.memory_map(str(path))
    with path.open("rb") as stream:
        is_file = stream.read(6) == b"ARROW1"
    made = arrow.ipc.open_file(source) if is_file else arrow.ipc.open_stream(source)
    batches = [made.get_batch(i) for i in range(made.num_record_batches)] if is_file else list(made)

    def reader(batch: Any) -> Callable[[int], Iterator[dict[str, Any]]]:  # noqa: ANN401
        return lambda most: iter(batch.slice(0, most).to_pylist())

    return [(batch.num_rows, reader(batch)) for batch in batches]


def decoded(line: bytes, place: str) -> str:
    """A line as text. Raises InputError for another encoding."""
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError:
        msg = f"{place} is not UTF-8 text"
        raise InputError(msg, "save the data set as UTF-8") from None


def not_json(error: Exception) -> str:
    """Why a text is no JSON, and where; json's own words may end in "at"."""
    if not isinstance(error, json.JSONDecodeError):
        return "nested too deeply or a number too long"
    return f"{error.msg.removesuffix(' at')} at character {error.pos + 1}"


def json_row(text: str, place: str) -> dict[str, Any]:
    """The object of a line. Raises InputError for anything else."""
    hint = f"one JSON object a line, or one array of objects; {FORMS}"
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = not_json(error)
        msg = f"{place} is not JSON: {reason}"
        if text.strip() == "{":
            msg = f"{place} begins one JSON object over many lines, and a row is one line"
            hint = "jq -c '.KEY[]' FILE > rows.jsonl writes the list under KEY a row a line"
        raise InputError(msg, hint) from None
    if not isinstance(content, dict):
        msg = f"{place} is not a JSON object"
        raise InputError(msg, hint)
    return content
