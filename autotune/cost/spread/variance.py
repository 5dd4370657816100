"""Which input would narrow the interval of a priced candidate most.

Every cause of uncertainty owns a part of the variance of the run's duration; the largest is named
with what to state or measure. Several causes that one measured step settles count together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.bill import component_seconds
from autotune.cost.columns import Component, tabulate
from autotune.cost.constants import fitted
from autotune.cost.spread.uncertainty import variances
from autotune.cost.time import compute
from autotune.cost.time.step_terms import step_terms
from autotune.domain.answer.recommendation import Decisive

if TYPE_CHECKING:
    from autotune.cost.bill import Bill
    from autotune.cost.columns import Columns, Outputs
    from autotune.domain.job import Job

STATED = {  # causes that a line of the job file settles
    "lengths": "the rows' lengths: `--data FILE` counts them; or state data.lengths",
    "padding": "how batches are padded: state data.padding",
    "compile": "what torch.compile gains here: time a few steps with and without it",
}
COMPONENTS = {
    "collectives": "the links between the devices: time a few steps on all of them",
    "data": "how fast batches are prepared: state hardware.host.cores, or time the loader",
    "checkpoint": "the seconds of one save: state hardware.host.checkpoint_write, or time a save",
    "evaluation": "the seconds of one evaluation: time one",
    "startup": "loading and compiling: state hardware.host.download, or time a start",
}
STEP = "a few measured steps of this job: a probe, or `evidence:` in the job file"
SAME = 1e-6  # relative: a spread that evidence has not replaced


def narrowest_input(bill: Bill, i: int) -> str:
    """The input that would narrow the duration of candidate `i` most, as words to print."""
    shares = variance_shares(bill, i)
    name = max(shares, key=lambda cause: shares[cause])
    if name == "device":
        device = bill.candidates.offer(i).device.name
        return (
            f"a measured step on {device}: none went into the model. {STEP[:1].upper()}{STEP[1:]}"
        )
    return STATED.get(name) or COMPONENTS.get(name) or STEP


def never_measured_note(device: str) -> str | None:
    """What to say of a device that no measured training step speaks of; None for the others."""
    if fitted().offset("device", device) is not None:
        return None
    return Decisive(
        f"no step measured on {device} went into the model. Its time comes from its data "
        "sheet, and the range reaches at least 1.5 times each way"
    )


def variance_shares(bill: Bill, i: int) -> dict[str, float]:
    """Shares of the duration's variance by cause; they sum to 1.

    Causes: lengths, padding, compile, device (no training step on it was measured), step (whatever
    else measured steps would settle), and the other components of the bill.
    """
    seconds = component_seconds(bill, np.asarray([i]))
    of_bill = {c: (float(s[0]) * bill.at(c, "log_sd", i)) ** 2 for c, s in seconds.items()}
    in_step = of_bill.pop("compute")
    causes = _step_causes(bill, i)
    found = {**of_bill, **{cause: share * in_step for cause, share in causes.items()}}
    total = sum(found.values())
    return {cause: value / total for cause, value in found.items()} if total else {"step": 1.0}


def _step_causes(bill: Bill, i: int) -> dict[str, float]:
    """Shares of a step's variance by cause; all of it is "step" where evidence replaced it."""
    held: dict[str, float] = {}

    def hold(job: Job, columns: Columns) -> Outputs:
        own = variances(job, columns, step_terms(job, columns))
        held.update({name: float(value[0]) for name, value in own.items()})
        return {}

    one = bill.candidates.take(np.asarray([i]))
    tabulate(Component("spread", compute.READS, hold), bill.job, one)
    total = sum(held.values())
    if abs(total / bill.at("compute", "log_sd", i) ** 2 - 1.0) > SAME:
        return {"step": 1.0}
    causes = {name: held[name] for name in (*STATED, "device")}
    causes["step"] = total - sum(causes.values())
    return {name: value / total for name, value in causes.items()}
