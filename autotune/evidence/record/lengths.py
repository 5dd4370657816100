"""How long the rows of a measured run were: stated, derived from its own rates, or only capped.

A cap is no length. Where rows are not packed and nothing says how long they were, seconds and bytes
at the cap are a bound on what was measured, and no prediction of it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autotune.cost.row_lengths import (
    ASSUMED_SPREAD,
    REACHED_MEANS,
    constant,
    lengths_below,
    spread_lengths,
)
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.domain.job import Lengths
    from autotune.evidence.record.row import Row


@dataclass(frozen=True, slots=True)
class RowLengths:
    """What is known of the lengths of a run's rows."""

    lengths: Lengths
    mean_known: bool = True  # the time of a step can be compared
    longest_known: bool = True  # the peak of memory can be compared
    assumed: tuple[str, ...] = ()
    capped: bool = True  # what is not known is below the lengths; else above: they are a mean
    apart: bool = False  # packed, and each row attends to itself alone


_MEAN = (
    re.compile(r"mean about (?P<low>\d+(?:\.\d+)?) tokens"),
    re.compile(r"mean (?:dataset |sample )?length (?:of )?(?P<low>\d+(?:\.\d+)?)"),
    re.compile(r"(?P<padded>avg tokens/sample incl\. padding) = (?P<low>\d+(?:\.\d+)?)"),
    re.compile(r"avg tokens/sample = (?P<low>\d+(?:\.\d+)?)"),
    re.compile(
        r"(?:about|gives) (?P<low>\d+)(?:-(?P<high>\d+))? (?P<padded>padded )?tokens per row"
    ),
    re.compile(r"(?P<low>\d+) per row, cap"),
)


@dataclass(frozen=True, slots=True)
class StatedMean:
    """[tokens] mean of a row, and whether the padding of its batch is counted in it."""

    tokens: float
    padded: bool


def mean_of(notes: str) -> StatedMean | None:
    """The mean length of a row that the notes state; a range by its middle."""
    for pattern in _MEAN:
        found = pattern.search(notes)
        if found:
            parts = found.groupdict()
            low = float(parts["low"])
            high = float(parts.get("high") or low)
            padded = bool(parts.get("padded")) or "padding-free" in notes
            return StatedMean((low + high) / 2.0, padded)
    return None


# Mean tokens per row of data sets that sources name without stating it.
# Alpaca: the hub's data set card gives 46,208,623 bytes for 52,002 rows that hold the text twice
# (fields, and fields within the prompt of about 165 characters): about 525 characters a row, at
# about 4.2 characters a token. Alpaca-cleaned: a file of 42 MB for 51,760 rows with longer answers,
# 811 bytes a row, of which about 75 are names of fields; the prompt comes on top.
DATASET_MEAN_TOKENS = {"alpaca-cleaned": 214.0, "alpaca": 125.0}  # the longer name first

# Trainers that leave out rows above max_length by default instead of cutting them.
DROP_LONG_ROWS = ("ms-swift",)  # truncation_strategy: delete (command line reference of version 2)

_SPREAD = re.compile(
    r"token length (\d+(?:\.\d+)?)\s*(?:\+-|±)\s*(\d+(?:\.\d+)?)(?:, min (\d+))?(?:, max (\d+))?"
)


SAME_LENGTH = 0.02  # tokens a row by the source's own rates agree with a length within this
_LONGEST = re.compile(r"longest (?:\w+ )?(?:sample|row|prompt)")
_EXACT = re.compile(
    r"\bexactly \d+ tokens\b|\bevery row\b|\bseq(?:uence length)? exactly\b|exact length"
)
_APART = re.compile(r"\bblock[- ]diagonal\b|\bdocument mask|\bvarlen\b", re.IGNORECASE)
FULL_ROWS = "every row as long as seq_len"


def lengths_of(row: Row, longest: int | None) -> RowLengths | None:
    """The lengths of the run's rows, or None when nothing says how long.

    With a mean that counts padding, every row gets exactly that mean: the padding is in it.
    """
    if row.words["packing"] in {"yes", "true", "packed"}:
        return _packed(row, longest) if longest else None
    spread = _SPREAD.search(row.notes)
    if spread and longest:
        return RowLengths(_stated_spread(row, spread, longest))
    if longest and (_EXACT.search(row.notes) or _full_rows(row, longest)):
        return RowLengths(constant(longest), assumed=(FULL_ROWS,))
    mean = mean_of(row.notes) or _counted(row)
    if mean is not None:
        return _around(row, mean, longest)
    return _assumed(row, longest) if longest else None


def _packed(row: Row, longest: int) -> RowLengths:
    """Packed sequences as one row each, but where attention stays inside the rows of a known mean.

    A kernel that takes their lengths computes the scores of each row alone.
    """
    mean = mean_of(row.notes)
    if mean is None or mean.tokens >= longest or not _APART.search(row.notes):
        return RowLengths(constant(longest))
    why = f"spread of lengths {ASSUMED_SPREAD:g} of their mean"
    inside = lengths_below(mean.tokens, longest)
    return RowLengths(inside, assumed=(why,), apart=True)


def _tokens_a_row(row: Row) -> float | None:
    """[tokens] of a row by the source's own rates, where it gives tokens and rows a second."""
    tokens, samples = row.numbers["tokens_per_s_per_gpu"], row.numbers["samples_per_s"]
    step, batch = row.numbers["step_time_s"], row.numbers["global_batch"]
    if samples is None and step is not None and batch is not None:
        samples = batch / step
    if tokens is None or samples is None:
        return None
    return tokens * (row.numbers["n_gpus"] or 1.0) / samples


def _full_rows(row: Row, longest: int) -> bool:
    own = _tokens_a_row(row)
    return own is not None and abs(own / longest - 1.0) <= SAME_LENGTH


def _counted(row: Row) -> StatedMean | None:
    own = _tokens_a_row(row)
    return None if own is None or own < 1.0 else StatedMean(own, padded=False)


def _stated_spread(row: Row, spread: re.Match[str], longest: int) -> Lengths:
    low, high = float(spread[3] or 1), int(spread[4] or longest)
    mean, sd = float(spread[1]), float(spread[2])
    dropped = any(name in row.words["source_repo"] for name in DROP_LONG_ROWS)
    return spread_lengths(mean, sd / mean, low, min(longest, high), dropped=dropped)


def _reached(row: Row, mean: float, longest: int) -> bool:
    """Whether some row is as long as `longest`: the source says so, or the mean makes it sure."""
    return bool(_LONGEST.search(row.notes)) or longest <= REACHED_MEANS * mean


def _assumed(row: Row, longest: int) -> RowLengths:
    for name, tokens in DATASET_MEAN_TOKENS.items():
        if re.search(rf"\b{name}", row.notes, re.IGNORECASE) and tokens < longest:
            why = f"{name} rows of {tokens:g} tokens on average"
            return RowLengths(
                lengths_below(tokens, longest),
                longest_known=_reached(row, tokens, longest),
                assumed=(why,),
            )
    reached = bool(_LONGEST.search(row.notes))  # all that memory asks for
    return RowLengths(constant(longest, known=False), mean_known=False, longest_known=reached)


def _around(row: Row, mean: StatedMean, longest: int | None) -> RowLengths:
    counted = max(round(mean.tokens), 1)
    if longest is not None and longest <= counted:
        return RowLengths(constant(counted))
    if mean.padded or longest is None:
        return RowLengths(constant(counted, known=False), longest_known=False, capped=False)
    why = f"spread of lengths {ASSUMED_SPREAD:g} of their mean"
    return RowLengths(
        lengths_below(mean.tokens, longest),
        longest_known=_reached(row, mean.tokens, longest),
        assumed=(why,),
    )
