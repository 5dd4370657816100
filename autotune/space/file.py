"""A search-space file read, strict and safe from anywhere; and a user's own knobs within it.

Own knobs are environment variables and arguments of the trainer:

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
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.catalog.files import read_regular
from autotune.domain.candidates import AUTO, Candidates, SearchSpace
from autotune.domain.config import (
    ACCUMULATION,
    ARGUMENT,
    ENVIRONMENT,
    KNOBS,
    TRAINER_NAMES,
    UNSET,
    KnobValue,
    knob,
)
from autotune.domain.errors import InputError, unknown
from autotune.domain.paths import near, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
    **{theirs: name for name, theirs in TRAINER_NAMES.items()},
    "gradient_accumulation_steps": "micro_batch_size", "save_total_limit": "save_total_limit",
    "torch_compile_mode": "compile",
    "bf16": "precision", "fp16": "precision", "tf32": "precision",
    "activation_checkpointing": "activation_checkpointing", "packing": "packing",
    "fsdp": "sharding", "fsdp_config": "sharding", "deepspeed": "sharding",
    "train_sampling_strategy": "length_grouping",
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


DEFAULT = "default"
MAX_FILE_BYTES = 16 * 1024  # the shipped files have under 4 KiB
MAX_READ_BYTES = 10_000_000
MAX_DEPTH = 8  # the format itself needs three levels
AUTO_WORD = "auto"
AUTO_KNOBS = ("micro_batch_size", "pin_memory", "checkpoint_every_steps", "save_total_limit")
SECTIONS = ("knobs", "extra")


def load_space(name_or_path: str | Path | None = None) -> SearchSpace:
    """The search space of a shipped name (`default`, `extended`) or of a YAML file.

    A file lists only what differs from `default`. Raises InputError for an unknown name, knob or
    value, and for a file that cannot be read safely.
    """
    path = _find(name_or_path or DEFAULT)
    return _of_shipped(path) if path in _shipped().values() else _read(path, _load_yaml(path))


@cache
def _of_shipped(path: Path) -> SearchSpace:
    """A space that comes with autotune: read once, and searched for no tricks."""
    from ruamel.yaml import YAML

    return _read(path, YAML(typ="safe", pure=True).load(_read_text(path)))


def _read(path: Path, loaded: object) -> SearchSpace:
    data = _sections(loaded, str(path))
    listed = _knobs_of(data.get("knobs", {}), str(path))
    extra = extra_of(data.get("extra", {}), str(path))
    if path == _shipped().get(DEFAULT):
        inherited: dict[str, tuple[KnobValue, ...]] = {}
    else:
        inherited = dict(load_space(DEFAULT).values)
    values = {**inherited, **listed}
    missing = [name for name in KNOBS if name not in values and name != ACCUMULATION]
    if missing:
        msg = f"search space {path} leaves out {', '.join(missing)}: every knob needs values"
        raise InputError(msg)
    kept = {name: values[name] for name in KNOBS if name in values}
    return SearchSpace(path.stem, kept, extra)


def _shipped() -> dict[str, Path]:
    """Shipped files by name: inside an installed package, or beside it in a checkout."""
    package = Path(__file__).parent.parent
    for folder in (package / "search_spaces", package.parent / "search_spaces"):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    msg = "the search_spaces folder is missing from this installation; install autotune again"
    raise InputError(msg)


def _find(name_or_path: str | Path) -> Path:
    shipped = _shipped()
    text = str(name_or_path)
    if text in shipped:
        return shipped[text]
    path = Path(near(text))
    if path.suffix in {".yaml", ".yml"} or path.is_file() or len(path.parts) > 1:
        return path
    hint = "take a shipped name, or the path of a YAML file such as my_space.yaml"
    what = "search space"
    raise unknown(what, text, shipped, hint)


def whole_name(name_or_path: str) -> str:
    """A shipped name as it is; the path of a file from the root."""
    return name_or_path if name_or_path in _shipped() else str(whole(_find(name_or_path)))


def _read_text(path: Path) -> str:
    try:
        raw = read_regular(path, MAX_READ_BYTES)
    except (OSError, ValueError) as error:
        msg = f"search space {path} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise InputError(msg, "give a readable YAML file, or default or extended") from None
    if len(raw) > MAX_FILE_BYTES:
        msg = f"search space {path} has more than {MAX_FILE_BYTES // 1024} KiB: no space needs that"
        raise InputError(msg)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        msg = f"search space {path} is not UTF-8 text"
        raise InputError(msg) from None


def _load_yaml(path: Path) -> object:
    """Plain YAML data. Aliases and tags are refused: they are how small files do harm."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    text = _read_text(path)
    try:
        _refuse_tricks(YAML(typ="safe", pure=True).parse(text), path)
        loaded: object = YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        msg = f"search space {path} is not valid YAML: {reason}"
        raise InputError(msg) from None
    return loaded


def _refuse_tricks(events: Iterable[Any], path: Path) -> None:
    """Anchors, aliases, tags and deep nesting, found in the events before anything is built."""
    depth = 0
    for event in events:
        kind = type(event).__name__
        depth += kind.endswith("StartEvent") - kind.endswith("EndEvent")
        if getattr(event, "anchor", None) is not None:
            msg = f"search space {path} uses a YAML anchor or alias, which are not read"
            raise InputError(msg, "write the values out")
        if getattr(event, "tag", None) is not None:
            msg = f"search space {path} uses a YAML tag ({event.tag}), which is not read"
            raise InputError(msg, "write plain values")
        if depth > MAX_DEPTH:
            msg = f"search space {path} is nested more than {MAX_DEPTH} levels deep"
            raise InputError(msg)


def _sections(data: object, where: str) -> dict[str, object]:
    """The file's sections. `knobs` may be left out beside `extra`."""
    if not isinstance(data, dict) or not set(SECTIONS) & set(data):
        msg = f"search space {where} must be a mapping with the key knobs, a mapping itself"
        raise InputError(msg, "knobs: {num_dataloader_workers: [0, 2, 4]}")
    for key in data:
        if key not in SECTIONS:
            what = "key"
            raise unknown(what, str(key), SECTIONS, "the keys are knobs and extra", where)
    return {str(key): value for key, value in data.items()}


def _knobs_of(data: object, where: str) -> dict[str, tuple[KnobValue, ...]]:
    if not isinstance(data, dict):
        msg = f"knobs in search space {where} must map knobs to their values"
        raise InputError(msg, "knobs: {num_dataloader_workers: [0, 2, 4]}")
    return {str(name): _values_of(str(name), raw, where) for name, raw in data.items()}


def _values_of(name: str, raw: Any, where: str) -> tuple[KnobValue, ...]:  # noqa: ANN401 - YAML
    found = knob(name, where)
    if name == ACCUMULATION:
        msg = f"{name} in {where} follows from micro_batch_size and the global batch"
        raise InputError(msg, "list micro_batch_size instead, or pin it with lock in the job")
    if raw == AUTO_WORD:
        if name not in AUTO_KNOBS:
            msg = f"{name} in {where} cannot be auto: list its values"
            raise InputError(msg, f"auto works for {', '.join(AUTO_KNOBS)}")
        return AUTO
    values = raw if isinstance(raw, list) else [raw]
    if not values:
        msg = f"{name} in {where} lists no values; it needs at least one"
        raise InputError(msg, "leave the knob out to take the values of default")
    for value in values:
        if not isinstance(value, str | int | bool):
            kind = type(value).__name__
            msg = f"{name} in {where} holds a {kind}; values are numbers, words or true and false"
            raise InputError(msg)
    return tuple(dict.fromkeys(found.parse(value, where) for value in values))
