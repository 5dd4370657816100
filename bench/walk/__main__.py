"""Go through the product's own commands, or put a defect back and see that it is caught."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from bench.walk.legs import LEGS, ROOT, Walk
from bench.walk.terminal import WalkError


def main(argv: list[str] | None = None) -> int:
    """Zero where all legs hold; with --fault, where every fault is caught."""
    asked = _asked(argv)
    if asked.fault:
        from bench.walk.faults import try_faults

        return try_faults(asked.fault, asked.probes)
    return _walk(asked.legs or list(LEGS), asked.probes, keep=asked.keep)


def _asked(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.walk", description=__doc__)
    parser.add_argument("legs", nargs="*", choices=[*LEGS, []], help="only these legs")
    parser.add_argument("--probes", type=int, default=2, help="configurations to probe at most")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    parser.add_argument("--fault", help="put this defect back, or all, one after the other")
    return parser.parse_args(argv)


def _walk(legs: list[str], probes: int, *, keep: bool) -> int:
    top = Path(tempfile.mkdtemp(prefix="autotune walk "))
    walk = Walk(top, ROOT, probes)
    try:
        for name in legs:
            begun = time.monotonic()
            LEGS[name](walk)
            print(f"{name:<10} {time.monotonic() - begun:6.1f} s", flush=True)
    except WalkError as wrong:
        print(f"{name:<10} ASTRAY\n{wrong}", file=sys.stderr)
        return 1
    finally:
        if keep:
            print(f"kept: {top}")
        else:
            shutil.rmtree(top, ignore_errors=True)
    for note in walk.notes:
        print(f"not tried: {note}")
    print(f"{len(walk.terminal.log)} commands typed, all of them printed before")
    return 0


if __name__ == "__main__":
    sys.exit(main())
