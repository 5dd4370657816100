"""What is simpler to run: fewer frameworks, fewer processes, the trainer's own settings.

A difference that no measurement shows should buy simplicity first and headroom next: nobody should
install, start or change something for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autotune.cost.bill import Bill
    from autotune.cost.columns import FloatArray
    from autotune.domain.config import KnobValue

MEMORY_STEP = 0.01  # of usable memory; less than this between two candidates is no difference
SHARDING_ORDER = ("none", "ddp", "fsdp", "zero2", "zero3")  # what needs less to run comes first
ATTENTION_ORDER = ("sdpa", "flash_attention_2", "flash_attention_3", "eager")
# Knobs whose values need a package beside the trainer and torch; sharding has an order of its own.
PACKAGED: Mapping[str, frozenset[str]] = {
    "attention": frozenset({"flash_attention_2", "flash_attention_3"}),
    "kernels": frozenset({"liger", "chunked_loss"}),
    "optimizer": frozenset({"adamw_bnb_8bit", "paged_adamw_8bit"}),
}
# What transformers' Trainer does where nothing is stated, of knobs that say how it runs.
DEFAULTS: Mapping[str, KnobValue] = {
    "prefetch_factor": 2, "pin_memory": True, "compile": "off", "compile_scope": "model",
    "activation_checkpointing": "none", "attention": "sdpa", "optimizer": "adamw_torch_fused",
    "adapter_dtype": "fp32", "packing": "off", "length_grouping": "off", "kernels": "none",
    "offload": "none",
}  # fmt: skip

Indices = np.ndarray[tuple[int], np.dtype[np.intp]]


def simplicity(bill: Bill, at: Indices) -> list[FloatArray]:
    """Sort keys of candidates, the weightiest first: the simplest sorts lowest.

    The way to share the work, packages that today's run does not have, loader processes, settings
    that are neither the trainer's default nor today's; then memory, the micro-batch, and the
    attention kernel of today.
    """
    return [
        column(bill, "sharding", _ranks(bill, "sharding", SHARDING_ORDER[1:]), at),
        sum((_odd(bill, name, values, at) for name, values in PACKAGED.items()), np.zeros(len(at))),
        column(
            bill, "num_dataloader_workers", bill.candidates.levels["num_dataloader_workers"], at
        ),
        sum((_changed(bill, name, at) for name in DEFAULTS), np.zeros(len(at))),
        np.floor(bill.memory_bytes[at] / bill.usable_bytes[at] / MEMORY_STEP),
        column(bill, "micro_batch_size", bill.candidates.levels["micro_batch_size"], at),
        column(bill, "attention", _attention_ranks(bill), at),
    ]


def column(bill: Bill, axis: str, ranks: Iterable[float], at: Indices) -> FloatArray:
    """[at] a number for each level of an axis, gathered for candidates."""
    of_level = np.asarray(list(ranks), np.float64)
    found: FloatArray = of_level[bill.candidates.codes[axis][at]]
    return found


def _ranks(bill: Bill, axis: str, order: tuple[str, ...]) -> list[int]:
    levels = bill.candidates.levels[axis]
    return [order.index(str(value)) if value in order else -1 for value in levels]


def _todays(bill: Bill, name: str) -> KnobValue | None:
    today = bill.job.today
    found: KnobValue | None = getattr(today, name) if today is not None else None
    return found


def _odd(bill: Bill, name: str, values: frozenset[str], at: Indices) -> FloatArray:
    """1 where a value needs a package that today's run does not use."""
    if name not in bill.candidates.levels:
        return np.zeros(len(at))
    own = _todays(bill, name)
    ranks = [value in values and value != own for value in bill.candidates.levels[name]]
    return column(bill, name, ranks, at)


def _changed(bill: Bill, name: str, at: Indices) -> FloatArray:
    """1 where a value is neither the trainer's default nor today's."""
    if name not in bill.candidates.levels:
        return np.zeros(len(at))
    usual = {DEFAULTS[name], _todays(bill, name)}
    return column(bill, name, [v not in usual for v in bill.candidates.levels[name]], at)


def _attention_ranks(bill: Bill) -> list[int]:
    """The kernel that is used today first: nobody should change it for nothing."""
    own = _todays(bill, "attention")
    levels = bill.candidates.levels["attention"]
    return [-1 if value == own else ATTENTION_ORDER.index(str(value)) for value in levels]
