"""Competing readings of a measured time: what each needs of the kernels, and whether it can be.

The bill under a reading and the measurement differ by a factor on the training time. Kernels,
versions and clocks explain some of it, so a reading is judged by the factor it needs, and one that
needs a fast device by the share of its peak: padded tokens are computed like any other.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.claims.feasibility import ceiling_flop_per_s, observed_share
from autotune.cost.batches import expected_longest
from autotune.domain.answer.waterfall import STANDING
from autotune.domain.config import KNOBS, split_of
from autotune.domain.edit import Edit
from autotune.domain.observation import Calibration
from autotune.domain.outcome import Z90
from autotune.domain.units import format_count
from autotune.evidence.calibrate import LARGEST_FACTOR, step_factor
from autotune.evidence.explanations import (
    MOVES,
    alternatives,
    measured_seconds,
    predicted_seconds,
)
from autotune.evidence.reference import Reference, bills_together, reference_of
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.cost.bill import Bill
    from autotune.evidence.cases import Price
    from autotune.evidence.explanations import Belief

AS_STATED = "as stated"
OTHER_CONFIG = "other config"
# Beliefs that a prediction which hardly moves does not settle: what is stated, and what was made to
# give the measured time exactly. Any other explains nothing then.
SETTLED_OTHERWISE = (AS_STATED, OTHER_CONFIG, "lengths", "checkpoint_disk")


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One reading of an observation. factor: on training time, to give what was measured.

    share: of the device's dense peak that it needs, padding counted.
    """

    name: str
    text: str
    reference: Reference
    predicted_s: float
    measured_s: float
    factor: float
    share: float
    save_s: float  # of one checkpoint
    verdict: str  # likely, possible, strained, insufficient, impossible, immaterial

    @property
    def open(self) -> bool:
        """Whether the measurement leaves it standing."""
        return self.verdict in STANDING

    @property
    def calibration(self) -> Calibration:
        """The cost model under this reading: it gives exactly what was measured."""
        return Calibration({"compute": self.factor, "collectives": self.factor})


def hypotheses_of(reference: Reference, price: Price) -> tuple[Hypothesis, ...]:
    """The stated run, the other configs it may have been, and every belief that may be wrong.

    The standing ones first, the nearest to the model among them first. Empty where the quantity is
    no time.
    """
    bill = price(reference.job, reference.candidates)
    measured, expected = measured_seconds(reference, bill), predicted_seconds(reference, bill)
    if measured is None or not expected or measured <= 0:
        return ()
    if step_factor(reference, bill, {}) is None:
        return ()  # without training steps no speed of them explains anything
    told = 1 / MOVES < measured / expected < MOVES  # nothing is left to solve for
    beliefs = [
        Edit(lambda run: run, _stated_text(reference), AS_STATED),
        *_other_configs(reference),
        *alternatives(reference, bill, price, measured, solve=not told),
    ]
    believed = [belief.apply(reference) for belief in beliefs]
    found = [
        _reading(belief, run, bill, expected)
        for belief, run, bill in zip(
            beliefs, believed, bills_together(believed, price), strict=True
        )
    ]
    return tuple(sorted(found, key=lambda r: (not r.open, abs(math.log(r.factor)))))


def _stated_text(reference: Reference) -> str:
    job, config = reference.job, reference.config
    rows = "the longest row of a batch" if job.padding == "longest" else "max_length"
    return (
        f"as stated: micro-batch {config.micro_batch_size}, accumulation "
        f"{config.gradient_accumulation_steps}, {job.lengths.mean:.0f} tokens a row, padded to "
        f"{rows}"
    )


def _other_configs(reference: Reference) -> Iterator[Belief]:
    """The other config that the entry says it may have been, as the run it would be."""
    stated = reference.observation.facts.get("or_config")
    if not isinstance(stated, dict) or not stated:
        return
    split = split_of(stated)
    facts = dict(reference.observation.facts)
    if split is not None:
        batch = math.prod((*split, reference.offer.count))
        job = reference.job
        facts["global_batch"] = batch
        facts["steps"] = math.ceil(job.epochs * math.ceil(job.rows / batch))
    knobs = {**reference.observation.knobs, **{k: v for k, v in stated.items() if k in KNOBS}}
    observation = replace(reference.observation, knobs=knobs, facts=facts)
    other = reference_of(reference.job, observation)
    if other is None:
        return
    words = ", ".join(f"{name} {value}" for name, value in stated.items())
    batch_text = ""
    if other.job.global_batch_size != reference.job.global_batch_size:
        batch_text = (
            f": a global batch of {other.job.global_batch_size}, "
            f"{format_count(other.job.steps)} steps"
        )
    meant = replace(other, offer=reference.offer)
    yield Edit(lambda _: meant, f"it was {words}{batch_text}", OTHER_CONFIG)


def _reading(belief: Belief, reference: Reference, bill: Bill, expected: float) -> Hypothesis:
    """The run as it is believed to be. expected: [s] the prediction of the stated one."""
    measured = measured_seconds(reference, bill) or 1.0
    predicted = predicted_seconds(reference, bill) or 1.0
    factor = step_factor(reference, bill, {}) or 1.0
    share, most, ceiling = _shares(reference, bill, factor)
    moved = not 1 / MOVES < predicted / expected < MOVES
    if not moved and belief.key not in SETTLED_OTHERWISE:
        verdict = "immaterial"
    else:
        log_sd = bill.at("compute", "log_sd", 0)
        verdict = _verdict(factor, log_sd, share, most, ceiling)
    save_s = float(bill.tables["checkpoint"].gather("save_s")[0])
    return Hypothesis(
        belief.key, belief.label, reference, predicted, measured, factor, share, save_s, verdict
    )


def _verdict(factor: float, log_sd: float, share: float, most: float, ceiling: float) -> str:
    if share > ceiling:
        return "impossible"
    if factor > LARGEST_FACTOR:
        return "insufficient"
    if share > most or factor < 1 / LARGEST_FACTOR:
        return "strained"
    return "likely" if abs(math.log(factor)) <= Z90 * log_sd else "possible"


def _shares(reference: Reference, bill: Bill, factor: float) -> tuple[float, float, float]:
    """Share of the dense peak that the reading needs, the most observed, and the ceiling."""
    job, offer, config = reference.job, reference.offer, reference.config
    peak = offer.device.peak_flop_per_s(config.precision) * offer.count
    if peak <= 0:
        return 0.0, 1.0, 1.0
    busy_s = float(bill.steps[0]) and bill.time_parts(0).train / float(bill.steps[0])
    if busy_s <= 0:
        return 0.0, 1.0, 1.0
    useful = bill.at("compute", "useful_flop_per_step", 0) * _padding(reference)
    ceiling = ceiling_flop_per_s(job, offer, peak) / peak
    return useful / (busy_s * factor * peak), min(observed_share(job), ceiling), ceiling


def _padding(reference: Reference) -> float:
    """Tokens computed for each real one."""
    return padded_tokens(reference) / max(reference.job.lengths.mean, 1e-9)


def padded_tokens(reference: Reference) -> float:
    """[tokens] mean length of a micro-batch's rows as the model gets them."""
    job, config = reference.job, reference.config
    if config.packing == "on":
        return job.lengths.mean
    if job.padding == "max_length":
        return float(job.max_length)
    if config.length_grouping == "on":
        return job.lengths.mean
    return expected_longest(job.lengths, float(config.micro_batch_size))
