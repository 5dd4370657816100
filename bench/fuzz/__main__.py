"""Damaged input for every reader, in one process: `python -m bench.fuzz [--quick] [--format json]`.

Each input is named by its reader, the seed and a number, and drawn the same everywhere:
`python -m bench.fuzz --only "run folders" --seed 1 --from 417 --inputs 1` reads one again, and
shows its traceback.

refused      an error for the person who wrote it, or an answer that is none
tracebacks   anything else that was raised
hangs        no answer within CPU_S of computing or WALL_S of waiting
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench.fuzz.readers import READERS
from bench.fuzz.tried import Tally, try_reader

ALL, QUICK = 20_000, 2_000
SHOWN = 40


def counts(names: list[str], inputs: int) -> dict[str, int]:
    """How many inputs each reader gets of all, by its share; at least one."""
    shares = {name: READERS[name]().share for name in names}
    whole = sum(shares.values())
    return {name: max(1, round(inputs * share / whole)) for name, share in shares.items()}


def table(found: list[Tally]) -> str:
    """What became of the inputs, a line a reader, and then every failure."""
    lines = [
        f"{'reader':<20}{'inputs':>8}{'read':>8}{'refused':>9}{'tracebacks':>12}{'hangs':>7}{'s':>8}"
    ]
    lines += [
        f"{own.name:<20}{own.inputs:>8,}{own.read:>8,}{own.refused:>9,}{len(own.tracebacks):>12,}"
        f"{len(own.hangs):>7,}{own.seconds:>8.1f}"
        for own in found
    ]
    total = [sum(getattr(own, key) for own in found) for key in ("inputs", "read", "refused")]
    failures = [each for own in found for each in (*own.tracebacks, *own.hangs)]
    lines.append(f"{'all':<20}{total[0]:>8,}{total[1]:>8,}{total[2]:>9,}{len(failures):>12,}")
    distinct = {each.where: each for each in reversed(failures)}
    for each in list(distinct.values())[:SHOWN]:
        times = sum(other.where == each.where for other in failures)
        lines += [
            "",
            f"{times}x {each.what}",
            f"   at {each.where}",
            f"   of {each.again}",
            f"   {each.input}",
        ]
    return "\n".join(lines)


def main() -> int:
    """Try every reader, print, and leave with 1 where anything but an error was raised."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} inputs instead of {ALL:,}")
    parser.add_argument("--inputs", type=int, help="so many inputs in all")
    parser.add_argument("--only", action="append", choices=sorted(READERS), help="these readers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--from", dest="first", type=int, default=0, help="the first input's number"
    )
    parser.add_argument("--format", choices=["text", "json"], default="text")
    asked = parser.parse_args()
    names = asked.only or list(READERS)
    inputs = asked.inputs or (QUICK if asked.quick else ALL)
    found = [
        try_reader(
            READERS[name](),
            asked.seed,
            range(asked.first, asked.first + count),
            trace=inputs == 1,
        )
        for name, count in counts(names, inputs).items()
    ]
    if asked.format == "json":
        print(json.dumps([own.as_dict() for own in found], indent=1))
    else:
        print(table(found))
    return 1 if any(own.tracebacks or own.hangs for own in found) else 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    sys.exit(main())
