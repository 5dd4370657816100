"""The records of a data set's files, whatever their format, without ever holding a file whole.

Read are JSON lines, a JSON array, CSV and TSV, plain text (a row a line), Parquet and Arrow, each
also compressed (.gz, .bz2, .xz, .zst) where that makes sense; a folder stands for its data files,
those of the training split where several are told apart.

Above `WHOLE_BYTES` a data set is sampled. JSON lines and text: the rows that start within stretches
spread over the file, one at a random place of each of equal parts, so every row has the same chance
and the rows of a sorted file too. Parquet and Arrow: row groups likewise. What has to be read from
its start (an array, CSV, compressed files): as many of its first bytes.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import random
from dataclasses import field
from typing import IO, TYPE_CHECKING, Any, cast

from autotune.app.dataset import folder as formats
from autotune.app.dataset.columns import FORMS
from autotune.domain.errors import InputError
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WHOLE_BYTES = 100_000_000  # a data set up to this size is counted row by row
STRETCHES, STRETCH_BYTES = 64, 500_000
GROUPS, ROWS_OF_GROUP = 32, 1000
MAX_LINE_BYTES = 50_000_000
SEED = 0
_CHUNK = 1 << 17

HERE = "data.dataset is a file of rows, relative to the job file"


@dataclass(frozen=True, slots=True)
class Record:
    """One row as its file has it."""

    content: dict[str, Any]
    place: str  # "FILE line 7"
    size: int  # [bytes] in its file
    stretch: int  # which stretch of the data set it came from


@dataclass(slots=True)
class Extent:
    """How much of one file was read; complete once its records are."""

    path: Path
    total: float  # bytes, or rows where a format counts them
    read: float = 0.0
    rows: int = 0  # that were read
    from_start: bool = False  # what was read is the file's beginning, not a sample of it

    @property
    def all_rows(self) -> float:
        """Rows of the whole file: counted, or in proportion to what was read."""
        whole = self.read >= self.total or self.read <= 0
        return float(self.rows) if whole else self.rows * self.total / self.read


@dataclass(slots=True)
class Reading:
    """The records of a data set, and after reading them how much they stand for."""

    paths: tuple[Path, ...]
    most_bytes: int = WHOLE_BYTES
    extents: list[Extent] = field(default_factory=list)

    def records(self) -> Iterator[Record]:
        """Every record, or those of the sample. Raises InputError naming file and line."""
        total = sum(_size(path) for path in self.paths)
        share = min(1.0, self.most_bytes / max(total, 1))
        stretch = 0
        for path in self.paths:
            extent = Extent(path, float(_size(path)))
            self.extents.append(extent)
            last = stretch
            for record in _records(path, share, extent):
                extent.rows += 1
                last = stretch + record.stretch
                yield Record(record.content, record.place, record.size, last)
            stretch = last + 1

    @property
    def sampled(self) -> bool:
        """Whether rows were left out."""
        return any(extent.read < extent.total for extent in self.extents)

    @property
    def from_start(self) -> bool:
        """Whether the rows left out stand at the end of a file."""
        return any(e.from_start and e.read < e.total for e in self.extents)

    @property
    def all_rows(self) -> int:
        """Rows of the data set; an estimate where it was sampled."""
        return round(sum(extent.all_rows for extent in self.extents))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from None


def _records(path: Path, share: float, extent: Extent) -> Iterator[Record]:
    """Records of one file, of which `share` is to be read."""
    try:
        kind = formats.kind_of(path)
        if kind.name in {"parquet", "arrow"}:
            yield from _columnar(path, kind.name, share, extent)
        elif kind.compression or kind.name in {"array", "csv", "tsv"}:
            yield from _from_start(path, kind, share, extent)
        elif share < 1.0:
            yield from _stretches(path, kind.name, share, extent)
        else:
            with path.open("rb") as stream:
                yield from _lines(stream, path, kind.name)
            extent.read = extent.total
    except formats.UNREADABLE as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or str(error) or "it ends in the middle"
    return InputError(f"the data set {path} cannot be read: {reason}", HERE)


def _lines(stream: IO[bytes], path: Path, kind: str) -> Iterator[Record]:
    """A row a line. An empty line is an error, but at the end of the file and in text."""
    blank: str | None = None
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        place = f"{path} line {number}"
        _check_length(line, place)
        if not line.strip():
            blank = blank or place
            continue
        if blank and kind != "text":
            msg = f"{blank} is empty, and every line must be a row"
            raise InputError(msg, "remove the empty line")
        yield Record(_row_of(line, place, kind), place, len(line), 0)


def _check_length(line: bytes, place: str) -> None:
    if len(line) > MAX_LINE_BYTES:
        msg = f"{place} is longer than {MAX_LINE_BYTES // 10**6} MB"
        raise InputError(msg, f"one JSON object a line; {FORMS}")


def _row_of(line: bytes, place: str, kind: str) -> dict[str, Any]:
    text = formats.decoded(line, place)
    return {"text": text.rstrip("\r\n")} if kind == "text" else formats.json_row(text, place)


def _stretches(path: Path, kind: str, share: float, extent: Extent) -> Iterator[Record]:
    """Rows that start within stretches of the file, one at random in each of equal parts."""
    size = int(extent.total)
    length = max(1, min(STRETCH_BYTES, int(size * share) // STRETCHES))
    part = size / STRETCHES
    draw = random.Random(SEED)  # noqa: S311 - no secret
    with path.open("rb") as stream:
        for number in range(STRETCHES):
            begin = int(number * part + draw.random() * max(part - length, 0.0))
            end = min(begin + length, size)
            extent.read += end - begin
            at = _next_line(stream, begin, path)
            while at < end and (line := stream.readline(MAX_LINE_BYTES + 1)):
                place = f"{path} at byte {at}"
                _check_length(line, place)
                if line.strip():
                    yield Record(_row_of(line, place, kind), place, len(line), number)
                at += len(line)


def _next_line(stream: IO[bytes], begin: int, path: Path) -> int:
    """Where the first line starts that does so at `begin` or later."""
    if begin == 0:
        return stream.seek(0)
    stream.seek(begin - 1)
    rest = stream.readline(MAX_LINE_BYTES + 1)
    _check_length(rest, f"{path} at byte {begin}")
    return begin - 1 + len(rest)


def _from_start(path: Path, kind: formats.Kind, share: float, extent: Extent) -> Iterator[Record]:
    """Rows from the beginning, as far as `share` of the file reaches."""
    until, decoded = share * extent.total, 0
    with path.open("rb") as raw, formats.opened(raw, kind.compression, path) as stream:
        for record in _sequential(stream, path, kind.name):
            yield record
            decoded += record.size
            if share < 1.0 and (raw.tell() >= until or decoded >= STRETCHES * STRETCH_BYTES):
                extent.read, extent.from_start = float(raw.tell()), True
                if extent.read < extent.total:
                    return
    extent.read = extent.total


def _sequential(stream: IO[bytes], path: Path, kind: str) -> Iterator[Record]:
    if kind == "array":
        return _array(stream, path)
    if kind in {"csv", "tsv"}:
        return _table(stream, path, kind)
    return _lines(stream, path, kind)


def _array(stream: IO[bytes], path: Path) -> Iterator[Record]:
    """The objects of a JSON array, one after the other."""
    with _as_text(stream) as text:
        yield from _objects(text, path)


@contextlib.contextmanager
def _as_text(stream: IO[bytes]) -> Iterator[io.TextIOWrapper]:
    """The stream as UTF-8 text; it is not closed with the text."""
    text = io.TextIOWrapper(cast("io.BufferedReader", stream), encoding="utf-8-sig", newline="")
    try:
        yield text
    finally:
        text.detach()


def _objects(text: io.TextIOWrapper, path: Path) -> Iterator[Record]:
    decoder, buffer, number = json.JSONDecoder(), "", 0
    buffer = _refilled(text, "", path).lstrip()[1:]  # the opening bracket
    while True:
        buffer = buffer.lstrip(" \t\r\n" if number == 0 else " \t\r\n,")
        if not buffer:
            more = _refilled(text, buffer, path)
            if not more:
                msg = f"{path} is not JSON: the array that it begins does not end"
                raise InputError(msg, "the file may be cut short; save it again")
            buffer = more
            continue
        if buffer.startswith("]"):
            return
        number += 1
        place = f"{path} row {number}"
        content, end, buffer = _next_value(decoder, text, buffer, place, path)
        if not isinstance(content, dict):
            msg = f"{place} is not a JSON object"
            raise InputError(msg, f"an array of objects; {FORMS}")
        yield Record(content, place, end, 0)


def _next_value(
    decoder: json.JSONDecoder, text: io.TextIOWrapper, buffer: str, place: str, path: Path
) -> tuple[Any, int, str]:
    """(value, its characters, what follows it), reading on until the value is complete."""
    while True:
        try:
            content, end = decoder.raw_decode(buffer)
        except (ValueError, RecursionError) as error:
            reason = formats.not_json(error)
            at = getattr(error, "pos", 0)
            more = ""
            if "Unterminated" in reason or at >= len(buffer) - 16:
                more = _refilled(text, "", path)
            if not more or len(buffer) > MAX_LINE_BYTES:
                msg = f"{place} is not JSON: {reason}"
                raise InputError(msg, f"an array of objects; {FORMS}") from None
            buffer += more
        else:
            return content, end, buffer[end:]


def _refilled(text: io.TextIOWrapper, buffer: str, path: Path) -> str:
    try:
        return buffer + text.read(_CHUNK)
    except UnicodeDecodeError:
        msg = f"{path} is not UTF-8 text"
        raise InputError(msg, "save the data set as UTF-8") from None


def _table(stream: IO[bytes], path: Path, kind: str) -> Iterator[Record]:
    """Rows of CSV or TSV under their header line."""
    csv.field_size_limit(MAX_LINE_BYTES)
    with _as_text(stream) as text:
        yield from _fields(text, path, kind)


def _fields(text: io.TextIOWrapper, path: Path, kind: str) -> Iterator[Record]:
    try:
        reader = csv.reader(text, delimiter="\t" if kind == "tsv" else ",", strict=False)
        header = next(reader, None)
        if header and kind == "csv" and len(header) == 1 and header[0].count(";"):
            header = header[0].split(";")
            reader = csv.reader(text, delimiter=";")
        if header is None:
            return
        yield from _rows_under(header, reader, path)
    except UnicodeDecodeError:
        msg = f"{path} is not UTF-8 text"
        raise InputError(msg, "save the data set as UTF-8") from None
    except csv.Error as error:
        msg = f"{path} is not CSV: {error}"
        raise InputError(msg, 'a header line, then a row a line, fields quoted with "') from None


def _rows_under(header: list[str], reader: Any, path: Path) -> Iterator[Record]:  # noqa: ANN401
    doubled = sorted({name for name in header if header.count(name) > 1})
    if doubled:
        msg = f"{path} names the column {doubled[0]!r} twice"
        raise InputError(msg, "the first line must name each column once")
    for fields in reader:
        if not fields:
            continue
        place = f"{path} line {reader.line_num}"
        if len(fields) != len(header):
            msg = f"{place} has {len(fields)} fields, and the header names {len(header)}"
            raise InputError(msg, "fields that hold commas or line ends must be quoted")
        size = sum(len(part.encode("utf-8", "replace")) + 1 for part in fields)
        yield Record(dict(zip(header, fields, strict=True)), place, size, 0)


def _columnar(path: Path, kind: str, share: float, extent: Extent) -> Iterator[Record]:
    """Rows of Parquet or Arrow: of every group, or of groups spread over the file."""
    groups = formats.columnar_groups(path, kind)
    extent.total = float(sum(rows for rows, _ in groups))
    per_row = _size(path) / max(extent.total, 1.0)
    draw = random.Random(SEED)  # noqa: S311 - no secret
    chosen = list(range(len(groups)))
    if share < 1.0 and len(groups) > GROUPS:
        part = len(groups) / GROUPS
        chosen = [int(i * part + draw.random() * part) for i in range(GROUPS)]
    for number, index in enumerate(chosen):
        rows, read = groups[index]
        most = rows if share >= 1.0 else min(rows, ROWS_OF_GROUP)
        for at, content in enumerate(read(most)):
            place = f"{path} row group {index + 1} row {at + 1}"
            yield Record(content, place, round(per_row), number)
        extent.read += most
    extent.from_start = extent.read < extent.total and len(groups) == 1
