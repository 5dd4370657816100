"""Seconds before the first step: imports, weights, quantisation, adapters, torch.compile.

Beside torch.compile stand the plans that cuDNN builds for new lengths, whenever they come.
Covers: weights fetched once on rented machines; 16-bit files quantised while loading.
Does not cover: booting the machine and pulling an image (minutes before the meter of some clouds).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.batches import unchanging_lengths
from autotune.cost.columns import Columns, Component, FloatArray, Outputs
from autotune.cost.memory.states import sizes, weight_bytes
from autotune.cost.parameters import adapter_parameters, parameter_count
from autotune.cost.spread.uncertainty import host_spread
from autotune.cost.time.attention import plans_s

if TYPE_CHECKING:
    from autotune.domain.device import Offer
    from autotune.domain.job import Job

READS = (
    "offer.device", "offer.host", "offer.price", "compile", "compile_scope", "packing", "attention",
    "precision", "activation_checkpointing", "micro_batch_size", "gradient_accumulation_steps",
    "length_grouping",
)  # fmt: skip
IMPORT_S = (
    10.0  # torch, transformers, peft, trl and the CUDA context; 8 s measured cold on two cores
)
TRAINER_S = 5.0  # data set and trainer objects: assumption
# The same two where nothing is rented: as often from a warm page cache (5 to 6 s on two cores, the
# launcher included) as from a cold one. Assumption.
OWN_START_S = 10.0
FILE_BYTES = 2.0  # a weight in a published 16-bit file
CACHED_BYTES_PER_S = 3e9  # of files just written, from the page cache: assumption
QUANTISED_PER_S = 1.5e9  # weights; 7e9 in about 5 s on an A100: assumption
INITIALISED_PER_S = 5e7  # adapter weights drawn on the processor: assumption
# torch.compile traces and compiles each layer's forward and backward. 32 layers take 1 to 1.5 min
# by default; max-autotune also times candidates for every product. Assumptions.
COMPILE_FIXED_S = {"off": 0.0, "default": 15.0, "reduce-overhead": 20.0, "max-autotune": 120.0}
COMPILE_LAYER_S = {"off": 0.0, "default": 1.5, "reduce-overhead": 1.7, "max-autotune": 6.0}
# Blocks of one class are compiled once, whatever their number, and the loss not at all: with
# torchtune 35 s instead of 198 s (meta-pytorch/torchtune PR 2831).
REGIONAL_BLOCKS = 2.0
SECOND_GRAPH = 2.0  # batches of changing length are compiled once more, with symbolic sizes
LOG_SD, ASSUMED_LOG_SD = 0.4, 0.6  # downloads at a stated speed, and at an assumed one
# Of it, where no start was watched: the 80 % interval reaches a factor of 3.6 each way. Assumption:
# from 5 s with a warm page cache to half a minute from a disk on the network.
OWN_START_LOG_SD = 1.0


def price_startup(job: Job, columns: Columns) -> Outputs:
    """[s] of loading everything, and of compiling; [bytes] of files that a machine lacks."""
    fixed = columns.choose("compile", COMPILE_FIXED_S)
    layer = columns.choose("compile", COMPILE_LAYER_S)
    steady = unchanging_lengths(job, columns)
    regional = columns.equals("compile_scope", "regional")
    blocks = np.where(regional, REGIONAL_BLOCKS, float(job.model.num_layers))
    compile_s = (fixed + layer * blocks) * np.where(steady, 1.0, SECOND_GRAPH)
    compile_s = compile_s + plans_s(job, columns)
    rented = columns.number("offer.price") > 0
    assumed = np.where(rented, IMPORT_S + TRAINER_S, OWN_START_S)
    watched = columns.of_host(lambda host: host.start.seconds if host.start else 0.0)
    start = np.where(watched > 0, watched, assumed)
    moved = _moving_seconds(job, columns)
    moved_sd = host_spread(columns, "download_bytes_per_s", stated=LOG_SD, assumed=ASSUMED_LOG_SD)
    own_sd = columns.of_host(lambda host: host.start.log_sd if host.start else OWN_START_LOG_SD)
    rest = moved + compile_s
    own = np.hypot(start * own_sd, rest * moved_sd) / (start + rest)
    return {
        "load_s": start + moved,
        "compile_s": compile_s,
        "fetched_bytes": np.where(rented, file_bytes(job), 0.0),
        "log_sd": np.where(rented & (watched <= 0), moved_sd, own),
    }


def start_s(offer: Offer) -> float:
    """[s] of imports and trainer objects: as they were watched, else as assumed."""
    if offer.host.start is not None:
        return offer.host.start.seconds
    return IMPORT_S + TRAINER_S if offer.usd_per_hour > 0 else OWN_START_S


def file_bytes(job: Job) -> float:
    """[bytes] of the model's files."""
    return FILE_BYTES * parameter_count(job.model)


def _moving_seconds(job: Job, columns: Columns) -> FloatArray:
    """[s] download on a rented machine (one with a price), reading, copy, quantisation."""
    count = float(parameter_count(job.model))
    size = file_bytes(job)
    rented = columns.number("offer.price") > 0
    read = np.where(
        rented,
        size / columns.host("download_bytes_per_s") + size / CACHED_BYTES_PER_S,
        size / columns.host("storage_read_bytes_per_s"),
    )
    stored = weight_bytes(job, sizes(job.model))
    moved = size if job.method.is_quantised else stored
    second = job.work.reference and not job.method.is_lora  # the reference is loaded as well
    copy = moved / columns.device("pcie_bytes_per_s") * (1.0 + second)
    quantise = count / QUANTISED_PER_S if job.method.is_quantised else 0.0
    new = adapter_parameters(job.model, job.method) if job.method.is_lora else 0
    return read + copy + quantise + new / INITIALISED_PER_S


COMPONENT = Component("startup", READS, price_startup, of_job=())
