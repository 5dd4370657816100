"""The launch command inside a shell script: found, read, and changed where it stands.

Nothing is executed. A variable that is bound once, at the start of a line, to plain text is put in
where the command uses it; anything else stays `$NAME`.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from autotune.domain.errors import InputError
from autotune.trainers.syntax.command_line import (
    ASSIGNED,
    CONFIG,
    SIZED,
    Command,
    parse_command,
    rewrite_command,
)

if TYPE_CHECKING:
    from autotune.trainers.contract import Changes


def command_span(text: str, name: str) -> tuple[int, int]:
    """Where the one launch command of a shell script stands, with its continued lines.

    Raises InputError where there is none, or several.
    """
    found = _spans(text, SIZED)
    if not found:
        found = _spans(text, rf"\b(train|sft|\w*finetune\w*)\b.*{CONFIG.pattern}")
    if len(found) != 1:
        msg = f"{name} holds {len(found)} launch commands with a batch size, and one is needed"
        raise InputError(msg, 'give the command itself: --from-args "python train.py --..."')
    return found[0]


def _spans(text: str, pattern: str) -> list[tuple[int, int]]:
    found, at = [], 0
    for block in _blocks(text):
        begin, at = at, at + len(block)
        if not block.lstrip().startswith("#") and re.search(pattern, block, re.DOTALL):
            found.append((begin, begin + len(block.rstrip())))
    return found


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


def shell_names(text: str) -> dict[str, str]:
    """Variables that a script binds exactly once, at the start of a line, to plain text."""
    seen: dict[str, list[str]] = {}
    for block in _blocks(text):
        match = ASSIGNED.fullmatch(block.strip())
        if match is None:
            continue
        try:
            words = shlex.split(match.group(2), comments=True)
        except ValueError:
            words = ["$"]
        seen.setdefault(match.group(1), []).append(words[0] if len(words) == 1 else "$")
    return {
        name: values[0]
        for name, values in seen.items()
        if len(values) == 1 and not set("$`(") & set(values[0])
    }


def parse_shell(text: str, name: str) -> Command:
    """The launch command of a shell script."""
    begin, end = command_span(text, name)
    return parse_command(text[begin:end], shell_names(text))


def rewrite_shell(text: str, changes: Changes, name: str) -> str:
    """The script with some flags of its launch command changed."""
    begin, end = command_span(text, name)
    changed = rewrite_command(text[begin:end], changes, shell_names(text))
    return text[:begin] + changed + text[end:]
