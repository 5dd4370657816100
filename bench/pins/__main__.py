"""Record the pins anew: `python -m bench.pins [CASE...]`; what changed is in the diff."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from bench.pins.cases import ROOT, cases
from bench.pins.golden import GOLDEN, record


def main(argv: list[str] | None = None) -> int:
    """Record the named cases, or all, and say what that changed."""
    parser = argparse.ArgumentParser(prog="python -m bench.pins", description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*cases(), []], help="only these cases")
    asked = parser.parse_args(argv)
    begun = time.monotonic()
    record(asked.cases or list(cases()))
    git = ["git", "-C", str(ROOT)]
    subprocess.run([*git, "add", "--intent-to-add", "--", str(GOLDEN)], check=False)
    subprocess.run([*git, "diff", "--stat", "--", str(GOLDEN)], check=False)
    print(f"recorded in {time.monotonic() - begun:.0f} s; nothing above: nothing changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
