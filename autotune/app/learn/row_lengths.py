"""How long a training's rows were: from its floating-point operations, else its count of tokens.

    tokens = total_flos / (6 x parameters without input embeddings), padding included

Under FSDP the Trainer counts the parameters of one rank's shard; packing says the length itself.
Source: transformers, `floating_point_ops` and `num_parameters` of modeling_utils.py.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune.cost.parameters import embedding_parameters, lora_parameters, parameter_count
from autotune.evidence.record.training import model_targets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.app.learn.found import Found
    from autotune.app.learn.timed import Timed
    from autotune.domain.model import Model
    from autotune.trainers.parsed import Parsed


def length_of(
    found: Found, parsed: Parsed, model: Model, cells: dict[str, str], timed: Timed
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The longest row and what the notes say of the mean."""
    cap = parsed.values.get("data", {}).get("max_length")
    made: dict[str, str] = {"seq_len": str(cap)} if cap else {}
    if cells["packing"] == "yes":
        return made, ()
    rows = int(cells["global_batch"]) * (found.steps or timed.steps)
    each = _tokens_a_row(found, model, cells, rows, cap)
    if each is None:
        return made, ()
    if cap and each > 0.98 * cap:
        return made, (
            f"every row {cap} tokens: avg tokens/sample incl. padding = {each:.0f} exactly",
        )
    return made, (f"avg tokens/sample incl. padding = {each:.0f}",)


def _tokens_a_row(
    found: Found, model: Model, cells: Mapping[str, str], rows: int, cap: int | None
) -> float | None:
    flos = found.results.get("total_flos")
    if flos:
        parameters = float(parameter_count(model) - embedding_parameters(model))
        if cells["lora_r"]:
            targets, _ = model_targets(model, tuple(cells["target_modules"].split()))
            parameters += lora_parameters(model, int(cells["lora_r"]), targets)
        shards = int(cells["n_gpus"]) if cells["parallelism"] == "fsdp" else 1
        if cells["parallelism"] == "zero3":
            return found.tokens / rows if found.tokens else None
        each = flos / (6.0 * parameters / shards) / rows
        if 1.0 <= each <= 1.05 * (cap or model.max_position_embeddings or math.inf):
            return each
    return found.tokens / rows if found.tokens else None
