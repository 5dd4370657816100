"""Seconds a loader needs for a micro-batch, what the device waits for it, and preparing the rows.

The Hugging Face trainers tokenise the whole data set before training (`Dataset.map`) and then read
token lists from a memory-mapped file, so a worker only slices, pads and collates.

Covers: loader workers and host cores, first reads of rows over a network file system.
Does not cover: streaming data sets; images and audio; user transforms.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from autotune.catalog.text_tokens import BYTES_PER_TOKEN, TOKENISED_BYTES
from autotune.cost.batches import padded_length
from autotune.cost.columns import Columns, Component, FloatArray, Outputs
from autotune.cost.spread.uncertainty import host_spread

if TYPE_CHECKING:
    from autotune.domain.job import Job

READS = (
    "offer.host", "offer.count", "offer.network", "micro_batch_size", "num_dataloader_workers",
    "prefetch_factor", "packing", "length_grouping",
)  # fmt: skip
# Assumptions, to be replaced by a probe's measurement: no public sweep of loaders for language
# models was found. A row is decoded from Arrow to Python lists, padded and made a tensor.
ROW_S = 150e-6
TOKEN_S = 0.15e-6  # three columns of about 50 ns
TOKENISED_PER_CORE_S = 80e3  # tokens; fast tokenizers reach 0.3-1 M, `map` and templates take most
MOST_PROCESSES = 32  # of `Dataset.map`
PREPARE_OVERHEAD_S = 2.0
READ_AHEAD_BYTES = 128 * 1024  # Linux's default for mapped files
NETWORK_LATENCY_S = 2.3e-3  # opening and reading on Lustre; ml-engineering storage notes, 2026-08
WORKER_START_S = 0.1  # fork of a process with torch loaded, and its first touches
WORKER_RAM_BYTES = 400e6  # private pages of one worker
LOG_SD, ASSUMED_LOG_SD = 0.5, 0.7  # on stated cores, and on assumed ones
MEASURED_LOG_SD = 0.35  # on rows like the job's; its own columns and collator may differ


def price_data(job: Job, columns: Columns) -> Outputs:
    """[s] for a micro-batch in one worker, for all rows, for the first batch; [bytes] of RAM."""
    micro, workers = columns.sequences(job), columns.number("num_dataloader_workers")
    count = np.maximum(columns.per_node(), 1.0)
    cores = np.maximum(columns.host("cores") / count, 1.0)
    row_s = columns.of_host(lambda host: host.loader.row_s if host.loader else ROW_S)
    token_s = columns.of_host(lambda host: host.loader.token_s if host.loader else TOKEN_S)
    batch = micro * (row_s + padded_length(job, columns) * token_s + _read_seconds(job, columns))
    # More workers than cores share them: each takes longer, together they are no faster.
    batch = batch * np.maximum(workers / cores, 1.0)
    starts = workers * WORKER_START_S * math.ceil(max(job.epochs, 0.0)) * (job.steps > 0)
    held = workers * columns.number("prefetch_factor") * micro * job.max_length * TOKENISED_BYTES
    return {
        "batch_s": batch,
        "prepare_s": _prepare_seconds(job, columns),
        "first_batch_s": starts + batch * (job.steps > 0),
        "tokenised_bytes": np.full(columns.rows, _to_tokenise_bytes(job)),
        "ram_bytes": count * (workers * WORKER_RAM_BYTES + held),
        "log_sd": np.where(
            columns.of_host(lambda host: float(host.loader is not None)) > 0,
            MEASURED_LOG_SD,
            host_spread(columns, "cores", stated=LOG_SD, assumed=ASSUMED_LOG_SD),
        ),
    }


def tokenised_bytes(job: Job) -> float:
    """[bytes] of all rows once tokenised."""
    return job.rows * job.lengths.mean * TOKENISED_BYTES


def _to_tokenise_bytes(job: Job) -> float:
    """[bytes] that the run makes of its rows; 0 where they are tokens already."""
    return 0.0 if job.pretokenized or job.steps == 0 else tokenised_bytes(job)


def row_bytes(job: Job) -> float:
    """[bytes] of a row in the data file; where nobody counted, of English text of its length."""
    return job.row_bytes or job.lengths.mean * BYTES_PER_TOKEN


def _read_seconds(job: Job, columns: Columns) -> FloatArray:
    """[s] of reading one row, first touch: bytes over the storage's rate, and its latency.

    The kernel reads ahead, so a row pays the share of a round trip that its bytes are of a window.
    Rows that the trainer tokenised lie in a local cache; only ready ones are read from the network.
    """
    size = job.lengths.mean * TOKENISED_BYTES
    if job.storage != "network" or not job.pretokenized:
        return np.zeros(columns.rows)
    latency = NETWORK_LATENCY_S * min(size / READ_AHEAD_BYTES, 1.0)
    return size / columns.host("storage_read_bytes_per_s") + latency


def _prepare_seconds(job: Job, columns: Columns) -> FloatArray:
    """[s] of tokenising the rows once before training, over the host's cores.

    Formula: rows x tokens / (rate x processes) + bytes / storage rate. `Dataset.map` is taken to
    run one process a core, as exported TRL files ask for (`dataset_num_proc`); left to itself TRL
    runs one.
    Source: derived; rate: 80k tokens/s a core, templates and Python included.
    """
    if job.pretokenized or job.steps == 0:
        return np.zeros(columns.rows)
    processes = np.clip(columns.host("cores"), 1.0, MOST_PROCESSES)
    tokenise = job.rows * job.lengths.mean / (TOKENISED_PER_CORE_S * processes)
    read = job.rows * row_bytes(job) / columns.host("storage_read_bytes_per_s")
    return PREPARE_OVERHEAD_S + tokenise + read


COMPONENT = Component("data", READS, price_data, of_job=("pretokenized", "row_bytes", "storage"))


def wait_s(*, busy_s: FloatArray, batch_s: FloatArray, workers: FloatArray) -> FloatArray:
    """[s] a micro-step waits for its batch.

    Formula: no workers: the whole batch; else what the workers' common pace lacks, max(0, batch /
    workers - busy).
    Source: derived: a pipeline runs at the pace of its slower stage.
    """
    pace = batch_s / np.maximum(workers, 1.0)
    return np.where(workers <= 0, batch_s, np.maximum(pace - busy_s, 0.0))
