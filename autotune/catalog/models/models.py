"""Models: the catalogue's, any folder or file with a config.json, or one attempt at the hub.

`data/models.json` holds the keys of each model's config.json that the description needs; they pass
through the same reader as a user's file, so there is one path.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.catalog import hub
from autotune.catalog.models.derived import derived_names, derived_of, stored_by_name
from autotune.catalog.models.hf_config import (
    MAX_CONFIG_BYTES,
    model_from_config,
    parse_config,
    read_config_file,
)
from autotune.catalog.tables import DATA, CatalogDataError
from autotune.domain.errors import InputError, unknown
from autotune.domain.paths import stated_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.catalog.models.derived import Derived
    from autotune.domain.model import Model

HOW_TO_ADD = "pass a folder or file with config.json, or see the catalogue with `autotune models`"


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
    return {entry["name"]: _model(entry) for entry in _entries()}


@lru_cache(maxsize=1)
def expected_parameters() -> dict[str, int]:
    """[elements] published parameter counts, for the models where one is known."""
    return {
        entry["name"]: int(entry["n_parameters"]) for entry in _entries() if "n_parameters" in entry
    }


def _model(entry: Mapping[str, Any]) -> Model:
    source = f"{entry['source']}; entered {entry['as_of']}"
    try:
        return model_from_config(entry["config"], entry["name"], source)
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
    if wanted.startswith((".", "/", "~")) or wanted.casefold().endswith(".json"):
        return _from_path(path, wanted)
    found = _by_text().get(wanted.casefold())
    if found is not None:
        entry, name = found
        model = load_models()[entry["name"]]
        model = model if name == model.name else replace(model, name=name)
        stored = stored_by_name(name)
        return replace(model, stored_as=stored, plain_name=entry["name"]) if stored else model
    if _is_dir(path):
        return _from_path(path, wanted)
    reason = "it is not in the catalogue"
    derived = derived_of(wanted, _known_name)
    if derived is not None and hub.cached_file(wanted, "config.json") is None:
        return _from_name(wanted if "/" in wanted else derived.plain, derived)
    if hub.is_hub_id(wanted):
        outcome = _from_hub(wanted)
        if not isinstance(outcome, str):
            return replace(outcome, plain_name=derived.plain) if derived else outcome
        reason = f"{outcome}; a fine-tune has the shape of its base: name that one"
    raise unknown(kind="model", value=text[:200], known=_names(), hint=f"{reason}; {HOW_TO_ADD}")


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
        stored_as=derived.stored_as or model.stored_as,
        shape_of=derived.base,
        plain_name=derived.plain,
    )


def _names() -> list[str]:
    own = [name for entry in _entries() for name in (entry["name"], *entry["aliases"])]
    return [*own, *derived_names()]


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
