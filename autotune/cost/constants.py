"""What was fitted, of time and of memory: read once from `calibration.toml`, which holds the sizes.

    step    x exp(offset of the generation + of the device + of the training stack + of the kernels)
    memory  activations and logits x exp(offset of a trainer's own model code)

The reference is Hugging Face's Trainer with eager kernels on an A100 80 GB; levels that nobody
measured have no offset and a wider interval. `autotune calibrate` writes the file: `evidence.fit`
fits it on measured steps and peaks. What is assumed and not fitted stands beside its formula.

Source: residuals of measured steps, shrunk towards zero.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import field, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.cost.columns import Columns, FloatArray
    from autotune.domain.device import Device
    from autotune.domain.job import Job
    from autotune.domain.software import Software

PATH = Path(__file__).with_name("calibration.toml")


@dataclass(frozen=True, slots=True)
class Constants:
    """Global efficiencies and overheads. Shares lie in (0, 1); the file says what each rests on."""

    gemm_share: float  # of the measured (warm, boosted) matrix-product rate, inside a step
    attention_share: float  # of the measured attention forward rate
    attention_backward_share: float  # backward rate against forward rate
    bandwidth_share: float  # of the data sheet's memory bandwidth, elementwise kernels
    dequantise_instructions: float  # for a weight, where memory is not slower
    launch_forward_s: float  # one kernel issued from Python
    launch_backward_s: float  # one kernel issued by autograd, with the nodes around it
    micro_step_overhead_s: float  # Trainer's own work for each micro-step
    optimizer_overhead_s: float  # Trainer's own work for each optimizer step
    fsdp_unit_s: float  # the processor's work to gather and free one wrapped module
    zero3_module_s: float  # the processor's work to fetch and release one module under ZeRO-3
    overlap_power: float  # how well issuing kernels overlaps with running them
    exchange_overlap: float  # how well exchange between devices overlaps with the micro-step


@dataclass(frozen=True, slots=True)
class Spreads:
    """Log standard deviations of a step that remain after the fit, from sources left out of it.

    Those before `source` are of rows of one source around their mean; that is of the mean itself:
    data, a machine and a way of measuring that no fit has seen. `known` is no size but a factor:
    how much of what the fit says that it is unsure of the means of sources show. Those of `alone`
    take the place of `source` on one GPU, those of `program` where no fit has seen the program
    either; each are the two sides of one spread: such runs are slower than the model rather than
    faster. That of `device` takes its place where no fit has seen the device.
    """

    residual: float  # of every step
    issuing: float  # of the seconds to issue kernels, times their share
    quantised: float  # int8 and nf4 bases
    mixture: float  # mixtures of experts
    ragged: float  # rows of different lengths
    sharded: float  # several devices
    source: float  # shared by all rows of a source
    alone_fast: float  # the same on one GPU, on the side of faster
    alone_slow: float  # and on the side of slower
    known: float  # times the standard deviation of constants and offsets
    program_fast: float  # of a run by a program without a measured step, on the side of faster
    program_slow: float  # and on the side of slower
    device: float  # of a run on a device without a measured step, on both sides


@dataclass(frozen=True, slots=True)
class Offset:
    """Log of what multiplies a step under one level of an effect, and its standard deviation."""

    log_factor: float
    log_sd: float


NO_OFFSET = Offset(0.0, 0.0)
Offsets = dict[str, dict[str, Offset]]  # effect -> level -> offset


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """Everything the time model has learned.

    covariance: of `names`, on their fitting scale. observed: highest share of a device's dense peak
    that any measured step reached, by method and base ("lora nf4").
    """

    constants: Constants
    spreads: Spreads
    offsets: Offsets
    names: tuple[str, ...]
    covariance: np.ndarray[Any, np.dtype[np.float64]]
    observed: dict[str, float]
    programs: dict[str, int] = field(default_factory=dict)  # sources with steps, by training stack
    devices: dict[str, int] = field(default_factory=dict)  # the same, by device

    def offset(self, effect: str, level: str) -> Offset | None:
        """What was learned of a level; None where no measured step had it."""
        return self.offsets.get(effect, {}).get(level)


def parse(table: dict[str, Any]) -> Fitted:
    """The fitted model from the tables of a calibration file."""
    step, spread = table["step"], table["log_sd"]
    offsets = {
        effect: {name: Offset(float(pair[0]), float(pair[1])) for name, pair in levels.items()}
        for effect, levels in table["offset"].items()
    }
    return Fitted(
        Constants(**{item.name: float(step[item.name]) for item in fields(Constants)}),
        Spreads(**{item.name: float(spread[item.name]) for item in fields(Spreads)}),
        offsets,
        tuple(table["covariance"]["names"]),
        np.asarray(table["covariance"]["matrix"], np.float64),
        {kind: float(share) for kind, share in table["observed"].items()},
        {stack: int(n) for stack, n in table["programs"].items()},
        {device: int(n) for device, n in table["devices"].items()},
    )


@lru_cache(maxsize=1)
def _shipped() -> dict[str, Any]:
    """The file of the shipped calibration."""
    with PATH.open("rb") as stream:
        return tomllib.load(stream)


@lru_cache(maxsize=1)
def fitted() -> Fitted:
    """The shipped calibration."""
    return parse(_shipped())


def constants() -> Constants:
    """The shipped constants."""
    return fitted().constants


def levels_of(device: str, software: Software, generation: str = "") -> dict[str, str]:
    """The level of every effect under which a step runs. generation: the device's architecture."""
    levels = {"device": device, "stack": software.stack, "kernels": software.kernels}
    return {**levels, "generation": generation}


def offset_factor(job: Job, columns: Columns) -> FloatArray:
    """[rows] what multiplies a step by its device, stack and kernels."""

    def log_factor(device: Device) -> float:
        levels = levels_of(device.name, job.software, device.architecture).items()
        return sum((fitted().offset(*level) or NO_OFFSET).log_factor for level in levels)

    factor: FloatArray = np.exp(columns.of_device(log_factor))
    return factor


# Kinds of configuration whose predicted allocated peak has a spread of its own, most uncertain
# first: a configuration belongs to the first that applies.
KINDS = ("own_model", "experts", "fused", "sharded", "quantised", "plain")
RESERVED_KINDS = ("emptied", "ragged", "even")  # names of how batches vary
CACHED = "cached"  # of what is held beside the peak
# Priors of the logarithm of what another trainer's model code keeps for the backward, against the
# class of transformers: hand estimates, since two such trainers have measurements.
STACK_SD, FAMILY_SD = 0.30, 0.15
UNKNOWN_CODE = Offset(0.0, math.hypot(STACK_SD, FAMILY_SD))
# What the allocator is expected to hold, its cache included, stays within usable memory, or not.
ROOMY, CROWDED = "roomy", "crowded"
CLAIM_KINDS = (ROOMY, CROWDED)


@dataclass(frozen=True, slots=True)
class Claims:
    """Tested claims of one kind: how many, and how many of those runs ran out of memory."""

    n: int
    failures: int

    @property
    def bears(self) -> float:
        """The probability that a further claim of the kind holds."""
        return (self.n - self.failures + 1) / (self.n + 2)


@dataclass(frozen=True, slots=True)
class Slack:
    """Share of what comes and goes in a step that a run needs on top, and its spread.

    A request that finds no room makes torch's allocator give every wholly free segment back to the
    driver and ask again, so what is merely cached costs nothing; pieces of segments that are partly
    in use stay. Tensors that live as long as the run are laid out once and leave no pieces.

    Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp, `malloc` (release_cached_blocks, then a
    second attempt); sizes: runs that did and did not run out of memory.
    """

    one_device: float
    several: float  # a stream that gathers layers cannot reuse what another has freed
    sd: float  # of the share


# Log sd between sources where weights or states are shared among devices. One source has nearly
# all readings of these, none of them by DeepSpeed or in full with rows of many lengths. Of 86 runs
# of 39 other sources 17 ran out of memory, four of the twelve that were said to need 0.9 to 1 of a
# card among them: of all spreads tried this one says best which did (docs/accuracy.md, set 10).
BETWEEN_SHARDS = 0.10


@dataclass(frozen=True, slots=True)
class MemoryConstants:
    """Everything that was learned about memory.

    offsets: "stack" or "stack family" -> log factor on activations and logits, for trainers with
    model code of their own. spreads: standard deviation of log(predicted / measured) allocated
    bytes by kind; of `own_model` relative to activations and logits. cached: what the allocator
    holds beside the allocated peak when there is room, as a share of each term of `memory.cache`.
    cached_sd: log standard deviation of what is held beside the peak, which moves the reserved peak
    by its share. claims: tested claims of a fit by kind,
    which bound how sure another may be; none: not bounded. between_shards: how far another source's
    run on shards may lie from what its settings tell, which a fit of one source does not see.
    """

    slack: Slack
    offsets: dict[str, Offset]
    spreads: dict[str, float]
    cached: dict[str, float]
    cached_sd: float
    claims: dict[str, Claims] = field(default_factory=dict)
    between_shards: float = BETWEEN_SHARDS

    def offset(self, software: Software, family: str) -> Offset:
        """Of a trainer's model code; none where it trains the classes of transformers."""
        if not software.own_model:
            return NO_OFFSET
        known = self.offsets.get(f"{software.stack} {family}") or self.offsets.get(software.stack)
        return known or UNKNOWN_CODE


def parse_memory(table: dict[str, Any]) -> MemoryConstants:
    """The constants from the `memory` table of a calibration file."""
    return MemoryConstants(
        Slack(**{item.name: float(table["slack"][item.name]) for item in fields(Slack)}),
        {name: Offset(float(pair[0]), float(pair[1])) for name, pair in table["offset"].items()},
        {kind: float(table["log_sd"][kind]) for kind in KINDS},
        {term: float(share) for term, share in table["cached"].items()},
        float(table["log_sd"][CACHED]),
        {kind: Claims(*map(int, table["claims"][kind])) for kind in CLAIM_KINDS},
    )


@lru_cache(maxsize=1)
def memory_constants() -> MemoryConstants:
    """The shipped constants."""
    return parse_memory(_shipped()["memory"])
