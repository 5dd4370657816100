"""torchtune: how it is started, its YAML read, and its words for the knobs.

Its development stopped in July 2025: its file is read and patched, none is written.
Source: the command line of torchtune 0.6.1 (`tune run`), recipes/configs, recipes/*_finetune_*.py.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar

from autotune.catalog.models.models import is_known
from autotune.domain.job import Uncounted
from autotune.trainers.contract import Trainer
from autotune.trainers.hf.keys import FULL, read_words
from autotune.trainers.hf.read import HF_DEFAULTS, keep_optimizer
from autotune.trainers.parsed import Keys, Parsed, at_key
from autotune.trainers.schema import leave_rest
from autotune.trainers.words import ON_OFF, Word, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import KnobValue
    from autotune.trainers.contract import Changes, Plan, Target
    from autotune.trainers.words import Words

_OFFLOADING = "enable_activation_offloading"


class Torchtune(Trainer):
    """A recipe's config; the model's component says what is trained and how."""

    name = "torchtune"
    title = "torchtune's YAML"
    file = ""
    known = ((0, 6, 1), (0, 6, 1))
    resumes_with = "resume_from_checkpoint: True"
    logs_state = False
    software: ClassVar[Mapping[str, str]] = {"trainer": "torchtune"}
    evaluation_batch: ClassVar[str] = ""

    def is_file(self, values: Mapping[str, Any]) -> bool:
        """Its model is a component."""
        model = values.get("model")
        return isinstance(model, dict) and "_component_" in model

    def read(self, values: Mapping[str, Any], name: str) -> Parsed:
        """The job that the file states; the model's component says what is trained and how."""
        keys = Keys(_interpolated(values, values), name)
        defaults = {**HF_DEFAULTS, "micro_batch_size": 1}
        parsed = Parsed("torchtune", defaults=defaults)
        parsed.knobs["sharding"] = (
            "fsdp"  # every recipe for several devices: recipes/*_distributed.py
        )
        for knob in WORDS:
            read_words(keys, parsed, knob, own=WORDS)
            if knob in _UNSTATED:
                parsed.knobs.setdefault(knob, _UNSTATED[knob])
        parsed.steps_an_epoch = keys.whole("max_steps_per_epoch", low=1)
        parsed.part("train", epochs=keys.number("epochs") or 1.0)
        _tune_method(keys, parsed)
        if parsed.values["method"]["kind"] == "lora" and parsed.knobs.get("precision") != "fp32":
            parsed.knobs["adapter_dtype"] = "bf16"  # its dtype is that of all weights
        _read_optimizer(keys, parsed)
        if keys.switch(_OFFLOADING):
            parsed.knobs["offload"] = "activations"
        _read_loss(keys, parsed)
        _read_evaluation(keys, parsed)
        length = keys.whole("tokenizer.max_seq_len", low=1)
        of_rows = keys.whole(
            "dataset.max_seq_len", low=1
        )  # of recipes before 0.3, and own data sets
        parsed.part("data", max_length=length or of_rows)
        parsed.saves_per_epoch = 1.0
        parsed.kept |= {"checkpoint_every_steps", "save_total_limit"}
        leave_rest(keys, parsed)
        return parsed

    def spell(self, knob: str, value: KnobValue, target: Target, /) -> Changes | str:
        """The keys that say it; there are few.

        Source: recipes/full_finetune_distributed.py, which raises where activations are offloaded
        and none is recomputed.
        """
        if knob == "precision" and value != "bf16":
            return "torchtune's dtype is that of every weight"
        if knob == "offload" and value in {"none", "activations"}:
            return {_OFFLOADING: value == "activations"}
        said = say(knob, value, WORDS, ()) if knob in WORDS else {}
        if said and None not in said.values():
            if (knob, value) == ("activation_checkpointing", "none") and target.has(_OFFLOADING):
                return {**said, _OFFLOADING: False}
            return said
        return "torchtune's YAML has no key for it"

    def commands(self, plan: Plan, file: str, launcher: str = "") -> list[str]:  # noqa: ARG002 - it has one of its own
        """The recipe for the method and the number of devices."""
        kind, count = "lora" if plan.job.method.is_lora else "full", plan.offer.count
        recipe = f"{kind}_finetune_{'single_device' if count == 1 else 'distributed'}"
        several = f"--nproc_per_node {count} " if count > 1 else ""
        return [f"tune run {several}{recipe} --config {file}"]


WORDS: Words = {
    "micro_batch_size": (Word("batch_size"),),
    "gradient_accumulation_steps": (Word("gradient_accumulation_steps"),),
    "packing": (Word("dataset.packed", ON_OFF),),
    "precision": (Word("dtype", (("bf16", "bf16"), ("fp32", "fp32"))),),
    "compile": (  # it has no modes
        Word("compile", ((True, "default"), (False, "off"), (True, "reduce-overhead"),
                         (True, "max-autotune"))),
    ),
    "activation_checkpointing": (Word("enable_activation_checkpointing", FULL),),
}  # fmt: skip
_UNSTATED: dict[str, KnobValue] = {
    "micro_batch_size": 1, "gradient_accumulation_steps": 1, "packing": "off", "compile": "off",
    "activation_checkpointing": "none",
}  # fmt: skip
_TUNE_MODULES = {"output_proj": "o_proj"}
_MLP = ("gate_proj", "up_proj", "down_proj")
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_DEEPEST, _MOST, _LONGEST = 5, 20, 500  # references to references; in one text; characters


_OPTIMIZERS: Mapping[str, KnobValue] = {  # of its component -> the knob's value
    "torch.optim.AdamW": "adamw_torch", "torch.optim.Adam": "adamw_torch",
    "bitsandbytes.optim.AdamW8bit": "adamw_bnb_8bit", "bitsandbytes.optim.AdamW": "adamw_torch",
    "bitsandbytes.optim.PagedAdamW8bit": "paged_adamw_8bit",
    "torchao.optim.AdamW8bit": "adamw_bnb_8bit",
    "torchao.prototype.low_bit_optim.AdamW8bit": "adamw_bnb_8bit",
}  # fmt: skip


def _read_optimizer(keys: Keys, parsed: Parsed) -> None:
    """The optimizer's component; where it steps in the backward no gradient is kept.

    Source: torchtune 0.6.1 recipes/full_finetune_single_device.py, optimizer_in_bwd.
    """
    component = keys.word("optimizer._component_")
    fused = keys.switch("optimizer.fused")
    if component is not None and component in _OPTIMIZERS:
        value = _OPTIMIZERS[component]
        parsed.knobs["optimizer"] = "adamw_torch_fused" if fused else value
        parsed.kept.add("optimizer")
    elif component is not None:
        keep_optimizer(parsed, "optimizer", component)
    if keys.switch("optimizer_in_bwd"):
        parsed.steps_in_backward = True
        parsed.kept.add("gradient_accumulation_steps")  # the recipe refuses any but one
        why = "one gradient at a time is counted; how fast its many small steps are is not measured"
        parsed.uncounted.append(Uncounted("optimizer_in_bwd", "true", why, 0.10, 0.15))


# A loss of somebody's own may score the logits several times: an assumption.
_OWN_LOSS, _LOSS_SD = (
    "no loss of torchtune's: its work and memory are not in the price",
    (0.15, 0.2),
)


def _read_loss(keys: Keys, parsed: Parsed) -> None:
    component = keys.word("loss._component_") or ""
    if component.endswith(".CrossEntropyLoss"):  # torch's own
        parsed.loss = "upcast"
    if component and not component.startswith(("torchtune.", "torch.")):
        parsed.uncounted.append(Uncounted("loss._component_", component, _OWN_LOSS, *_LOSS_SD))


def _read_evaluation(keys: Keys, parsed: Parsed) -> None:
    """The whole of `dataset_val`, every so many optimizer steps; nothing without that interval.

    Source: torchtune 0.7 recipes/lora_finetune_distributed.py, `validate`.
    """
    every, batch = keys.whole("run_val_every_n_steps", low=1), keys.whole("batch_size_val", low=1)
    if every is not None and keys.at("dataset_val") is not None:
        micro = int(parsed.knobs["micro_batch_size"])
        parsed.part("evaluation", every_steps=every, batch_size=batch or micro)


# A builder of somebody's own may make any model of the checkpoint: an assumption, and wide.
_OWN_MODEL, _MODEL_SD = "no model of torchtune's: priced as the checkpoint's", (0.50, 0.50)


def _tune_method(keys: Keys, parsed: Parsed) -> None:
    component = keys.word("model._component_") or ""
    model = keys.word("checkpointer.checkpoint_dir")
    away = model is not None and not _is_here(_model_in(model))
    if away and (made := built_by(component)):
        parsed.values["model"] = made
        parsed.note("model", made, f"the model that {component} makes; no checkpoint is here")
    elif model is not None:
        parsed.values["model"] = _model_in(model)
        why = f"by the name of the checkpointer's folder, {model}, which is not on this machine"
        if parsed.values["model"] == model:
            why = "the folder of the checkpointer; its config.json says what the model is"
        parsed.note("model", parsed.values["model"], why)
    if component and not component.startswith("torchtune."):
        parsed.uncounted.append(Uncounted("model._component_", component, _OWN_MODEL, *_MODEL_SD))
    builder = component.rpartition(".")[2]
    # The recipe makes every weight in `dtype`. Source: recipes/lora_finetune_single_device.py,
    # training.set_default_dtype around the model's component.
    wide = parsed.knobs.get("precision") == "fp32"
    parsed.kept |= {"precision"} if wide else set()
    if not builder.startswith(("lora_", "qlora_")):
        parsed.part("method", kind="full", base="32bit" if wide else None)
        return
    plain = "32bit" if wide else "16bit"
    targets = list(keys.words("model.lora_attn_modules") or [])
    if keys.switch("model.apply_lora_to_mlp"):
        targets += list(_MLP)
    if keys.switch("model.apply_lora_to_output"):
        parsed.note("model.apply_lora_to_output", "true", "an adapter on the head is not counted")
    parsed.part(
        "method", kind="lora", base="nf4" if builder.startswith("qlora_") else plain,
        rank=keys.whole("model.lora_rank", low=1), alpha=keys.number("model.lora_alpha"),
        dropout=keys.number("model.lora_dropout"),
        targets=[_TUNE_MODULES.get(name, name) for name in targets] or None,
        variant="dora" if keys.switch("model.use_dora") else None,
    )  # fmt: skip


_METAS_OWN = "original"  # where Meta's repositories have their own format, inside of the checkpoint


def _model_in(folder: str) -> str:
    """What the folder of a checkpoint is called after, where it is on another machine."""
    path = PurePosixPath(folder)
    name = path.parent.name if path.name == _METAS_OWN else path.name
    known = next((each for each in (name, name.removesuffix("-Instruct")) if is_known(each)), None)
    return folder if known is None or _is_here(folder) else known


def _is_here(folder: str) -> bool:
    return is_known(folder) or Path(folder[:1000]).is_dir()


# Models that builders of torchtune make, by the family in their names; {} is the size.
# Source: torchtune 0.6.1 models/*/_model_builders.py.
_FAMILIES = {
    "code_llama2": "CodeLlama-{}-hf", "llama2": "Llama-2-{}-hf", "llama3_1": "Llama-3.1-{}",
    "llama3_2": "Llama-3.2-{}", "llama3_3": "Llama-3.3-{}-Instruct", "llama3": "Meta-Llama-3-{}",
    "mistral": "Mistral-{}-v0.1", "gemma2": "gemma-2-{}", "gemma": "gemma-{}",
    "qwen2_5": "Qwen2.5-{}", "qwen2": "Qwen2-{}", "qwen3": "Qwen3-{}",
    "phi3_mini": "Phi-3-mini-4k-instruct", "phi4_14b": "phi-4",
}  # fmt: skip


def built_by(component: str) -> str:
    """The model that a builder of torchtune's makes, as the catalogue has it; empty: not known."""
    package, _, builder = component.rpartition(".")
    if not package.startswith("torchtune.models."):
        return ""
    plain = re.sub(r"^q?lora_", "", builder)
    for family, named in _FAMILIES.items():
        size = re.fullmatch(rf"{family}_(\d+(?:_\d+)?b)(?:_base|_instruct)?", plain)
        said = size.group(1).replace("_", ".") if size else ""
        name = named.format(said if "gemma" in family else said.upper())
        if (size or plain == family) and is_known(name):
            return name
    return ""


def _interpolated(value: Any, root: Mapping[str, Any], depth: int = 0) -> Any:  # noqa: ANN401
    """The value with `${key}` replaced as OmegaConf does; what is no key stays as it is."""
    if isinstance(value, dict):
        return {key: _interpolated(inner, root, depth) for key, inner in value.items()}
    if not isinstance(value, str) or "${" not in value or depth > _DEEPEST:
        return value
    whole = _REFERENCE.fullmatch(value)
    if whole is not None:
        found = at_key(root, whole.group(1))
        return value if not _is_short(found) else _interpolated(found, root, depth + 1)

    def text(match: re.Match[str]) -> str:
        found = at_key(root, match.group(1))
        return str(found) if _is_short(found) else match.group()

    return _interpolated(_REFERENCE.sub(text, value, _MOST), root, depth + 1)


def _is_short(found: object) -> bool:
    """A plain value that may be put in: a few bytes must not stand for gigabytes."""
    return isinstance(found, str | int | float) and len(str(found)[:_LONGEST]) < _LONGEST
