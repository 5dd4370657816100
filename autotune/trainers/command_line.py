"""A launch command's flags as a mapping, and the command with some of them changed.

Nothing is executed or expanded: `$NAME` stays text. Underscores and dashes in a flag are one.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.domain.jobvalues import shown
from autotune.trainers.dialect import GONE

if TYPE_CHECKING:
    from autotune.trainers.dialect import Changes

_TOKEN = re.compile(r"""(?:[^\s"'\\]|\\[^\n]|"(?:[^"\\]|\\.)*"|'[^']*')+""", re.DOTALL)
_SCRIPT = re.compile(r".*\.py$|^(sft|train|finetune\w*|dpo|full|lora)$")
_PROCESSES = ("num_processes", "nproc_per_node", "num_gpus")
_TOO_LONG = 100_000


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    begin: int
    end: int


@dataclass(slots=True)
class Command:
    """Flags after the script (`values`) and before it (`launcher`), and where each stands."""

    values: dict[str, Any] = field(default_factory=dict)
    launcher: dict[str, Any] = field(default_factory=dict)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)  # of flag and values
    program: tuple[str, ...] = ()  # words before the first flag of the script


def parse_command(text: str) -> Command:
    """The command as typed. Raises InputError for a command without flags, or a flag twice."""
    tokens = _tokens(text)
    script = next((i for i, token in enumerate(tokens) if _SCRIPT.match(token.text)), None)
    if script is None:
        first = next((i for i, t in enumerate(tokens) if t.text.startswith("--")), len(tokens))
        script = first - 1
    made = Command(program=tuple(token.text for token in tokens[: script + 1]))
    _read(tokens[:script], made.launcher, {})
    _read(tokens[script + 1 :], made.values, made.spans)
    if not made.values:
        msg = f"the command {shown(text)} has no --flags of a trainer"
        hint = 'such as --from-args "python train.py --per_device_train_batch_size 4"'
        raise InputError(msg, hint)
    return made


def command_span(text: str, name: str) -> tuple[int, int]:
    """Where the one launch command of a shell script stands, with its continued lines.

    Raises InputError where there is none, or several.
    """
    found, at = [], 0
    for block in _blocks(text):
        begin, at = at, at + len(block)
        if not block.lstrip().startswith("#") and re.search(r"--\w*(batch|epochs|steps)", block):
            found.append((begin, begin + len(block.rstrip())))
    if len(found) != 1:
        msg = f"{name} holds {len(found)} launch commands with a batch size, and one is needed"
        raise InputError(msg, 'give the command itself: --from-args "python train.py --..."')
    return found[0]


def _blocks(text: str) -> list[str]:
    """The lines of a script; lines joined by a backslash are one."""
    found: list[str] = []
    joined = False
    for line in text.splitlines(keepends=True):
        if joined:
            found[-1] += line
        else:
            found.append(line)
        joined = line.rstrip("\r\n").endswith("\\")
    return found


def parse_shell(text: str, name: str) -> Command:
    """The launch command of a shell script."""
    begin, end = command_span(text, name)
    return parse_command(text[begin:end])


def rewrite_shell(text: str, changes: Changes, name: str) -> str:
    """The script with some flags of its launch command changed."""
    begin, end = command_span(text, name)
    return text[:begin] + rewrite_command(text[begin:end], changes) + text[end:]


def processes_of(command: Command) -> int | None:
    """How many processes the launcher starts, where it says so."""
    for name in _PROCESSES:
        value = command.launcher.get(name)
        if value is not None:
            if not str(value).isdecimal() or int(value) < 1:
                msg = f"--{name} is {shown(value)}; it must be a whole number from 1 on"
                raise InputError(msg)
            return int(value)
    return None


def rewrite_command(text: str, changes: Changes) -> str:
    """The command with those flags changed, added at the end, or taken out."""
    for dotted, value in changes.items():
        name, _, inner = dotted.partition(".")
        command = parse_command(text)
        if inner:
            outer = command.values.get(name)
            whole = {**(outer if isinstance(outer, dict) else {}), inner: value}
            text = _replace(text, command, name, whole)
            continue
        text = _replace(text, command, name, value)
    return text


def _replace(text: str, command: Command, name: str, value: object) -> str:
    span = command.spans.get(name)
    if value is GONE:
        if span is None:
            return text
        return text[: span[0]].rstrip(" ") + text[span[1] :]
    flag = f"--{name} {_shell(value)}"
    if span is None:
        end = len(text.rstrip())
        return f"{text[:end]} {flag}{text[end:]}"
    stated = text[span[0] : span[1]]
    typed = re.match(r"--(?:no[_-])?([\w.-]+)", stated)
    if typed and typed.group(1).replace("-", "_") == name and not stated.startswith("--no"):
        joint = "=" if stated.startswith(f"{typed.group()}=") else " "
        flag = f"{typed.group()}{joint}{_shell(value)}"
    return text[: span[0]] + flag + text[span[1] :]


def _shell(value: object) -> str:
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, dict | list):
        return shlex.quote(json.dumps(value))
    return shlex.quote(str(value))


def _tokens(text: str) -> list[_Token]:
    if len(text) > _TOO_LONG:
        msg = "the command is longer than any launch command"
        raise InputError(msg)
    joined = text.replace("\\\r\n", "   ").replace("\\\n", "  ")
    found = []
    at = 0
    for match in _TOKEN.finditer(joined):
        if joined[at : match.start()].strip():
            break
        at = match.end()
        try:
            words = shlex.split(match.group())
        except ValueError:
            break
        found.append(_Token(words[0] if words else "", match.start(), match.end()))
    if joined[at:].strip():
        msg = f"the command cannot be read from {shown(joined[at:].strip())} on"
        raise InputError(msg, "a quote or backslash is not closed")
    return found


def _read(tokens: list[_Token], values: dict[str, Any], spans: dict[str, tuple[int, int]]) -> None:
    index = 0
    while index < len(tokens):
        token = tokens[index]
        index += 1
        if not token.text.startswith("--") or token.text == "--":
            continue
        name, equals, inline = token.text[2:].partition("=")
        name = name.replace("-", "_")
        words, end = [inline] if equals else [], token.end
        while not equals and index < len(tokens) and not tokens[index].text.startswith("--"):
            words.append(tokens[index].text)
            end = tokens[index].end
            index += 1
        value = _value(words)
        if not words and name.startswith("no_"):
            name, value = name[3:], False
        if name in values:
            msg = f"--{name} is given twice: {shown(values[name])} and {shown(value)}"
            raise InputError(msg, "keep one of them")
        values[name] = value
        spans[name] = (token.begin, end)


def _value(words: list[str]) -> Any:  # noqa: ANN401
    """No word: the flag alone means true; a JSON object is one; several words are a list."""
    if not words:
        return True
    if len(words) > 1:
        return words
    word = words[0]
    if word.lstrip().startswith("{"):
        try:
            return json.loads(word)
        except (ValueError, RecursionError):
            return word
    if word in {"True", "False", "true", "false"}:
        return word.casefold() == "true"
    return word
