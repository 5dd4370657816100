"""A fault at every file operation of a command, then the command again: is anything lost?

    python -m bench.faults [--quick | --most N] [--command NAME] [--fault NAME] [--lanes N]
                           [--format text|json]

Each command runs once undisturbed. Then, for each of its file operations and each kind of fault, a
child runs it in a fresh folder with the fault at that operation: `kill` (SIGKILL before it), `torn`
(half of a write, then SIGKILL), `short` (half of a write, which says so), `ENOSPC` and `EIO`
(refused). Then the command runs again, undisturbed, and what it leaves is held against the first
run. Children are forked from a process that has run the command before, so that a fault costs about
a second.

lost         what the undisturbed run leaves is not there, or says something else
stuck        the second run ends in an error, or not at all
corrupt      a file cannot be read
left behind  temporary files, locks, folders of probes
"""

from __future__ import annotations

import argparse
import json
import sys

from bench.faults.injected import FAULTS
from bench.faults.table import KINDS, measured

QUICK, MOST_SHOWN = 3, 12


def main() -> None:
    """Print the table; exit code 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="a few points of each: --most 3")
    parser.add_argument("--most", type=int, help="operations of each kind of fault, evenly spread")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--command", action="append", help="only this one; repeatable")
    parser.add_argument("--fault", action="append", choices=FAULTS, help="likewise")
    parser.add_argument("--lanes", type=int, default=4, help="faults tried side by side")
    asked = parser.parse_args()
    rows = []
    if asked.format == "text":
        print(f"{'command':20} {'operations':>10} {'faults':>7} lost stuck corrupt left behind")
    most = QUICK if asked.quick else asked.most
    for row in measured(asked.command, most, asked.fault or FAULTS, asked.lanes):
        rows.append(row)
        if asked.format == "text":
            print(
                f"{row['command']:20} {row['operations']:10} {row['points']:7} {row['lost']:4} "
                f"{row['stuck']:5} {row['corrupt']:7} {row['left behind']:11}"
            )
            print(
                "".join(f"  {text}\n" for text in row["examples"][:MOST_SHOWN]), end="", flush=True
            )
    if asked.format == "json":
        print(json.dumps({"schema_version": 1, "rows": rows}, indent=1))
    sys.exit(int(any(row[kind] for row in rows for kind in KINDS)))


if __name__ == "__main__":
    main()
