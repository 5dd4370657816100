"""The keys that each trainer takes, and what a file states that changes no price.

The keys are package data, version by version, with kinds and defaults: the files in `data/` are
written by `python -m bench.trainer_schemas` from released packages, and say where in them each was
read. A key that the trainer has never had is named with the one it most likely means: many trainers
ignore it without a word, and the run is another than its user thinks.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import field
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.domain.job import Uncounted
from autotune.domain.typed.values import shown
from autotune.frozen import dataclass
from autotune.trainers.parsed import named_datasets
from autotune.trainers.unread import decides, decisive, own_settings, says_off
from autotune.trainers.versions import parse_version

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from autotune.trainers.contract import Trainer
    from autotune.trainers.parsed import Keys, Parsed

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
    lacks: str = ""  # the package and the newest version read that did not have it yet

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
        read = list(raw["built"])
        lacks = f"{raw['package']} {read[read.index(since) - 1]}" if since in read[1:] else ""
        found[name] = Key(kinds, value.get("default"), since, gone, lacks)
    return found


# Whose arguments stand among those of people's own programs, and of their older versions.
_OF_PROGRAMS = {"transformers", "trl", "llamafactory", "torchtune"}
_LISTED = 40  # keys named in one note
_MEANT = 0.85  # share of letters that a misspelt key has in common with the one it means


def leave_rest(keys: Keys, parsed: Parsed, trainer: str | None = None) -> None:
    """List what was not read: it stays in the file as it is.

    Args:
        keys: the file, with what was asked for.
        parsed: takes the notes.
        trainer: whose keys they are, where it is not the file's trainer: accelerate, deepspeed.
    """
    schema = schema_of(trainer or parsed.trainer)
    if trainer is None:
        parsed.asked |= keys.asked
        parsed.datasets = named_datasets(keys)
    rest = [str(key) for key in keys.unused()]
    found = decisive(keys, rest)
    parsed.uncounted += found
    rest = [key for key in rest if key not in {each.key for each in found}]
    known = [key for key in rest if schema.find(key) is not None]
    if known:
        parsed.note(f"{keys.name}: not read", _listed(known), "kept as they are in the file")
    for key in known:
        _check_kind(keys, key, parsed, schema)
    _note_old(keys, parsed, schema)
    strange = [key for key in rest if key not in known]
    if trainer is None and schema.package in _OF_PROGRAMS:
        own = own_settings(keys, [key for key in strange if not _means(keys, key, schema)])
        parsed.uncounted += own
        strange = [key for key in strange if key not in {each.key for each in own}]
    _note_strange(keys, parsed, schema, strange)


def _note_old(keys: Keys, parsed: Parsed, schema: Schema) -> None:
    """Keys that the newest version has no more, or an older one not yet, read or not."""
    for key, value in keys.values.items():
        found = schema.keys.get(str(key))
        if found is not None and found.lacks and value not in ("", None):
            package, _, version = found.lacks.rpartition(" ")
            newest = max(version, parsed.lacking.get(package, version), key=_as_version)
            parsed.lacking[package] = newest
        if found is not None and found.until and value not in ("", None):
            why = f"{schema.newest} does not have it any more; {found.until} did"
            parsed.note(f"{keys.name}: {key}", "of an older version", why)
            package, _, version = found.until.rpartition(" ")
            if package == "transformers":
                last = parse_version(version, found.until)
                parsed.before = min(last, parsed.before or last)


def _as_version(text: str) -> tuple[int, ...]:
    return parse_version(text, "a schema")


def _note_strange(keys: Keys, parsed: Parsed, schema: Schema, strange: Sequence[str]) -> None:
    """Keys that no version has, each with the one that it may mean."""
    for key in strange[:_LISTED]:
        near = schema.near(key)
        said = f"{near}?" if near else "kept as it is in the file"
        parsed.note(f"{keys.name}: {key[:60]}", said, f"no key of {schema.newest}")
        if meant := _means(keys, key, schema):
            parsed.misspelt[key] = meant
    if len(strange) > _LISTED:
        more = f"{len(strange) - _LISTED} more keys"
        parsed.note(f"{keys.name}: not read", more, f"no keys of {schema.newest}")


def refuse_misspelt(parsed: Parsed, name: str) -> None:
    """Raise InputError for a key that the trainer does not have, and that means one we read."""
    wrong = {key: near for key, near in parsed.misspelt.items() if near in parsed.asked}
    if not wrong:
        return
    listed = ", ".join(f"{key[:60]} (close to {near})" for key, near in wrong.items())
    verb = "is no key" if len(wrong) == 1 else "are no keys"
    msg = f"{name}: {listed} {verb} of {schema_of(parsed.trainer).newest}"
    raise InputError(msg, "correct the spelling, or take it out: the trainer would not use it")


# How far a run may lie from TRL's default, which recomputes: an assumption.
_RECOMPUTES_SD = (0.15, 0.30)
_OWN_TARGETS_SD = (0.15, 0.15)  # or from PEFT's targets: every matrix in place of two
_OF_OTHER_CONFIGS = {"max_prompt_length", "beta", "loss_type"}  # of TRL as well: DPOConfig's


def older_defaults(keys: Keys, parsed: Parsed) -> None:
    """What TRL did by default when it took a key of the file that it has no more.

    From 0.24 on it recomputes unless told otherwise, before only if told.
    """
    schema, key = schema_of(parsed.trainer), "gradient_checkpointing"
    older = _older_key(schema, keys.values, key)
    if older and "activation_checkpointing" not in parsed.knobs:
        parsed.defaults["activation_checkpointing"] = "none"
        why = f"off, as it was by default when TRL took {older}; where a newer one runs it is on"
        said = Uncounted(key, "not stated", why, *_RECOMPUTES_SD)
        parsed.uncounted.append(said)


def _older_key(schema: Schema, values: Mapping[str, Any], key: str) -> str:
    """A key of the file that was gone before the trainer had another one; empty: none."""
    since = parse_version(schema.keys[key].since, key)
    for name, value in values.items():
        found = schema.keys.get(str(name))
        package, _, last = (found.until if found else "").partition(" ")
        stated = package == schema.package and value not in ("", None)
        if stated and parse_version(last, str(name)) < since:
            return str(name)
    return ""


def say_defaults(parsed: Parsed, values: dict[str, Any]) -> None:
    """That TRL recomputes where a file is silent, if a program of people's own reads the file."""
    schema = schema_of(parsed.trainer)
    known = parsed.asked | _OF_OTHER_CONFIGS
    strange = [str(k) for k in values if schema.find(str(k)) is None and k not in known]
    silent = parsed.meaning.get("activation_checkpointing") == "full"
    silent = silent and "activation_checkpointing" not in parsed.knobs
    if parsed.trainer == "trl" and strange and silent:
        why = f"on by TRL's default; {', '.join(strange[:3])} are of another program, which may not"
        said = Uncounted("gradient_checkpointing", "not stated", why, *_RECOMPUTES_SD)
        parsed.uncounted.append(said)
    _say_packing(parsed, values)
    odd = [key for key in strange if decides(key) is not False and not says_off(values[key])]
    if parsed.trainer in {"hf", "trl"} and odd and parsed.peft_targets:
        why = f"PEFT's default; {', '.join(odd[:3])} are of another program, with its own"
        parsed.uncounted.append(
            Uncounted("lora_target_modules", "not stated", why, *_OWN_TARGETS_SD)
        )


# Whose script packs every run of supervised fine-tuning, by keys that only its files have together.
# Source: alignment-handbook scripts/run_sft.py, v0.1 to v0.4: SFTTrainer(..., packing=True).
_PACKERS = ({"dataset_mixer", "dataset_splits"},)
_PACKS = "alignment-handbook's run_sft.py packs whatever its file says; else --set packing=off"
_PACKS_SD = (0.10, 0.05)  # an assumption


def _say_packing(parsed: Parsed, values: dict[str, Any]) -> None:
    """That the program packs whose file it is, though the file does not say so."""
    packs = any(keys <= set(values) for keys in _PACKERS) and "packing" not in values
    if packs and parsed.trainer == "trl" and parsed.objective == "sft":
        parsed.knobs["packing"] = "on"
        parsed.kept.add("packing")
        parsed.uncounted.append(Uncounted("packing", "on", _PACKS, *_PACKS_SD))


def _check_kind(keys: Keys, key: str, parsed: Parsed, schema: Schema) -> None:
    value, found = keys.at(key), schema.find(key)
    if found is None or found.admits(value) or isinstance(value, str) or not found.says:
        return  # text may be a number, or a name computed
    parsed.note(f"{keys.name}: {key}", shown(value), f"{schema.newest} takes {found.says} there")


def _means(keys: Keys, key: str, schema: Schema) -> str | None:
    """The key that a misspelt one means, where the file does not state that as well."""
    near = schema.near(key)
    if near is None or keys.spelled(near) is not None:
        return None
    return near if difflib.SequenceMatcher(None, key, near).ratio() >= _MEANT else None


def _listed(names: Sequence[str]) -> str:
    head = ", ".join(name[:60] for name in names[:_LISTED])
    more = len(names) - _LISTED
    return f"{head} and {more} more" if more > 0 else head


_SHORTEST = 5  # letters of an abbreviated flag


def read_abbreviated(
    dialect: Trainer, values: dict[str, Any], name: str, options: Collection[str] | None
) -> tuple[Parsed, dict[str, Any]]:
    """What flags say, also those that argparse completes: `--max_step` where one flag begins so.

    options: flags that the script has itself, where it is at hand.
    """
    made = dialect.read(values, name)
    schema, own = schema_of(dialect.name), set(options or ())
    whole = {**values}
    for flag in values:
        near = [key for key in schema.keys if key.startswith(flag)]
        whole_word = near[:1] and near[0][len(flag) :][:1] in {"", "_"}  # more likely its own
        if len(flag) < _SHORTEST or len(near) != 1 or whole_word or flag in own:
            continue
        if near[0] in made.asked and near[0] not in values:
            whole[near[0]] = whole.pop(flag)
    if whole == values:
        return made, values
    made = dialect.read(whole, name)
    listed = ", ".join(key for key in whole if key not in values)
    made.note(f"{name}: abbreviated", listed, "as argparse completes the beginning of a flag")
    return made, whole
