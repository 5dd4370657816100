"""A notebook's code cells as the script that they are, one after the other.

What only a notebook runs, `!pip install` and `%magic`, becomes a comment; cells of another
language (`%%bash`, `%%writefile`), and those that are no Python, do whole. A notebook that trains
by a command (`!torchrun train.py --...`) is the shell script of its commands. Nothing is executed.
A page of Markdown is the shell script of its blocks of commands.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from autotune.domain.errors import InputError
from autotune.trainers.syntax.command_line import SIZED
from autotune.trainers.syntax.python_arguments import ARGUMENTS
from autotune.trainers.syntax.shell_script import STARTS

_STILL_PYTHON = ("%%capture", "%%time", "%%timeit", "%%prun")
_PROMPT = ("%", "!")
_WHOLE = "save it again in Jupyter, or name the script that it was made from"


def script_of(text: str, name: str) -> str:
    """The code cells as Python source. Raises InputError for what is no notebook."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        msg = f"{name} is no whole notebook: {str(error)[:80]}"
        raise InputError(msg, _WHOLE) from None
    cells = content.get("cells") if isinstance(content, dict) else None
    if not isinstance(cells, list):
        msg = f"{name} has no cells, as a notebook of format 4 has"
        raise InputError(msg, _WHOLE)
    code = [_source(cell) for cell in cells if _is_code(cell)]
    if not any(line.strip() for cell in code for line in cell.splitlines()):
        msg = f"{name} has no code cell"
        raise InputError(msg, "name the file that makes the trainer's arguments")
    return "\n\n".join(_parsed(_python(cell)) for cell in code) + "\n"


_SHELLS = ("%%bash", "%%sh", "%%script bash", "%%script sh", "%%shell")


def launch_of(text: str, script: str) -> str:
    """The notebook's commands as a shell script, where one of them starts its training; else empty.

    Args:
        text: the notebook, which `script_of` has read.
        script: what its code cells are in Python.
    """
    if re.search(rf"\b({'|'.join(ARGUMENTS)})\s*\(", _without_comments(script)):
        return ""
    cells = [_source(cell) for cell in json.loads(text)["cells"] if _is_code(cell)]
    commands = "\n".join(line for cell in cells for line in _commands(cell)) + "\n"
    return commands if re.search(rf"{STARTS}.*\s{SIZED}", commands, re.DOTALL) else ""


_FENCE = re.compile(r"[ \t>]*(?P<marks>`{3,}|~{3,})[ \t]*\{?[. ]*(?P<language>[\w-]*)")
_OF_SHELLS = {"", "bash", "sh", "shell", "console", "zsh", "shell-session", "terminal", "text"}


def page_of(text: str) -> str:
    """The commands of a page of Markdown, each on the line that it stands on there."""
    made, marks, kept = [], "", False
    for line in text.splitlines():
        fence = _FENCE.match(line)
        if fence and not marks:
            marks, kept = fence["marks"], fence["language"].casefold() in _OF_SHELLS
            made.append("")
        elif fence and fence["marks"].startswith(marks) and not fence["language"]:
            marks = ""
            made.append("")
        else:
            made.append(re.sub(r"^\s*[$%] ", "", line) if marks and kept else "")
    return "\n".join(made) + "\n"


def _without_comments(script: str) -> str:
    return "\n".join(line for line in script.splitlines() if not line.lstrip().startswith("#"))


def _commands(cell: str) -> list[str]:
    """Lines of a cell that a shell runs, with those that they go on in."""
    lines = cell.strip().splitlines()
    if lines and lines[0].startswith(_SHELLS):
        return lines[1:]
    found, goes_on = [], False
    for line in lines:
        bare = line.lstrip()
        if goes_on or bare.startswith("!"):
            found.append(line if goes_on else bare.lstrip("!").lstrip())
            goes_on = bare.endswith("\\")
    return found


def _parsed(cell: str) -> str:
    """The cell; as comments where it is no Python, and would not run in a notebook either."""
    try:
        ast.parse(cell)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "\n".join(f"# {line}" for line in cell.splitlines())
    return cell


def _is_code(cell: Any) -> bool:  # noqa: ANN401 - any JSON
    return isinstance(cell, dict) and cell.get("cell_type") == "code"


def _source(cell: dict[str, Any]) -> str:
    """A cell's text, which is stored whole or by lines."""
    stated = cell.get("source", "")
    lines = stated if isinstance(stated, list) else [stated]
    return "".join(line for line in lines if isinstance(line, str))


def _python(cell: str) -> str:
    """The cell with what is no Python as comments; a line of it that goes on is one as well."""
    first = cell.lstrip().split("\n", 1)[0]
    foreign = first.startswith("%%") and not first.startswith(_STILL_PYTHON)
    made, goes_on = [], foreign
    for line in cell.splitlines():
        bare = line.lstrip()
        indent = line[: len(line) - len(bare)]
        if goes_on:
            made.append(f"# {line}")
        elif bare.startswith(_PROMPT):
            made.append(f"{indent}pass  # {bare}" if indent else f"# {line}")
        else:
            made.append(line)
            continue
        goes_on = foreign or bare.endswith("\\")
    return "\n".join(made)
