"""Accuracy of the cost model against the shipped measurements: `python -m bench.accuracy`.

The same figures as `autotune validate`, with `--format text|json` and the seconds it took.
"""

from __future__ import annotations

import argparse
import json
import time

from autotune.app.validate import run_validation
from autotune.report.lists.validation import VALIDATE_REPORT, validation_payload


def main() -> None:
    """Print the validation table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--quick", action="store_true", help="accepted for symmetry; no effect")
    arguments = parser.parse_args()
    begun = time.perf_counter()
    payload = validation_payload(run_validation())
    seconds = time.perf_counter() - begun
    if arguments.format == "json":
        print(json.dumps({**payload, "seconds": seconds}))
    else:
        print(VALIDATE_REPORT.text(payload, width=100))
        print(f"{seconds:.1f} s")


if __name__ == "__main__":
    main()
