"""Where user-level state lives: refreshed prices, cached traces, learned residuals."""

from __future__ import annotations

import os
from pathlib import Path

from autotune.domain.paths import whole


def home_dir() -> Path:
    """$AUTOTUNE_HOME, else ~/.cache/autotune, from the root. Not created here."""
    stated = os.environ.get("AUTOTUNE_HOME")
    return whole(stated) if stated else Path.home() / ".cache" / "autotune"
