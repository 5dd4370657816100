"""What a kept thing is found again by, also by a later version."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

_LATER = "later"
LATER = {_LATER: True}  # metadata of a field that came when things were already kept without it


def content(value: object) -> object:
    """A dataclass as its facts that are not the default: it may gain fields and stay the same."""
    if is_dataclass(value) and not isinstance(value, type):
        held = {field.name: (getattr(value, field.name), field.default) for field in fields(value)}
        return {name: content(own) for name, (own, usual) in held.items() if own != usual}
    return [content(item) for item in value] if isinstance(value, tuple) else value


def identity(value: object) -> str:
    """What two equal things have in common: `repr`, but fields marked LATER only count when set.

    A dataclass that gains a marked field with a default keeps the keys of what was kept before.
    """
    if is_dataclass(value) and not isinstance(value, type):
        facts = [
            f"{field.name}={identity(getattr(value, field.name))}"
            for field in fields(value)
            if _LATER not in field.metadata or getattr(value, field.name) != field.default
        ]
        return f"{type(value).__name__}({', '.join(facts)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(identity, value))}{',' * (len(value) == 1)})"
    return repr(value)
