"""ms-swift: the flags of `swift sft`, `swift pt` and `swift rlhf`, or the same keys in a file.

They are TrainingArguments under defaults of its own, with words of its own for the model, the
adapter, the attention, the base's storage and the configs of DeepSpeed and FSDP that it brings.
Source: ms-swift 4.6.0, swift/arguments/ and swift/config/; 3.0.3, swift/llm/argument/; 2.5,
swift/llm/utils/argument.py, whose words and defaults stand where a command has its words.
"""

from __future__ import annotations

import re
from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar

from autotune.domain.errors import InputError
from autotune.domain.job import Uncounted
from autotune.domain.typed.values import shown
from autotune.trainers import words
from autotune.trainers.contract import Trainer
from autotune.trainers.hf.adapter import (
    all_linear,
    base_of_adapter,
    read_base,
    read_saved,
    read_variant,
)
from autotune.trainers.hf.evaluation import EVALUATION_BATCH, read_held_out, size_by_default
from autotune.trainers.hf.keys import FULL, read_words, spell_argument
from autotune.trainers.hf.read import (
    EPOCHS,
    HF_DEFAULTS,
    attention_of,
    keep_optimizer,
    read_batch,
    read_length_of_run,
    read_precision,
    read_shared,
)
from autotune.trainers.parsed import Keys, Parsed
from autotune.trainers.schema import leave_rest
from autotune.trainers.words import ON_OFF, Word

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import KnobValue
    from autotune.trainers.contract import Changes, Plan, Target
    from autotune.trainers.words import Words

TUNER = ("tuner_type", "train_type")  # since 4.0 and 3.0
_OLD_TUNER, _OLD_MODEL = "sft_type", "model_id_or_path"  # of ms-swift 2
_SIZE = {"rank": ("lora_rank", 8), "alpha": ("lora_alpha", 32.0), "dropout": ("lora_dropout", 0.05)}
_ROWS = 16  # of a step, where gradient_accumulation_steps is not stated
# Its config of that name: (sharding, offload). Stage 1 is zero2 that leaves gradients whole.
_DEEPSPEED: dict[str, tuple[str, str]] = {
    "zero0": ("ddp", "none"), "zero1": ("zero2", "none"), "zero2": ("zero2", "none"),
    "zero3": ("zero3", "none"), "zero2_offload": ("zero2", "optimizer"),
    "zero3_offload": ("zero3", "optimizer"),  # and the parameters, which is said
}  # fmt: skip
_DEEPSPEED_2 = {
    "default-zero2": "zero2", "default-zero3": "zero3", "zero2-offload": "zero2_offload",
    "zero3-offload": "zero3_offload",
}  # fmt: skip
# Of ms-swift 2, where a command does not say: one pass, lengths, a hundredth held out, and how
# many steps apart it evaluates and saves.
_EPOCHS_2, _LENGTH_2, _HELD_OUT_2, _EVERY_2 = 1.0, 2048, 0.01, 50
_TARGETS_2 = ("q_proj", "k_proj", "v_proj")
_WORDS: Words = {  # in every version, whatever transformers calls them
    "activation_checkpointing": (Word("gradient_checkpointing", FULL),),
    "length_grouping": (Word("group_by_length", ON_OFF),),
    "packing": (Word("packing", ON_OFF, unsaid="off"),),
}
_HELD_OUT = ("split_dataset_ratio", "dataset_test_ratio")
_COUNTED = re.compile(r"(?P<name>[^#]+)#(?P<rows>\d+)")
_MORE_SD = (0.15, 0.25)  # trains more than the adapter that is counted: an assumption
_AWAY_SD = (0.40, 0.40)  # parameters in the host's memory: an assumption


class Swift(Trainer):
    """ms-swift's arguments."""

    name = "swift"
    title = "ms-swift's arguments"
    file = ""
    own_keys = frozenset({
        *TUNER, "attn_impl", "quant_bits", "model_author", "lazy_tokenize", "rlhf_type",
        "split_dataset_ratio", "custom_dataset_info", "freeze_vit", "freeze_aligner",
    })  # fmt: skip
    known = ((3, 0, 3), (4, 6, 0))
    resumes_with = "resume_from_checkpoint"
    deepspeed_by_name = True
    program = "swift"
    software: ClassVar[Mapping[str, str]] = {"trainer": "transformers"}

    def read(self, values: Mapping[str, Any], name: str) -> Parsed:
        """The job that the arguments state.

        Raises:
            InputError: A value of the wrong kind, or a tuner that is not priced.
        """
        keys = Keys(values, name)
        defaults = {
            **HF_DEFAULTS, "micro_batch_size": 1, "activation_checkpointing": "full",
            "precision": "bf16",
        }  # fmt: skip
        parsed = Parsed("swift", defaults=defaults)
        if (model := keys.word("model", _OLD_MODEL)) is not None:
            parsed.values["model"] = model
        read_batch(keys, parsed)
        _read_step(keys, parsed)
        read_length_of_run(keys, parsed, _EPOCHS_2 if _is_of_2(keys) else EPOCHS)
        _read_method(keys, parsed)
        _read_data(keys, parsed)
        _read_dtype(keys, parsed)
        _read_attention(keys, parsed)
        _read_sharding(keys, parsed)
        read_shared(keys, parsed)
        _read_evaluation(keys, parsed)
        read_words(keys, parsed, "packing")
        if (other := keys.word("optimizer")) is not None:  # muon, galore, lorap, ...
            keep_optimizer(parsed, "optimizer", other)
        leave_rest(keys, parsed)
        parsed.datasets = _named(keys)
        return parsed

    def spell(self, knob: str, value: KnobValue, target: Target, /) -> Changes | str:
        """The arguments that say it."""
        if knob == "attention":
            return {"attn_impl": value}
        if knob in _WORDS:
            said = words.spell(knob, value, _WORDS, target)
            return "it recomputes all layers or none" if said is None else said
        if knob in {"sharding", "offload"}:
            return _spell_sharding(target)
        if knob == "precision" and value not in {"bf16", "fp16"}:
            return "it computes in 16 bits, or in the dtype of the weights"
        return spell_argument(knob, value, target)

    def commands(self, plan: Plan, file: str, launcher: str = "") -> list[str]:  # noqa: ARG002 - it has one of its own
        """Its own launcher, one process a device."""
        several = f"NPROC_PER_NODE={plan.offer.count} " if plan.offer.count > 1 else ""
        return [f"{several}swift sft {file}"]


def _spell_sharding(target: Target) -> Changes | str:
    """Its DeepSpeed or FSDP config by name; both knobs are in that name."""
    wanted = (target.config.sharding, target.config.offload)
    if wanted == ("fsdp", "none"):
        return {"fsdp": "fsdp2", **target.gone("deepspeed")}
    if wanted in {("none", "none"), ("ddp", "none")}:
        return target.gone("deepspeed", "fsdp")
    named = [name for name, said in _DEEPSPEED.items() if said == wanted]
    stated = target.values.get("deepspeed")
    if _DEEPSPEED_2.get(str(stated), "") in named:
        return {**target.gone("fsdp")}  # stays in that version's word
    if not named:
        return "ms-swift brings no config of DeepSpeed or FSDP for that"
    return {"deepspeed": stated if stated in named else named[-1], **target.gone("fsdp")}


def _is_of_2(keys: Keys) -> bool:
    """Whether a command's words are those of ms-swift 2, whose defaults then count."""
    return keys.spelled(_OLD_TUNER, _OLD_MODEL) is not None


def _read_step(keys: Keys, parsed: Parsed) -> None:
    """Without a stated accumulation a step takes 16 rows over all devices."""
    if keys.values.get("gradient_accumulation_steps") is not None:
        return
    micro = int(parsed.meaning["micro_batch_size"])
    parsed.notes = [note for note in parsed.notes if note.key != "gradient_accumulation_steps"]
    parsed.global_batch = ceil(_ROWS / micro) * micro
    why = f"gradient_accumulation_steps is not stated: ms-swift takes what makes {_ROWS} rows"
    parsed.note("global batch", parsed.global_batch, why)


def _read_method(keys: Keys, parsed: Parsed) -> None:
    kind = keys.word(*TUNER, _OLD_TUNER) or "lora"
    base = _base(keys)
    targets = keys.words("target_modules", "lora_target_modules")
    size = {}
    for part, (key, default) in _SIZE.items():
        stated = keys.whole(key, low=1) if part == "rank" else keys.number(key)
        size[part] = default if stated is None else stated
        if stated is None and kind != "full":
            parsed.note(f"method.{part}", f"{default:g}", f"{key} is not stated; its default")
    left = targets is None or not {*targets} - {"DEFAULT", "AUTO"}
    if kind == "lora" and left and _is_of_2(keys):
        targets = list(_TARGETS_2)
        parsed.note("method.targets", ", ".join(targets), "what ms-swift 2 names for most models")
    variant = read_variant(keys, parsed)
    scales = keys.switch("bnb_4bit_use_double_quant")  # true (arguments/base_args/quant_args.py)
    if kind == "full":
        parsed.part("method", kind="full", base=base)
        return
    if kind not in {"lora", "lora_llm"}:
        key = str(keys.spelled(*TUNER, _OLD_TUNER))
        msg = f"{keys.name}: {key} is {shown(kind)}; lora and full can be priced"
        raise InputError(msg, "--method lora is nearest to the other adapters in what it needs")
    if kind == "lora_llm":
        parsed.uncounted.append(
            Uncounted("tuner_type", kind, "trains more than the adapter that is counted", *_MORE_SD)
        )
    parsed.part(
        "method", kind="lora", base=base_of_adapter(base, parsed), variant=variant,
        targets=all_linear(targets or ["all-linear"]), **size,
        modules_to_save=read_saved(keys, "modules_to_save", "lora_modules_to_save"),
        double_quant=scales if base == "nf4" else None,
    )  # fmt: skip


def _base(keys: Keys) -> str | None:
    """How the base is stored; bitsandbytes alone of the ways that it quantises is priced."""
    bits, way = keys.get("quant_bits"), keys.word("quant_method")
    if bits is None or str(bits) == "0":
        return read_base(keys)
    if way not in {None, "bnb"} or str(bits) not in {"4", "8"}:
        msg = f"{keys.name}: a base of {way or 'bnb'} in {shown(bits)} bits is not priced"
        raise InputError(msg, "--quant_method bnb with 4 or 8 bits is")
    return "nf4" if str(bits) == "4" else "int8"


def _read_data(keys: Keys, parsed: Parsed) -> None:
    """Rows where every data set says how many are taken of it, as in name#500."""
    length = keys.whole("max_length", low=-1)
    if length is None and _is_of_2(keys):
        length = _LENGTH_2
        parsed.note("data.max_length", length, "not in the file; ms-swift 2's default")
    if length is not None and length < 1:
        length = None
    packed = keys.whole("packing_length", low=1)
    if packed is not None and keys.switch("packing"):
        length = packed
        parsed.note("data.max_length", packed, "packing_length: rows are packed to it")
    parsed.part("data", max_length=length)
    found = [_COUNTED.fullmatch(str(name)) for name in _datasets(keys)]
    if found and all(found):
        rows = sum(int(each["rows"]) for each in found if each)
        if rows:
            parsed.part("data", rows=rows)
            parsed.note("data.rows", rows, "as the data sets' #counts say")


def _read_evaluation(keys: Keys, parsed: Parsed) -> None:
    """What is held out is evaluated whenever a checkpoint is saved, unless another time is stated.

    Source: arguments/sft_args.py, `_init_eval_strategy`: without evaluations nothing is held out.
    """
    when = keys.at("eval_strategy") or keys.at("evaluation_strategy")
    when = when or ("steps" if _is_of_2(keys) else keys.at("save_strategy"))
    if when == "no":
        return
    others = bool(keys.get("val_dataset", "custom_val_dataset_path"))
    if not others:  # rows of another data set: how many, nothing says
        read_held_out(keys, parsed, *_HELD_OUT)
        if _is_of_2(keys) and all(keys.at(name) is None for name in _HELD_OUT):
            parsed.part("data", held_out=_HELD_OUT_2)
    evaluates = others or "held_out" in parsed.values.get("data", {})
    if evaluates and "evaluation" not in parsed.values:
        every = None if when == "epoch" else int(parsed.meaning["checkpoint_every_steps"])
        parsed.part("evaluation", every_steps=every)
        parsed.values.setdefault("evaluation", {})
        parsed.evaluations_per_epoch = 1.0 if when == "epoch" else None
        left_open = "$" in str(keys.get(EVALUATION_BATCH))  # a shell decides it, and it is little
        batch = None if left_open else keys.whole(EVALUATION_BATCH, low=1)
        parsed.part("evaluation", batch_size=batch)
        size_by_default(parsed)


def _datasets(keys: Keys) -> list[object]:
    stated = keys.get("dataset")
    if isinstance(stated, str):
        return list(stated.split())
    return list(stated) if isinstance(stated, list) else []


def _named(keys: Keys) -> tuple[str, ...]:
    """The data sets' names, without what is taken of them; empty where one is no name."""
    found = _datasets(keys)
    named = all(isinstance(name, str) for name in found)
    return tuple(str(name).partition("#")[0].partition(":")[0] for name in found) if named else ()


def _read_dtype(keys: Keys, parsed: Parsed) -> None:
    """Mixed precision in the dtype of the weights, unless it is stated."""
    read_precision(keys, parsed)
    dtype = keys.word("torch_dtype", "dtype")
    if "precision" not in parsed.knobs and dtype is not None and dtype.casefold() != "auto":
        parsed.knobs["precision"] = "bf16" if dtype.endswith(("bfloat16", "bf16")) else "fp16"
    parsed.mixed = keys.switch("bf16") is not False or keys.switch("fp16") is True


def _read_attention(keys: Keys, parsed: Parsed) -> None:
    stated = keys.word("attn_impl")
    kernel = "flash_attention_2" if stated == "flash_attn" else attention_of(stated or "")
    if stated is None and keys.switch("use_flash_attn"):
        kernel = "flash_attention_2"
    if kernel is not None:
        parsed.knobs["attention"] = kernel
    elif stated is not None:
        parsed.keep("attention", "attn_impl", stated, "no such kernel here; counted as the default")


def _read_sharding(keys: Keys, parsed: Parsed) -> None:
    """A config that it brings, by its name; another one is read beside the file."""
    config = keys.get("deepspeed")
    config = _DEEPSPEED_2.get(config, config) if isinstance(config, str) else config
    if isinstance(config, str) and config in _DEEPSPEED:
        parsed.knobs["sharding"], offload = _DEEPSPEED[config]
        if config == "zero1":
            parsed.part("deepspeed", stage=1)
        if offload != "none":
            parsed.knobs["offload"] = offload
        if config == "zero3_offload":
            why = "keeps parameters in the host's memory too: smaller and slower than is counted"
            parsed.uncounted.append(Uncounted("deepspeed", config, why, *_AWAY_SD))
    elif keys.get("fsdp"):
        parsed.knobs["sharding"] = "fsdp"
