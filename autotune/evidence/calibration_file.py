"""The one data file that `autotune calibrate` writes and `cost.constants` reads."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from autotune.cost.constants import Constants, Spreads

if TYPE_CHECKING:
    from autotune.evidence.accuracy import Scope
    from autotune.evidence.refit import Refit

_HEAD = """\
# Written by `autotune calibrate`: what the time model learned, from what, and how sure it is.
# Do not edit: change the rows, the terms or the priors, and run the command again.
#
# {rows} step times of {sources} sources, {groups} groups of source, model and device.
# step: constants of `cost.constants.Constants`. offset: [log factor, log sd] of whole steps,
# against Hugging Face's Trainer with eager kernels on an A100 80 GB. log_sd: scatter that is left,
# sized on groups left out of the fit. covariance: of logits (shares) and logarithms (the rest).
# observed: highest executed FLOP over dense peak, by method and base. left_out: errors of groups
# that the fit has not seen; forms, effects and priors were chosen with all groups in view, so a
# source of another kind may be further off.
"""


def calibration_text(found: Refit) -> str:
    """The file's text: the same fit gives the same text."""
    head = _HEAD.format(
        rows=len(found.steps), sources=len(found.rows), groups=len(set(found.left_out.groups))
    )
    return "\n".join([head, *_fit(found), *_learned(found), *_left_out(found), *_covariance(found)])


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
            lines.append(f'"{level}" = [{_plain(own.log_factor)}, {_plain(own.log_sd)}]')
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
