"""Write the generated parts of README.md, or check that they are fresh.

A generated part stands between `<!-- begin NAME -->` and `<!-- end NAME -->`; NAME is a key of
`PARTS`, each a command whose output is shown. Wall-clock seconds and run folders are left out, so
that the same code prints the same README.

    python -m bench.readme          write
    python -m bench.readme --check  exit 1 if a part is stale
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
COLUMNS = "110"
PARTS: dict[str, list[str]] = {
    "demo": ["tune", "jobs/h100_38h.yaml"],
    "oneline": [
        "tune", "--model", "Qwen2.5-7B", "--method", "lora", "--rows", "50000",
        "--max-length", "2048", "--gpu", "l40s",
    ],
    "mistake": ["tune", "jobs/h100_38h.yaml", "--gpu", "h10"],
    "accuracy": ["validate", "--format", "md"],
}  # fmt: skip


def output_of(arguments: list[str]) -> str:
    """What `autotune <arguments>` prints, both streams, without what changes from run to run."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ, "COLUMNS": COLUMNS, "NO_COLOR": "1", "AUTOTUNE_OFFLINE": "1",
            "AUTOTUNE_RUNS": str(Path(folder) / "runs"),
            "AUTOTUNE_HOME": str(Path(folder) / "home"),
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "autotune", *arguments],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, check=False,
        )  # fmt: skip
        text = done.stdout.replace(str(Path(folder) / "runs"), "runs")
    text = re.sub(r"runs/\d{8}-\d{6}-", "runs/20261121-120000-", text)
    text = re.sub(r"\b\d+(\.\d+)? (ms|s) of wall time", "1 s of wall time", text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def rendered(readme: str) -> str:
    """README with every generated part written anew."""
    for name, arguments in PARTS.items():
        marks = (f"<!-- begin {name} -->", f"<!-- end {name} -->")
        if not all(mark in readme for mark in marks):
            continue
        before, rest = readme.split(marks[0], 1)
        _, after = rest.split(marks[1], 1)
        body = output_of(arguments)
        if "--format" not in arguments:
            command = " ".join(["autotune", *arguments])
            body = f"```text\n$ {command}\n{body}\n```"
        readme = f"{before}{marks[0]}\n{body}\n{marks[1]}{after}"
    return readme


def main() -> None:
    """Write the README, or compare it."""
    before = README.read_text(encoding="utf-8")
    after = rendered(before)
    if "--check" in sys.argv[1:]:
        if before != after:
            print("README.md is stale: run `make docs`", file=sys.stderr)
            sys.exit(1)
        return
    README.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
