"""What a file states that changes no price: listed, and held against its trainer's own keys.

A key that the trainer has never had is named with the one it most likely means: many trainers
ignore it without a word, and the run is another than its user thinks.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from autotune.domain.errors import InputError
from autotune.domain.typed.values import shown
from autotune.trainers.parsed import named_datasets
from autotune.trainers.schema import schema_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.trainers.parsed import Keys, Parsed
    from autotune.trainers.schema import Schema

_LISTED = 40  # keys named in one note
_ALIKE = 0.85  # share of letters that a misspelt key has in common with the one it means


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
    known = [key for key in rest if schema.find(key) is not None]
    if known:
        parsed.note(f"{keys.name}: not read", _listed(known), "kept as they are in the file")
    for key in known:
        _check_kind(keys, key, parsed, schema)
    _note_old(keys, parsed, schema)
    _note_strange(keys, parsed, schema, [key for key in rest if key not in known])


def _note_old(keys: Keys, parsed: Parsed, schema: Schema) -> None:
    """Keys that the newest version has no more, whether they were read or not."""
    for key, value in keys.values.items():
        found = schema.keys.get(str(key))
        if found is not None and found.until and value not in ("", None):
            why = f"{schema.newest} does not have it any more; {found.until} did"
            parsed.note(f"{keys.name}: {key}", "of an older version", why)


def _note_strange(keys: Keys, parsed: Parsed, schema: Schema, strange: Sequence[str]) -> None:
    """Keys that no version has, each with the one that it may mean."""
    for key in strange[:_LISTED]:
        near = schema.near(key)
        said = f"{near}?" if near else "kept as it is in the file"
        parsed.note(f"{keys.name}: {key[:60]}", said, f"no key of {schema.newest}")
        if near is not None and keys.spelled(near) is None and _is_misspelt(key, near):
            parsed.misspelt[key] = near
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


def _check_kind(keys: Keys, key: str, parsed: Parsed, schema: Schema) -> None:
    value, found = keys.at(key), schema.find(key)
    if (
        found is None or found.admits(value) or isinstance(value, str)
    ):  # text may be a number, or a name computed
        return
    parsed.note(f"{keys.name}: {key}", shown(value), f"{schema.newest} takes {found.says} there")


def _is_misspelt(key: str, near: str) -> bool:
    return difflib.SequenceMatcher(None, key, near).ratio() >= _ALIKE


def _listed(names: Sequence[str]) -> str:
    head = ", ".join(name[:60] for name in names[:_LISTED])
    more = len(names) - _LISTED
    return f"{head} and {more} more" if more > 0 else head
