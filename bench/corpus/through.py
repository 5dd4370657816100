"""One file through the product: read and priced in this process, and what the price says of it."""

from __future__ import annotations

import json
import re
import traceback
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from autotune.app.estimate import estimate
from autotune.app.job.load import jobs_of_command, load_jobs
from autotune.domain.errors import InputError
from autotune.domain.job import NamedJob
from autotune.domain.typed.overrides import Overrides

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.app.estimate import Estimate
    from autotune.app.job.load import NamedJob
    from autotune.domain.job import Job

_GPU, _ROWS = "h100", 10_000
_MODEL = "meta-llama/Llama-3.1-8B"  # the shape that stands in for a model unknown offline
_COMMAND = ".cmd"
_UNKNOWN = re.compile(
    r'unknown model "([^"]*)"|cannot read (\S+)config\.json: No such file|'
    r"model '([^']*)' has .* which this version cannot describe"
)
_MISSING = re.compile(r"does not say (.*)")


@dataclass(slots=True)
class Read:
    """What the product made of one file."""

    facts: dict[str, object] = field(default_factory=dict)
    said: str = ""  # the warnings of the price
    refusal: str = ""
    hint: str = ""
    crash: str = ""
    unknown_model: str = ""  # the name, where a stand-in was priced
    undescribed: bool = False  # whether it is one of a kind that is refused
    jobs: list[NamedJob] = field(default_factory=list)

    @property
    def priced(self) -> bool:
        """Whether there is a price."""
        return not self.refusal and not self.crash


def read_through(path: Path, text: str, *, sharded: bool) -> Read:
    """The file as a user gives it: with a device, rows, and the flags that a refusal asks for."""
    found = Read()
    gpu = f"{_GPU}:8" if sharded else _GPU
    stated: dict[str, object] = {"data.rows": _ROWS}
    changed: dict[str, str] = {}
    for _ in range(5):  # each time with what was asked for
        found.refusal = found.hint = ""
        try:
            _price(found, path, text, Overrides((gpu,), stated=stated, set_values=changed))
        except InputError as error:
            found.refusal, found.hint = error.message, error.hint or ""
            if ":" not in gpu and "on several devices" in found.refusal:
                gpu = f"{_GPU}:8"
            elif not _answered(found, stated, changed):
                return found
        except Exception:  # noqa: BLE001 - a traceback is a finding
            found.crash = traceback.format_exc().strip().splitlines()[-1][:200]
            return found
        else:
            return found
    return found


def _price(found: Read, path: Path, text: str, overrides: Overrides) -> None:
    if path.suffix == _COMMAND:
        found.jobs = jobs_of_command(text, overrides)
    else:
        found.jobs = load_jobs(path, overrides)
    priced = estimate(found.jobs[0].job, fidelity="formula")
    found.facts = _facts(priced.job)
    found.said = _said(priced)


def _answered(found: Read, stated: dict[str, object], changed: dict[str, str]) -> bool:
    """Whether the refusal asked for something that a user can give by flag, which is now given."""
    message = found.refusal
    missing = _MISSING.search(message)
    if missing and "the model" in missing[1] and "model" not in changed:
        changed["model"] = _MODEL
        return True
    if missing and "how it is trained" in missing[1] and "method.kind" not in stated:
        stated["method.kind"] = "full"
        return True
    if "data.rows" in stated and "--rows cannot be given" in message:
        changed["data.rows"] = str(_ROWS)
    if "data.rows" in stated and re.search("--rows (is|cannot be given)", message):
        del stated["data.rows"]
        return True
    unknown = _UNKNOWN.search(message)
    if unknown and "model" not in changed:
        found.unknown_model = unknown[1] or unknown[2] or unknown[3]
        found.undescribed = bool(unknown[3])
        changed["model"] = _MODEL
        return True
    if found.unknown_model and "LoRA target" in message and "method.targets" not in changed:
        changed["method.targets"] = "all-linear"
        return True
    return False


def _said(priced: Estimate) -> str:
    notes = [*priced.warnings, *(f"{a.key} {a.value} {a.why}" for a in priced.job.assumed)]
    return "\n".join(notes)


def _facts(job: Job) -> dict[str, object]:
    """The same keys as the independent look has."""
    today = job.today
    found: dict[str, object] = {
        "objective": job.objective,
        "model": job.model.name.rpartition("/")[2].casefold(),
        "named": PurePosixPath(str(json.loads(job.spec).get("model") or "")).name.casefold(),
        "method": job.method.kind,
        "base": job.method.base,
        "length": job.max_length,
        "rank": job.method.rank,
    }
    if today is not None:
        found |= {
            "micro": today.micro_batch_size,
            "accumulation": today.gradient_accumulation_steps,
            "optimizer": {
                "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_bnb_8bit": "adamw8",
                "paged_adamw_8bit": "adamw8",
            }.get(today.optimizer, today.optimizer),
            "checkpointing": today.activation_checkpointing,
        }  # fmt: skip
    return found
