"""Models: the catalogue's, any folder or file with a config.json, or one attempt at the hub.

`data/models.json` holds the keys of each model's config.json that the description needs; they pass
through the same reader as a user's file, so there is one path. `data/derived_models.csv` names
fine-tunes with the model whose config.json theirs equals, apart from the keys that differ. Copies
follow from their names alone, and only where that is safe: an organisation that is known to copy
models under the names that they have, or the model's own.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.catalog import hub
from autotune.catalog.models.families import SEES
from autotune.catalog.models.hf_config import (
    MAX_CONFIG_BYTES,
    model_from_config,
    parse_config,
    read_config_file,
)
from autotune.catalog.tables import DATA, CatalogDataError, read_rows
from autotune.domain.errors import InputError, close_matches, did_you_mean, unknown
from autotune.domain.paths import stated_in
from autotune.domain.typed.values import shown
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.domain.model import Model

HOW_TO_ADD = (
    "--set model=NAME takes one of the catalogue's (`autotune models`) or the hub's, or a folder "
    "or file with config.json"
)


@lru_cache(maxsize=1)
def _entries() -> tuple[dict[str, Any], ...]:
    document = json.loads((DATA / "models.json").read_text(encoding="utf-8"))
    if document.get("schema_version") != 1:
        msg = f"models.json has schema_version {document.get('schema_version')!r}, not 1"
        raise CatalogDataError(msg)
    return tuple(document["models"])


@lru_cache(maxsize=1)
def load_models() -> dict[str, Model]:
    """Every model of the catalogue by its name on the hub (or in its source)."""
    return {entry["name"]: _model(entry["name"]) for entry in _entries()}


@lru_cache(maxsize=256)
def _model(name: str) -> Model:
    entry = _by_text()[name.casefold()][0]
    source = f"{entry['source']}; entered {entry['as_of']}"
    try:
        model = model_from_config(entry["config"], entry["name"], source)
        return replace(model, beside_params=entry.get("beside_params", 0))
    except InputError as error:
        msg = f"models.json: {error.message}"
        raise CatalogDataError(msg) from error


@lru_cache(maxsize=1)
def _by_text() -> dict[str, tuple[dict[str, Any], str]]:
    """Entry and hub name by every way to write it; a full name wins over another's short one."""
    table: dict[str, tuple[dict[str, Any], str]] = {}
    full = [(name, e) for e in _entries() for name in (e["name"], *e["aliases"])]
    for name, entry in full:
        # A short alias is no id of the hub: the model keeps the name that can be downloaded.
        table.setdefault(name.casefold(), (entry, name if "/" in name else entry["name"]))
    for name, entry in full:
        table.setdefault(name.rpartition("/")[2].casefold(), (entry, name))
    return table


def is_known(text: str) -> bool:
    """Whether the catalogue has a model of that name, with or without its organisation."""
    return text.strip().casefold() in _by_text()


def reads_text_alone(text: str) -> bool:
    """Whether a name, or a folder's last part, is a model of the catalogue without a vision tower.

    Source: Llama-4-Scout-17B-16E and Qwen3.5 config.json, which have a vision_config.
    """
    plain = text.strip().rstrip("/").rpartition("/")[2]
    if not is_known(plain) or re.match(r"llama-4|qwen3\.5|gemma-4", plain, re.IGNORECASE):
        return False
    return not _model(_by_text()[plain.casefold()][0]["name"]).beside_params


def find_model(text: str, base_dir: Path | None = None) -> Model:
    """The model a person means. Raises InputError with the closest names and how to add one.

    In this order: a path (./dir, /dir, ~/dir, file.json; relative to `base_dir`), a name of the
    catalogue in any case and with or without its organisation, a folder that exists, the config of
    a hub id in the hub's cache, a fine-tune or copy whose name says whose shape it has, the hub.
    The hub is asked once, for at most three seconds, and not at all when AUTOTUNE_OFFLINE or
    HF_HUB_OFFLINE is set; its cache on this disk comes first.
    """
    wanted = text.strip()
    if not wanted or "\0" in wanted:
        msg = f"model {text!r} is not a name"
        raise InputError(msg, HOW_TO_ADD)
    path = stated_in(base_dir or Path(), wanted)
    away = wanted.count("/") > 1 and not _exists(path)
    wanted = hub.of_cache(wanted) if away else wanted
    if wanted.startswith((".", "/", "~")) or wanted.casefold().endswith(".json"):
        _refuse_missing(path, wanted)
        return _from_path(path, wanted)
    found = _by_text().get(wanted.casefold())
    if found is not None:
        entry, name = found
        model = _model(entry["name"])
        model = model if name == model.name else replace(model, name=name)
        stored = stored_by_name(name)
        return replace(model, stored_as=stored, plain_name=entry["name"]) if stored else model
    if _is_dir(path):
        return _from_path(path, wanted)
    reason = "a shell decides it" if "$" in wanted else "it is not in the catalogue"
    derived = derived_of(wanted, _known_name)
    if derived is not None and hub.cached_file(wanted, "config.json") is None:
        return _from_name(wanted if "/" in wanted else derived.plain, derived)
    if hub.is_hub_id(wanted):
        outcome = _from_hub(wanted)
        if not isinstance(outcome, str):
            return replace(outcome, plain_name=derived.plain) if derived else outcome
        reason = f"{outcome}; a fine-tune has the shape of its base: name that one"
    _refuse_undescribed(wanted)
    if re.fullmatch(SEES, wanted, re.IGNORECASE):  # a text model of a like name is another one
        msg = f'unknown model "{text[:200]}": by its name it reads pictures too'
        hint = "pass a folder or file with its config.json: the text model inside it is priced"
        raise InputError(msg, f"{hint}; {reason.partition('; a fine-tune')[0]}")
    if "/" in wanted and not close_matches(wanted, _names()):  # a folder that a job file names
        reason = f"no folder {path}; {reason}"
    raise unknown(kind="model", value=text[:200], known=_names(), hint=f"{reason}; {HOW_TO_ADD}")


def _refuse_undescribed(name: str) -> None:
    """Raise InputError where the name alone says that the model is of a kind not described."""
    plain = _split(name)[0].rpartition("/")[2]
    for row in read_rows(DATA / "undescribed_models.csv"):
        if re.fullmatch(row["names"], plain, re.IGNORECASE):
            msg = f"model {shown(name)} has {row['what']}, which this version cannot describe"
            hint = "its memory and time would be wrong; choose a model that `autotune models` lists"
            raise InputError(msg, f"{hint}, as --set model=NAME")


def _known_name(text: str) -> str | None:
    """The catalogue's name, or alias with an organisation, that a text is; None where it is none.

    Names that say how weights are quantised are no plain model's.
    """
    found = _by_text().get(text.casefold())
    return None if found is None or stored_by_name(found[1]) else found[1]


def _from_name(name: str, derived: Derived) -> Model:
    """The model of a name that says whose shape it has."""
    entry = _by_text()[derived.base.casefold()][0]
    source = f"{derived.why}; the shape of {derived.base}"
    model = model_from_config({**entry["config"], **dict(derived.config)}, name, source)
    return replace(
        model,
        beside_params=entry.get("beside_params", 0),
        stored_as=derived.stored_as or model.stored_as,
        shape_of=derived.base,
        plain_name=derived.plain,
    )


def _names() -> list[str]:
    own = [name for entry in _entries() for name in (entry["name"], *entry["aliases"])]
    return [*own, *derived_names()]


def _refuse_missing(path: Path, text: str) -> None:
    """Raise InputError for a folder that is not there, with the model that its name may mean."""
    if path.suffix.casefold() == ".json" or _exists(path):
        return
    meant = did_you_mean(close_matches(path.name, _names()))
    msg = f'unknown model "{text[:200]}": there is no such folder here{meant}'
    raise InputError(msg, HOW_TO_ADD)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long for the file system
        return False


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name too long for the file system
        return False


def _from_path(path: Path, text: str) -> Model:
    file = path / "config.json" if _is_dir(path) else path
    return model_from_config(read_config_file(file), text, str(file))


def local_folder(model: Model, base_dir: Path | str | None = None) -> Path | None:
    """The folder on this machine that the model lies in; None where there is none.

    It is the one that its config was read from, else one of its name in `base_dir`.
    """
    file = Path(model.source)
    with contextlib.suppress(OSError, ValueError):  # a source that is no path at all
        if file.is_absolute() and file.is_file():
            return file.parent
    if base_dir is None or "\0" in model.name:
        return None
    beside = stated_in(base_dir, model.name)
    return beside if _is_dir(beside) else None


def _from_hub(name: str) -> Model | str:
    """The hub's model, or the reason why there is none."""
    data = fetch_config(name)
    if isinstance(data, str):
        return data
    url = hub.address(name, "config.json")
    return model_from_config(parse_config(data, url), name, url)


def fetch_config(name: str) -> bytes | str:
    """The config.json of a hub id, from its cache or by one request, or why there is none."""
    found = hub.find_file(name, "config.json", most_bytes=MAX_CONFIG_BYTES)
    return found.where if found.content is None else found.content


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
PARTLY = re.compile(r"-unsloth-bnb-4bit$", re.IGNORECASE)  # some layers stay in 16 bit
# Who copies models as they are, under their own names. Source: unsloth 2026.10.9, models/mapper.py,
# maps each of its names to the model that it is a copy of; NousResearch's model cards.
_COPIES = {"unsloth", "nousresearch"}
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
    return _split(name)[1]


def _split(name: str) -> tuple[str, str]:
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
    short, stored = _split(name)
    plain = _plain(short, owner.casefold(), stored, known)
    if plain is None:
        return None
    found = _resolved(plain, known)
    if found is None:
        return None
    base, config, source = found
    if not slash or name.casefold() == plain.casefold():
        return Derived(plain, base, config, "", source)
    why = f"{owner} copies {plain} under its name"
    if stored:
        why = f"a copy of {plain} with weights quantised by {stored}, as its name says"
        if PARTLY.search(name):
            why += "; some of its layers stay in 16 bit, which is not counted"
    return Derived(plain, base, config, stored, why)


def _plain(short: str, owner: str, stored: str, known: Callable[[str], str | None]) -> str | None:
    """The model that a name without its suffix is of; None where the name alone is no proof."""
    own = _named(short, known)
    if own is not None:
        return own
    bare = short.partition("/")[2]
    if owner in _COPIES or (stored and owner in _QUANTISES | _APPLE):
        return _named(bare, known)
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


def derived_names() -> list[str]:
    """Full names of the shipped fine-tunes."""
    return sorted({entry.name for entry in _table().values()})
