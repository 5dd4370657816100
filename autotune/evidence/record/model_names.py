"""The catalogue's model for whatever a table calls it: its name, that of a copy, or a framework's.

Looked up by bare names, in the catalogue and never at the hub.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autotune.domain.model import Model

# Parts of a repackaged model's name that do not change its shape.
_REPACKED = re.compile(
    r"[-_](gptq|awq|int4|int8|bnb-4bit|4bit|8bit|unsloth-bnb-4bit|gguf|hf-4bit)\b", re.IGNORECASE
)
# What ms-swift calls models, and whose shape those have. OpenBuddy's fine-tunes add words to the
# vocabulary, which the shape leaves out. Source: ms-swift, swift/llm/utils/model.py.
_SHAPES = (
    (r"qwen1half-(\d+b|0_5b|1_8b|4b)(-chat)?(-int[48]|-awq)?", r"Qwen1.5-\1"),
    (r"(?:openbuddy-)?llama2-(7b|13b|70b)(-chat|-v[\d.]+(-bf16)?)*", r"Llama-2-\1-hf"),
    (r"(?:openbuddy-)?mistral-7b(-chat|-instruct|-v[\d.]+(-hf)?)*", r"Mistral-7B-v0.1"),
    (r"baichuan2-(7b|13b)", r"Baichuan2-\1-Chat"),
    (r"chatglm2-6b(-32k)?", r"chatglm3-6b"),
    (r"phi2-3b", r"phi-2"),
    (r"functiongemma-270m(-it)?", r"gemma-3-270m"),
)


@lru_cache(maxsize=1024)
def model_named(text: str, find_model: Callable[[str], Model]) -> Model | None:
    """The catalogue's model by its bare name, or that of what was repackaged; None if unknown."""
    for form in dict.fromkeys(_forms(text)):
        if not form or form.startswith((".", "~")) or form.casefold().endswith(".json"):
            continue
        try:
            return find_model(form)
        except InputError:
            continue
    return None


def _forms(text: str) -> Iterator[str]:
    """Ways to write the name, most specific first; what stands in brackets is a remark."""
    plain = re.sub(r"\(.*?\)", "", text).strip()
    for bare in (text.rsplit("/", 1)[-1], plain.rsplit("/", 1)[-1]):
        yield bare
        yield _REPACKED.sub("", bare)
    last = plain.rsplit("/", 1)[-1]
    for pattern, name in _SHAPES:
        found = re.fullmatch(pattern, last, re.IGNORECASE)
        if found:
            yield found.expand(name)
