"""The command line as it was typed, to be printed again with a change."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.domain.answer.recommendation import Asked
from autotune.domain.config import KNOBS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    import typer

    from autotune.report.schema import AskedPayload

# Options that say how an answer is printed or kept, not what is asked.
ABOUT_THE_ANSWER = frozenset(
    {
        "--format", "--quiet", "--verbose", "--run", "--resume", "--dry-run", "--storage",
        "--in-place", "--export", "--fail-on-change",
    }
)  # fmt: skip
OF_ESTIMATE = frozenset({"--claim", "--full-trace", "--fidelity"})  # that a search has not


def asked(
    context: typer.Context, but: frozenset[str] = frozenset(), *, knobs: bool = True
) -> Asked:
    """The command with its arguments and options, those of `but` left out.

    knobs: with what `--set` says of knobs; what it says of the job always stays.
    """
    words = ["autotune", str(context.info_name)]
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE":
            continue
        if (ABOUT_THE_ANSWER | but).intersection(parameter.opts):
            continue
        value = context.params[name]
        if "--set" in parameter.opts and not knobs:
            value = [pair for pair in value if pair.partition("=")[0].strip() not in KNOBS]
        words += _words(parameter, value)
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


def asked_payload(found: Asked) -> AskedPayload:
    """The same for an answer's JSON."""
    return {"words": list(found.words), "folder": found.folder}
