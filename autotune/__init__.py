"""The cheapest fine-tuning configuration that fits, before you pay.

    import autotune
    answer = autotune.tune("job.yaml")
    answer.best.config, answer.best.cost_usd.p50

`tune`, `estimate` and `compare` take a job file's path or a `Job`; `plan` takes a campaign file,
`recompute` and `verify` a run folder. `TrainerCallback` records a training and holds it against its
plan. Names load on first use, so importing the package is cheap.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.domain.answer.comparison import Comparisons
    from autotune.domain.answer.plan import Plan
    from autotune.domain.answer.recommendation import Recommendation
    from autotune.domain.answer.recompute import Recomputation
    from autotune.domain.answer.verification import Verification
    from autotune.domain.candidates import SearchSpace
    from autotune.domain.config import Config
    from autotune.domain.device import Device, Host, Offer
    from autotune.domain.errors import AutotuneError, InputError
    from autotune.domain.job import Job
    from autotune.domain.model import Model
    from autotune.domain.observation import Calibration, Observation
    from autotune.domain.outcome import Estimated, Failed, Infeasible, Measured
    from autotune.training.callback import TrainerCallback

__all__ = [
    "AutotuneError",
    "Calibration",
    "Comparisons",
    "Config",
    "Device",
    "Estimated",
    "Failed",
    "Host",
    "Infeasible",
    "InputError",
    "Job",
    "Measured",
    "Model",
    "Observation",
    "Offer",
    "Plan",
    "Recommendation",
    "Recomputation",
    "SearchSpace",
    "TrainerCallback",
    "Verification",
    "compare",
    "estimate",
    "plan",
    "recompute",
    "tune",
    "verify",
]

_HOMES = {
    "AutotuneError": "autotune.domain.errors",
    "Calibration": "autotune.domain.observation",
    "Comparisons": "autotune.domain.answer.comparison",
    "Config": "autotune.domain.config",
    "Device": "autotune.domain.device",
    "Estimated": "autotune.domain.outcome",
    "Failed": "autotune.domain.outcome",
    "Host": "autotune.domain.device",
    "Infeasible": "autotune.domain.outcome",
    "InputError": "autotune.domain.errors",
    "Job": "autotune.domain.job",
    "Measured": "autotune.domain.outcome",
    "Model": "autotune.domain.model",
    "Observation": "autotune.domain.observation",
    "Offer": "autotune.domain.device",
    "Plan": "autotune.domain.answer.plan",
    "Recommendation": "autotune.domain.answer.recommendation",
    "Recomputation": "autotune.domain.answer.recompute",
    "SearchSpace": "autotune.domain.candidates",
    "TrainerCallback": "autotune.training.callback",
    "Verification": "autotune.domain.answer.verification",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    """A noun, the callback, or the version, loaded on first use."""
    if name == "__version__":
        from importlib.metadata import version

        from autotune.catalog.software import DISTRIBUTION

        return version(DISTRIBUTION)
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    msg = f"module 'autotune' has no attribute {name!r}"
    raise AttributeError(msg)


def tune(
    job: Job | str | Path,
    *,
    gpus: Sequence[str] = (),
    **options: Any,  # noqa: ANN401 - the fields of Options
) -> Recommendation:
    """The recommendation for a job. Nothing is written unless `run_dir` is given.

    Args:
        job: a `Job`, or the path of a job file.
        gpus: replaces the file's hardware: "NAME" or "NAME:N", or "all".
        options: fields of `autotune.app.tune.tune.Options`: objective, sampler, trials, seed,
            run_dir, space, fidelity, exports, resume, storage.

    Raises:
        InputError: for anything wrong in the job or the options.
    """
    from autotune.app.notebook import shown
    from autotune.app.tune.tune import Options
    from autotune.app.tune.tune import tune as find

    if "run_dir" in options:
        options["run_dir"] = Path(options["run_dir"])
    options.setdefault("dry_run", options.get("run_dir") is None)
    return shown(find(_job(job, gpus), Options(**options)))


def estimate(
    job: Job | str | Path,
    *,
    gpus: Sequence[str] = (),
    **knobs: Any,  # noqa: ANN401 - a knob's value is int, bool or str
) -> Estimated:
    """Exactly the config the job states, with `knobs` changed; no search.

    Raises:
        InputError: for anything wrong in the job, or a split that does not make the global batch.
    """
    from dataclasses import replace

    from autotune.app.estimate import estimate as price
    from autotune.app.notebook import shown_row
    from autotune.domain.config import knob, own_name

    found = _job(job, gpus)
    named = {own_name(name): value for name, value in knobs.items()}
    values = {name: knob(name).parse(value) for name, value in named.items()}
    return shown_row(price(replace(found, lock={**found.lock, **values})).row)


def compare(
    job: Job | str | Path,
    *,
    gpus: Sequence[str] = (),
    **options: Any,  # noqa: ANN401 - the fields of CompareOptions
) -> Comparisons:
    """The best config of every machine, with what decides between them.

    Args:
        job: a `Job`, or the path of a job file; its variants are compared beside each other.
        gpus: replaces the file's hardware, as in `tune`; also "NAME:N@PRICE".
        options: fields of `autotune.app.compare.compare.CompareOptions`: space, objective,
            fidelity.

    Raises:
        InputError: for anything wrong in the job or the options.
    """
    from autotune.app.compare.compare import CompareOptions
    from autotune.app.compare.compare import compare as find
    from autotune.app.job.load import load_jobs
    from autotune.domain.job import NamedJob
    from autotune.domain.typed.overrides import Overrides

    if isinstance(job, (str, Path)):
        jobs = load_jobs(Path(job), Overrides(gpus=_names(gpus)))
    else:
        jobs = [NamedJob("", _job(job, gpus))]
    return find(jobs, CompareOptions(**options))


def plan(
    campaign: str | Path,
    *,
    gpus: Sequence[str] = (),
    price: str | None = None,
    **options: Any,  # noqa: ANN401 - the fields of PlanOptions
) -> Plan:
    """Many runs: what each takes on each machine, when it runs, what a budget keeps.

    Args:
        campaign: the path of a campaign file.
        gpus: replaces the file's hardware, as in `tune`.
        price: such as "0.59 USD/h", of every machine.
        options: fields of `autotune.app.campaign.plan.PlanOptions`: parallel, budget,
            deadline, hours, hours_per_day, barrier, share, mixed, objective, fidelity,
            space.

    Raises:
        InputError: for anything wrong in the campaign or the options.
    """
    from autotune.app.campaign.file import load_campaign
    from autotune.app.campaign.plan import PlanOptions
    from autotune.app.campaign.plan import plan as find

    return find(load_campaign(campaign, gpus=_names(gpus), price=price), PlanOptions(**options))


def recompute(
    run: str | Path | None = None,
    *,
    gpus: Sequence[str] = (),
    **changes: Any,  # noqa: ANN401 - the fields of two classes
) -> Recomputation:
    """The same job on other hardware, prices or versions, beside what was recommended before.

    Args:
        run: a run folder, or a job file; the last run if left out.
        gpus: other hardware, as in `tune`.
        changes: fields of `autotune.domain.typed.overrides.Overrides` (price, set_values, deadline,
            ...) and of `autotune.app.recompute.recompute.RecomputeOptions` (software, vary,
            fidelity, ...).

    Raises:
        InputError: for no run, a damaged one, or anything wrong in the changes.
    """
    from dataclasses import fields

    from autotune.app.recompute.recompute import RecomputeOptions
    from autotune.app.recompute.recompute import recompute as again
    from autotune.domain.typed.overrides import Overrides

    of_job = {item.name for item in fields(Overrides)} & set(changes)
    overrides = Overrides(gpus=_names(gpus), **{name: changes.pop(name) for name in of_job})
    options = RecomputeOptions(overrides=overrides, **changes)
    return again(Path(run) if run is not None else None, options)


def verify(
    run: str | Path,
    log: str | Path | None = None,
    **options: Any,  # noqa: ANN401 - the fields of VerifyOptions
) -> Verification:
    """A run held against its prediction, finished or half-way; what it taught is kept.

    Args:
        run: a run folder or a job file, and its log behind it; or, as on the command line, only a
            log, of the last run.
        log: a trainer_state.json, a Trainer's output folder, a CSV of steps and times, or an
            observations.jsonl.
        options: fields of `autotune.app.verify.verify.VerifyOptions`: gpu, elapsed, next_runs.

    Raises:
        InputError: when the log is damaged, of another job, or says nothing of time.
    """
    from autotune.app.verify.verify import VerifyOptions
    from autotune.app.verify.verify import verify as hold

    job, read = (None, run) if log is None else (Path(run), log)
    return hold(job, Path(read), VerifyOptions(**options))


def _names(gpus: Sequence[str]) -> tuple[str, ...]:
    return (gpus,) if isinstance(gpus, str) else tuple(gpus)


def _job(job: object, gpus: Sequence[str]) -> Job:
    from autotune.app.job.load import load_job
    from autotune.domain.errors import InputError
    from autotune.domain.job import Job

    if isinstance(job, (str, Path)):
        return load_job(Path(job), gpus=_names(gpus))
    if not isinstance(job, Job):
        msg = f"a job is the path of a job file, or a Job, and this is a {type(job).__name__}"
        raise InputError(msg, "write what it says into a file: `autotune init` makes one")
    if gpus:
        msg = "gpus changes a job file's hardware, and a Job was given"
        raise InputError(msg, "pass the file's path, or replace the job's offers")
    return job
