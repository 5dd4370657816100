"""Which one fact would narrow the interval of a priced candidate most, and to what.

Each fact (the rows' lengths, a doctor's minute, a probe, one save) settles some of the causes that
`joint` tells apart: without their variance the interval is what would be left of it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from autotune.catalog.software import OWN_LOOP
from autotune.cost.bill import component_seconds, slow_log_sd
from autotune.cost.columns import Component, tabulate
from autotune.cost.constants import fitted
from autotune.cost.spread.gradient import TINY
from autotune.cost.spread.joint import DEVICE, PROGRAM, STEP, loadings
from autotune.cost.spread.uncertainty import (
    MEASURED_DEVICE,
    MEASURED_PROCESSOR,
    board_share,
    board_variance,
    is_new_program,
    program_range,
    sd_of_device,
)
from autotune.cost.spread.unsaid import unsaid
from autotune.cost.time import compute
from autotune.domain.answer.recommendation import Decisive, Narrowing
from autotune.domain.outcome import Z90
from autotune.domain.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.cost.bill import Bill
    from autotune.cost.columns import Columns, Outputs
    from autotune.domain.device import Device
    from autotune.domain.job import Job

STATED = {  # causes that a line of the job file settles
    "lengths": "the rows' lengths: `--data FILE` counts them; or state data.lengths",
    "padding": "how batches are padded: state data.padding",
    "attention": "which attention runs: `--set attention=NAME`",
    "activation_checkpointing": (
        "whether activations are checkpointed: `--set activation_checkpointing=full`, or none"
    ),
    "micro_batch_size": "the micro-batch: `--set micro_batch_size=N`",
    "sharding": "how the devices share the work: `--set sharding=NAME`",
    "method.base": "the dtype that weights are loaded in: state method.base, 16bit or 32bit",
    "method.targets": "which modules have adapters: state method.targets",
    "software": "the versions that run: `--set software.transformers=VERSION`, and software.trl",
    "compile": "what torch.compile gains here: time a few steps with and without it",
}
COMPONENTS = {
    "collectives": "the links between the devices: time a few steps on all of them",
    "data": "how fast batches are prepared: state hardware.host.cores, or time the loader",
    "checkpoint": "the seconds of one save: state hardware.host.checkpoint_write, or time a save",
    "evaluation": "the seconds of one evaluation: time one",
    "startup": "loading and compiling: state hardware.host.download, or time a start",
}
STEP_WORDS = "a few measured steps of this job: a probe, or `evidence:` in the job file"
DOCTOR = "what this machine does in a second: `autotune doctor --measure`, a minute"
READ_HERE = "read from this machine"  # how the source of an offer's memory begins
BOARD = "board"  # what a slot adds on the side of slower runs
LEAST = 0.01  # of the variance: less narrows nothing


def narrowings(bill: Bill, i: int) -> tuple[Narrowing, ...]:
    """What each single fact would make of candidate `i`'s interval, the narrowest first.

    The interval is the same one without the variance of what the fact settles: its middle would
    move too, within what the interval is now. What nobody said of the run has sides of its own.
    """
    (own,) = loadings(bill, [i])
    causes, now, found = own.by_cause(), own.variance(), []
    open_ = _unsaid(bill, i)
    faster = sum(causes.get(fact, 0.0) for fact in open_)
    most = float(slow_log_sd(bill, np.asarray([i]))[0]) ** 2
    slower = max(most - sum(open_.values()) - (now - faster), 0.0)  # of the machine and program
    for fact, settled, words in _facts(bill, i):
        known = {cause: own * settled.get(cause, 0.0) for cause, own in causes.items()}
        left = max(now - sum(known.values()), 0.0)
        late = most - sum(value for cause, value in known.items() if cause not in open_)
        late -= sum(value for cause, value in open_.items() if cause in settled)
        late -= slower * settled.get(PROGRAM, settled.get(BOARD, 0.0))
        if left < now * (1.0 - LEAST) or late < most * (1.0 - LEAST):
            seconds, z = float(bill.duration_s[i]), Z90
            low, high = (math.exp(z * math.sqrt(max(side, 0.0))) for side in (left, late))
            found.append(Narrowing(fact, words, seconds / low, seconds * high))
    return tuple(sorted(found, key=lambda each: each.p90 / each.p10))


def _unsaid(bill: Bill, i: int) -> dict[str, float]:
    """By fact that nobody stated, what it adds to candidate `i`'s variance on the slower side.

    Nothing where measured steps stand for the model.
    """
    if bill.basis != "modelled" or not bill.at("compute", "slow_variance", i):
        return {}
    place = np.asarray([i])
    table = tabulate(_SLOWER, bill.job, bill.candidates.take(place))
    share = float(component_seconds(bill, place)["compute"][0]) / max(bill.duration_s[i], TINY)
    return {fact: share**2 * float(own[table.row_of[0]]) for fact, own in table.outputs.items()}


def _price_slower(job: Job, columns: Columns) -> Outputs:
    return {fact: sides.slower for fact, sides in unsaid(job, columns).items()}


_SLOWER = Component("slower", compute.READS, _price_slower)


def narrowest_input(bill: Bill, i: int) -> str:
    """The input that would narrow the duration of candidate `i` most, as words to print."""
    found = narrowings(bill, i)
    return said(found[0]) if found else STEP_WORDS


def said(narrowing: Narrowing) -> str:
    """A fact, and the range that would remain."""
    ends = f"{format_seconds(narrowing.p10)} to {format_seconds(narrowing.p90)}"
    return f"{narrowing.what} (the range would be {ends})"


def _facts(bill: Bill, i: int) -> Iterator[tuple[str, dict[str, float], str]]:
    """Every fact, the share of each cause's variance that it settles, and its words."""
    for cause, words in {**STATED, **COMPONENTS}.items():
        yield cause, {cause: 1.0}, words
    offer = bill.candidates.offer(i)
    device = offer.device
    words, model = STEP_WORDS, fitted()
    if model.offset("device", device.name) is None and bill.basis == "modelled":
        words = STEP_WORDS.replace("of this job", f"on {device.name}")
    yield "probe", dict.fromkeys(STEP, 1.0), words
    here = device.is_cpu or offer.memory_source.startswith(READ_HERE)
    if here and device.rates is None and bill.basis == "modelled":
        usual = sd_of_device(device, model, offer.count)
        left = min(MEASURED_PROCESSOR if device.is_cpu else MEASURED_DEVICE, usual)
        board = board_share(device, model, bill.job.software.stack, offer.count)
        if left < usual or board:
            yield "doctor", {DEVICE: 1.0 - (left / max(usual, TINY)) ** 2, BOARD: board}, DOCTOR


def new_program_note(job: Job) -> str | None:
    """What to say of a training program that no measured step is of; None for the others."""
    if not is_new_program(job):
        return None
    low, high = program_range()
    stack = job.software.stack
    return Decisive(
        f"no step by {'a loop of your own' if stack == OWN_LOOP else stack} went into the model: "
        f"such programs take {low:.1f} to {high:.1f} times its time. A probe or `autotune learn` "
        "settles it"
    )


def never_measured_note(device: Device) -> str | None:
    """What to say of a device that no measured training step speaks of; None for the others."""
    model = fitted()
    if device.rates or model.offset("device", device.name) is not None:
        return None
    either = sd_of_device(device, model)
    faster, slower = (
        f"{math.exp(Z90 * sd):.1f}"
        for sd in (either, math.sqrt(either**2 + board_variance(device, model)))
    )
    ends = f"shorter or {'' if faster == slower else f'{slower} times '}longer"
    return Decisive(
        f"no step measured on {device.name} went into the model: its time, estimated from the "
        f"data sheet, may be {faster} times {ends}, or more"
    )
