"""What each decoder family's class is made of: module names, norms, biases, defaults.

Source: modelling code of transformers 5.23 (native families) and of the models' own repositories
(remote code: qwen, chatglm, baichuan, mimo, exaone, internlm, internlm2). Checked against the
native classes in tests/catalog/models/test_real_classes.py.

A flag is True, False or the config key that holds it ("key=default", "!" negates it).
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.domain.model import Mlp, Norm, Position, QkNorm

Flag = bool | str

SPLIT = ("q_proj", "k_proj", "v_proj")
GATED = ("gate_proj", "up_proj", "down_proj")
FUSED_GATED = ("gate_up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Family:
    """One transformers model_type (or several that share a class layout)."""

    architecture: str
    qkv: tuple[str, ...] = SPLIT  # three modules, or one fused
    attention_out: str = "o_proj"
    mlp: tuple[str, ...] = GATED  # gate, up, down | fused gate-up, down | up, down
    mlp_kind: Mlp = "gated"
    qkv_bias: Flag = False
    out_bias: Flag = False
    mlp_bias: Flag = False
    norm: Norm = "rmsnorm"
    norms_per_layer: int = 2
    norm_bias: Flag = False
    norm_weight: bool = True
    embedding_norm: bool = False
    qk_norm: QkNorm = "none"
    qk_norm_if: str | None = None  # config key that turns the q/k norms on
    position: Position = "rope"
    tied: bool = False  # the class's default where the config does not say
    head_bias: bool = False
    parallel: Flag = False
    remote: bool = False
    activation: str = "silu"  # default where the config does not say
    softcaps: bool = False
    gated_attention: bool = False
    defaults: dict[str, Any] = field(default_factory=dict)  # sizes the class fills in


_LLAMA = Family(
    "LlamaForCausalLM",
    qkv_bias="attention_bias=False",
    out_bias="attention_bias=False",
    mlp_bias="mlp_bias=False",
)
_LAYERNORM: dict[str, Any] = {"norm": "layernorm", "norm_bias": True}
_PLAIN: dict[str, Any] = {"mlp_kind": "plain", "activation": "gelu"}
_SQUARED: dict[str, Any] = {
    "mlp": ("up_proj", "down_proj"),
    "mlp_kind": "plain",
    "mlp_bias": "mlp_bias=False",
    "activation": "relu2",
}
_NEOX: dict[str, Any] = {
    "qkv": ("query_key_value",),
    "attention_out": "dense",
    "mlp": ("dense_h_to_4h", "dense_4h_to_h"),
}


def _biased(*, by: Flag = True) -> dict[str, Any]:
    """A bias in every matrix of a layer, or in none. by: the key of the config that says so."""
    return {"qkv_bias": by, "out_bias": by, "mlp_bias": by}


_GPT2: dict[str, Any] = {
    "qkv": ("c_attn",),
    "attention_out": "c_proj",
    "mlp": ("c_fc", "c_proj"),
    "mlp_kind": "plain",
    **_LAYERNORM,
    **_biased(),
    "position": "learned",
    "tied": True,
}
_ATTENTION_BIAS: dict[str, Any] = {
    "qkv_bias": "attention_bias=False",
    "out_bias": "attention_bias=False",
}
_GEMMA: dict[str, Any] = {**_ATTENTION_BIAS, "tied": True, "activation": "gelu_pytorch_tanh"}
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
_NEMOTRON_SIZES = {
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 21504, "vocab_size": 131072,
}  # fmt: skip
_NORMED_HEADS: dict[str, Any] = {**_ATTENTION_BIAS, "qk_norm": "per_head"}
_QWEN3_NEXT: dict[str, Any] = {**_NORMED_HEADS, "gated_attention": True}

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
    "hunyuan_v1_dense": Family("HunYuanDenseV1ForCausalLM", **_NORMED_HEADS),
    "glm": Family("GlmForCausalLM", mlp=FUSED_GATED, qkv_bias="attention_bias=True"),
    "glm4": Family(
        "Glm4ForCausalLM", mlp=FUSED_GATED, qkv_bias="attention_bias=True", norms_per_layer=4
    ),
    "qwen2": Family("Qwen2ForCausalLM", qkv_bias=True),
    "qwen3": Family("Qwen3ForCausalLM", **_NORMED_HEADS),
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
    "mimo": Family("MiMoForCausalLM", qkv_bias="attention_bias=True", remote=True),
    "smollm3": Family(
        "SmolLM3ForCausalLM", **_ATTENTION_BIAS, mlp_bias="mlp_bias=False", tied=True
    ),
    "granite": Family("GraniteForCausalLM", **_ATTENTION_BIAS, mlp_bias="mlp_bias=False"),
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
        **_LAYERNORM,
        **_biased(),
        norms_per_layer=1,
        parallel=True,
        head_bias=True,
    ),
    "olmo": Family(
        "OlmoForCausalLM", **_ATTENTION_BIAS, norm="layernorm", norm_weight=False, norm_bias=False
    ),
    "olmo2": Family("Olmo2ForCausalLM", **_ATTENTION_BIAS, qk_norm="full"),
    "olmo3": Family("Olmo3ForCausalLM", **_ATTENTION_BIAS, qk_norm="full"),
    "exaone": Family(
        "ExaoneForCausalLM",
        attention_out="out_proj",
        mlp=("c_fc_0", "c_fc_1", "c_proj"),
        tied=True,
        remote=True,
    ),
    "exaone4": Family("Exaone4ForCausalLM", qk_norm="per_head"),
    "arcee": Family("ArceeForCausalLM", **_ATTENTION_BIAS, **_SQUARED),
    "stablelm": Family(
        "StableLmForCausalLM",
        qkv_bias="use_qkv_bias=False",
        **_LAYERNORM,
        qk_norm="full",
        qk_norm_if="qk_layernorm",
        parallel="use_parallel_residual=False",
    ),
    "cohere": Family(
        "CohereForCausalLM",
        **_ATTENTION_BIAS,
        norm="layernorm",
        norms_per_layer=1,
        qk_norm="full",
        qk_norm_if="use_qk_norm",
        parallel=True,
        tied=True,
    ),
    "cohere2": Family(
        "Cohere2ForCausalLM",
        **_ATTENTION_BIAS,
        norm="layernorm",
        norms_per_layer=1,
        parallel=True,
        tied=True,
    ),
    "nemotron": Family("NemotronForCausalLM", **_ATTENTION_BIAS, **_SQUARED, **_LAYERNORM),
    "starcoder2": Family(
        "Starcoder2ForCausalLM",
        mlp=("c_fc", "c_proj"),
        **_PLAIN,
        **_LAYERNORM,
        **_biased(by="use_bias=True"),
        tied=True,
    ),
    "apertus": Family("ApertusForCausalLM", **_NORMED_HEADS, **_SQUARED | {"activation": "xielu"}),
    "nanochat": Family(
        "NanoChatForCausalLM",
        **_ATTENTION_BIAS,
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
        **_LAYERNORM,
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
        **_LAYERNORM,
        position="learned",
        tied=True,
        activation="gelu_new",
    ),
    "gpt_neox": Family(
        "GPTNeoXForCausalLM",
        **_NEOX,
        **_PLAIN,
        **_LAYERNORM,
        qkv_bias="attention_bias=True",
        out_bias="attention_bias=True",
        mlp_bias=True,
        parallel="use_parallel_residual=True",
    ),
    "bloom": Family(
        "BloomForCausalLM",
        **_NEOX,
        **_PLAIN,
        **_LAYERNORM,
        **_biased(),
        position="alibi",
        embedding_norm=True,
        tied=True,
        defaults={"max_position_embeddings": 2048},
    ),
    "falcon": Family(
        "FalconForCausalLM",
        **_NEOX,
        **_PLAIN,
        **_LAYERNORM,
        **_biased(by="bias=False"),
        tied=True,
        defaults={"max_position_embeddings": 2048},
    ),
    "mpt": Family(
        "MptForCausalLM",
        qkv=("Wqkv",),
        attention_out="out_proj",
        mlp=("up_proj", "down_proj"),
        **_PLAIN,
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
        **_LAYERNORM,
        **_biased(by="enable_bias=True"),
        position="learned",
        tied=True,
        activation="relu",
    ),
    "chatglm": Family(
        "ChatGLMForConditionalGeneration",
        **_NEOX,
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
    "mixtral": Family("MixtralForCausalLM", mlp=FUSED_GATED),
    "qwen2_moe": Family("Qwen2MoeForCausalLM", mlp=FUSED_GATED, qkv_bias="qkv_bias=True"),
    "qwen3_moe": Family("Qwen3MoeForCausalLM", mlp=FUSED_GATED, **_NORMED_HEADS),
    "gpt_oss": Family(
        "GptOssForCausalLM",
        mlp=FUSED_GATED,
        qkv_bias="attention_bias=True",
        out_bias="attention_bias=True",
        mlp_bias=True,
    ),
    "hunyuan_v1_moe": Family("HunYuanMoEV1ForCausalLM", mlp=FUSED_GATED, **_NORMED_HEADS),
    "granitemoe": Family("GraniteMoeForCausalLM", mlp=FUSED_GATED, **_ATTENTION_BIAS),
    "granitemoeshared": Family("GraniteMoeSharedForCausalLM", mlp=FUSED_GATED, **_ATTENTION_BIAS),
    "granitemoehybrid": Family(
        "GraniteMoeHybridForCausalLM",
        mlp=("input_linear", "output_linear"),
        **_ATTENTION_BIAS,
        position="none",
    ),
    "nemotron_h": Family(
        "NemotronHForCausalLM",
        **_SQUARED,
        norms_per_layer=1,
        position="none",
        defaults=_NEMOTRON_SIZES,
    ),
    "falcon_h1": Family("FalconH1ForCausalLM", **_ATTENTION_BIAS, mlp_bias="mlp_bias=False"),
    "olmoe": Family("OlmoeForCausalLM", mlp=FUSED_GATED, **_ATTENTION_BIAS, qk_norm="full"),
    "glm4_moe": Family(
        "Glm4MoeForCausalLM",
        mlp=FUSED_GATED,
        qkv_bias="attention_bias=False",
        qk_norm="per_head",
        qk_norm_if="use_qk_norm",
    ),
    "deepseek_v2": Family("DeepseekV2ForCausalLM", mlp=FUSED_GATED),
    "minicpm3": Family(
        "MiniCPM3ForCausalLM", mlp_bias="mlp_bias=False", tied=True, defaults=MINICPM3_RANKS
    ),
    "deepseek_v3": Family("DeepseekV3ForCausalLM", mlp=FUSED_GATED),
    "glm4_moe_lite": Family("Glm4MoeLiteForCausalLM", mlp=FUSED_GATED),
    "ernie4_5_moe": Family(
        "Ernie4_5_MoeForCausalLM",
        mlp=FUSED_GATED,
        qkv_bias="use_bias=False",
        out_bias="use_bias=False",
        tied=True,
    ),
    "llama4_text": Family("Llama4ForCausalLM", mlp=FUSED_GATED, **_ATTENTION_BIAS),
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
