"""Why the pick is the pick: what each knob's best other value would cost, everything else kept."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune.app.whatif.shortfall import on_host_words
from autotune.cost.bill import ON_HOST, break_even_steps
from autotune.cost.time.checkpoint import MAX_LOST_WORK_S
from autotune.domain.answer.recommendation import Decisive
from autotune.domain.config import DERIVED, KNOBS
from autotune.domain.units import format_bytes, format_count, format_seconds
from autotune.search.selection import TIE

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from autotune.cost.bill import Bill
    from autotune.domain.config import Config
    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated

DISK_SHARE = 0.5  # of an assumed disk: what takes more is worth a word
LOCKED, ALONE = "locked by the job", "the only value that is valid here"
BROKE = "no other value ran on this machine"
UNSEARCHED = frozenset({LOCKED, ALONE, BROKE})
ROUGH = 2.0  # times as long as modelled: what offloading may take, as far as it could be checked
RELEVANT_FRACTION = 0.002  # changes below 0.2 % of the duration are "no difference"


def reasons(
    bill: Bill, pick: int, broke: Callable[[Config], str | None] = lambda _: None
) -> dict[str, str]:
    """One clause per knob: what the best other value of that knob alone would cost.

    Only knobs with more than one value in the space have an alternative. broke: why a configuration
    does not run here; those are no alternatives.
    """
    found: dict[str, str] = {}
    for name in KNOBS:
        if name in DERIVED:
            continue
        others = _one_knob_away(bill, pick, name)
        run = [k for k, i in enumerate(others) if not broke(bill.candidates.config(int(i)))]
        if run:
            found[name] = _clause(bill, pick, name, others[run])
        elif len(others):
            found[name] = BROKE
        elif name in bill.job.lock:
            found[name] = LOCKED
        else:
            found[name] = ALONE
    found["compile"] += _break_even(bill, pick)
    found |= derived_reasons(bill.job, bill.estimate(pick))
    return found


def _break_even(bill: Bill, pick: int) -> str:
    """After how many steps compiling has paid for itself, where the pick compiles."""
    mode = bill.candidates.value("compile", pick)
    eager = [
        int(other)
        for other in _one_knob_away(bill, pick, "compile")
        if bill.candidates.value("compile", int(other)) == "off"
    ]
    if mode == "off" or not eager:
        return ""
    steps = break_even_steps(bill, pick, eager[0])
    if not math.isfinite(steps):
        return ""
    once = format_seconds(bill.at("startup", "compile_s", pick))
    paid = f"compiling takes {once}, paid back after {format_count(steps)} steps"
    return f"; {paid} if it gains what is expected, which no public run has shown"


def _one_knob_away(bill: Bill, pick: int, name: str) -> np.ndarray:
    import numpy as np

    same = np.ones(len(bill), np.bool_)
    for axis, codes in bill.candidates.codes.items():
        if axis not in {name, *DERIVED}:
            same &= codes == codes[pick]
    same &= bill.candidates.codes[name] != bill.candidates.codes[name][pick]
    return np.flatnonzero(same)


def _clause(bill: Bill, pick: int, name: str, others: np.ndarray) -> str:
    import numpy as np

    fitting = others[bill.feasible[others]]
    if not len(fitting):
        nearest = int(others[np.argmin(bill.memory_violation[others])])
        over = float(bill.memory_bytes[nearest] - bill.usable_bytes[nearest])
        value = _value(bill, name, nearest)
        if over > 0:
            return f"{value} would need {format_bytes(over)} more than is usable"
        return f"{value} would fit too tightly"
    best = int(fitting[np.argmin(bill.duration_s[fitting])])
    value = _value(bill, name, best)
    extra = float(bill.duration_s[best] - bill.duration_s[pick])
    if abs(extra) < RELEVANT_FRACTION * float(bill.duration_s[pick]):
        saved = float(bill.memory_bytes[best] - bill.memory_bytes[pick])
        if saved > 0.01 * float(bill.memory_bytes[pick]):
            return f"as fast as {value}, and {format_bytes(saved)} smaller"
        return f"no difference to {value}"
    if extra < 0:
        tie = -extra <= TIE * float(bill.duration_s[pick])
        untried = " by the formula; nobody measured it, or it did not fit when traced"
        why = " (a tie, so the simpler one is taken)" if tie else untried
        return f"{value} would be {format_seconds(-extra)} faster{why}"
    return f"{value} would take {format_seconds(extra)} longer"


def _value(bill: Bill, name: str, index: int) -> str:
    """A candidate's value of a knob; of torch.compile, also what it compiles."""
    value = str(bill.candidates.value(name, index))
    if name != "compile" or value == "off":
        return value
    scope = bill.candidates.value("compile_scope", index)
    return f"{value} ({'whole model' if scope == 'model' else scope})"


def derived_reasons(job: Job, row: Estimated) -> dict[str, str]:
    """Why the closed forms of a row are what they are, by the row's own seconds."""
    offer, micro = row.offer, row.config.micro_batch_size
    interval = min(row.config.checkpoint_every_steps, row.steps)
    interval_s = interval * row.step_time_s
    split = f"{micro} x accumulation x {offer.count} device(s) = {job.global_batch_size}"
    kept = "as many as the disk holds, at most two"
    if not job.steps:
        checkpoints = kept = "nothing is saved: there are no training steps"
    elif "checkpoint_every_steps" in job.lock:
        checkpoints = LOCKED
    elif interval >= job.steps:
        checkpoints = f"one save, at the end: all steps take {format_seconds(interval_s)}"
    elif offer.spot:
        checkpoints = (
            f"every {format_seconds(interval_s)}: best balance with lost work (Young/Daly)"
        )
    else:
        checkpoints = f"at most {format_seconds(interval_s)} of work is at risk (max_lost_work)"
        if job.limits.max_lost_work_s is None and interval_s > MAX_LOST_WORK_S:
            save_s = row.time_s.checkpoint / max(row.checkpoints, 1)
            checkpoints = (
                f"a save takes {format_seconds(save_s)}; at most {format_seconds(interval_s)} of "
                "work is at risk (limits.max_lost_work: less)"
            )
    return {
        "gradient_accumulation_steps": f"keeps the global batch: {split}",
        "checkpoint_every_steps": checkpoints,
        "save_total_limit": LOCKED if "save_total_limit" in job.lock else kept,
    }


def ram_note(bill: Bill, index: int) -> tuple[str, ...]:
    """What to say of the host's memory: what is offloaded to it, else what loading or saving takes.

    Nothing where the host was stated, or has plenty of it.
    """
    row = bill.estimate(index)
    host, away = row.offer.host, bill.at("memory", "host_bytes", index)
    needed = max(bill.at("memory", name, index) for name in ON_HOST)
    fills = on_host_words(bill, index)
    if away <= 0:
        if "ram_bytes" not in host.assumed or needed <= RAM_SHARE * host.ram_bytes:
            return ()
        narrow = ", or load them in 16 bits (`dtype`)" if "fp32" in fills else ""
        text = f"{fills} takes {format_bytes(needed)} of host memory: rent a machine with more"
        return (Decisive(text + narrow),)
    told = (
        f"offload {row.config.offload} takes about {format_bytes(away)} of host memory; its time "
        f"is rough: where it could be checked, the model was off by a factor of {ROUGH:.0f}"
    )
    if needed > away:
        told += f"; {fills} takes {format_bytes(needed)} with it"
    if "ram_bytes" not in host.assumed:
        return (Decisive(told),)
    rent = f"; rent a {row.offer.label} with that much memory, as the job does not state it"
    return (Decisive(told + rent),)


RAM_SHARE = 0.8  # of a host's assumed memory, from which what fills it is spoken of


def disk_note(bill: Bill, index: int) -> tuple[str, ...]:
    """What to say of what a run writes, beside a disk that nobody stated, or one that it fills.

    Nothing where there is room for all of it. What lies beside the results may be on another disk:
    a stated one is not refused for it.
    """
    row = bill.estimate(index)
    host, use = row.offer.host, row.disk
    beside = use.fetched_bytes + use.tokenised_bytes
    if "disk_bytes" not in host.assumed:
        left = host.disk_bytes - use.total_bytes
        if not 0 <= left < beside:
            return ()
        text = (
            f"{use.beside} need another disk, or a larger: the stated "
            f"{format_bytes(host.disk_bytes)} hold {use.words}, and {format_bytes(left)} more"
        )
        return (Decisive(text),)
    needed = use.total_bytes + beside
    if needed <= DISK_SHARE * host.disk_bytes:
        return ()
    other = f", and {use.beside}" if use.beside else ""
    text = (
        f"the run needs {format_bytes(needed)} of disk: {use.words}{other}; rent that much, or "
        f"keep fewer checkpoints: the job does not state the disk of {row.offer.label}"
    )
    return (Decisive(text),)
