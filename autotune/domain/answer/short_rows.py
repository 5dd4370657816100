"""The other end of a bill whose row lengths nobody stated: the same run on short rows."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.domain.answer.contract import Answer
from autotune.domain.outcome import Spread  # noqa: TC001 - what reads answers needs the type


@dataclass(frozen=True, slots=True)
class ShortRows(Answer):
    """What a priced row takes if the rows are as short as those of a published data set.

    The row itself counts every row at `max_length`. like: the data set; p50_tokens: under which
    half of its rows are; source: who published that. settled: a measured time of today's run sets
    the scale at both ends, so that only what the lengths do to the configurations is left open.
    """

    duration_s: Spread
    cost_usd: Spread
    like: str
    p50_tokens: float
    source: str
    settled: bool
