"""What sharding moves unit by unit: weights that are gathered, gradients that wait to be reduced.

A unit is a layer; the root unit is what lies outside the layers: embeddings and head.
Covers: FSDP and ZeRO-3 with a layer a unit. Does not cover: the second FSDP's copies of a unit as
it travels, beside those of its gradients; ZeRO-3's limits on how much stays gathered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.cost.columns import BoolArray, Columns, FloatArray
    from autotune.cost.memory.states import Sizes, Static
    from autotune.domain.job import Job


@dataclass(frozen=True, slots=True)
class Unreduced:
    """[bytes] of gradients that FSDP has not reduced yet, as they travel. Shapes [rows].

    A unit's gradients are reduced when its backward is done. That of the root, which holds the
    embedding and the head, is done last: the head's gradient waits whole for the embedding's. To
    reduce a unit, its gradients are copied into one tensor, so that they are there twice.
    0 with adapters, which are small, and where FSDP does not run.

    Source: torch 2.13 distributed/fsdp/_flat_param.py (views of one parameter, whose gradient their
    backward concatenates) and fsdp/_fully_shard/_fsdp_collectives.py, foreach_reduce. Runs of FSDP
    on four CPU processes, every allocation counted: the first FSDP peaks at the end of the backward
    with three times the root in 16 bit and the shards of the layers, to 0.1 %.
    """

    head: FloatArray
    root: FloatArray
    layer: FloatArray

    @classmethod
    def of(cls, job: Job, columns: Columns, size: Sizes, compute: FloatArray) -> Unreduced:
        """Of every row."""
        several = columns.equals("sharding", "fsdp") & (columns.number("offer.count") > 1)
        trains = job.steps > 0 and not job.method.is_lora
        element = np.where(several, np.minimum(job.method.plain_bytes, compute), 0.0) * trains
        return cls(
            head=element * (size.head or size.embedding),
            root=element * (size.embedding + size.head),
            layer=element * size.largest_layer,
        )


def waits(unreduced: Unreduced) -> BoolArray:
    """[rows] whose gradients stay whole until their unit is reduced."""
    return unreduced.root > 0.0


def gathered_bytes(
    job: Job, static: Static, size: Sizes, compute: FloatArray
) -> tuple[FloatArray, ...]:
    """[bytes] of gathered weights: what stays outside the layers, and one layer, as they travel.

    The root unit holds embeddings and head and stays gathered; layers come and go, the next one
    while one runs. Weights travel in the compute dtype, quantised ones as they are stored.
    Source: Zhao 2023 (PyTorch FSDP) section 3.
    """
    missing = np.where(static.weight_shards > 1, 1.0, 0.0)
    stored = job.method.plain_bytes
    travels = np.minimum(stored, compute)
    root = travels * (size.embedding + size.head)
    inner = static.stored - stored * (size.embedding + size.head)
    share = inner / (size.layer * job.model.num_layers)  # bytes an element of a layer, stored
    if job.method.base in {"16bit", "32bit"}:
        share = travels
    layer = size.largest_layer * share
    return missing * root, missing * layer
