"""What a trainer does to a quantised base before it trains: what becomes fp32, and adapters' dtype.

Source: peft 0.21 utils/other.py, prepare_model_for_kbit_training: all that is not quantised becomes
fp32, but for GPTQ, AQLM, EETQ, HQQ and torchao. trl 0.7.5 to 0.29 call it and, under bf16 on a
4-bit base, trainer/utils.py peft_module_casting_to_bf16: adapters, embeddings and head go back to
bf16, norms stay; trl 1.x calls neither. axolotl loaders/model.py: norms and embeddings go back to
the compute dtype where flash attention needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.evidence.record.notes import version_of

if TYPE_CHECKING:
    from autotune.domain.software import KbitUpcast
    from autotune.evidence.record.row import Row

PREPARED = "prepare_model_for_kbit_training"
UNTOUCHED = ("gptq", "awq", "aqlm", "eetq", "hqq", "torchao")
TRL_PREPARES_UNTIL, TRL_PREPARED_UNTIL = (1, 0), (2026, 3)  # version, and month where none is told


def kbit_upcast_of(row: Row, trainer: str) -> KbitUpcast:
    """What stays in fp32 beside a quantised base."""
    base = row.words["quant"]
    if base in {"", "none"} or any(word in base for word in UNTOUCHED):
        return "none"
    if PREPARED in row.notes:
        return "all"
    if trainer == "axolotl":
        return "none" if row.words["attn"].startswith(("fa", "flash")) else "all"
    if not _trl_prepares(row, trainer):
        return "none"
    return "norms" if casts_adapters(row, trainer) else "all"


def casts_adapters(row: Row, trainer: str) -> bool:
    """Whether adapters on a 4-bit base are stored in bf16."""
    base = row.words["quant"]
    four = "4" in base and not any(word in base for word in UNTOUCHED)
    return four and row.words["precision"] == "bf16" and _trl_prepares(row, trainer)


def _trl_prepares(row: Row, trainer: str) -> bool:
    if trainer != "trl":
        return False
    version = version_of("trl", row.notes)
    return row.date < TRL_PREPARED_UNTIL if version is None else version < TRL_PREPARES_UNTIL
