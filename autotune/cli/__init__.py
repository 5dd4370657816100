"""The command line: arguments, printing and exit codes. What it prints is made in lower rooms.

Exit codes: 0 an answer; 1 a bug; 2 bad input; 3 nothing feasible; 4 feasible, but a limit is
missed; 5 a probe was required and could not run; 130 interrupted.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


# Objects made between two looks for cyclic garbage. Python's own (700, 10, 10) look hundreds of
# times while modules load and tables are made, all of which lives until the answer is told.
GARBAGE_LOOKS = (200_000, 20, 50)

THREADS = "OPENBLAS_NUM_THREADS"  # of numpy's linear algebra


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code."""
    gc.set_threshold(*GARBAGE_LOOKS)
    # What a file says is checked by us alone; a look for plugins reads every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        from autotune.cli.application import run
        from autotune.cli.output import leave_streams

        code = run(argv)
        leave_streams()
    except KeyboardInterrupt:  # while modules are still being imported
        code = 130
    gc.freeze()  # what is left goes with the process: no look through all of it at the end
    sys.exit(code)


def load_numpy() -> None:
    """Import numpy with one thread for linear algebra, unless the user states another number.

    Matrices here are small, and a pool of threads is a twelfth of a command's processor time. The
    environment is as before when this returns: what is started later, probes above all, has it.
    """
    if THREADS in os.environ:
        return
    os.environ[THREADS] = "1"
    try:
        import numpy  # noqa: F401, ICN001 - the library reads its number of threads once, when loaded
    finally:
        del os.environ[THREADS]
