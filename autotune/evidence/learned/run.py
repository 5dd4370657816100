"""A past run of a user: a row of the public table, and what the table has no column for.

The row goes the way of every public row (`evidence/record`), so that a run that a user hands back
is read exactly as it was learned from. Beside it: the model's shape where no catalogue has it,
exact versions, and the seconds of a save.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, cast

from autotune.catalog.models.hf_config import model_from_config
from autotune.catalog.models.models import find_model, is_known
from autotune.domain.errors import InputError
from autotune.domain.job import Evaluation
from autotune.domain.units import is_number
from autotune.evidence.cases import Grade, MeasuredCase, Refused, Skipped
from autotune.evidence.record.kernels import kernels_of
from autotune.evidence.record.row import COLUMNS, Row
from autotune.evidence.record.table import case_of
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.model import Model
    from autotune.domain.observation import Observation, Quantity
    from autotune.domain.software import Software

# Log sd of a step's seconds beside that between two runs. A: of steps alone, or with what else was
# in them taken off as it was timed. B: with saves, evaluations or a warm-up inside, or few steps.
# C: of clocks or lengths that had to be guessed.
NOISE: dict[Grade, float] = {"A": 0.03, "B": 0.10, "C": 0.25}
PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "flash_attn", "bitsandbytes",
            "liger_kernel", "torchao")  # fmt: skip
DRIVES_TRAINER = ("hf", "trl", "axolotl", "llamafactory", "unsloth")
UNSHAPED = "model unknown to the catalogue, and its config.json is not beside the run"
_LEAST_S, _MOST_S = 1e-6, 1e7


@dataclass(frozen=True, slots=True)
class PastRun:
    """One run. id: of its content, whatever folder it lies in and whoever logged it."""

    id: str
    source: str  # "W&B run", "Trainer output", ...
    trainer: str  # hf, trl, axolotl, ...
    grade: Grade  # of its seconds
    cells: dict[str, str]  # of the public table
    model: dict[str, Any] = field(default_factory=dict)  # its config.json
    versions: dict[str, str] = field(default_factory=dict)
    save_s: float | None = None
    evaluation_s: float | None = None  # over so many rows, in batches of so many
    evaluation_rows: int = 0
    evaluation_batch: int = 0
    steps: int = 0  # that its seconds are the mean of
    saves: int = 0  # inside of them, not timed
    notes: tuple[str, ...] = ()

    @property
    def row(self) -> Row:
        """The run as a row of the public table."""
        return Row({"id": f"own-{self.id[:12]}", **self.cells})


def identity_of(*facts: object) -> str:
    """The name of a run by what it holds."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:24]


def case_of_run(run: PastRun) -> MeasuredCase:
    """The run in the cost model's terms. Raises Refused with the reason where it is outside."""
    found = case_of(run.row, _finder(run.model))
    if isinstance(found, Skipped):
        raise Refused(found.reason)
    if found.step is None:
        raise Refused(found.partial[0] if found.partial else "nothing timed")
    software = _software(found.job.software, run)
    job = replace(found.job, software=software)
    seen = found.observations
    if run.save_s is not None:
        seen += (_timed(seen[0], "checkpoint_save_s", run.save_s),)
    if run.evaluation_s is not None and run.evaluation_rows:
        plan = Evaluation(run.evaluation_rows, 0, batch_size=run.evaluation_batch)
        job = replace(job, evaluation=plan)
        seen += (_timed(seen[0], "evaluation_s", run.evaluation_s),)
    return replace(found, job=job, observations=seen)


def _timed(beside: Observation, quantity: Quantity, seconds: float) -> Observation:
    name = f"{beside.id.partition('/')[0]}/{quantity}"
    return replace(beside, id=name, quantity=quantity, value=seconds, kind=None)


def _finder(config: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as `case_of` takes it
    def find(name: str) -> Model:
        if is_known(name) or not config:
            return find_model(name)
        try:
            return model_from_config(config, name, "past run")
        except InputError as error:
            raise Refused(error.message) from None

    return find


def _software(by_date: Software, run: PastRun) -> Software:
    """The profile with the versions that the run itself tells."""
    told = {name: version for name in PACKAGES if (version := _version(run.versions.get(name)))}
    found = replace(by_date, **told)  # type: ignore[arg-type]  # versions by their own names
    if "transformers" in told:
        kernels, loss = kernels_of(run.row, told["transformers"])
        found = replace(found, kernels=kernels, loss=loss)  # type: ignore[arg-type]
    return replace(found, stack="hf") if run.trainer in DRIVES_TRAINER else found


def _version(text: str | None) -> tuple[int, ...] | None:
    parts = (text or "").split("+")[0].split(".")[:3]
    numbers = [int(part) for part in parts if part.isdecimal() and len(part) < 6]  # noqa: PLR2004
    return tuple(numbers) if len(numbers) >= 2 else None  # noqa: PLR2004


def from_json(entry: Any) -> PastRun:  # noqa: ANN401 - parsed JSON
    """A kept run. Raises ValueError, TypeError or KeyError for anything else."""
    cells = {k: v for k, v in dict(entry["cells"]).items() if k in COLUMNS and isinstance(v, str)}
    save, evaluation = entry.get("save_s"), entry.get("evaluation_s")
    for seconds, of in ((save, "a save"), (evaluation, "an evaluation")):
        if seconds is not None and not is_seconds(seconds):
            msg = f"no seconds of {of}"
            raise ValueError(msg)
    if entry["grade"] not in NOISE:
        msg = "no grade"
        raise ValueError(msg)
    return PastRun(
        id=str(entry["id"]),
        source=str(entry["source"]),
        trainer=str(entry["trainer"]),
        grade=cast("Grade", entry["grade"]),
        cells=cells,
        model=dict(entry.get("model") or {}),
        versions={str(k): str(v) for k, v in dict(entry.get("versions") or {}).items()},
        save_s=save,
        evaluation_s=evaluation,
        evaluation_rows=_count(entry.get("evaluation_rows", 0)),
        evaluation_batch=_count(entry.get("evaluation_batch", 0)),
        steps=_count(entry.get("steps", 0)),
        saves=_count(entry.get("saves", 0)),
        notes=tuple(str(note) for note in entry.get("notes", ())),
    )


def is_seconds(value: Any) -> bool:  # noqa: ANN401 - parsed JSON
    """Whether a save or an evaluation may take that long."""
    return _is_number(value) and _LEAST_S <= value <= _MOST_S


def _count(value: object) -> int:
    if not _is_number(value) or int(str(value)) < 0:
        msg = "no count"
        raise ValueError(msg)
    return int(str(value))


def _is_number(value: object) -> bool:
    return is_number(value) and math.isfinite(value)
