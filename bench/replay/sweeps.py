"""Search on machines that exist: `python -m bench.replay [--quick] --format text|json`.

Public sweeps over our knobs, answered from the record. A configuration that was never run is no
candidate. Runs whose global batches or device counts differ are compared by device seconds per row,
which is what is paid for.

public_sweeps  rows of one source, snapshot, job and kernels that differ only in knobs, at least 3
public_jobs    rows of one source and job, at least 8, on whatever machines and counts it was run
tiny_cpu       every configuration of the tiny job on a processor (`bench.replay.probed`), judged by
               the bill of the finished run; regret_0 is the cost model's pick, without a probe

Methods: random (mean over orders), model (the cost model's order), topk (the same without twins)
and calibrated. Each figure is over the sweeps (tiny_cpu: over ten seeds): mean regret after 1, 2
and 3 probes against the best that was recorded, and the median probes to it. --quick: public_sweeps
only.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.cost.model import CostModel
from autotune.domain.candidates import Candidates
from autotune.domain.outcome import Infeasible, Measured
from autotune.evidence.record.table import SHIPPED_ROWS, read_cases
from autotune.search.posterior.acquisition import Posterior
from autotune.search.posterior.lookahead import next_probe
from autotune.search.posterior.measurements import History
from autotune.search.priced import MEMORY, Dimension, Part, part_of
from bench.replay.probed import replayed
from bench.replay.recorded import Replay, replay_of_cases, sweeps
from bench.search.rivals import distinct

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.cost.columns import FloatArray
    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.evidence.cases import MeasuredCase

LEAST, LEAST_OF_JOB = 3, 8
ORDERS = 200  # random orders averaged over
AFTER = (1, 2, 3)
IGNORED = {"gradient_accumulation_steps", "checkpoint_every_steps", "save_total_limit"}
Figures = dict[str, float | int | None]


@dataclass(frozen=True, slots=True)
class Point:
    """A recorded configuration. pace_s: device seconds per row; None when it ran out of memory."""

    offer: Offer
    config: Config
    pace_s: float | None
    predicted_pace_s: float
    predicted_bytes: float
    usable_bytes: float


class Recorded:
    """A sweep as a `Priced`: device seconds per row, and memory as far as it decides what ran."""

    grows = ("micro_batch_size",)

    def __init__(self, points: Sequence[Point], name: str) -> None:
        """Columns from what the points differ in."""
        self.points, self.identity = points, name
        self.limit: FloatArray = np.asarray([p.usable_bytes for p in points])
        columns, dimensions = _columns(points)
        reads = list(dimensions.values())
        pace = np.asarray([p.predicted_pace_s for p in points])
        size = np.asarray([p.predicted_bytes for p in points])
        self.parts: tuple[Part, ...] = (
            part_of("compute", reads, columns, pace, spread=0.2, noise=0.03),
            part_of(MEMORY, reads, columns, size, spread=0.1, noise=0.02),
        )
        self._pace = pace

    def __len__(self) -> int:
        return len(self.points)

    def totals(self, factors: Mapping[str, FloatArray], at: NDArray[np.intp]) -> FloatArray:
        """[s] of a device per row."""
        found: FloatArray = self._pace[at] * factors["compute"]
        return found

    def params(self, index: int) -> dict[str, Any]:
        """The point's number."""
        return {"point": index}

    def find(self, params: Mapping[str, Any]) -> int | None:
        """The point of that number."""
        return int(params["point"])

    def order(self) -> Iterator[int]:
        """Predicted pace, points that should fit first."""
        over = self.parts[1].predicted[self.parts[1].row_of] > self.limit
        for index in np.lexsort((self._pace, over)):
            yield int(index)

    def neighbours(self, index: int) -> list[int]:
        """Points that differ in one column."""
        codes = self.parts[0].codes[self.parts[0].row_of]
        return [int(i) for i in np.flatnonzero((codes != codes[index]).sum(axis=1) == 1)]

    def plainness(self, indices: Sequence[int]) -> list[tuple[float, ...]]:
        """Less predicted memory."""
        return [(self.points[i].predicted_bytes,) for i in indices]


def _columns(
    points: Sequence[Point],
) -> tuple[dict[str, NDArray[np.int64]], dict[str, Dimension]]:
    values: dict[str, list[str]] = defaultdict(list)
    counts = {"micro_batch_size", "offer.count", "num_dataloader_workers"}
    for point in points:
        for knob, value in point.config.as_dict().items():
            if knob not in IGNORED:
                values[knob].append(str(value))
        values["offer.device"].append(point.offer.device.name)
        values["offer.count"].append(str(point.offer.count))
        rows = point.config.micro_batch_size * point.config.gradient_accumulation_steps
        values["rows"].append(str(rows))
    columns, dimensions = {}, {}
    for name, texts in values.items():
        ordinal = name in counts or name == "rows"
        levels = sorted(set(texts), key=float) if ordinal else sorted(set(texts))
        if len(levels) > 1:
            columns[name] = np.asarray([levels.index(text) for text in texts], np.int64)
            dimensions[name] = Dimension(name, tuple(levels), ordinal)
    return columns, dimensions


def points_of(recorded: Replay) -> list[Point]:
    """A replay's outcomes beside their predictions; what neither ran nor ran out is left out."""
    found = []
    for outcome in recorded:
        if not isinstance(outcome, Measured | Infeasible):
            continue
        offer, config = outcome.offer, outcome.config
        rows = config.micro_batch_size * config.gradient_accumulation_steps * offer.count
        job = replace(recorded.job, global_batch_size=rows, offers=(offer,))
        bill = CostModel(job).price(Candidates.of([(offer, config)]))
        each = rows / offer.count
        pace = outcome.step_time_s / each if isinstance(outcome, Measured) else None
        found.append(
            Point(
                offer, config, pace,
                float(bill.step_s[0]) / each, float(bill.memory_bytes[0]),
                float(bill.usable_bytes[0]),
            )
        )  # fmt: skip
    return found


def public_sweeps(cases: Sequence[MeasuredCase]) -> list[list[Point]]:
    """Sweeps over knobs alone."""
    grouped: dict[str, list[MeasuredCase]] = defaultdict(list)
    for case in cases:
        if not case.older:
            grouped[case.sweep_key].append(case)
    return _worth([points_of(replay_of_cases(g)) for g in grouped.values()], LEAST)


def public_jobs(cases: Sequence[MeasuredCase]) -> list[list[Point]]:
    """Jobs run in many configurations, machines and counts included."""
    return _worth([points_of(found) for found in sweeps(cases, LEAST_OF_JOB)], LEAST_OF_JOB)


def _worth(found: list[list[Point]], least: int) -> list[list[Point]]:
    """Sweeps with a choice: enough points, at least two that ran."""
    return [
        points
        for points in found
        if len(points) >= least and sum(p.pace_s is not None for p in points) > 1
    ]


def in_order(points: Sequence[Point], order: Sequence[int]) -> list[float]:
    """The regret of the best seen after every probe of an order."""
    paces = [points[i].pace_s for i in order]
    best = min(p.pace_s for p in points if p.pace_s is not None)
    seen, curve = float("inf"), []
    for pace in paces:
        seen = min(seen, pace if pace is not None else float("inf"))
        curve.append(seen / best - 1.0)
    return curve


def calibrated_order(points: Sequence[Point]) -> list[int]:
    """The points in the order that the calibrated sampler probes them."""
    priced, history = Recorded(points, "recorded"), History()
    tried: list[int] = []
    for _ in points:
        proposal = next_probe(Posterior(priced, history)) if history.probes else None
        fallback = (i for i in priced.order() if i not in history.tried)
        index = proposal.index if proposal is not None else next(fallback)
        tried.append(index)
        pace = points[index].pace_s
        if pace is None:
            history.learn_oom(priced, index)
        else:
            history.learn(priced, index, {"compute": pace})
    return tried


def worst_of(points: Sequence[Point]) -> float:
    """The regret of the slowest configuration that ran."""
    paces = [p.pace_s for p in points if p.pace_s is not None]
    return max(paces) / min(paces) - 1.0


def figures(curves: Sequence[Sequence[float]], worst: Sequence[float] = ()) -> Figures:
    """Means over sweeps.

    worst: of each sweep, the regret that counts where a method has met nothing that runs yet. It
    is the same for all methods; none is needed where everything ran.
    """
    found: Figures = {"sweeps": len(curves)}
    counted = worst or [0.0] * len(curves)
    for after in AFTER:
        values = [_at(curve, after, most) for curve, most in zip(curves, counted, strict=True)]
        found[f"regret_{after}"] = round(float(np.mean(values)), 5)
        if after == AFTER[-1]:
            found[f"regret_{after}_p90"] = round(float(np.percentile(values, 90)), 5)
    for name, within in (("probes_to_3pct", 0.03), ("probes_to_1pct", 0.01)):
        first = [next((k for k, r in enumerate(c, 1) if r <= within), math.inf) for c in curves]
        median = float(np.median(first))
        found[name] = median if math.isfinite(median) else None
    return found


def _at(curve: Sequence[float], after: int, worst: float) -> float:
    value = curve[min(after, len(curve)) - 1]
    return value if np.isfinite(value) else worst


def measure(found: Sequence[list[Point]]) -> dict[str, Figures]:
    """Every method on every sweep."""
    rng = np.random.default_rng(0)
    random, model, topk, calibrated = [], [], [], []
    worst = [worst_of(points) for points in found]
    for points in found:
        orders = [rng.permutation(len(points)).tolist() for _ in range(ORDERS)]
        random += [in_order(points, order) for order in orders]
        priced = Recorded(points, "recorded")
        model.append(in_order(points, list(priced.order())))
        topk.append(in_order(points, list(distinct(priced))))
        calibrated.append(in_order(points, calibrated_order(points)))
    by_chance = figures(random, [most for most in worst for _ in range(ORDERS)])
    return {
        "random": {**by_chance, "sweeps": len(found)}, "model": figures(model, worst),
        "topk": figures(topk, worst), "calibrated": figures(calibrated, worst),
    }  # fmt: skip


def answer(*, quick: bool) -> dict[str, dict[str, Figures]]:
    """The figures by scenario and method."""
    cases = read_cases(SHIPPED_ROWS).cases
    found = {"public_sweeps": measure(public_sweeps(cases))}
    if not quick:
        found["public_jobs"] = measure(public_jobs(cases))
        found["tiny_cpu"] = recorded_grid()
    return found


def recorded_grid() -> dict[str, Figures]:
    """The tiny job's recorded grid by method."""
    grid = replayed()
    return {
        "random": figures(grid.random),
        **{
            name: {**figures(curves), "regret_0": round(grid.without_probes, 5)}
            for name, curves in (
                ("model", [grid.model]), ("topk", [grid.topk]), ("calibrated", grid.calibrated),
            )
        },
    }  # fmt: skip


def main() -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.replay", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="sweeps over knobs alone")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args()
    result = answer(quick=options.quick)
    if options.format == "json":
        print(json.dumps(result, indent=1, allow_nan=False))
        return
    for scenario, by_method in result.items():
        print(scenario)
        for method, values in by_method.items():
            shown = "  ".join(
                f"{name} {'-' if value is None else f'{value:.3g}'}"
                for name, value in values.items()
            )
            print(f"  {method:11} {shown}")


if __name__ == "__main__":
    main()
