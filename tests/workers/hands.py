"""A worker that measures by the formula of a simulated machine: `python hands.py RUN URL NAME`."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "app" / "probing"))

from simulatedmachine import Machine, step_of
from waiting import until

from autotune.app.workers.join import work
from autotune.domain.errors import AutotuneError

TOGETHER = "HANDS_TOGETHER"  # how many have to be there before any of them measures


def measured(config: dict[str, Any]) -> float:
    until(lambda: len([*Path(run).glob("workers/*")]) >= int(os.environ.get(TOGETHER, "0")))
    time.sleep(0.05)
    return step_of(config)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run, url, name = sys.argv[1:4]
    try:
        say(work(
            Path(run) if run else None, url or None, name, say,
            lambda options: replace(options, runner=lambda _: Machine(measured), reuse=False),
        ))  # fmt: skip
    except AutotuneError as error:
        say(f"error: {error.message}")
        sys.exit(error.exit_code)
