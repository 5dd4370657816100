"""What anybody sees in a trainer's file: its obvious keys, read without a line of the product.

Looked at are the words that a person would search for; what is not plainly there is None, and
nothing is held against it. Dotted names reach into mappings.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from bench.corpus.words import OUT_OF_SCOPE, command_values, script_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


@dataclass(slots=True)
class Look:
    """The obvious keys of one file. None: not plainly there."""

    trains: bool = False  # a training job at all
    objective: str = "sft"  # sft, pretraining, or the word for what is not priced here
    model: str | None = None
    method: str | None = None  # full or lora
    base: str | None = None  # nf4, int8
    micro: int | None = None
    accumulation: int | None = None
    length: int | None = None
    rank: int | None = None
    optimizer: str | None = None  # adamw, adamw8, or the word itself
    checkpointing: str | None = None  # full, none
    sharded: bool = False

    @property
    def in_scope(self) -> bool:
        """Whether it is a supervised run of a decoder."""
        return self.trains and self.objective in {"sft", "pretraining"}

    def facts(self) -> dict[str, object]:
        """What can be held against another reading."""
        skipped = {"trains", "objective", "sharded"}
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in skipped}
        return {name: value for name, value in found.items() if value is not None}


_MICRO = (
    "micro_batch_size", "per_device_train_batch_size", "per_gpu_train_batch_size",
    "train.micro_batch_size",
)  # fmt: skip
_LENGTH = (
    "sequence_len", "cutoff_len", "max_length", "max_seq_length", "max_seq_len",
    "model_max_length", "tokenizer.max_seq_len", "train.max_seq_length",
)  # fmt: skip
_RANK = ("lora_r", "lora_rank", "peft_config.r", "model.lora_rank", "lora_dim")
_MODEL = ("base_model", "model_name_or_path", "model_name", "checkpoint_dir",
          "checkpointer.checkpoint_dir")  # fmt: skip
_FOUR = ("load_in_4bit", "model_init_kwargs.load_in_4bit", "use_4bit_quantization")
_EIGHT = ("load_in_8bit", "model_init_kwargs.load_in_8bit", "use_8bit_quantization")
_ADAMW = re.compile(
    r"adamw?(_torch|_hf)?(_fused|_apex_fused)?$|torch\.optim\.adamw?$", re.IGNORECASE
)
_EIGHT_BIT = re.compile(r"(paged_?)?adamw?_?(bnb_)?8bit$", re.IGNORECASE)


_PARTS = 7  # of a path: folders say what is trained as well


def look_at(path: Path, text: str) -> Look:
    """The obvious keys of a file by its kind."""
    kind = path.suffix.casefold()
    if kind == ".py":
        values = script_values(text)
    elif kind in {".sh", ".cmd"}:
        values = command_values(text)
    elif kind == ".json":
        values = _mapping(lambda: json.loads(text))
    else:
        values = _mapping(lambda: _yaml(text))
    return _of(values, "/".join(path.parts[-_PARTS:]).casefold())


def _mapping(load: Any) -> dict[str, Any]:  # noqa: ANN401
    try:
        found = load()
    except Exception:  # noqa: BLE001 - whatever is no such file states nothing
        return {}
    return found if isinstance(found, dict) else {}


def _yaml(text: str) -> Any:  # noqa: ANN401
    from ruamel.yaml import YAML

    return YAML(typ="safe", pure=True).load(text)


def at(values: Mapping[str, Any], dotted: str) -> Any:  # noqa: ANN401
    """What stands at a dotted name; None where nothing does."""
    value: Any = values
    for part in dotted.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _first(values: Mapping[str, Any], names: Iterable[str]) -> Any:  # noqa: ANN401
    return next((v for v in (at(values, name) for name in names) if v not in (None, "")), None)


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not re.fullmatch(r"\d+", str(value)):
        return None
    return int(str(value)) or None


def _is_on(values: Mapping[str, Any], names: Iterable[str]) -> bool:
    return any(str(at(values, name)).casefold() == "true" for name in names)


def _of(values: dict[str, Any], name: str) -> Look:
    found = Look(trains=_trains(values))
    if not found.trains:
        found.objective = _objective(values, name)
        return found
    found.objective = _objective(values, name)
    tune = isinstance(values.get("model"), dict)
    model = values.get("model") if isinstance(values.get("model"), str) else None
    model = model or _first(values, _MODEL)
    found.model = PurePosixPath(str(model)).name.casefold() if model else None
    micro = values.get("batch_size") if tune else _first(values, _MICRO)
    found.micro = _whole(micro)
    accumulation = _first(values, ("gradient_accumulation_steps",))
    if "batch_size" not in values or tune:
        found.accumulation = _whole(accumulation)
    found.length = _whole(_first(values, _LENGTH))
    _look_at_method(values, found, tune=tune)
    _look_at_rest(values, found, tune=tune)
    return found


def _trains(values: Mapping[str, Any]) -> bool:
    marks = (
        *_MICRO,
        "sequence_len",
        "num_train_epochs",
        "num_epochs",
        "finetuning_type",
        "train.global_batch_size",
        "cutoff_len",
        "train_dataset",
        "max_steps",
        "epochs",
    )
    named = _first(values, (*_MODEL, "model", "@calls")) is not None
    return named and _first(values, marks) is not None


def _look_at_method(values: Mapping[str, Any], found: Look, *, tune: bool) -> None:
    adapter = str(values.get("adapter") or "").casefold()
    kind = str(
        _first(values, ("finetuning_type", "peft_config.name", "train_mode")) or ""
    ).casefold()
    rank = _whole(_first(values, _RANK))
    component = str(at(values, "model._component_") or "").rpartition(".")[2] if tune else ""
    if "@use_peft" in values or _is_on(values, ("use_peft", "use_peft_lora")):
        found.method = "lora"
    if adapter in {"lora", "qlora"} or kind in {"lora", "qlora"} or "lora" in component:
        found.method = "lora"
    elif kind == "full" or "base_model" in values or tune:
        found.method = "full"
    if _is_on(values, ("full_finetuning",)):  # Unsloth then puts no adapters on
        found.method = "full"
    if found.method == "lora":
        found.rank = rank
    bits = str(_first(values, ("bits", "quantization_bit")))
    quantize = str(values.get("quantize") or "")
    four = (
        _is_on(values, _FOUR)
        or kind == "qlora"
        or bits == "4"
        or "nf4" in quantize
        or "qlora_" in component
    )
    eight = _is_on(values, _EIGHT) or bits == "8" or "int8" in quantize
    if adapter or "base_model" not in values:  # axolotl quantises under an adapter alone
        found.base = "nf4" if four else "int8" if eight else None


def _look_at_rest(values: Mapping[str, Any], found: Look, *, tune: bool) -> None:
    stated = values.get("optimizer") if "optimizer" in values else values.get("optim")
    if isinstance(stated, dict):
        stated = stated.get("_component_") or stated.get("class_path") or stated.get("name")
    if isinstance(stated, str):
        word = stated.rpartition(".")[2]
        plain = "adamw" if _ADAMW.match(word) else word.casefold()
        found.optimizer = "adamw8" if _EIGHT_BIT.match(word) else plain
    names: tuple[str, ...] = (
        "gradient_checkpointing",
        "activation_checkpointing",
        "fsdp_config.activation_checkpointing",
        "fsdp_config.fsdp_activation_checkpointing",
    )
    if tune:
        names = ("enable_activation_checkpointing",)
    stated = _first(values, names)
    if isinstance(stated, bool | str) and str(stated).casefold() in {"true", "false"}:
        found.checkpointing = "full" if _is_on(values, names) else "none"
    found.sharded = any(values.get(key) for key in ("fsdp", "fsdp_config", "deepspeed"))


def _objective(values: Mapping[str, Any], name: str) -> str:
    text = json.dumps(values, default=str).casefold()
    for word, patterns in OUT_OF_SCOPE.items():
        if any(re.search(pattern, text) for pattern in patterns.keys_):
            return word
        if any(re.search(pattern, name) for pattern in patterns.names):
            return word
    return "sft"
