"""Every decoder family that is described, by transformers' model_type.

Source: modelling code of transformers 5.23 (native families) and of the models' own repositories
(remote code: qwen, chatglm, baichuan, mimo, exaone, internlm, internlm2). Checked against the
native classes in tests/catalog/models/test_real_classes.py.
"""

from __future__ import annotations

from typing import Any

from autotune.catalog.models.experts import MIXTURE_FAMILIES
from autotune.catalog.models.family import (
    ATTENTION_BIAS,
    FUSED_GATED,
    LAYERNORM,
    NEOX,
    NORMED_HEADS,
    PLAIN,
    SQUARED,
    Family,
    Flag,
)

_LLAMA = Family(
    "LlamaForCausalLM",
    qkv_bias="attention_bias=False",
    out_bias="attention_bias=False",
    mlp_bias="mlp_bias=False",
)


def _biased(*, by: Flag = True) -> dict[str, Any]:
    """A bias in every matrix of a layer, or in none. by: the key of the config that says so."""
    return {"qkv_bias": by, "out_bias": by, "mlp_bias": by}


_GPT2: dict[str, Any] = {
    "qkv": ("c_attn",),
    "attention_out": "c_proj",
    "mlp": ("c_fc", "c_proj"),
    "mlp_kind": "plain",
    **LAYERNORM,
    **_biased(),
    "position": "learned",
    "tied": True,
}
_GEMMA: dict[str, Any] = {**ATTENTION_BIAS, "tied": True, "activation": "gelu_pytorch_tanh"}
_GEMMA_4: dict[str, Any] = {**_GEMMA, "norms_per_layer": 4, "softcaps": True, "qk_norm": "per_head"}
_GEMMA_4_SIZES = {
    "head_dim": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 30,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "vocab_size": 262144,
    "max_position_embeddings": 131072,
}

_LFM2: dict[str, Any] = {
    "attention_out": "out_proj",
    "mlp": ("w1", "w3", "w2"),
    "qk_norm": "per_head",
    "tied": True,
    "defaults": {"vocab_size": 65536, "max_position_embeddings": 128000},
}
MINICPM3_RANKS = {
    "kv_lora_rank": 256, "q_lora_rank": 768, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
}  # fmt: skip
_QWEN3_NEXT: dict[str, Any] = {**NORMED_HEADS, "gated_attention": True}

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": Family("MistralForCausalLM"),
    "ministral": Family("MinistralForCausalLM"),
    "ministral3": Family("Ministral3ForCausalLM"),
    "seed_oss": Family(
        "SeedOssForCausalLM",
        qkv_bias="attention_bias=True",
        out_bias="attention_out_bias=False",
        mlp_bias="mlp_bias=False",
    ),
    "ernie4_5": Family("Ernie4_5ForCausalLM", **_biased(by="use_bias=False"), tied=True),
    "hunyuan_v1_dense": Family("HunYuanDenseV1ForCausalLM", **NORMED_HEADS),
    "glm": Family("GlmForCausalLM", mlp=FUSED_GATED, qkv_bias="attention_bias=True"),
    "glm4": Family(
        "Glm4ForCausalLM", mlp=FUSED_GATED, qkv_bias="attention_bias=True", norms_per_layer=4
    ),
    "qwen2": Family("Qwen2ForCausalLM", qkv_bias=True),
    "qwen3": Family("Qwen3ForCausalLM", **NORMED_HEADS),
    "qwen3_5_text": Family("Qwen3_5ForCausalLM", **_QWEN3_NEXT),
    "qwen3_5_moe_text": Family(
        "Qwen3_5MoeForCausalLM",
        mlp=FUSED_GATED,
        **_QWEN3_NEXT,
        defaults={"intermediate_size": 512},  # of no layer: all of them route
    ),
    "qwen3_next": Family("Qwen3NextForCausalLM", mlp=FUSED_GATED, **_QWEN3_NEXT),
    "lfm2": Family("Lfm2ForCausalLM", **_LFM2),
    "lfm2_moe": Family("Lfm2MoeForCausalLM", **_LFM2),
    "minicpm3": Family(
        "MiniCPM3ForCausalLM", mlp_bias="mlp_bias=False", tied=True, defaults=MINICPM3_RANKS
    ),
    "mimo": Family("MiMoForCausalLM", qkv_bias="attention_bias=True", remote=True),
    "smollm3": Family("SmolLM3ForCausalLM", **ATTENTION_BIAS, mlp_bias="mlp_bias=False", tied=True),
    "granite": Family("GraniteForCausalLM", **ATTENTION_BIAS, mlp_bias="mlp_bias=False"),
    "gemma": Family("GemmaForCausalLM", **_GEMMA, defaults={"head_dim": 256}),
    "gemma2": Family("Gemma2ForCausalLM", **_GEMMA, norms_per_layer=4, softcaps=True),
    "gemma3_text": Family(
        "Gemma3ForCausalLM",
        **_GEMMA,
        norms_per_layer=4,
        softcaps=True,
        qk_norm="per_head",
        defaults={
            "head_dim": 256,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
        },
    ),
    "gemma4_text": Family("Gemma4ForCausalLM", **_GEMMA_4, defaults=_GEMMA_4_SIZES),
    "gemma4_unified_text": Family(
        "Gemma4UnifiedForCausalLM",
        **_GEMMA_4,
        defaults={**_GEMMA_4_SIZES, "max_position_embeddings": 262144},
    ),
    "phi3": Family("Phi3ForCausalLM", qkv=("qkv_proj",), mlp=FUSED_GATED),
    "phi": Family(
        "PhiForCausalLM",
        attention_out="dense",
        mlp=("fc1", "fc2"),
        mlp_kind="plain",
        activation="gelu_new",
        **LAYERNORM,
        **_biased(),
        norms_per_layer=1,
        parallel=True,
        head_bias=True,
    ),
    "olmo": Family(
        "OlmoForCausalLM", **ATTENTION_BIAS, norm="layernorm", norm_weight=False, norm_bias=False
    ),
    "olmo2": Family("Olmo2ForCausalLM", **ATTENTION_BIAS, qk_norm="full"),
    "olmo3": Family("Olmo3ForCausalLM", **ATTENTION_BIAS, qk_norm="full"),
    "exaone": Family(
        "ExaoneForCausalLM",
        attention_out="out_proj",
        mlp=("c_fc_0", "c_fc_1", "c_proj"),
        tied=True,
        remote=True,
    ),
    "exaone4": Family("Exaone4ForCausalLM", qk_norm="per_head"),
    "arcee": Family("ArceeForCausalLM", **ATTENTION_BIAS, **SQUARED),
    "stablelm": Family(
        "StableLmForCausalLM",
        qkv_bias="use_qkv_bias=False",
        **LAYERNORM,
        qk_norm="full",
        qk_norm_if="qk_layernorm",
        parallel="use_parallel_residual=False",
    ),
    "cohere": Family(
        "CohereForCausalLM",
        **ATTENTION_BIAS,
        norm="layernorm",
        norms_per_layer=1,
        qk_norm="full",
        qk_norm_if="use_qk_norm",
        parallel=True,
        tied=True,
    ),
    "cohere2": Family(
        "Cohere2ForCausalLM",
        **ATTENTION_BIAS,
        norm="layernorm",
        norms_per_layer=1,
        parallel=True,
        tied=True,
    ),
    "nemotron": Family("NemotronForCausalLM", **ATTENTION_BIAS, **SQUARED, **LAYERNORM),
    "starcoder2": Family(
        "Starcoder2ForCausalLM",
        mlp=("c_fc", "c_proj"),
        **PLAIN,
        **LAYERNORM,
        **_biased(by="use_bias=True"),
        tied=True,
    ),
    "apertus": Family("ApertusForCausalLM", **NORMED_HEADS, **SQUARED | {"activation": "xielu"}),
    "nanochat": Family(
        "NanoChatForCausalLM",
        **ATTENTION_BIAS,
        mlp=("fc1", "fc2"),
        mlp_kind="plain",
        norm_weight=False,
        embedding_norm=True,
        activation="relu2",
        softcaps=True,
        qk_norm="per_head",
    ),
    "gpt2": Family("GPT2LMHeadModel", **_GPT2, activation="gelu_new"),
    "gpt_bigcode": Family("GPTBigCodeForCausalLM", **_GPT2, activation="gelu"),
    "gptj": Family(
        "GPTJForCausalLM",
        attention_out="out_proj",
        mlp=("fc_in", "fc_out"),
        mlp_kind="plain",
        mlp_bias=True,
        **LAYERNORM,
        norms_per_layer=1,
        parallel=True,
        head_bias=True,
        activation="gelu_new",
    ),
    "gpt_neo": Family(
        "GPTNeoForCausalLM",
        attention_out="out_proj",
        out_bias=True,
        mlp=("c_fc", "c_proj"),
        mlp_kind="plain",
        mlp_bias=True,
        **LAYERNORM,
        position="learned",
        tied=True,
        activation="gelu_new",
    ),
    "gpt_neox": Family(
        "GPTNeoXForCausalLM",
        **NEOX,
        **PLAIN,
        **LAYERNORM,
        qkv_bias="attention_bias=True",
        out_bias="attention_bias=True",
        mlp_bias=True,
        parallel="use_parallel_residual=True",
    ),
    "bloom": Family(
        "BloomForCausalLM",
        **NEOX,
        **PLAIN,
        **LAYERNORM,
        **_biased(),
        position="alibi",
        embedding_norm=True,
        tied=True,
        defaults={"max_position_embeddings": 2048},
    ),
    "falcon": Family(
        "FalconForCausalLM",
        **NEOX,
        **PLAIN,
        **LAYERNORM,
        **_biased(by="bias=False"),
        tied=True,
        defaults={"max_position_embeddings": 2048},
    ),
    "mpt": Family(
        "MptForCausalLM",
        qkv=("Wqkv",),
        attention_out="out_proj",
        mlp=("up_proj", "down_proj"),
        **PLAIN,
        **_biased(by="!no_bias=True"),
        norm="layernorm",
        norm_bias="!no_bias=True",
        position="alibi",
        tied=True,
    ),
    "opt": Family(
        "OPTForCausalLM",
        attention_out="out_proj",
        mlp=("fc1", "fc2"),
        mlp_kind="plain",
        **LAYERNORM,
        **_biased(by="enable_bias=True"),
        position="learned",
        tied=True,
        activation="relu",
    ),
    "chatglm": Family(
        "ChatGLMForConditionalGeneration",
        **NEOX,
        qkv_bias="add_qkv_bias=False",
        out_bias="add_bias_linear=False",
        mlp_bias="add_bias_linear=False",
        remote=True,
    ),
    "internlm": Family(
        "InternLMForCausalLM", qkv_bias="bias=True", out_bias="bias=True", remote=True
    ),
    "internlm2": Family(
        "InternLM2ForCausalLM",
        qkv=("wqkv",),
        attention_out="wo",
        mlp=("w1", "w3", "w2"),
        qkv_bias="bias=True",
        out_bias="bias=True",
        remote=True,
    ),
    "internlm3": Family(  # transformers runs it as Llama, whose flags have other names here
        "LlamaForCausalLM",
        qkv_bias="qkv_bias=False",
        out_bias="qkv_bias=False",
        mlp_bias="bias=False",
        defaults={"head_dim": 128},
    ),
    "baichuan": Family("BaichuanForCausalLM", qkv=("W_pack",), remote=True),
    "qwen": Family(
        "QWenLMHeadModel",
        qkv=("c_attn",),
        attention_out="c_proj",
        mlp=("w1", "w2", "c_proj"),
        qkv_bias=True,
        remote=True,
    ),
    **MIXTURE_FAMILIES,
}

# Wrappers around a text model: their `text_config` is what is fine-tuned as a language model.
TEXT_FAMILY = {
    "qwen3_vl_text": "qwen3",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "llama4": "llama4_text",
    "kimi_k2": "deepseek_v3",  # its own name in config.json, and the class of that family
    "mllama_text_model": "",
}

# Names of models that see: what a person calls them, in a file or on a command line.
SEES = r".*(-vl\b|-vl-|vision|llava|pixtral|vlm|paligemma|internvl|-ocr\b|/blip|gr00t).*"

# A dense decoder that no family names but that has these keys is read as Llama-like.
LLAMA_KEYS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "rms_norm_eps",
    "vocab_size",
)
