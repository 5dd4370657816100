"""The command line as it was typed, to be printed again with a change."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.domain.recommendation import Asked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    import typer

# Options that say how an answer is printed or kept, not what is asked.
ABOUT_THE_ANSWER = frozenset(
    {"format_", "quiet", "verbose", "run", "resume", "dry_run", "storage", "in_place", "export"}
)
ABOUT_PROBES = frozenset({"score", "probes", "probe_budget", "probe_on"})


def asked(context: typer.Context, but: frozenset[str] = ABOUT_THE_ANSWER) -> Asked:
    """The command with its arguments and options, those of `but` left out."""
    words = ["autotune", str(context.info_name)]
    for parameter in context.command.params:
        name = str(parameter.name)
        if name in but or context.get_parameter_source(name).name != "COMMANDLINE":  # type: ignore[union-attr]
            continue
        words += _words(parameter, context.params[name])
    return Asked(tuple(words), str(Path.cwd()))


def _words(parameter: Any, value: object) -> Iterator[str]:  # noqa: ANN401 - moved between versions
    """One parameter as typed: its value, or its longest option name and its value or values."""
    values = value if isinstance(value, list | tuple) else [value]
    if parameter.param_type_name == "argument":
        yield from (_text(each) for each in values)
        return
    flag = max(parameter.opts, key=len)
    for each in values:
        yield flag
        if not parameter.is_flag:
            yield _text(each)


def _text(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    return f"{value:g}" if isinstance(value, float) else str(value)
