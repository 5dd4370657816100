"""Row lengths of a measured run: what the source states, else a stated assumption."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from autotune.domain.job import Lengths

if TYPE_CHECKING:
    from autotune.cost.columns import FloatArray
    from autotune.evidence.record.row import Row

QUANTILES = 41
ASSUMED_SPREAD = 0.6  # standard deviation over mean of instruction data, where nobody states one

# Mean tokens per row of data sets that sources name without stating it.
# Alpaca: the hub's data set card gives 46,208,623 bytes for 52,002 rows that hold the text twice
# (fields, and fields within the prompt of about 165 characters): about 525 characters a row, at
# about 4.2 characters a token.
DATASET_MEAN_TOKENS = {"alpaca": 125.0}

# Trainers that leave out rows above max_length by default instead of cutting them.
DROP_LONG_ROWS = ("ms-swift",)  # truncation_strategy: delete (command line reference of version 2)

GRID_MEANS = 12.0  # [means] where the tail of a length distribution is cut off

_SPREAD = re.compile(
    r"token length (\d+(?:\.\d+)?)\s*(?:\+-|±)\s*(\d+(?:\.\d+)?)(?:, min (\d+))?(?:, max (\d+))?"
)
_MEAN = (
    re.compile(r"mean about (\d+(?:\.\d+)?) tokens"),
    re.compile(r"mean (?:dataset |sample )?length (?:of )?(\d+(?:\.\d+)?)"),
    re.compile(r"avg tokens/sample(?: incl\. padding)? = (\d+(?:\.\d+)?)"),
)


def constant(length: int, *, known: bool = True) -> Lengths:
    """Every row `length` tokens long."""
    return Lengths((float(length), float(length)), float(length), length, known=known)


@lru_cache(maxsize=256)
def _gamma_quantiles(shape: float) -> tuple[FloatArray, FloatArray]:
    """(probabilities, quantiles) of a gamma distribution with mean 1, on a fine grid."""
    x = np.linspace(1e-4, GRID_MEANS, 8001)
    density = np.exp((shape - 1) * np.log(x) - shape * (x - 1))
    cumulative = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1]) / 2)))
    return cumulative / cumulative[-1], x


@lru_cache(maxsize=1024)
def spread_lengths(
    mean: float, relative_sd: float, low: float, cap: int, *, dropped: bool
) -> Lengths:
    """Lengths of a data set with a known mean and spread, after a cap at `cap`.

    dropped: rows above the cap are left out, else they are cut to it.
    Formula: quantiles of a gamma distribution, conditioned on the cap when rows are dropped.
    Source: derived; a gamma distribution has the two stated moments and no negative lengths.
    """
    probability, x = _gamma_quantiles(1 / relative_sd**2)
    kept = float(np.interp(cap / mean, x, probability)) if dropped else 1.0
    u = (np.arange(QUANTILES) + 0.5) / QUANTILES * kept
    values = np.clip(np.interp(u, probability, x) * mean, min(low, float(cap)), float(cap))
    return _lengths(values, int(np.ceil(values[-1])))


@lru_cache(maxsize=1024)
def lengths_below(mean: float, relative_sd: float, longest: int) -> Lengths:
    """Lengths with a mean after truncation, whose longest row has `longest` tokens."""
    trial = spread_lengths(mean, relative_sd, 1.0, longest, dropped=False)
    values = np.asarray(trial.quantiles)
    for _ in range(20):
        values = np.minimum(values * (mean / _mean(values)), float(longest))
    return Lengths(tuple(float(v) for v in values), _mean(values), longest, known=True)


def _mean(values: FloatArray) -> float:
    """Mean of the piecewise linear quantile function."""
    return float((values[1:] + values[:-1]).sum() / 2 / (len(values) - 1))


def _lengths(values: FloatArray, maximum: int) -> Lengths:
    return Lengths(tuple(float(v) for v in values), _mean(values), maximum, known=True)


def stated_mean(row: Row) -> float | None:
    """[tokens] mean row length that the notes state."""
    for pattern in _MEAN:
        found = pattern.search(row.notes)
        if found:
            return float(found[1])
    return None


def lengths_of(row: Row, longest: int | None) -> tuple[Lengths | None, tuple[str, ...]]:
    """The lengths of the run's rows and what was assumed, or None when nothing says how long.

    With a mean that counts padding, every row gets exactly that mean: the padding is in it.
    """
    if row.word("packing") in {"yes", "true", "packed"}:
        return (constant(longest), ()) if longest else (None, ())
    spread = _SPREAD.search(row.notes)
    if spread and longest:
        return _stated_spread(row, spread, longest), ()
    mean = stated_mean(row)
    if mean is not None:
        return _around(row, mean, longest)
    return _assumed(row, longest) if longest else (None, ())


def _stated_spread(row: Row, spread: re.Match[str], longest: int) -> Lengths:
    low, high = float(spread[3] or 1), int(spread[4] or longest)
    mean, sd = float(spread[1]), float(spread[2])
    dropped = any(name in row.word("source_repo") for name in DROP_LONG_ROWS)
    return spread_lengths(mean, sd / mean, low, min(longest, high), dropped=dropped)


def _assumed(row: Row, longest: int) -> tuple[Lengths, tuple[str, ...]]:
    if "exactly" in row.notes or "every row" in row.notes:
        return constant(longest), ()
    for name, tokens in DATASET_MEAN_TOKENS.items():
        if name in row.notes.casefold() and tokens < longest:
            why = f"{name} rows of {tokens:g} tokens on average"
            return lengths_below(tokens, ASSUMED_SPREAD, longest), (why,)
    return constant(longest, known=False), ("every row as long as seq_len",)


def _around(row: Row, mean: float, longest: int | None) -> tuple[Lengths, tuple[str, ...]]:
    counted = round(mean)
    padded = "incl. padding" in row.notes or "padding-free" in row.notes
    if padded or longest is None or longest <= counted:
        known = longest is not None and longest <= counted
        return constant(max(counted, 1), known=known), ()
    why = f"spread of lengths {ASSUMED_SPREAD:g} of their mean"
    return lengths_below(mean, ASSUMED_SPREAD, longest), (why,)
