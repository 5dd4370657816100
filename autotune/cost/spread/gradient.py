"""How a micro-step answers to each constant of the fit, and what their covariance makes of it.

Legend: A device seconds, H issuing seconds, p overlap power, t = (A^p + H^p)^(1/p) of a queue;
where the forward waits, it and the backward are queues of their own, and their times add up.
Constants in (0, 1) are fitted as logits, the others as logarithms.

What else is uncertain about a step stands in `uncertainty`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

if TYPE_CHECKING:
    from autotune.cost.columns import FloatArray
    from autotune.cost.constants import Constants, Fitted
    from autotune.cost.time.step_terms import StepTerms

HOST_CONSTANTS = (
    "launch_forward_s", "launch_backward_s", "micro_step_overhead_s", "fsdp_unit_s",
    "zero3_module_s",
)  # fmt: skip
TINY = 1e-30  # nothing is divided by less


class _Queue(NamedTuple):
    """One queue of device and issuing seconds. Shapes: [rows]."""

    time: FloatArray  # [s]
    issued: FloatArray  # [s]
    device: FloatArray  # derivative of log t by log A
    hidden: FloatArray  # by log H
    by_power: FloatArray  # by log p

    @classmethod
    def of(cls, busy_s: FloatArray, issued_s: FloatArray, p: FloatArray | float) -> Self:
        busy, issued = np.maximum(busy_s, TINY), np.maximum(issued_s, TINY)
        time = (busy**p + issued**p) ** (1.0 / p)
        device = (busy / time) ** p
        hidden = 1.0 - device
        by_power = device * np.log(busy) + hidden * np.log(issued) - np.log(time)
        return cls(time, issued, device, hidden, by_power)


def log_gradient(terms: StepTerms, c: Constants) -> dict[str, FloatArray]:
    """[rows] derivative of log(micro-step) by every constant on its fitting scale.

    Formula: d log t = w dA/A + (1 - w) dH/H with w = A^p / (A^p + H^p); a rate's share s moves its
    seconds T by -(1 - s) T, an overhead by its own seconds.
    Source: derived; checked against differences.
    """
    backward = terms.attention_backward_s / c.attention_backward_share / c.attention_share
    attention = terms.attention_forward_s / c.attention_share + backward
    gemm, traffic = terms.gemm_s / c.gemm_share, terms.traffic_s / c.bandwidth_share
    codes = terms.dequantised_s(c)
    by_memory = terms.dequantise_s / c.bandwidth_share >= codes
    forward = terms.launches_forward * c.launch_forward_s
    backwards = terms.launches_backward * c.launch_backward_s
    visits = terms.host * terms.fsdp_visits * c.fsdp_unit_s
    hooks = terms.host * terms.hook_visits * c.zero3_module_s
    trainer = terms.host * c.micro_step_overhead_s
    busy, back = (
        gemm + attention + traffic + codes,
        visits + hooks + trainer + terms.new_sizes_s + backwards,
    )
    p = terms.power(c)
    waits = terms.synchronised > 0
    ahead = _Queue.of(
        busy * np.where(waits, terms.forward_share, 1.0), forward + np.where(waits, 0.0, back), p
    )
    behind = _Queue.of(busy * np.where(waits, 1.0 - terms.forward_share, 0.0), waits * back, p)
    total = ahead.time + behind.time
    of_device = (ahead.device * ahead.time + behind.device * behind.time) / (total * busy)
    of_forward = ahead.hidden * ahead.time / (total * ahead.issued)
    of_hidden = np.where(
        waits, behind.hidden * behind.time / (total * np.maximum(back, TINY)), of_forward
    )
    by_power = (ahead.by_power * ahead.time + behind.by_power * behind.time) / total
    return {
        "gemm_share": -(1.0 - c.gemm_share) * gemm * of_device,
        "attention_share": -(1.0 - c.attention_share) * attention * of_device,
        "attention_backward_share": -(1.0 - c.attention_backward_share) * backward * of_device,
        "bandwidth_share": -(1.0 - c.bandwidth_share) * (traffic + by_memory * codes) * of_device,
        "dequantise_instructions": ~by_memory * codes * of_device,
        "launch_forward_s": forward * of_forward,
        "launch_backward_s": backwards * of_hidden,
        "micro_step_overhead_s": trainer * of_hidden,
        "fsdp_unit_s": visits * of_hidden,
        "zero3_module_s": hooks * of_hidden,
        "overlap_power": by_power * terms.queued,
    }


def host_share(terms: StepTerms, c: Constants) -> FloatArray:
    """[rows] derivative of log(micro-step) by the log of the host's seconds."""
    gradient = log_gradient(terms, c)
    share: FloatArray = np.sum([gradient[name] for name in HOST_CONSTANTS], axis=0)
    return share


def parameter_variance(terms: StepTerms, fitted: Fitted) -> FloatArray:
    """[rows] variance of log(micro-step) that the constants' covariance leaves.

    Source: first-order error propagation.
    """
    gradient = log_gradient(terms, fitted.constants)
    names = [name for name in fitted.names if name in gradient]
    places = [fitted.names.index(name) for name in names]
    slopes = np.stack([gradient[name] for name in names])
    own = fitted.covariance[np.ix_(places, places)]
    variance: FloatArray = np.maximum((slopes * (own @ slopes)).sum(axis=0), 0.0)
    return variance
