"""What earlier runs taught, kept under `$AUTOTUNE_HOME` and loaded as a prior for the next one.

One file per device, model shape, work (method, row length) and software. The same key is believed
as it stands, but for the difference between two days. Another shape of the same family on the same
device and software is a weak prior, however much of it there is, and the reader is told. A run
keeps the prior that it started with in its folder, so that it resumes with the same.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.catalog.files import (
    home_dir,
    merging,
    read_regular,
    readable_entries,
    set_aside,
    write_whole,
)
from autotune.domain.config import is_extra
from autotune.domain.errors import InputError
from autotune.domain.observation import BETWEEN_RUNS_SD
from autotune.frozen import dataclass
from autotune.search.posterior.kernel import Observed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from autotune.domain.model import Model
    from autotune.search.posterior.measurements import History
    from autotune.search.priced import Part, Priced

FOLDER = "residuals"
PRIOR_FILE = "prior.json"  # of a run folder
OTHER_SHAPE_NOISE = 0.15  # between two sizes of a family: assumption
ALIKE = ("device", "family", "software")  # of another shape that is a weak prior
MOST = 200  # observations kept of a part: the newest
MOST_RUNS = 50


@dataclass(frozen=True, slots=True)
class PriorKey:
    """What residuals carry over: device, model family and shape, software."""

    device: str
    family: str
    shape: str
    software: str

    @classmethod
    def of(cls, device: str, model: Model, work: str, versions: Mapping[str, str]) -> PriorKey:
        """The key of a job on a device. work: what else changes the arithmetic, as text."""
        shape = _digest(repr((model.fingerprint, work)))
        return cls(device, model.family, shape, _digest(repr(sorted(versions.items()))))

    @property
    def file(self) -> str:
        """The file's name: readable in front, exact behind."""
        plain = "".join(c if c.isalnum() else "-" for c in f"{self.device}-{self.family}")
        exact = _digest(json.dumps([self.device, self.family, self.shape, self.software]))
        return f"{plain[:60]}-{exact}.json"


@dataclass(frozen=True, slots=True)
class Prior:
    """Observations by part in the codes of a model, and what the user should know of them.

    runs: probes that each earlier run of the same key needed, the oldest first.
    """

    observed: dict[str, list[Observed]]
    warnings: tuple[str, ...] = ()
    runs: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """Observations of all parts."""
        return sum(len(found) for found in self.observed.values())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def save_residuals(
    priced: Priced, history: History, key: PriorKey, home: Path | None = None, probes: int = 0
) -> tuple[Path, str]:
    """Add a study's observations to what is known by now. Older ones give way.

    What other programs disturbed is left out. probes: that the study needed; 0 for one that did not
    end by itself. Returns the file, and what became of a damaged one. Raises OSError.
    """
    path = (home or home_dir()) / FOLDER / key.file
    with merging(path):
        before, damage = _read(path)
        note = set_aside(path, damage, len(before.observed)) if damage else ""
        content = _merged(priced, history, key, before, probes)
        write_whole(path, json.dumps(content, allow_nan=False))
    return path, note


def _merged(
    priced: Priced, history: History, key: PriorKey, before: _Content, probes: int
) -> dict[str, Any]:
    """What a file holds when a study's observations join it."""
    entries = list(before.observed)
    seen = {json.dumps(entry, sort_keys=True) for entry in entries}
    entries += [
        entry
        for entry in _entries(priced, history.observed)
        if json.dumps(entry, sort_keys=True) not in seen
    ]
    kept = []
    for part in priced.parts:
        kept += [entry for entry in entries if entry["part"] == part.name][-MOST:]
    runs = [*before.runs, probes][-MOST_RUNS:] if probes else list(before.runs)
    about = {"device": key.device, "family": key.family, "shape": key.shape,
             "software": key.software}  # fmt: skip
    return {"key": about, "observed": kept, "runs": runs}


def _entries(priced: Priced, observed: Mapping[str, Sequence[Observed]]) -> list[dict[str, Any]]:
    """Observations with their levels in words."""
    return [
        {
            "part": part.name,
            "levels": {
                d.name: d.levels[code] for d, code in zip(part.reads, found.codes, strict=True)
            },
            "log_ratio": round(found.log_ratio, 6),
            "noise": found.noise,
            **({"least": True} if found.least else {}),
        }
        for part in priced.parts
        for found in observed.get(part.name, ())
        if not found.disturbed
    ]


def save_prior(priced: Priced, prior: Prior, run_dir: Path) -> None:
    """Write what a run starts with into its folder."""
    content = {
        "identity": priced.identity, "observed": _entries(priced, prior.observed),
        "warnings": list(prior.warnings), "runs": list(prior.runs),
    }  # fmt: skip
    write_whole(run_dir / PRIOR_FILE, json.dumps(content, allow_nan=False))


def load_prior(priced: Priced, run_dir: Path) -> Prior:
    """What a run started with. Nothing, for a run that kept nothing.

    Raises InputError when the file is damaged or is of another job or space: going on without it
    would be another search than the one that was begun.
    """
    path = run_dir / PRIOR_FILE
    if not path.exists():
        return Prior({})
    found, damaged = _read(path)
    if damaged or found.about.get("identity") != priced.identity:
        what = "is damaged" if damaged else "is the prior of another job or space"
        msg = f"{path} {what}: the search cannot continue as it started"
        raise InputError(msg, "start a new run with another --run")
    warnings = tuple(str(text) for text in found.about.get("warnings", ()))
    return Prior(_coded(priced, found.observed, 0.0), warnings, found.runs)


def load_residuals(priced: Priced, key: PriorKey, home: Path | None = None) -> Prior:
    """What earlier runs observed, where this model has the same levels.

    A damaged file, a prior from another model shape, and one of which nothing applies are named in
    `warnings`.
    """
    folder = (home or home_dir()) / FOLDER
    notes: list[str] = []
    own, damage = _read(folder / key.file)
    if damage:
        notes.append(f"{folder / key.file} is damaged and was left out ({damage})")
    found = _coded(priced, own.observed, BETWEEN_RUNS_SD)
    if any(found.values()):
        return Prior(found, tuple(notes), own.runs)
    if own.observed:
        notes.append("measurements of earlier runs here have no setting in common with this space")
    near, count = _of_family(folder, key)
    found = _weak(_coded(priced, near, 0.0))
    shapes = f"{count} other {key.family} shape{'s' * (count != 1)} or methods on {key.device}"
    if any(found.values()):
        notes.append(f"residuals of {shapes} are taken as a weak prior (sd {OTHER_SHAPE_NOISE:g})")
    elif near:
        notes.append(f"residuals of {shapes} have no setting in common with this job: left out")
    return Prior(found, tuple(notes))


def _weak(found: dict[str, list[Observed]]) -> dict[str, list[Observed]]:
    """Observations that together say no more than one of that sd.

    Derived: what two shapes differ by is common to all observations, so that their number must not
    average it away: sd x sqrt(n) for each of n.
    """
    return {
        name: [
            replace(o, noise=math.hypot(o.noise, OTHER_SHAPE_NOISE * math.sqrt(len(observed))))
            for o in observed
        ]
        for name, observed in found.items()
    }


def _of_family(folder: Path, key: PriorKey) -> tuple[list[dict[str, Any]], int]:
    entries: list[dict[str, Any]] = []
    count = 0
    for path in sorted(folder.glob("*.json")):
        found, _ = _read(path)
        about = found.about.get("key")
        if not isinstance(about, dict) or about.get("shape") == key.shape:
            continue
        if [about.get(name) for name in ALIKE] == [key.device, key.family, key.software]:
            entries += found.observed
            count += 1
    return entries, count


@dataclass(frozen=True, slots=True)
class _Content:
    """What a file holds."""

    observed: list[dict[str, Any]]
    runs: tuple[int, ...]
    about: dict[str, Any]


_NOTHING = _Content([], (), {})


def _read(path: Path) -> tuple[_Content, str]:
    """The content of a file, and what of it is damaged, in words. No file: nothing, undamaged."""
    try:
        text = read_regular(path).decode()
    except FileNotFoundError:
        return _NOTHING, ""
    except (OSError, ValueError) as error:
        return _NOTHING, str(error)
    entries = readable_entries(text, "observed", _entry)
    try:
        runs = tuple(int(probes) for probes in entries.about.get("runs", ()))
    except (ValueError, TypeError):
        runs, damage = (), entries.damage or "how many probes its runs needed cannot be read"
    else:
        damage = entries.damage
    return _Content(list(entries.found), runs, entries.about), damage


def _entry(entry: Any) -> dict[str, Any]:  # noqa: ANN401 - parsed JSON
    """An entry of finite numbers. Raises ValueError, KeyError or TypeError for anything else."""
    ratio, noise = float(entry["log_ratio"]), float(entry["noise"])
    if not math.isfinite(ratio) or not math.isfinite(noise) or noise < 0:
        msg = "not an observation"
        raise ValueError(msg)
    levels = {str(name): str(level) for name, level in dict(entry["levels"]).items()}
    least = {"least": True} if entry.get("least") else {}
    return {
        "part": str(entry["part"]), "levels": levels, "log_ratio": ratio, "noise": noise, **least
    }  # fmt: skip


def _coded(
    priced: Priced, entries: Sequence[dict[str, Any]], between: float
) -> dict[str, list[Observed]]:
    found: dict[str, list[Observed]] = {}
    for part in priced.parts:
        for entry in entries:
            codes = _codes(part, entry["levels"]) if entry["part"] == part.name else None
            if codes is not None:
                noise = math.hypot(entry["noise"], between)
                seen = Observed(codes, entry["log_ratio"], noise, entry.get("least", False))
                found.setdefault(part.name, []).append(seen)
    return found


def _codes(part: Part, levels: dict[str, str]) -> tuple[int, ...] | None:
    """The signature in this model's codes; None when it has no such level.

    Nor one that was measured at a level of a user's own knob that this search does not know.
    """
    codes = []
    if any(is_extra(name) for name in set(levels) - {d.name for d in part.reads}):
        return None
    for dimension in part.reads:
        level = levels.get(dimension.name)
        if level not in dimension.levels:
            return None
        codes.append(dimension.levels.index(level))
    return tuple(codes)
