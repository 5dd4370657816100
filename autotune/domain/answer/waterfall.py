"""From one way to run a job to another, change by change; and what else a measured time may mean.

Seconds and dollars of a change are what it adds: negative saves. They add up to the difference.
"""

from __future__ import annotations

from dataclasses import field

from autotune.domain.answer.contract import Answer
from autotune.frozen import dataclass


@dataclass(frozen=True, slots=True)
class WaterfallStep(Answer):
    """One change and what it is worth given the others.

    change: a knob, `machine`, or a key of the job. touches: components of the bill that read it.
    yours: it changes what is trained, so it is the user's decision.
    """

    change: str
    from_: str
    to: str
    duration_s: float
    cost_usd: float
    touches: tuple[str, ...] = ()
    yours: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Steps from one bill to another. start + steps = end, in seconds and in dollars."""

    start_s: float
    start_usd: float
    end_s: float
    end_usd: float
    steps: tuple[WaterfallStep, ...]


@dataclass(frozen=True, slots=True)
class SideOption(Answer):
    """A change around the job, not applied, and what it would add to the pick (negative: saves).

    apply: how to do it. yours: it changes what is trained.
    """

    change: str
    from_: str
    to: str
    duration_s: float
    cost_usd: float
    why: str
    apply: str = ""
    yours: bool = False


STANDING = frozenset({"likely", "possible", "strained"})  # verdicts that leave a reading open


@dataclass(frozen=True, slots=True)
class Competing(Answer):
    """One reading of a measured time.

    efficiency: what multiplies the modelled training time so that this reading gives the measured
    one. peak_share: of the device's dense peak that it needs, padding counted. verdict: likely
    (within the model's own 80 % range), possible (kernels differ that much), strained (faster than
    anything observed), insufficient (slower than kernels explain), impossible (above the peak),
    immaterial (changes nothing). fixed_s: today's config once the cause is gone; None where nothing
    is to be repaired. pick_s: the pick, if this reading is true; None where it is ruled out.
    """

    name: str
    text: str
    predicted_s: float
    efficiency: float
    peak_share: float
    verdict: str
    fixed_s: float | None
    pick_s: float | None

    @property
    def open(self) -> bool:
        """Whether the measurement leaves it standing."""
        return self.verdict in STANDING


@dataclass(frozen=True, slots=True)
class DecidingCheck(Answer):
    """Something to look at that differs between readings, and what it costs.

    shows: reading -> what would be seen. tells_apart, leaves: pairs of readings; a free look leaves
    what it and the looks before it do, a probe what it alone does.
    """

    name: str
    text: str
    duration_s: float
    cost_usd: float
    decides: bool = field(init=False)  # it tells all readings apart
    shows: dict[str, str]
    tells_apart: tuple[tuple[str, str], ...]
    leaves: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        """What decides leaves no pair."""
        object.__setattr__(self, "decides", not self.leaves)


@dataclass(frozen=True, slots=True)
class MeasuredGap(Answer):
    """A measured time of today's run, the readings that compete, and what would decide."""

    observation: str
    measured_s: float
    readings: tuple[Competing, ...]
    open: tuple[str, ...] = field(init=False)  # readings that the measurement cannot tell apart
    checks: tuple[DecidingCheck, ...] = ()

    def __post_init__(self) -> None:
        """Open are the readings that stand."""
        standing = tuple(each.name for each in self.readings if each.open)
        object.__setattr__(self, "open", standing)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Today to the pick: the waterfall, options beyond it, and readings of what was measured."""

    waterfall: Waterfall | None = None
    options: tuple[SideOption, ...] = ()
    gaps: tuple[MeasuredGap, ...] = field(default=())
