"""A command line as somebody types it, in this process: its exit code and what it printed.

What only a process of its own shows (imports, pipes, signals) is in tests/cli/test_process.py,
run.sh in tests/cli/test_run_sh.py and everything in its order in tests/walk.
"""

from __future__ import annotations

import io
import json
import os
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autotune.cli.application import run

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Done:
    """An exit code and both streams."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """What was printed, read."""
        return json.loads(self.stdout)


def typed(*words: str, home: Path, cwd: Path = ROOT, **environment: str) -> Done:
    """Type `autotune words` in `cwd`, with no setting but these, a home and no network."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        for name in [each for each in os.environ if each.startswith("AUTOTUNE_")]:
            patch.delenv(name)
        own = {"AUTOTUNE_HOME": str(home / "home"), "AUTOTUNE_RUNS": str(home / "runs")}
        for name, value in {**own, "AUTOTUNE_OFFLINE": "1", **environment}.items():
            patch.setenv(name, value)
        patch.chdir(cwd)
        with redirect_stdout(out), redirect_stderr(err):
            code = run(list(words))
    for stream in (out, err):
        stream.flush()
    shown, told = (stream.buffer.getvalue().decode() for stream in (out, err))
    assert "Traceback" not in told, told
    return Done(code, shown, told)


class Answers:
    """Command lines that change nothing, each typed once and then remembered."""

    def __init__(self, top: Path) -> None:
        self._top, self._known = top, dict[tuple[str, ...], Done]()

    def __call__(self, *words: str) -> Done:
        """The answer in a home where no run has taught anything."""
        files = (ROOT / word for word in words)
        key = (*words, *(file.read_text("utf-8") for file in files if file.is_file()))
        if key not in self._known:
            self._known[key] = typed(*words, home=self._top)
        return self._known[key]
