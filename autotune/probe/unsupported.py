"""Settings that do not run here: no argument of the installed Trainer, out of reach, or broken.

A value breaks when it failed twice for the same reason and never worked: a sampler must not learn
"slow" from "broken", nor spend a minute on the same breakage again.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.domain.config import ARGUMENT, is_extra
from autotune.domain.errors import unknown
from autotune.probe.outcomes import BROKEN, OK
from autotune.probe.worker.contract import beyond_probes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autotune.domain.config import Config
    from autotune.probe.record import ProbeRecord

SUSPECTS = ("compile", "precision", "attention", "optimizer", "sharding", "adapter_dtype",
            "activation_checkpointing", "packing", "length_grouping", "kernels",
            "offload")  # fmt: skip
LEAST_FAILURES = 2


def reason_of(record: ProbeRecord) -> str:
    """Status and the message without numbers and addresses: equal for the same breakage."""
    line = record.message.strip().partition("\n")[0]
    return f"{record.status}: {re.sub(r'0x[0-9a-f]+|[0-9]+', '#', line)[:200]}"


class Unsupported:
    """What probes have shown not to work here."""

    def __init__(self, records: Iterable[ProbeRecord]) -> None:
        """Learn from what is recorded already."""
        self._worked: dict[str, set[object]] = defaultdict(set)
        self._broken: dict[tuple[str, object, str], int] = defaultdict(int)
        for record in records:
            self.learn(record)

    def learn(self, record: ProbeRecord) -> None:
        """One more record. A retry that failed alike counts as a second failure."""
        for name in (*SUSPECTS, *filter(is_extra, record.config)):
            value = record.config.get(name)
            if record.status == OK or record.fits is False:
                self._worked[name].add(value)
            elif record.status in BROKEN:
                self._broken[name, value, reason_of(record)] += record.attempts

    def reason(self, config: Config) -> str | None:
        """Why a configuration need not be tried: a value of it failed twice and never worked.

        Only where another value of that knob has worked: else it need not be the knob's fault.
        """
        beyond = beyond_probes(config.kernels, config.offload, config.precision)
        if beyond:
            return f"unsupported: {beyond}"
        own, values = tuple(dict(config.extra)), config.as_record()
        for name in (*SUSPECTS, *own):
            value = values[name]
            worked = self._worked[name]
            if value in worked or not worked:
                continue
            for (knob, broken, why), count in self._broken.items():
                if knob == name and broken == value and count >= LEAST_FAILURES:
                    return f"unsupported: {name} {value} failed before ({why})"
        return None


ARGUMENTS_FILE, ARGUMENTS_CLASS = "training_args.py", "TrainingArguments"


def trainer_arguments() -> tuple[str, ...]:
    """Fields of the installed TrainingArguments; none where transformers is not as expected.

    From its source: importing it takes seconds.
    """
    found = find_spec("transformers")
    for folder in (found.submodule_search_locations or ()) if found else ():
        path = Path(folder) / ARGUMENTS_FILE
        if path.is_file():
            return _fields(path.read_text(encoding="utf-8"))
    return ()


def _fields(source: str) -> tuple[str, ...]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == ARGUMENTS_CLASS:
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
