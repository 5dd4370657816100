"""Peak memory of one device and whether it fits: the largest of the instants of a training step.

In here: the component of the bill, its outputs under a measured peak (`learned_memory`), and the
instant and batch at the peak of one candidate. What is alive at each instant: `peak`; what a layer
keeps: `activations`; how sure the verdict is: `spread.memory`.

A measured peak scales what torch allocates and what its allocator cannot give back; the driver's
context stays. Every tensor is scaled alike, because one number does not say which of them errs.

Does not cover: pipeline and tensor parallelism, other processes on the device; ops inside an
instant, which a trace names.

Legend: B rows, S longest length, T = B S tokens, L layers, h hidden, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost import offloading
from autotune.cost.columns import Component, Outputs, tabulate
from autotune.cost.constants import KINDS, RESERVED_KINDS, memory_constants
from autotune.cost.fused_kernels import under_each
from autotune.cost.memory import device as device_memory
from autotune.cost.memory.cache import Cache, cache_terms
from autotune.cost.memory.instants import PARTS
from autotune.cost.memory.modelling_code import unsloths
from autotune.cost.memory.peak import instants
from autotune.cost.memory.step import Step
from autotune.cost.spread.fitting import chance_of_fitting
from autotune.cost.spread.memory import (
    LEAST_LOG_SD,
    READING,
    Mixture,
    borne,
    by_kind,
    by_reserved_kind,
    is_certain_oom,
    is_crowded,
    mixture,
    uncertainty,
    with_open_facts,
)
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.cost.bill import Bill
    from autotune.cost.columns import Columns, FloatArray, Outputs
    from autotune.cost.constants import MemoryConstants
    from autotune.domain.job import Job

READS = (
    "offer.device",
    "offer.count",
    "offer.network",
    "sharding",
    "micro_batch_size",
    "precision",
    "activation_checkpointing",
    "attention",
    "optimizer",
    "adapter_dtype",
    "packing",
    "length_grouping",
    "compile",
    "compile_scope",
    "kernels",
    "offload",
)

KIND_INDEX = {kind: float(i) for i, kind in enumerate(KINDS)}
RESERVED_INDEX = {kind: float(i) for i, kind in enumerate(RESERVED_KINDS)}


def price_memory(
    job: Job,
    columns: Columns,
    model: MemoryConstants | None = None,
    peak: DevicePeak | None = None,
) -> Outputs:
    """[bytes] on one device at the instant of peak, by part, and whether it fits. Shapes [rows].

    model: other constants than the shipped ones. peak: where it is known under these offsets.
    """
    model = model or memory_constants()
    peak = peak or DevicePeak.of(job, columns, model)
    parts = dict(peak.parts)
    allocated: FloatArray = np.sum(list(parts.values()), axis=0)
    moving = allocated - parts["weights"] - parts["adapters"] - parts["optimizer"]
    live = (parts["activations"] + parts["logits"]) / allocated
    context, capacity = device_memory.context(columns), device_memory.capacity(columns)
    slack = device_memory.fragmentation(columns, moving, model.slack)
    parts["context"], parts["fragmentation"] = context, slack
    total: FloatArray = allocated + context + slack
    room = capacity - context - allocated
    beside = device_memory.caches(columns) * peak.cache.held(model.cached)
    cached = np.minimum(beside, np.maximum(room, 0.0))
    reserved = allocated + cached
    open_share = peak.cache.uncertain(model.cached) / np.maximum(beside, 1.0) * cached / reserved
    lengths_sd = model.cached["outgrown_logits"] * peak.records_sd / reserved
    unsloths_share = parts["logits"] / allocated * unsloths(job)
    own_sd = uncertainty(job, columns, live, unsloths_share, model)
    log_sd = np.hypot(own_sd, offloading.memory_sd(columns))
    slack_log_sd = model.slack.sd * moving / total
    spread = np.maximum(np.hypot(log_sd, slack_log_sd), LEAST_LOG_SD)
    usable = device_memory.usable(job, columns)
    crowded = is_crowded(reserved + context, usable)
    fits = borne(chance_of_fitting(np.log(capacity / total), spread), crowded, model.claims)
    return {
        **parts,
        "total": total,
        "usable": usable,
        "capacity": capacity,
        "allocated": allocated,
        "reserved": reserved,
        "driver": reserved + context,
        "slack_log_sd": slack_log_sd,
        "crowded": crowded.astype(np.float64),
        "fits_probability": fits,
        "surest": borne(np.ones(columns.rows), crowded, model.claims),
        "certain_oom": is_certain_oom(allocated + context, capacity, fits).astype(np.float64),
        "log_sd": log_sd,
        "host_bytes": offloading.host_bytes(job, columns),
        "loading_host_bytes": offloading.loading_host_bytes(job, columns),
        "saving_host_bytes": offloading.saving_host_bytes(job, columns),
        "open_share": open_share,
        "reserved_log_sd": np.sqrt(
            log_sd**2 + (model.cached_sd * open_share) ** 2 + lengths_sd**2 + READING**2
        ),
        "kind": by_kind(job, columns, KIND_INDEX),
        "reserved_kind": by_reserved_kind(job, columns, RESERVED_INDEX),
    }


@dataclass(frozen=True, slots=True, eq=False)
class DevicePeak:
    """[bytes] the parts at the instant of peak, and what may be cached beside it. Shapes [rows]."""

    parts: dict[str, FloatArray]
    cache: Cache
    records_sd: FloatArray  # of outgrown logits, by the order in which lengths fall

    @classmethod
    def of(cls, job: Job, columns: Columns, model: MemoryConstants) -> DevicePeak:
        """Of every row; a trainer's own model code multiplies activations and logits."""
        step = Step.of(job, columns)
        own_code = math.exp(model.offset(job.software, job.model.family).log_factor)
        found = {
            name: replace(
                item, activations=item.activations * own_code, logits=item.logits * own_code
            )
            for name, item in instants(step).items()
        }
        peak = np.argmax(np.stack([item.total for item in found.values()]), axis=0)
        rows = np.arange(columns.rows)
        parts = {
            name: np.stack([getattr(item, name) for item in found.values()])[peak, rows]
            for name in PARTS
        }
        parts["workspace"] = parts["workspace"] + device_memory.blas_workspace(columns)
        return cls(parts, *cache_terms(job, columns, step, found))


PRICE_AS_LISTED = under_each(price_memory)
COMPONENT = Component("memory", READS, with_open_facts(PRICE_AS_LISTED), of_job=("evaluation",))


def learned_memory(outputs: Outputs, factor: float, log_sd: float | None) -> Outputs:
    """The outputs of the memory component under a factor on allocated bytes and another spread.

    log_sd: of the allocated peak, where this job measured it; None keeps the component's own.
    """
    parts = {name: outputs[name] * factor for name in (*PARTS, "fragmentation")}
    context, capacity = outputs["context"], outputs["capacity"]
    allocated: FloatArray = outputs["allocated"] * factor
    total: FloatArray = np.sum([*parts.values(), context], axis=0)
    reserved = np.minimum(outputs["reserved"] * factor, np.maximum(capacity - context, allocated))
    own_sd = outputs["log_sd"] if log_sd is None else np.full_like(total, log_sd)
    # what was measured on the device says nothing of what is offloaded from it
    away = outputs["host_bytes"] > 0
    own_sd = np.where(away, np.maximum(own_sd, outputs["log_sd"]), own_sd)
    cached_sd = np.sqrt(np.maximum(outputs["reserved_log_sd"] ** 2 - outputs["log_sd"] ** 2, 0.0))
    spread = np.maximum(np.hypot(own_sd, outputs["slack_log_sd"]), LEAST_LOG_SD)
    crowded = is_crowded(reserved + context, outputs["usable"])
    claims = memory_constants().claims
    known = chance_of_fitting(np.log(capacity / total), spread, told=log_sd is not None)
    fits = borne(known, crowded, claims)
    return {
        **outputs,
        **parts,
        "allocated": allocated,
        "total": total,
        "reserved": reserved,
        "driver": reserved + context,
        "crowded": crowded.astype(np.float64),
        "fits_probability": fits,
        "fits_as_listed": fits,
        "certain_oom": is_certain_oom(allocated + context, capacity, fits).astype(np.float64),
        "log_sd": own_sd,
        "reserved_log_sd": np.hypot(own_sd, cached_sd),
    }


_ROWS, _EVALUATION_ROWS, _KEPT_ROWS = "micro rows", "evaluation rows", "kept rows"
_LENGTH = "length"
_ROWS_OF = {"evaluation": _EVALUATION_ROWS, "metrics": _KEPT_ROWS}


def peak_instant(bill: Bill, index: int) -> tuple[str, int, int]:
    """(instant, rows of the batch on one device, tokens of each row) at the peak."""
    one = bill.candidates.take(np.asarray([index]))
    found = tabulate(Component("peak", READS, _totals), bill.job, one).outputs
    batch = {_ROWS, _EVALUATION_ROWS, _KEPT_ROWS, _LENGTH}
    totals = {name: float(found[name][0]) for name in found.keys() - batch}
    instant = max(totals, key=lambda name: (totals[name], name))
    rows = found[_ROWS_OF.get(instant, _ROWS)][0]
    return instant, max(round(float(rows)), 1), round(float(found[_LENGTH][0]))


def _totals(job: Job, columns: Columns) -> Outputs:
    """[bytes] of every instant, and what its batch is made of."""
    step = Step.of(job, columns)
    own_code = math.exp(memory_constants().offset(job.software, job.model.family).log_factor)
    found: Outputs = {
        name: instant.total + (own_code - 1.0) * (instant.activations + instant.logits)
        for name, instant in instants(step).items()
    }
    found[_ROWS] = columns.sequences(job)
    found[_EVALUATION_ROWS] = step.evaluation_rows
    found[_KEPT_ROWS] = step.kept_rows
    found[_LENGTH] = step.length
    return found


def open_facts(bill: Bill, index: int) -> Mixture | None:
    """What a candidate needs under every combination of what nobody said of it.

    None where nothing is open, or where memory that was measured settles it.
    """
    if bill.at("memory", "fits_as_listed", index) == bill.at("memory", "fits_probability", index):
        return None
    found: list[Mixture] = []

    def price(job: Job, columns: Columns) -> Outputs:
        found.append(mixture(job, columns, PRICE_AS_LISTED))
        return {}

    one = bill.candidates.take(np.asarray([index]))
    tabulate(Component("open facts", READS, price), bill.job, one)
    return found[0]
