"""A log file's text and numbers, read with distrust: bounded size, plain files, real numbers."""

from __future__ import annotations

import contextlib
import json
import math
from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError, close_matches, did_you_mean
from autotune.domain.typed.values import MAX_STEPS, shown
from autotune.domain.units import YEAR_S, is_number

if TYPE_CHECKING:
    from pathlib import Path

MAX_LOG_BYTES = 256 * 2**20  # a million lines of a trainer's history
LONGEST_S = 100 * YEAR_S
_MOST = 1e24


def log_text(path: Path) -> str:
    """The text of a plain file of bounded size. Raises InputError for everything else."""
    try:
        if not path.is_file():
            what = "is not a plain file" if path.exists() else f"does not exist{_meant(path)}"
            msg = f"{shown(str(path))} {what}"
            raise InputError(msg, "name a trainer_state.json, a CSV or an observations.jsonl")
        if path.stat().st_size > MAX_LOG_BYTES:
            msg = (
                f"{path} is larger than {MAX_LOG_BYTES // 2**20} MiB, too large for a training log"
            )
            raise InputError(msg, "keep every tenth line of it, or log less often")
        with path.open("rb") as stream:
            content = stream.read(MAX_LOG_BYTES + 1)
    except (OSError, ValueError) as error:
        msg = f"{shown(str(path))} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise InputError(msg) from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        msg = f"{path} is not UTF-8 text: byte {error.start} cannot be decoded"
        raise InputError(msg, "is it a log at all?") from None
    if not text.strip():
        msg = f"{path} is empty"
        raise InputError(msg, "was it copied while it was still being written?")
    return text


def _meant(path: Path) -> str:
    """The end of a message: what lies there under nearly that name."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = [item.name for item in path.parent.iterdir()]
    return did_you_mean(close_matches(path.name, names))


def parsed_json(text: str, where: str) -> Any:  # noqa: ANN401 - whatever the file holds
    """JSON as Python writes it, NaN included. Raises InputError for anything else."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        msg = f"{where} is not JSON, or it was cut short: {error.msg} at {place}"
        raise InputError(msg, "copy the file again, or name an earlier checkpoint's") from None
    except (RecursionError, ValueError):
        msg = f"{where} is nested deeper, or has longer numbers, than any training log"
        raise InputError(msg, "name a trainer_state.json, a CSV or an observations.jsonl") from None


def number(value: object, where: str, *, low: float = 0.0, high: float = LONGEST_S) -> float:
    """A finite number within bounds; never a boolean or text. Raises InputError."""
    if not is_number(value):
        msg = f"{where} is {shown(value)}, and must be a number"
        raise InputError(msg, "the log is damaged, or it is something else")
    try:
        real = float(value)
    except OverflowError:
        real = math.inf
    if not low <= real <= high:  # NaN is in no bounds
        msg = f"{where} is {shown(value)}, and must be a number from {low:g} to {high:g}"
        raise InputError(msg, "the log is damaged, or it is something else")
    return real


def count(value: object, where: str, *, low: int = 0) -> int:
    """A whole number within bounds. Raises InputError."""
    real = number(value, where, low=low, high=MAX_STEPS)
    if real != int(real):
        msg = f"{where} is {shown(value)}, and must be a whole number"
        raise InputError(msg, "the log is damaged, or it is something else")
    return int(real)


def figure_of(value: object) -> float | None:
    """A finite number above zero, also of text; else None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        real = float(value)
    except (ValueError, OverflowError):
        return None
    return real if math.isfinite(real) and 0 < real < _MOST else None
