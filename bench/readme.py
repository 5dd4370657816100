"""Write the generated parts of README.md and of two pages in docs, or check that they are fresh.

A generated part stands between `<!-- begin NAME -->` and `<!-- end NAME -->`; NAME is a key of
`PARTS`, each a command whose output is shown.

    python -m bench.readme          write
    python -m bench.readme --check  exit 1 if a part is stale
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.gpu_suite.told import SHORT, summary, table

ROOT = Path(__file__).resolve().parent.parent
PAGES = tuple(ROOT / page for page in ("README.md", "docs/cases.md", "docs/accuracy.md"))
COLUMNS = "110"
STAMPED = "runs/20261122-120000-"
# The command line, with prices as old as on the day of `bench.pins`, so that a day alone makes no
# part stale.
ON_THAT_DAY = """
from datetime import date
from autotune.catalog.prices import prices
from autotune.cli import main
prices.today = lambda: date(2026, 11, 22)
main()
"""
PARTS: dict[str, list[str]] = {
    "oneline": [
        "tune", "--model", "Qwen2.5-7B", "--method", "lora", "--rows", "50000",
        "--max-length", "2048", "--gpu", "l40s",
    ],
    "file": [
        "tune", "jobs/trainers/axolotl.yml", "--rows", "52000", "--gpu", "h100-sxm", "--verbose",
    ],
    "claim": ["estimate", "jobs/a100_llama7b_int8.yaml", "--verbose"],
    "sizes": [
        "compare", "jobs/rtx5090_llama2_7b.yaml", "--set", "data.rows=[10000, 50000, 100000]",
        "--verbose",
    ],
    "campaign": ["plan", "jobs/campaigns/rtx4090_qwen2.yaml", "--parallel", "4", "--verbose"],
    "machines": [
        "compare", "jobs/h100_38h.yaml", "--gpu",
        "h100-sxm,a100-40gb:4@4.80USD/h,h100-sxm:2@5.00USD/h", "--verbose",
    ],
    "variants": [
        "recompute", "jobs/t4_to_a100_gemma2.yaml", "--gpu", "a100-40gb", "--vary", "rank=8",
        "--vary", "rank=32", "--vary", "kind=qlora", "--quiet", "--verbose",
    ],
    "accuracy": ["validate", "--format", "md"],
    "validation": ["validate", "--format", "md"],
}  # fmt: skip
# Sections of a long report that the README shows; [...] stands for the others.
SHOWN = {
    "file": ("---",),
    "claim": ("What does not add up", "Where the time goes"),
    "sizes": ("rows ", "Machines", "With the number of rows", "What does not add up"),
    "campaign": ("What does not add up", "Machines", "Phases"),
    "machines": ("Machines", "  machine", "Several devices", "What does not add up"),
    "variants": ("Each variant", "The bill", "Memory by component", "What does not add up"),
}


@functools.cache
def output_of(*arguments: str) -> str:
    """What `autotune <arguments>` prints: its result, or its error."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ, "COLUMNS": COLUMNS, "NO_COLOR": "1", "AUTOTUNE_OFFLINE": "1",
            "AUTOTUNE_RUNS": str(Path(folder) / "runs"),
            "AUTOTUNE_HOME": str(Path(folder) / "home"),
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", ON_THAT_DAY, *arguments],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        text = (done.stdout or done.stderr).replace(str(Path(folder) / "runs"), "runs")
    if done.returncode == 1:  # a bug's; what the user states wrongly has codes of its own
        msg = f"autotune {' '.join(arguments)}: {done.stderr.strip()}"
        raise RuntimeError(msg)
    text = re.sub(r",\s+(an?\s+(marketplace\s+)?price\s+from\s+)?\d+\s+days\s+ago", "", text)
    text = re.sub(r"runs/\d{8}-\d{6}-", STAMPED, text)  # nor does the second of a run
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def shortened(report: str, shown: tuple[str, ...]) -> str:
    """The answer and the sections that `shown` names; [...] where others were."""
    blocks = report.split("\n\n")
    kept = [blocks[0]]
    for block in blocks[1:]:
        if block.startswith(shown) or kept[-1].startswith("---"):  # a diff is shown to its end
            kept.append(block)
        elif kept[-1] != "[...]":
            kept.append("[...]")
    return "\n\n".join(kept)


def sections(page: str, shown: tuple[str, ...]) -> str:
    """A Markdown page's opening and the sections that `shown` names; all of it for none."""
    opening, *rest = page.split("\n## ")
    kept = [part for part in rest if not shown or part.startswith(shown)]
    return "\n## ".join([opening, *kept]).strip()


def accuracy_of(page: str) -> str:
    """The lines of an accuracy page that decide: whole sources left out, the rest in a sentence."""
    head, *rest = page.split("\n\n")
    head = re.sub(r" \(.*\)", "", head)
    table = next(block for block in rest if block.startswith("| left out")).splitlines()
    titles, rule, *lines = table
    of, kept, times = "", [titles, rule], []
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        of = cells[0] or of
        if of == "sources":
            kept.append(line)
        elif cells[1] == "step time":
            times.append((of, cells[4], cells[-1]))
    names, medians, inside = (", ".join(column) for column in zip(*times, strict=True))
    memory = re.search(r"whole sources left out: (\d+ of \d+) .*?; (\d+ of \d+) that", page)
    if memory is None:
        msg = "the accuracy page says nothing of whole sources and out of memory"
        raise RuntimeError(msg)
    told = (
        f"With only {names} left out instead, the median error of the step time is {medians}, and "
        f"{inside} lie in the 80 % interval. Of runs that ran out of memory, {memory[1]} were said "
        f"to fit; of runs that fitted, {memory[2]} were said to run out."
    )
    return "\n\n".join([head, "\n".join(kept), told])


def on_a_card(page: str) -> str:
    """The page with the table of what was measured on a GPU at hand written anew."""
    marks = ("<!-- begin card -->", "<!-- end card -->")
    if not all(mark in page for mark in marks):
        return page
    before, rest = page.split(marks[0], 1)
    shown = table(SHORT if page.startswith("# autotune") else ())
    shown = f"{shown}\n\n{summary()}"
    return f"{before}{marks[0]}\n{shown}\n{marks[1]}{rest.split(marks[1], 1)[1]}"


def rendered(page: str) -> str:
    """A page with every generated part written anew."""
    page = on_a_card(page)
    for name, arguments in PARTS.items():
        marks = (f"<!-- begin {name} -->", f"<!-- end {name} -->")
        if not all(mark in page for mark in marks):
            continue
        before, rest = page.split(marks[0], 1)
        _, after = rest.split(marks[1], 1)
        body, shown = output_of(*arguments), SHOWN.get(name)
        if name == "accuracy":
            body = accuracy_of(body)
        elif "--format" in arguments:
            body = sections(body, shown or ())
        else:
            command = shlex.join(["autotune", *arguments])
            text = body if shown is None else shortened(body, shown)
            body = f"```text\n$ {command}\n{text}\n```"
        page = f"{before}{marks[0]}\n{body}\n{marks[1]}{after}"
    return page


def main() -> None:
    """Write the pages, or compare them."""
    stale = False
    for path in PAGES:
        before = path.read_text(encoding="utf-8")
        after = rendered(before)
        if "--check" not in sys.argv[1:]:
            path.write_text(after, encoding="utf-8")
        elif before != after:
            print(f"{path.relative_to(ROOT)} is stale: run `make docs`", file=sys.stderr)
            stale = True
    sys.exit(stale)


if __name__ == "__main__":
    main()
