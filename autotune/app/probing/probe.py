"""`tune --score probe`: candidates are run, one after another, and the best that ran is the answer.

The study proposes in the calibrated sampler's order and stops when another probe is not worth its
price; every finished probe is on the disk before the next one starts. The pick, the best by what
all probes say together, is run once more in a fresh process, at full depth where it can be held.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.app.probing.figures import (
    ProbeProgress,
    aside_s,
    calm_s,
    check_ending,
    figures_of,
    is_measurement,
    keys_searched,
    late,
    noise_of,
    pace_of,
    parts_of,
    probe_line,
    told_by_a_worker,
)
from autotune.app.probing.measured_bill import MeasuredRow, measured_row, row_of_runs
from autotune.app.probing.plan import (
    Plan,
    ProbeOptions,
    candidates_of,
    plan_probe,
    without_checkpoint,
)
from autotune.app.probing.several_runs import (
    HOPELESS,
    doubted,
    in_vain,
    looks_of,
    merged,
    until_it_fits,
)
from autotune.app.runs.folder import ANSWER_FILE
from autotune.catalog.files import home_dir
from autotune.domain.candidates import OFFER
from autotune.domain.units import HOUR_S, format_seconds
from autotune.probe import device as devices
from autotune.probe.memo import Memo, Unsupported
from autotune.probe.outcomes import INFEASIBLE, INTERRUPTED, LOGS_FOLDER
from autotune.probe.record import PROBES_FILE, ProbeRecord
from autotune.probe.runner import Place
from autotune.probe.session import CONFIRM, Session
from autotune.probe.two_depth import run_two
from autotune.search.measured.measurer import Scored, StopSearch
from autotune.search.posterior.stopping import ProbeBudget
from autotune.search.selection import score_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from autotune.cost.bill import Bill
    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated
    from autotune.probe.device import LocalDevice
    from autotune.search.selection import Objective

PROBING_FOLDER = "probing"  # of a run, or of a worker: what its probes need while they run
MOST_BROKEN = 3  # probes in a row that end in neither a measurement nor an out-of-memory


class Prober:
    """Measures candidates of one bill on one device."""

    def __init__(
        self, job: Job, bill: Bill, local: LocalDevice, options: ProbeOptions,
        objective: Objective, folder: Path, announce: Callable[[str], None],
    ) -> None:  # fmt: skip
        """folder: the run's own; its probes.jsonl is the record."""
        self.job, self.bill, self.options, self.announce = job, bill, options, announce
        self.score, self.allowed = score_name(bill, objective), options.allowed  # as a Measurer
        shared = home_dir() / PROBES_FILE if options.reuse else None
        self.fingerprint = devices.fingerprint(local)
        known = "" if local.elsewhere else self.fingerprint
        self.memo = Memo(folder / PROBES_FILE, shared, known)
        place = Place(local, folder / PROBING_FOLDER, options.timeout_s, logs=folder / LOGS_FOLDER,
                      meeting=options.meeting)  # fmt: skip
        place = replace(place, worker=options.worker or place.worker)
        self.runner = (options.runner or Session)(place)
        self.unsupported = Unsupported(self.memo.records)
        self.rows: dict[int, MeasuredRow] = {}
        self.broken_in_a_row = 0
        # Of an answer that is there: the machine may be quieter now than it was for that.
        self._before = len(self.own) if (folder / ANSWER_FILE).exists() else 0
        self.leads = False  # over workers: what they measured is told, and kept in this record
        self._made: list[ProbeRecord] = []
        self._pending: tuple[int, float] = (0, 0.0)  # at peers: configurations and seconds
        self.progress = ProbeProgress(options.most, options.status)
        self.runner.on_phase = self.progress.on_phase
        self.offers = len(np.unique(bill.candidates.codes[OFFER]))
        for index in {i for record in self.memo.records for i in candidates_of(bill, record)}:
            self._refresh(index)

    @property
    def own(self) -> list[ProbeRecord]:
        """Probes of this run, whenever they were made."""
        return [record for record in self.memo.records if not record.reused]

    @property
    def spent_s(self) -> float:
        """[s] of probing in this run, with what peers are expected to take now."""
        return sum(record.wall_s for record in self.own) + self._pending[1]

    @property
    def searched(self) -> int:
        """Configurations that this run has probed."""
        return len(keys_searched(self.own))

    def measure(self, index: int) -> Scored:
        """Run a candidate, or answer from earlier runs. Raises StopSearch and Interrupted."""
        predicted = self.bill.estimate(index)
        reason = self.unsupported.reason(predicted.config)
        if reason:
            return Scored(None, {}, fits=False, reason=reason)
        plan = self._plan(predicted)
        known = self.known(plan.key)
        record = known[0] if known else self.memo.find(plan.key)
        if record is None:
            if enough := self.stop_reason():
                raise StopSearch(enough)
            record = self._run(plan, predicted, "search")
        elif not known:
            self._keep(record)
        self._tell(index, record, predicted)

        def again(role: str, why: str = "") -> ProbeRecord:
            found = self._run(plan, predicted, role, why)
            self._tell(index, found, predicted)
            return found

        if not plan.two_depths:  # else no run came near the limit
            record = until_it_fits(record, self._searching(plan.key), lambda: again("repeat"))
        return self._scored(index, predicted, self._believable(plan, record, again))

    def _keep(self, record: ProbeRecord) -> None:
        self.memo.add(record)
        self._made.append(record)

    def made(self) -> list[dict[str, Any]]:
        """What was recorded since the last call, for workers that cannot read this disk."""
        found, self._made = self._made, []
        return [asdict(record) for record in found]

    def adopt(self, made: Sequence[dict[str, Any]]) -> None:
        """What another worker recorded. Raises InputError for what is no record of a probe."""
        for data in made:
            self.take(told_by_a_worker(data))

    def take(self, record: ProbeRecord) -> None:
        """Another worker's probe counts as one of this run."""
        if not self.memo.adopt(record, keep=self.leads):
            return
        self.unsupported.learn(record)
        found = candidates_of(self.bill, record)
        for index in found:
            self._refresh(index)
        if self.leads and found:
            self._tell(found[0], record, self.bill.estimate(found[0]))

    def count_pending(self, candidates: Sequence[int]) -> None:
        """Peers probe these now: of what may be probed, and spent, that much is taken."""
        plans = [self._plan(self.bill.estimate(index)) for index in candidates]
        new = {plan.key for plan in plans if not self.known(plan.key)}
        self._pending = 0, 0.0
        self._pending = len(new), sum(map(self._expected_s, plans))

    def stop_reason(self) -> str:
        """Why no further configuration may be probed; empty while one may."""
        if self.searched + self._pending[0] >= self.options.most:
            return f"{self.options.most} configurations were probed, as many as allowed"
        if in_vain(self.own[self._before :], HOPELESS):
            return f"other programs disturbed the last {HOPELESS} probes: more would not help"
        return ""

    def _believable(
        self, plan: Plan, record: ProbeRecord, again: Callable[[str, str], ProbeRecord]
    ) -> ProbeRecord:
        """Repeat a run that others disturbed, or that is further off than the model errs.

        All its runs as one record; the given one, where none of them measured anything.
        """
        others = [row.record for row in self.rows.values() if row.record.key != plan.key]
        others = [other for other in others if not other.disturbed]
        while True:
            runs = self._searching(plan.key)
            ran = [r for r in runs if r.ok and is_measurement(r)]
            if not record.ok or not ran:
                return record
            why = "" if runs[-1].fits is None else doubted(ran, others)
            vain = ran[-1].disturbed and in_vain(self.own[self._before :])
            if why and not vain and self._affords(plan):
                with contextlib.suppress(StopSearch):
                    again("repeat", why)
                    continue
            return merged(ran)

    def _affords(self, plan: Plan) -> bool:
        """Whether a repeat leaves enough of the budget for running the pick once more."""
        needed = self._expected_s(plan) + self._aside_s
        return self.spent_s + needed <= self.options.seconds

    @property
    def _aside_s(self) -> float:
        """[s] that are kept for running the pick once more."""
        return aside_s(self.own, self.pace, serving=self.runner.serving)

    def _expected_s(self, plan: Plan, role: str = "search") -> float:
        """[s] a probe is expected to take now, at the pace of those so far."""
        return plan.seconds(first=not self.runner.serving or role == CONFIRM) * self.pace

    def again(self, index: int, told: Sequence[str] = ()) -> Scored:
        """Run a candidate once more, in a fresh process, at full depth where it can be held.

        told: the probes of which the search has heard so far, empty for one that it does not name.
        Another that was recorded, and of which a killed search never heard, is the answer.
        """
        predicted, ran = self.bill.estimate(index), self.rows.get(index)
        # Whether the device can hold it, by what was measured of it.
        fits = ran is not None and ran.row.memory_bytes.total <= self._limit(ran.row)
        plan = self._plan(predicted, full=fits, known_to_fit=fits)
        known = [record for record in self.known(plan.key) if record.role == CONFIRM]
        untold = [record for record in known if record.digest not in told][told.count("") :]
        record = untold[0] if untold else self._run(plan, predicted, CONFIRM)
        self._tell(index, record, predicted)
        return replace(self._scored(index, predicted, record), probe=record.digest)

    def budget(self, index: int) -> ProbeBudget:
        """What probing a candidate costs, and what is left; the pick's second run is put aside."""
        predicted = self.bill.estimate(index)
        plan = self._plan(predicted)
        free = bool(self.unsupported.reason(predicted.config)) or bool(
            self.known(plan.key) or self.memo.find(plan.key)
        )
        next_s = 0.0 if free else self._expected_s(plan)
        per_hour = predicted.offer.usd_per_hour
        scale = per_hour / HOUR_S if self.score == "cost_usd" else 1.0
        return ProbeBudget(
            next_s * scale, self.spent_s * scale, self.options.seconds * scale,
            "usd" if self.score == "cost_usd" else "s", free=per_hour == 0,
            aside=self._aside_s * scale, asked_s=self.options.seconds,
            last=self.searched + self._pending[0] + 1 >= self.options.most,
        )  # fmt: skip

    @property
    def pace(self) -> float:
        """Seconds of a probe over what was expected, so far."""
        return pace_of(self.own)

    def _plan(
        self, predicted: Estimated, *, full: bool = False, known_to_fit: bool = False
    ) -> Plan:
        row = replace(predicted, usable_bytes=self._limit(predicted))
        plan = plan_probe(self.job, row, self.options.effort, full=full, known_to_fit=known_to_fit)
        config, offer = predicted.config, predicted.offer
        if self.memo.part("checkpoint", "checkpoint", config, offer) is not None:
            return without_checkpoint(plan)
        return plan

    def _limit(self, row: Estimated) -> float:
        """[bytes] that the device at hand can hold; the row's may be another machine's."""
        held = self.options.held_bytes
        return row.usable_bytes if held is None else held

    def key_of(self, index: int) -> str:
        """By which the probes of a candidate are recorded."""
        return self._plan(self.bill.estimate(index)).key

    def known(self, key: str) -> list[ProbeRecord]:
        """This run's records of a probe; one that was interrupted says nothing."""
        return [r for r in self.memo.of_this_run(key) if r.status != INTERRUPTED]

    def _searching(self, key: str) -> list[ProbeRecord]:
        """Those of them that the search made, and not those of the pick at its end."""
        return [record for record in self.known(key) if record.role != CONFIRM]

    def _run(self, plan: Plan, predicted: Estimated, role: str, why: str = "") -> ProbeRecord:
        if self.broken_in_a_row >= MOST_BROKEN:
            msg = f"the last {MOST_BROKEN} probes broke"
            raise StopSearch(msg)
        expected_s = self._expected_s(plan, role)
        if self.spent_s + (expected_s if self.own else 0.0) > self.options.seconds:
            msg = f"the probe budget of {format_seconds(self.options.seconds)} was spent"
            raise StopSearch(msg, budget=True)
        figures = figures_of(predicted, plan.requests[-1], expected_s / self.pace)
        calm = calm_s(self.own, self.options.seconds, self.options.effort.calm_s)
        self.progress.begins(
            self._number(plan.key), len(self.known(plan.key)) + 1, why,
            expected_s, self.options.seconds - self.spent_s,
        )  # fmt: skip
        config = predicted.config.as_record()

        def run(request: dict[str, Any]) -> ProbeRecord:
            looks = {**request.get("looks", {}), "calm_s": calm}
            asked = {**request, "looks": looks}
            return self.runner.run(asked, config, predicted=figures, role=role)

        if plan.two_depths:
            record = run_two(self.job, run, (plan.requests[0], plan.requests[1]))
        else:
            record = run(plan.requests[0])
        record = replace(record, key=plan.key, role=role, predicted=figures)
        self._keep(record)
        self.unsupported.learn(record)
        self.broken_in_a_row = 0 if record.fits is not None else self.broken_in_a_row + 1
        check_ending(record, finished=sum(r.status != INTERRUPTED for r in self.own))
        return record

    def _scored(self, index: int, predicted: Estimated, record: ProbeRecord) -> Scored:
        found = self._refresh(index)
        if record.status in INFEASIBLE:
            over = max(record.needed_bytes / predicted.usable_bytes - 1.0, 0.01)
            worst = float(max(predicted.duration_s.p50, predicted.cost_usd.p50))
            return Scored(worst, {"memory": over, "disk": 0.0}, fits=False, reason=record.status,
                          oom=True)  # fmt: skip
        if not record.ok or not is_measurement(record):
            return Scored(None, {}, fits=False, reason=f"{record.status}: {record.message}")
        row = measured_row(self.job, predicted, record, self.memo)
        ran = [r for r in self._searching(record.key) if r.ok and is_measurement(r)]
        looks, odd = looks_of([record] if record.role == CONFIRM else ran)
        over = row.memory_bytes.total / row.usable_bytes - 1.0
        fits = found is not None and found.fits and over <= 0
        return Scored(
            self._value(row), {"memory": over, "disk": 0.0, **late(self.job, row)}, fits=fits,
            reason="fits" if fits else "memory", measured=parts_of(record, row),
            noise=noise_of(record), disturbed=bool(record.disturbed),
            looks=looks, unexplained=odd,
        )  # fmt: skip

    def _refresh(self, index: int) -> MeasuredRow | None:
        """The row of a candidate from all its runs so far."""
        predicted = self.bill.estimate(index)
        plans = (self._plan(predicted), self._plan(predicted, full=True, known_to_fit=True))
        runs = [r for key in dict.fromkeys(p.key for p in plans) for r in self.known(key)]
        found = row_of_runs(index, self.job, predicted, runs, self.memo)
        if found is None:
            self.rows.pop(index, None)
        else:
            self.rows[index] = found
        return found

    def _value(self, row: Estimated) -> float:
        """What is minimised: dollars or seconds."""
        return row.cost_usd.p50 if self.score == "cost_usd" else row.duration_s.p50

    def ranked(self, pick: int | None = None) -> list[MeasuredRow]:
        """Candidates that ran and fit, the pick first and then by their bills.

        Those that others disturbed come last: what they would take is not known.
        """
        fitting = [found for found in self.rows.values() if found.fits]
        return sorted(
            fitting,
            key=lambda f: (f.index != pick, bool(f.record.disturbed), self._value(f.row)),
        )

    def _number(self, key: str) -> int:
        """Which of the configurations that may be probed this one is."""
        keys = keys_searched(self.own)
        return keys.index(key) + 1 if key in keys else len(keys) + 1

    def _tell(self, index: int, record: ProbeRecord, predicted: Estimated) -> None:
        """One line of a finished probe, and of the best that is known with it."""
        self._refresh(index)
        left_s = max(self.options.seconds - sum(r.wall_s for r in self.own), 0.0)
        best = next((ranked.row for ranked in self.ranked()), None)
        runs = self.known(record.key)
        run = next((n for n, r in enumerate(runs, 1) if r is record), 1)
        if any(r.reused for r in runs):
            name = "probe of an earlier study" + (f", run {run}" if run > 1 else "")
        else:
            name = self.progress.name(self._number(record.key), run)
        offer = self.offers > 1
        self.announce(probe_line(name, record, predicted, best, left_s, offer=offer))
