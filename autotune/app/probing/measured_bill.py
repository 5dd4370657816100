"""The bill of the finished run with measured parts in place of predicted ones, here or elsewhere.

What probes on one device say about another are the components whose causes the two share.
Computing depends on the device: how far real kernels stay behind the rates carries over between
GPUs of one vendor, not between a processor and a GPU. A batch in one loader worker is work of one
host core, on any device. Saves, start-up and communication are of the disk, the network and the
links of a machine and stay the model's.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.app.probing.figures import is_measurement
from autotune.app.probing.plan import depths_of
from autotune.app.probing.several_runs import merged
from autotune.cost.constants import memory_constants
from autotune.cost.spread.memory import surest
from autotune.cost.time import checkpoint
from autotune.cost.time.evaluation import ONCE_S
from autotune.domain.candidates import OFFER
from autotune.domain.observation import BETWEEN_RUNS_SD, Calibration, value_of
from autotune.domain.outcome import (
    FEASIBLE_PROBABILITY,
    Z90,
    Measured,
    MemoryParts,
    Spread,
    TimeParts,
    bound_of,
)
from autotune.domain.units import HOUR_S
from autotune.frozen import dataclass
from autotune.probe.record import observations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.cost.bill import Bill
    from autotune.domain.device import Device, Offer
    from autotune.domain.job import Job
    from autotune.domain.observation import Observation
    from autotune.domain.outcome import Estimated
    from autotune.probe.memo import Memo
    from autotune.probe.record import ProbeRecord

MODELLED_SD = 0.3  # of the parts that no probe of a minute can measure: load, prepare, lost work
HELD_SD = 0.02  # assumption: a long run holds more or less than a probe of its longest batch


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """A candidate whose bill rests on a probe."""

    index: int
    record: ProbeRecord
    row: Estimated

    @property
    def fits(self) -> bool:
        """Whether what the device had in use stays within the limit, surely enough to offer it."""
        return self.row.feasible


def row_of_runs(
    index: int, job: Job, predicted: Estimated, runs: Sequence[ProbeRecord], memo: Memo
) -> MeasuredRow | None:
    """The row of a candidate from all its runs: mean times, largest memory, how often it fit.

    Runs at full depth count alone where there are any. None where none measured anything, or the
    last one broke.
    """
    ran = [r for r in runs if r.ok and is_measurement(r)]
    if not ran or runs[-1].fits is None:
        return None
    mean = merged([r for r in ran if not depths_of(r)] or ran)
    row = measured_row(job, predicted, mean, memo)
    fits = [bool(r.fits) for r in runs if r.fits is not None]
    share = sum(fits) / len(fits)
    if share < 1.0:
        row = replace(row, fits_probability=min(share, row.fits_probability), verdict="at_risk")
    return MeasuredRow(index, mean, row)


def measured_row(job: Job, predicted: Estimated, record: ProbeRecord, memo: Memo) -> Estimated:
    """The estimate with what the probe measured; `record` is of a probe that ran.

    Saves and evaluation batches may come from other probes whose components read the same. The
    checkpoint interval is worked out again from the measured step and save.
    """
    config, offer = predicted.config, predicted.offer
    seen = observations(record, config.gradient_accumulation_steps)
    step_s = value_of(seen, "step_time_s") or predicted.step_time_s
    wait_s = min(value_of(seen, "data_wait_s") or 0.0, step_s)
    steps = predicted.steps
    save_s = memo.part("checkpoint", "checkpoint", config, offer)
    modelled_save = predicted.time_s.checkpoint / max(predicted.checkpoints, 1)
    interval = config.checkpoint_every_steps
    if "checkpoint_every_steps" not in job.lock:
        interval = _interval(job, predicted, step_s, modelled_save if save_s is None else save_s)
    checkpoints = math.ceil(steps / interval) if steps else 0
    each = modelled_save if save_s is None else save_s
    startup = value_of(seen, "compile_s") or 0.0
    old = predicted.time_s
    train = steps * (step_s - wait_s)
    parts = TimeParts(
        load=old.load,
        prepare=old.prepare,
        compile=startup if config.compile != "off" else old.compile,
        train=train,
        data_wait=steps * wait_s,
        evaluation=_evaluation(job, predicted, memo),
        checkpoint=checkpoints * each,
        final_save=old.final_save if save_s is None else min(old.final_save, save_s),
        lost_work=old.lost_work * _ratio(interval * step_s, predicted),
    )
    spread = math.hypot(*_spreads(parts, record).values())
    grow = math.exp(Z90 * spread / max(parts.total, 1e-9))
    memory = _memory(predicted, record)
    return replace(
        predicted,
        config=config.with_knobs(checkpoint_every_steps=interval),
        basis="measured",
        **_widened(_totals(predicted, parts, grow), record, predicted.offer.usd_per_hour),
        step_time_s=step_s if steps else 0.0,
        tokens_per_s=predicted.tokens_per_s * predicted.step_time_s / step_s if steps else 0.0,
        mfu=predicted.mfu * predicted.step_time_s / step_s if steps else 0.0,
        memory_bytes=memory,
        **_verdict(predicted, memory.total),
        reserved_bytes=value_of(seen, "memory_bytes", "reserved") or 0.0,
        checkpoints=checkpoints,
        caution=1.0,
        measured=_measured(predicted, record, seen),
    )  # fmt: skip


def _totals(row: Estimated, parts: TimeParts, grow: float) -> dict[str, Any]:
    """Duration, cost and what bounds the run, as its parts have it. grow: p90 over p50."""
    duration, usd = parts.total, row.offer.usd_per_s
    return {
        "time_s": parts,
        "duration_s": Spread(duration / grow, duration, duration * grow),
        "cost_usd": Spread(duration / grow * usd, duration * usd, duration * grow * usd),
        "bound_by": bound_of(parts, row.step_bound),
    }


def _verdict(row: Estimated, held_bytes: float) -> dict[str, Any]:
    """Whether a run that held so much at its longest batch fits, and how sure that is.

    Formula: Phi(log(capacity / held) / sd), no surer than tested claims.
    Source: derived.
    """
    capacity = max(row.offer.device.memory_torch_bytes, row.usable_bytes)
    own = NormalDist().cdf(math.log(capacity / max(held_bytes, 1.0)) / HELD_SD)
    chance = min(own, surest(crowded=False, claims=memory_constants().claims))
    room = held_bytes <= row.usable_bytes and chance >= FEASIBLE_PROBABILITY
    return {"fits_probability": chance, "verdict": "fits" if room else "at_risk"}


def _widened(totals: dict[str, Any], record: ProbeRecord, usd_per_hour: float) -> dict[str, Any]:
    """The same with intervals that contain what was seen of the step, from run to run."""
    step = record.result["step"]
    seen, parts, old = step.get("seen"), totals["time_s"], totals["duration_s"]
    if not seen:
        return totals
    steps_s = parts.train + parts.data_wait
    low, high = (
        old.p50 + steps_s * (seen[end] / float(step["step_s"]) - 1.0) for end in ("low_s", "high_s")
    )
    wide = Spread(min(old.p10, low), old.p50, max(old.p90, high))
    usd = usd_per_hour / HOUR_S
    cost = Spread(wide.p10 * usd, wide.p50 * usd, wide.p90 * usd)
    return {**totals, "duration_s": wide, "cost_usd": cost}


def _spreads(parts: TimeParts, record: ProbeRecord) -> dict[str, float]:
    """[s] standard deviation of the bill: by what was measured and by what was not."""
    measured = parts.train + parts.data_wait + parts.compile + parts.checkpoint
    return {
        "measured": math.hypot(record.step_log_sd, BETWEEN_RUNS_SD) * measured,
        "modelled": MODELLED_SD * (parts.total - measured),
    }


def narrowest_measured(item: MeasuredRow) -> str:
    """What would narrow the interval of a measured row most, as words to print."""
    parts = item.row.time_s
    spreads = _spreads(parts, item.record)
    if spreads["measured"] >= spreads["modelled"]:
        return "more probes of the pick: they differ from each other"
    return UNMEASURED[max(UNMEASURED, key=lambda name: float(getattr(parts, name)))]


UNMEASURED = {
    "load": "loading: state hardware.host.download, or time a start",
    "prepare": "how fast rows are prepared: state hardware.host.cores, or time it",
    "evaluation": "the seconds of one evaluation: time one",
    "final_save": "the seconds of the last save: state hardware.host.checkpoint_write",
    "lost_work": "how often the machine is taken away: state hardware.interruptions_per_day",
}


def told_apart(row: Estimated, other: Estimated) -> bool:
    """Whether two measured rows differ by more than their 80 % intervals allow."""
    one, two = row.duration_s, other.duration_s
    return two.p10 > one.p90 or one.p10 > two.p90


def same_steps(row: Estimated, other: Estimated) -> bool:
    """Whether both run the same training steps; how often they save may differ."""
    closed = {"checkpoint_every_steps": 1, "save_total_limit": 1}
    return row.config.with_knobs(**closed) == other.config.with_knobs(**closed)


def as_measured(row: Estimated, measured: Estimated) -> Estimated:
    """A modelled row whose training steps were measured: its own saves, the others as measured."""
    parts = replace(
        measured.time_s, checkpoint=row.time_s.checkpoint, lost_work=row.time_s.lost_work
    )
    return replace(
        measured, config=row.config, checkpoints=row.checkpoints,
        **_totals(measured, parts, measured.duration_s.p90 / max(measured.duration_s.p50, 1e-9)),
    )  # fmt: skip


def _measured(predicted: Estimated, record: ProbeRecord, seen: Sequence[Observation]) -> Measured:
    return Measured(
        predicted.offer, predicted.config, value_of(seen, "step_time_s") or 0.0,
        value_of(seen, "memory_bytes", "allocated") or 0.0,
        value_of(seen, "memory_bytes", "reserved") or 0.0,
        seen[0].provenance, predicted.step_time_s, tuple(record.disturbed),
    )  # fmt: skip


def _interval(job: Job, predicted: Estimated, step_s: float, save_s: float) -> int:
    offer = predicted.offer
    rate = offer.interruptions_per_hour / HOUR_S if offer.spot else 0.0
    found = checkpoint.young_daly_interval_steps(
        step_s=np.asarray([step_s]), save_s=np.asarray([save_s]),
        steps=np.asarray([float(predicted.steps)]), interruptions_per_s=np.asarray([rate]),
        max_lost_work_s=job.limits.max_lost_work_s,
    )  # fmt: skip
    return max(int(found[0]), 1)


def _ratio(interval_s: float, predicted: Estimated) -> float:
    """How the work at risk changes: with the seconds between saves."""
    before = predicted.config.checkpoint_every_steps * predicted.step_time_s
    return interval_s / before if before > 0 else 1.0


def _evaluation(job: Job, predicted: Estimated, memo: Memo) -> float:
    """[s] all evaluations: batches of the measured kind, and the model's overhead around them."""
    batch_s = memo.part("evaluation", "evaluation", predicted.config, predicted.offer)
    plan = job.timed_evaluation
    if batch_s is None or plan is None or plan.generate_tokens:
        return predicted.time_s.evaluation
    times = plan.times(predicted.steps)
    rows = plan.rows_at_once(predicted.config.micro_batch_size) * predicted.offer.count
    return times * (math.ceil(plan.rows / rows) * batch_s + ONCE_S)


def _memory(predicted: Estimated, record: ProbeRecord) -> MemoryParts:
    """Measured totals; the shares of the parts inside what tensors take stay the model's."""
    memory, old = record.result["memory"], predicted.memory_bytes.as_dict()
    tensors = {n: v for n, v in old.items() if n not in {"context", "fragmentation"}}
    scale = float(memory["allocated_bytes"]) / max(sum(tensors.values()), 1.0)
    context = float(memory["context_bytes"])
    rest = float(memory["driver_bytes"]) - float(memory["allocated_bytes"]) - context
    return MemoryParts(
        **{name: value * scale for name, value in tensors.items()},
        context=context,
        fragmentation=max(rest, 0.0),
    )


# sd of the log of an efficiency that was measured on one machine and is applied to another:
# assumptions; the least that a transfer leaves over, whatever was measured
COMPUTE_LOG_SD, DATA_LOG_SD = 0.20, 0.35
LITTLE = 0.1  # of the run


@dataclass(frozen=True, slots=True)
class Transfer:
    """Factors by component of the cost model, and in words what was and what was not carried."""

    calibration: Calibration
    note: str


def transferred(
    rows: tuple[MeasuredRow, ...], bill: Bill, offer: Offer, whole: Bill, known: Calibration
) -> Transfer:
    """What probes of `bill`'s candidates on `offer` teach about the machines of `whole`."""
    logs: dict[str, list[float]] = {"compute": [], "data": []}
    calm = tuple(item for item in rows if not item.record.disturbed)
    for item in calm or rows:  # what others disturbed teaches only where there is nothing else
        for name, value in _log_ratios(item, bill).items():
            logs[name].append(value)
    targets = whole.candidates.levels[OFFER]
    carried, left = {}, []
    if all(_alike(offer.device, target.device) for target in targets):
        carried["compute"] = COMPUTE_LOG_SD
    else:
        names = ", ".join(sorted({target.device.name for target in targets}))
        left.append(f"computing on {offer.device.name} says nothing about {names}")
    if _prepares_little(whole):
        carried["data"] = DATA_LOG_SD
    else:
        left.append("preparing the rows takes long and was not measured")
    factors, sds, words = dict(known.factors), dict(known.log_sds), []
    for name, least in carried.items():
        if logs[name]:
            factor = math.exp(fmean(logs[name]))
            factors[name] = factor * known.factors.get(name, 1.0)
            sds[name] = math.hypot(least, _sd(logs[name]) / math.sqrt(len(logs[name])))
            words.append(f"{name} took {factor:.2f} times what was predicted")
    note = (
        f"probed on {offer.label}, which is none of the job's machines: of {len(rows)} probes, "
        f"{' and '.join(words) or 'nothing'} was applied to the job's machines"
    )
    left.append("saving, start-up, communication and memory stay the model's")
    provenance = (*known.provenance, f"{len(rows)} probes on {offer.label}")
    return Transfer(Calibration(factors, sds, provenance), "; ".join([note, *left]))


def _prepares_little(whole: Bill) -> bool:
    """Whether the data component is about batches: its factor also scales preparing the rows."""
    if not len(whole):
        return False
    prepare_s = whole.tables["data"].gather("prepare_s")
    return bool(np.median(prepare_s / whole.duration_s) <= LITTLE)


def _alike(one: Device, other: Device) -> bool:
    """Whether kernels of one library compute on both."""
    return one.vendor == other.vendor and one.is_cpu == other.is_cpu


def _log_ratios(item: MeasuredRow, bill: Bill) -> dict[str, float]:
    """log(measured / predicted) of the components of one probe."""
    config, result = item.row.config, item.record.result
    accumulation = config.gradient_accumulation_steps
    measured = {
        "compute": item.record.step_s(accumulation) - item.record.data_s(accumulation),
        "data": next(
            (float(e["batch_s"]) for e in result.get("loader") or [] if e["workers"] == 0), 0.0
        ),
    }
    micro_s = bill.at("compute", "micro_step_s", item.index)
    predicted = {
        "compute": accumulation * micro_s + bill.at("compute", "optimizer_s", item.index),
        "data": bill.at("data", "batch_s", item.index),
    }
    return {
        name: math.log(value / predicted[name])
        for name, value in measured.items()
        if value > 0 and predicted[name] > 0
    }


def _sd(values: list[float]) -> float:
    """Of one value: unknown, and taken as large as a factor of two."""
    if len(values) < 2:  # noqa: PLR2004 - one value has no spread
        return math.log(2.0)
    mean = fmean(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
