"""How far off the cost model is on the simulated machines: `python -m bench.search.machines`.

Per scenario, over the machines that `bench.search` uses:

fits               share of the configurations that truly fit
cost_sd            sd of log(true/predicted cost) over configurations; median machine
memory_sd          the same of memory
favourite_oom      share of machines on which the cheapest predicted to fit does not
favourite_regret   its true cost above the optimum where it fits; median machine
rank               configurations predicted cheaper than the true optimum, among those predicted to
                   need at most 1.35 times the memory there is; median machine
optimum_too_large  share of machines whose true optimum is predicted not to fit
"""

from __future__ import annotations

import argparse
import json

import numpy as np

from bench.search.scenarios import FIRST_SEED, MACHINES
from bench.search.simulated import SCENARIOS, Grid, Machine

WORTH_PRICING = 1.35  # of the memory there is


def facts(machine: Machine) -> tuple[float, ...]:
    """The figures of one machine, in the order of the docstring."""
    predicted, fits = machine.predicted_cost, machine.truly_fits
    over = machine.predicted_memory / machine.limit
    true = np.where(fits, machine.true_cost, np.inf)
    best = int(np.argmin(true))
    believed = np.flatnonzero(over <= 1.0)
    favourite = int(believed[np.argmin(predicted[believed])])
    return (
        float(fits.mean()),
        float(np.log(machine.true_cost / predicted).std()),
        float(np.log(machine.true_memory / machine.predicted_memory).std()),
        float(not fits[favourite]),
        machine.regret(favourite) if fits[favourite] else float("nan"),
        float((predicted[over <= WORTH_PRICING] < predicted[best]).sum()),
        float(over[best] > 1.0),
    )


def answer(machines: int) -> dict[str, dict[str, float]]:
    """The figures by scenario."""
    grids: dict[int, Grid] = {}
    found = {}
    for name, scenario in SCENARIOS.items():
        grid = grids.setdefault(scenario.gpus, Grid.of(scenario.gpus))
        rows = np.asarray(
            [
                facts(Machine(grid, seed, scenario.bias, cliffs=scenario.cliffs))
                for seed in range(FIRST_SEED, FIRST_SEED + machines)
            ]
        )
        found[name] = {
            "fits": round(float(rows[:, 0].mean()), 3),
            "cost_sd": round(float(np.median(rows[:, 1])), 3),
            "memory_sd": round(float(np.median(rows[:, 2])), 3),
            "favourite_oom": round(float(rows[:, 3].mean()), 3),
            "favourite_regret": round(float(np.nanmedian(rows[:, 4])), 3),
            "rank": float(np.median(rows[:, 5])),
            "optimum_too_large": round(float(rows[:, 6].mean()), 3),
        }
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--machines", type=int, default=MACHINES, help="machines per scenario")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args()
    result = answer(options.machines)
    if options.format == "json":
        print(json.dumps(result, indent=1, allow_nan=False))
        return
    for name, values in result.items():
        print(f"{name:16}", "  ".join(f"{key} {value:g}" for key, value in values.items()))


if __name__ == "__main__":
    main()
