"""Row lengths: from stated quantiles, from counted rows, or the upper bound when nothing is known.

Lengths that are stated beside a data set must be what its rows have.

`Lengths.quantiles[i]` is the length at probability i / 256, straight in between, and the mean is
the integral of that line, so whoever averages over the quantiles gets the mean back.

Stated quantiles are joined by a log-normal curve through p50 and p95, cut off at max; the lower
half mirrors the upper one in the logarithm, because p50 and p95 say nothing about short rows.
Source: derived; a log-normal is the one curve with positive values that two quantiles determine.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.cost.row_lengths import constant, lengths_below
from autotune.domain.answer.dataset import Histogram
from autotune.domain.errors import InputError
from autotune.domain.job import Lengths
from autotune.domain.outcome import Z90
from autotune.domain.typed.values import MAX_LENGTH, MAX_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from autotune.catalog.datasets import PublishedDataset
    from autotune.domain.typed.job import DataSection

POINTS = 257
P50, P95 = 0.5, 0.95
MAX_HISTOGRAM_BYTES = 50_000_000
MOST_LOG_SD = 5.0
SCHEMA_VERSION = 1
KIND = "autotune.lengths"
_STEEPEST = 64.0  # power of a curve below its median: nearly all of that half one token long
_BISECTIONS = 60  # halvings of log2(bend): far below the rounding of the mean


def all_at_maximum(max_length: int) -> Lengths:
    """Nothing is known: every row counts as `max_length`, an upper bound of the work."""
    quantiles = (float(max_length),) * POINTS
    return Lengths(quantiles, float(max_length), max_length, known=False, basis="unknown")


def all_full(max_length: int) -> Lengths:
    """Every row fills `max_length`: padded to it, or packed before the run."""
    return replace(all_at_maximum(max_length), known=True, basis="full")


def from_published(found: Sequence[PublishedDataset], max_length: int) -> Lengths:
    """[tokens] Lengths of published data sets together, cut to `max_length`.

    Several are mixed by their rows: the quantiles of all rows in one order.
    """
    curves = [from_quantiles(each.p50, each.p95, each.maximum, each.mean) for each in found]
    tokens = np.concatenate([curve.quantiles for curve in curves])
    rows = np.repeat([each.rows / POINTS for each in found], POINTS)
    order = np.argsort(tokens, kind="stable")
    reached = (np.cumsum(rows[order]) - rows[order] / 2.0) / rows.sum()
    mixed = np.interp(np.linspace(0.0, 1.0, POINTS), reached, tokens[order])
    if len(curves) == 1:
        mixed = tokens
    log_sd = float(np.average([each.log_sd for each in found], weights=[e.rows for e in found]))
    low, high = (
        float(np.minimum(mixed * math.exp(sign * log_sd), max_length).mean()) for sign in (-1, 1)
    )
    cut = _lengths(
        np.minimum(mixed, max_length), min(longest_published(found), max_length),
        truncated_rows=round(float(rows[tokens > max_length].sum())),
    )  # fmt: skip
    return replace(cut, basis="published", log_sd=math.log(high / low) / 2.0)


def longest_published(found: Sequence[PublishedDataset]) -> int:
    """[tokens] that the longest row may have under another tokenizer: memory has to hold it."""
    return max(math.ceil(each.maximum * math.exp(Z90 * each.log_sd)) for each in found)


def from_mean(mean: float, maximum: int) -> Lengths:
    """[tokens] Lengths of which the mean alone is stated, spread as instruction data is."""
    if mean >= maximum:
        return constant(maximum)
    return replace(lengths_below(mean, maximum), basis="mean")


def from_quantiles(p50: float, p95: float, maximum: int, mean: float | None = None) -> Lengths:
    """[tokens] Lengths with this median, 95th percentile and maximum.

    A stated mean bends the curve between the three points, which stay where they are. Raises
    InputError when no rising curve through them has that mean.
    """
    if not 0 < p50 <= p95 <= maximum:
        msg = f"lengths out of order: 0 < p50 {p50:g} <= p95 {p95:g} <= max {maximum} must hold"
        raise InputError(msg)
    probability = np.linspace(0.0, 1.0, POINTS)
    quantiles = _curve(probability, p50, p95, maximum)
    if mean is not None:
        quantiles = _bent_to(mean, probability, p50, p95, maximum)
    return _lengths(quantiles, maximum)


def _curve(
    probability: NDArray[np.float64], p50: float, p95: float, maximum: int
) -> NDArray[np.float64]:
    """[tokens] log-normal quantiles within [1, maximum]; the last one is `maximum`."""
    sigma = math.log(p95 / p50) / NormalDist().inv_cdf(P95)
    inside = np.clip(probability, 1 / (2 * POINTS), 1 - 1 / (2 * POINTS))
    normal = NormalDist()
    z = np.array([normal.inv_cdf(float(value)) for value in inside])
    tokens = np.clip(p50 * np.exp(sigma * z), min(1.0, p50), maximum)
    tokens[probability >= 1.0] = maximum
    return np.asarray(tokens, np.float64)


def _bent_to(
    mean: float, probability: NDArray[np.float64], p50: float, p95: float, maximum: int
) -> NDArray[np.float64]:
    """The curve read at probabilities bent within each stretch, so that its mean is `mean`.

    Within a stretch [a, b] probability a + (b - a) t is read at a + (b - a) t^k; a larger k lowers
    every length but those at a and b, so the mean falls with k and bisection finds it.
    """

    def bent(log2_bend: float) -> NDArray[np.float64]:
        read = probability.copy()
        for start, end in ((0.0, P50), (P50, P95), (P95, 1.0)):
            part = (probability >= start) & (probability <= end)
            share = (probability[part] - start) / (end - start)
            read[part] = start + (end - start) * share ** (2.0**log2_bend)
        return _curve(read, p50, p95, maximum)

    low, high = -6.0, 6.0
    most, least = _mean(bent(low)), _mean(bent(high))
    curve: Callable[[float], NDArray[np.float64]] = bent
    if mean < least:  # rows that are cut at p50 say nothing of the shorter ones
        curve = partial(_with_short_rows, bent(high), probability)
        low, high = 0.0, _STEEPEST
        least = _mean(curve(high))
    if not least <= mean <= most:
        msg = (
            f"lengths: mean {mean:g} cannot go with p50 {p50:g}, p95 {p95:g} and max {maximum}: "
            f"it must lie between {math.ceil(least)} and {math.floor(most)}"
        )
        raise InputError(msg, "leave the mean out, and it follows from the quantiles")
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if _mean(curve(middle)) > mean else (low, middle)
    return curve((low + high) / 2)


def _with_short_rows(
    quantiles: NDArray[np.float64], probability: NDArray[np.float64], power: float
) -> NDArray[np.float64]:
    """[tokens] the curve with its lower half brought down: times (probability / 0.5)^power."""
    share = np.clip(probability / P50, 1 / (2 * POINTS), 1.0)  # at 0 no power is near none
    return np.maximum(quantiles * share**power, min(1.0, float(quantiles[0])))


def _mean(quantiles: NDArray[np.float64]) -> float:
    """[tokens] integral of the quantile function (trapezoids)."""
    return float((quantiles[:-1] + quantiles[1:]).mean() / 2)


def _lengths(quantiles: NDArray[np.float64], maximum: int, truncated_rows: int = 0) -> Lengths:
    rising = np.maximum.accumulate(quantiles)
    return Lengths(
        quantiles=tuple(float(value) for value in rising),
        mean=_mean(rising),
        maximum=maximum,
        known=True,
        truncated_rows=truncated_rows,
    )


def from_counts(histogram: Histogram, max_length: int) -> Lengths:
    """[tokens] Lengths of counted rows, cut to `max_length`; what was cut is counted."""
    raw = np.array(sorted(histogram.counts), np.float64)
    rows = np.array([histogram.counts[int(length)] for length in raw], np.float64)
    rows *= histogram.rows / rows.sum()
    cut = float(rows[raw > max_length].sum())
    lengths = np.minimum(raw, max_length)
    found = _lengths(_quantiles_of(lengths, rows), int(lengths[-1]), truncated_rows=round(cut))
    return replace(
        found,
        mean=float(lengths @ rows / rows.sum()),
        maximum=_longest(histogram, max_length),
        basis=histogram.basis,
        log_sd=_spread_after_cut(histogram, raw, rows, max_length),
    )


def _longest(histogram: Histogram, max_length: int) -> int:
    """[tokens] that the longest row may have: memory has to hold it, so it is no estimate's middle.

    A sample has seen some rows, and a longer one may be among the others.
    """
    return max_length if histogram.all_rows else min(longest_to_keep(histogram)[0], max_length)


def longest_to_keep(histogram: Histogram) -> tuple[int, str]:
    """[tokens] a maximum that cuts no row as far as is known, and why this one."""
    if histogram.basis == "estimated":
        longest = math.ceil(histogram.longest * math.exp(Z90 * histogram.log_sd))
        return longest, "not stated; the longest row, at the upper end of the estimate"
    if histogram.all_rows:
        return histogram.longest, "not stated; the longest of the rows in the sample"
    return histogram.longest, "not stated; the longest row"


def _spread_after_cut(
    histogram: Histogram, lengths: NDArray[np.float64], rows: NDArray[np.float64], max_length: int
) -> float:
    """Log standard deviation of the mean length: rows that are cut to `max_length` vary no more."""
    if histogram.log_sd <= 0:
        return 0.0
    low, high = (
        float(np.minimum(lengths * math.exp(sign * histogram.log_sd), max_length) @ rows)
        for sign in (-1.0, 1.0)
    )
    return math.log(high / low) / 2


def _quantiles_of(lengths: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Row i of n sorted rows stands at probability (i + 1/2) / n; the ends are the extremes."""
    total = rows.sum()
    last = np.cumsum(rows)
    first = last - rows
    places = np.column_stack([(first + 0.5) / total, (last - 0.5) / total]).ravel()
    return np.interp(np.linspace(0.0, 1.0, POINTS), places, np.repeat(lengths, 2))


def read_histogram(path: Path) -> Histogram:
    """A file that `autotune dataset FILE --out FILE` wrote. Raises InputError for anything else."""
    if path.exists() and not path.is_file():
        msg = f"the length histogram {path} is not a regular file"
        raise InputError(msg, "write one with `autotune dataset FILE --out FILE`")
    try:
        if path.stat().st_size > MAX_HISTOGRAM_BYTES:
            msg = f"{path} is larger than {MAX_HISTOGRAM_BYTES // 10**6} MB; no histogram is"
            raise InputError(msg)
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "it is not JSON text in UTF-8"
        msg = f"the length histogram {path} cannot be read: {reason}"
        raise InputError(msg, "write one with `autotune dataset FILE --out FILE`") from None
    problem = _histogram_problem(content)
    if problem:
        msg = f"{path} is no length histogram: {problem}"
        raise InputError(msg, "write one with `autotune dataset FILE --out FILE`")
    pairs = zip(content["lengths"], content["counts"], strict=True)
    return Histogram(
        dict(pairs),
        float(content.get("row_bytes", 0.0)),
        str(path),
        content.get("basis", "counted"),
        float(content.get("log_sd", 0.0)),
        content.get("rows", 0) if content.get("basis", "counted") != "counted" else 0,
    )


def _histogram_problem(content: Any) -> str | None:  # noqa: ANN401 - whatever the file holds
    if not isinstance(content, dict) or content.get("kind") != KIND:
        return f'"kind" must be "{KIND}"'
    lengths, counts = content.get("lengths"), content.get("counts")
    if not isinstance(lengths, list) or not isinstance(counts, list) or not lengths:
        return '"lengths" and "counts" must be lists with at least one value'
    row_bytes, log_sd = content.get("row_bytes", 0.0), content.get("log_sd", 0.0)
    checks = (
        (content.get("schema_version") == SCHEMA_VERSION, f'"schema_version" is {SCHEMA_VERSION}'),
        (len(lengths) == len(counts), '"lengths" and "counts" have the same number of values'),
        (
            all(_whole(value, 1, MAX_LENGTH) for value in lengths),
            f'"lengths" are whole numbers from 1 to {MAX_LENGTH:,}',
        ),
        (
            all(_whole(value, 1, MAX_ROWS) for value in counts),
            f'"counts" are whole numbers from 1 to {MAX_ROWS:,}',
        ),
        (len(set(map(str, lengths))) == len(lengths), "each length is there once"),
        (
            isinstance(row_bytes, int | float) and 0 <= row_bytes <= MAX_ROWS,
            '"row_bytes" is a number of bytes',
        ),
        (
            content.get("basis", "counted") in {"counted", "sampled", "estimated"},
            '"basis" is counted, sampled or estimated',
        ),
        (_whole(content.get("rows", 1), 1, MAX_ROWS), f'"rows" is from 1 to {MAX_ROWS:,}'),
        (
            isinstance(log_sd, int | float) and 0 <= log_sd <= MOST_LOG_SD,
            f'"log_sd" is a number from 0 to {MOST_LOG_SD:g}',
        ),
    )
    return next((f"it must hold that {rule}" for holds, rule in checks if not holds), None)


def _whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


CLOSE = 0.1  # relative: rounding, and another way to put a row together


def check_lengths(section: DataSection, found: Lengths) -> None:
    """Raise InputError where stated lengths contradict those of the data set's rows.

    found: [tokens] as counted, estimated or published, cut to max_length. What was estimated may be
    off by its own spread.
    """
    stated = section.lengths
    if stated is None or section.dataset is None:
        return
    room = CLOSE + math.expm1(Z90 * found.log_sd)
    pairs = (
        ("p50", stated.p50, _at(found, 0.5)),
        ("p95", stated.p95, _at(found, 0.95)),
        ("mean", stated.mean, found.mean),
        ("max", None if stated.max is None else float(stated.max), float(found.maximum)),
    )
    for name, said, own in pairs:
        exact = name == "max" and found.basis == "counted"  # a longer row would be there
        over = said is not None and own > said * (1.0 + (0.0 if exact else room))
        under = said is not None and name != "max" and said > own * (1.0 + room)
        if said is None or not (over or under):
            continue
        how = {"counted": "has", "published": "is published with"}.get(found.basis, "seems to have")
        msg = (
            f"data.lengths.{name} is {said:g}, but {Path(section.dataset).name} {how} "
            f"{name} {own:.0f} tokens"
        )
        hint = "state one of dataset and lengths: without data.lengths the rows' own are taken"
        if name == "max":
            hint += f"; or state data.max_length {said:.0f}, and longer rows are cut"
        raise InputError(msg, hint)


def _at(found: Lengths, probability: float) -> float:
    grid = np.linspace(0.0, 1.0, len(found.quantiles))
    return float(np.interp(probability, grid, found.quantiles))
