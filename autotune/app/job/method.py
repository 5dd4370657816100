"""How the model trains: full or by adapters, how the base is stored, and whether a variant can be.

Storage is as stated, or as the checkpoint of the model has it; a variant is held against the job's
software and model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.catalog.models.models import find_model, in_full
from autotune.catalog.models.undescribed import READ_AS_LLAMA
from autotune.cost.memory.experts import experts_fused
from autotune.cost.parameters import (
    parameter_count,
    resolve_saved,
    resolve_targets,
)
from autotune.domain.config import ZERO_STAGE
from autotune.domain.errors import InputError
from autotune.domain.job import QUANTISED, Assumption, Method
from autotune.domain.software import FSDP_WIDENS_FROM, ZeroSettings
from autotune.domain.typed.values import shown
from autotune.domain.units import format_bytes
from autotune.trainers.unread import keeps_masters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.domain.device import Device
    from autotune.domain.job import Base, Job
    from autotune.domain.model import Model
    from autotune.domain.typed.job import DeepSpeedSection, JobFile, MethodSection
    from autotune.trainers.parsed import Parsed
    from autotune.trainers.versions import Version

# Formats that transformers unpacks to 16 bit when it loads them for training. Source: transformers
# 5.23 utils/quantization_config.py: Mxfp4Config and FineGrainedFP8Config have `dequantize`.
UNPACKED = ("fp8", "mxfp4")
# Formats of engines that only run models: llama.cpp, ExLlama, Apple's MLX.
INFERENCE_ONLY = ("gguf", "exl2", "mlx")
RANK = 16  # what most published recipes of 7-8B models use; PEFT's own default is 8
ALPHA_OVER_RANK = 2.0
MASTERS = "fp32 masters under DeepSpeed"
_WEIGHT_AND_GRADIENT_BYTES = 8.0  # a parameter's, both in fp32


def as_stated(section: MethodSection, text: str, model: Model, assumed: list[Assumption]) -> Model:
    """The model that is trained: with the base stated, a quantised copy gives way to its original.

    text: the job's name of the model. What it was taken to mean is appended to `assumed`.
    """
    meant = in_full(text)
    if meant and model.name == meant[0]:
        others = f"; of the same shape: {', '.join(meant[1:])}" if meant[1:] else ""
        assumed.append(Assumption("model", model.name, f"meant by {shown(text)}{others}"))
    if model.shape_of:
        assumed.append(Assumption("model.shape", model.shape_of, model.source))
    elif READ_AS_LLAMA in model.source:
        assumed.append(Assumption("model.shape", "Llama", model.source))
    stated = "nf4" if section.kind == "qlora" else section.base
    copied = model.plain_name and model.stored_as and model.stored_as not in UNPACKED
    if not copied or model.stored_as in INFERENCE_ONLY or stated in {None, model.stored_as}:
        return model
    why = f"method.base {stated} is stated, and {model.name} stores {model.stored_as}"
    assumed.append(Assumption("model", model.plain_name, why))
    return replace(find_model(model.plain_name), shape_of=model.shape_of)


def _narrow_states(model: Model, *, zero_too: bool, alone: bool) -> str:
    """What full fine-tuning of 16-bit weights trains in, and what fp32 would take.

    Source: derived: 4 bytes for weight, gradient and each of AdamW's moments instead of 2.
    """
    more = format_bytes(8.0 * parameter_count(model))
    under = (
        "; DeepSpeed keeps fp32 masters and moments either way, and FSDP does so beside bf16: true,"
        " which no script of autotune's sets there"
    )
    over = "" if alone else f" over all devices{'' if zero_too else under}"
    return (
        "weights, gradients and Adam's moments: the trainer's default with 16-bit weights; in fp32"
        f" (method.base: 32bit) they take {more} more{over}"
    )


def zero_of(section: DeepSpeedSection | None, model: Model) -> ZeroSettings:
    """What the user's own DeepSpeed config says of states and buffers.

    Source: transformers 5.23 integrations/deepspeed.py fills reduce_bucket_size: auto with the
    square of the hidden size; deepspeed 0.18.9 has two buckets under overlap_comm at stage 2.
    """
    if section is None:
        return ZeroSettings()
    stated = section.reduce_bucket_size
    size = model.hidden_size**2 if stated == "auto" else stated
    return ZeroSettings(
        master_bytes=2.0 if section.bf16_master_weights_and_grads else 4.0,
        moment_bytes=2.0 if section.bf16_optimizer_states else 4.0,
        bucket_elements=None if size is None else float(size),
        overlapping=bool(section.overlap_comm),
        whole_gradients=section.stage == 1,
    )


def method_of(
    section: MethodSection,
    model: Model,
    assumed: list[Assumption],
    zero: ZeroSettings | None = None,
    wide: str = "",
    *,
    alone: bool = False,
) -> Method:
    """How to train; for LoRA also which modules carry adapters.

    `wide` says why nothing but fp32 weights can train, and is empty where others can. alone: all
    machines have one device, where nothing is sharded.
    """
    if "kind" not in section.model_fields_set:
        why = "not stated; how most models are fine-tuned"
        assumed.append(Assumption("method.kind", section.kind, why))
    base = base_of(section, model, assumed, wide)
    if section.kind == "full":
        if base == "16bit":
            narrow = zero is not None and zero.master_bytes < ZeroSettings().master_bytes
            states = f"bf16, {'as DeepSpeed keeps masters too' if narrow else MASTERS}"
            states = "bf16 weights and moments" if alone else states
            why = _narrow_states(model, zero_too=narrow, alone=alone)
            assumed.append(Assumption("method.states", states, why))
        return Method("full", base)
    rank = section.rank
    if rank is None:
        rank = RANK
        assumed.append(
            Assumption("method.rank", str(rank), "not stated; usual in published recipes")
        )
    alpha = section.alpha
    if alpha is None:
        alpha = ALPHA_OVER_RANK * rank
        assumed.append(Assumption("method.alpha", f"{alpha:g}", "not stated; twice the rank"))
    if section.dropout is None:
        assumed.append(Assumption("method.dropout", "0", "not stated; PEFT's default"))
    targets = section.targets
    if targets is None:
        targets = ("all-linear",)
        why = "not stated; every linear layer but the output head, as the QLoRA paper does"
        assumed.append(Assumption("method.targets", "all-linear", why))
    return Method(
        "lora", base, rank, alpha, section.dropout or 0.0, resolve_targets(model, targets),
        section.variant or "none", section.double_quant is not False,
        resolve_saved(model, section.modules_to_save or ()),
    )  # fmt: skip


def fp32_needed(jobfile: JobFile, model: Model, devices: Sequence[Device]) -> str:
    """Why the job's weights must be fp32, where its base is not stated; empty if they need not.

    devices: of the job file's machines, in their order.

    Nor where no machine could hold them: then another machine answers, which may have bf16.

    Source: torch.amp's GradScaler steps fp32 parameters only (its unscale_ raises on fp16
    gradients), which is why a Trainer's `fp16: true` keeps fp32 weights; a device without native
    bf16 has nothing narrower that trains all weights.
    """
    method, precision = jobfile.method, jobfile.lock.get("precision")
    if precision in {"fp32", "tf32"}:
        return f"precision {precision} is locked and computes with fp32 weights"
    if method.kind != "full":
        return ""
    step = "fp16's scaled gradients step fp32 weights"
    if precision == "fp16":
        return f"precision fp16 is locked, and {step}"
    pairs = zip(jobfile.hardware, devices, strict=True)
    machines = [(stated, device) for stated, device in pairs if not device.is_cpu]
    named = sorted({stated.gpu for stated, _ in machines})
    if not named or any(device.peak_flop_per_s("bf16") for _, device in machines):
        return ""
    held = max(device.memory_driver_bytes * stated.count for stated, device in machines)
    if _WEIGHT_AND_GRADIENT_BYTES * parameter_count(model) > held:
        return ""
    return f"{' and '.join(named)} {'have' if named[1:] else 'has'} no native bf16, and {step}"


def base_of(
    section: MethodSection, model: Model, assumed: list[Assumption], wide: str = ""
) -> Base:
    """The storage of the base. Raises InputError where the checkpoint cannot be trained on so."""
    stated: Base | None = section.base
    if stated is None and section.kind == "qlora":
        stated = "nf4"
    stored = model.stored_as
    plain = f"name the model it was made from{f', {model.plain_name}' * bool(model.plain_name)}"
    if stored in INFERENCE_ONLY:
        msg = f"{model.name} is {stored.upper()}, a format to run models, and no trainer loads it"
        raise InputError(msg, plain)
    if stored in QUANTISED:
        return _as_stored(stated, section, model, assumed)
    if stored and stored not in UNPACKED:
        msg = f"{model.name} stores its weights quantised by {stored}, which is not described here"
        raise InputError(msg, f"{plain}; method.base: nf4 quantises that")
    if stated is None and wide:
        assumed.append(Assumption("method.base", "32bit", f"not stated; {wide}"))
        return "32bit"
    if stated is None:
        why = "not stated; weights in a 16-bit dtype"
        if stored:
            why = f"not stated; the checkpoint's {stored} weights, unpacked when they are loaded"
        assumed.append(Assumption("method.base", "16bit", why))
        return "16bit"
    return stated


def _as_stored(
    stated: Base | None, section: MethodSection, model: Model, assumed: list[Assumption]
) -> Base:
    stored: Base = "nf4" if model.stored_as == "nf4" else "int8"
    plain = f"name the model it was made from{f', {model.plain_name}' * bool(model.plain_name)}"
    if section.kind == "full":
        msg = f"{model.name} stores its weights as {stored}, and full fine-tuning cannot train them"
        raise InputError(msg, f"{plain}, or train adapters: method.kind: lora")
    if stated is None:
        why = f"not stated; {model.name} stores its weights so"
        assumed.append(Assumption("method.base", stored, why))
        return stored
    if stated != stored:
        msg = f"method.base is {stated}, but {model.name} stores its weights as {stored}"
        raise InputError(msg, f"leave method.base out, or {plain}")
    return stored


# Source: release notes of peft 0.8.0 (rank-stabilised scaling), 0.9.0 (DoRA on linear layers) and
# 0.10.0 (on those of bitsandbytes).
RSLORA_FROM, DORA_FROM, QUANTISED_DORA_FROM = (0, 8), (0, 9), (0, 10)
_PLAIN = "leave method.variant out for plain LoRA"


def check_adapters(job: Job) -> None:
    """Raises InputError for what the software is too old for, has not, or cannot wrap.

    peft raises for DoRA on one parameter of all experts (0.21 tuners/lora/layer.py, ParamWrapper).
    """
    method, peft = job.method, job.software.peft
    if job.software.has_kernels(job.model.kernel_package) and not job.mixer_kernels:
        msg = (
            f"software.mamba_ssm with {method.base} weights: the kernels of {job.model.name} read "
            "out_proj as it is stored, and fail in the first step"
        )
        raise InputError(msg, "--set method.base=16bit; or run without mamba-ssm, which is slower")
    if method.modules_to_save and job.software.own_model:
        msg = f"{job.software.stack} has adapters of its own and trains no module whole beside them"
        raise InputError(msg, "leave method.modules_to_save out")
    if not method.is_lora or method.variant == "none":
        return
    if job.software.own_model and not (job.method.is_dora and job.software.stack == "torchtune"):
        msg = f"{job.software.stack} has adapters of its own and no {method.variant}"
        raise InputError(msg, _PLAIN)
    needed = _needed(job)
    if peft < needed:
        has, wants = (".".join(map(str, version)) for version in (peft, needed))
        what = f"{method.variant} on a base {method.base}" if wants == "0.10" else method.variant
        msg = f"method.variant {method.variant}: peft is {has}, and {what} came with {wants}"
        raise InputError(msg, f"--set software.peft={wants}.0 or later; or {_PLAIN}")
    if not method.is_dora or not experts_fused(job):
        return
    experts = {x.name for x in job.model.matrices if x.part == "expert" and x.adaptable}
    wrapped = [name for name in method.targets if name in experts]
    if wrapped:
        rest = [name for name in method.targets if name not in experts]
        msg = (
            f"method.variant dora: {', '.join(wrapped)} of {job.model.name} is one parameter of "
            "all experts in this transformers, and peft has no DoRA for such"
        )
        keep = f"--set method.targets={','.join(rest)}" if rest else "target other modules"
        raise InputError(msg, f"{keep}; or {_PLAIN}")


def _needed(job: Job) -> tuple[int, int]:
    if not job.method.is_dora:
        return RSLORA_FROM
    return QUANTISED_DORA_FROM if job.method.is_quantised else DORA_FROM


def widen_masters(
    parsed: Parsed, values: dict[str, Any], devices: int, accelerate: Version | None = None
) -> None:
    """FSDP under mixed precision, and DeepSpeed under fp16, train fp32 masters.

    accelerate: the release that the user states; FSDP widened nothing before 0.30.

    Whatever dtype the weights are loaded in. Source: accelerate 1.15 utils/fsdp_utils.py
    fsdp2_prepare_model and accelerator.py (FSDP1): trained parameters become fp32 where
    mixed_precision is not "no"; deepspeed 0.19 runtime/zero/stage_1_and_2.py and stage3.py.
    LLaMA-Factory does so by itself where neither shards: llamafactory 0.9.5 model/adapter.py.
    """
    method, sharding = values.get("method", {}), parsed.meaning.get("sharding")
    half = sharding in ZERO_STAGE and parsed.meaning.get("precision") in {"bf16", "fp16"}
    if method.get("kind") == "lora" and method.get("base") == "32bit" and half:
        method["base"] = "16bit"  # deepspeed 0.19 runtime/engine.py _configure_distributed_model
        why = "DeepSpeed makes 16 bit of every weight, in whatever dtype it was loaded"
        parsed.note("method.base", "16bit", why)
    if method.get("kind") != "full" or method.get("base") not in {None, "16bit"}:
        return
    widens = accelerate is None or accelerate >= FSDP_WIDENS_FROM
    if parsed.mixed and sharding == "fsdp" and widens:
        method["base"] = "32bit"
        why = "FSDP under mixed precision makes fp32 of what is trained, and gathers it in 16 bit"
        parsed.note("method.base", "32bit", why)
    elif keeps_masters(parsed, devices):
        method["base"] = "32bit"
        parsed.note("method.base", "32bit", "DeepSpeed keeps fp32 masters on one device as well")
    elif sharding in ZERO_STAGE and parsed.meaning.get("precision") == "fp16":
        method["base"] = "32bit"
        parsed.note("method.base", "32bit", "DeepSpeed keeps fp32 masters beside fp16 weights")
    elif parsed.upcasts and sharding not in {*ZERO_STAGE, "fsdp"}:
        method["base"] = "32bit"
        why = "LLaMA-Factory makes fp32 of what is trained, without pure_bf16 and DeepSpeed"
        parsed.note("method.base", "32bit", why)
