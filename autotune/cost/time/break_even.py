"""After how many steps a start-up cost has paid for itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.cost.model import Bill


def break_even_steps(bill: Bill, on: int, off: int) -> float:
    """Optimizer steps after which candidate `on` has paid its longer start back against `off`.

    Formula: (once_on - once_off) / (step_off - step_on), rounded up; infinite where a step gains
    nothing, 0 where the start is no longer.
    Source: derived.
    """
    once = [_once_s(bill, i) for i in (on, off)]
    longer, gain = once[0] - once[1], float(bill.step_s[off] - bill.step_s[on])
    if longer <= 0:
        return 0.0
    return math.ceil(longer / gain) if gain > 0 else math.inf


def _once_s(bill: Bill, i: int) -> float:
    return bill.at("startup", "compile_s", i) + bill.at("startup", "load_s", i)
