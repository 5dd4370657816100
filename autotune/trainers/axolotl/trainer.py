"""axolotl: what its YAML states, what tells it from others, how it is started, and exported.

Source: the command line of axolotl 0.19.0 (cli/main.py); the tags 0.12.2 to 0.18.0 and the wheels
0.19.0 to 0.21.0 (utils/schemas); what it runs on: requirements.txt and pyproject.toml of its tags,
from 0.19.0 on the wheels.

What is read: the pydantic schema and trainer builder of 0.19.0 (utils/schemas, core/builders).
Values may be left out or null; `auto` counts as not stated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.cost.memory.experts import quantised_elements
from autotune.domain.config import ZERO_STAGE
from autotune.domain.errors import InputError
from autotune.domain.typed.values import shown
from autotune.trainers.axolotl.keys import (
    OLD_ATTENTION,
    WORDS,
    read_experts,
    read_fused_adapters,
    read_own_checkpointing,
    read_plugins,
    spell,
    spell_experts,
)
from autotune.trainers.contract import Export, Trainer
from autotune.trainers.hf.adapter import (
    base_of_adapter,
    read_base,
    read_saved,
    read_variant,
    text_targets,
    variant_keys,
)
from autotune.trainers.hf.evaluation import read_evaluation, read_held_out
from autotune.trainers.hf.keys import read_words
from autotune.trainers.hf.notes import trainer_notes
from autotune.trainers.hf.precision import is_pure_16bit
from autotune.trainers.hf.read import (
    HF_DEFAULTS,
    read_attention,
    read_compile,
    read_length_of_run,
    read_loading,
    read_optimizer,
    read_precision,
    read_saving,
    read_syncing,
)
from autotune.trainers.hf.trl import LEARNING_RATE
from autotune.trainers.launch.run_script import file_and_start, prepares
from autotune.trainers.parsed import Keys, Parsed
from autotune.trainers.schema import leave_rest
from autotune.trainers.versions import show
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

_OLD_PACKING = "max_packed_sequence_len"
_NEVER = {"no", "best"}  # strategies of saving that are no schedule
_EPOCHS, _LENGTH, _RANK, _ALPHA = 1.0, 512, 8, 16  # where the file states none


def _read_batch(keys: Keys, parsed: Parsed) -> None:
    """batch_size is the total of one device's step, an older way to say the accumulation."""
    micro = keys.whole("micro_batch_size", low=1)
    steps = keys.whole("gradient_accumulation_steps", low=1)
    total = keys.whole("batch_size", low=1)
    if micro is None:
        micro = 1
        parsed.note("micro_batch_size", micro, "not in the file; axolotl's default")
    parsed.knobs["micro_batch_size"] = micro
    if steps is None and total is not None:
        if total % micro:
            msg = f"{keys.name}: batch_size {total} is no multiple of micro_batch_size {micro}"
            raise InputError(msg, "state gradient_accumulation_steps instead of batch_size")
        steps = total // micro
    elif steps is not None and total is not None and total != steps * micro:
        msg = (
            f"{keys.name}: batch_size is {total}, but micro_batch_size {micro} x "
            f"gradient_accumulation_steps {steps} is {steps * micro}"
        )
        raise InputError(msg, "leave batch_size out")
    if steps is None:
        parsed.note("gradient_accumulation_steps", 1, "not in the file; axolotl's default")
    parsed.knobs["gradient_accumulation_steps"] = steps or 1
    parallel = keys.at("context_parallel_size") or keys.at("sequence_parallel_degree")
    if isinstance(parallel, int) and parallel > 1:  # it refuses ring attention on more
        why = "ring attention takes one row at a time"
        parsed.keep("micro_batch_size", "micro_batch_size", micro, why)


def _read_method(keys: Keys, parsed: Parsed) -> None:
    adapter = keys.word("adapter")
    base = read_base(keys, dtype=False)
    rank = keys.whole("lora_r", low=1)
    alpha, dropout = keys.number("lora_alpha"), keys.number("lora_dropout")
    targets, linear = keys.words("lora_target_modules"), keys.switch("lora_target_linear")
    variant = read_variant(keys, parsed, "peft_")
    scales = keys.switch("bnb_config_kwargs.bnb_4bit_use_double_quant")  # true (loaders/model.py)
    read_experts(keys, parsed)
    if adapter is None:
        parsed.part("method", kind="full", base=base)
        return
    if adapter not in {"lora", "qlora"}:
        msg = f"{keys.name}: adapter is {shown(adapter)}; lora, qlora or none can be priced"
        raise InputError(msg, "leave adapter out for full fine-tuning")
    if adapter == "qlora" and base != "nf4":
        msg = f"{keys.name}: adapter is qlora, which needs load_in_4bit: true"
        raise InputError(msg, "axolotl refuses it too; write adapter: lora for a 16-bit base")
    if rank is None:
        parsed.note("method.rank", _RANK, "not in the file; the recipes' value is counted")
    parsed.part(
        "method", kind="lora", base=base_of_adapter(base, parsed), rank=rank or _RANK,
        alpha=alpha or _ALPHA, dropout=dropout, targets=["all-linear"] if linear else targets,
        variant=variant, double_quant=scales if base == "nf4" else None,
        modules_to_save=read_saved(keys, "lora_modules_to_save"),
    )  # fmt: skip


def _read_data(keys: Keys, parsed: Parsed) -> None:
    length = keys.whole("sequence_len", low=1)
    if length is None:
        why = "sequence_len is not in the file; axolotl's default"
        parsed.note("data.max_length", _LENGTH, why)
    padded = keys.switch("pad_to_sequence_len")
    read_words(keys, parsed, "packing", own=WORDS)
    packed = keys.whole(_OLD_PACKING, low=1)
    if packed is not None:
        length = min(packed, length or _LENGTH)
        parsed.knobs["packing"] = "on"
        why = f"rows are packed to {length} tokens; newer releases refuse the key"
        parsed.keep("packing", _OLD_PACKING, packed, why)
    if keys.at("rl") and parsed.knobs.get("packing") == "on":  # core/builders/rl.py reads it not
        parsed.knobs["packing"] = "off"
        parsed.keep("packing", "sample_packing", "true", "preferences are never packed")
    padding = None if padded is None else ("max_length" if padded else "longest")
    parsed.part("data", max_length=length or _LENGTH, padding=padding)


def _read_attention(keys: Keys, parsed: Parsed) -> None:
    read_attention(keys, parsed, "attn_implementation")
    for name, kernel in OLD_ATTENTION.items():
        wanted = keys.switch(name)
        stated = parsed.knobs.get("attention")
        if wanted and stated not in {None, kernel}:
            msg = f"{keys.name}: {name} is true, but the attention is {stated} by another key"
            raise InputError(msg, "keep one of them")
        if wanted:
            parsed.knobs["attention"] = kernel


def _read_saving(keys: Keys, parsed: Parsed) -> None:
    """Without save_steps and saves_per_epoch a checkpoint is saved once an epoch."""
    often = keys.number("saves_per_epoch")
    read_saving(keys, parsed)
    if often and "checkpoint_every_steps" in parsed.knobs:
        msg = f"{keys.name}: saves_per_epoch and save_steps are both stated"
        raise InputError(msg, "axolotl takes one of them")
    _keep_saves_of_the_best(keys, parsed)
    if often:
        parsed.saves_per_epoch = often
    elif "checkpoint_every_steps" not in parsed.knobs and keys.at("save_strategy") not in _NEVER:
        parsed.saves_per_epoch = parsed.saves_per_epoch or 1.0


def _keep_saves_of_the_best(keys: Keys, parsed: Parsed) -> None:
    """Saves that meet the evaluations: axolotl then loads the best at the end without being asked.

    Source: axolotl core/builders/base.py: load_best_model_at_end is on where it is not switched
    off, there are rows to evaluate, and save_steps is a multiple of eval_steps.
    """
    every, evaluated = parsed.knobs.get("checkpoint_every_steps"), keys.number("eval_steps")
    share, off = keys.at("val_set_size"), keys.at("load_best_model_at_end") is False
    tested = bool(keys.at("test_datasets")) or (isinstance(share, int | float) and share > 0)
    if not every or not evaluated or not tested or off or evaluated < 1:
        return
    if int(every) % int(evaluated) == 0:
        why = "saves meet the evaluations, so axolotl loads the best checkpoint at the end"
        parsed.keep("checkpoint_every_steps", "save_steps", int(every), why)


def _read_precision(keys: Keys, parsed: Parsed) -> None:
    """`bf16: auto` comes before fp16 where the device has it.

    Source: axolotl 0.21 utils/config, resolve_dtype, and core/builders/base.py.
    """
    read_precision(keys, parsed)
    if str(keys.at("bf16")).casefold() == "auto" and parsed.knobs.get("precision") == "fp16":
        del parsed.knobs["precision"]
        parsed.mixed = False
        parsed.note("fp16", "true", "beside bf16: auto, which counts where the device has it")


def _read_evaluation(keys: Keys, parsed: Parsed) -> None:
    """Without a schedule, or without rows for it, it never evaluates (core/builders/base.py)."""
    often = keys.number("evals_per_epoch")
    read_held_out(keys, parsed, "val_set_size")
    read_evaluation(keys, parsed)
    batch = keys.whole("eval_batch_size", low=1)
    if not keys.number("val_set_size") and not keys.at("test_datasets"):
        parsed.values.pop("evaluation", None)
        parsed.evaluations_per_epoch = None
        keys.switch("eval_on_start")
        return
    if often or "evaluation" in parsed.values:
        parsed.values.setdefault("evaluation", {})
        first = keys.switch("eval_on_start") or None
        parsed.part("evaluation", batch_size=batch, at_start=first)
    parsed.evaluations_per_epoch = often or parsed.evaluations_per_epoch


def _read_sharding(keys: Keys, parsed: Parsed) -> None:
    deepspeed = keys.get("deepspeed")
    if isinstance(deepspeed, str) and deepspeed:
        stage = "zero3" if "zero3" in deepspeed.casefold() else "zero2"
        parsed.defaults["sharding"] = stage
        why = f"counted as {stage} by its name, if the file itself is not found"
        parsed.note("deepspeed", shown(deepspeed), why)
    elif keys.get("fsdp_config") or keys.get("fsdp"):
        parsed.knobs["sharding"] = "fsdp"


class Axolotl(Trainer):
    """axolotl.yml and the commands that start it; a version after @ is axolotl's."""

    name = "axolotl"
    title = "axolotl's YAML"
    evaluation_batch = "eval_batch_size"
    file = "axolotl.yml"
    own_keys = frozenset({
        "base_model", "micro_batch_size", "sequence_len", "adapter", "sample_packing", "datasets",
        "num_epochs", "val_set_size", "lora_target_linear", "pad_to_sequence_len",
        "dataset_prepared_path", "saves_per_epoch", "evals_per_epoch", "chat_template_jinja",
    })  # fmt: skip
    known = ((0, 12), (0, 21))
    resumes_with = "auto_resume_from_checkpoints: true"
    deepspeed_by_name = True
    process_per_device = "axolotl"
    runs_on = ("transformers", "trl")

    def read(self, values: Mapping[str, Any], name: str) -> Parsed:
        """The job that the file states. Raises InputError for a value of the wrong kind."""
        keys = Keys(values, name)
        defaults = {**HF_DEFAULTS, "micro_batch_size": 1}
        parsed = Parsed("axolotl", defaults=defaults)
        model = keys.word("base_model")
        if model is not None:
            parsed.values["model"] = model
        _read_batch(keys, parsed)
        read_length_of_run(keys, parsed, _EPOCHS)
        _read_method(keys, parsed)
        _read_data(keys, parsed)
        _read_precision(keys, parsed)
        _read_attention(keys, parsed)
        read_loading(keys, parsed)
        read_syncing(keys, parsed)
        _read_saving(keys, parsed)
        read_compile(keys, parsed)
        read_optimizer(keys, parsed, WORDS)
        read_words(keys, parsed, "length_grouping")
        read_own_checkpointing(keys, parsed)
        _read_evaluation(keys, parsed)
        _read_sharding(keys, parsed)
        read_plugins(keys, parsed)
        read_fused_adapters(keys, parsed)
        leave_rest(keys, parsed)
        return parsed

    def spell(self, knob: str, value: KnobValue, target: Target, /) -> Changes | str:
        """The keys that say it."""
        return spell(knob, value, target)

    def commands(self, plan: Plan, file: str, launcher: str = "") -> list[str]:  # noqa: ARG002 - it starts its processes itself
        """Rows are tokenised first, without a GPU."""
        before = [f'CUDA_VISIBLE_DEVICES="" axolotl preprocess {file}'] if prepares(plan) else []
        return [*before, f"axolotl train {file}"]

    def plan_versions(self, job: Job, version: Version | None) -> tuple[Version, Version | None]:
        """The transformers that axolotl pins."""
        stated = self.version_of(job, version)
        return max(runs for first, runs in RUNS.items() if first <= stated), job.software.trl

    def export(self, plan: Plan) -> Export:
        """The YAML in the words of its version and run.sh, and what the YAML cannot say."""
        refuse_wide_base(plan, self.name, trains_wide=plan.config.sharding == "fsdp")
        _refuse_sharded_states(plan)
        _refuse_old_experts(plan, plan.trainer or self.known[1])
        by_launcher = plan.config.sharding in {"none", "ddp", *ZERO_STAGE}
        beside = {"sharding"} if by_launcher else set[str]()
        values, notes = with_knobs(_contract(plan), plan, self, beside=beside)
        if is_pure_16bit(plan):  # mixed precision would make fp32 of what is trained
            values |= {"bf16": False, "bfloat16": True}
        notes.append(
            f"learning_rate {LEARNING_RATE:g} is TRL's default: axolotl has none, and refuses to "
            "start without one"
        )
        _say_attention(values, plan, plan.trainer or self.known[1])
        files = deepspeed_file(plan, values)
        if plan.may_be_interrupted:
            values["auto_resume_from_checkpoints"] = True
        files |= file_and_start(self, plan, as_yaml(values))
        notes += trainer_notes(plan, self.name, evaluates=False, pads=True)
        return Export(files, tuple(notes))


# The transformers that a release pins.
RUNS: dict[Version, Version] = {
    (0, 12): (4, 55, 2), (0, 13): (4, 57, 1), (0, 14): (5, 0, 0), (0, 15): (5, 3, 0),
    (0, 16): (5, 5, 0), (0, 17): (5, 9, 0), (0, 18): (5, 14, 1), (0, 19): (5, 16, 1),
    (0, 20): (5, 17, 0), (0, 21): (5, 20, 1),
}  # fmt: skip
QUANTISES_EXPERTS: Version = (0, 15)
ONE_ATTENTION: Version = (0, 17)  # attn_implementation rules; before, one switch a kernel


def _refuse_sharded_states(plan: Plan) -> None:
    """Source: utils/schemas/validation.py of axolotl 0.19.0 and 0.21.0."""
    if plan.config.sharding == "fsdp" and plan.config.optimizer == "adamw_bnb_8bit":
        msg = "axolotl refuses adamw_bnb_8bit under FSDP2"
        raise InputError(msg, "--set optimizer=adamw_torch_fused, or --set sharding=zero2")


def _refuse_old_experts(plan: Plan, version: Version) -> None:
    if quantised_elements(plan.job) and version < QUANTISES_EXPERTS:
        msg = f"axolotl {show(version)} has no quantize_moe_experts, which the plan needs"
        raise InputError(msg, f"{show(QUANTISES_EXPERTS)} has it: --export axolotl")


def _say_attention(values: dict[str, Any], plan: Plan, version: Version) -> None:
    """One switch a kernel, where the version has no key for it."""
    if version >= ONE_ATTENTION:
        return
    switches = {kernel: switch for switch, kernel in OLD_ATTENTION.items()}
    if plan.config.attention not in switches:
        msg = f"axolotl {show(version)} cannot say attention {plan.config.attention}"
        raise InputError(msg, f"{show(ONE_ATTENTION)} can, or take flash_attention_2")
    values[switches[values.pop("attn_implementation")]] = True


def _contract(plan: Plan) -> dict[str, Any]:
    job, method = plan.job, plan.job.method
    values: dict[str, Any] = {
        "base_model": plan.model,
        "datasets": [{"path": job.dataset_path or SOME, "type": "completion"}],
        "dataset_prepared_path": "last_run_prepared",
        "output_dir": plan.out_dir,
        "sequence_len": job.max_length,
        "pad_to_sequence_len": job.padding == "max_length",
        "learning_rate": LEARNING_RATE,
    }
    if method.is_lora:
        values |= {
            "adapter": "qlora" if method.base == "nf4" else "lora",
            "load_in_4bit": method.base == "nf4",
            "load_in_8bit": method.base == "int8",
            "lora_r": method.rank, "lora_alpha": plain(method.alpha),
            "lora_dropout": method.dropout,
            "lora_target_modules": text_targets(job.model, method),
            **variant_keys(method, "peft_"),
        }  # fmt: skip
        if method.base == "nf4" and not method.double_quant:
            values["bnb_config_kwargs"] = {"bnb_4bit_use_double_quant": False}
        values |= spell_experts(job)
    if method.modules_to_save:
        values["lora_modules_to_save"] = list(method.modules_to_save)
    values |= length_of_run(plan, "num_epochs")
    if plan.config.precision == "fp32":
        values["tf32"] = False  # torch.compile would switch it on
    return values
