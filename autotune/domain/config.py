"""One value for every knob, and the table that says what each knob is.

Adding a knob: add a field to `Config` and a row to `KNOBS`; parsing, `--set`, reports and the
canonical key follow from the table. Knobs of the user's own (`extra`) are names that no table
holds: `env.NAME`, an environment variable, and `args.NAME`, an argument of the trainer.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal, Self

from autotune.domain.errors import InputError, unknown
from autotune.domain.typed.other_words import typed_here
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

KnobClass = Literal["neutral", "numeric", "quality"]
KnobValue = int | bool | str
ENVIRONMENT, ARGUMENT = "env.", "args."  # how the names of a user's own knobs begin
FLASH = ("flash_attention_2", "flash_attention_3")  # what keeps packed rows apart
# Flash attention as the hub's kernels, by the names that transformers loads them by.
# Source: transformers 5.23 modeling_flash_attention_utils.py FLASH_ATTN_KERNEL_FALLBACK and
# FLASH_ATTN_KERNEL_DEVICES (those for CUDA); version 4 has no knob, and others are not flash.
HUB_ATTENTION = {
    "kernels-community/flash-attn2": "flash_attention_2",
    "kernels-community/flash-attn3": "flash_attention_3",
    "kernels-community/vllm-flash-attn3": "flash_attention_3",
}
EIGHT_BIT = frozenset({"adamw_bnb_8bit", "paged_adamw_8bit"})  # optimizers of bitsandbytes
ZERO_STAGE = {"zero2": 2, "zero3": 3}  # shardings of DeepSpeed
OFFLOADED_STATES = frozenset({"optimizer", "all"})  # values of offload that move optimizer states
SHARDED = frozenset({*ZERO_STAGE, "fsdp"})  # and all that divide more than the batch
UNSET = "unset"  # a level of such a knob: no such variable, no such argument


def hub_attention(text: str) -> str | None:
    """The attention that one of the hub's kernels is, `repository[@revision][:function]`, if any.

    Source: transformers 5.23 integrations/hub_kernels.py is_kernel, load_and_register_attn_kernel.
    """
    return HUB_ATTENTION.get(text.partition(":")[0].partition("@")[0].strip())


def as_typed(value: object) -> str:
    """A knob's value as it is typed: true and false in small letters."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Knob:
    """What a knob is: its kind of value, its class, and one line on what it trades."""

    name: str
    kind: Literal["count", "switch", "choice"]
    knob_class: KnobClass
    about: str
    choices: tuple[str, ...] = ()
    minimum: int = 0
    opt_in: bool = False  # searched only when the job allows it
    closed: tuple[str, ...] = ()  # of a knob that is not opt-in, values that are
    effect: str = ""  # what opening it changes for the user, in a few words; else rounding
    trainer: str = ""  # the argument of transformers' Trainer, where it has another name

    def parse(self, value: object, where: str = "") -> KnobValue:
        """The knob's value from text or YAML. Raises InputError naming what must hold."""
        place = f" in {where}" if where else ""
        if self.kind == "count":
            return self._parse_count(value, place)
        if self.kind == "switch":
            return self._parse_switch(value, place)
        text = _as_word(value)
        if self.name == "attention":
            text = hub_attention(text) or text
        text = _meant(text, self.choices)
        if text not in self.choices:
            kind = f"{self.name} value"
            raise unknown(kind, text, self.choices, self._hint(), where)
        return text

    def _hint(self) -> str:
        return f"{self.name} takes one of: {', '.join(self.choices)}"

    def _parse_count(self, value: object, place: str) -> int:
        number: int | None = None
        if isinstance(value, bool):
            number = None
        elif isinstance(value, int):
            number = value
        elif isinstance(value, str) and value.strip().replace("_", "").lstrip("+-").isdigit():
            number = int(value.replace("_", ""))
        if number is None or number < self.minimum or number > 10**9:
            msg = f"{self.name} {value!r}{place} must be a whole number from {self.minimum} on"
            raise InputError(msg)
        return number

    def _parse_switch(self, value: object, place: str) -> bool:
        if isinstance(value, bool):
            return value
        word = str(value).strip().casefold()
        if word in YES | NO:
            return word in YES
        msg = f"{self.name} {value!r}{place} must be true or false"
        raise InputError(msg)


def _as_word(value: object) -> str:
    """YAML 1.1 writers turn off and on into booleans; take them back."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value).strip()


def _meant(text: str, choices: tuple[str, ...]) -> str:
    """The choice that a text is, or other words for one; the text itself where it is none."""
    if text in choices:
        return text
    word = text.casefold()
    word = "on" if word in YES else "off" if word in NO else word
    return next((each for each in (word, *_SAME_AS.get(word, ())) if each in choices), text)


YES, NO = frozenset({"on", "true", "yes", "1"}), frozenset({"off", "false", "no", "0"})
_OFF_ON = ("off", "on")
_SAME_AS = {  # other words for a value
    "off": ("none",), "on": ("full", "default"),  # as screens say it of what is a switch elsewhere
    "adamw_8bit": ("adamw_bnb_8bit",),  # both names of one optimizer. Source: transformers, trainer
    **{f"{way}{stage}": (f"zero{stage}",) for stage in (2, 3)
       for way in ("zero-", "zero_", "deepspeed_zero", "deepspeed-zero-", "deepspeed_stage_")},
}  # fmt: skip
KNOBS: dict[str, Knob] = {
    knob.name: knob
    for knob in (
        Knob("micro_batch_size", "count", "neutral",
             "rows per device per forward: memory against kernel efficiency", minimum=1,
             trainer="per_device_train_batch_size"),
        Knob("gradient_accumulation_steps", "count", "neutral",
             "micro-steps per optimizer step; micro x accumulation x devices = global batch",
             minimum=1),
        Knob("num_dataloader_workers", "count", "neutral",
             "processes that prepare batches while the device computes",
             trainer="dataloader_num_workers"),
        Knob("prefetch_factor", "count", "neutral", "batches each worker keeps ready", minimum=1,
             trainer="dataloader_prefetch_factor"),
        Knob("pin_memory", "switch", "neutral", "page-locked batches: faster copies to a GPU",
             trainer="dataloader_pin_memory"),
        Knob("checkpoint_every_steps", "count", "neutral",
             "optimizer steps between saves: save time against work lost", minimum=1,
             trainer="save_steps"),
        Knob("save_total_limit", "count", "neutral", "checkpoints kept on the disk", minimum=1),
        Knob("compile", "choice", "neutral",
             "torch.compile: compile seconds once against faster steps",
             ("off", "default", "reduce-overhead", "max-autotune"), trainer="torch_compile"),
        Knob("compile_scope", "choice", "neutral",
             "what torch.compile sees: the whole model, or one block at a time",
             ("model", "regional")),
        Knob("precision", "choice", "numeric", "compute dtype of matrix products",
             ("fp32", "tf32", "fp16", "bf16", "fp8"), closed=("fp8",)),
        Knob("activation_checkpointing", "choice", "neutral",
             "recompute the forward in the backward: time against memory", ("none", "full"),
             trainer="gradient_checkpointing"),
        Knob("attention", "choice", "numeric", "attention kernel",
             ("eager", "sdpa", "flash_attention_2", "flash_attention_3"),
             closed=("flash_attention_3",), trainer="attn_implementation"),
        Knob("optimizer", "choice", "numeric", "AdamW variant: state bytes and step time",
             ("adamw_torch_fused", "adamw_torch", "adamw_bnb_8bit", "paged_adamw_8bit"),
             effect="other optimizer states", trainer="optim"),
        Knob("sharding", "choice", "neutral", "how several devices share the work",
             ("none", "ddp", "fsdp", "zero2", "zero3")),
        Knob("adapter_dtype", "choice", "numeric", "storage of LoRA adapters", ("fp32", "bf16"),
             opt_in=True, effect="adapters in 16 bits"),
        Knob("packing", "choice", "numeric", "several rows in one sequence", _OFF_ON, opt_in=True,
             effect="fewer optimizer steps, of more rows"),
        Knob("length_grouping", "choice", "numeric", "rows of similar length in one batch", _OFF_ON,
             opt_in=True, effect="batches rows differently", trainer="group_by_length"),
        Knob("kernels", "choice", "numeric",
             "fused kernels: Liger's, or a loss that never holds all logits",
             ("none", "liger", "chunked_loss"), opt_in=True,
             effect="other rounding in norms, activations and loss"),
        Knob("offload", "choice", "neutral",
             "what lies in the host's memory: less on the device, slower steps",
             ("none", "optimizer", "all", "activations"), opt_in=True,
             effect="the same training, slower"),
    )
}  # fmt: skip

TRAINER_NAMES = {each.name: each.trainer for each in KNOBS.values() if each.trainer}
_OWN_NAMES = {theirs: name for name, theirs in TRAINER_NAMES.items()}

ACCUMULATION = "gradient_accumulation_steps"  # follows from the rest of the split
SPLIT = ("micro_batch_size", ACCUMULATION)  # of the rows of a step on a device
NEVER_STEPS = 10**9  # no training has so many: saved once in so many is never
CLOSED_FORMS = ("checkpoint_every_steps", "save_total_limit")  # worked out, and never tried
DERIVED = frozenset({ACCUMULATION, *CLOSED_FORMS})  # what follows from the other knobs


@dataclass(frozen=True, slots=True)
class Config:
    """One value for every knob. Frozen and hashable; equal configs have equal keys."""

    micro_batch_size: int
    gradient_accumulation_steps: int
    checkpoint_every_steps: int
    precision: str
    num_dataloader_workers: int = 0
    prefetch_factor: int = 2
    pin_memory: bool = True
    save_total_limit: int = 2
    compile: str = "off"
    compile_scope: str = "model"
    activation_checkpointing: str = "none"
    attention: str = "sdpa"
    optimizer: str = "adamw_torch_fused"
    sharding: str = "none"
    adapter_dtype: str = "fp32"
    packing: str = "off"
    length_grouping: str = "off"
    kernels: str = "none"  # beside those that the software has by itself
    offload: str = "none"
    extra: tuple[tuple[str, KnobValue], ...] = ()  # the user's own knobs, in the space's order

    def as_dict(self) -> dict[str, KnobValue]:
        """Every knob by its exact name, in the order of `KNOBS`."""
        return {name: getattr(self, name) for name in KNOBS}

    def as_record(self) -> dict[str, KnobValue]:
        """Every knob, and behind them the user's own."""
        return {**self.as_dict(), **dict(self.extra)}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """The config of a record. Raises TypeError for what is no knob and not the user's own."""
        knobs = {name: value for name, value in record.items() if not is_extra(name)}
        own = tuple((name, value) for name, value in record.items() if is_extra(name))
        return cls(**knobs, extra=own)

    @property
    def environment(self) -> dict[str, KnobValue]:
        """Environment variables of the user's own knobs; `UNSET` where there is to be none."""
        return self._own(ENVIRONMENT)

    @property
    def arguments(self) -> dict[str, KnobValue]:
        """The trainer's arguments of the user's own knobs; `UNSET` where there is to be none."""
        return self._own(ARGUMENT)

    def _own(self, kind: str) -> dict[str, KnobValue]:
        return {n.removeprefix(kind): value for n, value in self.extra if n.startswith(kind)}

    @property
    def key(self) -> str:
        """Canonical text of the config: equal if and only if the configs are equal."""
        return ",".join(f"{name}={value}" for name, value in self.as_record().items())

    def with_knobs(self, **knobs: KnobValue) -> Config:
        """The same config with some knobs changed."""
        return replace(self, **knobs)  # type: ignore[arg-type]  # names checked by replace


def split_of(knobs: Mapping[str, Any]) -> tuple[int, int] | None:
    """Micro-batch and accumulation; None where not both are stated."""
    micro, accumulation = (knobs.get(name) for name in SPLIT)
    return None if micro is None or accumulation is None else (int(micro), int(accumulation))


def completed(record: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded config with the knobs that were added since: every knob in order, then extras."""
    whole = {**LATER, **record}
    known = {name: whole[name] for name in KNOBS if name in whole}
    return {**known, **{name: value for name, value in record.items() if name not in KNOBS}}


def fsdp_settings(config: Config, *, quantised: bool) -> dict[str, Any]:
    """FSDP2 by the names that TrainingArguments.fsdp_config takes; a probe and an export say it.

    Checkpoints are sharded: a full state dict gathered on a nearly full device is a known way to
    run out of memory after training has succeeded. Offloading is the caller's to add.
    """
    return {
        "version": 2,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "reshard_after_forward": True,
        "state_dict_type": "SHARDED_STATE_DICT",
        "cpu_ram_efficient_loading": not quantised,
        "activation_checkpointing": config.activation_checkpointing == "full",
    }


def is_extra(name: str) -> bool:
    """Whether a name is of a user's own knob."""
    return name.startswith((ENVIRONMENT, ARGUMENT))


def own_name(name: str) -> str:
    """The knob that the Trainer calls so, as screens do, or a job file (lock.NAME); else `name`."""
    knob_name = name.removeprefix("lock.")
    knob_name = _OWN_NAMES.get(knob_name, knob_name)
    return knob_name if knob_name in KNOBS else name


def knob(name: str, where: str = "") -> Knob:
    """The knob of that exact name. Raises InputError with close matches."""
    found = KNOBS.get(name)
    if found is None:
        kind = "knob"
        hint = typed_here(name) or f"knobs: {', '.join(KNOBS)}"
        raise unknown(kind, name, KNOBS, hint, where)
    return found


if {f.name for f in fields(Config)} != {*KNOBS, "extra"}:  # pragma: no cover - import-time guard
    msg = "every Config field needs a row in KNOBS and the other way round"
    raise AssertionError(msg)
_DEFAULTS = Config(1, 1, 1, "bf16").as_dict()
# Knobs with values that only a job that allows them tries, and the value that all others have.
PLAIN = {name: _DEFAULTS[name] for name in KNOBS if KNOBS[name].opt_in or name == "optimizer"}
# Knobs that records of earlier versions lack, and the value that those runs had.
LATER = {name: _DEFAULTS[name] for name in ("compile_scope", "kernels", "offload")}
