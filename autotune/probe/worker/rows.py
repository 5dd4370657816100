"""The rows of a probe: the job's own data set, or rows of its lengths; the longest come first.

Every probe of a job sees the same rows in the same order, so that differences between
configurations are paired.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch

SCAN_BYTES = 64_000_000  # of a data set that are read to choose rows from
SAMPLE_ROWS = 4096
OFFSETS, STRIDE = 4096, 1571  # synthetic rows start at different places: the two share no factor
IGNORED = -100


class BadData(Exception):  # noqa: N818 - the name is the condition
    """A row that no trainer could read: every configuration would fail alike."""


class Source:
    """Rows by number, tokenised when asked for, as the exported training script does it."""

    def __init__(self, request: dict[str, Any], vocab_size: int) -> None:
        """Choose rows: `typical` in a fixed random order, `longest` by size."""
        self.max_length: int = request["max_length"]
        self.vocab_size = vocab_size
        data = request.get("dataset")
        self.texts: list[Any] = []
        self.drawn: list[int] = []  # synthetic rows are cut from it: drawing each would take longer
        self.lines: list[int] = []  # of the file, by row: blank lines are no rows
        self.encode = None
        if data:
            self.encode = _encoder(data["tokenizer"], vocab_size)
            self.lines, self.texts = _read(Path(data["path"]))
            self.sizes = [len(item) for item in self.texts]
        else:
            self.sizes = [int(n) for n in request["lengths"]]
            pool = random.Random(request["seed"])  # noqa: S311 - no secret
            self.drawn = pool.choices(range(vocab_size), k=OFFSETS + self.max_length)
        order = list(range(len(self.sizes)))
        random.Random(request["seed"]).shuffle(order)  # noqa: S311 - no secret
        self.typical = order[:SAMPLE_ROWS] if data else list(range(len(self.sizes)))
        self.longest = sorted(order, key=lambda i: -self.sizes[i])[:SAMPLE_ROWS]
        self.stated_longest: int = min(request["longest"], self.max_length)

    def ids(self, row: int, *, stretch: bool = False) -> list[int]:
        """Token numbers of a row; `stretch` draws a synthetic row at the job's longest length."""
        if self.encode is not None:
            found = self.encode(self.texts[row])[: self.max_length]
            if not found:
                msg = f"line {self.lines[row]} of the data set has no tokens"
                raise BadData(msg)
            if max(found) >= self.vocab_size:
                msg = (
                    f"line {self.lines[row]} of the data set holds token {max(found)}, and the "
                    f"model has {self.vocab_size}"
                )
                raise BadData(msg)
            return found
        count = self.stated_longest if stretch else min(self.sizes[row], self.max_length)
        start = row * STRIDE % OFFSETS
        return self.drawn[start : start + count]


class Rows(torch.utils.data.Dataset):
    """`longest` rows at the job's longest length, then typical ones, over and over."""

    def __init__(self, source: Source, longest: int, total: int, chunk: int = 0) -> None:
        """`chunk` > 0 sorts typical rows by length inside chunks, as length grouping does."""
        self.source, self.first, self.total = source, longest, total
        self.order = source.typical
        if chunk:
            parts = [self.order[i : i + chunk] for i in range(0, len(self.order), chunk)]
            self.order = [i for part in parts for i in sorted(part, key=lambda r: -source.sizes[r])]

    def __len__(self) -> int:
        """Rows that the Trainer may ask for."""
        return self.total

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        """A row with its labels."""
        if index < self.first:
            row = self.source.longest[index % len(self.source.longest)]
            ids = self.source.ids(row, stretch=True)
        else:
            ids = self.source.ids(self.order[(index - self.first) % len(self.order)])
        return {"input_ids": ids, "labels": ids}


class Pad:
    """Pad a batch on the right, to its longest row or always to the maximum length."""

    def __init__(self, max_length: int, padding: str) -> None:
        """padding: longest or max_length."""
        self.max_length, self.padding = max_length, padding

    def __call__(self, rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        """Rows as tensors."""
        longest = max(len(row["input_ids"]) for row in rows)
        width = self.max_length if self.padding == "max_length" else longest
        batch: dict[str, list[list[int]]] = {"input_ids": [], "attention_mask": [], "labels": []}
        for row in rows:
            ids, missing = row["input_ids"], width - len(row["input_ids"])
            batch["input_ids"].append(ids + [0] * missing)
            batch["attention_mask"].append([1] * len(ids) + [0] * missing)
            batch["labels"].append(row["labels"] + [IGNORED] * missing)
        return {name: torch.tensor(values) for name, values in batch.items()}


def _read(path: Path) -> tuple[list[int], list[Any]]:
    """Line numbers and texts, or lists of token numbers, of the first rows of a JSONL file."""
    numbers: list[int] = []
    found: list[Any] = []
    seen = 0
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            seen += len(line)
            if line.strip():
                found.append(_content(line, f"{path} line {number}"))
                numbers.append(number)
            if seen > SCAN_BYTES:
                break
    if not found:
        msg = f"{path} holds no rows"
        raise BadData(msg)
    return numbers, found


def _content(line: bytes, place: str) -> Any:  # noqa: ANN401 - text or token numbers
    try:
        row = json.loads(line)
    except ValueError as error:
        msg = f"{place} is not JSON: {error}"
        raise BadData(msg) from None
    if not isinstance(row, dict):
        msg = f"{place} is not a JSON object"
        raise BadData(msg)
    if "input_ids" in row:
        ids = row["input_ids"]
        if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
            msg = f"{place}: input_ids is no list of token numbers"
            raise BadData(msg)
        return ids
    text = _text(row)
    if not text:
        msg = (
            f"{place} has no text: a row needs input_ids, text, messages, or prompt and completion"
        )
        raise BadData(msg)
    return text


def _text(row: dict[str, Any]) -> str:
    chat = row.get("messages") or row.get("conversations")
    if isinstance(chat, list) and all(isinstance(m, dict) for m in chat) and chat:
        turns = (
            f"{m.get('role', m.get('from'))}\n{m.get('content', m.get('value'))}" for m in chat
        )
        return "\n".join(turns)
    if row.get("prompt") and row.get("completion") and not row.get("text"):
        return f"{row['prompt']}{row['completion']}"
    names = ("text", "prompt", "completion", "instruction", "question", "query", "input", "context",
             "output", "answer", "response")  # fmt: skip
    return "\n".join(str(row[name]) for name in names if row.get(name))


def _encoder(name: str, vocab_size: int) -> Any:  # noqa: ANN401 - a function of a row
    if name == "bytes":
        return lambda row: [b % vocab_size for b in row.encode()] if isinstance(row, str) else row
    from tokenizers import Tokenizer

    path = Path(name)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json" if path.is_dir() else path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda row: (
        [i % vocab_size for i in tokenizer.encode(row).ids] if isinstance(row, str) else row
    )
