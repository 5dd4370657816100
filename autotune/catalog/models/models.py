"""Models: the catalogue's, any folder or file with a config.json, or one attempt at the hub.

`data/models.json` holds the keys of each model's config.json that the description needs; they pass
through the same reader as a user's file, so there is one path. What else a name says is in
`derived.py`. A folder that is not on this machine is the model that it is called after.
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
from autotune.catalog.models.derived import (
    Derived,
    derived_names,
    derived_of,
    is_derived,
    split_name,
    stored_by_name,
)
from autotune.catalog.models.families import SEES
from autotune.catalog.models.hf_config import (
    MAX_CONFIG_BYTES,
    model_from_config,
    parse_config,
    read_config_file,
)
from autotune.catalog.models.short_names import meant_by
from autotune.catalog.tables import DATA, CatalogDataError, read_rows
from autotune.domain.errors import InputError, close_matches, did_you_mean, unknown
from autotune.domain.paths import stated_in
from autotune.domain.typed.values import shown

if TYPE_CHECKING:
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


def is_named(text: str) -> bool:
    """Whether `find_model` needs neither file nor hub for a text: a shipped model, or its copy."""
    plain = text.strip()
    if is_known(plain) or is_derived(plain) or in_full(plain):
        return True
    return not _FOLDERS.match(plain) and derived_of(plain, _known_name) is not None


@lru_cache(maxsize=256)
def in_full(text: str) -> tuple[str, ...]:
    """The full names that a short one means, all of one shape; the first is the one to take.

    Empty for a full name, for one that the catalogue has, and where models of several shapes may
    be meant.
    """
    short = text.strip()
    if "/" in short or is_known(short) or is_derived(short):
        return ()
    names = [name for name in meant_by(short, _names()) if "/" in name]
    shapes = {_shape(find_model(name)) for name in names}
    return tuple(names) if len(shapes) == 1 else ()


def _shape(model: Model) -> Model:
    """What memory and FLOP depend on, whatever it is called and however long its context is."""
    return replace(
        model, name="", source="", hf_config="{}", max_position_embeddings=0, shape_of="",
        plain_name="",
    )  # fmt: skip


def models_like(text: str) -> list[str]:
    """Names of the catalogue nearest to a mistyped one."""
    return close_matches(text, _names())


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
    a hub id in the hub's cache, a fine-tune or copy whose name says whose shape it has, a name that
    leaves out how the model was tuned, the hub.
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
        return _from_folder(path, wanted) or _from_file(path, wanted)
    found = _by_text().get(wanted.casefold())
    if found is not None:
        return _of_catalogue(*found)
    local = _from_folder(path, wanted)
    if local is not None:
        return local
    derived = derived_of(wanted, _known_name)
    if derived is not None and hub.cached_file(wanted, "config.json") is None:
        return _from_name(wanted if "/" in wanted else derived.plain, derived)
    meant = in_full(wanted)
    if meant:
        return find_model(meant[0])
    outcome = _from_hub(wanted) if hub.is_hub_id(wanted) else ""
    if not isinstance(outcome, str):
        return replace(outcome, plain_name=derived.plain) if derived else outcome
    raise _unknown(text, wanted, path, outcome)


def _unknown(text: str, wanted: str, path: Path, outcome: str) -> InputError:
    """The error for what is no model. outcome: why the hub has none; empty where it has no id."""
    reason = "a shell decides it" if "$" in wanted else "it is not in the catalogue"
    if outcome:
        reason = f"{outcome}; a fine-tune has the shape of its base: name that one"
    _refuse_undescribed(wanted)
    if re.fullmatch(SEES, wanted, re.IGNORECASE):  # a text model of a like name is another one
        msg = f'unknown model "{text[:200]}": by its name it reads pictures too'
        hint = "pass a folder or file with its config.json: the text model inside it is priced"
        return InputError(msg, f"{hint}; {reason.partition('; a fine-tune')[0]}")
    if "/" in wanted and not close_matches(wanted, _names()):  # a folder that a job file names
        reason = f"no folder {path}; {reason}"
    return unknown(kind="model", value=text[:200], known=_names(), hint=f"{reason}; {HOW_TO_ADD}")


def _of_catalogue(entry: dict[str, Any], name: str) -> Model:
    """An entry's model, or the copy of it that an alias says how to store."""
    model = _model(entry["name"])
    if name == model.name:  # no entry is called after a copy
        return model
    model = replace(model, name=name)
    stored = stored_by_name(name)
    return replace(model, stored_as=stored, plain_name=entry["name"]) if stored else model


def _refuse_undescribed(name: str) -> None:
    """Raise InputError where the name alone says that the model is of a kind not described."""
    plain = split_name(name)[0].rpartition("/")[2]
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


# A path, and no id of the hub: one that begins so, several folders deep, a shell's variable, or
# what people call the folder of their models.
_FOLDERS = re.compile(
    r"[./~]|[^/]*/[^/]*/.|.*\$|(\w+_)?(models?|ckpts?|checkpoints?|pretrained|weights|llms?)/",
    re.IGNORECASE,
)


def _from_folder(path: Path, text: str) -> Model | None:
    """The model in a folder or, where another machine has the folder, the one it is called after.

    Its last part is a model's name, with or without its organisation, whatever hyphens, dots and
    underscores stand in it: `/data/Llama-3-8B`. None where the name says none.
    """
    if _is_dir(path):
        return _from_path(path, text)
    last = text.rstrip("/").rpartition("/")[2]
    if _exists(path) or not _FOLDERS.match(text) or "$" in last:
        return None
    known = is_known(last) or is_derived(last)
    meant = [last] if known else [*_alike(last).values()] or in_full(last)[:1]
    if len(meant) != 1:
        return None
    model = find_model(meant[0])
    why = f"priced as {model.name}; {_CALLED_AFTER}"
    return replace(model, name=text, source=why, shape_of=model.name)


_CALLED_AFTER = "no such folder here, and it is called after that model"


def lies_elsewhere(model: Model) -> bool:
    """Whether a folder's name alone says what the model is, as it is not on this machine."""
    return model.source.endswith(_CALLED_AFTER)


def _alike(name: str) -> dict[str, str]:
    """A way to write each model of the catalogue whose name differs in punctuation alone."""
    table = _by_text()
    return {entry["name"]: way for way, (entry, _) in table.items() if _bare(way) == _bare(name)}


def _bare(name: str) -> str:
    return re.sub(r"[-_.]", "", name).casefold()


def _names() -> list[str]:
    own = [name for entry in _entries() for name in (entry["name"], *entry["aliases"])]
    return [*own, *derived_names()]


def _refuse_missing(path: Path, text: str) -> None:
    """Raise InputError for a folder that is not there, with the model that its name may mean."""
    if path.suffix.casefold() == ".json" or _exists(path):
        return
    meant = did_you_mean(models_like(path.name))
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


def _from_file(path: Path, text: str) -> Model:
    _refuse_missing(path, text)
    return _from_path(path, text)


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
