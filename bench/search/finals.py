"""What several workers save when the best are measured again: `python -m bench.search.finals`.

Ten candidates of a search that has ended differ by 15 %, the model errs by 10 %, measurements by
the noise that is named, and one of twenty takes 1.4 times as long for no reason that shows. The
pick and its rivals are measured again as `autotune.search.measured.finals` asks for it, by so many
workers at once. Per noise and number of workers, the means over the searches:

runs       measurements made again
rounds     one after the other: what they take, in probes
regret     of the pick in the end: how much longer it really takes than the best
beside     that minus the regret of one worker, and its standard error
"""

from __future__ import annotations

import argparse
import math
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any

import numpy as np

from autotune.search.measured.finals import Finals, finals_of
from autotune.search.study.record import TrialRecord

NOISES = (0.005, 0.02, 0.06, 0.15)
WORKERS = (1, 2, 8)
CANDIDATES, SEARCHES = 10, 500
APART, MISJUDGED = 0.15, 0.1  # sd of the log: of the candidates, and of the model about them
ODD, SLOWER = 0.05, 1.4
TRIAL, REPEAT = "trial", "repeat"


class Ended:
    """A search that has ended, and what one more measurement of each candidate gives."""

    def __init__(self, seed: int, noise: float) -> None:
        draw = np.random.default_rng([seed, 3])
        self.seed, self.noise = seed, noise
        self.true = 10.0 * np.exp(np.abs(draw.normal(0.0, APART, CANDIDATES)))
        self.modelled = self.true * np.exp(draw.normal(0.0, MISJUDGED, CANDIDATES))
        self.records = [self._measured(i, 0, i) for i in range(CANDIDATES)]

    def _measured(self, index: int, nth: int, number: int) -> TrialRecord:
        draw = np.random.default_rng([self.seed, 5, index, nth])
        value = float(self.true[index]) * math.exp(draw.normal(0.0, self.noise))
        value *= SLOWER if draw.random() < ODD else 1.0
        return TrialRecord(
            number, REPEAT if nth else TRIAL, {"at": index}, value, {}, fits=True, reason="fits",
            measured={"compute": value},
        )  # fmt: skip

    def finals(self) -> Finals:
        """What is known now."""
        first = [record.value or math.inf for record in self.records[:CANDIDATES]]
        plain = SimpleNamespace(plainness=lambda at: [(float(i),) for i in at])
        posterior: Any = SimpleNamespace(
            fitting=list(range(CANDIDATES)), missed=False, incumbent=0, priced=plain
        )
        return finals_of(posterior, self.records, _candidate, int(np.argmin(first)), self.modelled)

    def played(self, workers: int) -> tuple[int, int, float]:
        """Measurements made again, rounds of them, and the regret of the pick."""
        rounds = 0
        while True:
            known, running = self.finals(), list[int]()
            while len(running) < workers and (index := known.next(running)) is not None:
                running.append(index)
            if not running:
                break
            rounds += 1
            for index in running:
                nth = 1 + sum(r.kind == REPEAT and _candidate(r) == index for r in self.records)
                self.records.append(self._measured(index, nth, len(self.records)))
        pick = self.finals().pick or 0
        regret = float(self.true[pick] / self.true.min() - 1.0)
        return len(self.records) - CANDIDATES, rounds, regret


def _candidate(record: TrialRecord) -> int:
    return int(record.params["at"])


def main() -> None:
    """Print the table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--searches", type=int, default=SEARCHES)
    count = arguments.parse_args().searches
    for noise in NOISES:
        alone = [Ended(seed, noise).played(1) for seed in range(count)]
        for workers in WORKERS:
            found = [Ended(seed, noise).played(workers) for seed in range(count)]
            beside = [f[2] - a[2] for f, a in zip(found, alone, strict=True)]
            runs, rounds, regret = (fmean(f[k] for f in found) for k in range(3))
            error = stdev(beside) / math.sqrt(count)
            print(
                f"noise {noise:.1%}  {workers} workers  runs {runs:.2f}  rounds {rounds:.2f}  "
                f"regret {regret:.2%}  beside {100 * fmean(beside):+.2f} ± {100 * error:.2f} points"
            )


if __name__ == "__main__":
    main()
