"""Which share of a card to keep free by default: `python -m bench.headroom`.

Published runs that ran out of memory or finished, each configuration once, predicted by fits that
have not seen their group, and judged at every share of the driver's total kept free. By bytes: the
predicted need against what the share leaves. Offered: that, and nine chances in ten that it fits.
Expected: by bytes, each prediction off by its own spread, so that no single run decides by a hair.

The default (`autotune.app.job.defaults.VRAM_HEADROOM`, 3 %) is the smallest hundredth at which
bytes alone are expected to call at most one in twenty of the failed runs a fit, and `MARGIN` more,
or a hundredth above that. One configuration at the edge of the card decides it (a 70B model in nf4
on two of them, six times out of memory and twice finished), so an error of 1 % in its predicted
need moves the answer by a hundredth. What AdamW holds in old releases, which that run never had,
moved it from 2 to 0 % by way of the fitted slack: the margin is as wide. Larger shares refuse
finished runs and no failed one, since the chance of fitting refuses those at any share.
"""

from __future__ import annotations

import argparse
import json
import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from autotune.cost.constants import BETWEEN_SHARDS
from autotune.cost.model import CostModel
from autotune.domain.config import SHARDED
from autotune.domain.outcome import FEASIBLE_PROBABILITY, Z90
from autotune.evidence.accuracy import predict, residuals, with_memory
from autotune.evidence.cases import left_out_key, memory_cases
from autotune.evidence.fit import refit
from autotune.evidence.record.table import SHIPPED_ROWS, read_cases

if TYPE_CHECKING:
    from autotune.evidence.accuracy import Prediction, Residual
    from autotune.evidence.cases import MeasuredCase

SHARES = tuple(i / 100.0 for i in range(16))
MOST_FALSE_FITS = 0.05  # of the runs that ran out of memory
MARGIN = 0.02
Judged = list[tuple["MeasuredCase", "Prediction"]]


def judged() -> Judged:
    """Every configuration with a known outcome, as predicted without its group.

    Not without its source: one source reports most of the runs that failed, and without it nobody
    would know what is needed on top.
    """
    cases = read_cases(SHIPPED_ROWS).cases
    predictions = predict(cases, lambda job, candidates: CostModel(job).price(candidates))
    unseen = refit.refit_memory(cases, left_out_key).left_out
    return [
        (case, with_memory(predictions[case.id], unseen[case.id])) for case in memory_cases(cases)
    ]


def curve(runs: Judged) -> list[dict[str, Any]]:
    """False fits and refused finished runs at every share kept free."""
    rows = []
    for share in SHARES:
        fits_by_bytes = fits = refused_by_bytes = refused = 0
        expected = 0.0
        for case, found in runs:
            usable = found.usable_bytes - share * case.offer.device.memory_driver_bytes
            room = found.memory["total"] <= usable and not found.certain_oom
            offered = room and found.fits_probability >= FEASIBLE_PROBABILITY
            expected += _chance(case, found, usable) if case.oom else 0.0
            fits_by_bytes += bool(case.oom) and room
            fits += bool(case.oom) and offered
            refused_by_bytes += not case.oom and not room
            refused += not case.oom and not offered
        rows.append({
            "headroom": share,
            "ooms": sum(bool(case.oom) for case, _ in runs),
            "runs": sum(not case.oom for case, _ in runs),
            "expected_by_bytes": expected, "false_fits_by_bytes": fits_by_bytes,
            "false_fits": fits,
            "refused_by_bytes": refused_by_bytes, "refused": refused,
        })  # fmt: skip
    return rows


def _chance(case: MeasuredCase, found: Prediction, usable_bytes: float) -> float:
    """That the predicted need, off by its spread, is at most this.

    The prediction has seen other runs of the source, so what another source's run on shards may
    lie beside it is no part of the spread here.
    """
    shards = case.offer.count > 1 and case.config.sharding in SHARDED
    another = BETWEEN_SHARDS if shards and not case.job.software.own_model else 0.0
    own = math.sqrt(max(found.memory_log_sd**2 - another**2, 0.0))
    spread = max(math.hypot(own, found.slack_log_sd), 1e-6)
    return NormalDist().cdf(math.log(usable_bytes / found.memory["total"]) / spread)


def chosen(rows: list[dict[str, Any]]) -> float:
    """The smallest share at which few enough failed runs are expected to pass, and the margin."""
    good = (r for r in rows if r["expected_by_bytes"] <= MOST_FALSE_FITS * r["ooms"])
    return round(float(next(good, rows[-1])["headroom"]) + MARGIN, 2)


def bands(found: list[Residual]) -> list[dict[str, Any]]:
    """Root mean square of log(predicted / measured) and coverage of the 80 % interval, by kind."""
    kinds: dict[str, dict[tuple[str, ...], list[Residual]]] = {}
    for item in found:
        groups = kinds.setdefault(f"{item.kind}, {item.band}", {})
        groups.setdefault(item.case.group[:3], []).append(item)
    rows = []
    for kind, groups in sorted(kinds.items()):
        squares = [_mean([math.log(r.ratio) ** 2 for r in own]) for own in groups.values()]
        inside = [
            _mean([float(abs(math.log(r.ratio)) <= Z90 * r.log_sd) for r in own])
            for own in groups.values()
        ]
        rows.append({
            "kind": kind, "rows": sum(map(len, groups.values())), "groups": len(groups),
            "rms": math.sqrt(_mean(squares)), "coverage": _mean(inside),
        })  # fmt: skip
    return rows


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def main() -> None:
    """Print the curve, the share that follows from it, and the bands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--quick", action="store_true", help="accepted for symmetry; no effect")
    arguments = parser.parse_args()
    runs = judged()
    rows = curve(runs)
    predictions = {case.id: found for case, found in runs}
    readings = residuals([case for case, _ in runs], predictions)
    spread = bands([r for r in readings if r.kind != "time"])
    if arguments.format == "json":
        print(json.dumps({"curve": rows, "chosen": chosen(rows), "bands": spread}))
        return
    first = rows[0]
    print(f"{first['ooms']} runs ran out of memory, {first['runs']} finished.")
    print("kept free   called a fit: expected, by bytes, offered   refused: by bytes, in all")
    for row in rows:
        print(
            f"{row['headroom']:9.0%}   {row['expected_by_bytes']:22.1f}, "
            f"{row['false_fits_by_bytes']:8d}, {row['false_fits']:7d}"
            f"   {row['refused_by_bytes']:17d}, {row['refused']:6d}"
        )
    print(f"default: {chosen(rows):.0%}")
    for row in spread:
        print(
            f"{row['kind']:36s} {row['rows']:4d} rows, {row['groups']:2d} groups: "
            f"rms {row['rms']:.3f}, 80 % interval covers {row['coverage']:.0%}"
        )


if __name__ == "__main__":
    main()
