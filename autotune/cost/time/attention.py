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
from autotune.cost.time import flops
from autotune.domain.config import FLASH

if TYPE_CHECKING:
    from autotune.cost.columns import BoolArray, Columns, FloatArray
    from autotune.cost.time.efficiency import Efficiency
    from autotune.cost.time.step_terms import StepRows
    from autotune.domain.job import Job

# sdpa's memory-efficient kernel against flash, for the same FLOP: assumption. Of whole steps it
# makes 1.3 at 4k tokens and 1.6 at 8k, as published (huggingface/transformers issue 30461: 3,247
# to 2,483 and 3,083 to 1,918 tokens/s).
MASKED_ATTENTION = 0.75
NO_FLASH = 0.6  # devices before Ampere run the memory-efficient kernel: assumption
# Flash attention 3 against 2. ms-swift, Qwen2.5 7B in full, 16k tokens, four H20: 35.5 -> 32.4 s a
# step, 9 % of it, of which attention is about a third.
THIRD = 1.4
FLASH_SINCE = 8.0  # compute capability with flash attention


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


def attention_terms(
    job: Job, columns: Columns, rows: StepRows, efficiency: Efficiency, *, third: bool = True
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """[s] forward and [s] backward at the forward's rate, [FLOP] of both.

    Flash kernels skip the half of the scores that causality masks; with an explicit mask the
    memory-efficient kernel computes all of it, and so does eager attention, whose scores also
    travel (`step_terms`). third: False for what it takes if flash attention 3 gains nothing.
    """
    packed = columns.equals("packing", "on")
    own = flops.mean_square_length(job.lengths) / max(job.lengths.mean, 1e-9)
    separate = packed & columns.equals("attention", *FLASH)
    length = np.where(separate, np.minimum(own, rows.length), rows.length)
    sequences = rows.tokens / np.maximum(length, 1.0)
    causal = flops.attention_flop(job.model, 1.0) * sequences * length**2 / 2.0
    passes = 1.0 + rows.recomputed
    masked = np.where(
        columns.equals("attention", "sdpa"),
        masked_share(job, columns, rows.length),
        columns.equals("attention", "eager").astype(np.float64),
    )
    work = causal * (1.0 + masked * (2.0 / MASKED_ATTENTION - 1.0))
    capability = np.asarray([d.compute_capability for d in rows.devices])[rows.device]
    old = (capability > 0) & (capability < FLASH_SINCE)
    share = efficiency.attention(
        rows.device, length, sequences * job.model.num_attention_heads, job.model.head_dim
    ) * np.where(old, NO_FLASH, 1.0)
    if third:
        share = share * np.where(columns.equals("attention", FLASH[1]), THIRD, 1.0)
    once = work / (rows.peak * share)
    return once * passes, once * flops.FLASH_BACKWARD, causal * (passes + flops.EAGER_BACKWARD)
