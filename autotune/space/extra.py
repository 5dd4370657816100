"""A user's own knobs in a search space: environment variables and arguments of the trainer.

    extra:
      env.OMP_NUM_THREADS: [4, 8]
      args.use_liger_kernel: [false, true]

The first level is how the job runs today. The cost model knows nothing of them and prices their
levels alike; probes learn what they do. What the run itself sets, what is a knob already and what
changes what is learned is refused.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.domain.candidates import Candidates
from autotune.domain.config import ARGUMENT, ENVIRONMENT, UNSET, KnobValue
from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.candidates import SearchSpace

MOST_COMBINATIONS = 64  # of the levels: no handful of probes could tell more apart
MOST_CHARACTERS = 500
EXAMPLE = "extra: {env.OMP_NUM_THREADS: [4, 8]}, the present level first"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# Set by the run, by the probe or by the launcher.
_RUN_VARIABLES = frozenset(
    {"MODEL", "DATA", "EVAL_DATA", "OUTPUT_DIR", "MAX_STEPS", "RESUME", "USE_CPU", "HOME", "PATH",
     "PYTHONPATH", "PYTHONFAULTHANDLER", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES",
     "CUDA_DEVICE_ORDER", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
     "MASTER_PORT"}
)  # fmt: skip
_RUN_PREFIXES = ("AUTOTUNE_", "ACCELERATE_", "FSDP_", "TORCHELASTIC_")
_KNOB_OF = {
    "per_device_train_batch_size": "micro_batch_size",
    "gradient_accumulation_steps": "micro_batch_size",
    "dataloader_num_workers": "num_dataloader_workers",
    "dataloader_prefetch_factor": "prefetch_factor",
    "dataloader_pin_memory": "pin_memory",
    "save_steps": "checkpoint_every_steps", "save_total_limit": "save_total_limit",
    "torch_compile": "compile", "torch_compile_mode": "compile",
    "bf16": "precision", "fp16": "precision", "tf32": "precision",
    "gradient_checkpointing": "activation_checkpointing",
    "activation_checkpointing": "activation_checkpointing",
    "optim": "optimizer", "fsdp": "sharding", "fsdp_config": "sharding", "deepspeed": "sharding",
    "group_by_length": "length_grouping", "train_sampling_strategy": "length_grouping",
    "packing": "packing", "attn_implementation": "attention",
}  # fmt: skip
_OF_THE_JOB = frozenset(
    {"num_train_epochs", "max_steps", "max_length", "max_seq_length", "learning_rate",
     "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_ratio", "warmup_steps", "weight_decay",
     "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "label_smoothing_factor",
     "neftune_noise_alpha", "seed", "data_seed", "eval_strategy", "eval_steps", "eval_delay",
     "per_device_eval_batch_size", "prediction_loss_only", "average_tokens_across_devices",
     "auto_find_batch_size", "optim_target_modules", "dataloader_drop_last"}
)  # fmt: skip
_OF_THE_RUN = frozenset(
    {"output_dir", "logging_dir", "run_name", "report_to", "use_cpu", "no_cuda", "local_rank",
     "ddp_backend", "ddp_timeout", "disable_tqdm", "do_train", "do_eval", "do_predict",
     "save_strategy", "logging_strategy", "logging_steps", "resume_from_checkpoint",
     "push_to_hub", "remove_unused_columns", "load_best_model_at_end", "enable_jit_checkpoint",
     "project"}
)  # fmt: skip
_RUN_ARGUMENTS = ("hub_", "trackio_")


def extra_of(data: object, where: str) -> dict[str, tuple[KnobValue, ...]]:
    """The section of a file, checked. Raises InputError naming what must hold."""
    if not isinstance(data, dict):
        msg = f"extra in {where} must map knobs of your own to their levels"
        raise InputError(msg, EXAMPLE)
    found = {str(name): _levels(str(name), raw, where) for name, raw in data.items()}
    count = prod(len(levels) for levels in found.values())
    if count > MOST_COMBINATIONS:
        msg = (
            f"extra in {where} has {count} combinations of levels; at most {MOST_COMBINATIONS} "
            "can be told apart by probes"
        )
        raise InputError(msg, "leave knobs or levels out")
    return found


def _levels(name: str, raw: Any, where: str) -> tuple[KnobValue, ...]:  # noqa: ANN401 - YAML
    place = f"{name} in {where}"
    _check_name(name, where)
    if not isinstance(raw, list) or len(raw) < 2:  # noqa: PLR2004 - a choice
        msg = f"{place} needs two levels or more, not {raw!r}"
        raise InputError(msg, EXAMPLE)
    parse = _variable if name.startswith(ENVIRONMENT) else _argument
    levels = tuple(UNSET if value is None else parse(value, place) for value in raw)
    texts = [str(level).casefold() for level in levels]
    if len(set(texts)) < len(texts) or len(set(levels)) < len(levels):  # 1 is True to a sampler
        shown = ", ".join(map(str, levels))
        msg = f"{place} repeats a level: {shown}"
        raise InputError(msg, "give every level once, the present one first")
    return levels


def _check_name(name: str, where: str) -> None:
    kind = next((k for k in (ENVIRONMENT, ARGUMENT) if name.startswith(k)), "")
    own = name.removeprefix(kind)
    if not kind or not _NAME.fullmatch(own):
        msg = f'extra knob "{name}" in {where} must be env.NAME or args.NAME'
        hint = "env.NAME is an environment variable, args.NAME an argument of TrainingArguments"
        raise InputError(msg, hint)
    if kind == ENVIRONMENT:
        if own in _RUN_VARIABLES or own.startswith(_RUN_PREFIXES):
            msg = f"{name} in {where} is set by the run itself and cannot be searched"
            raise InputError(msg, "leave it out of extra")
        return
    if own in _KNOB_OF:
        msg = f"{name} in {where} is the knob {_KNOB_OF[own]}"
        raise InputError(msg, f"list its values under knobs, as {_KNOB_OF[own]}")
    if own in _OF_THE_JOB:
        msg = f"{name} in {where} changes what is trained, which is the job's to say"
        raise InputError(msg, "compare such choices as variants of the job")
    if own in _OF_THE_RUN or own.startswith(_RUN_ARGUMENTS):
        msg = f"{name} in {where} is set by the run itself and cannot be searched"
        raise InputError(msg, "leave it out of extra")


def _variable(value: object, place: str) -> str:
    """The text of an environment variable; whole numbers need no quotes."""
    if isinstance(value, bool | float) or not isinstance(value, int | str):
        msg = f"{place} holds {value!r}; a variable is text or a whole number, or {UNSET}"
        raise InputError(msg, "put it in quotes, as the program reads it")
    text = str(value)
    if not text or len(text) > MOST_CHARACTERS or not text.isprintable():
        msg = f"{place} holds {text[:40]!r}; a variable is 1 to {MOST_CHARACTERS} plain characters"
        raise InputError(msg, f"write {UNSET} for no such variable")
    return text


def _argument(value: object, place: str) -> KnobValue:
    if not isinstance(value, bool | int | str):
        msg = f"{place} holds a {type(value).__name__}; a level is a whole number, a word, true, "
        raise InputError(msg + f"false or {UNSET}", EXAMPLE)
    if isinstance(value, str) and (not value.isprintable() or len(value) > MOST_CHARACTERS):
        msg = f"{place} holds {value[:40]!r}; a word has {MOST_CHARACTERS} plain characters at most"
        raise InputError(msg)
    return value


def with_present(space: SearchSpace, levels: Mapping[str, KnobValue]) -> SearchSpace:
    """The space with those levels as the present ones, as far as it has them."""
    extra = {
        name: tuple(sorted(known, key=lambda level: level != levels.get(name, known[0])))
        for name, known in space.extra.items()
    }
    return replace(space, extra=extra)


def at_present(
    candidates: Candidates, extra: Mapping[str, tuple[KnobValue, ...]]
) -> Candidates:  # fmt: skip
    """The candidates with every extra knob at its present level: no more of them than before."""
    if not extra:
        return candidates
    zeros = np.zeros(len(candidates), np.int32)
    return Candidates(
        {**candidates.levels, **{name: (levels[0],) for name, levels in extra.items()}},
        {**candidates.codes, **dict.fromkeys(extra, zeros)},
    )


def at_every_level(
    candidates: Candidates, extra: Mapping[str, tuple[KnobValue, ...]]
) -> Candidates:  # fmt: skip
    """Each candidate at every combination of levels, the present one first."""
    if not extra:
        return candidates
    combinations = np.asarray(
        list(product(*(range(len(levels)) for levels in extra.values()))), np.int32
    )
    count = len(candidates)
    own = {name: np.tile(combinations[:, k], count) for k, name in enumerate(extra)}
    kept = {
        axis: np.repeat(column, len(combinations))
        for axis, column in candidates.codes.items()
        if axis not in extra
    }
    return Candidates({**candidates.levels, **extra}, {**kept, **own})
