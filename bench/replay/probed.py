"""The probed search against all that could have been measured: `python -m bench.replay.probed`.

The search is replayed on the recorded grid of the tiny CPU job (`bench.replay.grid`) with ten
seeds. A seed decides which of a configuration's measurements a search sees first.

regret: the bill of the pick above the least bill, both from the mean of a configuration's
measurements. step_regret: the same of an optimizer step alone, which is what configurations differ
in: loading the model takes most of this job's time and is the same for all. repeat_error: sd of the
log of a step between two measurements of one configuration; where there are enough of them, of
those that no other program disturbed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median, variance
from typing import TYPE_CHECKING, Any

from autotune.app.probing.figures import MEANS
from autotune.app.probing.plan import ProbeOptions
from autotune.app.probing.probe import Prober
from autotune.app.probing.study import StudySettings, probe_candidates
from autotune.cost.model import CostModel
from autotune.probe import device as devices
from autotune.probe.record import PROBES_FILE, ProbeLog, config_of, read_records
from autotune.probe.request import request_for
from autotune.search.alternatives import proposal_order
from autotune.search.axes import ParameterSpace
from autotune.search.billed import BilledCandidates
from autotune.search.posterior.acquisition import Posterior
from autotune.search.posterior.measurements import History
from autotune.search.study.record import TRIALS_FILE, TrialRecord
from autotune.space.enumerate import enumerate_candidates
from autotune.space.file import load_space
from bench.replay.grid import FOLDER, RECORD, tiny_job, undisturbed
from bench.replay.recorded import RecordedRunner, replay_key
from bench.search.rivals import distinct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.app.probing.study import Probed
    from autotune.cost.bill import Bill
    from autotune.domain.job import Job
    from autotune.probe.record import ProbeRecord

SEEDS, PROBES = 10, 12
LEAST_PAIRS, CLOSE = 10, 0.05


def bill_of(job: Job) -> Bill:
    """Every candidate of the space, priced."""
    return CostModel(job).price(enumerate_candidates(job, load_space(None)).candidates)


def trusted(records: list[ProbeRecord]) -> list[ProbeRecord]:
    """Undisturbed records of each configuration, or all where it has none."""
    groups: dict[str, list[ProbeRecord]] = defaultdict(list)
    for record in records:
        groups[replay_key(config_of(record))].append(record)
    found = []
    for group in groups.values():
        calm = [record for record in group if undisturbed(record)]
        found += calm or group
    return found


def repeat_error(records: list[ProbeRecord]) -> float:
    """Sd of the log of a step between repeats: of undisturbed pairs where there are enough.

    Formula: sqrt(mean over configurations of the sample variance of log step).
    """
    for chosen in ([r for r in records if undisturbed(r)], records):
        groups: dict[str, list[float]] = defaultdict(list)
        for record in chosen:
            if record.ok:
                key = replay_key(config_of(record))
                groups[key].append(math.log(record.result["step"]["step_s"]))
        several = [variance(group) for group in groups.values() if len(group) > 1]
        if len(several) >= LEAST_PAIRS:
            return math.sqrt(fmean(several))
    return 0.0


@dataclass(frozen=True, slots=True)
class Truth:
    """All that was measured: the bill and the step [s] of each candidate, and how well."""

    bills_s: dict[int, float]
    steps_s: dict[int, float]
    repeat_error: float

    @property
    def limit(self) -> float:
        """Regret that measuring everything could not tell from none, and never under 5 %."""
        return max(CLOSE, 2.0 * self.repeat_error)

    def regret(self, pick: int) -> float:
        """The bill of a candidate above the least, relative."""
        return self.bills_s[pick] / min(self.bills_s.values()) - 1.0

    def step_regret(self, pick: int) -> float:
        """The same of a step alone."""
        return self.steps_s[pick] / min(self.steps_s.values()) - 1.0


def truth_of(job: Job, bill: Bill, records: list[ProbeRecord], folder: Path) -> Truth:
    """The bills that all records together imply, made as `tune --score probe` makes them.

    A configuration's step is the mean of its measurements, whatever a search would believe of them.
    """
    (folder / PROBES_FILE).parent.mkdir(parents=True, exist_ok=True)
    own = ProbeLog(folder / PROBES_FILE)
    groups: dict[str, list[ProbeRecord]] = defaultdict(list)
    for record in trusted(records):
        request = request_for(job, job.offers[0], config_of(record))
        groups[request["key"]].append(record)
    for key, group in groups.items():
        own.append(replace(_mean(group), key=key))
    options = ProbeOptions(runner=lambda _: RecordedRunner(records), reuse=False)
    prober = Prober(job, bill, devices.cpu(), options, "cost", folder, lambda _: None)
    rows = prober.rows
    return Truth(
        {index: row.row.duration_s.p50 for index, row in rows.items() if row.fits},
        {index: row.row.step_time_s for index, row in rows.items() if row.fits},
        repeat_error(records),
    )


def _mean(group: list[ProbeRecord]) -> ProbeRecord:
    """The last record of a configuration with the mean times of all."""
    ran = [record for record in group if record.ok] or group
    last = ran[-1]
    if not last.ok:
        return last
    step = dict(last.result["step"])
    for name in MEANS:
        step[name] = fmean(float(record.result["step"][name]) for record in ran)
    return replace(last, result={**last.result, "step": step})


def search(bill: Bill, records: list[ProbeRecord], seed: int, folder: Path, probes: int) -> Probed:
    """One search on the record."""
    options = ProbeOptions(
        probes=probes, budget_s=3600.0, runner=lambda _: RecordedRunner(records, seed), reuse=False
    )
    study = StudySettings(folder, "bench", seed=seed)
    return probe_candidates(bill, devices.cpu(), options, study, lambda _: None)


def curve_of(found: Probed, folder: Path, truth: Truth) -> list[float]:
    """Regret of the posterior pick after every configuration that a search measured."""
    posterior = found.explored.posterior
    if posterior is None:
        return []
    history, curve = History(), []
    for line in (folder / TRIALS_FILE).read_text(encoding="utf-8").splitlines():
        trial = TrialRecord.of(json.loads(line))
        index = posterior.priced.find(trial.params)
        if trial.kind != "trial" or index is None:
            continue
        if trial.oom:
            history.learn_oom(posterior.priced, index)
        else:
            history.learn(posterior.priced, index, trial.measured, trial.noise)
        pick = Posterior(posterior.priced, history).pick()
        curve.append(float("inf") if pick is None else truth.regret(pick))
    return curve


@dataclass(frozen=True, slots=True)
class Replayed:
    """The recorded grid as `bench.replay` reads it: curves of regret, one a seed or order.

    topk: the model's order without configurations that it takes for equal.
    """

    calibrated: list[list[float]]
    model: list[float]
    topk: list[float]
    random: list[list[float]]
    without_probes: float


def replayed(folder: Path = FOLDER, seeds: int = SEEDS, orders: int = 200) -> Replayed:
    """Regret of the bill after every probe, by the search, the model's order and chance."""
    job = tiny_job(folder)
    bill, records = bill_of(job), read_records(folder / RECORD)
    with tempfile.TemporaryDirectory() as scratch:
        truth = truth_of(job, bill, records, Path(scratch) / "truth")
        curves = []
        for seed in range(seeds):
            own = Path(scratch) / str(seed)
            curves.append(curve_of(search(bill, records, seed, own, PROBES), own, truth))
    ran = list(truth.bills_s)
    chance = random.Random(0)  # noqa: S311 - orders of a bench
    order = [i for i in proposal_order(bill, "cost") if i in truth.bills_s]
    priced = BilledCandidates(bill, ParameterSpace(bill.candidates), "cost")
    return Replayed(
        curves, _best_seen(truth, order), _best_seen(truth, list(distinct(priced, order))),
        [_best_seen(truth, chance.sample(ran, len(ran))) for _ in range(orders)],
        truth.regret(order[0]),
    )  # fmt: skip


def _best_seen(truth: Truth, order: Sequence[int]) -> list[float]:
    """Regret of the best of the first k, for every k."""
    return list(accumulate((truth.regret(index) for index in order), min))


def answer(folder: Path = FOLDER, seeds: int = SEEDS, probes: int = PROBES) -> dict[str, Any]:
    """Regret of the search's pick for each seed, and what it took."""
    job = tiny_job(folder)
    bill, records = bill_of(job), read_records(folder / RECORD)
    with tempfile.TemporaryDirectory() as scratch:
        truth = truth_of(job, bill, records, Path(scratch) / "truth")
        runs: list[dict[str, Any]] = []
        for seed in range(seeds):
            found = search(bill, records, seed, Path(scratch) / str(seed), probes)
            pick = found.explored.pick
            if pick is None:
                continue
            runs.append(
                {
                    "seed": seed, "probes": len(found.records),
                    "probe_s": sum(record.wall_s for record in found.records),
                    "regret": truth.regret(pick), "step_regret": truth.step_regret(pick),
                    "stopped_because": found.stopped_because,
                }
            )  # fmt: skip
    unprobed = next(i for i in proposal_order(bill, "cost") if i in truth.bills_s)
    ran = [record for record in records if record.ok]
    return {
        "configurations": len(truth.bills_s), "recorded": len(records),
        "undisturbed": sum(map(undisturbed, records)),
        "probe_s": median(record.wall_s for record in ran),
        "overhead": median(1.0 - _stepping_s(record) / record.wall_s for record in ran),
        "repeat_error": truth.repeat_error, "limit": truth.limit,
        "without_probes": {
            "regret": truth.regret(unprobed), "step_regret": truth.step_regret(unprobed),
        },
        "within_5pct": sum(run["regret"] <= CLOSE for run in runs),
        "within_limit": sum(run["regret"] <= truth.limit for run in runs),
        "mean_regret": fmean(run["regret"] for run in runs),
        "mean_step_regret": fmean(run["step_regret"] for run in runs),
        "seeds": runs,
    }  # fmt: skip


def _stepping_s(record: ProbeRecord) -> float:
    """[s] of the steps that a probe's figures rest on."""
    step = record.result["step"]
    return float(step["steps"]) * float(step["step_s"])


def text_of(found: dict[str, Any]) -> str:
    """The answer for people."""
    recorded = f"{found['configurations']} configurations, {found['recorded']} recorded probes"
    cost = f"a probe takes {found['probe_s']:.1f} s, {found['overhead']:.0%} of it around its steps"
    lines = [
        f"{recorded}, {found['undisturbed']} of them undisturbed",
        f"repeat error {found['repeat_error']:.1%}; {cost}",
        f"a pick within {found['limit']:.1%} of the least bill cannot be told from the best",
        "without probes: bill {regret:.1%} above the least, step {step_regret:.1%}".format(
            **found["without_probes"]
        ),
    ]
    lines += [
        f"seed {run['seed']}: {run['probes']} probes, {run['probe_s']:.0f} s, bill "
        f"{run['regret']:.1%}, step {run['step_regret']:.1%} ({run['stopped_because']})"
        for run in found["seeds"]
    ]
    near = f"{found['within_5pct']} of {len(found['seeds'])} within 5 %"
    lines.append(
        f"{near}, {found['within_limit']} within the limit; mean regret "
        f"{found['mean_regret']:.1%} of the bill, {found['mean_step_regret']:.1%} of a step"
    )
    return "\n".join(lines)


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the record is")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="searches")
    parser.add_argument("--quick", action="store_true", help="two seeds")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args()
    found = answer(options.folder, 2 if options.quick else options.seeds)
    print(json.dumps(found, indent=1) if options.format == "json" else text_of(found))


if __name__ == "__main__":
    main()
