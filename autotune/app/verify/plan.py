"""What was predicted of the run that a log is of: the job, the configuration, the machine.

Also of a training that begins, of which only a run folder may be left.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from autotune.app.hardware.machines import as_devices
from autotune.app.job.evidence import with_past
from autotune.app.job.overrides import flag_of
from autotune.app.job.trainer_file import refuse_own
from autotune.app.runs import folder as runs
from autotune.app.runs.find import last_answered
from autotune.app.verify.log_match import (
    PACKED_STEPS,
    Counted,
    Plan,
    Smoke,
    check_same_job,
    differences,
    plan_of,
    told_to_stop,
)
from autotune.catalog.devices import default_host, find_device
from autotune.catalog.prices.prices import price_for
from autotune.domain.candidates import Candidate
from autotune.domain.config import Config
from autotune.domain.device import Offer
from autotune.domain.errors import InputError
from autotune.domain.outcome import MemoryParts, Spread, TimeParts, bound_of
from autotune.domain.paths import near, whole
from autotune.domain.typed.machine import machine_entry
from autotune.domain.typed.overrides import Overrides
from autotune.evidence.runs_seen import without_verified
from autotune.frozen import dataclass
from autotune.pricing import Pricing
from autotune.report.payload import row_payload
from autotune.report.phrases import offer_name
from autotune.report.recorded import recorded_payload

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job
    from autotune.domain.observation import Calibration
    from autotune.domain.outcome import Estimated
    from autotune.evidence.log.run_log import RunLog
    from autotune.report.schema import Row

UNKNOWN_PRICE = "unknown"


@dataclass(frozen=True, slots=True)
class Planned(Candidate):
    """What was predicted: the job, the configuration that the log is of, its machine."""

    run_dir: Path | None
    recorded: Estimated | None  # the row of the run's answer, where it is exactly this config
    notes: tuple[str, ...]
    smoke: Smoke | None = None  # the log's run stops after another number of steps


def load_plan(
    run: Path | None, stated: Overrides | None = None
) -> tuple[Job, Path | None, list[Plan]]:
    """The job, its run folder, and the configurations that its answer holds.

    stated: a job in one line, where it names a model; else what is set in a job file.
    """
    from autotune.report.recorded import recorded_payload

    stated = stated or Overrides()
    if "model" in stated.stated or (run is not None and run.is_file()):
        return _stated_plan(run, stated)
    if stated != Overrides():
        given = [flag_of(key) for key in stated.stated]
        given += [f"--set {key}" for key in stated.set_values]
        msg = f"a run folder states its job, so {', '.join(given)} cannot be given beside it"
        raise InputError(msg, "leave it out, or name the job file, or state the job in one line")
    run_dir = whole(run) if run is not None else last_answered()
    job = runs.load_run_job(run_dir)
    payload = recorded_payload(runs.load_recommendation_payload(run_dir), near(run_dir))
    rows = (("pick", payload.best), ("today", payload.today))
    plans = [Plan(role, cast("dict[str, Any]", row)) for role, row in rows if row]
    if not plans:
        msg = f"{near(run_dir)} has no configuration to verify: nothing fitted"
        raise InputError(msg, "name another run, or the job file")
    return job, run_dir, plans


def _stated_plan(run: Path | None, stated: Overrides) -> tuple[Job, None, list[Plan]]:
    """The plan of a job file or of a job in one line: exactly what it states."""
    from autotune.app.estimate import estimate
    from autotune.app.job.load import jobs_of_line, load_jobs, only_job
    from autotune.report.payload import row_payload

    if run is None:
        job = only_job(jobs_of_line(stated), "the command line")
    else:
        refuse_own(run)
        job = only_job(load_jobs(run, stated), str(run))
    row = row_payload(estimate(job, fidelity="formula").row)
    return without_verified(job), None, [Plan("stated", cast("dict[str, Any]", row))]


def planned_of(job: Job, run_dir: Path | None, plans: list[Plan], log: RunLog) -> Planned:
    """The plan that the log is of, after refusing a log of another job."""
    job, plans = _at_its_batch(job, plans, log)
    offer = job.offer_of(plans[0].row) or job.offers[0]
    smoke, plans = _of_same_job(job, offer, plans, log)
    plan, config = plan_of(plans, log)
    job = job if plan.role == "pick" else job.as_it_stands
    offer = job.offer_of(plan.row) or job.offers[0]
    notes = list(log.notes)
    if smoke is not None:
        notes.insert(0, smoke.note)
    same = config.as_record() == plan.row["config"]
    if plan.role == "today":
        notes.append("the log is from today's config, not from the pick")
    if not same:
        changed = ", ".join(
            f"{name} {value} (planned {plan.row['config'][name]})"
            for name, value in config.as_record().items()
            if value != plan.row["config"][name]
        )
        notes.append(f"not made as planned: {changed}; predicted is what was run")
    recorded = None
    if same and run_dir is not None:
        recorded = _as_recorded(Pricing(job).one(offer, config), plan.row)
    return Planned(job, offer, config, run_dir, recorded, tuple(notes), smoke)


def _of_same_job(
    job: Job, offer: Offer, plans: list[Plan], log: RunLog
) -> tuple[Smoke | None, list[Plan]]:
    """What kind of smoke run the log is of, and the plans that have its steps: packed, or not."""
    refused: InputError | None = None
    for packing in dict.fromkeys(plan.row["config"].get("packing") for plan in plans):
        own = [plan for plan in plans if plan.row["config"].get("packing") == packing]
        steps = Pricing(job).one(offer, Config.of(own[0].row["config"])).steps
        try:
            return check_same_job(Counted(job, steps, packing == "on"), log), own
        except InputError as error:
            refused = refused or error
    assert refused is not None  # noqa: S101 - there are plans
    raise refused


def _at_its_batch(job: Job, plans: list[Plan], log: RunLog) -> tuple[Job, list[Plan]]:
    """The job and the plans at the global batch that the log is of: the job's, else today's."""
    today = [plan for plan in plans if plan.role == "today"]
    if job.today_batch is None or not today:
        return job, plans
    others = [plan for plan in plans if plan.role != "today"]
    if others and _is_of(job, log):
        return job, others
    return (job.as_today, today) if _is_of(job.as_today, log) else (job, others or today)


def _is_of(job: Job, log: RunLog) -> bool:
    try:
        check_same_job(Counted(job, job.steps), log)
    except InputError:
        return False
    return True


def planned_on(
    planned: Planned, offer: Offer, calibration: Calibration
) -> tuple[Config, Estimated]:
    """The planned configuration on a machine, and its bill there; as recorded where it can be."""
    job, config = planned.job, planned.config
    same = offer == planned.offer
    if not same and not offer.device.peak_flop_per_s(config.precision):
        other = "fp16" if offer.device.fp16_flop_per_s else "fp32"
        config = config.with_knobs(precision=other)
    if offer.count != planned.offer.count:
        per_device = job.global_batch_size // offer.count
        micro = math.gcd(config.micro_batch_size, per_device)
        config = config.with_knobs(
            micro_batch_size=micro,
            gradient_accumulation_steps=per_device // micro,
            sharding="none" if offer.count == 1 else config.sharding
            if planned.offer.count > 1 else "ddp",
        )  # fmt: skip
    row = planned.recorded if same else None
    return config, row or Pricing(job, calibration).one(offer, config)


def _as_recorded(row: Estimated, recorded: Any) -> Estimated:  # noqa: ANN401 - a recorded row
    """The estimate with what the run's answer said, which is what was promised."""
    memory = {name: recorded["memory_bytes"][name] for name in MemoryParts.__dataclass_fields__}
    time = {name: recorded["time_s"][name] for name in TimeParts.__dataclass_fields__}
    return replace(
        row,
        basis=recorded["basis"],
        duration_s=Spread(**recorded["duration_s"]),
        cost_usd=Spread(**recorded["cost_usd"]),
        step_time_s=recorded["step_time_s"],
        tokens_per_s=recorded["tokens_per_s"],
        bound_by=bound_of(TimeParts(**time), row.step_bound),
        time_s=TimeParts(**time),
        memory_bytes=MemoryParts(**memory),
        checkpoints=recorded["checkpoints"],
        reserved_bytes=recorded["reserved_bytes"] or row.reserved_bytes,
    )


def machine_of(named: str | None, count: int | None, planned: Planned) -> Offer:
    """The machine that the log was made on: as told, as the log says, else as planned."""
    if named is None or (named == "mps" and planned.offer.device.vendor == "apple"):
        return planned.offer
    if named == "cpu":
        here = [o for o in (planned.offer, *planned.job.offers) if o.device.name == "cpu"]
        if here:
            return here[0]
        msg = (
            f"the run is on the CPU, and {planned.offer.label} was planned: it shows that the job "
            "starts and trains, and its times say nothing of that machine"
        )
        raise InputError(msg, "--gpu NAME compares anyway")
    entry = as_devices(machine_entry(named))
    device = find_device(str(entry["gpu"]))
    count = entry.get("count") or count or planned.offer.count
    offers = (planned.offer, *planned.job.offers)
    for offer in offers:
        if (offer.device.name, offer.count) == (device.name, count):
            return offer
    if planned.job.global_batch_size % count:
        msg = f"{count} devices cannot share a global batch of {planned.job.global_batch_size}"
        raise InputError(msg, "name the machine as NAME:N, N its devices")
    price = price_for(device.name, count)
    host = default_host(count, device, planned.job.storage)
    usd = price.usd_per_hour if price else 0.0
    return Offer(device, count, usd, host, price.source if price else UNKNOWN_PRICE,
                 price.as_of if price else None)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Expected:
    """A training's prediction. run_dir None: it is of a job file.

    row None: the training is this run's, but on a machine that nothing can be said of; `notes` say
    why, or how the training differs from the plan.
    """

    job_name: str
    run_dir: Path | None
    steps: int
    row: Row | None
    notes: tuple[str, ...] = ()

    @property
    def machine(self) -> str:
        """Such as "1x h100-sxm"."""
        return offer_name(self.row) if self.row else ""


def expected_of(run: Path | None, log: RunLog) -> Expected:
    """The prediction for a training of which `log` holds what it says of itself.

    run: a run folder or a job file; None: the last run.

    Raises InputError where there is no such run, or the training is of another job.
    """
    run = run or last_answered()
    try:
        job, run_dir, plans = load_plan(run)
    except InputError as error:
        if run.is_file():
            raise
        return _recorded_alone(run, log, error)
    planned = planned_of(job, run_dir, plans, log)
    try:
        offer = machine_of(log.gpu, log.gpus, planned)
    except InputError as error:
        return Expected(job.name, run_dir, job.steps, None, (error.message,))
    known = with_past(job)
    calibration = Pricing.learned(known).calibration
    _, row = planned_on(planned, offer, calibration)
    notes = list(planned.notes)
    if offer != planned.offer:
        notes.insert(0, f"this is {offer.label}, and {planned.offer.label} was planned")
    return Expected(job.name, run_dir, row.steps, row_payload(row), tuple(notes))


def _recorded_alone(run_dir: Path, log: RunLog, why: InputError) -> Expected:
    """The pick as it was recorded, where the job cannot be read again on this machine.

    Its data or its model may lie on the machine that made the plan. Raises InputError where there
    is no answer, or the training is of another job.
    """
    if not (run_dir / runs.ANSWER_FILE).is_file():
        raise why
    payload = recorded_payload(runs.load_recommendation_payload(run_dir), str(run_dir))
    job, row = payload.job, payload.best
    if row is None:
        raise why
    steps, notes = row.steps_of(job.steps), []
    slack = max(math.ceil(PACKED_STEPS * steps) if row.packed else 0, math.ceil(job.epochs))
    if log.max_steps is None or abs(log.max_steps - steps) > slack:
        each = math.ceil(steps / max(job.epochs, 1e-9))
        if not told_to_stop(log, steps, each, slack):
            msg = f"this training has {log.max_steps} steps, and {job.name} has {steps}"
            raise InputError(msg)
        notes.append(Smoke(log.max_steps or 0, steps).note)
    try:
        device: Any = find_device(log.gpu or "").name
    except InputError:
        device = log.gpu
    if (device, log.gpus) != (row.device, row.device_count):
        note = f"this is {log.gpus}x {device}, and {offer_name(row)} was planned"
        return Expected(job.name, run_dir, job.steps, None, (note,))
    config = cast("dict[str, Any]", row.config)
    changed = ", ".join(
        f"{name} {value} (planned {config[name]})"
        for name, value in differences(Config.of(config), log).items()
    )
    if changed:
        notes.append(f"not made as planned: {changed}; predicted is what was planned")
    return Expected(job.name, run_dir, job.steps, row, tuple(notes))
