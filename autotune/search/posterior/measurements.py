"""What a study's trials measured, as the sampler reads it.

A probe's trial carries user attributes:

    measured: {part: value}   seconds or bytes of each part, in the units of its prediction. A part
                              may be missing or None: it was not measured.
    noise: {part: sd}         of the log of that measurement, where it is more than is usual of the
                              part.
    oom: true                 the configuration ran out of memory.
    disturbed: true           other programs made it longer than it is: it teaches little, and later
                              searches nothing.
    withdrawn: true           measured before, it broke when it was run again: never the pick.
    dropped: true             the trial is given up: where it ends so, and nobody told a record of
                              it, it was never measured, and its candidate is as before.
    basis: "modelled"         the trial was scored by the cost model; it is no probe, and its
                              candidate may still be probed.

Parts of a bill: `compute`, seconds of an optimizer step without waiting for data; `data`, seconds
one worker needs for a micro-batch; `save`, seconds of one checkpoint; `compile`, seconds of
torch.compile; `memory`, bytes of the device at the peak, as `total` of the prediction counts them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.trial import TrialState

from autotune.domain.errors import InputError, unknown
from autotune.domain.units import is_number
from autotune.search.posterior.kernel import Observed
from autotune.search.posterior.repeats import DISTURBED_SD, Run, believed
from autotune.search.priced import MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from optuna.trial import FrozenTrial

    from autotune.search.priced import Priced

COMPUTE = "compute"  # the part that other programs disturb
MEASURED, OOM, BASIS, MODELLED = "measured", "oom", "basis", "modelled"
NOISE, WITHDRAWN, DROPPED, DISTURBED = "noise", "withdrawn", "dropped", "disturbed"
RECORD = "record"  # what a trial says as a whole, told as the last of its attributes


@dataclass(slots=True)
class History:
    """The trials of a study as candidates.

    tried: candidates of all probes, pending ones included. measured: candidate -> part -> value.
    oom: candidates that ran out of memory. broken: candidates that could not be run.
    pending: candidates being probed now. observed: part -> what its residual learns from.
    outside: trials that are of no candidate.
    """

    tried: set[int] = field(default_factory=set)
    measured: dict[int, dict[str, float]] = field(default_factory=dict)
    oom: list[int] = field(default_factory=list)
    broken: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    observed: dict[str, list[Observed]] = field(default_factory=dict)
    outside: int = 0

    @property
    def probes(self) -> int:
        """Finished probes that taught something."""
        return len(self.measured) + len(self.oom)

    def fitting(self, priced: Priced) -> list[int]:
        """Measured candidates within their limit of memory, in the order of their probes."""
        limit = priced.limit
        return [
            index for index, values in self.measured.items()
            if values.get(MEMORY, 0.0) <= limit[index]
        ]  # fmt: skip

    def learn(
        self, priced: Priced, index: int, values: Mapping[str, float],
        noise: Mapping[str, float] | None = None, *, disturbed: bool = False,
    ) -> None:  # fmt: skip
        """Add the measurements of one probe; noise: of parts measured less well than usual."""
        self.tried.add(index)
        self.measured[index] = dict(values)
        for part in priced.parts:
            row = int(part.row_of[index])
            predicted = float(part.predicted[row])
            if part.name in values and predicted > 0 and values[part.name] > 0:
                ratio = math.log(values[part.name] / predicted)
                sd = max(part.noise, (noise or {}).get(part.name, 0.0))
                timed = disturbed and part.name != MEMORY
                if timed:
                    sd = max(sd, DISTURBED_SD)
                self._add(part.name, part.codes[row], ratio, sd, disturbed=timed)

    def learn_oom(self, priced: Priced, index: int) -> None:
        """Add a probe that ran out of memory: it needed more than there is.

        One that fitted before and did not again is no choice any more.
        """
        self.tried.add(index)
        self.measured.pop(index, None)
        self.oom.append(index)
        for part in priced.parts:
            if part.name == MEMORY:
                row = int(part.row_of[index])
                predicted = float(part.predicted[row])
                least = math.log(float(priced.limit[index]) / predicted)
                self._add(part.name, part.codes[row], least, part.noise, least=True)

    def _add(
        self, part: str, codes: Iterable[int], ratio: float, noise: float, *, least: bool = False,
        disturbed: bool = False,
    ) -> None:  # fmt: skip
        found = Observed(tuple(int(c) for c in codes), ratio, noise, least, disturbed)
        self.observed.setdefault(part, []).append(found)


def checked(measured: Any, priced: Priced, where: str) -> dict[str, float]:  # noqa: ANN401 - JSON
    """The measurements of a trial. Raises InputError for what no probe can have measured."""
    if not isinstance(measured, dict):
        msg = f"{where}: measured must map parts to values, not {type(measured).__name__}"
        raise InputError(msg)
    known = [part.name for part in priced.parts]
    found = {}
    for name, value in measured.items():
        if name not in known:
            what = "measured part"
            raise unknown(what, name, known, f"parts: {', '.join(known)}", where)
        if value is None:
            continue
        if not is_number(value) or not np.isfinite(value) or value < 0:
            msg = f"{where}: measured {name} is {value!r}; it must be a finite number from 0 on"
            raise InputError(msg, "leave a part out that was not measured")
        found[name] = float(value)
    return found


def history_of(trials: Iterable[FrozenTrial], priced: Priced, names: set[str]) -> History:
    """What finished and pending trials say. names: parameters that make a candidate.

    A measurement that a quicker one of the same candidate overturned counts as a disturbed one.
    """
    history = History()
    probed = [
        trial
        for trial in trials
        if trial.user_attrs.get(BASIS) != MODELLED and not is_dropped(trial)
    ]
    too_long = _too_long(probed, priced, names)
    for trial in probed:
        index = _candidate(trial, priced, names)
        if index is None:
            history.outside += bool(trial.params) and not _half_told(trial, names)
            continue
        where = f"trial {trial.number}"
        if not trial.state.is_finished():
            history.tried.add(index)
            history.pending.append(index)
        elif trial.user_attrs.get(OOM):
            history.learn_oom(priced, index)
        elif MEASURED in trial.user_attrs:
            values = checked(trial.user_attrs[MEASURED], priced, where)
            noise = checked(trial.user_attrs.get(NOISE, {}), priced, f"{where}: noise of")
            disturbed = bool(trial.user_attrs.get(DISTURBED)) or trial.number in too_long
            history.learn(priced, index, values, noise, disturbed=disturbed)
        else:
            history.tried.add(index)
            if trial.user_attrs.get(WITHDRAWN):
                history.measured.pop(index, None)
            elif trial.state == TrialState.FAIL:
                history.broken.append(index)
    return history


def is_dropped(trial: FrozenTrial) -> bool:
    """Whether it was given up for good.

    That takes two steps: whoever does it may be killed between them, and its worker, silent until
    then, tells it after all.
    """
    given_up = bool(trial.user_attrs.get(DROPPED)) and trial.state.is_finished()
    return given_up and RECORD not in trial.user_attrs


def _half_told(trial: FrozenTrial, names: set[str]) -> bool:
    """Whether another process is telling it parameter by parameter, or died while it did."""
    return trial.values is None and trial.params.keys() < names


def _too_long(trials: Iterable[FrozenTrial], priced: Priced, names: set[str]) -> set[int]:
    """Numbers of the trials whose computing took longer than another run of the same showed.

    One that is being told does not count yet: it may be given up before its end.
    """
    groups: dict[int, list[tuple[int, Run]]] = {}
    for trial in trials:
        value, sd = _compute(trial, MEASURED), _compute(trial, NOISE)
        index = _candidate(trial, priced, names)
        if index is None or value <= 0 or not trial.state.is_finished():
            continue
        run = Run(math.log(value), bool(trial.user_attrs.get(DISTURBED)), sd)
        groups.setdefault(index, []).append((trial.number, run))
    found = set()
    for group in groups.values():
        kept = believed([run for _, run in group])
        found |= {number for number, run in group if run not in kept}
    return found


def _compute(trial: FrozenTrial, name: str) -> float:
    """A trial's figure of computing; 0 where it has none that is a number (`checked` says so)."""
    told = trial.user_attrs.get(name)
    value = told.get(COMPUTE) if isinstance(told, dict) else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0


def _candidate(trial: FrozenTrial, priced: Priced, names: set[str]) -> int | None:
    if not names <= set(trial.params):
        return None
    try:
        return priced.find(trial.params)
    except (KeyError, ValueError):
        return None
