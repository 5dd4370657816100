"""What a user's own past runs are worth, on the record: one run left out, learned from the others.

`python -m bench.learn --format text|json|markdown`. Every source of the record that holds several
runs of one machine stands for a user: nothing of it is in the fit that predicts it, in the size of
its interval, or in the spreads that say how much runs have in common (`evidence.learned.effects`,
which are chosen anew on the other sources). Each of its runs in turn is predicted with and without
what its other runs teach. Replicates of a configuration are counted once.

Twins: runs that the model takes for the same step (machine, method, model, and shares of its
seconds within `TWINS`). What they differ by, no model of their settings can predict.

Runs of grade C, or of which a setting is guessed, are judged apart, as in `autotune validate`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import defaultdict
from dataclasses import astuple, dataclass, fields, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.domain.outcome import Z90
from autotune.evidence.cases import Refused, source_of, timed_cases
from autotune.evidence.fit import refit
from autotune.evidence.fit.spreads import nested_spreads, predicted_by
from autotune.evidence.fit.time import fit, measured_steps
from autotune.evidence.learned.effects import (
    PRIOR,
    SCALE_RUNS,
    Prior,
    Residual,
    believed,
    covariance_of,
    effect_of,
    residual_of,
)
from autotune.evidence.learned.run import NOISE
from autotune.evidence.record.table import SHIPPED_ROWS, read_cases
from autotune.pricing import plain_bill

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.evidence.cases import MeasuredCase

FEWEST = 3  # runs of a machine that a source must hold
TWINS = 0.02  # of a step's seconds
# Hand estimates of the spreads between runs, on the fitting scale 0.7 wide; a source counts as so
# many runs, which are alike. Of a source with more runs than `MOST` every n-th is asked.
USUAL, USUAL_SD = Prior(0.08, 0.08, 0.08, 0.08, 0.30, 0.05, 0.05, 0.05), 0.7
COUNTS_AS, MOST = 8.0, 40
FEW, DRAWS = (1, 3), 40  # runs that are known, drawn so many times for each run that is predicted
RIDGE = 1e-2  # that keeps slopes of a few runs finite
STEPS = (0.4, 0.2, 0.1)  # of the search, in logarithms


@dataclass(frozen=True, slots=True)
class Source:
    """Runs of one source, predicted by a fit without it. steady: of those that teach, the ids."""

    name: str
    runs: tuple[Residual, ...]
    steady: frozenset[str]

    @property
    def taught(self) -> list[Residual]:
        """Runs whose figures are exact and whose settings are stated."""
        return [own for own in self.runs if own.id in self.steady]


def sources_of(cases: Sequence[MeasuredCase]) -> list[Source]:
    """Every source with enough runs of one machine, as a fit without it predicts them."""
    timed = timed_cases(cases)
    whole = refit.refit_cases(cases, digest="")
    steps = whole.steps
    nested = nested_spreads(whole.left_out, whole.left_out, whole.new)
    by_source: dict[str, list[MeasuredCase]] = defaultdict(list)
    for case in timed:
        by_source[case.group[0]].append(case)
    found = []
    for name, own in sorted(by_source.items()):
        if most_on_one(own) < FEWEST:
            continue
        others = np.asarray([case.group[0] != name for case in steps.cases])
        model = whole.fit if others.all() else fit(steps.take(others), whole.fit)
        rows = predicted_by(model, measured_steps(own), source_of)
        spreads = nested.get((name,), whole.spreads)
        runs = []
        for case, log, sd in zip(own, -rows.log_ratio, rows.log_sd(spreads), strict=True):
            noise = NOISE["A"] if case.teaches_time else NOISE["C"]
            try:
                priced = residual_of(case.id, case, noise, plain_bill)
            except Refused:
                continue
            runs.append(replace(priced, log=float(log), sd=float(sd)))
        steady = frozenset(case.id for case in own if case.teaches_time)
        found.append(Source(name, tuple(runs), steady))
    return found


def most_on_one(cases: Sequence[MeasuredCase]) -> int:
    """Runs on the machine that most are of."""
    machines = [(case.offer.device.name, case.offer.count) for case in cases]
    return max(map(machines.count, machines))


def likeliest(sources: Sequence[Source]) -> Prior:
    """The spreads under which the sources' residuals are most likely, every source alike."""
    asked = [source.taught[:: math.ceil(len(source.taught) / MOST)] for source in sources]

    def unlikely(logs: Sequence[float]) -> float:
        prior = Prior(*map(math.exp, logs))
        apart = sum(
            ((a - math.log(b)) / USUAL_SD) ** 2 for a, b in zip(logs, astuple(USUAL), strict=True)
        )
        return apart / 2 + COUNTS_AS * sum(_unlikely(runs, prior) for runs in asked)

    best = [math.log(value) for value in astuple(USUAL)]
    least = unlikely(best)
    for step in STEPS:
        moved = True
        while moved:
            moved = False
            for place in range(len(fields(Prior))):
                for way in (step, -step):
                    other = [*best]
                    other[place] += way
                    value = unlikely(other)
                    if value < least - 1e-6:
                        best, least, moved = other, value, True
    return Prior(*(math.exp(value) for value in best))


def _unlikely(runs: Sequence[Residual], prior: Prior) -> float:
    """Minus the log likelihood of residuals under a multivariate t, a run."""
    logs = np.asarray([own.log for own in runs])
    root = np.linalg.cholesky(covariance_of(runs, prior))
    beyond = float(np.sum(np.linalg.solve(root, logs) ** 2))
    v, n = SCALE_RUNS, len(runs)
    total = float(np.log(np.diag(root)).sum()) + (v + n) / 2 * math.log1p(beyond / v)
    return (total + n / 2 * math.log(v) - math.lgamma((v + n) / 2) + math.lgamma(v / 2)) / n


def left_one_out(found: Sequence[Residual], prior: Prior = PRIOR) -> dict[str, float]:
    """Errors of each run before and after the others are learned from, and what is covered."""
    before, after, inside = [], [], []
    for own in found:
        others = [other for other in found if other is not own]
        if not any(other.machine == own.machine for other in others):
            continue
        others, _ = believed(others)
        effect = effect_of(own, others, prior)
        left = own.log - (math.log(effect.factor) if effect else 0.0)
        spread = math.hypot(own.sd * (effect.spread if effect else 1.0), own.noise)
        before.append(abs(math.expm1(-own.log)))
        after.append(abs(math.expm1(-left)))
        inside.append(abs(left) <= Z90 * spread)
    return {
        "runs": len(before),
        "median_ape_before": statistics.median(before),
        "median_ape_after": statistics.median(after),
        "coverage_after": statistics.fmean(inside),
    }


def from_few(found: Sequence[Residual], prior: Prior, many: int) -> float | None:
    """Median error after, over before, where only so many runs of the machine are known.

    Of one run every other is tried: few draws of so skewed a ratio are off by a tenth.
    """
    draw = np.random.default_rng(many)
    before, after = [], []
    for own in found[:: math.ceil(len(found) / MOST)]:
        alike = [other for other in found if other is not own and other.machine == own.machine]
        draws = DRAWS if len(alike) >= many else 0
        chosen = [draw.choice(len(alike), many, replace=False) for _ in range(draws)]
        for picked in chosen if many > 1 else [[i] for i in range(len(alike))]:
            effect = effect_of(own, believed([alike[i] for i in picked])[0], prior)
            left = own.log - (math.log(effect.factor) if effect else 0.0)
            before.append(abs(math.expm1(-own.log)))
            after.append(abs(math.expm1(-left)))
    return statistics.median(after) / statistics.median(before) if after else None


def bounds(runs: Sequence[Residual]) -> tuple[float, float]:
    """Median errors that runs keep around their machine's own mean, and around its best line.

    The line is linear in the shares of a step. Both are drawn through the very runs that they are
    held against, so that no line of its kind comes nearer in squares.
    """
    around, line = [], []
    for machine in {own.machine for own in runs}:
        own = [each for each in runs if each.machine == machine]
        logs = np.asarray([each.log for each in own])
        terms = np.column_stack((np.ones(len(own)), [each.shares for each in own]))
        square = terms.T @ terms + RIDGE * np.eye(terms.shape[1])
        around += list(logs - np.median(logs))
        line += list(logs - terms @ np.linalg.solve(square, terms.T @ logs))
    return _median_error(around), _median_error(line)


def _median_error(logs: Sequence[float]) -> float:
    return float(np.median(np.abs(np.expm1(-np.asarray(logs)))))


def twins(runs: Sequence[Residual]) -> tuple[int, float | None]:
    """Pairs of runs that the model takes for the same step, and the median of what they differ."""
    apart = [
        abs(math.expm1(one.log - other.log))
        for one, other in combinations(runs, 2)
        if (one.machine, one.method, one.shape) == (other.machine, other.method, other.shape)
        and max(abs(a - b) for a, b in zip(one.shares, other.shares, strict=True)) <= TWINS
    ]
    return len(apart), statistics.median(apart) if apart else None


def measure() -> dict[str, Any]:
    """Every source, what remains of its error, and the spreads chosen with all in view."""
    sources = sources_of(read_cases(SHIPPED_ROWS).cases)
    taught = [own for own in sources if own.steady]
    judged: dict[str, dict[str, Any]] = {}
    apart: dict[str, dict[str, float]] = {}
    for own in sources:
        prior = likeliest([other for other in taught if other is not own])
        pairs, differ = twins(own.taught)
        if own.steady:
            around, line = bounds(own.taught)
            bound = {"around_mean": around, "around_line": line}
            told = left_one_out(own.taught, prior)
            few = {f"left_by_{n}": from_few(own.taught, prior, n) for n in FEW}
            judged[own.name] = {**told, **few, **bound, "twins": pairs, "twins_differ": differ}
        if len(own.steady) < len(own.runs):
            apart[own.name] = left_one_out(own.runs, prior)
    ratios = [own["median_ape_after"] / own["median_ape_before"] for own in judged.values()]
    return {
        "sources": judged,
        "with_orientation": apart,
        "median_ratio": statistics.median(ratios),
        **{
            f"median_left_by_{n}": statistics.median(
                own[f"left_by_{n}"] for own in judged.values() if own[f"left_by_{n}"]
            )
            for n in FEW
        },
        "halved": sum(ratio <= 0.5 for ratio in ratios),  # noqa: PLR2004
        "prior": {f.name: getattr(likeliest(taught), f.name) for f in fields(Prior)},
    }


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text")
    found = measure()
    asked = parser.parse_args().format
    if asked == "json":
        print(json.dumps(found, indent=1))
    elif asked == "markdown":
        print("\n".join(_table(found["sources"])))
    else:
        _print(found)


def _print(found: dict[str, Any]) -> None:
    for title in ("sources", "with_orientation"):
        print(title.replace("_", " "))
        for name, own in found[title].items():
            print(
                f"  {name[:40]:40s} {own['runs']:4.0f} runs  median error"
                f" {100 * own['median_ape_before']:5.1f} -> {100 * own['median_ape_after']:5.1f} %"
                f"  in the 80 % interval {100 * own['coverage_after']:3.0f} %{_twins(own)}"
            )
    print(
        f"error after over before, median of sources: {found['median_ratio']:.2f};"
        f" halved on {found['halved']} of {len(found['sources'])}"
    )
    print("spreads, all sources in view: ", {k: round(v, 3) for k, v in found["prior"].items()})


def _twins(own: dict[str, Any]) -> str:
    pairs = own.get("twins")
    few = [f"{own[f'left_by_{n}']:.2f} by {n}" for n in FEW if own.get(f"left_by_{n}")]
    known = f"  of the error left: {', '.join(few)}" if few else ""
    if few:
        known += (
            f"  own mean leaves {100 * own['around_mean']:.1f} %, own line"
            f" {100 * own['around_line']:.1f} %"
        )
    return known + (f"  {pairs} twins differ by {100 * own['twins_differ']:.1f} %" if pairs else "")


def _table(sources: dict[str, dict[str, Any]]) -> list[str]:
    lines = [
        (
            "| source | runs | median error before | after | around its own mean"
            " | around its own line | in the 80 % interval | twins differ by"
            " | one run alone leaves |"
        ),
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, own in sources.items():
        differ = f"{100 * own['twins_differ']:.1f} %" if own["twins"] else "no twins"
        lines.append(
            f"| {name} | {own['runs']} | {100 * own['median_ape_before']:.1f} %"
            f" | {100 * own['median_ape_after']:.1f} % | {100 * own['around_mean']:.1f} %"
            f" | {100 * own['around_line']:.1f} % | {100 * own['coverage_after']:.0f} %"
            f" | {differ} | {own['left_by_1']:.2f} |"
        )
    return lines


if __name__ == "__main__":
    main()
