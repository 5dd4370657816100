"""What the modelling code that runs does with memory and a model's shapes do not tell.

In here: facts about the classes of a family, how a layer is run (`Mode`), and what litgpt's own
model code does otherwise; other trainers with code of their own are predicted as the class of
transformers, with a measured offset. What a layer keeps under them: `activations`, `layers`.

Source: derived: modelling code of transformers 5.23, class by class; what a fact changes is checked
with storage-counting traces of the same classes (tests/cost/memory/test_memory_families.py).
litgpt: Lightning-AI/litgpt at 8641822 (October 2023), lit_gpt/model.py, lora.py and utils.py, and
at 6178c7cc for the norm in fp32; lightning 2.1 fabric/wrappers.py and plugins/precision/half.py,
which answer in torch's default dtype. Traced on the meta device, those files come within 0.2 % of
the published peaks of its LayerNorm models.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from autotune.domain.model import Linear
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.cost.columns import BoolArray, Columns
    from autotune.domain.job import Job, Method
    from autotune.domain.model import Model

# Dtype of an eager softmax: fp32, the scores' own (autocast still widens it), the scores' own by
# name (autocast leaves it), or the dtype that the norm hands over.
Softmax = Literal["fp32", "own", "stated"]


@dataclass(frozen=True, slots=True)
class FamilyMemory:
    """Facts about one family's code. The defaults are those of the Llama-like classes."""

    fp32_norm: bool = False  # RMSNorm scales before it casts back
    value_norm: bool = False  # the values of a head are normalised too, without a weight
    plain_layernorm: bool = False  # LayerNorm written out in fp32 and cast back
    post_norm: bool = False  # norms follow the blocks: matrices read the residual stream itself
    concatenated_rope: bool = False  # the fused kernel's output is copied, because views are joined
    softmax: Softmax = "fp32"
    fp32_queries: bool = False  # eager queries and keys are cast to fp32 before their product
    dropout: bool = False  # published configs train with 0.1 after attention and MLP
    score_dropout: bool = False
    # Bytes of an eager score in a forward whose caller still holds those of the layer before: under
    # autocast, and without; 0 where no scores are handed up.
    forward_scores: tuple[float, float] = (0.0, 0.0)
    always_masked: bool = False  # sdpa gets an additive mask even where nothing is padded
    broadcasts_heads: bool = False  # sdpa gets fewer key heads than query heads and no word of it
    expert_products: float = 3.0  # tensors as wide as an expert that its gating keeps
    own_router: bool = False  # it normalises and scales what the MLP's norm reads for itself
    fp32_weighing: bool = False  # the outputs of experts are multiplied by fp32 weights
    own_linear: bool = False  # matrices derive from nn.Linear, which bitsandbytes leaves alone
    native_loss: bool = False  # before transformers 4.50: the loss takes logits in their own dtype


FAMILY_MEMORY: dict[str, FamilyMemory] = {
    "cohere": FamilyMemory(plain_layernorm=True),
    "cohere2": FamilyMemory(plain_layernorm=True),
    "exaone4": FamilyMemory(post_norm=True),
    "falcon": FamilyMemory(
        softmax="own",
        forward_scores=(16.0, 8.0),
        always_masked=True,
        broadcasts_heads=True,
        own_linear=True,
    ),
    "gemma": FamilyMemory(fp32_norm=True),
    "gemma2": FamilyMemory(fp32_norm=True),
    "gemma3_text": FamilyMemory(fp32_norm=True),
    "gemma4_text": FamilyMemory(
        fp32_norm=True, value_norm=True, own_router=True, fp32_weighing=True
    ),
    "gemma4_unified_text": FamilyMemory(fp32_norm=True, value_norm=True),
    "glm": FamilyMemory(concatenated_rope=True),
    "glm4": FamilyMemory(concatenated_rope=True),
    "glm4_moe": FamilyMemory(concatenated_rope=True),
    "glm4_moe_lite": FamilyMemory(concatenated_rope=True),
    "deepseek_v2": FamilyMemory(concatenated_rope=True, fp32_weighing=True),
    "deepseek_v3": FamilyMemory(concatenated_rope=True),
    "gpt2": FamilyMemory(softmax="own", dropout=True, score_dropout=True, native_loss=True),
    "gpt_bigcode": FamilyMemory(dropout=True, score_dropout=True, native_loss=True),
    "gpt_neo": FamilyMemory(fp32_queries=True),
    "gptj": FamilyMemory(fp32_queries=True),
    # its experts clamp both factors and multiply by a sigmoid
    "gpt_oss": FamilyMemory(softmax="stated", expert_products=6.0),
    "minimax_m2": FamilyMemory(concatenated_rope=True),
    "mpt": FamilyMemory(forward_scores=(14.0, 14.0)),
    "nemotron": FamilyMemory(concatenated_rope=True),
    "nemotron_h": FamilyMemory(fp32_norm=True),
    "olmo2": FamilyMemory(fp32_norm=True, post_norm=True),
    "olmo3": FamilyMemory(fp32_norm=True, post_norm=True),
    "opt": FamilyMemory(dropout=True),
    "phi": FamilyMemory(concatenated_rope=True),
    "phi3": FamilyMemory(concatenated_rope=True),
    "qwen3_5_text": FamilyMemory(fp32_norm=True, concatenated_rope=True),
    "qwen3_5_moe_text": FamilyMemory(fp32_norm=True, concatenated_rope=True),
    "qwen3_next": FamilyMemory(fp32_norm=True, concatenated_rope=True),
    "stablelm": FamilyMemory(concatenated_rope=True),
}
_LLAMA_LIKE = FamilyMemory()


def family_memory(family: str) -> FamilyMemory:
    """The facts about a family; those of the Llama-like classes where nothing else is known."""
    return FAMILY_MEMORY.get(family, _LLAMA_LIKE)


def fused_layernorm(model: Model) -> bool:
    """Whether norms are torch's LayerNorm, which autocast runs in fp32."""
    return model.norm == "layernorm" and not family_memory(model.family).plain_layernorm


def stored_masks(model: Model) -> float:
    """[bytes] of the masks that layers hold as buffers: GPT-Neo's, a byte for each pair of tokens.

    Its windows are such masks: every layer multiplies all pairs, and flash attention has none.
    Source: transformers 5.23 GPTNeoSelfAttention.
    """
    return float(model.num_layers * model.max_position_embeddings**2) * (model.family == "gpt_neo")


# Baichuan2 has about twice the words of Baichuan, and another head: its weight is normalised anew
# in every forward. Source: modeling_baichuan.py beside the weights, NormHead.
_BAICHUAN2_WORDS = 100_000


def normalises_head(model: Model) -> bool:
    """Whether the output head multiplies by a normalised copy of its weight."""
    return model.family == "baichuan" and model.vocab_size > _BAICHUAN2_WORDS


# Layers of a pattern that sees everything once: Source: configuration classes of transformers 5.23.
_PATTERN = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4, "gpt_oss": 2, "olmo3": 4}


@lru_cache(maxsize=256)
def windowed_share(model: Model) -> float:
    """Share of the layers whose attention looks back only as far as the sliding window."""
    if model.sliding_window is None:
        return 0.0
    if model.kinds:
        local = [layer.num_layers for layer in model.layers if layer.sliding_window]
        return sum(local) / model.num_layers
    config = json.loads(model.hf_config)
    types = config.get("layer_types")
    if types:
        local = [kind for kind in types if kind != "full_attention"]
        return len(local) / len(types)
    if model.family in {"qwen2", "qwen3", "qwen2_moe", "qwen3_moe"}:
        return max(0.0, 1.0 - float(config.get("max_window_layers", 28)) / model.num_layers)
    pattern = int(config.get("sliding_window_pattern") or _PATTERN.get(model.family, 0))
    return 1.0 - (model.num_layers // pattern) / model.num_layers if pattern else 1.0


# math: what sdpa falls back to when no fused kernel takes grouped heads without a mask.
Attention = Literal["eager", "sdpa", "flash_attention_2", "math"]


@dataclass(frozen=True, slots=True)
class Mode:
    """How a layer is run: all that decides which tensors stay.

    compute: bytes of the compute dtype. stream: bytes of the residual stream. adapter: bytes of an
    adapter element, 0 without adapters. masked: share of layers whose attention gets a mask, for
    padding or for a window shorter than the rows. looped: experts run one after the other, each on
    its own tokens. quantised: linears answer in the dtype of their input (bitsandbytes), so what a
    norm hands over in fp32 stays fp32 through the MLP. keeps_inputs: those linears hold on to what
    they read. fused_norms: one kernel for an RMSNorm, which keeps its input as it is (Liger,
    Unsloth, a compiled layer). fused_gate: one kernel for activation and product of a gated MLP,
    which keeps their two inputs (Liger's SiLUMul, GELUMul). compiled: all that is pointwise is made
    again from what matrix products and reductions read, and a copy that several read is one.
    repeats_base: DoRA multiplies the base a second time, for what dropout left of its input.
    narrow_norms: a LayerNorm casts itself to the compute dtype and leaves autocast for its product
    (llm-foundry). fused_adapters: matrices with their adapters are one operation that keeps what it
    read once; that of a gated MLP makes the product again in its backward, in place (Unsloth).
    expands_heads: grouped keys and values are copied for every query head before the kernel.
    splits_keys: the kernel's backward has gradients of all keys for every few of them.
    fused_mixer: a mixer runs in kernels that make most of it again in their backward.
    chunked: tokens that a Mamba mixer pads a row to, in whole chunks, over its own.
    reads_as_is: PEFT does not cast what an adapter reads (beside bitsandbytes, under autocast).
    """

    compute: float
    stream: float
    train_base: bool
    adapter: float
    autocast: bool
    attention: Attention
    masked: float
    looped: bool = False
    quantised: bool = False
    keeps_inputs: bool = False
    fused_norms: bool = False
    fused_gate: bool = False
    repeats_base: bool = False
    narrow_norms: bool = False
    compiled: bool = False
    fused_adapters: bool = False
    expands_heads: bool = False
    splits_keys: bool = False
    fused_mixer: bool = False
    chunked: float = 1.0
    reads_as_is: bool = False

    @property
    def biased(self) -> bool:
        """Whether sdpa runs with an additive mask: keys and values expand to all heads."""
        return self.attention == "sdpa" and self.masked > 0.0


# sdpa shares key heads among query heads up to it, without a mask; above, every query head gets a
# copy. Source: transformers 5.23 integrations/sdpa_attention.py, use_gqa_in_sdpa.
GROUPED_HEAD_DIM = 256


def mode_of_kind(mode: Mode, layer: Model) -> Mode:
    """The mode of one kind of layer, of those of a model whose layers differ.

    Where a window alone asks for masks, layers with one have them.
    """
    if 0.0 < mode.masked < 1.0:
        mode = replace(mode, masked=float(layer.sliding_window is not None))
    if mode.attention in {"sdpa", "math"} and layer.head_dim > GROUPED_HEAD_DIM:
        mode = replace(mode, attention="sdpa", expands_heads=True)
    return mode


# Source: llm-foundry 0.3 models/layers/norm.py, LPLayerNorm, its default norm_type.
NARROW_NORMS = frozenset({"llm-foundry"})
LITGPT = "litgpt"
FMS = "fms"  # fms-acceleration has some of Unsloth's kernels around the forward of transformers
CHUNK_TOKENS = 128.0  # tokens of a row whose logits and loss are one tensor (lm_head_chunk_size)
LOGIT_BYTES = 8.0  # of every chunk the fp32 logits that fabric answers with, and the log-softmax
# torchtune's CEWithChunkedOutputLoss: eight chunks, of each the 16-bit logits and the log-softmax
# in fp32; of one its fp32 copy and gradient. Source:
# torchtune 0.4 modules/loss/ce_chunked_output_loss.py.
TORCHTUNE, LISTED_CHUNKS = "torchtune", 8.0
_FUSED = "attn"


def is_litgpt(job: Job) -> bool:
    """Whether litgpt's own classes run."""
    return job.software.own_model and job.software.stack == LITGPT


def is_torchtune(job: Job) -> bool:
    """Whether torchtune's own classes run."""
    return job.software.own_model and job.software.stack == TORCHTUNE


def unsloths(job: Job) -> bool:
    """Whether Unsloth itself runs, its forward included."""
    return job.software.kernels == "unsloth" and job.software.trainer != FMS


# torch.compile of one layer at a time, and of the loss by itself, in trainers with their own code.
_COMPILES_LAYERS = frozenset({TORCHTUNE, "torchtitan"})


def compiles_blocks(job: Job) -> bool:
    """Whether the trainer compiles its own layers, each by itself, and the loss by itself."""
    return job.software.own_model and job.software.stack in _COMPILES_LAYERS


def compiles_layers(job: Job, columns: Columns) -> BoolArray:
    """[rows] whether torch.compile sees each layer whole, alone or in the model.

    A norm, an activation and the product of a gated MLP then keep what they read, as hand-written
    kernels do: the rest is pointwise and made again in the backward. Layers of bitsandbytes, DoRA
    and experts that wait for their router break the graph inside a layer: they count as eager.
    Source: torch._functorch partitioners.py, which keeps what matrix products read and recomputes
    what fuses; its graphs of transformers' classes (tests/cost/memory/test_compiled.py); torchtune
    0.6.1 training/_compile.py; torchtitan parallelisms/parallelize_llama.py, apply_compile.
    """
    whole = not (job.method.is_quantised or job.model.is_moe or job.method.is_dora)
    return (whole or compiles_blocks(job)) & ~columns.equals("compile", "off")


def compiles_loss(job: Job, columns: Columns) -> BoolArray:
    """[rows] whether the loss is compiled by itself.

    That of transformers is counted as eager also where the whole model is compiled: many a loop
    takes it outside, and such runs held 1.4 times what a compiled one would leave.
    """
    return compiles_blocks(job) & ~columns.equals("compile", "off")


def as_run(job: Job) -> tuple[Model, Method]:
    """The model and the method as the trainer's code arranges them.

    litgpt has one projection of queries, keys and values, with one adapter, and the values are a
    view of its output.
    """
    model, method = job.model, job.method
    split = _split(model)
    if not is_litgpt(job) or not split:
        return model, method
    rest = tuple(item for item in model.linears if item not in split)
    width = sum(item.out_features for item in split)
    fused = Linear(_FUSED, split[0].in_features, width, split[0].bias)
    targets = tuple(name for name in method.targets if all(name != item.name for item in split))
    if len(targets) < len(method.targets):
        targets = (_FUSED, *targets)
    return replace(model, linears=(fused, *rest)), replace(method, targets=targets)


def padded_update(job: Job) -> float:
    """[elements/token] of one layer's update of some of queries, keys and values.

    It is copied into zeros as wide as all three, and autograd keeps what was copied; an update of
    all three is added as it is. Where the class of transformers has one projection, its adapter
    stands for litgpt's default: queries and values.
    """
    model, targets = job.model, job.method.targets
    own = [item for item in model.linears if item.part == "attention"][:-1]
    adapted = [item for item in own if item.name in targets]
    if not is_litgpt(job) or not adapted:
        return 0.0
    if len(own) == 1:
        return float(model.query_size + model.kv_size)
    return 0.0 if len(adapted) == len(own) else float(sum(item.out_features for item in adapted))


def fuses_adapters(job: Job) -> bool:
    """Whether fused operations take every adapted matrix: no dropout, no DoRA, a gated MLP.

    Source: unsloth kernels/fast_lora.py, what LoRA_QKV, LoRA_W and LoRA_MLP save for the backward,
    and models/llama.py, which puts them in for adapters without dropout and without a bias; the
    same of axolotl 0.18 kernels/lora.py, LoRA_QKV, LoRA_O and LoRA_MLP.
    """
    method, model = job.method, job.model
    plain = method.is_lora and not method.is_dora and method.dropout == 0.0
    adapted = all(item.name in method.targets for item in model.matrices if item.adaptable)
    gated = model.mlp == "gated" and not model.is_moe
    fused = job.software.kernels == "unsloth" or job.software.fused_adapters
    return fused and plain and adapted and gated


def _split(model: Model) -> tuple[Linear, ...]:
    """Projections of queries, keys and values where they are apart."""
    own = tuple(item for item in model.linears if item.part == "attention")[:-1]
    return own if len(own) > 1 and not model.dense_linears else ()
