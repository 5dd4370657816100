"""How the base is stored while it trains: stated, or as the checkpoint of the model stores it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.catalog.models.models import find_model
from autotune.cost.memory.states import experts_fused, quantised, sizes
from autotune.domain.answer.recommendation import Decisive
from autotune.domain.errors import InputError
from autotune.domain.job import Assumption
from autotune.domain.units import format_bytes

if TYPE_CHECKING:
    from autotune.domain.job import Base, Job
    from autotune.domain.model import Model
    from autotune.domain.typed.job import MethodSection

BITSANDBYTES = ("nf4", "int8")  # stored and trained on as they are
# Formats that transformers unpacks to 16 bit when it loads them for training. Source: transformers
# 5.23 utils/quantization_config.py: Mxfp4Config and FineGrainedFP8Config have `dequantize`.
UNPACKED = ("fp8", "mxfp4")
# Formats of engines that only run models: llama.cpp, ExLlama, Apple's MLX.
INFERENCE_ONLY = ("gguf", "exl2", "mlx")


def as_stated(section: MethodSection, model: Model, assumed: list[Assumption]) -> Model:
    """The model that is trained: with the base stated, a quantised copy gives way to its original.

    What the model's name was taken to mean is appended to `assumed`.
    """
    if model.shape_of:
        assumed.append(Assumption("model.shape", model.shape_of, model.source))
    stated = "nf4" if section.kind == "qlora" else section.base
    copied = model.plain_name and model.stored_as and model.stored_as not in UNPACKED
    if not copied or model.stored_as in INFERENCE_ONLY or stated in {None, model.stored_as}:
        return model
    why = f"method.base {stated} is stated, and {model.name} stores {model.stored_as}"
    assumed.append(Assumption("model", model.plain_name, why))
    return replace(find_model(model.plain_name), shape_of=model.shape_of)


def unquantised_note(job: Job) -> tuple[str, ...]:
    """What of a quantised base stays in 16 bit though it was asked for; nothing where all is.

    Source: transformers 5 makes one parameter of a layer's experts, and bitsandbytes replaces
    linear layers alone.
    """
    base, version = job.method.base, ".".join(map(str, job.software.transformers))
    if base not in BITSANDBYTES:
        return ()
    if not quantised(job):
        text = f"transformers {version} leaves {job.model.name} in 16 bit: {base} changes nothing"
        return (Decisive(text),)
    size = sizes(job.model)
    if not experts_fused(job) or not size.fused:
        return ()
    share = (size.linear - size.fused) / size.total
    text = (
        f"{base} holds {100 * share:.0f} % of {job.model.name}: transformers {version} keeps a "
        "layer's experts as one parameter, which bitsandbytes leaves in 16 bit "
        f"({format_bytes(2.0 * size.fused)} of them)"
    )
    return (Decisive(text),)


def base_of(section: MethodSection, model: Model, assumed: list[Assumption]) -> Base:
    """The storage of the base. Raises InputError where the checkpoint cannot be trained on so."""
    stated: Base | None = section.base
    if stated is None and section.kind == "qlora":
        stated = "nf4"
    stored = model.stored_as
    plain = f"name the model it was made from{f', {model.plain_name}' * bool(model.plain_name)}"
    if stored in INFERENCE_ONLY:
        msg = f"{model.name} is {stored.upper()}, a format to run models, and no trainer loads it"
        raise InputError(msg, plain)
    if stored in BITSANDBYTES:
        return _as_stored(stated, section, model, assumed)
    if stored and stored not in UNPACKED:
        msg = f"{model.name} stores its weights quantised by {stored}, which is not described here"
        raise InputError(msg, f"{plain}; method.base: nf4 quantises that")
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
