"""Fit the time model again, on the shipped measurements."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.catalog.files import write_whole
from autotune.domain.errors import InputError
from autotune.evidence.fit.refit import calibration_text, refit
from autotune.evidence.record.table import SHIPPED_ROWS

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.evidence.fit.refit import Refit

OUT_HINT = "--out takes a file in a folder that exists"


@dataclass(frozen=True, slots=True, eq=False)
class Calibrated:
    """A fit, the file's text, where it was written, and how long it took."""

    refit: Refit
    text: str
    written: Path | None
    seconds: float


def run_calibration(out: Path | None = None) -> Calibrated:
    """Fit the constants, offsets and spreads of the time model on the shipped rows.

    out: file to write; None writes nothing. Raises InputError when it cannot be written.
    """
    begun = time.perf_counter()
    if out is not None and not out.parent.is_dir():
        msg = f"{out} cannot be written: there is no folder {out.parent}"
        raise InputError(msg, OUT_HINT)
    found = refit(SHIPPED_ROWS)
    text = calibration_text(found)
    if out is not None:
        try:
            write_whole(out, text)
        except OSError as error:
            msg = f"{out} cannot be written: {error.strerror or error}"
            raise InputError(msg, OUT_HINT) from None
    return Calibrated(found, text, out, time.perf_counter() - begun)
