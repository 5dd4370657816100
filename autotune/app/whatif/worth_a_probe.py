"""What may be better than the pick and nobody measured: machines first, then changes of the pick.

A device that no training step was measured on, and an optimisation that was never measured on the
job's training stack, do not carry a pick by themselves (`Bill.caution`); they are offered here with
what they may be worth, for a probe to decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.app.whatif.waterfall import State, knobs_edit
from autotune.domain.answer.recommendation import WorthProbe
from autotune.pricing import Pricing
from autotune.space.rules import violations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autotune.app.whatif.waterfall import RunEdit
    from autotune.domain.config import Config
    from autotune.domain.job import Job, Limits
    from autotune.domain.observation import Calibration
    from autotune.domain.outcome import Estimated
    from autotune.search.selection import Objective

LEAST_SHARE = 0.01  # of the pick's bill: less is not worth a probe
MOST_MACHINES = 5
MACHINE = "machine"  # the knob of a change that is another machine
WHY_COMPILE = (
    "nobody has published a pair of the Trainer's runs with and without torch.compile; of other "
    "trainers, torchtitan gained 16 % (Llama 3.1 8B in full, 8 H100, blocks compiled)"
)
WHY_LIGER = (
    "of the Trainer's runs with and without Liger, published pairs gained 0 to 5 %, of other "
    "models, lengths and devices"
)
MASKED = "; compiled whole, sdpa gets an explicit mask and loses its flash kernel"


def machines_worth_a_probe(
    job: Job, pick: Estimated, machines: Sequence[Estimated], objective: Objective
) -> tuple[WorthProbe, ...]:
    """Machines that are expected to beat the pick, on whose device nobody measured a step.

    Each would lose at the slow end of its interval, or it would be the pick. Those that keep the
    job's limits only; the most promising first.
    """
    by_cost = objective == "cost" and pick.cost_usd.p50 > 0

    def score(row: Estimated) -> float:
        return row.cost_usd.p50 if by_cost else row.duration_s.p50

    better = [
        row
        for row in machines
        if row.caution > 1.0
        and row.offer != pick.offer
        and row.feasible
        and score(row) < score(pick) * (1.0 - LEAST_SHARE)
        and (_keeps(job.limits, row) or not _keeps(job.limits, pick))
    ]
    found = [
        WorthProbe(
            change=row.offer.label,
            knob=MACHINE,
            expected_saving_s=pick.duration_s.p50 - row.duration_s.p50,
            expected_saving_usd=pick.cost_usd.p50 - row.cost_usd.p50,
            p10=pick.cost_usd.p50 - row.cost_usd.p50 * row.caution,
            p90=pick.cost_usd.p50 - row.cost_usd.p50 / row.caution,
            why=f"no step measured on {row.offer.device.name} went into the model",
        )
        for row in sorted(better, key=score)
    ]
    return tuple(found[:MOST_MACHINES])


def _keeps(limits: Limits, row: Estimated) -> bool:
    seconds, usd = row.duration_s.p50, row.cost_usd.p50
    pairs = ((limits.deadline_s, seconds), (limits.max_session_s, seconds),
             (limits.budget_usd, usd))  # fmt: skip
    return all(limit is None or value <= limit for limit, value in pairs)


def worth_a_probe(job: Job, calibration: Calibration, pick: Estimated) -> tuple[WorthProbe, ...]:
    """One entry for each knob whose unmeasured change may save most, the largest saving first.

    Saving: expected, and between no gain and twice the gain. Source: derived: the prior of
    `cost.uncertainty.COMPILED`, between nothing and twice as much as assumed.
    """
    if not job.steps:
        return ()
    start = State(job, pick.offer, pick.config)
    changed = [(edit, edit.apply(start)) for edit in _edits(job, pick.config)]
    tried = [(edit, run) for edit, run in changed if not violations(job, run.offer, run.config)]
    if not tried:
        return ()
    bill = Pricing(job, calibration).of([(run.offer, run.config) for _, run in tried])
    best: dict[str, WorthProbe] = {}
    for index, (edit, _) in enumerate(tried):
        gain = bill.at("compute", "unmeasured_gain", index)
        if gain <= 1.0 or not bill.feasible[index]:
            continue
        row = bill.estimate(index)
        rate = pick.offer.usd_per_s
        train = row.steps * row.step_time_s
        expected = pick.duration_s.p50 - row.duration_s.p50
        knob = edit.columns[0]
        found = WorthProbe(
            change=edit.typed.replace("--set ", "").replace(" ", ", "),
            knob=knob,
            expected_saving_s=expected,
            expected_saving_usd=expected * rate,
            p10=(expected - train * (gain - 1.0)) * rate,
            p90=(expected + train * (1.0 - 1.0 / gain)) * rate,
            why=_why(row.config),
        )
        worth = expected > LEAST_SHARE * pick.duration_s.p50
        if worth and (knob not in best or expected > best[knob].expected_saving_s):
            best[knob] = found
    return tuple(sorted(best.values(), key=lambda each: -each.expected_saving_s))


def _edits(job: Job, config: Config) -> Iterator[RunEdit]:
    """Each unmeasured change of a configuration that may be tried, and the two together."""
    if config.compile == "off":
        if config.kernels == "none" and "kernels" in job.allow:
            yield knobs_edit(config, {"kernels": "liger"})
        yield knobs_edit(config, {"compile": "default"})
        yield knobs_edit(config, {"compile": "default", "compile_scope": "regional"})


def _why(config: Config) -> str:
    if config.kernels != "none":
        return WHY_LIGER
    whole = config.compile_scope == "model" and config.attention == "sdpa"
    return WHY_COMPILE + (MASKED if whole else "")
