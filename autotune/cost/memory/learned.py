"""Memory as measurements of the same job taught it: bytes scaled, the verdict worked out again.

A measured peak scales what torch allocates and what its allocator cannot give back; the driver's
context stays. Every tensor is scaled alike, because one number does not say which of them errs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.memory.component import LEAST_LOG_SD, normal_cdf
from autotune.cost.memory.constants import memory_constants
from autotune.cost.memory.instants import PARTS
from autotune.cost.spread.fit_claims import borne, is_certain_oom, is_crowded

if TYPE_CHECKING:
    from autotune.cost.columns import FloatArray, Outputs


def learned_memory(outputs: Outputs, factor: float, log_sd: float | None) -> Outputs:
    """The outputs of the memory component under a factor on allocated bytes and another spread.

    log_sd: of the allocated peak; None keeps the component's own.
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
    fits = borne(normal_cdf(np.log(capacity / total) / spread), crowded, claims)
    return {
        **outputs,
        **parts,
        "allocated": allocated,
        "total": total,
        "reserved": reserved,
        "driver": reserved + context,
        "crowded": crowded.astype(np.float64),
        "fits_probability": fits,
        "certain_oom": is_certain_oom(allocated + context, capacity, fits).astype(np.float64),
        "log_sd": own_sd,
        "reserved_log_sd": np.hypot(own_sd, cached_sd),
    }
