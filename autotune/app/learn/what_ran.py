"""Which model a training had, its method and its knobs, in the columns of the public table.

A name of a folder on the user's disk is told to nobody: the model's shape is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from autotune.catalog.models.derived import derived_of
from autotune.catalog.models.hf_config import model_from_config
from autotune.catalog.models.models import find_model, is_known, load_models
from autotune.cost.parameters import parameter_count, saveable
from autotune.domain.errors import InputError
from autotune.domain.typed.values import MAX_RANK
from autotune.evidence.cases import Refused
from autotune.evidence.learned.run import UNSHAPED
from autotune.evidence.record.row import SAVES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.app.learn.found import Found
    from autotune.domain.model import Model
    from autotune.trainers.parsed import Parsed


_SIZES = (
    "model_type", "architectures", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "hidden_act",
    "max_position_embeddings", "tie_word_embeddings", "attention_bias", "mlp_bias", "n_embd",
    "n_layer", "n_head", "n_inner", "n_positions", "num_local_experts", "num_experts_per_tok",
    "num_experts", "moe_intermediate_size", "sliding_window", "use_sliding_window",
    "attn_logit_softcapping", "final_logit_softcapping", "hidden_activation", "activation_function",
    "partial_rotary_factor", "rotary_pct", "use_parallel_residual", "new_decoder_architecture",
    "multi_query", "parallel_attn", "alibi", "bias", "decoder_sparse_step", "norm_topk_prob",
    "shared_expert_intermediate_size", "first_k_dense_replace", "n_routed_experts",
    "n_shared_experts", "query_pre_attn_scalar",
)  # fmt: skip


def without_place(message: str) -> str:
    """A message without the paths of the user's disk that it names."""
    return re.sub(r"\S*/\S*", "...", message)[:160]


def model_of(found: Found) -> tuple[Model, dict[str, Any]]:
    """The model under the name that may be told, and its shape where no catalogue has it.

    A name of a folder on the user's disk is told to nobody: the shape is.
    """
    shape = {key: found.model[key] for key in _SIZES if found.model.get(key) is not None}
    name = _bare(found.model_name)
    if name and is_known(name):
        return find_model(name), {}
    if "hidden_size" in shape or "n_embd" in shape:
        try:
            plain = f"{shape.get('model_type', 'decoder')}-of-its-own-shape"
            model = model_from_config(shape, plain, "past run")
        except InputError as error:
            msg = f"model outside the cost model: {without_place(error.message)}"
            raise Refused(msg) from None
        known = next((own for own in load_models().values() if _alike(own, model)), None)
        return (known, {}) if known else (model, shape)
    if name and (derived := _derived(name)) is not None:
        return derived, {}
    raise Refused(UNSHAPED)


def _alike(one: Model, other: Model) -> bool:
    return one.fingerprint == other.fingerprint


def _derived(name: str) -> Model | None:
    """A fine-tune or copy whose name says whose shape it has; never asked for at the hub."""
    found = derived_of(name, lambda text: text if is_known(text) else None)
    return find_model(found.base) if found is not None and is_known(found.base) else None


def _bare(name: str) -> str:
    """A hub id or a catalogue's name; of a path, its last part, which may be one."""
    parts = name.rstrip("/").replace("\\", "/").split("/")
    hub = len(parts) == len(("organisation", "name")) and parts[0] not in {"", ".", "~", ".."}
    return "/".join(parts) if hub else parts[-1]


def _with_saved(found: Found, stated: Mapping[str, Any], model: Model) -> str:
    """The task of a run that trains the embedding or the head whole; empty where none does."""
    named = found.adapter.get("modules_to_save") or stated.get("modules_to_save") or ()
    listed = named if isinstance(named, list | tuple | set) else [named]
    names = {str(each).rpartition(".")[2] for each in listed}
    embedding, *heads = saveable(model)
    places = tuple(place for place, own in enumerate(({embedding}, {*heads})) if own & names)
    return next((task for task, own in SAVES.items() if own == places), "")


def _rank(stated: object) -> int:
    """The rank of the adapters; 0 where none is stated, or none that there can be."""
    try:
        rank = int(str(stated or 0))
    except ValueError:
        return 0
    return rank if 0 < rank <= MAX_RANK else 0


def cells_of(found: Found, parsed: Parsed, model: Model) -> dict[str, str]:
    """Method, precision, knobs: the columns that say what ran."""
    arguments, knobs = found.arguments, parsed.meaning
    stated = parsed.values.get("method", {})
    rank = _rank(found.adapter.get("r") or stated.get("rank"))
    bases = {"nf4": "nf4", "int8": "int8"}
    quant = bases.get(str(stated.get("base"))) or _quantised(found)
    lora = bool(rank)
    targets = found.adapter.get("target_modules") or stated.get("targets")
    if isinstance(targets, str):
        targets = [targets]
    listed = targets if isinstance(targets, list | tuple | set) else []
    names = {str(each).rpartition(".")[2] for each in listed}  # PEFT may name them in each layer
    base = stated.get("base") or _stored(found)
    precision = str(knobs.get("precision") or "fp32")
    if precision in {"bf16", "fp16"} and not lora and base == "32bit":
        precision = "mixed"
    checkpointing = parsed.knobs.get("activation_checkpointing") or _unstated(found, parsed)
    dora = found.adapter.get("use_dora") is True
    objective = _objective(arguments)
    task = ("qlora" if quant else "lora") if lora else "full"
    task = _with_saved(found, stated, model) or task if lora else task
    return {
        "task": f"{task} ({objective})" if objective else f"{task} (dora)" if dora else task,
        "lora_r": str(rank) if lora else "",
        "target_modules": " ".join(sorted(names)) if lora else "",
        "precision": precision,
        "quant": quant or "none",
        "optimizer": str(arguments.get("optim") or knobs.get("optimizer") or ""),
        "n_params": str(parameter_count(model)),
        "packing": "yes" if knobs.get("packing") == "on" else "no",
        "grad_ckpt": str(checkpointing),
        "attn": _attention(found, parsed),
        "compile": "yes" if knobs.get("compile", "off") != "off" else "no",
        "other_kernels": "" if knobs.get("kernels", "none") == "none" else str(knobs["kernels"]),
    }


def _unstated(found: Found, parsed: Parsed) -> object:
    """Activation checkpointing where nobody states it: the trainer's default, if all are read."""
    known = len(found.arguments) > 20 or found.trainer not in {"hf", "trl"}  # noqa: PLR2004
    return parsed.defaults.get("activation_checkpointing", "") if known else ""


def _quantised(found: Found) -> str:
    held = found.model.get("quantization_config") or found.arguments.get("quantization_config")
    held = held if isinstance(held, dict) else found.arguments
    if held.get("load_in_4bit") is True or held.get("_load_in_4bit") is True:
        return "nf4"
    if held.get("load_in_8bit") is True or held.get("_load_in_8bit") is True:
        return "int8"
    method = held.get("quant_method")
    return str(method) if isinstance(method, str) and method != "bitsandbytes" else ""


def _stored(found: Found) -> str:
    text = found.model.get("torch_dtype") or found.model.get("dtype")
    wide = isinstance(text, str) and text.removeprefix("torch.") in {"float32", "fp32"}
    return "32bit" if wide else ""


def _objective(arguments: Mapping[str, Any]) -> str:
    """Another objective than the next token's, by the arguments that only its trainer has."""
    if "precompute_ref_log_probs" in arguments or "rpo_alpha" in arguments:
        return "dpo"
    if "num_generations" in arguments or "max_completion_length" in arguments:
        return "generation"
    return ""


def _attention(found: Found, parsed: Parsed) -> str:
    stated = parsed.knobs.get("attention") or found.model.get("_attn_implementation")
    stated = stated or found.model.get("attn_implementation")
    if found.model.get("_flash_attn_2_enabled") is True:
        return "flash_attention_2"
    return str(stated) if isinstance(stated, str) else "unknown"


def parallelism_of(found: Found, parsed: Parsed, count: int) -> str:
    """How the devices share the work, in the table's words."""
    zero = _zero_stage(found.arguments.get("deepspeed"))
    if count == 1 and not zero:
        return "none"
    if zero:
        return f"zero{zero}" if zero > 1 else "ddp"
    knob = parsed.knobs.get("sharding")
    return str(knob) if knob and knob != "none" else "ddp" if count > 1 else "none"


def _zero_stage(config: object) -> int:
    """The stage of a DeepSpeed config, inside the arguments or by its file's name; 0: none."""
    if isinstance(config, dict):
        zero = config.get("zero_optimization")
        stage = zero.get("stage") if isinstance(zero, dict) else None
        return int(stage) if isinstance(stage, int) else 0
    if isinstance(config, str) and config:
        found = re.search(
            r"z(?:ero)?[_-]?(?:stage)?[_-]?([123])", config.rpartition("/")[2].casefold()
        )
        if found is None:
            msg = "trained by DeepSpeed, of a stage that is stated nowhere"
            raise Refused(msg)
        return int(found[1])
    return 0
