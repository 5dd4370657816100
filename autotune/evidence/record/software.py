"""What software a measured run had: its trainer, versions, kernels, and what became of its base.

Versions are those that a source pins, else follow from its date.

Source of what a trainer does to a quantised base before it trains: peft 0.21 utils/other.py,
prepare_model_for_kbit_training: all that is not quantised becomes fp32, but for GPTQ, AQLM, EETQ,
HQQ and torchao. trl 0.7.5 to 0.29 call it and, under bf16 on a 4-bit base, trainer/utils.py
peft_module_casting_to_bf16: adapters, embeddings and head go back to bf16, norms stay; trl 1.x
calls neither. axolotl loaders/model.py: norms and embeddings go back to the compute dtype where
flash attention needs it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autotune.domain.software import (
    FSDP2_DEFERS_FROM,
    FSDP2_DEFERS_SINCE,
    TRL_PREPARES_UNTIL,
    Software,
    Version,
)
from autotune.evidence.record.kernels import (
    FMS,
    OWN_CODE,
    autocast_of,
    gptq_of,
    kernels_of,
    own_operations,
)
from autotune.evidence.record.notes import reentrant_of, version_of
from autotune.evidence.record.row import SAVES

if TYPE_CHECKING:
    from autotune.domain.software import KbitUpcast
    from autotune.evidence.record.row import Row


# First month of a minor release. Source: release dates on PyPI.
TRANSFORMERS = (
    ((2023, 1), (4, 26)), ((2023, 7), (4, 31)), ((2023, 10), (4, 35)), ((2024, 1), (4, 37)),
    ((2024, 4), (4, 40)), ((2024, 6), (4, 42)), ((2024, 8), (4, 44)), ((2024, 10), (4, 45)),
    ((2024, 11), (4, 46)), ((2025, 1), (4, 48)), ((2025, 3), (4, 50)), ((2025, 6), (4, 52)),
    ((2025, 9), (4, 56)), ((2026, 1), (5, 0)), ((2026, 7), (5, 12)),
)  # fmt: skip
TORCH = (
    ((2023, 1), (2, 0)), ((2023, 10), (2, 1)), ((2024, 2), (2, 2)), ((2024, 5), (2, 3)),
    ((2024, 8), (2, 4)), ((2024, 11), (2, 5)), ((2025, 2), (2, 6)), ((2025, 5), (2, 7)),
    ((2025, 8), (2, 8)), ((2025, 11), (2, 9)), ((2026, 2), (2, 10)), ((2026, 6), (2, 12)),
)  # fmt: skip

# First month of a release of flash-attn. Source: release dates on PyPI.
FLASH_ATTENTION = (
    ((2022, 11), (0, 2)), ((2023, 4), (1, 0)), ((2023, 7), (2, 0)), ((2023, 10), (2, 3)),
    ((2024, 1), (2, 5)), ((2024, 7), (2, 6)), ((2024, 11), (2, 7)), ((2025, 6), (2, 8)),
)  # fmt: skip

# Pinned by the requirements files beside the tables of fms-acceleration: (table, from month,
# transformers, torch), newest first. The main table was measured again with each set.
PINNED = (
    ("granite", (2024, 1), (4, 45, 2), (2, 4, 1)),
    ("liger", (2024, 1), (4, 45, 2), (2, 4, 1)),
    ("moe", (2025, 5), (4, 52, 4), (2, 6, 0)),
    ("moe", (2024, 1), (4, 45, 2), (2, 4, 1)),
    ("refs_orca", (2024, 1), (4, 44, 2), (2, 4, 0)),
    ("a100_80gb.csv", (2025, 1), (4, 48, 1), (2, 4, 1)),
    ("a100_80gb.csv", (2024, 10), (4, 45, 2), (2, 4, 1)),
    ("a100_80gb.csv", (2024, 9), (4, 44, 2), (2, 4, 1)),
    ("a100_80gb.csv", (2024, 1), (4, 43, 3), (2, 4, 0)),
)
# Its plain way to train a quantised base: peft's prepare_model_for_kbit_training, fp32 norms.
BASELINE_PEFT = "framework_config=baseline-peft"

# Trainers by what a source is called or its notes say, first match first. Those of `HF_TRAINERS`
# drive transformers' Trainer; the others run loops of their own.
TRAINERS = (
    ("llamafactory", re.compile(r"llama-factory", re.IGNORECASE)),
    ("unsloth", re.compile(r"unsloth", re.IGNORECASE)),
    ("ms-swift", re.compile(r"ms-swift", re.IGNORECASE)),
    ("axolotl", re.compile(r"axolotl", re.IGNORECASE)),
    ("torchtune", re.compile(r"torchtune", re.IGNORECASE)),
    ("fms", re.compile(r"fms-acceleration|fms-hf-tuning")),
    ("peft", re.compile(r"huggingface/peft")),
    ("trl", re.compile(r"\bTRL\b|SFTTrainer|DPOTrainer|huggingface/trl|\btrl \d")),
    (
        "transformers",
        re.compile(
            r"HF Trainer|subclass of Trainer|stanford_alpaca|QwenLM/Qwen\b|huggingface/transformers"
        ),
    ),
)
HF_TRAINERS = frozenset(
    {"unsloth", "ms-swift", "axolotl", "llamafactory", "fms", "trl", "transformers"}
)

OWN_MODEL = (
    "litgpt",
    "llm-foundry",
    "torchtitan",
    "nanochat",
)  # model code that is not transformers'


def _at(table: tuple[tuple[tuple[int, int], Version], ...], date: tuple[int, int]) -> Version:
    reached = [version for month, version in table if month <= date]
    return reached[-1] if reached else table[0][1]


def _pinned(row: Row) -> tuple[Version, Version] | None:
    path = f"{row.texts['source_repo']}/{row.texts['source_path']}"
    if FMS not in path:
        return None
    for table, since, transformers, torch in PINNED:
        if table in path and row.date >= since:
            return transformers, torch
    return None


def trainer_of(row: Row) -> str:
    """The trainer behind a row, by its source and its notes; empty where neither names one."""
    if any(name in row.words["source_repo"] for name in OWN_MODEL):
        return ""
    for text in (row.texts["source_repo"], row.notes):
        for name, pattern in TRAINERS:
            if pattern.search(text):
                return name
    return ""


def has_own_model(row: Row) -> bool:
    """Whether the model code is not transformers', by the source or by its notes."""
    named = any(name in row.words["source_repo"] for name in OWN_MODEL)
    return named or OWN_CODE.search(row.notes) is not None


def stack_of(row: Row, trainer: str) -> str:
    """The training code behind a row: "hf" where its trainer drives transformers' Trainer."""
    if trainer in HF_TRAINERS:
        return "hf"
    return trainer or row.texts["source_repo"].split(" ", maxsplit=1)[0].rpartition("/")[2]


def flash_attention_of(row: Row, stated: Version | None) -> Version | None:
    """The version of flash-attn that ran or was installed; None where the row names no such kernel.

    stated: by the notes. Where only "flash" is known, the newest release of the run's month.
    """
    if stated is not None:
        return stated
    if not row.words["attn"].startswith(("fa", "flash")):
        return None
    return _at(FLASH_ATTENTION, row.date)


# Of rows that state none. 37 nf4 rows of fms-acceleration are 0.8 % off as of a release whose
# products keep nothing of what they read, and 4.1 % as of the one before.
BITSANDBYTES = (0, 43, 2)


PACKAGES = (
    "transformers", "torch", "trl", "peft", "accelerate", "flash_attn", "bitsandbytes",
)  # fmt: skip


def software_of(row: Row) -> Software:
    """The profile of the run. Versions that nobody states follow from the date."""
    notes = row.notes
    stated = {package: version_of(package, notes) for package in PACKAGES}
    reentrant = reentrant_of(notes)
    pinned = _pinned(row)
    by_date = pinned or (_at(TRANSFORMERS, row.date), _at(TORCH, row.date))
    transformers = stated["transformers"] or by_date[0]
    year, month = row.date
    trainer = trainer_of(row)
    own_model = has_own_model(row)
    flash_attn = flash_attention_of(row, stated["flash_attn"])
    stack = stack_of(row, trainer)
    upcast = kbit_upcast_of(row, trainer, stated["trl"])
    around = not own_model and checkpoints_by_model(row, trainer)
    each = reduces_each(row, trainer, stated["accelerate"])
    kernels, loss = kernels_of(row, transformers)
    steps_in_backward, fused_adapters = own_operations(row)
    return Software(
        name=f"{row.texts['source_repo']} {year}-{month:02d}",
        as_of=f"{year}-{month:02d}",
        torch=stated["torch"] or by_date[1],
        transformers=transformers,
        trl=stated["trl"],
        peft=stated["peft"] or ((0, 12, 0) if year < 2025 else (0, 15, 0)),  # noqa: PLR2004 - a release by year
        accelerate=stated["accelerate"] or (1, 0, 0),
        flash_attn=flash_attn,
        flash_attn_3=(3, 0, 0) if row.words["attn"].startswith("fa3") else None,
        bitsandbytes=stated["bitsandbytes"] or BITSANDBYTES,
        kernels=kernels,  # type: ignore[arg-type]  # one of the three words above
        loss=loss,
        autocast=autocast_of(row),
        own_model=own_model or trainer == "torchtune",
        steps_in_backward=steps_in_backward,
        fused_adapters=fused_adapters,
        syncs_each_batch=each,
        empties_cache="cache emptied every" in row.notes,
        gptq=gptq_of(row),
        kbit_upcast=upcast,
        recomputes_outside_fsdp=around,
        reentrant=reentrant,
        stack=stack,
        trainer=trainer,
        saves_as_loaded=row.words["task"] in SAVES,
        cudnn_attention=True,
    )


def reduces_each(row: Row, trainer: str, accelerate: Version | None) -> bool:
    """Whether gradients are reduced after each micro-step: FSDP2 by an older accelerate."""
    if (
        trainer not in HF_TRAINERS
        or "fsdp2" not in f"{row.words['parallelism']} {row.notes}".lower()
    ):
        return False
    return row.date < FSDP2_DEFERS_SINCE if accelerate is None else accelerate < FSDP2_DEFERS_FROM


FSDP_CHECKPOINTS = "fsdp_activation_checkpointing"  # accelerate's, which wraps inside of units


def checkpoints_by_model(row: Row, trainer: str) -> bool:
    """Whether layers are checkpointed by transformers' own switch, as its Trainer does.

    Loops of one's own wrap layers inside of FSDP's units (torch's `apply_activation_checkpointing`:
    llama-recipes, VectorLM, Lightning's FSDPStrategy), unless the notes name the switch.
    Source: lightning 2.1 fabric/strategies/fsdp.py, `_setup_activation_checkpointing`; accelerate
    1.0 accelerator.py, `prepare_model`.
    """
    if FSDP_CHECKPOINTS in row.notes:
        return False
    return trainer in HF_TRAINERS or "gradient_checkpointing_enable" in row.notes


# Of peft; before 0.3 its name is prepare_model_for_int8_training.
PREPARED = re.compile(r"prepare_model_for_(?:kbit|int8)_training")
UNTOUCHED = ("gptq", "awq", "aqlm", "eetq", "hqq", "torchao")
TRL_PREPARED_UNTIL = (2026, 3)  # the month of 1.0, where no version is told


def kbit_upcast_of(row: Row, trainer: str, trl: Version | None) -> KbitUpcast:
    """What stays in fp32 beside a quantised base."""
    base = row.words["quant"]
    if BASELINE_PEFT in row.notes:
        return "norms"
    if base in {"", "none"} or any(word in base for word in UNTOUCHED):
        return "none"
    if PREPARED.search(row.notes):
        return "all"
    if trainer == "axolotl":
        return "none" if row.words["attn"].startswith(("fa", "flash")) else "all"
    if not _trl_prepares(row, trainer, trl):
        return "none"
    return "norms" if casts_adapters(row, trainer, trl) else "all"


def casts_adapters(row: Row, trainer: str, trl: Version | None) -> bool:
    """Whether adapters on a 4-bit base are stored in bf16. trl: its version, where one is told."""
    base = row.words["quant"]
    four = "4" in base and not any(word in base for word in UNTOUCHED)
    return four and row.words["precision"] == "bf16" and _trl_prepares(row, trainer, trl)


def _trl_prepares(row: Row, trainer: str, trl: Version | None) -> bool:
    if trainer != "trl":
        return False
    return row.date < TRL_PREPARED_UNTIL if trl is None else trl < TRL_PREPARES_UNTIL
