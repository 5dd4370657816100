"""Which family a config.json is of, and what of it this version cannot describe.

A wrong number is worse than none: what betrays layers of another kind is refused with the reason. A
dense decoder that no family names is read as Llama-like where it has all of Llama's keys, and what
was not read of it is said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.catalog.models.config_values import LATENT
from autotune.catalog.models.families import FAMILIES, LLAMA_KEYS, TEXT_FAMILY
from autotune.catalog.models.gemma import GEMMA_4
from autotune.catalog.models.mixers import DELTA_NETS, MAMBA, MIXING
from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.catalog.models.family import Family

HOW_TO_DESCRIBE = "pass a folder or file with the config.json of a decoder-only language model"
# Keys that betray layers which this description does not cover, and what they are.
_FOREIGN = {
    "kv_lora_rank": "multi-head latent attention (low-rank keys and values)",
    "hybrid_override_pattern": "state-space layers between attention layers",
    "mamba_num_heads": "state-space layers",
    "mamba_n_heads": "state-space layers",
    "mamba_d_state": "state-space layers",
    "ssm_state_size": "state-space layers",
    "ssm_cfg": "state-space layers",
    "linear_num_key_heads": "linear-attention layers of another kind than those of Qwen3-Next",
    "linear_attn_config": "linear-attention layers",
    "block_configs": "layers of different shapes",
    "lru_width": "recurrent layers between attention layers",
    "H_cycles": "layers that a token passes several times",
    "lambda_std_dev": "differential attention (two scores for a pair of tokens)",
    "global_head_dim": "layers of different shapes",
    "hidden_size_per_layer_input": "embeddings inside every layer",
    "moe_latent_size": "experts that read a narrow copy of the stream",
    "moe_every_n_layers": "an unknown arrangement of experts",
}
_NEMOTRON_KEYS = {"hybrid_override_pattern", "mamba_num_heads", "ssm_state_size"}
_ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
_ENCODERS = {
    "albert", "bert", "deberta", "deberta-v2", "distilbert", "electra", "modernbert", "mpnet",
    "nomic_bert", "roberta", "xlm-roberta", "vit", "clip", "whisper", "wav2vec2",
}  # fmt: skip


_SEES_OR_HEARS = (
    "vision_config", "audio_config", "img_processor", "audio_processor", "mm_vision_tower",
)  # fmt: skip
READ_AS_LLAMA = "is not known and was read as Llama-like"  # what a source says of a family
_SHOWN = 6  # names of keys in a message
# Keys that are read, and those that say nothing of shapes. Source: LlamaConfig of transformers 5.23
# and 4.36, with its generation's.
_READ_OR_NEUTRAL = {
    "architectures", "attention_bias", "attention_dropout", "auto_map", "bos_token_id",
    "chunk_size_feed_forward", "diversity_penalty", "dtype", "early_stopping", "eos_token_id",
    "finetuning_task", "head_dim", "hidden_act", "hidden_activation", "hidden_size", "id2label",
    "initializer_range", "intermediate_size", "is_decoder", "label2id", "layer_types",
    "length_penalty", "max_length", "max_position_embeddings", "max_window_layers",
    "min_length", "mlp_bias", "model_type", "num_attention_heads", "num_beam_groups",
    "num_beams", "num_hidden_layers", "num_key_value_heads", "num_return_sequences",
    "pad_token_id", "pretraining_tp", "problem_type", "quantization_config",
    "repetition_penalty", "return_dict", "rms_norm_eps", "rope_parameters", "rope_scaling",
    "rope_theta", "sliding_window", "temperature", "tie_encoder_decoder", "tie_word_embeddings",
    "tokenizer_class", "top_k", "top_p", "torch_dtype", "transformers_version", "typical_p",
    "unsloth_fixed", "use_cache", "use_sliding_window", "vocab_size", "_name_or_path",
    "_attn_implementation_autoset",
}  # fmt: skip


def family_of(text: Mapping[str, Any], name: str, source: str) -> tuple[str, Family, str]:
    """(model type, family, source) of a decoder; the source says where it was taken for Llama's.

    Raises InputError for what is no decoder or is not described, with what is missing.
    """
    kind = text.get("model_type")
    if not isinstance(kind, str):
        msg = f"the config of {name} has no model_type"
        raise InputError(msg, HOW_TO_DESCRIBE)
    kind = TEXT_FAMILY.get(kind, kind)
    if kind == "internlm" and text.get("architectures") == ["InternLM2ForCausalLM"]:
        kind = "internlm2"  # the first of them were published under the older name
    if kind in FAMILIES:
        return kind, FAMILIES[kind], source
    if kind in _ENCODERS or text.get("is_encoder_decoder") is True:
        what = "an encoder" if kind in _ENCODERS else "an encoder-decoder"
        msg = f"{name} ({kind}) is {what}, not a decoder-only language model"
        raise InputError(msg, HOW_TO_DESCRIBE)
    refuse_undescribed(text, name, kind)
    lacks = _unlike_llama(text)
    if not lacks:
        unread = [key for key, value in text.items() if value and key not in _READ_OR_NEUTRAL]
        rest = f", without {', '.join(sorted(unread)[:_SHOWN])}" if unread else ""
        note = f"{source}; family {kind} {READ_AS_LLAMA}{rest}"
        return kind, FAMILIES["llama"], note
    msg = f"{name}: model_type {kind!r} is not a decoder that this version can describe"
    msg += f", and it is not Llama-like: {lacks}"
    hint = "if its layers are those of one of these, say so as model_type in a copy of its"
    raise InputError(msg, f"{hint} config.json: {', '.join(FAMILIES)}")


def _unlike_llama(text: Mapping[str, Any]) -> str:
    """What keeps a config from being read as Llama-like; empty where nothing does."""
    experts = [key for key in text if "expert" in key or key.startswith("moe")]
    if experts:
        return f"it has experts ({', '.join(sorted(experts)[:_SHOWN])})"
    beside = [key for key in _SEES_OR_HEARS if text.get(key)]
    if beside:
        return f"it has a part that sees or hears ({beside[0]}) and no text_config"
    missing = [key for key in LLAMA_KEYS if key not in text]
    if missing:
        return f"it has no {', '.join(missing)}"
    listed = text.get("architectures")
    named = [str(item) for item in listed] if isinstance(listed, list) else []
    if not any(item.endswith("ForCausalLM") for item in named):
        return "its architectures name no ...ForCausalLM"
    return ""


def refuse_undescribed(text: Mapping[str, Any], name: str, kind: str) -> None:
    """Raise InputError where a config betrays layers that the description cannot hold."""
    if text.get("is_encoder_decoder") is True:
        msg = f"{name} ({kind}) is an encoder-decoder, not a decoder-only language model"
        raise InputError(msg, HOW_TO_DESCRIBE)
    projected = text.get("word_embed_proj_dim") not in (None, text.get("hidden_size"))
    if projected or text.get("do_layer_norm_before") is False:
        msg = f"{name} ({kind}) projects its embeddings or normalises after a layer: not described"
        raise InputError(msg, "choose another size of this family")
    own = {"linear_num_key_heads"} if kind in DELTA_NETS else set()
    own |= {"kv_lora_rank"} if kind in LATENT else set()
    own |= {"mamba_n_heads", "mamba_d_state"} if kind in MAMBA else set()
    own |= _NEMOTRON_KEYS if kind == "nemotron_h" else set()
    stated = (key for key in _FOREIGN if text.get(key) not in (None, 0, [], {}))
    found = [_FOREIGN[key] for key in stated if key not in own]
    if kind in GEMMA_4:
        found = []  # its own reader says which of them it has
    layers = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(layers, list):
        known = _ATTENTION_LAYERS | ({MIXING[kind]} if kind in MIXING else set())
        known = known | ({"mamba"} if kind in MAMBA else set())
        known = known | ({"mlp", "moe"} if kind == "nemotron_h" else set())
        strange = sorted({str(item) for item in layers} - known)
        if strange:
            found.append(f"layers of kind {', '.join(strange)}")
    if text.get("hidden_act") == "xielu" and kind != "apertus":
        found.append("an activation with weights of its own (xIELU)")
    if found:
        msg = f"{name} ({kind}) has {found[0]}, which this version cannot describe"
        raise InputError(
            msg, "its memory and time would be wrong; choose a model that `autotune models` lists"
        )
