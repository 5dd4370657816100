"""`guard.py PARENT COMMAND...`: becomes COMMAND, which the kernel kills when PARENT dies.

A program of its own because code between fork and exec of a process with threads is not safe. The
setting outlives exec. Source: man 2 prctl, PR_SET_PDEATHSIG.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run as a program."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it died before the kernel was told
            sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 - no shell is the point


if __name__ == "__main__":
    main()
