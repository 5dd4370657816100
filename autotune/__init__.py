"""The cheapest fine-tuning configuration that fits, before you pay.

    import autotune
    answer = autotune.tune("jobs/h100_38h.yaml")
    answer.best.config, answer.best.cost_usd.p50

`tune` and `estimate` take a job file's path or a `Job`. Names load on first use, so importing the
package is cheap.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.domain.calibration import Calibration
    from autotune.domain.config import Config
    from autotune.domain.device import Device, Host, Offer
    from autotune.domain.errors import AutotuneError, InputError
    from autotune.domain.job import Job
    from autotune.domain.model import Model
    from autotune.domain.observation import Observation
    from autotune.domain.outcome import Estimated, Failed, Infeasible, Measured
    from autotune.domain.recommendation import Recommendation
    from autotune.domain.space import SearchSpace

__all__ = [
    "AutotuneError",
    "Calibration",
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
    "Recommendation",
    "SearchSpace",
    "estimate",
    "tune",
]

_HOMES = {
    "AutotuneError": "errors", "Calibration": "calibration", "Config": "config",
    "Device": "device", "Estimated": "outcome", "Failed": "outcome", "Host": "device",
    "Infeasible": "outcome", "InputError": "errors", "Job": "job", "Measured": "outcome",
    "Model": "model", "Observation": "observation", "Offer": "device",
    "Recommendation": "recommendation", "SearchSpace": "space",
}  # fmt: skip


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    """A noun, or the version, loaded on first use."""
    if name == "__version__":
        from importlib.metadata import version

        return version("autotune")
    if name in _HOMES:
        return getattr(import_module(f"autotune.domain.{_HOMES[name]}"), name)
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
        options: fields of `autotune.app.tune.Options`: objective, sampler, trials, seed, run_dir,
            space, fidelity, exports, resume, storage.

    Raises:
        InputError: for anything wrong in the job or the options.
    """
    from autotune.app.notebook import shown
    from autotune.app.tune import Options
    from autotune.app.tune import tune as find

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
    from autotune.domain.config import knob

    found = _job(job, gpus)
    values = {name: knob(name).parse(value) for name, value in knobs.items()}
    return price(replace(found, lock={**found.lock, **values})).row


def _job(job: Job | str | Path, gpus: Sequence[str]) -> Job:
    from autotune.app.load_job import load_job

    if isinstance(job, (str, Path)):
        return load_job(Path(job), gpus=tuple(gpus))
    if gpus:
        from autotune.domain.errors import InputError

        msg = "gpus changes a job file's hardware, and a Job was given"
        raise InputError(msg, "pass the file's path, or replace the job's offers")
    return job
