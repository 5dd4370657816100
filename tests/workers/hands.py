"""A worker that measures by the formula of a simulated machine: `python hands.py RUN URL NAME`."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "app"))

from simulatedmachine import Machine

from autotune.app.workers.join import work


def slow(config: dict[str, object]) -> float:
    from simulatedmachine import step_of

    time.sleep(0.2)
    return step_of(config)


if __name__ == "__main__":
    run, url, name = sys.argv[1:4]
    print(work(
        Path(run) if run else None, url or None, name,
        lambda line: print(line, flush=True),
        lambda options: replace(options, runner=lambda _: Machine(slow), reuse=False),
    ))  # fmt: skip
