"""What was measured of this machine, in the place of what its data sheet and its kind suggest.

    gain    = measured rate of a matrix product / its modelled rate, at the width of the model
    issue   = measured host seconds for a kernel / those of the host that the constants rest on

Covers: matrix products by dtype, a processor's attention, elementwise kernels, issuing, copies, one
loading process. Does not cover: attention on a GPU, collectives of several devices, a device that
slows down after minutes of heat.

Source: `autotune doctor --measure` (`probe.worker.speeds`); the shares below are assumptions.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.constants import constants
from autotune.cost.time.efficiency import ON_LANES, Efficiency, distinct_devices, fp32_on_lanes
from autotune.cost.time.flops import FLASH_BACKWARD

if TYPE_CHECKING:
    from autotune.cost.columns import Columns, FloatArray
    from autotune.domain.device import Device, DeviceRates
    from autotune.domain.job import Job

# Of a GPU's data sheet that large elementwise kernels reach, alone. The constants' share is of a
# step, where they are smaller. Hopper: 0.65 and 0.67 of two H100, whose steps moved what the data
# sheet's bandwidth makes of them (runs/recorded/h100-sxm). Others: assumption, 0.82 to 0.92.
LARGE_KERNELS, ON_HOPPER = 0.87, 0.66
# Products without a pause run into the limit of power sooner than those of a step: on the same two
# 0.83 to 0.92 of the modelled rate, where steps of such products took 1.00 to 1.12 of what is said.
WITHOUT_PAUSE = 0.91
# [s] that a kernel of the measured layers, the mean of forward and backward, takes the hosts around
# A100 that the constants rest on. Derived from two virtual machines with an H100: 22 and 30 us were
# measured, and their steps took 1.0 and 1.2 to 1.6 times what such a host makes of them
# (runs/recorded/h100-sxm). A core without a driver needs 7 and 8.4 us of it.
REFERENCE_ISSUE_S = 21e-6
# Modelling code of transformers issues a kernel of the forward in 1.7 times what the measured
# layers need, of the backward in 0.9. Measured: Llama of 2 and 8 layers, 8 tokens, one core,
# transformers 5.23, torch 2.13: 12.1 and 7.6 us against 7.0 and 8.4.
MODELLING_FORWARD, MODELLING_BACKWARD = 1.7, 0.9


def as_measured(device: Device, rates: DeviceRates) -> Device:
    """The device with what was measured of it; what was not stays as it was."""
    changed = replace(device, rates=rates)
    moved = rates.elementwise_bytes_per_s
    if moved <= 0:
        return changed
    alone = ON_HOPPER if device.architecture == "hopper" else LARGE_KERNELS
    share = constants().bandwidth_share if device.is_cpu else alone
    return replace(changed, memory_bandwidth_bytes_per_s=moved / share)


def gain(job: Job, columns: Columns) -> FloatArray:
    """[rows] measured rate of matrix products over the modelled one; 1 where none was measured."""
    devices, index = distinct_devices(columns)
    if all(device.rates is None for device in devices):
        return np.ones(columns.rows)
    width = float(job.model.hidden_size)
    found = np.ones(columns.rows)
    for precision in ("fp32", "tf32", "fp16", "bf16", "fp8"):
        own = np.asarray([gain_of(device, precision, width) for device in devices])
        found = np.where(columns.equals("precision", precision), own[index], found)
    return found


@lru_cache(maxsize=256)
def gain_of(device: Device, precision: str, width: float) -> float:
    """Measured over modelled rate of products of that width, between the measured ones in log.

    fp8 runs at the gain of bf16.
    """
    named = "bf16" if precision == "fp8" else precision
    products = [p for p in device.rates.products if p.precision == named] if device.rates else []
    peak = device.peak_flop_per_s(named)
    if not products or peak <= 0:
        return 1.0
    products.sort(key=lambda product: product.side)
    plain = replace(device, rates=None)
    m, n, k = (np.asarray([float(getattr(p, name)) for p in products]) for name in "mnk")
    place = ON_LANES if named == "fp32" and fp32_on_lanes(plain) else 0
    modelled = peak * Efficiency.of([plain]).gemm(np.full(len(products), place), m, n, k)
    logs = np.log([p.flop_per_s for p in products]) - np.log(modelled)
    sides = np.log([p.side for p in products])
    pause = 1.0 if device.is_cpu else WITHOUT_PAUSE
    return math.exp(float(np.interp(math.log(width), sides, logs))) / pause


def attention_gain(job: Job, columns: Columns, share: FloatArray) -> FloatArray:
    """[rows] measured rate of attention over the modelled one, on a processor; else 1.

    share: of the peak, modelled. Formula: both as forward and backward, 3.5 times the forward's
    FLOP, the modelled one with the constants of a step.
    """
    devices, index = distinct_devices(columns)
    if not any(device.is_cpu and device.rates for device in devices):
        return np.ones(columns.rows)
    c, found = constants(), np.ones(columns.rows)
    slower = (1.0 + FLASH_BACKWARD / c.attention_backward_share) / c.attention_share
    for precision in ("fp32", "fp16", "bf16"):
        of_device = [
            _attention_rate(device, precision, job.model.head_dim) / device.fp32_flop_per_s
            for device in devices
        ]
        peaks = [device.peak_flop_per_s(precision) / device.fp32_flop_per_s for device in devices]
        rate, peak = np.asarray(of_device)[index], np.asarray(peaks)[index]
        here = columns.equals("precision", precision) & (rate > 0) & (peak > 0)
        own = rate / (1.0 + FLASH_BACKWARD) * slower / np.maximum(peak * share, 1e-12)
        found = np.where(here, own, found)
    return found


def _attention_rate(device: Device, precision: str, head_dim: int) -> float:
    """[FLOP/s] at the measured width of a head that is nearest in log; 0: none was measured."""
    if device.rates is None or not device.is_cpu:
        return 0.0
    own = [a for a in device.rates.attention if a.precision == precision]
    near = min(own, key=lambda a: abs(math.log(a.head_dim / head_dim)), default=None)
    return near.flop_per_s if near else 0.0


def reached_peak(columns: Columns, peak: FloatArray) -> FloatArray:
    """[rows, FLOP/s] the dense peak, or what was measured where that is more."""
    devices, index = distinct_devices(columns)
    for precision in ("fp32", "tf32", "fp16", "bf16"):
        best = [d.rates.best_flop_per_s(precision) if d.rates else 0.0 for d in devices]
        here = columns.equals("precision", precision)
        peak = np.where(here, np.maximum(peak, np.asarray(best)[index]), peak)
    return peak


def issue_factors(device: Device) -> tuple[float, float] | None:
    """Seconds to issue a kernel of the forward and of the backward against the fitted ones.

    None where they were not measured. On a processor they hold what modelling code adds.
    """
    rates, fit = device.rates, constants()
    if rates is None or min(rates.issue_forward_s, rates.issue_backward_s) <= 0:
        return None
    if device.is_cpu:
        return (
            rates.issue_forward_s * MODELLING_FORWARD / fit.launch_forward_s,
            rates.issue_backward_s * MODELLING_BACKWARD / fit.launch_backward_s,
        )
    mean = (rates.issue_forward_s + rates.issue_backward_s) / 2.0
    return mean / REFERENCE_ISSUE_S, mean / REFERENCE_ISSUE_S
