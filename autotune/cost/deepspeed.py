"""What DeepSpeed's ZeRO keeps and moves: fp32 masters and moments, gradient partitions, buckets.

Its bf16 and fp16 engines cast the whole model to 16 bit, adapters and fp32 weights too, and train
fp32 masters of whatever is trained, on each device a share. Under fp32 compute they do so as well.

Covers: stages 2 and 3 with DeepSpeed's defaults, which is what the exported configs state, or with
the states and buckets that a config of the user's own asks for (`ZeroSettings`); stage 1 in place
of 2 where such a config states it; states in the host's memory with `offloading`.

Source: deepspeed 0.18.9, runtime/engine.py (_configure_distributed_model, get_data_types),
runtime/zero/stage_1_and_2.py and stage3.py; read line by line, no run of it was measured.
Legend: P trained elements; N devices; e bytes of the engine's dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.domain.config import EIGHT_BIT, ZERO_STAGE
from autotune.domain.software import ZeroSettings
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.cost.columns import BoolArray, Columns, FloatArray
    from autotune.domain.job import Job

# Elements of the buffers that gradients wait in: DeepSpeed's reduce_bucket_size. Stage 2 with
# overlap_comm has two of them, each of half as many in the config that is exported.
BUCKET_ELEMENTS = 500_000_000
SUB_GROUP_ELEMENTS = 1_000_000_000  # stage 3 steps through so many of a device's elements at a time


def runs(columns: Columns) -> BoolArray:
    """[rows] which run under DeepSpeed."""
    return columns.equals("sharding", *ZERO_STAGE)


def keeps_gradients(job: Job, columns: Columns) -> BoolArray:
    """[rows] of stage 1: each device keeps the gradients of all weights up to the step.

    They are reduced at the last micro-step, and a device's share of them is copied.
    Source: deepspeed 0.19.8 runtime/zero/stage_1_and_2.py, where `partition_gradients` is false.
    """
    return columns.equals("sharding", "zero2") & job.zero.whole_gradients


def casts(columns: Columns) -> BoolArray:
    """[rows] where the engine makes the whole model 16-bit."""
    return runs(columns) & columns.equals("precision", "bf16", "fp16")


def trained_bytes(job: Job, columns: Columns) -> FloatArray:
    """[rows] bytes of a trained value and of its gradient, as the model holds them.

    Adapters in their dtype, weights as they are stored; 16-bit where the engine casts the model.
    """
    adapters = columns.choose("adapter_dtype", {"fp32": 4.0, "bf16": 2.0})
    stored = np.where(job.method.is_lora, adapters, job.method.plain_bytes)
    return np.where(casts(columns), 2.0, np.where(runs(columns), 4.0, stored))


def master_bytes(job: Job, columns: Columns) -> FloatArray:
    """[rows] bytes of a master: fp32, unless the config keeps those of the bf16 engine in 16 bit.

    Source: deepspeed 0.18.9 runtime/config.py, bf16.bf16_master_weights_and_grads.
    """
    narrow = columns.equals("precision", "bf16")
    return np.where(narrow, job.zero.master_bytes, ZeroSettings().master_bytes)


def _moment_bytes(job: Job, columns: Columns) -> FloatArray:
    narrow = columns.equals("precision", "bf16")
    return 2.0 * np.where(narrow, job.zero.moment_bytes, ZeroSettings().moment_bytes)


def state_bytes(job: Job, columns: Columns, moments_8bit: float) -> FloatArray:
    """[rows] bytes of masters and moments of a trained element, in torch's allocator.

    Paged moments live outside it. bitsandbytes keeps no moment of a flat partition in fp32.
    """
    own = _moment_bytes(job, columns)
    moments = np.where(columns.equals("optimizer", "adamw_bnb_8bit"), moments_8bit, own)
    paged = columns.equals("optimizer", "paged_adamw_8bit") | job.software.no_moments
    moments = np.where(paged, 0.0, moments)
    return master_bytes(job, columns) + moments


def saved_state_bytes(job: Job, columns: Columns, moments_8bit: float) -> FloatArray:
    """[rows] bytes of a trained element in the optimizer's part of a checkpoint."""
    narrow = columns.equals("optimizer", *EIGHT_BIT)
    moments = np.where(narrow, moments_8bit, _moment_bytes(job, columns))
    return master_bytes(job, columns) + moments


def step_traffic_bytes(passes: FloatArray, element: FloatArray, master: FloatArray) -> FloatArray:
    """[rows] bytes read and written for a trained element at the optimizer's step, beside states.

    passes: those of the optimizer itself, over the masters. Gradients are read for their norm,
    laid flat, turned into fp32 and clipped in place; masters are copied back into the model.
    """
    widened = np.where(element < master, element + master, 0.0)
    copies = element + 2.0 * element + widened + 2.0 * master + master + element
    traffic: FloatArray = passes * master + copies
    return traffic


@dataclass(frozen=True, slots=True)
class Transient:
    """[bytes] on one device beside weights, states and one gradient partition. Shapes [rows].

    All are 0 where DeepSpeed does not run.
    """

    always: FloatArray  # stage 3's bucket
    backward: FloatArray  # stage 2's buckets, and the copy of a bucket that is being reduced
    step: FloatArray  # fp32 gradients, and what makes and uses them
    renewed: BoolArray  # stage 2: each backward has a new partition, from its first reduction on
    standing: BoolArray  # stage 3: the gradient partition is there all the time

    @classmethod
    def of(
        cls, job: Job, columns: Columns, element: FloatArray, trainable: FloatArray
    ) -> Transient:
        """Of rows that train so many elements of e bytes.

        Formula: stage 2 at the step 2 e P/N (gradients and their flat copy) + 4 P/N in fp32, and
        without a fused kernel 4 P/N more while Adam runs (8 before torch 2.1), when e-wide ones are
        gone; stage 3 the
        same for one sub-group, beside a standing partition. Stage 1 copies its partition beside
        all gradients, e P/N, and has let go of e P where the step makes fp32 ones.
        """
        master = master_bytes(job, columns)
        elements = job.zero.bucket_elements or BUCKET_ELEMENTS
        both = 2.0 if job.zero.overlapping else 1.0
        count = np.maximum(columns.number("offer.count"), 1.0)
        share = trainable / count
        two = runs(columns) & columns.equals("sharding", "zero2")
        three = runs(columns) & columns.equals("sharding", "zero3")
        bucket = element * elements
        reduced = element * np.minimum(trainable, elements)
        whole = 1.0 + job.software.update_copies  # gradients, and AdamW's temporaries
        foreach = np.where(columns.equals("optimizer", "adamw_torch"), whole * master, 0.0)
        made = np.where(element < master, element + master, master)
        group = np.minimum(share, SUB_GROUP_ELEMENTS)
        one = keeps_gradients(job, columns)
        stepping = np.maximum(made, foreach - element) * share
        copied = element * share
        beside = np.maximum(copied, copied + stepping - element * trainable)
        return cls(
            always=np.where(three, bucket, 0.0),
            backward=np.where(two, both * bucket + reduced, np.where(three, reduced, 0.0)),
            step=np.where(one, beside, np.where(two, stepping, 0.0))
            + np.where(three, np.maximum(made, foreach) * group, 0.0),
            renewed=two & ~one,
            standing=three,
        )
