"""Which arguments the installed TrainingArguments has, without importing it: that takes seconds."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.domain.config import ARGUMENT
from autotune.domain.errors import unknown

if TYPE_CHECKING:
    from collections.abc import Iterable

FILE, CLASS = "training_args.py", "TrainingArguments"


def trainer_arguments() -> tuple[str, ...]:
    """Fields of the class, from its source; none where transformers is not as expected."""
    found = find_spec("transformers")
    for folder in (found.submodule_search_locations or ()) if found else ():
        path = Path(folder) / FILE
        if path.is_file():
            return _fields(path.read_text(encoding="utf-8"))
    return ()


def _fields(source: str) -> tuple[str, ...]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == CLASS:
            return tuple(
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            )
    return ()


def check_arguments(extra: Iterable[str]) -> None:
    """Raise InputError for an extra knob that is an argument which no TrainingArguments has."""
    asked = [name.removeprefix(ARGUMENT) for name in extra if name.startswith(ARGUMENT)]
    known = trainer_arguments() if asked else ()
    for name in asked:
        if known and name not in known:
            kind = "argument of TrainingArguments"
            hint = "extra takes those of the installed transformers, by their exact names"
            raise unknown(kind, name, known, hint)
