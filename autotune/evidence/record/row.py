"""A row of a public table: its cells, read with tolerance, and why a row cannot be compared.

What its run was is for `described`; what was measured for `table`.
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

COLUMNS = (
    "id", "source_repo", "source_path", "source_commit_or_date", "model_id", "n_params", "task",
    "lora_r", "target_modules", "gpu", "n_gpus", "parallelism", "precision", "quant", "optimizer",
    "seq_len", "micro_batch", "grad_accum", "global_batch", "packing", "grad_ckpt", "attn",
    "compile", "other_kernels", "tokens_per_s_per_gpu", "samples_per_s", "step_time_s", "mfu",
    "peak_mem_gb", "peak_mem_kind", "total_time_h", "oom", "notes",
)  # fmt: skip
MAX_ROWS = 200_000
_DATE = re.compile(r"\b(20\d\d)(?:-(\d\d)(?:-(\d\d))?)?\b")
_BLANK = {"", "-", "na", "n/a", "nan", "none", "null", "?"}


@dataclass(frozen=True, slots=True)
class Row:
    """Cells by column name; an empty cell means that the source does not say."""

    cells: Mapping[str, str]

    @property
    def id(self) -> str:
        """The row's name in the table."""
        return self.text("id")

    @property
    def notes(self) -> str:
        """What the collector wrote beside the figures."""
        return self.text("notes")

    def text(self, column: str) -> str:
        """The cell without surrounding blanks."""
        return (self.cells.get(column) or "").strip()

    def word(self, column: str) -> str:
        """The cell folded to lower case."""
        return self.text(column).casefold()

    def number(self, column: str) -> float | None:
        """The cell as a finite number above zero, or None: "1.0", "1,024" and "2e3" are read."""
        text = self.text(column).replace(",", "").replace("_", "")
        if text.casefold() in _BLANK:
            return None
        try:
            value = float(text)
        except ValueError:
            return None
        return value if math.isfinite(value) and value > 0 else None

    def count(self, column: str) -> int | None:
        """The cell as a whole number above zero, or None."""
        value = self.number(column)
        return int(value) if value is not None and value == int(value) else None

    def bad_cells(self) -> list[str]:
        """What is wrong with cells that should hold a positive number, or a known word."""
        found = []
        for column, (least, most) in NUMERIC.items():
            value = self.number(column)
            if value is None:
                if self.text(column).casefold() not in _BLANK:
                    found.append(f"{column} is not a number above zero")
            elif not least <= value <= most:
                found.append(f"{column} is outside {least:g} to {most:g}")
        found += [
            f"{column} is not a whole number"
            for column in WHOLE
            if self.number(column) is not None and self.count(column) is None
        ]
        if self.word("oom") not in FAILED | FINISHED:
            found.append("oom is not 1, 0, inferred or empty")
        if SURPLUS in self.cells:
            found.append("more cells than the header has columns")
        return found

    @property
    def date(self) -> tuple[int, int]:
        """(year, month) of the software: a snapshot named in the notes, else the source's date."""
        snapshot = re.search(r"snapshot (20\d\d)-(\d\d)", self.notes)
        if snapshot:
            return int(snapshot[1]), int(snapshot[2])
        found = _DATE.search(self.text("source_commit_or_date"))
        if found is None:
            return UNDATED
        return int(found[1]), int(found[2] or 6)


# What a cell may hold: anything outside is a slip of unit or of column, not a run.
NUMERIC = {
    "n_gpus": (1.0, 1e6), "seq_len": (1.0, 1e7), "micro_batch": (1.0, 1e5),
    "grad_accum": (1.0, 1e6), "global_batch": (1.0, 1e8), "lora_r": (1.0, 1e5),
    "tokens_per_s_per_gpu": (1e-3, 1e8), "samples_per_s": (1e-6, 1e8),
    "step_time_s": (1e-6, 1e6), "peak_mem_gb": (1e-2, 1e4),
}  # fmt: skip
WHOLE = ("n_gpus", "seq_len", "micro_batch", "grad_accum", "global_batch", "lora_r")
# What the task column calls the two methods.
FULL, LORA = {"full", "pretrain", "sft", "full-finetuning"}, {"lora", "qlora", "rslora"}
FAILED = frozenset({"1", "1.0", "true", "yes", "inferred"})
FINISHED = frozenset({"", "0", "0.0", "false", "no", "-", "na", "n/a", "nan", "none", "null", "?"})
SURPLUS = ""  # the column of cells that the header does not name
UNDATED = (2024, 6)  # the middle of the shipped rows


def read_table(path: Path) -> list[Row]:
    """Every row of a CSV with the columns of the shipped table.

    Raises InputError when the file cannot be read as such a table; single odd cells are left to
    the caller, who skips the row by name.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            return list(_rows(csv.DictReader(stream), path))
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror or error}"
        raise InputError(msg) from None
    except (UnicodeDecodeError, csv.Error) as error:
        msg = f"{path} is not a CSV in UTF-8: {error}"
        raise InputError(msg) from None


def _rows(reader: csv.DictReader[str], path: Path) -> Iterator[Row]:
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


# Words of the notes that take a row out of a comparison of memory and speed, and why.
FLAGS = (
    ("DOUBTFUL", "the source or the collector doubts the figures"),
    ("FAILED RUN", "the run failed for an unknown cause"),
    ("FORWARD PASS ONLY", "forward pass only"),
    ("CAPACITY BOUNDARY", "the largest context that fits, not a reading"),
    ("CHECKPOINT SAVE TIME", "a checkpoint save, not training"),
    ("PADDING-FREE RATIO", "a ratio of two runs, not a reading"),
)
ENCODERS = ("bert", "roberta", "electra", "deberta", "distilbert", "albert", "vit-", "whisper")
SEQ2SEQ = ("t5", "mt0", "t0_", "bart", "pegasus", "nllb", "opus-mt", "m2m100")
RAN = ("tokens_per_s_per_gpu", "samples_per_s", "step_time_s")
MEASURED = ("tokens_per_s_per_gpu", "samples_per_s", "step_time_s", "peak_mem_gb")


def is_oom(row: Row) -> bool:
    """Whether the source says, or its log shows, that the run ran out of memory."""
    return row.word("oom") in FAILED


def refusal_of(row: Row) -> str:
    """The reason to skip a row that its own cells give; empty when there is none."""
    for word, reason in FLAGS:
        if word in row.notes:
            return reason
    bad = row.bad_cells()
    if bad:
        return bad[0]
    if is_oom(row) and any(row.number(column) is not None for column in RAN):
        return "says that it ran out of memory and how fast it ran"
    return _other_model_or_method(row) or _other_stack(row) or _not_stated(row)


def _other_model_or_method(row: Row) -> str:
    name = row.word("model_id").rsplit("/", 1)[-1]
    if name.startswith(SEQ2SEQ) or any(word in name for word in ENCODERS):
        return "an encoder or a sequence-to-sequence model"
    if row.word("task") not in FULL | LORA:
        return f"method {row.text('task') or 'not stated'}"
    variants = ("dora", "lora-fa", "lorafa", "galore", "loftq", "lisa")
    if any(word in row.word("optimizer") or word in row.notes.casefold() for word in variants):
        return "a LoRA or optimizer variant that is not modelled"
    return ""


def _other_stack(row: Row) -> str:
    kernels = row.word("other_kernels")
    if "transformer-engine" in kernels or "megatron" in kernels:
        return "Megatron with transformer-engine kernels"
    if "moe-" in kernels:
        return "expert kernels other than the model's own"
    if "offload" in row.notes.casefold() and "offload False" not in row.notes:
        return "weights or states offloaded to the host"
    if row.word("grad_ckpt") == "selective":
        return "selective activation checkpointing"
    return ""


def _not_stated(row: Row) -> str:
    if not row.text("model_id"):
        return "model not stated"
    gpu = row.word("gpu")
    if not gpu or gpu.startswith("any"):
        return "GPU not stated"
    if row.count("n_gpus") is None:
        return "number of GPUs not stated"
    if row.word("grad_ckpt") in {"", "unknown"}:
        return "activation checkpointing not stated"
    if not is_oom(row) and all(row.number(column) is None for column in MEASURED):
        return "nothing measured that can be compared"
    return ""
