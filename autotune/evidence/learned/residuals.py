"""Residuals of past runs, kept beside them so that an answer need not price every run again.

A kept residual holds for the calibration and the release that made it; another one's are made anew,
in memory: only `autotune learn` writes.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from autotune.catalog.files import merging, write_whole
from autotune.catalog.software import DISTRIBUTION
from autotune.cost.constants import PATH
from autotune.cost.learned import PARTS
from autotune.evidence.cases import Refused
from autotune.evidence.learned.effects import Residual, residual_of_run
from autotune.evidence.learned.store import MAX_BYTES, MOST_KEPT, store_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.evidence.cases import Price
    from autotune.evidence.learned.run import PastRun

FILE = "residuals.json"


@lru_cache(maxsize=1)
def made_by() -> str:
    """What residuals depend on beside the runs: the calibration, and the release."""
    try:
        release = version(DISTRIBUTION)
    except PackageNotFoundError:
        release = "source"
    content = PATH.read_bytes() + release.encode()
    return hashlib.sha256(content).hexdigest()[:16]


def residuals(runs: Sequence[PastRun], price: Price) -> list[Residual]:
    """Of every run that the model covers, the kept ones without pricing."""
    kept = _kept()
    found: list[Residual] = []
    for run in runs:
        known = kept.get(run.id)
        if known is not None:
            found.append(known)
            continue
        try:
            found.append(residual_of_run(run, price))
        except Refused:
            continue
    return found


def remember(found: Sequence[Residual]) -> None:
    """Keep residuals for later answers, beside those that another process keeps. Raises OSError."""
    path = store_path().parent / FILE
    with merging(path):
        every = _kept() | {own.id: own for own in found}
        latest = list(every.values())[-MOST_KEPT:]
        content = {"made_by": made_by(), "residuals": [asdict(own) for own in latest]}
        write_whole(path, json.dumps(content, allow_nan=False) + "\n")


def _kept() -> dict[str, Residual]:
    path = store_path().parent / FILE
    try:
        if path.stat().st_size > MAX_BYTES:
            return {}
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        if content["made_by"] != made_by():
            return {}
        return {entry["id"]: _residual(entry) for entry in content["residuals"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def _residual(entry: dict[str, Any]) -> Residual:
    """A kept residual. Raises ValueError or TypeError for anything else."""
    found = Residual(**{**entry, "shares": tuple(entry["shares"])})
    numbers = (
        *found.shares,
        found.unsettled,
        found.log,
        found.sd,
        found.noise,
        found.save_log or 0.0,
        found.save_bytes_per_s or 0.0,
    )
    words = ("id", "device", "stack", "method", "shape")
    named = all(isinstance(entry[w], str) for w in words) and isinstance(entry["count"], int)
    sized = len(found.shares) == PARTS and found.count > 0 and found.sd > 0 and found.noise > 0
    if not named or not sized or not all(math.isfinite(number) for number in numbers):
        msg = "no residual"
        raise ValueError(msg)
    return found
