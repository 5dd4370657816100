"""litgpt: how it is started, its YAML read and written, and its words for the knobs.

It states the total batch, has no accumulation of its own, and shards by itself. Not covered:
adapters on less than the whole MLP, a quantised base on several GPUs, evaluation-only runs.
Source: litgpt 0.5.13 (litgpt/args.py, litgpt/finetune/lora.py and full.py, data/json_data.py) and
the tags 0.5.0, 0.5.3 and 0.5.9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from autotune.domain.errors import InputError
from autotune.domain.job import Uncounted
from autotune.trainers.contract import JOB_KEYS, Export, Trainer
from autotune.trainers.hf.adapter import fill_adapter
from autotune.trainers.hf.keys import read_words
from autotune.trainers.hf.notes import trainer_notes
from autotune.trainers.hf.read import HF_DEFAULTS
from autotune.trainers.launch.run_script import file_and_start
from autotune.trainers.parsed import Keys, Parsed
from autotune.trainers.schema import leave_rest, schema_of
from autotune.trainers.words import Word, say
from autotune.trainers.yaml_file import as_yaml, length_of_run, plain, with_knobs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import KnobValue
    from autotune.domain.job import Job
    from autotune.trainers.contract import Changes, Plan, Target
    from autotune.trainers.versions import Version
    from autotune.trainers.words import Words


class LitGpt(Trainer):
    """litgpt.yaml and the command that starts it; a version after @ is litgpt's."""

    name = "litgpt"
    title = "litgpt's YAML"
    file = "litgpt.yaml"
    known = ((0, 5), (0, 5, 13))
    resumes_with = "resume: auto"
    logs_state = False
    software: ClassVar[Mapping[str, str]] = {"trainer": "litgpt"}
    evaluation_batch: ClassVar[str] = ""

    def is_file(self, values: Mapping[str, Any]) -> bool:
        """A folder of converted weights, or the batch and the length inside `train`."""
        train = values.get("train")
        inside = isinstance(train, dict) and {"micro_batch_size", "max_seq_length"} & set(train)
        found = set(values)
        weights = "checkpoint_dir" in found and bool(_BESIDE_WEIGHTS & found)
        weights = weights and not {"base_model", "model_name_or_path"} & found
        return not set(values) & JOB_KEYS and (weights or bool(inside))

    def read(self, values: Mapping[str, Any], name: str) -> Parsed:
        """The job that the file states. Raises InputError where the total cannot be split."""
        keys, schema = Keys(values, name), schema_of("litgpt")
        # AdamW without arguments, which takes foreach: utils.py, instantiate_torch_optimizer
        defaults = {**HF_DEFAULTS, "num_dataloader_workers": 4, "optimizer": "adamw_torch"}
        parsed = Parsed("litgpt", defaults=defaults)
        model = keys.word("checkpoint_dir") or keys.word("initial_checkpoint_dir") or _named(keys)
        if model is not None:
            parsed.values["model"] = model.removeprefix("checkpoints/")
        devices = keys.get("devices")
        parsed.devices = keys.whole("devices", low=1) if devices != "auto" else None
        _read_batch(keys, parsed)
        _read_method(keys, parsed)
        _read_strategy(parsed)
        parsed.part("data", max_length=keys.whole("train.max_seq_length", low=1))
        _read_evaluation(keys, parsed)
        steps, epochs = keys.whole("train.max_steps", low=1), keys.number("train.epochs")
        steps = steps or _steps_of_tokens(keys, parsed)
        if steps is None and epochs is None:
            epochs = float(schema.default("train.epochs"))
            parsed.note("train.epochs", f"{epochs:g}", f"not in the file; that of {schema.newest}")
        parsed.part("train", steps=steps, epochs=None if steps else epochs or None)
        parsed.defaults["checkpoint_every_steps"] = schema.default("train.save_interval")
        read_words(keys, parsed, "checkpoint_every_steps", "num_dataloader_workers", own=WORDS)
        if keys.switch("optimizer.init_args.fused"):
            parsed.knobs["optimizer"] = "adamw_torch_fused"
        precision = keys.word("precision")
        if precision in PRECISION:
            parsed.knobs["precision"] = PRECISION[precision]
            if precision in {"bf16-mixed", "16-mixed", "32-true"}:
                parsed.part("method", base=parsed.values["method"].get("base") or "32bit")
                parsed.autocast = True
            elif precision == "bf16-true" and parsed.values["method"]["kind"] == "lora":
                parsed.knobs["adapter_dtype"] = "bf16"  # all weights are
        elif precision is not None:
            parsed.note(
                "precision", precision, "no such precision here; the device's own is counted"
            )
        leave_rest(keys, parsed)
        return parsed

    def spell(self, knob: str, value: KnobValue, target: Target, /) -> Changes | str:
        """The keys that say it; the accumulation follows from the total batch."""
        if knob == "gradient_accumulation_steps":
            return {}
        if knob == "optimizer" and value in _FUSED and not target.has("optimizer"):
            whole = {"optimizer.class_path": "torch.optim.AdamW", "optimizer.init_args.fused": True}
            return whole if _FUSED[value] else {}
        named = target.values.get("optimizer")
        class_path = named.get("class_path") if isinstance(named, dict) else None
        if knob == "optimizer" and value in _FUSED and class_path == "torch.optim.AdamW":
            return {"optimizer.init_args.fused": _FUSED[value]}
        if knob in WORDS and (knob != "num_dataloader_workers" or target.has("data.init_args")):
            return say(knob, value, WORDS, ())
        return "litgpt's YAML has no key for it"

    def commands(self, plan: Plan, file: str, launcher: str = "") -> list[str]:  # noqa: ARG002 - it has one of its own
        """One command a method."""
        return [f"litgpt finetune_{'lora' if plan.job.method.is_lora else 'full'} --config {file}"]

    def plan_versions(self, job: Job, version: Version | None) -> tuple[Version, Version | None]:
        """The profile's, which litgpt does not use: it has model code of its own."""
        self.version_of(job, version)
        refuse_method(job)
        return job.software.transformers, job.software.trl

    def export(self, plan: Plan) -> Export:
        """The YAML and run.sh, and what the YAML cannot say."""
        if plan.quantized and plan.offer.count > 1:
            msg = f"litgpt has no {plan.job.method.base} base on several GPUs"
            raise InputError(msg, "export another format, or take one device")
        if plan.config.precision == "fp8":
            msg = "litgpt's recipes cannot say precision fp8"
            raise InputError(msg, "export hf or trl, or take bf16")
        done = {"precision": plan.config.precision, "attention": "sdpa"}
        if plan.offer.count > 1:  # its strategy shards whatever it is told
            done["sharding"] = "fsdp"
        beside = {"sharding"} if plan.config.sharding == "none" else set[str]()
        values, notes = with_knobs(_contract(plan), plan, self, done, beside)
        files = file_and_start(self, plan, as_yaml(values))
        return Export(files, (*notes, *_notes(plan)))


_BESIDE_WEIGHTS = {  # other programs have a checkpoint_dir too
    "train", "data", "eval", "precision", "quantize", "devices", "lora_r", "logger_name",
    "access_token", "out_dir", "optimizer",
}  # fmt: skip
PRECISION = {  # of its word -> the knob's value
    "bf16-true": "bf16", "bf16-mixed": "bf16", "16-true": "fp16", "16-mixed": "fp16",
    "32-true": "fp32",
}  # fmt: skip
SWITCHES = {  # of adapters -> the module
    "lora_query": "q_proj", "lora_key": "k_proj", "lora_value": "v_proj",
    "lora_projection": "o_proj",
}  # fmt: skip
_SHARDS_SD = 0.17  # of its shards: three published peaks are 4 to 24 % above
MLP = ("gate_proj", "up_proj", "down_proj")  # one switch, lora_mlp
# Between the two, 16 configurations of config_hub differ by -25 to +13 % in their peaks.
_UNKNOWN_VERSION = Uncounted(
    "software.bitsandbytes", "not stated",
    "0.42, which litgpt had until 2024, keeps more: `--set software.bitsandbytes=VERSION`",
    0.0, 0.20,
)  # fmt: skip


WORDS: Words = {
    "micro_batch_size": (Word("train.micro_batch_size"),),
    "checkpoint_every_steps": (Word("train.save_interval"),),
    "num_dataloader_workers": (Word("data.init_args.num_workers"), Word("data.num_workers")),
}


def _read_evaluation(keys: Keys, parsed: Parsed) -> None:
    """Evaluations of rows that are held out, of so many batches of the micro-batch each.

    Not counted: the whole of those rows once more at the end, and the example that it generates.
    Source: litgpt 0.5.13 finetune/lora.py, `validate`; data/json_data.py, val_split_fraction.
    """
    share = keys.number("data.init_args.val_split_fraction", "data.val_split_fraction")
    if str(keys.at("eval.interval")) == "0":
        msg = f"{keys.name}: eval.interval is 0, and litgpt divides the steps by it"
        raise InputError(msg, "leave it out, or write a number of steps that is never reached")
    every, batches = keys.whole("eval.interval", low=1), keys.whole("eval.max_iters", low=1)
    if not share:
        return
    schema = schema_of("litgpt")
    micro = int(parsed.knobs["micro_batch_size"])
    parsed.part("data", held_out=share)
    parsed.part(
        "evaluation", batch_size=micro, every_steps=every or int(schema.default("eval.interval"))
    )
    batches = batches or int(schema.default("eval.max_iters"))
    parsed.evaluated_rows = batches * micro * (parsed.devices or 1)


def _named(keys: Keys) -> str | None:
    """The model that `litgpt pretrain` begins anew, by the hub's name where the tokenizer says it.

    Source: litgpt/pretrain.py and litgpt/config.py, whose `hf_config` is an organisation and name.
    """
    name = keys.word("model_config.name") or keys.word("model_name")
    owner, own = keys.word("model_config.hf_config.org"), keys.word("model_config.hf_config.name")
    tokenizer = (keys.word("tokenizer_dir") or "").removeprefix("checkpoints/")
    if owner and own:
        return f"{owner}/{own}"
    if name and tokenizer.rpartition("/")[2].casefold() == name.casefold():
        return tokenizer
    return name


def _steps_of_tokens(keys: Keys, parsed: Parsed) -> int | None:
    """Steps of `train.max_tokens`, each of the whole batch at the stated length."""
    tokens, length = keys.get("train.max_tokens"), keys.at("train.max_seq_length")
    if not isinstance(tokens, int) or tokens < 1 or parsed.global_batch is None:
        return None
    if not isinstance(length, int) or length < 1:
        why = "without train.max_seq_length its steps are the model's: --set train.steps=N"
        parsed.note("train.max_tokens", tokens, why)
        return None
    steps = max(1, tokens // (parsed.global_batch * length))
    parsed.note("train.steps", steps, f"train.max_tokens {tokens:,} in batches of that length")
    return steps


# AdamW by name takes foreach; arguments of a mapping reach it as they are. Source: litgpt 0.5.12
# utils.py, instantiate_torch_optimizer.
_FUSED: Mapping[KnobValue, bool] = {"adamw_torch": False, "adamw_torch_fused": True}


def _read_batch(keys: Keys, parsed: Parsed) -> None:
    """Source: litgpt/args.py TrainArgs.gradient_accumulation_iters (floor division)."""
    schema = schema_of("litgpt")
    counts = []
    for key in ("train.micro_batch_size", "train.global_batch_size"):
        stated = keys.whole(key, low=1)
        if stated is None:
            parsed.note(key, schema.default(key), f"not in the file; that of {schema.newest}")
        counts.append(stated or int(schema.default(key)))
    micro, total = counts
    devices = parsed.devices or 1
    if total % (micro * devices):
        msg = (
            f"{keys.name}: train.global_batch_size {total} is no multiple of micro_batch_size "
            f"{micro} x {devices} devices: litgpt would train on a smaller batch than it says"
        )
        raise InputError(msg, "state a micro_batch_size that divides it")
    parsed.global_batch = total
    parsed.knobs["micro_batch_size"] = micro
    parsed.knobs["gradient_accumulation_steps"] = total // (micro * devices)


def _read_strategy(parsed: Parsed) -> None:
    """Several devices: parameters are sharded and every block is recomputed; one: neither.

    Source: litgpt 0.5.13 finetune/full.py (FSDPStrategy with activation_checkpointing_policy) and
    finetune/lora.py (parallelize_fn, whose activation_checkpointing is on); no key says otherwise.
    """
    parsed.knobs["sharding"] = "fsdp"
    several = (parsed.devices or 1) > 1
    parsed.knobs["activation_checkpointing"] = "full" if several else "none"
    if several and parsed.values["method"]["kind"] == "full":
        why = "published peaks of its shards are 4 to 24 % above what is counted"
        parsed.uncounted.append(Uncounted("devices", str(parsed.devices), why, 0.10, _SHARDS_SD))


def _read_method(keys: Keys, parsed: Parsed) -> None:
    """LoRA where any of its keys is stated: a config for `finetune_full` has none of them."""
    quantize = keys.word("quantize") or ""
    base = "nf4" if "nf4" in quantize else "int8" if "int8" in quantize else None
    schema = schema_of("litgpt")
    switches = {**SWITCHES, "lora_mlp": "", "lora_head": ""}
    stated = {key: keys.switch(key) for key in switches}
    sizes = {
        "rank": keys.whole("lora_r", low=1), "alpha": keys.number("lora_alpha"),
        "dropout": keys.number("lora_dropout"),
    }  # fmt: skip
    if base is None and not any(value is not None for value in (*sizes.values(), *stated.values())):
        parsed.part("method", kind="full")
        parsed.note("method.kind", "full", "the file has no lora_ keys: for litgpt finetune_full")
        return
    fill_adapter(parsed, sizes)
    on = {key: schema.default(key) if value is None else value for key, value in stated.items()}
    targets = [name for key, name in SWITCHES.items() if on[key]]
    targets += list(MLP) if on["lora_mlp"] else []
    if on["lora_head"]:
        parsed.note("lora_head", "true", "an adapter on the head is not counted")
    if base == "nf4":
        parsed.uncounted.append(_UNKNOWN_VERSION)
    plain_scales = {"double_quant": False} if base == "nf4" and "dq" not in quantize else {}
    parsed.part("method", kind="lora", base=base, **sizes, targets=targets or None, **plain_scales)


_TRUE = {"bf16": "bf16-true", "fp16": "16-true", "fp32": "32-true", "tf32": "32-true"}
_MIXED = {"bf16": "bf16-mixed", "fp16": "16-mixed", "fp32": "32-true", "tf32": "32-true"}
_QUANTIZE = {"nf4": "bnb.nf4-dq", "int8": "bnb.int8-training"}


def refuse_method(job: Job) -> None:
    """Raise InputError for adapters that the format has no words for."""
    if job.method.variant != "none":
        msg = f"litgpt has no {job.method.variant}"
        raise InputError(msg, "export hf or trl: the method is the job's")
    if job.method.modules_to_save:
        msg = f"litgpt trains {', '.join(job.method.modules_to_save)} of a LoRA job not whole"
        raise InputError(msg, "export hf or trl: the method is the job's")
    wanted = set(job.method.targets)
    mlp = wanted & set(MLP)
    unknown = sorted(wanted - set(MLP) - set(SWITCHES.values()))
    if unknown or (mlp and mlp != set(MLP)):
        named = ", ".join(unknown or sorted(mlp))
        msg = f"litgpt cannot put adapters on {named} alone: it has one switch for the whole MLP"
        raise InputError(msg, "export another format: the targets are part of the job")


def _contract(plan: Plan) -> dict[str, Any]:
    job, method = plan.job, plan.job.method
    precise = _MIXED if method.base == "32bit" else _TRUE
    values: dict[str, Any] = {
        "checkpoint_dir": plan.model, "out_dir": plan.out_dir,
        "precision": precise[plan.config.precision], "devices": plan.offer.count,
    }  # fmt: skip
    if plan.quantized:
        values["quantize"] = _QUANTIZE[method.base].removesuffix(
            "" if method.double_quant else "-dq"
        )
    if method.is_lora:
        values |= {
            "lora_r": method.rank, "lora_alpha": plain(method.alpha),
            "lora_dropout": method.dropout,
            **{switch: name in method.targets for switch, name in SWITCHES.items()},
            "lora_mlp": set(method.targets) >= set(MLP), "lora_head": False,
        }  # fmt: skip
    run = {key: plain(value) for key, value in length_of_run(plan, "epochs").items()}
    return {
        **values,
        "data": {
            "class_path": "litgpt.data.JSON",
            "init_args": {
                "json_path": job.dataset_path or "path/to/rows.json",
                "val_split_fraction": 0.0,
                "num_workers": plan.config.num_dataloader_workers,
            },
        },
        "train": {
            "global_batch_size": job.global_batch_size,
            "micro_batch_size": plan.config.micro_batch_size,
            "max_seq_length": job.max_length, **run,
        },
    }  # fmt: skip


def _notes(plan: Plan) -> list[str]:
    job, notes = plan.job, trainer_notes(plan, "litgpt", evaluates=False, pads=False)
    if plan.config.precision in {"fp32", "tf32"}:
        notes.append("litgpt's 32-true multiplies in tf32 where the device has it")
    narrow = _contract(plan).get("precision") == "bf16-true" and job.method.is_lora
    if narrow and plan.config.adapter_dtype == "fp32":
        notes.append("litgpt's bf16-true trains bf16 adapters, not adapter_dtype fp32")
    if job.epochs != int(job.epochs) and "epochs" in length_of_run(plan, "epochs"):
        notes.append(f"litgpt counts whole epochs: {job.epochs:g} has to be rounded")
    if plan.may_be_interrupted:
        notes.append("litgpt's LoRA recipe cannot go on from a checkpoint")
    notes.append("litgpt reads rows with instruction and output; see its tutorials for other data")
    return notes
