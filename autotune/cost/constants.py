"""The fitted constants of the time model, read once from `calibration.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

PATH = Path(__file__).with_name("calibration.toml")


@dataclass(frozen=True, slots=True)
class Constants:
    """Global efficiencies and overheads. Shares lie in (0, 1); the file says what each rests on."""

    gemm_share: float  # of the measured (warm, boosted) matrix-product rate, inside a step
    attention_share: float  # of the measured attention forward rate
    attention_backward_share: float  # backward rate against forward rate
    bandwidth_share: float  # of the data sheet's memory bandwidth, elementwise kernels
    dequantise_share: float  # of the bandwidth, bitsandbytes' dequantisation
    launch_forward_s: float  # one kernel issued from Python
    launch_backward_s: float  # one kernel issued by autograd, with the nodes around it
    micro_step_overhead_s: float  # Trainer's own work for each micro-step
    optimizer_overhead_s: float  # Trainer's own work for each optimizer step
    fsdp_unit_s: float  # the processor's work to gather and free one wrapped module
    overlap_power: float  # how well issuing kernels overlaps with running them


@dataclass(frozen=True, slots=True)
class Spreads:
    """Log standard deviations of the micro-step, from groups left out of the fit."""

    measured_device: float
    issuing: float  # of the seconds to issue kernels
    other_device: float
    quantised: float
    mixture: float
    fused_kernels: float
    compiled: float


@lru_cache(maxsize=1)
def _file() -> dict[str, dict[str, float]]:
    with PATH.open("rb") as stream:
        found: dict[str, dict[str, float]] = tomllib.load(stream)
    return found


@lru_cache(maxsize=1)
def constants() -> Constants:
    """The shipped constants."""
    table = _file()["step"]
    return Constants(**{item.name: float(table[item.name]) for item in fields(Constants)})


@lru_cache(maxsize=1)
def spreads() -> Spreads:
    """The shipped spreads."""
    table = _file()["log_sd"]
    return Spreads(**{item.name: float(table[item.name]) for item in fields(Spreads)})
