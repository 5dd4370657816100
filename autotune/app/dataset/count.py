"""Rows of a data set by their length in tokens: counted, from a sample, or estimated.

What is counted is what trainers train on: text with the tokenizer's own marks and an end mark, a
chat (also a question and its answer) in the model's chat template. Where no template is known, a
message counts its role and two marks around it. Counts of larger data sets are kept under the home
folder; one belongs to the files' sizes, times of change, first and last bytes, to the tokenizer and
to the column. What is kept holds lengths and no text.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections import Counter, defaultdict
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.app.dataset import TOLD
from autotune.app.dataset.columns import FORMS, Row, row_of
from autotune.app.dataset.files import WHOLE_BYTES, Reading
from autotune.app.dataset.folder import data_files
from autotune.app.dataset.tokenizer import Loaded, TemplateRefusesError, Tokenizer, tokenizer_for
from autotune.catalog.files import home_dir, read_regular, write_whole
from autotune.catalog.text_tokens import estimate_tokens
from autotune.domain.answer.dataset import Histogram
from autotune.domain.errors import InputError
from autotune.domain.paths import near
from autotune.domain.typed.values import MAX_LENGTH
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.app.dataset.files import Record
    from autotune.domain.model import Model

MARKS_PER_MESSAGE = 2  # one special token before a message, one after, as in ChatML
ROWS_AT_ONCE, BYTES_AT_ONCE = 1024, 16_000_000
# How far the rows behind the first ones may differ from them, where nothing else was read: an
# assumption; files are often in the order of their sources.
FROM_START_LOG_SD = 0.2
KEPT_BYTES = 1_000_000  # of data and tokenizer, from which on a count is worth keeping
_NO_ROWS = "one JSON object a line, an array of objects, CSV with a header line, or Parquet"


@dataclass(frozen=True, slots=True)
class Count:
    """The lengths of a data set, what counted them, and what to know of that."""

    histogram: Histogram
    tokenizer: Tokenizer
    path: Path  # of the data set, or of what the hub's cache holds of it
    files: tuple[Path, ...]
    template: str = ""  # how chats and answered questions were put together, if there were any


@dataclass(slots=True)
class _Tally:
    """What is summed up while rows are read."""

    counts: Counter[int] = field(default_factory=Counter)
    bytes: int = 0
    by_stretch: dict[int, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    log_sd_tokens: float = 0.0  # sum over batches of tokens x log_sd
    chats: int = 0
    pairs: int = 0
    refused: int = 0  # chats that the template does not take

    def add(self, record: Record, tokens: int) -> None:
        """One row of so many tokens."""
        self.counts[tokens] += 1
        self.bytes += record.size
        stretch = self.by_stretch[record.stretch]
        stretch[0] += 1
        stretch[1] += tokens


def count_dataset(
    path: Path,
    tokenizer: str | None = None,
    base_dir: Path | None = None,
    *,
    model: Model | None = None,
    column: str | None = None,
    most_bytes: int = WHOLE_BYTES,
) -> Count:
    """Count the rows of a file, a folder of files, or a data set in the hub's cache.

    Args:
        path: The data set; `base_dir` is what a tokenizer's relative path starts from.
        tokenizer: Stated (see `tokenizer_for`), or None for the model's own or an estimate.
        base_dir: The folder of the job file.
        model: The model that trains.
        column: What to count, where the columns have other names than trainers read.
        most_bytes: [bytes] A larger data set is sampled.

    Raises:
        InputError: A file or row cannot be read; it is named.
    """
    files = data_files(path)
    counter = tokenizer_for(tokenizer, base_dir or Path(), model)
    key = key_of(files, counter.identity, column, most_bytes)
    pays = len(counter.content) + sum(file.stat().st_size for file in files) >= KEPT_BYTES
    kept = kept_count(key) if pays else None
    if kept is None:
        kept = _counted(files, path, counter, column, most_bytes)
        if pays:
            keep_count(key, *kept)
    histogram, template = kept
    place = path if path.exists() else Path(os.path.commonpath(files))
    return Count(replace(histogram, source=str(path)), counter, place, files, template)


def rows_of(path: Path) -> int:
    """[rows] of a data set, whatever is in them; an estimate where it is sampled.

    Raises InputError for what cannot be read.
    """
    reading = Reading(data_files(path))
    for _ in reading.records():
        pass
    return reading.all_rows


def _counted(
    files: tuple[Path, ...], path: Path, tokenizer: Tokenizer, column: str | None, most_bytes: int
) -> tuple[Histogram, str]:
    reading, tally, loaded = Reading(files, most_bytes), _Tally(), tokenizer.loaded()
    for records in _batches(reading):
        rows = [row_of(record.content, record.place, column) for record in records]
        for record, tokens in zip(records, _lengths(rows, tokenizer, loaded, tally), strict=True):
            if not 1 <= tokens <= MAX_LENGTH:
                what = "no tokens" if tokens < 1 else f"{tokens:,} tokens"
                msg = f"{record.place}: the row has {what}"
                raise InputError(msg, "remove empty rows; they train nothing, and split huge ones")
            tally.add(record, tokens)
        TOLD.get()(f"counting {near(path)}: {tally.counts.total():,} rows so far")
    if not tally.counts:
        msg = f"{path} holds no rows"
        raise InputError(msg, f"{_NO_ROWS}; {FORMS}")
    return _histogram(tally, reading, path, tokenizer), _template_words(tally, loaded)


def _batches(reading: Reading) -> Iterator[list[Record]]:
    """Records, a thousand or so at a time."""
    records: list[Record] = []
    size = 0
    for record in reading.records():
        records.append(record)
        size += record.size
        if len(records) == ROWS_AT_ONCE or size > BYTES_AT_ONCE:
            yield records
            records, size = [], 0
    if records:
        yield records


def _lengths(rows: list[Row], tokenizer: Tokenizer, loaded: Loaded, tally: _Tally) -> list[int]:
    """[tokens] of rows, by the tokenizer or by the estimate."""
    tally.pairs += sum(1 for row in rows if row.chat and row.text is not None)
    tally.chats += sum(1 for row in rows if row.chat and row.text is None)
    if tokenizer.vocabulary is not None:
        found = estimate_tokens([row.content for row in rows], tokenizer.vocabulary)
        tally.log_sd_tokens += (found.log_sd + _tools_share(rows)) * sum(found.tokens)
        return [
            row.tokens or _marks(row) + math.ceil(n)
            for row, n in zip(rows, found.tokens, strict=True)
        ]
    if loaded.encoder is None:
        return [row.tokens or len(row.content.encode()) + _plain_marks(row) for row in rows]
    return _encoded(rows, loaded, tally)


def _tools_share(rows: list[Row]) -> float:
    """Of the text, what declares tools: some templates show it, and others leave it out."""
    declared = sum(len(row.tools) for row in rows)
    return declared / max(sum(len(row.content) for row in rows), 1)


def _plain_marks(row: Row) -> int:
    return MARKS_PER_MESSAGE * len(row.chat) if row.text is None else 0


def _marks(row: Row) -> int:
    """[tokens] beside the text of a row that nobody tokenised: marks of messages, or one end."""
    if not row.content:
        return 0
    return MARKS_PER_MESSAGE * len(row.chat) or 1


def _encoded(rows: list[Row], loaded: Loaded, tally: _Tally) -> list[int]:
    """[tokens] of rows by an encoder: chats in the template, and no marks beside it."""
    rendered = [_rendered(row, loaded, tally) for row in rows]
    plain = [
        row.content
        for row, text in zip(rows, rendered, strict=True)
        if text is None and row.content
    ]
    filled = [text for text in rendered if text is not None]
    encode = getattr(loaded.encoder, "encode_batch_fast", loaded.encoder.encode_batch)
    of_plain = iter(encode(plain) if plain else [])
    of_filled = iter(encode(filled, add_special_tokens=False) if filled else [])
    end = 1 if loaded.adds_end else 0
    found = []
    for row, text in zip(rows, rendered, strict=True):
        if row.tokens:
            found.append(row.tokens)
        elif text is not None:
            found.append(len(next(of_filled)))
        elif row.content:
            found.append(len(next(of_plain)) + (_plain_marks(row) or end))
        else:
            found.append(0)
    return found


def _rendered(row: Row, loaded: Loaded, tally: _Tally) -> str | None:
    """A chat in the model's template; None for other rows, and where the template refuses it."""
    if not row.chat or loaded.template is None or not row.content:
        return None
    try:
        return loaded.template.text_of(row.chat, row.tools)
    except TemplateRefusesError:
        tally.refused += 1
        return None


def _histogram(tally: _Tally, reading: Reading, path: Path, tokenizer: Tokenizer) -> Histogram:
    tokens = sum(length * rows for length, rows in tally.counts.items())
    log_sd = tally.log_sd_tokens / max(tokens, 1)
    if reading.sampled:
        log_sd = math.hypot(log_sd, _sampling_log_sd(tally, reading))
    return Histogram(
        tally.counts,
        tally.bytes / tally.counts.total(),
        str(path),
        "estimated" if tokenizer.estimates else "sampled" if reading.sampled else "counted",
        log_sd,
        reading.all_rows if reading.sampled else 0,
    )


def _sampling_log_sd(tally: _Tally, reading: Reading) -> float:
    """Relative standard error of the tokens, from how the stretches differ among themselves.

    Formula: cluster sampling: the standard deviation of the stretches' tokens (and of their tokens
    a row, the larger) over their mean and the root of their number.
    """
    if reading.from_start:
        return FROM_START_LOG_SD
    found = [(tokens, tokens / rows) for rows, tokens in tally.by_stretch.values() if rows]
    if len(found) < 2:  # noqa: PLR2004 - one stretch does not vary
        return FROM_START_LOG_SD
    return max(_relative_error([pair[0] for pair in found]),
               _relative_error([pair[1] for pair in found]))  # fmt: skip


def _relative_error(values: list[float]) -> float:
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return math.sqrt(variance / len(values)) / mean


def _template_words(tally: _Tally, loaded: Loaded) -> str:
    """How chats and answered questions were put together; empty where there were none."""
    if not tally.chats and not tally.pairs:
        return ""
    what = "chats" if tally.chats else "questions and answers"
    if loaded.template is None:
        if tally.chats:
            return f"chats count their roles and {MARKS_PER_MESSAGE} marks a message: no template"
        return "questions and answers are joined; a prompt template adds 10 to 50 tokens a row"
    words = f"{what} count in the model's chat template"
    if tally.refused:
        words += f", which refuses {tally.refused:,} of them: those count their roles and marks"
    if tally.pairs:
        words += "; another prompt template, as Alpaca's, adds up to about 50 tokens a row"
    return words


VERSION = 1  # of how rows are counted; another number makes kept counts void
_ENDS = 65_536


def kept_count(key: str | None) -> tuple[Histogram, str] | None:
    """An earlier count of the same rows by the same tokenizer, and its words on the template."""
    if key is None:
        return None
    try:
        content = json.loads(read_regular(_path(key)))
        counts = Counter({int(length): int(rows) for length, rows in content["counts"]})
        found = Histogram(
            counts, float(content["row_bytes"]), str(content["source"]), content["basis"],
            float(content["log_sd"]), int(content["all_rows"]),
        )  # fmt: skip
        return found, str(content["template"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep_count(key: str | None, found: Histogram, template: str) -> None:
    """Keep a count; a home that cannot be written keeps none."""
    if key is None:
        return
    content = {
        "counts": sorted(found.counts.items()), "row_bytes": found.row_bytes,
        "source": found.source, "basis": found.basis, "log_sd": found.log_sd,
        "all_rows": found.all_rows, "template": template,
    }  # fmt: skip
    path = _path(key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(content))


def _path(key: str) -> Path:
    return home_dir() / "datasets" / f"{key}.json"


def key_of(
    files: tuple[Path, ...], identity: str, column: str | None, most_bytes: int
) -> str | None:
    """What a count belongs to; None for files that cannot be read, which their reader will say."""
    made_of: list[object] = [VERSION, identity, column, most_bytes]
    digest = hashlib.blake2b(digest_size=16)
    try:
        for path in files:
            stat = path.stat()
            made_of += [stat.st_size, stat.st_mtime_ns]
            with path.open("rb") as stream:
                digest.update(stream.read(_ENDS))
                stream.seek(max(stat.st_size - _ENDS, 0))
                digest.update(stream.read(_ENDS))
    except OSError:
        return None
    digest.update(json.dumps(made_of).encode())
    return digest.hexdigest()
