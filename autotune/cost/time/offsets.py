"""What a device, a training stack and a kernel set add to every step, as learned from measurements.

    step x exp(offset of the device + of the stack + of the kernels)

The reference is Hugging Face's Trainer with eager kernels on an A100 80 GB; levels that nobody
measured have no offset and a wider interval.

Source: residuals of measured steps, shrunk towards zero (`evidence.fitting`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.constants import Offset, fitted
from autotune.cost.time.efficiency import distinct_devices

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autotune.cost.columns import Columns, FloatArray
    from autotune.domain.job import Job
    from autotune.domain.software import Software

NONE = Offset(0.0, 0.0)


def levels_of(device: str, software: Software) -> dict[str, str]:
    """The level of every effect under which a step runs."""
    return {"device": device, "stack": software.stack, "kernels": software.kernels}


def offset_factor(job: Job, columns: Columns) -> FloatArray:
    """[rows] what multiplies a step by its device, stack and kernels."""
    devices, index = distinct_devices(columns)
    logs = [
        sum(found.log_factor for found in _known(levels_of(device.name, job.software).items()))
        for device in devices
    ]
    factor: FloatArray = np.exp(np.asarray(logs, np.float64))[index]
    return factor


def _known(levels: Iterable[tuple[str, str]]) -> list[Offset]:
    return [fitted().offset(effect, level) or NONE for effect, level in levels]
