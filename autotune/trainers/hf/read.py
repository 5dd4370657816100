"""Arguments of transformers' Trainer and TRL's SFTTrainer -> the job they state.

Also the part that LLaMA-Factory, Unsloth and axolotl take over from TrainingArguments. All
spellings since transformers 4.40 are read. Source: training_args.py of transformers 4.57.6 to
5.23.0, sft_config.py and model_config.py of trl 1.0 to 1.16.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from autotune.domain.config import NEVER_STEPS, hub_attention
from autotune.domain.errors import InputError
from autotune.domain.job import Uncounted
from autotune.trainers import words
from autotune.trainers.hf.adapter import OWN_FLAGS, read_adapter, say_compute_dtype
from autotune.trainers.hf.evaluation import (
    AT_MOST,
    HELD_OUT,
    read_evaluation,
    read_held_out,
    read_rows_at_most,
    times_an_epoch,
)
from autotune.trainers.hf.keys import (
    ATTENTION,
    BY_SCRIPT,
    CHECKPOINTING,
    COMPILE_MODES,
    MODEL,
    PADS,
    PREPARED,
    WORDS,
    own_checkpointing,
    read_words,
)
from autotune.trainers.hf.recipes import OWN_BATCH, own_count
from autotune.trainers.parsed import Keys, Parsed
from autotune.trainers.schema import leave_rest, older_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import KnobValue
    from autotune.trainers.words import Words

# What TrainingArguments does where nothing is stated. Absent: depends on the model or the device,
# or keeps every checkpoint.
HF_DEFAULTS: dict[str, KnobValue] = {
    "micro_batch_size": 8, "gradient_accumulation_steps": 1, "num_dataloader_workers": 0,
    "prefetch_factor": 2, "pin_memory": True, "checkpoint_every_steps": 500, "compile": "off",
    "activation_checkpointing": "none", "optimizer": "adamw_torch_fused", "packing": "off",
    "length_grouping": "off", "adapter_dtype": "fp32", "kernels": "none",
    "offload": "none",
}  # fmt: skip
TRL_DEFAULTS: dict[str, KnobValue] = {
    **HF_DEFAULTS, "precision": "bf16", "activation_checkpointing": "full",
}  # fmt: skip
EPOCHS = 3.0  # num_train_epochs of TrainingArguments
TRL_MAX_LENGTH = 1024  # max_length of SFTConfig

MAX_LENGTH = ("max_length", "max_seq_length", "model_max_length", *OWN_FLAGS["max_length"])
FSDP_OFFLOADS = ("cpu_offload", "offload_params", "fsdp_offload_params")


def read_arguments(values: Mapping[str, Any], name: str, trainer: str) -> Parsed:
    """The job of a mapping of arguments; `trainer` is hf or trl.

    Raises InputError for a value of the wrong kind, or two spellings that differ.
    """
    keys = Keys(values, name)
    parsed = Parsed(trainer, defaults=dict(TRL_DEFAULTS if trainer == "trl" else HF_DEFAULTS))
    read_batch(keys, parsed)
    read_length_of_run(keys, parsed, EPOCHS, *OWN_FLAGS["epochs"])
    read_model(keys, parsed)
    read_adapter(keys, parsed)
    parsed.kbit_prepared = keys.switch(PREPARED) is True
    length = keys.whole(*MAX_LENGTH, low=1)
    if length is None and trainer == "trl":
        length = TRL_MAX_LENGTH
        why = "not in the file; SFTConfig's default, which cuts rows"
        parsed.note("data.max_length", length, why)
    parsed.part("data", max_length=length, padding=read_padding(keys))
    read_precision(keys, parsed)
    say_compute_dtype(keys, parsed)
    read_attention(keys, parsed, "attn_implementation", "model_init_kwargs.attn_implementation")
    if keys.get("fsdp"):
        parsed.knobs["sharding"] = "fsdp"
    keys.get("fsdp_config")
    keys.get("deepspeed")
    _read_own_flags(keys, parsed)
    read_held_out(keys, parsed, *HELD_OUT)
    read_rows_at_most(keys, parsed, *AT_MOST)
    read_shared(keys, parsed)
    read_words(keys, parsed, "packing")
    if "packing" not in parsed.knobs and keys.switch(*OWN_FLAGS["packing"]):
        parsed.knobs["packing"] = "on"
        parsed.keep("packing", "sample_packing", "true", "a program's own word for it")
    if trainer == "trl":
        older_defaults(keys, parsed)
    leave_rest(keys, parsed)
    return parsed


def read_padding(keys: Keys) -> str | None:
    """Rows that a program's own code fills up to the length; None: to the longest of a batch."""
    return "max_length" if keys.switch(PADS) else None


_STAGES = {"0": "ddp", "1": "zero2", "2": "zero2", "3": "zero3"}


def _read_own_flags(keys: Keys, parsed: Parsed) -> None:
    """Flags that public scripts have beside the Trainer's.

    Source: peft examples/sft/utils.py, DeepSpeed-Chat's main.py, FastChat's train.py, qlora.py.
    """
    stage = keys.get("zero_stage")
    if str(stage) in _STAGES:
        parsed.knobs.setdefault("sharding", _STAGES[str(stage)])
        parsed.part("deepspeed", stage=1 if str(stage) == "1" else None)
    if any(keys.switch(name) for name in OWN_FLAGS["attention"]):
        parsed.knobs.setdefault("attention", "flash_attention_2")
    source = keys.whole("source_max_len", "max_source_length")
    target = keys.whole("target_max_len", "max_target_length")
    if source is not None and target is not None and keys.spelled(*MAX_LENGTH) is None:
        parsed.part("data", max_length=source + target)


def read_shared(keys: Keys, parsed: Parsed) -> None:
    """What every trainer on top of TrainingArguments spells as it does."""
    read_words(keys, parsed, "kernels")
    read_syncing(keys, parsed)
    read_loading(keys, parsed)
    read_saving(keys, parsed)
    read_compile(keys, parsed)
    read_optimizer(keys, parsed)
    read_words(keys, parsed, "length_grouping")
    read_checkpointing(keys, parsed)
    read_evaluation(keys, parsed)


def read_batch(keys: Keys, parsed: Parsed) -> None:
    """Micro-batch and accumulation; the trainer's default where one is not stated."""
    for knob in ("micro_batch_size", "gradient_accumulation_steps"):
        names = [word.key for word in WORDS[knob]]
        stated = keys.get(*names)
        if stated == "auto":
            parsed.note(names[0], "auto", "the trainer's default is counted")
            continue
        value = words.read(knob, keys, WORDS)
        if value is None and knob in OWN_BATCH:
            value = own_count(keys, parsed, knob)
        if value is None:
            why = f"{names[0]} is not in the file; the trainer's default"
            parsed.note(knob, parsed.defaults[knob], why)
        else:
            parsed.knobs[knob] = value


def read_length_of_run(keys: Keys, parsed: Parsed, default: float, *more: str) -> None:
    """Epochs, or steps where they are stated: max_steps wins, as in the Trainer.

    more: other names of the epochs.
    """
    steps = keys.whole("max_steps", *OWN_FLAGS["max_steps"], low=-1)
    low = -1 if (steps or 0) > 0 else 0  # the Trainer does not ask for epochs then
    epochs = keys.number("num_train_epochs", "num_epochs", *more, low=low)
    if steps is not None and steps > 0:
        parsed.part("train", steps=steps)
        return
    if epochs is None:
        parsed.note("train.epochs", f"{default:g}", "not in the file; the trainer's default")
    if (epochs := default if epochs is None else epochs) > 0:
        parsed.part("train", epochs=epochs)


def read_model(keys: Keys, parsed: Parsed) -> None:
    """The model's name, if the file holds it."""
    if (name := keys.word(*MODEL)) is not None:
        parsed.values["model"] = name


def read_precision(keys: Keys, parsed: Parsed) -> None:
    """bf16, fp16, tf32 and LLaMA-Factory's pure_bf16 as the compute dtype."""
    bf16, fp16, tf32 = keys.switch("bf16", "pure_bf16"), keys.switch("fp16"), keys.switch("tf32")
    if bf16 and fp16:
        msg = f"{keys.name}: bf16 and fp16 are both true"
        raise InputError(msg, "one of them must be false")
    plain = keys.switch("bfloat16"), keys.switch("float16")  # axolotl: without mixed precision
    parsed.mixed = bool(bf16 or fp16) and not any(plain) and keys.switch("pure_bf16") is not True
    if keys.switch("fp8"):
        parsed.knobs["precision"] = "fp8"
    elif any(plain):
        parsed.knobs["precision"] = "bf16" if plain[0] else "fp16"
    elif bf16 or fp16:
        parsed.knobs["precision"] = "bf16" if bf16 else "fp16"
    elif bf16 is False and parsed.values.get("method", {}).get("base") == "32bit":
        parsed.knobs["precision"] = "tf32" if tf32 else "fp32"
    elif bf16 is False:
        parsed.defaults.pop("precision", None)


def attention_of(stated: str) -> str | None:
    """The knob's value of a kernel by its name, as a package or as one of the hub's."""
    return dict(ATTENTION).get(stated) or hub_attention(stated)


def read_attention(keys: Keys, parsed: Parsed, *names: str) -> None:
    """The attention kernel."""
    stated = keys.word(*names)
    if stated is None or stated == "auto":
        return
    kernel = attention_of(stated)
    if kernel is not None:
        parsed.knobs["attention"] = kernel
        parsed.hub_kernels = hub_attention(stated) is not None
    else:
        parsed.keep("attention", names[0], stated, "no such kernel here; counted as the default")


def read_loading(keys: Keys, parsed: Parsed) -> None:
    """Data loader: workers, prefetch, pinned memory."""
    read_words(keys, parsed, "num_dataloader_workers", "prefetch_factor", "pin_memory")
    keys.get("dataloader_persistent_workers")


def read_syncing(keys: Keys, parsed: Parsed) -> None:
    """Whether gradients are reduced after every micro-step.

    Source: transformers 5.23 trainer.py, where `sync_each_batch` keeps it out of `no_sync`.
    """
    stated = keys.switch("accelerator_config.gradient_accumulation_kwargs.sync_each_batch")
    parsed.syncs_each_batch = stated is True


def read_saving(keys: Keys, parsed: Parsed) -> None:
    """How often a checkpoint is saved: in steps, an epoch, or never; and whether states are in it.

    Source: transformers 5.23 trainer.py, `_save_checkpoint`.
    """
    if keys.switch("save_only_model"):
        parsed.saves_model_only = True
        why = "no optimizer states are saved: a run that goes on from one starts them anew"
        parsed.note("save_only_model", "true", why)
    strategy = keys.word("save_strategy")
    every = keys.number("save_steps", low=-1)
    limit = keys.whole("save_total_limit", low=-1)
    if limit and limit > 0:  # the Trainer keeps all at 0 and below
        parsed.knobs["save_total_limit"] = limit
    if keys.switch("load_best_model_at_end"):
        why = "saves must meet the evaluations where the best is loaded at the end"
        parsed.keep("checkpoint_every_steps", "load_best_model_at_end", "true", why)
    if strategy == "epoch":
        parsed.saves_per_epoch = 1.0
    elif strategy == "no":
        _never_save(parsed, "save_strategy", strategy)
    elif strategy == "best":
        parsed.note("save_strategy", strategy, "counted as a save every 500 steps")
    elif every is not None and every >= 1:
        parsed.knobs["checkpoint_every_steps"] = int(every)
    elif every and every > 0:
        _save_by_share(parsed, every)
    elif every is not None and every < 0:
        _never_save(parsed, "save_steps", f"{every:g}", at_the_end=True)


def _never_save(parsed: Parsed, key: str, stated: str, *, at_the_end: bool = False) -> None:
    """Nothing is saved before the end, and that stays so.

    at_the_end: the last step is saved. Source: transformers 5.23 trainer_callback.py,
    DefaultFlowCallback: with save_strategy "steps" it is, whatever save_steps say.
    """
    parsed.knobs["checkpoint_every_steps"] = NEVER_STEPS - at_the_end
    parsed.knobs.setdefault("save_total_limit", 1)  # of none
    parsed.kept.add("save_total_limit")
    why = "nothing is saved before the end: what stops the run loses all of it"
    parsed.keep("checkpoint_every_steps", key, stated, why)


def _save_by_share(parsed: Parsed, share: float) -> None:
    """`save_steps: 0.1`: ten saves over the whole run."""
    train = parsed.values.get("train", {})
    if "steps" in train:
        parsed.knobs["checkpoint_every_steps"] = math.ceil(share * train["steps"])
    elif train.get("epochs"):
        parsed.saves_per_epoch = times_an_epoch(share, train["epochs"])


def read_compile(keys: Keys, parsed: Parsed) -> None:
    """torch.compile; a mode switches it on by itself."""
    wanted, mode = keys.switch("torch_compile"), keys.word("torch_compile_mode")
    keys.get("torch_compile_backend")
    if mode is not None and wanted is not False and mode not in COMPILE_MODES:
        parsed.keep("compile", "torch_compile_mode", mode, "counted as mode default")
        parsed.knobs["compile"] = "default"
    elif wanted or (mode is not None and wanted is None):
        parsed.knobs["compile"] = mode or "default"
    elif wanted is False:
        parsed.knobs["compile"] = "off"


def read_optimizer(keys: Keys, parsed: Parsed, own: Words = WORDS) -> None:
    """The optimizer; one that has no knob stays, and is counted as the default."""
    name = own["optimizer"][0].key
    stated = keys.word(name)
    read_words(keys, parsed, "optimizer", own=own)
    if name == "optim" and keys.switch("adafactor"):  # older, and wins: training_args.py
        parsed.knobs.pop("optimizer", None)
        keep_optimizer(parsed, "adafactor", "adafactor")
    elif stated is not None and "optimizer" not in parsed.knobs:
        keep_optimizer(parsed, name, stated)


# Optimizers whose states are smaller or larger than AdamW's, or that do other work: how far their
# run may lie from AdamW's. Assumptions: Lion keeps one moment of two, Adafactor nearly none, Muon
# one and some matrix products.
_OTHER_OPTIMIZER_SD, _NO_MOMENTS_SD = (0.10, 0.25), (0.10, 0.10)
# Their states take next to nothing of the device. bitsandbytes allocates those of its paged ones in
# unified memory, outside torch's allocator, from which the driver evicts what does not fit;
# Adafactor without a first moment keeps a row and a column of each matrix, and SGD without momentum
# nothing. Source: bitsandbytes 0.50 optim/optimizer.py, get_state_buffer; transformers 5.23
# optimization.py, Adafactor, and trainer.py, which gives it no beta1; torch.optim.SGD.
_NO_MOMENTS = re.compile(r"(?:.*\.)?(?:paged_?\w+|adafactor|sgd)", re.IGNORECASE)


def keep_optimizer(parsed: Parsed, key: str, stated: str) -> None:
    """An optimizer that no knob has: it stays, is counted as AdamW, and widens the answer."""
    parsed.no_moments = _NO_MOMENTS.fullmatch(stated) is not None
    why, spread = "counted as adamw_torch_fused, which it is not", _OTHER_OPTIMIZER_SD
    if parsed.no_moments:
        why = "timed as adamw_torch_fused; its states take none of the device"
        spread = _NO_MOMENTS_SD
    parsed.keep("optimizer", key, stated, why)
    parsed.uncounted.append(Uncounted(key, stated, why, *spread))


_OTHERWISE = {  # values that are no switch
    "unsloth": "counted as plain checkpointing",
    BY_SCRIPT: "the arguments do not switch it off",
}


def read_checkpointing(keys: Keys, parsed: Parsed) -> None:
    """Activation checkpointing, under both of its names."""
    for name in CHECKPOINTING:
        stated = keys.get(f"{name}_kwargs")
        if isinstance(stated, dict) and isinstance(stated.get("use_reentrant"), bool):
            parsed.reentrant = stated["use_reentrant"]
    named = next((name for name in CHECKPOINTING if str(keys.at(name)) in _OTHERWISE), None)
    if named is not None:
        parsed.knobs["activation_checkpointing"] = "full"
        stated = str(keys.get(named))
        parsed.keep("activation_checkpointing", named, stated, _OTHERWISE[stated])
    elif (own := own_checkpointing(keys, parsed.trainer)) is not None:
        off = str(keys.get(own)).casefold() in {"false", "no", "0", "off"}
        parsed.knobs["activation_checkpointing"] = "none" if off else "full"
        parsed.keep("activation_checkpointing", own, keys.at(own), "a program's own word for it")
    else:
        read_words(keys, parsed, "activation_checkpointing")
    read_offload(keys, parsed)


# axolotl 0.21 core/trainers/mixins/activation_checkpointing.py: "legacy" copies without a stream of
# its own, "disk" goes to a file, "hidden_states" takes the layers' inputs alone. How far each may
# lie from the copies that are counted is an assumption.
_OFFLOADED_BY = {
    "legacy": ("copies while the device waits: slower, and smaller", 0.25, 0.10),
    "disk": ("goes on to a disk: as slow as that is", 0.60, 0.05),
    "hidden_states": ("takes the inputs of layers alone", 0.10, 0.10),
}


def _offloads(keys: Keys, parsed: Parsed) -> bool:
    """Whether checkpoints go to the host; a way of doing it that is not counted is said."""
    word = keys.get("activation_offloading")
    if word not in _OFFLOADED_BY:
        return bool(keys.switch("activation_offloading"))
    does, *how_far = _OFFLOADED_BY[word]
    parsed.uncounted.append(Uncounted("activation_offloading", word, does, *how_far))
    return True


def read_offload(keys: Keys, parsed: Parsed) -> None:
    """Checkpoints, or FSDP's shards, in the host's memory."""
    away = _offloads(keys, parsed) or any(
        keys.switch(f"{name}_kwargs.offload") for name in CHECKPOINTING
    )
    if away and parsed.meaning.get("activation_checkpointing") == "full":
        parsed.knobs["offload"] = "activations"
    elif away:
        why = "counted without: only what checkpointed layers keep can be priced"
        parsed.note("activation_offloading", "true", why)
    stated = keys.at("fsdp")  # "full_shard auto_wrap offload", or a list of these words
    words = stated if isinstance(stated, list) else str(stated).replace(",", " ").split()
    away = "offload" in {str(word).casefold() for word in words}
    if away or any(keys.switch(f"fsdp_config.{name}") for name in FSDP_OFFLOADS):
        parsed.knobs["offload"] = "all"
