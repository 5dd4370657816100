"""The keys that each trainer takes, as package data: version by version, with kinds and defaults.

The files in `data/` are written by `python -m bench.trainer_schemas` from released packages; each
says which versions it was read from, and where in them.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any

from autotune.trainers.versions import parse_version

_ALIKE = 0.75  # share of letters in common from which a key may be another one misspelt
_KINDS: dict[str, tuple[type, ...]] = {
    "bool": (bool,), "int": (int,), "float": (int, float), "str": (str,), "list": (list, tuple),
    "dict": (dict,), "null": (type(None),),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Key:
    """One key: the kinds of value it takes, its default, and the versions that have it."""

    kinds: frozenset[str]
    default: Any = None  # None as well where it is computed
    since: str = ""  # empty: in the oldest version that was read
    until: str = ""  # the package and the last version that has it; empty: the newest one

    def admits(self, value: object) -> bool:
        """Whether a value is of one of the kinds; true and false are no numbers."""
        if "any" in self.kinds:
            return True
        if isinstance(value, bool):
            return "bool" in self.kinds
        if isinstance(value, float) and value.is_integer() and "int" in self.kinds:
            return True
        return any(isinstance(value, kind) for name in self.kinds for kind in _KINDS[name])

    @property
    def says(self) -> str:
        """The kinds in words."""
        words = {"bool": "true or false", "int": "a whole number", "float": "a number",
                 "str": "text", "list": "a list", "dict": "a mapping"}  # fmt: skip
        return " or ".join(words[kind] for kind in sorted(self.kinds - {"null"}))


@dataclass(frozen=True, slots=True)
class Schema:
    """What one trainer takes. Keys inside a mapping are dotted."""

    trainer: str
    package: str
    versions: dict[str, str]  # version read -> the day it was built
    runs_on: dict[str, str] = field(default_factory=dict)  # transformers, trl: the newest allowed
    keys: dict[str, Key] = field(default_factory=dict)
    targets: dict[str, list[str]] = field(default_factory=dict)  # of PEFT, by type of model

    @property
    def newest(self) -> str:
        """The package and the newest version that was read."""
        return f"{self.package} {list(self.versions)[-1]}"

    def find(self, dotted: str) -> Key | None:
        """The key; inside a mapping whose keys are not listed, that mapping."""
        found = self.keys.get(dotted)
        if found is not None or "." not in dotted:
            return found
        outer = dotted.rpartition(".")[0]
        if any(key.startswith(f"{outer}.") for key in self.keys):
            return None
        return self.find(outer)

    def default(self, dotted: str) -> Any:  # noqa: ANN401
        """What the trainer takes where the key is not stated; None where that is computed."""
        found = self.keys.get(dotted)
        return found.default if found is not None else None

    def near(self, name: str) -> str | None:
        """The key that a misspelt one most likely means."""
        found = difflib.get_close_matches(name, self.keys, 1, cutoff=_ALIKE)
        return found[0] if found else None


@lru_cache
def schema_of(trainer: str) -> Schema:
    """The schema of a trainer, with the keys of those whose arguments it takes over."""
    raw = _raw(trainer)
    keys: dict[str, Key] = {}
    for other in raw["extends"]:
        keys |= _keys(_raw(other), raw["runs_on"].get(_raw(other)["package"]))
    own = _keys(raw, None)
    keys |= {name: key for name, key in own.items() if not key.until or name not in keys}
    return Schema(
        raw["trainer"], raw["package"], raw["built"], raw["runs_on"], keys, raw.get("targets", {})
    )


@lru_cache
def _raw(trainer: str) -> dict[str, Any]:
    text = files("autotune.trainers").joinpath("data", f"{trainer}.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def _keys(raw: dict[str, Any], ceiling: str | None) -> dict[str, Key]:
    """Its keys, as they are at the newest version that may be installed."""
    top = parse_version(ceiling, "a schema") if ceiling else None
    found = {}
    for name, value in raw["keys"].items():
        since, until = (value.get(which, "") for which in ("since", "until"))
        if top and since and parse_version(since, name) > top:
            continue
        if top and until and parse_version(until, name) >= top:
            until = ""
        kinds = frozenset(value["type"].split("|"))
        gone = f"{raw['package']} {until}" if until else ""
        found[name] = Key(kinds, value.get("default"), since, gone)
    return found
