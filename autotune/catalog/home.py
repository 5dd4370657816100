"""Where user-level state lives: refreshed prices, cached traces, learned residuals."""

from __future__ import annotations

import os
from pathlib import Path


def home_dir() -> Path:
    """$AUTOTUNE_HOME, else ~/.cache/autotune. Not created here."""
    stated = os.environ.get("AUTOTUNE_HOME")
    return Path(stated) if stated else Path.home() / ".cache" / "autotune"
