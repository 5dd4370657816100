"""The rows of a public table: their cells, read with tolerance, and what a cell may hold.

What is wrong with a cell is for `refusals`, what the run was for `described`, what was measured for
`table`.
"""

from __future__ import annotations

import math
import re
from dataclasses import field
from typing import TYPE_CHECKING

from autotune.domain.errors import InputError
from autotune.frozen import dataclass

if TYPE_CHECKING:
    import csv
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MAX_ROWS = 200_000

COLUMNS = (
    "id", "source_repo", "source_path", "source_commit_or_date", "model_id", "n_params", "task",
    "lora_r", "target_modules", "gpu", "n_gpus", "parallelism", "precision", "quant", "optimizer",
    "seq_len", "micro_batch", "grad_accum", "global_batch", "packing", "grad_ckpt", "attn",
    "compile", "other_kernels", "tokens_per_s_per_gpu", "samples_per_s", "step_time_s", "mfu",
    "peak_mem_gb", "peak_mem_kind", "total_time_h", "oom", "notes",
)  # fmt: skip
_DATE = re.compile(r"\b(20\d\d)(?:-(\d\d)(?:-(\d\d))?)?\b")
_POWERS = {"k": 1, "m": 2}
BLANK = {"", "-", "na", "n/a", "nan", "none", "null", "?"}

# What a cell may hold: anything outside is a slip of unit or of column, not a run.
NUMERIC = {
    "n_gpus": (1.0, 1e6), "seq_len": (1.0, 1e7), "micro_batch": (1.0, 1e5),
    "grad_accum": (1.0, 1e6), "global_batch": (1.0, 1e8), "lora_r": (1.0, 1e5),
    "tokens_per_s_per_gpu": (1e-3, 1e8), "samples_per_s": (1e-6, 1e8),
    "step_time_s": (1e-6, 1e6), "peak_mem_gb": (1e-2, 1e4),
}  # fmt: skip
WHOLE = ("n_gpus", "seq_len", "micro_batch", "grad_accum", "global_batch", "lora_r")
# What the task column calls the two methods.
FULL = {
    "full", "pretrain", "sft", "full-finetuning", "full fine-tuning", "full finetuning", "fft",
    "cpt", "continued pretraining", "continued pre-training",
}  # fmt: skip
# The embedding, the head or both train whole beside the adapters: their places in `saveable`.
SAVES = {"lora+embed": (0,), "lora+head": (1,), "lora+embed+head": (0, 1)}
LORA = {"lora", "qlora", "rslora", *SAVES}
FAILED = frozenset({"1", "1.0", "true", "yes", "inferred"})
FINISHED = frozenset({"", "0", "0.0", "false", "no", "-", "na", "n/a", "nan", "none", "null", "?"})
SURPLUS = ""  # the column of cells that the header does not name
UNDATED = (2024, 6)  # the middle of the shipped rows


@dataclass(frozen=True, slots=True)
class Row:
    """Cells by column name, read whole when it is made; empty: the source does not say.

    texts: cells without surrounding blanks, words: folded to lower case. numbers: finite and above
    zero, or None; counts: those that are whole. date: (year, month) of the software. is_oom: the
    source says, or its log shows, that the run ran out of memory. notes: what the collector wrote
    beside the figures.
    """

    cells: Mapping[str, str]
    texts: Mapping[str, str] = field(init=False)
    words: Mapping[str, str] = field(init=False)
    numbers: Mapping[str, float | None] = field(init=False)
    counts: Mapping[str, int | None] = field(init=False)
    id: str = field(init=False)
    notes: str = field(init=False)
    date: tuple[int, int] = field(init=False)
    is_oom: bool = field(init=False)

    def __post_init__(self) -> None:
        """Read the cells."""
        texts = {column: (self.cells.get(column) or "").strip() for column in COLUMNS}
        words = {column: text.casefold() for column, text in texts.items()}
        numbers = {column: _number(column, text) for column, text in words.items()}
        read: dict[str, object] = {
            "texts": texts,
            "words": words,
            "numbers": numbers,
            "counts": {column: _whole(value) for column, value in numbers.items()},
            "id": texts["id"],
            "notes": texts["notes"],
            "date": _date(texts["notes"], texts["source_commit_or_date"]),
            "is_oom": words["oom"] in FAILED,
        }
        for name, value in read.items():
            object.__setattr__(self, name, value)


def rows_of(reader: csv.DictReader[str], path: Path) -> Iterator[Row]:
    """Every row that is not blank, each with an id of its own. Raises InputError for no table."""
    header = [name.strip() for name in reader.fieldnames or []]
    reader.fieldnames = header
    for column in ("id", "model_id", "gpu", "task"):
        if column not in header:
            hint = f"a table of measurements has the columns {', '.join(COLUMNS)}"
            if not header:
                msg = f"{path} is empty"
                raise InputError(msg, hint)
            msg = f'{path} has no column "{column}"; it has {", ".join(header[:12])}'
            raise InputError(msg, hint)
    seen: set[str] = set()
    for number, cells in enumerate(reader, start=1):
        if number > MAX_ROWS:
            msg = f"{path} has more than {MAX_ROWS:,} rows"
            raise InputError(msg)
        named = {key: value for key, value in cells.items() if isinstance(value, str) and key}
        if any(value.strip() for value in named.values()):
            own = named.get("id", "").strip() or f"row {number}"
            named["id"] = f"{own} (row {number})" if own in seen else own
            seen.add(named["id"])
            if any(isinstance(value, list) for value in cells.values()):
                named[SURPLUS] = "1"
            yield Row(named)


def _number(column: str, word: str) -> float | None:
    """A cell as a finite number above zero, or None: "1.0", "1,024", "2e3" and "8k" are read.

    K and M are powers of 1024 of tokens in a row, and of 1000 elsewhere.
    """
    text = word.replace(",", "").replace("_", "")
    if text in BLANK:
        return None
    power = _POWERS.get(text[-1:], 0) if text[:-1][-1:].isdigit() else 0
    unit = 1024.0 if column == "seq_len" else 1000.0
    try:
        value = float(text[:-1] if power else text) * unit**power
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) and value > 0 else None


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and value == int(value) else None


def _date(notes: str, source: str) -> tuple[int, int]:
    """(year, month) of the software: a snapshot named in the notes, else the source's date."""
    snapshot = re.search(r"snapshot (20\d\d)-(\d\d)", notes)
    if snapshot:
        return int(snapshot[1]), int(snapshot[2])
    found = _DATE.search(source)
    return (int(found[1]), int(found[2] or 6)) if found else UNDATED
