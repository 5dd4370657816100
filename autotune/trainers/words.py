"""A trainer's words for the knobs as data, read both ways: key, value in the file, knob's value.

A knob has one word, or several where its key was renamed: the newest first, each with the release
of transformers that brought it. What needs more than a word stays code in the trainer's folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.config import KNOBS
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.domain.config import KnobValue
    from autotune.trainers.contract import Changes, Target
    from autotune.trainers.parsed import Keys
    from autotune.trainers.versions import Version

    Words = Mapping[str, Sequence["Word"]]

ON_OFF = ((True, "on"), (False, "off"))


@dataclass(frozen=True, slots=True)
class Word:
    """One key that says a knob."""

    key: str
    values: tuple[tuple[object, KnobValue], ...] = ()  # in the file, of the knob; empty: the same
    since: Version = ()  # the first transformers that has the key
    unsaid: KnobValue | None = None  # the default: written only where the file states the key

    def says(self, value: KnobValue) -> object:
        """What stands in the file for the knob's value; None where there is no word for it."""
        if not self.values:
            return value
        return next((stated for stated, meant in self.values if meant == value), None)

    @property
    def is_switch(self) -> bool:
        """Whether the file says true or false."""
        return bool(self.values) and all(isinstance(stated, bool) for stated, _ in self.values)


def newest(words: Sequence[Word], version: Version) -> Word:
    """The word that a release of transformers has."""
    return next((word for word in words if word.since <= version), words[-1])


def say(knob: str, value: KnobValue, words: Words, version: Version) -> dict[str, object]:
    """The key and the value that say it in a new file."""
    word = newest(words[knob], version)
    return {word.key: word.says(value)}


def spell(knob: str, value: KnobValue, words: Words, target: Target) -> Changes | None:
    """The changes that say it in a file, in the place of other words; None where none can."""
    word = newest(words[knob], target.transformers)
    said = word.says(value)
    if said is None:
        return None
    gone = target.gone(*(other.key for other in words[knob] if other is not word))
    return gone if value == word.unsaid and not target.has(word.key) else {**gone, word.key: said}


def read(knob: str, keys: Keys, words: Words) -> KnobValue | None:
    """What a file says of a knob, by any of its words; None where it says nothing known.

    Raises:
        InputError: A value of the wrong kind, or two words that differ.
    """
    first, *others = words[knob]
    if all(other.values == first.values for other in others):
        return _read(knob, keys, first, *(word.key for word in words[knob]))
    found = [_read(knob, keys, word, word.key) for word in words[knob]]
    return next((value for value in found if value is not None), None)


def odd(knob: str, keys: Keys, words: Words) -> tuple[str, object] | None:
    """The key and the value of a knob that a file states, and that no word of the knob means."""
    for word in words[knob]:
        value = keys.at(word.key)
        if word.values and str(value).strip().casefold() not in _UNSTATED:
            return word.key, value
    return None


_UNSTATED = {"none", "", "auto", "null"}


def _read(knob: str, keys: Keys, word: Word, *names: str) -> KnobValue | None:
    if not word.values:
        switch = KNOBS[knob].kind == "switch"
        return keys.switch(*names) if switch else keys.whole(*names, low=KNOBS[knob].minimum)
    stated = keys.switch(*names) if word.is_switch else keys.word(*names)
    return next((meant for said, meant in word.values if said == stated), None)
