"""What the model decides of a trainer's file: the modules that carry adapters, by its own names.

They are named by a pattern, as a trainer does, or by PEFT's defaults.

A trainer with model code of its own names projections that transformers fuses; PEFT takes a regular
expression over whole module names, and names that match nothing beside others that do.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from autotune.catalog.models.models import find_model, lies_elsewhere
from autotune.cost.parameters import FUSED_QKV, SPLIT_QKV, saveable
from autotune.domain.errors import InputError
from autotune.domain.job import Uncounted
from autotune.trainers.hf.adapter import CASTS_SAVED
from autotune.trainers.schema import schema_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from autotune.domain.model import Model
    from autotune.trainers.parsed import Parsed

_ALL = {"all-linear", "attention"}
_PATTERN = re.compile(r"[\\|()\[\]*+?^$]")
_SAME = {  # what a name of one model's code is called in another's, most like it first
    "q_proj": FUSED_QKV, "k_proj": FUSED_QKV, "v_proj": FUSED_QKV,
    **dict.fromkeys(FUSED_QKV, SPLIT_QKV),
    "o_proj": ("dense", "out_proj", "c_proj"), "out_proj": ("o_proj", "dense", "c_proj"),
    "gate_proj": ("gate_up_proj", "dense_h_to_4h", "fc1", "c_fc", "w1"),
    "up_proj": ("gate_up_proj", "dense_h_to_4h", "fc1", "c_fc", "w3"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "down_proj": ("dense_4h_to_h", "fc2", "c_proj", "w2"),
    "w1": ("gate_proj",), "w2": ("down_proj",), "w3": ("up_proj",),
}  # fmt: skip
_WHOLE = {"embed_tokens", "lm_head", "wte", "embed_in", "embed_out"}  # trained as they are
# Whole module names of a layer, as model classes have them. Source: transformers 5.23, models/.
_BEFORE = ("model.layers", "model.language_model.layers", "language_model.model.layers",
           "model.text_model.layers", "base_model.model.model.layers")  # fmt: skip
_INSIDE = ("self_attn", "cross_attn", "mlp", "mlp.shared_experts", "mlp.experts.0")
_LAYERS = range(32)


def say_folder(parsed: Parsed, text: str, folder: Path) -> None:
    """Warn of a model in a folder of another machine, which is priced as the folder is called."""
    with contextlib.suppress(InputError):
        model = find_model(text, folder)
        if lies_elsewhere(model):
            last = text.rstrip("/").rpartition("/")[2]
            parsed.uncounted.append(Uncounted("model", last, model.source, 0.0, 0.0))


def fill_targets(parsed: Parsed, text: str, folder: Path) -> None:
    """Put the model's own names in: of a pattern, of fused modules, or of PEFT's defaults."""
    stated = parsed.values.get("method", {}).get("targets")
    if not parsed.peft_targets and (not stated or set(stated) <= _ALL):
        return
    with contextlib.suppress(InputError):  # an unknown model is refused where the job is resolved
        model = find_model(text, folder)
        if parsed.peft_targets:
            _fill_defaults(parsed, model)
        else:
            _own_names(parsed, model, [str(name) for name in stated])


def fill_saved(parsed: Parsed, text: str, folder: Path) -> None:
    """Of the modules that the file trains whole, those that are priced, by the model's names.

    PEFT takes modules whose whole name ends so, and passes over a name that fits none.
    """
    method = parsed.values.get("method", {})
    stated = method.pop("modules_to_save", None)
    if not stated or method.get("kind") == "full":
        return
    with contextlib.suppress(InputError):
        model = find_model(text, folder)
        can = saveable(model)
        linears = {x.name for x in model.matrices}
        names = list(dict.fromkeys(str(name).rpartition(".")[2] for name in stated))
        found = [name for name in names if name in can]
        other = [name for name in names if name in linears]
        small = [name for name in names if "norm" in name]
        lost = [name for name in names if name not in {*found, *other, *small}]
        if found:
            method["modules_to_save"] = found
            parsed.saves_as_loaded = parsed.trainer not in CASTS_SAVED
        if other:
            parsed.uncounted.append(Uncounted(_SAVED, ", ".join(other), _NOT_WHOLE, 0.15, 0.25))
        if small:
            parsed.note(_SAVED, ", ".join(small), "too small to matter: not counted")
        if lost:
            why = f"no modules of {model.name}, which PEFT passes over: not trained whole"
            parsed.note(_SAVED, ", ".join(lost), why)


_SAVED = "method.modules_to_save"
_NOT_WHOLE = "matrices of the layers that train whole are not counted: more memory, a longer step"


def _fill_defaults(parsed: Parsed, model: Model) -> None:
    """The modules that PEFT adapts where the file names none; it goes by the model's type."""
    family, peft = model.family, schema_of("peft")
    targets = peft.targets.get(family)
    why = f"not in the file; the default of {peft.newest} for {family}"
    if targets is None:
        why = f"not in the file, and {peft.newest} has no default for {family}: state them"
    parsed.note("method.targets", ", ".join(targets or ["all-linear"]), why)
    parsed.part("method", targets=targets)


def _own_names(parsed: Parsed, model: Model, stated: list[str]) -> None:
    own = list(dict.fromkeys(x.name for x in model.matrices if x.adaptable))
    found: list[str] = []
    renamed: list[str] = []
    whole: list[str] = []
    lost: list[str] = []
    for name in stated:
        last = name.rpartition(".")[2]
        if _PATTERN.search(name):
            matched = _matched(name, own, parsed)
            found += matched
            (renamed if matched else lost).append(name)
        elif name in own or name in _ALL:
            found.append(name)
        elif last in own:
            found.append(last)
        elif name in _WHOLE:
            whole.append(name)
        else:
            others = [other for other in _SAME.get(last, ()) if other in own]
            found += others if last in {"gate_up_proj", *FUSED_QKV} else others[:1]
            (renamed if others else lost).append(name)
    if found and lost:
        parsed.note("method.targets", ", ".join(lost), f"no modules of {model.name}; left out")
    if renamed:
        names = ", ".join(dict.fromkeys(found))
        parsed.note("method.targets", names, f"{', '.join(renamed)[:300]} in {model.name}'s words")
    if found and whole:
        why = "adapters on embeddings or the head are not counted: more memory, a longer step"
        parsed.uncounted.append(Uncounted("method.targets", ", ".join(whole), why, 0.10, 0.15))
    if found:
        parsed.values["method"]["targets"] = list(dict.fromkeys(found))


def _matched(pattern: str, own: Iterable[str], parsed: Parsed) -> list[str]:
    """The names that the pattern matches in some layer; in some alone, it counts on all."""
    try:
        expression = re.compile(pattern)
    except re.error:
        return []
    found = {}
    for name in own:
        layers = sum(
            any(
                expression.fullmatch(f"{before}.{layer}.{inside}.{name}")
                for before in _BEFORE
                for inside in _INSIDE
            )
            for layer in _LAYERS
        )
        if layers:
            found[name] = layers
    if found and min(found.values()) < len(_LAYERS):
        why = "the pattern takes some layers alone, and all are counted: less memory and time"
        parsed.uncounted.append(Uncounted("method.targets", pattern[:100], why, 0.15, 0.15))
    return list(found)
