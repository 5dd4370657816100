"""LoRA and the storage of its base in the words of PEFT and TRL's ModelConfig, read and written."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from autotune.catalog.models.derived import stored_by_name
from autotune.catalog.software import (
    LOADS_AS_STORED_FROM,
    TRL_MIXED_FROM,
    TRL_RECOMPUTES_FROM,
)
from autotune.domain.config import YES, ZERO_STAGE
from autotune.domain.errors import InputError
from autotune.domain.job import Uncounted
from autotune.trainers.hf.keys import PADS
from autotune.trainers.schema import schema_of

if TYPE_CHECKING:
    from autotune.domain.job import Method
    from autotune.domain.model import Model
    from autotune.domain.software import Software
    from autotune.trainers.parsed import Keys, Parsed

_DTYPES = {
    "float32": "32bit", "fp32": "32bit", "float16": "16bit", "fp16": "16bit", "half": "16bit",
    "bfloat16": "16bit", "bf16": "16bit",
}  # fmt: skip
_HALVES = {"float16": "fp16", "fp16": "fp16", "half": "fp16", "bfloat16": "bf16", "bf16": "bf16"}


# What public scripts call the same. Source: peft examples/sft/train.py, qlora.py, DeepSpeed-Chat's
# main.py, FastChat's train_lora.py, Firefly's and BELLE's, Chinese-LLaMA-Alpaca's, ORPO's main.py.
OWN_FLAGS = {
    "lora_r": ("lora_dim", "peft_lora_r"), "lora_alpha": ("peft_lora_alpha",),
    "lora_target_modules": ("lora_modules", "target_modules", "trainable"),
    "use_peft": ("use_peft_lora",),
    "quantization_bit": ("bits", "quant_bit", "load_in_bits", "load_in_kbits"),
    "load_in_4bit": ("use_4bit_quantization", "q_lora", "use_4bit"),
    "load_in_8bit": ("use_8bit_quantization", "use_8bit"),
    "max_length": ("max_seq_len", "block_size", "seq_length", "seq_len", "sequence_len",
                   "response_max_length", "total_max_len", "context_length", "max_context_length",
                   "total_length", "max_len", "cutoff_len"),
    "length": ("source_max_len", "target_max_len", "max_source_length", "max_target_length"),
    "epochs": ("epochs", "n_epochs", "num_epoch", "max_epochs", "epoch"), "padding": (PADS,),
    "packing": ("sample_packing",),
    "max_steps": ("train_steps", "max_train_steps", "num_train_steps"),
    "sharding": ("zero_stage",),
    "attention": (
        "use_flash_attn", "flash_attention_2", "use_flash_attention_2", "use_flash_attention",
    ),
    "method": (
        "train_mode", "training_mode", "tuning_mode", "train_type", "training_method",
        "tuning_method", "train_method", "finetune_type", "peft_method",
    ),
}  # fmt: skip


# Modules of a checkpoint that see, hear, or bring what they found into the text model. Their
# matrices are called like the text model's, and PEFT, which goes by the end of a name, would adapt
# those as well; Gemma 4's it cannot wrap.
# Source: transformers 5.23 models/gemma3, mistral3, qwen2_5_vl and gemma4 (Gemma4ClippableLinear);
# huggingface/peft#3129; peft 0.21 tuners/lora/model.py, which takes nn.Linear and no module that
# holds one.
BESIDE = (
    "vision_tower", "audio_tower", "embed_vision", "embed_audio", "multi_modal_projector", "visual",
)  # fmt: skip
_BESIDE = rf".*\b({'|'.join(BESIDE)})\b.*"
_LAYERS_BESIDE = r"model\.language_model\.layers\.\d+\.\w+\."


def is_beside_others(model: Model) -> bool:
    """Whether the checkpoint holds more than its text model, and its class loads all of it."""
    return model.beside_params > 0


def spared_keys(model: Model) -> dict[str, Any]:
    """PEFT's words for the parts of a checkpoint that carry no adapters."""
    return {"exclude_modules": _BESIDE} if is_beside_others(model) else {}


def attention_words(model: Model, attention: str) -> str | dict[str, str]:
    """What loads a checkpoint with this attention: a word, or one for its text model alone.

    The part of Gemma 4 that hears knows eager attention only, and refuses to load with another.
    Source: transformers 5.23 models/gemma4, Gemma4AudioModel; modeling_utils.py, which takes a word
    for each part of the config, "" for the whole.
    """
    if not (is_beside_others(model) and model.family == "gemma4_text"):
        return attention
    return {"": attention, "text_config": attention}


def text_targets(model: Model, method: Method) -> list[str] | str:
    """The adapted modules for a file that cannot leave others out: names, else a pattern."""
    if not is_beside_others(model):
        return list(method.targets)
    return f"{_LAYERS_BESIDE}({'|'.join(method.targets)})"


# Words for a way of training that add nothing to what the file says elsewhere.
_WAYS = {"none", "full", "lora", "qlora", "sft", "pretrain", "pt", "dpo", "kto", "orpo", "", "peft"}
_OTHER_WAY = "another way of training than is counted, and not read: --method says which is"
_OTHER_WAY_SD = (0.40, 0.40)


def read_adapter(keys: Keys, parsed: Parsed) -> None:
    """LoRA of TRL's ModelConfig or PEFT's LoraConfig; full only where the file says so."""
    rank = keys.whole("lora_r", "lora_rank", *OWN_FLAGS["lora_r"]) or None  # 0 is no adapter
    if rank is None and keys.at("lora_alpha") is not None:  # LoraConfig's own word for it
        rank = keys.whole("r") or None
    alpha = keys.number("lora_alpha", *OWN_FLAGS["lora_alpha"])
    dropout = keys.number("lora_dropout")
    targets = keys.words("lora_target_modules", "lora_target", *OWN_FLAGS["lora_target_modules"])
    some = str(keys.at("lora_r")) != "0"  # PEFT refuses a rank of 0: what runs puts no adapter on
    peft = some and keys.switch("use_peft", "use_lora", *OWN_FLAGS["use_peft"])
    base = read_base(keys, own=True)
    parsed.base_dtype = _HALVES.get(_dtype(keys), "")
    known = all(schema_of("trl").find(str(key)) for key in keys.values)
    parsed.loads = parsed.trainer == "trl" and known and "model" in parsed.values
    mode = str(keys.get(*OWN_FLAGS["method"])).casefold()
    # LLMBox's train.py, LLamaTuner's: switches of their own
    for name, means in (("lora", "lora"), ("qlora", "qlora"), ("use_qlora", "qlora")):
        if str(keys.at(name)).casefold() in YES and keys.switch(name):
            mode = means
    if peft is None and mode in {"full", "lora", "qlora"}:
        peft = mode != "full"
    elif mode not in _WAYS:
        key = str(keys.spelled(*OWN_FLAGS["method"]))
        parsed.uncounted.append(Uncounted(key, mode, _OTHER_WAY, *_OTHER_WAY_SD))
    if mode == "qlora" and base != "int8":
        base = "nf4"
    variant = read_variant(keys, parsed)
    scales = _read_scales(keys, base, parsed)
    stated = {"rank": rank, "alpha": alpha, "dropout": dropout}
    if peft or (peft is None and (rank is not None or targets)):
        if parsed.trainer == "trl":
            fill_adapter(parsed, stated)
        parsed.peft_targets = targets is None
        parsed.part(
            "method", kind="lora", base=base, **stated, targets=all_linear(targets),
            variant=variant, double_quant=scales,
            modules_to_save=read_saved(keys, "lora_modules_to_save", "modules_to_save"),
        )  # fmt: skip
    elif peft is False:
        parsed.part("method", kind="full", base=base)
    else:
        parsed.part("method", base=base, double_quant=scales)


# Trainers by their titles in notes, and in files, that cast whatever is trained; the others leave
# what PEFT trains whole as it was loaded. Source: llamafactory 0.9.5 model/adapter.py.
CASTS_SAVED = ("llamafactory", "LLaMA-Factory")


def read_saved(keys: Keys, *names: str) -> list[str] | None:
    """Modules that are trained whole beside the adapters, by the file's names; None of none."""
    stated = keys.words(*names) or []
    return [name for name in stated if name.casefold() not in {"none", "null"}] or None


def base_of_adapter(stated: str | None, parsed: Parsed) -> str | None:
    """The base under an adapter: as stated, or in 16 bit; None where the checkpoint itself says.

    A checkpoint whose name says how it is quantised is trained on as it is stored.
    """
    return stated or (None if stored_by_name(str(parsed.values.get("model", ""))) else "16bit")


_OWN_COMMAND = re.compile(r"(?:^|[\s/])trl\s+[a-z]")  # trl sft ..., not a program of the user's


# A script in which no weight gets a dtype: transformers alone says what it loads.
_SPEAKS_OF_DTYPES = re.compile(
    r"dtype|\.(float|half|double)\(|float(16|32)|\bhalf\b|bf16_?true|quantization"
)


def loads_silently(text: str) -> bool:
    """Whether a script loads a model, and gives no weight a dtype; its comments say nothing."""
    from autotune.trainers.syntax.python_settings import tree_of

    try:
        code = ast.unparse(tree_of(text, "the script"))
    except InputError:
        return False
    return "from_pretrained" in code and not _SPEAKS_OF_DTYPES.search(code)


def fill_base(
    parsed: Parsed, syntax: str, text: str, transformers: tuple[int, ...] | None = None
) -> str:
    """What TRL loads the weights in where its arguments state no dtype: fp32, or empty: as said.

    A script that is started may load them by itself, and so may a program with words of its own.
    transformers: the release that is stated; before 5 it gives a script fp32 that asks for nothing.
    So does that of arguments which 5 has no more.
    DeepSpeed makes 16 bit of what was loaded.
    Source: trl 1.16 trainer/model_config.py (dtype) and trainer/utils.py create_model_from_path,
    "float32"; before, None, which transformers 4 took for fp32; deepspeed 0.18.9 runtime/engine.py
    _configure_distributed_model.
    """
    method = parsed.values.get("method", {})
    known = method.get("base") or method.get("kind") == "qlora"
    own = syntax in {"yaml", "json"} or (syntax != "python" and _OWN_COMMAND.search(text))
    silent = parsed.silent or (syntax == "python" and loads_silently(text))
    silent = silent and parsed.trainer in {"hf", "trl"}
    release = transformers or parsed.before
    old = release is not None and release < LOADS_AS_STORED_FROM
    # Gradients of fp16 weights cannot be unscaled: such a script runs where they are loaded wide.
    only = method.get("kind") == "full" and parsed.knobs.get("precision") == "fp16"
    wide = silent and (old or only)
    cast = parsed.meaning.get("sharding") in ZERO_STAGE
    stored = stored_by_name(str(parsed.values.get("model")))
    parsed.silent = bool(silent) and release is None and not (known or wide or cast or stored)
    if known or cast or stored or not (parsed.by_name or (parsed.loads and own) or wide):
        return ""
    parsed.part("method", base="32bit")
    why = "dtype is not in the file; TRL's own default is float32, and bfloat16 would halve it"
    if wide and not parsed.by_name:
        why = (
            "no dtype is in the script; transformers before 5 loads fp32, and 16 bit would halve it"
            if old
            else "no dtype is in the script, and weights of 16 bit do not train under fp16"
        )
    parsed.note("method.base", "32bit", why)
    if parsed.trainer == "hf" and "precision" not in parsed.meaning:
        parsed.defaults["precision"] = "fp32"  # Trainer's own bf16 and fp16 are off
    return "32bit"


# Knobs whose default is another in older releases of TRL: a file says them where none is stated.
OF_RELEASES = frozenset({"activation_checkpointing", "precision"})


def as_released(parsed: Parsed, trl: tuple[int, ...] | None) -> None:
    """What the arguments leave to a release of TRL that the user states."""
    if parsed.trainer != "trl" or trl is None:
        return
    left = []
    if trl < TRL_RECOMPUTES_FROM and "activation_checkpointing" not in parsed.knobs:
        parsed.defaults["activation_checkpointing"] = "none"
        left.append(("activation_checkpointing", "none"))
    if trl < TRL_MIXED_FROM and "precision" not in parsed.knobs:
        parsed.defaults.pop("precision", None)
        if parsed.values.get("method", {}).get("base") == "32bit":
            parsed.defaults["precision"] = "fp32"
            left.append(("precision", "fp32"))
    for knob, value in left:
        parsed.note(knob, value, f"not in the file; the default of TRL {'.'.join(map(str, trl))}")


_TAKE_ITS_ARGUMENTS = frozenset({"hf", "trl", "llamafactory", "swift"})


def as_trained(parsed: Parsed, software: Software | None) -> None:
    """The optimizer that the Trainer's arguments leave to the versions that the user states."""
    if software is None or parsed.trainer not in _TAKE_ITS_ARGUMENTS or parsed.steps_by_config:
        return
    usual = software.usual_optimizer
    kept = {*parsed.knobs, *parsed.kept}
    if "optimizer" not in kept and parsed.defaults.get("optimizer", usual) != usual:
        parsed.defaults["optimizer"] = usual
        why = "not in the file; the Trainer's default before transformers 4.54, or torch 2.8"
        parsed.note("optimizer", usual, why)


def fill_adapter(parsed: Parsed, stated: dict[str, Any]) -> None:
    """The adapter's size where the file does not state it: the trainer's own default."""
    for part, key in (("rank", "lora_r"), ("alpha", "lora_alpha"), ("dropout", "lora_dropout")):
        if stated[part] is None:
            schema = schema_of(parsed.trainer)
            stated[part] = schema.default(key)
            why = f"{key} is not in the file; the default of {schema.newest}"
            parsed.note(f"method.{part}", f"{stated[part]:g}", why)


NESTED = (
    "use_bnb_nested_quant", "bnb_4bit_use_double_quant", "use_nested_quant", "double_quant",
    "model_init_kwargs.bnb_4bit_use_double_quant",
)  # fmt: skip


def _read_scales(keys: Keys, base: str | None, parsed: Parsed) -> bool | None:
    """Whether the scales of 4-bit blocks are quantised too; None where nothing says.

    Where the arguments alone load the base it is bitsandbytes' own default, false. Programs with
    flags of their own for 4 bits quantise them.
    Source: transformers 5.23 BitsAndBytesConfig, trl 1.16 ModelConfig, peft examples/sft; qlora.py,
    FastChat's train_lora.py, Firefly's train.py.
    """
    stated = keys.switch(*NESTED)
    by_arguments = ("load_in_4bit", "model_init_kwargs.load_in_4bit", "use_4bit_quantization")
    if base != "nf4" or stated is not None or keys.spelled(*by_arguments) is None:
        return stated if base == "nf4" else None
    key = NESTED[0 if parsed.trainer == "trl" else 1]
    why = f"{key} is not in the file; false is the default: 0.4 bits more a weight"
    parsed.note("method.double_quant", "false", why)
    return False


def all_linear(targets: list[str] | None) -> list[str] | None:
    """`all` of LLaMA-Factory and `ALL` of ms-swift 2 are PEFT's all-linear."""
    whole = len(targets or ()) == 1 and str((targets or [""])[0]).casefold() in {
        "all",
        "all-linear",
    }
    return ["all-linear"] if whole else targets


def read_base(keys: Keys, *, dtype: bool = True, own: bool = False) -> str | None:
    """How the base is stored: nf4, int8, 16bit or 32bit; None where nothing is stated.

    own: flags of public scripts count as well.
    """
    flags = OWN_FLAGS if own else {}
    bits = keys.whole("quantization_bit", *flags.get("quantization_bit", ()))
    four, eight = (
        keys.switch(name, f"model_init_kwargs.{name}", *flags.get(name, ()))
        for name in ("load_in_4bit", "load_in_8bit")
    )
    keys.get("bnb_4bit_quant_type")
    if four or bits == 4:  # noqa: PLR2004
        return "nf4"
    if eight or bits == 8:  # noqa: PLR2004
        return "int8"
    return _DTYPES.get(_dtype(keys)) if dtype else None


def _dtype(keys: Keys) -> str:
    """The dtype that weights are loaded in, without torch's name before it; empty: not stated."""
    text = keys.get(
        "dtype", "torch_dtype", "model_init_kwargs.dtype", "model_init_kwargs.torch_dtype"
    )
    return text.removeprefix("torch.") if isinstance(text, str) else ""


# How far time and memory of products in fp32 may be off: what is cast for them is not counted.
_FP32_SD = (0.20, 0.20)


def say_compute_dtype(keys: Keys, parsed: Parsed) -> None:
    """That 4-bit weights are multiplied in fp32, where nothing switches mixed precision on.

    Source: bitsandbytes 0.49 nn/modules.py, Linear4bit.forward, which casts its input to the dtype.
    """
    key = "bnb_4bit_compute_dtype"
    fp32 = str(keys.get(key)).removeprefix("torch.") in {"float32", "fp32"}
    nf4 = parsed.values.get("method", {}).get("base") == "nf4"
    if fp32 and nf4 and parsed.trainer == "hf" and "precision" not in parsed.knobs:
        why = "4-bit weights are multiplied in fp32, as neither bf16 nor fp16 is on: several times "
        why += "as slow as 16 bit; bfloat16 there, or bf16 in the arguments, mends it"
        parsed.uncounted.append(Uncounted(key, "float32", why, *_FP32_SD))
        parsed.fp32_products = True


def read_variant(keys: Keys, parsed: Parsed, prefix: str = "") -> str | None:
    """The variant of LoRA that `use_dora` and `use_rslora` state; None for LoRA as it is.

    PEFT takes both at once: the scale costs nothing, so that both are priced as DoRA.
    """
    dora, scaled = (keys.switch(prefix + key) for key in ("use_dora", "use_rslora"))
    if dora and scaled:
        why = "beside DoRA: it changes the scale alone, and a new export states DoRA alone"
        parsed.note(f"{prefix}use_rslora", "true", why)
    return "dora" if dora else "rslora" if scaled else None


def variant_keys(method: Method, prefix: str = "") -> dict[str, bool]:
    """What states the variant of LoRA in PEFT's words; nothing for LoRA as it is.

    Source: peft 0.21 LoraConfig; llamafactory 0.9.5 and trl 1.16 have the same names, axolotl 0.21
    writes `peft_` before them.
    """
    return {} if method.variant == "none" else {f"{prefix}use_{method.variant}": True}
