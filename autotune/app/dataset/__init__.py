"""Data sets: which files, which columns, how many rows, and how many tokens each row has."""

from autotune.app.dataset.count import Count, count_dataset, count_rows, counting_told_to
from autotune.app.dataset.report import DatasetReport, dataset_histogram, notes_of, write_histogram

__all__ = [
    "Count",
    "DatasetReport",
    "count_dataset",
    "count_rows",
    "counting_told_to",
    "dataset_histogram",
    "notes_of",
    "write_histogram",
]
