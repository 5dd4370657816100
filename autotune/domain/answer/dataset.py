"""What `autotune dataset` answers: how long the rows of a data set are, and what that costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.job import Lengths


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many rows have each length, before truncation."""

    counts: Mapping[int, int]  # [rows] by length [tokens], of the rows that were counted
    row_bytes: float = 0.0  # [bytes] mean size of one row in its file; 0: not known
    source: str = ""
    basis: Literal["counted", "sampled", "estimated"] = "counted"
    log_sd: float = 0.0  # how far all lengths together may be off: an estimate, or a sample
    all_rows: int = 0  # of the data set, where only a sample of them was counted

    @property
    def rows(self) -> int:
        """[rows] in all."""
        return self.all_rows or sum(self.counts.values())

    @property
    def longest(self) -> int:
        """[tokens] of the longest row."""
        return max(self.counts)


@dataclass(frozen=True, slots=True)
class DatasetReport:
    """What the lengths of a data set say. Shares are fractions; lengths are tokens a row."""

    path: str
    tokenizer: str
    basis: str  # counted, sampled or estimated
    reason: str  # why the tokens are an estimate; empty where they are not
    template: str  # how chats and answered questions were put together; empty without any
    files: int
    rows_counted: int  # of them; fewer than rows in a sample
    max_length: int  # rows were cut to it
    rows: int
    tokens: int  # after truncation
    tokens_p10: float  # how far they may be off; equal to tokens where every row was counted
    tokens_p90: float
    mean: float
    p50: float
    p95: float
    maximum: int
    longest_row: int  # before truncation, of the rows that were counted
    truncated_rows: int
    truncated_tokens: int
    batch_size: int  # rows padded together in the figures that follow
    padding_waste: float  # share of a batch's tokens that are padding, padded to its longest row
    padding_waste_max_length: float  # the same, padded to max_length
    packing_gain: float  # tokens saved by packing into max_length, share of those padded
    grouping_gain: float  # tokens saved by batching rows of similar length, share of those padded
    quantiles: tuple[tuple[float, float], ...]  # (probability, tokens), after truncation
    histogram: Histogram
    job_lines: tuple[tuple[str, str], ...]  # a data section for a job file, and what it does
    lengths: Lengths
