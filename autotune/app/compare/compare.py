"""Which machine: the best config of every offer, side by side, priced exactly as `tune` does.

Nothing is computed here that `tune` does not compute: each row is what `tune` would recommend if
its offer were the only one. Over variants that differ in their rows: how the bill grows with them.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.app.compare.spot import spot_terms
from autotune.app.tune.priced import check_choices, price
from autotune.app.tune.tracing import choose_traced
from autotune.app.whatif.explain import ROUGH
from autotune.app.whatif.levers import opened_bills
from autotune.app.whatif.unknown_lengths import on_short_rows
from autotune.claims import job_contradictions
from autotune.cost.outputs import reusing_tables
from autotune.domain.answer.comparison import (
    Compared,
    Comparison,
    Comparisons,
    NotFitting,
    OneDevice,
    Scaling,
    Split,
)
from autotune.domain.answer.limits import odds, worst_excess
from autotune.domain.answer.tiebreak import Tiebreak
from autotune.domain.errors import LIMIT_MISSED, NOTHING_FEASIBLE
from autotune.domain.units import HOUR_S, format_bytes
from autotune.frozen import dataclass
from autotune.search import alternatives, selection
from autotune.search.alternatives import bill_of_offer
from autotune.space.rules import BUFFERS_TOO_LARGE, least_buffers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from autotune.app.tune.priced import Priced
    from autotune.cost.bill import Bill
    from autotune.domain.device import Offer
    from autotune.domain.job import Job, NamedJob
    from autotune.domain.outcome import Estimated
    from autotune.search.selection import Contender, Objective, Selection


Machine = tuple[str, int, bool]
UNLIKE = 3.0  # times as fast: more than disks of one kind differ
_DISK = "checkpoint_write_bytes_per_s"

Point = tuple[Comparison, Compared]  # a size of the data and a machine


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """How to compare. fidelity: formula, or auto and trace as `tune` has them (slower)."""

    space: str | None = None
    objective: Objective = "cost"
    fidelity: str = "formula"


@reusing_tables()
def compare(
    jobs: Sequence[NamedJob],
    options: CompareOptions | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Comparisons:
    """A row for each offer of each job. Raises InputError for bad input."""
    begun = time.perf_counter()
    options = options or CompareOptions()
    check_choices(objective=options.objective, fidelity=options.fidelity)
    parts: list[Comparison] = []
    for named in jobs:
        progress(f"comparing {named.variant or named.job.name}")
        part, priced = _compare_one(named.variant, named.job, options, progress)
        if not parts:  # the file is the same for all
            wrong = job_contradictions(named.job, priced.calibration)
            part = replace(part, contradictions=wrong)
        parts.append(part)
    found = tuple(parts)
    wall_s = time.perf_counter() - begun
    return Comparisons(found, scaling_of(found), wall_s, options.fidelity)


def _compare_one(
    variant: str, job: Job, options: CompareOptions, progress: Callable[[str], None]
) -> tuple[Comparison, Priced]:
    """The offers, and one device of each kind beside them: does sharding win anything?"""
    wide = replace(job, offers=(*job.offers, *_alone(job)))
    priced = price(wide, options.space, progress)
    warnings = [*priced.warnings, *_unlike_hosts(job)]
    one_device: dict[Machine, OneDevice] = {}
    rows: list[Compared] = []
    infeasible: list[NotFitting] = []
    bills: dict[Offer, Bill] = {}
    contenders: dict[Offer, Contender] = {}
    question = priced.job, priced.space
    opened = opened_bills(question, priced.bill, priced.calibration, len(job.offers))
    for number, offer in enumerate(wide.offers):
        bill = bill_of_offer(priced.bill, number)
        chosen = selection.best_index(bill, options.objective, job.limits)
        if offer.count == 1:
            one_device.setdefault(_machine(offer), _one_device(bill, chosen))
        if number >= len(job.offers):
            continue
        if number in opened:
            bill = opened[number]
            chosen = selection.best_index(bill, options.objective, job.limits)
        if chosen.index is None:
            infeasible.append(_not_fitting(bill, priced, number))
            continue
        chosen, tracing = choose_traced(
            bill, chosen, options.objective, options.fidelity, None, progress
        )
        warnings += [note for note in tracing.notes if note not in warnings]
        if chosen.index is None or chosen.optimum is None:
            infeasible.append(NotFitting(offer, "nothing fits once traced", "memory"))
            continue
        row = tracing.row(chosen.index)
        if number in opened:
            row = replace(row, caution=row.caution * ROUGH)
        bills[row.offer] = bill
        contenders[row.offer] = selection.contender(
            bill, chosen.index, chosen.optimum, options.objective
        )
        rows.append(_compared(bill, row, options.objective))
    rows = [_with_one_device(row, one_device) for row in rows]
    short = on_short_rows(job, priced.calibration, [found.row for found in rows])
    rows = [replace(row, short_rows=end) for row, end in zip(rows, short, strict=True)]
    resorts = {wide.offers[number] for number in opened}
    ranked = _ranked(job, priced, rows, bills, options.objective, resorts)
    ranked = _tie_broken(ranked, contenders, options.objective, resorts)
    warned = tuple(dict.fromkeys(warnings))
    found = replace(ranked, variant=variant, infeasible=tuple(infeasible), warnings=warned)
    return found, priced


def _unlike_hosts(job: Job) -> list[str]:
    """A stated disk beside assumed ones: part of the difference between machines is the disk's."""
    known = [o for o in job.offers if _DISK not in o.host.assumed]
    assumed = [o for o in job.offers if _DISK in o.host.assumed]
    if not known or not assumed:
        return []
    slow = min(o.host.checkpoint_write_bytes_per_s for o in known)
    fast = max(o.host.checkpoint_write_bytes_per_s for o in assumed)
    if fast < UNLIKE * slow:
        return []
    names = ", ".join(dict.fromkeys(o.label for o in known))
    note = (
        f"checkpoints are written at {format_bytes(slow)}/s on {names}, as stated, and at an "
        f"assumed {format_bytes(fast)}/s elsewhere: state hardware.host.checkpoint_write of each "
        "to compare like with like"
    )
    return [note]


def _machine(offer: Offer) -> Machine:
    return offer.device.name, 1, offer.spot


def _alone(job: Job) -> Iterator[Offer]:
    """One device of every kind that is offered only in several, at its share of the price."""
    seen = {_machine(offer) for offer in job.offers if offer.count == 1}
    for offer in job.offers:
        if _machine(offer) not in seen:
            seen.add(_machine(offer))
            share = offer.usd_per_hour / offer.count
            yield replace(
                offer, count=1, network=None, usd_per_hour=share, price_as_of=None,
                price_age_days=None, price_scaled_from=0,
            )  # fmt: skip


def _one_device(bill: Bill, chosen: Selection) -> OneDevice:
    if chosen.index is not None:
        row = bill.estimate(chosen.index)
        return OneDevice(row, row.memory_bytes.total, row.usable_bytes)
    near = alternatives.nearest_misses(bill, 1)
    if not near:
        return OneDevice(None, 0.0, 0.0)
    miss = alternatives.as_infeasible(bill, near[0])
    return OneDevice(None, miss.required_bytes, miss.available_bytes)


def _not_fitting(bill: Bill, priced: Priced, number: int) -> NotFitting:
    offer = bill.job.offers[0]
    near = alternatives.nearest_misses(bill, 1)
    if near:
        miss = alternatives.as_infeasible(bill, near[0])
        short = miss.short_of
        return NotFitting(offer, short, short, miss.required_bytes, miss.available_bytes)
    reasons = priced.found.by_offer[number]
    last = list(reasons)[-1] if reasons else "nothing is valid here"  # the rule that left none
    if last != BUFFERS_TOO_LARGE:
        return NotFitting(offer, last)
    needed, available, short = least_buffers(priced.job, offer)
    return NotFitting(offer, last, short, needed, available)


def _compared(bill: Bill, row: Estimated, objective: Objective) -> Compared:
    session_s = bill.job.limits.max_session_s
    sessions = math.ceil(row.duration_s.p50 / session_s) if session_s else 1
    return Compared(
        row=row,
        limits=odds(bill.job.limits, row.duration_s, row.cost_usd),
        sessions=max(sessions, 1),
        splits=tuple(_splits(bill, objective)) if row.offer.count > 1 else (),
    )


def _splits(bill: Bill, objective: Objective) -> Iterator[Split]:
    """The best config of each way to share the work among the devices, soonest first."""
    codes = bill.candidates.codes["sharding"]
    found = []
    for code, word in enumerate(bill.candidates.levels["sharding"]):
        among = [int(i) for i in np.flatnonzero(codes == code)]
        if among:
            index = selection.best_index(bill, objective, bill.job.limits, among=among).index
            found.append(Split(word, bill.estimate(index) if index is not None else None))
    return iter(sorted(found, key=lambda s: s.row.duration_s.p50 if s.row else math.inf))


def _with_one_device(found: Compared, alone: dict[Machine, OneDevice]) -> Compared:
    if found.row.offer.count == 1:
        return found
    return replace(found, one_device=alone.get(_machine(found.row.offer)))


def _ranked(
    job: Job,
    priced: Priced,
    rows: list[Compared],
    bills: Mapping[Offer, Bill],
    objective: Objective,
    resorts: set[Offer],
) -> Comparison:
    """The rows in order, with what each is to the others. bills: the candidates of each offer.

    resorts: offers on which it fits only with a knob that `tune` opens where nothing else fits, so
    that they do not lead while another one holds the job.
    """
    rows = sorted(rows, key=lambda found: found.order("cost"))
    rows = [_placed(row, rows) for row in rows]
    rows = spot_terms(rows, bills, priced.calibration, objective)
    within = [row for row in rows if not row.misses]
    leads = min(
        within or rows,
        key=lambda found: (
            max(worst_excess(found.limits), 0.0),
            found.row.offer in resorts,
            *_at_worst(found, objective),
        ),
        default=None,
    )
    return Comparison(
        variant="",
        job=job,
        rows=tuple(rows),
        infeasible=(),
        cheapest=rows[0] if rows else None,
        fastest=min(rows, key=lambda found: found.order("time"), default=None),
        within=leads if within else None,
        leads=leads,
        may_be_better=_expected_better(within or rows, leads, objective),
        tie=any(row.tie for row in rows[1:]),
        priced=len(priced.bill),
        space_size=priced.found.space_size,
    )


def _expected_better(
    rows: Sequence[Compared], leads: Compared | None, objective: Objective
) -> tuple[Compared, ...]:
    """Those that nobody measured and that are expected to beat what leads, the best first."""
    if leads is None:
        return ()
    least, *_ = leads.order(objective)
    better = [row for row in rows if row.row.caution > 1.0 and row.order(objective)[0] < least]
    return tuple(sorted(better, key=lambda row: row.order(objective)))


def _tie_broken(
    found: Comparison,
    contenders: Mapping[Offer, Contender],
    objective: Objective,
    resorts: set[Offer],
) -> Comparison:
    """With what leads after a tiebreak between machines that are alike in all that comes first."""
    leads = found.leads
    if leads is None or found.within is None:
        return found
    last = leads.row.offer in resorts
    rows = [r for r in found.rows if not r.misses and (r.row.offer in resorts) == last]
    place = next(n for n, row in enumerate(rows) if row is leads)
    taken = rows[selection.tiebreak([contenders[r.row.offer] for r in rows], place)]
    if taken is leads:
        return found
    row = leads.row
    return replace(
        found,
        leads=taken,
        within=taken,
        tiebreak=Tiebreak.of(row.offer, objective, row.duration_s, row.cost_usd),
        may_be_better=_expected_better(rows, taken, objective),
    )


def _at_worst(found: Compared, objective: Objective) -> tuple[float, float, str]:
    """What decides who leads: the figures at the slow end of what nobody measured, as in `tune`."""
    first, second, label = found.order(objective)
    return first * found.row.caution, second * found.row.caution, label


def _placed(found: Compared, ordered: Sequence[Compared]) -> Compared:
    """Tie, overlap and flip price of one row against the cheapest of the ordered rows."""
    least, row = ordered[0].row, found.row
    hours = row.duration_s.p50 / HOUR_S
    if found is ordered[0]:
        rival = ordered[1].row.cost_usd.p50 if len(ordered) > 1 else 0.0
    else:
        rival = least.cost_usd.p50
    free = least.cost_usd.p50 <= 0
    near = row.duration_s.p50 <= least.duration_s.p50 * (1 + selection.TIE)
    tied = row.cost_usd.p50 <= least.cost_usd.p50 * (1 + selection.TIE) and (near or not free)
    return replace(
        found,
        tie=tied and len(ordered) > 1 and found is not ordered[0],
        could_be_cheapest=found is ordered[0]
        or (row.cost_usd.p10 < least.cost_usd.p50 and not _same_devices(row, least)),
        flip_usd_per_hour=rival / hours if rival > 0 and hours > 0 else None,
    )


def _same_devices(one: Estimated, other: Estimated) -> bool:
    """On other terms alone: what the model errs by on one it errs by on the other."""
    same = (one.offer.device, one.offer.count) == (other.offer.device, other.offer.count)
    return same and one.offer.network == other.offer.network


def exit_status(found: Comparisons) -> int:
    """As `tune`: 0 an answer, 3 nothing feasible, 4 a limit is missed on every machine."""
    if not any(part.rows for part in found.parts):
        return NOTHING_FEASIBLE
    by_variant: dict[str, bool] = defaultdict(bool)
    for part in found.parts:
        by_variant[part.variant] |= part.within is not None
    return 0 if all(by_variant.values()) else LIMIT_MISSED


def scaling_of(parts: Sequence[Comparison]) -> tuple[Scaling, ...]:
    """A line for each offer on which two or more sizes of one job have a row."""
    groups: dict[tuple[Any, ...], list[Comparison]] = {}
    for part in parts:
        groups.setdefault(_all_but_rows(part.job), []).append(part)
    several = [group for group in groups.values() if len({p.job.rows for p in group}) > 1]
    return tuple(
        Scaling.through([(part.job.rows, row) for part, row in points], _label(several, group))
        for group in several
        for points in _by_offer(group)
        if len({part.job.rows for part, _ in points}) > 1
    )


def _all_but_rows(job: Job) -> tuple[Any, ...]:
    return (
        job.model.name, job.method, job.max_length, job.lengths.quantiles, job.padding, job.epochs,
        job.global_batch_size,
    )  # fmt: skip


def _label(groups: Sequence[Sequence[Comparison]], group: Sequence[Comparison]) -> str:
    """What tells a group of variants from the others; empty where there is only one."""
    if len(groups) == 1:
        return ""
    shared = set.intersection(*({*part.variant.split(", ")} for part in group))
    return ", ".join(word for word in group[0].variant.split(", ") if word in shared)


def _by_offer(group: Sequence[Comparison]) -> Iterable[list[Point]]:
    found: dict[Offer, list[Point]] = {}
    for part in group:
        for row in part.rows:
            found.setdefault(row.row.offer, []).append((part, row))
    return found.values()
