"""A run held against its prediction, and what that teaches for the rest of it and the next ones."""

from __future__ import annotations

import math
from dataclasses import field, replace
from typing import TYPE_CHECKING

from autotune.app.hardware.this_machine import as_started_here, local_of
from autotune.app.job.evidence import with_past
from autotune.app.probing.measured_bill import MODELLED_SD
from autotune.app.runs import folder as runs
from autotune.app.verify.diff import Comparison, explanations, lines_of
from autotune.app.verify.plan import (
    UNKNOWN_PRICE,
    Planned,
    load_plan,
    machine_of,
    planned_of,
    planned_on,
)
from autotune.catalog.files import write_json
from autotune.claims.feasibility import check_claim
from autotune.cost.time.startup import start_s
from autotune.domain.answer.verification import (
    Learned,
    NextRuns,
    Remaining,
    RunKind,
    Started,
    Verification,
)
from autotune.domain.errors import InputError
from autotune.domain.observation import MARKED, VERIFIED
from autotune.domain.outcome import Z90, Spread
from autotune.domain.typed.overrides import Overrides
from autotune.domain.units import HOUR_S, YEAR_S, format_seconds, parse_seconds
from autotune.evidence.log.read import read_log, training_of
from autotune.evidence.log.run_log import BUSY, observations_of_log, speed_of, with_elapsed
from autotune.evidence.reference import evaluation_facts
from autotune.evidence.runs_seen import remember
from autotune.frozen import dataclass
from autotune.pricing import Pricing
from autotune.probe.machine import starts

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.device import Offer
    from autotune.domain.job import Evaluation, Job
    from autotune.domain.observation import Calibration, Observation
    from autotune.evidence.log.run_log import RunLog

VERIFIED_FILE = "verified.json"
MOST_PREPARING = 0.5  # of what passed before the training: more says little of a start
CONTRADICTS = 1.2  # two statements of one time that differ by more
LONGEST_ELAPSED_S = 10 * YEAR_S


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """What the log does not say: on which machine, how long so far; and how many runs follow.

    job: a job in one line, or what is set in a job file.
    """

    gpu: str | None = None
    elapsed: str | None = None
    next_runs: int = 1
    job: Overrides = field(default_factory=Overrides)


def verify(run: Path | None, log: Path, options: VerifyOptions | None = None) -> Verification:
    """Compare a run's log with its prediction, and keep what it teaches.

    run: a run folder or a job file; None for the last run, or for the run folder that `log` is.

    Raises InputError when the log is damaged, of another job, or says nothing of time.
    """
    options = options or VerifyOptions()
    in_line = "model" in options.job.stated
    if in_line and run is not None:
        msg = f"{run} states the job, so it cannot be stated in one line too"
        raise InputError(msg, "leave one of them out")
    if run is None and not in_line and runs.is_run(log):
        run = log
    job, run_dir, plans = load_plan(run, options.job)
    read = read_log(log)
    if not job.steps:
        msg = f"{job.name} is an evaluation-only run: it has no training steps to verify"
        raise InputError(msg)
    if not read.steps_done:
        msg = f"{read.path} holds no finished step"
        raise InputError(msg, "wait for the first checkpoint")
    job = replace(job, offers=as_started_here(job.offers, [], but=training_of(read.path)))
    planned = planned_of(job, run_dir, plans, read)
    if read.form in {"csv", "console"}:  # which states no interval: it is the plan's
        read = replace(read, save_every_steps=planned.config.checkpoint_every_steps)
    offer = machine_of(options.gpu or read.gpu, read.gpus, planned)
    known = with_past(job, but=training_of(read.path))
    before = Pricing.learned(known).calibration
    comparison = _compare(planned, offer, before, _with_time(read, options, job, planned, before))
    return _answer(planned, comparison, before, options)


def _with_time(
    log: RunLog, options: VerifyOptions, job: Job, planned: Planned, before: Calibration
) -> RunLog:
    """The log with its time; what the user says passed where it says none."""
    elapsed = None
    if options.elapsed is not None:
        elapsed = parse_seconds(options.elapsed)
        if not 0 < elapsed <= LONGEST_ELAPSED_S:
            msg = f"--elapsed {options.elapsed!r} must be above zero and under ten years"
            raise InputError(msg, "write for example --elapsed 3h")
    if elapsed is not None:
        parts = Pricing(job, before).one(planned.offer, planned.config).time_s
        timed = with_elapsed(log, elapsed, parts.load + parts.prepare)
        if log.is_timed and elapsed * CONTRADICTS < log.covered_s:
            msg = (
                f"--elapsed {options.elapsed} is less than the {format_seconds(log.covered_s)} "
                f"that the log's own steps took, by {log.timed_by}"
            )
            raise InputError(msg, "leave --elapsed out, or give the time since the script began")
        return timed
    if not log.is_timed:
        msg = (
            f"{log.path} says that {log.steps_done:,} steps are done, and nothing about time: "
            "the Trainer writes its runtime at the end, and no two checkpoint folders are beside it"
        )
        hint = "add --elapsed 3h: how long the script had run when this was written"
        raise InputError(msg, hint)
    return log


def _compare(planned: Planned, offer: Offer, before: Calibration, log: RunLog) -> Comparison:
    """The prediction on the log's own machine, with the speed that the log shows."""
    config, row = planned_on(planned, offer, before)
    each = row.time_s.checkpoint / max(row.checkpoints, 1)
    speed = speed_of(log, each, row.time_s.compile)
    if speed is None:
        msg = f"{log.path} holds no step whose time can be told"
        raise InputError(msg, "add --elapsed 3h: how long the script had run")
    return Comparison(planned.job, offer, config, row, log, speed, smoke=planned.smoke is not None)


def _answer(
    planned: Planned, found: Comparison, before: Calibration, options: VerifyOptions
) -> Verification:
    job, log, elsewhere = planned.job, found.log, found.offer != planned.offer
    timed = job.timed_evaluation
    facts = {
        "gpu": found.offer.device.name, "n_gpus": found.offer.count,
        "max_length": job.max_length, "global_batch": job.global_batch_size, VERIFIED: True,
        **(_evaluated_facts(timed, log) if timed and log.evaluations else {}),
    }  # fmt: skip
    observations = observations_of_log(log, found.speed, found.config.as_dict(), facts)
    notes = _notes(planned, found, elsewhere=elsewhere)
    written, late = _keep(job, log, observations)
    start, kept, failed = _keep_start(found)
    written, late = [*written, *kept], [*late, *failed]
    known = with_past(job, but=training_of(log.path))
    usable = tuple(own for own in observations if MARKED not in own.facts)
    learned_job = replace(job, evidence=(*known.evidence, *usable))
    learned = Pricing.learned(learned_job)
    after, warnings = learned.calibration, learned.warnings
    told = explanations(found, observations, before)
    verification = Verification(
        job=job,
        run_dir=str(planned.run_dir) if planned.run_dir else None,
        log=log.path,
        steps_done=log.steps_done,
        steps=found.steps,
        timed_by=log.timed_by,
        kind=RunKind(
            planned.smoke.steps if planned.smoke else None, log.ended, log.waiting, found.spoiled
        ),
        step_s=_around(found.speed.step_s, found.speed.log_sd),
        offer=found.offer,
        planned=planned.offer,
        config=found.config,
        lines=lines_of(found),
        explanations=told,
        remaining=_remaining(found),
        next_runs=_next_runs(planned, found, after, options.next_runs, elsewhere=elsewhere),
        learned=_learned(before, after),
        start=start,
        written=(),
        warnings=(*planned.notes, *notes, *late, *_own(warnings, observations)),
    )
    return _persisted(verification, planned.run_dir, observations, written)


def _evaluated_facts(plan: Evaluation, log: RunLog) -> dict[str, object]:
    """Facts of what was evaluated: as the job plans it, over the rows that the log tells."""
    return evaluation_facts(replace(plan, rows=log.evaluation_rows or plan.rows))


def _notes(planned: Planned, found: Comparison, *, elsewhere: bool) -> list[str]:
    notes = []
    if elsewhere:
        notes.append(_elsewhere_note(planned, found))
    if found.speed.save_assumed:
        notes.append(
            "saves were taken off the measured time as predicted: the log does not time them"
        )
    if found.log.tokens:
        notes.append(_tokens_note(planned.job, found.log))
    spoiled = found.spoiled
    if spoiled:
        notes.append(
            f"the machine was busy with other work: {spoiled}. What it measured of time is told "
            "here and teaches nothing; run it again on a quiet machine"
        )
    doubt = _impossible(found)
    return [*notes, doubt] if doubt else notes


def _impossible(found: Comparison) -> str:
    """What to say of a step that no such device can make in that time; empty where it can.

    Raises InputError where the time was read from the dates of files, which copying changes.
    """
    claim = check_claim(found.job, found.row, f"{found.speed.step_s:.9f} s/step")
    if claim.verdict != "impossible":
        return ""
    text = f"a step of {format_seconds(found.speed.step_s)} is impossible: {claim.reason}"
    if found.log.dated:
        msg = f"{found.log.path}, timed by {found.log.timed_by}: {text}"
        raise InputError(msg, "folders that were copied carry later dates: add --elapsed 3h")
    return f"{text}. Rows are shorter than the job says, or the time is not of these steps"


def _own(warnings: tuple[str, ...], observations: tuple[Observation, ...]) -> list[str]:
    """Warnings of calibration that speak of this log; the others were told when tuning."""
    return [text for text in warnings if any(text.startswith(o.id) for o in observations)]


def _keep(
    job: Job, log: RunLog, observations: tuple[Observation, ...]
) -> tuple[list[str], list[str]]:
    """Files written and warnings. A home that cannot be written costs later runs their start."""
    try:
        path, note = remember(job, training_of(log.path), observations)
    except OSError as error:
        return [], [f"what was learned could not be kept for later runs: {error}"]
    return [str(path)], [note] if note else []


def _keep_start(found: Comparison) -> tuple[Started | None, list[str], list[str]]:
    """What later starts here take, the file that was written, and warnings.

    Nothing where the log does not tell its start, a busy machine or the reading of weights made
    most of it, or it is not of this machine.
    """
    own_s = _start_of(found)
    local = local_of([found.offer])[0] if own_s is not None else None
    if own_s is None or local is None:
        return None, [], []
    before = start_s(found.offer)
    try:
        path, note = starts.remember(local, training_of(found.log.path), own_s)
    except OSError as error:
        return None, [], [f"the start could not be kept for later runs: {error}"]
    after = start_s(as_started_here([found.offer], [])[0])
    return Started(own_s, before, after), [str(path)], [note] if note else []


def _start_of(found: Comparison) -> float | None:
    """[s] of the start without reading and moving weights; None where the log does not tell."""
    log = found.log
    if log.before_s is None or (log.before_waiting or 0.0) >= BUSY:
        return None
    row = Pricing(replace(found.job, learned=())).one(found.offer, found.config)
    moved = row.time_s.load - start_s(found.offer)
    tokenised = row.time_s.prepare if log.prepare_s is None else 0.0
    if tokenised > MOST_PREPARING * log.before_s:
        return None
    own_s = log.before_s - moved - tokenised
    return own_s if own_s >= starts.LEAST_SHARE * log.before_s else None


def _persisted(
    found: Verification,
    run_dir: Path | None,
    observations: tuple[Observation, ...],
    written: list[str],
) -> Verification:
    """The answer, written into the run folder with its Observations."""
    from dataclasses import asdict

    from autotune.domain.answer.contract import plain
    from autotune.report.sections.verification import verification_payload

    if run_dir is None:
        return replace(found, written=tuple(written))
    path = run_dir / VERIFIED_FILE
    found = replace(found, written=(str(path), *written))
    content = {
        **verification_payload(found),
        "observations": [asdict(observation) for observation in observations],
    }
    try:
        write_json(path, plain(content))
    except OSError as error:
        note = f"{path} could not be written: {error.strerror}"
        return replace(found, written=tuple(written), warnings=(*found.warnings, note))
    return found


def _elsewhere_note(planned: Planned, found: Comparison) -> str:
    there = Pricing(planned.job).one(planned.offer, planned.config)
    return (
        f"the log is of {found.offer.label}, and {planned.offer.label} was planned: predicted is "
        f"for {found.offer.label} (planned: {format_seconds(there.step_time_s)} a step); of what "
        "it taught only the efficiency of training carries over, not its saves or its memory"
    )


def _tokens_note(job: Job, log: RunLog) -> str:
    rows = log.steps_done * job.global_batch_size
    each = (log.tokens or 0.0) / rows
    return (
        f"the Trainer counted {each:.0f} input tokens a row (padding included unless told "
        f"otherwise), where the job has {job.lengths.mean:.0f} before padding"
    )


def _remaining(found: Comparison) -> Remaining:
    """What is left of the run, at the speed it has shown; nothing of a smoke run that is over.

    Formula: steps left x step + saves left x save + evaluations left x evaluation + final save.
    Source: derived.
    """
    left = max(found.own_steps - found.log.steps_done, 0)
    if not left:
        return Remaining(0, 0.0, 0.0)
    seconds = left * found.speed.step_s + found.row.time_s.final_save
    if not found.smoke:
        seconds += (found.row.checkpoints - found.saves_done) * found.save_s
        seconds += (found.evaluations - found.evaluations_done) * found.evaluation_s
    usd = seconds / HOUR_S * found.offer.usd_per_hour
    return Remaining(left, seconds, None if found.offer.price_source == UNKNOWN_PRICE else usd)


def _next_runs(
    planned: Planned, found: Comparison, after: Calibration, count: int, *, elsewhere: bool
) -> NextRuns:
    """A further run of the same config: as measured here, or by what carries over.

    Source: derived: the measured step and save have the spread between two runs, the rest of the
    bill that of the model.
    """
    offer = planned.offer
    again = Pricing(planned.job, after).one(offer, planned.config)
    if elsewhere:
        basis = "calibrated" if after.factors.get("compute") else "modelled"
        return NextRuns(count, offer, again.duration_s, again.cost_usd, basis)  # type: ignore[arg-type]
    total = found.projected_s
    steps_s = found.steps * found.speed.step_s
    spread = math.hypot(found.speed.log_sd * steps_s, MODELLED_SD * (total - steps_s)) / total
    usd = offer.usd_per_s
    duration = _around(total, spread)
    cost = Spread(*(value * usd for value in (duration.p10, duration.p50, duration.p90)))
    return NextRuns(count, offer, duration, cost, "measured")


def _around(value: float, log_sd: float) -> Spread:
    """The 80 % interval around a median."""
    grow = math.exp(Z90 * log_sd)
    return Spread(value / grow, value, value * grow)


def _learned(before: Calibration, after: Calibration) -> tuple[Learned, ...]:
    names = dict.fromkeys([*after.factors, *before.factors, *after.log_sds])
    return tuple(
        Learned(
            name, before.factors.get(name, 1.0), after.factors.get(name, 1.0),
            after.log_sds.get(name),
        )
        for name in names
    )  # fmt: skip
