"""LLaMA-Factory's YAML: the job that it states, its own keys beside TrainingArguments.

Source: hparams/{model,data,finetuning,training}_args.py of llamafactory 0.9.5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.domain.typed.values import shown
from autotune.trainers.hf.adapter import all_linear, read_base, read_variant
from autotune.trainers.hf.read import (
    EPOCHS,
    HF_DEFAULTS,
    read_batch,
    read_length_of_run,
    read_model,
    read_precision,
    read_shared,
    read_words,
)
from autotune.trainers.llamafactory.keys import WORDS
from autotune.trainers.parsed import Keys, Parsed
from autotune.trainers.unknown_keys import leave_rest

if TYPE_CHECKING:
    from collections.abc import Mapping


_CUTOFF, _RANK = 2048, 8  # cutoff_len and lora_rank where the file states none


def read_file(values: Mapping[str, Any], name: str) -> Parsed:
    """The job that the file states. Raises InputError for a value of the wrong kind."""
    keys = Keys(values, name)
    parsed = Parsed("llamafactory", defaults={**HF_DEFAULTS, "activation_checkpointing": "full"})
    _read_stage(keys)
    read_model(keys, parsed)
    read_batch(keys, parsed)
    read_length_of_run(keys, parsed, EPOCHS)
    _read_method(keys, parsed)
    _read_data(keys, parsed)
    read_precision(keys, parsed)
    _read_attention(keys, parsed)
    read_shared(keys, parsed)
    read_words(keys, parsed, "activation_checkpointing", own=WORDS)
    keys.get("use_reentrant_gc")
    if keys.values.get("val_size"):
        keys.get("val_size")
        parsed.values.setdefault("evaluation", {})
    leave_rest(keys, parsed)
    return parsed


def _read_stage(keys: Keys) -> None:
    stage = keys.word("stage")
    if stage not in {None, "sft", "pt"}:
        msg = f"{keys.name}: stage is {shown(stage)}; sft and pt can be priced"
        raise InputError(msg, "reward models and preference training run other steps")


def _read_method(keys: Keys, parsed: Parsed) -> None:
    kind = keys.word("finetuning_type") or "lora"
    base = read_base(keys)
    rank, alpha = keys.whole("lora_rank", low=1), keys.number("lora_alpha")
    dropout, targets = keys.number("lora_dropout"), keys.words("lora_target")
    variant = read_variant(keys, parsed)
    if kind == "full":
        parsed.part("method", kind="full", base=base)
        return
    if kind != "lora":
        msg = f"{keys.name}: finetuning_type is {shown(kind)}; lora and full can be priced"
        raise InputError(msg)
    if rank is None:
        parsed.note("method.rank", _RANK, "lora_rank is not in the file; LLaMA-Factory's default")
    rank = rank or _RANK
    parsed.part(
        "method", kind="lora", base=base or "16bit", rank=rank, alpha=alpha or 2.0 * rank,
        dropout=dropout or 0.0, targets=all_linear(targets or ["all"]), variant=variant,
    )  # fmt: skip


def _read_data(keys: Keys, parsed: Parsed) -> None:
    length = keys.whole("cutoff_len", low=1)
    if length is None:
        why = "cutoff_len is not in the file; LLaMA-Factory's default"
        parsed.note("data.max_length", _CUTOFF, why)
    packing, neat = keys.switch("packing"), keys.switch("neat_packing")
    if packing is not None or neat is not None:
        parsed.knobs["packing"] = "on" if packing or neat else "off"
    parsed.part(
        "data", max_length=length or _CUTOFF, pretokenized=keys.word("tokenized_path") and True
    )


def _read_attention(keys: Keys, parsed: Parsed) -> None:
    stated = keys.get("flash_attn")
    word = "disabled" if stated is False else stated
    if word in (None, "auto"):
        return
    kernels = dict(WORDS["attention"][0].values)
    if isinstance(word, str) and word in kernels:
        parsed.knobs["attention"] = kernels[word]
    else:
        parsed.keep(
            "attention", "flash_attn", stated, "no such kernel here; counted as the default"
        )
