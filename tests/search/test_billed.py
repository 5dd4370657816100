"""The bill as the calibrated sampler sees it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autotune.app.whatif.diagnosis import deciding_probe
from autotune.cost.model import CostModel
from autotune.domain.candidates import OFFER, Candidates
from autotune.domain.job import Evaluation
from autotune.search.axes import ParameterSpace
from autotune.search.billed import BilledCandidates
from autotune.search.measured.measurer import Scored, StopSearch
from autotune.search.measured.study import explore_measured
from autotune.search.posterior.acquisition import Posterior
from autotune.search.posterior.measurements import History
from autotune.search.posterior.stopping import ProbeBudget
from autotune.space.enumerate import enumerate_candidates
from autotune.space.file import load_space

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autotune.cost.bill import Bill
    from autotune.domain.job import Job

COMPUTE = 1.4  # the machine is that much slower than predicted, and needs as much more memory
MEMORY = 1.1


def billed(bill: Bill, objective: Any = "cost") -> BilledCandidates:
    return BilledCandidates(bill, ParameterSpace(bill.candidates), objective)


def ones(priced: BilledCandidates) -> dict[str, Any]:
    return {part.name: np.ones(len(priced)) for part in priced.parts}


@pytest.mark.parametrize("objective", ["cost", "time"])
def test_parts_make_the_bill_again(small_bill: Bill, tight_bill: Bill, objective: Any) -> None:
    for bill in (small_bill, tight_bill):
        priced = billed(bill, objective)
        totals = priced.totals(ones(priced), np.arange(len(bill)))
        expected = bill.cost_usd if objective == "cost" else bill.duration_s
        assert totals == pytest.approx(expected, rel=1e-9)


def test_a_slower_part_makes_the_run_longer_and_the_others_leave_it(tight_bill: Bill) -> None:
    priced = billed(tight_bill, "time")
    at = np.arange(len(priced))
    plain = priced.totals(ones(priced), at)
    slower = priced.totals({**ones(priced), "compute": np.full(len(at), 2.0)}, at)
    assert (slower > plain).all()
    heavier = {**ones(priced), "memory": np.full(len(at), 2.0)}
    assert priced.totals(heavier, at) == pytest.approx(plain)


def test_sessions_and_evaluations_are_in_the_bill_made_again(tight_job: Job) -> None:
    limits = replace(tight_job.limits, max_session_s=6 * 3600.0)
    job = replace(tight_job, limits=limits, evaluation=Evaluation(every_steps=500, rows=200))
    bill = CostModel(job).price(enumerate_candidates(job, load_space()).candidates)
    priced = billed(bill, "time")
    at = np.arange(len(bill))
    assert priced.totals(ones(priced), at) == pytest.approx(bill.duration_s, rel=1e-9)
    slower = priced.totals({**ones(priced), "evaluation": np.full(len(at), 3.0)}, at)
    assert (slower > bill.duration_s).all()


def test_limits_of_the_job_are_excesses_of_its_figures(tight_job: Job) -> None:
    plain = CostModel(tight_job).price(enumerate_candidates(tight_job, load_space()).candidates)
    deadline_s, budget_usd = 1.5 * plain.duration_s.min(), 2.0 * plain.cost_usd.min()
    limits = replace(tight_job.limits, deadline_s=deadline_s, budget_usd=budget_usd)
    job = replace(tight_job, limits=limits)
    bill = CostModel(job).price(enumerate_candidates(job, load_space()).candidates)
    priced = billed(bill)
    at = np.arange(len(bill))
    found = priced.excesses(ones(priced), at)
    assert set(found) == {"deadline", "budget"}
    assert (found["deadline"] <= 0).tolist() == (bill.duration_s <= deadline_s).tolist()
    assert np.exp(found["budget"]) == pytest.approx(bill.cost_usd / budget_usd, rel=1e-9)
    posterior = Posterior(priced, History())
    assert not posterior.missed
    keeps = posterior.keeps_probability[at]
    order = np.argsort(bill.duration_s)
    assert keeps[order[0]] > 0.5 > keeps[order[-1]]
    late = np.maximum(bill.duration_s / deadline_s, bill.cost_usd / budget_usd)
    assert keeps[late < 0.7].min() > keeps[late > 1.2].max()
    free = billed(CostModel(tight_job).price(bill.candidates))
    assert free.excesses(ones(free), at) == {}


def test_a_step_s_summands_keep_to_the_knobs_that_move_them(small_bill: Bill) -> None:
    part = next(p for p in billed(small_bill).parts if p.name == "compute")
    assert [term.name for term in part.terms] == ["computing", "communication", "optimizer"]
    shares = np.sum([term.share for term in part.terms], axis=0)
    assert shares == pytest.approx(np.ones(len(part.predicted)), rel=1e-6)
    names = [{part.reads[k].name for k in term.reads} for term in part.terms]
    assert "micro_batch_size" in names[0]
    assert "micro_batch_size" not in names[2]
    assert set().union(*names) == {d.name for d in part.reads}


def test_every_part_is_a_function_of_what_its_component_declares(small_bill: Bill) -> None:
    for part in billed(small_bill).parts:
        assert len(part.predicted) < len(small_bill)
        assert part.predicted[part.row_of].shape == (len(small_bill),)


def truth(priced: BilledCandidates, index: int) -> Scored:
    """A machine that computes slower than predicted and needs more memory."""
    values = {p.name: float(p.predicted[p.row_of[index]]) for p in priced.parts}
    factors = {**{name: np.ones(1) for name in values}, "compute": np.full(1, COMPUTE)}
    values["compute"] *= COMPUTE
    values["memory"] *= MEMORY
    over = values["memory"] / float(priced.limit[index]) - 1.0
    measured = {name: value for name, value in values.items() if value > 0}
    cost = float(priced.totals(factors, np.asarray([index]))[0])
    if over > 0:
        return Scored(cost, {"memory": over}, fits=False, reason="memory", oom=True)
    return Scored(cost, {"memory": over}, fits=True, reason="fits", measured=measured)


def test_probes_of_a_bill_go_by_residuals_and_a_killed_search_goes_on_alike(
    tight_bill: Bill, tmp_path: Path
) -> None:
    priced = billed(tight_bill)

    def search(folder: Path, trials: int, *, resume: bool = False) -> list[int]:
        meter = Meter(priced, 7.0, again_s=np.inf)
        explore_measured(
            tight_bill, meter, sampler="calibrated", trials=trials, run_dir=folder,
            job_key="job", resume=resume,
        )  # fmt: skip
        return meter.asked

    straight = search(tmp_path / "straight", 7)
    assert len(set(straight)) == 7
    pieces = [i for n in range(1, 8) for i in search(tmp_path / "pieces", n, resume=n > 1)]
    assert pieces == straight


def test_the_search_learns_that_a_machine_is_slower_everywhere(tight_bill: Bill) -> None:
    priced = billed(tight_bill)
    history = History()

    meter = Meter(priced, 4.0)
    explore_measured(tight_bill, meter, sampler="calibrated", trials=20)
    for index in meter.asked:
        scored = truth(priced, index)
        if scored.oom:
            history.learn_oom(priced, index)
        else:
            history.learn(priced, index, scored.measured)
    assert history.measured
    posterior = Posterior(priced, history)
    factors = np.exp(posterior.residuals["compute"].mean)
    assert np.median(factors) == pytest.approx(COMPUTE, rel=0.08)
    pick = posterior.pick()
    assert pick in history.measured
    assert priced.bill.memory_bytes[pick] * MEMORY <= priced.limit[pick]


class Meter:
    """Measures for a second each, and may spend so many; the pick's own run is dearer."""

    def __init__(self, priced: BilledCandidates, limit: float, again_s: float = 2.0) -> None:
        self.priced, self.limit, self.again_s, self.spent = priced, limit, again_s, 0.0
        self.allowed = {"seconds": limit}
        self.asked: list[int] = []

    def measure(self, index: int) -> Scored:
        self.spent += 1.0
        self.asked.append(index)
        return truth(self.priced, index)

    def again(self, index: int, told: Sequence[str]) -> Scored:
        del told
        if self.spent + self.again_s > self.limit:
            msg = "the probe budget was spent"
            raise StopSearch(msg, budget=True)
        self.spent += self.again_s
        return truth(self.priced, index)

    def stop_reason(self) -> str:
        return ""

    def budget(self, index: int) -> ProbeBudget:
        del index
        return ProbeBudget(1.0, self.spent, self.limit, "s", free=True)


def test_a_budget_that_ends_the_search_and_the_pick_s_own_run_is_named_once(
    tight_bill: Bill,
) -> None:
    def why(limit: float, trials: int) -> str:
        meter = Meter(billed(tight_bill), limit)
        found = explore_measured(tight_bill, meter, sampler="calibrated", trials=trials)
        return found.stopped_because

    ended = why(4.0, 20)
    assert ended.startswith("the probe budget of 4.0 s would be exceeded: 4.0 s spent")
    assert ended.endswith("; the pick could not be run again")
    assert ended.count("budget") == 1
    other = why(4.0, 3)
    assert other == (
        "3 configurations were measured, as many as allowed; the probe budget was spent, "
        "before the pick could be run again"
    )
    assert "again" not in why(6.0, 3), "it was"


def test_the_identity_is_the_job_s_and_not_the_price_s(small_job: Job) -> None:
    def identity(job: Job) -> str:
        bill = CostModel(job).price(enumerate_candidates(job, load_space()).candidates)
        return billed(bill).identity

    own = identity(small_job)
    dearer = tuple(replace(o, usd_per_hour=2 * o.usd_per_hour) for o in small_job.offers)
    assert identity(replace(small_job, rows=small_job.rows * 2)) != own
    assert identity(replace(small_job, offers=dearer)) == own


def test_the_cheapest_probe_that_decides_between_explanations(tight_job: Job) -> None:
    """A slow disk or slow computing: only a probe that measures both parts tells them apart."""
    candidates = enumerate_candidates(tight_job, load_space()).candidates
    offer = tight_job.offers[0]
    host = replace(offer.host, checkpoint_write_bytes_per_s=1e6)
    slow_disk = replace(tight_job, offers=(replace(offer, host=host),))
    padded = replace(tight_job, padding="max_length")

    def under(job: Job) -> BilledCandidates:
        """The same configurations on the job's own offer."""
        levels = {**candidates.levels, OFFER: job.offers}
        return billed(CostModel(job).price(Candidates(levels, candidates.codes)))

    stated = under(tight_job)
    explanations = {"disk": under(slow_disk), "padding": under(padded), "as stated": stated}
    cost = np.linspace(2.0, 1.0, len(candidates))
    decided = deciding_probe(explanations, cost, explanations["as stated"].bill.feasible)
    assert not decided.together
    assert explanations["as stated"].bill.feasible[decided.index]
    shows = decided.shows
    assert shows["disk"]["save"] > 5 * shows["as stated"]["save"]
    assert shows["padding"]["compute"] > 1.05 * shows["as stated"]["compute"]
    same = {"one": under(tight_job), "two": under(tight_job)}
    assert deciding_probe(same, cost) is None
