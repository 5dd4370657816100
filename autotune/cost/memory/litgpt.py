"""Trainers with model code of their own: what it does otherwise than the class of transformers.

Covers: litgpt. Others are predicted as the class of transformers, with a measured offset.

Source: Lightning-AI/litgpt at 8641822 (October 2023), lit_gpt/model.py, lora.py and utils.py, and
at 6178c7cc for the norm in fp32; lightning 2.1 fabric/wrappers.py and plugins/precision/half.py,
which answer in torch's default dtype. Traced on the meta device, those files come within 0.2 % of
the published peaks of its LayerNorm models.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.domain.model import Linear

if TYPE_CHECKING:
    from autotune.domain.job import Job, Method
    from autotune.domain.model import Model

LITGPT = "litgpt"
CHUNK_TOKENS = 128.0  # tokens of a row whose logits and loss are one tensor (lm_head_chunk_size)
LOGIT_BYTES = 8.0  # of every chunk the fp32 logits that fabric answers with, and the log-softmax
_FUSED = "attn"


def is_litgpt(job: Job) -> bool:
    """Whether litgpt's own classes run."""
    return job.software.own_model and job.software.stack == LITGPT


def as_run(job: Job) -> tuple[Model, Method]:
    """The model and the method as the trainer's code arranges them.

    litgpt has one projection of queries, keys and values, with one adapter, and the values are a
    view of its output.
    """
    model, method = job.model, job.method
    split = _split(model)
    if not is_litgpt(job) or not split:
        return model, method
    rest = tuple(item for item in model.linears if item not in split)
    width = sum(item.out_features for item in split)
    fused = Linear(_FUSED, split[0].in_features, width, split[0].bias)
    targets = tuple(name for name in method.targets if all(name != item.name for item in split))
    if len(targets) < len(method.targets):
        targets = (_FUSED, *targets)
    return replace(model, linears=(fused, *rest)), replace(method, targets=targets)


def padded_update(job: Job) -> float:
    """[elements/token] of one layer's update of some of queries, keys and values.

    It is copied into zeros as wide as all three, and autograd keeps what was copied; an update of
    all three is added as it is. Where the class of transformers has one projection, its adapter
    stands for litgpt's default: queries and values.
    """
    model, targets = job.model, job.method.targets
    own = [item for item in model.linears if item.part == "attention"][:-1]
    adapted = [item for item in own if item.name in targets]
    if not is_litgpt(job) or not adapted:
        return 0.0
    if len(own) == 1:
        return float(model.query_size + model.kv_size)
    return 0.0 if len(adapted) == len(own) else float(sum(item.out_features for item in adapted))


def _split(model: Model) -> tuple[Linear, ...]:
    """Projections of queries, keys and values where they are apart."""
    own = tuple(item for item in model.linears if item.part == "attention")[:-1]
    return own if len(own) > 1 and not model.dense_linears else ()
