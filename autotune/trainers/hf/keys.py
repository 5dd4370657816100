"""TrainingArguments' words for the knobs, read and written, in the version that will run.

axolotl, LLaMA-Factory and Unsloth take most of these keys over; their own files name the rest.
Source: training_args.py of transformers 4.57.6 to 5.23.0, sft_config.py and model_config.py of trl.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.config import ZERO_STAGE
from autotune.domain.job import Uncounted
from autotune.domain.typed.values import shown
from autotune.trainers import words
from autotune.trainers.versions import ACTIVATION_CHECKPOINTING, SAMPLING_STRATEGY, show
from autotune.trainers.words import ON_OFF, Word

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.domain.config import KnobValue
    from autotune.trainers.contract import Changes, Target
    from autotune.trainers.parsed import Keys, Parsed
    from autotune.trainers.words import Words

LAUNCHER = "the launcher decides it: accelerate.yaml, written beside the file, says how"


COMPILE_MODES = ("default", "reduce-overhead", "max-autotune")
FULL = ((True, "full"), (False, "none"))
LIGER = ((True, "liger"), (False, "none"))
OPTIMIZERS = (
    ("adamw_torch_fused", "adamw_torch_fused"), ("adamw_torch", "adamw_torch"),
    ("adamw_bnb_8bit", "adamw_bnb_8bit"), ("adamw_8bit", "adamw_bnb_8bit"),
    ("paged_adamw_8bit", "paged_adamw_8bit"), ("adamw_hf", "adamw_torch"),
    ("adamw_apex_fused", "adamw_torch_fused"),
)  # fmt: skip
ATTENTION = (
    ("eager", "eager"), ("sdpa", "sdpa"), ("flash_attention_2", "flash_attention_2"),
    ("fa2", "flash_attention_2"), ("flash_attention_3", "flash_attention_3"),
)  # fmt: skip
WORDS: Words = {
    "micro_batch_size": (  # per_gpu_ left with transformers 5.0
        Word("per_device_train_batch_size"), Word("per_gpu_train_batch_size"),
    ),
    "gradient_accumulation_steps": (Word("gradient_accumulation_steps"),),
    "num_dataloader_workers": (Word("dataloader_num_workers"),),
    "prefetch_factor": (Word("dataloader_prefetch_factor"),),
    "pin_memory": (Word("dataloader_pin_memory"),),
    "checkpoint_every_steps": (Word("save_steps"),),
    "save_total_limit": (Word("save_total_limit"),),
    "activation_checkpointing": (
        Word("activation_checkpointing", FULL, since=ACTIVATION_CHECKPOINTING),
        Word("gradient_checkpointing", FULL),
    ),
    "optimizer": (Word("optim", OPTIMIZERS),),
    "packing": (Word("packing", ON_OFF, unsaid="off"),),
    "length_grouping": (
        Word(
            "train_sampling_strategy",
            (("group_by_length", "on"), ("random", "off"), ("sequential", "off")),
            since=SAMPLING_STRATEGY,
        ),
        Word("group_by_length", ON_OFF),
    ),
    "kernels": (
        Word("use_liger_kernel", LIGER, unsaid="none"),
        Word("enable_liger_kernel", LIGER, unsaid="none"),
        Word("use_liger", LIGER, unsaid="none"),  # of TRL's SFTConfig before 0.16
    ),
}  # fmt: skip
MODEL = (  # what the model is called, of the Trainer's programs and of many people's own
    "model_name_or_path", "model_name", "model_id", "model", "base_model", "base_model_id",
    "base_model_name", "base_model_name_or_path", "base_model_path",
    "pretrained_model_name_or_path",
)  # fmt: skip
OWN_LENGTH = "the length that the script cuts rows at"  # where it is computed
PADS = "pad_to_max_length"  # of run_clm.py and its like; of a script by what it calls
PREPARED = "prepare_model_for_kbit_training"  # of a script by what it calls, in few bits
BY_SCRIPT = "by a call of the script"  # on the model itself, beside the arguments
CHECKPOINTING = tuple(word.key for word in WORDS["activation_checkpointing"])
OWN_CHECKPOINTING = (  # of programs with flags of their own
    "use_gradient_checkpointing", "enable_gradient_checkpointing", "grad_checkpointing",
    "use_activation_checkpointing", "gradient_checkpoint",
)  # fmt: skip
_NO_WORD = {"kernels": "its loss holds all logits; that of TRL's SFTTrainer from 1.9 on does not"}


def own_checkpointing(keys: Keys, trainer: str) -> str | None:
    """A program's own word for it, where the Trainer's does not stand."""
    stated = keys.spelled(*CHECKPOINTING) or trainer not in {"hf", "trl"}
    return None if stated else keys.spelled(*OWN_CHECKPOINTING)


# How far a value that no word here means may lie from what is counted: an assumption.
_ANOTHER_SD = (0.20, 0.20)


def read_words(keys: Keys, parsed: Parsed, *knobs: str, own: Words = WORDS) -> None:
    """What the file says of those knobs, in TrainingArguments' words or in others.

    A value that is none of them is said: something else is counted in its place.
    """
    for knob in knobs:
        value = words.read(knob, keys, own)
        if value is not None:
            parsed.knobs[knob] = value
        elif (odd := words.odd(knob, keys, own)) and knob != "optimizer":
            name, stated = odd
            parsed.kept.add(knob)
            counted = parsed.meaning.get(knob, "the default")
            why = f"no value that is read: {counted} is counted in its place"
            parsed.uncounted.append(Uncounted(name, shown(stated), why, *_ANOTHER_SD))


def spell_argument(knob: str, value: KnobValue, target: Target) -> Changes | str:
    """The TrainingArguments that say a knob's value, or why they cannot."""
    own = _SPELLINGS.get(knob)
    changes = own(value, target) if own else words.spell(knob, value, WORDS, target)
    if changes is None:
        return _NO_WORD.get(knob, f"TrainingArguments have no word for {value}")
    inside = _inside_deepspeed(knob, value, target)
    return {**changes, **inside} if inside and isinstance(changes, dict) else inside or changes


def spell_base(target: Target) -> Changes | str:
    """The dtype that weights of 16 bits are loaded in.

    Source: trl 1.16 trainer/model_config.py (`dtype`), sft_trainer.py (`model_init_kwargs`, ignored
    where the script loads the model).
    """
    if target.base != "16bit":
        return "write it where the model is loaded"
    dtype = "float16" if target.config.precision == "fp16" else "bfloat16"
    if target.syntax != "python":
        return {"dtype": dtype}
    if target.by_name:
        return {"model_init_kwargs.dtype": dtype}
    return f"give from_pretrained dtype=torch.{dtype}"


def _inside_deepspeed(knob: str, value: KnobValue, target: Target) -> Changes:
    """What a DeepSpeed config that stands in the arguments says of it as a number; not `auto`."""
    config = target.values.get("deepspeed")
    if not isinstance(config, dict):
        return {}
    counts = {
        "micro_batch_size": "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps": "gradient_accumulation_steps",
    }
    if knob in counts and isinstance(config.get(counts[knob]), int):
        return {f"deepspeed.{counts[knob]}": value}
    zero = config.get("zero_optimization")
    if knob == "sharding" and value in ZERO_STAGE and isinstance(zero, dict) and "stage" in zero:
        return {"deepspeed.zero_optimization.stage": ZERO_STAGE[str(value)]}
    return {}


def _workers(value: KnobValue, target: Target) -> Changes:
    """Without workers, a prefetch factor or persistent workers are refused."""
    changes: Changes = {"dataloader_num_workers": value}
    if value == 0:
        changes |= target.gone("dataloader_prefetch_factor", "dataloader_persistent_workers")
    return changes


def _prefetch(value: KnobValue, target: Target) -> Changes:
    if target.config.num_dataloader_workers == 0:
        return target.gone("dataloader_prefetch_factor")
    return {"dataloader_prefetch_factor": value}


def _saving(value: KnobValue, target: Target) -> Changes:
    """By steps is the trainer's own default."""
    stated = {"save_strategy": "steps"} if target.has("save_strategy") else {}
    return {**stated, "save_steps": value}


def spell_compile(value: KnobValue, target: Target) -> Changes:
    """Mode and backend switch compilation on by themselves, so off takes them away."""
    if value == "off":
        gone = target.gone("torch_compile_mode", "torch_compile_backend")
        return {"torch_compile": False, **gone}
    changes: Changes = {"torch_compile": True}
    if value != "default" or target.has("torch_compile_mode"):
        changes["torch_compile_mode"] = value
    return changes


def spell_precision(value: KnobValue, target: Target) -> Changes | str:
    """bf16 and fp16 exclude each other; tf32 has no meaning in 16 bits."""
    changes: Changes = {}
    if value == "fp8":
        return LAUNCHER
    if value == "bf16" and target.values.get("bf16") == "auto":
        return changes
    for name in ("bf16", "fp16"):
        if value == name or target.has(name):
            changes[name] = value == name
    changes |= target.gone("pure_bf16")
    if value in {"tf32", "fp32"}:
        changes |= {"bf16": False, "fp16": False}
        if value == "tf32" or target.has("tf32"):
            changes["tf32"] = value == "tf32"
    return changes


def _checkpointing(value: KnobValue, target: Target) -> Changes:
    new, old = CHECKPOINTING
    wanted = words.newest(WORDS["activation_checkpointing"], target.transformers).key
    name = old if target.has(old) and not target.has(new) else wanted
    changes: Changes = {name: value == "full"}
    if value == "none":
        return {**changes, **target.gone(f"{new}_kwargs", f"{old}_kwargs")}
    if not target.has(f"{name}_kwargs") and target.syntax not in {"args", "shell"}:
        changes[f"{name}_kwargs"] = {"use_reentrant": False}
    return changes


def _attention(value: KnobValue, target: Target) -> Changes | str:
    for name in ("attn_implementation", "model_init_kwargs.attn_implementation"):
        if target.has(name):
            return {name: value}
    if target.has("model_init_kwargs"):
        return {"model_init_kwargs.attn_implementation": value}
    if target.has("model_name_or_path"):
        return {"attn_implementation": value}
    return "the file does not load the model: give attn_implementation where it is loaded"


def _sharding(value: KnobValue, target: Target) -> Changes | str:
    changes: Changes = {}
    if value in ZERO_STAGE and target.has("deepspeed"):
        return changes  # that file says it, and is given back as well
    if value not in ZERO_STAGE:
        changes |= target.gone("deepspeed")
    if value != "fsdp":
        changes |= target.gone("fsdp", "fsdp_config")
    return changes or LAUNCHER


def _adapter_dtype(value: KnobValue, _: Target) -> Changes | str:
    return f"no argument of the trainer says that adapters are stored in {value}"


def _scope(value: KnobValue, _: Target) -> Changes | str:
    return {} if value == "model" else LAUNCHER


def _offload(value: KnobValue, target: Target) -> Changes | str:
    """Activations by the checkpoints' own keywords; what is sharded by the launcher."""
    new, old = CHECKPOINTING
    changes = target.gone("activation_offloading", "fsdp_config.cpu_offload")
    changes |= target.gone(f"{new}_kwargs.offload", "deepspeed.zero_optimization.offload_optimizer")
    if value == "none":
        return changes
    if value == "activations" and target.transformers >= ACTIVATION_CHECKPOINTING:
        name = old if target.has(old) and not target.has(new) else new
        return {**changes, f"{name}_kwargs.offload": True}
    if value == "activations":
        return f"transformers from {show(ACTIVATION_CHECKPOINTING)} on can; TRL can before"
    return LAUNCHER


_SPELLINGS: dict[str, Callable[[KnobValue, Target], Changes | str]] = {
    "num_dataloader_workers": _workers,
    "prefetch_factor": _prefetch,
    "checkpoint_every_steps": _saving,
    "compile": spell_compile,
    "compile_scope": _scope,
    "precision": spell_precision,
    "activation_checkpointing": _checkpointing,
    "attention": _attention,
    "sharding": _sharding,
    "adapter_dtype": _adapter_dtype,
    "offload": _offload,
}
