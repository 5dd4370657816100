"""A decoder-only transformer, described by what its memory and FLOP depend on.

Any family is one point in this description: Llama (RMSNorm, gated MLP, GQA), Qwen2 (+ qkv bias),
Qwen3 (+ q/k norms), Gemma-2 (four norms, soft-capping), Phi-3 (fused projections), Falcon and
GPT-NeoX (LayerNorm, parallel block, plain MLP), GPT-2 (learned positions), Mixtral (experts).
Names of sizes are those of Hugging Face configs.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import field, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

from autotune.frozen import LATER, content, dataclass

Norm = Literal["rmsnorm", "layernorm"]
Mlp = Literal["gated", "plain"]
Position = Literal["rope", "learned", "alibi", "none"]
Part = Literal["attention", "mixer", "mlp", "expert", "shared_expert", "router", "per_layer"]
XIELU = "xielu"  # an activation with two weights of its own
MIXING: tuple[Part, ...] = ("attention", "mixer")  # parts of a layer that mix tokens
QkNorm = Literal["none", "per_head", "full"]  # full: over all heads' width (OLMo-2, Gemma-3: per)


@dataclass(frozen=True, slots=True)
class Linear:
    """One projection of a decoder layer: `count` matrices of [in_features, out_features]."""

    name: str  # the module's last name in the real class: q_proj, gate_up_proj, c_attn, ...
    in_features: int
    out_features: int
    bias: bool = False
    part: Part = "attention"
    count: int = 1  # matrices of this shape in a layer (experts)
    active: float = 1.0  # matrices a token passes through
    adaptable: bool = True  # whether PEFT's "all-linear" adapts it
    adapter_out: int | None = None  # output width of its adapter where that is not out_features


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Sizes of a gated delta net: a token mixer that carries a state instead of scores.

    Source: Yang, Kautz, Hatamizadeh, "Gated Delta Networks" (2024); the names of Qwen3-Next.
    """

    package: ClassVar[str] = "flash_linear_attention"  # has its kernels

    key_heads: int
    value_heads: int
    key_dim: int  # of a head
    value_dim: int
    kernel: int  # tokens that its convolution reads

    @property
    def keys(self) -> int:
        """[elements] width of all key (or query) heads."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """[elements] width of all value heads."""
        return self.value_heads * self.value_dim

    @property
    def parameters(self) -> int:
        """[elements] outside its matrices: convolution, decays and their bias, the norm's scale."""
        return (2 * self.keys + self.values) * self.kernel + 2 * self.value_heads + self.value_dim


@dataclass(frozen=True, slots=True)
class ShortConv:
    """Sizes of a gated short convolution: it mixes a token with the few before it.

    One matrix makes three tensors as wide as the stream: two are multiplied, the product passes a
    convolution for each channel alone, and the third gates what comes out. Source: Liquid AI,
    "LFM2 Technical Report" (2025), section 2; the names of transformers' Lfm2Config.
    """

    package: ClassVar[str] = ""

    width: int
    kernel: int  # tokens that its convolution reads
    bias: bool = False

    @property
    def parameters(self) -> int:
        """[elements] outside its matrices: of the convolution."""
        return self.width * (self.kernel + self.bias)


@dataclass(frozen=True, slots=True)
class Mamba2:
    """Sizes of a Mamba-2 mixer: every head carries a state, which is passed on chunk by chunk.

    One matrix makes the gate, what is mixed, what is written to and read from the states of each
    group of heads, and the steps. Source: Dao and Gu, "Transformers are SSMs" (2024), sections 6
    and 7; the names of transformers' Mamba2Config.
    """

    package: ClassVar[str] = "mamba_ssm"

    heads: int
    head_dim: int
    state: int
    groups: int
    kernel: int  # tokens that its convolution reads
    chunk: int  # tokens
    bias: bool = True  # of the convolution
    normed: bool = True  # a norm after the gate

    @property
    def width(self) -> int:
        """[elements] of all heads."""
        return self.heads * self.head_dim

    @property
    def convolved(self) -> int:
        """[elements] width of what the convolution reads: heads, and both tensors of a group."""
        return self.width + 2 * self.groups * self.state

    @property
    def parameters(self) -> int:
        """[elements] outside its matrices: convolution, decays, steps, skips, the norm's scale."""
        return (
            self.convolved * (self.kernel + self.bias) + 3 * self.heads + self.width * self.normed
        )


Mixer = DeltaNet | ShortConv | Mamba2


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: narrow tensors, each with a norm, are widened to all heads.

    Of a head's queries and keys `qk_rope_head_dim` are rotated, and those of the keys are one for
    all heads. Source: DeepSeek-V2 (2024), section 2.1; the names are its config's.
    """

    kv_lora_rank: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int = 0  # 0: one matrix makes the queries

    @property
    def normed(self) -> tuple[int, ...]:
        """[elements] widths of the narrow tensors that have a norm."""
        return tuple(rank for rank in (self.q_lora_rank, self.kv_lora_rank) if rank)


@dataclass(frozen=True, slots=True)
class Layer:
    """One kind of decoder layer of a model that has several.

    Its other fields are those of `Model` of the same name: what they say of these layers alone.
    """

    places: tuple[int, ...]  # which layers are of this kind; 0 is next to the embedding
    linears: tuple[Linear, ...]
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    qk_norm: QkNorm = "none"
    sliding_window: int | None = None
    num_experts: int = 0
    experts_per_token: int = 0
    extra_params_per_layer: int = 0
    borrows_keys: bool = False
    mixer: Mixer | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """Architecture shape. All sizes in elements, all counts exact."""

    name: str
    family: str  # transformers' model_type: llama, qwen2, gemma2, gpt2, ...
    architecture: str  # class name: LlamaForCausalLM
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    tied_head: bool
    source: str
    norm: Norm = "rmsnorm"
    norms_per_layer: int = 2
    mlp: Mlp = "gated"
    activation: str = "silu"
    position: Position = "rope"
    qkv_bias: bool = False
    attention_out_bias: bool = False  # `fingerprint` alone reads it: kept runs are found by that
    mlp_bias: bool = False
    head_bias: bool = False
    norm_bias: bool = False
    norm_weight: bool = True  # False: norms without parameters (OLMo, nanochat)
    final_norm: bool = True
    embedding_norm: bool = False  # BLOOM: LayerNorm right after the embedding
    parallel_block: bool = False
    qk_norm: QkNorm = "none"
    linears: tuple[Linear, ...] = ()  # of one layer (of one MoE layer, when experts)
    dense_linears: tuple[Linear, ...] = ()  # of the dense layers of a mixture, when it has any
    num_dense_layers: int = 0  # leading layers with a dense MLP in a mixture of experts
    num_experts: int = 0
    experts_per_token: int = 0
    router_bias: bool = False
    attention_softcap: bool = False
    final_softcap: bool = False
    sliding_window: int | None = None
    extra_params_per_layer: int = 0  # small parameters outside norms and linears (sinks, scalars)
    extra_params: int = 0  # small parameters outside the layers
    hf_config: str = "{}"  # the config.json it was read from (its text part), as JSON
    remote_code: bool = False  # the config asks for code that transformers does not ship
    stored_as: str = ""  # how the checkpoint quantises its weights: nf4, int8, gptq, ...
    shape_of: str = field(
        default="", metadata=LATER
    )  # the catalogue's model whose shape stands in; empty: its own config
    plain_name: str = field(
        default="", metadata=LATER
    )  # the same model with plain weights, where a name says that it is a copy
    kinds: tuple[Layer, ...] = field(
        default=(), metadata=LATER
    )  # of layers, where heads or matrices differ: `linears` is empty then
    borrows_keys: bool = field(
        default=False, metadata=LATER
    )  # attention reads the keys and values of a layer before
    per_layer_size: int = field(
        default=0, metadata=LATER
    )  # width of an embedding that every layer has for itself; 0: none
    per_layer_vocab_size: int = field(default=0, metadata=LATER)
    outside: tuple[Linear, ...] = field(
        default=(), metadata=LATER
    )  # matrices that lie outside the layers, beside embedding and head
    mixer: Mixer | None = field(
        default=None, metadata=LATER
    )  # what mixes tokens instead of attention, or beside it where the layer has attention heads
    gated_attention: bool = field(
        default=False, metadata=LATER
    )  # its output is multiplied by a gate that q_proj makes beside the queries
    beside_params: int = field(
        default=0, metadata=LATER
    )  # of parts of the checkpoint that see or hear: they are loaded, and text passes none of them
    latent: Latent | None = field(default=None, metadata=LATER)  # `head_dim` is of queries and keys

    def __hash__(self) -> int:
        """Of what tells nearly all of them apart: every count of parameters is looked up by it."""
        return hash((self.name, self.hidden_size, self.num_layers))

    @property
    def fingerprint(self) -> str:
        """What the model is, whatever it is called and wherever its config.json lies.

        What lies beside its text model is no part of it: some loaders leave that out.
        """
        shape = replace(self, name="", source="", hf_config="", shape_of="", plain_name="")
        shape = replace(shape, beside_params=0)
        facts = json.dumps(content(shape), sort_keys=True)
        return hashlib.sha256(facts.encode()).hexdigest()[:16]

    @property
    def query_size(self) -> int:
        """[elements] width of all query heads together."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """[elements] width of all key (or value) heads together."""
        return self.num_kv_heads * self.head_dim

    @property
    def output_size(self) -> int:
        """[elements] width of what all heads together give to the output projection."""
        own = self.latent.v_head_dim if self.latent else self.head_dim
        return self.num_attention_heads * own

    @property
    def rotated_size(self) -> int:
        """[elements] width of the queries and keys that rotary positions turn."""
        if self.latent:
            return (self.num_attention_heads + 1) * self.latent.qk_rope_head_dim
        return self.query_size + self.kv_size

    @property
    def layers(self) -> tuple[Model, ...]:
        """For each kind of layer a model of those layers alone: `num_layers` of them, all alike.

        What is true of a layer is asked of these.
        """
        return _apart(self) if self.kinds or self.num_dense_layers else (self,)

    @property
    def lowest(self) -> Model:
        """Of `layers` the kind that is next to the embedding."""
        first = (i for i, kind in enumerate(self.kinds) if 0 in kind.places)
        return self.layers[next(first, 0)]

    @property
    def matrices(self) -> tuple[Linear, ...]:
        """Those of one layer of every kind and those outside the layers, each once."""
        return tuple(dict.fromkeys(linear for _, linear in self.all_linears))

    @property
    def all_linears(self) -> tuple[tuple[int, Linear], ...]:
        """(number of layers that have it, matrix): those outside the layers are there once."""
        within = ((kind.num_layers, linear) for kind in self.layers for linear in kind.linears)
        return (*within, *((1, linear) for linear in self.outside))

    @property
    def kernel_package(self) -> str:
        """The optional package with kernels for what mixes its tokens; empty where there is none.

        A model has mixers of one kind.
        """
        found = (layer.mixer.package for layer in self.layers if layer.mixer)
        return next(found, "")

    @property
    def is_unmeasured(self) -> bool:
        """Whether its layers are of kinds that no measured run of training has."""
        return bool(self.kinds) or self.latent is not None or self.activation == XIELU

    @property
    def blocks(self) -> int:
        """What one layer adds to the residual stream: what mixes tokens, and its MLP; or one."""
        return len({linear.part in MIXING for linear in self.linears})

    @property
    def is_moe(self) -> bool:
        """Whether tokens are routed to experts."""
        return self.num_experts > 0


@lru_cache(maxsize=256)
def _apart(model: Model) -> tuple[Model, ...]:
    """The models of one kind of layer each: see `Model.layers`."""
    alike = replace(
        model, kinds=(), dense_linears=(), num_dense_layers=0, hf_config="{}", outside=()
    )
    if not model.kinds:
        mixtures = replace(alike, num_layers=model.num_layers - model.num_dense_layers)
        dense = replace(alike, num_layers=model.num_dense_layers, linears=model.dense_linears)
        dense = replace(dense, num_experts=0, experts_per_token=0)
        return tuple(layer for layer in (mixtures, dense) if layer.num_layers)
    names = [one.name for one in fields(Layer) if one.name != "places"]
    found = []
    for kind in model.kinds:
        own: dict[str, Any] = {name: getattr(kind, name) for name in names}
        found.append(replace(alike, num_layers=len(kind.places), **own))
    return tuple(found)
