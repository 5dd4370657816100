"""A line on stderr, whatever state it is in."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Write one line, past a progress bar where there is one. Never raises."""
    line = f"autotune: {text}"
    tqdm = sys.modules.get("tqdm")
    try:
        if tqdm is None:
            sys.stderr.write(line + "\n")
        else:
            tqdm.tqdm.write(line, file=sys.stderr)
        sys.stderr.flush()
    except Exception:  # noqa: BLE001, S110 - a closed stream, or none at all
        pass
