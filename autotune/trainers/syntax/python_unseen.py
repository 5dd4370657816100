"""What a Python script does to a run that no reader evaluates: found by what it is, and said.

Arguments of calls that are read and that nobody asks for, a training loop or a loss of its own, a
model that another file makes, weights that it freezes, rows that it joins, trainings that it
repeats, arguments that it sets anew. None of it is executed or priced.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from autotune.domain.job import Uncounted
from autotune.domain.typed.values import shown
from autotune.trainers.syntax.python_arguments import others_classes
from autotune.trainers.syntax.python_beside import replaces, trains_more
from autotune.trainers.syntax.python_loop import loops_beside, repeats
from autotune.trainers.syntax.python_settings import assigned, callee, last_name
from autotune.trainers.unread import decides, kind_of, words_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from autotune.trainers.syntax.python_values import Values

# Arguments of the calls that are read which move neither time nor memory, or are read elsewhere.
_PASSED: Final = words_of("""
    model args tokenizer processing_class train_dataset eval_dataset data_collator callbacks
    formatting_func dataset_text_field peft_config dataset_kwargs ref_model dataset_batch_size
    max_prompt_length max_target_length padding_value infinite eval_packing chars_per_token
    num_of_sequences model_init_kwargs truncation_mode is_encoder_decoder disable_dropout
    loss_type desirable_weight undesirable_weight reward_funcs train_on_completions_only
    bias task_type inference_mode fan_in_fan_out init_lora_weights loftq_config peft_type
    auto_mapping adapter_name use_gradient_checkpointing layers_pattern lora_bias revision
    trust_remote_code token low_cpu_mem_usage use_safetensors config local_files_only device_map
    use_cache fix_tokenizer quantization_config num_labels proxies pad_token_id eos_token_id
    bos_token_id device subfolder gpu_memory_utilization max_lora_rank pretraining_tp
    force_download resume_download variant ignore_mismatched_sizes output_hidden_states
    output_attentions return_dict offload_folder state_dict train_size
    rope_scaling dataset_num_proc packing max_length max_seq_length max_memory from_tf from_flax
    pad stratify stratify_by_column
""")
_BITS = re.compile(r"(bnb_4bit|llm_int8)_\w+|load_in_\w*bit")
_STORED_BY = re.compile(
    r"\w*(GPTQ|AWQ|Awq|Hqq|AQLM|Aqlm|FP8|Fp8|Torchao|TorchAo|Quanto|Eetq)\w*Config"
)
# A trainer's own methods that a script may replace, and that do the work of a step.
_STEPS: Final = frozenset({
    "compute_loss", "training_step", "create_optimizer", "create_optimizer_and_scheduler",
    "get_train_dataloader", "_get_train_sampler", "_inner_training_loop",
})  # fmt: skip
_JOINS = re.compile(
    r"(?!\w*(padded|unpack|package))(\w+_pack(ed|ing)?|(\w+_)?pack(ed|ing)?_\w+)"
    r"|group_texts|\w*ConstantLengthDataset|\w*Packed\w*Dataset|concat(enate)?_(texts|examples)"
)
_DEVICES = re.compile(
    r"(num|n)_?(gpus?|devices|nodes)|nproc_per_node|world_size|gpus_per_node|num_processes|nprocs"
)
_KEEPS_LOGITS = {"Trainer", "SFTTrainer"}
_WORKERS = {"ScalingConfig": "num_workers"}  # Ray Train's: as many processes
_OTHER_MODEL = re.compile(r"ref|teacher|vision|visual|reward|judge")
_REFERENCES = {"ref_model", "reference_model"}
_REFERRING = re.compile(r"\w*(DPO|KTO|IPO)\w*Trainer")
_NOT_READ = "an argument that is not read: the run is priced without it"
# How far each may lie: assumptions, on the wide side.
_NOT_READ_SD, _OWN_STEP_SD, _FROZEN_SD = (0.20, 0.25), (0.20, 0.20), (0.25, 0.30)
_REFERENCE_SD, _ADAPTER_SD, _MORE_SD = (0.05, 0.30), (0.20, 0.20), (0.10, 0.25)
_GENERATES_SD, _WHOLE_SD = (0.30, 0.05), (0.10, 0.30)
_JOINED_SD, _SPLIT_SD = (0.40, 0.20), (0.40, 0.30)
_ELSEWHERE_SD, _STORED_SD = (0.25, 0.40), (0.30, 0.40)


class Seen(NamedTuple):
    """What is known of the script: trains without an adapter, packs rows, begins one training.

    elsewhere: no call of it loads the model. trains: it starts a training, wherever that is.
    modules: of the script's own.
    """

    full: bool
    packed: bool
    once: bool
    elsewhere: bool
    trains: bool
    modules: tuple[ast.Module, ...] = ()


def unseen(
    tree: ast.Module, nodes: list[ast.AST], unread: list[tuple[str, ast.keyword]], stated: Values,
    of: Seen,
) -> list[Uncounted]:  # fmt: skip
    """All of that but what depends on flags.

    Args:
        tree: the script.
        nodes: those of it that may run.
        unread: arguments of the calls that are read, with the call's name, which nobody asks for.
        stated: what its names are worth.
        of: what is known of it.
    """
    found = [*unread_arguments(unread, stated), *own_steps(tree, of.modules)]
    others = others_classes(tree, nodes, of.modules)
    found += [Uncounted(name, "imported", why, *_OWN_STEP_SD) for name, why in others]
    found += _trained(nodes, stated, full=of.full)
    joins = "" if of.packed else joins_rows(nodes)
    if joins:
        why = "joins rows by the script's own code: each is counted by itself; --set packing=on"
        found.append(Uncounted(joins, "called", why, *_JOINED_SD))
    if stored := other_storage(nodes):
        why = "weights held otherwise than is counted: --set method.base=nf4, int8 or 16bit"
        found.append(Uncounted(stored, "called", why, *_STORED_SD))
    if devices := several_devices(nodes, stated):
        why = "the script's own word: priced on the machine you name; NAME:COUNT names several"
        found.append(Uncounted("devices", str(devices), why, *_SPLIT_SD))
    found += _other_trainings(tree, once=of.once)
    if given := _reference(nodes, stated, full=of.full):
        why = "given beside what is trained: its weights are held as well, and are not counted"
        found.append(Uncounted("ref_model", given, why, *_REFERENCE_SD))
    if adapter := _other_adapter(tree, nodes):
        why = "another adapter of PEFT's than LoRA: counted as LoRA"
        found.append(Uncounted(adapter, "called", why, *_ADAPTER_SD))
    if own := replaces(nodes):
        why = (
            "a layer of the script's own in the model's place: its work and memory are not counted"
        )
        found.append(Uncounted("layers", own, why, *_FROZEN_SD))
    found += _elsewhere(tree, nodes, stated)
    if not of.trains:
        why = "called nowhere: another file starts the training, or none; its arguments are priced"
        found.append(Uncounted("train()", "not here", why, 0.0, 0.0))
    if of.elsewhere:
        why = "made by another file: bits, dtype and kernels are not read; --set method.base=nf4"
        found.append(Uncounted("the model", "not loaded here", why, *_ELSEWHERE_SD))
    return found


def _trained(nodes: list[ast.AST], stated: Values, *, full: bool) -> list[Uncounted]:
    """Weights of the base that it freezes, or trains beside its adapters."""
    if full and freezes(nodes, stated):
        why = "weights that the script freezes: all are counted as trained"
        return [Uncounted("requires_grad", "false", why, *_FROZEN_SD)]
    if not full and (more := trains_more(nodes)):
        why = "weights that the script trains beside its adapters: their states are not counted"
        return [Uncounted("requires_grad", more, why, *_MORE_SD)]
    return []


def unread_arguments(unread: Iterable[tuple[str, ast.keyword]], stated: Values) -> list[Uncounted]:
    """Arguments of the calls that are read, which decide something here or may."""
    found = []
    for name, keyword in unread:
        key = str(keyword.arg)
        known, value = stated.literal(keyword.value)
        empty = known and value in (None, False, 0, "", [], {})
        if not empty and key not in _PASSED and not _BITS.fullmatch(key):
            said = shown(value) if known else "computed"
            kind = kind_of(key)
            if kind is None and decides(key) is not False:
                found.append(Uncounted(f"{name}: {key}", said, _NOT_READ, *_NOT_READ_SD))
            elif kind is not None:
                found.append(Uncounted(key, said, kind.does, kind.time_sd, kind.memory_sd))
    return found


def needs_logits(unread: Iterable[tuple[str, ast.keyword]]) -> bool:
    """Whether a trainer is handed metrics, and nothing that thins the logits they are made of."""
    made = (ast.Name, ast.Attribute, ast.Lambda, ast.Call)
    given = {k.arg for name, k in unread if name in _KEEPS_LOGITS and isinstance(k.value, made)}
    return "compute_metrics" in given and "preprocess_logits_for_metrics" not in given


def _other_trainings(tree: ast.Module, *, once: bool) -> list[Uncounted]:
    """A training that it begins several times, and loops of its own."""
    found = []
    if once and (line := repeats(tree)):
        why = "several times there: the price is of one training alone"
        found.append(Uncounted("trains", f"on line {line}", why, 0.0, 0.0))
    if lines := loops_beside(tree):
        why = "a loop of the script's own trains there (backward()): not in this price"
        found.append(Uncounted("another training", f"on line {lines}", why, 0.0, 0.0))
    return found


def own_steps(tree: ast.Module, modules: Iterable[ast.Module] = ()) -> list[Uncounted]:
    """A subclass of a trainer that does the work of a step itself, or a callback that generates.

    modules: of the script's own, in which such a class may stand.
    """
    used = {callee(node) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    classes = [
        node for each in (tree, *modules) for node in ast.walk(each)
        if isinstance(node, ast.ClassDef) and node.name in used
    ]  # fmt: skip
    found = []
    for node in classes:
        bases = [last_name(base) for base in node.bases]
        own = [each.name for each in node.body
               if isinstance(each, ast.FunctionDef) and each.name in _STEPS]  # fmt: skip
        if own and any(base.endswith("Trainer") for base in bases):
            why = "code of the script's own: what it adds to a step is not in the price"
            found.append(Uncounted(node.name, ", ".join(own), why, *_OWN_STEP_SD))
        calls = {callee(each) for each in ast.walk(node) if isinstance(each, ast.Call)}
        if "generate" in calls and any(base.endswith("Callback") for base in bases):
            why = "a callback of the script's own: what it generates takes longer than is counted"
            found.append(Uncounted(node.name, "generate", why, *_GENERATES_SD))
    return found


def freezes(nodes: Iterable[ast.AST], stated: Values) -> bool:
    """Whether it switches the gradients of weights off; not of a reference or another model."""
    every = list(nodes)
    apart = {
        inner for node in every if _OTHER_MODEL.search(_whose(node)) for inner in ast.walk(node)
    }
    return any(
        _switches_off(node, stated) for node in every
        if node not in apart and not _OTHER_MODEL.search(_owner_of(node))
    )  # fmt: skip


def _whose(node: ast.AST) -> str:
    """What a loop goes over, or the name that a value is bound to."""
    if isinstance(node, ast.For):
        return ast.unparse(node.iter)
    return str(getattr(assigned(node)[0], "id", ""))


def _switches_off(node: ast.AST, stated: Values) -> bool:
    target, value = assigned(node)
    if isinstance(target, ast.Attribute) and target.attr == "requires_grad" and value is not None:
        return stated.literal(value) != (True, True)
    named = callee(node) == "requires_grad_"
    given = node.args if isinstance(node, ast.Call) and named else []
    return bool(given) and stated.literal(given[0]) == (True, False)


def _owner_of(node: ast.AST) -> str:
    """What an attribute is set on, or a method called of."""
    target, _ = assigned(node)
    held = target if target is not None else getattr(node, "func", None)
    return ast.unparse(held.value) if isinstance(held, ast.Attribute) else ""


def joins_rows(nodes: Iterable[ast.AST]) -> str:
    """The function or class by which it joins rows, where it calls one; empty where it does not."""
    for node in nodes:
        if isinstance(node, ast.Call):
            named = [callee(node), *(getattr(each, "id", "") for each in node.args)]
            for name in named:
                if isinstance(name, str) and _JOINS.fullmatch(name):
                    return name
    return ""


_SIZES = re.compile(r"\blen\(|(len|length|tokens?)\b|\[['\"]N['\"]\]", re.IGNORECASE)
_DROPPED = "longer rows are dropped: those that train may be shorter; --set data.max_length=N"
_DROPPED_SD = (0.30, 0.15)  # how far the longest row may lie from the length: an assumption


def dropped(nodes: list[ast.AST], stated: Values, most: object) -> list[Uncounted]:
    """By which length it keeps rows, where that is less than `most` or not known.

    `rows.filter(lambda row: len(row["input_ids"]) < 512)`, `frame[frame["tokens"] <= 512]`.
    """
    named = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
    asked: list[ast.AST] = []
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "filter":
            asked += [named.get(getattr(each, "id", ""), each) for each in node.args[:1]]
        elif isinstance(node, ast.Subscript):
            asked.append(node.slice)
    tests = (each for node in asked for each in ast.walk(node) if isinstance(each, ast.Compare))
    for test in tests:
        below = len(test.ops) == 1 and isinstance(test.ops[0], ast.Lt | ast.LtE)
        if below and _SIZES.search(ast.unparse(test.left)):
            known, length = stated.literal(test.comparators[0])
            if not (known and isinstance(length, int) and isinstance(most, int) and length >= most):
                return [Uncounted("rows", ast.unparse(test)[:60], _DROPPED, *_DROPPED_SD)]
    return []


def _other_adapter(tree: ast.Module, nodes: Iterable[ast.AST]) -> str:
    """The class of PEFT's by which it describes another adapter; empty: none, or LoRA as well."""
    theirs = {
        each.asname or each.name for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "peft"
        for each in node.names if each.name.endswith("Config")
    } - {"LoraConfig", "PeftConfig", "LoftQConfig", "EvaConfig"}  # fmt: skip
    called = {callee(node) for node in nodes if isinstance(node, ast.Call)}
    return "" if "LoraConfig" in called else min(theirs & called, default="")


def _elsewhere(tree: ast.Module, nodes: list[ast.AST], stated: Values) -> list[Uncounted]:
    """Where it trains on something else than the machine that is named, or by other kernels."""
    found = []
    if _environment(nodes, stated, "UNSLOTH_RETURN_LOGITS") == "1":  # unsloth models/llama.py
        why = "Unsloth then makes all logits at once, and not in parts: more memory"
        found.append(Uncounted("UNSLOTH_RETURN_LOGITS", "1", why, *_WHOLE_SD))
    if hidden := hidden_devices(nodes, stated):
        why = "the script hides every GPU from itself: it trains on the CPU; --gpu cpu prices that"
        found.append(Uncounted("CUDA_VISIBLE_DEVICES", hidden, why, 0.0, 0.0))
    if on_tpu(tree):
        why = "it trains on a TPU, which is no device here: priced on the machine you name"
        found.append(Uncounted("torch_xla", "imported", why, *_ELSEWHERE_SD))
    return found


def _reference(nodes: Iterable[ast.AST], stated: Values, *, full: bool) -> str:
    """The reference model that a trainer is given; empty: none, or the base below adapters.

    Of a trainer of preferences that trains all weights it is counted.
    """
    for node in nodes:
        name = callee(node)
        if isinstance(node, ast.Call) and name.endswith("Trainer"):
            referring = bool(_REFERRING.fullmatch(name))
            given = [key.value for key in node.keywords if key.arg in _REFERENCES]
            for value in given or (node.args[1:2] if referring else []):
                if stated.literal(value) != (True, None) and not (full and referring):
                    return ast.unparse(value)[:40]
    return ""


def hidden_devices(nodes: Iterable[ast.AST], stated: Values) -> str:
    """What it sets CUDA_VISIBLE_DEVICES to where that shows it no device: -1, or nothing."""
    said = _environment(nodes, stated, "CUDA_VISIBLE_DEVICES", "-1", "")
    return "empty" if said == "" else said or ""


def _environment(nodes: Iterable[ast.AST], stated: Values, name: str, *wanted: str) -> str | None:
    """What it sets a variable of its environment to, the first that is wanted; None: to nothing."""
    for node in nodes:
        target, value = assigned(node)
        if isinstance(target, ast.Subscript) and value is not None:
            known, said = stated.literal(value)
            if getattr(target.slice, "value", "") == name and known and said in (wanted or (said,)):
                return str(said)
    return None


def on_tpu(tree: ast.Module) -> bool:
    """Whether it cannot do without torch_xla: what is tried, or depends, it can."""
    for node in tree.body:
        if isinstance(node, ast.Import) and any(a.name.startswith("torch_xla") for a in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("torch_xla"):
            return True
    return False


def several_devices(nodes: Iterable[ast.AST], stated: Values) -> int:
    """Devices that it makes visible, or tells another call of; 0 where it says none or one."""
    most = 0
    for node in nodes:
        for key, value in _counts(node):
            known, said = stated.literal(value)
            if key == "CUDA_VISIBLE_DEVICES" and known and isinstance(said, str):
                said = len([each for each in said.split(",") if each.strip().isdigit()])
            if known and isinstance(said, int) and not isinstance(said, bool):
                most = max(most, said)
    return most if most > 1 else 0


def _counts(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    target, value = assigned(node)
    if isinstance(target, ast.Subscript) and value is not None:
        key = getattr(target.slice, "value", "")
        if key == "CUDA_VISIBLE_DEVICES" and ast.unparse(target.value) == "os.environ":
            yield key, value
    if isinstance(node, ast.Call) and callee(node) != "add_argument":
        for keyword in node.keywords:
            started = keyword.arg == _WORKERS.get(callee(node), "")
            if keyword.arg is not None and (started or _DEVICES.fullmatch(keyword.arg)):
                yield keyword.arg, keyword.value


def other_storage(nodes: Iterable[ast.AST]) -> str:
    """The class by which weights are held in few bits otherwise than by bitsandbytes."""
    names = (callee(node) for node in nodes if isinstance(node, ast.Call))
    return next((name for name in names if _STORED_BY.fullmatch(name)), "")
