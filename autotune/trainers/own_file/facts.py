"""Which key of the user's own file says a fact of the job, such as the rank or the epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.domain.units import is_number
from autotune.trainers.registry import TRAINERS
from autotune.trainers.syntax.rewrite import changed_values, flat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.job import Origin
    from autotune.trainers.contract import Changes
    from autotune.trainers.parsed import Parsed

FOLLOWS = {"method.alpha"}  # of the rank, where the file states none
_PARTS = ("model", "method", "train", "data")


def facts_of(parsed: Parsed) -> dict[str, object]:
    """What the file says of the job, by keys of a job file."""
    found: dict[str, object] = {}
    for part in _PARTS:
        section = parsed.values.get(part)
        inner = section.items() if isinstance(section, dict) else (("", section),)
        found |= {f"{part}.{key}".rstrip("."): value for key, value in inner}
    return found


def facts_written(
    origin: Origin,
    values: Mapping[str, Any],
    parsed: Parsed,
    wanted: Mapping[str, object],
    name: str,
) -> dict[str, Changes]:
    """The change that says each wanted fact and nothing else: found by trying the file's keys.

    A number alone is looked for: the key holds the file's own, and with another number there the
    trainer reads another fact. Facts of which no key, or more than one, is found are left out.
    """
    before = facts_of(parsed)
    found: dict[str, Changes] = {}
    for fact, new in wanted.items():
        old = before.get(fact)
        if not (is_number(old) and is_number(new)):
            continue
        ways = []
        for key, stated in flat(values).items():
            if _number(stated) != old or isinstance(stated, bool):
                continue
            change = {key: _as_stated(new, stated)}
            changed = changed_values(values, change)
            try:
                again = facts_of(TRAINERS[origin.trainer].read(changed, name))
            except InputError:
                continue
            moved = {each for each in {**before, **again} if before.get(each) != again.get(each)}
            if moved - FOLLOWS == {fact} and again[fact] == new:
                ways.append(change)
        if len(ways) == 1:
            found[fact] = ways[0]
    return found


def _number(stated: object) -> float | None:
    """What a file's value is as a number: flags are text."""
    try:
        return float(stated) if isinstance(stated, str | int | float) else None
    except ValueError:
        return None


def _as_stated(new: object, stated: object) -> object:
    """The number as the file states such: whole where it is whole, and text where that is."""
    number = float(str(new))
    value = int(number) if number.is_integer() else number
    return str(value) if isinstance(stated, str) else value
