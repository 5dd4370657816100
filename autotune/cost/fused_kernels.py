"""The knob `kernels`: every part of a bill under the software that its value makes.

Liger's kernels and a chunked loss are facts of the software that runs (`Software.running`), so what
depends on that software is priced once for each value, with the same formulas.

    none          what the software does by itself
    liger         RMSNorm, gated MLP and RoPE in one kernel each; logits in chunks
    chunked_loss  TRL's loss in tiles, axolotl's cut cross entropy: no more than a tile of logits

Source of the memory: `logits`, `activations`; a 7B in full under ms-swift and ZeRO-3 on four
A100 went from 54 to 42 GB with Liger, where the formulas go from 51.5 to 39.2.
Source of Liger's time: its kernels' traffic and launches (`kernels.KERNEL_SETS`), of whose gain
the public pairs show about half: an 8B LoRA under TRL on one H100 5 % less time (Soup, 5 repeats;
12 % by the traffic), that 7B 5 % less of the whole run (6 %), Mistral 7B with Liger's loss alone
0 % (fms-acceleration PR 93), a 1B in full under ZeRO-3 no difference (Liger-Kernel issue 409).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.outputs import Later, joined, split
from autotune.domain.config import KNOBS

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.cost.columns import BoolArray, Columns, FloatArray, Outputs
    from autotune.domain.job import Job

KNOB = "kernels"
PLAIN = "none"
GAINED = 0.5  # of the gain by traffic and launches, on the log scale: what the pairs above show
LEAST_DOUBT = 0.05  # log sd: no pair is of this job's model, length and device


def under_each(
    price: Callable[[Job, Columns], Outputs],
) -> Callable[[Job, Columns], Outputs]:
    """The same component, each row under the software that its `kernels` makes."""

    def priced(job: Job, columns: Columns) -> Outputs:
        parts: list[tuple[BoolArray, Outputs]] = []
        for value in KNOBS[KNOB].choices:
            here = columns.equals(KNOB, value)
            if here.all():
                return price(running(job, value), columns)
            if here.any():
                parts.append((here, price(running(job, value), columns.where(here))))
        return joined(columns.rows, parts)

    return priced


def running(job: Job, kernels: str) -> Job:
    """The job with a value of the knob in force; itself for `none`."""
    if kernels == PLAIN:
        return job
    return replace(job, software=job.software.running(kernels))


def is_known(job: Job, columns: Columns) -> BoolArray:
    """[rows] whether no unmeasured gain of the knob is counted: none, or as in today's run."""
    if job.today is None or not job.evidence:
        return columns.equals(KNOB, PLAIN)
    return columns.equals(KNOB, job.today.kernels)


def with_doubt(
    price: Callable[[Job, Columns], Outputs],
) -> Callable[[Job, Columns], Outputs]:
    """The micro-step's component with what fused kernels gain, and the doubt about it.

    The doubt reaches from no gain to twice the expected one. `unmeasured_gain` grows to the
    micro-step without them where that is longer.
    """
    each = under_each(price)

    def priced(job: Job, columns: Columns) -> Outputs:
        found = each(job, columns)
        unknown = ~is_known(job, columns)
        if not unknown.any():
            return found
        plain_s = price(job, columns.where(unknown))["micro_step_s"]
        slower: FloatArray = np.ones(columns.rows)
        slower[unknown] = np.maximum(plain_s / found["micro_step_s"][unknown], 1.0)
        kept = slower ** (1.0 - GAINED)  # of the gain that does not come true
        doubt = np.where(unknown, LEAST_DOUBT + np.log(slower / kept), 0.0)
        now, later = split(found)
        now["micro_step_s"] = now["micro_step_s"] * kept
        now["unmeasured_gain"] = now["unmeasured_gain"] * slower / kept

        def spreads() -> Outputs:
            doubted = {n: np.hypot(found[n], doubt) for n in ("log_sd", "knob_log_sd")}
            return {name: found[name] for name in later} | doubted

        return Later(now, later, spreads)

    return priced
