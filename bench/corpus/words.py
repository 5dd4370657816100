"""The words by which a person tells what a file trains; the plain parts of scripts and commands.

A pattern is searched in the file's mapping as JSON, in lower case, or in the last parts of its
path. What is read of Python and of a shell is what stands there in full.
"""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Patterns:
    """Regular expressions: in the mapping, and in the file's name."""

    keys_: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


_UNTRAINED = (
    r'^(?!.*"(optimizer|optim|stage|train|datasets|train_dataset)")(?!.*"do_train": "?true).*'
)
_NAMED = r'"(base_model|model_name_or_path|model_name|model)": "([^"]*/)?'
OUT_OF_SCOPE: dict[str, Patterns] = {
    "reward": Patterns((
        r'"reward_model": true', r'"process_reward_model": true', r'"stage": "rm"',
        r'"@calls": [^]]*"(reward|prm)(config|trainer)',  r'"@script": "(reward_modeling|prm)',
        r'@script": "reward"',
    ), (r"reward_model_finetuning/",)),
    "distillation": Patterns((
        r"knowledge_distillation", r"kdplugin", r'"kd_trainer": true', r'"teacher_model',
        r'"@calls": [^]]*"(gkd|gold|distil\w*|minillm|sdft)(config|trainer)',
        r'"@script": "(gkd|gold|distillation|sdft|minillm)',
    )),
    "rl": Patterns((
        r'"rl": "(grpo|gdpo|ppo|ebft)', r'"stage": "ppo"',
        r'"@calls": [^]]*"\w*(grpo|ppo|rloo|xpo|nashmd|onlinedpo|ssd|sdpo)(config|trainer)',
        r'"@script": "\w*(grpo|gspo|ppo|rloo|online_dpo|nash_md|xpo|ssd|sdpo|async_grpo)',
        r'"reward_funcs"', r"loss\.grpo", r"grpo_\w+_distributed", r'"num_generations"',
        r"ppo_full_finetune", r'"kl_coeff"', r'"vllm_mode"', r'"(actor|critic)_model_name_or_path"',
    ), (r"rlhf_finetuning/",)),
    "preference": Patterns((
        r'"rl": "\w+', r'"stage": "(dpo|kto)"', r'"dpo_\w+"', r"\.dpo\.|dpoloss|preference_dataset",
        r'"@calls": [^]]*"(dpo|orpo|kto|cpo|bco|simpo|tpo)(config|trainer)', r'"pref_(loss|beta)"',
        r'"@script": "(run_)?(dpo|orpo|kto|cpo|bco|simpo|tpo|mpo)', r'"max_prompt_length"',
        r'"beta": 0\.\d+', r'"rejected"', r'"dpo_config', r"lora_dpo|full_dpo",
    ), (r"dpo/", r"orpo/", r"(^|[_/-])(dpo|orpo|kto)([_./-]|$)")),
    "embedding": Patterns((
        r"sentencetransformer", r'"@calls": [^]]*"fastsentence', r"automodelforsequenceclass",
        r'"num_labels"',  r"token_?classification", r"imageclassification",
    )),
    "audio": Patterns((
        rf"{_NAMED}(whisper|voxtral|csm|gemma-?3n.*audio)", r"fastaudio",
    ), (r"-audio\b",)),
    "vision": Patterns((
        r'"processor_type"', r"fastvisionmodel", r"visiondatacollator", r'"image_\w+": [^n]',
        rf"{_NAMED}([\w.-]*-vl\b|[\w.-]*vision|llava|pixtral|smolvlm|internvl|[\w.-]*-ocr)",
        r"models\.\w*vision|flamingo", r"automodelforimagetext", r"dreambooth|stable-diffusion",
        r'"train_dataset": "[^"]*multimodal',
    )),
    "evaluation": Patterns((
        rf'{_UNTRAINED}"tasks"', r'^(?!.*"do_train": "?true).*"do_predict": true',
        r"eleuther_eval",
    )),
    "inference": Patterns((
        r'^(?!.*"stage").*"infer_backend"', r'^(?!.*"train_dataset").*"sample_backend"',
        rf'{_UNTRAINED}"max_new_tokens"',
    )),
    "merging": Patterns((r'"export_dir"', rf'{_UNTRAINED}"quantizer"'), (r"merge_lora/",)),
    "diffusion": Patterns((r"diffusionplugin", rf"{_NAMED}[\w.-]*diffusion")),
    "pretraining": Patterns((r'"stage": "pt"', r'"pretraining_dataset"')),
}  # fmt: skip

_ARGUMENTS = re.compile(r"(TrainingArguments|SFTConfig|\w+Config|\w+Trainer|\w+Collator)$")
_TAKES = {
    "r": "lora_r", "model_name": "model_name_or_path", "optim": "optim",
    "per_device_train_batch_size": "per_device_train_batch_size", "load_in_4bit": "load_in_4bit",
    "gradient_accumulation_steps": "gradient_accumulation_steps", "load_in_8bit": "load_in_8bit",
    "max_seq_length": "max_seq_length", "max_length": "max_length", "max_steps": "max_steps",
    "num_train_epochs": "num_train_epochs", "gradient_checkpointing": "gradient_checkpointing",
    "reward_funcs": "reward_funcs", "num_labels": "num_labels",
    "full_finetuning": "full_finetuning",
}  # fmt: skip


def script_values(text: str) -> dict[str, Any]:
    """Literals of the calls of a Python file by the usual names; the first one of each wins."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return {}
    bound = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls.sort(key=lambda node: (node.lineno, node.col_offset))
    found: dict[str, Any] = {}
    names = []
    for node in calls:
        owner, name = _names(node)
        if not (_ARGUMENTS.search(name) or name in {"from_pretrained", "get_peft_model"}):
            continue
        if name == "from_pretrained" and not owner.startswith(("Fast", "AutoModel")):
            continue
        names.append(owner if owner.startswith(("Fast", "AutoModel")) else name)
        if name in {"get_peft_model", "LoraConfig"}:
            found.setdefault("@use_peft", True)
        if name == "from_pretrained" and node.args:
            _take(found, "model_name_or_path", node.args[0], bound)
        for keyword in node.keywords:
            if keyword.arg in _TAKES and (keyword.arg != "r" or found.get("@use_peft")):
                _take(found, _TAKES[keyword.arg], keyword.value, bound)
    if names:
        found["@calls"] = names
    return found


def _names(node: ast.Call) -> tuple[str, str]:
    function = node.func
    if isinstance(function, ast.Attribute):
        owner = function.value
        return str(getattr(owner, "attr", getattr(owner, "id", ""))), function.attr
    return "", str(getattr(function, "id", ""))


def _take(found: dict[str, Any], key: str, node: ast.expr, bound: dict[str, Any]) -> None:
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(node, ast.Name):
        value = bound.get(node.id)
    if isinstance(value, str | int | float | bool):
        found.setdefault(key, value)


_LAUNCH = re.compile(r"\b(python\d?|accelerate launch|deepspeed|torchrun|trl|tune run|litgpt|"
                     r"llamafactory-cli|axolotl)\s")  # fmt: skip


def command_values(text: str) -> dict[str, Any]:
    """The flags of the first launch command with any; dashes are underscores."""
    joined = re.sub(r"\\[ \t]*\n", " ", text)
    for line in joined.splitlines():
        if line.lstrip().startswith("#") or not _LAUNCH.search(line) or "--" not in line:
            continue
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue
        found = _flags(words)
        if found:
            return found
    return {}


def _flags(words: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for index, word in enumerate(words):
        if word.endswith(".py"):
            found["@script"] = word.rpartition("/")[2].removesuffix(".py")
            found = {"@script": found["@script"]}
        if index and words[index - 1] == "trl":
            found["@script"] = word
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        after = words[index + 1] if index + 1 < len(words) else "--"
        stated = value if equals else "true" if after.startswith("--") else after
        if "$" not in stated and "<" not in stated:
            found.setdefault(name.replace("-", "_"), stated)
    return found
