"""What a model's name says of it: a fine-tune of another's shape, a copy, quantised weights.

`data/derived_models.csv` names fine-tunes with the model whose config.json theirs equals, apart
from the keys that differ. Copies follow from their names alone, and only where that is safe: an
organisation that is known to copy models under the names that they have, or the model's own.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from autotune.catalog.tables import DATA, CatalogDataError, read_rows
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

# How a copy's name says that its weights are quantised, and how. Source: the names on the hub of
# the organisations below; "-bnb-4bit" and "-BNB-NF4" are bitsandbytes' nf4, "w4a16" is
# compressed-tensors', "MLX" Apple's, and the others are the methods of that name.
_QUANTISED = (
    (
        re.compile(r"(?:-unsloth)?-bnb-4bit$|(?:-linearized)?-bnb-nf4(?:-bf16)?$", re.IGNORECASE),
        "nf4",
    ),
    (re.compile(r"-bnb-8bit$", re.IGNORECASE), "int8"),
    (re.compile(r"(?:-i1)?-gguf$", re.IGNORECASE), "gguf"),
    (re.compile(r"-gptq(?:-int[348]|-[348]bit)?(?:-\w+)?$|-int[48]$", re.IGNORECASE), "gptq"),
    (re.compile(r"-awq(?:-int4|-4bit)?$", re.IGNORECASE), "awq"),
    (re.compile(r"-fp8(?:-dynamic|-block|-kv)?$", re.IGNORECASE), "fp8"),
    (re.compile(r"-quantized\.w[0-9]+a[0-9]+$", re.IGNORECASE), "compressed-tensors"),
    (re.compile(r"-exl[23](?:-.+)?$", re.IGNORECASE), "exl2"),
    (re.compile(r"-aqlm(?:-.+)?$", re.IGNORECASE), "aqlm"),
)
_MLX = re.compile(r"-(?:[2-8]bit|bf16|fp16)(?:-mlx)?$|-mlx(?:-[2-8]bit)?$", re.IGNORECASE)
_PARTLY = re.compile(r"-unsloth-bnb-4bit$", re.IGNORECASE)  # some layers stay in 16 bit
# Who has models as they are, under their own names. Source: unsloth 2026.10.9, models/mapper.py,
# maps each of its names to the model that it is a copy of; NousResearch's model cards. ModelScope's
# organisations: hiyouga/LlamaFactory at ff6d4d12, extras/constants.py, and modelscope/ms-swift at
# 3602360a, Supported-models-and-datasets.md, name a model on both hubs (over 500 pairs). The last
# four are two companies, whose organisations were renamed.
_COPIES = {
    "unsloth", "nousresearch",
    "ai-modelscope", "llm-research", "swift", "zhipuai", "shanghai_ai_laboratory",
    "tencent-hunyuan", "01ai", "paddlepaddle", "teleai", "minimax", "nv-community",
    "openai-mirror",
    "cohereforai", "coherelabs", "thudm", "zai-org",
}  # fmt: skip
_IN_16_BIT = re.compile(r"-bf16$", re.IGNORECASE)  # of a copy whose model is stored in fewer
# Who only quantises what others trained. Source: the organisations' pages on the hub.
_QUANTISES = {
    "unsloth", "thebloke", "techxgenus", "hugging-quants", "redhatai", "neuralmagic",
    "casperhansen", "bartowski", "quantfactory", "lmstudio-community", "mradermacher",
    "maziyarpanahi", "solidrust", "ista-daslab", "turboderp", "modelcloud", "axolotl-quants",
}  # fmt: skip
_APPLE = {"mlx-community"}


@dataclass(frozen=True, slots=True)
class Derived:
    """What a name says. plain: the same model with weights that are not quantised."""

    plain: str
    base: str  # of the catalogue; whose shape it has
    config: tuple[tuple[str, Any], ...]  # keys of config.json that differ from the base's
    stored_as: str
    why: str


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    base: str
    config: tuple[tuple[str, Any], ...]
    source: str


def stored_by_name(name: str) -> str:
    """How a model of that name stores its weights: nf4, gptq, gguf, ...; empty where plain."""
    return split_name(name)[1]


def split_name(name: str) -> tuple[str, str]:
    """A name without what says how it is quantised, and that."""
    owner = name.partition("/")[0].casefold()
    for pattern, kind in ((_MLX, "mlx"),) if owner in _APPLE else _QUANTISED:
        short = pattern.sub("", name)
        if short != name:
            return short, kind
    return name, ""


def derived_of(name: str, known: Callable[[str], str | None]) -> Derived | None:
    """What a hub's name says of a model that the catalogue lacks; None where nothing is safe.

    known: the catalogue's own spelling of a name, with or without its organisation.
    """
    owner, slash, _ = name.partition("/")
    if not slash and name.casefold() not in _table():
        return None
    short, stored = split_name(name)
    plain = _plain(short, owner.casefold(), stored, known)
    if plain is None:
        return None
    found = _resolved(plain, known)
    if found is None:
        return None
    base, config, source = found
    if not slash or name.casefold() == plain.casefold():
        return Derived(plain, base, config, "", source)
    why = f"{owner} has {plain} under the same name"
    if stored:
        why = f"a copy of {plain} with weights quantised by {stored}, as its name says"
        if _PARTLY.search(name):
            why += "; some of its layers stay in 16 bit, which is not counted"
    return Derived(plain, base, config, stored, why)


def _plain(short: str, owner: str, stored: str, known: Callable[[str], str | None]) -> str | None:
    """The model that a name without its suffix is of; None where the name alone is no proof."""
    own = _named(short, known)
    if own is not None:
        return own
    bare = short.partition("/")[2]
    if owner in _COPIES or (stored and owner in _QUANTISES | _APPLE):
        return _named(bare, known) or _named(_IN_16_BIT.sub("", bare), known)
    return None


def _named(name: str, known: Callable[[str], str | None]) -> str | None:
    """The full name of a model that is known, in the table or in the catalogue."""
    entry = _table().get(name.casefold())
    return entry.name if entry is not None else known(name)


def _resolved(
    plain: str, known: Callable[[str], str | None]
) -> tuple[str, tuple[tuple[str, Any], ...], str] | None:
    """The catalogue's model behind a name, the keys that differ, and who says so."""
    entry = _table().get(plain.casefold())
    if entry is None:
        base = known(plain)
        return (base, (), "") if base is not None else None
    further = _resolved(entry.base, known)
    if further is None:
        return None
    return further[0], (*further[1], *entry.config), entry.source


@lru_cache(maxsize=1)
def _table() -> dict[str, _Entry]:
    """The shipped fine-tunes by name, with and without their organisation."""
    table: dict[str, _Entry] = {}
    for row in read_rows(DATA / "derived_models.csv"):
        config = tuple(_pair(text, row["name"]) for text in row["config"].split(";") if text)
        source = f"{row['source']}; entered {row['entered']}"
        entry = _Entry(row["name"], row["base"], config, source)
        table[row["name"].casefold()] = entry
        table.setdefault(row["name"].partition("/")[2].casefold(), entry)
    return table


def _pair(text: str, name: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        msg = f"derived_models.csv: {name}: {text!r} is no KEY=VALUE"
        raise CatalogDataError(msg)
    return key, json.loads(value)


def is_derived(name: str) -> bool:
    """Whether a shipped fine-tune has that name, with or without its organisation."""
    return name.casefold() in _table()


def derived_names() -> list[str]:
    """Full names of the shipped fine-tunes."""
    return sorted({entry.name for entry in _table().values()})
