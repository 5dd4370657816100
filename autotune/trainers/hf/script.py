"""train.py and prepare.py: a block of settings above a fixed, readable script."""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import TYPE_CHECKING

from autotune.cost.time.data import MOST_PROCESSES
from autotune.domain.job import BYTES
from autotune.trainers.hf.adapter import (
    BESIDE,
    attention_words,
    is_beside_others,
    spared_keys,
    variant_keys,
)
from autotune.trainers.hf.precision import adapter_dtype, saved_dtype, weights_dtype
from autotune.trainers.hf.preferences import columns_of
from autotune.trainers.launch.run_inputs import FOLDER
from autotune.trainers.versions import KNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.trainers.contract import Plan

_MARK = "# @SETTINGS@\n"
_PARTS = ("MODEL", "TOKENIZER", "LOADING", "ROWS", "TIMES")
_WIDTH = 88
_AS_IT_IS: Mapping[str, str] = {}
# The model's name in the templates, and a line before which it is loaded.
_LOADED = (
    ("model", "    model.config.use_cache = False\n"),
    ("trainer.model", "    if LORA and SHARDING"),
)
_FREEZE = """\
    beside = {parts}
    for name, parameter in {model}.named_parameters():
        if any(part in name for part in beside):
            parameter.requires_grad_(False)  # text passes none of it
"""
_PLAIN_SCALES = (
    "bnb_4bit_use_double_quant=True,  # 4.13 bits", "bnb_4bit_use_double_quant=False,  # 4.5 bits",
)  # fmt: skip


def train_py(plan: Plan, template: str, words: Mapping[str, str] = _AS_IT_IS) -> str:
    """The script of one trainer with this plan's settings in it.

    words: what stands for words of the template, in this order.
    """
    text = _script(template, _settings(plan), {**_beside_words(plan), **words})
    return text if plan.job.method.double_quant else text.replace(*_PLAIN_SCALES)


def _beside_words(plan: Plan) -> dict[str, str]:
    """What stands in a script where the checkpoint holds more than its text model.

    It is loaded by the class of the whole: AutoModelForCausalLM knows no Mistral3Config and no
    Qwen2_5_VLConfig. Where all weights train, those that text does not pass have no gradients:
    DDP stops at them. Source: transformers 5.23 models/auto/modeling_auto.py; torch 2.13
    nn/parallel/distributed.py.
    """
    if not is_beside_others(plan.job.model):
        return {}
    words = {"AutoModelForCausalLM": "AutoModelForImageTextToText"}
    if not plan.job.method.is_lora:
        for model, line in _LOADED:
            words[line] = f"{_FREEZE.format(model=model, parts=_literal(BESIDE))}{line}"
    return words


def prepare_py(plan: Plan, *, mask_prompt: bool) -> str:
    """The script that tokenises; `mask_prompt`: the loss is to be of the completions alone."""
    processes = min(plan.offer.host.cores, MOST_PROCESSES)
    return _script("prepare.py.txt", [
        *_settings(plan),
        ("PROCESSES", processes, "at most; no more than there are cores"),
        ("MASK_PROMPT", mask_prompt, "rows with a prompt: learn the completion only"),
    ])  # fmt: skip


def _script(
    template: str, settings: list[tuple[str, object, str]], instead: Mapping[str, str] = _AS_IT_IS
) -> str:
    """A template with the shared parts and those settings that it reads."""
    folder = resources.files("autotune.trainers") / "templates"
    text = (folder / template).read_text(encoding="utf-8")
    for name in _PARTS:
        part = (folder / f"{name.casefold()}.py.txt").read_text(encoding="utf-8")
        text = text.replace(f"# @{name}@\n", part)
    for word, other in instead.items():  # before anything of the user's is in it
        text = text.replace(word, other)
    words = set(re.findall(r"\w+", text))
    settings = [row for row in settings if row[0] in words]
    return text.replace(_MARK, "".join(_setting(*row) for row in settings))


def _settings(plan: Plan) -> list[tuple[str, object, str]]:
    """Name, value and comment of every setting; a script holds those that it reads."""
    job, method = plan.job, plan.job.method
    evaluation = job.evaluation
    return [
        ("MODEL", plan.model, "MODEL in the environment wins"),
        ("FROM_SCRATCH", plan.from_scratch, "the model was planned without any weights"),
        ("TOKENIZER", _tokenizer(plan), "TOKENIZER in the environment wins; None: the model's"),
        ("PRETOKENIZED", job.pretokenized, "rows are lists of tokens already"),
        ("COLUMN", job.column, "of the data; None: known by its name"),
        ("JOIN_PAIRS", plan.tokenizer == BYTES, "a question and its answer, as they were counted"),
        ("DATA", job.dataset_path, "DATA in the environment wins"),
        ("TRAIN", plan.trains, ""),
        ("EVAL_ROWS", evaluation.rows if evaluation else 0, ""),
        ("EVAL_AT_END", _evaluates_at_end(plan), ""),
        ("MAX_LENGTH", job.max_length, "tokens; longer rows are cut"),
        ("PADDING", job.padding, "longest of the batch, or max_length"),
        ("GLOBAL_BATCH_SIZE", job.global_batch_size, "micro x accumulation x devices"),
        ("BASE", method.base, "storage of the base weights"),
        ("WEIGHTS_DTYPE", weights_dtype(plan), "of weights that are not quantised"),
        ("ATTENTION", attention_words(job.model, plan.config.attention), ""),
        ("SHARDING", plan.config.sharding, ""),
        ("ADAPTER_DTYPE", adapter_dtype(plan), ""),
        ("SAVED_DTYPE", saved_dtype(plan), "of modules that train whole beside them"),
        ("LORA", _lora(plan), "None: all weights are trained"),
        ("REFERENCE", job.work.reference and not method.is_lora, "a second copy scores as well"),
        ("COLUMNS", columns_of(job), "that a row needs"),
        ("TRL_FROM", KNOWN["trl"][0], "the oldest whose arguments were read"),
    ]


def _tokenizer(plan: Plan) -> str | None:
    """A path from the root, a hub id, or the name of a folder beside the script."""
    return FOLDER if plan.tokenizer == BYTES else plan.tokenizer


def _setting(name: str, value: object, comment: str) -> str:
    text = f"{name} = {_literal(value)}"
    if comment and len(text) + len(comment) < _WIDTH:
        text += f"  # {comment}"
    return text + "\n"


def _literal(value: object) -> str:
    """Python source of a setting, with double quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # its escapes of pairs are not Python's
    if isinstance(value, dict):
        rows = "".join(f"    {json.dumps(key)}: {_literal(item)},\n" for key, item in value.items())
        return "{\n" + rows + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    return repr(value)


def _evaluates_at_end(plan: Plan) -> bool:
    evaluation = plan.job.evaluation
    return evaluation is not None and (not plan.trains or evaluation.every_steps == 0)


def _lora(plan: Plan) -> dict[str, object] | None:
    method = plan.job.method
    if not method.is_lora:
        return None
    alpha = int(method.alpha) if method.alpha == int(method.alpha) else method.alpha
    return {
        "r": method.rank,
        "lora_alpha": alpha,
        "lora_dropout": method.dropout,
        "target_modules": list(method.targets),
        **spared_keys(plan.job.model),
        **variant_keys(method),
        **({"modules_to_save": list(method.modules_to_save)} if method.modules_to_save else {}),
    }
