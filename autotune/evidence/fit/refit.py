"""Everything that is learned from a table of measured runs, with what it was learned on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.domain.errors import InputError
from autotune.evidence.fit.memory_refit import MemoryRefit, refit_memory
from autotune.evidence.fit.spread import fit_spreads
from autotune.evidence.fit.steps import measured_once, measured_steps
from autotune.evidence.fit.time import Fit, LeftOut, fit, leave_groups_out
from autotune.evidence.record.public_csv import read_cases
from autotune.evidence.validation.accuracy import Accuracy, accuracy_of
from autotune.evidence.validation.residuals import Residual

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autotune.cost.constants import Spreads
    from autotune.evidence.fit.steps import MeasuredSteps
    from autotune.evidence.record.case import MeasuredCase

LEAST_STEPS = 8  # rows of a method and base for which "highest observed" means something


@dataclass(frozen=True, slots=True, eq=False)
class Refit:
    """A fit on measured steps, the scatter and errors of its left-out groups."""

    fit: Fit
    spreads: Spreads
    left_out: LeftOut
    accuracy: Accuracy
    observed: dict[str, float]  # "lora nf4" -> highest share of the dense peak
    rows: dict[str, int]  # by source
    data_sha256: str
    memory: MemoryRefit

    @property
    def steps(self) -> MeasuredSteps:
        """The measured steps."""
        return self.left_out.steps


def refit(path: Path) -> Refit:
    """Fit time and memory on the rows of a table. Raises InputError where it has no usable step."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return refit_cases(read_cases(path).cases, digest, str(path))


def refit_cases(cases: Sequence[MeasuredCase], digest: str, name: str = "the table") -> Refit:
    """Fit time on the cases' steps and memory on their peaks and verdicts, each run once."""
    once = measured_once(cases)
    if not once:
        msg = f"{name} has no step time that the cost model covers, so there is nothing to fit"
        raise InputError(msg, "`autotune validate --data FILE` says why each row is left out")
    steps = measured_steps(once)
    left_out = leave_groups_out(steps)
    spreads = fit_spreads(left_out)
    rows: dict[str, int] = {}
    for case in once:
        rows[case.group[0]] = rows.get(case.group[0], 0) + 1
    return Refit(
        fit(steps),
        spreads,
        left_out,
        accuracy_of(residuals_of(left_out, spreads)),
        highest_observed(steps),
        dict(sorted(rows.items())),
        digest,
        refit_memory(cases),
    )


def residuals_of(left_out: LeftOut, spreads: Spreads) -> list[Residual]:
    """Every measured step beside the prediction of a fit that has not seen its group."""
    steps, log_sd = left_out.steps, left_out.log_sd(spreads)
    return [
        Residual(case, "time", float(predicted), float(actual), float(sd))
        for case, predicted, actual, sd in zip(
            steps.cases, left_out.predicted_s, steps.seconds, log_sd, strict=True
        )
    ]


def highest_observed(steps: MeasuredSteps) -> dict[str, float]:
    """Highest executed FLOP over dense peak, recomputation counted, by method and base.

    Only rows of one length: where lengths are a distribution, the tokens are inferred.
    """
    found: dict[str, list[float]] = {}
    share = steps.accumulation * steps.terms.flop / steps.terms.peak / steps.seconds
    for case, own, ragged in zip(steps.cases, share, steps.features.ragged, strict=True):
        if not ragged:
            kind = f"{case.job.method.kind} {case.job.method.base}"
            found.setdefault(kind, []).append(float(own))
    return {kind: max(own) for kind, own in sorted(found.items()) if len(own) >= LEAST_STEPS}
