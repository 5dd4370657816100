"""What the files that a Trainer saved beside its state say of the model and the method.

A checkpoint of an adapter holds PEFT's `adapter_config.json`, one of whole weights the model's
`config.json`. Source: peft 0.21, `PeftConfig.save_pretrained`; transformers 5.23,
`PreTrainedModel.save_pretrained`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

ADAPTER, CONFIG = "adapter_config.json", "config.json"
SIZES = {  # of `Model`, by the keys of a config.json
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
}
FINAL = "final"  # where an exported script saves the result
LARGEST = 1_000_000  # [bytes] of such a file


def saved_beside(state: Path) -> tuple[dict[str, int], dict[str, Any]]:
    """Sizes of the model and values of the method; empty where nothing readable says them."""
    here = state.resolve().parent
    for folder in (here, here / FINAL):
        adapter = _mapping(folder / ADAPTER)
        if adapter.get("peft_type") == "LORA":
            rank = adapter.get("r")
            return {}, {"kind": "lora", **({"rank": rank} if _is_size(rank) else {})}
        sizes = model_sizes(_mapping(folder / CONFIG))
        if sizes:
            return sizes, {"kind": "full"}
    return {}, {}


def model_sizes(config: dict[str, Any]) -> dict[str, int]:
    """The sizes that tell a model from another; a composite's, of its text part."""
    text = config.get("text_config")
    text = text if isinstance(text, dict) else config
    return {ours: text[key] for ours, key in SIZES.items() if _is_size(text.get(key))}


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _mapping(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LARGEST:
            return {}
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
