"""LLaMA-Factory: how it is started, its YAML read and written, its keys beside TrainingArguments'.

Source: the command line of llamafactory 0.9.5 (launcher.py); hparams/{model,data,finetuning,
training}_args.py of the tags 0.9.4 and 0.9.5; what it runs on: pyproject.toml of these tags.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.cost.time.data import MOST_PROCESSES
from autotune.domain.config import ZERO_STAGE
from autotune.domain.errors import InputError
from autotune.domain.job import Uncounted
from autotune.domain.typed.values import shown
from autotune.trainers import words
from autotune.trainers.contract import Export, Trainer
from autotune.trainers.hf.adapter import (
    all_linear,
    base_of_adapter,
    read_base,
    read_saved,
    read_variant,
    variant_keys,
)
from autotune.trainers.hf.evaluation import read_held_out, read_rows_at_most
from autotune.trainers.hf.keys import FULL, LIGER, read_words, spell_argument
from autotune.trainers.hf.launch import accelerate_yaml
from autotune.trainers.hf.notes import trainer_notes
from autotune.trainers.hf.read import (
    EPOCHS,
    HF_DEFAULTS,
    read_batch,
    read_length_of_run,
    read_model,
    read_precision,
    read_shared,
)
from autotune.trainers.launch.run_script import file_and_start
from autotune.trainers.llamafactory.v1 import is_v1, read_v1, spell_v1
from autotune.trainers.parsed import Keys, Parsed
from autotune.trainers.schema import leave_rest
from autotune.trainers.versions import JIT_CHECKPOINT
from autotune.trainers.words import Word
from autotune.trainers.yaml_file import (
    SOME,
    as_yaml,
    deepspeed_file,
    length_of_run,
    plain,
    refuse_wide_base,
    with_knobs,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import KnobValue
    from autotune.domain.job import Job
    from autotune.trainers.contract import Changes, Plan, Target
    from autotune.trainers.versions import Version
    from autotune.trainers.words import Words


class LlamaFactory(Trainer):
    """llamafactory.yaml and the command that starts it; a version after @ is LLaMA-Factory's."""

    name = "llamafactory"
    title = "LLaMA-Factory's YAML"
    file = "llamafactory.yaml"
    own_keys = frozenset({
        "finetuning_type", "cutoff_len", "stage", "lora_target",
        "quantization_bit", "dataset_dir", "flash_attn", "overwrite_cache", "pure_bf16",
        "disable_gradient_checkpointing", "neat_packing",
    })  # fmt: skip
    known = ((0, 9, 4), (0, 9, 5))
    launched = True
    process_per_device = "llamafactory-cli"
    runs_on = ("transformers",)  # it has a loss of its own, whatever its TRL

    def is_file(self, values: Mapping[str, Any]) -> bool:
        """Its newer format shares keys with axolotl's."""
        return is_v1(values)

    def read(self, values: Mapping[str, Any], name: str) -> Parsed:
        """The job that the file states."""
        return read_v1(values, name) if is_v1(values) else read_file(values, name)

    def spell(self, knob: str, value: KnobValue, target: Target, /) -> Changes | str:
        """The keys that say it."""
        return spell_v1(knob, value) if is_v1(target.values) else spell(knob, value, target)

    def commands(self, plan: Plan, file: str, launcher: str = "") -> list[str]:
        """Its own launcher, or accelerate's where it shards by FSDP."""
        if plan.config.sharding == "fsdp":
            return [f"accelerate launch {launcher}-m llamafactory.launcher {file}"]
        return [f"llamafactory-cli train {file}"]

    def plan_versions(self, job: Job, version: Version | None) -> tuple[Version, Version | None]:
        """The newest transformers that LLaMA-Factory allows."""
        return RUNS[self.version_of(job, version)[:3]], job.software.trl

    def export(self, plan: Plan) -> Export:
        """The YAML, the launcher's config where it shards, run.sh, and what cannot be said."""
        refuse_wide_base(plan, self.name, trains_wide=True)
        if plan.config.precision == "fp8" and plan.job.method.base == "16bit":
            msg = "LLaMA-Factory trains fp32 weights beside fp8, and 16-bit ones were priced"
            raise InputError(msg, "export hf or trl, or take bf16")
        pure = (plan.config.precision, plan.config.adapter_dtype) == ("bf16", "bf16")
        beside = {"sharding", "adapter_dtype"} if pure else {"sharding"}  # pure_bf16 says both
        values, notes = with_knobs(_contract(plan), plan, self, beside=beside)
        _say_dtypes(plan, values)
        files, launcher = deepspeed_file(plan, values), ""
        if plan.config.sharding == "fsdp":
            files = {_LAUNCHER_FILE: accelerate_yaml(plan)}
            launcher = f"--config_file {_LAUNCHER_FILE} "
        if plan.offer.spot and plan.transformers >= JIT_CHECKPOINT:
            values["enable_jit_checkpoint"] = True
        files |= file_and_start(self, plan, as_yaml(values), launcher)
        notes.append("template: default must be the one of your model")
        notes += trainer_notes(plan, self.name, evaluates=False, pads=False)
        return Export(files, tuple(notes))


WORDS: Words = {
    "attention": (
        Word("flash_attn",
             (("disabled", "eager"), ("sdpa", "sdpa"), ("fa2", "flash_attention_2"))),
    ),
    "activation_checkpointing": (
        Word("disable_gradient_checkpointing", ((True, "none"), (False, "full"))),
        Word("gradient_checkpointing", FULL),
    ),
    "kernels": (
        Word("enable_liger_kernel", LIGER, unsaid="none"),
        Word("use_liger_kernel", LIGER, unsaid="none"),
    ),
}  # fmt: skip


def spell(knob: str, value: KnobValue, target: Target) -> Changes | str:
    """The keys that say it; most are TrainingArguments'."""
    said = words.spell(knob, value, WORDS, target) if knob in WORDS else None
    if said is not None:
        return said
    if knob == "attention":
        return "its flash_attn takes fa2, sdpa and disabled"
    if knob == "precision" and value == "fp8":
        return {**target.gone("fp16", "pure_bf16"), "bf16": True, "fp8": True}
    if knob == "precision" and target.has("pure_bf16") and value == "bf16":
        return {}
    return spell_argument(knob, value, target)


_STAGES = {"pt", "sft", "rm", "ppo", "dpo", "kto", "orpo", "simpo"}  # two of versions before 0.8
_CUTOFF, _RANK = 2048, 8  # cutoff_len and lora_rank where the file states none


def read_file(values: Mapping[str, Any], name: str) -> Parsed:
    """The job that the file states. Raises InputError for a value of the wrong kind."""
    keys = Keys(values, name)
    parsed = Parsed("llamafactory", defaults={**HF_DEFAULTS, "activation_checkpointing": "full"})
    stage = str(keys.get("stage") or "sft").casefold()
    if stage not in _STAGES:
        msg = f"{name}: stage is {shown(stage)}; LLaMA-Factory has {', '.join(sorted(_STAGES))}"
        raise InputError(msg, "name the stage that the training has")
    read_model(keys, parsed)
    read_batch(keys, parsed)
    read_length_of_run(keys, parsed, EPOCHS)
    _read_method(keys, parsed)
    _read_data(keys, parsed, stage)
    read_precision(keys, parsed)
    if keys.switch("pure_bf16") and parsed.values.get("method", {}).get("kind") == "lora":
        parsed.knobs["adapter_dtype"] = "bf16"  # it leaves fp32 copies out: model/adapter.py
    _read_attention(keys, parsed)
    read_shared(keys, parsed)
    read_words(keys, parsed, "activation_checkpointing", own=WORDS)
    parsed.reentrant = keys.switch("use_reentrant_gc")
    read_held_out(keys, parsed, "val_size")
    read_rows_at_most(keys, parsed, "max_samples")
    workers = keys.whole("ray_num_workers", low=1)
    if workers is not None and workers > 1:
        parsed.devices = workers  # Ray starts one process a worker, each on its own device
    if keys.switch("do_eval"):  # once, after the training
        parsed.values.setdefault("evaluation", {})
    leave_rest(keys, parsed)
    return parsed


KIND = "finetuning_type"
# Ways to train that are priced as another, which --method says: what they do, and how far the run
# may lie from it. Assumptions: freezing takes at most what full fine-tuning does, OFT what LoRA
# does.
UNPRICED: Mapping[str, tuple[str, float, float]] = {
    "freeze": (
        "trains whole layers alone, the last two unless stated: --method full is an upper bound",
        0.35, 0.40,
    ),
    "oft": (
        "trains a rotation of every matrix: about what --method lora takes, and somewhat slower",
        0.30, 0.20,
    ),
}  # fmt: skip


def _read_method(keys: Keys, parsed: Parsed) -> None:
    kind = keys.word(KIND) or "lora"
    base = read_base(keys, own=True)
    if base in {None, "16bit"} and keys.switch("use_qlora"):  # LLamaTuner's
        base = "nf4"
    # argparse takes the beginning of a flag for the flag
    least = 1 if kind == "lora" else 0  # left over where no adapter is trained
    rank, alpha = keys.whole("lora_rank", "lora_r", low=least), keys.number("lora_alpha")
    dropout, targets = keys.number("lora_dropout"), keys.words("lora_target")
    variant = read_variant(keys, parsed)
    scales = keys.switch("double_quantization")  # true (hparams/model_args.py)
    if kind == "full":
        parsed.part("method", kind="full", base=base)
        parsed.upcasts = not any(keys.switch(name) for name in ("pure_bf16", "use_badam"))
        return
    if kind in UNPRICED:
        for name in ("freeze_trainable_layers", "freeze_trainable_modules"):
            keys.get(name)
        trains, *how_far = UNPRICED[kind]
        parsed.part("method", base=base)
        parsed.uncounted.append(Uncounted(KIND, kind, trains, *how_far))
        return
    if kind != "lora":
        msg = f"{keys.name}: finetuning_type is {shown(kind)}; lora and full can be priced"
        raise InputError(msg, f"read are lora, full, {' and '.join(UNPRICED)}")
    if rank is None:
        parsed.note("method.rank", _RANK, "lora_rank is not in the file; LLaMA-Factory's default")
    rank = rank or _RANK
    parsed.part(
        "method", kind="lora", base=base_of_adapter(base, parsed), rank=rank,
        alpha=alpha or 2.0 * rank, dropout=dropout or 0.0,
        targets=all_linear(targets or ["all"]), variant=variant,
        modules_to_save=read_saved(keys, "additional_target"),
        double_quant=scales if base == "nf4" else None,
    )  # fmt: skip


# Of versions before 0.2, in place of one length; each 512 where it is not stated.
_SIDES, _SIDE = ("max_source_length", "max_target_length"), 512


def _read_data(keys: Keys, parsed: Parsed, stage: str) -> None:
    length = keys.whole("cutoff_len", low=1)
    source, target = (keys.whole(name, low=1) for name in _SIDES)
    if length is None and (source or target):
        length = (source or _SIDE) + (target or _SIDE)
    if length is None:
        why = "cutoff_len is not in the file; LLaMA-Factory's default"
        parsed.note("data.max_length", _CUTOFF, why)
    packing, neat = keys.switch("packing"), keys.switch("neat_packing")
    if packing is not None or neat is not None:
        parsed.knobs["packing"] = "on" if packing or neat else "off"
    elif stage == "pt":  # hparams/parser.py: packed unless the file says otherwise
        parsed.knobs["packing"] = "on"
    parsed.part(
        "data", max_length=length or _CUTOFF, pretokenized=keys.word("tokenized_path") and True
    )


def _read_attention(keys: Keys, parsed: Parsed) -> None:
    stated = keys.get("flash_attn")
    word = "disabled" if stated is False else stated
    if word in (None, "auto"):
        return
    kernels = dict(WORDS["attention"][0].values)
    if isinstance(word, str) and word in kernels:
        parsed.knobs["attention"] = kernels[word]
    else:
        parsed.keep(
            "attention", "flash_attn", stated, "no such kernel here; counted as the default"
        )


# The newest transformers that a release allows.
RUNS: dict[Version, Version] = {(0, 9, 4): (4, 57, 1), (0, 9, 5): (5, 6, 0)}
_LAUNCHER_FILE = "accelerate.yaml"


def _say_dtypes(plan: Plan, values: dict[str, Any]) -> None:
    """Say what is trained in which dtype.

    Under bf16 LLaMA-Factory turns what is trained into fp32 unless pure_bf16 is set, which leaves
    DeepSpeed's bf16 engine off; without bf16 and fp16 it computes in the checkpoint's dtype unless
    infer_dtype is set.
    Source: llamafactory 0.9.5 model/adapter.py init_adapter, model/patcher.py patch_config.
    """
    config, method = plan.config, plan.job.method
    if config.precision in {"fp32", "tf32"}:
        values["infer_dtype"] = "float32"
    narrow = config.adapter_dtype == "bf16" if method.is_lora else method.base == "16bit"
    if config.precision != "bf16" or not narrow:
        return
    if config.sharding in ZERO_STAGE:  # its engine casts the model to bf16 and trains fp32 masters
        return
    values.pop("bf16", None)
    values["pure_bf16"] = True


def _contract(plan: Plan) -> dict[str, Any]:
    job, method = plan.job, plan.job.method
    values: dict[str, Any] = {
        "model_name_or_path": plan.model, "stage": "sft", "do_train": True,
        "finetuning_type": method.kind, "dataset": SOME, "template": "default",
        "output_dir": plan.out_dir, "cutoff_len": job.max_length,
        "preprocessing_num_workers": min(plan.offer.host.cores, MOST_PROCESSES),
    }  # fmt: skip
    if method.is_lora:
        values |= {
            "lora_rank": method.rank, "lora_alpha": plain(method.alpha),
            "lora_dropout": method.dropout, "lora_target": ",".join(method.targets),
            **variant_keys(method),
        }  # fmt: skip
    if method.modules_to_save:
        values["additional_target"] = ",".join(method.modules_to_save)
    if plan.quantized:
        values |= {"quantization_bit": 4 if method.base == "nf4" else 8}
        values |= {} if method.double_quant else {"double_quantization": False}
    values |= length_of_run(plan, "num_train_epochs")
    if plan.config.precision == "fp32":
        values["tf32"] = False  # torch.compile would switch it on
    return values
