"""What verified runs of a job measured, kept under `$AUTOTUNE_HOME` as evidence of later ones.

One file for everything with the same model, method, row lengths and software, wherever the model's
folder lies and however it was typed: rows, epochs and the global batch may differ, and so may the
machine, which each Observation names. They go the way of a job file's `evidence:`, so another
machine gets what carries over, with a wider interval. A later log of the same training replaces the
earlier one. Times that a busy machine spoiled are kept, and say why they teach nothing.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, cast, get_args

from autotune.catalog.files import home_dir, kept_entries, merging, set_aside, write_json
from autotune.domain.config import KNOBS
from autotune.domain.errors import InputError
from autotune.domain.job import Assumption
from autotune.domain.observation import MARKED, VERIFIED, MemoryKind, Observation, Quantity
from autotune.domain.units import is_number
from autotune.frozen import identity

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autotune.domain.job import Job

FOLDER = "verified"
MOST_RUNS = 50
MAX_BYTES = 10_000_000


def store_of(job: Job) -> Path:
    """The file that verified runs of such a job are kept in."""
    return _stores(job)[0]


def _stores(job: Job) -> tuple[Path, Path, Path]:
    """Its file, and those of earlier versions: by every field of the model, and by its text."""
    work = (job.method, job.max_length, job.padding, job.lengths.quantiles, job.pretokenized)
    software = replace(job.software, name="", as_of="")  # by its versions
    model = replace(job.model, name="", hf_config="", shape_of="", plain_name="")
    older = replace(
        job.software, liger_kernel=None, torchao=None, flash_attn_3=None, hub_kernels=None
    )
    text = hashlib.sha256(repr(replace(model, source="")).encode()).hexdigest()[:16]
    facts = (
        (job.model.fingerprint, work, job.storage, software),
        (model, work, job.storage, older),
        (text, work, job.storage, software),
    )
    plain = "".join(c if c.isalnum() else "-" for c in job.model.family)[:40]
    names = [hashlib.sha256(identity(each).encode()).hexdigest()[:16] for each in facts]
    folder = home_dir() / FOLDER
    now, first, second = (folder / f"{plain}-{name}.json" for name in names)
    return now, first, second


def remember(job: Job, training: str, observations: tuple[Observation, ...]) -> tuple[Path, str]:
    """Keep what a training measured, in the place of what an earlier log of it did.

    Where, and what became of a damaged file of earlier runs. Raises OSError.
    """
    path = store_of(job)
    with merging(path):
        runs, damage = _read(path)
        note = set_aside(path, damage, len(runs)) if damage else ""
        runs.pop(training, None)
        runs[training] = observations
        kept = list(runs.items())[-MOST_RUNS:]
        content = {
            "schema_version": 1,
            "model": job.model.name,
            "runs": [{"log": name, "observations": [asdict(o) for o in own]} for name, own in kept],
        }
        write_json(path, content)
    return path, note


def with_verified(job: Job, *, but: str = "") -> Job:
    """The job with what verified runs of it measured as further evidence.

    but: a training that is left out.
    """
    path, *places = _stores(job)
    runs, damage = _read(path)
    earlier = [(at, _read(at)[0]) for at in places]
    if damage:
        note = Assumption("evidence", "verified runs left out", f"{path} is damaged: {damage}")
        job = replace(job, assumed=(*job.assumed, note))
    if not runs:
        path = next((at for at, found in earlier if found), path)
    every = {name: own for _, found in (*earlier, (path, runs)) for name, own in found.items()}
    known = [own for name, own in every.items() if name != but]
    usable = [[o for o in own if MARKED not in o.facts] for own in known]
    notes = [*_taken(usable, path), *_spoiled(known, path)]
    evidence = [observation for own in usable for observation in own]
    return replace(job, evidence=(*job.evidence, *evidence), assumed=(*job.assumed, *notes))


def _taken(usable: Sequence[Sequence[Observation]], path: Path) -> list[Assumption]:
    count = sum(bool(own) for own in usable)
    if not count:
        return []
    what = f"{count} verified run{'s' * (count != 1)}"
    why = f"measured before on such a job; delete {path} to forget them"
    return [Assumption("evidence", what, why)]


def _spoiled(known: Sequence[Sequence[Observation]], path: Path) -> list[Assumption]:
    reasons = [next((str(o.facts[MARKED]) for o in own if MARKED in o.facts), "") for own in known]
    reasons = [reason for reason in reasons if reason]
    if not reasons:
        return []
    count = len(reasons)
    what = f"the times of {count} verified run{'s' * (count != 1)} left out"
    why = f"the machine was busy with other work: {reasons[-1]}; delete {path} to forget them"
    return [Assumption("evidence", what, why)]


def without_verified(job: Job) -> Job:
    """The job with only the evidence that it states itself."""
    return replace(job, evidence=tuple(o for o in job.evidence if VERIFIED not in o.facts))


def _read(path: Path) -> tuple[dict[str, tuple[Observation, ...]], str]:
    """Observations by training, the oldest first, and what is damaged, in words."""
    entries = kept_entries(path, MAX_BYTES, "runs", _training)
    return dict(entries.found), entries.damage


def _training(run: Any) -> tuple[str, tuple[Observation, ...]]:  # noqa: ANN401 - parsed JSON
    try:
        return str(run["log"]), tuple(_observation(entry) for entry in run["observations"])
    except InputError as error:
        raise ValueError(error.message) from None


def _observation(entry: Any) -> Observation:  # noqa: ANN401 - parsed JSON
    """An Observation of finite numbers and known knobs. Raises for anything else."""
    value = entry["value"]
    if not is_number(value) or not math.isfinite(value) or value <= 0:
        msg = "not a measurement"
        raise ValueError(msg)
    if entry["quantity"] not in get_args(Quantity):
        msg = "not a quantity"
        raise ValueError(msg)
    if entry["kind"] not in (None, *get_args(MemoryKind)):
        msg = "not a kind of memory"
        raise ValueError(msg)
    knobs: dict[str, object] = {
        name: KNOBS[name].parse(own) for name, own in dict(entry["knobs"]).items()
    }
    return Observation(
        id=str(entry["id"]),
        quantity=cast("Quantity", entry["quantity"]),
        value=float(value),
        provenance=str(entry["provenance"]),
        kind=cast("MemoryKind | None", entry["kind"]),
        knobs=knobs,
        facts=dict(entry["facts"]),
    )
