"""What is alive on one device while it evaluates: a batch that is scored, or generated from.

And the logits that wait for the metrics. Does not cover: beams; rows that stop early.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.memory import logits as head_memory
from autotune.cost.memory.instants import larger
from autotune.cost.memory.states import dequantised_bytes, merged_experts_bytes
from autotune.cost.parameters import kept_keys
from autotune.domain.software import EVALUATES_WITHOUT_CACHE_FROM, LOSS_COPIES_FROM

if TYPE_CHECKING:
    from autotune.cost.columns import FloatArray
    from autotune.cost.memory.instants import Instant
    from autotune.cost.memory.step import Step


def evaluation(step: Step) -> Instant:
    """An evaluation batch: scoring it, or the last token that is generated, whichever is larger."""
    scoring, plan = _scoring(step), step.job.evaluation
    if plan is None or plan.generate_tokens == 0:
        return scoring
    return larger(scoring, _generation(step, plan.generate_tokens))


def _scoring(step: Step) -> Instant:
    """Scoring: the logits, or one layer's forward if that is larger; old releases fill a cache."""
    resident = step.resident(step.standing)
    if step.job.evaluation is None:
        return resident
    caches = step.job.software.transformers < EVALUATES_WITHOUT_CACHE_FROM
    inside, logits = scored(step, step.evaluation_rows * step.length)
    return replace(
        resident,
        activations=_cache(step, step.length) * caches + inside,
        logits=logits,
        workspace=resident.workspace + step.gathered_layer + dequantised_bytes(step.job, step.size),
    )


def metrics(step: Step) -> Instant:
    """The kept logits as the last batch joins them: what there was, the batch, and both in one.

    Accelerate hands them on in fp32 under autocast, as older classes make them.
    Source: transformers 5.23 trainer_pt_utils.py, EvalLoopContainer.add, torch_pad_and_concatenate;
    accelerate 1.15 accelerator.py, prepare_model: convert_outputs_to_fp32.
    """
    joined = np.where(step.kept_rows > step.gathered_rows, 2.0, 1.0)
    wide = step.autocast | (step.job.software.transformers < LOSS_COPIES_FROM)
    each = np.where(wide, 4.0, step.compute) * step.length * step.job.model.vocab_size
    return replace(step.resident(step.standing), logits=joined * step.kept_rows * each)


def scored(step: Step, tokens: FloatArray) -> tuple[FloatArray, FloatArray]:
    """[bytes] activations and logits of a forward without gradients over so many tokens."""
    model, e = step.job.model, step.compute
    scores = np.where(step.eager, 6.0 * tokens * step.length * model.num_attention_heads, 0.0)
    inside = e * tokens * (4.0 * model.hidden_size + 3.0 * model.intermediate_size) + scores
    inside = inside + merged_experts_bytes(step.job) + step.norms
    logits = head_memory.evaluation_bytes(step.job, tokens, e, step.autocast)
    hidden = e * tokens * model.hidden_size
    deeper = inside > logits + hidden
    return np.where(deeper, inside, hidden), np.where(deeper, 0.0, logits)


def _generation(step: Step, new_tokens: int) -> Instant:
    """The last generated token: keys and values of everything before it."""
    resident = step.resident(step.standing)
    return replace(
        resident,
        activations=_cache(step, step.length + new_tokens),
        workspace=resident.workspace + step.gathered_layer + dequantised_bytes(step.job, step.size),
    )


def _cache(step: Step, length: FloatArray) -> FloatArray:
    """[bytes] keys and values of every layer for the rows of an evaluation batch."""
    each = 2.0 * kept_keys(step.job.model) * step.compute
    return each * step.evaluation_rows * length
