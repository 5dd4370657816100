"""What not saying a fact of a run costs, on the record: hide and seek.

`python -m bench.unsaid --format text|json`. Of every run of the record whose step is timed, one
stated fact at a time is hidden (how long its rows are, its versions, attention, checkpointing, ...)
and taken as the product takes it where nobody says it. A fit that has not seen the run's source
predicts the run with the fact and without it. What the two predictions differ by is what saying
nothing costs: its median, whether the default leans to one side; its ends, how far off one may be.
The interval is the product's: sized on the other sources, and as wide as what is then assumed makes
it (`cost.spread.unsaid`). Of memory, the same of peaks, whose interval is that of a mixture; last
what the interval of the settings as listed would hold. Then runs whose end is known: of those that
are said to fit with 0.9 and more, how many ran out, with the settings as listed and over what is
open; and the mean of P(fits), which is right where as many fitted.

A fact is hidden of each run that states it, also where the default is what ran. Sources weigh the
same in every column, and within one its groups of model and device: what strangers leave out
follows people, not rows.

What `estimate` prices is a run that stands as it is: all of these are facts of it. `tune` decides
the micro-batch, checkpointing, attention, precision, optimizer and sharing, and writes them down:
of its answers they are never open.

Does not cover: facts that no run of the record states (the host's processor, limits of power), and
how often people leave out a fact where it is not what they expect.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from autotune.evidence.record.table import SHIPPED_ROWS, read_cases
from bench.unsaid.judged import Cost, Sure, judged, judged_memory, judged_verdicts

if TYPE_CHECKING:
    from collections.abc import Sequence


TITLES = (
    "hidden", "rows", "sources", "moved", "median", "p10", "p90", "width", "inside", "below",
    "above", "inside, said", "inside, as listed",
)  # fmt: skip


def _cells(own: Cost) -> tuple[str, ...]:
    return (
        own.fact, str(own.rows), str(own.sources), f"{own.changed:.0%}", f"{own.median:.2f}",
        f"{own.p10:.2f}", f"{own.p90:.2f}", f"{own.width:.2f}", f"{own.inside:.0%}",
        f"{own.below:.0%}", f"{own.above:.0%}", f"{own.before:.0%}",
        f"{own.hidden_inside:.0%}",
    )  # fmt: skip


def table(found: Sequence[Cost]) -> str:
    """The facts as a table of Markdown."""
    rows = [f"| {' | '.join(TITLES)} |", f"|---|{'---:|' * (len(TITLES) - 1)}"]
    return "\n".join([*rows, *(f"| {' | '.join(_cells(own))} |" for own in found)])


VERDICTS = (
    "hidden", "runs", "fitted", "P, as listed", "sure, as listed", "ran out", "P", "sure",
    "ran out", "under 0.1, as listed", "fitted", "under 0.1", "fitted",
)  # fmt: skip


def verdict_table(found: Sequence[Sure]) -> str:
    """The verdicts as a table of Markdown."""
    rows = [f"| {' | '.join(VERDICTS)} |", f"|---|{'---:|' * (len(VERDICTS) - 1)}"]
    for own in found:
        cells = (
            own.fact, str(own.rows), f"{own.fitted:.2f}", f"{own.listed_mean:.2f}",
            str(own.listed_sure), str(own.listed_ran_out), f"{own.mean:.2f}", str(own.sure),
            str(own.ran_out), str(own.listed_hopeless), str(own.listed_hopeless_fitted),
            str(own.hopeless), str(own.hopeless_fitted),
        )  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    """Print what each fact costs."""
    parser = argparse.ArgumentParser(prog="python -m bench.unsaid", description=__doc__)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--only", choices=("memory",), help="leave out time, which takes longer")
    arguments = parser.parse_args()
    begun = time.perf_counter()
    cases = read_cases(SHIPPED_ROWS).cases
    found = {"memory": judged_memory(cases)}
    if arguments.only is None:
        found = {"time": judged(cases), **found}
    verdicts = judged_verdicts(cases)
    seconds = time.perf_counter() - begun
    if arguments.format == "json":
        facts = {what: [asdict(own) for own in each.values()] for what, each in found.items()}
        sure = [asdict(own) for own in verdicts]
        print(json.dumps({**facts, "verdicts": sure, "seconds": seconds}))
        return
    for what, each in found.items():
        print(f"{what}\n\n{table(list(each.values()))}\n")
    print(f"verdicts\n\n{verdict_table(verdicts)}\n")
    print(f"{seconds:.1f} s")


if __name__ == "__main__":
    main()
