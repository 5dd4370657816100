"""Which share of a card to keep free: `python -m bench.headroom`.

Published runs that ran out of memory or finished, each configuration once, judged at every share of
the driver's total: a false fit is a run that ran out of memory and would have been offered; an
alarm is one that finished although its predicted need is above what the share leaves. Then how far
predicted peaks are from measured ones, with every (source, model, GPU) weighted equally.
"""

from __future__ import annotations

import argparse
import json
import math
from typing import TYPE_CHECKING, Any

from autotune.app.validate import SHIPPED_ROWS
from autotune.cost.model import CostModel
from autotune.domain.outcome import FEASIBLE_PROBABILITY
from autotune.evidence.public_csv import read_cases
from autotune.evidence.residuals import predict, residuals

if TYPE_CHECKING:
    from autotune.evidence.case import MeasuredCase
    from autotune.evidence.residuals import Prediction, Residual

SHARES = (0.0, 0.02, 0.04, 0.06, 0.08, 0.10, 0.12, 0.15, 0.20)
Judged = list[tuple["MeasuredCase", "Prediction"]]


def curve(judged: Judged) -> list[dict[str, Any]]:
    """False fits and alarms at every share kept free."""
    rows = []
    for share in SHARES:
        fits = alarms = unsure = ooms = runs = 0
        for case, found in judged:
            usable = found.usable_bytes - share * case.offer.device.memory_driver_bytes
            over = found.certain_oom or found.memory["total"] > usable
            offered = not over and found.fits_probability >= FEASIBLE_PROBABILITY
            ooms, runs = ooms + bool(case.oom), runs + (not case.oom)
            fits += bool(case.oom) and offered
            alarms += not case.oom and over
            unsure += not case.oom and not over and not offered
        rows.append({
            "headroom": share, "ooms": ooms, "false_fits": fits, "runs": runs, "alarms": alarms,
            "not_offered": unsure,
        })  # fmt: skip
    return rows


def bands(found: list[Residual]) -> list[dict[str, Any]]:
    """Root mean square of log(predicted / measured) and coverage of the 80 % interval, by kind."""
    kinds: dict[str, dict[tuple[str, ...], list[Residual]]] = {}
    for item in found:
        groups = kinds.setdefault(kind_of(item), {})
        groups.setdefault(item.case.group[:3], []).append(item)
    rows = []
    for kind, groups in sorted(kinds.items()):
        squares = [_mean([math.log(r.ratio) ** 2 for r in own]) for own in groups.values()]
        inside = [
            _mean([float(abs(math.log(r.ratio)) <= 1.2816 * r.log_sd) for r in own])
            for own in groups.values()
        ]
        rows.append({
            "kind": kind, "rows": sum(map(len, groups.values())), "groups": len(groups),
            "rms": math.sqrt(_mean(squares)), "coverage": _mean(inside),
        })  # fmt: skip
    return rows


def kind_of(item: Residual) -> str:
    """The kind of configuration whose spread the cost model states."""
    case, job = item.case, item.case.job
    if item.kind != "allocated":
        return f"{item.kind}, cache emptied" if job.software.empties_cache else item.kind
    if job.software.own_model:
        return "allocated, model code of its own"
    if job.model.is_moe:
        return "allocated, experts"
    if job.model.norm == "layernorm" and job.method.base in {"nf4", "int8"}:
        return "allocated, quantised with LayerNorm"
    if job.software.kernels != "eager":
        return "allocated, fused kernels"
    return "allocated, sharded" if case.offer.count > 1 else "allocated, one GPU"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def main() -> None:
    """Print the curve and the bands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--quick", action="store_true", help="accepted for symmetry; no effect")
    arguments = parser.parse_args()
    cases = read_cases(SHIPPED_ROWS).cases
    newest = {case.replicate_key: case for case in sorted(cases, key=lambda c: not c.older)}
    predictions = predict(cases, lambda job, candidates: CostModel(job).price(candidates))
    known = [c for c in newest.values() if (c.oom or c.ran) and c.longest_known]
    rows = curve([(case, predictions[case.id]) for case in known])
    memory = [r for r in residuals(newest.values(), predictions) if r.kind != "time"]
    spread = bands(memory)
    if arguments.format == "json":
        print(json.dumps({"curve": rows, "bands": spread}))
        return
    for row in rows:
        print(
            f"{row['headroom']:4.0%} kept free: {row['false_fits']} of {row['ooms']} out-of-memory "
            f"runs called a fit, {row['alarms']} of {row['runs']} finished runs called too large, "
            f"{row['not_offered']} more not sure enough"
        )
    for row in spread:
        print(
            f"{row['kind']:36s} {row['rows']:4d} rows, {row['groups']:2d} groups: "
            f"rms {row['rms']:.3f}, 80 % interval covers {row['coverage']:.0%}"
        )


if __name__ == "__main__":
    main()
