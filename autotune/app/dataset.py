"""`autotune dataset FILE`: the tokens of every row of a JSONL file, and what they imply.

A row is one JSON object a line, in one of the forms that trainers read: `input_ids`; `text`;
`prompt` and `completion`; `instruction`, `input` and `output`; `messages` (or `conversations`).
Fields of one row are joined by a line feed; a message counts its role, its content and two marks
around it, since the chat template is the trainer's. The file is read line by line, never whole.

Does not cover: compressed files, Parquet, and the template that a trainer may add to each row.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.app.lengths import KIND, SCHEMA_VERSION, Histogram, from_counts
from autotune.catalog.extras import install_command
from autotune.domain.errors import InputError
from autotune.domain.job import BYTES
from autotune.domain.paths import stated_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from autotune.domain.job import Lengths

MARKS_PER_MESSAGE = 2  # one special token before a message, one after, as in ChatML
MAX_LINE_BYTES = 50_000_000
FORMS = "a row needs input_ids, text, prompt and completion, instruction and output, or messages"
WASTE_BATCH = 8  # rows padded together when the caller states no micro-batch
ROWS_AT_ONCE, BYTES_AT_ONCE = 1024, 16_000_000
PROBABILITIES = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class Row:
    """What there is to count of one row: its text, and tokens that are known already."""

    text: str | None
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class DatasetReport:
    """What the lengths of a data set say. Shares are fractions; lengths are tokens a row."""

    path: str
    tokenizer: str
    max_length: int  # rows were cut to it
    rows: int
    tokens: int  # after truncation
    quantiles: tuple[tuple[float, float], ...]  # (probability, tokens), after truncation
    mean: float
    p50: float
    p95: float
    maximum: int
    longest_row: int  # before truncation
    truncated_rows: int
    truncated_tokens: int
    batch_size: int  # rows padded together in the two figures that follow
    padding_waste: float  # share of a batch's tokens that are padding, padded to its longest row
    padding_waste_max_length: float  # the same, padded to max_length
    packing_gain: float  # tokens saved by packing into max_length, share of those padded
    grouping_gain: float  # tokens saved by batching rows of similar length, share of those padded
    lengths: Lengths
    histogram: Histogram


def dataset_histogram(
    path: Path | str,
    tokenizer: str = BYTES,
    max_length: int | None = None,
    *,
    batch_size: int = WASTE_BATCH,
    base_dir: Path | None = None,
) -> DatasetReport:
    """Count the tokens of every row of a JSONL file. Raises InputError naming file and line.

    `tokenizer` is `bytes`, a `tokenizer.json`, or a folder that holds one. `max_length` None: the
    longest row.
    """
    if batch_size < 1 or (max_length is not None and max_length < 1):
        msg = f"batch size {batch_size} and max length {max_length} must be at least 1"
        raise InputError(msg)
    histogram = count_rows(Path(path), tokenizer, base_dir)
    limit = max_length or histogram.longest
    lengths = from_counts(histogram, limit)
    raw = np.array(sorted(histogram.counts), np.int64)
    rows = np.array([histogram.counts[int(value)] for value in raw], np.int64)
    cut = np.minimum(raw, limit)
    tokens = int(cut @ rows)
    padded_tokens = _padded_tokens(cut, rows, batch_size)
    packed_tokens = math.ceil(tokens / limit) * limit
    grid = np.linspace(0.0, 1.0, len(lengths.quantiles))
    table = tuple((p, float(np.interp(p, grid, lengths.quantiles))) for p in PROBABILITIES)
    at = dict(table)
    return DatasetReport(
        path=str(path), tokenizer=tokenizer, max_length=limit,
        rows=histogram.rows, tokens=tokens, quantiles=table, mean=lengths.mean,
        p50=at[0.5], p95=at[0.95], maximum=lengths.maximum, longest_row=histogram.longest,
        truncated_rows=lengths.truncated_rows, truncated_tokens=int(raw @ rows) - tokens,
        batch_size=batch_size,
        padding_waste=1 - tokens / padded_tokens,
        padding_waste_max_length=1 - tokens / (histogram.rows * limit),
        packing_gain=max(0.0, 1 - packed_tokens / padded_tokens),
        grouping_gain=max(0.0, 1 - _grouped_tokens(cut, rows, batch_size) / padded_tokens),
        lengths=lengths, histogram=histogram,
    )  # fmt: skip


def _padded_tokens(lengths: NDArray[np.int64], rows: NDArray[np.int64], batch_size: int) -> float:
    """[tokens] of an epoch when random rows are padded to the longest of their batch; expected.

    Formula: rows x E[longest of b], where P(longest <= x) = P(length <= x)^b.
    Source: derived; exact for draws with replacement, so nothing is sampled.
    """
    below = np.cumsum(rows) / rows.sum()
    of_longest = np.diff(np.concatenate([[0.0], below**batch_size]))
    return float(rows.sum()) * float(lengths @ of_longest)


def _grouped_tokens(lengths: NDArray[np.int64], rows: NDArray[np.int64], batch_size: int) -> float:
    """[tokens] of an epoch when rows are batched in order of length: the least padding there is."""
    last = np.cumsum(rows)
    total = int(last[-1])
    ends = np.arange(batch_size, total + batch_size, batch_size)
    sizes = np.minimum(ends, total) - (ends - batch_size)
    longest = lengths[np.searchsorted(last, np.minimum(ends, total))]
    return float(longest @ sizes)


def count_rows(path: Path, tokenizer: str = BYTES, base_dir: Path | None = None) -> Histogram:
    """Rows of a JSONL file by their length in tokens, before truncation."""
    count = _counter(tokenizer, base_dir)
    counts: Counter[int] = Counter()
    total_bytes = 0
    for batch, places, size in _batches(path):
        total_bytes += size
        for length, place in zip(count(batch), places, strict=True):
            if length < 1:
                msg = f"{place}: the row has no tokens"
                raise InputError(msg, "remove empty rows; they train nothing")
            counts[length] += 1
    if not counts:
        msg = f"{path} holds no rows"
        raise InputError(msg, f"one JSON object a line; {FORMS}")
    return Histogram(counts, total_bytes / counts.total(), str(path))


def _batches(path: Path) -> Iterator[tuple[list[Row], list[str], int]]:
    """Rows, where each stands, and their bytes; a thousand or so at a time."""
    rows: list[Row] = []
    places: list[str] = []
    size = 0
    for line, place in _lines(path):
        rows.append(_row(line, place))
        places.append(place)
        size += len(line)
        if len(rows) == ROWS_AT_ONCE or size > BYTES_AT_ONCE:
            yield rows, places, size
            rows, places, size = [], [], 0
    if rows:
        yield rows, places, size


def _lines(path: Path) -> Iterator[tuple[bytes, str]]:
    """Lines and where they stand. An empty line is an error unless only empty lines follow."""
    if path.exists() and not path.is_file():
        msg = f"the data set {path} is no regular file"
        raise InputError(msg, "data.dataset is a JSONL file, relative to the job file")
    try:
        with path.open("rb") as stream:
            blank: str | None = None
            number = 0
            while line := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                place = f"{path} line {number}"
                if len(line) > MAX_LINE_BYTES:
                    msg = f"{place} is longer than {MAX_LINE_BYTES // 10**6} MB"
                    raise InputError(msg, f"one JSON object a line; {FORMS}")
                if not line.strip():
                    blank = blank or place
                    continue
                if blank:
                    msg = f"{blank} is empty, and every line must be a row"
                    raise InputError(msg, "remove the empty line")
                yield line, place
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        msg = f"the data set {path} cannot be read: {reason}"
        raise InputError(msg, "data.dataset is a JSONL file, relative to the job file") from None


def _row(line: bytes, place: str) -> Row:
    """What there is to count of one row."""
    try:
        content = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        msg = f"{place} is not UTF-8 text"
        raise InputError(msg, "save the data set as UTF-8") from None
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", "nested too deeply or a number too long")
        msg = f"{place} is not JSON: {reason}"
        raise InputError(msg, f"one JSON object a line; {FORMS}") from None
    if not isinstance(content, dict):
        msg = f"{place} is not a JSON object"
        raise InputError(msg, f"one JSON object a line; {FORMS}")
    return _countable(content, place)


def _countable(content: dict[str, Any], place: str) -> Row:
    if "input_ids" in content:
        tokens = content["input_ids"]
        if not isinstance(tokens, list):
            msg = f"{place}: input_ids must be a list of token numbers"
            raise InputError(msg)
        return Row(None, len(tokens))
    chat = content.get("messages", content.get("conversations"))
    if chat is not None:
        return _chat(chat, place)
    if "text" in content:
        return _joined([content["text"]], place)
    if "prompt" in content and "completion" in content:
        parts = [content["prompt"], content["completion"]]
        if all(isinstance(part, list) for part in parts):
            return _chat(parts[0] + parts[1], place)
        return _joined(parts, place)
    if "instruction" in content and "output" in content:
        fields = ("instruction", "input", "output")
        return _joined([content[name] for name in fields if content.get(name)], place)
    msg = f"{place} has the keys {', '.join(map(repr, list(content)[:6])) or 'none'}: {FORMS}"
    raise InputError(msg)


def _joined(parts: list[Any], place: str, marks: int = 0) -> Row:
    if not all(isinstance(part, str) for part in parts):
        msg = f"{place}: the row's fields must be text"
        raise InputError(msg, FORMS)
    text = "\n".join(parts)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        msg = f"{place}: the text holds half of a surrogate pair, which no encoding has"
        raise InputError(msg, "repair the escape sequence (\\ud800 to \\udfff)") from None
    return Row(text, marks)


def _chat(messages: object, place: str) -> Row:
    """Messages of role and content (or ShareGPT's from and value); of parts, the text counts."""
    parts: list[str] = []
    if not isinstance(messages, list) or not all(isinstance(item, dict) for item in messages):
        msg = f"{place}: messages must be a list of objects with role and content"
        raise InputError(msg)
    for message in messages:
        content = message.get("content", message.get("value")) or ""
        if isinstance(content, list):
            content = "\n".join(str(p.get("text", "")) for p in content if isinstance(p, dict))
        parts += [str(message.get("role", message.get("from", ""))), content]
    return _joined(parts, place, MARKS_PER_MESSAGE * len(messages))


def _counter(tokenizer: str, base_dir: Path | None) -> Callable[[list[Row]], list[int]]:
    """[tokens] of rows, by the tokenizer of that name or path."""
    if tokenizer == BYTES:
        return lambda rows: [row.tokens + len((row.text or "").encode()) for row in rows]
    encoder = _encoder(stated_in(base_dir or ".", tokenizer))

    def count(rows: list[Row]) -> list[int]:
        encodings = iter(encoder.encode_batch([row.text for row in rows if row.text]))
        return [row.tokens + (len(next(encodings)) if row.text else 0) for row in rows]

    return count


def _encoder(path: Path) -> Any:  # noqa: ANN401 - tokenizers is not typed
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        msg = f"the tokenizer {path} is neither `bytes` nor a tokenizer.json nor a folder with one"
        raise InputError(msg, "`bytes` counts one token a byte and needs no file")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        msg = f"counting tokens with {file} needs the package tokenizers, which is not installed"
        raise InputError(msg, install_command("dataset")) from None
    try:
        encoder = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - the package raises plain Exception
        reason = str(error).splitlines()[0][:200] if str(error) else "not a tokenizer"
        msg = f"{file} is no tokenizer that can be read: {reason}"
        raise InputError(msg) from None
    encoder.no_truncation()
    encoder.no_padding()
    return encoder


def write_histogram(report: DatasetReport, path: Path) -> None:
    """Write the lengths as JSON that `lengths: {histogram: FILE}` reads.

    Keys: schema_version (1), kind ("autotune.lengths"), source and tokenizer (text), rows,
    row_bytes (mean bytes of a row in its file), lengths (tokens before truncation, rising) and
    counts (rows of each length). Raises InputError when the file cannot be written.
    """
    counts = dict(sorted(report.histogram.counts.items()))
    content = {
        "schema_version": SCHEMA_VERSION,
        "kind": KIND,
        "source": Path(report.path).name,
        "tokenizer": report.tokenizer,
        "rows": report.rows,
        "row_bytes": report.histogram.row_bytes,
        "lengths": list(counts),
        "counts": list(counts.values()),
    }
    try:
        path.write_text(json.dumps(content) + "\n", encoding="utf-8")
    except OSError as error:
        msg = f"{path} cannot be written: {error.strerror}"
        raise InputError(msg) from None
