"""The software a job runs on: versions, and what follows from them."""

from __future__ import annotations

import re
from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal

from autotune.frozen import LATER, dataclass

if TYPE_CHECKING:
    from autotune.domain.model import Model

Version = tuple[int, ...]
LossKind = Literal["upcast", "upcast_copy", "native", "inplace", "chunked", "fused", "liger"]
# The loss of transformers: until 4.45 the model upcasts its logits in place; 4.46 to 4.49 shift the
# upcast logits and so copy them; from 4.50 the labels are shifted instead.
# Source: modeling_llama.py and loss/loss_utils.py of those releases.
LOSS_COPIES_FROM, LOSS_COPIES_UNTIL = (4, 46), (4, 50)
# Classes without `_supports_sdpa` in transformers 5.23 (soft-capping, sinks, or never ported).
NO_SDPA = frozenset({"gemma2", "gpt_oss", "gpt_neo", "gptj", "bloom", "mpt", "codegen", "xglm"})
# Their flash attention gets no position_ids, so packed rows attend to each other. Source:
# transformers 5.23 modeling_gptj.py and modeling_gpt_neo.py, `_flash_attention_forward`.
JOINS_ROWS = frozenset({"gptj", "gpt_neo"})
# The release of transformers from which on a class has it; before, attention was written out there.
# Classes that came with it, or called torch's kernel by themselves (falcon), are not listed.
# Source: transformers 4.35 to 4.49, models/*/modeling_*.py, `_supports_sdpa = True`.
SDPA_FROM: dict[str, Version] = {
    "llama": (4, 36), "gpt_bigcode": (4, 36), "mistral": (4, 37), "mixtral": (4, 37),
    "phi": (4, 39), "stablelm": (4, 39), "gpt2": (4, 42), "gpt_neox": (4, 42), "phi3": (4, 45),
    "opt": (4, 46),
}  # fmt: skip
# Classes that came with it, in releases that still ran under a torch whose kernel they do not call:
# before 2.1. Source: transformers 4.36, 4.41 utils/import_utils.py, is_torch_sdpa_available.
SDPA_FROM_FIRST = frozenset({"qwen2", "qwen2_moe", "gemma", "starcoder2", "cohere", "olmo"})
SDPA_UNDER = (2, 1)
# The release of transformers that brought a model's class; those of 4.28 and before are not listed,
# nor are classes that come with the model.
# Source: wheels of transformers 4.28.0 to 5.23.0, the first with models/FAMILY/modeling_*.py.
CLASS_FROM: dict[str, Version] = {
    "falcon": (4, 31), "mpt": (4, 32), "mistral": (4, 34), "mixtral": (4, 36), "phi": (4, 36),
    "qwen2": (4, 37), "gemma": (4, 38), "stablelm": (4, 38), "cohere": (4, 39),
    "starcoder2": (4, 39), "jamba": (4, 40), "qwen2_moe": (4, 40), "phi3": (4, 41),
    "gemma2": (4, 42), "nemotron": (4, 44), "granite": (4, 45), "granitemoe": (4, 45),
    "olmoe": (4, 45), "glm": (4, 46), "phimoe": (4, 46), "olmo2": (4, 47), "bamba": (4, 48),
    "cohere2": (4, 48), "gemma3_text": (4, 50), "deepseek_v3": (4, 51), "llama4_text": (4, 51),
    "qwen3": (4, 51), "qwen3_moe": (4, 51), "glm4": (4, 52), "granitemoehybrid": (4, 52),
    "arcee": (4, 53), "dots1": (4, 53), "falcon_h1": (4, 53), "gemma3n_text": (4, 53),
    "smollm3": (4, 53), "deepseek_v2": (4, 54), "ernie4_5": (4, 54), "ernie4_5_moe": (4, 54),
    "exaone4": (4, 54), "glm4_moe": (4, 54), "lfm2": (4, 54), "gpt_oss": (4, 55),
    "apertus": (4, 56), "hunyuan_v1_dense": (4, 56), "hunyuan_v1_moe": (4, 56),
    "seed_oss": (4, 56), "flex_olmo": (4, 57),
    "olmo3": (4, 57), "qwen3_next": (4, 57), "glm4_moe_lite": (5, 0), "lfm2_moe": (5, 0),
    "ministral3": (5, 0), "nanochat": (5, 0), "qwen3_5_moe_text": (5, 2), "qwen3_5_text": (5, 2),
    "nemotron_h": (5, 3), "gemma4_text": (5, 5), "gemma4_unified_text": (5, 10),
    "minicpm3": (5, 13),
}  # fmt: skip
# Tokens and vocabulary width of a tile of TRL's chunked loss: trl 1.16 kernels/chunked_logprob.py.
TILE_TOKENS, TILE_VOCABULARY = 4096, 8192
# Source: transformers 5.0 training_args.py: `use_cache` is off; before, the model's config decided.
EVALUATES_WITHOUT_CACHE_FROM = (5, 0)
# Attention from the hub: transformers 5 loads it with the package `kernels`, 5.23 with these.
# Source: transformers 5.23 utils/import_utils.py KERNELS_MIN_VERSION, KERNELS_MAX_VERSION; which
# versions earlier releases take was not read.
HUB_KERNELS_FROM, HUB_KERNELS_BOUND_FROM = (5, 0), (5, 23)
HUB_KERNELS = ((0, 18, 2), (0, 19, 0))
# Source: transformers 5.23 modeling_layers.py and its default use_reentrant=False; 4.48 checkpoints
# a layer's call, FSDP's hooks included, with use_reentrant=True.
REENTRANT_UNTIL = (5, 0)
# Layers that checkpoint themselves, inside of FSDP's unit: Llama, Qwen and Mistral; the others came
# one release later. Source: transformers 4.51.3 and 4.52.4, modeling_llama.py, modeling_layers.py.
CHECKPOINTS_INSIDE_FROM = (4, 52)
# Until then the Trainer saves FSDP's model by its plain `state_dict()`, of which torch's default is
# a whole copy on every device. Source: transformers 4.28, 4.31 and 4.32 trainer.py, save_model.
GATHERS_TO_SAVE_UNTIL = (4, 32)
# Months from which accelerate leaves gradients unreduced between micro-steps under FSDP2 too: its
# `no_sync` looked for a method that FSDP2's modules lack. Source: accelerate 1.10.1 and 1.11.0
# accelerator.py; 1.11 is of 20 October 2025.
FSDP2_DEFERS_FROM, FSDP2_DEFERS_SINCE = (1, 11), (2025, 11)
# torch's AdamW updates a list of tensors at once by default from 2.0 on, FSDP's flat parameters
# from 2.1, and from then on makes its denominator in place. Source: torch 1.13.1, 2.0.1 and 2.1.2
# optim/adamw.py, optim/optimizer.py `_default_to_fused_or_foreach`, fsdp/flat_param.py.
UPDATES_LISTS_FROM, UPDATES_IN_PLACE_FROM = (2, 0), (2, 1)
# The Trainer's optimizer where none is named: a loop of transformers' own, torch's AdamW by lists
# of tensors, and its fused kernel, which needs torch 2.8 besides.
# Source: transformers 4.31, 4.32, 4.53, 4.54 and 5.2 training_args.py, `default_optim`.
UPDATES_BY_TORCH_FROM, FUSES_UPDATES_FROM, FUSES_UPDATES_UNDER = (4, 32), (4, 54), (2, 8)
# What litgpt calls of the activations that transformers writes as Python.
_FUSED_ACTIVATION = {"gelu_new": "gelu_pytorch_tanh", "gelu_fast": "gelu_pytorch_tanh"}
FSDP_WIDENS_FROM = (0, 30)  # accelerate
ZERO3_DIVIDES_NF4 = (
    4,
    45,
)  # transformers. Source: peft 09802c1, docs/source/accelerate/deepspeed.md
TRL_PREPARES_UNTIL = (1, 0)  # a base in few bits, by itself
# Source: torch 2.13 aten/src/ATen/native/transformers/cuda/sdp_utils.cpp
WITHOUT_CUDNN = "TORCH_CUDNN_SDPA_DEPRIORITIZED"  # a variable: sdpa asks cuDNN last
_ASKS_CUDNN = re.compile(WITHOUT_CUDNN + r"""["']?\]?\s*[=,:]\s*["']?0\b""")
KbitUpcast = Literal["none", "norms", "all"]  # all: peft prepare_model_for_kbit_training
# Months from which Unsloth's loss never holds all logits, and from which its chunks are sized by
# the memory that is free. Source: unsloth models/llama.py, commits fa8e59eb (17 November 2024) and
# 806bee24 (13 August 2025).
UNSLOTH_CUTS_FROM, UNSLOTH_SIZES_FROM = "2024-12", "2025-09"


def asks_cudnn(text: str) -> bool:
    """Whether a script or command sets the variable to 0: sdpa asks cuDNN as it does without it."""
    return bool(_ASKS_CUDNN.search(text))


def unsloths_loss(month: str) -> LossKind:
    """Unsloth's loss in a month such as 2025-03.

    At first its kernel overwrites the logits with their gradient; then cut cross-entropy; then
    chunks.
    """
    if month < UNSLOTH_CUTS_FROM:
        return "inplace"
    return "fused" if month < UNSLOTH_SIZES_FROM else "chunked"


@dataclass(frozen=True, slots=True)
class Software:
    """A dated profile. Versions are tuples such as (5, 23, 0); None means not installed.

    `loss` says what the training loop's loss materialises: `upcast` (fp32 logits, 12 bytes a logit
    at the peak), `upcast_copy` (older code that also keeps shifted or 16-bit logits, 14),
    `native` (in the logits' own dtype: GPT-2-like classes of transformers before 4.50, 8 in 16
    bit), `inplace` (a kernel that overwrites the logits it is given with their gradient),
    `chunked` (never all logits at once), `fused` (no logits at all), `liger` (a chunk of logits
    whose gradients are made in the forward).
    """

    name: str
    as_of: str
    torch: tuple[int, ...]
    transformers: tuple[int, ...]
    trl: tuple[int, ...] | None
    peft: tuple[int, ...]
    accelerate: tuple[int, ...]
    flash_attn: tuple[int, ...] | None
    bitsandbytes: tuple[int, ...] | None
    liger_kernel: tuple[int, ...] | None = field(default=None, metadata=LATER)
    torchao: tuple[int, ...] | None = field(default=None, metadata=LATER)
    flash_attn_3: tuple[int, ...] | None = field(default=None, metadata=LATER)
    hub_kernels: tuple[int, ...] | None = field(default=None, metadata=LATER)  # package `kernels`
    flash_linear_attention: tuple[int, ...] | None = field(default=None, metadata=LATER)
    mamba_ssm: tuple[int, ...] | None = field(default=None, metadata=LATER)
    kernels: Literal["eager", "liger", "unsloth"] = "eager"
    loss: LossKind = "upcast"
    autocast: bool = True  # False: a trainer that runs 16-bit compute without autocast
    own_model: bool = False  # the trainer has model code of its own, not the class of transformers
    empties_cache: bool = False  # cached blocks are given back every few steps
    kbit_upcast: KbitUpcast = "none"  # what a quantised base keeps in fp32: trl 1.x nothing
    # how 4-bit GPTQ weights are unpacked: by a chain of torch's kernels, or by one of Triton's
    gptq: Literal["none", "torch", "triton"] = field(default="none", metadata=LATER)
    # layers are checkpointed by transformers' own switch, not by FSDP's or a loop's wrapper
    recomputes_outside_fsdp: bool = field(default=False, metadata=LATER)
    # the optimizer steps on each gradient as the backward makes it (torchtune's optimizer_in_bwd)
    steps_in_backward: bool = field(default=False, metadata=LATER)
    # the loss needs every logit, whatever kernels run: that of Liger is off
    whole_logits: bool = field(default=False, metadata=LATER)
    # the optimizer's states take next to nothing of the device: paged out, factored, or none
    no_moments: bool = field(default=False, metadata=LATER)
    # 4-bit weights are multiplied in fp32: no autocast, and a compute dtype that nobody states
    fp32_products: bool = field(default=False, metadata=LATER)
    # checkpoints hold what was trained and no optimizer states (save_only_model)
    saves_model_only: bool = field(default=False, metadata=LATER)
    # Unsloth's layers are checkpointed as transformers does it: their inputs stay on the device
    keeps_inputs: bool = field(default=False, metadata=LATER)
    # False: WITHOUT_CUDNN is set, and sdpa asks cuDNN last. None: where lengths of batches change,
    # as what is written sets it
    cudnn_attention: bool | None = field(default=None, metadata=LATER)
    # a trainer that puts the whole model on each device, before ZeRO-3 shards it
    loads_whole: bool = field(default=False, metadata=LATER)
    # gradients are reduced after every micro-step, not after the last alone (sync_each_batch)
    syncs_each_batch: bool = field(default=False, metadata=LATER)
    stack: str = "hf"  # training code: transformers' Trainer (and TRL), or another's name
    # adapters without dropout are one operation with their weights: axolotl's lora_*_kernel
    fused_adapters: bool = field(default=False, metadata=LATER)
    # a switch of the trainer quantises experts that are one parameter (quantize_moe_experts)
    quantised_experts: bool = field(default=False, metadata=LATER)
    # a class of the trainer's makes linear layers of them, in any release
    linear_experts: bool = field(default=False, metadata=LATER)
    # of activation checkpointing, where it is stated (use_reentrant); None: as transformers has it
    reentrant: bool | None = field(default=None, metadata=LATER)
    trainer: str = field(default="", metadata=LATER)  # what drives it; empty: not known
    # what a 16-bit base is stored in, where that is stated; empty: what the run computes in
    base_dtype: Literal["", "bf16", "fp16"] = field(default="", metadata=LATER)
    # what trains whole beside adapters keeps the dtype it was loaded in, as PEFT leaves it; False:
    # the trainer casts it to that of the adapters
    saves_as_loaded: bool = field(default=False, metadata=LATER)

    @property
    def gathers_to_save(self) -> bool:
        """Whether every device holds the whole model of FSDP while it is saved."""
        return self.stack == "hf" and self.transformers < GATHERS_TO_SAVE_UNTIL

    def has_sdpa(self, family: str) -> bool:
        """Whether the class of a model calls torch's attention, in the code that runs."""
        own = self.stack != "hf" or self.own_model or self.kernels == "unsloth"
        asks_torch = not own and (family in SDPA_FROM or family in SDPA_FROM_FIRST)
        if family in NO_SDPA or (asks_torch and self.torch < SDPA_UNDER):
            return False
        return not asks_torch or self.transformers >= SDPA_FROM.get(family, ())

    def has_class(self, family: str) -> bool:
        """Whether the release has the class of a model; one that comes with the model always."""
        own = self.stack != "hf" or self.own_model
        return own or self.transformers >= CLASS_FROM.get(family, ())

    @property
    def recomputes_reentrantly(self) -> bool:
        """Whether a checkpointed layer's forward runs without gradients, and again in full."""
        return self.transformers < REENTRANT_UNTIL if self.reentrant is None else self.reentrant

    @property
    def gathers_to_recompute(self) -> bool:
        """Whether the first FSDP gathers a layer a third time, to run its forward again.

        Until transformers 4.52 the checkpoint lies around the unit, hooks and all. If reentrant,
        its first forward builds no graph, so that the unit gathers and frees for the second
        forward, and gathers again for the backward. Otherwise the backward's hook comes first, and
        the second forward finds the unit whole.
        Does not cover: the second FSDP, whose hooks lie inside of a layer that checkpoints itself.
        Source: torch 2.13 distributed/fsdp/_runtime_utils.py, `_pre_forward` and `_post_forward`;
        huggingface/transformers issue 30404.
        """
        around = self.recomputes_outside_fsdp and self.transformers < CHECKPOINTS_INSIDE_FROM
        return around and self.recomputes_reentrantly

    @property
    def update_copies(self) -> float:
        """How often AdamW's denominator is there while it is made, of what is updated at once."""
        return 1.0 if self.torch >= UPDATES_IN_PLACE_FROM else 2.0

    @property
    def usual_optimizer(self) -> str:
        """The knob of AdamW that the Trainer takes where nothing is said of it.

        Its own loop before 4.32 has the temporaries of one tensor, as the fused kernel has none.
        """
        fuses = self.transformers >= FUSES_UPDATES_FROM and self.torch >= FUSES_UPDATES_UNDER
        lists = self.stack == "hf" and self.transformers >= UPDATES_BY_TORCH_FROM and not fuses
        return "adamw_torch" if lists else "adamw_torch_fused"

    @property
    def widens_shards(self) -> bool:
        """Whether FSDP under mixed precision makes fp32 of 16-bit weights that train.

        Source: accelerate 0.29.3, which does not, and 0.30.1 accelerator.py, prepare_model
        ("Upcasted low precision parameters", its pull request 2674); 1.6 to 1.15
        utils/fsdp_utils.py, fsdp2_prepare_model.
        """
        return self.stack == "hf" and self.autocast and self.accelerate >= FSDP_WIDENS_FROM

    def updates_in_turn(self, *, flat: bool) -> bool:
        """Whether AdamW updates one tensor after the other. flat: FSDP's own parameters."""
        return self.torch < (UPDATES_IN_PLACE_FROM if flat else UPDATES_LISTS_FROM)

    @property
    def wraps_adapters_alone(self) -> bool:
        """Whether FSDP makes every adapter matrix a unit of its own, beside the layers.

        The first FSDP does, by peft's own policy; the second wraps the classes of layers only.
        Source: accelerate 1.15, `fsdp2_prepare_auto_wrap_policy`; FSDP2 came with accelerate 1.6.
        """
        return self.accelerate < (1, 6)

    def as_coded(self, model: Model) -> Model:
        """The model as the trainer's own classes build it, where its config says otherwise.

        litgpt's fine-tuning has a head of its own whether or not the checkpoint ties it to the
        embedding, and its activations are kernels of torch. Source: litgpt 0.5.13 model.py, GPT and
        GptNeoxMLP; finetune/lora.py and full.py, validate_args, which refuse `tie_embeddings`.
        """
        if not (self.own_model and self.stack == "litgpt"):
            return model
        activation = _FUSED_ACTIVATION.get(model.activation, model.activation)
        return replace(model, tied_head=False, activation=activation)

    def over(self, base: str) -> Software:
        """The same software over a base as it is stored: only few bits leave the rest in fp32.

        TRL's own trainer prepared such a base until 1.0, and cast all but the norms of one in 4
        bits back to bf16. Does not cover: fp16, where it cast nothing back; FSDP and ZeRO-3, where
        it prepared nothing.
        Source: trl 0.19 models/utils.py, prepare_peft_model and peft_module_casting_to_bf16; peft
        0.21 utils/other.py, prepare_model_for_kbit_training.
        """
        kept = self.kbit_upcast
        if base not in {"nf4", "int8"}:
            kept = "none"
        elif kept == "none" and self.trainer == "trl" and self.kernels != "unsloth":
            prepared = self.trl is not None and self.trl < TRL_PREPARES_UNTIL
            kept = ("norms" if base == "nf4" else "all") if prepared else kept
        return replace(self, kbit_upcast=kept)

    def running(self, kernels: str) -> Software:
        """The same software with a value of the knob `kernels` in force.

        TRL's own loss, which is chunked already, stays under Liger: its trainer switches Liger's
        off, and so is it where a trainer needs every logit.
        Source: trl 1.16 trainer/sft_trainer.py, liger_kernel_config.
        """
        if kernels == "liger":
            keeps = self.whole_logits or self.loss == "chunked"
            return replace(self, kernels="liger", loss=self.loss if keeps else "liger")
        return replace(self, loss="chunked") if kernels == "chunked_loss" else self

    def has_kernels(self, package: str) -> bool:
        """Whether the package with the kernels of a model's mixers is there.

        transformers takes them where it is installed; Unsloth brings flash-linear-attention along.
        Source: transformers 5.23 integrations/hub_kernels.py; unslothai/unsloth pull request 6850.
        """
        brought = package == "flash_linear_attention" and self.kernels == "unsloth"
        return bool(package) and (brought or getattr(self, package) is not None)

    @property
    def has_flash_attention(self) -> bool:
        """Whether flash-attention 2 is installed, or comes from the hub."""
        return self.flash_attn is not None or self._loads_hub_kernels

    @property
    def has_flash_attention_3(self) -> bool:
        """Whether flash-attention 3 is installed, or comes from the hub."""
        return self.flash_attn_3 is not None or self._loads_hub_kernels

    @property
    def _loads_hub_kernels(self) -> bool:
        """Whether transformers takes the hub's kernels, also for a package that is not installed.

        Source: transformers 5.23 modeling_utils.py, FLASH_ATTN_KERNEL_FALLBACK where
        flash_attention_2 or 3 is asked for and missing.
        """
        if self.hub_kernels is None or self.transformers < HUB_KERNELS_FROM:
            return False
        oldest, newest = HUB_KERNELS
        bound = self.transformers >= HUB_KERNELS_BOUND_FROM
        return not bound or oldest <= self.hub_kernels < newest


@dataclass(frozen=True, slots=True)
class ZeroSettings:
    """What a DeepSpeed config says of states and buffers. The defaults are DeepSpeed's own.

    bucket_elements: of one reduce bucket; None: DeepSpeed's 500 million. overlapping: stage 2 has
    two of them, to fill one while the other is being reduced. whole_gradients: stage 1 stands in
    stage 2's place, and shares the optimizer's states alone. scatters: FSDP's SHARD_GRAD_OP stands
    there, which sends each device its share of the gradients alone.
    """

    master_bytes: float = 4.0  # of a trained element: the copy that the optimizer steps
    moment_bytes: float = 4.0  # and each of AdamW's two moments
    bucket_elements: float | None = None
    overlapping: bool = False
    whole_gradients: bool = False
    scatters: bool = False
