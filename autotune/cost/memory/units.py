"""What sharding moves unit by unit: weights that are gathered, gradients that wait to be reduced.

A unit is a layer; the root unit is what lies outside the layers: embeddings and head.
Covers: FSDP and ZeRO-3 with a layer a unit. Does not cover: the second FSDP's copies of a unit as
it travels, beside those of its gradients; ZeRO-3's limits on how much stays gathered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.cost import whole_modules
from autotune.cost.memory.states import beside_bytes
from autotune.cost.parameters import saved_embedding, saved_head, saved_parameters
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
    0 with adapters, which are small, and where FSDP does not run. Modules that train whole beside
    them wait with the second FSDP alone; the first has each as a unit of its own (`Outside`).

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
        several = columns.shared_by("fsdp")
        trains = job.steps > 0 and not job.method.is_lora
        element = np.where(several, np.minimum(job.method.plain_bytes, compute), 0.0) * trains
        if whole_modules.saves(job):
            apart = job.software.wraps_adapters_alone or job.steps == 0
            own = np.minimum(whole_modules.element_bytes(job, columns), compute)
            own = np.where(several, own, 0.0) * (not apart)
            head = own * float(saved_head(job.model, job.method))
            return cls(head, own * float(saved_parameters(job.model, job.method)), 0.0 * own)
        return cls(
            head=element * (size.head or size.embedding),
            root=element * (size.embedding + size.head + size.outside),
            layer=element * size.largest_layer,
        )


@dataclass(frozen=True, slots=True)
class Outside:
    """[bytes] gradients of the head and the embedding, where they are trained. Shapes [rows].

    head, embedding: on this device, once they are reduced; made_head, made_embedding: whole, as the
    backward makes them, what FSDP copies to reduce a unit of its own included. tied: one tensor.
    """

    head: FloatArray
    embedding: FloatArray
    both: FloatArray
    made_head: FloatArray
    made_embedding: FloatArray
    reducing: FloatArray
    tied: bool

    @classmethod
    def of(
        cls, job: Job, columns: Columns, static: Static, size: Sizes, compute: FloatArray
    ) -> Outside:
        """Of every row."""
        model, method, zero = job.model, job.method, np.zeros(columns.rows)
        share = static.gradients_here / static.gradient_shards
        if not method.is_lora:
            element = static.element
            head = (size.head or size.embedding) * element
            return cls(
                head=head * share,
                embedding=size.embedding * element * share,
                both=(size.head + size.embedding) * element * share,
                made_head=float(model.vocab_size * model.hidden_size) * element,
                made_embedding=size.embedding * element,
                reducing=zero,
                tied=model.tied_head,
            )
        if not whole_modules.saves(job):
            return cls(zero, zero, zero, zero, zero, zero, tied=False)
        width = whole_modules.element_bytes(job, columns)
        fsdp = columns.shared_by("fsdp")
        made = np.where(fsdp, 2.0 * np.minimum(width, compute), width)
        top, bottom = float(saved_head(model, method)), float(saved_embedding(model, method))
        return cls(
            head=top * width * share,
            embedding=bottom * width * share,
            both=(top + bottom) * width * share,
            made_head=top * made,
            made_embedding=bottom * width,
            reducing=np.where(fsdp, bottom * made, 0.0),
            tied=False,
        )


def waits(unreduced: Unreduced) -> BoolArray:
    """[rows] whose gradients stay whole until their unit is reduced."""
    return unreduced.root > 0.0


def gathered_bytes(
    job: Job, columns: Columns, static: Static, size: Sizes, compute: FloatArray
) -> tuple[FloatArray, ...]:
    """[bytes] of gathered weights: what stays outside the layers, and one layer, as they travel.

    The root unit holds embeddings and head and stays gathered; layers come and go, the next one
    while one runs. Weights travel in the compute dtype, quantised ones as they are stored.
    Source: Zhao 2023 (PyTorch FSDP) section 3.
    """
    missing = np.where(static.weight_shards > 1, 1.0, 0.0)
    stored = job.method.plain_bytes
    travels = np.minimum(stored, compute)
    outside = size.embedding + size.head + size.outside
    root = travels * outside
    inner = static.stored - stored * outside - beside_bytes(job)
    share = inner / (size.layer * job.model.num_layers)  # bytes an element of a layer, stored
    if job.method.base in {"16bit", "32bit"}:
        share = travels
    layer = size.largest_layer * share
    root = root + whole_modules.gathered_bytes(job, columns, compute)
    return missing * root, missing * layer
