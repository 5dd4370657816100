"""Scripts that train, each the main program of a process forked from one that imported it all.

Imports take far longer than the few steps of a tiny model.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_FORKS = """import json, os, runpy, sys
import datasets, peft, torch, transformers, trl
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer
for script in sys.argv[1:]:
    child = os.fork()
    if not child:
        folder = os.path.dirname(script)
        for number, name in (1, "stdout"), (2, "stderr"):
            os.dup2(os.open(os.path.join(folder, name), os.O_CREAT | os.O_WRONLY), number)
        with open(os.path.join(folder, "environment.json")) as file:
            os.environ.update(json.load(file))
        sys.argv, sys.path[0] = [script], folder
        runpy.run_path(script, run_name="__main__")
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def run_forked(scripts: Sequence[Path], environment: Mapping[str, str]) -> None:
    """Run each script in turn; `stdout`, `stderr` and `code`, its exit code, then lie beside it.

    Beside each lies environment.json, which is set besides `environment`.
    """
    done = subprocess.run(
        [sys.executable, "-c", _FORKS, *map(str, scripts)],
        env={**os.environ, **environment},
        capture_output=True, text=True, check=False, timeout=1800,
    )  # fmt: skip
    codes = done.stdout.split()
    assert len(codes) == len(scripts), done.stderr[-3000:]
    for script, code in zip(scripts, codes, strict=True):
        (script.parent / "code").write_text(code)


def ran(where: Path) -> None:
    """Fail with what a script said at its end, unless it ended well."""
    assert (where / "code").read_text() == "0", (where / "stderr").read_text()[-3000:]
