"""Everything that is learned from a table of measured runs, and the data file that keeps it.

The fits themselves: `time`, `memory` and `memory_left_out`; how far steps scatter: `spreads`.
"""

from __future__ import annotations

import hashlib
from dataclasses import fields
from typing import TYPE_CHECKING

from autotune.cost.constants import CACHED, Constants, Spreads
from autotune.domain.errors import InputError
from autotune.evidence.accuracy import Accuracy, Residual, accuracy_of
from autotune.evidence.cases import source_of, timed_cases
from autotune.evidence.fit.memory_left_out import MemoryRefit, refit_memory
from autotune.evidence.fit.programs import new_errors
from autotune.evidence.fit.spreads import LeftOut, fit_spreads, leave_out, nested_sd
from autotune.evidence.fit.time import Fit, fit, levels_of_case, measured_steps, settled
from autotune.evidence.record.table import read_cases
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autotune.cost.columns import FloatArray
    from autotune.cost.constants import Offset
    from autotune.evidence.accuracy import Scope
    from autotune.evidence.cases import MeasuredCase
    from autotune.evidence.fit.memory_left_out import MemoryRefit
    from autotune.evidence.fit.programs import NewErrors
    from autotune.evidence.fit.spreads import LeftOut
    from autotune.evidence.fit.time import MeasuredSteps

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
    new: NewErrors

    @property
    def settled(self) -> dict[str, float]:
        """By constant, the share of its prior's spread that the rows took away: 0 is the prior."""
        return settled(self.fit)

    @property
    def sources_of_levels(self) -> dict[tuple[str, str], int]:
        """How many sources have steps of a level of an effect: ("stack", "litgpt") -> 1."""
        found: dict[tuple[str, str], set[str]] = {}
        for case in self.steps.cases:
            for level in levels_of_case(case).items():
                found.setdefault(level, set()).add(case.group[0])
        return {level: len(sources) for level, sources in found.items()}

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
    timed = timed_cases(case for case in cases if case.teaches_time)
    if not timed:
        msg = f"{name} has no step time that the cost model covers, so there is nothing to fit"
        raise InputError(msg, "`autotune validate --data FILE` says why each row is left out")
    steps = measured_steps(timed)
    whole = fit(steps)
    left_out = leave_out(steps, source_of, whole)
    every = [case for case in cases if case.step and case.teaches_time]
    new = new_errors(steps, every, whole)
    spreads = fit_spreads(left_out, new)
    rows: dict[str, int] = {}
    for case in timed:
        rows[case.group[0]] = rows.get(case.group[0], 0) + 1
    return Refit(
        whole,
        spreads,
        left_out,
        accuracy_of(residuals_of(left_out, nested_sd(left_out, left_out, new))),
        highest_observed(steps),
        dict(sorted(rows.items())),
        digest,
        refit_memory(cases),
        new,
    )


def residuals_of(left_out: LeftOut, log_sd: FloatArray) -> list[Residual]:
    """Every measured step beside the prediction of a fit that has not seen its unit.

    log_sd: [n, 2] on the side of faster and of slower runs.
    """
    return [
        Residual(case, case.step, float(predicted), fast, slow_log_sd=slow)
        for case, predicted, (fast, slow) in zip(
            left_out.steps.cases, left_out.predicted_s, log_sd.tolist(), strict=True
        )
        if case.step
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


_HEAD = """\
# Written by `autotune calibrate`: what the time and memory models learned, from what, and how sure
# they are.
# Do not edit: change the rows, the terms or the priors, and run the command again.
#
# {rows} step times of {sources} sources, {groups} groups of source, model and device.
# step: constants of `cost.constants.Constants`. offset: [log factor, log sd] of whole steps,
# against Hugging Face's Trainer with eager kernels on an A100 80 GB; one whose log sd is near 0.10,
# its prior's, rests on one source or less, and hardly moves a step. log_sd: scatter that is left,
# sized on sources left out of the fit; `source` is what all rows of a new source share, the sides
# of `alone` the same on one GPU, `known` what the standard deviations of constants and offsets of
# kernels are multiplied by, the sides of `program` what takes the place of `source` under a program
# that no source has, `device` the same on a device that none has. programs, devices: sources of
# each.
# covariance: of logits (shares) and logarithms (the rest). observed: highest executed FLOP over
# dense peak, by method and base. left_out: errors of sources that the fit has not seen, with
# intervals sized on the other sources; forms, effects and priors were chosen with all in view.
#
# memory: constants of `cost.memory_constants.MemoryConstants`, on {readings} peaks and verdicts;
# slack on {outcomes} runs of sources that report both outcomes, {failures} of which ran out of
# memory. log_sd: half-widths of 80 % intervals over 1.28; own_model and cached on sources left
# out of the fit; cached moves the reserved peak by its share. claims: [runs called a fit by fits
# without their source, of them failed]; of a source that reports no failures, each group counts as
# one run; crowded ones with half of the replays that `bench.crowded` makes. cached: shares of the
# terms of `cost.memory.cache`.
"""


def calibration_text(found: Refit) -> str:
    """The file's text: the same fit gives the same text."""
    own = found.memory
    head = _HEAD.format(
        rows=len(found.steps),
        sources=len(found.rows),
        groups=len(set(found.left_out.groups)),
        readings=sum(own.sources.values()),
        outcomes=own.fit.outcomes,
        failures=own.fit.failures,
    )
    parts = (_fit(found), _learned(found), _left_out(found), _memory(own), _covariance(found))
    return "\n".join([head, *(line for part in parts for line in part)])


def _memory(found: MemoryRefit) -> list[str]:
    own = found.fit.constants
    slack = [f"{f.name} = {getattr(own.slack, f.name):.3g}" for f in fields(own.slack)]
    lines = ["[memory.rows]", *(f'"{name}" = {n}' for name, n in found.sources.items()), ""]
    lines += ["[memory.slack]", *slack, "", "[memory.offset]"]
    lines += [f'"{level}" = {_pair(offset)}' for level, offset in sorted(own.offsets.items())]
    tables = (("log_sd", {**own.spreads, CACHED: own.cached_sd}), ("cached", own.cached))
    for name, table in tables:
        lines += ["", f"[memory.{name}]", *(f"{kind} = {v:.3g}" for kind, v in table.items())]
    claims = (f"{kind} = [{each.n}, {each.failures}]" for kind, each in own.claims.items())
    return [*lines, "", "[memory.claims]", *claims, ""]


def _pair(offset: Offset) -> str:
    return f"[{_plain(offset.log_factor)}, {_plain(offset.log_sd)}]"


def _fit(found: Refit) -> list[str]:
    lines = ["[fit]", f'data_sha256 = "{found.data_sha256}"', "", "[fit.rows]"]
    return [*lines, *(f'"{name}" = {n}' for name, n in found.rows.items()), ""]


def _learned(found: Refit) -> list[str]:
    step = [f"{f.name} = {getattr(found.fit.constants, f.name):.4g}" for f in fields(Constants)]
    spread = [f"{f.name} = {getattr(found.spreads, f.name):.3g}" for f in fields(Spreads)]
    lines = ["[step]", *step, "", "[log_sd]", *spread, "", "[programs]"]
    lines += [*(f'"{stack}" = {n}' for stack, n in found.fit.programs.items()), ""]
    lines += ["[devices]", *(f'"{name}" = {n}' for name, n in found.fit.devices.items()), ""]
    for effect, levels in found.fit.offsets.items():
        lines.append(f"[offset.{effect}]")
        for level, own in sorted(levels.items()):
            lines.append(f'"{level}" = {_pair(own)}')
        lines.append("")
    observed = [f'"{kind}" = {share:.3f}' for kind, share in found.observed.items()]
    return [*lines, "[observed]", *observed, ""]


def _plain(value: float) -> str:
    return f"{round(value, 4) + 0.0:.4f}"  # adding zero drops the sign of a rounded -0


def _left_out(found: Refit) -> list[str]:
    lines = ["[left_out]"]
    lines += [_scope(name, scope) for name, scope in found.accuracy.scopes.items()]
    lines += ["", "[left_out.device]"]
    lines += [_scope(name, scope) for name, scope in found.accuracy.devices.items()]
    return [*lines, ""]


def _scope(name: str, scope: Scope) -> str:
    return (
        f'"{name}" = {{n = {scope.n}, groups = {scope.groups}, '
        f"median_ape = {scope.median_ape:.3f}, p90_ape = {scope.p90_ape:.3f}, "
        f"coverage = {scope.coverage:.3f}}}"
    )


def _covariance(found: Refit) -> list[str]:
    names = ", ".join(f'"{name}"' for name in found.fit.names)
    rows = [
        "  [" + ", ".join(f"{round(value, 5) + 0.0:.5f}" for value in row) + "],"
        for row in found.fit.covariance.tolist()
    ]
    return ["[covariance]", f"names = [{names}]", "matrix = [", *rows, "]", ""]
