"""What earlier runs taught, kept under `$AUTOTUNE_HOME` and loaded as a prior for the next one.

One file per device, model shape and software. The same key is believed as it stands, but for the
difference between two days; another shape of the same family on the same device and software is
believed with a wide margin, and the reader is told.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from autotune.catalog.home import home_dir
from autotune.search.residuals import Observed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autotune.domain.model import Model
    from autotune.domain.software import Software
    from autotune.search.measurements import History
    from autotune.search.priced import Part, Priced

FOLDER = "residuals"
SAME_NOISE = 0.03  # sd of the log between two runs of one configuration on two days
OTHER_SHAPE_NOISE = 0.15  # between two sizes of a family: assumption
MOST = 200  # observations kept of a part: the newest


@dataclass(frozen=True, slots=True)
class PastKey:
    """What residuals carry over: device, model family and shape, software."""

    device: str
    family: str
    shape: str
    software: str

    @classmethod
    def of(cls, device: str, model: Model, software: Software) -> PastKey:
        """The key of a job on a device."""
        versions = repr((software.torch, software.transformers, software.kernels))
        return cls(device, model.family, _digest(repr(replace(model, name=""))), _digest(versions))

    @property
    def file(self) -> str:
        """The file's name: readable in front, exact behind."""
        plain = "".join(c if c.isalnum() else "-" for c in f"{self.device}-{self.family}")
        exact = _digest(json.dumps([self.device, self.family, self.shape, self.software]))
        return f"{plain[:60]}-{exact}.json"


@dataclass(frozen=True, slots=True)
class Past:
    """Observations by part in the codes of a model, and what the user should know of them."""

    observed: dict[str, list[Observed]]
    warnings: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Observations of all parts."""
        return sum(len(found) for found in self.observed.values())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def remember(priced: Priced, history: History, key: PastKey, home: Path | None = None) -> Path:
    """Add a study's observations to what is known; returns the file. Older ones give way."""
    folder = (home or home_dir()) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / key.file
    entries, _ = _read(path)
    seen = {json.dumps(entry, sort_keys=True) for entry in entries}
    for part in priced.parts:
        for observed in history.observed.get(part.name, ()):
            levels = {
                d.name: d.levels[code] for d, code in zip(part.reads, observed.codes, strict=True)
            }
            entry = {
                "part": part.name, "levels": levels,
                "log_ratio": round(observed.log_ratio, 6), "noise": observed.noise,
            }  # fmt: skip
            if json.dumps(entry, sort_keys=True) not in seen:
                entries.append(entry)
    kept = []
    for part in priced.parts:
        kept += [entry for entry in entries if entry["part"] == part.name][-MOST:]
    about = {"device": key.device, "family": key.family, "shape": key.shape,
             "software": key.software}  # fmt: skip
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump({"key": about, "observed": kept}, file, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return path


def recall(priced: Priced, key: PastKey, home: Path | None = None) -> Past:
    """What earlier runs observed, where this model has the same levels.

    A damaged file and a prior from another model shape are named in `warnings`.
    """
    folder = (home or home_dir()) / FOLDER
    notes: list[str] = []
    own, damaged = _read(folder / key.file)
    if damaged:
        notes.append(f"{folder / key.file} is damaged and was left out")
    found = _coded(priced, own, SAME_NOISE)
    if not any(found.values()):
        near, count = _of_family(folder, key)
        found = _coded(priced, near, OTHER_SHAPE_NOISE)
        if any(found.values()):
            notes.append(
                f"residuals of {count} other {key.family} shape{'s' * (count != 1)} on "
                f"{key.device} are taken as a weak prior (sd {OTHER_SHAPE_NOISE:g})"
            )
    return Past(found, tuple(notes))


def _of_family(folder: Path, key: PastKey) -> tuple[list[dict[str, Any]], int]:
    entries: list[dict[str, Any]] = []
    count = 0
    for path in sorted(folder.glob("*.json")):
        about = _about(path)
        same = (about.get("device"), about.get("family"), about.get("software"))
        if same == (key.device, key.family, key.software) and about.get("shape") != key.shape:
            entries += _read(path)[0]
            count += 1
    return entries, count


def _about(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("key")
    except (OSError, ValueError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}


def _read(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """Entries of a file, and whether it is damaged. No file: nothing, undamaged."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return [], False
    except (OSError, UnicodeDecodeError):
        return [], True
    try:
        entries = json.loads(text)["observed"]
        return [_entry(entry) for entry in entries], False
    except (ValueError, KeyError, TypeError):
        return [], True


def _entry(entry: Any) -> dict[str, Any]:  # noqa: ANN401 - parsed JSON
    """An entry of finite numbers. Raises ValueError, KeyError or TypeError for anything else."""
    ratio, noise = float(entry["log_ratio"]), float(entry["noise"])
    if not math.isfinite(ratio) or not math.isfinite(noise) or noise < 0:
        msg = "not an observation"
        raise ValueError(msg)
    levels = {str(name): str(level) for name, level in dict(entry["levels"]).items()}
    return {"part": str(entry["part"]), "levels": levels, "log_ratio": ratio, "noise": noise}


def _coded(
    priced: Priced, entries: Sequence[dict[str, Any]], between: float
) -> dict[str, list[Observed]]:
    found: dict[str, list[Observed]] = {}
    for part in priced.parts:
        for entry in entries:
            codes = _codes(part, entry["levels"]) if entry["part"] == part.name else None
            if codes is not None:
                noise = math.hypot(entry["noise"], between)
                found.setdefault(part.name, []).append(Observed(codes, entry["log_ratio"], noise))
    return found


def _codes(part: Part, levels: dict[str, str]) -> tuple[int, ...] | None:
    """The signature in this model's codes; None when it has no such level."""
    codes = []
    for dimension in part.reads:
        level = levels.get(dimension.name)
        if level not in dimension.levels:
            return None
        codes.append(dimension.levels.index(level))
    return tuple(codes)
