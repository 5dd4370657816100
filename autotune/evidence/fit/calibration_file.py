"""The one data file that `autotune calibrate` writes; `cost` reads it."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from autotune.cost.constants import Constants, Spreads

if TYPE_CHECKING:
    from autotune.cost.constants import Offset
    from autotune.evidence.fit.memory_refit import MemoryRefit
    from autotune.evidence.fit.refit import Refit
    from autotune.evidence.validation.accuracy import Scope

_HEAD = """\
# Written by `autotune calibrate`: what the time and memory models learned, from what, and how sure
# they are.
# Do not edit: change the rows, the terms or the priors, and run the command again.
#
# {rows} step times of {sources} sources, {groups} groups of source, model and device.
# step: constants of `cost.constants.Constants`. offset: [log factor, log sd] of whole steps,
# against Hugging Face's Trainer with eager kernels on an A100 80 GB. log_sd: scatter that is left,
# sized on groups left out of the fit. covariance: of logits (shares) and logarithms (the rest).
# observed: highest executed FLOP over dense peak, by method and base. left_out: errors of groups
# that the fit has not seen; forms, effects and priors were chosen with all groups in view, so a
# source of another kind may be further off.
#
# memory: constants of `cost.memory_constants.MemoryConstants`, on {readings} peaks and verdicts;
# slack on {outcomes} runs of sources that report both outcomes, {failures} of which ran out of
# memory. log_sd: half-widths of 80 % intervals over 1.28; own_model and the reserved ones on groups
# left out of the fit. claims: [runs called a fit by fits without their group, of them failed]; of a
# source that reports no failures, each group counts as one run.
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
    tables = (("log_sd", own.spreads), ("cached", own.cached), ("reserved_log_sd", own.reserved))
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
    lines = ["[step]", *step, "", "[log_sd]", *spread, ""]
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
