"""`tune --score probe`: candidates are run, one after another, and the best that ran is the answer.

The study proposes in the calibrated sampler's order; every finished probe is on the disk before the
next one starts. The winner is run once more in a fresh process.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from autotune.app.measured_bill import MeasuredRow, measured_row
from autotune.catalog.home import home_dir
from autotune.domain.errors import InputError, Interrupted, NoLocalDevice
from autotune.domain.units import format_bytes, format_seconds, format_usd
from autotune.probe import device as devices
from autotune.probe.memo import Memo
from autotune.probe.outcomes import INFEASIBLE, INTERRUPTED
from autotune.probe.record import PROBES_FILE
from autotune.probe.request import Effort, request_for
from autotune.probe.runner import Place, Runner
from autotune.probe.unsupported import Unsupported
from autotune.search.measured import Enough, Scored, explore_measured
from autotune.search.selection import score_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from autotune.cost.model import Bill
    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated
    from autotune.probe.device import LocalDevice
    from autotune.probe.record import ProbeRecord
    from autotune.search.selection import Objective
    from autotune.search.study import Exploration

DEFAULT_PROBES, DEFAULT_BUDGET_S = 12, 600.0
IMPORT_S, TRAINER_S = 10.0, 2.0  # importing torch, transformers and peft; what surrounds the steps
MOST_BROKEN = 3  # probes in a row that end in neither a measurement nor an out-of-memory
CLOSE = 0.03  # relative: a runner-up this near is run again as well


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """How much may be probed, and where."""

    probes: int | None = None
    budget_s: float | None = None
    on: str | None = None
    effort: Effort = field(default_factory=Effort)
    timeout_s: float = 300.0
    worker: tuple[str, ...] | None = None  # tests put a fake one here
    reuse: bool = True

    @property
    def most(self) -> int:
        """Configurations to probe at most."""
        return self.probes or DEFAULT_PROBES

    @property
    def seconds(self) -> float:
        """[s] of probing, after which no further probe starts."""
        return DEFAULT_BUDGET_S if self.budget_s is None else self.budget_s


@dataclass(frozen=True, slots=True)
class Probed:
    """What probing found. rows: every candidate that ran and fits, best first."""

    bill: Bill
    explored: Exploration
    rows: tuple[MeasuredRow, ...]
    records: tuple[ProbeRecord, ...]
    wall_s: float
    notes: tuple[str, ...]


def expected_seconds(row: Estimated, effort: Effort) -> float:
    """[s] a probe of that candidate is expected to take."""
    steps = effort.longest + 6 + effort.measured
    training = min(steps * row.step_time_s, effort.patience_s + effort.seconds)
    once = row.time_s.compile + 2 * row.time_s.checkpoint / max(row.checkpoints, 1)
    return IMPORT_S + TRAINER_S + training + once


class Prober:
    """Measures candidates of one bill on one device."""

    def __init__(
        self, job: Job, bill: Bill, local: LocalDevice, options: ProbeOptions,
        objective: Objective, folder: Path, announce: Callable[[str], None],
    ) -> None:  # fmt: skip
        """folder: the run's own; its probes.jsonl is the record."""
        self.job, self.bill, self.options, self.announce = job, bill, options, announce
        self.score = score_name(bill, objective)
        shared = home_dir() / PROBES_FILE if options.reuse else None
        fingerprint = devices.fingerprint(local)
        self.memo = Memo(folder / PROBES_FILE, shared, fingerprint)
        place = Place(local, folder / "probing", options.timeout_s)
        if options.worker is not None:
            place = replace(place, worker=options.worker)
        self.runner = Runner(place)
        self.unsupported = Unsupported(self.memo.records)
        self.spent_s = sum(record.wall_s for record in self.memo.records if not record.reused)
        self.rows: dict[int, MeasuredRow] = {}
        self.probed = 0
        self.broken_in_a_row = 0

    def measure(self, index: int) -> Scored:
        """Run a candidate, or answer from what was run before. Raises Enough and Interrupted."""
        predicted = self.bill.estimate(index)
        config, offer = predicted.config, predicted.offer
        reason = self.unsupported.reason(config)
        if reason:
            return Scored(None, {}, fits=False, reason=reason)
        request = self._request(config, offer)
        known = self.memo.of_this_run(request["key"])
        record = known[-1] if known else None
        if record is None:
            record = self.memo.find(request["key"]) or self._run(request, predicted, "search")
            if record.reused:
                self.memo.add(record)
                self._tell(record, predicted)
        return self._scored(index, predicted, record)

    def _request(self, config: Config, offer: Offer) -> dict[str, Any]:
        """The request, without the parts that earlier probes answer."""
        effort = self.options.effort
        if self.memo.part("checkpoint", "checkpoint", config, offer) is not None:
            effort = replace(effort, checkpoint_max_bytes=0.0)
        return request_for(self.job, offer, config, effort=effort)

    def _run(self, request: dict[str, Any], predicted: Estimated, role: str) -> ProbeRecord:
        expected = expected_seconds(predicted, self.options.effort)
        if self.broken_in_a_row >= MOST_BROKEN:
            msg = f"the last {MOST_BROKEN} probes broke"
            raise Enough(msg)
        if self.spent_s + (expected if self.probed else 0.0) > self.options.seconds:
            msg = "probe budget"
            raise Enough(msg)
        figures = {
            "step_s": _probe_step(predicted, request), "memory_bytes": predicted.memory_bytes.total,
            "probe_s": expected,
        }  # fmt: skip
        config = predicted.config.as_dict()
        record = self.runner.run(request, config, predicted=figures, role=role)
        self.spent_s += record.wall_s
        self.probed += 1
        self.memo.add(record)
        self.unsupported.learn(record)
        self.broken_in_a_row = 0 if record.fits is not None else self.broken_in_a_row + 1
        if record.status == INTERRUPTED:
            msg = f"interrupted; {self.probed - 1} finished probes are kept"
            raise Interrupted(msg, "--resume goes on where it stopped")
        if record.status == "bad_data":
            raise InputError(record.message, "no configuration could train on that row")
        return record

    def _scored(self, index: int, predicted: Estimated, record: ProbeRecord) -> Scored:
        if record.status in INFEASIBLE:
            over = max(record.needed_bytes / predicted.usable_bytes - 1.0, 0.01)
            worst = float(max(predicted.duration_s.p50, predicted.cost_usd.p50))
            if not record.reused:
                self._tell(record, predicted)
            return Scored(worst, {"memory": over, "disk": 0.0}, fits=False, reason=record.status,
                          oom=True)  # fmt: skip
        if not record.ok:
            self._tell(record, predicted)
            return Scored(None, {}, fits=False, reason=f"{record.status}: {record.message}"[:300])
        row = measured_row(self.job, predicted, record, self.memo)
        found = MeasuredRow(index, record, row)
        self.rows[index] = found
        if not record.reused:
            self._tell(record, predicted)
        over = row.memory_bytes.total / row.usable_bytes - 1.0
        return Scored(
            self.value(found), {"memory": over, "disk": 0.0}, fits=found.fits,
            reason="fits" if found.fits else "memory", measured=_parts(record, row),
        )  # fmt: skip

    def value(self, found: MeasuredRow) -> float:
        """What is minimised: dollars or seconds."""
        row = found.row
        return row.cost_usd.p50 if self.score == "cost_usd" else row.duration_s.p50

    def ranked(self) -> list[MeasuredRow]:
        """Candidates that ran and fit, best first; of equals the one that is plainer."""
        fitting = [found for found in self.rows.values() if found.fits]
        return sorted(fitting, key=self._rank)

    def _rank(self, found: MeasuredRow) -> tuple[float, ...]:
        config = found.row.config
        return (
            float(f"{self.value(found):.9g}"),
            found.row.memory_bytes.total,
            float(config.compile != "off"),
            float(config.activation_checkpointing != "none"),
            float(config.num_dataloader_workers),
        )

    def confirm(self) -> list[str]:
        """Run the winner once more, and whatever is near it; narrow fits count how often they fit.

        A confirmed row rests on the mean of its probes' steps.
        """
        notes: list[str] = []
        done: set[int] = set()
        while (ranked := self.ranked()) and ranked[0].index not in done:
            best = ranked[0]
            again = [best] + [
                other for other in ranked[1:2]
                if self.value(other) <= self.value(best) * (1 + CLOSE)
            ]  # fmt: skip
            for found in again:
                if found.index in done:
                    continue
                done.add(found.index)
                try:
                    notes += self._repeat(found)
                except Enough:
                    notes.append("the probe budget ended before the winner could be confirmed")
                    return notes
        return notes

    def _repeat(self, found: MeasuredRow) -> list[str]:
        predicted = self.bill.estimate(found.index)
        request = self._request(predicted.config, predicted.offer)
        record = self._run(request, predicted, "confirm")
        runs = self.memo.of_this_run(request["key"])
        fits = [r.fits for r in runs if r.fits is not None]
        if not record.ok:
            self.rows.pop(found.index)
            self._tell(record, predicted)
            share = f"{sum(map(bool, fits))} of {len(fits)} runs fitted"
            return [f"a second run of the best configuration ended in {record.status}: {share}"]
        merged = _merged([r for r in runs if r.ok])
        row = measured_row(self.job, predicted, merged, self.memo)
        row = replace(row, fits_probability=sum(map(bool, fits)) / len(fits))
        self.rows[found.index] = MeasuredRow(found.index, merged, row)
        self._tell(record, predicted)
        return []

    def _tell(self, record: ProbeRecord, predicted: Estimated) -> None:
        """One line: what, predicted, measured, ratio, memory, best so far, budget left."""
        parts = [f"probe {len(self.memo.records)}", short(predicted.config)]
        expected = predicted.step_time_s
        if record.ok:
            step_s = record.step_s(predicted.config.gradient_accumulation_steps)
            parts.append(
                f"{format_seconds(step_s)}/step ({step_s / expected:.2f}x of "
                f"{format_seconds(expected)})"
            )
            parts.append(format_bytes(record.needed_bytes))
        else:
            parts.append(record.status)
        if record.role == "confirm":
            parts.append("again")
        if record.reused:
            parts.append("known from an earlier study")
        ranked = self.ranked()
        if ranked:
            best = ranked[0].row
            parts.append(f"best {format_seconds(best.duration_s.p50)}, "
                         f"{format_usd(best.cost_usd.p50)}")  # fmt: skip
        left_s = max(self.options.seconds - self.spent_s, 0.0)
        rate = predicted.offer.usd_per_hour / 3600.0
        parts.append(f"left {format_seconds(left_s)}, {format_usd(left_s * rate)}")
        self.announce(" | ".join(parts))


def _probe_step(predicted: Estimated, request: dict[str, Any]) -> float:
    """[s] the predicted step at the accumulation that is probed."""
    share: float = (
        request["gradient_accumulation_steps"] / predicted.config.gradient_accumulation_steps
    )
    return predicted.step_time_s * min(share, 1.0)


def short(config: Config) -> str:
    """A configuration in a few words: what a person would change."""
    words = [f"micro {config.micro_batch_size}", config.precision, config.attention]
    if config.activation_checkpointing != "none":
        words.append("checkpointing")
    if config.compile != "off":
        words.append(f"compile {config.compile}")
    words.append(f"{config.num_dataloader_workers} workers")
    return ", ".join(words)


def _parts(record: ProbeRecord, row: Estimated) -> dict[str, float]:
    """The measured parts by the names that samplers know."""
    found = {
        "compute": max(row.step_time_s - record.data_s(row.config.gradient_accumulation_steps),
                       1e-9),
        "memory": row.memory_bytes.total,
    }  # fmt: skip
    if row.config.compile != "off":
        found["compile"] = row.time_s.compile
    for entry in record.result.get("loader") or []:
        if entry["workers"] == 0:
            found["data"] = float(entry["batch_s"])
    save_s = (record.result.get("checkpoint") or {}).get("save_s")
    if save_s:
        found["save"] = float(save_s)
    return found


def _merged(records: list[ProbeRecord]) -> ProbeRecord:
    """The last record with the mean step and the largest memory of several of one request."""
    last = records[-1]
    names = ("step_s", "micro_s", "optimizer_s", "data_s")
    step = dict(last.result["step"])
    for name in names:
        step[name] = sum(float(r.result["step"][name]) for r in records) / len(records)
    largest = max(records, key=lambda r: r.needed_bytes).result["memory"]
    return replace(last, result={**last.result, "step": step, "memory": largest})


def probe_candidates(  # noqa: PLR0913 - what a probed search is, each named
    job: Job, bill: Bill, local: LocalDevice, options: ProbeOptions, *, objective: Objective,
    sampler: str, seed: int, run_dir: Path, storage: str | None, job_key: str, resume: bool,
    announce: Callable[[str], None],
) -> Probed:  # fmt: skip
    """Probe candidates of a bill whose offers all are the local device."""
    begun = time.perf_counter()
    run_dir.mkdir(parents=True, exist_ok=True)
    prober = Prober(job, bill, local, options, objective, run_dir, announce)
    _check_free(prober, local)
    explored = explore_measured(
        bill, prober.measure, objective=objective, sampler=sampler, trials=options.most,
        seed=seed, run_dir=run_dir, storage=storage, study_name=run_dir.name, job_key=job_key,
        resume=resume,
    )  # fmt: skip
    for index in explored.tried:  # trials taken over from the record
        if index not in prober.rows:
            prober.measure(index)
    notes = prober.confirm()
    if prober.memo.stale:
        notes.append(
            f"{prober.memo.stale} earlier probes are of other versions or devices: not used"
        )
    rows, records = prober.ranked(), prober.memo.records
    if not rows and not any(record.fits is False for record in records):
        last = f": {records[-1].status}, {records[-1].message[:300]}" if records else ""
        msg = f"no probe could run{last}"
        raise NoLocalDevice(msg, "`autotune doctor` checks this machine")
    return Probed(
        bill, explored, tuple(rows), tuple(records), time.perf_counter() - begun, tuple(notes)
    )


def _check_free(prober: Prober, local: LocalDevice) -> None:
    """Memory that somebody else holds is said before it is mistaken for the job's own."""
    if local.is_cpu or not local.processes:
        return
    prober.announce(
        f"{format_bytes(local.used_bytes)} of {local.name} are held by {len(local.processes)} "
        "other process(es); probes measure what is left"
    )
