"""axolotl's words for the knobs, read and written: its own keys beside TrainingArguments'.

A plugin is a class named in the list `plugins`, with switches of its own beside it.
Source: the pydantic schema and trainer builder of axolotl 0.19.0 (utils/schemas, core/builders);
axolotl 0.21.0 integrations/liger/args.py, integrations/cut_cross_entropy/args.py: the first
switches nothing on by itself, the second its loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.config import ZERO_STAGE
from autotune.domain.errors import InputError
from autotune.domain.job import Uncounted
from autotune.trainers import words
from autotune.trainers.contract import GONE
from autotune.trainers.hf.keys import OPTIMIZERS, spell_argument
from autotune.trainers.hf.read import FSDP_OFFLOADS, read_checkpointing, read_offload
from autotune.trainers.words import ON_OFF, Word

if TYPE_CHECKING:
    from autotune.domain.config import KnobValue
    from autotune.domain.job import Job
    from autotune.trainers.contract import Changes, Target
    from autotune.trainers.parsed import Keys, Parsed
    from autotune.trainers.words import Words

OLD_ATTENTION = {  # before 0.17 one switch a kernel
    "flash_attention": "flash_attention_2", "sdp_attention": "sdpa", "eager_attention": "eager",
}  # fmt: skip
CHECKPOINTING = "gradient_checkpointing"
_FSDP_CHECKPOINTING = (
    "fsdp_config.activation_checkpointing", "fsdp_config.fsdp_activation_checkpointing",
)  # fmt: skip
WORDS: Words = {
    "packing": (Word("sample_packing", ON_OFF, unsaid="off"),),
    "optimizer": (Word("optimizer", OPTIMIZERS),),
    "length_grouping": (Word("group_by_length", ON_OFF),),
}
LIGER = "axolotl.integrations.liger.LigerPlugin"
CUT = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
LINEARS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
_FUSED_LOSS = "liger_fused_linear_cross_entropy"
_LIGER_SWITCHES = ("liger_rope", "liger_rms_norm", "liger_glu_activation", _FUSED_LOSS)
_OTHER_SWITCHES = ("liger_swiglu", "liger_layer_norm", "liger_cross_entropy")
_CUT_SWITCH = "cut_cross_entropy"
_CHUNKED = "chunked_cross_entropy"
_NOT_UNDER_FSDP2 = "axolotl refuses adamw_bnb_8bit under FSDP2: choose another of the two"


def read_own_checkpointing(keys: Keys, parsed: Parsed) -> None:
    """`offload` and `offload_disk` are values that no knob has."""
    stated = keys.get(CHECKPOINTING)
    if isinstance(stated, str) and stated.startswith(("offload", "unsloth")):
        parsed.knobs["activation_checkpointing"] = "full"
        why = "counted as plain checkpointing"
        if stated == "unsloth":
            why += "; axolotl 0.19 and later refuse it"
        parsed.keep("activation_checkpointing", CHECKPOINTING, stated, why)
        if stated == "offload":
            parsed.knobs["offload"] = "activations"
        read_offload(keys, parsed)
        return
    inside = keys.switch(*_FSDP_CHECKPOINTING)  # FSDP's own wrapper: the same, said elsewhere
    read_checkpointing(keys, parsed)
    if inside and parsed.knobs.get("activation_checkpointing") != "full":
        parsed.knobs["activation_checkpointing"] = "full"
        why = "in fsdp_config: FSDP's own wrapper recomputes"
        parsed.keep("activation_checkpointing", "activation_checkpointing", "true", why)


def read_plugins(keys: Keys, parsed: Parsed) -> None:
    """The knob `kernels` of the file's plugins and their switches.

    Liger's norms without its loss, beside a loss that is cut, count as all of Liger and are left as
    they are; without such a loss they count as none, which needs more memory.
    """
    plugins = keys.words("plugins") or []
    switches = {
        name: keys.switch(name)
        for name in (*_LIGER_SWITCHES, *_OTHER_SWITCHES, _CUT_SWITCH, _CHUNKED)
    }
    cut = (any("CutCrossEntropy" in name for name in plugins) and switches[_CUT_SWITCH] is not False
           ) or bool(switches[_CHUNKED])  # fmt: skip
    liger = any("LigerPlugin" in name for name in plugins)
    layers = liger and any(switches[name] for name in (*_LIGER_SWITCHES[:3], *_OTHER_SWITCHES[:2]))
    if liger and switches[_FUSED_LOSS]:
        parsed.knobs["kernels"] = "liger"
    elif layers and cut:
        parsed.knobs["kernels"] = "liger"
        parsed.keep("kernels", "plugins", plugins, "counted as all of Liger's kernels")
    elif cut:
        parsed.knobs["kernels"] = "chunked_loss"
    elif layers:
        why = "Liger's layers without its loss: counted without, as the logits decide"
        parsed.keep("kernels", "plugins", plugins, why)


# Adapters as one operation with their weights; those of the embedding move next to nothing.
ADAPTER_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")
_EMBEDDING_KERNEL = "lora_embedding_kernel"


def read_fused_adapters(keys: Keys, parsed: Parsed) -> None:
    """Whether axolotl fuses adapters with their weights: stated, or by itself where nothing is.

    It does so by itself since 0.10, except under preference training, on an int8 base, with code of
    the model's own, and under the first FSDP. Left to what is not counted: switches that are on for
    some, and adapters with dropout or beside a part of the weights, whose operations keep more.
    Source: axolotl 0.18 utils/schemas/config.py, check_auto_enable_lora_kernels and
    check_multigpu_lora_kernels; kernels/lora.py, what LoRA_MLP, LoRA_QKV and LoRA_O save.
    """
    method = parsed.values.get("method", {})
    whole = method.get("targets") == ["all-linear"] or set(method.get("targets") or []) >= LINEARS
    if method.get("kind") != "lora" or method.get("dropout") or method.get("variant") or not whole:
        return
    stated = [keys.at(name) for name in (*ADAPTER_KERNELS, _EMBEDDING_KERNEL)]
    if any(value is not None for value in stated):
        if all(stated[: len(ADAPTER_KERNELS)]):
            parsed.fused_adapters = all(map(keys.switch, ADAPTER_KERNELS))
            keys.switch(_EMBEDDING_KERNEL)
        return
    refused = keys.at("rl") or keys.at("trust_remote_code") or method.get("base") == "int8"
    sharded = parsed.knobs.get("sharding") == "fsdp"
    version = keys.at("fsdp_version") or keys.at("fsdp_config.fsdp_version")
    if refused or (sharded and str(version) != "2"):
        return
    parsed.fused_adapters = True
    why = "not in the file; axolotl switches them on by itself since 0.10"
    parsed.note(", ".join(ADAPTER_KERNELS), "true", why)


_QUANTISES, _LINEARISES = "quantize_moe_experts", "llama4_linearized_experts"
_FP32_EXPERTS = "multiplies experts in fp32, which 8-bit ones are unpacked to: slower than counted"
_SLOWER, _WIDER = 0.4, 0.1  # assumptions, as those of unread keys


def read_experts(keys: Keys, parsed: Parsed) -> None:
    """How the experts of a mixture are stored, which transformers 5 has as one parameter a layer.

    Raises InputError for what axolotl refuses.

    Source: axolotl 0.15 to 0.21 utils/schemas/config.py, check_quantize_moe_experts, and
    monkeypatch/moe_quant.py; llama4_linearized_experts is there since 0.8.1, for Llama 4 alone.
    """
    parsed.linear_experts = keys.switch(_LINEARISES) is True
    if keys.switch(_QUANTISES) is not True:
        return
    told = f"{keys.name}: {_QUANTISES} is true, "
    if keys.at("lora_target_linear"):
        msg = f"{told}and axolotl refuses lora_target_linear: true beside it"
        raise InputError(msg, "name the projections in lora_target_modules instead")
    if keys.at("adapter") not in {"lora", "qlora"}:
        msg = f"{told}which needs adapter: lora or qlora"
        raise InputError(msg, f"leave {_QUANTISES} out for full fine-tuning")
    if not (keys.at("load_in_4bit") or keys.at("load_in_8bit")):
        msg = f"{told}which needs load_in_4bit: true or load_in_8bit: true"
        raise InputError(msg, f"leave {_QUANTISES} out for a 16-bit base")
    parsed.quantised_experts = True
    if not keys.at("load_in_4bit"):
        parsed.uncounted.append(Uncounted(_QUANTISES, "true", _FP32_EXPERTS, _SLOWER, _WIDER))


def spell_experts(job: Job) -> Changes:
    """The keys of a mixture whose experts are quantised, or linear layers; none for others."""
    software, few = job.software, job.method.is_quantised
    quantises = software.quantised_experts and few and job.model.is_moe
    found: Changes = {_QUANTISES: True} if quantises else {}
    return {**found, **({_LINEARISES: True} if software.linear_experts else {})}


def spell_kernels(value: KnobValue, target: Target) -> Changes:
    """The plugins of a value in the place of the others; plugins of other kinds stay."""
    stated = target.values.get("plugins")
    listed = stated if isinstance(stated, list) else []
    others = [name for name in listed if not str(name).endswith(("LigerPlugin", "EntropyPlugin"))]
    wanted = {"liger": [LIGER], "chunked_loss": [CUT]}.get(str(value), [])
    changes = target.gone(*_LIGER_SWITCHES, *_OTHER_SWITCHES, _CUT_SWITCH, _CHUNKED)
    if others + wanted:
        changes["plugins"] = others + wanted
    elif target.has("plugins"):
        changes["plugins"] = GONE
    if value == "liger":
        changes |= dict.fromkeys(_LIGER_SWITCHES, True)
    elif value == "chunked_loss":
        changes[_CUT_SWITCH] = True
    return changes


def spell(knob: str, value: KnobValue, target: Target) -> Changes | str:
    """The keys that say a knob's value; most are TrainingArguments'."""
    own = _SPELLINGS.get(knob)
    if own:
        return own(value, target)
    if knob in WORDS:
        return words.spell(knob, value, WORDS, target) or {}
    return spell_argument(knob, value, target)


def _saving(value: KnobValue, target: Target) -> Changes:
    """saves_per_epoch and save_steps exclude each other."""
    changes: Changes = {**target.gone("saves_per_epoch"), "save_steps": value}
    if target.has("save_strategy"):
        changes["save_strategy"] = "steps"
    return changes


def _attention(value: KnobValue, target: Target) -> Changes:
    gone = target.gone(*OLD_ATTENTION)
    if not target.has("attn_implementation") and _named(value) in gone:
        others = {key: item for key, item in gone.items() if key != _named(value)}
        return {_named(value): True, **others}
    return {**gone, "attn_implementation": value}


def _named(value: KnobValue) -> str:
    return next((name for name, kernel in OLD_ATTENTION.items() if kernel == value), "")


def _checkpointing(value: KnobValue, target: Target) -> Changes:
    changes: Changes = {CHECKPOINTING: value == "full"}
    if value == "none":
        # It refuses activation_offloading without checkpoints to offload.
        return {**changes, **target.gone(f"{CHECKPOINTING}_kwargs", "activation_offloading")}
    if not target.has(f"{CHECKPOINTING}_kwargs"):
        changes[f"{CHECKPOINTING}_kwargs"] = {"use_reentrant": False}
    return changes


def _precision(value: KnobValue, target: Target) -> Changes | str:
    """fp8 stands beside bf16, which everything but its products runs in."""
    if value == "fp8":
        return {**target.gone("fp16"), "bf16": True, "fp8": True}
    gone = target.gone("fp8")
    spelled = spell_argument("precision", value, target)
    return spelled if isinstance(spelled, str) else {**gone, **spelled}


def _optimizer(value: KnobValue, target: Target) -> Changes | str:
    return _refused_states(target) or words.spell("optimizer", value, WORDS, target) or {}


def _refused_states(target: Target) -> str:
    """Why axolotl refuses the optimizer's 8-bit states as its fsdp_config shards; empty if not.

    Source: utils/schemas/validation.py of axolotl 0.19.0, check_fsdp_offload_w_8bit_optimizer and
    check_fsdp2_w_8bit_optimizer; without a version it takes FSDP1.
    """
    config = target.config
    settings = target.values.get("fsdp_config")
    if config.sharding != "fsdp" or "8bit" not in config.optimizer:
        return ""
    if not isinstance(settings, dict) or not settings:
        return ""
    version = target.values.get("fsdp_version") or settings.get("fsdp_version")
    if str(version) == "2":
        return _NOT_UNDER_FSDP2 if config.optimizer == "adamw_bnb_8bit" else ""
    if config.offload != "all":
        return ""
    return "axolotl refuses 8-bit optimizers beside offload_params of FSDP1: choose one of the two"


def _offload(value: KnobValue, target: Target) -> Changes | str:
    if refused := _refused_states(target):
        return refused
    changes = target.gone("activation_offloading", *(f"fsdp_config.{n}" for n in FSDP_OFFLOADS))
    if value == "activations":
        return {**changes, "activation_offloading": True}
    if value == "all":
        return {**changes, "fsdp_config.offload_params": True}
    if value == "optimizer":
        return "its deepspeed: json says so: zero_optimization.offload_optimizer.device: cpu"
    return changes


def _accumulation(value: KnobValue, target: Target) -> Changes:
    return {**target.gone("batch_size"), "gradient_accumulation_steps": value}


def _micro(value: KnobValue, target: Target) -> Changes:
    changes: Changes = {**target.gone("batch_size"), "micro_batch_size": value}
    if target.has("batch_size") and not target.has("gradient_accumulation_steps"):
        changes["gradient_accumulation_steps"] = target.config.gradient_accumulation_steps
    return changes


def _sharding(value: KnobValue, target: Target) -> Changes | str:
    """Another kind of sharding needs settings of its own, which the user's files hold."""
    changes = target.gone("deepspeed") if value not in ZERO_STAGE else {}
    if value != "fsdp":
        return {**changes, **target.gone("fsdp", "fsdp_config", "fsdp_version")}
    if target.config.optimizer == "adamw_bnb_8bit":
        return _NOT_UNDER_FSDP2
    settings = {
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "reshard_after_forward": True,
        "state_dict_type": "SHARDED_STATE_DICT",
    }  # fmt: skip
    return {**changes, "fsdp_version": 2, "fsdp_config": settings}


def _zero(value: KnobValue, target: Target) -> Changes | str:
    if value in ZERO_STAGE:
        return f"set deepspeed: to your {value} json, such as deepspeed_configs/{value}.json"
    return _sharding(value, target)


_SPELLINGS = {
    "micro_batch_size": _micro,
    "gradient_accumulation_steps": _accumulation,
    "checkpoint_every_steps": _saving,
    "attention": _attention,
    "activation_checkpointing": _checkpointing,
    "sharding": _zero,
    "kernels": spell_kernels,
    "precision": _precision,
    "optimizer": _optimizer,
    "offload": _offload,
}
