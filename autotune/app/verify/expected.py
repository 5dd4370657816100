"""What a run folder promised of a training that begins, priced as it is in fact run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

from autotune.app.job.evidence import with_past
from autotune.app.runs import folder as runs
from autotune.app.runs.find import last_answered
from autotune.app.verify.log_match import Smoke, differences, told_to_stop
from autotune.app.verify.plan import load_plan, machine_of, planned_of, planned_on
from autotune.catalog.devices import find_device
from autotune.domain.config import Config
from autotune.domain.errors import InputError
from autotune.frozen import dataclass
from autotune.pricing import Pricing
from autotune.report.payload import row_payload
from autotune.report.phrases import offer_name
from autotune.report.recorded import recorded_payload

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.evidence.log.run_log import RunLog
    from autotune.report.schema import Row


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
        return _as_recorded(run, log, error)
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


def _as_recorded(run_dir: Path, log: RunLog, why: InputError) -> Expected:
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
    steps, notes = job.steps, []
    if log.max_steps != steps:
        each = math.ceil(steps / max(job.epochs, 1e-9))
        if not told_to_stop(log, steps, each, math.ceil(job.epochs)):
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
