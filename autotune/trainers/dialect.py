"""How one trainer's own file is read, and how each knob is spelled in it.

Adding a trainer's file: one class that satisfies `Dialect`, and one line in `DIALECTS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import Config, KnobValue
    from autotune.trainers.parsed import Imported
    from autotune.trainers.versions import Version


class _Gone:
    """Stands for a key that has to leave the file."""

    def __repr__(self) -> str:
        return "GONE"


GONE: Final = _Gone()
Changes = dict[str, object]  # dotted key -> new value, or GONE


@dataclass(frozen=True, slots=True)
class Target:
    """The file that a knob is written into, and what will run it."""

    values: Mapping[str, Any]
    config: Config
    transformers: Version
    syntax: str  # yaml, json, args or python
    devices: int

    def has(self, dotted: str) -> bool:
        """Whether the file states that key."""
        value: Any = self.values
        for part in dotted.split("."):
            if not isinstance(value, dict) or part not in value:
                return False
            value = value[part]
        return True

    def first(self, *names: str) -> str:
        """The spelling that the file uses; the first one where it uses none."""
        return next((name for name in names if self.has(name)), names[0])

    def gone(self, *names: str) -> Changes:
        """Removals of those of the keys that the file has."""
        return {name: GONE for name in names if self.has(name)}


class Dialect(Protocol):
    """One trainer's own file."""

    @property
    def name(self) -> str:
        """What a user types: axolotl, llamafactory, ..."""

    @property
    def title(self) -> str:
        """What a person calls it."""

    def read(self, values: Mapping[str, Any], name: str) -> Imported:
        """The job of a file's mapping. Raises InputError for what cannot be."""

    def spell(self, knob: str, value: KnobValue, target: Target, /) -> Changes | str:
        """The keys that say it, or why the format cannot."""
