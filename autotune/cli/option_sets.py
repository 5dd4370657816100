"""How a command takes whole sets of the options that `options` declares."""

from __future__ import annotations

import functools
import inspect
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from autotune.cli import load_numpy

if TYPE_CHECKING:
    from collections.abc import Callable


def with_option_sets(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer reads it: a parameter that is a set of options becomes its options."""
    hints = get_type_hints(command, include_extras=True)
    parameters = inspect.signature(command).parameters
    sets = {name: hints[name] for name in parameters if is_dataclass(hints[name])}
    flat: list[inspect.Parameter] = []
    for name, parameter in parameters.items():
        if name in sets:
            own = get_type_hints(sets[name], include_extras=True)
            flat += [
                _option(each.name, each.default, own[each.name]) for each in fields(sets[name])
            ]
        else:
            flat.append(_option(name, parameter.default, hints[name]))

    @functools.wraps(command)
    def run(**given: Any) -> None:  # noqa: ANN401 - typer passes what the options say
        load_numpy()
        made = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            for name, kind in sets.items()
        }
        command(**given, **made)

    setattr(run, "__signature__", inspect.Signature(flat, return_annotation=None))  # noqa: B010 - not in the type of functions
    run.__annotations__ = {each.name: each.annotation for each in flat}
    return run


def _option(name: str, default: object, annotation: object) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY  # typer passes by name
    return inspect.Parameter(name, kind, default=default, annotation=annotation)
