"""What a user's own past runs are worth, on the record: one run left out, learned from the others.

`python -m bench.learn --format text|json`. For every source of the record that holds several runs
of one machine, each run in turn is predicted by the shipped model and by the model with what the
source's other runs teach (`autotune learn` does the same with a user's). Replicates of a
configuration are counted once, so that no run is predicted from its own repeat. Sources that the
shipped calibration was fitted on are marked: there is little left to learn of them.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from autotune.domain.outcome import Z90
from autotune.evidence.cases import Refused, timed_cases
from autotune.evidence.learned.effects import believed, effect_of, residual_of
from autotune.evidence.learned.run import NOISE
from autotune.evidence.record.table import SHIPPED_ROWS, read_cases
from autotune.pricing import plain_bill

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autotune.evidence.cases import MeasuredCase
    from autotune.evidence.learned.effects import Residual

FEWEST = 3  # runs of a machine that a source must hold
# Runs that people logged themselves, as a user's are: what `learn` is for.
LOGGED = (
    "Aochong-Li/KnowledgeUpdatePlayground", "0-KaiKai-0/stanford_alpaca", "JL-er/Bone",
    "RZ-01/llm4math", "achingacham/PISPiN_finetune_Llama", "unslothai/notebooks",
    "MakazhanAlpamys/Soup", "DarioVajda/translation_dpo", "microsoft/DeepSpeedExamples",
)  # fmt: skip


def residuals_of(cases: Iterable[MeasuredCase]) -> dict[str, list[Residual]]:
    """Residuals of every source with enough runs of one machine."""
    found: dict[str, list[Residual]] = defaultdict(list)
    for case in timed_cases(cases):
        try:
            own = residual_of(case.id, case, NOISE["A"], plain_bill)
        except Refused:
            continue
        found[case.group[0]].append(own)
    return {name: own for name, own in found.items() if _most_on_one(own) >= FEWEST}


def _most_on_one(found: Sequence[Residual]) -> int:
    machines = [own.machine for own in found]
    return max(map(machines.count, machines))


def left_one_out(found: Sequence[Residual]) -> dict[str, float]:
    """Errors of each run before and after the others are learned from, and what is covered."""
    before, after, inside = [], [], []
    for own in found:
        others = [other for other in found if other is not own]
        if not any(other.machine == own.machine for other in others):
            continue
        others, _ = believed(others)
        effect = effect_of(own, others)
        left = own.log - (math.log(effect.factor) if effect else 0.0)
        spread = math.hypot(own.sd * (effect.spread if effect else 1.0), own.noise)
        before.append(abs(math.expm1(-own.log)))
        after.append(abs(math.expm1(-left)))
        inside.append(abs(left) <= Z90 * spread)
    return {
        "runs": len(before),
        "median_ape_before": statistics.median(before),
        "median_ape_after": statistics.median(after),
        "mean_ape_before": statistics.fmean(before),
        "mean_ape_after": statistics.fmean(after),
        "coverage_after": statistics.fmean(inside),
    }


def measure() -> dict[str, Any]:
    """Every source, those that people logged themselves first, and their medians together."""
    found = residuals_of(read_cases(SHIPPED_ROWS).cases)
    sources = {name: left_one_out(own) for name, own in sorted(found.items())}
    logged = {name: own for name, own in sources.items() if name in LOGGED}
    halved = [own["median_ape_after"] / own["median_ape_before"] for own in logged.values()]
    return {
        "logged": logged,
        "others": {name: own for name, own in sources.items() if name not in LOGGED},
        "median_ratio_logged": statistics.median(halved) if halved else None,
    }


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    found = measure()
    if parser.parse_args().format == "json":
        print(json.dumps(found, indent=1))
        return
    for title in ("logged", "others"):
        print(title)
        for name, own in found[title].items():
            print(
                f"  {name[:44]:44s} {own['runs']:4.0f} runs  median error"
                f" {100 * own['median_ape_before']:5.1f} -> {100 * own['median_ape_after']:5.1f} %"
                f"  in the 80 % interval {100 * own['coverage_after']:3.0f} %"
            )
    print(f"error after over before, median of logged sources: {found['median_ratio_logged']:.2f}")


if __name__ == "__main__":
    main()
