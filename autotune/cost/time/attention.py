"""Which attention kernel really runs: the one asked for, or what the trainer makes of it.

`sdpa` is not one kernel. Causal attention without a mask takes flash; with an explicit mask it
takes the memory-efficient kernel, which computes both halves of the scores. transformers leaves the
mask out where nothing is padded, but has to look at the values of the batch's `attention_mask` for
that, and cannot while torch.compile traces the whole model. Compiled block by block, the mask is
made outside of what is compiled, as in eager mode.

Covers: padding, sliding windows, families that always pass a mask, whole-model and regional
compilation, devices without flash kernels.
Does not cover: kernels fetched from the hub; flex attention.

Source: transformers 5.23 masking_utils.py, `_ignore_causal_mask_sdpa` (issue 48925, PR 48975; with
torch before 2.14 a mask is made under compilation wherever the batch carries an `attention_mask`,
which every collator of transformers and TRL adds); the same in `AttentionMaskConverter` of 4.38 to
4.52. `tests/trace/test_attention_mask.py` runs the real call and compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.memory.modelling_code import family_memory, windowed_share
from autotune.domain.config import FLASH

if TYPE_CHECKING:
    from autotune.cost.columns import BoolArray, Columns, FloatArray
    from autotune.domain.job import Job


def padded(job: Job, columns: Columns) -> BoolArray:
    """[rows] whether batches hold padding.

    Rows of one length are not padded to the longest of them; a row by itself is only where every
    row is padded to max_length; packed sequences are filled.
    """
    fixed = job.padding == "max_length"
    shorter = job.lengths.quantiles[0] < (job.max_length if fixed else job.lengths.maximum)
    together = (columns.number("micro_batch_size") > 1) | fixed
    return shorter & together & ~columns.equals("packing", "on")


def traced_whole(job: Job, columns: Columns) -> BoolArray:
    """[rows] whether torch.compile traces the code that makes the mask.

    Model code of a trainer's own (litgpt, torchtune, llm-foundry) asks for causal attention itself.
    """
    whole = columns.equals("compile_scope", "model") & ~columns.equals("compile", "off")
    made_inside = not job.software.own_model
    return whole & made_inside & ~columns.equals("packing", "on")


def masked_share(job: Job, columns: Columns, length: FloatArray) -> FloatArray:
    """[rows] share of the layers whose attention gets an explicit mask under sdpa.

    length: [rows, tokens] of the batch, which a layer's window may be shorter than.
    """
    whole = padded(job, columns) | traced_whole(job, columns)
    if family_memory(job.model.family).always_masked:
        whole = np.ones(columns.rows, np.bool_)
    window = job.model.sliding_window or np.inf
    return np.where(whole, 1.0, np.where(length >= window, windowed_share(job.model), 0.0))


def waits_for_lengths(job: Job, columns: Columns) -> BoolArray:
    """[rows] whether flash attention 2 asks the device for the lengths of padded rows.

    Once a layer, in the forward only; an all-ones mask is dropped once, before the layers.
    Source: transformers 5.23 modeling_flash_attention_utils.py, `_upad_input` (nonzero and item).
    """
    asked = columns.equals("attention", *FLASH)
    return asked & padded(job, columns)
