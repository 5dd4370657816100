"""The command line as it was typed: to be printed again, or told where it is wrong.

What the options are is in `options.py`.
"""

from __future__ import annotations

import re
from enum import Enum
from itertools import pairwise
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import typer

from autotune.domain.answer.recommendation import Asked
from autotune.domain.config import KNOBS, own_name
from autotune.domain.errors import InputError, close_matches, did_you_mean, unknown
from autotune.domain.typed.other_words import LEFT_OUT, UNPRICED, typed_here

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence


# Options that say how an answer is printed or kept, not what is asked.
ABOUT_THE_ANSWER = frozenset(
    {
        "--format", "--quiet", "--verbose", "--run", "--resume", "--dry-run", "--storage",
        "--in-place", "--export", "--fail-on-change",
    }
)  # fmt: skip
OF_ESTIMATE = frozenset({"--claim", "--full-trace", "--fidelity"})  # that a search has not


def asked(
    context: typer.Context,
    but: frozenset[str] = frozenset(),
    *,
    knobs: Collection[str] = tuple(KNOBS),
) -> Asked:
    """The command with its arguments and options, those of `but` left out.

    knobs: those of which it keeps what `--set` says; what that says of the job always stays.
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
        if "--set" in parameter.opts:
            left_out = set(KNOBS) - set(knobs)
            value = [
                pair for pair in value if own_name(pair.partition("=")[0].strip()) not in left_out
            ]
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


# The parser's base of errors; its module has moved between versions of typer.
UsageProblem: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)
_BOUNDS = {
    "valid integer": "a whole number",
    "valid number": "a number",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}
_CHOICE = re.compile(r"is not one of (.*?)\.?$")
ASIDE = "--chart"  # an option whose value may be left out
HERE = "-"
MOST_SHOWN = 200  # characters of a word that is wrong


def with_values(argv: Sequence[str]) -> list[str]:
    """The command line with a value for the option that may do without: `--chart -`."""
    words: list[str] = []
    for word, following in pairwise([*argv, "--"]):
        words.append(word)
        if word == ASIDE and following.startswith("-") and following != HERE:
            words.append(HERE)
    return words


def as_input_error(problem: Any, argv: Sequence[str], commands: Mapping[str, Any]) -> InputError:  # noqa: ANN401 - see UsageProblem
    """What is wrong with a command line. commands: all there are, by their names."""
    kind = type(problem).__name__
    name = next((word for word in argv if word in commands), "")
    command = f"autotune {name}".strip()
    if kind == "NoSuchOption":
        value = _value_of(problem.option_name, argv) or ""
        return _unknown_option(problem.option_name, value, command, name, commands)
    if kind == "BadOptionUsage":
        parameter = _parameter(commands.get(name), problem.option_name)
        hint = _use_of(parameter) or f"`{command} --help` has its options"
        return InputError(f"{problem.option_name} needs a value", hint)
    if kind == "MissingParameter":
        return InputError(f"{command} needs {_name(problem.param)}", _use_of(problem.param))
    if kind == "BadParameter" and problem.param is not None:
        return _bad_value(problem, argv)
    return InputError(_plain(problem.format_message()), f"`{command} --help` says what it takes")


_REASONS = "`autotune report --verbose` has the reasons of the last answer"
MEANT_BY = {
    "why": _REASONS, "explain": _REASONS,
    "diff": "`autotune recompute RUN --gpu NAME` shows what changes in an answer, and why",
    "resume": "`autotune tune --resume` continues a search; RESUME=1 bash RUN/run.sh a training",
    "train": "`bash RUN/run.sh` trains, as the end of every answer says",
}  # fmt: skip


def unknown_command(word: str, known: Sequence[str]) -> InputError:
    """A first word that is no command: a near one, or the job that it may be."""
    hint = "`autotune --help` lists the commands"
    word = word[:MOST_SHOWN]
    if word in MEANT_BY:
        return InputError(f'unknown command "{word}"', MEANT_BY[word])
    try:
        is_path = bool(Path(word).suffix) or Path(word).exists()
    except (OSError, ValueError):  # longer than any path, or with a null in it
        is_path = False
    if is_path:
        return InputError(f'"{word}" is no command', f"autotune tune {quote(word)}")
    return unknown("command", word, known, hint)


def _unknown_option(
    name: str, value: str, command: str, own: str, commands: Mapping[str, Any]
) -> InputError:
    """An option that a command has not: its own near ones, or the commands that have it."""
    hint = f"`{command} --help` lists its options"
    known = set(_options(commands[own])) if own else {"--help", "--version"}
    near = close_matches(name.strip("-"), [option.strip("-") for option in known], count=2)
    msg = f'unknown option "{name}" of {command}'
    here = typed_here(name, value)
    here = LEFT_OUT if name.strip("-").replace("-", "_") in UNPRICED else here
    if here and "--set" in known:
        return InputError(msg, here)
    if near:
        return InputError(msg + did_you_mean([f"--{each}" for each in near]), hint)
    holders = [other for other, each in commands.items() if name in set(_options(each))]
    return InputError(f"{msg}; it is one of {', '.join(holders)}" if holders else msg, hint)


def _bad_value(problem: Any, argv: Sequence[str]) -> InputError:  # noqa: ANN401 - as above
    parameter, said = problem.param, _plain(problem.message)
    name, value = _name(parameter), _typed(parameter, argv)
    shown = f"{name} {value!r}" if value is not None else name
    choices = _CHOICE.search(said)
    if choices:
        known = re.findall(r"'([^']*)'", choices[1])
        near = close_matches(value or "", known)
        msg = f"{shown} must be one of: {', '.join(known)}"
        return InputError(msg, f"{name} {near[0]}" if near else _use_of(parameter))
    for theirs, ours in _BOUNDS.items():
        before, found, after = said.partition(theirs)
        if found and "nput should be" in before:
            bound = after.partition(",")[0].strip()
            return InputError(f"{shown} must be {ours} {bound}".rstrip(), _use_of(parameter))
    return InputError(f"{shown}: {said}", _use_of(parameter))


def _plain(text: str) -> str:
    """The parser's sentence without its prefix and its full stop, in lower case."""
    short = text.removeprefix("Value error, ").strip().rstrip(".")
    extra = re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", short)
    if extra:
        return f"more words than it takes: {extra[1]}"
    return short[:1].lower() + short[1:]


def _typed(parameter: Any, argv: Sequence[str]) -> str | None:  # noqa: ANN401 - as above
    """What stood after an option; None for arguments, and where it cannot be told."""
    typed = (_value_of(name, argv) for name in parameter.opts)
    return next((value for value in typed if value is not None), None)


def _value_of(option: str, argv: Sequence[str]) -> str | None:
    """The word behind an option, or behind its equals sign."""
    for word, following in pairwise([*argv, ""]):
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else following
    return None


def _name(parameter: Any) -> str:  # noqa: ANN401 - as above
    """--gpu of an option; JOB of an argument."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return str(max(parameter.opts, key=len))


def _use_of(parameter: Any) -> str | None:  # noqa: ANN401 - as above
    """How an option is written, and its own help."""
    if parameter is None:
        return None
    value = parameter.metavar if parameter.param_type_name != "argument" else None
    written = f"{_name(parameter)} {value}" if value else _name(parameter)
    return f"{written}: {parameter.help}" if parameter.help else written


def _parameter(command: Any, name: str) -> Any:  # noqa: ANN401 - as above
    found = command.params if command else []
    return next((each for each in found if name in each.opts), None)


def _options(command: Any) -> Iterator[str]:  # noqa: ANN401 - as above
    for parameter in command.params:
        if parameter.param_type_name != "argument":
            yield from (name for name in parameter.opts if name.startswith("--"))
    yield "--help"
