"""Files that the product gives back, in their trainers' own parsers: before, and with the pick.

A parser is a process of its own, started once a trainer, by the Python of an environment that
`make parsers` builds.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from autotune.app.job.trainer_file import parsed_again
from autotune.app.runs.user_file import SAME, patched
from autotune.domain.errors import InputError
from bench.corpus import real_parser

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from autotune.domain.job import Job

ROOT = Path(__file__).resolve().parents[2]
TAKEN, NEWLY, BEFORE, NOT_GIVEN, NO_PARSER = (
    "taken",
    "newly refused by its trainer",
    "refused before as well",
    "not given back",
    "no parser here",
)
WITHOUT = "of all, without keys that it does not know"  # fmt: skip
_SYNTAXES = {"yaml", "json"}
# torchtune's: a section builds what this version of it does not have.
_UNKNOWN_PART = re.compile(
    r"^InstantiationError: Error loading '(torchtune\.[\w.]+)': ModuleNotFoundError"
)
# What says that keys are unknown to this version of a trainer, and nothing else is wrong with them.
_UNKNOWN_KEYS = re.compile(
    r"^ValueError: Some keys are not used by "
    r"(?:the HfArgumentParser|AxolotlInputConfig): (\[.*\])$"
)
# Each moves what a trainer may tie to something else: saves to evaluations, offloads to recomputing
_CHANGES: tuple[dict[str, Any], ...] = (
    {"activation_checkpointing": "full"},
    {"activation_checkpointing": "none"},
    {"checkpoint_every_steps": 37, "save_total_limit": 3},
    {"optimizer": "paged_adamw_8bit", "precision": "bf16"},
    {"optimizer": "adamw_bnb_8bit"},
)


def python_of(trainer: str) -> Path | None:
    """The Python of a trainer's environment; None where it has not been made."""
    name = "trl" if trainer == "hf" else trainer
    path = ROOT / f".venv-{name}" / "bin" / "python"
    return path if path.exists() else None


@dataclass(slots=True)
class Parser:
    """A trainer's parser in a process of its own."""

    trainer: str
    python: Path
    _process: subprocess.Popen[str] = field(init=False)

    def __enter__(self) -> Self:
        """Starts it.

        Raises:
            RuntimeError: It ended before it was ready, as where a package of its is missing.
        """
        self._process = subprocess.Popen(
            [self.python, "-I", real_parser.__file__, self.trainer],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        if self._answer() != real_parser.READY:
            self.__exit__(None, None, None)
            msg = f"{self.python} cannot load the parser of {self.trainer}"
            raise RuntimeError(msg)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        """Ends it."""
        self._process.communicate()

    def refusal(self, values: Mapping[str, Any]) -> str:
        """Why it refuses a file's mapping; empty where it takes it."""
        assert self._process.stdin is not None  # noqa: S101 - so by what comes before
        print(json.dumps(values, default=str), file=self._process.stdin, flush=True)
        return str(json.loads(self._answer()))

    def _answer(self) -> str:
        assert self._process.stdout is not None  # noqa: S101 - so by what comes before
        return self._process.stdout.readline().strip()


@dataclass(frozen=True, slots=True)
class Returned:
    """What became of one file."""

    name: str
    trainer: str
    end: str
    why: str = ""
    left_out: tuple[str, ...] = ()  # keys of the user's own that its parser does not know


def returned(jobs: Iterable[tuple[str, Job]]) -> list[Returned]:
    """Every job's own file, as it stands and with changes in it, a trainer after the other."""
    of: dict[str, list[tuple[str, Job]]] = {}
    for name, job in jobs:
        if job.origin is not None and job.today is not None and job.origin.syntax in _SYNTAXES:
            of.setdefault(job.origin.trainer, []).append((name, job))
    found = []
    for trainer, files in of.items():
        python = python_of(trainer)
        if python is None or trainer not in real_parser.PARSERS:
            found += [Returned(name, trainer, NO_PARSER) for name, _ in files]
            continue
        with Parser(trainer, python) as parser:
            found += [_held(name, job, parser) for name, job in files]
    return found


def _held(name: str, job: Job, parser: Parser) -> Returned:
    assert job.origin is not None  # noqa: S101 - so by what comes before
    assert job.today is not None  # noqa: S101 - so by what comes before
    own = parsed_again(job.origin)[1]
    before = parser.refusal(own)
    left_out: tuple[str, ...] = ()
    while unknown := unknown_keys(before, _without(own, left_out)):
        left_out += unknown
        before = parser.refusal(_without(own, left_out))
    if before:
        return Returned(name, parser.trainer, BEFORE, before, left_out)
    end, why = NOT_GIVEN, ""
    for changes in _CHANGES:
        try:
            made = patched(SAME, job, job.offers[0], replace(job.today, **changes))
        except InputError as error:
            why = why or error.message
            continue
        written = parsed_again(replace(job.origin, text=made.text))[1]
        after = parser.refusal(_without(written, left_out))
        if after:
            return Returned(name, parser.trainer, NEWLY, f"{changes}: {after}", left_out)
        end = TAKEN
    return Returned(name, parser.trainer, end, "" if end == TAKEN else why, left_out)


def unknown_keys(refusal: str, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys of `values` that a refusal names as unknown; none where it refuses for anything else."""
    if said := _UNKNOWN_KEYS.match(refusal):
        return tuple(key for key in ast.literal_eval(said[1]) if key in values)
    if said := _UNKNOWN_PART.match(refusal):
        return tuple(key for key, part in values.items() if _part(part) == said[1])
    return ()


def _part(value: object) -> object:
    return value.get("_component_") if isinstance(value, dict) else None


def _without(values: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def returned_table(found: Iterable[Returned]) -> str:
    """A line a trainer, every file that it took before and refuses now, and what was not compared.

    Where a parser does not know keys of the user's own, the file is compared without them, and is
    in the last column as well.
    """
    ends = (TAKEN, NEWLY, BEFORE, NOT_GIVEN, NO_PARSER, WITHOUT)
    counts: dict[str, dict[str, int]] = {}
    lines = []
    reasons: Counter[tuple[str, str, str]] = Counter()
    for each in found:
        row = counts.setdefault(each.trainer, dict.fromkeys(ends, 0))
        row[each.end] += 1
        row[WITHOUT] += bool(each.left_out)
        if each.end == NEWLY:
            lines.append(f"{each.name}: {each.why}")
        elif each.why:
            reasons[each.trainer, each.end, each.why] += 1
        for key in each.left_out:
            reasons[each.trainer, WITHOUT, key] += 1
    head = [f"| trainer | {' | '.join(ends)} |", "|---" * (len(ends) + 1) + "|"]
    rows = [
        f"| {name} | {' | '.join(str(row[end]) for end in ends)} |" for name, row in counts.items()
    ]
    listed = [
        f"{count:4} {trainer}, {end}: {why}"
        for (trainer, end, why), count in sorted(reasons.items(), key=lambda item: item[0][:2])
    ]
    return "\n".join([*head, *rows, *lines, *listed])
