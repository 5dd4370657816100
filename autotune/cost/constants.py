"""The fitted constants of the time model, read once from `calibration.toml`.

`autotune calibrate` writes that file: `evidence.fitting` fits what is here on measured steps.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

PATH = Path(__file__).with_name("calibration.toml")


@dataclass(frozen=True, slots=True)
class Constants:
    """Global efficiencies and overheads. Shares lie in (0, 1); the file says what each rests on."""

    gemm_share: float  # of the measured (warm, boosted) matrix-product rate, inside a step
    attention_share: float  # of the measured attention forward rate
    attention_backward_share: float  # backward rate against forward rate
    bandwidth_share: float  # of the data sheet's memory bandwidth, elementwise kernels
    dequantise_share: float  # of the bandwidth, bitsandbytes' dequantisation
    hidden_share: float  # of the computing time hides communication
    never_hidden: float  # of the communication: little of it hides behind small steps
    launch_forward_s: float  # one kernel issued from Python
    launch_backward_s: float  # one kernel issued by autograd, with the nodes around it
    micro_step_overhead_s: float  # Trainer's own work for each micro-step
    optimizer_overhead_s: float  # Trainer's own work for each optimizer step
    fsdp_unit_s: float  # the processor's work to gather and free one wrapped module
    overlap_power: float  # how well issuing kernels overlaps with running them


@dataclass(frozen=True, slots=True)
class Spreads:
    """Log standard deviations of a step that remain after the fit, from groups left out of it."""

    residual: float  # of every step
    issuing: float  # of the seconds to issue kernels, times their share
    quantised: float  # int8 and nf4 bases
    mixture: float  # mixtures of experts
    ragged: float  # rows of different lengths
    sharded: float  # several devices


@dataclass(frozen=True, slots=True)
class Offset:
    """Log of what multiplies a step under one level of an effect, and its standard deviation."""

    log_factor: float
    log_sd: float


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
    )


@lru_cache(maxsize=1)
def fitted() -> Fitted:
    """The shipped calibration."""
    with PATH.open("rb") as stream:
        return parse(tomllib.load(stream))


def constants() -> Constants:
    """The shipped constants."""
    return fitted().constants


def spreads() -> Spreads:
    """The shipped spreads."""
    return fitted().spreads
