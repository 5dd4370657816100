"""Unsloth: a script with its calls, FastLanguageModel and an SFTConfig, read and written.

Every argument is written out, so that it can be changed. What is written here runs on one device; a
user's own script starts on several by `accelerate launch`. Its kernels replace the attention, the
recomputing and the compiling that are knobs elsewhere.
Source: unsloth 2026.10.9, models/loader.py and models/llama.py; Unsloth's documentation,
"Multi-GPU Fine-tuning with Unsloth".
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from autotune.catalog.models.models import is_known
from autotune.domain.errors import InputError
from autotune.domain.job import QUANTISED, Uncounted
from autotune.trainers.contract import Export, Trainer
from autotune.trainers.hf.adapter import (
    all_linear,
    fill_adapter,
    read_base,
    read_saved,
    read_variant,
    variant_keys,
)
from autotune.trainers.hf.arguments import training_arguments
from autotune.trainers.hf.evaluation import HELD_OUT, read_held_out
from autotune.trainers.hf.keys import spell_argument
from autotune.trainers.hf.notes import trainer_notes
from autotune.trainers.hf.precision import weights_dtype
from autotune.trainers.hf.read import (
    EPOCHS,
    TRL_DEFAULTS,
    read_batch,
    read_length_of_run,
    read_model,
    read_padding,
    read_precision,
    read_shared,
)
from autotune.trainers.hf.trl import LEARNING_RATE
from autotune.trainers.launch.run_script import file_and_start
from autotune.trainers.parsed import Keys, Parsed
from autotune.trainers.schema import leave_rest, schema_of
from autotune.trainers.versions import show
from autotune.trainers.yaml_file import plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import KnobValue
    from autotune.domain.job import Job
    from autotune.trainers.contract import Changes, Plan, Target
    from autotune.trainers.versions import Version


# How far a run without the adapters that are counted, or with others, may lie: an assumption.
_UNADAPTED_SD = (0.25, 0.40)


class Unsloth(Trainer):
    """unsloth_train.py and run.sh; a version after @ is Unsloth's."""

    name = "unsloth"
    title = "Unsloth's calls"
    file = "unsloth_train.py"
    known = ((2026, 10), (2026, 10))
    launched = True
    resumes_with = "trainer.train(resume_from_checkpoint=True)"
    runs_on = ("transformers", "trl")
    software: ClassVar[Mapping[str, str]] = {"kernels": "unsloth"}

    def read(self, values: Mapping[str, Any], name: str) -> Parsed:
        """The job that the calls state; a base in 4 bits unless they say otherwise."""
        keys = Keys(values, name)
        defaults = {**TRL_DEFAULTS, "precision": "bf16", "activation_checkpointing": "none"}
        parsed = Parsed("unsloth", defaults=defaults)
        del parsed.defaults["precision"]
        read_model(keys, parsed)
        _plain_name(parsed)
        read_batch(keys, parsed)
        read_length_of_run(keys, parsed, EPOCHS)
        _read_method(keys, parsed)
        length = _read_length(keys)
        if length is None:
            length = 2048
            parsed.note("data.max_length", length, "not in the file; from_pretrained's default")
        parsed.part("data", max_length=length, padding=read_padding(keys))
        read_precision(keys, parsed)
        recompute = keys.get("use_gradient_checkpointing")
        if recompute is None:
            recompute = schema_of("unsloth").default("use_gradient_checkpointing")
        if recompute is not False:
            parsed.knobs["activation_checkpointing"] = "full"
            # Source: unsloth models/loader.py and llama.py: "unsloth" alone is its own code.
            parsed.keeps_inputs = recompute is True
            why = "Unsloth recomputes with its own code, from layer inputs in the host's memory"
            why = "recomputed as transformers does it" if parsed.keeps_inputs else why
            parsed.keep("activation_checkpointing", "use_gradient_checkpointing", recompute, why)
        read_held_out(keys, parsed, *HELD_OUT)
        read_shared(keys, parsed)
        packing = keys.switch("packing")
        parsed.knobs["packing"] = "on" if packing else "off"
        parsed.kept |= {"attention", "compile", "activation_checkpointing"}
        leave_rest(keys, parsed)
        return parsed

    def spell(self, knob: str, value: KnobValue, target: Target, /) -> Changes | str:
        """The arguments that say it; kernels are Unsloth's own."""
        if knob in {"kernels", "offload"} and value != "none":
            return "it has its own way"
        return spell_argument(knob, value, target)

    def commands(self, plan: Plan, file: str, launcher: str = "") -> list[str]:  # noqa: ARG002 - it runs on one device
        """The script by itself."""
        return [f"python {file}"]

    def plan_versions(self, job: Job, version: Version | None) -> tuple[Version, Version | None]:
        """The newest transformers and trl that Unsloth allows."""
        self.version_of(job, version)
        return RUNS

    def export(self, plan: Plan) -> Export:
        """The script and run.sh, and what Unsloth does otherwise."""
        if plan.offer.count > 1 or plan.on_cpu:
            msg = f"Unsloth's calls run on one GPU, and the pick is {plan.offer.label}"
            raise InputError(msg, "export trl, or tune with one GPU")
        if plan.config.precision == "fp8":
            msg = "Unsloth's calls cannot say precision fp8"
            raise InputError(msg, "export hf or trl, or take bf16")
        arguments = {
            key: value
            for key, value in training_arguments(plan, LEARNING_RATE).items()
            if key not in _OWN
        }
        arguments |= {
            "max_length": plan.job.max_length, "packing": plan.config.packing == "on",
            "dataset_text_field": "text",
        }  # fmt: skip
        if plan.job.padding == "max_length" and plan.config.packing == "off":
            arguments["pad_to_multiple_of"] = plan.job.max_length
        script = _SCRIPT.format(
            load=_call(_load(plan), ""), adapters=_adapters(plan),
            data=json.dumps(plan.job.dataset_path or "path/to/rows.jsonl"),
            arguments=_call(arguments, "    "), output=json.dumps(f"{plan.out_dir}/final"),
            resume=_resume(plan) if plan.may_be_interrupted else "",
        )  # fmt: skip
        return Export(file_and_start(self, plan, script), tuple(_notes(plan)))


def _read_length(keys: Keys) -> int | None:
    """Where rows are cut: of pairs by their trainer's own length, else by from_pretrained's."""
    pairs = keys.get("beta") is not None or keys.get("max_prompt_length") is not None
    own = keys.whole("max_length", low=1) if pairs else None
    keys.get("max_seq_length") if own else None
    return own or keys.whole("max_seq_length", "max_length", low=1)


def _plain_name(parsed: Parsed) -> None:
    """Unsloth's copy of a model, perhaps in 4 bits, is named after the one it was made from."""
    name = str(parsed.values.get("model", ""))
    plain = name.removesuffix("-bnb-4bit").removesuffix("-unsloth")
    short = plain.removeprefix("unsloth/")
    if short != plain and not is_known(plain) and is_known(short):
        plain = short
    if plain != name:
        parsed.values["model"] = plain
        parsed.note("model", plain, f"the model that {name} is a copy of")


def _read_method(keys: Keys, parsed: Parsed) -> None:
    if keys.switch("full_finetuning"):
        parsed.part("method", kind="full")
        return
    if not keys.get("use_peft") and keys.at("lora_r") is None:  # get_peft_model, LoraConfig
        why = "called nowhere here: priced with Unsloth's own size; in 4 bits nothing else trains"
        parsed.uncounted.append(Uncounted("get_peft_model", "not called", why, *_UNADAPTED_SD))
    four, eight = keys.switch("load_in_4bit"), keys.switch("load_in_8bit")
    if four is None and not eight and not keys.switch("load_in_16bit"):
        parsed.note("load_in_4bit", "true", "not in the file; Unsloth's default")
    stated = read_base(keys)
    default = "nf4" if four is None and not eight and not keys.switch("load_in_16bit") else "16bit"
    targets, saved = _apart(keys.words("lora_target_modules"), read_saved(keys, "modules_to_save"))
    sizes = {
        "rank": keys.whole("lora_r", low=1), "alpha": keys.number("lora_alpha"),
        "dropout": keys.number("lora_dropout"),
    }  # fmt: skip
    fill_adapter(parsed, sizes)
    base = stated if stated in QUANTISED else default
    variant = read_variant(keys, parsed)
    parsed.part(
        "method", kind="lora", base=base, **sizes, targets=all_linear(targets), variant=variant,
        modules_to_save=saved,
    )  # fmt: skip


_WHOLE = ("embed_tokens", "lm_head")


def _apart(
    targets: list[str] | None, saved: list[str] | None
) -> tuple[list[str] | None, list[str] | None]:
    """The targets that are adapted, and the modules that train whole.

    Unsloth trains an embedding and a head whole that are among the targets. Source: unsloth
    models/llama.py, get_peft_model (train_embed_tokens, train_lm_head).
    """
    whole = [name for name in targets or () if name in _WHOLE]
    adapted = [name for name in targets or () if name not in _WHOLE]
    return adapted or None, list(dict.fromkeys([*whole, *(saved or ())])) or None


RUNS: tuple[Version, Version] = ((5, 17, 0), (1, 15, 0))  # newest transformers, trl allowed
_OWN = (  # arguments of what Unsloth does by itself
    "torch_compile", "torch_compile_mode", "gradient_checkpointing", "activation_checkpointing",
    "gradient_checkpointing_kwargs", "activation_checkpointing_kwargs", "use_liger_kernel",
)  # fmt: skip
_SCRIPT = '''"""Fine-tune with Unsloth. Start it with run.sh."""

from unsloth import FastLanguageModel  # before trl and transformers, which it changes
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

model, tokenizer = FastLanguageModel.from_pretrained({load})
{adapters}trainer = SFTTrainer(
    model=model,
    processing_class=tokenizer,
    train_dataset=load_dataset("json", data_files={data}, split="train"),
    args=SFTConfig({arguments}),
)
trainer.train({resume})
trainer.save_model({output})
'''


def _resume(plan: Plan) -> str:
    """True is refused where there is no checkpoint yet."""
    found = f'any(__import__("pathlib").Path({json.dumps(plan.out_dir)}).glob("checkpoint-*"))'
    return f"resume_from_checkpoint={found}"


def _load(plan: Plan) -> dict[str, Any]:
    method = plan.job.method
    return {
        "model_name": plan.model, "max_seq_length": plan.job.max_length,
        "dtype": weights_dtype(plan), "load_in_4bit": method.base == "nf4",
        "load_in_8bit": method.base == "int8", "full_finetuning": method.kind == "full",
    }  # fmt: skip


def _adapters(plan: Plan) -> str:
    method = plan.job.method
    recompute = plan.config.activation_checkpointing == "full"
    if not method.is_lora:
        return ""
    arguments = {
        "r": method.rank, "lora_alpha": plain(method.alpha), "lora_dropout": method.dropout,
        "target_modules": list(method.targets), "use_gradient_checkpointing": recompute,
        **variant_keys(method),
    }  # fmt: skip
    if method.modules_to_save:
        arguments["modules_to_save"] = list(method.modules_to_save)
    return f"model = FastLanguageModel.get_peft_model(\n    model,{_call(arguments, '')})\n"


def _call(arguments: dict[str, Any], indent: str) -> str:
    """Keyword arguments, one a line."""
    rows = "".join(f"{indent}    {key}={_source(value)},\n" for key, value in arguments.items())
    return f"\n{rows}{indent}"


def _source(value: object) -> str:
    return json.dumps(value) if isinstance(value, str | list) else repr(value)


def _notes(plan: Plan) -> list[str]:
    config, notes = plan.config, trainer_notes(plan, "unsloth", evaluates=True, pads=True)
    notes.append(f"the spelling is that of transformers {show(RUNS[0])}")
    notes += [
        f"Unsloth's calls cannot say {knob} {value}: it has its own way"
        for knob, value, default in (
            ("attention", config.attention, "sdpa"), ("compile", config.compile, "off"),
            ("adapter_dtype", config.adapter_dtype, "fp32"), ("kernels", config.kernels, "none"),
            ("offload", config.offload, "none"),
        )
        if value != default
    ]  # fmt: skip
    if plan.job.method.base == "nf4" and not plan.job.method.double_quant:
        notes.append("Unsloth quantises the scales of 4-bit blocks too: expect less memory")
    if plan.job.software.kernels != "unsloth":
        notes.append("the plan was made without Unsloth's kernels: expect less time and memory")
    if plan.job.evaluation is not None:
        notes.append("the script evaluates nothing until you add eval_dataset")
    return notes
