"""A data set that is named and not at hand: its rows and lengths as published, if they are.

What lies here, or in the hub's cache, is counted instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.app.dataset import lengths as length_rules
from autotune.catalog.datasets import (
    SHORT_ROWS,
    PublishedDataset,
    published,
    published_names,
    training_splits,
)
from autotune.domain.errors import InputError
from autotune.domain.job import Assumption
from autotune.domain.paths import stated_in
from autotune.domain.typed.values import shown

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Lengths
    from autotune.domain.model import Model
    from autotune.domain.typed.job import DataSection, JobFile

Published = tuple[PublishedDataset, ...]
ON = "on"


def published_rows(section: DataSection, model: Model, base_dir: Path) -> Published:
    """What is published of the data sets that the job names; nothing where they are at hand."""
    for text in _names(section, base_dir):
        names = published_names(text)
        if names:
            found = [published(each, model.vocab_size) for each in names]
            return tuple(each for each in found if each is not None)
    return ()


def with_published_count(jobfile: JobFile, base_dir: Path, assumed: list[Assumption]) -> JobFile:
    """The job with the rows of its data set, where these alone are published: no length of them.

    Raises InputError where several of its splits are trained on.
    """
    section = jobfile.data
    for name in _names(section, base_dir):
        splits = training_splits(name)
        if not splits:
            continue
        if len(splits) > 1 and section.rows is None:
            listed = ", ".join(f"{each.label} of {each.rows:,} rows" for each in splits)
            msg = f"data.dataset {shown(name)} has several splits to train on: {listed}"
            raise InputError(msg, f"state the one's rows instead: --rows {splits[0].rows}")
        why = f"{splits[0].label} as published, {splits[0].as_of} ({splits[0].source})"
        if section.rows is None:
            assumed.append(Assumption("data.rows", str(splits[0].rows), why))
        rows = section.rows or splits[0].rows
        return jobfile.model_copy(
            update={"data": section.model_copy(update={"rows": rows, "dataset": None})}
        )
    return jobfile


def _names(section: DataSection, base_dir: Path) -> tuple[str, ...]:
    """What a data set that is not at hand may be published as; nothing where it is at hand."""
    if section.dataset is None:
        return ()
    path = stated_in(base_dir, section.dataset)
    try:
        if path.exists():
            return ()
    except OSError:  # a name too long for the file system
        return ()
    from autotune.app.dataset.folder import as_hub_id
    from autotune.catalog import hub

    name = as_hub_id(path)
    if name is not None and hub.cached_dataset(name) is not None:
        return ()
    return tuple(dict.fromkeys((section.dataset, name or "", path.name)))


def published_lengths(
    known: Published, section: DataSection, max_length: int, assumed: list[Assumption]
) -> Lengths:
    """[tokens] Their lengths, cut to `max_length`, with where they are from among the assumed."""
    found = length_rules.from_published(known, max_length)
    for each in known:
        said = f"{each.name}: half under {each.p50:.0f} tokens, 95 of 100 under {each.p95:.0f}"
        why = (
            f"as published, {each.tokenizer}'s tokenizer, {each.as_of} ({each.source}); "
            "`--data FILE` counts your rows"
        )
        assumed.append(Assumption("data.lengths", said, why))
    if found.truncated_rows:
        cut = f"about {found.truncated_rows} rows cut to {max_length} tokens"
        assumed.append(Assumption("data.lengths", cut, "as published; longer than max_length"))
    if section.tokenizer is not None:
        why = "the rows are not at hand: nothing is counted with it"
        assumed.append(Assumption("data.tokenizer", "not used", why))
    return found


def rows_are_full(jobfile: JobFile) -> bool:
    """Whether every batch is full whatever the rows are: padded to it, or packed before the run."""
    data, lock = jobfile.data, jobfile.lock
    packed = lock.get("packing") == ON
    return (data.padding == "max_length" and not packed) or (bool(data.pretokenized) and packed)


def short_rows(model: Model, max_length: int) -> tuple[PublishedDataset, Lengths]:
    """A published data set of short rows, and its lengths, for what unknown rows may be at least.

    Source: `catalog/data/datasets.csv`, the line of `SHORT_ROWS`.
    """
    found = published(SHORT_ROWS, model.vocab_size)
    assert found is not None  # noqa: S101 - the catalogue's own name; a test holds it
    return found, length_rules.from_published((found,), max_length)
